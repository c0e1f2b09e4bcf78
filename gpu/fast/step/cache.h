/*
 * cache.h - what attention of decode_step reads of the cache, and writes to it: a tile of keys and
 * values, in the registers of a block; the newest key and value.
 */
#ifndef SAMEBITS_GPU_FAST_STEP_CACHE_H
#define SAMEBITS_GPU_FAST_STEP_CACHE_H

#include "gpu/fast/step/step.h"

/* A row and head, and what they read. */
struct step_head {
    int row, head, kv_head;
    bool first_of_group;
    int newest; /* its position */
    const int32_t *pages;
};

/* Head number i of the block: in the order of the rows of its cluster, then of their heads. */
static __device__ __forceinline__ struct step_head step_head_of(const struct step *s, int i) {
    const struct step_arguments *a = s->a;
    struct step_head h;
    int number = s->rank + i * s->a->n_blocks;
    h.row = step_divide(number, a->heads_inverse);
    h.head = number - h.row * a->n_heads;
    h.kv_head = step_divide(h.head, a->group_inverse);
    h.first_of_group = h.head == 0 || step_divide(h.head - 1, a->group_inverse) != h.kv_head;
    h.newest = step_shared()->positions[h.row];
    h.pages = s->pages + step_shared()->first_pages[h.row];
    return h;
}

static __device__ __forceinline__ bool step_has_head(const struct step *s, int i) {
    return s->rank + i * s->a->n_blocks < s->n_rows * s->a->n_heads;
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
 * values of all positions of its warp. */
template <int DIM> struct step_tile {
    static const int DIMS = DIM / 32, WORDS = (DIMS + 1) / 2;
    uint4 keys[DIM / 16]; /* every second one, of 8 dimensions, from thread % 2 on */
    uint32_t values[STEP_POSITIONS][WORDS]; /* dimensions DIMS * lane ... */
    int key_exponent, value_exponent;       /* of position thread / 2 */
};

/* The rows of the cache that these are in; ~0: not in the cache. */
struct step_tile_rows {
    uint32_t key, value; /* of position thread / 2; of position lane % STEP_POSITIONS of the warp */
    int n_values;        /* of the warp's positions, that are there */
};

/* Finds the cache rows of the tile that begins at position `tile`. */
static __device__ __forceinline__ void find_rows(struct step_tile_rows *rows, const struct step *s,
                                                 const struct step_head *h, int tile) {
    int position = tile + (int)threadIdx.x / 2, first = tile + s->warp * STEP_POSITIONS;
    rows->key = position < h->newest ? step_cache_row(s, h, position) : ~0u;
    position = first + s->lane % STEP_POSITIONS;
    rows->value = position < h->newest ? step_cache_row(s, h, position) : ~0u;
    rows->n_values = h->newest - first;
}

template <int DIM>
static __device__ __forceinline__ void load_tile(struct step_tile<DIM> *t, const struct step *s,
                                                 const struct step_tile_rows *rows,
                                                 const struct kv_layer *kv) {
    const int DIMS = step_tile<DIM>::DIMS;
    int half = (int)threadIdx.x % 2;
    if (rows->key != ~0u) {
        t->key_exponent = kv->k_exponents[rows->key];
        t->value_exponent = kv->v_exponents[rows->key];
        UNROLL
        for (int i = 0; i < DIM / 16; i++)
            t->keys[i] = ((const uint4 *)(kv->k + (size_t)rows->key * DIM))[2 * i + half];
    }
    UNROLL
    for (int i = 0; i < STEP_POSITIONS; i++) {
        if (i >= rows->n_values)
            break;
        uint32_t row = __shfl_sync(0xffffffffu, rows->value, i);
        const int16_t *value = kv->v + (size_t)row * DIM + s->lane * DIMS;
        if constexpr (DIMS == 1)
            t->values[i][0] = (uint16_t)*value;
        else
            for (int k = 0; k < DIMS / 2; k++)
                t->values[i][k] = ((const uint32_t *)value)[k];
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
