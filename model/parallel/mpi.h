/*
 * mpi.h - the ranks of model/parallel.h as processes of MPI, on one host or many: mpirun -n 4 ...
 *
 * All calls are MPI's non-blocking ones, with a clock beside them: MPI itself would wait for ever
 * for a rank that hangs. Whoever has waited too long tells so to all others; who does not tell is
 * named. (MPI: A Message-Passing Interface Standard, version 3.1, 2015.)
 */
#ifndef SAMEBITS_MPI_H
#define SAMEBITS_MPI_H

#include "model/parallel.h"

/* Whether this process was started by mpirun, or by another launcher of Open MPI or PMIx. */
bool mpi_is_launched(void);

/* Joins the other ranks; once in a process. Ranks other than 0 write nothing to stdout and stderr
 * from here on, but their own failure. Returns NULL with err set: no memory. */
struct parallel *mpi_join(struct error *err);

/* In place of this process: mpirun with so many ranks, on this host, of the program argv. Returns
 * -1 with err set if that cannot be started. */
int mpi_launch(int n_ranks, char **argv, struct error *err);

#endif
