/*
 * request_memory.h - where the requests of a run have their keys and values: what the scheduler and
 * the engine ask of it.
 *
 * The scheduler asks for room (admit, reserve) and takes it away (preempt); the engine gets the
 * cache of a request for its pass, and says what was stored and when a request is done. A memory
 * calls nobody back: it reads the requests that `start` is given, and what it has to say lies in
 * this struct. There are two: a cache for each request (own_caches.h, phase 3) and blocks of one
 * pool (paged_memory.h, phase 7), each with this struct as its first member.
 */
#ifndef SAMEBITS_REQUEST_MEMORY_H
#define SAMEBITS_REQUEST_MEMORY_H

#include "model/error.h"
#include "model/kv_cache.h"
#include "scheduler/sequence.h"

#include <stdbool.h>

struct scheduler;

/* A request as its memory sees it. */
struct memory_request {
    const struct sequence *sequence; /* its tokens so far: prompt and answer */
    int max_positions;               /* the most that it can come to store */
    int fork_of; /* number of the request of which it is another sample; -1: none */
};

struct request_memory {
    /* A run of n requests begins, numbered like the scheduler's jobs; the array and the scheduler
     * stay where they are until it ends. Returns 0, or -1 with err set (no memory). */
    int (*start)(struct request_memory *m, const struct scheduler *s,
                 const struct memory_request *requests, int n, struct error *err);
    /* A request wants to begin, or to go on after it was preempted, with n_tokens tokens. True:
     * there is room to begin with; *n_cached of the tokens, fewer than all, need not be read.
     * False: it holds nothing, and `why` is set. */
    bool (*admit)(struct request_memory *m, int request, int n_tokens, int *n_cached);
    /* Makes room for the first n_positions of a running request. False: there is none, nothing has
     * changed, and `why` is set. */
    bool (*reserve)(struct request_memory *m, int request, int n_positions);
    /* Takes back all that a running request holds. NULL: reserve never says no. */
    void (*preempt)(struct request_memory *m, int request);
    /* The cache of a running request, for a pass. */
    struct kv_cache *(*cache)(struct request_memory *m, int request);
    /* A pass has filled that cache up to n_positions. */
    void (*stored)(struct request_memory *m, int request, int n_positions);
    /* The request is done, and gives back what it holds, if anything. */
    void (*release)(struct request_memory *m, int request);

    int64_t bytes;       /* of device memory, held by all requests now */
    int64_t block_bytes; /* bytes comes in blocks of so many; 0: in none */
    struct error why;    /* why admit or reserve said no the last time */
    bool failed;         /* and it was not for lack of room: the run has to end with `why` */
};

#endif
