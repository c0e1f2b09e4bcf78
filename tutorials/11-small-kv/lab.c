/*
 * Lab 11: store and load bfp8. Your file takes the place of ref/kv_row.c and ref/kv_append.c; the
 * task is in the section "Lab" of this chapter. `make lab11` builds and grades it.
 *
 * A view (model/attention/kv_view.h) says where a row lies:
 *
 *     kv_view_row(view, page, position, head)         the number of the row's first element
 *       + kv_view_element(view, d)                    element d, counted from there
 *     kv_view_exponent(view, page, position, head)    the number of the row's exponent
 *
 * Elements are in view->data, for bfp8 an array of int8_t, and exponents in view->exponents.
 * model/numerics.h has what else you need: num_magnitude, num_float, num_pow2f, num_rint,
 * BFP_MIN_EXPONENT (-100), BFP_MAX_EXPONENT (127). kv_bfp8_exponent of kv_type.h is what you write,
 * and kv_stored_exponent, kv_bits and kv_integer know bfp8, too: a file that uses them is refused.
 */
#include "ref/ref.h"
#include "tests/labs/11/other_types.h"
#include "tests/labs/not_written.h"

/* ---- step 1: store a row --------------------------------------------------------------------- */

/* Stores x [head_dim] in a view of bfp8. The exponent e is the smallest one >= -100 with which the
 * row's largest magnitude fits: rint(max * 2^(7-e)) <= 127. Element d is rint(x[d] * 2^(7-e)), ties
 * to even. A row with a NaN or an infinity, or one that would need more than exponent 127, becomes
 * zeros with exponent -100, and ref_fault(dev, site, token) of ref/ref.h is called. */
static void store_bfp8(struct device *dev, const struct kv_view *to, const float *x, int64_t page,
                       int64_t position, int head, int head_dim, int site, int token) {
    (void)dev, (void)to, (void)x, (void)page, (void)position, (void)head, (void)head_dim;
    (void)site, (void)token;
    not_written("find the row's exponent, store it, and store each element in its steps");
}

/* ---- step 2: load a row ---------------------------------------------------------------------- */

/* Loads a row of bfp8 into out [head_dim] as attention wants it: integers that stand for
 * integer * 2^(e - 15), where e is the stored exponent. Returns e. */
static int load_bfp8(int16_t *out, const struct kv_view *from, int64_t page, int position, int head,
                     int head_dim) {
    (void)out, (void)from, (void)page, (void)position, (void)head, (void)head_dim;
    not_written("make each stored element an integer of 16 bits, and return the row's exponent");
}

/* ---- step 3: append -------------------------------------------------------------------------- */

/* Stores the keys and values of new tokens, one row for each token and kv head. slots[t]: page *
 * page_size + position of token t; a negative one is skipped. kv->k and kv->v are the views; faults
 * of keys have site_k, of values site_v. Rows go through ref_store_row, which knows all types. */
void ref_kv_append(struct device *dev, const struct kv_views *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                   int site_v) {
    (void)dev, (void)kv, (void)k, (void)v, (void)slots, (void)n_tokens, (void)page_size;
    (void)n_kv_heads, (void)head_dim, (void)site_k, (void)site_v;
    not_written("for each token and head, split the slot into page and position, and store a row "
                "of keys and one of values");
}

/* ---- given ----------------------------------------------------------------------------------- */

/* store_other and load_other are in tests/labs/11/other_types.h. */

void ref_store_row(struct device *dev, const struct kv_view *to, const float *x, int64_t page,
                   int64_t position, int head, int head_dim, int site, int token) {
    if (to->type == KV_BFP8)
        store_bfp8(dev, to, x, page, position, head, head_dim, site, token);
    else
        store_other(dev, to, x, page, position, head, head_dim, site, token);
}

int ref_load_row(int16_t *out, const struct kv_view *view, int64_t page, int position, int head,
                 int head_dim) {
    return view->type == KV_BFP8 ? load_bfp8(out, view, page, position, head, head_dim)
                                 : load_other(out, view, page, position, head, head_dim);
}
