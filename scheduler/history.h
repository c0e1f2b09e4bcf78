/*
 * history.h - what happens in a run, step by step, as JSON: for the page of the server (phase 12)
 * and the files of --html. A change says what is different since the change before it:
 *
 *     {"step": 7, "time": 0.0123,            seconds of the run
 *      "drawn": 40, "waiting": 3,            tokens so far; requests in the queue
 *      "used": 9, "cached": 2, "preemptions": 0,    blocks; only with a pool
 *      "requests": [{"id": 3, ...}, ...],
 *      "references": [[17, 1], ...]}         block, how many use it: 0 free, -1 cached
 *
 * A request's object has its id, how many were submitted before it, and of the following what has
 * changed: state, prompt (tokens), read, to_read (tokens that are or must be read before the next
 * is drawn), new (tokens drawn), first and piece (what the step has read: position, tokens), keep
 * (how many of its blocks it still has, from the first) and blocks (those behind them), capacity
 * (positions of a cache of its own), sample_of (an id), finish; and, if texts are wanted, title,
 * fingerprint, and text (what the answer got) or whole (the answer, cut).
 */
#ifndef SAMEBITS_HISTORY_H
#define SAMEBITS_HISTORY_H

#include "scheduler/engine.h"

#include <jansson.h>

/* Blocks of a pool that are told of: a page shows no more. */
enum { HISTORY_BLOCKS = 4096 };

struct told;

struct history {
    const struct request_memory *memory; /* not owned */
    bool texts;
    struct told *told; /* [n_told] what was said of each number of the engine */
    int n_told;
    int32_t *references;                  /* [n_blocks] as said last */
    int n_blocks, all_blocks, block_size; /* all_blocks: of the pool */
    long steps;
    double began;
    bool failed;    /* there was no memory: what came is not complete */
    json_t *counts; /* the change told last, without its lists */
};

/* A history that begins now; of requests that were done before, it tells nothing. memory: the
 * engine's, paged or own_caches. texts: with titles, texts and fingerprints, for which answers are
 * not forgotten (engine_forget) before they are told. */
void history_start(struct history *h, const struct request_memory *memory, bool texts, double now);

/* Whether a request has come, gone or changed its state since the last change. */
bool history_is_new(const struct history *h, const struct engine *e, double now);

/* The change since the last call, a new reference; NULL: nothing, or no memory (h->failed). In the
 * engine's thread, between two steps. */
json_t *history_take(struct history *h, const struct engine *e, double now);

/* All that was told so far as one change: of requests that are not done, without texts. A new
 * reference, or NULL: no memory. */
json_t *history_all(const struct history *h);

/* A zeroed one is fine. */
void history_end(struct history *h);

#endif
