/*
 * new_tokens.h - for gpu/fast/decode/decode_new.cu: what ../../rope.cu does with the newest token
 * of each sequence, inside the decode kernel. Gains a launch and a wait in each layer of a decoding
 * step; and the older keys are on their way while the newest is rotated.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_NEW_TOKENS_H
#define SAMEBITS_GPU_FAST_DECODE_NEW_TOKENS_H

#include "gpu/fast/decode/decode.h"
#include "gpu/fast/vector/norm.h"

/* Half of what a lane has of a head: dimensions lane, lane + 32, ... of the first half, or of the
 * second one. */
template <int DIM>
static __device__ __forceinline__ float (&half_of(float (&x)[DIM / 32], int half))[DIM / 64] {
    return reinterpret_cast<float(&)[DIM / 64]>(x[half * (DIM / 64)]);
}

/* Normalises a head where there is a gain, and rotates it by the angles of a position. (A sequence
 * without positions has those of the first.) */
template <int DIM>
static __device__ __forceinline__ void turn_head(float (&x)[DIM / 32], const float *gain,
                                                 const struct new_tokens *t, int position, int site,
                                                 int token, unsigned long long *fault) {
    const int PAIRS = DIM / 64, HALF = DIM / 2;
    int lane = (int)(threadIdx.x % 32);
    size_t at = (size_t)max(position, 0) * HALF + (size_t)lane;
    float(&a)[PAIRS] = half_of<DIM>(x, 0), (&b)[PAIRS] = half_of<DIM>(x, 1);
    float c[PAIRS], s[PAIRS], gains[2][PAIRS];
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        c[i] = t->cos[at + (size_t)(32 * i)];
        s[i] = t->sin[at + (size_t)(32 * i)];
    }
    if (gain) {
        load_pairs(gains[0], gains[1], gain, HALF, lane);
        norm_pairs(a, b, gains, HALF, lane, t->eps, site, token, fault);
    }
    UNROLL
    for (int i = 0; i < PAIRS; i++)
        rotate(&a[i], &b[i], c[i], s[i]);
}

/* The newest key, or value, of a row group: stores it in the cache. Where the block begins with its
 * tile (in_tile: its place there), the key goes to shared memory, too, where the older ones are on
 * their way, and the unit of both. */
template <class size>
static __device__ __forceinline__ void
store_newest(const struct new_tokens *t, bool is_value, const struct attention_arguments *a,
             const struct decode_cache *cache, const struct plan_arrays *plan,
             const struct row_group *g, int in_tile, bool begins, const struct decode_memory *mem) {
    const int DIM = size::DIM;
    int lane = (int)(threadIdx.x % 32), head = g->first_token * a->n_kv_heads + kv_head();
    uint32_t row =
        cache_row(cache, plan, plan->pages[g->pages + page_of(plan, g->kv_len - 1)], g->kv_len - 1);
    float x[DIM / 32];
    load_pairs(half_of<DIM>(x, 0), half_of<DIM>(x, 1),
               (is_value ? t->v : t->k) + (size_t)head * DIM, DIM / 2, lane);
    if (!is_value)
        turn_head<DIM>(x, t->k_gain, t, g->kv_len - 1, t->site_k, g->first_token, a->fault);
    bool bad;
    int e =
        exponent_of_pairs(&bad, half_of<DIM>(x, 0), half_of<DIM>(x, 1), lane,
                          is_value ? t->site_stored_v : t->site_stored_k, g->first_token, a->fault);
    int16_t *to = (int16_t *)(is_value ? cache->v : cache->k) + (size_t)row * DIM;
    unsigned char *key = mem->ring + in_tile * size::ROW_BYTES; /* chunks lie one after the other */
    UNROLL
    for (int i = 0; i < DIM / 32; i++) {
        int d = lane + 32 * i;
        int16_t mantissa = bad ? (int16_t)0 : (int16_t)near_mantissa(x[i], num_pow2f(15 - e));
        to[d] = mantissa;
        if (begins && !is_value)
            ((int16_t *)(key + 16 * column_in_row<size>(in_tile % 8, d / 8)))[d % 8] = mantissa;
    }
    if (lane)
        return;
    ((int8_t *)(is_value ? cache->v_exponents : cache->k_exponents))[row] = (int8_t)e;
    if (begins && is_value)
        mem->v_units[in_tile] = num_bits(num_pow2f(e));
    else if (begins)
        mem->k_units[in_tile] = num_pow2f(e) * 0x1p-30f;
}

/* Those of all sequences that end in the share, a warp each, the last warps first: the first ones
 * have queries. */
template <class size>
static __device__ __forceinline__ void
store_all_newest(const struct new_tokens *t, const struct attention_arguments *a,
                 const struct decode_cache *cache, const struct plan_arrays *plan,
                 const struct tile_cursor *begin, const struct decode_memory *mem) {
    int turn = size::WARPS - 1 - (int)(threadIdx.x / 32); /* 0: key, 1: value, 2: the next key */
    struct tile_cursor at = *begin;
    for (int i = 0; at.left >= at.group.n_tiles - at.tile; i++) {
        int last = at.group.n_tiles - 1;
        if (i % (size::WARPS / 2) == turn / 2 && at.group.kv_len > 0)
            store_newest<size>(t, turn % 2, a, cache, plan, &at.group,
                               at.group.kv_len - 1 - begin_of(&at.group, last),
                               i == 0 && at.tile == last, mem);
        at.left -= at.group.n_tiles - at.tile;
        if (!at.left)
            break;
        at.tile = 0;
        at.group = plan->groups[++at.number];
    }
}

#endif
