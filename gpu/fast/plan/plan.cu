/* The plan of attention over a paged cache: gpu/fast/plan/plan.h says what is in it. */
#include "gpu/fast/plan/plan.h"

#include <stdlib.h>

/* ---- the arrays, in one piece --------------------------------------------------------------- */

/* The arrays of a piece of memory. Returns its size, which NULL is enough for. */
static size_t lay_out(struct plan_arrays *a, unsigned char *piece, const struct paged_batch *b,
                      int n_groups, int n_shares) {
    size_t bytes = 0;
    int n = b->n_sequences;
    work_place(&a->qo_indptr, piece, &bytes, n + 1);
    work_place(&a->kv_indptr, piece, &bytes, n + 1);
    work_place(&a->kv_lens, piece, &bytes, n);
    work_place(&a->token_sequence, piece, &bytes, b->qo_indptr[n]);
    work_place(&a->groups, piece, &bytes, n_groups);
    work_place(&a->shares, piece, &bytes, n_shares);
    work_place(&a->splits, piece, &bytes, n_shares);
    /* The last, so that the others stay where they are while the sequences grow. */
    work_place(&a->pages, piece, &bytes, b->kv_indptr[n]);
    return bytes;
}

/* Memory grows by half: lengths grow by a token a pass. */
static int reserve(struct device *dev, struct attention_plan *p, size_t bytes, struct error *err) {
    if (bytes > p->host_bytes) {
        unsigned char *larger = (unsigned char *)realloc(p->host, bytes + bytes / 2);
        if (!larger)
            return error_set(err, "out of memory for the plan of attention");
        p->host = larger;
        p->host_bytes = bytes + bytes / 2;
    }
    if (p->host_bytes > p->device_bytes) {
        dev->ops->free(dev, p->device, p->device_bytes);
        p->device_bytes = 0;
        p->device =
            (unsigned char *)dev->ops->alloc(dev, p->host_bytes, "the plan of attention", err);
        if (!p->device)
            return -1;
        p->device_bytes = p->host_bytes;
    }
    return 0;
}

/* Room for the results of splits, for the decode kernel. */
static int reserve_partial(struct device *dev, struct attention_plan *p, struct error *err) {
    size_t bytes = group_results_bytes((size_t)p->n_partial, &p->shape);
    if (bytes <= p->partial_bytes && p->partial)
        return 0;
    dev->ops->free(dev, p->partial, p->partial_bytes);
    p->partial_bytes = 0;
    p->partial = (float *)dev->ops->alloc(dev, 2 * bytes, "the partial results of attention", err);
    p->partial_bytes = p->partial ? 2 * bytes : 0;
    return p->partial ? 0 : -1;
}

/* ---- the plan ------------------------------------------------------------------------------- */

static void fill_sequences(const struct plan_arrays *host, const struct paged_batch *b,
                           struct attention_plan *p) {
    size_t n = (size_t)b->n_sequences;
    memcpy((void *)host->qo_indptr, b->qo_indptr, sizeof(int32_t) * (n + 1));
    memcpy((void *)host->kv_indptr, b->kv_indptr, sizeof(int32_t) * (n + 1));
    memcpy((void *)host->pages, b->kv_page_indices, sizeof(int32_t) * (size_t)b->kv_indptr[n]);
    p->longest = 0;
    for (int i = 0; i < b->n_sequences; i++) {
        int kv_len = paged_batch_kv_len(b, i);
        ((int32_t *)host->kv_lens)[i] = kv_len;
        p->longest = kv_len > p->longest ? kv_len : p->longest;
        for (int t = b->qo_indptr[i]; t < b->qo_indptr[i + 1]; t++)
            ((int32_t *)host->token_sequence)[t] = i;
        p->n_prompts += attention_plan_is_prompt(p, b, i);
    }
}

struct attention_plan *gpu_attention_plan_new(struct device *dev, struct error *err) {
    (void)dev;
    struct attention_plan *p = (struct attention_plan *)calloc(1, sizeof *p);
    if (!p)
        error_set(err, "out of memory");
    return p;
}

void gpu_attention_plan_free(struct device *dev, struct attention_plan *p) {
    if (!p)
        return;
    dev->ops->free(dev, p->device, p->device_bytes);
    dev->ops->free(dev, p->partial, p->partial_bytes);
    attention_plan_cascade_free(dev, &p->shared);
    attention_plan_prompts_free(dev, &p->prompts);
    free(p->host);
    free(p);
}

/* The plan is then of no sequences: what it knows of the batch before must not be run. */
static void clear(struct attention_plan *p) {
    p->n_tokens = p->n_groups = p->n_prompts = p->n_splits = p->n_own = p->n_partial = 0;
    p->shared.cascade.n_stretches = 0;
    p->prompts.n_work = 0;
    p->prompts.chains = false;
}

/* The shares of the row groups' work, and room for what is left to be merged. */
static int divide(struct device *dev, struct attention_plan *p, const struct plan_arrays *host,
                  const struct paged_batch *b, struct error *err) {
    return attention_plan_share(p, (struct decode_share *)host->shares,
                                (struct decode_split *)host->splits,
                                (struct row_group *)host->groups, b, err) ||
                   reserve_partial(dev, p, err)
               ? -1
               : 0;
}

static int fill(struct device *dev, struct attention_plan *p, const struct paged_batch *b,
                const struct attention_shape *shape, struct error *err) {
    int heads_per_group = shape->n_heads / shape->n_kv_heads;
    p->decode_tokens = DECODE_ROWS / heads_per_group;
    p->decode_tokens = p->decode_tokens > DECODE_TOKENS ? p->decode_tokens : (int)DECODE_TOKENS;
    int n_groups = attention_plan_count_groups(p, b, heads_per_group);
    int dim = decode_dim(shape->head_dim, true);
    int blocks = gpu_of(dev)->n_processors * decode_blocks(dim, shape->kv_type);
    p->n_shares = blocks > shape->n_kv_heads ? blocks / shape->n_kv_heads : 1;
    struct plan_arrays host = {};
    size_t bytes = lay_out(&host, NULL, b, n_groups, p->n_shares);
    if (reserve(dev, p, bytes, err))
        return -1;
    lay_out(&host, p->host, b, n_groups, p->n_shares);
    lay_out(&p->arrays, p->device, b, n_groups, p->n_shares);
    memset(p->host, 0, bytes);
    p->shape = *shape;
    p->n_groups = n_groups;
    p->n_slots = (int64_t)b->n_pages * b->page_size;
    fill_sequences(&host, b, p);
    if (attention_plan_cascade(dev, p, b, err) || attention_plan_prompts(dev, p, b, err))
        return -1;
    int status = divide(dev, p, &host, b, err);
    if (status && attention_plan_has_cascade(p)) { /* each sequence by itself takes less memory */
        attention_plan_cascade_free(dev, &p->shared);
        p->shared.no_memory = true;
        p->n_own = 0;
        status = divide(dev, p, &host, b, err);
    }
    if (status)
        return -1;
    p->arrays.page_size = b->page_size;
    p->arrays.by_page_size = division_by(b->page_size);
    p->arrays.n_sequences = b->n_sequences;
    p->n_tokens = p->arrays.n_tokens = b->qo_indptr[b->n_sequences];
    dev->ops->upload(dev, p->device, p->host, bytes);
    return 0;
}

int gpu_attention_plan(struct device *dev, struct attention_plan *p, const struct paged_batch *b,
                       const struct attention_shape *shape, const struct attention_variant *variant,
                       struct error *err) {
    p->variant = variant ? *variant : attention_variant_causal();
    clear(p);
    if (!(variant && attention_variant_check(variant, err)) && !paged_batch_check(b, err) &&
        !fill(dev, p, b, shape, err))
        return 0;
    clear(p);
    return -1;
}

int gpu_attention_plan_form(const struct attention_plan *p) {
    return attention_plan_has_cascade(p) + 2 * (p->n_splits > 0);
}

/* ---- where rows lie ------------------------------------------------------------------------- */

/* Whether all steps are whole rows, and exponents lie as the rows do. */
static bool in_rows(const struct kv_view *v, int head_dim) {
    return v->element_step == 1 && v->group_step == v->x &&
           v->page_step == v->page_exponents * head_dim &&
           v->position_step == v->position_exponents * head_dim &&
           v->head_step == v->head_exponents * head_dim;
}

bool decode_cache_of_views(struct decode_cache *out, const struct kv_views *kv, int head_dim) {
    const struct kv_view *k = &kv->k, *v = &kv->v;
    *out = {k->data,
            v->data,
            k->type,
            k->exponents,
            v->exponents,
            (uint32_t)k->page_exponents,
            (uint32_t)k->position_exponents,
            (uint32_t)k->head_exponents};
    bool is_linked = kv_type_has_exponents(k->type) || gpu_attention_decode_floats;
    return is_linked && k->type == v->type && in_rows(k, head_dim) && in_rows(v, head_dim) &&
           k->page_exponents == v->page_exponents &&
           k->position_exponents == v->position_exponents &&
           k->head_exponents == v->head_exponents && head_dim * kv_type_bytes(k->type) % 16 == 0 &&
           ((uintptr_t)k->data | (uintptr_t)v->data) % 16 == 0;
}
