/* The typical mistakes of lab 5: what each looks like from outside, and three hints. */
#include "tests/labs/05/causes.h"

#include <string.h>

static bool is_wrong(const struct lab_finding *f, const char *check, const char *label) {
    return f->how == LAB_WRONG && lab_is(f, check, label);
}

static bool never_freed(const struct lab_finding *f) {
    return f->how == LAB_LEAKED;
}

static bool negative_start(const struct lab_finding *f) {
    return !strcmp(f->check->name, "start") &&
           (!strncmp(f->label, "start with", 10) || f->how == LAB_MEMORY) && f->how != LAB_LEAKED;
}

static bool none_left(const struct lab_finding *f) {
    return is_wrong(f, "take", "block_allocate") && !strcmp(f->expected, "-1");
}

static bool wrong_first_order(const struct lab_finding *f) {
    return is_wrong(f, "take", "block_allocate");
}

static bool both_orders(const struct lab_finding *f) {
    return (is_wrong(f, "lifo", "block_allocate") && lab_failed(f, "fifo")) ||
           (is_wrong(f, "fifo", "block_allocate") && lab_failed(f, "lifo"));
}

static bool one_order(const struct lab_finding *f) {
    return (is_wrong(f, "lifo", "block_allocate") && !lab_failed(f, "fifo")) ||
           (is_wrong(f, "fifo", "block_allocate") && !lab_failed(f, "lifo"));
}

static bool end_of_list(const struct lab_finding *f) {
    const char *check = f->check->name;
    if (is_wrong(f, "take", "block_allocate") && lab_expected(f) > 0 && lab_found(f) == 0)
        return true; /* it starts again at the front */
    return (f->how == LAB_MEMORY || f->how == LAB_WRONG || f->how == LAB_UNDEFINED) &&
           f->check->step == 1 && (!strcmp(check, "rounds") || f->how == LAB_MEMORY);
}

static bool shared_not_counted(const struct lab_finding *f) {
    return is_wrong(f, "share", "block_references after sharing");
}

static bool used_counts_references(const struct lab_finding *f) {
    return is_wrong(f, "share", "stats.used after sharing");
}

static bool freed_while_shared(const struct lab_finding *f) {
    return is_wrong(f, "share", "block_release of a shared block") ||
           is_wrong(f, "share", "stats.used when one") ||
           is_wrong(f, "share", "stats.free when one");
}

static bool double_free(const struct lab_finding *f) {
    return is_wrong(f, "double free", "block_release of a free block");
}

static bool free_is_shared(const struct lab_finding *f) {
    return is_wrong(f, "double free", "block_share of a free block");
}

static bool changed_before_refused(const struct lab_finding *f) {
    return !strcmp(f->check->name, "double free") && f->how == LAB_WRONG &&
           strstr(f->label, "after a double free");
}

static bool foreign(const struct lab_finding *f) {
    return !strcmp(f->check->name, "foreign");
}

/* A jump to 0 leaves no line of the learner's file. */
static bool nobody_asked(const struct lab_finding *f) {
    return f->check->step == 3 && (f->how == LAB_CRASHED || f->how == LAB_UNDEFINED) &&
           (strstr(f->report, "SEGV") || strstr(f->report, "null"));
}

static bool mark_falls(const struct lab_finding *f) {
    return f->how == LAB_WRONG && !strncmp(f->label, "stats.most_used", 15) &&
           (lab_is(f, "most used", "") || lab_is(f, "random", "")) &&
           lab_found(f) < lab_expected(f);
}

static bool cached_not_available(const struct lab_finding *f) {
    return is_wrong(f, "cache", "block_available");
}

static bool cached_is_released(const struct lab_finding *f) {
    return is_wrong(f, "cache", "block_release of a cached block");
}

/* The free block was passed over: evicted is called for the first call already. */
static bool cached_before_free(const struct lab_finding *f) {
    return is_wrong(f, "cache", "block_allocate, call 1 ") && lab_found(f) != lab_expected(f);
}

static bool newest_evicted(const struct lab_finding *f) {
    return is_wrong(f, "cache", "evicted is called") && lab_found(f) > lab_expected(f);
}

static bool not_told(const struct lab_finding *f) {
    return is_wrong(f, "cache", "evicted is called") && !strncmp(f->found, "block_allocate", 14);
}

static bool used_before_told(const struct lab_finding *f) {
    return is_wrong(f, "cache", "stats.most_used while");
}

static bool stays_in_list(const struct lab_finding *f) {
    return !strcmp(f->check->name, "revive") || !strcmp(f->check->name, "forget");
}

const struct lab_cause lab_5_causes[N_LAB_5_CAUSES] = {
    {"nobody asked to be told",
     nobody_asked,
     {"What is a->evicted in an allocator whose owner sets none?",
      "It is NULL, as block_allocator_start leaves it: then nobody is called.",
      "Look at the call of a->evicted in {block_allocate}."}},
    {"nothing is freed at the end",
     never_freed,
     {"Who frees what block_allocator_start allocated?",
      "Count the allocations in block_allocator_start, on every way out of it, and the calls of "
      "free in block_allocator_end.",
      "Look at {block_allocator_end}: one free for each array, and the failing way out of "
      "{block_allocator_start}."}},
    {"a negative number of blocks",
     negative_start,
     {"What does your block_allocator_start do with -1 blocks, and with none?",
      "A negative number has to be refused before anything is allocated; no block at all is fine.",
      "Look at the first lines of {block_allocator_start}: return error_set(err, ...) when "
      "n_blocks "
      "< 0, and let malloc have at least one element."}},
    {"an empty pool gives blocks",
     none_left,
     {"How does block_allocate know that nothing is left?",
      "The call after the last block has to return -1, again and again, and change nothing.",
      "Look at the first line of {block_allocate}: compare the number of free blocks with 0 before "
      "the list is read."}},
    {"the end of the list",
     end_of_list,
     {"What happens when the first free place is the last place of the array?",
      "The list is a ring: after place total - 1 comes place 0, and before place 0 comes total - "
      "1. The check takes and gives back more often than there are places.",
      "Look at the index in {block_allocate} and {block_release}: each place where it grows or "
      "shrinks needs its turn-around."}},
    {"the first order",
     wrong_first_order,
     {"Which block should a new pool give out first, and which second?",
      "A new pool gives out 0, 1, 2, ... in ascending order, whatever its order is later.",
      "Look at the loop in {block_allocator_start} that fills the list: which end does "
      "{block_allocate} take from?"}},
    {"LIFO and FIFO mixed up",
     both_orders,
     {"A queue in front of a shop and a pile of plates: which is LIFO?",
      "LIFO gives out the block freed last; FIFO the one freed first. Both checks fail, so the two "
      "may have changed places.",
      "Look at where a->order is compared in {block_release}: BLOCKS_LIFO puts a block in front, "
      "BLOCKS_FIFO behind the last."}},
    {"the order is ignored",
     one_order,
     {"Where in your code is a->order read?",
      "One of the two orders is right and the other behaves like it: the list has two ends.",
      "Look at {block_release}: at which end a block goes back depends on a->order."}},
    {"a further reference is not counted",
     shared_not_counted,
     {"Two sequences use a block. How many references does it have?",
      "block_share is one more reference for a used block too, not for cached ones alone.",
      "Look at {block_share}: the case of references > 0."}},
    {"used counts references instead of blocks",
     used_counts_references,
     {"Is a block that two sequences share one used block or two?",
      "stats counts blocks: total = used + free + cached. A further reference changes none of "
      "them.",
      "Look at {block_share}: stats.used grows only for a block that was not used."}},
    {"freed while somebody uses it",
     freed_while_shared,
     {"Two sequences share a block, and one of them is done. Who uses the block now?",
      "Only the last reference makes a block free; block_release returns how many are left.",
      "Look at {block_release}: after one reference less, return early when some are left."}},
    {"a double free goes through",
     double_free,
     {"How could your block_release know that nobody uses the block?",
      "Released twice, a block would be in the free list twice, and two sequences would get it. It "
      "has to be -1 with err set.",
      "Look at the beginning of {block_release}: references <= 0 is an error, before anything is "
      "changed."}},
    {"a free block is shared",
     free_is_shared,
     {"What does a free block hold that somebody could share?",
      "block_share takes used and cached blocks; a free one is refused with err set.",
      "Look at {block_share}: what does it do when references is 0?"}},
    {"changed before it is refused",
     changed_before_refused,
     {"Your allocator says no. Is everything as it was before?",
      "A call that returns -1 must not have counted or listed anything.",
      "Look at {block_release} and {block_share}: the checks come first, then the changes."}},
    {"foreign numbers",
     foreign,
     {"Which numbers are blocks of this pool?",
      "Blocks are 0 to total - 1. Everything else is refused before any array is read.",
      "Look for the first use of `block` as an index in {block_share}, {block_release}, "
      "{block_forget} and {block_references}."}},
    {"the high-water mark falls",
     mark_falls,
     {"What should a high-water mark show when the water has gone?",
      "most_used is the largest value that used ever had.",
      "Look at {block_allocate} and {block_share}: where used grows, most_used follows if used is "
      "larger, and nowhere else."}},
    {"cached blocks do not count as available",
     cached_not_available,
     {"How many more blocks could be given out, if all were needed?",
      "A cached block is given out when no free one is left: it is available.",
      "Look at {block_available}: free and cached."}},
    {"a cached block is released",
     cached_is_released,
     {"Who has a reference to a cached block?",
      "Nobody uses a cached block; to release it is a double free like any other.",
      "Look at {block_release}: a cached block has references -1, which is not > 0."}},
    {"cached blocks go before free ones",
     cached_before_free,
     {"Which is worth more: a free block, or one that holds something?",
      "As long as there is a free block, no cached one is given out.",
      "Look at {block_allocate}: the free list comes first."}},
    {"the newest cached block goes first",
     newest_evicted,
     {"Which cached block is the least likely to be wanted again?",
      "The one that was released longest ago goes first: the list has an old and a new end.",
      "Look at where {block_release} puts a kept block (lru.last) and where {block_allocate} takes "
      "one (lru.first)."}},
    {"the owner is not told",
     not_told,
     {"Who else remembers what a cached block held?",
      "Before a cached block is given out, a->evicted is called with a->context and the block, if "
      "it is not NULL.",
      "Look at {block_allocate}, where it takes a cached block."}},
    {"the owner is told too late",
     used_before_told,
     {"Whose is the block while a->evicted runs?",
      "Nobody's: its old owner forgets what it held, and only then it gets a new one. used and "
      "most_used count it behind the call.",
      "Look at {block_allocate}: the call of a->evicted comes before the first reference."}},
    {"a block stays in the cached list",
     stays_in_list,
     {"A cached block is used or free again. In which list is it?",
      "It leaves the cached list, from the front, the middle or the end, and stats.cached counts "
      "one less.",
      "Look at the links in {block_share} and {block_forget}: next of the one before, previous of "
      "the one behind, and both ends."}},
};
