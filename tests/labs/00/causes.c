/* The typical mistakes of lab 0: what each looks like from outside, and three hints. */
#include "tests/labs/00/causes.h"

#include <string.h>

static bool is_check(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool is_wrong(const struct lab_finding *f, const char *check, const char *label) {
    return f->how == LAB_WRONG && lab_is(f, check, label);
}

/* Whether expected and found are the same but for the last bits. */
static bool is_near(const struct lab_finding *f) {
    double want = lab_expected(f), got = lab_found(f), off = got > want ? got - want : want - got;
    return off <= 2e-3 * (want < 0 ? -want : want);
}

static bool overflow(const struct lab_finding *f) {
    return f->check->step == 1 && f->how == LAB_UNDEFINED;
}

static bool not_in_place(const struct lab_finding *f) {
    return is_wrong(f, "rmsnorm", "the same in place");
}

static bool norm_rounds(const struct lab_finding *f) {
    return (is_check(f, "rmsnorm") || is_check(f, "scale")) && f->how == LAB_WRONG && is_near(f);
}

static bool norm_exponent(const struct lab_finding *f) {
    return (is_check(f, "rmsnorm") || is_check(f, "scale")) && f->how == LAB_WRONG;
}

static bool fault_token(const struct lab_finding *f) {
    return is_check(f, "fault");
}

static bool sum_of_floats(const struct lab_finding *f) {
    return is_wrong(f, "softmax", "l, the sum") && is_near(f);
}

static bool not_all_summed(const struct lab_finding *f) {
    return is_wrong(f, "softmax", "l, the sum");
}

static bool largest_score(const struct lab_finding *f) {
    return is_wrong(f, "softmax", "m, the largest");
}

static bool weights_alone(const struct lab_finding *f) {
    return is_wrong(f, "softmax", "the exponent") || is_wrong(f, "softmax", "weight of");
}

static bool merge(const struct lab_finding *f) {
    return is_check(f, "merge");
}

static bool tile_edge(const struct lab_finding *f) {
    return is_check(f, "one query") && (f->size >= 255 || f->how == LAB_MEMORY);
}

static bool not_rounded_down(const struct lab_finding *f) {
    return is_wrong(f, "one query", "y of") && is_near(f);
}

static bool mask_shifted(const struct lab_finding *f) {
    return (is_check(f, "appended") || is_check(f, "causal")) && !lab_failed(f, "one query");
}

static bool attention_fault(const struct lab_finding *f) {
    return is_wrong(f, "no number", "token of the fault");
}

/* A fault that is not told at all, or told of good numbers, is no matter of rows. */
static bool sample_fault(const struct lab_finding *f) {
    return is_wrong(f, "rows", "token of the fault") ||
           (is_wrong(f, "greedy", "token of the fault") && lab_expected(f) >= 0 &&
            lab_found(f) >= 0);
}

static bool nothing_seen(const struct lab_finding *f) {
    return is_check(f, "nothing") && !lab_failed(f, "one query") && !lab_failed(f, "appended");
}

static bool ties(const struct lab_finding *f) {
    return is_check(f, "greedy");
}

static bool walk(const struct lab_finding *f) {
    return is_check(f, "draw") || is_check(f, "rows") || is_check(f, "top");
}

const struct lab_cause lab_0_causes[N_LAB_0_CAUSES] = {
    {"the sum of squares is too small a type",
     overflow,
     {"How large can the square of a 16-bit integer be, and the sum of a thousand?",
      "32,639 squared is nearly 2^30: the third one does not fit into an int.",
      "Look at the type of the sum in {ref_rmsnorm}: int64_t."}},
    {"read after it was written",
     not_in_place,
     {"What is in x when y is the same array?",
      "The norm is called in place, too: y[i] must not be written before x[i] was read.",
      "Look at what {ref_rmsnorm} does with a row before the factor is known."}},
    {"rounded another way",
     norm_rounds,
     {"In what order are x, the factor and the gain multiplied, and in which type?",
      "The value is nearly right: (x * factor) * gain, in float, with the factor of the integers' "
      "exact sum, and x itself, not its integers.",
      "Look at the last loop of {ref_rmsnorm}, and that the sum is one of integers."}},
    {"the factor of another row",
     norm_exponent,
     {"Which exponent belongs to the integers of this row, and over how many is the mean?",
      "num_rms_factor wants the exact sum of squares, the exponent that snapping returned, and the "
      "number of columns.",
      "Look at the call of num_rms_factor in {ref_rmsnorm}, and where the row begins in x and y."}},
    {"the fault has another token",
     fault_token,
     {"Qwen3 norms each head: which token does row 5 belong to, with four heads?",
      "The token of a row is row / rows_per_token.",
      "Look at the last argument of ref_snap_or_fault in {ref_rmsnorm}."}},
    {"probabilities summed as floats",
     sum_of_floats,
     {"Does the sum of the probabilities depend on their order?",
      "Each is rounded to units of 2^-23 first, and the units are summed in a uint32_t.",
      "Look at l in {ref_tile_softmax}: num_probability_units(p), one sum, then times 2^-23."}},
    {"not every position is in the sum",
     not_all_summed,
     {"How many positions does a tile have, and how many terms your sum?",
      "The smallest tile has one position, and its only probability is e^0 = 1.",
      "Look at the bounds of the loops in {ref_tile_softmax}: j from 0 to n - 1."}},
    {"the largest score",
     largest_score,
     {"What if all scores are negative?",
      "The largest starts at -INFINITY, not at 0, and goes over all n positions.",
      "Look at the first loop of {ref_tile_softmax}."}},
    {"each weight by itself",
     weights_alone,
     {"How many exponents do the weights of a tile have?",
      "The probabilities times 2^exponent of their values are snapped as one row, with one "
      "exponent.",
      "Look at {ref_tile_softmax}: num_weight_in_units(p[j], v_units[j]), then one call of "
      "ref_snap_or_fault over all n."}},
    {"merged with the wrong share",
     merge,
     {"The new tile has a larger maximum. What happens to the values so far?",
      "attention_merge_sums says what each side counts for: the first number is for what was "
      "there, the second for the tile.",
      "Look at the order of the arguments of num_merge in {ref_merge_tile}."}},
    {"the edge of a tile",
     tile_edge,
     {"How many positions has the last tile, if there are 255, 256, 257?",
      "A tile has at most 256 positions, the last one what is left; a next one begins only if a "
      "position is left for it, and each begins with sums of 0.",
      "Look at the loop over tiles in {ref_attention}."}},
    {"a sum is not rounded down to 256",
     not_rounded_down,
     {"Which of the two sums of products goes through num_floor_256?",
      "Both do: the dot product of query and key before it becomes a float, and each weighted sum "
      "of values.",
      "Look for the two sums in {ref_attention}."}},
    {"the mask is shifted",
     mask_shifted,
     {"Which position has query 0, if ten positions were there before?",
      "The queries are the last n_tokens of kv_len positions: query t is at kv_len - n_tokens + t, "
      "and sees that one, too.",
      "Look at how many positions a query sees in {ref_attention}."}},
    {"attention's fault is not told",
     attention_fault,
     {"A query holds a NaN, or its largest score is infinite. Who hears of it?",
      "ref_fault, with the site, and with the token of the query: its number in this call.",
      "Look at {ref_tile_softmax} behind num_tile_max, and at the token that {ref_attention} gives "
      "to ref_snap_or_fault and to ref_tile_softmax."}},
    {"divided by nothing",
     nothing_seen,
     {"What is l of a query that sees no position?",
      "It is 0, and 0 / 0 is a NaN: a query in front of the first position gives zeros.",
      "Look at the division at the end of {ref_attention}, and at the index of its tiles."}},
    {"the fault of another row",
     sample_fault,
     {"A row's logits hold a NaN or an infinity. Which token of the call is that?",
      "The number of the row, from 0.", "Look at ref_fault in {ref_sample}."}},
    {"which of the largest",
     ties,
     {"Two logits are equal. Which token is it? And if one of them is no number?",
      "The lowest id of the largest ones; a row with a NaN or an infinity is a fault and gives 0.",
      "Look at the comparison in {ref_sample}: > keeps the first of equals."}},
    {"the walk to the token",
     walk,
     {"r can be 0. Which token is drawn then?",
      "r goes from 0 to the sum less 1: the first token whose running sum exceeds r, not reaches "
      "it; the weights are those that keep_likeliest left, and position and sample are the row's.",
      "Look at the call of num_draw and the loop behind it in {ref_sample}."}},
};
