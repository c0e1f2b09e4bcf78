/*
 * service.h - phase 12: the engine in a thread of its own. Requests come and go from other threads
 * while it runs; what happens to them is told to them token by token.
 *
 *     submitters --service_submit, service_cancel--> [inbox] --> engine thread: one step after the
 *     other --> ticket->drew, ticket->done, in the engine thread
 *
 * There is one lock, that of the inbox. The engine thread holds it between two steps only, to take
 * what has come; a step never waits for a submitter.
 */
#ifndef SAMEBITS_SERVICE_H
#define SAMEBITS_SERVICE_H

#include "scheduler/engine.h"
#include "scheduler/logprobs.h"
#include "scheduler/paged_memory.h"

#include <stdatomic.h>

/* A request on its way through a service. The submitter fills in the first part and keeps the whole
 * where it is until `done` has been called; the service uses the rest. */
struct ticket {
    struct request request; /* arrival: the service's; first, so that it leads to the ticket */
    int n_logprobs;         /* -1: none are wanted; else how many of the likeliest tokens */
    /* The first of the samples of one request, whose prompt they share: this ticket itself, or one
     * that is submitted with it, before it. */
    struct ticket *origin;
    /* Called in the engine thread: for each token drawn, and once at the end. They must not wait,
     * nor call the service; service_stopping alone they may. a: the answer so far. */
    void (*drew)(struct ticket *t, const struct answer *a);
    void (*done)(struct ticket *t, const struct answer *a);

    float logprob;       /* for drew: of the token drawn last, if logprobs are wanted */
    struct logprob *top; /* [n_top] likeliest tokens in its place; room for n_logprobs */
    int n_top;
    bool late;             /* for done: it waited too long, and was cancelled for that */
    atomic_bool cancelled; /* somebody asks for it */
    int number;            /* in the engine; -1: not there yet, or not any more */
    double last;           /* seconds of the run: its last token */
    struct ticket *behind; /* in the inbox */
};

/* What is counted, since the start. Times in seconds. */
enum { N_BUCKETS = 22 };
struct histogram {
    const double *bounds; /* [n_bounds] upper bounds */
    int n_bounds;
    long counts[N_BUCKETS]; /* [n_bounds + 1] */
    double sum;
};

struct service_metrics {
    int running, waiting;
    double cache_used; /* of the pool's blocks: 0 ... 1 */
    long prompt_tokens, generated_tokens, finished, cancelled, refused;
    long prefix_queries, prefix_hits; /* tokens that were looked up, and found */
    long drafted, accepted;           /* tokens that were proposed, and drawn */
    struct histogram ttft, inter_token, latency, queue;
};

/* The buckets of metrics that are all zero. histogram_add: one more value. */
void service_metrics_start(struct service_metrics *m);
void histogram_add(struct histogram *h, double value);

struct service_options {
    struct scheduler_options scheduler;
    struct paged_memory *memory;
    const struct tokenizer *tokenizer;
    int max_waiting;   /* requests in the queue, at least 1: one more is refused */
    double wait_limit; /* seconds that a request may wait before it is admitted; 0: for ever */
    /* Called in the engine thread after a step, and when it begins to wait. May be NULL. */
    void (*stepped)(void *context, const struct engine *e);
    void *context;
};

struct service;

/* Starts the thread. g, options and what they point to stay where they are until service_stop.
 * Returns NULL with err set: bad options, no memory, no thread. */
struct service *service_start(struct generator *g, const struct service_options *options,
                              struct error *err);

enum service_answer {
    SERVICE_TAKEN,
    SERVICE_FULL,    /* max_waiting requests wait already */
    SERVICE_STOPPING /* no new requests any more; also after a device failed */
};

/* Queues n tickets, all or none. */
enum service_answer service_submit(struct service *s, struct ticket *tickets[], int n);

/* The request ends within a step, if it has not ended already; done is called as ever. */
void service_cancel(struct service *s, struct ticket *t);

/* The engine thread calls `stepped` soon, also if there is nothing to do. */
void service_poke(struct service *s);

/* A copy of the counts. */
void service_measure(struct service *s, struct service_metrics *out);

/* From now on new requests are refused; those that are there may run for `patience` seconds more,
 * and are cancelled then. Returns at once. */
void service_drain(struct service *s, double patience);

/* Whether new requests are refused, with why set: it drains, or its device failed. That is so
 * before any ticket's done tells of a failure: who has heard of it finds the whole server down. */
bool service_stopping(struct service *s, struct error *why);

/* Whether the engine thread has ended: drained, or its device failed. */
bool service_ended(struct service *s);

/* Waits for the end of a drained service: all tickets are done then. Returns 0, or -1 with err set
 * to why the engine failed meanwhile. */
int service_stop(struct service *s, struct error *err);

/* Frees a service that was stopped; NULL is fine. */
void service_free(struct service *s);

#endif
