#include "model/forward.h"

#include "model/context_parallel.h"
#include "model/decode_graph.h"
#include "model/forward_hash.h"
#include "model/forward_parallel.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const char *const tensor_names[N_TENSORS] = {
    "embedding", "attention norm", "q", "k", "v", "q after RoPE", "k after RoPE",
    "attention output", "o projection", "residual after attention", "FFN norm", "gate", "up",
    "SwiGLU", "down projection", "residual after FFN", "final norm", "logits"};
/* clang-format on */

const char *tensor_name(enum tensor_id id) {
    return tensor_names[id];
}

/* ---- prepare: memory, and what the ops read of the batch ------------------------------------ */

static bool is_paged(const struct batch *batch) {
    return batch->caches && batch->n_sequences && batch->caches[0]->slots;
}

/* Must each sequence be gathered into one piece before attention? */
static bool is_gathered(const struct batch *batch) {
    return is_paged(batch) && !batch->pages;
}

/* Each row's word, slot and rotation, and which rows' logits are wanted: one copy for all of it. */
static int upload_rows(struct workspace *ws, const struct batch *batch, struct error *err) {
    struct device *dev = ws->model->dev;
    size_t n = (size_t)batch->n_tokens, n_logits = (size_t)batch->n_logits;
    size_t bytes = (sizeof(int64_t) + 2 * sizeof(int32_t)) * n + sizeof(int32_t) * n_logits;
    int result = 0;
    int64_t *slots = malloc(bytes);
    int32_t *rotations = (int32_t *)(slots + n), *ids = rotations + n, *logit_rows = ids + n;
    if (!slots)
        return error_set(err, "out of memory for a pass of %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        slots[i] = batch->positions[i]; /* -1, a row of padding: not stored */
        rotations[i] = batch->positions[i] < 0 ? 0 : batch->positions[i];
    }
    for (size_t i = 0; i < n_logits; i++)
        logit_rows[i] = batch->logit_rows[i];
    for (int i = 0; is_paged(batch) && i < batch->n_sequences && !result; i++) {
        const struct kv_cache *cache = batch->caches[i];
        if (!cache) /* padding */
            break;
        int first = batch->qo_indptr[i];
        result = cache->slots(cache, batch->positions[first], batch->qo_indptr[i + 1] - first,
                              slots + first, err);
    }
    if (!result) {
        if (context_is_shared(ws->model))
            context_slots(ws->model->parallel, slots, batch->n_tokens);
        shared_token_ids(ws->model, ids, batch->token_ids, batch->n_tokens);
        dev->ops->upload(dev, ws->slots, slots, bytes);
        ws->positions = (int32_t *)(ws->slots + n);
        ws->token_ids = ws->positions + n;
        ws->logit_rows = ws->token_ids + n;
    }
    free(slots);
    return result;
}

/* The slots of all positions of all sequences, to gather them. */
static int upload_paged_slots(struct workspace *ws, const struct batch *batch, struct error *err) {
    struct device *dev = ws->model->dev;
    int64_t n = 0;
    int longest = 0, result = 0;
    for (int i = 0; i < batch->n_sequences; i++) {
        int kv_len = batch_kv_len(batch, i);
        longest = kv_len > longest ? kv_len : longest;
        n += kv_len;
    }
    if (n > INT32_MAX / 2)
        return error_set(err, "a pass over %lld cached positions: too many", (long long)n);
    int64_t *slots = malloc(sizeof *slots * (size_t)n), *next = slots;
    if (!slots)
        return error_set(err, "out of memory for a pass over %lld cached positions", (long long)n);
    for (int i = 0; i < batch->n_sequences && !result; i++) {
        const struct kv_cache *cache = batch->caches[i];
        int kv_len = batch_kv_len(batch, i);
        result = cache->slots(cache, 0, kv_len, next, err);
        next += kv_len;
    }
    if (!result)
        result = workspace_reserve_gathered(ws, (int)n, longest, err);
    if (!result)
        dev->ops->upload(dev, ws->paged_slots, slots, sizeof *slots * (size_t)n);
    free(slots);
    return result;
}

/* Gets memory and uploads what the ops read of the batch. Returns 0, or -1 with err set. */
static int prepare(struct model *model, struct workspace *ws, const struct batch *batch,
                   struct error *err) {
    if (workspace_reserve_batch(ws, model, batch, err))
        return -1;
    if (is_gathered(batch) && batch->caches[0]->type != KV_BFP16)
        return error_set(err, "a KV cache of type %s needs passes of all sequences together",
                         kv_type_name(batch->caches[0]->type));
    if ((is_gathered(batch) && upload_paged_slots(ws, batch, err)) ||
        attention_plans_make(&ws->plans, model, batch, err))
        return -1;
    return upload_rows(ws, batch, err);
}

/* ---- the ops, in order ---------------------------------------------------------------------- */

/* What the steps of one pass share. */
struct pass {
    struct model *model;
    struct workspace *ws;
    const struct batch *batch;
    const struct probe *probe;
    struct device *dev;
    const struct ops *ops;
    int layer;
};

static int site(const struct pass *p, enum tensor_id id) {
    return p->layer * N_TENSORS + (int)id;
}

static void see(const struct pass *p, enum tensor_id id, const float *x, int n_rows, int n_cols) {
    if (p->probe)
        p->probe->see(p->probe->context, id, p->layer, x, n_rows, n_cols);
}

/* What comes out of a linear layer gets its bias. */
static void finish_linear(const struct pass *p, float *y, const struct matrix *w, const float *bias,
                          enum tensor_id id, int n_rows) {
    if (bias)
        p->ops->add_bias(p->dev, y, bias, n_rows, w->n);
    see(p, id, y, n_rows, w->n);
}

/* branch = x W^T + bias, where x is shared by all ranks, unless every rank has it whole. */
static void snap_and_branch(const struct pass *p, const float *x, const struct matrix *w,
                            const float *bias, enum tensor_id from, enum tensor_id id) {
    bool whole = from == TENSOR_ATTENTION && context_is_shared(p->model);
    int n = p->batch->n_tokens;
    shared_branch(p->model, p->ws, x, w, n, whole, site(p, from));
    finish_linear(p, p->ws->branch, w, bias, id, n);
}

/* Normalises the residual stream and snaps the result: the input of what follows. */
static void norm_and_snap(const struct pass *p, const float *x, const float *gain,
                          enum tensor_id before, enum tensor_id id, int n_rows) {
    int hidden = p->model->config.hidden;
    p->ops->rmsnorm(p->dev, p->ws->normed, x, gain, n_rows, hidden, 1, p->model->config.rms_eps,
                    site(p, before));
    see(p, id, p->ws->normed, n_rows, hidden);
    p->ops->snap_rows(p->dev, p->ws->snapped, p->ws->normed, n_rows, hidden, site(p, id));
}

/* Where all sequences store the keys and values of this layer (phase 8). */
static struct kv_target paged_target(const struct pass *p) {
    const struct model_config *c = &p->model->config;
    const struct kv_cache *cache = p->batch->caches[0];
    int size = context_stored(p->model, p->batch->pages->page_size);
    int k = site(p, TENSOR_K_ROTATED), v = site(p, TENSOR_V);
    struct kv_views kv =
        kv_layer_views(&cache->layers[p->layer], cache->type, size, c->n_kv_heads, c->head_dim);
    return (struct kv_target){kv, p->ws->slots, size, k, v, NULL};
}

/* The rows of q and k: normalised per head (Qwen3), then rotated, and in phase 8 stored. */
static void norm_and_rotate(const struct pass *p, const struct layer_weights *w) {
    const struct model_config *c = &p->model->config;
    struct head_rows q = {p->ws->q, w->q_norm, c->n_heads, site(p, TENSOR_Q)};
    struct head_rows k = {p->ws->k, w->k_norm, c->n_kv_heads, site(p, TENSOR_K)};
    struct kv_target to = p->batch->pages ? paged_target(p) : (struct kv_target){0};
    int n = p->batch->n_tokens;
    if (p->batch->steps)
        to.then = p->ws->plans.together[model_config_window_left(c, p->layer) >= 0];
    p->ops->norm_rope(p->dev, &q, &k, p->ws->v, p->batch->pages ? &to : NULL, p->ws->positions,
                      p->model->rope_cos, p->model->rope_sin, n, c->head_dim, c->rms_eps);
    see(p, TENSOR_Q_ROTATED, q.x, n, c->n_heads * c->head_dim);
    see(p, TENSOR_K_ROTATED, k.x, n, c->n_kv_heads * c->head_dim);
}

/* Where the keys and values of sequence i go in this layer. Without a cache they live for this
 * layer only, each sequence in the rows of its own tokens. */
static struct kv_layer kv_of(const struct pass *p, int i) {
    if (p->batch->caches)
        return p->batch->caches[i]->layers[p->layer];
    const struct model_config *c = &p->model->config;
    size_t row = (size_t)p->batch->qo_indptr[i] * (size_t)c->n_kv_heads;
    const struct kv_layer *all = &p->ws->uncached;
    return (struct kv_layer){all->k + row * (size_t)c->head_dim, all->v + row * (size_t)c->head_dim,
                             all->k_exponents + row, all->v_exponents + row};
}

/* All sequences at once, through the page table (phase 8). */
static void attend_together(const struct pass *p) {
    struct attention_variant variant = attention_variant_of(&p->model->config, p->layer);
    const struct attention_plan *plan = p->ws->plans.together[variant.window_left >= 0];
    struct kv_views kv = paged_target(p).kv;
    if (context_is_shared(p->model))
        context_attend(p->ws->plans.context, p->model, p->ws->attention, p->ws->q, &kv,
                       site(p, TENSOR_ATTENTION));
    else
        p->ops->attend(p->dev, p->ws->attention, p->ws->q, &kv, plan, &variant,
                       site(p, TENSOR_ATTENTION));
}

/* One sequence after the other. */
static void attend_each(const struct pass *p) {
    const struct model_config *c = &p->model->config;
    struct workspace *ws = p->ws;
    struct attention_shape shape = attention_shape_of(c);
    size_t q = (size_t)c->n_heads * (size_t)c->head_dim;
    const int64_t *paged_slots = is_gathered(p->batch) ? ws->paged_slots : NULL;
    for (int i = 0; i < p->batch->n_sequences; i++) {
        int first = p->batch->qo_indptr[i], n = p->batch->qo_indptr[i + 1] - first;
        int kv_len = batch_kv_len(p->batch, i);
        struct kv_layer layer = kv_of(p, i);
        struct kv_views kv = kv_layer_views(&layer, KV_BFP16, 1, c->n_kv_heads, c->head_dim);
        size_t at = (size_t)first * (size_t)c->n_kv_heads * (size_t)c->head_dim;
        p->ops->kv_append(p->dev, &kv, ws->k + at, ws->v + at, ws->slots + first, n, 1,
                          c->n_kv_heads, c->head_dim, site(p, TENSOR_K_ROTATED), site(p, TENSOR_V));
        if (paged_slots) { /* attention wants one piece */
            p->ops->kv_gather(p->dev, &ws->gathered, &layer, paged_slots, kv_len, c->n_kv_heads,
                              c->head_dim);
            paged_slots += kv_len;
            layer = ws->gathered;
        }
        float *y = ws->attention + (size_t)first * q;
        if (model_config_window_left(c, p->layer) >= 0)
            attention_plans_run(&ws->plans, p->model, p->layer, i, y, ws->q + (size_t)first * q,
                                &layer, kv_len, site(p, TENSOR_ATTENTION));
        else
            p->ops->attention(p->dev, y, ws->q + (size_t)first * q, &layer, n, kv_len, &shape,
                              site(p, TENSOR_ATTENTION));
    }
}

static void attend(const struct pass *p) {
    const struct model_config *c = &p->model->config;
    (p->batch->pages ? attend_together : attend_each)(p);
    see(p, TENSOR_ATTENTION, p->ws->attention, p->batch->n_tokens, c->n_heads * c->head_dim);
}

/* x += branch, which ends one block, and the norm that begins the next, here or a layer on. */
static void add_norm_and_snap(struct pass *p, enum tensor_id sum, int next_layer, const float *gain,
                              enum tensor_id before, enum tensor_id id) {
    const struct model_config *c = &p->model->config;
    struct workspace *ws = p->ws;
    int n = p->batch->n_tokens, next_site = next_layer * N_TENSORS;
    p->ops->add_rmsnorm(p->dev, ws->normed, ws->snapped, ws->x, ws->branch, gain, n, c->hidden,
                        c->rms_eps, next_site + (int)before, next_site + (int)id);
    see(p, sum, ws->x, n, c->hidden);
    p->layer = next_layer;
    see(p, id, ws->normed, n, c->hidden);
}

/* From the snapped attention norm to the branch. */
static void attention_block(const struct pass *p, const struct layer_weights *w) {
    struct workspace *ws = p->ws;
    int n = p->batch->n_tokens;
    const struct linear_part qkv[] = {{ws->q, &w->q}, {ws->k, &w->k}, {ws->v, &w->v}};
    p->ops->linear_parts(p->dev, qkv, 3, ws->snapped, n);
    finish_linear(p, ws->q, &w->q, w->q_bias, TENSOR_Q, n);
    finish_linear(p, ws->k, &w->k, w->k_bias, TENSOR_K, n);
    finish_linear(p, ws->v, &w->v, w->v_bias, TENSOR_V, n);
    norm_and_rotate(p, w);
    attend(p);
    snap_and_branch(p, ws->attention, &w->o, w->o_bias, TENSOR_ATTENTION, TENSOR_O);
}

/* From the snapped FFN norm to the branch. */
static void ffn_block(const struct pass *p, const struct layer_weights *w) {
    struct workspace *ws = p->ws;
    int n = p->batch->n_tokens, ffn = p->model->config.ffn, at = site(p, TENSOR_ACTIVATION);
    const struct linear_part both[] = {{ws->gate, &w->gate}, {ws->up, &w->up}};
    p->ops->linear_parts(p->dev, both, 2, ws->snapped, n);
    finish_linear(p, ws->gate, &w->gate, w->gate_bias, TENSOR_GATE, n);
    finish_linear(p, ws->up, &w->up, w->up_bias, TENSOR_UP, n);
    if (p->probe || p->model->parallel) {
        p->ops->silu_mul(p->dev, ws->gate, ws->gate, ws->up, (size_t)n * (size_t)ffn);
        see(p, TENSOR_ACTIVATION, ws->gate, n, ffn);
        snap_and_branch(p, ws->gate, &w->down, w->down_bias, TENSOR_ACTIVATION, TENSOR_DOWN);
    } else { /* nobody sees the activation, and no rank shares it */
        p->ops->silu_mul_snap(p->dev, ws->snapped, ws->gate, ws->up, n, ffn, at);
        p->ops->linear(p->dev, ws->branch, ws->snapped, &w->down, n);
        finish_linear(p, ws->branch, &w->down, w->down_bias, TENSOR_DOWN, n);
    }
}

/* The layers. A norm belongs to the sum before it: only the first has none. */
static void run_layers(struct pass *p) {
    struct workspace *ws = p->ws;
    const struct layer_weights *layers = p->model->layers;
    int n = p->batch->n_tokens, hidden = p->model->config.hidden;
    int last = p->model->config.n_layers - 1;
    norm_and_snap(p, ws->x, layers[0].attention_norm, TENSOR_EMBEDDING, TENSOR_ATTENTION_NORM, n);
    for (int i = 0; i <= last; i++) {
        attention_block(p, &layers[i]);
        add_norm_and_snap(p, TENSOR_MIDDLE, i, layers[i].ffn_norm, TENSOR_MIDDLE, TENSOR_FFN_NORM);
        ffn_block(p, &layers[i]);
        if (i < last)
            add_norm_and_snap(p, TENSOR_RESIDUAL, i + 1, layers[i + 1].attention_norm,
                              TENSOR_EMBEDDING, TENSOR_ATTENTION_NORM);
    }
    if (p->batch->n_logits == n) /* of all, as in decoding: the last norm belongs to its sum, too */
        return add_norm_and_snap(p, TENSOR_RESIDUAL, last + 1, p->model->final_norm,
                                 TENSOR_RESIDUAL, TENSOR_FINAL_NORM);
    p->ops->add(p->dev, ws->x, ws->x, ws->branch, (size_t)n * (size_t)hidden);
    see(p, TENSOR_RESIDUAL, ws->x, n, hidden);
    p->layer++;
}

/* Final norm and output matrix, for the rows whose logits are wanted. */
static void output_block(const struct pass *p) {
    struct workspace *ws = p->ws;
    int n = p->batch->n_logits, hidden = p->model->config.hidden;
    if (!n)
        return;
    if (n < p->batch->n_tokens) { /* else run_layers has normalised all */
        p->ops->take_rows(p->dev, ws->branch, ws->x, ws->logit_rows, n, hidden);
        norm_and_snap(p, ws->branch, p->model->final_norm, TENSOR_RESIDUAL, TENSOR_FINAL_NORM, n);
    }
    shared_logits(p->model, ws, n);
    see(p, TENSOR_LOGITS, ws->logits, n, p->model->config.vocab_size);
}

/* All of it, from token ids to logits. probe may be NULL. */
static void run_ops(struct model *model, struct workspace *ws, const struct batch *batch,
                    const struct probe *probe) {
    struct pass p = {model, ws, batch, probe, model->dev, model->dev->ops, 0};
    shared_embed(model, ws, batch->n_tokens);
    see(&p, TENSOR_EMBEDDING, ws->x, batch->n_tokens, model->config.hidden);
    run_layers(&p);
    output_block(&p);
}

float *forward(struct model *model, struct workspace *ws, const struct batch *batch,
               const struct probe *probe, struct error *err) {
    const struct pass_parts parts = {prepare, run_ops};
    int done = probe ? 0 : decode_at_once(model, ws, batch, &parts, err);
    if (!done && !prepare(model, ws, batch, err)) {
        run_ops(model, ws, batch, probe);
        done = 1;
    }
    return done > 0 ? ws->logits : NULL;
}

/* ---- finish: the next tokens, and faults ---------------------------------------------------- */

int forward_finish(struct model *model, struct workspace *ws, const struct batch *batch,
                   const struct sampling *how, int32_t *token_ids, struct error *err) {
    struct device *dev = model->dev;
    int n = batch->n_logits;
    parallel_wait(model->parallel, dev); /* what follows may wait without a limit */
    if (n && !decode_has_drawn(ws, how, n))
        dev->ops->sample(dev, ws->drawn, ws->logits, how, n, model->config.vocab_size,
                         model->config.n_layers * N_TENSORS + TENSOR_LOGITS);
    if (n && batch->hashed && forward_hash(ws, n, err))
        return -1;
    struct fault fault;
    if (parallel_check(model->parallel, err) || dev->ops->sync(dev, &fault, err))
        return -1;
    if (n)
        memcpy(token_ids, ws->drawn, sizeof *token_ids * (size_t)n);
    if (model->parallel &&
        parallel_check_pass(model->parallel, shared_pass_hash(batch, token_ids), &fault, err))
        return -1;
    return fault.site < 0 ? 0 : batch_fault(model, batch, fault, err);
}
