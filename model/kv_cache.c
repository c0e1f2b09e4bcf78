#include "model/kv_cache.h"

/* One exponent per row of head_dim mantissas; keys and values alike. */
static size_t rows_of(int n_slots, int n_kv_heads) {
    return (size_t)n_slots * (size_t)n_kv_heads;
}

size_t kv_layer_bytes(int n_slots, int n_kv_heads, int head_dim) {
    return 2 * rows_of(n_slots, n_kv_heads) * (sizeof(int16_t) * (size_t)head_dim + 1);
}

void kv_layer_free(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim) {
    size_t rows = rows_of(n_slots, n_kv_heads), bytes = sizeof(int16_t) * rows * (size_t)head_dim;
    dev->ops->free(dev, layer->k, bytes);
    dev->ops->free(dev, layer->v, bytes);
    dev->ops->free(dev, layer->k_exponents, rows);
    dev->ops->free(dev, layer->v_exponents, rows);
    *layer = (struct kv_layer){0};
}

int kv_layer_alloc(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim, struct error *err) {
    size_t rows = rows_of(n_slots, n_kv_heads), bytes = sizeof(int16_t) * rows * (size_t)head_dim;
    layer->k = dev->ops->alloc(dev, bytes, "the KV cache", err);
    layer->v = dev->ops->alloc(dev, bytes, "the KV cache", err);
    layer->k_exponents = dev->ops->alloc(dev, rows, "the KV cache", err);
    layer->v_exponents = dev->ops->alloc(dev, rows, "the KV cache", err);
    if (layer->k && layer->v && layer->k_exponents && layer->v_exponents)
        return 0;
    kv_layer_free(layer, dev, n_slots, n_kv_heads, head_dim);
    return -1;
}
