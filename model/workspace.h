/*
 * workspace.h - what a forward pass keeps in device memory beside weights and cache: for forward.c
 * and decode_graph.c alone. It grows to what a batch needs and stays.
 */
#ifndef SAMEBITS_WORKSPACE_H
#define SAMEBITS_WORKSPACE_H

#include "model/attention_plans.h"
#include "model/decode_graph.h"
#include "model/forward.h"

/* The buffers of a pass. Rows are tokens unless a comment says otherwise. */
struct workspace {
    const struct model *model;
    int max_tokens, max_logits;
    int32_t *drawn; /* [max_drawn] the next tokens. In memory that the host sees, as hashes */
    unsigned char *hashes; /* [max_hashes, SHA256_BYTES] of the logits (forward_hash.h) */
    int max_drawn, max_hashes;
    bool has_greedy; /* the pass has left the greedy tokens in `drawn` */
    int64_t *slots;  /* and behind as many of these as the batch has, in the same memory: */
    int32_t *positions, *token_ids, *logit_rows;
    float *x;             /* [hidden] the residual stream */
    float *normed;        /* [hidden] */
    float *q, *attention; /* [n_heads * head_dim] */
    float *k, *v;         /* [n_kv_heads * head_dim] */
    float *gate, *up;     /* [ffn] */
    float *branch;        /* [hidden] what a branch adds to the residual stream */
    float *logits;        /* [n_logits, vocab_size] */
    float *seen;          /* [max_seen, vocab_size] the host's copy (forward_logits) */
    int max_seen;
    struct bfp_rows snapped;  /* [widest input of a linear layer] */
    uint32_t *largest;        /* of rows that ranks share (forward_parallel.h), */
    int64_t *sums;            /* [hidden] the integers of the branch, */
    float *my_logits;         /* [n_logits, this rank's words and a row of zeros] */
    struct kv_layer uncached; /* keys and values of one layer when there is no cache */
    /* Paged caches: the slots of all positions of all sequences, one after the other, and the keys
     * and values of one sequence and layer gathered from them. */
    int64_t *paged_slots;
    struct kv_layer gathered;
    int max_paged_slots, max_gathered;
    struct attention_plans plans;
    struct decode_graphs *graphs; /* NULL: none yet */
    bool no_graphs;
};

/* Room for the batch, for keys and values when it has no cache, and the angles of its positions.
 * Returns 0, or -1 with err set: not enough memory; then it is empty. */
int workspace_reserve_batch(struct workspace *ws, struct model *model, const struct batch *batch,
                            struct error *err);

/* Room for n_slots of all sequences of a paged cache, and for the longest one gathered. They grow
 * by half, because they grow by a token a step. Returns as above. */
int workspace_reserve_gathered(struct workspace *ws, int n_slots, int longest, struct error *err);

#endif
