/*
 * scheduler.h - phase 3: who runs next. Knows states, limits and times, and nothing of a model, so
 * that tests can drive it a million steps.
 *
 * Requests wait in one queue, first come, first served. Admitted ones run until they are done. Each
 * step, scheduler_plan says how many tokens of which request go into the model: one for each that
 * decodes, then pieces of prompts in order of admission while the budget lasts; scheduler_ran takes
 * the outcome.
 *
 * Two policies differ in the moment of admission. Static: a batch starts when the one before is
 * done altogether. Continuous: a request starts the moment a place is free (Yu et al., "Orca: A
 * Distributed Serving System for Transformer-Based Generative Models", 2022). Prompts in pieces
 * beside decoding: Agrawal et al., "SARATHI", 2023.
 *
 * Phase 13: a request may have a draft, tokens that are proposed to follow its last one. They are
 * read with it, as far as budget and free memory allow: nobody gives way to them.
 *
 * Phase 7: a request that lacks memory takes it from the one that arrived last (while it still
 * reads its prompt: from the last one that reads, too). That one is preempted: it gives back what
 * it holds, waits in front of the queue, and later reads its tokens again, or those of them that
 * its memory lost (Kwon et al., "PagedAttention", 2023, section 4.5). A request that lacks memory
 * while nobody else runs can never be served, and ends with FINISH_ERROR.
 */
#ifndef SAMEBITS_SCHEDULER_H
#define SAMEBITS_SCHEDULER_H

#include "model/error.h"
#include "scheduler/request.h"
#include "scheduler/request_memory.h"

#include <stdbool.h>

struct scheduler_options {
    int max_running;  /* requests admitted at once, at least 1 */
    int token_budget; /* tokens per step, at least max_running, so that all can decode */
    int chunk;        /* most prompt tokens of one request per step, at least 1 */
    bool continuous;
};

/* A request as the scheduler sees it. Times are in seconds of the run; -1: it did not come to that.
 */
struct job {
    enum request_state state;
    enum finish finish;
    long order;            /* how many were added before it */
    int n_prompt;          /* prompt tokens */
    int n_to_read, n_read; /* tokens to be read before the next is drawn: the prompt, and after a
                              preemption what was drawn, too; and those that are there */
    int n_new;             /* tokens drawn */
    int n_draft;     /* set before a plan: tokens that are proposed to follow; before scheduler_ran:
                        those of them that do */
    int n_preempted; /* how often */
    double arrival, admitted, first, done;
    int steps; /* in which it had a part */
};

/* What one step does for one request. */
struct plan_entry {
    int job;
    int first;    /* position of the first token to be read; those before are in the cache */
    int n_tokens; /* to be read: of the prompt, or 1: the token drawn last */
    bool draws;   /* a token follows */
};

struct scheduler {
    struct scheduler_options options;
    struct job *jobs; /* [n_jobs] a job's number is its place here */
    int n_jobs, capacity;
    long n_added;
    double last_arrival;
    int *
        queue; /* [capacity] jobs that were never admitted, in order of arrival: from queue_first */
    int queue_first, queue_end;
    int *forgotten; /* [capacity] numbers that are free again */
    int n_forgotten;
    int *running; /* [max_running] jobs in order of arrival */
    int n_running, n_done;
    int *preempted; /* [max_running] jobs in order of arrival */
    int n_preempted;
    struct request_memory *memory; /* not owned; NULL: there is always room */
    /* Called for every change of state; may be NULL. */
    void (*changed)(void *context, int job, enum request_state from, double now);
    void *context;
};

/* Returns 0, or -1 with err set: a limit out of its range, no memory. */
int scheduler_start(struct scheduler *s, const struct scheduler_options *options,
                    struct error *err);

/* A zeroed one is fine. */
void scheduler_end(struct scheduler *s);

/* Adds a request to the queue; arrivals must not go back in time, and n_prompt is at least 1.
 * Returns its number, 0, 1, 2, ... or one that was forgotten; or -1 with err set. */
int scheduler_add(struct scheduler *s, double arrival, int n_prompt, struct error *err);

/* A request that is done need not be remembered: its number may be another's from now on. For those
 * who serve without an end. */
void scheduler_forget(struct scheduler *s, int job);

/* Admits who may start at time `now`, preempts who must give way, and fills entries [max_running]
 * with what the step does. Returns how many; 0: nobody runs, and the next arrival is in the future
 * or there is none (or the last one that ran was refused: plan again). */
int scheduler_plan(struct scheduler *s, double now, struct plan_entry *entries);

/* The step did what entry says; if it drew a token, finish tells whether that was the last. */
void scheduler_ran(struct scheduler *s, const struct plan_entry *entry, enum finish finish,
                   double now);

/* Ends a request that is not done, wherever it is: cancelled, or not answerable. One that has not
 * arrived yet ends as it arrives. */
void scheduler_stop(struct scheduler *s, int job, enum finish finish, double now);

/* When the next request that waits arrives (maybe in the past); INFINITY: none waits. */
double scheduler_next_arrival(const struct scheduler *s);

/* Requests that have arrived by now and wait. */
int scheduler_waiting(const struct scheduler *s, double now);

#endif
