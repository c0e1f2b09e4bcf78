#include "model/attention_plans.h"

#include "model/context_parallel.h"

#include <math.h>
#include <stdlib.h>

struct attention_shape attention_shape_of(const struct model_config *c) {
    return (struct attention_shape){c->n_heads, c->n_kv_heads, c->head_dim, 1.0 / sqrt(c->head_dim),
                                    KV_BFP16};
}

int batch_kv_len(const struct batch *batch, int i) {
    return batch->positions[batch->qo_indptr[i + 1] - 1] + 1;
}

struct attention_variant attention_variant_of(const struct model_config *c, int layer) {
    struct attention_variant variant = attention_variant_causal();
    variant.window_left = model_config_window_left(c, layer);
    return variant;
}

/* A layer with a window, or one without; -1: the model has none. */
static int find_layer(const struct model_config *c, bool windowed) {
    for (int i = 0; i < c->n_layers; i++)
        if ((model_config_window_left(c, i) >= 0) == windowed)
            return i;
    return -1;
}

/* *plan: NULL before its first batch. */
static int make(struct attention_plan **plan, struct device *dev, const struct paged_batch *pages,
                const struct attention_shape *shape, const struct attention_variant *variant,
                struct error *err) {
    if (!*plan)
        *plan = dev->ops->attention_plan_new(dev, err);
    return *plan ? dev->ops->attention_plan(dev, *plan, pages, shape, variant, err) : -1;
}

/* For each sequence its own plan, since each has a cache of its own. */
static int make_each(struct attention_plans *p, const struct model *model,
                     const struct batch *batch, const struct attention_variant *variant,
                     struct error *err) {
    struct attention_shape shape = attention_shape_of(&model->config);
    if (batch->n_sequences > p->n_each) {
        size_t n = (size_t)batch->n_sequences;
        struct attention_plan **each = realloc(p->each, sizeof *each * n);
        if (!each)
            return error_set(err, "out of memory for the plans of %zu sequences", n);
        for (p->each = each; p->n_each < batch->n_sequences; p->n_each++)
            each[p->n_each] = NULL;
    }
    for (int i = 0; i < batch->n_sequences; i++) {
        int32_t n = batch->qo_indptr[i + 1] - batch->qo_indptr[i], kv_len = batch_kv_len(batch, i);
        struct paged_batch pages = {.n_sequences = 1,
                                    .page_size = kv_len ? kv_len : 1,
                                    .n_pages = 1,
                                    .qo_indptr = (int32_t[]){0, n},
                                    .kv_indptr = (int32_t[]){0, kv_len > 0},
                                    .kv_page_indices = (int32_t[]){0},
                                    .kv_last_page_len = &kv_len};
        if (make(&p->each[i], model->dev, &pages, &shape, variant, err))
            return -1;
    }
    return 0;
}

int attention_plans_make(struct attention_plans *p, const struct model *model,
                         const struct batch *batch, struct error *err) {
    struct attention_shape shape = attention_shape_of(&model->config);
    if (context_is_shared(model))
        return context_plan_make(&p->context, model, batch, err);
    for (int windowed = 0; windowed < 2; windowed++) {
        int layer = find_layer(&model->config, windowed);
        if (layer < 0)
            continue;
        struct attention_variant variant = attention_variant_of(&model->config, layer);
        if (batch->pages) {
            shape.kv_type = batch->caches[0]->type;
            if (make(&p->together[windowed], model->dev, batch->pages, &shape, &variant, err))
                return -1;
        } else if (windowed && make_each(p, model, batch, &variant, err)) {
            return -1;
        }
    }
    return 0;
}

int attention_plans_form(const struct attention_plans *p, struct device *dev) {
    int form = 0;
    for (int i = 0; i < 2; i++)
        form = form * N_PLAN_FORMS +
               (p->together[i] ? dev->ops->attention_plan_form(p->together[i]) : 0);
    return form;
}

void attention_plans_run(const struct attention_plans *p, const struct model *model, int layer,
                         int i, float *y, const float *q, const struct kv_layer *kv, int kv_len,
                         int site) {
    const struct model_config *c = &model->config;
    struct attention_variant variant = attention_variant_of(c, layer);
    struct kv_views views =
        kv_layer_views(kv, KV_BFP16, kv_len ? kv_len : 1, c->n_kv_heads, c->head_dim);
    model->dev->ops->attend(model->dev, y, q, &views, p->each[i], &variant, site);
}

void attention_plans_free(struct attention_plans *p, struct device *dev) {
    for (int i = 0; i < 2; i++)
        if (p->together[i])
            dev->ops->attention_plan_free(dev, p->together[i]);
    for (int i = 0; i < p->n_each; i++)
        if (p->each[i])
            dev->ops->attention_plan_free(dev, p->each[i]);
    free(p->each);
    context_plan_free(p->context, dev);
}
