/*
 * Phase 7: the paged cache. All requests have their keys and values in blocks of one pool. When it
 * runs dry, the latest gives its blocks to the others and comes back later; requests that begin
 * alike share blocks. The first table shows the memory, the second what it costs in time to gather
 * a sequence from its blocks, the third a pool that is too small, the last prefixes.
 */
#include "scheduler/engine_paged.h"
#include "scheduler/kv_contiguous.h"
#include "tutorials/common/pool.h"
#include "tutorials/common/serve.h"

#include <stdio.h>
#include <stdlib.h>

static const char mixed_prompts[] = "data/prompts/mixed.jsonl";
static const char shared_prompts[] = "data/prompts/shared.jsonl";

/* ---- one sequence alone: a pool of its own -----------------------------------------------------
 */

static int block_size = 16;

static void begin(const struct demo *demo) {
    block_size = demo->options.block_size;
}

struct alone {
    struct kv_paged cache; /* first: the demo has its address */
    struct kv_pool pool;
};

static struct kv_cache *alone_new(const struct model *model, int context, struct error *err) {
    struct kv_pool_options options = {.block_size = block_size,
                                      .n_blocks = blocks_for(context, block_size)};
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

static const struct cache_kind caches[] = {{"paged", alone_new, alone_free}};

/* ---- many requests in one pool ----------------------------------------------------------------
 */

/* What a run in a pool was like. */
struct run {
    double seconds, tokens_per_second, ttft;
    struct paged_stats stats;
    int most_used;
    uint64_t fingerprint;
};

static int measure(const struct engine *e, struct run *run, struct error *err) {
    struct engine_metrics m;
    if (engine_measure(e, &m, err) || engine_fingerprint(e, &run->fingerprint, err))
        return -1;
    run->seconds = m.seconds;
    run->tokens_per_second = m.tokens_per_second;
    run->ttft = m.ttft.mean;
    return 0;
}

/* Serves the workload from a pool of n_blocks (0: what the options say). */
static int run_paged(struct demo *demo, const struct workload *w, int n_blocks,
                     const struct paged_options *paged_options, struct run *run,
                     struct error *err) {
    struct kv_pool pool;
    struct engine_paged paged;
    struct engine e = {0};
    struct kv_pool_options options = {.block_size = demo->options.block_size, .n_blocks = n_blocks};
    if (n_blocks ? kv_pool_start(&pool, &demo->model, &options, err)
                 : demo_pool_start(demo, &pool, 0, err))
        return -1;
    *run = (struct run){0};
    engine_paged_start(&paged, &pool, paged_options);
    demo->memory = &paged.memory;
    int result = serve_run(demo, w, true, &e, NULL, err) || measure(&e, run, err);
    demo->memory = NULL;
    run->stats = paged.blocks.stats;
    run->most_used = pool.blocks.stats.most_used;
    engine_end(&e);
    engine_paged_end(&paged);
    kv_pool_end(&pool);
    return result ? -1 : 0;
}

/* The same in caches of their own. */
static int run_contiguous(struct demo *demo, const struct workload *w, struct run *run,
                          int64_t *bytes, struct error *err) {
    static const struct cache_kind dynamic[] = {{"dynamic", kv_dynamic_new, kv_cache_free}};
    struct phase with_dynamic = *demo->phase;
    const struct phase *phase = demo->phase;
    struct engine e = {0};
    with_dynamic.caches = dynamic;
    demo->phase = &with_dynamic;
    *run = (struct run){0};
    int result = serve_run(demo, w, true, &e, NULL, err) || measure(&e, run, err);
    demo->phase = phase;
    *bytes = e.most_cache_bytes;
    engine_end(&e);
    return result ? -1 : 0;
}

static struct paged_options paged_options_of(const struct demo *demo) {
    return (struct paged_options){demo->options.swap ? PREEMPT_SWAP : PREEMPT_RECOMPUTE,
                                  !demo->options.no_prefix_cache};
}

static int same_bits(const struct run *a, const struct run *b, struct error *err) {
    if (a->fingerprint == b->fingerprint)
        return 0;
    return error_set(err,
                     "two runs of the same requests have fingerprints %016llx and %016llx. "
                     "This is a bug",
                     (unsigned long long)a->fingerprint, (unsigned long long)b->fingerprint);
}

/* ---- the tables -------------------------------------------------------------------------------
 */

/* Room for every request at its longest: no run can need more. */
static int enough_blocks(const struct demo *demo, const struct workload *w) {
    int n = 0;
    for (int i = 0; i < w->n; i++) {
        int positions = w->requests[i].n_prompt + w->requests[i].max_new + 1;
        positions = positions < demo->generator.context ? positions : demo->generator.context;
        n += blocks_for(positions, demo->options.block_size);
    }
    return n;
}

static int longest_request(const struct demo *demo, const struct workload *w) {
    int longest = 0;
    for (int i = 0; i < w->n; i++) {
        int positions = w->requests[i].n_prompt + w->requests[i].max_new + 1;
        positions = positions < demo->generator.context ? positions : demo->generator.context;
        int n = blocks_for(positions, demo->options.block_size);
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Memory and speed at this many requests at once. */
static int compare(struct demo *demo, const struct workload *w, int running, json_t *rows,
                   struct error *err) {
    const struct model_config *c = &demo->model.config;
    struct paged_options options = {PREEMPT_RECOMPUTE, false}; /* nothing shared: a fair race */
    struct run own, paged;
    int64_t own_bytes;
    int chosen = demo->options.max_running;
    demo->options.max_running = running;
    int result = run_contiguous(demo, w, &own, &own_bytes, err) ||
                 run_paged(demo, w, enough_blocks(demo, w), &options, &paged, err);
    demo->options.max_running = chosen;
    if (result)
        return -1;
    if (demo_interrupted(demo))
        return 0;
    double block = (double)c->n_layers *
                   (double)kv_layer_bytes(demo->options.block_size, c->n_kv_heads, c->head_dim);
    double reserved = (double)running * c->n_layers *
                      (double)kv_layer_bytes(demo->generator.context, c->n_kv_heads, c->head_dim);
    json_array_append_new(rows,
                          json_pack("{si sf sf sf sf sf sf}", "running", running, "static_mb",
                                    reserved / 1e6, "dynamic_mb", (double)own_bytes / 1e6,
                                    "paged_mb", paged.most_used * block / 1e6, "own_tok_s",
                                    own.tokens_per_second, "paged_tok_s", paged.tokens_per_second,
                                    "slower", own.tokens_per_second / paged.tokens_per_second));
    return same_bits(&own, &paged, err);
}

static int memory_and_speed(struct demo *demo, const struct workload *w, struct error *err) {
    static const int sizes[] = {1, 2, 4, 8, 16, 32};
    static const struct column columns[] = {{"running", "at once", 0},
                                            {"static_mb", "static MB", 1},
                                            {"dynamic_mb", "dynamic MB", 1},
                                            {"paged_mb", "paged MB", 1},
                                            {"own_tok_s", "dynamic tok/s", 1},
                                            {"paged_tok_s", "paged tok/s", 1},
                                            {"slower", "paged ms / dynamic ms", 2}};
    json_t *rows = json_array();
    int result = 0;
    for (int i = 0; !result && i < 6 && !demo_interrupted(demo); i++)
        result = compare(demo, w, sizes[i], rows, err);
    if (result) {
        json_decref(rows);
        return -1;
    }
    demo_table(demo, "memory_and_speed",
               "Phase 7: caches of their own and one pool, at the fullest moment", columns, 7,
               rows);
    return 0;
}

/* A pool of ever fewer blocks, and both ways to give way. */
static int shrinking_pool(struct demo *demo, const struct workload *w, struct error *err) {
    static const int percents[] = {100, 75, 50, 0};
    static const struct column columns[] = {
        {"blocks", "blocks", 0},           {"percent", "of what is needed %", 0},
        {"how", "preempted", -1},          {"preemptions", "times", 0},
        {"again", "tokens read again", 0}, {"swapped", "tokens swapped", 0},
        {"seconds", "seconds", 2},         {"tok_s", "tok/s", 1}};
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct run first, run;
    json_t *rows = json_array();
    int result = run_paged(demo, w, enough_blocks(demo, w), &options, &first, err);
    int needed = first.most_used, least = longest_request(demo, w);
    for (int i = 0; i < 8 && !result && !demo_interrupted(demo); i++) {
        int n = needed * percents[i / 2] / 100;
        n = n < least ? least : n;
        options.preempt = i % 2 ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
        result = run_paged(demo, w, n, &options, &run, err);
        if (result || demo_interrupted(demo))
            break;
        result = same_bits(&first, &run, err);
        json_array_append_new(rows, json_pack("{si si ss si si si sf sf}", "blocks", n, "percent",
                                              100 * n / needed, "how", i % 2 ? "swap" : "recompute",
                                              "preemptions", (int)run.stats.preemptions, "again",
                                              (int)run.stats.recomputed, "swapped",
                                              (int)run.stats.swapped, "seconds", run.seconds,
                                              "tok_s", run.tokens_per_second));
    }
    if (result) {
        json_decref(rows);
        return -1;
    }
    demo_table(demo, "shrinking_pool", "The pool shrinks; the bits stay", columns, 8, rows);
    return 0;
}

/* Requests with the same system message, with and without the prefix cache. */
static int prefixes(struct demo *demo, struct error *err) {
    static const struct column columns[] = {
        {"cache", "prefix cache", -1}, {"prompt", "prompt tokens", 0}, {"shared", "shared", 0},
        {"read", "read", 0},           {"ttft_ms", "TTFT ms", 1},      {"blocks", "most blocks", 0},
        {"seconds", "seconds", 2}};
    struct workload w;
    struct run runs[2];
    json_t *rows = json_array();
    int result = demo_read_requests(demo, shared_prompts, &w, err);
    for (int i = 0; i < 2 && !result && !demo_interrupted(demo); i++) {
        struct paged_options options = {PREEMPT_RECOMPUTE, i == 1};
        result = run_paged(demo, &w, enough_blocks(demo, &w), &options, &runs[i], err);
        if (result || demo_interrupted(demo))
            break;
        const struct paged_stats *s = &runs[i].stats;
        json_array_append_new(rows, json_pack("{ss si si si sf si sf}", "cache", i ? "on" : "off",
                                              "prompt", (int)s->looked_up, "shared", (int)s->shared,
                                              "read", (int)(s->looked_up - s->shared), "ttft_ms",
                                              runs[i].ttft * 1e3, "blocks", runs[i].most_used,
                                              "seconds", runs[i].seconds));
        result = i ? same_bits(&runs[0], &runs[1], err) : 0;
    }
    workload_free(&w);
    if (result) {
        json_decref(rows);
        return -1;
    }
    demo_table(demo, "prefixes", "Requests with the same system message", columns, 7, rows);
    return 0;
}

/* Every request of the file twice, so that 32 can run at once. */
static int twice(struct workload *w, const struct demo *demo, struct error *err) {
    struct workload more;
    int result = demo_read_requests(demo, mixed_prompts, w, err);
    if (!result && !(result = demo_read_requests(demo, mixed_prompts, &more, err)))
        result = workload_append(w, &more, err);
    return result;
}

static int tables(struct demo *demo, struct error *err) {
    struct workload once, doubled;
    int result = twice(&doubled, demo, err) || memory_and_speed(demo, &doubled, err);
    workload_free(&doubled);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    result = demo_read_requests(demo, mixed_prompts, &once, err) ||
             shrinking_pool(demo, &once, err) || demo_interrupted(demo) || prefixes(demo, err);
    workload_free(&once);
    return result && !demo_interrupted(demo) ? -1 : 0;
}

/* ---- --prompts and --random -------------------------------------------------------------------
 */

static void show_pool(struct demo *demo, const struct kv_pool *pool, const struct paged_stats *s) {
    static const struct column columns[] = {
        {"blocks", "blocks", 0},           {"most", "most used", 0},
        {"preemptions", "preemptions", 0}, {"again", "tokens read again", 0},
        {"swapped", "tokens swapped", 0},  {"prompt", "prompt tokens", 0},
        {"shared", "of them shared", 0}};
    json_t *rows = json_array();
    json_array_append_new(
        rows, json_pack("{si si si si si si si}", "blocks", pool->blocks.stats.total, "most",
                        pool->blocks.stats.most_used, "preemptions", (int)s->preemptions, "again",
                        (int)s->recomputed, "swapped", (int)s->swapped, "prompt", (int)s->looked_up,
                        "shared", (int)s->shared));
    demo_table(demo, "pool", "The pool", columns, 7, rows);
}

static int run_prompts(struct demo *demo, struct error *err) {
    struct kv_pool pool;
    struct engine_paged paged;
    struct paged_options options = paged_options_of(demo);
    if (demo_pool_start(demo, &pool, 0, err))
        return -1;
    engine_paged_start(&paged, &pool, &options);
    demo->memory = &paged.memory;
    int result = serve_prompts(demo, demo->options.prompts, true, err);
    if (!result)
        show_pool(demo, &pool, &paged.blocks.stats);
    demo->memory = NULL;
    engine_paged_end(&paged);
    kv_pool_end(&pool);
    return result;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 7,
        .title = "paged cache",
        .about = "All sequences have their keys and values in blocks of one pool.",
        .caches = caches,
        .n_caches = 1,
        .tables = tables,
        .prompts = run_prompts,
        .begin = begin,
    };
    return demo_main(argc, argv, &phase);
}
