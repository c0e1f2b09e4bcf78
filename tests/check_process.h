/*
 * check_process.h - the candidate (check_call.h) as the grader sees it: another process, which is
 * asked, timed with the grader's own clock, and never trusted.
 */
#ifndef SAMEBITS_TESTS_CHECK_PROCESS_H
#define SAMEBITS_TESTS_CHECK_PROCESS_H

#include "tests/check_call.h"

#include <sys/types.h>

enum { CHECK_REPORT = 640 };

struct candidate {
    const char *name; /* of what it runs: the reader's file, or gpu/ */
    pid_t pid;
    int requests, output; /* the pipe to it, and a file of what it prints */
    int memory_fd;
    struct check_memory *memory;
    size_t bytes; /* that are mapped */
    int limit;    /* seconds that it may take for a request */
    bool is_lost; /* it ended, hung, or its device stopped: nothing runs there any more */
};

/* Starts the program for an op. The grader ends with status 2 when that cannot be done. */
void candidate_start(struct candidate *c, const char *program, const char *op);

/* The shared memory of a request's calls: call i is at i * call_bytes. */
unsigned char *candidate_memory(struct candidate *c, const struct check_request *r);

/* Has the calls run, whose arrays are in the shared memory. *seconds, if not NULL: from the moment
 * they were allowed to begin until everything on the device had ended. Returns false with is_lost
 * set and a report (CHECK_REPORT bytes) when there is no answer. */
bool candidate_run(struct candidate *c, const struct check_request *r, double *seconds,
                   char *report);

/* Ends the process and prints to stderr what it printed, marked as its own. */
void candidate_stop(struct candidate *c);

#endif
