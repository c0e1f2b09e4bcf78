/*
 * shared_rows: snap_rows and linear in halves, for rows of which each rank has some columns.
 * Between the halves of snap_rows ranks find the largest number of the whole row; between those of
 * linear they add their integers (model/forward_parallel.h).
 */
#include "ref/ref.h"

void ref_row_largest(struct device *dev, uint32_t *largest, /* [n_rows] */
                     const float *x,                        /* [n_rows, n_cols] */
                     int n_rows, int n_cols) {
    (void)dev;
    for (int row = 0; row < n_rows; row++, x += n_cols) {
        largest[row] = 0;
        for (int i = 0; i < n_cols; i++) {
            uint32_t m = num_magnitude(x[i]);
            largest[row] = m > largest[row] ? m : largest[row];
        }
    }
}

void ref_snap_part(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                   const float *x,                        /* [n_rows, n_cols] */
                   const uint32_t *largest,               /* [n_rows] */
                   int n_rows, int n_cols, int site) {
    for (int row = 0; row < n_rows; row++) {
        int16_t *q = y.mantissas + (size_t)row * (size_t)n_cols;
        const float *from = x + (size_t)row * (size_t)n_cols;
        int e = num_row_exponent(largest[row]);
        bool bad = e > BFP_MAX_EXPONENT;
        if (bad)
            ref_fault(dev, site, row);
        y.exponents[row] = (int8_t)(bad ? BFP_MIN_EXPONENT : e);
        float scale = num_pow2f(15 - y.exponents[row]);
        for (int i = 0; i < n_cols; i++)
            q[i] = bad ? 0 : num_mantissa(from[i], scale);
    }
}

/* Version 1: a plain sum. */
static void sums_1(int64_t *sums, struct bfp_rows x, const struct matrix *w, int n_tokens) {
    size_t k = (size_t)w->k;
    for (int t = 0; t < n_tokens; t++)
        for (int i = 0; i < w->n; i++, sums++) {
            const int16_t *a = x.mantissas + (size_t)t * k;
            const int16_t *b = (const int16_t *)w->mantissas + (size_t)i * k;
            *sums = 0;
            for (size_t j = 0; j < k; j++)
                *sums += (int32_t)a[j] * b[j];
        }
}

void ref_linear_sums(struct device *dev, int64_t *sums, /* [n_tokens, w->n] */
                     struct bfp_rows x,                 /* [n_tokens, w->k] */
                     const struct matrix *w, int n_tokens) {
    if (((struct ref_device *)dev)->linear_version == 1)
        sums_1(sums, x, w, n_tokens);
    else
        integer_linear(dev, &(struct linear_part){NULL, w}, 1, sums, x, n_tokens);
}

void ref_round_sums(struct device *dev, float *y, /* [n_tokens, n] */
                    const int64_t *sums,          /* [n_tokens, n] */
                    const int8_t *x_exponents,    /* [n_tokens] */
                    const int8_t *w_exponents,    /* [n] */
                    int n_tokens, int n) {
    (void)dev;
    for (int t = 0; t < n_tokens; t++)
        for (int i = 0; i < n; i++, y++, sums++)
            *y = num_dot_to_float((double)*sums, x_exponents[t] + w_exponents[i] - 30);
}
