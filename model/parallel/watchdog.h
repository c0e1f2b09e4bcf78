/*
 * watchdog.h - a process beside each rank, for what nobody else ends. When a rank dies while it
 * joins the others, Open MPI 4.1's mpirun may not say which, or wait for itself and for ever; and
 * it waits for ever for a rank that is stopped when the others have left.
 */
#ifndef SAMEBITS_WATCHDOG_H
#define SAMEBITS_WATCHDOG_H

/* Before MPI begins, and before there are threads: if mpirun has started this process, leaves a
 * child behind that outlives it. That says on stderr which rank was the first to end, or is
 * stopped, unless watchdog_joined was called; kills ranks that live ten seconds after the first has
 * ended; and ends an mpirun that has had no rank for ten seconds. */
void watchdog_start(void);

/* From here on mpirun names who dies. */
void watchdog_joined(void);

#endif
