/*
 * products.h - for gpu/fast/prompt/wgmma.cu: exact products, by wgmma.
 *
 * A product of mantissas is four products of digits:
 *
 *     65536 high * high + 256 (high * low + low * high) + low * low
 *
 * The 64 rows of a wgmma are the digits of 32 rows, 16 of a warp's 8: g, the high digits of row g,
 * and g + 8, its low ones. Multiplied with the high digits of columns, keys or dimensions of
 * values, and then with their low ones, they are all four, and a thread has those of a single row.
 * With rows of their own for high and low digits it had two, and twice the registers; so a
 * processor has room for twice as many warps.
 *
 * All rows of a wgmma have signs, or none has. Queries have them: their low digits go from -128 to
 * 127, as no mantissa is above 127 * 256 + 127. Weights are never negative, and have none.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_PRODUCTS_H
#define SAMEBITS_GPU_FAST_PROMPT_PRODUCTS_H

#include "gpu/fast/prompt/prompt.h"
#include "gpu/ptx/warpgroup.h"

/* Digits of a thread's row, 32 summands a step, as wgmma takes them: the high ones of 4 t ... 4 t +
 * 3, their low ones, the high ones of 16 + 4 t ..., their low ones. */
template <int STEPS> struct row_digits { uint32_t of[STEPS][4]; };

/* The columns of a chunk, of CHUNK_COLUMNS. */
template <int CHUNK_COLUMNS>
static __device__ __forceinline__ shared_matrix columns_of(const unsigned char *chunk) {
    return shared_matrix_at(chunk, column_bytes(CHUNK_COLUMNS));
}

/* The products with one digit of the columns: of columns 8 i + 2 t and 8 i + 2 t + 1, sums[4 i] and
 * the next are of the row's high digits, the two behind them of its low ones. Of PARTS parts of the
 * summands only the first `parts` are not 0. add(k, digits): starts a step. */
template <int PARTS, int CHUNK_COLUMNS, int STEPS, int REGISTERS, class step>
static __device__ __forceinline__ void multiply_digits(int32_t (&sums)[REGISTERS],
                                                       shared_matrix digits, int parts, step add) {
    auto add_steps = [&](int first, int end) {
        UNROLL
        for (int k = first; k < end; k++)
            add(k, shared_matrix_skip(digits, 2 * k, column_bytes(CHUNK_COLUMNS)));
    };
    wgmma_begin();
    add_steps(0, STEPS / PARTS);
    UNROLL
    for (int i = 1; i < PARTS; i++) {
        if (i < parts) {
            wgmma_begin();
            add_steps(i * STEPS / PARTS, (i + 1) * STEPS / PARTS);
        }
    }
    if (PARTS > 1)
        wgmma_begin(); /* the compiler wants one wherever ways meet */
    wgmma_end();
    wgmma_wait();
    wgmma_settle(sums);
}

/* The products of a row with 4 N columns, in units of 256, rounded down: sums[2 i] and the next one
 * with columns 8 i + 2 t and 8 i + 2 t + 1. One digit of the columns after the other, because there
 * are no registers for both. */
template <bool SIGNED, int PARTS, int CHUNK_COLUMNS, int N, int STEPS>
static __device__ __forceinline__ void multiply(int32_t (&sums)[N],
                                                const struct row_digits<STEPS> *row,
                                                shared_matrix columns, int parts = PARTS) {
    int32_t high[2 * N], low[2 * N];
    multiply_digits<PARTS, CHUNK_COLUMNS, STEPS>(high, columns, parts, [&](int k, shared_matrix m) {
        if (SIGNED)
            k ? wgmma_s8_s8<true>(high, row->of[k], m) : wgmma_s8_s8<false>(high, row->of[k], m);
        else
            k ? wgmma_u8_s8<true>(high, row->of[k], m) : wgmma_u8_s8<false>(high, row->of[k], m);
    });
    UNROLL
    for (int i = 0; i < N; i++)
        sums[i] = high[i / 2 * 4 + i % 2] * 256 + high[i / 2 * 4 + i % 2 + 2];
    shared_matrix lower = shared_matrix_skip(columns, CHUNK_COLUMNS, 16);
    multiply_digits<PARTS, CHUNK_COLUMNS, STEPS>(low, lower, parts, [&](int k, shared_matrix m) {
        if (SIGNED)
            k ? wgmma_s8_u8<true>(low, row->of[k], m) : wgmma_s8_u8<false>(low, row->of[k], m);
        else
            k ? wgmma_u8_u8<true>(low, row->of[k], m) : wgmma_u8_u8<false>(low, row->of[k], m);
    });
    UNROLL
    for (int i = 0; i < N; i++)
        sums[i] += low[i / 2 * 4 + i % 2] + (low[i / 2 * 4 + i % 2 + 2] >> 8);
}

#endif
