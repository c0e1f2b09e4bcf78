/* embed: rows of the embedding matrix, back in float32; take_rows: some rows of many. */
#include "ref/ref.h"

void ref_embed(struct device *dev, float *y, /* [n_tokens, w->k] */
               const int32_t *token_ids,     /* [n_tokens] */
               const struct matrix *w, int n_tokens) {
    (void)dev;
    for (int t = 0; t < n_tokens; t++) {
        const int16_t *q = (const int16_t *)w->mantissas + (size_t)token_ids[t] * (size_t)w->k;
        double unit = num_pow2(w->exponents[token_ids[t]] - 15);
        for (int i = 0; i < w->k; i++)
            y[(size_t)t * (size_t)w->k + (size_t)i] = (float)(q[i] * unit);
    }
}

void ref_take_rows(struct device *dev, float *y, /* [n_rows, n_cols] */
                   const float *x,               /* [any, n_cols] */
                   const int32_t *rows,          /* [n_rows] */
                   int n_rows, int n_cols) {
    (void)dev;
    for (int i = 0; i < n_rows; i++)
        memcpy(y + (size_t)i * (size_t)n_cols, x + (size_t)rows[i] * (size_t)n_cols,
               sizeof *y * (size_t)n_cols);
}
