/*
 * paged_memory.h - phase 7: the memory of many requests in one pool: who gets blocks, who shares
 * them, who gives them back. It knows of tokens, but of no model.
 *
 *     struct paged_memory memory;
 *     paged_memory_start(&memory, &pool, &paged_options);
 *     options.memory = &memory.base;
 *     engine_run(&engine, ..., &options, &err);   // memory.stats: what it saved and cost
 *     engine_end(&engine);
 *     paged_memory_end(&memory);
 */
#ifndef SAMEBITS_PAGED_MEMORY_H
#define SAMEBITS_PAGED_MEMORY_H

#include "scheduler/kv_paged.h"
#include "scheduler/request_memory.h"

/* What becomes of the keys and values of a preempted request. */
enum preempt_mode {
    PREEMPT_RECOMPUTE, /* they are thrown away, and its tokens are read again */
    PREEMPT_SWAP       /* they wait in host memory */
};

struct paged_options {
    enum preempt_mode preempt;
    bool share_prefixes; /* requests share the full blocks in which they begin alike */
};

struct paged_job {
    struct kv_paged cache; /* cache.pool is NULL before the job's first admission */
    struct kv_swapped swapped;
};

/* In tokens, except preemptions. */
struct paged_stats {
    long preemptions;
    long looked_up, shared; /* of jobs that began, and those of them that were there already */
    long recomputed;        /* read again after a preemption, less what was still cached */
    long swapped;           /* whose keys and values went to host memory */
};

struct paged_memory {
    struct request_memory base; /* first: pointers to it are pointers to the whole */
    struct kv_pool *pool;
    struct prefix_cache prefixes;
    struct paged_options options;
    const struct scheduler *scheduler;
    const struct memory_request *requests; /* [n_jobs] */
    struct paged_job *jobs;                /* [n_jobs] */
    int n_jobs;
    struct paged_stats stats;
};

/* A memory for one run of an engine. The pool is not owned; nothing of it is in use. m must not
 * move. */
void paged_memory_start(struct paged_memory *m, struct kv_pool *pool,
                        const struct paged_options *options);

/* Gives everything back to the pool, which must still be there; cached blocks become free. A zeroed
 * one is fine. */
void paged_memory_end(struct paged_memory *m);

#endif
