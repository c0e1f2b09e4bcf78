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

/* load_pairs, of what other blocks hand over. */
template <int PAIRS>
static __device__ __forceinline__ void take_pairs(float (&a)[PAIRS], float (&b)[PAIRS],
                                                  const float *x, int half, int lane) {
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = lane + 32 * i;
        a[i] = d < half ? exchange_ask(x + d) : 0;
        b[i] = d < half ? exchange_ask(x + half + d) : 0;
    }
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = lane + 32 * i;
        if (d < half) {
            exchange_take(&a[i], x + d);
            exchange_take(&b[i], x + half + d);
        }
    }
}

/* Normalises, rotates and snaps the query and the new key, and snaps the new value: a warp each. */
template <int DIM>
static __device__ __forceinline__ void prepare_head(const struct step *s,
                                                    const struct step_layer *w,
                                                    const struct step_head *h, int layer) {
    const int PAIRS = (DIM / 2 + 31) / 32, half = DIM / 2;
    const struct step_arguments *a = s->a;
    int which = s->warp, row = h->row, site = layer * N_TENSORS;
    if (which >= STEP_HEAD_WARPS)
        return;
    int16_t *to = which == 2   ? step_shared()->value
                  : which == 1 ? step_shared()->key
                               : step_shared()->snapped_query;
    int head = which == 0 ? h->head : a->n_heads + h->kv_head + (which == 2 ? a->n_kv_heads : 0);
    const float *from = step_exchange(s, layer, 0, row, (a->n_heads + 2 * a->n_kv_heads) * DIM);
    const float *gains = which < 2 ? w->gains[2 + which] : NULL;
    float x[PAIRS], y[PAIRS], gain[2][PAIRS], c[PAIRS], sine[PAIRS];
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = min(s->lane + 32 * i, half - 1);
        gain[0][i] = gains ? gains[d] : 0;
        gain[1][i] = gains ? gains[half + d] : 0;
        c[i] = a->rope_cos[(size_t)h->newest * half + d];
        sine[i] = a->rope_sin[(size_t)h->newest * half + d];
    }
    take_pairs(x, y, from + head * DIM, half, s->lane);
    if (gains)
        norm_pairs(x, y, gain, half, s->lane, a->eps, site + (which ? TENSOR_K : TENSOR_Q),
                   s->first_row + row, a->fault);
    if (which < 2) {
        UNROLL
        for (int i = 0; i < PAIRS; i++)
            rotate(&x[i], &y[i], c[i], sine[i]);
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
static __device__ __forceinline__ int dot_of_thread(const struct step_keys<DIM> *t) {
    int half = (int)threadIdx.x % 2, high = 0, low = 0;
    UNROLL
    for (int i = 0; i < DIM / 16; i++) {
        uint4 k = t->of[i];
        uint4 q = ((const uint4 *)step_shared()->query)[2 * i + half];
        const uint32_t keys[4] = {k.x, k.y, k.z, k.w}, digits[4] = {q.x, q.y, q.z, q.w};
        UNROLL
        for (int j = 0; j < 4; j++) {
            high = __dp2a_lo((int)keys[j], (int)digits[j], high);
            low = __dp2a_hi((int)keys[j], (int)digits[j], low);
        }
        if (i % 2)
            __syncwarp(); /* or all queries would be in registers at once */
    }
    high += __shfl_xor_sync(0xffffffffu, high, 1);
    low += __shfl_xor_sync(0xffffffffu, low, 1);
    return high + (low >> 8);
}

/* Leaves this position's weight as digits for add_values: of two positions the high ones, then the
 * low ones. (The newest position's value is not among theirs, but beside them.) */
static __device__ __forceinline__ void put_weight(int weight, bool newest) {
    int thread = (int)threadIdx.x, low = thread % 2; /* a thread for each of the digits */
    if (newest && !low)
        step_shared()->newest_weight = weight;
    int raised = weight + 128;
    step_shared()->weight_digits[(thread / 4 % STEP_WARPS * STEP_POSITIONS / 2 + thread / 64) * 4 +
                                 low * 2 + thread / 2 % 2] =
        (uint8_t)(low ? raised ^ 128 : raised >> 8);
}

/* Leaves the weighted sums of the values of this warp's positions at sums[warp]: of high and of low
 * digits, below 2^30 each even of a whole tile. */
template <int DIM>
static __device__ __forceinline__ void
add_values(const struct step *s, const struct step_tile_rows *rows, const struct kv_layer *kv) {
    const int DIMS = step_values<DIM>::DIMS, EACH = step_values<DIM>::POSITIONS;
    int high[DIMS] = {}, low[DIMS] = {};
    UNROLL_1
    for (int first = 0; first < STEP_POSITIONS; first += EACH) {
        if (__all_sync(0xffffffffu, rows->value == ~0u || s->lane % STEP_POSITIONS < first))
            break; /* none of those that are left is there */
        struct step_values<DIM> t;
        load_values(&t, s, rows, first, kv);
        alignas(16) uint32_t digits[EACH / 2];
        const uint4 *from =
            (const uint4 *)(step_shared()->weight_digits + (s->warp * STEP_POSITIONS + first) * 2);
        UNROLL
        for (int i = 0; i < EACH / 8; i++)
            ((uint4 *)digits)[i] = from[i];
        UNROLL
        for (int i = 0; i < EACH; i += 2) {
            UNROLL
            for (int k = 0; k < DIMS; k++) {
                int two =
                    (int)__byte_perm(t.of[i][k / 2], t.of[i + 1][k / 2], k % 2 ? 0x7632 : 0x5410);
                high[k] = __dp2a_lo(two, (int)digits[i / 2], high[k]);
                low[k] = __dp2a_hi(two, (int)digits[i / 2], low[k]);
            }
        }
    }
    UNROLL
    for (int k = 0; k < DIMS; k++)
        step_shared()->sums[s->warp * DIM + s->lane * DIMS + k] = make_int2(high[k], low[k]);
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

/* What comes of tiles, as far as they are merged: the largest score, the sum of all weights, and
 * that of the values of a thread's dimension. */
struct step_state {
    float m, l, o;
};
static __device__ __forceinline__ void merge_tile(struct step_state *t, float tile_m, float tile_l,
                                                  float value) {
    float old_factor, new_factor;
    attention_merge_sums(&t->m, &t->l, tile_m, tile_l, &old_factor, &new_factor);
    t->o = num_merge(t->o, old_factor, value, new_factor);
}

/* Where a tile of several is left for the block that merges them: values, m, l. */
template <int DIM>
static __device__ __forceinline__ float *
place_of_tile(const struct step *s, const struct step_head *h, int layer, int tile) {
    const struct step_arguments *a = s->a;
    int n = a->n_heads * a->n_tiles * (DIM + STEP_TILE_MORE);
    return step_exchange(s, layer, a->tiles_at, h->row, n) +
           (h->head * a->n_tiles + tile) * (DIM + STEP_TILE_MORE);
}

/* Merges n tiles in their order, for the thread's dimension. All threads fetch them first: their
 * way is long, and takes as long for all as for one. */
template <int DIM>
static __device__ __forceinline__ struct step_state merge_tiles(const float *place, int n) {
    const int FLOATS = DIM + STEP_TILE_MORE;
    const int AT_ONCE = (int)sizeof step_shared()->sums / (FLOATS * (int)sizeof(float));
    int thread = (int)threadIdx.x;
    float *tiles = (float *)step_shared()->sums;
    struct step_state state = {-INFINITY, 0, 0};
    UNROLL_1
    for (; n > 0; n -= AT_ONCE, place += AT_ONCE * FLOATS) {
        int here = min(n, AT_ONCE);
        __syncthreads(); /* what was there has been read */
        UNROLL_1
        for (int i = thread; i < here * FLOATS; i += STEP_THREADS) {
            float x = exchange_ask(place + i);
            exchange_take(&x, place + i);
            tiles[i] = x;
        }
        __syncthreads();
        UNROLL_1
        for (const float *t = tiles; t < tiles + here * FLOATS; t += FLOATS)
            merge_tile(&state, t[DIM], t[DIM + 1], t[min(thread, DIM - 1)]);
    }
    return state;
}

/* A head: the tiles that are this block's. Where there are several, they are merged when all are
 * there, by the first of the blocks that share the head. */
template <int DIM>
static __device__ __forceinline__ void attend_head(const struct step *s, const struct step_layer *w,
                                                   const struct step_head *h, int layer) {
    int thread = (int)threadIdx.x, site = layer * N_TENSORS;
    struct num_score_unit unit = {};
    struct step_state state = {-INFINITY, 0, 0};
    bool begun = false;
    UNROLL_1
    for (int tile = h->split * ATTENTION_TILE; tile <= h->newest;
         tile += s->a->n_splits * ATTENTION_TILE) {
        int position = tile + thread / 2;
        bool sees = position <= h->newest, newest = position == h->newest;
        struct step_tile_rows rows;
        struct step_keys<DIM> keys;
        find_rows(&rows, s, h, tile);
        load_keys(&keys, &rows, &w->kv);
        if (!begun) {
            begun = true;
            if (layer + 1 < s->a->n_layers)
                ask_for_tile<DIM>(&rows, &(w + 1)->kv);
            prepare_head<DIM>(s, w, h, layer);
            __syncthreads();
            unit = num_score_unit_of(step_shared()->head_exponents[0], s->a->scale);
        }
        float score = -INFINITY;
        if (tile + s->warp * 16 <= h->newest) { /* others of this warp may see something */
            if (newest)
                load_newest(&keys);
            float dot = (float)dot_of_thread(&keys);
            int key_exponent = newest ? step_shared()->head_exponents[1] : keys.key_exponent;
            score = sees ? num_score(dot, (float)num_pow2(key_exponent - 30)) : score;
        }
        float largest = largest_of_block(s, score), tile_m = num_tile_max(largest, unit);
        float p = sees ? num_probability(score, num_window_of(largest, unit.binary)) : 0;
        int value_exponent = newest ? step_shared()->head_exponents[2] : keys.value_exponent;
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
        add_values<DIM>(s, &rows, &w->kv);
        __syncthreads();
        float tile_l = (float)all.x * 0x1p-23f, value = 0;
        if (thread < DIM)
            value = num_weighted_value(
                sum_of_values<DIM>(thread, h->newest < tile + ATTENTION_TILE), e);
        if (s->a->n_tiles == 1)
            merge_tile(&state, tile_m, tile_l, value);
        else if (thread < DIM + 2)
            exchange_put(place_of_tile<DIM>(s, h, layer, tile / ATTENTION_TILE) + thread,
                         thread < DIM    ? value
                         : thread == DIM ? tile_m
                                         : tile_l);
    }
    if (h->split)
        return;
    if (s->a->n_tiles > 1)
        state =
            merge_tiles<DIM>(place_of_tile<DIM>(s, h, layer, 0), h->newest / ATTENTION_TILE + 1);
    if (thread < DIM) {
        float y = state.l > 0 ? state.o / state.l : state.o;
        int q = s->a->n_heads * DIM, at = q + 2 * s->a->n_kv_heads * DIM;
        float *to = step_exchange(s, layer, at, h->row, q) + h->head * DIM + thread;
        exchange_put(to, y);
        if (layer + 1 < s->a->n_layers) /* the next layer's place for it */
            prefetch_l2(to + s->a->layer_floats * s->a->n_rows);
    }
    if (h->first_of_group)
        store_newest<DIM>(s, w, h);
}

/* Attention of the block's heads. */
template <int DIM>
static __device__ __forceinline__ void attend_rows(const struct step *s, const struct step_layer *w,
                                                   int layer) {
    exchange_turn();
    UNROLL_1
    for (int i = 0; step_has_head(s, i); i++) {
        struct step_head h = step_head_of(s, i);
        if (i)
            __syncthreads(); /* the last head's query and sums are overwritten */
        attend_head<DIM>(s, w, &h, layer);
    }
}

#endif
