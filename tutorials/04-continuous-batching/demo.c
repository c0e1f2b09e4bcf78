/*
 * Phase 4: continuous batching. A request starts the moment a place is free, not when a whole batch
 * has ended. The first table compares both on the same requests; the second shows the wall that
 * comes next: memory reserved for answers that stay short.
 */
#include "scheduler/kv_contiguous.h"
#include "tutorials/common/policies.h"
#include "tutorials/common/serve.h"

#include <stdlib.h>

static const char mixed_prompts[] = "data/prompts/mixed.jsonl";

static const struct cache_kind caches[] = {{"dynamic", kv_dynamic_new, kv_cache_free},
                                           {"static", kv_static_new, kv_cache_free}};

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
        result = serve_all(demo, w, &e, err);
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

static int tables(struct demo *demo, struct error *err) {
    struct workload once, doubled;
    int result = demo_read_requests(demo, mixed_prompts, &once, err) ||
                 demo_compare_policies(demo, &once, err);
    workload_free(&once);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    result = demo_read_requests_twice(demo, mixed_prompts, &doubled, err) ||
             memory_wall(demo, &doubled, err);
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
