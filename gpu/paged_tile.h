/*
 * paged_tile.h - a tile of 256 positions, as versions 2 and 3 of attend go through it
 * (attention_paged.cu): scores, softmax, weighted sums of values.
 */
#ifndef SAMEBITS_PAGED_TILE_H
#define SAMEBITS_PAGED_TILE_H

#include "gpu/attend.h"
#include "gpu/kv_vectors.h"
#include "gpu/ptx/tensor_core.h"

enum {
    LANES = 2,  /* of a key */
    KEYS = 16,  /* of a warp at a time */
    VECTORS = 4 /* of a key, that a lane loads before it uses the first */
};

/* The shared memory of a block, beside sums and query. */
struct tile_memory {
    int64_t rows[TILE];  /* where the values of each position begin */
    int exponents[TILE]; /* of the values */
    float scores[TILE];
    int16_t weights[TILE];
    bool sees[TILE];
    struct row_parts part;
};

/* A row's tile. */
struct tile_work {
    const struct attend_arguments *a;
    const struct query_row *r;
    unsigned long long *sums; /* shared [head_dim] weighted sums of values, as signed integers */
    int16_t *query;           /* shared [head_dim] */
    struct tile_memory *memory;
    int page_size;
    int tile, first, end; /* its first position; those of its positions that the row may see */
};

static size_t dynamic_bytes(int head_dim) {
    return (size_t)head_dim * (sizeof(unsigned long long) + sizeof(int16_t));
}

/* ---- scores: a pair of lanes, each with every other vector of a row ------------------------- */

/* The exponent of a row of n vectors, for both lanes. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ int exponent_of(const struct kv_view *v, int64_t row,
                                                  int64_t exponent_at, int n) {
    uint32_t largest = 0;
    if (kv_type_has_exponents(TYPE))
        return n ? v->exponents[exponent_at] : 0;
    for (int i = (int)threadIdx.x % LANES; i < n; i += LANES) {
        uint4 vector = load<TYPE, N>(v, row, i, true);
        UNROLL
        for (int k = 0; k < N; k++)
            largest = max(largest, kv_magnitude(TYPE, element_of<N>(vector, k)));
    }
    return kv_read_exponent(TYPE, max(largest, __shfl_xor_sync(0xffffffffu, largest, 1)));
}

/* The product of the query with a key of n vectors, for both lanes. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ long long dot_with_key(const struct tile_work *w, int64_t row,
                                                         int n, int exponent) {
    long long dot = 0;
    for (int first = (int)threadIdx.x % LANES; first < n; first += VECTORS * LANES) {
        uint4 vectors[VECTORS];
        UNROLL
        for (int i = 0; i < VECTORS; i++)
            vectors[i] = load<TYPE, N>(&w->a->kv.k, row, first + i * LANES, first + i * LANES < n);
        UNROLL
        for (int i = 0; i < VECTORS; i++) {
            int at = first + i * LANES < n ? first + i * LANES : 0; /* the query times zeros */
            struct mantissas<N> query = load_mantissas<N>(w->query + at * N);
            UNROLL
            for (int k = 0; k < N; k++)
                dot += product<TYPE>(query.at[k], element_of<N>(vectors[i], k),
                                     scale_of<TYPE>(exponent));
        }
    }
    return dot + __shfl_xor_sync(0xffffffffu, dot, 1);
}

/* The softmax_scores of what the row sees of the tile, and where its values are. V_N: of the
 * vectors of a value. */
template <enum kv_type TYPE, int N, int V_N>
static __device__ __forceinline__ void score_tile(const struct tile_work *w) {
    const struct kv_view *k = &w->a->kv.k, *v = &w->a->kv.v;
    struct tile_memory *m = w->memory;
    int dim = w->a->shape.head_dim, head = w->r->kv_head;
    int begin = w->first / KEYS * KEYS, end = (w->end + KEYS - 1) / KEYS * KEYS;
    for (int j = begin + (int)threadIdx.x / LANES; j < end; j += TILE / LANES) {
        bool exists = j < w->end, sees = m->sees[j];
        int position = w->tile + j, in_page = position % w->page_size;
        int64_t page = exists ? w->r->pages[position / w->page_size] : 0;
        int64_t key = kv_view_row(k, page, in_page, head);
        int64_t value = kv_view_row(v, page, in_page, head);
        int n = sees ? dim / N : 0, v_n = sees ? dim / V_N : 0;
        int e = exponent_of<TYPE, N>(k, key, kv_view_exponent(k, page, in_page, head), n);
        float sum = rounded_sum(dot_with_key<TYPE, N>(w, key, n, e));
        int v_e = exponent_of<TYPE, V_N>(v, value, kv_view_exponent(v, page, in_page, head), v_n);
        if (threadIdx.x % LANES == 0) {
            m->rows[j] = value;
            m->exponents[j] = v_e;
            m->scores[j] = sees ? softmax_score(w->r, w->a, sum, e, position) : -INFINITY;
        }
    }
}

/* ---- values --------------------------------------------------------------------------------- */

/* Adds the weighted values of the tile to w->sums. A vector is N elements of a position, or one
 * element of N positions (ACROSS); threads with the same one or ones, a column, take turns. */
template <enum kv_type TYPE, int N, bool ACROSS>
static __device__ __forceinline__ void weigh_tile(const struct tile_work *w) {
    const struct tile_memory *m = w->memory;
    const int BESIDE = ACROSS ? 2 : 1; /* vectors of a column that lie side by side */
    const int DEEP = ACROSS ? N : 1;   /* positions of a vector */
    int n = ACROSS ? w->a->shape.head_dim : w->a->shape.head_dim / N; /* columns */
    int width = min(n, TILE / BESIDE), turns = TILE / BESIDE / width * BESIDE, t = (int)threadIdx.x;
    int turn = t / BESIDE / width * BESIDE + t % BESIDE;
    for (int column = t / BESIDE % width; column < n && turn < turns; column += width) {
        long long sums[ACROSS ? 1 : N] = {0};
        UNROLL_4
        for (int j = (w->first / DEEP + turn) * DEEP; j < w->end; j += turns * DEEP) {
            uint4 vector = ACROSS ? load_across<N>(&w->a->kv.v, m->rows[j], column)
                                  : load<TYPE, N>(&w->a->kv.v, m->rows[j], column, true);
            struct mantissas<DEEP> weights = load_mantissas<DEEP>(m->weights + j);
            UNROLL
            for (int k = 0; k < N; k++)
                sums[ACROSS ? 0 : k] +=
                    product<TYPE>(weights.at[ACROSS ? k : 0], element_of<N>(vector, k),
                                  scale_of<TYPE>(m->exponents[ACROSS ? j + k : j]));
        }
        UNROLL
        for (int k = 0; k < (ACROSS ? 1 : N); k++) /* integers: the order is free */
            atomicAdd(&w->sums[column * (ACROSS ? 1 : N) + k], (unsigned long long)sums[k]);
    }
}

/* What the tile gives of element d. */
static __device__ __forceinline__ float tile_value(const struct tile_work *w, int d, int exponent) {
    return num_weighted_value(rounded_sum((long long)w->sums[d]), exponent);
}

/* ---- a tile --------------------------------------------------------------------------------- */

static __device__ __forceinline__ struct tile_work
work_of(const struct attend_arguments *a, const struct query_row *r, unsigned char *dynamic,
        struct tile_memory *memory, int page_size) {
    unsigned long long *sums = (unsigned long long *)dynamic;
    return {a, r, sums, (int16_t *)(sums + a->shape.head_dim), memory, page_size, 0, 0, 0};
}

/* Scores, softmax and the sums of values of a tile. Returns false when the row sees nothing of it.
 */
template <enum kv_type TYPE, int N, bool ACROSS>
static __device__ __forceinline__ bool run_tile(struct tile_work *w, struct tile_softmax *t,
                                                int tile) {
    struct tile_memory *m = w->memory;
    const struct query_row *r = w->r;
    int j = (int)threadIdx.x, position = tile + j;
    bool sees = position >= r->first && position < r->end &&
                attention_shows(&w->a->variant, r->mask, r->i, position, r->kv_len);
    w->tile = tile;
    w->first = max(r->first - tile, 0);
    w->end = min(r->end - tile, (int)TILE);
    m->sees[j] = sees;
    if (!row_max<WARPS>((uint32_t)sees, m->part.words))
        return false;
    score_tile<TYPE, N, ACROSS ? 1 : N>(w);
    __syncthreads();
    m->weights[j] = softmax_tile(t, sees ? m->scores[j] : -INFINITY, sees,
                                 sees ? m->exponents[j] : 0, r, w->a, &m->part);
    for (int d = j; d < w->a->shape.head_dim; d += TILE)
        w->sums[d] = 0;
    __syncthreads();
    weigh_tile<TYPE, N, ACROSS>(w);
    __syncthreads();
    return true;
}

#endif
