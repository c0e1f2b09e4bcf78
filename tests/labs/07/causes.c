/* The typical mistakes of lab 7: what each looks like from outside, and three hints. */
#include "tests/labs/07/causes.h"

#include <stdio.h>
#include <string.h>

static bool is_wrong(const struct lab_finding *f, const char *check, const char *label) {
    return f->how == LAB_WRONG && lab_is(f, check, label);
}

static bool says(const struct lab_finding *f, const char *check, const char *what) {
    return f->how == LAB_WRONG && !strcmp(f->check->name, check) && strstr(f->label, what);
}

/* ---- step 1 ---------------------------------------------------------------------------------- */

static bool last_partial(const struct lab_finding *f) {
    return is_wrong(f, "fork", "base.capacity of the fork") ||
           is_wrong(f, "fork", "blocks of the fork");
}

static bool fork_not_counted(const struct lab_finding *f) {
    return is_wrong(f, "fork", "references to block");
}

static bool needless_copy(const struct lab_finding *f) {
    return says(f, "write", "the fork, which writes nothing") ||
           (says(f, "own", "kv_paged_missing") && lab_found(f) > lab_expected(f));
}

static bool copy_not_counted(const struct lab_finding *f) {
    return is_wrong(f, "write", "kv_paged_missing of the origin") && lab_failed(f, "known");
}

static bool written_in_place(const struct lab_finding *f) {
    return is_wrong(f, "write", "kv_paged_missing of the origin") ||
           is_wrong(f, "write", "references to block");
}

static bool empty_copy(const struct lab_finding *f) {
    return is_wrong(f, "write", "keys of block") || is_wrong(f, "write", "value exponents");
}

static bool old_kept(const struct lab_finding *f) {
    return says(f, "write", "which writes second");
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

/* Not the block that was asked for, but one whose text begins so. */
static bool behind_unknown(const struct lab_finding *f) {
    int wanted = -1;
    return says(f, "find", "was forgotten") && lab_expected(f) == -1 &&
           sscanf(f->label, "find block %d", &wanted) == 1 && (int)lab_found(f) != wanted;
}

static bool no_prefix_cache(const struct lab_finding *f) {
    return !strcmp(f->check->name, "unknowing") &&
           (f->how == LAB_UNDEFINED || f->how == LAB_CRASHED || f->how == LAB_MEMORY);
}

static bool stays_in_bucket(const struct lab_finding *f) {
    return says(f, "find", "was forgotten");
}

static bool before_ignored(const struct lab_finding *f) {
    return is_wrong(f, "find", "find tokens without") || is_wrong(f, "new contents", "");
}

static bool hash_trusted(const struct lab_finding *f) {
    return is_wrong(f, "collision", "");
}

static bool partial_known(const struct lab_finding *f) {
    return says(f, "match", "is known");
}

static bool whole_prompt(const struct lab_finding *f) {
    return is_wrong(f, "match", "n_stored of the cache") && lab_found(f) > lab_expected(f);
}

static bool known_in_place(const struct lab_finding *f) {
    return is_wrong(f, "known", "");
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

static bool memory_kept(const struct lab_finding *f) {
    return is_wrong(f, "decodes", "memory is taken") && !strncmp(f->found, "step", 4);
}

static bool wrong_victim(const struct lab_finding *f) {
    return is_wrong(f, "decodes", "memory is taken");
}

static bool wrong_tokens(const struct lab_finding *f) {
    return says(f, "decodes", "tokens that request");
}

static bool planned_decode(const struct lab_finding *f) {
    return f->how == LAB_WRONG && !strcmp(f->check->name, "prompts") && !lab_failed(f, "decodes");
}

const struct lab_cause lab_7_causes[N_LAB_7_CAUSES] = {
    {"the last partial block is not shared",
     last_partial,
     {"How many blocks hold five positions of a block size of four?",
      "A fork has all of its origin's positions, also those in a block that is not full.",
      "Look at the number of blocks in {kv_paged_fork}: blocks_for rounds up."}},
    {"the reference of a fork is not counted",
     fork_not_counted,
     {"The origin ends before its fork does. Who still holds the blocks?",
      "Each cache that has a block in its table holds a reference to it.",
      "Look at {kv_paged_fork}: share takes a reference and appends the block."}},
    {"a copy where none is needed",
     needless_copy,
     {"Who writes into a block if room for no further position is asked for?",
      "A copy is due only when a position is written: n_positions > n_stored.",
      "Look at the conditions under which {kv_paged_missing} counts a copy."}},
    {"the copy is not counted as missing",
     copy_not_counted,
     {"Where does the block come from into which a shared one is copied?",
      "The copy takes a block of the pool, which counts as missing until it is made.",
      "Look at {kv_paged_missing}: block_table_missing, and one more for the copy."}},
    {"a shared block is written in place",
     written_in_place,
     {"Two caches have the same block and both draw a token. Where do the two write?",
      "A block with more than one reference is copied before anybody writes into it.",
      "Look at {kv_paged_missing} and {kv_paged_reserve}: block_references of the block that "
      "position n_stored goes to."}},
    {"the copy is empty",
     empty_copy,
     {"What does the new block hold of the positions before n_stored?",
      "The new block stands for the old one, so it gets keys and values of all layers.",
      "Look at {kv_paged_reserve}: copy_block(pool, to, from)."}},
    {"the reference to the old block stays",
     old_kept,
     {"The origin has a copy. How many caches still use the old block?",
      "Only the fork, which can then write in place: the origin's reference is given back.",
      "Look at the end of {kv_paged_reserve}: release of the old block."}},
    {"behind an unknown block",
     behind_unknown,
     {"Which serial number has a block that is not known, and what is before a first block?",
      "Both are 0. Behind an unknown block nothing is found; only `before` -1 is the beginning.",
      "Look at where {prefix_cache_find} gets the serial number of `before`."}},
    {"there may be no prefix cache",
     no_prefix_cache,
     {"What is c->prefixes of a cache that shares nothing by its tokens?",
      "NULL: it finds no block and makes none known, but n_stored follows all the same.",
      "Look at {kv_paged_match} and {kv_paged_stored}: which one asks whether there is one?"}},
    {"a forgotten block is still found",
     stays_in_bucket,
     {"A block holds another text now. What finds it in the bucket of the old one?",
      "Nothing may: the link that leads to it has to lead to the block behind it.",
      "Look at {prefix_cache_forget}: walk along the bucket to the link that names the block."}},
    {"what is before is not compared",
     before_ignored,
     {"Two texts have the same second block of tokens. Are its keys and values the same?",
      "They depend on all that is before, which the serial number of the block before stands for.",
      "Look at the comparison in {prefix_cache_find}: p->entries[block].before == serial."}},
    {"an equal hash is trusted",
     hash_trusted,
     {"Can two texts have the same hash?",
      "Rarely, and then one user reads another's text. Equal hashes are followed by a comparison.",
      "Look at {prefix_cache_find}: memcmp of tokens_of(p, block) and tokens."}},
    {"a block that is not full becomes known",
     partial_known,
     {"A block of four has three positions. What is its fourth token?",
      "Only full blocks become known, each when its last position is there.",
      "Look at the range of blocks in {kv_paged_stored}: n_positions / block_size of them."}},
    {"the whole prompt is matched",
     whole_prompt,
     {"All tokens of a prompt are cached. From which row does the next token come?",
      "The last token is read in any case, because its logits are not cached.",
      "Look at the condition of the loop in {kv_paged_match}: (i + 1) * size < n_tokens."}},
    {"a known block is written in place",
     known_in_place,
     {"One cache uses a block, and the prefix cache knows it. Who may read it next?",
      "Any request with the same tokens. It is copied before somebody writes into it.",
      "Look at {kv_paged_missing} and {kv_paged_reserve}: prefix_cache_knows, beside the number of "
      "references."}},
    {"the memory is not given back",
     memory_kept,
     {"A request gave way. What did the others gain?",
      "The memory takes back what it held, or the next reserve fails as well.",
      "Look at {preempt}: s->memory->preempt(s->memory, job)."}},
    {"the wrong one gives way",
     wrong_victim,
     {"Three requests run and the first lacks memory. Which of the others waits?",
      "The one that arrived last, which is the last in s->running; so the oldest always gets on.",
      "Look at where {make_room} begins to look for a victim: s->n_running - 1, and downwards."}},
    {"the tokens of a preempted request",
     wrong_tokens,
     {"A request had a prompt of three tokens and drew two. How many are read when it goes on?",
      "All five, from the first one: its keys and values are gone.",
      "Look at {preempt}: n_to_read = n_prompt + n_new, and n_read = 0."}},
    {"a planned decode gives way",
     planned_decode,
     {"A prompt lacks room, and behind it is one that decodes. Is that one's token planned "
      "already?",
      "Decodes are planned before prompts. Without any_victim only those that are prefilling may "
      "be preempted.",
      "Look at the use of any_victim in {make_room}."}},
};
