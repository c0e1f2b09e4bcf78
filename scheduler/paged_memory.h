/*
 * paged_memory.h - phase 7: the memory of many requests in one pool: who gets blocks, who shares
 * them, who gives them back. The scheduler asks it through struct scheduler_memory; it knows of
 * tokens, but of no model.
 */
#ifndef SAMEBITS_PAGED_MEMORY_H
#define SAMEBITS_PAGED_MEMORY_H

#include "scheduler/kv_paged.h"
#include "scheduler/scheduler.h"

/* What becomes of the keys and values of a preempted request. */
enum preempt_how {
    PREEMPT_RECOMPUTE, /* they are thrown away, and its tokens are read again */
    PREEMPT_SWAP       /* they wait in host memory */
};

struct paged_options {
    enum preempt_how preempt;
    bool share_prefixes; /* requests share the full blocks in which they begin alike */
};

/* What paged_memory asks of its owner. */
struct paged_owner {
    /* The tokens of a job so far: prompt and answer. Returns how many. */
    int (*tokens)(void *context, int job, const int32_t **tokens);
    /* The most positions that a job can come to store: its prompt, and all that it may draw but the
     * last. */
    int (*most_positions)(void *context, int job);
    /* Ends a job (scheduler_stop) that does not fit, for this reason. */
    void (*refuse)(void *context, int job, const struct error *why, double now);
    void *context;
};

struct paged_job {
    struct kv_paged cache; /* cache.pool is NULL before the job's first admission */
    struct kv_swapped swapped;
    int fork_of; /* the job of which this one is another sample; -1: none */
};

/* In tokens, but preemptions. */
struct paged_stats {
    long preemptions;
    long looked_up, shared; /* of jobs that began, and those of them that were there already */
    long recomputed;        /* read again after a preemption, less what was still cached */
    long swapped;           /* whose keys and values went to host memory */
};

struct paged_memory {
    struct kv_pool *pool;
    struct prefix_cache prefixes;
    struct paged_options options;
    struct paged_owner owner;
    const struct scheduler *scheduler;
    struct paged_job *jobs; /* [n_jobs] */
    int n_jobs;
    struct paged_stats stats;
    struct error failure; /* why the last operation failed for another reason than lack of blocks */
    bool failed;
};

/*
 * Serves n_jobs jobs of a scheduler from pool, of which nothing is in use: fills s->memory.
 * fork_of [n_jobs] may be NULL. Returns 0, or -1 with err set (no memory). The memory must not
 * move, and must be ended in either case, before the pool.
 */
int paged_memory_start(struct paged_memory *m, struct kv_pool *pool, struct scheduler *s,
                       int n_jobs, const int *fork_of, const struct paged_options *options,
                       const struct paged_owner *owner, struct error *err);

/* Gives everything back to the pool; cached blocks become free. A zeroed one is fine. */
void paged_memory_end(struct paged_memory *m);

/* The cache of a running job, for the forward pass. */
struct kv_cache *paged_memory_cache(struct paged_memory *m, int job);

/* Positions of a running job that are in its cache. */
int paged_memory_positions(const struct paged_memory *m, int job);

/* The pass is done: the first n_positions of the job are in its cache. */
void paged_memory_stored(struct paged_memory *m, int job, int n_positions);

/* The job is done, and gives back all that it holds. */
void paged_memory_release(struct paged_memory *m, int job);

/* Slots in blocks of running jobs that hold nothing: the internal waste, in positions. */
int64_t paged_memory_waste(const struct paged_memory *m);

#endif
