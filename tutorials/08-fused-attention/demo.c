/*
 * Phase 8: one pass for everyone. A step is one forward pass for all running requests, decodes and
 * pieces of prompts together, and attention reads keys and values through the block tables, where
 * they lie. The first table is what that gains, the second what the users of a mixed workload see
 * of it, the third where the time of a pass goes.
 */
#include "tutorials/common/contiguous.h"
#include "tutorials/common/group.h"
#include "tutorials/common/op_times.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/policies.h"
#include "tutorials/common/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, NEW_TOKENS = 64, QUICK_MOST = 8, QUICK_TOKENS = 16, TIMED_SEQUENCES = 16 };

static int new_tokens(const struct demo *demo) {
    return demo->options.quick ? QUICK_TOKENS : NEW_TOKENS;
}

/* ---- equal prompts --------------------------------------------------------------------------- */

/* n times the same request, all at once. */
static int equal_requests(const struct demo *demo, struct workload *w, int n, struct error *err) {
    int32_t *ids;
    size_t n_ids;
    if (demo_encode_prompt(demo, demo_prompt, &ids, &n_ids, err))
        return -1;
    while (w->n < n) {
        struct request *r = workload_add(w, err);
        if (!r || !(r->prompt = malloc(sizeof *ids * n_ids)))
            break;
        memcpy(r->prompt, ids, sizeof *ids * n_ids);
        r->n_prompt = (int)n_ids;
        r->max_new = new_tokens(demo);
        r->sampling = demo->options.sampling;
    }
    free(ids);
    bool complete = w->n == n && w->requests[n - 1].prompt;
    return complete ? 0 : error_set(err, "out of memory for %d requests", n);
}

/* The naive batch of phase 2. */
static int run_naive(struct demo *demo, const struct workload *w, double *tokens_per_second,
                     struct error *err) {
    struct group g = {0};
    struct naive_waste waste;
    double start = clock_now();
    int result = group_start(demo, &g, w->requests, w->n, 0, &contiguous_caches[DYNAMIC], err) ||
                 group_answer(demo, &g, &waste, err);
    *tokens_per_second = (double)w->n * new_tokens(demo) / (clock_now() - start);
    group_end(&g);
    return result ? -1 : 0;
}

/* n equal requests, served as in phases 2, 4, 7 and 8. */
static int measure(struct demo *demo, int n, bool show, struct error *err) {
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct paged_run own = {0}, paged = {0}, fused = {0};
    struct serving one_pass = serving_of(demo), many_passes;
    struct workload w = {0};
    double naive = 0;
    one_pass.max_running = n;
    many_passes = one_pass;
    many_passes.fused = false;
    demo->generator.ignore_stop = true;
    int result =
        equal_requests(demo, &w, n, err) || run_naive(demo, &w, &naive, err) ||
        paged_run_own_caches(demo, &w, &many_passes, &own, err) ||
        paged_run_pool(demo, &w, paged_enough_blocks(demo, &w), &options, &many_passes, &paged,
                       err) ||
        paged_run_pool(demo, &w, paged_enough_blocks(demo, &w), &options, &one_pass, &fused, err);
    demo->generator.ignore_stop = false;
    workload_free(&w);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    if (show)
        demo_table_row(demo, json_pack("[iffffff]", n, naive, own.tokens_per_second,
                                       paged.tokens_per_second, fused.tokens_per_second,
                                       fused.tokens_per_second / paged.tokens_per_second,
                                       1e3 * n / fused.tokens_per_second));
    return paged_same_bits(&own, &fused, err) || paged_same_bits(&paged, &fused, err) ? -1 : 0;
}

static int throughput(struct demo *demo, struct error *err) {
    static const struct column columns[] = {
        {"sequences", "sequences", 0, 0}, {"naive", "phase 2 tok/s", 1, 0},
        {"own", "phase 4 tok/s", 1, 0},   {"paged", "phase 7 tok/s", 1, 0},
        {"fused", "phase 8 tok/s", 1, 0}, {"times", "8 : 7", 2, 0},
        {"ms", "ms a step", 2, 0}};
    int most = demo->options.quick ? QUICK_MOST : MOST;
    char title[80];
    snprintf(title, sizeof title, "Phase 8: equal prompts, %d new tokens each, of all sequences",
             new_tokens(demo));
    demo_table_begin(demo, "throughput", title, columns, 7);
    int result = measure(demo, 1, false, err); /* warms up */
    for (int n = 1; !result && n <= most && !demo_interrupted(demo); n *= 2)
        result = measure(demo, n, true, err);
    return demo_table_end(demo, result);
}

/* ---- the mixed workload ---------------------------------------------------------------------- */

/* Static batches beside continuous batching in one pass. */
static int latency(struct demo *demo, struct error *err) {
    struct paged_options options = {PREEMPT_RECOMPUTE, true};
    struct serving serving = serving_of(demo);
    struct paged_memory paged;
    struct kv_pool pool;
    struct workload w = {0};
    int result = demo_read_requests(demo, demo_requests_file(demo), &w, err) ||
                 demo_pool_start(demo, &pool, paged_enough_blocks(demo, &w), err);
    if (!result) {
        paged_memory_start(&paged, &pool, &options);
        serving.cache = &contiguous_caches[DYNAMIC]; /* of the static batches */
        serving.memory = &paged.base;
        result = demo_compare_policies(demo, &w, &serving, err);
        paged_memory_end(&paged);
        kv_pool_end(&pool);
    }
    workload_free(&w);
    return result ? -1 : 0;
}

/* ---- where the time goes --------------------------------------------------------------------- */

static int op_times(struct demo *demo, struct error *err) {
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct serving serving = serving_of(demo);
    struct paged_run run = {0};
    struct workload w = {0};
    int result = equal_requests(demo, &w, TIMED_SEQUENCES, err);
    serving.max_running = TIMED_SEQUENCES;
    demo->generator.ignore_stop = true;
    op_times_start(demo);
    if (!result)
        result =
            paged_run_pool(demo, &w, paged_table_blocks(demo, &w), &options, &serving, &run, err);
    op_times_show(demo, "Where the time goes: 16 sequences, every op waited for", run.passes);
    demo->generator.ignore_stop = false;
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
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
        .fingerprint = 0x6a223edf08c00d37,
    };
    return demo_main(argc, argv, &phase);
}
