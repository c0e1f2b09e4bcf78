/*
 * products.h - for gpu/fast/prompt/wgmma.cu: exact products, by wgmma.
 *
 * The 64 rows of a block are multiplied with 64 columns, keys or dimensions of values. A product
 * of mantissas is four products of digits:
 *
 *     65536 high * high + 256 (high * low + low * high) + low * low
 *
 * The sums of the outer two come first; joined, in units of 256, they are what the inner ones are
 * added to. So a row holds two sums of a column and then one, not three, and the tensor cores have
 * the next columns' outer products to do while a sum is joined or used.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_PRODUCTS_H
#define SAMEBITS_GPU_FAST_PROMPT_PRODUCTS_H

#include "gpu/fast/prompt/prompt.h"
#include "gpu/ptx/warpgroup.h"

enum { COLUMNS = 64 /* of a product: keys, or dimensions */ };

/* Digits of a thread's rows, 32 summands a step, as wgmma takes them. */
template <int STEPS> struct row_digits { uint32_t high[STEPS][4], low[STEPS][4]; };

struct outer_sums {
    int32_t high[32], low[32];
};

/* Where the digits of columns begin, in a chunk of CHUNK_COLUMNS. */
struct column_digits {
    shared_matrix high, low;
};

template <int CHUNK_COLUMNS>
static __device__ __forceinline__ struct column_digits digits_at(const unsigned char *columns) {
    const int step = column_bytes(CHUNK_COLUMNS);
    return {shared_matrix_at(columns, step), shared_matrix_at(columns + 16 * CHUNK_COLUMNS, step)};
}

template <int CHUNK_COLUMNS>
static __device__ __forceinline__ shared_matrix digits_of_step(shared_matrix m, int k) {
    return shared_matrix_skip(m, 2 * k, column_bytes(CHUNK_COLUMNS));
}

/* Products of the steps from `first` on. HALVES: not of the second half, if `half` says that all of
 * its summands are 0. (The compiler wants a beginning wherever ways meet.) */
template <bool HALVES, int STEPS, class step>
static __device__ __forceinline__ void add_steps(int first, bool half, step add) {
    UNROLL
    for (int k = first; k < (HALVES ? STEPS / 2 : STEPS); k++)
        add(k);
    if (HALVES && !half) {
        wgmma_begin();
        UNROLL
        for (int k = STEPS / 2; k < STEPS; k++)
            add(k);
    }
    if (HALVES)
        wgmma_begin();
}

template <bool HALVES, int CHUNK_COLUMNS, int STEPS, class digits>
static __device__ __forceinline__ void start_outer(struct outer_sums *s, const digits *rows,
                                                   const unsigned char *columns, bool half) {
    struct column_digits c = digits_at<CHUNK_COLUMNS>(columns);
    wgmma_begin();
    wgmma_s8_s8<false>(s->high, rows->high[0], c.high);
    wgmma_u8_u8<false>(s->low, rows->low[0], c.low);
    add_steps<HALVES, STEPS>(1, half, [&](int k) {
        wgmma_s8_s8<true>(s->high, rows->high[k], digits_of_step<CHUNK_COLUMNS>(c.high, k));
        wgmma_u8_u8<true>(s->low, rows->low[k], digits_of_step<CHUNK_COLUMNS>(c.low, k));
    });
    wgmma_end();
}

template <bool HALVES, int CHUNK_COLUMNS, int STEPS, class digits>
static __device__ __forceinline__ void start_inner(int32_t (&sums)[32], const digits *rows,
                                                   const unsigned char *columns, bool half) {
    struct column_digits c = digits_at<CHUNK_COLUMNS>(columns);
    wgmma_begin();
    add_steps<HALVES, STEPS>(0, half, [&](int k) {
        wgmma_s8_u8<true>(sums, rows->high[k], digits_of_step<CHUNK_COLUMNS>(c.low, k));
        wgmma_u8_s8<true>(sums, rows->low[k], digits_of_step<CHUNK_COLUMNS>(c.high, k));
    });
    wgmma_end();
}

static __device__ __forceinline__ void join(int32_t (&sums)[32], const struct outer_sums *outer) {
    UNROLL
    for (int i = 0; i < 32; i++) /* low: of unsigned digits */
        sums[i] = outer->high[i] * 256 + (int32_t)((uint32_t)outer->low[i] >> 8);
}

/* The products of rows, STEPS * 32 summands, with 64 columns after the other: parts. They are those
 * of the tile's chunks from number FIRST on. HALVES, half: add_steps. */
template <bool HALVES, int FIRST, int CHUNK_COLUMNS, int STEPS, class digits, class tile>
struct part_products {
    enum { IN_CHUNK = CHUNK_COLUMNS / COLUMNS };
    const digits *rows;
    tile *chunks;
    bool half;
    const unsigned char *columns; /* of the part that was started last */
    struct outer_sums outer;
    int32_t sums[2][32]; /* of two parts in turns: in units of 256, rounded down */

    /* Starts the outer products of a part. */
    __device__ __forceinline__ void start(int part) {
        columns = part % IN_CHUNK ? columns + 16 * COLUMNS : chunks->take(FIRST + part / IN_CHUNK);
        start_outer<HALVES, CHUNK_COLUMNS, STEPS>(&outer, rows, columns, half);
    }

    /* Waits for them, and for the inner ones of the part before; starts this part's inner ones. */
    __device__ __forceinline__ void go_on(int part) {
        wgmma_wait();
        wgmma_settle(outer.high);
        wgmma_settle(outer.low);
        if (part)
            wgmma_settle(sums[(part + 1) % 2]);
        join(sums[part % 2], &outer);
        start_inner<HALVES, CHUNK_COLUMNS, STEPS>(sums[part % 2], rows, columns, half);
        if (part && part % IN_CHUNK == 0)
            chunks->replace(FIRST + part / IN_CHUNK - 1);
    }

    /* Waits for the last part. */
    __device__ __forceinline__ void end(int part) {
        wgmma_wait();
        wgmma_settle(sums[part % 2]);
        chunks->replace(FIRST + part / IN_CHUNK);
    }
};

/* The products with PARTS times 64 columns; or, if `few` says so, with FEW times as many. use(part,
 * sums): what is done with them. meanwhile(): what else there is to do before, while the first
 * products run. leave_rest(): what is done with the parts that are left out. */
template <bool HALVES, int PARTS, int FEW, int FIRST, int CHUNK_COLUMNS, int STEPS, class digits,
          class tile, class work, class user, class rest>
static __device__ __forceinline__ void multiply(const digits *rows, tile *chunks, bool half,
                                                bool few, work meanwhile, user use,
                                                rest leave_rest) {
    struct part_products<HALVES, FIRST, CHUNK_COLUMNS, STEPS, digits, tile> p;
    p.rows = rows;
    p.chunks = chunks;
    p.half = half;
    auto end = [&](int part) {
        if (part)
            use(part - 1, p.sums[(part + 1) % 2]);
        p.end(part);
        use(part, p.sums[part % 2]);
    };
    p.start(0);
    meanwhile();
    UNROLL
    for (int part = 0; part < FEW; part++) {
        p.go_on(part);
        if (part + 1 == FEW)
            break;
        p.start(part + 1);
        if (part)
            use(part - 1, p.sums[(part + 1) % 2]);
    }
    if (FEW == PARTS || few) {
        end(FEW - 1);
        leave_rest();
    } else {
        UNROLL
        for (int part = FEW; part < PARTS; part++) {
            p.start(part);
            use(part - 2, p.sums[part % 2]); /* the part before is not waited for yet */
            p.go_on(part);
        }
        end(PARTS - 1);
    }
}

#endif
