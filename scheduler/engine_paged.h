/*
 * engine_paged.h - phase 7: an engine whose requests have their keys and values in one pool.
 *
 *     struct engine_paged paged;
 *     engine_paged_start(&paged, &pool, &paged_options);
 *     options.memory = &paged.memory;
 *     engine_run(&engine, ..., &options, &err);   // paged.blocks.stats: what it saved and cost
 *     engine_end(&engine);
 *     engine_paged_end(&paged);
 */
#ifndef SAMEBITS_ENGINE_PAGED_H
#define SAMEBITS_ENGINE_PAGED_H

#include "scheduler/engine.h"
#include "scheduler/paged_memory.h"

struct engine_paged {
    struct engine_memory memory;
    struct paged_memory blocks;
    struct kv_pool *pool;
    struct paged_options options;
    struct engine *engine;
};

/* For one run of an engine. The pool is not owned; nothing of it is in use. p must not move. */
void engine_paged_start(struct engine_paged *p, struct kv_pool *pool,
                        const struct paged_options *options);

/* After engine_end. Nothing of the pool is in use any more. A zeroed one is fine. */
void engine_paged_end(struct engine_paged *p);

#endif
