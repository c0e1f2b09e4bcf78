/*
 * service_ranks.h - phase 14: a service on ranks (model/parallel.h). Submitters come to rank 0;
 * what its engine thread receives between two steps is told to the engine threads of the others,
 * whose tickets are copies that tell nobody.
 */
#ifndef SAMEBITS_SERVICE_RANKS_H
#define SAMEBITS_SERVICE_RANKS_H

#include "scheduler/service.h"

#include <pthread.h>

/* What came since the last step. */
struct service_news {
    struct ticket *inbox;
    bool cancels, all; /* tickets are to end: some, or all */
    bool goes_on;
};

/* Waits for news. Returns not 0 when rank 0 has to tell the others that there are none. */
int service_wait(pthread_cond_t *news, pthread_mutex_t *lock, const struct parallel *ranks);

/* The news of rank 0 become those of all. idle: there is nothing to do, and no step in which ranks
 * would miss one that hangs, so all tell here that they are there. A failure is the ranks'
 * (parallel_check), and the next step's. */
void service_tell(struct parallel *ranks, bool idle, struct service_news *news);

#endif
