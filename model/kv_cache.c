#include "model/kv_cache.h"

#include <stdlib.h>

/* What the keys of a layer take, and their exponents, one for each row; values alike. */
static size_t elements_bytes(int n_slots, int n_kv_heads, int head_dim, enum kv_type type) {
    return (size_t)kv_type_bytes(type) * (size_t)n_slots * (size_t)n_kv_heads * (size_t)head_dim;
}

static size_t exponents_bytes(int n_slots, int n_kv_heads, enum kv_type type) {
    return kv_type_has_exponents(type) ? (size_t)n_slots * (size_t)n_kv_heads : 0;
}

size_t kv_layer_bytes(int n_slots, int n_kv_heads, int head_dim, enum kv_type type) {
    return 2 * (elements_bytes(n_slots, n_kv_heads, head_dim, type) +
                exponents_bytes(n_slots, n_kv_heads, type));
}

void kv_layer_free(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim, enum kv_type type) {
    size_t bytes = elements_bytes(n_slots, n_kv_heads, head_dim, type);
    size_t exponents = exponents_bytes(n_slots, n_kv_heads, type);
    dev->ops->free(dev, layer->k, bytes);
    dev->ops->free(dev, layer->v, bytes);
    dev->ops->free(dev, layer->k_exponents, exponents);
    dev->ops->free(dev, layer->v_exponents, exponents);
    *layer = (struct kv_layer){0};
}

int kv_layer_alloc(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim, enum kv_type type, struct error *err) {
    size_t bytes = elements_bytes(n_slots, n_kv_heads, head_dim, type);
    size_t exponents = exponents_bytes(n_slots, n_kv_heads, type);
    layer->k = dev->ops->alloc(dev, bytes, "the KV cache", err);
    layer->v = dev->ops->alloc(dev, bytes, "the KV cache", err);
    layer->k_exponents = dev->ops->alloc(dev, exponents, "the KV cache", err);
    layer->v_exponents = dev->ops->alloc(dev, exponents, "the KV cache", err);
    if (layer->k && layer->v && layer->k_exponents && layer->v_exponents)
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
