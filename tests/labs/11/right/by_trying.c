/* Lab 11, solved: the exponent is found by trying all of them, and each token goes through its
 * heads. */
#include "ref/ref.h"
#include "tests/labs/11/other_types.h"

/* The row's exponent, found by trying: from the smallest on, until the largest number fits. */
static int exponent_of(const float *x, int n) {
    float most = 0;
    for (int d = 0; d < n; d++) {
        if (num_magnitude(x[d]) >= 0x7f800000u)
            return BFP_MAX_EXPONENT + 1;
        float a = x[d] < 0 ? -x[d] : x[d];
        most = a > most ? a : most;
    }
    int e = BFP_MIN_EXPONENT;
    while (e <= BFP_MAX_EXPONENT && most * num_pow2(7 - e) > 127.5)
        e++;
    /* 127.5 is a tie, and goes to the even 128 */
    return e <= BFP_MAX_EXPONENT && most * num_pow2(7 - e) == 127.5 ? e + 1 : e;
}

static void store_bfp8(struct device *dev, const struct kv_view *to, const float *x, int64_t page,
                       int64_t position, int head, int head_dim, int site, int token) {
    int8_t *row = (int8_t *)to->data + kv_view_row(to, page, position, head);
    int8_t *exponent = &to->exponents[kv_view_exponent(to, page, position, head)];
    int e = exponent_of(x, head_dim);
    if (e > BFP_MAX_EXPONENT) {
        ref_fault(dev, site, token);
        for (int d = 0; d < head_dim; d++)
            row[kv_view_element(to, d)] = 0;
        *exponent = BFP_MIN_EXPONENT;
        return;
    }
    for (int d = 0; d < head_dim; d++)
        row[kv_view_element(to, d)] = (int8_t)num_rint(x[d] * num_pow2f(7 - e));
    *exponent = (int8_t)e;
}

static int load_bfp8(int16_t *out, const struct kv_view *from, int64_t page, int position, int head,
                     int head_dim) {
    const int8_t *row = (const int8_t *)from->data + kv_view_row(from, page, position, head);
    for (int d = 0; d < head_dim; d++)
        out[d] = (int16_t)(row[kv_view_element(from, d)] * 256);
    return from->exponents[kv_view_exponent(from, page, position, head)];
}

void ref_kv_append(struct device *dev, const struct kv_views *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                   int site_v) {
    for (int t = 0; t < n_tokens; t++) {
        int64_t page = slots[t] / page_size, position = slots[t] % page_size;
        for (int h = 0; h < n_kv_heads && slots[t] >= 0; h++) {
            size_t at = ((size_t)t * (size_t)n_kv_heads + (size_t)h) * (size_t)head_dim;
            ref_store_row(dev, &kv->k, k + at, page, position, h, head_dim, site_k, t);
            ref_store_row(dev, &kv->v, v + at, page, position, h, head_dim, site_v, t);
        }
    }
}

/* ---- given ----------------------------------------------------------------------------------- */

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
