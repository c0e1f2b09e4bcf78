/*
 * decode.h - for gpu/fast/decode/decode.cu: the sizes and the memory of a block, the order of
 * its work, and where results of splits go.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_DECODE_H
#define SAMEBITS_GPU_FAST_DECODE_DECODE_H

#include "gpu/attention.h"
#include "gpu/fast/plan/plan.h"
#include "gpu/ptx/tensor_core.h"

enum {
    TILE = ATTENTION_TILE,
    ROWS = GROUP_ROWS,
    MOST_WARPS = 8,
};

/* Types whose rows are snapped when they are read (gpu/fast/decode/snapped.h). */
template <kv_type TYPE> struct is_snapped {
    static const bool value = TYPE != KV_BFP16 && TYPE != KV_BFP8;
};

/* Bytes of an element. */
template <kv_type TYPE> struct bytes_of {
    static const int value = TYPE == KV_BFP16 || TYPE == KV_FP16 || TYPE == KV_BF16 ? 2 : 1;
};

/* Sizes that depend on the head dimension, rounded up to a multiple of 32 (of 64 where elements are
 * bytes), and on the type of an element. */
template <int HEAD_DIM, kv_type KV_TYPE> struct decode_sizes {
    static const int DIM = HEAD_DIM;
    static const kv_type TYPE = KV_TYPE;
    static const bool SNAPPED = is_snapped<TYPE>::value;
    static const int BYTES = bytes_of<TYPE>::value;
    static const int WARPS = decode_warps(DIM, TYPE), THREADS = 32 * WARPS;
    static const int PART = 8 * WARPS;           /* positions: 8 for each warp */
    static const int PARTS = TILE / PART;        /* of a tile */
    static const int SCORES = 2 * PARTS;         /* that a lane has, of one row */
    static const int POSITIONS = TILE / THREADS; /* for each thread to look up */
    /* Positions that arrive together. A small block has small ones: so they take less memory. */
    static const int CHUNK = WARPS < 8 ? 64 : 128;
    static const int CHUNKS = TILE / CHUNK; /* of keys in a tile, and of values */
    /* Chunks on their way while one is used: all values of a tile must have come before its first
     * weight, where their rows are snapped. */
    static const int AHEAD = CHUNKS;
    static const int STAGES = AHEAD + 1;
    /* The chunk of a tile at which the rows of the next one are worked out: two before they are
     * used. */
    static const int ROWS_AT = 2 * CHUNKS - AHEAD - 2;
    static_assert(ROWS_AT < CHUNKS, "while keys are used");
    static const int BLOCKS = decode_blocks(DIM, TYPE); /* on a processor */
    static const int ROW_BYTES = BYTES * DIM;           /* of a position in a chunk */
    static const int VECTOR = 16 / BYTES;               /* elements in 16 bytes, a column */
    static const int COLUMNS = ROW_BYTES / 16;
    static const int SHARE = (COLUMNS + WARPS - 1) / WARPS; /* columns of a warp */
    static const int EACH = VECTOR / 4; /* dimensions of a column for a lane, of one row */
    static const int STAGE_BYTES = CHUNK * ROW_BYTES;
    static const int QUERY_BYTES = 2 * ROWS * DIM;
    /* With 16 more, 8 rows of a column lie in different banks. */
    static const int WEIGHT_BYTES = TILE + 16;
    static const int SHARED_BYTES =
        STAGES * STAGE_BYTES + QUERY_BYTES + 2 * ROWS * WEIGHT_BYTES + 3 * 2 * 4 * TILE;
};

/* The row whose scores and results a lane has, which is row g of an mma's results, and whether it
 * is the first lane that has it. */
static __device__ __forceinline__ int row_of_lane(void) {
    return (int)(threadIdx.x % 32) / 4;
}

static __device__ __forceinline__ bool is_first_of_row(void) {
    return threadIdx.x % 4 == 0;
}

/* Where 16 bytes of a row lie in it. Rows have no padding between them, because copies of whole
 * lines of 128 bytes are faster; instead, the columns of each row change places, so that 8 rows of
 * a column that follow each other lie in different banks all the same. */
template <class size> static __device__ __forceinline__ int column_in_row(int row, int column) {
    return column ^ (size::ROW_BYTES % 128 ? row / 2 % 4 : row % 8);
}

/* A warp's keys of part i of a chunk, whose positions are 8: four columns from column k on. */
template <class size>
static __device__ __forceinline__ void load_keys(uint32_t m[4], const unsigned char *keys, int i,
                                                 int k) {
    int lane = (int)(threadIdx.x % 32), row = i * size::PART + (int)(threadIdx.x / 32) * 8;
    ldmatrix_x4(m, keys + (row + lane % 8) * size::ROW_BYTES +
                       16 * column_in_row<size>(lane % 8, lane / 8 + k));
}

/* The memory of a block. */
struct decode_memory {
    unsigned char *ring; /* [STAGES] chunks */
    uint32_t *rows;      /* [2][TILE] where the positions of a tile are */
    int8_t *query;       /* [DIM / 32][32 lanes][16] digits as the lanes hand them to mma */
    int8_t *weights;     /* [2 ROWS][WEIGHT_BYTES] high digits of all rows, then low ones */
    float *k_units;      /* [2][TILE] 2^(e-30) of the keys; or, in the same memory, */
    uint32_t *v_scales;  /* [2][TILE] scale_of the values, where rows are snapped */
    uint32_t *v_units;   /* [2][TILE] 2^e of the values, as bits */
};

/* What each warp has found of the rows, at its own positions: the largest score, and the sum of the
 * probabilities, in units, with the bits of the largest weight. */
struct alignas(16) row_states {
    size_t place[ROWS];               /* where its query begins in q, and its result in y */
    int token[ROWS];                  /* counted in the sequence */
    struct num_score_unit unit[ROWS]; /* of the query */
    float largest_score[ROWS][MOST_WARPS];
    uint2 units_and_weight[ROWS][MOST_WARPS];
};

template <class size> static __device__ struct decode_memory cut_memory(unsigned char *memory) {
    struct decode_memory m;
    m.ring = memory;
    m.rows = (uint32_t *)(memory + size::STAGES * size::STAGE_BYTES);
    m.k_units = (float *)(m.rows + 2 * TILE);
    m.v_scales = (uint32_t *)m.k_units;
    m.v_units = m.v_scales + 2 * TILE;
    m.query = (int8_t *)(m.v_units + 2 * TILE);
    m.weights = m.query + size::QUERY_BYTES;
    return m;
}

/* ---- the order of the work --------------------------------------------------------------------
 */

/* A tile of a share, and how many are left of it, this one counted. */
struct tile_cursor {
    struct row_group group;
    int number, tile, left; /* number: of the row group */
};

/* b: of the share, loaded before. */
static __device__ __forceinline__ struct tile_cursor first_tile(const struct decode_share *share,
                                                                int4 b) {
    struct tile_cursor c;
    c.group = share->first;
    c.number = share->group;
    c.left = b.x;
    c.tile = b.y - share->first.first_tile;
    c.group.pages = b.z;
    c.group.kv_len = b.w;
    return c;
}

static __device__ __forceinline__ void
find_next(struct tile_cursor *next, const struct tile_cursor *at, const struct plan_arrays *plan) {
    *next = *at;
    next->left--;
    if (++next->tile < at->group.n_tiles)
        return;
    next->tile = 0;
    next->number++;
    if (next->left > 0)
        next->group = plan->groups[next->number];
}

/* The kv head of this block. */
static __device__ __forceinline__ int kv_head(void) {
    return (int)blockIdx.x;
}

/* The page of a position, counted in its sequence; and its row of this block's kv head, whose page
 * is known. */
static __device__ __forceinline__ int page_of(const struct plan_arrays *plan, int position) {
    return quotient(position, plan->by_page_size);
}

static __device__ __forceinline__ uint32_t cache_row(const struct decode_cache *c,
                                                     const struct plan_arrays *plan, int32_t page,
                                                     int position) {
    uint32_t in_page = (uint32_t)(position - page_of(plan, position) * plan->page_size);
    return (uint32_t)page * c->page_rows + in_page * c->position_rows +
           (uint32_t)kv_head() * c->head_rows;
}

/* The position at which a tile of the group begins, and how many of its positions a row sees. */
static __device__ __forceinline__ int begin_of(const struct row_group *g, int tile) {
    return (g->first_tile + tile) * TILE;
}

static __device__ __forceinline__ int positions_of(const struct row_group *g, int tile) {
    return max(0, min((int)TILE, g->kv_len - begin_of(g, tile)));
}

/* Row of the group: its token, counted in the sequence, and its place in q and y. */
static __device__ __forceinline__ int token_of(const struct attention_arguments *a,
                                               const struct row_group *g, int row) {
    return (g->first_row + row) / (a->n_heads / a->n_kv_heads);
}

static __device__ __forceinline__ int query_head(const struct attention_arguments *a,
                                                 const struct row_group *g, int row) {
    int group = a->n_heads / a->n_kv_heads;
    return kv_head() * group + (g->first_row + row) % group;
}

/* Says where the rows of a group are: by divisions, which take long, so that it pays to have them
 * before the queries come. Rows that do not exist are where the last one is. */
static __device__ __forceinline__ void
find_rows(struct row_states *rows, const struct attention_arguments *a, const struct row_group *g) {
    if (threadIdx.x >= ROWS)
        return;
    int row = min((int)threadIdx.x, g->n_rows - 1), token = token_of(a, g, row);
    rows->token[threadIdx.x] = token;
    rows->place[threadIdx.x] =
        ((size_t)(g->first_token + token) * (size_t)a->n_heads + (size_t)query_head(a, g, row)) *
        (size_t)a->head_dim;
}

/* What a row may see, and how its scores change. */
struct row_view {
    int first, end; /* positions */
    int i, at;      /* its token, counted in the sequence's queries, and as a position */
    int length;     /* of the sequence */
    const uint8_t *mask;
    float slope;
};

template <bool VARIANT>
static __device__ __forceinline__ struct row_view
view_of(const struct attention_arguments *a, const struct attention_variant *v,
        const struct row_group *g, int row, int token) {
    struct row_view r = {};
    r.i = token;
    r.at = g->before + r.i;
    r.end = r.at + 1;
    if (VARIANT) {
        r.length = g->length;
        r.first = attention_first(v, g->before, r.i);
        r.end = attention_end(v, g->before, r.i, g->length);
        r.mask = v->mask_form ? v->mask + v->mask_offsets[g->sequence] : NULL;
        r.slope = v->alibi_slopes && row < g->n_rows ? v->alibi_slopes[query_head(a, g, row)] : 0;
    }
    if (row >= g->n_rows)
        r.end = 0;
    return r;
}

/* Column number i of size::SHARE of this warp; those from size::COLUMNS on do not exist. */
template <class size> static __device__ __forceinline__ int column_of_warp(int i) {
    return (int)(threadIdx.x / 32) + i * size::WARPS;
}

/* Number j of the size::EACH dimensions that a lane has of it; 2 j and 2 j + 1 are neighbours. */
template <class size> static __device__ __forceinline__ int dim_of_lane(int i, int j) {
    return column_of_warp<size>(i) * size::VECTOR + (int)(threadIdx.x % 4) * size::EACH + j;
}

/* ---- results of splits ------------------------------------------------------------------------
 */

/* Device memory [places, n_kv_heads, kept_floats]: what rows leave of a tile. */
struct partial_results {
    float *rows;
    int n_kv_heads;
    bool next_overlaps; /* the next kernel does not wait for those before this one */
};

/* A row of a place, for this block's kv head. */
template <class size>
static __device__ __forceinline__ struct row_result result_at(const struct partial_results *p,
                                                              int place, int row) {
    size_t number = (size_t)place * (size_t)p->n_kv_heads + (size_t)kv_head();
    return row_result_of(p->rows + number * kept_floats(ROWS, size::DIM), ROWS, size::DIM, row);
}

/* Leaves a result of the lane's row, of n_rows: o[i][j] is dimension dim_of_lane(i, j). */
template <class size>
static __device__ __forceinline__ void keep(const struct partial_results *p, int place, int n_rows,
                                            const float o[][size::EACH], float m, float l) {
    int row = row_of_lane();
    if (row >= n_rows)
        return;
    struct row_result to = result_at<size>(p, place, row);
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        if (column_of_warp<size>(i) < size::COLUMNS)
            UNROLL
    for (int j = 0; j < size::EACH; j += 2)
        *(float2 *)(to.values + dim_of_lane<size>(i, j)) = make_float2(o[i][j], o[i][j + 1]);
    if (threadIdx.x < 32 && is_first_of_row())
        *(float2 *)to.sums = make_float2(m, l);
}

#endif
