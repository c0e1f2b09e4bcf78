#include "scheduler/pass.h"

#include "scheduler/generate.h"

#include <stdlib.h>
#include <string.h>

/* The host arrays of a batch and of what is drawn. */
struct pass_arrays {
    int32_t *token_ids, *positions; /* [n_tokens]; the other integers lie behind token_ids */
    int32_t *qo_indptr;             /* [n + 1] */
    int32_t *logit_rows, *drawn;    /* [n_draws] */
    int *kv_lens;                   /* [n] positions that are read of each sequence */
    struct kv_cache **caches;       /* [n] */
    struct sampling *how;           /* [n_draws] */
    float *logits;                  /* [n_draws, vocab_size] */
    struct page_table table;        /* with g->fused only */
    struct paged_batch paged;       /* the same for the ops: views of the table */
};

static int rows_of(const struct pass_part *part) {
    return part->padding + part->end - part->first;
}

/* Drafted tokens that are read. */
static int draft_of(const struct pass_part *part) {
    int n = part->end - part->sequence->n_tokens;
    return part->draw && n > 0 ? n : 0;
}

/* Tokens that are drawn. */
static int draws_of(const struct pass_part *part) {
    return part->draw ? 1 + draft_of(part) : 0;
}

static void free_arrays(struct pass_arrays *a) {
    free(a->token_ids);
    free(a->caches);
    free(a->how);
    free(a->logits);
    page_table_end(&a->table);
}

static int get_arrays(struct pass_arrays *a, size_t n_tokens, size_t n, size_t n_draws,
                      size_t n_logits, struct error *err) {
    a->token_ids = malloc(sizeof *a->token_ids * (2 * n_tokens + 2 * n + 2 * n_draws + 1));
    a->caches = malloc(sizeof *a->caches * n);
    a->how = malloc(sizeof *a->how * (n_draws + 1));
    a->logits = malloc(n_logits ? sizeof *a->logits * n_logits : 1);
    if (!a->token_ids || !a->caches || !a->how || !a->logits)
        return error_set(err, "out of memory for a pass of %zu tokens", n_tokens);
    a->positions = a->token_ids + n_tokens;
    a->qo_indptr = a->positions + n_tokens;
    a->logit_rows = a->qo_indptr + n + 1;
    a->drawn = a->logit_rows + n_draws;
    a->kv_lens = a->drawn + n_draws;
    return 0;
}

static struct sampling sampling_of(const struct sequence *s, int position) {
    const struct sampling_options *o = &s->sampling;
    return (struct sampling){.temperature = o->temperature,
                             .top_k = o->top_k,
                             .top_p = o->top_p,
                             .seed = o->seed,
                             .sample = o->has_seed ? o->sample : s->id,
                             .position = (uint32_t)position};
}

/* Fills the arrays from the parts. Returns 0, or -1 with err set: a cache has no room. */
static int fill(struct batch *batch, struct pass_arrays *a, const struct pass_part *parts, int n,
                struct error *err) {
    int row = 0;
    a->qo_indptr[0] = 0;
    for (int i = 0; i < n; i++) {
        const struct pass_part *p = &parts[i];
        if (p->cache && p->cache->reserve(p->cache, p->end, err))
            return -1;
        a->caches[i] = p->cache;
        a->kv_lens[i] = p->end;
        for (int j = 0; j < p->padding; j++, row++) {
            a->token_ids[row] = 0;
            a->positions[row] = -1;
        }
        for (int j = p->first; j < p->end; j++, row++) {
            a->token_ids[row] = p->sequence->tokens[j];
            a->positions[row] = j;
        }
        a->qo_indptr[i + 1] = row;
        for (int left = draws_of(p) - 1; left >= 0; left--) {
            a->logit_rows[batch->n_logits] = row - 1 - left;
            a->how[batch->n_logits++] = sampling_of(p->sequence, p->end - left);
        }
    }
    return 0;
}

/* One attention for all n sequences reads through the page table of their caches. */
static int add_page_table(struct batch *batch, struct pass_arrays *a, int n, struct error *err) {
    const struct page_table *t = &a->table;
    if (a->caches[0]->page_table(a->caches, a->kv_lens, n, &a->table, err))
        return -1;
    a->paged = (struct paged_batch){n,
                                    t->page_size,
                                    t->n_pool_pages,
                                    a->qo_indptr,
                                    t->kv_indptr,
                                    t->kv_page_indices,
                                    t->kv_last_page_len};
    batch->pages = &a->paged;
    return 0;
}

/* A drawn token becomes the sequence's. */
static int accept(struct generator *g, struct sequence *s, int32_t drawn, const float *logits,
                  struct error *err) {
    if (sequence_append(s, drawn, err))
        return -1;
    if (logits)
        fingerprint_add_logits(&s->fingerprint, logits, g->model->config.vocab_size);
    if (logits && s->chain && logits_chain_add(s->chain, logits, g->model->config.vocab_size, err))
        return -1;
    if (model_config_is_stop(&g->model->config, drawn) && !g->ignore_stop && !s->ignore_stop)
        s->finish = FINISH_STOP;
    else if (sequence_new_tokens(s) >= s->max_new)
        s->finish = FINISH_LENGTH;
    else if (s->n_tokens >= g->context)
        s->finish = FINISH_CONTEXT;
    if (g->on_token && g->on_token(g->on_token_context, s, logits, err))
        return -1;
    return g->appended ? g->appended(g->appended_context, s, err) : 0;
}

/* What a part has drawn becomes its sequence's, as far as it was drafted, and one token more. */
static int accept_part(struct generator *g, const struct pass_part *part, const int32_t *drawn,
                       const float *logits, struct error *err) {
    struct sequence *s = part->sequence;
    size_t vocab = (size_t)g->model->config.vocab_size;
    int n_draft = draft_of(part), first = part->end - n_draft, i = 0;
    for (bool goes_on = true; goes_on; i++) {
        int32_t id = s->forced && s->n_draft ? s->tokens[s->n_tokens] : drawn[i];
        goes_on = i < n_draft && s->tokens[s->n_tokens] == id;
        s->n_cached = part->cache ? first + i : 0;
        if (accept(g, s, id, logits ? logits + (size_t)i * vocab : NULL, err))
            return -1;
        goes_on = goes_on && s->finish == FINISH_NOT_YET;
    }
    struct drafting *d = &s->drafting;
    d->proposed += d->last_proposed = n_draft;
    d->accepted += d->last_accepted = i - 1;
    return 0;
}

static int run(struct generator *g, const struct pass_part *parts, int n, struct batch *batch,
               struct pass_arrays *a, struct error *err) {
    struct device *dev = g->model->dev;
    size_t vocab = (size_t)g->model->config.vocab_size;
    if (fill(batch, a, parts, n, err))
        return -1;
    if (g->fused && parts[0].cache && parts[0].cache->page_table &&
        add_page_table(batch, a, n, err))
        return -1;
    const float *on_device = forward(g->model, g->ws, batch, g->probe, err);
    if (!on_device)
        return -1;
    if (batch->n_logits &&
        !g->ids_only) /* before forward_finish, which tells when a copy has failed, too */
        dev->ops->download(dev, a->logits, on_device,
                           sizeof *a->logits * (size_t)batch->n_logits * vocab);
    if (forward_finish(g->model, g->ws, batch, a->how, a->drawn, err))
        return -1;
    for (int i = 0, draw = 0; i < n; i++) {
        const float *logits = g->ids_only ? NULL : a->logits + (size_t)draw * vocab;
        int n_draws = draws_of(&parts[i]);
        parts[i].sequence->n_cached = parts[i].cache ? parts[i].end : 0;
        if (n_draws && accept_part(g, &parts[i], a->drawn + draw, logits, err))
            return -1;
        draw += n_draws;
    }
    return 0;
}

int pass_run(struct generator *g, const struct pass_part *parts, int n, struct error *err) {
    struct pass_arrays a = {0};
    size_t n_tokens = 0, n_draws = 0;
    for (int i = 0; i < n; i++) {
        n_tokens += (size_t)rows_of(&parts[i]);
        n_draws += (size_t)draws_of(&parts[i]);
    }
    if (!n_tokens)
        return 0;
    size_t n_logits = g->ids_only ? 0 : n_draws * (size_t)g->model->config.vocab_size;
    int result = get_arrays(&a, n_tokens, (size_t)n, n_draws, n_logits, err);
    if (!result) {
        struct batch batch = {.n_tokens = (int)n_tokens,
                              .n_sequences = n,
                              .token_ids = a.token_ids,
                              .positions = a.positions,
                              .qo_indptr = a.qo_indptr,
                              .logit_rows = a.logit_rows,
                              .caches = parts[0].cache ? a.caches : NULL};
        result = run(g, parts, n, &batch, &a, err);
    }
    free_arrays(&a);
    return result;
}
