#include "scheduler/pass.h"

#include "model/forward_hash.h"
#include "scheduler/draft.h"
#include "scheduler/generate.h"
#include "scheduler/pass_arrays.h"

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

static struct sampling sampling_of(const struct sequence *s, int position) {
    const struct sampling_options *o = &s->sampling;
    return (struct sampling){.temperature = o->temperature,
                             .top_k = o->top_k,
                             .top_p = o->top_p,
                             .seed = o->seed,
                             .sample = o->has_seed ? o->sample : s->id,
                             .position = (uint32_t)position};
}

/* The rows since the last sequence are another one, which reads kv_len positions of the cache. */
static void end_sequence(struct batch *batch, struct pass_arrays *a, struct kv_cache *cache,
                         int kv_len, int row) {
    int i = batch->n_sequences++;
    a->caches[i] = cache;
    a->kv_lens[i] = kv_len;
    a->qo_indptr[i + 1] = row;
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
        for (int j = 0; j < p->padding; j++, row++) {
            a->token_ids[row] = 0;
            a->positions[row] = -1;
        }
        for (int j = p->first; j < p->end; j++, row++) {
            a->token_ids[row] = p->sequence->tokens[j];
            a->positions[row] = j;
            if (a->spread && j < p->end - 1)
                end_sequence(batch, a, p->cache, j + 1, row + 1);
        }
        end_sequence(batch, a, p->cache, p->end, row);
        for (int left = draws_of(p) - 1; left >= 0; left--) {
            a->logit_rows[batch->n_logits] = row - 1 - left;
            a->how[batch->n_logits++] = sampling_of(p->sequence, p->end - left);
        }
    }
    return 0;
}

/* A drawn token becomes the sequence's. */
static int accept(struct generator *g, struct sequence *s, int32_t drawn, const float *logits,
                  const unsigned char *hash, struct error *err) {
    if (sequence_append(s, drawn, err))
        return -1;
    if (s->chain && logits_chain_await(s->chain, g->awaited, hash, err))
        return -1;
    bool may_stop = !g->ignore_stop && !s->ignore_stop && sequence_new_tokens(s) > s->n_forced;
    if (may_stop && model_config_is_stop(&g->model->config, drawn))
        s->finish = FINISH_STOP;
    else if (sequence_new_tokens(s) >= s->max_new)
        s->finish = FINISH_LENGTH;
    else if (s->n_tokens >= g->context)
        s->finish = FINISH_CONTEXT;
    if (g->on_token && g->on_token(g->on_token_context, s, logits, err))
        return -1;
    return g->appended ? g->appended(g->appended_context, s, err) : 0;
}

/* What a part has drawn, from draw `at` of the pass on, becomes its sequence's, as far as it was
 * drafted, and one token more. */
static int accept_part(struct generator *g, const struct pass_part *part,
                       const struct pass_arrays *a, size_t at, struct error *err) {
    struct sequence *s = part->sequence;
    size_t vocab = (size_t)g->model->config.vocab_size;
    int n_draft = draft_of(part), first = part->end - n_draft, i = 0;
    for (bool goes_on = true; goes_on; i++, at++) {
        int32_t id = sequence_new_tokens(s) < s->n_forced ? s->tokens[s->n_tokens] : a->drawn[at];
        const float *logits = a->logits ? a->logits + at * vocab : NULL;
        goes_on = i < n_draft && s->tokens[s->n_tokens] == id;
        s->n_cached = part->cache ? first + i : 0;
        if (accept(g, s, id, logits, forward_hashes(g->ws, at), err))
            return -1;
        goes_on = goes_on && s->finish == FINISH_NOT_YET;
    }
    struct drafting *d = &s->drafting;
    d->proposed += d->last_proposed = n_draft;
    d->accepted += d->last_accepted = i - 1;
    return 0;
}

struct hashing {
    const struct pass_part *parts;
    const struct pass_arrays *arrays;
    int vocab;
};

/* The logits of the tokens that became a sequence's go into its fingerprint. */
static void hash_part(void *context, int part) {
    const struct hashing *h = context;
    struct sequence *s = h->parts[part].sequence;
    const float *row = h->arrays->logits + h->arrays->first_draws[part] * (size_t)h->vocab;
    int n = h->parts[part].draw ? 1 + s->drafting.last_accepted : 0;
    for (int i = 0; i < n; i++, row += h->vocab)
        fingerprint_add_logits(&s->fingerprint, row, h->vocab);
}

static int run(struct generator *g, const struct pass_part *parts, int n, struct batch *batch,
               struct pass_arrays *a, struct error *err) {
    if (fill(batch, a, parts, n, err))
        return -1;
    if (g->fused && parts[0].cache && parts[0].cache->page_table &&
        pass_arrays_add_page_table(a, batch, err))
        return -1;
    if (!forward(g->model, g->ws, batch, g->probe, err))
        return -1;
    if (batch->n_logits && !g->ids_only &&
        !(a->logits = forward_logits(g->ws, batch->n_logits, err)))
        return -1;
    /* What was hashed of the pass before is taken while the device is at this one. */
    if (awaited_hashes_take(g->awaited, err) ||
        forward_finish(g->model, g->ws, batch, a->how, a->drawn, err))
        return -1;
    size_t draw = 0;
    for (int i = 0; i < n; i++) {
        int n_draws = draws_of(&parts[i]);
        a->first_draws[i] = draw;
        parts[i].sequence->n_cached = parts[i].cache ? parts[i].end : 0;
        if (n_draws && accept_part(g, &parts[i], a, draw, err))
            return -1;
        draw += (size_t)n_draws;
    }
    /* For many sequences and words this takes as long as a GPU takes for the pass. */
    if (a->logits)
        g->model->dev->ops->share_out(g->model->dev, n, hash_part,
                                      &(struct hashing){parts, a, g->model->config.vocab_size});
    return 0;
}

int pass_run(struct generator *g, const struct pass_part *parts, int n, struct error *err) {
    struct pass_arrays a = {0};
    size_t n_tokens = 0, n_draws = 0;
    bool hashed = false;
    for (int i = 0; i < n; i++) {
        n_tokens += (size_t)rows_of(&parts[i]);
        n_draws += (size_t)draws_of(&parts[i]);
        hashed = hashed || (parts[i].draw && parts[i].sequence->chain);
    }
    if (!n_tokens)
        return 0;
    a.spread = drafts_are_spread(g, parts, n, n_tokens);
    int result = pass_arrays_get(&a, n_tokens, (size_t)n + n_tokens, n_draws, err);
    if (!result) {
        struct batch batch = {.n_tokens = (int)n_tokens,
                              .token_ids = a.token_ids,
                              .positions = a.positions,
                              .qo_indptr = a.qo_indptr,
                              .logit_rows = a.logit_rows,
                              .hashed = hashed,
                              .caches = parts[0].cache ? a.caches : NULL};
        result = run(g, parts, n, &batch, &a, err);
    }
    pass_arrays_free(&a);
    return result;
}
