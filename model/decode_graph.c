#include "model/decode_graph.h"

#include "model/workspace.h"

#include <stdlib.h>
#include <string.h>

static const int sizes[N_DECODE_SIZES] = {
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, MOST_DECODE_ROWS};

int decode_size_of(const struct batch *b) {
    if (!b->pages || b->n_tokens != b->n_sequences || b->n_logits != b->n_tokens || !b->n_tokens)
        return -1;
    for (int i = 0; i < b->n_sequences; i++)
        if (b->qo_indptr[i + 1] - b->qo_indptr[i] != 1 || b->logit_rows[i] != i)
            return -1;
    for (int size = 0; size < N_DECODE_SIZES; size++)
        if (b->n_tokens <= sizes[size])
            return size;
    return -1;
}

/* Whether a sequence follows another one in its cache: a draft, of which each token reads what the
 * pass stores for the one before it. */
static bool reads_what_it_stores(const struct batch *b) {
    for (int i = 1; i < b->n_sequences; i++)
        if (b->caches[i] == b->caches[i - 1])
            return true;
    return false;
}

void decode_pad(struct decode_graphs *g, const struct batch *b, int size) {
    int n = b->n_tokens;
    size_t bytes = sizeof(int32_t) * (size_t)n;
    memcpy(g->token_ids, b->token_ids, bytes);
    memcpy(g->positions, b->positions, bytes);
    memcpy(g->kv_indptr, b->pages->kv_indptr, bytes + sizeof(int32_t));
    memcpy(g->kv_last_page_len, b->pages->kv_last_page_len, bytes);
    memcpy(g->caches, b->caches, sizeof *g->caches * (size_t)n);
    for (int i = n; i < sizes[size]; i++) {
        g->token_ids[i] = 0;
        g->positions[i] = -1;
        g->kv_indptr[i + 1] = g->kv_indptr[n];
        g->kv_last_page_len[i] = 0;
        g->caches[i] = NULL;
    }
    for (int i = 0; i <= sizes[size]; i++)
        g->qo_indptr[i] = i;
    memcpy(g->logit_rows, g->qo_indptr, sizeof(int32_t) * (size_t)sizes[size]);
    g->pages = *b->pages;
    g->pages.n_sequences = sizes[size];
    g->pages.qo_indptr = g->qo_indptr;
    g->pages.kv_indptr = g->kv_indptr;
    g->pages.kv_last_page_len = g->kv_last_page_len;
    g->batch = (struct batch){.n_tokens = sizes[size],
                              .n_sequences = sizes[size],
                              .n_logits = sizes[size],
                              .token_ids = g->token_ids,
                              .positions = g->positions,
                              .qo_indptr = g->qo_indptr,
                              .logit_rows = g->logit_rows,
                              .caches = g->caches,
                              .pages = &g->pages,
                              .steps = !reads_what_it_stores(b)};
}

int decode_run(struct decode_graphs *g, int size, int form, struct model *model,
               struct workspace *ws, const struct pass_parts *parts, struct error *err) {
    struct device *dev = model->dev;
    const struct ops *ops = dev->ops;
    const struct kv_layer *layers = g->caches[0]->layers;
    struct recording *r = &g->recordings[size][form + (g->batch.steps ? N_PASS_FORMS : 0)];
    /* What a recording knows may have moved, or it was of another pool. */
    if (ops->memory_changes(dev) != r->memory || layers != r->layers) {
        ops->graph_free(dev, r->graph);
        r->graph = NULL;
        parts->run(model, ws, &g->batch, NULL); /* the ops get scratch memory: a recording cannot */
        r->memory = ops->memory_changes(dev);
        r->layers = layers;
        return 0;
    }
    struct parallel_counts none = {0}, *said = model->parallel ? &model->parallel->counts : &none;
    if (r->graph) {
        said->calls += r->said.calls;
        said->bytes += r->said.bytes;
    } else {
        struct parallel_counts before = *said;
        if (ops->graph_begin(dev, err))
            return -1;
        parts->run(model, ws, &g->batch, NULL);
        r->graph = ops->graph_end(dev, err);
        r->said.calls = said->calls - before.calls;
        r->said.bytes = said->bytes - before.bytes;
    }
    if (!r->graph)
        return -1;
    ops->graph_run(dev, r->graph);
    return 0;
}

bool decode_has_drawn(const struct workspace *ws, const struct sampling *how, int n) {
    for (int i = 0; i < n; i++)
        if (how[i].temperature > 0)
            return false;
    return ws->has_greedy;
}

/* The pass as one op. Returns 1; 0: it must be run otherwise; -1 with err set. */
static int run_as_one_op(struct model *model, struct workspace *ws, const struct batch *batch,
                         struct error *err) {
    struct device *dev = model->dev;
    if (!dev->ops->decode_step || model->parallel || batch->caches[0]->type != KV_BFP16 ||
        reads_what_it_stores(batch))
        return 0;
    if (workspace_reserve_batch(ws, model, batch, err))
        return -1;
    int done = dev->ops->decode_step(dev, ws->logits, ws->drawn, model, batch->caches[0]->layers,
                                     batch->pages, batch->token_ids, err);
    ws->has_greedy = done == 1;
    return done;
}

int decode_at_once(struct model *model, struct workspace *ws, const struct batch *batch,
                   const struct pass_parts *parts, struct error *err) {
    const struct ops *ops = model->dev->ops;
    const struct parallel *ranks = model->parallel;
    int size = ws->no_graphs ? -1 : decode_size_of(batch);
    /* A recording can call GPUs alone; over positions, what runs depends on lengths. */
    if (size < 0 || (ranks && (!ranks->on_device || ranks->by_position)))
        return 0;
    int done = run_as_one_op(model, ws, batch, err);
    if (done || !ops->graph_begin)
        return done;
    if (!ws->graphs)
        ws->graphs = calloc(1, sizeof *ws->graphs);
    if (!ws->graphs)
        return 0;
    decode_pad(ws->graphs, batch, size);
    if (parts->prepare(model, ws, &ws->graphs->batch, err) ||
        decode_run(ws->graphs, size, attention_plans_form(&ws->plans, model->dev), model, ws, parts,
                   err))
        return -1;
    return 1;
}

void decode_graphs_free(struct decode_graphs *g, struct device *dev) {
    for (int i = 0; g && i < N_DECODE_SIZES; i++)
        for (int form = 0; form < N_DECODE_FORMS; form++)
            if (g->recordings[i][form].graph)
                dev->ops->graph_free(dev, g->recordings[i][form].graph);
}
