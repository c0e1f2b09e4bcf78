#include "scheduler/engine_paged.h"

#include <stdlib.h>

/* ---- what the memory asks of the engine -------------------------------------------------------
 */

static int tokens_of(void *context, int job, const int32_t **tokens) {
    const struct engine_paged *p = context;
    const struct sequence *s = &p->engine->answers[job].sequence;
    *tokens = s->tokens;
    return s->n_tokens;
}

static int most_positions(void *context, int job) {
    const struct engine_paged *p = context;
    const struct request *r = &p->engine->requests[job];
    int64_t most = (int64_t)r->n_prompt + r->max_new - 1;
    return most < p->engine->generator->context ? (int)most : p->engine->generator->context;
}

static void refuse(void *context, int job, const struct error *why, double now) {
    const struct engine_paged *p = context;
    (void)now;
    engine_refuse(p->engine, job, why);
}

/* ---- what the engine asks of the memory -------------------------------------------------------
 */

static int start(void *context, struct engine *e, struct error *err) {
    struct engine_paged *p = context;
    struct paged_owner owner = {tokens_of, most_positions, refuse, p};
    int *fork_of = malloc(sizeof *fork_of * ((size_t)e->n + 1));
    if (!fork_of)
        return error_set(err, "out of memory for %d requests", e->n);
    for (int i = 0; i < e->n; i++) {
        int back = e->requests[i].fork_back;
        fork_of[i] = back > 0 && back <= i ? i - back : -1;
    }
    p->engine = e;
    int result = paged_memory_start(&p->blocks, p->pool, &e->scheduler, e->n, fork_of, &p->options,
                                    &owner, err);
    free(fork_of);
    return result;
}

static int check(void *context, struct error *err) {
    const struct engine_paged *p = context;
    return p->blocks.failed ? error_set(err, "%s", p->blocks.failure.text) : 0;
}

static struct kv_cache *cache(void *context, int request, int *n_cached) {
    struct engine_paged *p = context;
    *n_cached = paged_memory_positions(&p->blocks, request);
    return paged_memory_cache(&p->blocks, request);
}

static void stored(void *context, int request, int n_positions) {
    struct engine_paged *p = context;
    paged_memory_stored(&p->blocks, request, n_positions);
}

static void release(void *context, int request) {
    struct engine_paged *p = context;
    if (p->blocks.jobs)
        paged_memory_release(&p->blocks, request);
}

static int blocks_in_use(void *context) {
    const struct engine_paged *p = context;
    return p->pool->blocks.stats.used;
}

void engine_paged_start(struct engine_paged *p, struct kv_pool *pool,
                        const struct paged_options *options) {
    *p = (struct engine_paged){
        .memory = {start, check, cache, stored, release, blocks_in_use, pool->bytes_per_block, p},
        .pool = pool,
        .options = *options};
}

void engine_paged_end(struct engine_paged *p) {
    paged_memory_end(&p->blocks);
    *p = (struct engine_paged){0};
}
