/* kv_append: snaps new keys and values and writes them to their slots in the cache. */
#include "ref/ref.h"

static void append_row(struct device *dev, int16_t *mantissas, int8_t *exponents, const float *x,
                       int64_t slot, int n_kv_heads, int head_dim, int site, int token) {
    for (int h = 0; h < n_kv_heads; h++) {
        size_t row = (size_t)slot * (size_t)n_kv_heads + (size_t)h;
        exponents[row] = ref_snap_or_fault(dev, mantissas + row * (size_t)head_dim,
                                           x + (size_t)h * (size_t)head_dim, head_dim, site, token);
    }
}

void ref_kv_append(struct device *dev, const struct kv_layer *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int n_kv_heads, int head_dim, int site_k, int site_v) {
    size_t stride = (size_t)n_kv_heads * (size_t)head_dim;
    for (int t = 0; t < n_tokens; t++) {
        if (slots[t] < 0)
            continue;
        append_row(dev, kv->k, kv->k_exponents, k + (size_t)t * stride, slots[t], n_kv_heads,
                   head_dim, site_k, t);
        append_row(dev, kv->v, kv->v_exponents, v + (size_t)t * stride, slots[t], n_kv_heads,
                   head_dim, site_v, t);
    }
}
