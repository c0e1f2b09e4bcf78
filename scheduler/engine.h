/*
 * engine.h - phases 3 and 4: many requests through one model. The scheduler says who runs; the
 * engine gives each admitted request a cache, runs the passes, and notes the times. Every request's
 * sequence is there from the beginning to the end of the engine.
 *
 * The caches are pieces of memory of their own (phase 3) or blocks of one pool (phase 7).
 *
 * As every request has its own cache, a step is one forward pass per running request: each reads
 * all weights. Phase 8 makes one pass of them (`one_pass`).
 */
#ifndef SAMEBITS_ENGINE_H
#define SAMEBITS_ENGINE_H

#include "model/tokenizer/tokenizer.h"
#include "scheduler/generate.h"
#include "scheduler/pass.h"
#include "scheduler/scheduler.h"

/* Where the engine's time comes from: the wall clock by default, anything in tests. */
struct engine_clock {
    double (*now)(void *context); /* seconds of the run */
    void (*wait_until)(void *context, double time);
    void *context;
};

struct engine;

/* Caches that are pieces of one memory (phase 7: engine_paged.h). */
struct engine_memory {
    /* The run begins: sets e->scheduler.memory. Returns 0, or -1 with err set. */
    int (*start)(void *context, struct engine *e, struct error *err);
    /* After each plan: 0, or -1 with err set when something failed in it. */
    int (*check)(void *context, struct error *err);
    /* The cache of a running request, and how many of its tokens are in it. */
    struct kv_cache *(*cache)(void *context, int request, int *n_cached);
    /* A pass has filled it up to n_positions. */
    void (*stored)(void *context, int request, int n_positions);
    /* The request is done. */
    void (*release)(void *context, int request);
    int (*blocks_in_use)(void *context);
    size_t bytes_per_block;
    void *context;
};

struct engine_options {
    struct scheduler_options scheduler;
    /* Makes the cache of a request for at most `positions` positions. */
    struct kv_cache *(*cache_new)(const struct model *model, int positions, struct error *err);
    void (*cache_free)(struct kv_cache *cache);
    int cache_positions;                /* given to cache_new; 0: what the request needs at most */
    const struct engine_memory *memory; /* NULL: a cache of its own for each request; else the three
                                           above are not used */
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
struct answer_of {
    struct sequence sequence; /* tokens, fingerprint, finish */
    struct kv_cache *cache;   /* while it runs; NULL with a memory */
    char *text;               /* [n_text] what was drawn, up to a stop string; with a tokenizer */
    size_t n_text, text_capacity;
    struct decode_stream *stream;
    struct error error; /* why finish is FINISH_ERROR */
};

struct engine {
    struct generator *generator;
    const struct request *requests; /* these and the options: during the run */
    int n;
    const struct engine_options *options;
    struct scheduler scheduler;
    struct answer_of *answers; /* [n] */
    struct plan_entry *plan;   /* [max_running] */
    struct pass_part *parts;   /* [max_running] */
    long steps, passes;
    int64_t cache_bytes, most_cache_bytes; /* of all running requests */
    double began;                          /* clock_now at the start */
};

/* Runs all requests (sorted by arrival) to their end. A request that cannot be answered ends with
 * FINISH_ERROR and its reason; the others go on. When g->interrupted asks to end, the step is
 * finished and all that are not done are cancelled. Returns 0, or -1 with err set: bad options,
 * arrivals out of order, no memory, a device that failed. Options and requests are not used any
 * more afterwards. The engine must be ended in either case. */
int engine_run(struct engine *e, struct generator *g, const struct request *requests, int n,
               const struct engine_options *options, struct error *err);

/* Ends a request that is not done. For `stepped`. */
void engine_cancel(struct engine *e, int request);

/* Ends a request that cannot be answered. For engine_memory. */
void engine_refuse(struct engine *e, int request, const struct error *why);

/* Frees the answers; a zeroed engine is fine. */
void engine_end(struct engine *e);

/* XXH3 over the fingerprints of all requests, in their order. Returns 0, or -1 with err set. */
int engine_fingerprint(const struct engine *e, uint64_t *out, struct error *err);

/* ---- metrics ----------------------------------------------------------------------------------
 */

/* Of the requests that drew a token. Seconds, but ms_per_token. */
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
