/*
 * read_along.h - phase 13: requests whose answers are known already are read in one batch: for
 * scores (tutorials/13-receipts/score.h) and receipts (receipt.h).
 *
 * An answer that is known is a draft (pass.h): its tokens are read as prompts are, many in a pass,
 * and each row of logits says which token would have been drawn there.
 */
#ifndef SAMEBITS_READ_ALONG_H
#define SAMEBITS_READ_ALONG_H

#include "scheduler/engine.h"
#include "scheduler/kv_pool.h"

struct read_along {
    struct generator *generator;
    struct kv_pool *pool; /* nothing of it is in use */
    /* token_budget bounds the memory for logits, too: a row for each token of a pass, at most. */
    struct scheduler_options scheduler;
    bool share_prefixes;
    const struct tokenizer *tokenizer; /* for stop strings; NULL: there are none */
    /* Called after each step with the generator's on_token_context; may be NULL. */
    void (*stepped)(void *context, struct engine *engine);
};

/* Runs n requests to their end; on_token sees the logits of each token. Returns 0, or -1 with err
 * set as engine_run does; the engine must be ended in either case. */
int read_along(const struct read_along *how, const struct request *requests, int n,
               struct engine *engine, struct error *err);

#endif
