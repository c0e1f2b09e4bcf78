/*
 * attention_merge.h - for attention_decode.cu: row groups whose tiles several blocks work on. Each
 * leaves its results; the one that comes last merges them in order.
 */
#ifndef SAMEBITS_ATTENTION_MERGE_H
#define SAMEBITS_ATTENTION_MERGE_H

#include "gpu/attention_decode.h"

/* Device memory [places, n_kv_heads, ROWS, partial_floats(DIM)]: what a row leaves of a tile. */
struct partial_results {
    float *rows;
    int n_kv_heads;
};

/* The first of the rows of a place, for this block's kv head. */
template <int DIM>
static __device__ __forceinline__ float *rows_at(const struct partial_results *p, int place) {
    size_t number = (size_t)place * (size_t)p->n_kv_heads + (size_t)kv_head();
    return p->rows + number * (size_t)(ROWS * partial_floats(DIM));
}

/* m and l of a row. */
template <int DIM> static __device__ __forceinline__ float2 *ml_of(float *rows, int row) {
    return (float2 *)(rows + row * partial_floats(DIM) + DIM);
}

/* What a block holds of the running result: o[i][j] is dimension first_dim(i) + 2 t + j of row g.
 */
template <int DIM>
static __device__ __forceinline__ void keep(const struct partial_results *p, int place,
                                            const float o[][2], const float *m, const float *l) {
    int lane = (int)threadIdx.x % 32;
    float *rows = rows_at<DIM>(p, place);
    float2 *to = (float2 *)(rows + lane / 4 * partial_floats(DIM));
    UNROLL
    for (int i = 0; i < decode_sizes<DIM>::DIMS_8; i++)
        if (first_dim(i) < DIM)
            to[first_dim(i) / 2 + lane % 4] = make_float2(o[i][0], o[i][1]);
    if (threadIdx.x < ROWS)
        *ml_of<DIM>(rows, (int)threadIdx.x) = make_float2(m[threadIdx.x], l[threadIdx.x]);
}

/* The shares of n tiles of a split, for the row of this warp: in shares[row][0] the old ones, in
 * [1] the new ones, in [2] the tiles' l. Takes the m of what is before, returns that of all. */
template <int DIM>
static __device__ float work_out_shares(float shares[ROWS][3][MERGED_TILES], float m,
                                        const struct partial_results *p, int place, int n) {
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32;
    for (int i = 0; i < n; i += 32) {
        bool exists = i + lane < n;
        float2 ml = exists ? *ml_of<DIM>(rows_at<DIM>(p, place + i + lane), row)
                           : make_float2(-INFINITY, 0);
        float max = fmaxf(m, ml.x);
        UNROLL
        for (int step = 1; step < 32; step *= 2) { /* of all up to this one */
            float other = __shfl_up_sync(0xffffffffu, max, (unsigned)step);
            max = lane >= step ? fmaxf(max, other) : max;
        }
        float before = __shfl_up_sync(0xffffffffu, max, 1);
        before = lane ? before : m;
        m = __shfl_sync(0xffffffffu, max, 31);
        if (exists) {
            shares[row][0][i + lane] = num_exp(before - max);
            shares[row][1][i + lane] = num_exp(ml.x - max);
            shares[row][2][i + lane] = ml.y;
        }
    }
    return m;
}

/* Merges all results of a split in order, and writes them. */
template <int DIM>
static __device__ void merge_split(const struct attention_arguments *a, const struct tile_cursor *c,
                                   const struct decode_split *split,
                                   const struct partial_results *p, float *shared) {
    typedef float share_table[3][MERGED_TILES];
    share_table *shares = (share_table *)shared;
    const int EACH = ROWS * DIM / THREADS; /* a thread: one dimension of several rows */
    float o[EACH], l[EACH];
    const int NEXT = ROWS * partial_floats(DIM);
    float *begin = rows_at<DIM>(p, split->partial);
    float m = ml_of<DIM>(begin, (int)threadIdx.x / 32)->x;
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int row = ((int)threadIdx.x + i * THREADS) / DIM,
            d = ((int)threadIdx.x + i * THREADS) % DIM;
        o[i] = begin[row * partial_floats(DIM) + d];
        l[i] = ml_of<DIM>(begin, row)->y;
    }
    for (int tile = split->first_end; tile < split->n_tiles; tile += MERGED_TILES) {
        int n = min((int)MERGED_TILES, split->n_tiles - tile);
        int place = split->partial + 1 + tile - split->first_end;
        __syncthreads();
        m = work_out_shares<DIM>(shares, m, p, place, n);
        __syncthreads();
        UNROLL
        for (int i = 0; i < EACH; i++) {
            int row = ((int)threadIdx.x + i * THREADS) / DIM;
            int d = ((int)threadIdx.x + i * THREADS) % DIM;
            int sees = visible_to(a, &c->group, row) - tile * TILE;
            int n_seen = min(n, (sees + TILE - 1) / TILE);
            const float *from = rows_at<DIM>(p, place) + row * partial_floats(DIM) + d;
            UNROLL_8
            for (int j = 0; j < n_seen; j++) {
                l[i] = l[i] * shares[row][0][j] + shares[row][2][j] * shares[row][1][j];
                o[i] = o[i] * shares[row][0][j] +
                       from[(size_t)j * (size_t)(NEXT * p->n_kv_heads)] * shares[row][1][j];
            }
        }
    }
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int row = ((int)threadIdx.x + i * THREADS) / DIM,
            d = ((int)threadIdx.x + i * THREADS) % DIM;
        if (row < c->group.n_rows && d < a->head_dim)
            a->y[place_of(a, c, row) + (size_t)d] = l[i] > 0 ? o[i] / l[i] : o[i];
    }
}

/* n more tiles of the split are done. Who is last merges. */
template <int DIM>
static __device__ void arrive(const struct attention_arguments *a, const struct plan_arrays *plan,
                              const struct tile_cursor *c, int number, int n,
                              const struct partial_results *p, float *shared) {
    SHARED(int, is_last);
    struct decode_split split = plan->splits[number];
    int32_t *tiles_done = &plan->tiles_done[number * a->n_kv_heads + kv_head()];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicAdd(tiles_done, n) + n == split.n_tiles;
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    merge_split<DIM>(a, c, &split, p, shared);
    if (threadIdx.x == 0)
        *tiles_done = 0; /* for the next launch */
    __syncthreads();     /* `shared` is used again */
}

#endif
