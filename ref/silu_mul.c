/* silu_mul: the gated activation of SwiGLU. */
#include "ref/ref.h"

void ref_silu_mul(struct device *dev, float *y, /* [count] */
                  const float *gate,            /* [count] */
                  const float *up,              /* [count] */
                  size_t count) {
    (void)dev;
    for (size_t i = 0; i < count; i++)
        y[i] = num_silu(gate[i]) * up[i];
}
