/* rope: rotates the pairs (d, d + head_dim/2) of each head by the token's angle. norm_rope: the
 * same for queries and keys, each head normalised before. */
#include "ref/ref.h"

void ref_rope(struct device *dev, float *x, /* [n_tokens, n_heads, head_dim] */
              const int32_t *positions,     /* [n_tokens] */
              const float *cos_table,       /* [n_positions, head_dim / 2] */
              const float *sin_table,       /* [n_positions, head_dim / 2] */
              int n_tokens, int n_heads, int head_dim) {
    (void)dev;
    int half = head_dim / 2;
    for (int row = 0; row < n_tokens * n_heads; row++) {
        float *x0 = x + (size_t)row * (size_t)head_dim, *x1 = x0 + half;
        const float *c = cos_table + (size_t)positions[row / n_heads] * (size_t)half;
        const float *s = sin_table + (size_t)positions[row / n_heads] * (size_t)half;
        for (int d = 0; d < half; d++) {
            float a = x0[d], b = x1[d];
            x0[d] = a * c[d] - b * s[d];
            x1[d] = b * c[d] + a * s[d];
        }
    }
}

void ref_norm_rope(struct device *dev, const struct head_rows *q, /* host */
                   const struct head_rows *k,                     /* host */
                   const int32_t *positions,                      /* [n_tokens] */
                   const float *cos_table,                        /* [n_positions, head_dim/2] */
                   const float *sin_table,                        /* [n_positions, head_dim/2] */
                   int n_tokens, int head_dim, double eps) {
    const struct head_rows *const both[2] = {q, k};
    for (int i = 0; i < 2; i++) {
        const struct head_rows *rows = both[i];
        if (rows->gain)
            ref_rmsnorm(dev, rows->x, rows->x, rows->gain, n_tokens * rows->n_heads, head_dim,
                        rows->n_heads, eps, rows->site);
        ref_rope(dev, rows->x, positions, cos_table, sin_table, n_tokens, rows->n_heads, head_dim);
    }
}
