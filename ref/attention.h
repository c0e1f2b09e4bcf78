/* attention.h - what the reference's attention over contiguous and over paged caches share. */
#ifndef SAMEBITS_REF_ATTENTION_H
#define SAMEBITS_REF_ATTENTION_H

#include "model/attention/variant.h"
#include "model/attention/cascade.h"
#include "model/attention/kv_view.h"
#include "ref/ref.h"

/* The queries and the cache of one sequence. Its queries are the last of its kv_len positions. */
struct attention_sequence {
    int first_token, n_tokens; /* rows of q and y */
    int kv_len;
    const int32_t *pages; /* [ceil(kv_len / page_size)] where its positions lie; NULL: all in page
                             0, which has any size */
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
    const struct cascade *cascade;              /* NULL: nothing is shared */
};

/* Attention of all sequences, shared out among the device's threads. */
void ref_attend_all(const struct attention_call *call);

struct attention_plan {
    struct attention_shape shape;
    int page_size, n_sequences;
    struct attention_sequence *sequences; /* [n_sequences]; their pages are in `pages` */
    int32_t *pages;
    struct cascade cascade;
};

#endif
