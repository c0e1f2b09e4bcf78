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

/* The page table of a batch, as FlashInfer and vLLM have it (CSR: compressed sparse rows), in host
 * memory. Sequence i has pages kv_page_indices[kv_indptr[i]] ... kv_page_indices[kv_indptr[i+1] -
 * 1], in the order of its positions; the last holds kv_last_page_len[i] positions (0 for a sequence
 * without positions). */
struct page_table {
    int32_t *kv_indptr;        /* [n_sequences + 1] */
    int32_t *kv_page_indices;  /* [n_pages] */
    int32_t *kv_last_page_len; /* [n_sequences] */
    int n_sequences, n_pages;
    int page_size;    /* positions per page */
    int n_pool_pages; /* in the pool that holds them */
};

/* Frees the arrays and zeroes *p; a zeroed one is fine. */
void page_table_end(struct page_table *p);

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
    /* The page table of n paged caches of one pool, of the first kv_lens[i] positions of each; out
     * is the caller's to end. Returns 0, or -1 with err set and out zeroed: positions without room,
     * a table that is not right, no memory. NULL: a contiguous cache. */
    int (*page_table)(struct kv_cache *const *caches, const int *kv_lens, int n,
                      struct page_table *out, struct error *err);
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

/* Where some slots of a layer lie: their keys, values and the exponents of both, with their bytes
 * (0: the type has no exponents). */
struct kv_parts {
    void *at[4];
    size_t bytes[4];
};

/* Slots first ... first + n - 1. */
struct kv_parts kv_layer_parts(const struct kv_layer *layer, int first, int n, int n_kv_heads,
                               int head_dim, enum kv_type type);

#endif
