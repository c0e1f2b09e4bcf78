/*
 * engine.h - phases 3 and 4: many requests through one model. The scheduler says who runs; a memory
 * holds the caches (request_memory.h); the engine runs the passes, makes texts of the tokens, and
 * notes the times.
 *
 * engine_run takes a list of requests and answers all of them. It is made of the calls that a
 * server uses (phase 12), to which requests come while it runs: engine_submit, engine_step,
 * engine_forget.
 *
 * In phases 3 to 7 a step is one forward pass per running request: each reads all weights. Phase 8
 * makes one pass of them (`one_pass`).
 */
#ifndef SAMEBITS_ENGINE_H
#define SAMEBITS_ENGINE_H

#include "model/tokenizer/tokenizer.h"
#include "scheduler/generate.h"
#include "scheduler/scheduler.h"

/* Where the engine's time comes from: the wall clock by default, anything in tests. */
struct engine_clock {
    double (*now)(void *context); /* seconds of the run */
    void (*wait_until)(void *context, double time);
    void *context;
};

struct engine;

struct engine_options {
    struct scheduler_options scheduler;
    struct request_memory *memory; /* for this run alone: started by its owner, who also ends it */
    bool one_pass; /* a step is one forward pass for all; with g->fused one attention, too */
    const struct tokenizer *tokenizer; /* for stop strings and texts; NULL: neither */
    const struct engine_clock *clock;  /* NULL: the wall clock */
    /* Called after each step; may call engine_cancel. May be NULL. */
    void (*stepped)(void *context, struct engine *engine);
    /* Called for each token that a request has drawn, after its text and its finish are there, and
     * before `changed` is told that it is done; in the middle of a step. May be NULL. */
    void (*drew)(void *context, struct engine *engine, int request);
    /* Called for every change of a request's state. May be NULL. */
    void (*changed)(void *context, const struct engine *engine, int request,
                    enum request_state from, double now);
    void *context;
};

/* One request on its way and its result. */
struct answer {
    struct sequence sequence; /* tokens, fingerprint, finish */
    char *text;               /* [n_text] what was drawn, up to a stop string; with a tokenizer */
    size_t n_text, text_capacity;
    struct decode_stream *stream;
    struct error error; /* why finish is FINISH_ERROR; else empty */
};

struct engine {
    struct generator *generator;
    int capacity; /* most requests that the engine holds at once */
    int n;        /* numbers that were given to requests: 0 ... n - 1 */
    long n_submitted;
    const struct engine_options *options; /* until the end */
    struct scheduler scheduler;
    const struct request **requests;  /* [capacity] the submitters' */
    struct answer *answers;           /* [capacity] */
    struct memory_request *in_memory; /* [capacity] what the memory knows of each request */
    struct plan_entry *plan;          /* [n_planned] of the last step */
    int n_planned;
    struct pass_part *parts;   /* [max_running] */
    struct sequence **drafted; /* [max_running] who gets drafts in a step, */
    int *most_drafted;         /* [max_running] and of how many tokens at most */
    long steps, passes, drawn; /* drawn: tokens */
    long proposed, accepted;   /* tokens of drafts that were read, and of them drawn */
    int64_t most_cache_bytes;  /* of all requests together, at the fullest moment */
    double began;              /* clock_now at the start */
    double common;             /* of ranks: rank 0's time when it told it last */
};

/* An engine without requests, for `capacity` of them at once. The generator and the options, with
 * all that they point to, must stay where they are until engine_end. Returns 0, or -1 with err set:
 * bad options, no memory. The engine must be ended in either case. */
int engine_start(struct engine *e, struct generator *g, const struct engine_options *options,
                 int capacity, struct error *err);

/* Queues a request, which the caller keeps until it is forgotten; its arrival is not before that of
 * the one submitted last. fork_of: the number of the request of which it is another sample
 * (request.h), or -1. One that cannot be answered is done at once, with FINISH_ERROR and its
 * reason. Returns its number, or -1 with err set: the engine is full, arrivals out of order, no
 * memory. */
int engine_submit(struct engine *e, const struct request *request, int fork_of, struct error *err);

/* One step of the scheduler. Returns 1; 0: there is nothing to do now; -1 with err set: no memory,
 * a device that failed. */
int engine_step(struct engine *e, struct error *err);

/* Seconds of the run, by the options' clock: the times of requests count in it. Of ranks, rank 0's
 * at the last tick, so that they see an arrival in the same step. */
double engine_now(const struct engine *e);

/* All ranks hear rank 0's time; without ranks, nothing. (engine_step does this at its beginning and
 * after the pass.) */
void engine_tick(struct engine *e);

/* Cancels a request, if it is not done. Not from `changed` or `drew`. */
void engine_cancel(struct engine *e, int request);

/* Frees the answer of a request that is done; its number may be another's from now on. */
void engine_forget(struct engine *e, int request);

/* Starts an engine and runs all requests (sorted by arrival) to their end. A request that cannot be
 * answered ends with FINISH_ERROR and its reason; the others go on. When g->interrupted asks to
 * end, the step is finished and all that are not done are cancelled. Returns 0, or -1 with err set:
 * what engine_start, engine_submit and engine_step report. The engine must be ended in either case.
 */
int engine_run(struct engine *e, struct generator *g, const struct request *requests, int n,
               const struct engine_options *options, struct error *err);

/* Frees the answers; a zeroed engine is fine. */
void engine_end(struct engine *e);

/* XXH3 over the fingerprints of all requests, in their order. Returns 0, or -1 with err set. */
int engine_fingerprint(const struct engine *e, uint64_t *out, struct error *err);

/* ---- metrics --------------------------------------------------------------------------------- */

/* One quantity over all requests that drew a token: in seconds, except ms_per_token. */
struct spread {
    double mean, p50, p95, p99;
};

/* Sorts n values, and says how they are spread; zeros when there are none. */
struct spread spread_of(double *values, int n);

struct engine_metrics {
    int n;          /* requests with at least one token */
    double seconds; /* from the first arrival to the end of the last request */
    double tokens_per_second;
    struct spread queue;        /* arrival to admission */
    struct spread ttft;         /* arrival to first token */
    struct spread latency;      /* arrival to the end */
    struct spread ms_per_token; /* after the first; of requests with at least two */
};

/* Returns 0, or -1 with err set (no memory). */
int engine_measure(const struct engine *e, struct engine_metrics *out, struct error *err);

#endif
