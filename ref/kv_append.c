/* kv_append: makes new keys and values what the cache holds, and writes them to their slots. How a
 * row is stored: kv_row.c. */
#include "ref/ref.h"

struct call {
    struct device *dev;
    const struct kv_views *kv;
    const float *k, *v;
    const int64_t *slots;
    int page_size, n_kv_heads, head_dim, site_k, site_v;
};

static void append(void *context, int first, int end, int worker) {
    (void)worker;
    const struct call *c = context;
    for (int i = first; i < end; i++) {
        int token = i / c->n_kv_heads, head = i % c->n_kv_heads, dim = c->head_dim;
        size_t row = (size_t)i * (size_t)dim;
        int64_t slot = c->slots[token], page = slot / c->page_size, position = slot % c->page_size;
        if (slot < 0)
            continue;
        ref_store_row(c->dev, &c->kv->k, c->k + row, page, position, head, dim, c->site_k, token);
        ref_store_row(c->dev, &c->kv->v, c->v + row, page, position, head, dim, c->site_v, token);
    }
}

void ref_kv_append(struct device *dev, const struct kv_views *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                   int site_v) {
    struct call c = {dev, kv, k, v, slots, page_size, n_kv_heads, head_dim, site_k, site_v};
    ref_parallel_rows(dev, n_tokens * n_kv_heads, 2 * head_dim, append, &c);
}
