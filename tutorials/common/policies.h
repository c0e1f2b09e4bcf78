/*
 * policies.h - static batches beside continuous batching, for the demos of phases 4 and 8.
 */
#ifndef SAMEBITS_POLICIES_H
#define SAMEBITS_POLICIES_H

#include "tutorials/common/requests.h"

/* Answers the same requests in naive batches of --max-running and continuously, and shows the
 * latency of each, table "latency". Returns 0, or -1 with err set: also when the two do not have
 * the same bits. */
int demo_compare_policies(struct demo *demo, const struct workload *w, struct error *err);

#endif
