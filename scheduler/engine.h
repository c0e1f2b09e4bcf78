/*
 * engine.h - phases 3 and 4: many requests through one model. The scheduler says who runs; a memory
 * holds the caches (request_memory.h); the engine runs the passes, makes texts of the tokens, and
 * notes the times. Every request's sequence is there from the beginning to the end of the engine.
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
    const struct request *requests; /* these and the options: during the run */
    int n;
    const struct engine_options *options;
    struct scheduler scheduler;
    struct answer *answers;           /* [n] */
    struct memory_request *in_memory; /* [n] what the memory knows of each request */
    struct plan_entry *plan;          /* [max_running] */
    struct pass_part *parts;          /* [max_running] */
    long steps, passes;
    int64_t most_cache_bytes; /* of all requests together, at the fullest moment */
    double began;             /* clock_now at the start */
};

/* Runs all requests (sorted by arrival) to their end. A request that cannot be answered ends with
 * FINISH_ERROR and its reason; the others go on. When g->interrupted asks to end, the step is
 * finished and all that are not done are cancelled. Returns 0, or -1 with err set: bad options,
 * arrivals out of order, no memory, a device that failed. Options and requests are not used any
 * more afterwards. The engine must be ended in either case. */
int engine_run(struct engine *e, struct generator *g, const struct request *requests, int n,
               const struct engine_options *options, struct error *err);

/* Cancels a request, if it is not done. For `stepped`. */
void engine_cancel(struct engine *e, int request);

/* Frees the answers; a zeroed engine is fine. */
void engine_end(struct engine *e);

/* XXH3 over the fingerprints of all requests, in their order. Returns 0, or -1 with err set. */
int engine_fingerprint(const struct engine *e, uint64_t *out, struct error *err);

/* ---- metrics --------------------------------------------------------------------------------- */

/* One quantity over all requests that drew a token: in seconds, except ms_per_token. */
struct spread {
    double mean, p50, p95, p99;
};

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
