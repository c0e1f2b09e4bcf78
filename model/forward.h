/*
 * forward.h - one pass of the model over a batch of tokens: ids in, logits out.
 *
 * The batch is all that the scheduler says to the model. It is ragged: the tokens of sequence i
 * are rows qo_indptr[i] ... qo_indptr[i+1]-1, in order of position, the newest tokens of that
 * sequence. What earlier passes computed for a sequence is in its cache.
 *
 * A sequence may begin with rows of padding, position -1 (phase 2): they are computed like the
 * others, but padding is no position, so nothing of them is stored or seen, and their attention is
 * zero.
 *
 * The layers are those of Llama (Touvron et al., 2023), with Qwen2's biases and Qwen3's q/k norms.
 */
#ifndef SAMEBITS_FORWARD_H
#define SAMEBITS_FORWARD_H

#include "model/error.h"
#include "model/kv_cache.h"
#include "model/model.h"

#include <stdbool.h>

struct batch {
    int n_tokens, n_sequences, n_logits;
    const int32_t *token_ids;  /* host [n_tokens], each in the vocabulary */
    const int32_t *positions;  /* host [n_tokens], consecutive within a sequence; -1: padding */
    const int32_t *qo_indptr;  /* host [n_sequences + 1] */
    const int32_t *logit_rows; /* host [n_logits], strictly ascending: whose logits are wanted */
    struct kv_cache **caches;  /* host [n_sequences], with room for the positions; NULL: nothing is
                                  kept, and each sequence begins at 0. All are paged, or none */
    const struct paged_batch *pages; /* their page table (phase 8); NULL: one after the other */
    bool hashed;                     /* forward_finish begins to hash the logits (forward_hash.h) */
    bool steps; /* with pages: each sequence has one row, of which no other one reads the key */
};

/* The tensors of a pass, in the order in which they are computed. */
enum tensor_id {
    TENSOR_EMBEDDING,
    TENSOR_ATTENTION_NORM,
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_Q_ROTATED, /* after the q/k norm and RoPE */
    TENSOR_K_ROTATED,
    TENSOR_ATTENTION,
    TENSOR_O,
    TENSOR_MIDDLE, /* the residual stream between attention and MLP */
    TENSOR_FFN_NORM,
    TENSOR_GATE,
    TENSOR_UP,
    TENSOR_ACTIVATION,
    TENSOR_DOWN,
    TENSOR_RESIDUAL, /* the residual stream after the layer */
    TENSOR_FINAL_NORM,
    TENSOR_LOGITS,
    N_TENSORS
};

/* "attention output" and the like: for messages. Static. */
const char *tensor_name(enum tensor_id id);

/* Sees every tensor while it is fresh: device memory x[n_rows, n_cols], valid during the call. */
struct probe {
    void (*see)(void *context, enum tensor_id id, int layer, const float *x, int n_rows,
                int n_cols);
    void *context;
};

/* Device memory of a pass; grows to the largest batch seen. */
struct workspace;

/* Returns an empty workspace for model, or NULL with err set. */
struct workspace *workspace_new(const struct model *model, struct error *err);

/* NULL is fine. */
void workspace_free(struct workspace *ws);

/* Whether passes that only decode may run as one op, or be replayed from recordings
 * (decode_graph.h), on devices that have them: yes at first. Changes no bit. */
void workspace_use_graphs(struct workspace *ws, bool use);

/*
 * Runs the batch. Returns the logits, device memory [n_logits, vocab_size] that stays valid until
 * the next pass (for n_logits = 0 a pointer to nothing), or NULL with err set: no memory, or
 * positions beyond the model's context. probe may be NULL. The device may still be working when
 * the call returns: forward_finish waits, and is what reports a NaN.
 */
float *forward(struct model *model, struct workspace *ws, const struct batch *batch,
               const struct probe *probe, struct error *err);

/*
 * The n rows of logits of the pass that forward has begun, for the host until the next pass: on a
 * device whose memory is the host's the logits themselves. Whether the copy has failed is for
 * forward_finish to tell. NULL with err set: no memory, or a rank that did not come.
 */
const float *forward_logits(struct workspace *ws, int n, struct error *err);

/*
 * Draws the next token of each row of logits: how [n_logits] (host), token_ids [n_logits] (host).
 * Waits for the device. Returns 0, or -1 with err set: the device failed, or a NaN, an infinity or
 * a value too large for BFP16 appeared, with tensor, layer, sequence and position.
 */
int forward_finish(struct model *model, struct workspace *ws, const struct batch *batch,
                   const struct sampling *how, int32_t *token_ids, struct error *err);

/* Sets err to a sentence about a fault: tensor, layer, place in the text. Returns -1 (fault.c). */
int batch_fault(const struct model *model, const struct batch *batch, struct fault fault,
                struct error *err);

#endif
