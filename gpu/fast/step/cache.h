/*
 * cache.h - what attention of decode_step reads of the cache, and writes to it: a tile of keys and
 * values, in the registers of a block; the newest key and value.
 */
#ifndef SAMEBITS_GPU_FAST_STEP_CACHE_H
#define SAMEBITS_GPU_FAST_STEP_CACHE_H

#include "gpu/fast/step/step.h"

/* Head number i of the block: in the order of the rows of its group, then of their heads, then of
 * those that share one, the first of them last. */
static __device__ __forceinline__ struct step_head step_head_of(const struct step *s, int i) {
    const struct step_arguments *a = s->a;
    struct step_head h;
    int item = s->rank + i * s->a->n_blocks, number = step_divide(item, a->splits_inverse);
    h.split = (number + 1) * a->n_splits - 1 - item;
    h.row = step_divide(number, a->heads_inverse);
    h.head = number - h.row * a->n_heads;
    h.kv_head = step_divide(h.head, a->group_inverse);
    h.first_of_group = h.head == 0 || step_divide(h.head - 1, a->group_inverse) != h.kv_head;
    h.newest = step_shared()->positions[h.row];
    h.pages = s->pages + step_shared()->first_pages[h.row];
    return h;
}

static __device__ __forceinline__ bool step_has_head(const struct step *s, int i) {
    return s->rank + i * s->a->n_blocks < s->n_rows * s->a->n_heads * s->a->n_splits;
}

/* The row of the cache that holds a position. */
static __device__ __forceinline__ uint32_t step_cache_row(const struct step *s,
                                                          const struct step_head *h, int position) {
    int bits = s->a->page_bits;
    uint32_t slot =
        ((uint32_t)h->pages[position >> bits] << bits) + (uint32_t)(position & ((1 << bits) - 1));
    return slot * (uint32_t)s->a->n_kv_heads + (uint32_t)h->kv_head;
}

enum { STEP_POSITIONS = ATTENTION_TILE / STEP_WARPS }; /* of a tile, whose values a warp has */

/* What a thread has of a tile: half of the key of position thread / 2, and a few dimensions of the
 * values of its warp's positions. */
template <int DIM> struct step_keys {
    uint4 of[DIM / 16]; /* every second one, of 8 dimensions, from thread % 2 on */
    int key_exponent, value_exponent;
};
template <int DIM> struct step_values {
    static const int DIMS = DIM / 32, WORDS = (DIMS + 1) / 2, POSITIONS = 8; /* at a time */
    uint32_t of[POSITIONS][WORDS]; /* dimensions DIMS * lane ... */
};

/* The rows of the cache that these are in; ~0: not in the cache. */
struct step_tile_rows {
    uint32_t key, value; /* of position thread / 2; of number lane % STEP_POSITIONS of the warp's */
};

/* The values of a tile are dealt out in pairs of positions, so that warps have as many of a short
 * tile, too. That number i of a warp is: */
static __device__ __forceinline__ int value_position(int warp, int i) {
    return (i / 2 * STEP_WARPS + warp) * 2 + i % 2;
}

/* Finds the cache rows of the tile that begins at position `tile`. */
static __device__ __forceinline__ void find_rows(struct step_tile_rows *rows, const struct step *s,
                                                 const struct step_head *h, int tile) {
    int position = tile + (int)threadIdx.x / 2;
    rows->key = position < h->newest ? step_cache_row(s, h, position) : ~0u;
    position = tile + value_position(s->warp, s->lane % STEP_POSITIONS);
    rows->value = position < h->newest ? step_cache_row(s, h, position) : ~0u;
}

/* Asks for the tile, so that it is in the L2 cache when it is loaded: two threads a position. */
template <int DIM>
static __device__ __forceinline__ void ask_for_tile(const struct step_tile_rows *rows,
                                                    const struct kv_layer *kv) {
    if (rows->key == ~0u)
        return;
    size_t row = rows->key, at = row * DIM + threadIdx.x % 2 * (DIM / 2);
    prefetch_l2(kv->k + at);
    prefetch_l2(kv->v + at);
    prefetch_l2(threadIdx.x % 2 ? kv->k_exponents + row : kv->v_exponents + row);
}

template <int DIM>
static __device__ __forceinline__ void
load_keys(struct step_keys<DIM> *t, const struct step_tile_rows *rows, const struct kv_layer *kv) {
    bool there = rows->key != ~0u;
    *t = {};
    if (!__any_sync(0xffffffffu, there))
        return;
    const uint4 *key = (const uint4 *)(kv->k + (size_t)rows->key * DIM) + threadIdx.x % 2;
    t->key_exponent = there ? kv->k_exponents[rows->key] : 0;
    t->value_exponent = there ? kv->v_exponents[rows->key] : 0;
    UNROLL
    for (int i = 0; i < DIM / 16; i++)
        t->of[i] = there ? key[2 * i] : make_uint4(0, 0, 0, 0);
}

template <int DIM> static __device__ __forceinline__ void load_newest(struct step_keys<DIM> *t) {
    UNROLL
    for (int i = 0; i < DIM / 16; i++)
        t->of[i] = ((const uint4 *)step_shared()->key)[2 * i + threadIdx.x % 2];
}

template <int DIM>
static __device__ __forceinline__ void load_values(struct step_values<DIM> *t, const struct step *s,
                                                   const struct step_tile_rows *rows, int first,
                                                   const struct kv_layer *kv) {
    const int DIMS = step_values<DIM>::DIMS;
    UNROLL
    for (int i = 0; i < step_values<DIM>::POSITIONS; i++) {
        uint32_t row = __shfl_sync(0xffffffffu, rows->value, first + i);
        bool there = row != ~0u;
        const int16_t *value = kv->v + (size_t)row * DIM + s->lane * DIMS;
        if constexpr (DIMS == 1)
            t->of[i][0] = there ? (uint16_t)*value : 0;
        else
            for (int k = 0; k < DIMS / 2; k++)
                t->of[i][k] = there ? ((const uint32_t *)value)[k] : 0;
    }
}

/* Stores the new key and value in the cache, where nobody reads them before the next step: two
 * warps, the last ones, which have nothing to send. */
template <int DIM>
static __device__ __forceinline__ void
store_newest(const struct step *s, const struct step_layer *w, const struct step_head *h) {
    int which = s->warp - (STEP_WARPS - 2); /* key, value */
    if (which < 0)
        return;
    const int16_t *from = which ? step_shared()->value : step_shared()->key;
    size_t row = step_cache_row(s, h, h->newest);
    int16_t *mantissas = (which ? w->kv.v : w->kv.k) + row * DIM;
    for (int d = s->lane; d < DIM / 2; d += 32)
        ((uint32_t *)mantissas)[d] = ((const uint32_t *)from)[d];
    if (s->lane == 0)
        (which ? w->kv.v_exponents : w->kv.k_exponents)[row] =
            (int8_t)step_shared()->head_exponents[1 + which];
}

#endif
