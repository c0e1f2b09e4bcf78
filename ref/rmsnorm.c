/* rmsnorm: the sum of squares is an exact integer; the root is taken in double and rounded once.
 * add_rmsnorm: the same behind the residual add, and snapped. */
#include "ref/ref.h"

struct call {
    struct device *dev;
    float *y;
    const float *x, *gain;
    int16_t *q; /* of each thread: a row */
    int n_cols, rows_per_token, site;
    double eps;
};

static void normalise(void *context, int first, int end, int worker) {
    const struct call *c = context;
    int n = c->n_cols;
    int16_t *q = c->q + (size_t)worker * (size_t)n;
    for (int row = first; row < end; row++) {
        const float *from = c->x + (size_t)row * (size_t)n;
        float *to = c->y + (size_t)row * (size_t)n;
        int e = ref_snap_or_fault(c->dev, q, from, n, c->site, row / c->rows_per_token);
        int64_t sum = 0;
        for (int i = 0; i < n; i++)
            sum += (int32_t)q[i] * q[i];
        float r = num_rms_factor(sum, e, n, c->eps);
        for (int i = 0; i < n; i++)
            to[i] = from[i] * r * c->gain[i];
    }
}

void ref_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                 const float *x,               /* [n_rows, n_cols] */
                 const float *gain,            /* [n_cols] */
                 int n_rows, int n_cols, int rows_per_token, double eps, int site) {
    size_t bytes = sizeof(int16_t) * (size_t)n_cols * (size_t)ref_n_threads(dev);
    struct call c = {
        dev,  y,  x, gain, ref_scratch(dev, SCRATCH_X, bytes, "rmsnorm"), n_cols, rows_per_token,
        site, eps};
    if (c.q)
        ref_parallel_rows(dev, n_rows, n_cols, normalise, &c);
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
