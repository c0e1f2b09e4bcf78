#include "model/workspace.h"

#include "model/forward_hash.h"

#include <stdlib.h>

struct workspace *workspace_new(const struct model *model, struct error *err) {
    struct workspace *ws = calloc(1, sizeof *ws);
    if (!ws)
        error_set(err, "out of memory");
    else
        ws->model = model;
    return ws;
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

enum { N_BUFFERS = 16 };

struct buffer {
    void **data;
    size_t bytes;
};

struct buffers {
    struct buffer list[N_BUFFERS];
};

/* Every buffer of ws with its size for the given batch: one list for allocating and freeing. */
static struct buffers buffers_of(struct workspace *ws, int n_tokens, int n_logits) {
    const struct model_config *c = &ws->model->config;
    size_t t = (size_t)n_tokens, l = (size_t)n_logits, f = sizeof(float);
    size_t q = (size_t)c->n_heads * (size_t)c->head_dim;
    size_t kv = (size_t)c->n_kv_heads * (size_t)c->head_dim;
    size_t hidden = (size_t)c->hidden, ffn = (size_t)c->ffn;
    size_t widest = max_size(max_size(hidden, q), ffn), shared = ws->model->parallel != NULL;
    return (struct buffers){{
        {(void **)&ws->slots, (sizeof(int64_t) + 2 * sizeof(int32_t)) * t + sizeof(int32_t) * l},
        {(void **)&ws->x, f * t * hidden},
        {(void **)&ws->normed, f * t * hidden},
        {(void **)&ws->q, f * t * q},
        {(void **)&ws->attention, f * t * q},
        {(void **)&ws->k, f * t * kv},
        {(void **)&ws->v, f * t * kv},
        {(void **)&ws->gate, f * t * ffn},
        {(void **)&ws->up, f * t * ffn},
        {(void **)&ws->branch, f * t * hidden},
        {(void **)&ws->logits, f * l * (size_t)c->vocab_size},
        {(void **)&ws->snapped.mantissas, sizeof(int16_t) * t * widest},
        {(void **)&ws->snapped.exponents, t},
        {(void **)&ws->largest, shared * sizeof(uint32_t) * t},
        {(void **)&ws->sums, shared * sizeof(int64_t) * t * hidden},
        {(void **)&ws->my_logits, shared * f * l * (size_t)(ws->model->part.vocab.n + 1)},
    }};
}

static void release_all(struct workspace *ws) {
    struct device *dev = ws->model->dev;
    const struct model_config *c = &ws->model->config;
    struct buffers all = buffers_of(ws, ws->max_tokens, ws->max_logits);
    for (int i = 0; i < N_BUFFERS; i++) {
        dev->ops->free(dev, *all.list[i].data, all.list[i].bytes);
        *all.list[i].data = NULL;
    }
    kv_layer_free(&ws->uncached, dev, ws->max_tokens, c->n_kv_heads, c->head_dim, KV_BFP16);
    ws->max_tokens = ws->max_logits = 0;
}

static void release_gathered(struct workspace *ws) {
    const struct model_config *c = &ws->model->config;
    struct device *dev = ws->model->dev;
    dev->ops->free(dev, ws->paged_slots, sizeof *ws->paged_slots * (size_t)ws->max_paged_slots);
    kv_layer_free(&ws->gathered, dev, ws->max_gathered, c->n_kv_heads, c->head_dim, KV_BFP16);
    ws->paged_slots = NULL;
    ws->max_paged_slots = ws->max_gathered = 0;
}

int workspace_reserve_gathered(struct workspace *ws, int n_slots, int longest, struct error *err) {
    const struct model_config *c = &ws->model->config;
    struct device *dev = ws->model->dev;
    if (n_slots <= ws->max_paged_slots && longest <= ws->max_gathered)
        return 0;
    release_gathered(ws);
    ws->max_paged_slots = n_slots + n_slots / 2;
    ws->max_gathered = longest + longest / 2;
    ws->paged_slots = dev->ops->alloc(dev, sizeof *ws->paged_slots * (size_t)ws->max_paged_slots,
                                      "the slots of a paged cache", err);
    if (ws->paged_slots && !kv_layer_alloc(&ws->gathered, dev, ws->max_gathered, c->n_kv_heads,
                                           c->head_dim, KV_BFP16, err))
        return 0;
    release_gathered(ws);
    return -1;
}

static void release_drawn(struct workspace *ws) {
    struct device *dev = ws->model->dev;
    dev->ops->free_host_visible(dev, ws->drawn, sizeof *ws->drawn * (size_t)ws->max_drawn);
    ws->drawn = NULL;
    ws->max_drawn = 0;
}

static int reserve_drawn(struct workspace *ws, int n, struct error *err) {
    enum { AT_ONCE = 256 };
    struct device *dev = ws->model->dev;
    ws->has_greedy = false; /* of the pass before */
    if (ws->drawn && n <= ws->max_drawn)
        return 0;
    release_drawn(ws);
    int room = n / AT_ONCE * AT_ONCE + AT_ONCE;
    ws->drawn = dev->ops->alloc_host_visible(dev, sizeof *ws->drawn * (size_t)room,
                                             "the forward pass", err);
    ws->max_drawn = ws->drawn ? room : 0;
    return ws->drawn ? 0 : -1;
}

static size_t seen_bytes(const struct workspace *ws) {
    return sizeof *ws->seen * (size_t)ws->model->config.vocab_size * (size_t)ws->max_seen;
}

static void release_seen(struct workspace *ws) {
    struct device *dev = ws->model->dev;
    dev->ops->free_host_visible(dev, ws->seen, seen_bytes(ws));
    ws->seen = NULL;
    ws->max_seen = 0;
}

const float *forward_logits(struct workspace *ws, int n, struct error *err) {
    struct device *dev = ws->model->dev;
    if (ops_share_memory(dev->ops))
        return ws->logits;
    if (!ws->seen || n > ws->max_seen) {
        release_seen(ws);
        for (ws->max_seen = 1; ws->max_seen < n;)
            ws->max_seen *= 2;
        ws->seen = dev->ops->alloc_host_visible(dev, seen_bytes(ws), "the logits", err);
        if (!ws->seen)
            return NULL;
    }
    parallel_wait(ws->model->parallel, dev); /* the copy would wait for ever */
    if (parallel_check(ws->model->parallel, err))
        return NULL;
    dev->ops->download(dev, ws->seen, ws->logits,
                       sizeof *ws->seen * (size_t)ws->model->config.vocab_size * (size_t)n);
    return ws->seen;
}

static int reserve_buffers(struct workspace *ws, int n_tokens, int n_logits, struct error *err) {
    if (reserve_drawn(ws, n_logits, err))
        return -1;
    if (ws->max_tokens >= n_tokens && ws->max_logits >= n_logits && ws->logits)
        return 0;
    struct device *dev = ws->model->dev;
    int tokens = n_tokens > ws->max_tokens ? n_tokens : ws->max_tokens;
    int logits = n_logits > ws->max_logits ? n_logits : ws->max_logits;
    release_all(ws);
    ws->max_tokens = tokens;
    ws->max_logits = logits;
    struct buffers all = buffers_of(ws, tokens, logits);
    for (int i = 0; i < N_BUFFERS; i++)
        if (!(*all.list[i].data =
                  dev->ops->alloc(dev, all.list[i].bytes, "the forward pass", err))) {
            release_all(ws);
            return -1;
        }
    return 0;
}

int workspace_reserve_batch(struct workspace *ws, struct model *model, const struct batch *batch,
                            struct error *err) {
    const struct model_config *c = &model->config;
    int last = 0;
    for (int i = 0; i < batch->n_tokens; i++)
        last = batch->positions[i] > last ? batch->positions[i] : last;
    if (model_reserve_positions(model, last + 1, err) ||
        reserve_buffers(ws, batch->n_tokens, batch->n_logits, err))
        return -1;
    return batch->caches || ws->uncached.k
               ? 0
               : kv_layer_alloc(&ws->uncached, model->dev, ws->max_tokens, c->n_kv_heads,
                                c->head_dim, KV_BFP16, err);
}

void workspace_use_graphs(struct workspace *ws, bool use) {
    ws->no_graphs = !use;
}

void workspace_free(struct workspace *ws) {
    if (!ws)
        return;
    release_all(ws);
    release_gathered(ws);
    release_drawn(ws);
    forward_hashes_free(ws);
    release_seen(ws);
    attention_plans_free(&ws->plans, ws->model->dev);
    decode_graphs_free(ws->graphs, ws->model->dev);
    free(ws->graphs);
    free(ws);
}
