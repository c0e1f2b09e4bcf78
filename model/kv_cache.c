#include "model/kv_cache.h"

#include <stdlib.h>

struct kv_parts kv_layer_parts(const struct kv_layer *layer, int first, int n, int n_kv_heads,
                               int head_dim, enum kv_type type) {
    size_t heads = (size_t)n_kv_heads,
           slot = heads * (size_t)head_dim * (size_t)kv_type_bytes(type);
    size_t exponents = kv_type_has_exponents(type) ? heads : 0;
    size_t bytes = slot * (size_t)n, at = slot * (size_t)first, e = exponents * (size_t)first;
    return (struct kv_parts){{(char *)layer->k + at, (char *)layer->v + at, layer->k_exponents + e,
                              layer->v_exponents + e},
                             {bytes, bytes, exponents * (size_t)n, exponents * (size_t)n}};
}

size_t kv_layer_bytes(int n_slots, int n_kv_heads, int head_dim, enum kv_type type) {
    struct kv_layer any = {0};
    struct kv_parts p = kv_layer_parts(&any, 0, n_slots, n_kv_heads, head_dim, type);
    return 2 * (p.bytes[0] + p.bytes[2]);
}

void kv_layer_free(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim, enum kv_type type) {
    struct kv_parts p = kv_layer_parts(layer, 0, n_slots, n_kv_heads, head_dim, type);
    for (int i = 0; i < 4; i++)
        dev->ops->free(dev, p.at[i], p.bytes[i]);
    *layer = (struct kv_layer){0};
}

int kv_layer_alloc(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim, enum kv_type type, struct error *err) {
    *layer = (struct kv_layer){0};
    struct kv_parts p = kv_layer_parts(layer, 0, n_slots, n_kv_heads, head_dim, type);
    for (int i = 0; i < 4; i++)
        p.at[i] = dev->ops->alloc(dev, p.bytes[i], "the KV cache", err);
    *layer = (struct kv_layer){p.at[0], p.at[1], p.at[2], p.at[3]};
    if (p.at[0] && p.at[1] && p.at[2] && p.at[3])
        return 0;
    kv_layer_free(layer, dev, n_slots, n_kv_heads, head_dim, type);
    return -1;
}

void page_table_end(struct page_table *p) {
    free(p->kv_indptr);
    free(p->kv_page_indices);
    free(p->kv_last_page_len);
    *p = (struct page_table){0};
}
