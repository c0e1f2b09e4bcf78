/*
 * Phase 4: continuous batching. A request starts the moment a place is free, not when a whole batch
 * has ended. The first table compares both on the same requests; the second shows the wall that
 * comes next: memory reserved for answers that stay short.
 */
#include "tutorials/common/contiguous.h"
#include "tutorials/common/policies.h"

/* ---- the memory wall ------------------------------------------------------------------------- */

/* Memory at the fullest moment with either kind of cache, at this many requests at once. */
static int measure_memory(struct demo *demo, const struct workload *w, int running,
                          struct error *err) {
    double megabytes[N_CONTIGUOUS] = {0}, tokens = 0;
    struct serving serving = serving_of(demo);
    int result = 0;
    serving.max_running = running;
    for (int kind = 0; !result && kind < N_CONTIGUOUS; kind++) {
        struct engine e = {0};
        serving.cache = &contiguous_caches[kind];
        result = serve_all(demo, w, &serving, &e, err);
        megabytes[kind] = (double)e.most_cache_bytes / 1e6;
        for (int i = 0; !result && i < w->n; i++)
            tokens += (double)e.answers[i].sequence.n_tokens / w->n / N_CONTIGUOUS;
        engine_end(&e);
    }
    if (result || demo_interrupted(demo))
        return result;
    double wasted = 100 * (1 - tokens / demo->generator.context);
    demo_table_row(
        demo, json_pack("[iffff]", running, megabytes[STATIC], megabytes[DYNAMIC], tokens, wasted));
    return 0;
}

static int memory_wall(struct demo *demo, const struct workload *w, struct error *err) {
    static const struct column columns[] = {{"running", "at once", 0, 0},
                                            {"static_mb", "static reserved MB", 1, 0},
                                            {"dynamic_mb", "dynamic used MB", 1, 0},
                                            {"tokens", "average tokens", 1, 0},
                                            {"wasted", "of static wasted %", 1, 0}};
    int result = 0;
    demo_table_begin(
        demo, "memory_wall",
        "The memory wall: KV caches of the requests that run at once, at the fullest moment",
        columns, 5);
    for (int n = 1; !result && n <= 32 && !demo_interrupted(demo); n *= demo->options.quick ? 4 : 2)
        result = measure_memory(demo, w, n, err);
    return demo_table_end(demo, result);
}

static int tables(struct demo *demo, struct error *err) {
    struct workload once = {0}, doubled = {0};
    struct serving serving = serving_of(demo);
    const char *path = demo_requests_file(demo);
    int result = demo_read_requests(demo, path, &once, err) ||
                 demo_compare_policies(demo, &once, &serving, err);
    workload_free(&once);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    result = demo_read_requests(demo, path, &doubled, err) || /* twice: 32 can run at once */
             demo_read_requests(demo, path, &doubled, err) || memory_wall(demo, &doubled, err);
    workload_free(&doubled);
    return result ? -1 : 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 4,
        .title = "continuous batching",
        .about = "A request starts the moment a place is free; each has its own cache.",
        .caches = contiguous_caches,
        .tables = tables,
        .prompts = serve_prompts,
        .fingerprint = 0x09dc3276571c7d4b,
    };
    return demo_main(argc, argv, &phase);
}
