/*
 * policies.h - static batches beside continuous batching, for the demos of phases 4 and 8.
 */
#ifndef SAMEBITS_POLICIES_H
#define SAMEBITS_POLICIES_H

#include "tutorials/common/serve.h"

/* Answers the requests in naive batches of serving->max_running with its kind of cache, then as
 * serving says, and shows the latency of each, table "latency". Returns 0, or -1 with err set: also
 * when the two do not have the same bits. */
int demo_compare_policies(struct demo *demo, const struct workload *w,
                          const struct serving *serving, struct error *err);

#endif
