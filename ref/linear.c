/*
 * linear: y = x W^T on BFP16 operands. Each output is the correctly rounded value of an exact
 * integer dot product, so OpenBLAS may sum in any order, on any number of threads.
 */
#include "ref/ref.h"

#include <cblas.h>

enum { BLOCK_ROWS = 256 }; /* bounds the scratch memory of long prompts; large enough for dgemm */

static void linear_block(float *y, double *x, double *sums, struct bfp_rows rows,
                         const struct matrix *w, int n_rows) {
    int n = w->n, k = w->k;
    for (size_t i = 0; i < (size_t)n_rows * (size_t)k; i++)
        x[i] = rows.mantissas[i];
    if (n_rows == 1)
        cblas_dgemv(CblasRowMajor, CblasNoTrans, n, k, 1, w->mantissas, k, x, 1, 0, sums, 1);
    else
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n_rows, n, k, 1, x, k, w->mantissas, k,
                    0, sums, n);
    for (int row = 0; row < n_rows; row++) {
        size_t at = (size_t)row * (size_t)n;
        for (int i = 0; i < n; i++)
            y[at + (size_t)i] =
                num_dot_to_float(sums[at + (size_t)i], rows.exponents[row] + w->exponents[i] - 30);
    }
}

void ref_linear(struct device *dev, float *y, /* [n_tokens, w->n] */
                struct bfp_rows x,            /* [n_tokens, w->k] */
                const struct matrix *w, int n_tokens) {
    size_t most = (size_t)(n_tokens < BLOCK_ROWS ? n_tokens : BLOCK_ROWS);
    double *x_wide = ref_scratch(dev, SCRATCH_X, sizeof *x_wide * most * (size_t)w->k, "linear");
    double *sums = ref_scratch(dev, SCRATCH_Y, sizeof *sums * most * (size_t)w->n, "linear");
    if (!x_wide || !sums)
        return;
    for (int first = 0; first < n_tokens; first += BLOCK_ROWS) {
        int n_rows = n_tokens - first < BLOCK_ROWS ? n_tokens - first : BLOCK_ROWS;
        struct bfp_rows block = {x.mantissas + (size_t)first * (size_t)w->k, x.exponents + first};
        linear_block(y + (size_t)first * (size_t)w->n, x_wide, sums, block, w, n_rows);
    }
}
