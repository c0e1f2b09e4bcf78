/*
 * generate.h - writes one sequence to its end, a token at a time.
 *
 * Without a cache every step reads the whole sequence again (phase 0). With one, a step reads only
 * the tokens that are not in it yet: the prompt once, in chunks, then each new token (phase 1).
 */
#ifndef SAMEBITS_GENERATE_H
#define SAMEBITS_GENERATE_H

#include "model/forward.h"
#include "scheduler/sequence.h"

#include <signal.h>

struct generator {
    struct model *model;
    struct workspace *ws;
    int context;      /* most tokens a sequence may have, at most the model's context */
    int chunk;        /* most prompt tokens read in one pass; needs a cache */
    bool fused;       /* paged caches: one attention for all sequences of a pass (phase 8) */
    bool ignore_stop; /* stop tokens do not end the answer: for measurements */
    bool ids_only;    /* logits stay on the device: no fingerprints, none for on_token */
    const struct probe *probe; /* sees every tensor; may be NULL */
    /* Not 0: everything that runs ends after its step, as FINISH_CANCELLED. A signal handler may
     * set it. NULL: never. */
    const volatile sig_atomic_t *interrupted;
    /* Called for each token drawn, in order, with its row of logits, host [vocab_size] (NULL:
     * ids_only). Returns 0, or -1 with err set, which ends the generation. May be NULL. */
    int (*on_token)(void *context, const struct sequence *s, const float *logits,
                    struct error *err);
    void *on_token_context;
    /* Called behind it; it may finish the sequence. The engine's, during its passes, else NULL. */
    int (*appended)(void *context, struct sequence *s, struct error *err);
    void *appended_context;
    struct awaited_hashes *awaited; /* of the pass before (logits_chain.h) */
    struct drafter *drafter;        /* proposes tokens (draft.h); NULL: nobody does */
};

/* A generator for model with its own workspace, the model's whole context and chunks of 128.
 * Returns 0, or -1 with err set. */
int generator_start(struct generator *g, struct model *model, struct error *err);

void generator_end(struct generator *g);

/* Whether *g->interrupted asks to end: here, and of all ranks, as rank 0 has it. */
bool generator_signalled(const struct generator *g);
bool generator_interrupted(const struct generator *g);

/* Returns 0 when the sequence can be continued, or -1 with err set: it is empty, or does not fit in
 * the context. */
int generator_check_prompt(const struct generator *g, const struct sequence *s, struct error *err);

/*
 * Draws tokens until s->finish says why it ended. cache belongs to s, or is NULL.
 * Returns 0, or -1 with err set: a prompt that is empty or does not fit in the context, or what
 * forward reports. The sequence keeps the tokens that it has.
 */
int generate(struct generator *g, struct sequence *s, struct kv_cache *cache, struct error *err);

#endif
