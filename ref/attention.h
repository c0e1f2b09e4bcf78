/* attention.h - what the reference's attention over contiguous and over paged caches share. */
#ifndef SAMEBITS_REF_ATTENTION_H
#define SAMEBITS_REF_ATTENTION_H

#include "model/attention_variant.h"
#include "model/kv_view.h"
#include "ref/ref.h"

/* The queries and the cache of one sequence. Its queries are the last of its kv_len positions. */
struct attention_sequence {
    int first_token, n_tokens; /* rows of q and y */
    int kv_len;
    const int32_t *pages; /* [ceil(kv_len / page_size)] where its positions lie; NULL: all in page
                             0, which has any size */
    int number;           /* of the sequence: for its mask */
};

struct attention_call {
    struct device *dev;
    const char *op;
    float *y;       /* [n_tokens, n_heads, head_dim] */
    const float *q; /* [n_tokens, n_heads, head_dim] */
    struct kv_views kv;
    struct attention_variant variant;
    struct attention_shape shape;
    int page_size, site;
    int n_sequences;
    const struct attention_sequence *sequences; /* [n_sequences] */
};

/* Attention of all sequences, shared out among the device's threads. */
void ref_attend_all(const struct attention_call *call);

/* The engine's own caches: NHD, keys and values apart. */
struct kv_views ref_views_of(const struct kv_layer *kv, int page_size,
                             const struct attention_shape *shape);

struct attention_plan {
    struct attention_shape shape;
    int page_size, n_sequences;
    struct attention_sequence *sequences; /* [n_sequences]; their pages are in `pages` */
    int32_t *pages;
};

#endif
