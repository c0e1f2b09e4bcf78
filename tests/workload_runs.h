/*
 * workload_runs.h - random requests through the engine, at random times, with random budgets and
 * cancellations; each gives the ids and the fingerprint that it gives alone. Time is simulated, so
 * that nobody waits. What differs fails the test.
 */
#ifndef SAMEBITS_TESTS_WORKLOAD_RUNS_H
#define SAMEBITS_TESTS_WORKLOAD_RUNS_H

#include "tests/tiny_models.h"

/* n workloads of 1 to 64 requests each; r goes on. */
void check_random_workloads(struct tiny_model *model, struct random *r, int n);

/* The same on the model in data/model. */
void check_shipped_workloads(uint64_t seed, int n);

/* A clock for the engine: context is a double, the time, which moves a little whenever somebody
 * looks and jumps when somebody waits. */
double simulated_now(void *context);
void simulated_wait(void *context, double until);

#endif
