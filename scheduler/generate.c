#include "scheduler/generate.h"

#include "scheduler/draft.h"
#include "scheduler/pass.h"

int generator_start(struct generator *g, struct model *model, struct error *err) {
    *g = (struct generator){.model = model, .context = model->config.max_positions, .chunk = 128};
    g->awaited = awaited_hashes_new(model->dev, err);
    g->ws = g->awaited ? workspace_new(model, err) : NULL;
    return g->ws ? 0 : -1;
}

void generator_end(struct generator *g) {
    workspace_free(g->ws);
    awaited_hashes_free(g->awaited);
    g->ws = NULL;
    g->awaited = NULL;
}

bool generator_signalled(const struct generator *g) {
    return g->interrupted && *g->interrupted;
}

bool generator_interrupted(const struct generator *g) {
    bool ends = generator_signalled(g);
    parallel_broadcast(g->model ? g->model->parallel : NULL, &ends, sizeof ends);
    return ends;
}

int generator_check_prompt(const struct generator *g, const struct sequence *s, struct error *err) {
    if (!s->n_tokens)
        return error_set(err, "the prompt is empty: there is nothing to continue");
    if (s->n_tokens >= g->context)
        return error_set(err, "the prompt has %d tokens and needs one more, but the context is %d",
                         s->n_tokens, g->context);
    return 0;
}

int generate(struct generator *g, struct sequence *s, struct kv_cache *cache, struct error *err) {
    if (generator_check_prompt(g, s, err))
        return -1;
    while (s->finish == FINISH_NOT_YET) {
        if (generator_interrupted(g)) {
            s->finish = FINISH_CANCELLED;
            break;
        }
        /* Without a cache everything is read again, in one pass. */
        int first = cache ? s->n_cached : 0, left = s->n_tokens - first;
        bool all = !cache || left <= g->chunk;
        int most = s->max_new - sequence_new_tokens(s) - 1, room = g->context - s->n_tokens - 1;
        most = most < room ? most : room;
        if (all && cache && drafter_propose(g->drafter, &s, &most, 1, err))
            return -1;
        int end = all ? s->n_tokens + s->n_draft : first + g->chunk;
        struct pass_part part = {s, cache, first, end, 0, all};
        if (pass_run(g, &part, 1, err))
            return -1;
    }
    return 0;
}
