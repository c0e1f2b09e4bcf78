/*
 * kv_cache.h - what the forward pass needs of the KV cache of one sequence.
 *
 * Two kinds. In a contiguous one (scheduler/kv_contiguous.h) the position of a token in its
 * sequence is its slot. A paged one (scheduler/kv_paged.h) lies somewhere in a pool that it shares
 * with others, and says in which slots.
 */
#ifndef SAMEBITS_KV_CACHE_H
#define SAMEBITS_KV_CACHE_H

#include "model/error.h"
#include "model/ops.h"

/* The pages of a sequence, in the order of its positions: owned by the cache, until it grows. */
struct kv_pages {
    const int32_t *indices; /* host [n] */
    int n;
    int page_size;      /* positions per page */
    int n_pages_of_all; /* in the pool */
};

struct kv_cache {
    struct kv_layer *layers; /* host array [n_layers] of device pointers */
    int n_layers, n_kv_heads, head_dim;
    enum kv_type type;  /* other than KV_BFP16: only paged, and all sequences in one pass */
    int capacity;       /* positions that fit now */
    size_t bytes;       /* device memory held; of a paged cache 0: it is the pool's */
    struct device *dev; /* not owned */
    /* Makes room for n_positions, keeping what is stored. Returns 0, or -1 with err set. */
    int (*reserve)(struct kv_cache *cache, int n_positions, struct error *err);
    /* The slots of positions first ... first + n - 1: out, host [n]. Returns 0, or -1 with err set:
     * positions without room. NULL: a contiguous cache. */
    int (*slots)(const struct kv_cache *cache, int first, int n, int64_t *out, struct error *err);
    /* Of a paged cache: its pages, as many as hold n positions. Returns 0, or -1
     * with err set: positions without room, a table that is not right. */
    int (*pages)(const struct kv_cache *cache, int n, struct kv_pages *out, struct error *err);
};

/* Allocates k, v and their exponents of one layer for n_slots tokens. Returns 0, or -1 with err set
 * and nothing allocated. */
int kv_layer_alloc(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim, enum kv_type type, struct error *err);

/* Frees what kv_layer_alloc with the same sizes gave. */
void kv_layer_free(struct kv_layer *layer, struct device *dev, int n_slots, int n_kv_heads,
                   int head_dim, enum kv_type type);

/* Device memory of one layer of n_slots tokens, in bytes. */
size_t kv_layer_bytes(int n_slots, int n_kv_heads, int head_dim, enum kv_type type);

#endif
