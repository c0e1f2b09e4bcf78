/* The typical mistakes of lab 10: what each looks like from outside, and three hints. */
#include "tests/labs/10/causes.h"

#include <string.h>

static bool is_check(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool has(const struct lab_finding *f, const char *what) {
    return f->how == LAB_WRONG && strstr(f->label, what);
}

/* Whether expected and found are the same but for the last bits. */
static bool is_near(const struct lab_finding *f) {
    double want = lab_expected(f), off = lab_found(f) - want;
    off = off < 0 ? -off : off;
    return off <= 1e-5 * (want < 0 ? -want : want);
}

/* Too much is shared: the other way round, too little. */
static bool shares_more(const struct lab_finding *f) {
    if (has(f, "number of tiles"))
        return lab_found(f) > lab_expected(f);
    return has(f, "number of stretches") && !strncmp(f->found, "stretch", 7);
}

static bool of_with(const struct lab_finding *f) {
    return has(f, "of what was merged");
}

static bool other_rows(const struct lab_finding *f) {
    return is_check(f, "merge") && f->size > 1;
}

static bool larger_m(const struct lab_finding *f) {
    return is_check(f, "merge") && !strncmp(f->label, "m of", 4);
}

static bool rounds_otherwise(const struct lab_finding *f) {
    return (is_check(f, "merge") || is_check(f, "chain")) && f->how == LAB_WRONG && is_near(f);
}

static bool shares_exchanged(const struct lab_finding *f) {
    return is_check(f, "merge") && !strncmp(f->label, "l of", 4);
}

static bool values_left_out(const struct lab_finding *f) {
    return is_check(f, "merge") || is_check(f, "chain");
}

static bool seen_nothing(const struct lab_finding *f) {
    return is_check(f, "nothing");
}

static bool last_position(const struct lab_finding *f) {
    return is_check(f, "length") && shares_more(f);
}

static bool too_few(const struct lab_finding *f) {
    return is_check(f, "length");
}

static bool shorter(const struct lab_finding *f) {
    return is_check(f, "shorter");
}

static bool part_of_a_tile(const struct lab_finding *f) {
    return is_check(f, "differs");
}

static bool same_place(const struct lab_finding *f) {
    return is_check(f, "moved");
}

static bool page_sizes(const struct lab_finding *f) {
    return is_check(f, "page size");
}

static bool less_than_a_tile(const struct lab_finding *f) {
    return is_check(f, "strangers");
}

static bool order_of_stretches(const struct lab_finding *f) {
    return has(f, "a stretch comes behind");
}

static bool first_pair(const struct lab_finding *f) {
    return f->check->step == 3 && has(f, "its number of tiles");
}

static bool neighbours(const struct lab_finding *f) {
    return (is_check(f, "documents") || is_check(f, "readers")) && f->how == LAB_WRONG;
}

static bool own_tile(const struct lab_finding *f) {
    return f->check->step == 3 && has(f, "own_tile");
}

static bool deeper(const struct lab_finding *f) {
    return f->check->step == 3 && !strncmp(f->found, "number of stretches", 19);
}

static bool first_tile(const struct lab_finding *f) {
    return f->check->step == 3 && (has(f, "its first tile") || has(f, "its depth"));
}

const struct lab_cause lab_10_causes[N_LAB_10_CAUSES] = {
    {"the other state changes",
     of_with,
     {"Which of the two states is the result?",
      "`to` becomes the state of both; `with` stays as it is.",
      "Look at what {ref_merge_states} writes to."}},
    {"the rows of a state",
     other_rows,
     {"Where does row 1 of o begin?",
      "o is [n_rows, head_dim]; m and l have one number for each row, and every row is merged by "
      "itself.",
      "Look at the indices in {ref_merge_states}, and at the end of its loop."}},
    {"the larger m",
     larger_m,
     {"Which m has the state of both?", "The larger of the two; both scores below 0 are fine.",
      "Look at what {ref_merge_states} writes to to->m, and that it does so only when it needs the "
      "old one no longer."}},
    {"merged in another order",
     rounds_otherwise,
     {"Is a * b + c * d the same as c * d + a * b, if only one product is rounded?",
      "It is nearly right. num_merge(before, what it counts for, fresh, what that counts for): "
      "`to` comes first, always.",
      "Look at the arguments of num_merge in {ref_merge_states}."}},
    {"the shares are exchanged",
     shares_exchanged,
     {"`to` has the larger m. What do its values count for?",
      "The side with the larger m counts for 1, the other for e^(its m - the larger), which is "
      "less.",
      "Look at the two factors in {ref_merge_states}, in both cases, and that they are of the m "
      "before it changes."}},
    {"o is merged as l is",
     values_left_out,
     {"What is o before the division by l?",
      "A sum with the weights e^(score - m): it counts for as much as l does, and nothing is "
      "divided.",
      "Look at the loop over head_dim in {ref_merge_states}."}},
    {"a row that has seen nothing",
     seen_nothing,
     {"What is -infinity minus -infinity?",
      "A NaN. Where `with` has seen nothing the row stays as it is; where only `to` has, e^-inf = "
      "0 is right.",
      "Look at the first lines of the loop in {ref_merge_states}: with->m[row] == -INFINITY."}},
    {"the last position is shared",
     last_position,
     {"A sequence has 512 positions. What is left of its own, if it shares two tiles?",
      "Nothing would be left. It keeps its last position, so only tiles in front of that count.",
      "Look at {whole_tiles}: of 512 positions one tile, of 513 two."}},
    {"too few tiles",
     too_few,
     {"Two sequences have the same pages. How many tiles share they?",
      "All whole tiles in front of the last position: 257 positions are one tile.",
      "Look at {whole_tiles}, and where the loop of {common_tiles} ends."}},
    {"the shorter of the two",
     shorter,
     {"One sequence has 300 positions, the other 1100. How far can they be alike?",
      "As far as the shorter one may share, whichever of the two that is.",
      "Look at {common_tiles}: whole_tiles of i and of j."}},
    {"a tile is shared in part",
     part_of_a_tile,
     {"One page of a tile is another. Is the tile shared? And the next?",
      "All pages of a tile must be the same, the first and the last; behind the first tile that "
      "differs nothing is shared, though pages may be equal again.",
      "Look at where {common_tiles} stops, and at the tile of the page that differs."}},
    {"the same place",
     same_place,
     {"Two tables have the same pages in another order. Are the positions the same?",
      "Page p of one table is compared with page p of the other.",
      "Look at the two indices in {common_tiles}."}},
    {"pages that do not divide a tile",
     page_sizes,
     {"Pages have 48 positions. Which pages hold positions 256 to 511?",
      "Pages 5 to 10, of which the first holds positions of the tile before, too. A page may also "
      "be larger than a tile.",
      "Look at how {common_tiles} gets from a tile to its first and last page: from positions, the "
      "last one rounded up."}},
    {"less than a tile",
     less_than_a_tile,
     {"Sequences are alike in 240 positions. Is that a stretch?",
      "A stretch has at least one tile and two members.",
      "Look at where {find_stretches} adds a stretch."}},
    {"the order of the stretches",
     order_of_stretches,
     {"Which stretches are computed before which?",
      "All of depth 0, then all of depth 1: a row's deeper tiles need what it found before them.",
      "Look at when {find_stretches} looks behind a stretch: after all of its depth are there."}},
    {"the first pair alone decides",
     first_pair,
     {"A and B are alike in six tiles, A and C in four. How long is the stretch of A, B and C?",
      "A stretch goes on as long as all of its members are alike: the least of them.",
      "Look at the number of tiles in {find_stretches} after another member has come."}},
    {"members are not neighbours",
     neighbours,
     {"Readers of two documents come in turn. Which of them are compared?",
      "Members of a stretch need not be neighbours in the batch: they are made neighbours in "
      "c->members, and everybody after the first is asked.",
      "Look at the loop over the other members in {find_stretches}."}},
    {"where the own tiles begin",
     own_tile,
     {"A is in a stretch of tiles 0 to 3, and then in one of 4 and 5. Which is its first own tile?",
      "6: the deepest stretch says it, and it is counted from the beginning of the sequence.",
      "Look at own_tile in {find_stretches}."}},
    {"what lies behind a stretch",
     deeper,
     {"Four sequences share four tiles. May two of them share more?",
      "Behind each stretch its members are looked at again, from where it ends, as deep as it "
      "goes.",
      "Look at what {find_stretches} does with a stretch it has found."}},
    {"where a stretch begins",
     first_tile,
     {"In which tile does a stretch begin whose parent has tiles 0 to 3?",
      "It begins where its parent ends, and is one deeper.",
      "Look at first_tile and depth in {find_stretches}."}},
};
