/* linear.h - what the two ways of the reference's linear share. */
#ifndef SAMEBITS_REF_LINEAR_H
#define SAMEBITS_REF_LINEAR_H

#include "ref/ref.h"

/* Rows that are multiplied together. */
struct linear_block {
    float *y;     /* [n_rows, w->n] */
    double *x;    /* the mantissas, widened: [n_rows, w->k] for OpenBLAS, panels for few rows */
    double *sums; /* [n_rows, w->n]; not used for few rows */
    const int16_t *x_mantissas; /* [n_rows, w->k] */
    const int8_t *x_exponents;  /* [n_rows] */
    const struct matrix *w;
    int n_rows, n_shares;
};

/* Bytes that the inputs of n_rows rows take as panels, aligned like alloc's memory. */
size_t linear_few_rows_bytes(int n_rows, int k);

/* Widens mantissas [n_rows, k] into panels. Rows that a panel lacks are zeros. */
void linear_few_rows_widen(double *x, const int16_t *mantissas, int n_rows, int k);

/* The outputs first ... end - 1 of all rows of the block. */
void linear_few_rows(const struct linear_block *block, int first, int end);

#endif
