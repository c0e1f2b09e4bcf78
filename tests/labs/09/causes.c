/* The typical mistakes of lab 9: what each looks like from outside, and three hints. */
#include "tests/labs/09/causes.h"

#include <string.h>

static bool is_check(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool is_off_by(const struct lab_finding *f, double off) {
    double d = lab_expected(f) - lab_found(f);
    return f->how == LAB_WRONG && (d == off || d == -off);
}

static bool has(const struct lab_finding *f, const char *what) {
    return f->how == LAB_WRONG && strstr(f->label, what);
}

static bool itself(const struct lab_finding *f) {
    return is_check(f, "causal") && f->size <= 3;
}

static bool shifted(const struct lab_finding *f) {
    return is_check(f, "causal") && f->size < 257;
}

static bool tile_edge(const struct lab_finding *f) {
    return is_check(f, "causal") || is_check(f, "open");
}

static bool widest_window(const struct lab_finding *f) {
    return f->check->step == 1 && f->how == LAB_UNDEFINED;
}

static bool window_of_0(const struct lab_finding *f) {
    return is_check(f, "window of 0") && !lab_failed(f, "window");
}

static bool window_counts(const struct lab_finding *f) {
    return is_check(f, "window") && is_off_by(f, 1);
}

static bool window_edge(const struct lab_finding *f) {
    return is_check(f, "window") || is_check(f, "open window");
}

static bool mask_replaces(const struct lab_finding *f) {
    return is_check(f, "replaced");
}

static bool before_the_first(const struct lab_finding *f) {
    return is_check(f, "more queries");
}

static bool only_ones(const struct lab_finding *f) {
    return is_check(f, "any byte") && !lab_failed(f, "bytes");
}

static bool row_of_matrix(const struct lab_finding *f) {
    return is_check(f, "bytes");
}

static bool order_of_bits(const struct lab_finding *f) {
    return is_check(f, "bits") && has(f, "query 0");
}

static bool rows_begin_bytes(const struct lab_finding *f) {
    return is_check(f, "bits");
}

static bool distance(const struct lab_finding *f) {
    return is_check(f, "ALiBi") && has(f, ": scores") && !lab_failed(f, "soft cap");
}

static bool without_natural(const struct lab_finding *f) {
    return (is_check(f, "soft cap") || is_check(f, "ALiBi")) && has(f, ": scores");
}

static bool distance_first(const struct lab_finding *f) {
    return is_check(f, "both");
}

static bool range(const struct lab_finding *f) {
    return has(f, "the range") || (f->check->step == 3 && f->how == LAB_MEMORY);
}

static bool unit_of_hidden(const struct lab_finding *f) {
    return is_check(f, "hidden") && has(f, "v_units");
}

static bool visible(const struct lab_finding *f) {
    return has(f, "whether one is visible");
}

static bool alone(const struct lab_finding *f) {
    return is_check(f, "hidden") && has(f, "a mask alone: scores") &&
           strncmp(f->expected, "-inf", 4);
}

static bool hidden_score(const struct lab_finding *f) {
    return is_check(f, "hidden");
}

const struct lab_cause lab_9_causes[N_LAB_9_CAUSES] = {
    {"a window wider than any text",
     widest_window,
     {"What is before + i - window_left, if window_left is the largest int there is?",
      "With a query in front of the first position it is too low for an int.",
      "Look at the difference in {ref_seen_in_tile}: compare first, or subtract in an int64_t."}},
    {"the query itself",
     itself,
     {"Does a query see its own position?",
      "It does: position before + i is visible, and end is the one behind it.",
      "Look at the causal end in {ref_seen_in_tile}: before + i + 1, less `tile`."}},
    {"the mask is shifted by the cached length",
     shifted,
     {"Which position has query 0, if 14 positions were cached before it?",
      "The query's position is before + i: numbers of queries and of positions begin at different "
      "places.",
      "Look for r->i in {ref_seen_in_tile}: r->before goes with it."}},
    {"the edge of a tile",
     tile_edge,
     {"What does the first tile show of 257 positions, and what the second?",
      "first and end are counted from `tile` on; end is at most 256 and kv_len, first at least 0.",
      "Look at the last lines of {ref_seen_in_tile}: subtract tile, then clamp."}},
    {"a window of 0",
     window_of_0,
     {"What does a query see whose window_left is 0?",
      "It sees itself alone. No window at all is a negative number.",
      "Look at where {ref_seen_in_tile} asks whether there is a window: window_left >= 0."}},
    {"the window counts the query",
     window_counts,
     {"window_left is 2. How many positions does a query see?",
      "Three: itself, and two before it. The first one is before + i - window_left.",
      "Look at the first position in {ref_seen_in_tile}: no 1 belongs there."}},
    {"where the window begins",
     window_edge,
     {"A window of 1000, and a query at position 2: which is the first position?",
      "The window begins before + i - window_left, but never before 0; it holds without causal, "
      "too, and its first position is counted in the tile.",
      "Look at the first position in {ref_seen_in_tile}, before and after `tile` is subtracted."}},
    {"a mask takes the place of causal",
     mask_replaces,
     {"A mask shows query 0 the last position, and the variant says causal. Does it see it?",
      "It does: with a mask, causal does not count. A window does.",
      "Look at the condition of the causal end in {ref_seen_in_tile}: no mask_form."}},
    {"queries before the first position",
     before_the_first,
     {"Four queries, two positions. At which position is query 0?",
      "At -2: it sees nothing if causal holds. Its window ends there, but does not begin before 0.",
      "Look at {ref_seen_in_tile} where before + i is negative: an end at or below 0, a first of "
      "at least 0, no unsigned numbers."}},
    {"a byte that is not 1",
     only_ones,
     {"Which bytes of a mask mean visible?",
      "0 is hidden, everything else is visible: 2, 128 and 255, too. Without a mask, everything.",
      "Look at the comparison in {ref_mask_shows}."}},
    {"the row of the matrix",
     row_of_matrix,
     {"Where does the row of query 1 begin?",
      "The matrix is [queries, kv_len]: element (i, j) is i * kv_len + j.",
      "Look at the index in {ref_mask_shows}: i is the query's number, without `before`."}},
    {"which bit is first",
     order_of_bits,
     {"Element 0 is a bit of byte 0. Which one?",
      "The lowest: element e is bit e % 8 of byte e / 8, and bit 0 has the value 1.",
      "Look at the shift in {ref_mask_shows}."}},
    {"each row begins a byte",
     rows_begin_bytes,
     {"kv_len is 5. In which byte is the first element of query 1?",
      "In byte 0, bit 5: rows follow each other without gaps; only a sequence begins a byte.",
      "Look at the index in {ref_mask_shows}: i * kv_len + j first, then / 8 and % 8."}},
    {"something outside the range",
     range,
     {"Which elements of s are yours?", "range.first to range.end - 1, and no others.",
      "Look at the loop in {ref_vary_scores}: s[j] is position tile + j."}},
    {"the sign of the distance",
     distance,
     {"Two positions, one near, one far. Which should get the higher score?",
      "slope * (position - the query's position): a position before the query has a negative "
      "distance. Positions are tile + j and before + i.",
      "Look at the line for ALiBi in {ref_vary_scores}."}},
    {"the score without its unit",
     without_natural,
     {"What is in s before your function runs?",
      "s is what num_score gives: (float)(s * natural) is the score, in double and then rounded. "
      "The cap divides before tanh and multiplies behind it.",
      "Look at the first operations on s[j] in {ref_vary_scores}."}},
    {"the order of cap and distance",
     distance_first,
     {"Which comes first, the soft cap or ALiBi? Does it matter?",
      "The cap bends the score, then the distance is added: a far position may fall below -cap.",
      "Look at the order of the two in {ref_vary_scores}."}},
    {"the value of a hidden position",
     unit_of_hidden,
     {"A hidden value may be a NaN. What is 0 times a NaN?",
      "The unit of a hidden position becomes 1, so that nothing of it counts; that of a visible "
      "one stays.",
      "Look at v_units in {ref_vary_scores}."}},
    {"whether one is visible",
     visible,
     {"A row sees nothing of a tile. Who has to know?",
      "true if at least one position of the range is visible.",
      "Look at what {ref_vary_scores} returns, and where that begins."}},
    {"a score that nothing changes",
     alone,
     {"A mask alone: what happens to the score of a visible position?",
      "Nothing: without soft cap and ALiBi it is not multiplied by natural, either.",
      "Look at the condition of the multiplication in {ref_vary_scores}."}},
    {"a hidden score",
     hidden_score,
     {"Which score has the probability 0?",
      "A hidden position's score becomes -INFINITY, whatever it was; others keep theirs.",
      "Look at the hidden case in {ref_vary_scores}: mask column tile + j, and nothing behind it "
      "changes the score again."}},
};
