/* kv_append: makes new keys and values what the cache holds, and writes them to their slots. */
#include "ref/ref.h"

static void store_row(struct device *dev, const struct kv_view *to, const float *x, int64_t page,
                      int64_t position, int head, int head_dim, int site, int token) {
    int64_t row = kv_view_row(to, page, position, head);
    uint32_t largest = 0;
    for (int d = 0; d < head_dim; d++)
        largest = num_magnitude(x[d]) > largest ? num_magnitude(x[d]) : largest;
    int e = kv_stored_exponent(to->type, largest);
    bool bad = e > BFP_MAX_EXPONENT; /* it becomes a row of zeros */
    if (bad)
        ref_fault(dev, site, token);
    for (int d = 0; d < head_dim; d++)
        kv_store_bits(to->data, to->type, row + kv_view_element(to, d),
                      bad ? 0 : kv_bits(to->type, x[d], e, to->scale));
    if (kv_type_has_exponents(to->type))
        to->exponents[kv_view_exponent(to, page, position, head)] =
            (int8_t)(bad ? BFP_MIN_EXPONENT : e);
}

void ref_kv_append(struct device *dev, const struct kv_views *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                   int site_v) {
    for (int i = 0; i < n_tokens * n_kv_heads; i++) {
        int token = i / n_kv_heads, head = i % n_kv_heads;
        size_t row = (size_t)i * (size_t)head_dim;
        if (slots[token] < 0)
            continue;
        int64_t page = slots[token] / page_size, position = slots[token] % page_size;
        store_row(dev, &kv->k, k + row, page, position, head, head_dim, site_k, token);
        store_row(dev, &kv->v, v + row, page, position, head, head_dim, site_v, token);
    }
}
