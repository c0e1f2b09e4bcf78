/*
 * workload_runs.h - random requests through the engine, at random times, with random budgets and
 * cancellations; each gives the ids and the fingerprint that it gives alone. Time is simulated, so
 * that nobody waits. What differs fails the test.
 */
#ifndef SAMEBITS_TESTS_WORKLOAD_RUNS_H
#define SAMEBITS_TESTS_WORKLOAD_RUNS_H

#include "tests/tiny_models.h"

/* Where the requests have their keys and values: each in a cache of its own, or all in a pool, of
 * random sizes from the smallest that holds the longest request, with poison, with blocks in random
 * order, with and without shared prefixes and forks, preempted either way. ONE_PASS: in a pool, and
 * a step is one forward pass with one attention for all. (With caches of their own a step is one
 * pass in every other workload.) */
enum run_caches { OWN_CACHES, ONE_POOL, ONE_PASS };

/* What happened: but for drafts, in runs with a pool. */
struct run_counts {
    long preemptions, shared, recomputed, swapped, forks;
    long proposed, accepted; /* tokens of drafts, where the model's generator has a drafter */
};

/* n workloads of 1 to 64 requests each; r goes on. counts (may be NULL) is added to. */
void check_random_workloads(struct tiny_model *model, struct random *r, int n,
                            enum run_caches caches, struct run_counts *counts);

/* check_random_workloads on the model in data/model. */
void check_shipped_workloads(uint64_t seed, int n, enum run_caches caches);

/* A clock for the engine: context is a double, the time, which moves a little whenever somebody
 * looks and jumps when somebody waits. */
double simulated_now(void *context);
void simulated_wait(void *context, double until);

#endif
