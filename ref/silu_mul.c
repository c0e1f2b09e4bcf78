/* silu_mul: the gated activation of SwiGLU. silu_mul_snap: snapped, for the product behind it. */
#include "ref/ref.h"

enum { SHARE = 2048 }; /* elements of a thread's turn */

struct silu_mul {
    float *y;
    const float *gate, *up;
    size_t count;
};

static void silu_mul_share(void *context, int share, int worker) {
    (void)worker;
    const struct silu_mul *op = context;
    size_t first = (size_t)share * SHARE;
    size_t end = first + SHARE < op->count ? first + SHARE : op->count;
    for (size_t i = first; i < end; i++)
        op->y[i] = num_silu(op->gate[i]) * op->up[i];
}

void ref_silu_mul(struct device *dev, float *y, /* [count] */
                  const float *gate,            /* [count] */
                  const float *up,              /* [count] */
                  size_t count) {
    struct silu_mul op = {y, gate, up, count};
    ref_parallel(dev, (int)((count + SHARE - 1) / SHARE), silu_mul_share, &op);
}

void ref_silu_mul_snap(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                       const float *gate,                     /* [n_rows, n_cols] */
                       const float *up,                       /* [n_rows, n_cols] */
                       int n_rows, int n_cols, int site) {
    size_t count = (size_t)n_rows * (size_t)n_cols;
    float *gated = ref_scratch(dev, SCRATCH_X, sizeof *gated * count, "silu_mul_snap");
    if (!gated)
        return;
    ref_silu_mul(dev, gated, gate, up, count);
    ref_snap_rows(dev, y, gated, n_rows, n_cols, site);
}
