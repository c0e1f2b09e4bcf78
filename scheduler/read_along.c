#include "scheduler/read_along.h"

#include "scheduler/paged_memory.h"

int read_along(const struct read_along *how, const struct request *requests, int n,
               struct engine *engine, struct error *err) {
    struct paged_options paged = {PREEMPT_RECOMPUTE, how->share_prefixes};
    struct paged_memory memory;
    paged_memory_start(&memory, how->pool, &paged);
    struct engine_options options = {
        .scheduler = how->scheduler,
        .memory = &memory.base,
        .one_pass = true,
        .tokenizer = how->tokenizer,
        .stepped = how->stepped,
        .context = how->generator->on_token_context,
    };
    int result = engine_run(engine, how->generator, requests, n, &options, err);
    paged_memory_end(&memory);
    return result;
}
