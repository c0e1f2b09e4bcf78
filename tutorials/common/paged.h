/*
 * paged.h - requests that have their keys and values in one pool, for the demos from phase 7 on.
 */
#ifndef SAMEBITS_PAGED_H
#define SAMEBITS_PAGED_H

#include "scheduler/paged_memory.h"
#include "tutorials/common/serve.h"

/* The cache of a sequence that is alone: a pool of its own, with the blocks of --block-size. */
extern const struct cache_kind paged_caches[2];

/* For struct phase: takes --block-size for them. */
void paged_begin(const struct demo *demo);

/* What a run was like. */
struct paged_run {
    double seconds, tokens_per_second, ttft;
    double all_first, all_done; /* when each request had its first token, and when each was done */
    long passes;
    int64_t cache_bytes;      /* of all requests at the fullest moment */
    struct paged_stats stats; /* of a pool, like most_used (blocks) */
    int most_used;
    uint64_t fingerprint;
};

/* Serves the workload from a pool of n_blocks (0: what the options say), else as serving says.
 * Returns 0, or -1 with err set and a run of what there was, zeros if it did not begin. */
int paged_run_pool(struct demo *demo, const struct workload *w, int n_blocks,
                   const struct paged_options *paged_options, const struct serving *serving,
                   struct paged_run *run, struct error *err);

/* Serves it with a contiguous, growing cache for each request. Returns as paged_run_pool. */
int paged_run_own_caches(struct demo *demo, const struct workload *w, const struct serving *serving,
                         struct paged_run *run, struct error *err);

/* 0 when two runs of the same requests have the same fingerprint, or -1 with err set. */
int paged_same_bits(const struct paged_run *a, const struct paged_run *b, struct error *err);

/* Blocks that hold a request at its longest. */
int paged_most_blocks(const struct demo *demo, const struct request *r);

/* Blocks that hold every request at its longest: no run can need more. */
int paged_enough_blocks(const struct demo *demo, const struct workload *w);

/* Those, or 0 where the options say how large the pool is. */
int paged_table_blocks(const struct demo *demo, const struct workload *w);

/* --prompts and --random: all in the pool of the options, whose table comes last. Returns 0, or -1
 * with err set. */
int paged_prompts(struct demo *demo, struct error *err);

#endif
