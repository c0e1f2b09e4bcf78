/*
 * decode_step_attention.h - attention of decode_step: a block takes a row and a query head, then
 * the next. Two threads have a position of the tile, each half of its key; for the values, a thread
 * has 8 dimensions of some positions. So a tile of keys and values fits in the registers of a
 * block, and that of its first head is read while the layer before is still at work. The newest
 * position is not in the cache yet: its key and value come from shared memory.
 */
#ifndef SAMEBITS_GPU_DECODE_STEP_ATTENTION_H
#define SAMEBITS_GPU_DECODE_STEP_ATTENTION_H

#include "gpu/decode_step.h"

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
    int number = s->rank + i * s->n_blocks;
    h.row = step_divide(number, a->heads_inverse);
    h.head = number - h.row * a->n_heads;
    h.kv_head = step_divide(h.head, a->group_inverse);
    h.first_of_group = h.head == 0 || step_divide(h.head - 1, a->group_inverse) != h.kv_head;
    h.newest = step_shared()->positions[h.row];
    h.pages = s->pages + step_shared()->first_pages[h.row];
    return h;
}

static __device__ __forceinline__ bool step_has_head(const struct step *s, int i) {
    return s->rank + i * s->n_blocks < s->n_rows * s->a->n_heads;
}

/* The row of the cache that holds a position. */
static __device__ __forceinline__ uint32_t step_cache_row(const struct step *s,
                                                          const struct step_head *h, int position) {
    int bits = s->a->page_bits;
    uint32_t slot =
        ((uint32_t)h->pages[position >> bits] << bits) + (uint32_t)(position & ((1 << bits) - 1));
    return slot * (uint32_t)s->a->n_kv_heads + (uint32_t)h->kv_head;
}

/* What a thread has of a tile. Vectors are 8 elements: of the key of position thread / 2 every
 * second one, from thread % 2 on; of the value of position value_position(i) number
 * thread % (DIM / 8). */
template <int DIM> struct step_tile {
    static const int VECTORS = DIM / 16;
    uint4 keys[VECTORS], values[VECTORS];
    int key_exponent, value_exponent; /* of position thread / 2 */
};

/* The rows of the cache that these are in; ~0: not in the cache. */
template <int DIM> struct step_tile_rows { uint32_t key, values[DIM / 16]; };

template <int DIM> static __device__ __forceinline__ int value_position(int i) {
    return (i * STEP_THREADS + (int)threadIdx.x) / (DIM / 8);
}

/* Of the tile that begins at position `tile`. */
template <int DIM>
static __device__ __forceinline__ void find_rows(struct step_tile_rows<DIM> *rows,
                                                 const struct step *s, const struct step_head *h,
                                                 int tile) {
    int position = tile + (int)threadIdx.x / 2;
    rows->key = position < h->newest ? step_cache_row(s, h, position) : ~0u;
    UNROLL
    for (int i = 0; i < DIM / 16; i++) {
        position = tile + value_position<DIM>(i);
        rows->values[i] = position < h->newest ? step_cache_row(s, h, position) : ~0u;
    }
}

template <int DIM>
static __device__ __forceinline__ void load_tile(struct step_tile<DIM> *t,
                                                 const struct step_tile_rows<DIM> *rows,
                                                 const struct kv_layer *kv) {
    int thread = (int)threadIdx.x;
    if (rows->key != ~0u) {
        t->key_exponent = kv->k_exponents[rows->key];
        t->value_exponent = kv->v_exponents[rows->key];
        UNROLL
        for (int i = 0; i < DIM / 16; i++)
            t->keys[i] = ((const uint4 *)(kv->k + (size_t)rows->key * DIM))[2 * i + thread % 2];
    }
    UNROLL
    for (int i = 0; i < DIM / 16; i++)
        if (rows->values[i] != ~0u)
            t->values[i] =
                ((const uint4 *)(kv->v + (size_t)rows->values[i] * DIM))[thread % (DIM / 8)];
}

/* Two mantissas as digits, for the dot products: high ones in the lower half. */
static __device__ __forceinline__ uint32_t digits_of_two(int first, int second) {
    int low0 = (int8_t)(first & 255), low1 = (int8_t)(second & 255);
    uint32_t high = ((uint32_t)(first - low0) >> 8 & 255) | ((uint32_t)(second - low1) & 0xff00);
    return high | (uint32_t)(low0 & 255) << 16 | (uint32_t)(low1 & 255) << 24;
}

/* Snaps what a warp holds of a head to `to`, in shared memory, and returns the exponent: one that
 * is too large has been told as a fault. */
template <int DIM, int PAIRS>
static __device__ __forceinline__ int snap_pairs(int16_t *to, const float (&a)[PAIRS],
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
            to[d] = bad ? (int16_t)0 : num_mantissa(a[i], scale);
            to[DIM / 2 + d] = bad ? (int16_t)0 : num_mantissa(b[i], scale);
        }
    }
    return e;
}

/* Normalises, rotates and snaps the query and the new key, and snaps the new value: a warp each. */
template <int DIM>
static __device__ __forceinline__ void
prepare_head(const struct step *s, const struct step_layer *w, const struct step_head *h,
             const float *gains, int site) {
    const int PAIRS = (DIM / 2 + 31) / 32, half = DIM / 2;
    const struct step_arguments *a = s->a;
    int which = s->warp; /* query, key, value */
    if (which > 2)
        return;
    int head = which == 0 ? h->head : a->n_heads + h->kv_head + (which == 2 ? a->n_kv_heads : 0);
    int16_t *to = which == 2   ? step_shared()->value
                  : which == 1 ? step_shared()->key
                               : step_shared()->snapped_query;
    float x[PAIRS], y[PAIRS];
    load_pairs(x, y, step_input(s, h->row) + head * DIM, half, s->lane);
    if (which < 2) {
        if (w->gains[2 + which])
            norm_pairs(x, y, gains + which * DIM, half, s->lane, a->eps,
                       site + (which ? TENSOR_K : TENSOR_Q), s->first_row + h->row, a->fault);
        UNROLL
        for (int i = 0; i < PAIRS; i++) {
            int d = min(s->lane + 32 * i, half - 1);
            rotate(&x[i], &y[i], step_floats(s->at.cos)[h->row * half + d],
                   step_floats(s->at.sin)[h->row * half + d]);
        }
    }
    int tensor = which == 0 ? TENSOR_ATTENTION : which == 1 ? TENSOR_K_ROTATED : TENSOR_V;
    int e = snap_pairs<DIM>(to, x, y, s, site + tensor, h->row);
    if (s->lane == 0)
        step_shared()->head_exponents[which] = e;
    if (which == 0) {
        __syncwarp();
        for (int d = s->lane; d < half; d += 32)
            step_shared()->query[d] = digits_of_two(to[2 * d], to[2 * d + 1]);
    }
}

/* Stores the new key and value in the cache, where nobody reads them before the next step: two
 * warps, of the end of the tile, where positions are missing most often. */
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

/* Leaves the weighted sums of values of this warp's positions at sums[warp]. Lanes with the same
 * dimensions add up theirs: each keeps half of what it has and gives the other half away. */
template <int DIM>
static __device__ __forceinline__ void add_values(const struct step_tile<DIM> *t,
                                                  const struct step *s, const struct step_head *h,
                                                  int tile) {
    const int LANES = DIM / 8; /* of a value */
    long long sum[8] = {};
    UNROLL
    for (int i = 0; i < DIM / 16; i++) {
        int position = tile + value_position<DIM>(i);
        if (position > h->newest)
            break;
        uint4 v = t->values[i];
        if (position == h->newest)
            v = ((const uint4 *)step_shared()->value)[threadIdx.x % LANES];
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        int weight = step_shared()->value_weights[position - tile];
        UNROLL
        for (int k = 0; k < 8; k++)
            sum[k] += weight * (int16_t)(words[k / 2] >> (k % 2 * 16));
    }
    int first = 0, n = 8; /* the dimensions that are this lane's now */
    UNROLL
    for (int step = 16; step >= LANES; step /= 2) {
        bool upper = s->lane & step;
        UNROLL
        for (int k = 0; k < 4; k++) {
            if (k >= n / 2)
                break;
            long long mine = upper ? sum[n / 2 + k] : sum[k];
            long long other = upper ? sum[k] : sum[n / 2 + k];
            sum[k] = mine + __shfl_xor_sync(0xffffffffu, other, step);
        }
        n /= 2;
        first += upper ? n : 0;
    }
    long long *to = step_shared()->sums + s->warp * DIM + s->lane % LANES * 8 + first;
    UNROLL
    for (int k = 0; k < 4; k++)
        if (k < n)
            to[k] = sum[k];
}

/* A head: its tiles one after the other, merged as they come. loaded: the first one is in t
 * already. */
template <int DIM>
static __device__ __forceinline__ void
attend_head(const struct step *s, const struct step_layer *w, const struct step_head *h,
            struct step_tile<DIM> *t, bool loaded, const float *gains, int site) {
    int thread = (int)threadIdx.x;
    prepare_head<DIM>(s, w, h, gains, site);
    __syncthreads();
    if (h->first_of_group)
        store_newest<DIM>(s, w, h);
    struct num_score_unit unit = num_score_unit_of(step_shared()->head_exponents[0], s->a->scale);
    float m = -INFINITY, l = 0, o = 0;
    UNROLL_1
    for (int tile = 0; tile <= h->newest; tile += ATTENTION_TILE) {
        int position = tile + thread / 2;
        bool sees = position <= h->newest, newest = position == h->newest;
        if (tile || !loaded) {
            struct step_tile_rows<DIM> rows;
            find_rows(&rows, s, h, tile);
            load_tile(t, &rows, &w->kv);
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
        if (thread % 2 == 0)
            step_shared()->value_weights[thread / 2] =
                bad ? (int16_t)0 : num_mantissa(weight, num_pow2f(15 - e));
        __syncthreads();
        add_values(t, s, h, tile);
        __syncthreads();
        float old_share, new_share;
        attention_merge_sums(&m, &l, tile_m, (float)all.x * 0x1p-23f, &old_share, &new_share);
        if (thread < DIM) {
            long long sum = 0;
            UNROLL
            for (int i = 0; i < STEP_WARPS; i++)
                sum += step_shared()->sums[i * DIM + thread];
            o = num_merge(o, old_share, num_weighted_value((float)(sum & -256), e), new_share);
        }
    }
    if (thread < DIM)
        step_shared()->outputs[thread] = l > 0 ? o / l : o;
    __syncthreads();
    uint32_t largest = step_publish(s, step_shared()->outputs, h->row, h->head * DIM, DIM, true, 0);
    step_publish_largest(s, largest, h->row, h->head);
}

template <int DIM>
static __device__ __forceinline__ void attend_rows(const struct step *s, const struct step_layer *w,
                                                   struct step_tile<DIM> *t, const float *gains,
                                                   int site) {
    if (!step_has_head(s, 0))
        step_tell(s);
    for (int i = 0; step_has_head(s, i); i++) {
        struct step_head h = step_head_of(s, i);
        if (i)
            __syncthreads(); /* the last head's query, sums and outputs are overwritten */
        attend_head(s, w, &h, t, i == 0, gains, site);
    }
}

#endif
