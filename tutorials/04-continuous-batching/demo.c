/*
 * Phase 4: continuous batching. A request starts the moment a place is free, not when a whole batch
 * has ended. The first table compares both on the same requests; the second shows the wall that
 * comes next: memory reserved for answers that stay short.
 */
#include "scheduler/kv_contiguous.h"
#include "tutorials/common/group.h"
#include "tutorials/common/serve.h"

#include <stdlib.h>

static const char mixed_prompts[] = "data/prompts/mixed.jsonl";

static const struct cache_kind caches[] = {{"dynamic", kv_dynamic_new, kv_cache_free},
                                           {"static", kv_static_new, kv_cache_free}};

/* Naive batches of max_running requests, one after the other: every answer of a batch is there when
 * its longest one is. ends [n]: seconds after the start; tokens: of all answers. */
static int run_static(struct demo *demo, const struct workload *w, double *ends, int64_t *tokens,
                      struct fingerprint *bits, struct error *err) {
    double start = clock_now();
    *tokens = 0;
    for (int first = 0; first < w->n; first += demo->options.max_running) {
        int n = w->n - first < demo->options.max_running ? w->n - first : demo->options.max_running;
        struct group g = {0};
        struct naive_waste waste;
        int result = group_start(demo, &g, w->requests + first, n, (uint32_t)first, err) ||
                     group_answer(demo, &g, &waste, err);
        for (int i = 0; !result && i < n; i++) {
            ends[first + i] = clock_now() - start;
            *tokens += sequence_new_tokens(&g.sequences[i]);
            fingerprint_add_sequence(bits, fingerprint_value(&g.sequences[i].fingerprint));
        }
        group_end(demo, &g);
        if (result)
            return -1;
        if (demo_interrupted(demo))
            break;
    }
    return 0;
}

static json_t *latency_rows(const struct workload *w, const double *ends, const struct engine *e) {
    json_t *rows = json_array();
    for (int i = 0; i < w->n; i++) {
        const struct job *j = &e->scheduler.jobs[i];
        double latency = j->done - j->arrival;
        json_array_append_new(rows, json_pack("{si ss si si sf sf sf}", "request", i, "prompt",
                                              w->titles[i], "new", j->n_new, "steps", j->steps,
                                              "static_ms", ends[i] * 1e3, "continuous_ms",
                                              latency * 1e3, "speedup", ends[i] / latency));
    }
    return rows;
}

static int show_latencies(struct demo *demo, const struct workload *w, const double *ends,
                          int64_t tokens, const struct engine *e, struct error *err) {
    static const struct column columns[] = {
        {"request", "#", 0},           {"prompt", "prompt", -1},
        {"new", "new tokens", 0},      {"steps", "steps", 0},
        {"static_ms", "static ms", 1}, {"continuous_ms", "continuous ms", 1},
        {"speedup", "speed-up", 2}};
    struct engine_metrics m;
    double last = 0, mean = 0;
    char title[200];
    if (engine_measure(e, &m, err))
        return -1;
    for (int i = 0; i < w->n; i++) {
        last = ends[i] > last ? ends[i] : last;
        mean += ends[i] / w->n;
    }
    snprintf(title, sizeof title,
             "Latency of %d requests, %d at once. Static: %.1f tok/s, %.0f ms on average; "
             "continuous: %.1f tok/s, %.0f ms",
             w->n, demo->options.max_running, (double)tokens / last, mean * 1e3,
             m.tokens_per_second, m.latency.mean * 1e3);
    demo_table(demo, "latency", title, columns, 7, latency_rows(w, ends, e));
    return 0;
}

/* The same requests in static batches and continuously; the bits must be the same, too. */
static int compare_policies(struct demo *demo, const struct workload *w, struct error *err) {
    struct engine e = {0};
    struct fingerprint bits = {0};
    double *ends = calloc((size_t)w->n + 1, sizeof *ends);
    uint64_t continuous;
    int64_t tokens;
    if (!ends)
        return error_set(err, "out of memory");
    int result = fingerprint_start(&bits, err) || run_static(demo, w, ends, &tokens, &bits, err) ||
                 serve_run(demo, w, true, &e, NULL, err) ||
                 engine_fingerprint(&e, &continuous, err);
    bool complete = !result && !demo_interrupted(demo);
    if (complete && fingerprint_value(&bits) != continuous)
        result =
            error_set(err,
                      "the static batches have fingerprint %016llx, the continuous ones "
                      "%016llx. This is a bug",
                      (unsigned long long)fingerprint_value(&bits), (unsigned long long)continuous);
    if (complete && !result)
        result = show_latencies(demo, w, ends, tokens, &e, err);
    fingerprint_end(&bits);
    engine_end(&e);
    free(ends);
    return result;
}

/* ---- the memory wall --------------------------------------------------------------------------
 */

/* Memory at the fullest moment with either kind of cache, at this many requests at once. */
static int measure_memory(struct demo *demo, const struct workload *w, int running, json_t *rows,
                          struct error *err) {
    double megabytes[2] = {0}, tokens = 0;
    int chosen = demo->options.cache, result = 0;
    demo->options.max_running = running;
    for (int kind = 0; !result && kind < 2; kind++) {
        struct engine e = {0};
        demo->options.cache = kind;
        result = serve_run(demo, w, true, &e, NULL, err);
        megabytes[kind] = (double)e.most_cache_bytes / 1e6;
        for (int i = 0; !result && i < w->n; i++)
            tokens += (double)e.answers[i].sequence.n_tokens / w->n / 2;
        engine_end(&e);
    }
    demo->options.cache = chosen;
    if (result)
        return -1;
    if (demo_interrupted(demo))
        return 0;
    double wasted = 100 * (1 - tokens / demo->generator.context);
    json_array_append_new(rows, json_pack("{si sf sf sf sf}", "running", running, "static_mb",
                                          megabytes[1], "dynamic_mb", megabytes[0], "tokens",
                                          tokens, "wasted", wasted));
    return 0;
}

static int memory_wall(struct demo *demo, const struct workload *w, struct error *err) {
    static const int sizes[] = {1, 2, 4, 8, 16, 32};
    static const struct column columns[] = {{"running", "at once", 0},
                                            {"static_mb", "static reserved MB", 1},
                                            {"dynamic_mb", "dynamic used MB", 1},
                                            {"tokens", "average tokens", 1},
                                            {"wasted", "of static wasted %", 1}};
    int chosen = demo->options.max_running, result = 0;
    json_t *rows = json_array();
    for (int i = 0; !result && i < 6 && !demo_interrupted(demo); i++)
        result = measure_memory(demo, w, sizes[i], rows, err);
    demo->options.max_running = chosen;
    if (result) {
        json_decref(rows);
        return -1;
    }
    demo_table(demo, "memory_wall",
               "The memory wall: KV caches of the requests that run at once, at the fullest moment",
               columns, 5, rows);
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
    int result =
        demo_read_requests(demo, mixed_prompts, &once, err) || compare_policies(demo, &once, err);
    workload_free(&once);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    result = twice(&doubled, demo, err) || memory_wall(demo, &doubled, err);
    workload_free(&doubled);
    return result ? -1 : 0;
}

static int run_prompts(struct demo *demo, struct error *err) {
    return serve_prompts(demo, demo->options.prompts, true, err);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 4,
        .title = "continuous batching",
        .about = "A request starts the moment a place is free; each has its own cache.",
        .caches = caches,
        .n_caches = 2,
        .tables = tables,
        .prompts = run_prompts,
    };
    return demo_main(argc, argv, &phase);
}
