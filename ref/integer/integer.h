/*
 * integer.h - exact sums of products with the integer instructions of this CPU.
 *
 * An instruction multiplies mantissas, of 16 bits, and adds the products of two neighbours. Such a
 * pair p just fits 32 bits: 2 * 32639^2 = 2,130,608,642. A sum of pairs does not, so it is found in
 * two parts, each of 32 bits:
 *
 *     low  = the sum of all p, modulo 2^32
 *     high = the sum of all p >> 16, or something near it
 *
 * The exact sum is 65536 * high + rest, where rest is small, and known modulo 2^32: it is
 * low - 65536 * high. While it is between -2^31 and 2^31 that is all there is to know. pairs.h sums
 * the high halves as they are; avx512.c has a cheaper way, with bytes. The sum is the integer that
 * OpenBLAS finds in double, so the bits of every result are those.
 *
 * kernels.h has the loops, once; plain.c, avx2.c, avx512.c and neon.c have the instructions, and
 * choose.c chooses.
 */
#ifndef SAMEBITS_REF_INTEGER_H
#define SAMEBITS_REF_INTEGER_H

#include "model/error.h"
#include "model/numerics.h"

#include <stddef.h>

enum {
    ROW_PIECE = 1024, /* numbers of a row that are summed in 32 bits, and stay in the first cache */
    DIM_STEP = 32,    /* numbers: weighted works on whole ones of these */
    ROW_SLACK = 128   /* bytes behind the last row that dots may read: times a 0 */
};

/* Rows of mantissas as `dots` wants its x. */
struct x_rows {
    char *rows; /* [n_rows, row_bytes], in a whole cache line */
    size_t row_bytes;
    int k; /* numbers of a row */
};

/* What a set of instructions does. */
struct integer_kernels {
    const char *name; /* NULL: the compiler's target has no such instructions */

    /* Bytes of a row of k numbers in struct x_rows: whole cache lines. */
    size_t (*row_bytes)(int k);

    /* Puts mantissas x [k] into row r. */
    void (*put_row)(const struct x_rows *to, int r, const int16_t *x);

    /* sums[x * sum_step + w] = the exact dot product of row x and row w, for n_x rows from first_x
     * on, and n_w rows of mantissas, w_step apart. At most 2^53. */
    void (*dots)(double *sums, size_t sum_step, const struct x_rows *x, int first_x, int n_x,
                 const int16_t *w, size_t w_step, int n_w);

    /* sums[x * sum_step + d] = the exact sum over j < n <= 256 of weights[x * weight_step + j],
     * mantissas, times v[j][d], rounded down to a multiple of 256, for n_x rows of weights. The
     * rows of v are v_step apart; dim is a multiple of DIM_STEP. When n is odd there must be one
     * more weight, 0, and one more row of v, of any numbers. */
    void (*weighted)(float *sums, size_t sum_step, const int16_t *weights, size_t weight_step,
                     int n_x, int n, const int16_t *v, size_t v_step, int dim);
};

extern const struct integer_kernels integer_plain, integer_avx2, integer_avx512, integer_neon;

/* The best kernels that this CPU can run, or those that the environment variable SAMEBITS_ISA names
 * (plain, avx2, avx512, neon). NULL with err set when it cannot run those. */
const struct integer_kernels *integer_choose(struct error *err);

#endif
