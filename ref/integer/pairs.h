/* pairs.h - steps of one vector: its pairs are summed modulo 2^32, and their high halves. What is
 * left is the low halves: of the longest row, 32,768 pairs, they are below 2^31. */
#ifndef SAMEBITS_REF_INTEGER_PAIRS_H
#define SAMEBITS_REF_INTEGER_PAIRS_H

#include "ref/integer/integer.h"

enum { STEP = N_LANES, X_HEAD = 0, X_STEP = 2 * STEP, REST_FITS = 1 << 16 };

struct factor {
    lanes all;
};

static inline struct factor w_factor(const int16_t *w) {
    struct factor f;
    memcpy(&f.all, w, sizeof f.all);
    return f;
}

static inline struct factor x_factor(const char *x) {
    struct factor f;
    memcpy(&f.all, x, sizeof f.all);
    return f;
}

static inline sums x_head(const char *x) {
    (void)x;
    return (sums){0};
}

static inline void multiply_add(wrapped *low, sums *high, struct factor w, struct factor x) {
    sums p = multiply(w.all, x.all);
    *low += (wrapped)p;
    *high += p >> 16;
}

static void put_row(const struct x_rows *to, int r, const int16_t *x) {
    char *row = to->rows + (size_t)r * to->row_bytes;
    size_t bytes = sizeof *x * (size_t)to->k;
    memcpy(row, x, bytes);
    memset(row + bytes, 0, to->row_bytes - bytes);
}

#endif
