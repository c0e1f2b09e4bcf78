/*
 * watchdog.h - ends an mpirun that waits though its ranks are gone.
 *
 * When a rank dies while it joins the others, Open MPI 4.1's mpirun may wait for itself, and for
 * ever. Nobody but another process can end it: a child of each rank, which outlives the rank.
 */
#ifndef SAMEBITS_WATCHDOG_H
#define SAMEBITS_WATCHDOG_H

/* Before MPI begins, and before there are threads: if mpirun has started this process, leaves a
 * child behind that ends that mpirun, and says so, when no rank of it has lived for ten seconds. */
void watchdog_start(void);

#endif
