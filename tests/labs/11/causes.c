/* The typical mistakes of lab 11: what each looks like from outside, and three hints. */
#include "tests/labs/11/causes.h"

#include <string.h>

static bool is_check(const struct lab_finding *f, const char *check) {
    return !strcmp(f->check->name, check);
}

static bool is_wrong(const struct lab_finding *f, const char *check, const char *label) {
    return f->how == LAB_WRONG && lab_is(f, check, label);
}

/* What a row that nobody has written holds. */
static bool is_untouched(const struct lab_finding *f) {
    return lab_expected(f) == 85 || lab_found(f) == 85;
}

static bool negative_shifted(const struct lab_finding *f) {
    return f->how == LAB_UNDEFINED && strstr(f->report, "left shift of negative");
}

static bool cut(const struct lab_finding *f) {
    double off = lab_expected(f) - lab_found(f);
    return is_wrong(f, "store", "the elements") && (off == 1 || off == -1);
}

static bool sign_forgotten(const struct lab_finding *f) {
    return is_check(f, "signs");
}

static bool halves(const struct lab_finding *f) {
    return is_wrong(f, "ties", "the elements");
}

static bool does_not_fit(const struct lab_finding *f) {
    return is_check(f, "fits") && (f->how == LAB_UNDEFINED || lab_found(f) < lab_expected(f));
}

static bool too_coarse(const struct lab_finding *f) {
    return (is_check(f, "fits") || is_check(f, "store")) && f->how == LAB_WRONG;
}

static bool very_small(const struct lab_finding *f) {
    return is_check(f, "powers");
}

static bool cannot_be_stored(const struct lab_finding *f) {
    return is_check(f, "bad");
}

static bool exponent_of_another_row(const struct lab_finding *f) {
    return is_wrong(f, "places", "the exponent") ||
           is_wrong(f, "load places", "the exponent that loading");
}

static bool steps_of_elements(const struct lab_finding *f) {
    return is_check(f, "places") || is_check(f, "load places");
}

static bool high_digit(const struct lab_finding *f) {
    return is_check(f, "load");
}

static bool keys_for_values(const struct lab_finding *f) {
    return is_check(f, "append") && f->how == LAB_WRONG && f->size == 1 && !is_untouched(f);
}

static bool slot_taken_apart(const struct lab_finding *f) {
    return is_check(f, "append");
}

static bool row_of_a_head(const struct lab_finding *f) {
    return is_check(f, "heads");
}

static bool negative_slot(const struct lab_finding *f) {
    return is_check(f, "skipped");
}

static bool fault_of_another(const struct lab_finding *f) {
    return is_check(f, "fault");
}

const struct lab_cause lab_11_causes[N_LAB_11_CAUSES] = {
    {"a negative number is shifted",
     negative_shifted,
     {"What does C say of -3 << 8?",
      "It is not defined before C23, though the bits are mostly what you expect. -3 * 256 is.",
      "Look at the shift in {load_bfp8}, and multiply by 256."}},
    {"cut instead of rounded",
     cut,
     {"What does a cast from float to an integer do with 2.7?",
      "A cast cuts the fraction off; the element is the nearest integer.",
      "Look at where {store_bfp8} makes an integer of x[d]: num_rint rounds."}},
    {"the sign of the largest",
     sign_forgotten,
     {"Which is the largest magnitude of -3 and 0.25?",
      "The exponent is decided by the largest |x[d]|, and num_magnitude orders like that.",
      "Look at the loop over the row in {store_bfp8} that finds its largest number."}},
    {"halves do not go to the even integer",
     halves,
     {"Which integer is nearest to 2.5, and which to 3.5?",
      "Ties go to the even one: 2.5 becomes 2, 3.5 becomes 4. Adding 0.5, or roundf, gives 3.",
      "Look at where {store_bfp8} makes an integer of x[d]: num_rint rounds ties to even."}},
    {"the largest number does not fit",
     does_not_fit,
     {"With e = 7 a unit is 1. What does 127.6 become?",
      "It is below 2^7 and would be rounded to 128, which a byte does not hold: then the next "
      "exponent is needed.",
      "Look at where {store_bfp8} knows the float's own exponent: compare num_rint(max * 2^(7-e)) "
      "with 127, and only then take e."}},
    {"not the smallest exponent",
     too_coarse,
     {"With which exponents does the largest number fit, and which of them is the smallest?",
      "A number from 2^(n-1) to below 2^n has e = n, unless rounding carries it to 2^n. Compare "
      "the exponent that was expected with yours.",
      "Look at the exponent in {store_bfp8}: the float's field minus 126, and 2^(7-e) for the "
      "elements."}},
    {"very small numbers",
     very_small,
     {"What is the exponent of a row whose largest number is 2^-120?",
      "No exponent is below -100: such a row has coarse elements, down to zeros.",
      "Look at the exponent in {store_bfp8} before it is used: at least BFP_MIN_EXPONENT."}},
    {"a row that cannot be stored",
     cannot_be_stored,
     {"What is stored of a row with a NaN, and who hears of it?",
      "A NaN, an infinity and an exponent above 127 are faults: ref_fault, zeros, exponent -100. "
      "A row of zeros is no fault.",
      "Look at what {store_bfp8} does when the exponent is above BFP_MAX_EXPONENT; of "
      "num_magnitude, "
      "infinity is 0x7f800000, and NaNs are above it."}},
    {"the exponent of another row",
     exponent_of_another_row,
     {"How many exponents has a page of two positions and two heads?",
      "Every row has its own, at kv_view_exponent(view, page, position, head): exponents have "
      "steps of their own, too.",
      "Look at the index of exponents in {store_bfp8} and {load_bfp8}."}},
    {"elements lie in steps",
     steps_of_elements,
     {"In which layout are the elements of a row not neighbours?",
      "In vLLM's, elements lie in groups or even positions apart. Element d is at kv_view_row(...) "
      "+ kv_view_element(view, d).",
      "Look at the index of data in {store_bfp8} and {load_bfp8}."}},
    {"the high digit",
     high_digit,
     {"q * 2^(e-7) is to be integer * 2^(e-15). What is the integer?",
      "An 8-bit element is the high half of a 16-bit one; the exponent stays what it is.",
      "Look at what {load_bfp8} writes to out[d], and what it returns."}},
    {"keys and values exchanged",
     keys_for_values,
     {"Which of the two arrays of rows goes to which view?",
      "k goes to kv->k, v to kv->v. The row is in its place, and holds other numbers.",
      "Look at the two calls of ref_store_row in {ref_kv_append}."}},
    {"page and position",
     slot_taken_apart,
     {"Pages have three positions. Where is slot 5?",
      "Slot 5 is position 2 of page 1: page = slot / page_size, position = slot % page_size.",
      "Look at how {ref_kv_append} takes slots[t] apart, and that t counts tokens."}},
    {"the row of another head",
     row_of_a_head,
     {"Token 1 has two heads. Which rows of k are its own?",
      "Rows are [n_tokens, n_kv_heads]: head h of token t is row t * n_kv_heads + h, head_dim "
      "numbers each.",
      "Look at the loops in {ref_kv_append}: one slot for all heads of a token."}},
    {"a negative slot",
     negative_slot,
     {"What does C make of -1 / 3 and -1 % 3?",
      "A token with a negative slot is stored nowhere, but those behind it are.",
      "Look at {ref_kv_append}: continue with the next token before anything is stored."}},
    {"the fault of another token",
     fault_of_another,
     {"Which token does row 5 belong to, with two heads?",
      "The fault is told with the number of the token, not of the row, and with site_k for keys, "
      "site_v for values.",
      "Look at the last two arguments of ref_store_row in {ref_kv_append}, and of ref_fault in "
      "{store_bfp8}."}},
};
