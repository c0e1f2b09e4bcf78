#include "tutorials/13-receipts/read_along.h"

#include "scheduler/paged_memory.h"

int read_along(struct demo *demo, struct generator *g, const struct request *requests, int n,
               struct kv_pool *pool, struct engine *engine, struct error *err) {
    const struct options *o = &demo->options;
    struct paged_options paged = {PREEMPT_RECOMPUTE, !o->no_prefix_cache};
    struct paged_memory memory;
    paged_memory_start(&memory, pool, &paged);
    struct engine_options options = {
        .scheduler = {o->max_running, o->token_budget, o->chunk, true},
        .memory = &memory.base,
        .one_pass = true,
        .tokenizer = demo->tokenizer,
    };
    int result = engine_run(engine, g, requests, n, &options, err);
    paged_memory_end(&memory);
    for (int i = 0; !result && i < n; i++)
        fingerprint_add_sequence(&demo->run,
                                 fingerprint_value(&engine->answers[i].sequence.fingerprint));
    return result;
}
