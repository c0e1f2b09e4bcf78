/* attention: one sequence over its contiguous cache. */
#include "ref/attention.h"

void ref_attention(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                   const float *q,               /* [n_tokens, n_heads, head_dim] */
                   const struct kv_layer *kv, int n_tokens, int kv_len,
                   const struct attention_shape *shape, int site) {
    struct attention_sequence sequence = {.n_tokens = n_tokens, .kv_len = kv_len};
    ref_attend_all(&(struct attention_call){.dev = dev,
                                            .op = "attention",
                                            .y = y,
                                            .q = q,
                                            .kv = kv_layer_views(kv, 0, shape),
                                            .variant = attention_variant_causal(),
                                            .shape = *shape,
                                            .site = site,
                                            .n_sequences = 1,
                                            .sequences = &sequence});
}
