/*
 * pass_arrays.h - the host's arrays of a pass (pass.c): what a batch points to, and what is drawn.
 */
#ifndef SAMEBITS_PASS_ARRAYS_H
#define SAMEBITS_PASS_ARRAYS_H

#include "model/forward.h"

struct pass_arrays {
    int32_t *token_ids, *positions; /* [n_tokens]; the other integers lie behind token_ids */
    int32_t *qo_indptr;             /* [n + 1] */
    int32_t *logit_rows, *drawn;    /* [n_draws] */
    int *kv_lens;                   /* [n] positions that are read of each sequence */
    struct kv_cache **caches;       /* [n] */
    struct sampling *how;           /* [n_draws] */
    const float *logits;            /* [n_draws, vocab_size], of forward_logits; NULL: ids only */
    size_t *first_draws;            /* [n] of each part, behind `caches` */
    bool spread;                    /* each token is a sequence of the batch */
    struct page_table table;        /* with pass_arrays_add_page_table only */
    struct paged_batch paged;       /* the same for the ops: views of the table */
};

/*
 * The arrays of a pass of n_tokens rows and at most n sequences that draws n_draws tokens.
 * Returns 0, or -1 with err set: no memory. pass_arrays_free gives back what there is, after a
 * failure, too.
 */
int pass_arrays_get(struct pass_arrays *a, size_t n_tokens, size_t n, size_t n_draws,
                    struct error *err);
void pass_arrays_free(struct pass_arrays *a);

/* One attention for all sequences of the batch reads through the page table of their caches, of
 * kv_lens positions each: makes it, for batch->pages. Returns 0, or -1 with err set: no memory. */
int pass_arrays_add_page_table(struct pass_arrays *a, struct batch *batch, struct error *err);

#endif
