/*
 * integer.h - exact sums of products with the integer instructions of this CPU.
 *
 * A mantissa has 16 bits, and two products of such just fit 32 bits: 2 * 32639^2 = 2,130,608,642.
 * Nothing could be added to them. So one of the operands is taken as two digits, each a row of its
 * own:
 *
 *     x = 256 * high + low,  -128 <= high, low <= 127          (a mantissa is at most 0x7f7f)
 *
 * A product with a digit is at most 32639 * 128 = 4,177,792, and 514 of them fit 32 bits: 257 times
 * the two that an instruction adds to each of its sums. Longer rows are widened to 64 bits after
 * MOST_ADDED of these. 256 times the sum of the high digits and that of the low ones is the exact
 * sum: the integer that OpenBLAS finds in double, so the bits of every result are those.
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
    MOST_ADDED = 256, /* <= 257 */
    DIGITS_STEP = 32, /* digit rows are filled up with zeros to a multiple of this */
    ROW_SLACK = 64    /* bytes behind the last row that dots may read: times a digit that is 0 */
};

/* Rows of mantissas as digits: row r has its high digits at [r][0], its low ones at [r][1]. */
struct digit_rows {
    int16_t *digits; /* [n_rows, 2, padded] */
    int k, padded;   /* numbers of a row; digits_padded(k) */
};

static inline int digits_padded(int k) {
    return (k + DIGITS_STEP - 1) / DIGITS_STEP * DIGITS_STEP;
}

static inline size_t digits_bytes(int n_rows, int k) {
    return sizeof(int16_t) * 2 * (size_t)n_rows * (size_t)digits_padded(k);
}

/* What a set of instructions does. */
struct integer_kernels {
    const char *name; /* NULL: the compiler's target has no such instructions */

    /* Splits row r of x, mantissas [k], into digits. */
    void (*split)(const struct digit_rows *to, int r, const int16_t *x);

    /* sums[x * sum_step + w] = the exact dot product of row x and row w, for n_x rows of digits and
     * n_w rows of mantissas, w_step apart. At most 2^53. */
    void (*dots)(double *sums, size_t sum_step, const struct digit_rows *x, int first_x, int n_x,
                 const int16_t *w, size_t w_step, int n_w);

    /* sums[x * sum_step + d] = the exact sum over j < x->k <= 256 of row x, weights of positions j,
     * times v[j][d], rounded down to a multiple of 256. The rows of v are v_step apart; dim is a
     * multiple of DIGITS_STEP. When x->k is odd there must be one more row, of any numbers. */
    void (*weighted)(float *sums, size_t sum_step, const struct digit_rows *x, int first_x, int n_x,
                     const int16_t *v, size_t v_step, int dim);
};

extern const struct integer_kernels integer_plain, integer_avx2, integer_avx512, integer_neon;

/* The best kernels that this CPU can run, or those that the environment variable SAMEBITS_ISA names
 * (plain, avx2, avx512, neon). NULL with err set when it cannot run those. */
const struct integer_kernels *integer_choose(struct error *err);

#endif
