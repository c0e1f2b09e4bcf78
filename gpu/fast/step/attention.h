/*
 * attention.h - attention of decode_step: computes what ../../attention_paged.cu does; gains the
 * launches of rope, kv_append and attention, and the first tile is loaded before the queries are
 * there. A block takes a row and a query head, then the next.
 *
 * Two threads have a position of the tile, each half of its key; of the values, a warp
 * has 16 positions, a lane some dimensions. So a tile of keys and values fits in the registers of a
 * block, and that of its first head is read while queries are still being computed. The newest
 * position is not in the cache yet: its key and value come from shared memory.
 */
#ifndef SAMEBITS_GPU_FAST_STEP_ATTENTION_H
#define SAMEBITS_GPU_FAST_STEP_ATTENTION_H

#include "gpu/fast/step/cache.h"

enum { STEP_HEAD_WARPS = 3 }; /* make a query, a key and a value of what came in */

/* A mantissa + 128 is 256 times its high digit, and its low one with the highest bit turned over.
 * Returns the high digits of two mantissas, then their low ones, as dot products of two want them.
 */
static __device__ __forceinline__ uint32_t digits_of_two(uint32_t raised) {
    return __byte_perm(raised, 0, 0x2031) ^ 0x80800000u;
}

/* Snaps what a warp holds of a head to `to`, in shared memory, `raised` by so much, and returns the
 * exponent: one that is too large is a fault. */
template <int DIM, int PAIRS>
static __device__ __forceinline__ int snap_pairs(int16_t *to, int raised, const float (&a)[PAIRS],
                                                 const float (&b)[PAIRS], const struct step *s,
                                                 int site, int row) {
    int e = num_row_exponent(largest_of_pairs(a, b));
    bool bad = e > BFP_MAX_EXPONENT;
    if (bad && s->lane == 0)
        gpu_fault(s->a->fault, site, s->first_row + row);
    e = bad ? BFP_MIN_EXPONENT : e;
    float scale = bad ? 0 : num_pow2f(15 - e);
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = s->lane + 32 * i;
        if (d < DIM / 2) {
            to[d] = (int16_t)((bad ? 0 : near_mantissa(a[i], scale)) + raised);
            to[DIM / 2 + d] = (int16_t)((bad ? 0 : near_mantissa(b[i], scale)) + raised);
        }
    }
    return e;
}

/* What a warp needs beside a query, a key (or a value) to make it ready: which of them is its own,
 * where it comes in, gains and angles of its dimensions. */
template <int DIM> struct step_head_input {
    static const int PAIRS = (DIM / 2 + 31) / 32;
    int from;    /* where it is in a row of what comes in */
    bool normed; /* it has gains */
    float gain[2][PAIRS], c[PAIRS], s[PAIRS];
};

template <int DIM>
static __device__ __forceinline__ void
load_head_input(struct step_head_input<DIM> *t, const struct step *s, const struct step_layer *w,
                const struct step_head *h, const float *gains) {
    const int half = DIM / 2;
    const struct step_arguments *a = s->a;
    int which = s->warp; /* query, key, value */
    if (which >= STEP_HEAD_WARPS)
        return;
    int head = which == 0 ? h->head : a->n_heads + h->kv_head + (which == 2 ? a->n_kv_heads : 0);
    t->from = h->row * a->at.width + head * DIM;
    t->normed = which < 2 && w->gains[2 + which];
    UNROLL
    for (int i = 0; i < t->PAIRS; i++) {
        int d = min(s->lane + 32 * i, half - 1);
        t->gain[0][i] = t->normed ? gains[which * DIM + d] : 0;
        t->gain[1][i] = t->normed ? gains[which * DIM + half + d] : 0;
        t->c[i] = step_floats(a->at.cos)[h->row * half + d];
        t->s[i] = step_floats(a->at.sin)[h->row * half + d];
    }
}

/* Normalises, rotates and snaps the query and the new key, and snaps the new value: a warp each. */
template <int DIM>
static __device__ __forceinline__ void
prepare_head(const struct step *s, const struct step_head_input<DIM> *t, int row, int site) {
    const int PAIRS = step_head_input<DIM>::PAIRS, half = DIM / 2;
    int which = s->warp;
    if (which >= STEP_HEAD_WARPS)
        return;
    int16_t *to = which == 2   ? step_shared()->value
                  : which == 1 ? step_shared()->key
                               : step_shared()->snapped_query;
    float x[PAIRS], y[PAIRS];
    load_pairs(x, y, step_floats(s->in) + t->from, half, s->lane);
    if (t->normed)
        norm_pairs(x, y, t->gain, half, s->lane, s->a->eps, site + (which ? TENSOR_K : TENSOR_Q),
                   s->first_row + row, s->a->fault);
    if (which < 2) {
        UNROLL
        for (int i = 0; i < PAIRS; i++)
            rotate(&x[i], &y[i], t->c[i], t->s[i]);
    }
    int tensor = which == 0 ? TENSOR_ATTENTION : which == 1 ? TENSOR_K_ROTATED : TENSOR_V;
    int e = snap_pairs<DIM>(to, which == 0 ? 128 : 0, x, y, s, site + tensor, row);
    if (s->lane == 0)
        step_shared()->head_exponents[which] = e;
    if (which == 0) {
        __syncwarp();
        UNROLL
        for (int i = 0; i < PAIRS; i++) {
            int d = s->lane + 32 * i;
            if (d < half)
                step_shared()->query[d] = digits_of_two(((const uint32_t *)to)[d]);
        }
    }
}

/* Floats as integers in the same order; the same function goes back. */
static __device__ __forceinline__ int float_order(int bits) {
    return bits ^ (bits >> 31 & 0x7fffffff);
}

/* The largest of all threads' x, none of which is a NaN: every warp leaves its own, and reads those
 * of all behind a barrier. */
static __device__ __forceinline__ float largest_of_block(const struct step *s, float x) {
    int largest = warp_max(float_order((int)num_bits(x)));
    if (s->lane == 0)
        step_shared()->part[s->warp] = largest;
    __syncthreads();
    largest = warp_max(step_shared()->part[s->lane % STEP_WARPS]);
    return num_float((uint32_t)float_order(largest));
}

/* The sum of all threads' units, and the largest weight. */
static __device__ __forceinline__ uint2 sum_and_largest(const struct step *s, uint32_t units,
                                                        uint32_t weight) {
    uint2 *part = step_shared()->part_sums;
    units = warp_sum(units);
    weight = warp_max(weight);
    if (s->lane == 0)
        part[s->warp] = make_uint2(units, weight);
    __syncthreads();
    uint2 mine = part[s->lane % STEP_WARPS];
    units = warp_sum(s->lane < STEP_WARPS ? mine.x : 0);
    return make_uint2(units, warp_max(mine.y));
}

/* The dot product of the query with the key of position thread / 2, in both of its threads: in
 * units of 256, rounded down. */
template <int DIM>
static __device__ __forceinline__ int dot_of_thread(const struct step_tile<DIM> *t, bool newest) {
    int half = (int)threadIdx.x % 2, high = 0, low = 0;
    UNROLL
    for (int i = 0; i < DIM / 16; i++) {
        uint4 k = t->keys[i];
        if (newest)
            k = ((const uint4 *)step_shared()->key)[2 * i + half];
        uint4 q = ((const uint4 *)step_shared()->query)[2 * i + half];
        const uint32_t keys[4] = {k.x, k.y, k.z, k.w}, digits[4] = {q.x, q.y, q.z, q.w};
        UNROLL
        for (int j = 0; j < 4; j++) {
            high = __dp2a_lo((int)keys[j], (int)digits[j], high);
            low = __dp2a_hi((int)keys[j], (int)digits[j], low);
        }
    }
    high += __shfl_xor_sync(0xffffffffu, high, 1);
    low += __shfl_xor_sync(0xffffffffu, low, 1);
    return high + (low >> 8);
}

/* Leaves this position's weight as digits for add_values: of two positions the high ones, then the
 * low ones. The newest position's value is not among theirs. */
static __device__ __forceinline__ void put_weight(int weight, bool newest) {
    int thread = (int)threadIdx.x, low = thread % 2; /* a thread for each of the digits */
    if (newest && !low)
        step_shared()->newest_weight = weight;
    int raised = (newest ? 0 : weight) + 128;
    step_shared()->weight_digits[thread / 4 * 4 + low * 2 + thread / 2 % 2] =
        (uint8_t)(low ? raised ^ 128 : raised >> 8);
}

/* Leaves the weighted sums of the values of this warp's positions at sums[warp]: of high and of low
 * digits, below 2^30 each even of a whole tile. */
template <int DIM>
static __device__ __forceinline__ void add_values(const struct step_tile<DIM> *t,
                                                  const struct step *s) {
    const int DIMS = step_tile<DIM>::DIMS;
    alignas(16) uint32_t digits[STEP_POSITIONS / 2];
    const uint4 *from =
        (const uint4 *)(step_shared()->weight_digits + s->warp * STEP_POSITIONS * 2);
    UNROLL
    for (int i = 0; i < STEP_POSITIONS / 8; i++)
        ((uint4 *)digits)[i] = from[i];
    UNROLL
    for (int k = 0; k < DIMS; k++) {
        int high = 0, low = 0;
        UNROLL
        for (int i = 0; i < STEP_POSITIONS; i += 2) {
            int two = (int)__byte_perm(t->values[i][k / 2], t->values[i + 1][k / 2],
                                       k % 2 ? 0x7632 : 0x5410);
            high = __dp2a_lo(two, (int)digits[i / 2], high);
            low = __dp2a_hi(two, (int)digits[i / 2], low);
        }
        step_shared()->sums[s->warp * DIM + s->lane * DIMS + k] = make_int2(high, low);
    }
}

/* The weighted sum of all values, of a dimension: in units of 256, rounded down. newest: the newest
 * position is among them. */
template <int DIM>
static __device__ __forceinline__ float sum_of_values(int dimension, bool newest) {
    int high = 0, low = 0;
    UNROLL
    for (int i = 0; i < STEP_WARPS; i++) {
        int2 sum = step_shared()->sums[i * DIM + dimension];
        high += sum.x;
        low += sum.y;
    }
    long long sum = 256ll * high + low;
    if (newest)
        sum += step_shared()->newest_weight * step_shared()->value[dimension];
    return (float)(sum & -256);
}

/* A head: its tiles one after the other, merged as they come. loaded: the first one is in t
 * already, and the input, too. */
template <int DIM>
static __device__ __forceinline__ void
attend_head(const struct step *s, const struct step_layer *w, const struct step_head *h,
            struct step_tile<DIM> *t, struct step_head_input<DIM> *input, bool loaded,
            const float *gains, int site) {
    int thread = (int)threadIdx.x;
    if (!loaded)
        load_head_input(input, s, w, h, gains);
    prepare_head(s, input, h->row, site);
    __syncthreads();
    struct num_score_unit unit = num_score_unit_of(step_shared()->head_exponents[0], s->a->scale);
    float m = -INFINITY, l = 0, o = 0;
    UNROLL_1
    for (int tile = 0; tile <= h->newest; tile += ATTENTION_TILE) {
        int position = tile + thread / 2;
        bool sees = position <= h->newest, newest = position == h->newest;
        if (tile || !loaded) {
            struct step_tile_rows rows;
            find_rows(&rows, s, h, tile);
            load_tile(t, s, &rows, &w->kv);
        }
        float score = -INFINITY;
        if (tile + s->warp * 16 <= h->newest) { /* others of this warp may see something */
            float dot = (float)dot_of_thread(t, newest);
            int key_exponent = newest ? step_shared()->head_exponents[1] : t->key_exponent;
            score = sees ? num_score(dot, (float)num_pow2(key_exponent - 30)) : score;
        }
        float largest = largest_of_block(s, score), tile_m = num_tile_max(largest, unit);
        float p = sees ? num_probability(score, num_window_of(largest, unit.binary)) : 0;
        int value_exponent = newest ? step_shared()->head_exponents[2] : t->value_exponent;
        float weight = sees ? num_value_weight(p, value_exponent) : 0;
        uint2 all = sum_and_largest(s, sees && thread % 2 == 0 ? num_probability_units(p) : 0,
                                    num_magnitude(weight));
        int e = num_row_exponent(all.y);
        bool bad = num_magnitude(tile_m) >= 0x7f800000u || e > BFP_MAX_EXPONENT;
        if (bad && thread == 0)
            gpu_fault(s->a->fault, site + TENSOR_ATTENTION, s->first_row + h->row);
        e = bad ? BFP_MIN_EXPONENT : e;
        put_weight(bad ? 0 : near_mantissa(weight, num_pow2f(15 - e)), newest);
        __syncthreads();
        add_values(t, s);
        __syncthreads();
        float old_factor, new_factor;
        attention_merge_sums(&m, &l, tile_m, (float)all.x * 0x1p-23f, &old_factor, &new_factor);
        if (thread < DIM) {
            float sum = sum_of_values<DIM>(thread, h->newest < tile + ATTENTION_TILE);
            o = num_merge(o, old_factor, num_weighted_value(sum, e), new_factor);
        }
    }
    if (thread < DIM) {
        float y = l > 0 ? o / l : o;
        struct step_route route = step_route_of(s, h->row, h->head * DIM + s->warp * 32, 32, false);
        step_send(s, y, &route);
        step_send_largest(s, warp_max(num_magnitude(y)), h->row, h->head * (DIM / 32) + s->warp,
                          false);
    }
    if (h->first_of_group)
        store_newest<DIM>(s, w, h);
}

/* What can be made ready for the block's first head before queries are there. */
template <int DIM> struct step_first {
    struct step_head head;
    struct step_head_input<DIM> input;
    struct step_tile<DIM> tile;
};

/* rows: of its first tile. */
template <int DIM>
static __device__ __forceinline__ void
begin_attention(struct step_first<DIM> *f, const struct step *s, const struct step_layer *w,
                const struct step_tile_rows *rows, const float *gains) {
    if (!step_has_head(s, 0))
        return;
    f->head = step_head_of(s, 0);
    load_tile(&f->tile, s, rows, &w->kv);
    load_head_input(&f->input, s, w, &f->head, gains);
}

template <int DIM>
static __device__ __forceinline__ void attend_rows(const struct step *s, const struct step_layer *w,
                                                   struct step_first<DIM> *f, const float *gains,
                                                   int site) {
    if (!step_has_head(s, 0))
        step_send_nothing(s);
    for (int i = 0; step_has_head(s, i); i++) {
        if (i) {
            f->head = step_head_of(s, i);
            __syncthreads(); /* the last head's query and sums are overwritten */
        }
        attend_head(s, w, &f->head, &f->tile, &f->input, i == 0, gains, site);
    }
}

#endif
