/*
 * many_rows.h - version 5 of linear: its tiles in shared memory, who copies what next, and the way
 * from there to the tensor cores.
 */
#ifndef SAMEBITS_GPU_FAST_LINEAR_MANY_ROWS_H
#define SAMEBITS_GPU_FAST_LINEAR_MANY_ROWS_H

#include "gpu/fast/linear/linear.h"
#include "gpu/ptx/cluster.h"
#include "gpu/ptx/digit_sums.h"
#include "gpu/ptx/tile_copy.h"

enum { THREADS = 256, STEP = 128, MAX_K = 65536 };
enum { ROW_TILES_TOGETHER = 8 }; /* neighbours in the order of tiles: place_of */

/* A block's tile of y, and what a step of STEP columns of x and W takes in shared memory. Its two
 * groups of four warps multiply 64 rows by COLUMNS each: below each other, beside each other, or
 * the same ones, and then they take every other 32 columns of a step. */
template <int ROW_GROUPS, int COLUMN_GROUPS, int COLUMNS> struct tile_sizes {
    static const int SUM_GROUPS = 2 / (ROW_GROUPS * COLUMN_GROUPS);
    static const int ROWS = 64 * ROW_GROUPS, OUTS = COLUMNS * COLUMN_GROUPS;
    static const int X_BYTES = ROWS * TILE_ROW_BYTES; /* 64 mantissas of each row */
    static const int W_BYTES = OUTS * TILE_ROW_BYTES; /* STEP digits of each row */
    static const int STAGE_BYTES = 2 * X_BYTES + 2 * W_BYTES;
    static const int STAGES = 208 * 1024 / STAGE_BYTES;
    static const int SHARED_BYTES = STAGES * (STAGE_BYTES + 8) + ROWS + OUTS;
    static const int PAIRS = COLUMNS / 4; /* of sums of a thread */
};

struct weights {
    struct tile_map digits; /* the high ones, and n rows on the low ones */
    const int8_t *exponents;
    float *y;
    int n, first_tile; /* of the columns */
};

/* A launch. Tiles are numbered over all parts; a cluster takes one after the other, and each of its
 * blocks takes a part of the steps. */
struct product {
    struct tile_map x;
    struct weights parts[MOST_LINEAR_PARTS];
    const int8_t *x_exponents;
    int n_parts, n_tokens, n_steps;
    int x_rows; /* of a tile of x: a multiple of 8 */
    int n_row_tiles, n_column_tiles;
    int n_blocks;   /* of a cluster */
    bool exchanges; /* a cluster takes one tile, and its sums go through shared memory */
};

struct tile_place {
    const struct weights *w;
    int first_token, first_out;
};

/* Neighbours in this order read the same x and W while these are in the cache. */
template <class size>
static __device__ __forceinline__ struct tile_place place_of(const struct product *p, int tile) {
    int band_tiles = ROW_TILES_TOGETHER * p->n_column_tiles;
    int band = tile / band_tiles, in_band = tile % band_tiles;
    int rows = min((int)ROW_TILES_TOGETHER, p->n_row_tiles - band * ROW_TILES_TOGETHER);
    int column = in_band / rows;
    const struct weights *w = &p->parts[0];
    UNROLL
    for (int i = 1; i < MOST_LINEAR_PARTS; i++)
        if (i < p->n_parts && column >= p->parts[i].first_tile)
            w = &p->parts[i];
    return {w, (band * ROW_TILES_TOGETHER + in_band % rows) * size::ROWS,
            (column - w->first_tile) * size::OUTS};
}

/* What is copied next: a walk over all steps of all tiles of the block. */
template <class size> struct loader {
    const struct product *p;
    unsigned char *ring;
    struct bulk_barrier *arrived;
    int first, end; /* steps of this block */
    int tile, step, stage, tile_stride;
    struct tile_place place;

    __device__ __forceinline__ bool has_more() const {
        return tile < p->n_row_tiles * p->n_column_tiles;
    }
    __device__ __forceinline__ void find_place() {
        if (has_more())
            place = place_of<size>(p, tile);
    }
    /* Tile number `which` of a step: the high digits of W, the low ones, and the first and the
     * second half of x. */
    __device__ __forceinline__ void copy(int which) {
        struct bulk_barrier *b = &arrived[stage];
        unsigned char *x = ring + stage * size::STAGE_BYTES, *w = x + 2 * size::X_BYTES;
        if (which == 0)
            bulk_expect(b, 2 * (size::W_BYTES + p->x_rows * TILE_ROW_BYTES));
        if (which < 2)
            tile_copy(b, w + which * size::W_BYTES, &place.w->digits, step * STEP,
                      which * place.w->n + place.first_out);
        else
            tile_copy(b, x + (which - 2) * size::X_BYTES, &p->x,
                      step * STEP + (which - 2) * STEP / 2, place.first_token);
    }
    __device__ __forceinline__ void advance() {
        stage = stage + 1 < size::STAGES ? stage + 1 : 0;
        if (++step < end)
            return;
        step = first;
        tile += tile_stride;
        find_place();
    }
};

/* What a thread brings to shared memory: of row or column number threadIdx.x. 0: there is none. */
template <class size>
static __device__ __forceinline__ int8_t load_exponent(const struct product *p,
                                                       const struct tile_place *place) {
    int row = (int)threadIdx.x, column = row - size::ROWS;
    if (column < 0)
        return place->first_token + row < p->n_tokens ? p->x_exponents[place->first_token + row]
                                                      : 0;
    bool exists = column < size::OUTS && place->first_out + column < place->w->n;
    return exists ? place->w->exponents[place->first_out + column] : 0;
}

template <int COLUMNS> struct tile_sums {
    int32_t high[COLUMNS / 2], middle[COLUMNS / 2], low[COLUMNS / 2];
};

/* A thread's digits of 32 columns of x: its part of the matrix a of wgmma. */
struct row_digits {
    uint32_t high[4], low[4];
};

/* rows: two rows of x at this thread's place in column 0, if they exist; swizzle: what column
 * 0 becomes, in bytes. quarter: which 32 of STEP columns. */
template <class size>
static __device__ __forceinline__ struct row_digits
load_digits(const unsigned char *rows, bool exist, int swizzle, int quarter) {
    struct row_digits d;
    rows += quarter / 2 * size::X_BYTES;
    UNROLL
    for (int i = 0; i < 4; i++) {
        int at = swizzle ^ (quarter % 2 * 64 + i / 2 * 32 + i % 2 * 16);
        uint2 four = make_uint2(0, 0);
        if (exist)
            four = *(const uint2 *)(rows + i % 2 * TILE_ROW_BYTES + at);
        split_four(&d.high[i], &d.low[i], four);
    }
    return d;
}

template <class sums>
static __device__ __forceinline__ void multiply(sums *s, const struct row_digits *x,
                                                shared_matrix w_high, shared_matrix w_low) {
    wgmma_begin();
    wgmma_s8_s8<true>(s->high, x->high, w_high);
    wgmma_s8_s8<true>(s->middle, x->high, w_low);
    wgmma_s8_s8<true>(s->middle, x->low, w_high);
    wgmma_s8_s8<true>(s->low, x->low, w_low);
    wgmma_end();
}

#endif
