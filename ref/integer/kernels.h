/*
 * kernels.h - the loops of integer.h, over the instructions of the file that includes it:
 *
 *     lanes, N_LANES        a vector of so many mantissas
 *     multiply(a, b)        the products of all lanes, two added to each of N_LANES / 2 sums
 *     across(to, s)         the sum of all of these, modulo 2^32, for four vectors at once
 *     pair, zip_first,      multiply(zip_first(a, b), pair(x)) is x[0] a[d] + x[1] b[d] in sum i,
 *     zip_second            with d = i / 4 * 8 + i % 4; zip_second: with d + 4
 *     W_ROWS, X_ROWS        so many rows at once fill the registers: two sums for each pair of rows
 *
 * and over the steps in which it takes a row (pairs.h, or its own):
 *
 *     STEP                  numbers of a step
 *     struct factor         a step of a row; w_factor and x_factor load it
 *     X_HEAD, X_STEP        bytes of a piece of a row of x: what `high` begins with, then each step
 *     multiply_add          adds the products of a step to low and high
 *     REST_FITS             of so many numbers, the sum of low - 65536 * high fits 32 bits
 */
#ifndef SAMEBITS_REF_INTEGER_KERNELS_H
#define SAMEBITS_REF_INTEGER_KERNELS_H

#include "ref/integer/integer.h"

/* Inlined with constants, so that every loop over rows is unrolled and every sum is a register. */
#define UNROLLED static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    AHEAD = 1024, /* numbers of one row: prefetchers leave off at the end of a page */
    LINE = 32,    /* numbers of a cache line */
    TILE = (X_ROWS * W_ROWS + 3) / 4 * 4,
    FIRST_CACHE = 25 << 10 /* of x, beside w */
};

static inline int n_steps(int k) {
    return (k + STEP - 1) / STEP;
}

static size_t row_bytes(int k) {
    size_t pieces = (size_t)(k + ROW_PIECE - 1) / ROW_PIECE;
    return (pieces * X_HEAD + (size_t)n_steps(k) * X_STEP + 63) / 64 * 64;
}

/* What comes after a step of a row of w: into the first cache what is used next, and into the
 * second what comes eight times as far on, because a core has more requests under way to that. */
UNROLLED void prefetch(const int16_t *w, size_t next) {
    UNROLL for (int line = 0; line < STEP; line += LINE) {
        __builtin_prefetch(w + next + line);
        __builtin_prefetch(w + 8 * next + line, 0, 2);
    }
}

/* A piece of n_x rows of x, x_step bytes apart, times n_w rows of mantissas: in each lane of a pair
 * of rows, low is the sum modulo 2^32, and 65536 * high is near it: below it by less than 65536
 * when the rest of all lanes would not fit. What comes after n_ask of the rows, from first_ask on,
 * is asked for: of one row what lies AHEAD, of several the next so many. */
UNROLLED void multiply_piece(sums *high, wrapped *low, const char *x, size_t x_step, int n_x,
                             const int16_t *w, size_t w_step, int n_w, int first_ask, int n_ask,
                             int steps, bool rest_fits) {
    size_t next = n_w > 1 ? (size_t)n_w * w_step : AHEAD;
    UNROLL for (int s = 0; s < n_x * n_w; s++) {
        high[s] = x_head(x + (size_t)(s / n_w) * x_step);
        low[s] = (wrapped){0};
    }
    x += X_HEAD;
    for (int i = 0; i < steps; i++, x += X_STEP, w += STEP) {
        struct factor of_w[W_ROWS];
        UNROLL for (int r = 0; r < n_w; r++) of_w[r] = w_factor(w + (size_t)r * w_step);
        UNROLL for (int r = 0; r < n_ask; r++) prefetch(w + (size_t)(first_ask + r) * w_step, next);
        UNROLL for (int t = 0; t < n_x; t++) {
            struct factor of_x = x_factor(x + (size_t)t * x_step);
            UNROLL for (int r = 0; r < n_w; r++)
                multiply_add(&low[t * n_w + r], &high[t * n_w + r], of_w[r], of_x);
        }
    }
    if (!rest_fits) {
        UNROLL for (int s = 0; s < n_x * n_w; s++) high[s] +=
            (sums)(low[s] - ((wrapped)high[s] << 16)) >> 16;
    }
}

typedef int32_t four_ints __attribute__((vector_size(16)));
typedef uint32_t four_wrapped __attribute__((vector_size(16)));
typedef double four_doubles __attribute__((vector_size(32)));

/* The exact sums of n pairs of rows. There is room for whole fours, which stay vectors: a compiler
 * by itself takes them apart. */
UNROLLED void total(double *to, const sums *high, const wrapped *low, int n) {
    UNROLL for (int s = 0; s < n; s += 4) {
        four_ints of_high, of_low;
        across((int32_t *)&of_high, high + s);
        across((int32_t *)&of_low, (const sums *)low + s);
        of_low = (four_ints)((four_wrapped)of_low - ((four_wrapped)of_high << 16));
        four_doubles found = 65536 * __builtin_convertvector(of_high, four_doubles) +
                             __builtin_convertvector(of_low, four_doubles);
        memcpy(to + s, &found, sizeof found);
    }
}

/* The piece is the first of its rows, or is added to what the pieces before it gave. */
UNROLLED void tile(double *out, size_t out_step, const char *x, size_t x_step, int n_x,
                   const int16_t *w, size_t w_step, int n_w, int first_ask, int n_ask, int steps,
                   bool is_first) {
    sums high[TILE] = {{0}};
    wrapped low[TILE] = {{0}};
    double found[TILE];
    multiply_piece(high, low, x, x_step, n_x, w, w_step, n_w, first_ask, n_ask, steps,
                   steps * STEP <= REST_FITS);
    total(found, high, low, n_x * n_w);
    UNROLL for (int t = 0; t < n_x; t++) UNROLL for (int r = 0; r < n_w; r++) {
        double *to = out + (size_t)t * out_step + (size_t)r;
        *to = (is_first ? 0 : *to) + found[t * n_w + r];
    }
}

/* All rows of x with n_w rows of w. Tiles of x, if there are enough of them, take turns in asking
 * for w, so that memory has as much to do in each. */
UNROLLED void strip(double *out, size_t out_step, const char *x, size_t x_step, int n_x,
                    const int16_t *w, size_t w_step, int n_w, int steps, bool is_first) {
    int t = 0;
#define TILE_OF(n_rows, first_ask, n_ask)                                                          \
    tile(out + (size_t)t * out_step, out_step, x + (size_t)t * x_step, x_step, n_rows, w, w_step,  \
         n_w, first_ask, n_ask, steps, is_first)
    for (; n_x >= n_w * X_ROWS && t + X_ROWS <= n_x; t += X_ROWS)
        TILE_OF(X_ROWS, t / X_ROWS % n_w, 1);
    for (; t + X_ROWS <= n_x; t += X_ROWS)
        TILE_OF(X_ROWS, 0, n_w);
    for (; X_ROWS > 3 && t + 3 <= n_x; t += 3)
        TILE_OF(3, 0, n_w);
    for (; X_ROWS > 2 && t + 2 <= n_x; t += 2)
        TILE_OF(2, 0, n_w);
    for (; t < n_x; t++)
        TILE_OF(1, 0, n_w);
#undef TILE_OF
}

enum { PIECE_STEPS = ROW_PIECE / STEP, PIECE_BYTES = X_HEAD + PIECE_STEPS * X_STEP };

static inline int steps_of_piece(int steps, int first) {
    return steps - first < PIECE_STEPS ? steps - first : PIECE_STEPS;
}

/* One row of x times n <= 4 rows of w, one after the other. */
UNROLLED void few_of_one(double *out, const char *x, int steps, const int16_t *w, size_t w_step,
                         int n) {
    sums high[4] = {{0}};
    wrapped low[4] = {{0}};
    double found[4];
    UNROLL for (int r = 0; r < n; r++) {
        const char *of_x = x;
        for (int first = 0; first < steps; first += PIECE_STEPS, of_x += PIECE_BYTES) {
            sums h[1];
            wrapped l[1];
            multiply_piece(h, l, of_x, 0, 1, w + (size_t)r * w_step + first * STEP, w_step, 1, 0, 1,
                           steps_of_piece(steps, first), steps * STEP <= REST_FITS);
            high[r] += h[0];
            low[r] += l[0];
        }
    }
    total(found, high, low, n);
    memcpy(out, found, sizeof *found * (size_t)n);
}

/* One row of x is no more work than reading w, which is fastest in the order of memory. */
static void dots_of_one(double *out, const char *x, int steps, const int16_t *w, size_t w_step,
                        int n_w) {
    int r = 0;
    for (; r + 4 <= n_w; r += 4)
        few_of_one(out + r, x, steps, w + (size_t)r * w_step, w_step, 4);
    for (; r < n_w; r++)
        few_of_one(out + r, x, steps, w + (size_t)r * w_step, w_step, 1);
}

/* So many rows of x that their pieces stay in the first cache while w goes by. */
static void dots_of_group(double *out, size_t out_step, const char *from, size_t x_step, int n_x,
                          int steps, const int16_t *w, size_t w_step, int n_w) {
    for (int first = 0; first < steps; first += PIECE_STEPS, from += PIECE_BYTES, w += ROW_PIECE) {
        int n = steps_of_piece(steps, first), r = 0;
        for (; r + W_ROWS <= n_w; r += W_ROWS)
            strip(out + r, out_step, from, x_step, n_x, w + (size_t)r * w_step, w_step, W_ROWS, n,
                  first == 0);
        for (; r < n_w; r++)
            strip(out + r, out_step, from, x_step, n_x, w + (size_t)r * w_step, w_step, 1, n,
                  first == 0);
    }
}

static void dots(double *out, size_t out_step, const struct x_rows *x, int first_x, int n_x,
                 const int16_t *w, size_t w_step, int n_w) {
    const char *from = x->rows + (size_t)first_x * x->row_bytes;
    int steps = n_steps(x->k);
    int group = FIRST_CACHE / (X_HEAD + steps_of_piece(steps, 0) * X_STEP) / 4 * 4;
    if (n_x == 1)
        dots_of_one(out, from, steps, w, w_step, n_w);
    else
        for (int t = 0; t < n_x; t += group)
            dots_of_group(out + (size_t)t * out_step, out_step, from + (size_t)t * x->row_bytes,
                          x->row_bytes, n_x - t < group ? n_x - t : group, steps, w, w_step, n_w);
}

/* ---- weighted sums: always pairs and their high halves ----------------------------------------
 */

static inline lanes load(const int16_t *from) {
    lanes a;
    memcpy(&a, from, sizeof a);
    return a;
}

/* N_LANES of the dimensions of n_x rows. */
UNROLLED void weigh_lanes(float *out, size_t out_step, const int16_t *x, size_t x_step, int n_x,
                          const int16_t *v, size_t v_step, int n) {
    sums high[2 * X_ROWS];
    wrapped low[2 * X_ROWS];
    UNROLL for (int s = 0; s < 2 * n_x; s++) {
        high[s] = (sums){0};
        low[s] = (wrapped){0};
    }
    for (int j = 0; j < n; j += 2) {
        lanes a = load(v + (size_t)j * v_step), b = load(v + (size_t)(j + 1) * v_step);
        lanes both[2] = {zip_first(a, b), zip_second(a, b)};
        UNROLL for (int s = 0; s < 2 * n_x; s++) {
            sums p = multiply(both[s % 2], pair(x + (size_t)(s / 2) * x_step + j));
            low[s] += (wrapped)p;
            high[s] += p >> 16;
        }
    }
    UNROLL for (int s = 0; s < 2 * n_x; s++) {
        float *to = out + (size_t)(s / 2) * out_step + s % 2 * 4;
        wrapped rest = low[s] - ((wrapped)high[s] << 16); /* of 128 low halves */
        sums found = high[s] * 256 + (sums)(rest >> 8);   /* 256 times that fits */
        for (int i = 0; i < N_LANES / 2; i++)
            to[i / 4 * 8 + i % 4] = (float)found[i] * 256;
    }
}

static void weighted(float *out, size_t out_step, const int16_t *x, size_t x_step, int n_x, int n,
                     const int16_t *v, size_t v_step, int dim) {
    int t = 0;
    for (; t + X_ROWS <= n_x; t += X_ROWS, x += X_ROWS * x_step, out += X_ROWS * out_step)
        for (int d = 0; d < dim; d += N_LANES)
            weigh_lanes(out + d, out_step, x, x_step, X_ROWS, v + d, v_step, n);
    for (; t < n_x; t++, x += x_step, out += out_step)
        for (int d = 0; d < dim; d += N_LANES)
            weigh_lanes(out + d, out_step, x, x_step, 1, v + d, v_step, n);
}

#define KERNELS(name, dots)                                                                        \
    { name, row_bytes, put_row, dots, weighted }

#endif
