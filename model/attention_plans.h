/*
 * attention_plans.h - what attention does in each layer of a pass: which positions a query sees,
 * and the plans (ops.h) for that. Some layers of Mistral and Qwen2 have a sliding window: a query
 * sees itself and a number of positions before it (Beltagy et al., "Longformer", 2020; Jiang et
 * al., "Mistral 7B", 2023).
 *
 * With a page table one plan is for all sequences; layers with and without a window have one each.
 * Without, the op `attention` sees everything before a query, so layers with a window go to attend,
 * which takes a plan for each sequence: its contiguous cache is a page table of one page.
 */
#ifndef SAMEBITS_ATTENTION_PLANS_H
#define SAMEBITS_ATTENTION_PLANS_H

#include "model/forward.h"

enum { N_PASS_FORMS = N_PLAN_FORMS * N_PLAN_FORMS };

/* Kept from pass to pass. Begins as zeros. */
struct attention_plans {
    struct attention_plan *together[2]; /* [0]: of layers without a window, [1]: with one; NULL: no
                                           layer needed it so far */
    struct attention_plan **each;       /* [n_each] of one sequence, for layers with a window */
    int n_each;
    struct context_plan *context; /* in place of both, of ranks that share positions */
};

/* Sizes and scale of the model's attention, over a cache of bfp16. */
struct attention_shape attention_shape_of(const struct model_config *c);

/* Positions that sequence i of the batch has after the pass. */
int batch_kv_len(const struct batch *batch, int i);

/* What a query of the layer sees: causal, and the window if the layer has one. */
struct attention_variant attention_variant_of(const struct model_config *c, int layer);

/* Makes all plans that a pass over the batch needs. Returns 0, or -1 with err set: what
 * attention_plan refuses, or no memory. */
int attention_plans_make(struct attention_plans *p, const struct model *model,
                         const struct batch *batch, struct error *err);

/* What a recorded pass with these plans depends on: attention_plan_form, of both. 0 ...
 * N_PASS_FORMS - 1. */
int attention_plans_form(const struct attention_plans *p, struct device *dev);

/* Attention of sequence i in a layer with a window: the last n rows of its kv_len positions in a
 * contiguous cache, kv. y, q: [n, n_heads, head_dim]. */
void attention_plans_run(const struct attention_plans *p, const struct model *model, int layer,
                         int i, float *y, const float *q, const struct kv_layer *kv, int kv_len,
                         int site);

/* Frees the plans. */
void attention_plans_free(struct attention_plans *p, struct device *dev);

#endif
