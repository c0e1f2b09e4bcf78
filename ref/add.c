/* add: the residual stream; add_bias: the bias of a linear layer. */
#include "ref/ref.h"

void ref_add(struct device *dev, float *y, /* [count] */
             const float *x,               /* [count] */
             const float *z,               /* [count] */
             size_t count) {
    (void)dev;
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] + z[i];
}

void ref_add_bias(struct device *dev, float *y, /* [n_tokens, n] */
                  const float *bias,            /* [n] */
                  int n_tokens, int n) {
    (void)dev;
    for (int t = 0; t < n_tokens; t++)
        for (int i = 0; i < n; i++)
            y[(size_t)t * (size_t)n + (size_t)i] += bias[i];
}
