/*
 * launch_ranks.h - phase 14's demo as several processes, and what tests do to one of them.
 */
#ifndef SAMEBITS_TESTS_LAUNCH_RANKS_H
#define SAMEBITS_TESTS_LAUNCH_RANKS_H

#include <stdbool.h>
#include <sys/types.h>

/* The beginning of a line for the shell: "-n 3 program ..." follows. Only loopback and shared
 * memory; the sanitizer would report what MPI keeps. */
#define MPIRUN                                                                                     \
    "ASAN_OPTIONS=detect_leaks=0 mpirun --allow-run-as-root --oversubscribe --bind-to none"        \
    " --mca pml ob1 --mca btl self,vader --mca oob_tcp_if_include lo "

/* Phase 14's demo, and tests/ranks/worker. */
extern char ranks_demo[128], ranks_worker[128];

/* For main. False, after a line that says so: there is no MPI here, and nothing to test. */
bool ranks_can_run(const char *argv0);

/* Starts three ranks of the demo, with these arguments and two seconds of patience; by_hand: by
 * mpirun, else by --ranks. Returns the process that is, or becomes, mpirun. stdout and stderr go to
 * the files "out" and "err" of command_folder; from stdin comes nothing. */
pid_t ranks_launch(bool by_hand, const char *arguments);

/* The process of a rank among the children of mpirun, for which it waits up to 5 seconds; -1. */
pid_t ranks_process(pid_t mpirun, int rank);

/* Waits for a child of this process. Returns its status, 128 + signal when that ended it, and -1
 * when it took more than so many seconds; then it is killed. */
int ranks_wait(pid_t pid, int seconds);

void ranks_pause(int milliseconds);

/* How many where a few are enough, unless SAMEBITS_BATCHES says so. */
int ranks_batches(int few);

#endif
