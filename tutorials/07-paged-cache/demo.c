/*
 * Phase 7: the paged cache. All requests have their keys and values in blocks of one pool. When it
 * runs dry, the latest gives its blocks to the others and comes back later; requests that begin
 * alike share blocks. The first table shows the memory, and what it costs in time to gather a
 * sequence from its blocks, the second a pool that is too small, the third prefixes.
 */
#include "tutorials/common/paged.h"

static const char mixed_prompts[] = "data/prompts/mixed.jsonl";
static const char shared_prompts[] = "data/prompts/shared.jsonl";

/* ---- the tables -------------------------------------------------------------------------------
 */

static int longest_request(const struct demo *demo, const struct workload *w) {
    int longest = 0;
    for (int i = 0; i < w->n; i++) {
        int n = paged_most_blocks(demo, &w->requests[i]);
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Memory and speed at this many requests at once. */
static int compare(struct demo *demo, const struct workload *w, int running, json_t *rows,
                   struct error *err) {
    const struct model_config *c = &demo->model.config;
    struct paged_options options = {PREEMPT_RECOMPUTE, false}; /* nothing shared: a fair race */
    struct paged_run own, paged;
    int64_t own_bytes;
    int chosen = demo->options.max_running;
    demo->options.max_running = running;
    int result = paged_run_own_caches(demo, w, &own, &own_bytes, err) ||
                 paged_run_pool(demo, w, paged_enough_blocks(demo, w), &options, &paged, err);
    demo->options.max_running = chosen;
    if (result)
        return -1;
    if (demo_interrupted(demo))
        return 0;
    double block =
        (double)c->n_layers *
        (double)kv_layer_bytes(demo->options.block_size, c->n_kv_heads, c->head_dim, KV_BFP16);
    double reserved =
        (double)running * c->n_layers *
        (double)kv_layer_bytes(demo->generator.context, c->n_kv_heads, c->head_dim, KV_BFP16);
    json_array_append_new(rows,
                          json_pack("{si sf sf sf sf sf sf}", "running", running, "static_mb",
                                    reserved / 1e6, "dynamic_mb", (double)own_bytes / 1e6,
                                    "paged_mb", paged.most_used * block / 1e6, "own_tok_s",
                                    own.tokens_per_second, "paged_tok_s", paged.tokens_per_second,
                                    "slower", own.tokens_per_second / paged.tokens_per_second));
    return paged_same_bits(&own, &paged, err);
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
    struct paged_run first, run;
    json_t *rows = json_array();
    int result = paged_run_pool(demo, w, paged_enough_blocks(demo, w), &options, &first, err);
    int needed = first.most_used, least = longest_request(demo, w);
    for (int i = 0; i < 8 && !result && !demo_interrupted(demo); i++) {
        int n = needed * percents[i / 2] / 100;
        n = n < least ? least : n;
        options.preempt = i % 2 ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
        result = paged_run_pool(demo, w, n, &options, &run, err);
        if (result || demo_interrupted(demo))
            break;
        result = paged_same_bits(&first, &run, err);
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
    struct paged_run runs[2];
    json_t *rows = json_array();
    int result = demo_read_requests(demo, shared_prompts, &w, err);
    for (int i = 0; i < 2 && !result && !demo_interrupted(demo); i++) {
        struct paged_options options = {PREEMPT_RECOMPUTE, i == 1};
        result = paged_run_pool(demo, &w, paged_enough_blocks(demo, &w), &options, &runs[i], err);
        if (result || demo_interrupted(demo))
            break;
        const struct paged_stats *s = &runs[i].stats;
        json_array_append_new(rows, json_pack("{ss si si si sf si sf}", "cache", i ? "on" : "off",
                                              "prompt", (int)s->looked_up, "shared", (int)s->shared,
                                              "read", (int)(s->looked_up - s->shared), "ttft_ms",
                                              runs[i].ttft * 1e3, "blocks", runs[i].most_used,
                                              "seconds", runs[i].seconds));
        result = i ? paged_same_bits(&runs[0], &runs[1], err) : 0;
    }
    workload_free(&w);
    if (result) {
        json_decref(rows);
        return -1;
    }
    demo_table(demo, "prefixes", "Requests with the same system message", columns, 7, rows);
    return 0;
}

static int tables(struct demo *demo, struct error *err) {
    struct workload once, doubled;
    int result = demo_read_requests_twice(demo, mixed_prompts, &doubled, err) ||
                 memory_and_speed(demo, &doubled, err);
    workload_free(&doubled);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    result = demo_read_requests(demo, mixed_prompts, &once, err) ||
             shrinking_pool(demo, &once, err) || demo_interrupted(demo) || prefixes(demo, err);
    workload_free(&once);
    return result && !demo_interrupted(demo) ? -1 : 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 7,
        .title = "paged cache",
        .about = "All sequences have their keys and values in blocks of one pool.",
        .caches = paged_caches,
        .n_caches = 1,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
    };
    return demo_main(argc, argv, &phase);
}
