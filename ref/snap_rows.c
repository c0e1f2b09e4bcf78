/* snap_rows: float32 rows to BFP16, the step that makes every later sum exact. */
#include "ref/ref.h"

int8_t ref_snap_or_fault(struct device *dev, int16_t *q, const float *x, int n, int site,
                         int token) {
    int e = num_snap_row(q, x, n);
    if (e <= BFP_MAX_EXPONENT)
        return (int8_t)e;
    ref_fault(dev, site, token);
    return BFP_MIN_EXPONENT;
}

struct call {
    struct device *dev;
    struct bfp_rows y;
    const float *x;
    int n_cols, site;
};

static void snap(void *context, int first, int end, int worker) {
    (void)worker;
    const struct call *c = context;
    for (int row = first; row < end; row++) {
        size_t at = (size_t)row * (size_t)c->n_cols;
        c->y.exponents[row] =
            ref_snap_or_fault(c->dev, c->y.mantissas + at, c->x + at, c->n_cols, c->site, row);
    }
}

void ref_snap_rows(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                   const float *x,                        /* [n_rows, n_cols] */
                   int n_rows, int n_cols, int site) {
    struct call c = {dev, y, x, n_cols, site};
    ref_parallel_rows(dev, n_rows, n_cols, snap, &c);
}
