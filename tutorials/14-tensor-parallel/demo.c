/*
 * Phase 14: one model on several ranks. The tables answer many requests, and show what each rank
 * has of the model and what ranks say to each other; --plan computes what more of them would take.
 */
#include "model/parallel/nccl.h"
#include "tutorials/12-server/deployment.h"
#include "tutorials/13-receipts/score.h"
#include "tutorials/13-receipts/verify.h"
#include "tutorials/14-tensor-parallel/ranks.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank says of itself, in words of 32 bits, as ranks gather them. */
struct rank_row {
    uint32_t heads, kv_heads, ffn, words;
    uint32_t weights_kb, cache_kb, most_kb; /* the last: resident in the process, at its fullest */
};

enum { N_FIELDS = sizeof(struct rank_row) / sizeof(uint32_t) };

/* VmHWM of /proc/self/status. */
static uint32_t most_resident_kb(void) {
    char line[256];
    unsigned kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f) && !sscanf(line, "VmHWM: %u", &kb))
        continue;
    if (f)
        fclose(f);
    return kb;
}

static struct rank_row row_of(const struct demo *demo, size_t weights, int64_t cache_bytes) {
    const struct model_part *part = &demo->model.part;
    return (struct rank_row){.heads = (uint32_t)part->heads.n,
                             .kv_heads = (uint32_t)part->kv_heads.n,
                             .ffn = (uint32_t)part->ffn.n,
                             .words = (uint32_t)part->vocab.n,
                             .weights_kb = (uint32_t)(weights >> 10),
                             .cache_kb = (uint32_t)(cache_bytes >> 10),
                             .most_kb = most_resident_kb()};
}

/* A row for each rank, gathered by all and shown by rank 0. */
static int show_ranks(struct demo *demo, const struct rank_row *mine, struct error *err) {
    static const struct column columns[] = {
        {"rank", "rank", 0, 0},          {"heads", "heads", 0, 0},
        {"kv_heads", "KV heads", 0, 0},  {"ffn", "FFN columns", 0, 0},
        {"words", "words", 0, 0},        {"weights_mb", "weights MB", 2, 0},
        {"cache_mb", "caches MB", 2, 0}, {"most_mb", "process MB", 1, 0}};
    struct parallel *p = demo->parallel;
    int n = p ? p->n_ranks : 1, *counts = calloc((size_t)n, sizeof *counts);
    struct rank_row *all = calloc((size_t)n, sizeof *all);
    int result = all && counts ? 0 : error_set(err, "out of memory for %d ranks", n);
    for (int r = 0; r < n && !result; r++)
        counts[r] = N_FIELDS;
    if (!result && p)
        result = p->gather(p, &all->heads, &mine->heads, counts, err);
    else if (!result)
        *all = *mine;
    json_t *rows = json_array();
    for (int r = 0; r < n && !result; r++)
        json_array_append_new(rows, json_pack("[iiiiifff]", r, all[r].heads, all[r].kv_heads,
                                              all[r].ffn, all[r].words, all[r].weights_kb / 1024.0,
                                              all[r].cache_kb / 1024.0, all[r].most_kb / 1024.0));
    demo_table(demo, "ranks", "What each rank has", columns, 8, rows);
    free(counts);
    free(all);
    return result;
}

/* What rank 0 said while n_tokens were drawn in n_passes. */
static void show_talk(struct demo *demo, const struct parallel_counts *before, long n_passes,
                      long n_tokens, double seconds) {
    static const struct column columns[] = {
        {"passes", "passes", 0, 0},      {"tokens", "tokens drawn", 0, 0},
        {"calls", "calls a pass", 1, 0}, {"kb", "KB a token", 1, 0},
        {"ms", "ms a pass", 2, 0},       {"talk_ms", "talking ms", 2, 0}};
    const struct parallel *p = demo->parallel;
    struct parallel_counts said = p ? p->counts : *before;
    json_t *rows = json_array();
    json_array_append_new(rows,
                          json_pack("[iiffff]", (int)n_passes, (int)n_tokens,
                                    (double)(said.calls - before->calls) / (double)n_passes,
                                    (double)(said.bytes - before->bytes) / (double)n_tokens / 1e3,
                                    seconds * 1e3 / (double)n_passes,
                                    (said.seconds - before->seconds) * 1e3 / (double)n_passes));
    demo_table(demo, "talk", "What rank 0 said to the others", columns, 6, rows);
}

static long tokens_of(const struct engine *e) {
    long n = 0;
    for (int i = 0; i < e->n; i++)
        n += e->scheduler.jobs[i].n_new;
    return n;
}

/* Answers the requests from a pool and shows the two tables. */
static int answer_all(struct demo *demo, const struct workload *w, struct error *err) {
    struct parallel_counts before = {0};
    struct paged_options options = {PREEMPT_RECOMPUTE, true};
    struct serving serving = serving_of(demo);
    struct kv_pool_options size = {.block_size = demo->options.block_size,
                                   .n_blocks = paged_enough_blocks(demo, w),
                                   .type = demo->options.kv_type};
    struct paged_memory memory;
    struct kv_pool pool;
    struct engine e = {0};
    size_t weights = demo->dev->bytes;
    if (demo->parallel)
        before = demo->parallel->counts;
    if (kv_pool_start(&pool, &demo->model, &size, err))
        return -1;
    paged_memory_start(&memory, &pool, &options);
    serving.memory = &memory.base;
    int result = serve_all(demo, w, &serving, &e, err);
    struct engine_metrics m;
    if (!result && !demo_interrupted(demo) && !(result = engine_measure(&e, &m, err))) {
        struct rank_row mine = row_of(demo, weights, e.most_cache_bytes);
        result = show_ranks(demo, &mine, err);
        show_talk(demo, &before, e.passes, tokens_of(&e), m.seconds);
    }
    engine_end(&e);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    return result;
}

static int tables(struct demo *demo, struct error *err) {
    struct workload w = {0};
    if (demo->options.plan)
        return ranks_plan(demo, err);
    int result = demo_read_requests(demo, demo_requests_file(demo), &w, err);
    if (!result)
        result = answer_all(demo, &w, err);
    workload_free(&w);
    return result;
}

/* What follows is quick: from here on ranks are not waited for as long as for loading. */
static void begin(const struct demo *demo) {
    struct parallel *p = demo->parallel;
    paged_begin(demo);
    if (!p)
        return;
    if (ranks_have_gpus(demo) && nccl_join)
        p->failed = nccl_join(p, demo->dev, &p->why);
    p->limit = demo->options.patience;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 14,
        .title = "tensor parallelism",
        .about = "One model on several processes, with the bits of one.",
        .caches = paged_caches,
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .serve = deployment_run,
        .score = score_file,
        .verify_receipts = verify_receipts,
        .receipt = receipt_of_answer,
        .begin = begin,
        .join = ranks_join,
        .agree = ranks_agree,
        .fingerprint = 0x1693d29f628f8640,
    };
    return demo_main(argc, argv, &phase);
}
