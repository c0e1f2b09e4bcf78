/*
 * many_rows.h - version 5 of linear: its tiles in shared memory, who copies what next, and the
 * products.
 */
#ifndef SAMEBITS_GPU_FAST_LINEAR_MANY_ROWS_H
#define SAMEBITS_GPU_FAST_LINEAR_MANY_ROWS_H

#include "gpu/fast/linear/tiles.h"
#include "gpu/ptx/cluster.h"

enum { STEP = 128 };

/* A block's tile of y, and what a step of STEP columns of x and W takes in shared memory. Each of
 * the block's two groups of four warps multiplies 64 rows by COLUMNS. In a tile of 128 rows of x
 * these are its rows, first their high digits, then their low ones. In a tile of 64 they are the
 * digits of 32 rows, stacked: of a warp's 16 rows, g has high digits and g + 8 the low ones of the
 * same row of x, so that a thread has all sums of an output. */
template <int N_ROWS, int COLUMNS> struct tile_sizes {
    static const bool STACKED = N_ROWS == 64;
    static const int ROWS = N_ROWS, OUTS = COLUMNS;
    static const int X_BYTES = ROWS * TILE_ROW_BYTES; /* 64 mantissas of each row */
    static const int W_BYTES = OUTS * TILE_ROW_BYTES; /* STEP digits of each row */
    static const int STAGE_BYTES = 2 * X_BYTES + 2 * W_BYTES;
    static const int STAGES = 208 * 1024 / STAGE_BYTES;
    static const int SHARED_BYTES = STAGES * (STAGE_BYTES + 8) + ROWS + OUTS;
    static const int PAIRS = STACKED ? COLUMNS / 8 : COLUMNS / 4; /* of outputs of a thread */
    static const int QUARTERS = STACKED ? 2 : 1; /* of a step, that are multiplied together */
};

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
            tile_copy(b, w + which * size::W_BYTES, &place.w->map, step * STEP,
                      which * place.w->n + place.first_out);
        else
            tile_copy(b, x + (which - 2) * size::X_BYTES, &p->x_map,
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

/* A thread's digits of so many quarters of a step. Stacked, those of the first are d.high, of the
 * second d.low; words 0 and 2 are high digits, 1 and 3 low ones. */
template <class size>
static __device__ __forceinline__ struct row_digits load(const unsigned char *rows, bool exist,
                                                         int swizzle, int quarter) {
    if (!size::STACKED)
        return load_digits<size>(rows, exist, swizzle, quarter);
    struct row_digits d;
    rows += quarter / 2 * size::X_BYTES;
    UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t *digits = (i < 2 ? d.high : d.low) + i % 2 * 2;
        uint2 four = make_uint2(0, 0);
        if (exist)
            four = *(const uint2 *)(rows + (swizzle ^ i * 32));
        split_four(&digits[0], &digits[1], four);
    }
    return d;
}

/* Begins to add what `load` has loaded times W, whose high digits of this step are at w. */
template <class size, class sums>
static __device__ __forceinline__ void multiply(sums *s, const struct row_digits *x,
                                                const unsigned char *w, int quarter) {
    const unsigned char *w_low = w + size::W_BYTES;
    int column = 2 * quarter; /* of 16 bytes */
    wgmma_begin();
    wgmma_s8_s8<true>(s->high, x->high, shared_matrix_swizzled(w, column));
    if (size::STACKED) {
        wgmma_s8_s8<true>(s->low, x->high, shared_matrix_swizzled(w_low, column));
        wgmma_s8_s8<true>(s->high, x->low, shared_matrix_swizzled(w, column + 2));
        wgmma_s8_s8<true>(s->low, x->low, shared_matrix_swizzled(w_low, column + 2));
    } else {
        wgmma_s8_s8<true>(s->middle, x->high, shared_matrix_swizzled(w_low, column));
        wgmma_s8_s8<true>(s->middle, x->low, shared_matrix_swizzled(w, column));
        wgmma_s8_s8<true>(s->low, x->low, shared_matrix_swizzled(w_low, column));
    }
    wgmma_end();
}

/* Pair number i of a thread's outputs. Stacked, s->high has two sums high high, then two low high,
 * and so on; s->low high low and low low. The sum of low high and high low fits (tiles.h). */
template <class size, int COLUMNS>
static __device__ __forceinline__ double2 join_outputs(const tile_sums<COLUMNS> *s, int i) {
    if (!size::STACKED)
        return join_pair(s, i);
    const int32_t *high = s->high + 4 * i, *low = s->low + 4 * i;
    return make_double2(join(high[0], high[2] + low[0], low[2]),
                        join(high[1], high[3] + low[1], low[3]));
}

template <class size>
static __device__ __forceinline__ void write_outputs(const struct outputs *o, int i, double2 dot) {
    write_pair(o, size::STACKED ? 2 * i : i, dot);
}

#endif
