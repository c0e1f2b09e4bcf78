/* silu_mul: the gated activation of SwiGLU. */
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
