/* attend: the same over a cache of any layout and type, with any masks and scores. */
#include "ref/attention.h"

void ref_attend(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                const float *q,               /* [n_tokens, n_heads, head_dim] */
                const struct kv_views *kv, const struct attention_plan *p,
                const struct attention_variant *variant, int site) {
    struct kv_views read = *kv;
    if (variant->m) /* a state is without the scale: finish_states has it */
        read.v.scale = 1;
    ref_attend_all(&(struct attention_call){.dev = dev,
                                            .op = "attention",
                                            .y = y,
                                            .q = q,
                                            .kv = read,
                                            .variant = *variant,
                                            .shape = p->shape,
                                            .page_size = p->page_size,
                                            .site = site,
                                            .n_sequences = p->n_sequences,
                                            .sequences = p->sequences,
                                            .cascade = &p->cascade});
}
