/*
 * read_along.h - requests whose answers are known already, read in one pool: for scores and for the
 * verification of receipts.
 *
 * An answer that is known is a draft (scheduler/pass.h): its tokens are read as prompts are, many
 * in a pass, and each row of logits says which token would have been drawn there.
 */
#ifndef SAMEBITS_READ_ALONG_H
#define SAMEBITS_READ_ALONG_H

#include "scheduler/engine.h"
#include "scheduler/kv_pool.h"
#include "tutorials/common/demo.h"

/* Runs n requests as one batch, in passes of at most the options' --token-budget tokens, which also
 * bounds the memory of their logits. g: the demo's generator or a copy with other callbacks. Their
 * fingerprints go into the demo's run. Returns 0, or -1 with err set; the engine must be ended in
 * either case. */
int read_along(struct demo *demo, struct generator *g, const struct request *requests, int n,
               struct kv_pool *pool, struct engine *engine, struct error *err);

#endif
