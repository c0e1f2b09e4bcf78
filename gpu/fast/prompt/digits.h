/*
 * digits.h - what the kernels share that split queries, keys and values into digits: digits.cu, for
 * caches of any kind, and digits_rows.cu, for rows of bfp16 in one piece.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_DIGITS_H
#define SAMEBITS_GPU_FAST_PROMPT_DIGITS_H

#include "gpu/fast/plan/plan.h"
#include "gpu/fast/prompt/split.h"
#include "gpu/ptx/tensor_core.h"

enum { TILE = ATTENTION_TILE, THREADS = 256, WARPS = THREADS / 32 };

/* Four mantissas as digits at byte 4 * word of a row. first: the row's column 0, high digits. */
static __device__ __forceinline__ void put_digits(uint8_t *first, int rows, int word,
                                                  const int m[4]) {
    uint32_t high = 0, low = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        high |= ((uint32_t)m[j] >> 8 & 255) << (8 * j);
        low |= ((uint32_t)m[j] & 255) << (8 * j);
    }
    uint8_t *at = first + word / 4 * column_bytes(rows) + word % 4 * 4;
    *(uint32_t *)at = high;
    *(uint32_t *)(at + 16 * rows) = low;
}

/* Column 0 of row `row` of a tile, whose rows lie in groups of `rows`. (Numbers of 32 bits: in a
 * division, those of 64 take several times as long.) */
static __device__ __forceinline__ uint8_t *row_of(uint8_t *groups, int rows, int bytes_per_row,
                                                  int row) {
    unsigned group = (unsigned)row / (unsigned)rows, in_group = (unsigned)row % (unsigned)rows;
    return groups + group * (unsigned)group_bytes(rows, bytes_per_row) + in_group * 16;
}

/* ---- queries, and any rows ------------------------------------------------------------------ */

/* What the kernels of this file share. */
struct split_arguments {
    struct attention_arguments a;
    struct kv_views kv;
    struct attention_work work; /* empty: of the sequence of the arguments */
    struct attention_digits out;
    int query_blocks, key_blocks; /* of blockIdx.y, the rest is the values' */
};

/* A block's part of the queries, keys or values of a kv head: number `block` of n_blocks. */
struct part {
    int block, n_blocks;
};

/* A warp snaps one row of queries; a lane takes four neighbouring dimensions at a time. */
static __device__ __forceinline__ void split_queries(const struct split_arguments *s, int kv_head,
                                                     struct part part) {
    const struct attention_arguments *a = &s->a;
    const struct attention_digits *out = &s->out;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int n = s->work.items ? s->work.counts[COUNT_ROW_LISTS] : out->n_groups;
    for (int i = part.block * WARPS + warp; i < n * QUERY_ROWS; i += part.n_blocks * WARPS) {
        struct row_list list =
            s->work.items ? s->work.row_lists[i / QUERY_ROWS] : list_of(a, i / QUERY_ROWS);
        bool exists = i % QUERY_ROWS < list.n_rows;
        struct prompt_row row = {};
        if (exists)
            row = prompt_row_of<false>(NULL, &s->work, &list, kv_head, i % QUERY_ROWS);
        const float *q = a->q + ((size_t)row.token * (size_t)a->n_heads + (size_t)row.head) *
                                    (size_t)a->head_dim;
        uint32_t largest = 0;
        for (int d = lane; d < a->head_dim && exists; d += 32)
            largest = max(largest, num_magnitude(q[d]));
        int e = num_row_exponent(warp_max(largest));
        bool bad = e > BFP_MAX_EXPONENT;
        e = bad ? BFP_MIN_EXPONENT : e;
        size_t number = (size_t)kv_head * (size_t)(out->n_groups * QUERY_ROWS) + (size_t)i;
        uint8_t *to = out->queries +
                      number / QUERY_ROWS * (size_t)group_bytes(QUERY_ROWS, out->dim) +
                      number % QUERY_ROWS * 16;
        for (int word = lane; word < out->dim / 4; word += 32) {
            int m[4];
            UNROLL
            for (int j = 0; j < 4; j++)
                m[j] = exists && 4 * word + j < a->head_dim && !bad
                           ? num_mantissa(q[4 * word + j], num_pow2f(15 - e))
                           : 0;
            put_digits(to, QUERY_ROWS, word, m);
        }
        if (lane == 0) {
            out->query_exponents[number] = (int8_t)e;
            if (bad)
                gpu_fault(a->fault, a->site, row.token);
        }
    }
}

static __device__ __forceinline__ uint8_t *tile_of(const struct attention_digits *d, int kv_head,
                                                   int tile) {
    return d->tiles +
           ((size_t)kv_head * (size_t)d->n_tiles + (size_t)tile) * (size_t)tile_bytes(d->dim);
}

/* Tiles to be split. */
static __device__ __forceinline__ int tiles_of(const struct split_arguments *s) {
    return s->work.items ? s->work.counts[COUNT_TILES] : s->out.n_tiles;
}

/* Where a position lies. page -1: it does not exist. */
struct position_place {
    int64_t page, in_page;
};

/* Position j of tile number i. */
static __device__ __forceinline__ struct position_place place_of(const struct split_arguments *s,
                                                                 int i, int j) {
    int position = i * TILE + j;
    if (!s->work.items)
        return {position < s->a.kv_len ? 0 : -1, position};
    struct digit_tile tile = s->work.tiles[i];
    if (j >= tile.n)
        return {-1, 0};
    position = tile.tile * TILE + j;
    return {s->work.pages[tile.pages + position / s->a.page_size], position % s->a.page_size};
}

/* ---- rows of bfp16 in one piece -------------------------------------------------------------- */

enum {
    PIECE = 8192,    /* elements that a block splits at a time */
    MOST_DIMS = 128, /* of its rows */
    PIECES = 2,      /* in shared memory: one is written while the next arrives */
};

/* The dimensions of a piece: all, if they fit, because what lies side by side is best read at once.
 */
static __host__ __device__ constexpr int piece_dims(int dim) {
    return dim % MOST_DIMS ? 64 : (int)MOST_DIMS;
}

/* The pieces of a tile's keys, and of its values. */
static __host__ __device__ constexpr int pieces_of_tile(int dim) {
    return (dim + piece_dims(dim) - 1) / piece_dims(dim) * (TILE * piece_dims(dim) / PIECE);
}

/* Splits them: digits_rows.cu. */
void gpu_attention_split_rows(struct gpu_device *gpu, dim3 grid, const struct split_arguments *s);

#endif
