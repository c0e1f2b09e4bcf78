/*
 * many_rows.h - version 5 of linear: its tiles in shared memory, who copies what next, and the
 * products.
 */
#ifndef SAMEBITS_GPU_FAST_LINEAR_MANY_ROWS_H
#define SAMEBITS_GPU_FAST_LINEAR_MANY_ROWS_H

#include "gpu/fast/linear/tiles.h"
#include "gpu/ptx/cluster.h"

enum { STEP = 128 };

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
