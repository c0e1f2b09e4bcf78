/*
 * Phase 8: one pass for everyone. A step is one forward pass for all running requests, decodes and
 * pieces of prompts together, and attention reads keys and values through the block tables, where
 * they lie. The first table is what that gains, the second what the users of a mixed workload see
 * of it, the third where the time of a pass goes.
 */
#include "scheduler/kv_contiguous.h"
#include "tutorials/common/group.h"
#include "tutorials/common/op_times.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/policies.h"
#include "tutorials/common/pool.h"
#include "tutorials/common/serve.h"
#include "tutorials/common/terminal.h"

#include <stdlib.h>
#include <string.h>

static const char prompt[] = "Describe the history of the Roman Empire in significant detail.";
static const char mixed_prompts[] = "data/prompts/mixed.jsonl";

enum { MOST = 64, NEW_TOKENS = 64, TIMED_SEQUENCES = 16 };

/* ---- equal prompts ----------------------------------------------------------------------------
 */

/* n times the same request, all at once. */
static int equal_requests(const struct demo *demo, struct workload *w, int n, struct error *err) {
    int32_t *ids;
    size_t n_ids;
    *w = (struct workload){0};
    if (demo_encode_prompt(demo, prompt, &ids, &n_ids, err))
        return -1;
    w->requests = calloc((size_t)n, sizeof *w->requests);
    w->titles = calloc((size_t)n, sizeof *w->titles);
    for (; w->requests && w->titles && w->n < n; w->n++) {
        int32_t *copy = malloc(sizeof *copy * n_ids);
        if (!copy)
            break;
        memcpy(copy, ids, sizeof *copy * n_ids);
        w->requests[w->n] = (struct request){.prompt = copy,
                                             .n_prompt = (int)n_ids,
                                             .max_new = NEW_TOKENS,
                                             .sampling = demo->options.sampling};
    }
    free(ids);
    return w->n == n ? 0 : error_set(err, "out of memory for %d requests", n);
}

/* The naive batch of phase 2. */
static int run_naive(struct demo *demo, const struct workload *w, double *tokens_per_second,
                     struct error *err) {
    static const struct cache_kind dynamic[] = {{"dynamic", kv_dynamic_new, kv_cache_free}};
    struct phase with_dynamic = *demo->phase;
    const struct phase *phase = demo->phase;
    struct group g = {0};
    struct naive_waste waste;
    with_dynamic.caches = dynamic;
    demo->phase = &with_dynamic;
    double start = clock_now();
    int result =
        group_start(demo, &g, w->requests, w->n, 0, err) || group_answer(demo, &g, &waste, err);
    *tokens_per_second = (double)w->n * NEW_TOKENS / (clock_now() - start);
    group_end(demo, &g);
    demo->phase = phase;
    return result ? -1 : 0;
}

/* n equal requests in the way of phases 2, 4, 7 and 8. */
static int measure(struct demo *demo, int n, json_t *rows, struct error *err) {
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct paged_run own = {0}, paged = {0}, fused = {0};
    struct workload w;
    int64_t bytes;
    double naive = 0;
    int chosen = demo->options.max_running;
    demo->options.max_running = n;
    demo->generator.ignore_stop = true;
    int result = equal_requests(demo, &w, n, err) || run_naive(demo, &w, &naive, err);
    demo->generator.fused = false;
    result = result || paged_run_own_caches(demo, &w, &own, &bytes, err) ||
             paged_run_pool(demo, &w, paged_enough_blocks(demo, &w), &options, &paged, err);
    demo->generator.fused = true;
    result =
        result || paged_run_pool(demo, &w, paged_enough_blocks(demo, &w), &options, &fused, err);
    demo->generator.ignore_stop = false;
    demo->options.max_running = chosen;
    workload_free(&w);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    json_array_append_new(rows,
                          json_pack("{si sf sf sf sf sf sf}", "sequences", n, "naive", naive, "own",
                                    own.tokens_per_second, "paged", paged.tokens_per_second,
                                    "fused", fused.tokens_per_second, "times",
                                    fused.tokens_per_second / paged.tokens_per_second, "ms",
                                    1e3 * n / fused.tokens_per_second));
    return paged_same_bits(&own, &fused, err) || paged_same_bits(&paged, &fused, err) ? -1 : 0;
}

static int throughput(struct demo *demo, struct error *err) {
    static const struct column columns[] = {
        {"sequences", "sequences", 0}, {"naive", "phase 2 tok/s", 1}, {"own", "phase 4 tok/s", 1},
        {"paged", "phase 7 tok/s", 1}, {"fused", "phase 8 tok/s", 1}, {"times", "8 : 7", 2},
        {"ms", "ms a step", 2}};
    json_t *rows = json_array();
    struct progress_bar bar = progress_bar_start("measuring");
    int result = measure(demo, 1, rows, err); /* warms up */
    json_array_clear(rows);
    for (int n = 1; !result && n <= MOST && !demo_interrupted(demo); n *= 2) {
        result = measure(demo, n, rows, err);
        progress_bar_update(&bar, (size_t)n, MOST);
    }
    progress_bar_end(&bar);
    if (result) {
        json_decref(rows);
        return -1;
    }
    demo_table(demo, "throughput", "Phase 8: equal prompts, 64 new tokens each, of all sequences",
               columns, 7, rows);
    return 0;
}

/* ---- the mixed workload -----------------------------------------------------------------------
 */

/* Static batches beside continuous batching in one pass. */
static int latency(struct demo *demo, struct error *err) {
    static const struct cache_kind dynamic[] = {{"dynamic", kv_dynamic_new, kv_cache_free}};
    struct phase with_dynamic = *demo->phase; /* for the static batches */
    const struct phase *phase = demo->phase;
    struct paged_options options = {PREEMPT_RECOMPUTE, true};
    struct paged_memory paged;
    struct kv_pool pool;
    struct workload w;
    int result = demo_read_requests(demo, mixed_prompts, &w, err) ||
                 demo_pool_start(demo, &pool, paged_enough_blocks(demo, &w), err);
    if (result) {
        workload_free(&w);
        return -1;
    }
    paged_memory_start(&paged, &pool, &options);
    with_dynamic.caches = dynamic;
    demo->phase = &with_dynamic;
    demo->memory = &paged.base;
    result = demo_compare_policies(demo, &w, err);
    demo->memory = NULL;
    demo->phase = phase;
    paged_memory_end(&paged);
    kv_pool_end(&pool);
    workload_free(&w);
    return result ? -1 : 0;
}

/* ---- where the time goes ----------------------------------------------------------------------
 */

static int op_times(struct demo *demo, struct error *err) {
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct kv_pool pool;
    struct paged_memory paged;
    struct engine e = {0};
    struct workload w;
    int chosen = demo->options.max_running;
    if (equal_requests(demo, &w, TIMED_SEQUENCES, err) ||
        demo_pool_start(demo, &pool, paged_enough_blocks(demo, &w), err)) {
        workload_free(&w);
        return -1;
    }
    paged_memory_start(&paged, &pool, &options);
    demo->memory = &paged.base;
    demo->options.max_running = TIMED_SEQUENCES;
    demo->generator.ignore_stop = true;
    op_times_start(demo);
    int result = serve_all(demo, &w, &e, err);
    op_times_show(demo, "Where the time goes: 16 sequences, every op waited for", e.passes);
    demo->generator.ignore_stop = false;
    demo->options.max_running = chosen;
    demo->memory = NULL;
    engine_end(&e);
    paged_memory_end(&paged);
    kv_pool_end(&pool);
    workload_free(&w);
    return result ? -1 : 0;
}

static int tables(struct demo *demo, struct error *err) {
    if (throughput(demo, err))
        return -1;
    if (demo_interrupted(demo))
        return 0;
    if (latency(demo, err))
        return -1;
    return demo_interrupted(demo) ? 0 : op_times(demo, err);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 8,
        .title = "fused attention",
        .about = "A step is one pass for all; attention reads through the block tables.",
        .caches = paged_caches,
        .n_caches = 1,
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
    };
    return demo_main(argc, argv, &phase);
}
