/*
 * pool.h - the KV pool that the options ask for, and how long the requests of a file really become,
 * for the demos from phase 5 on.
 */
#ifndef SAMEBITS_POOL_H
#define SAMEBITS_POOL_H

#include "scheduler/kv_pool.h"
#include "tutorials/common/requests.h"

/* Starts a pool of the options' --block-size and --kv-blocks or --kv-memory; with neither of these
 * two, of n_blocks, or 80 % of the free memory if that is 0. Returns 0, or -1 with err set. */
int demo_pool_start(const struct demo *demo, struct kv_pool *p, int n_blocks, struct error *err);

/* A request that was answered: how many positions its cache held at the end, of which the first
 * n_prompt are its prompt. Both are 0 for one that failed. */
struct request_length {
    int n_prompt, n_positions;
};

/* Reads the requests of a file into w and answers them all, each with a cache of its own. Returns
 * their lengths, in order and malloc'ed, or NULL with err set: a bad file, a device that failed, or
 * not one request that could be answered. workload_free in either case. */
struct request_length *demo_request_lengths(struct demo *demo, const char *path, struct workload *w,
                                            struct error *err);

#endif
