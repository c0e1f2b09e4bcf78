#include "scheduler/kv_contiguous.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 64 }; /* a short question fits without a copy */

struct contiguous {
    struct kv_cache base;
    int limit; /* positions it may ever hold */
};

/* Moves one layer into a new piece of memory. */
static int grow_layer(struct kv_cache *c, struct kv_layer *layer, int capacity, struct error *err) {
    struct kv_layer bigger;
    if (kv_layer_alloc(&bigger, c->dev, capacity, c->n_kv_heads, c->head_dim, KV_BFP16, err))
        return -1;
    int heads = c->n_kv_heads, dim = c->head_dim;
    struct kv_parts from = kv_layer_parts(layer, 0, c->capacity, heads, dim, KV_BFP16);
    struct kv_parts to = kv_layer_parts(&bigger, 0, c->capacity, heads, dim, KV_BFP16);
    for (int i = 0; i < 4; i++)
        c->dev->ops->copy(c->dev, to.at[i], from.at[i], from.bytes[i]);
    kv_layer_free(layer, c->dev, c->capacity, c->n_kv_heads, c->head_dim, KV_BFP16);
    *layer = bigger;
    return 0;
}

static void free_layers(struct kv_cache *c, int first, int end, int capacity) {
    for (int i = first; i < end; i++)
        kv_layer_free(&c->layers[i], c->dev, capacity, c->n_kv_heads, c->head_dim, KV_BFP16);
}

static int set_capacity(struct kv_cache *c, int capacity, struct error *err) {
    for (int i = 0; i < c->n_layers; i++)
        if (grow_layer(c, &c->layers[i], capacity, err)) {
            /* Layers of two sizes are of no use: what was computed is given up. */
            free_layers(c, 0, i, capacity);
            free_layers(c, i, c->n_layers, c->capacity);
            c->capacity = 0;
            c->bytes = 0;
            return -1;
        }
    c->capacity = capacity;
    c->bytes = (size_t)c->n_layers * kv_layer_bytes(capacity, c->n_kv_heads, c->head_dim, KV_BFP16);
    return 0;
}

/* A static cache has its limit as its capacity, and never grows. */
static int reserve(struct kv_cache *cache, int n_positions, struct error *err) {
    int limit = ((struct contiguous *)cache)->limit;
    if (n_positions <= cache->capacity)
        return 0;
    if (n_positions > limit)
        return error_set(err, "the KV cache holds %d positions, %d are needed. Raise --context",
                         limit, n_positions);
    int capacity = cache->capacity ? cache->capacity : FIRST_CAPACITY;
    while (capacity < n_positions)
        capacity *= 2;
    return set_capacity(cache, capacity < limit ? capacity : limit, err);
}

struct kv_cache *kv_dynamic_new(const struct model *model, int limit, struct error *err) {
    struct contiguous *c = calloc(1, sizeof *c);
    struct kv_layer *layers = calloc((size_t)model->config.n_layers, sizeof *layers);
    if (!c || !layers) {
        error_set(err, "out of memory for a KV cache");
        free(layers);
        free(c);
        return NULL;
    }
    c->limit = limit;
    c->base = (struct kv_cache){.layers = layers,
                                .n_layers = model->config.n_layers,
                                .n_kv_heads = model->config.n_kv_heads,
                                .head_dim = model->config.head_dim,
                                .dev = model->dev,
                                .reserve = reserve};
    return &c->base;
}

struct kv_cache *kv_static_new(const struct model *model, int capacity, struct error *err) {
    struct kv_cache *cache = kv_dynamic_new(model, capacity, err);
    if (cache && set_capacity(cache, capacity, err)) {
        kv_cache_free(cache);
        return NULL;
    }
    return cache;
}

void kv_cache_free(struct kv_cache *cache) {
    if (!cache)
        return;
    free_layers(cache, 0, cache->n_layers, cache->capacity);
    free(cache->layers);
    free(cache);
}
