/* The plan of attend: the batch, the tiles that its sequences share, and the blocks of rows that
 * the threads share out. */
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
    free(p->items);
    free(p);
}

/* The plan is then of no sequences: what it knows of the batch before must not be run. */
static void clear(struct attention_plan *p) {
    p->n_sequences = p->n_items = 0;
    p->cascade.n_stretches = 0;
}

/* Cuts n_tokens into blocks. items NULL: only counts. Returns how many. */
static int cut_rows(struct block_item *items, const struct attention_plan *p,
                    struct block_item whole, int n_tokens) {
    int n = n_tokens * (p->shape.n_heads / p->shape.n_kv_heads);
    int count = (n + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int i = 0; i < count && items; i++) {
        int first = i * BLOCK_ROWS, left = n - first;
        items[i] = whole;
        items[i].first_row = first;
        items[i].n_rows = left < BLOCK_ROWS ? left : BLOCK_ROWS;
    }
    return count;
}

/* The blocks of all stretches, then those of all sequences; items as above. */
static int cut_all(struct block_item *items, const struct attention_plan *p) {
    const struct cascade *c = &p->cascade;
    int count = 0, depth = 0;
    for (int i = 0; i < c->n_stretches; i++) {
        const struct shared_stretch *s = &c->stretches[i];
        const int32_t *members = c->members + s->first_member;
        int n = 0;
        for (int k = 0; k < s->n_members; k++)
            n += p->sequences[members[k]].n_tokens;
        struct block_item whole = {.sequence = members[0], .stretch = i, .depth = s->depth};
        count += cut_rows(items ? items + count : NULL, p, whole, n);
        depth = s->depth + 1;
    }
    for (int i = 0; i < p->n_sequences; i++) {
        struct block_item whole = {.sequence = i, .stretch = -1, .depth = depth};
        count += cut_rows(items ? items + count : NULL, p, whole, p->sequences[i].n_tokens);
    }
    return count;
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
    p->n_tokens = b->qo_indptr[n];
    p->n_items = cut_all(NULL, p);
    struct block_item *items = realloc(p->items, sizeof *items * ((size_t)p->n_items + 1));
    if (!items)
        return error_set(err, "cpu: out of memory for the plan of %zu sequences", n);
    p->items = items;
    cut_all(items, p);
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
