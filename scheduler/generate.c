#include "scheduler/generate.h"

#include <stdlib.h>

int generator_start(struct generator *g, struct model *model, struct error *err) {
    *g = (struct generator){.model = model, .context = model->config.max_positions, .chunk = 128};
    g->ws = workspace_new(model, err);
    return g->ws ? 0 : -1;
}

void generator_end(struct generator *g) {
    workspace_free(g->ws);
    g->ws = NULL;
}

/* Reads tokens first ... end-1 of s in one pass. With `drawn`, draws the token that follows them
 * and gives its logits (host, [vocab_size]). */
static int read_tokens(struct generator *g, struct sequence *s, struct kv_cache *cache, int first,
                       int end, int32_t *drawn, float *logits, struct error *err) {
    int32_t n = end - first, last_row = n - 1;
    int32_t *positions = malloc(sizeof *positions * (size_t)n);
    if (!positions)
        return error_set(err, "out of memory");
    for (int i = 0; i < n; i++)
        positions[i] = first + i;
    struct batch batch = {.n_tokens = n,
                          .n_sequences = 1,
                          .n_logits = drawn ? 1 : 0,
                          .token_ids = s->tokens + first,
                          .positions = positions,
                          .qo_indptr = (int32_t[]){0, n},
                          .logit_rows = &last_row,
                          .caches = cache ? &cache : NULL};
    struct sampling how = {s->sampling.temperature,
                           s->sampling.top_k,
                           s->sampling.top_p,
                           s->sampling.seed,
                           s->id,
                           (uint32_t)end};
    int result = -1;
    if (cache && cache->reserve(cache, end, err))
        goto done;
    const float *on_device = forward(g->model, g->ws, &batch, g->probe, err);
    if (!on_device)
        goto done;
    if (drawn) /* before forward_finish, which tells when a copy has failed, too */
        g->model->dev->ops->download(g->model->dev, logits, on_device,
                                     sizeof *logits * (size_t)g->model->config.vocab_size);
    if (forward_finish(g->model, g->ws, &batch, &how, drawn, err))
        goto done;
    s->n_cached = cache ? end : 0;
    result = 0;
done:
    free(positions);
    return result;
}

static bool is_stop(const struct model_config *config, int32_t id) {
    for (int i = 0; i < config->n_stop_ids; i++)
        if (config->stop_ids[i] == id)
            return true;
    return false;
}

/* Draws one token. */
static int step(struct generator *g, struct sequence *s, struct kv_cache *cache, float *logits,
                struct error *err) {
    int32_t drawn;
    if (cache)
        while (s->n_tokens - s->n_cached > g->chunk)
            if (read_tokens(g, s, cache, s->n_cached, s->n_cached + g->chunk, NULL, NULL, err))
                return -1;
    if (read_tokens(g, s, cache, s->n_cached, s->n_tokens, &drawn, logits, err) ||
        sequence_append(s, drawn, err))
        return -1;
    fingerprint_add_logits(&s->fingerprint, logits, g->model->config.vocab_size);
    if (is_stop(&g->model->config, drawn) && !g->ignore_stop)
        s->finish = FINISH_STOP;
    else if (sequence_new_tokens(s) >= s->max_new)
        s->finish = FINISH_LENGTH;
    else if (s->n_tokens >= g->context)
        s->finish = FINISH_CONTEXT;
    return g->on_token ? g->on_token(g->on_token_context, s, logits, err) : 0;
}

int generate(struct generator *g, struct sequence *s, struct kv_cache *cache, struct error *err) {
    if (!s->n_tokens)
        return error_set(err, "the prompt is empty: there is nothing to continue");
    if (s->n_tokens >= g->context)
        return error_set(err, "the prompt has %d tokens and needs one more, but the context is %d",
                         s->n_tokens, g->context);
    float *logits = malloc(sizeof *logits * (size_t)g->model->config.vocab_size);
    if (!logits)
        return error_set(err, "out of memory");
    int result = 0;
    while (!result && s->finish == FINISH_NOT_YET)
        result = step(g, s, cache, logits, err);
    free(logits);
    return result;
}
