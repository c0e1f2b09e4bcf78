/*
 * kernels.h - the loops of integer.h, over the instructions of the file that includes it:
 *
 *     lanes, N_LANES         a vector of so many mantissas or digits
 *     sums                   a vector of N_LANES / 2 sums of 32 bits
 *     load, zero             of them
 *     multiply_add(s, a, b)  adds the products of all lanes, two to each sum
 *     total(high, low)       256 times the sum of all of high, and that of low
 *     pair, zip_first,       multiply_add(s, zip_first(a, b), pair(x)) adds x[0] a[d] + x[1] b[d]
 * to zip_second             sum i, with d = i / 4 * 8 + i % 4; zip_second: with d + 4 W_ROWS,
 * X_ROWS         so many rows at once fill the registers: two sums for each pair of rows
 */
#ifndef SAMEBITS_REF_INTEGER_KERNELS_H
#define SAMEBITS_REF_INTEGER_KERNELS_H

#include "ref/integer/integer.h"

/* Inlined with constants, so that every loop over rows is unrolled and every sum is a register. */
#define UNROLLED static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { AHEAD = 2048 /* numbers: a page, at whose end prefetchers leave off */ };

static void split(const struct digit_rows *to, int r, const int16_t *x) {
    int16_t *high = to->digits + 2 * (size_t)r * (size_t)to->padded, *low = high + to->padded;
    for (int i = 0; i < to->k; i++) {
        int16_t digit = (int8_t)x[i];
        low[i] = digit;
        high[i] = (int16_t)((x[i] - digit) >> 8);
    }
    for (int i = to->k; i < to->padded; i++)
        high[i] = low[i] = 0;
}

/* The dot products of n_x rows of digits, x_step apart, and n_w rows of mantissas. */
UNROLLED void tile(double *out, size_t out_step, const int16_t *x, size_t x_step, int n_x,
                   const int16_t *w, size_t w_step, int n_w, int padded) {
    int64_t found[X_ROWS * W_ROWS] = {0};
    for (int first = 0, end; first < padded; first = end) {
        end = padded - first > MOST_ADDED * N_LANES ? first + MOST_ADDED * N_LANES : padded;
        sums high[X_ROWS * W_ROWS], low[X_ROWS * W_ROWS];
        UNROLL for (int s = 0; s < n_x * n_w; s++) high[s] = low[s] = zero();
        for (int i = first; i < end; i += N_LANES) {
            lanes of_w[W_ROWS];
            UNROLL for (int r = 0; r < n_w; r++) {
                of_w[r] = load(w + (size_t)r * w_step + i);
                /* What comes later, into the second cache: the first has no room for it. */
                size_t later = n_w > 1 ? (size_t)(n_w + r) * w_step : AHEAD;
                __builtin_prefetch(w + later + i, 0, 2);
            }
            UNROLL for (int t = 0; t < n_x; t++) {
                lanes of_high = load(x + (size_t)t * x_step + i);
                lanes of_low = load(x + (size_t)t * x_step + padded + i);
                UNROLL for (int r = 0; r < n_w; r++) {
                    int s = t * n_w + r;
                    high[s] = multiply_add(high[s], of_w[r], of_high);
                    low[s] = multiply_add(low[s], of_w[r], of_low);
                }
            }
        }
        UNROLL for (int s = 0; s < n_x * n_w; s++) found[s] += total(high[s], low[s]);
    }
    UNROLL for (int t = 0; t < n_x; t++) UNROLL for (int r = 0; r < n_w; r++)
        out[(size_t)t * out_step + (size_t)r] = (double)found[t * n_w + r];
}

/* All rows of x with n_w rows of w. */
UNROLLED void strip(double *out, size_t out_step, const int16_t *x, int n_x, const int16_t *w,
                    size_t w_step, int n_w, int padded) {
    size_t x_step = 2 * (size_t)padded;
    int t = 0;
    for (; t + X_ROWS <= n_x; t += X_ROWS, x += X_ROWS * x_step, out += X_ROWS * out_step)
        tile(out, out_step, x, x_step, X_ROWS, w, w_step, n_w, padded);
    for (; t < n_x; t++, x += x_step, out += out_step)
        tile(out, out_step, x, x_step, 1, w, w_step, n_w, padded);
}

/* One row of x is no more work than reading w, which is fastest in the order of memory. */
static void dots(double *out, size_t out_step, const struct digit_rows *x, int first_x, int n_x,
                 const int16_t *w, size_t w_step, int n_w) {
    const int16_t *from = x->digits + 2 * (size_t)first_x * (size_t)x->padded;
    int r = 0;
    for (; n_x > 1 && r + W_ROWS <= n_w; r += W_ROWS)
        strip(out + r, out_step, from, n_x, w + (size_t)r * w_step, w_step, W_ROWS, x->padded);
    for (; r < n_w; r++)
        strip(out + r, out_step, from, n_x, w + (size_t)r * w_step, w_step, 1, x->padded);
}

/* N_LANES of the dimensions of n_x rows. At most 256 products a sum: nothing is widened. */
UNROLLED void weigh_lanes(float *out, size_t out_step, const int16_t *x, int padded, int n_x,
                          const int16_t *v, size_t v_step, int n) {
    size_t x_step = 2 * (size_t)padded;
    sums high[2 * X_ROWS], low[2 * X_ROWS];
    UNROLL for (int s = 0; s < 2 * n_x; s++) high[s] = low[s] = zero();
    for (int j = 0; j < n; j += 2) {
        lanes a = load(v + (size_t)j * v_step), b = load(v + (size_t)(j + 1) * v_step);
        lanes both[2] = {zip_first(a, b), zip_second(a, b)};
        UNROLL for (int s = 0; s < 2 * n_x; s++) {
            const int16_t *weight = x + (size_t)(s / 2) * x_step + j;
            high[s] = multiply_add(high[s], both[s % 2], pair(weight));
            low[s] = multiply_add(low[s], both[s % 2], pair(weight + padded));
        }
    }
    UNROLL for (int s = 0; s < 2 * n_x; s++) {
        int32_t h[N_LANES / 2], l[N_LANES / 2];
        float *to = out + (size_t)(s / 2) * out_step + s % 2 * 4;
        memcpy(h, &high[s], sizeof h);
        memcpy(l, &low[s], sizeof l);
        for (int i = 0; i < N_LANES / 2; i++) /* 256 times what fits 32 bits */
            to[i / 4 * 8 + i % 4] = (float)(h[i] + (l[i] >> 8)) * 256;
    }
}

static void weighted(float *out, size_t out_step, const struct digit_rows *x, int first_x, int n_x,
                     const int16_t *v, size_t v_step, int dim) {
    const int16_t *from = x->digits + 2 * (size_t)first_x * (size_t)x->padded;
    int t = 0;
    for (; t + X_ROWS <= n_x; t += X_ROWS, from += X_ROWS * 2 * (size_t)x->padded)
        for (int d = 0; d < dim; d += N_LANES)
            weigh_lanes(out + (size_t)t * out_step + d, out_step, from, x->padded, X_ROWS, v + d,
                        v_step, x->k);
    for (; t < n_x; t++, from += 2 * (size_t)x->padded)
        for (int d = 0; d < dim; d += N_LANES)
            weigh_lanes(out + (size_t)t * out_step + d, out_step, from, x->padded, 1, v + d, v_step,
                        x->k);
}

#define KERNELS(name)                                                                              \
    { name, split, dots, weighted }

#endif
