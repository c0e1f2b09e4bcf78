/* rope: rotates the pairs (d, d + head_dim/2) of each head by the token's angle. norm_rope: the
 * same for queries and keys, each head normalised before; keys and values may be stored, too. */
#include "ref/ref.h"

struct call {
    float *x;
    const int32_t *positions;
    const float *cos_table, *sin_table;
    int n_heads, head_dim;
};

static void rotate(void *context, int first, int end, int worker) {
    (void)worker;
    const struct call *op = context;
    int half = op->head_dim / 2;
    for (int row = first; row < end; row++) {
        float *x0 = op->x + (size_t)row * (size_t)op->head_dim, *x1 = x0 + half;
        size_t angles = (size_t)op->positions[row / op->n_heads] * (size_t)half;
        const float *c = op->cos_table + angles, *s = op->sin_table + angles;
        for (int d = 0; d < half; d++) {
            float a = x0[d], b = x1[d];
            x0[d] = a * c[d] - b * s[d];
            x1[d] = b * c[d] + a * s[d];
        }
    }
}

void ref_rope(struct device *dev, float *x, /* [n_tokens, n_heads, head_dim] */
              const int32_t *positions,     /* [n_tokens] */
              const float *cos_table,       /* [n_positions, head_dim / 2] */
              const float *sin_table,       /* [n_positions, head_dim / 2] */
              int n_tokens, int n_heads, int head_dim) {
    struct call op = {x, positions, cos_table, sin_table, n_heads, head_dim};
    ref_parallel_rows(dev, n_tokens * n_heads, head_dim, rotate, &op);
}

void ref_norm_rope(struct device *dev, const struct head_rows *q, /* host */
                   const struct head_rows *k,                     /* host */
                   const float *v, const struct kv_target *to, /* host; NULL: nothing is stored */
                   const int32_t *positions,                   /* [n_tokens] */
                   const float *cos_table,                     /* [n_positions, head_dim/2] */
                   const float *sin_table,                     /* [n_positions, head_dim/2] */
                   int n_tokens, int head_dim, double eps) {
    for (int i = 0; i < 2; i++) {
        const struct head_rows *rows = i ? k : q;
        if (rows->gain)
            ref_rmsnorm(dev, rows->x, rows->x, rows->gain, n_tokens * rows->n_heads, head_dim,
                        rows->n_heads, eps, rows->site);
        ref_rope(dev, rows->x, positions, cos_table, sin_table, n_tokens, rows->n_heads, head_dim);
    }
    if (to)
        ref_kv_append(dev, &to->kv, k->x, v, to->slots, n_tokens, to->page_size, k->n_heads,
                      head_dim, to->site_k, to->site_v);
}
