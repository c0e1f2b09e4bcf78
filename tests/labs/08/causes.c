/* The typical mistakes of lab 8: what each looks like from outside, and three hints. */
#include "tests/labs/08/causes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the emulation says ----------------------------------------------------------------- */

static bool says(const struct lab_finding *f, const char *what) {
    return f->how == LAB_EMULATED && strstr(f->report, what);
}

static bool threads_leave(const struct lab_finding *f) {
    return says(f, "waits at the barrier") || says(f, "waits for lanes") ||
           says(f, "takes no part");
}

static bool query_not_ready(const struct lab_finding *f) {
    return says(f, "shared dynamic memory");
}

/* Exponents lie behind the weights and the places of values in struct row_memory. */
enum { EXPONENTS_AT = 256 * (2 + 8) };

/* The number that the report has behind a mark, or -1. */
static int number_behind(const struct lab_finding *f, const char *mark) {
    const char *at = f->how == LAB_EMULATED ? strstr(f->report, mark) : NULL;
    return at ? atoi(at + strlen(mark)) : -1;
}

/* Thread j reads exponents[j]. */
static bool exponent_of_unseen(const struct lab_finding *f) {
    int thread = number_behind(f, "thread (");
    return thread >= 0 && number_behind(f, "uninitialised byte ") == EXPONENTS_AT + 4 * thread;
}

static bool behind_the_tile(const struct lab_finding *f) {
    return says(f, "bytes, ") || number_behind(f, "uninitialised byte ") >= EXPONENTS_AT;
}

static bool no_barrier(const struct lab_finding *f) {
    return says(f, "uninitialised") || says(f, "no barrier between");
}

static bool endless(const struct lab_finding *f) {
    return f->how == LAB_HUNG;
}

/* ---- what the numbers say -------------------------------------------------------------------- */

/* Whether it is the check's, and all checks before it pass: what fails behind another failure may
 * have its cause. */
static bool is_first(const struct lab_finding *f, const char *check) {
    for (const struct lab_finding *before = f->all; before < f; before++)
        if (before->how != LAB_PASSED)
            return false;
    return !strcmp(f->check->name, check);
}

static bool is_sum(const struct lab_finding *f, const char *check) {
    return f->how == LAB_WRONG && is_first(f, check) && strstr(f->label, "together");
}

/* Only the last bits are others. */
static bool is_near(const struct lab_finding *f) {
    return f->how == LAB_WRONG &&
           fabs(lab_expected(f) - lab_found(f)) < 1e-4 * fabs(lab_expected(f));
}

static bool is_fault(const struct lab_finding *f) {
    return f->how == LAB_WRONG && lab_found(f) == 0;
}

static bool exponent_of_another(const struct lab_finding *f) {
    int power;
    return is_sum(f, "weights") && f->size == 1 && frexp(lab_found(f), &power) == 0.5;
}

static bool somebody_elses(const struct lab_finding *f) {
    return is_sum(f, "weights") && is_fault(f);
}

static bool one_too_many(const struct lab_finding *f) {
    return is_sum(f, "weights") && lab_found(f) < 1;
}

static bool not_divided(const struct lab_finding *f) {
    return is_sum(f, "weights") && lab_found(f) > 1;
}

static bool last_missing(const struct lab_finding *f) {
    return is_first(f, "weights") && f->size == 2 && lab_found(f) == 1;
}

static bool value_of_another(const struct lab_finding *f) {
    return is_first(f, "weights") && strstr(f->label, "all values are 0");
}

static bool score(const struct lab_finding *f) {
    return is_first(f, "weights") && f->how == LAB_WRONG && !value_of_another(f);
}

static bool not_rounded(const struct lab_finding *f) {
    return is_first(f, "one page") && is_near(f);
}

static bool page_not_looked_up(const struct lab_finding *f) {
    return is_first(f, "one page") && (is_fault(f) || says(f, "not the device's"));
}

/* One position is right, whose weight is 1 whatever its score; or weights are negative together. */
static bool too_small_for_a_sum(const struct lab_finding *f) {
    return (is_sum(f, "tile weights") && lab_found(f) < 0) ||
           (is_first(f, "one page") && f->how == LAB_WRONG && f->size > 1 && !is_near(f));
}

static bool value(const struct lab_finding *f) {
    return is_first(f, "one page") || value_of_another(f);
}

static bool end_of_last_page(const struct lab_finding *f) {
    return is_first(f, "pages") && is_fault(f);
}

static bool place_in_page(const struct lab_finding *f) {
    return is_first(f, "pages") || is_first(f, "slots");
}

static bool query_head(const struct lab_finding *f) {
    return is_first(f, "heads");
}

static bool what_a_query_sees(const struct lab_finding *f) {
    return is_first(f, "queries");
}

static bool own_table(const struct lab_finding *f) {
    return is_first(f, "sequences");
}

static bool mask(const struct lab_finding *f) {
    return is_first(f, "mask");
}

static bool descending(const struct lab_finding *f) {
    return (is_first(f, "tile weights") || is_first(f, "tiles") || is_first(f, "split")) &&
           is_near(f);
}

static bool not_rescaled(const struct lab_finding *f) {
    return is_sum(f, "tile weights") || (is_first(f, "split") && f->size > 512);
}

/* Position 0 is read for position 256, too. */
static bool place_in_tile(const struct lab_finding *f) {
    return is_first(f, "tile weights") && lab_found(f) > 1.5 * lab_expected(f);
}

static bool first_tile_only(const struct lab_finding *f) {
    return is_first(f, "tile weights") || is_first(f, "tiles");
}

static bool window(const struct lab_finding *f) {
    return is_first(f, "window");
}

static bool nothing_seen(const struct lab_finding *f) {
    return is_first(f, "hidden tile") || is_first(f, "split hidden");
}

static bool one_tile_split(const struct lab_finding *f) {
    return is_first(f, "split") && f->size <= 256;
}

static bool split_starts(const struct lab_finding *f) {
    return is_first(f, "split");
}

static bool split_window(const struct lab_finding *f) {
    return is_first(f, "split window");
}

static bool partial_of_another(const struct lab_finding *f) {
    return is_first(f, "split heads");
}

static bool outside(const struct lab_finding *f) {
    return says(f, "not the device's");
}

static bool served(const struct lab_finding *f) {
    return is_first(f, "serve");
}

/* ---- the table ------------------------------------------------------------------------------- */

const struct lab_cause lab_8_causes[N_LAB_8_CAUSES] = {
    {"threads that leave before a barrier",
     threads_leave,
     {"Do all 256 threads come to the barrier at which the others wait?",
      "A thread whose position is not seen, or that has no dimension, still has to come to every "
      "barrier: row_max, row_sum and softmax_tile have some, too.",
      "Look for a return, a continue or an if around them in {weigh_tile}, {attend_row} and "
      "{attend_tile} whose condition is not the same for all threads."}},
    {"the query before a barrier",
     query_not_ready,
     {"Who has written the element of the query that this thread reads?",
      "load_query shares the query among the threads; after it, a barrier must come before the "
      "first score. The one in row_max is enough, if all threads come to it.",
      "Look at {weigh_tile}: row_max over what the threads see comes before {score_of}."}},
    {"the exponent of a position that is not seen",
     exponent_of_unseen,
     {"The row does not see this thread's position. Who has set its exponent?",
      "score_of sets exponents[j], but only where the row sees position j. For other positions "
      "softmax_tile ignores the exponent: 0 will do.",
      "Look at the exponent that {weigh_tile} gives to softmax_tile."}},
    {"behind the end of the tile",
     behind_the_tile,
     {"How many positions has a tile, and what is the number of the last one?",
      "weights, values and exponents have TILE elements each, 0 to TILE - 1.",
      "Look at the bounds of the loops in {value_of}, and at each index into the shared memory."}},
    {"a barrier is missing",
     no_barrier,
     {"Which thread has written the place that this one reads, and when?",
      "Every thread sets weights[j] of its position, one that is not seen, too. Then a barrier, "
      "and only then may another thread read them. Before they are written again, in the next "
      "tile, everybody must have read.",
      "Look at the end of {weigh_tile}: __syncthreads() behind the last write to shared memory, "
      "and no return before it that only some of the threads take."}},
    {"an endless loop",
     endless,
     {"What does each of your loops count, and does it reach its end?",
      "A loop over tiles goes on by TILE positions, or by one tile; one over dimensions by TILE, "
      "from threadIdx.x.",
      "Look at the third part of the loops in {attend_row}, {value_of} and {merge_row}."}},
    {"the exponent of another row",
     exponent_of_another,
     {"A key and a value lie at the same position. Do they have the same exponent?",
      "A single position has the weight 1, so y is its value; yours is off by a power of two. "
      "exponents[j] is that of the value's row, and the score has the key's.",
      "Look at the two calls of exponent_of in {score_of}: k with the key's row, v with the "
      "value's; softmax_tile gets the value's."}},
    {"a row of somebody else",
     somebody_elses,
     {"Which rows of the pool are this sequence's, and which do you read?",
      "What nobody wrote cannot be read: it makes a fault, and the row becomes 0. Page r->pages[0] "
      "has positions 0 to page_size - 1.",
      "Look at the page and the place in it in {score_of}, and at what {weigh_tile} lets a thread "
      "see."}},
    {"one position too many",
     one_too_many,
     {"r->end is 1. Which positions does the row see?",
      "r->end is the first that it does not see. Behind the sequence's last page comes a page of "
      "another sequence, which now takes a part of the weights.",
      "Look at the comparison with r->end in {weigh_tile}: less, not less or equal."}},
    {"the end of the row",
     not_divided,
     {"The weights of all positions are to be 1 together. What are they before the end?",
      "After the last tile y is divided by l: finish_row does that, with the m and l of all tiles.",
      "Look at the last line of {attend_row}."}},
    {"the last position is missing",
     last_missing,
     {"Two positions, and one of them has all of the weight. Who looks at the other?",
      "r->end is one behind the last position that the row sees: position r->end - 1 counts.",
      "Look at the comparison with r->end in {weigh_tile}."}},
    {"the score",
     score,
     {"Which numbers make the score of one position?",
      "The dot product of query and key is summed in 64 bits over head_dim elements; "
      "softmax_score takes rounded_sum of it, the key's exponent and the position. Thread j has "
      "position from + j.",
      "Look at the loop and at the last line of {score_of}."}},
    {"the sum is not rounded down",
     not_rounded,
     {"Almost right: only the last bits differ. Where is something rounded?",
      "Both sums, the score's and the value's, are sums of integers in 64 bits that lose their "
      "lowest 8 bits in rounded_sum, and become float only there.",
      "Look at what {score_of} gives to softmax_score and {value_of} to num_weighted_value."}},
    {"the page is not looked up",
     page_not_looked_up,
     {"The first page of the sequence: is it page 0 of the pool?",
      "position / page_size counts the pages of the sequence; r->pages says which page of the pool "
      "that is.",
      "Look at the first argument behind the view in kv_view_row, in {score_of}."}},
    {"a sum in 32 bits",
     too_small_for_a_sum,
     {"What is the largest product of two mantissas, and how many of them fit the type of a sum?",
      "A mantissa goes up to 32639, so two products are already close to 2^31. Both sums, the "
      "score's and the value's, need 64 bits.",
      "Look at the type of the sum in {score_of} and in {value_of}; then at the score itself, "
      "since one position alone is right."}},
    {"the sum of the values",
     value,
     {"What is each weight multiplied with?",
      "Element d of the result is the sum of weights[j] times element d of value j, in 64 bits, "
      "then num_weighted_value of rounded_sum with t->exponent. values[j] is where the row of v "
      "begins.",
      "Look at {value_of}, and at values[j] and exponents[j] in {score_of}."}},
    {"the end of the last page",
     end_of_last_page,
     {"One position, and a page of 16. What is in the other 15 places?",
      "Nobody wrote them. A row sees positions up to r->end, not up to the end of the page.",
      "Look at what a thread sees in {weigh_tile}."}},
    {"the place in the page",
     place_in_page,
     {"Pages of 16: in which page is position 17, and where in it?",
      "In r->pages[17 / 16], at place 17 % 16. The next page of a sequence can lie anywhere in the "
      "pool.",
      "Look at the page and the place in it in {score_of}, and whether both k and v get them."}},
    {"the query head instead of the kv head",
     query_head,
     {"There are four query heads and two kv heads. Which keys does query head 1 read?",
      "Those of kv head 0: several query heads share one. r->head is the query's, r->kv_head that "
      "of k and v.",
      "Look at the calls of kv_view_row and kv_view_exponent in {score_of}."}},
    {"what a query sees",
     what_a_query_sees,
     {"The newest three positions ask. Does the oldest of them see the other two?",
      "It does not. Each row has its own r->first and r->end, and softmax_score wants the "
      "position of the key, not of the query.",
      "Look at what a thread sees in {weigh_tile}: nothing of it is the sequence's length."}},
    {"a table of another sequence",
     own_table,
     {"Three sequences, each with a page 0. Whose is it?",
      "r->pages is the beginning of the row's own page table, and position counts in its own "
      "sequence.",
      "Look at the page in {score_of}, and at everything that is the same for all blocks."}},
    {"the mask is read at another place",
     mask,
     {"Which row of the mask belongs to a query, and which column to a position?",
      "attention_shows wants the mask of the row's own sequence (r->mask), the query's number "
      "among "
      "those of its sequence (r->i, from 0), the position in the sequence, and the number of "
      "columns, r->kv_len.",
      "Look at attention_shows in {weigh_tile}: its arguments, and that its answer counts."}},
    {"merged in another order than ascending",
     descending,
     {"Almost right: only the last bits differ. In which order do the tiles come?",
      "A merge rounds, so the order is part of the definition: first tile first, one after the "
      "other, into one m, one l, one y.",
      "Look at the loops over tiles in {attend_row} and {merge_row}."}},
    {"what was there before is not rescaled",
     not_rescaled,
     {"A later tile has a larger maximum. What becomes of the sum so far?",
      "merge_tile gives two factors: factor.before is for y so far, factor.tile for the tile's "
      "value. One of them is 1, but not always the same one.",
      "Look at num_merge in {attend_row} and {merge_row}."}},
    {"the place in the tile instead of the position",
     place_in_tile,
     {"In which page is position 256?",
      "j is the place in the tile and begins at 0 in each tile. Pages count in positions of the "
      "sequence. Position 0 seems to have been read twice.",
      "Look at the page and the place in it in {score_of}: position / page_size, not j / "
      "page_size."}},
    {"the tiles behind the first",
     first_tile_only,
     {"257 positions: how many tiles are that, and does each come in?",
      "The tiles go from r->first / TILE * TILE to the last before r->end, TILE positions each, "
      "and each is merged into m, l and y.",
      "Look at the loop over tiles in {attend_row}."}},
    {"the first position of a window",
     window,
     {"A window of 20: which positions does the query at position 28 see?",
      "8 to 28. r->first is the first that a row sees; tiles before it are left out, and in its "
      "tile the positions before it are hidden.",
      "Look at r->first in {weigh_tile}, and where the loop of {attend_row} begins: a tile's first "
      "position is a multiple of TILE."}},
    {"a tile of which nothing is seen",
     nothing_seen,
     {"What are m and l of a tile of which the row sees nothing?",
      "It has no maximum, so it must not be merged. For the merge after a split, attend_tile "
      "leaves l = 0 in it, in any case, and merge_row leaves it out.",
      "Look at what happens when {weigh_tile} returns false: in {attend_row}, {attend_tile} and "
      "{merge_row}."}},
    {"one tile of a split",
     one_tile_split,
     {"One tile alone: what has to be in its partial, and what becomes of it?",
      "m, l, then head_dim values that are not yet divided. m and l are written by one thread, a "
      "dimension by the thread that has it; finish_row comes after the merge.",
      "Look at to[0], to[1] and to[2 + d] in {attend_tile}, and how {merge_row} reads them."}},
    {"the split starts at another tile",
     split_starts,
     {"Tile number 1: which position is its first?",
      "Tiles are counted in attend_tile, positions in weigh_tile: tile * TILE. merge_row goes to "
      "the last tile that begins before r->end.",
      "Look at the call of weigh_tile in {attend_tile} and at the loop in {merge_row}."}},
    {"the first tile of a window",
     split_window,
     {"Which tiles has a block written, and which does the merge read?",
      "Tiles before r->first / TILE have no block that works, so nobody wrote their partials.",
      "Look at where the loop in {merge_row} begins."}},
    {"the partial of another row",
     partial_of_another,
     {"Two heads, three sequences: where does each row's partial lie?",
      "partial_of(partial, a, r, n_tiles, tile) says it, with the same n_tiles in both kernels: "
      "that of the longest sequence of the batch, not of this row.",
      "Look at partial_of in {merge_row}."}},
    {"an address outside",
     outside,
     {"What is the largest index that this line may have, and what makes it larger?",
      "The emulation knows every allocation of the device. The report says which access left its "
      "own.",
      "Look at the line that the report names; if it is a row of k or v, at the page in "
      "{score_of}."}},
    {"the model's shape",
     served,
     {"Every check passes, and the model differs. What has the model that the checks have not?",
      "Pages of 4 positions, 64 dimensions in a head, prompts of several requests in one batch. "
      "The first tensor that differs is named above: attention output means your kernel.",
      "Look for numbers in your file that are right only for the checks, and at the loops over d: "
      "from threadIdx.x, every TILE-th, up to head_dim."}},
};
