/* kv_gather: copies the keys and values of a sequence out of the slots of a pool, into one piece.
 */
#include "ref/ref.h"

void ref_kv_gather(struct device *dev, const struct kv_layer *to, const struct kv_layer *from,
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int n_kv_heads, int head_dim) {
    (void)dev;
    size_t rows = (size_t)n_kv_heads, row_elements = rows * (size_t)head_dim;
    for (int t = 0; t < n_tokens; t++) {
        size_t i = (size_t)t, slot = (size_t)slots[t];
        memcpy(to->k + i * row_elements, from->k + slot * row_elements,
               sizeof *to->k * row_elements);
        memcpy(to->v + i * row_elements, from->v + slot * row_elements,
               sizeof *to->v * row_elements);
        memcpy(to->k_exponents + i * rows, from->k_exponents + slot * rows, rows);
        memcpy(to->v_exponents + i * rows, from->v_exponents + slot * rows, rows);
    }
}
