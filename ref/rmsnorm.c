/* rmsnorm: the sum of squares is an exact integer; the root is taken in double and rounded once.
 * add_rmsnorm: the same behind the residual add, and snapped. */
#include "ref/ref.h"

void ref_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                 const float *x,               /* [n_rows, n_cols] */
                 const float *gain,            /* [n_cols] */
                 int n_rows, int n_cols, int rows_per_token, double eps, int site) {
    int16_t *q = ref_scratch(dev, SCRATCH_X, sizeof *q * (size_t)n_cols, "rmsnorm");
    if (!q)
        return;
    for (int row = 0; row < n_rows; row++) {
        const float *from = x + (size_t)row * (size_t)n_cols;
        float *to = y + (size_t)row * (size_t)n_cols;
        int e = ref_snap_or_fault(dev, q, from, n_cols, site, row / rows_per_token);
        int64_t sum = 0;
        for (int i = 0; i < n_cols; i++)
            sum += (int32_t)q[i] * q[i];
        float r = num_rms_factor(sum, e, n_cols, eps);
        for (int i = 0; i < n_cols; i++)
            to[i] = from[i] * r * gain[i];
    }
}

void ref_add_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                     struct bfp_rows snapped,      /* [n_rows, n_cols] */
                     float *x,                     /* [n_rows, n_cols] */
                     const float *branch,          /* [n_rows, n_cols] */
                     const float *gain,            /* [n_cols] */
                     int n_rows, int n_cols, double eps, int site_x, int site_y) {
    ref_add(dev, x, x, branch, (size_t)n_rows * (size_t)n_cols);
    ref_rmsnorm(dev, y, x, gain, n_rows, n_cols, 1, eps, site_x);
    ref_snap_rows(dev, snapped, y, n_rows, n_cols, site_y);
}
