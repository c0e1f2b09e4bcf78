#include "tutorials/common/paged.h"

#include "tutorials/common/contiguous.h"
#include "tutorials/common/pool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- one sequence alone: a pool of its own --------------------------------------------------- */

static int block_size = 16;
static enum kv_type kv_type;

void paged_begin(const struct demo *demo) {
    block_size = demo->options.block_size;
    kv_type = demo->options.kv_type;
}

struct alone {
    struct kv_paged cache; /* first: the demo has its address */
    struct kv_pool pool;
};

static struct kv_cache *alone_new(const struct model *model, int context, struct error *err) {
    struct kv_pool_options options = {
        .block_size = block_size, .n_blocks = blocks_for(context, block_size), .type = kv_type};
    struct alone *a = calloc(1, sizeof *a);
    if (!a) {
        error_set(err, "out of memory for a cache");
        return NULL;
    }
    if (kv_pool_start(&a->pool, model, &options, err) ||
        kv_paged_start(&a->cache, &a->pool, NULL, err)) {
        kv_pool_end(&a->pool);
        free(a);
        return NULL;
    }
    a->cache.base.bytes = a->pool.bytes;
    return &a->cache.base;
}

static void alone_free(struct kv_cache *cache) {
    struct alone *a = (struct alone *)cache;
    kv_paged_end(&a->cache);
    kv_pool_end(&a->pool);
    free(a);
}

const struct cache_kind paged_caches[2] = {{"paged", alone_new, alone_free}, {NULL, NULL, NULL}};

/* ---- many requests --------------------------------------------------------------------------- */

static int measure(const struct engine *e, struct paged_run *run, struct error *err) {
    struct engine_metrics m;
    if (engine_measure(e, &m, err) || engine_fingerprint(e, &run->fingerprint, err))
        return -1;
    run->seconds = m.seconds;
    run->tokens_per_second = m.tokens_per_second;
    run->ttft = m.ttft.mean;
    run->passes = e->passes;
    run->cache_bytes = e->most_cache_bytes;
    for (int i = 0; i < e->n; i++) {
        const struct job *j = &e->scheduler.jobs[i];
        run->all_first = j->first > run->all_first ? j->first : run->all_first;
        run->all_done = j->done > run->all_done ? j->done : run->all_done;
    }
    return 0;
}

int paged_run_pool(struct demo *demo, const struct workload *w, int n_blocks,
                   const struct paged_options *paged_options, const struct serving *serving,
                   struct paged_run *run, struct error *err) {
    struct serving from_pool = *serving;
    struct kv_pool pool;
    struct paged_memory paged;
    struct engine e = {0};
    struct kv_pool_options options = {.block_size = demo->options.block_size,
                                      .n_blocks = n_blocks,
                                      .type = demo->options.kv_type};
    *run = (struct paged_run){0};
    if (n_blocks ? kv_pool_start(&pool, &demo->model, &options, err)
                 : demo_pool_start(demo, &pool, 0, err))
        return -1;
    paged_memory_start(&paged, &pool, paged_options);
    from_pool.memory = &paged.base;
    int result = serve_all(demo, w, &from_pool, &e, err) || measure(&e, run, err);
    run->stats = paged.stats;
    run->most_used = pool.blocks.stats.most_used;
    engine_end(&e);
    paged_memory_end(&paged);
    kv_pool_end(&pool);
    return result ? -1 : 0;
}

int paged_run_own_caches(struct demo *demo, const struct workload *w, const struct serving *serving,
                         struct paged_run *run, struct error *err) {
    struct serving own = *serving;
    struct engine e = {0};
    own.cache = &contiguous_caches[DYNAMIC];
    *run = (struct paged_run){0};
    int result = serve_all(demo, w, &own, &e, err) || measure(&e, run, err);
    engine_end(&e);
    return result ? -1 : 0;
}

int paged_same_bits(const struct paged_run *a, const struct paged_run *b, struct error *err) {
    return a->fingerprint == b->fingerprint
               ? 0
               : demo_other_bits("one run", a->fingerprint, "another of the same requests",
                                 b->fingerprint, err);
}

int paged_most_blocks(const struct demo *demo, const struct request *r) {
    int64_t positions = (int64_t)r->n_prompt + r->max_new + 1;
    int context = demo->generator.context;
    return blocks_for(positions < context ? (int)positions : context, demo->options.block_size);
}

int paged_enough_blocks(const struct demo *demo, const struct workload *w) {
    int64_t n = 0;
    for (int i = 0; i < w->n; i++)
        n += paged_most_blocks(demo, &w->requests[i]);
    return n < INT_MAX ? (int)n : INT_MAX;
}

int paged_table_blocks(const struct demo *demo, const struct workload *w) {
    const struct options *o = &demo->options;
    return o->kv_blocks || o->kv_memory ? 0 : paged_enough_blocks(demo, w);
}

/* ---- --prompts and --random ------------------------------------------------------------------ */

static void show_pool(struct demo *demo, const struct kv_pool *pool, const struct paged_stats *s) {
    static const struct column columns[] = {
        {"blocks", "blocks", 0, 0},           {"most", "most used", 0, 0},
        {"preemptions", "preemptions", 0, 0}, {"again", "tokens read again", 0, 0},
        {"swapped", "tokens swapped", 0, 0},  {"prompt", "prompt tokens", 0, 0},
        {"shared", "of them shared", 0, 0}};
    json_t *rows = json_array();
    json_array_append_new(rows, json_pack("[iiiiiii]", pool->blocks.stats.total,
                                          pool->blocks.stats.most_used, (int)s->preemptions,
                                          (int)s->recomputed, (int)s->swapped, (int)s->looked_up,
                                          (int)s->shared));
    demo_table(demo, "pool", "The pool", columns, 7, rows);
}

int paged_prompts(struct demo *demo, struct error *err) {
    struct kv_pool pool;
    struct paged_memory paged;
    struct serving serving = serving_of(demo);
    struct paged_options options = {(enum preempt_mode)demo->options.preempt,
                                    !demo->options.no_prefix_cache};
    if (demo_pool_start(demo, &pool, 0, err))
        return -1;
    paged_memory_start(&paged, &pool, &options);
    serving.memory = &paged.base;
    int result = serve_requests(demo, demo->options.prompts, &serving, err);
    if (!result)
        show_pool(demo, &pool, &paged.stats);
    paged_memory_end(&paged);
    kv_pool_end(&pool);
    return result;
}
