/*
 * service_ranks.h - phase 14: a service on ranks (model/parallel.h). Submitters come to rank 0;
 * what its engine thread receives between two steps is told to the engine threads of the others,
 * whose tickets are copies that tell nobody.
 */
#ifndef SAMEBITS_SERVICE_RANKS_H
#define SAMEBITS_SERVICE_RANKS_H

#include "scheduler/service.h"

/* What came since the last step. */
struct service_news {
    struct ticket *inbox;
    bool cancels, all; /* tickets are to end: some, or all */
    bool goes_on;
};

/* The news of rank 0 become those of all. idle: there is nothing to do, so the others wait for them
 * as long as it takes. A failure is the ranks' (parallel_check), and the next step's. */
void service_tell(struct parallel *ranks, bool idle, struct service_news *news);

#endif
