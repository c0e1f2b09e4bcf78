/*
 * check_process.h - code of a reader in a process of its own: started, asked, waited for with a
 * time limit, and never trusted.
 *
 * A program that is graded is linked from the reader's file and a main of ours, and gets four
 * channels: nothing as stdin; a file for what it prints; a pipe (PROCESS_REQUESTS_FD) from which it
 * reads requests; and memory that it maps (PROCESS_MEMORY_FD), shared with the grader. That begins
 * with a state, which the program raises when it has come so far. What the grader expects stays
 * with the grader.
 *
 *     grader                                          program
 *     process_start(&p, "mine.c", argv);              mmap(... PROCESS_MEMORY_FD ...)
 *     memory = process_memory(&p, bytes);
 *     *memory = 0; ... inputs ...
 *     process_ask(&p, &request, sizeof request);      read(PROCESS_REQUESTS_FD, ...)
 *     if (process_wait(&p, DONE, report))             ... outputs ...; *memory = DONE
 *         compare what is there now
 *     process_stop(&p);                               (ended; what it printed is shown as its own)
 *
 * A program that crashes, exits, prints without end or takes too long makes process_wait return
 * false with a report that says which. A grader of one call without requests needs no
 * process_ask. check_grader.c is an example.
 */
#ifndef SAMEBITS_TESTS_CHECK_PROCESS_H
#define SAMEBITS_TESTS_CHECK_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    PROCESS_REPORT = 1280, /* bytes of a report */
    PROCESS_REQUESTS_FD = 3,
    PROCESS_MEMORY_FD = 4
};

struct process {
    const char *name; /* of the reader's file, for what it prints */
    pid_t pid;        /* 0: it has ended */
    int requests, output, memory_fd;
    void *memory; /* the first word is the state, an _Atomic int */
    size_t bytes; /* that are mapped */
    int limit;    /* seconds of processor time of one process_wait: CHECK_SECONDS in the
                     environment, or 30; by the clock ten times as many */
    bool is_lost; /* it ended or took too long: it must be asked nothing more */
};

/* Starts the program argv[0] with these arguments (NULL at the end). The grader ends with status 2
 * when that cannot be done. */
void process_start(struct process *p, const char *name, const char *const *argv);

/* Makes the shared memory at least this large; what is new is zero. Returns p->memory, whose
 * address may have changed. */
void *process_memory(struct process *p, size_t bytes);

/* Sends a request of at most PIPE_BUF bytes. A program that reads none stops nobody. */
void process_ask(struct process *p, const void *request, size_t bytes);

/* Waits until the state is at least this one. Returns false with is_lost set and a report
 * (PROCESS_REPORT bytes) when the program ended before or the time is over. */
bool process_wait(struct process *p, int state, char *report);

/* Ends the program and prints to stderr what it printed, each line with its name. */
void process_stop(struct process *p);

/* Seconds by the grader's clock. */
double process_clock(void);

/* A text of the program as one line that moves no cursor: control characters become spaces. */
void process_plain(char *text);

#endif
