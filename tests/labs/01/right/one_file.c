/* Everything in one file: rows are converted by token and head, and growing is a new cache whose
 * layers change places with the old ones. */
#include "ref/ref.h"
#include "scheduler/kv_contiguous.h"

#include <stdlib.h>

struct contiguous {
    struct kv_cache base;
    int limit;
};

static void append_row(struct device *dev, const struct kv_view *to, const float *x, int64_t slot,
                       int page_size, int head, int head_dim, int site, int token) {
    int64_t page = slot / page_size, position = slot % page_size;
    int64_t row = kv_view_row(to, page, position, head);
    uint32_t largest = 0;
    for (int d = 0; d < head_dim; d++)
        if (num_magnitude(x[d]) > largest)
            largest = num_magnitude(x[d]);
    int e = kv_stored_exponent(to->type, largest);
    if (e > BFP_MAX_EXPONENT) {
        ref_fault(dev, site, token);
        for (int d = 0; d < head_dim; d++)
            kv_store_bits(to->data, to->type, row + kv_view_element(to, d), 0);
        e = BFP_MIN_EXPONENT;
    } else {
        for (int d = 0; d < head_dim; d++)
            kv_store_bits(to->data, to->type, row + kv_view_element(to, d),
                          kv_bits(to->type, x[d], e, to->scale));
    }
    if (kv_type_has_exponents(to->type))
        to->exponents[kv_view_exponent(to, page, position, head)] = (int8_t)e;
}

void ref_kv_append(struct device *dev, const struct kv_views *kv, const float *k, const float *v,
                   const int64_t *slots, int n_tokens, int page_size, int n_kv_heads, int head_dim,
                   int site_k, int site_v) {
    for (int token = 0; token < n_tokens; token++) {
        if (slots[token] < 0)
            continue;
        for (int head = 0; head < n_kv_heads; head++) {
            size_t at = ((size_t)token * (size_t)n_kv_heads + (size_t)head) * (size_t)head_dim;
            append_row(dev, &kv->k, k + at, slots[token], page_size, head, head_dim, site_k, token);
            append_row(dev, &kv->v, v + at, slots[token], page_size, head, head_dim, site_v, token);
        }
    }
}

static void free_all(struct kv_cache *c, struct kv_layer *layers, int n, int capacity) {
    for (int i = 0; i < n; i++)
        kv_layer_free(&layers[i], c->dev, capacity, c->n_kv_heads, c->head_dim, KV_BFP16);
    free(layers);
}

static struct kv_layer *allocate_all(struct kv_cache *c, int capacity, struct error *err) {
    struct kv_layer *layers = calloc((size_t)c->n_layers, sizeof *layers);
    if (!layers) {
        error_set(err, "out of memory for a KV cache");
        return NULL;
    }
    for (int i = 0; i < c->n_layers; i++)
        if (kv_layer_alloc(&layers[i], c->dev, capacity, c->n_kv_heads, c->head_dim, KV_BFP16,
                           err)) {
            free_all(c, layers, i, capacity);
            return NULL;
        }
    return layers;
}

static void copy_all(struct kv_cache *c, struct kv_layer *to) {
    size_t rows = (size_t)c->capacity * (size_t)c->n_kv_heads;
    size_t bytes = rows * (size_t)c->head_dim * sizeof(int16_t);
    for (int i = 0; i < c->n_layers && rows; i++) {
        c->dev->ops->copy(c->dev, to[i].k, c->layers[i].k, bytes);
        c->dev->ops->copy(c->dev, to[i].v, c->layers[i].v, bytes);
        c->dev->ops->copy(c->dev, to[i].k_exponents, c->layers[i].k_exponents, rows);
        c->dev->ops->copy(c->dev, to[i].v_exponents, c->layers[i].v_exponents, rows);
    }
}

static int resize(struct kv_cache *c, int capacity, struct error *err) {
    struct kv_layer *layers = allocate_all(c, capacity, err);
    if (!layers)
        return -1;
    copy_all(c, layers);
    free_all(c, c->layers, c->capacity ? c->n_layers : 0, c->capacity);
    c->layers = layers;
    c->capacity = capacity;
    c->bytes = (size_t)c->n_layers * kv_layer_bytes(capacity, c->n_kv_heads, c->head_dim, KV_BFP16);
    return 0;
}

static int reserve(struct kv_cache *cache, int n_positions, struct error *err) {
    int limit = ((struct contiguous *)cache)->limit;
    if (n_positions <= cache->capacity)
        return 0;
    if (n_positions > limit)
        return error_set(err, "%d positions do not fit in %d", n_positions, limit);
    int capacity = cache->capacity > 64 ? cache->capacity : 64;
    while (capacity < n_positions)
        capacity += capacity;
    if (capacity > limit)
        capacity = limit;
    return resize(cache, capacity, err);
}

static struct kv_cache *make(const struct model *model, int limit, struct error *err) {
    struct contiguous *c = calloc(1, sizeof *c);
    struct kv_layer *layers = calloc((size_t)model->config.n_layers, sizeof *layers);
    if (!c || !layers) {
        error_set(err, "out of memory for a KV cache");
        free(c);
        free(layers);
        return NULL;
    }
    c->limit = limit;
    c->base.layers = layers;
    c->base.n_layers = model->config.n_layers;
    c->base.n_kv_heads = model->config.n_kv_heads;
    c->base.head_dim = model->config.head_dim;
    c->base.dev = model->dev;
    c->base.reserve = reserve;
    return &c->base;
}

struct kv_cache *kv_static_new(const struct model *model, int capacity, struct error *err) {
    struct kv_cache *cache = make(model, capacity, err);
    if (cache && resize(cache, capacity, err)) {
        kv_cache_free(cache);
        return NULL;
    }
    return cache;
}

void kv_cache_free(struct kv_cache *cache) {
    if (!cache)
        return;
    free_all(cache, cache->layers, cache->capacity ? cache->n_layers : 0, cache->capacity);
    free(cache);
}

struct kv_cache *kv_dynamic_new(const struct model *model, int limit, struct error *err) {
    return make(model, limit, err);
}
