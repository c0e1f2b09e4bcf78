/*
 * Phase 7: the paged cache. All requests have their keys and values in blocks of one pool. When it
 * runs dry, the latest gives its blocks to the others and comes back later; requests that begin
 * alike share blocks. The first table shows the memory, and what it costs in time to gather a
 * sequence from its blocks, the second a pool that is too small, the third prefixes.
 */
#include "tutorials/common/paged.h"

static const char shared_prompts[] = "data/prompts/shared.jsonl";

/* ---- the tables ------------------------------------------------------------------------------ */

static int longest_request(const struct demo *demo, const struct workload *w) {
    int longest = 0;
    for (int i = 0; i < w->n; i++) {
        int n = paged_most_blocks(demo, &w->requests[i]);
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Memory and speed at this many requests at once. */
static int compare(struct demo *demo, const struct workload *w, int running, struct error *err) {
    const struct model_config *c = &demo->model.config;
    struct paged_options options = {PREEMPT_RECOMPUTE, false}; /* nothing shared: a fair race */
    struct serving serving = serving_of(demo);
    struct paged_run own, paged;
    serving.max_running = running;
    if (paged_run_own_caches(demo, w, &serving, &own, err) ||
        paged_run_pool(demo, w, paged_enough_blocks(demo, w), &options, &serving, &paged, err))
        return -1;
    if (demo_interrupted(demo))
        return 0;
    double block =
        (double)c->n_layers *
        (double)kv_layer_bytes(demo->options.block_size, c->n_kv_heads, c->head_dim, KV_BFP16);
    double reserved =
        (double)running * c->n_layers *
        (double)kv_layer_bytes(demo->generator.context, c->n_kv_heads, c->head_dim, KV_BFP16);
    demo_table_row(demo, json_pack("[iffffff]", running, reserved / 1e6,
                                   (double)own.cache_bytes / 1e6, paged.most_used * block / 1e6,
                                   own.tokens_per_second, paged.tokens_per_second,
                                   own.tokens_per_second / paged.tokens_per_second));
    return paged_same_bits(&own, &paged, err);
}

static int memory_and_speed(struct demo *demo, const struct workload *w, struct error *err) {
    static const struct column columns[] = {{"running", "at once", 0, 0},
                                            {"static_mb", "static MB", 1, 0},
                                            {"dynamic_mb", "dynamic MB", 1, 0},
                                            {"paged_mb", "paged MB", 1, 0},
                                            {"own_tok_s", "dynamic tok/s", 1, 0},
                                            {"paged_tok_s", "paged tok/s", 1, 0},
                                            {"slower", "paged ms / dynamic ms", 2, 0}};
    int result = 0;
    demo_table_begin(demo, "memory_and_speed",
                     "Phase 7: caches of their own and one pool, at the fullest moment", columns,
                     7);
    for (int n = 1; !result && n <= 32 && !demo_interrupted(demo); n *= demo->options.quick ? 8 : 2)
        result = compare(demo, w, n, err);
    return demo_table_end(demo, result);
}

/* A pool of ever fewer blocks, with both kinds of preemption. */
static int shrinking_pool(struct demo *demo, const struct workload *w, struct error *err) {
    static const int percents[] = {100, 75, 50, 0};
    static const struct column columns[] = {
        {"blocks", "blocks", 0, 0},           {"percent", "of what is needed %", 0, 0},
        {"how", "preempted", -1, 0},          {"preemptions", "times", 0, 0},
        {"again", "tokens read again", 0, 0}, {"swapped", "tokens swapped", 0, 0},
        {"seconds", "seconds", 2, 0},         {"tok_s", "tok/s", 1, 6}};
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct serving serving = serving_of(demo);
    struct paged_run first, run;
    int result =
        paged_run_pool(demo, w, paged_enough_blocks(demo, w), &options, &serving, &first, err);
    int needed = first.most_used, least = longest_request(demo, w);
    int n_rows = demo->options.quick ? 4 : 8;
    demo_table_begin(demo, "shrinking_pool", "The pool shrinks; the bits stay", columns, 8);
    for (int i = 0; i < n_rows && !result && !demo_interrupted(demo); i++) {
        int n = needed * percents[i / 2] / 100;
        n = n < least ? least : n;
        options.preempt = i % 2 ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
        result = paged_run_pool(demo, w, n, &options, &serving, &run, err);
        if (result || demo_interrupted(demo))
            break;
        demo_table_row(demo,
                       json_pack("[iisiiiff]", n, 100 * n / needed, i % 2 ? "swap" : "recompute",
                                 (int)run.stats.preemptions, (int)run.stats.recomputed,
                                 (int)run.stats.swapped, run.seconds, run.tokens_per_second));
        result = paged_same_bits(&first, &run, err);
    }
    return demo_table_end(demo, result);
}

/* Requests with the same system message, with and without the prefix cache. */
static int prefixes(struct demo *demo, struct error *err) {
    static const struct column columns[] = {
        {"cache", "prefix cache", -1, 0}, {"prompt", "prompt tokens", 0, 0},
        {"shared", "shared", 0, 0},       {"read", "read", 0, 5},
        {"ttft_ms", "TTFT ms", 1, 0},     {"blocks", "most blocks", 0, 0},
        {"seconds", "seconds", 2, 0}};
    struct serving serving = serving_of(demo);
    struct workload w = {0};
    struct paged_run runs[2];
    int result = demo_read_requests(demo, shared_prompts, &w, err);
    if (!result)
        demo_table_begin(demo, "prefixes", "Requests with the same system message", columns, 7);
    for (int i = 0; i < 2 && !result && !demo_interrupted(demo); i++) {
        struct paged_options options = {PREEMPT_RECOMPUTE, i == 1};
        result = paged_run_pool(demo, &w, paged_enough_blocks(demo, &w), &options, &serving,
                                &runs[i], err);
        if (result || demo_interrupted(demo))
            break;
        const struct paged_stats *s = &runs[i].stats;
        demo_table_row(demo, json_pack("[siiifif]", i ? "on" : "off", (int)s->looked_up,
                                       (int)s->shared, (int)(s->looked_up - s->shared),
                                       runs[i].ttft * 1e3, runs[i].most_used, runs[i].seconds));
        result = i ? paged_same_bits(&runs[0], &runs[1], err) : 0;
    }
    workload_free(&w);
    return demo_table_end(demo, result);
}

static int tables(struct demo *demo, struct error *err) {
    struct workload once = {0}, doubled = {0};
    const char *path = demo_requests_file(demo);
    int result = demo_read_requests(demo, path, &doubled, err) || /* twice: 32 can run at once */
                 (!demo->options.quick && demo_read_requests(demo, path, &doubled, err)) ||
                 memory_and_speed(demo, &doubled, err);
    workload_free(&doubled);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    result = demo_read_requests(demo, path, &once, err) || shrinking_pool(demo, &once, err) ||
             demo_interrupted(demo) || prefixes(demo, err);
    workload_free(&once);
    return result && !demo_interrupted(demo) ? -1 : 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 7,
        .title = "paged cache",
        .about = "All sequences have their keys and values in blocks of one pool.",
        .caches = paged_caches,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
        .fingerprint = 0xc68aae5df56fed88,
    };
    return demo_main(argc, argv, &phase);
}
