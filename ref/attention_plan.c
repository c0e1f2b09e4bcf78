/* The plan of attend: the batch as it is, and the tiles that its sequences share. */
#include "ref/attention.h"

#include <stdlib.h>

/* Sequences with many queries read each tile for many rows as it is. Measured: tests/bench. */
static const struct cascade_rule sharing_pays = {.most_tokens = 16, .least_tiles_less = 1};

struct attention_plan *ref_attention_plan_new(struct device *dev, struct error *err) {
    (void)dev;
    struct attention_plan *p = calloc(1, sizeof *p);
    if (!p)
        error_set(err, "cpu: out of memory");
    return p;
}

void ref_attention_plan_free(struct device *dev, struct attention_plan *p) {
    (void)dev;
    if (!p)
        return;
    cascade_end(&p->cascade);
    free(p->sequences);
    free(p->pages);
    free(p);
}

/* The plan is then of no sequences: what it knows of the batch before must not be run. */
static void clear(struct attention_plan *p) {
    p->n_sequences = 0;
    p->cascade.n_stretches = 0;
}

static int fill(struct attention_plan *p, const struct paged_batch *b,
                const struct attention_shape *shape, struct error *err) {
    size_t n = (size_t)b->n_sequences, n_pages = (size_t)b->kv_indptr[n];
    struct planned_sequence *sequences = realloc(p->sequences, sizeof *sequences * (n + 1));
    p->sequences = sequences ? sequences : p->sequences;
    int32_t *pages = realloc(p->pages, sizeof *pages * (n_pages + 1));
    p->pages = pages ? pages : p->pages;
    if (!sequences || !pages)
        return error_set(err, "cpu: out of memory for the plan of %zu sequences", n);
    memcpy(pages, b->kv_page_indices, sizeof *pages * n_pages);
    for (int i = 0; i < b->n_sequences; i++)
        sequences[i] = (struct planned_sequence){
            .first_token = b->qo_indptr[i],
            .n_tokens = b->qo_indptr[i + 1] - b->qo_indptr[i],
            .kv_len = paged_batch_kv_len(b, i),
            .pages = pages + b->kv_indptr[i],
        };
    p->shape = *shape;
    p->page_size = b->page_size;
    p->n_sequences = b->n_sequences;
    return 0;
}

int ref_attention_plan(struct device *dev, struct attention_plan *p, const struct paged_batch *b,
                       const struct attention_shape *shape, const struct attention_variant *variant,
                       struct error *err) {
    struct attention_variant causal = attention_variant_causal();
    struct cascade_rule rule =
        cascade_rule_of(((struct ref_device *)dev)->plan_version, &sharing_pays);
    clear(p);
    if (!(variant && attention_variant_check(variant, err)) && !paged_batch_check(b, err) &&
        !cascade_find(&p->cascade, b, variant ? variant : &causal, &rule, err) &&
        !fill(p, b, shape, err))
        return 0;
    clear(p);
    return -1;
}

int ref_attention_plan_form(const struct attention_plan *p) {
    return p->cascade.n_stretches > 0;
}
