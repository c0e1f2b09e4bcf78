#include "model/decode_graph.h"

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
                              .pages = &g->pages};
}

int decode_run(struct decode_graphs *g, int size, int form, struct device *dev, void (*run)(void *),
               void *context, struct error *err) {
    const struct ops *ops = dev->ops;
    long memory = ops->memory_changes(dev);
    const struct kv_layer *layers = g->caches[0]->layers;
    struct device_graph **graph = &g->sizes[size][form].graph;
    /* What a recording knows may have moved, or it was of another pool. */
    if (memory != g->sizes[size][form].memory || layers != g->sizes[size][form].layers) {
        ops->graph_free(dev, *graph);
        *graph = NULL;
        run(context); /* and makes the ops get their scratch memory: a recording cannot */
        g->sizes[size][form].memory = ops->memory_changes(dev);
        g->sizes[size][form].layers = layers;
        return 0;
    }
    if (!*graph) {
        if (ops->graph_begin(dev, err))
            return -1;
        run(context);
        *graph = ops->graph_end(dev, err);
    }
    if (!*graph)
        return -1;
    ops->graph_run(dev, *graph);
    return 0;
}

void decode_graphs_free(struct decode_graphs *g, struct device *dev) {
    for (int i = 0; g && i < N_DECODE_SIZES; i++)
        for (int form = 0; form < N_PLAN_FORMS; form++)
            if (g->sizes[i][form].graph)
                dev->ops->graph_free(dev, g->sizes[i][form].graph);
}
