/*
 * Phase 3: the scheduler. Requests wait in a queue, are admitted in batches, read their prompts in
 * pieces, draw their tokens and end, each for its own reason. The tables show the state of every
 * request in every step that changed one, and what each had to wait for.
 */
#include "scheduler/kv_contiguous.h"
#include "tutorials/common/serve.h"

static const struct cache_kind caches[] = {{"dynamic", kv_dynamic_new, kv_cache_free},
                                           {"static", kv_static_new, kv_cache_free}};

static int tables(struct demo *demo, struct error *err) {
    return serve_prompts(demo, "data/prompts/mixed.jsonl", false, err);
}

static int run_prompts(struct demo *demo, struct error *err) {
    return serve_prompts(demo, demo->options.prompts, false, err);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 3,
        .title = "scheduler",
        .about = "Requests wait, read their prompts in pieces, decode and end, in batches.",
        .caches = caches,
        .n_caches = 2,
        .tables = tables,
        .prompts = run_prompts,
    };
    return demo_main(argc, argv, &phase);
}
