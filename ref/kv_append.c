/* kv_append: makes new keys and values what the cache holds, and writes them to their slots. How a
 * row is stored: kv_row.c. */
#include "ref/ref.h"

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
        ref_store_row(dev, &kv->k, k + row, page, position, head, head_dim, site_k, token);
        ref_store_row(dev, &kv->v, v + row, page, position, head, head_dim, site_v, token);
    }
}
