/* The typical mistakes of lab 6: what each looks like from outside, and three hints. */
#include "tests/labs/06/causes.h"

#include <stdlib.h>
#include <string.h>

static bool is_check(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool is_wrong(const struct lab_finding *f, const char *check, const char *label) {
    return f->how == LAB_WRONG && lab_is(f, check, label);
}

/* ---- step 1 ---------------------------------------------------------------------------------- */

static bool negative_missing(const struct lab_finding *f) {
    return is_wrong(f, "missing", "") && lab_expected(f) == 0 && lab_found(f) < 0;
}

static bool last_partial(const struct lab_finding *f) {
    return is_wrong(f, "missing", "") && lab_found(f) == lab_expected(f) - 1;
}

static bool exact_multiple(const struct lab_finding *f) {
    return is_wrong(f, "missing", "") && lab_found(f) == lab_expected(f) + 1;
}

/* The table has blocks, and they count once more. */
static bool own_blocks_forgotten(const struct lab_finding *f) {
    return is_wrong(f, "missing", "block_table_missing with") &&
           !strstr(f->label, "with 0 blocks") && lab_found(f) > lab_expected(f);
}

static bool half_taken(const struct lab_finding *f) {
    return f->how == LAB_WRONG && is_check(f, "lack") && strstr(f->label, "after") &&
           lab_found(f) > lab_expected(f);
}

static bool last_blocks_refused(const struct lab_finding *f) {
    return is_wrong(f, "lack", "block_table_grow") && lab_expected(f) == 0 && lab_found(f) == 1;
}

static bool no_block_in_table(const struct lab_finding *f) {
    return f->how == LAB_WRONG && is_check(f, "lack") &&
           (lab_found(f) == -1 || (lab_expected(f) == 1 && lab_found(f) == 0));
}

static bool kept_after_free(const struct lab_finding *f) {
    return is_wrong(f, "release", "n_blocks") ||
           is_wrong(f, "release", "block_table_release of an empty");
}

static bool first_one_first(const struct lab_finding *f) {
    return is_wrong(f, "release", "block_allocate") && f->size > 1;
}

static bool wrong_ones_kept(const struct lab_finding *f) {
    return is_wrong(f, "release", "cached blocks") || is_wrong(f, "release", "block_allocate");
}

static bool stops_at_refusal(const struct lab_finding *f) {
    return is_check(f, "refused") && f->how == LAB_WRONG;
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

/* The right block, another place in it. */
static bool wrong_offset(const struct lab_finding *f) {
    int want = (int)lab_expected(f), got = (int)lab_found(f);
    return is_wrong(f, "slot", "") && f->size > 1 && got >= 0 && want / f->size == got / f->size;
}

/* The right place in another block of the table. */
static bool wrong_entry(const struct lab_finding *f) {
    static const int table[] = {5, 9, 7, 2, 11};
    int want = (int)lab_expected(f), got = (int)lab_found(f);
    if (!is_wrong(f, "slot", "") || got < 0 || want % f->size != got % f->size)
        return f->how == LAB_MEMORY && is_check(f, "slot");
    for (int i = 0; i < 5; i++)
        if (got / f->size == table[i])
            return true;
    return false;
}

static bool not_through_table(const struct lab_finding *f) {
    return is_wrong(f, "slot", "");
}

static bool beyond_the_table(const struct lab_finding *f) {
    return is_check(f, "outside");
}

static bool negative_position(const struct lab_finding *f) {
    return is_check(f, "negative");
}

static bool overflow(const struct lab_finding *f) {
    return is_check(f, "far") && !lab_failed(f, "slot");
}

static bool first_ignored(const struct lab_finding *f) {
    return is_check(f, "slots") && f->how == LAB_WRONG && f->unit[0] && !lab_failed(f, "slot");
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

static bool nothing_to_copy(const struct lab_finding *f) {
    return f->check->step == 3 && f->how == LAB_UNDEFINED && strstr(f->report, "null pointer");
}

static bool full_last_page(const struct lab_finding *f) {
    return is_wrong(f, "lengths", "kv_last_page_len") && lab_found(f) != lab_expected(f);
}

static bool rows_not_added(const struct lab_finding *f) {
    return is_check(f, "batch") && (f->how == LAB_MEMORY || is_wrong(f, "batch", "kv_"));
}

static bool all_blocks_listed(const struct lab_finding *f) {
    return is_check(f, "ahead");
}

static bool short_table(const struct lab_finding *f) {
    return is_check(f, "short");
}

const struct lab_cause lab_6_causes[N_LAB_6_CAUSES] = {
    {"a table without blocks",
     nothing_to_copy,
     {"What does `blocks` point to in the table of a sequence without a position?",
      "Nothing: it is NULL. memcpy must not be given it, not even for 0 bytes.",
      "Look at what {page_table_fill} does with a sequence of 0 positions."}},
    {"fewer than none are missing",
     negative_missing,
     {"A table has three blocks and needs one. How many are missing?",
      "A table may cover more than is asked for; then 0 blocks are missing, not -2.",
      "Look at what {block_table_missing} returns when the difference is negative."}},
    {"the last block is left out",
     last_partial,
     {"How many blocks of 16 hold 17 positions, and how many hold 1?",
      "A division rounds down, but the rest of the positions needs a block, too.",
      "Look at the division in {block_table_missing}: blocks_for rounds up."}},
    {"the table's own blocks are forgotten",
     own_blocks_forgotten,
     {"What does the table have already?",
      "Missing are the blocks that the positions need, less those that the table has.",
      "Look at t->n_blocks in {block_table_missing}."}},
    {"one block more at a boundary",
     exact_multiple,
     {"How many blocks of 16 hold exactly 16 positions, and how many hold none?",
      "A multiple of the block size needs no block for a rest, because there is none.",
      "Look at the division in {block_table_missing}: n / size + 1 is one too many for 0, 16, "
      "32."}},
    {"half is taken",
     half_taken,
     {"The pool has one block and two are missing. What does the table look like afterwards?",
      "When too few are available nothing is taken: the caller tries again later, and others may "
      "need the block meanwhile.",
      "Look at {block_table_grow}: compare block_table_missing with block_available before the "
      "first block_allocate."}},
    {"the last blocks are refused",
     last_blocks_refused,
     {"The pool has three blocks and three are missing. Is that enough?",
      "Exactly as many as are missing are enough.",
      "Look at the comparison in {block_table_grow}: > and >= differ in this one case."}},
    {"no block is an entry",
     no_block_in_table,
     {"What does block_allocate return when the pool is empty?",
      "-1 is no block. It must not come into the table, and block_table_grow has to return 1.",
      "Look at {block_table_grow}: ask block_available before anything is taken."}},
    {"an entry stays after the free",
     kept_after_free,
     {"What stands in the table when its blocks belong to nobody any more?",
      "An entry that stays is a way to somebody else's positions, and the next release is a double "
      "free.",
      "Look at t->n_blocks in {block_table_release}: it goes down with each block, to 0."}},
    {"the first one goes back first",
     first_one_first,
     {"Of two cached blocks, the one released first is given out first. Which of them do more "
      "texts "
      "share, the beginning of a text or its end?",
      "The last entry goes back first, then the one before it, the first entry last.",
      "Look at the direction of the loop in {block_table_release}."}},
    {"the wrong blocks are kept",
     wrong_ones_kept,
     {"Which blocks stay cached when n_keep is 1?",
      "Entries 0 to n_keep - 1 are kept, all others become free.",
      "Look at the third argument of block_release in {block_table_release}: i < n_keep."}},
    {"the rest does not go back",
     stops_at_refusal,
     {"One block is refused. Who gives the others back?",
      "The result becomes -1, and the loop goes on: what stays in use is lost to the pool.",
      "Look at what {block_table_release} does when block_release returns -1."}},
    {"the offset in the block",
     wrong_offset,
     {"Where in its block of 4 is position 0, and where is position 5?",
      "The block is right and the place in it is not. A served model cannot always see this: "
      "whoever writes and reads with the same wrong offset finds what was written.",
      "Look at {block_table_slot}: block * block_size + position % block_size."}},
    {"the entry of a position",
     wrong_entry,
     {"Which entry of the table has the first position of the second block?",
      "Positions 0 to 3 are in entry 0 for blocks of 4, positions 4 to 7 in entry 1. The block of "
      "another entry was used at a boundary.",
      "Look at the index into t->blocks in {block_table_slot}: position / block_size."}},
    {"the slot is not taken from the table",
     not_through_table,
     {"Entry 0 of the table says 5. Where in the pool is position 0?",
      "The slot is the number of the block, as the table says, times the block size of the table, "
      "plus the offset. Compare with the worked example in the chapter.",
      "Look at {block_table_slot}: is t->blocks read, and is t->block_size used?"}},
    {"beyond the table",
     beyond_the_table,
     {"A table of 2 blocks of 4 covers which positions?",
      "Positions 0 to 7. For position 8 the answer is -1, before the table is read.",
      "Look at the comparison in {block_table_slot}: position / block_size >= n_blocks."}},
    {"a negative position",
     negative_position,
     {"What is -1 / 4 in C?", "It is 0, so a comparison with n_blocks alone lets -1 to -3 through.",
      "Look at the first line of {block_table_slot}: position < 0 is refused, too."}},
    {"the product is too large for an int",
     overflow,
     {"How large can block * block_size become?",
      "Both are 32-bit numbers, and so is their product, whatever it is assigned to.",
      "Look at the product in {block_table_slot}: (int64_t)block * block_size."}},
    {"the range does not begin at first",
     first_ignored,
     {"Which position does out[0] belong to?",
      "out[i] is the slot of position first + i; a new token of a long text is the usual case.",
      "Look at the argument of block_table_slot in {block_table_slots}."}},
    {"the last page",
     full_last_page,
     {"How many positions hold the last page of 8 positions in pages of 4, and of none?",
      "A full last page has the page size, not 0. A sequence without positions has 0.",
      "Look at kv_last_page_len in {page_table_fill}: kv_lens[i] - (pages - 1) * page_size, if "
      "there are pages."}},
    {"the rows do not follow each other",
     rows_not_added,
     {"Where in kv_page_indices does the second sequence begin?",
      "kv_indptr[i + 1] is kv_indptr[i] and the pages of sequence i; its pages are copied to "
      "kv_indptr[i].",
      "Look at kv_indptr in the loop of {page_table_fill}: each entry builds on the one before."}},
    {"blocks beyond the positions are listed",
     all_blocks_listed,
     {"A table has a block for what comes next. Is that block part of this pass?",
      "Pages are listed for the kv_lens[i] positions, however many blocks the table has.",
      "Look at where {page_table_fill} uses n_blocks of a table instead of blocks_for(kv_lens[i], "
      "block_size)."}},
    {"a table that is too short",
     short_table,
     {"What does your page table say of positions that have no block?",
      "Such a batch is refused with err set before anything is allocated, and *out is zeroed.",
      "Look at the beginning of {page_table_fill}: block_table_missing for each sequence."}},
};
