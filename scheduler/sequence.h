/*
 * sequence.h - one request on its way from prompt to text: its tokens, how they are drawn, where
 * it stands, and what was measured.
 */
#ifndef SAMEBITS_SEQUENCE_H
#define SAMEBITS_SEQUENCE_H

#include "model/error.h"
#include "scheduler/fingerprint.h"
#include "scheduler/logits_chain.h"

#include <stdbool.h>
#include <stdint.h>

enum finish {
    FINISH_NOT_YET,
    FINISH_STOP,        /* drew a stop token */
    FINISH_LENGTH,      /* reached max_new */
    FINISH_CONTEXT,     /* the context is full */
    FINISH_STOP_STRING, /* the text holds a stop string */
    FINISH_CANCELLED,
    FINISH_ERROR /* it could not be answered */
};

/*
 * How a sequence draws its tokens; struct sampling of model/ops.h without what changes by step.
 *
 * The random numbers of a request that asks for a seed depend on that seed, on the number of the
 * sample and on the position of the token, and on nothing else: it gets the same answer alone and
 * among others. Without a seed, seed is 0 and the sequence's number in the run takes the place of
 * the sample's, so that the answers of a run differ from each other.
 */
struct sampling_options {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: all */
    float top_p;       /* 1: all */
    uint64_t seed;
    bool has_seed;   /* the seed was asked for */
    uint32_t sample; /* with a seed: 0 for the first answer to a request, 1 for the second, ... */
};

/* What became of a sequence's drafts (draft.h). */
struct drafting {
    long proposed, accepted; /* tokens that were read as drafts; those of them that were drawn */
    int last_proposed, last_accepted; /* in the last pass; noted when 0 were proposed, too */
    int length;                       /* of its next draft, at most; 0: it had none yet */
    double rate;                      /* of acceptance, lately */
    int pause, next_pause;            /* passes without a draft before one is tried again */
};

struct sequence {
    uint32_t id;     /* its number in the run; without a seed, in the key of its random numbers */
    int32_t *tokens; /* [n_tokens] prompt and answer, owned */
    int n_tokens, capacity;
    int n_prompt; /* tokens before the answer that is being written */
    int n_cached; /* tokens whose keys and values are in the cache */
    int n_draft;  /* tokens behind those n_tokens that are proposed to follow (phase 13) */
    int n_forced; /* tokens of the answer that follow whatever is drawn, all drafts: for scores */
    int max_new;  /* most tokens to draw for this answer */
    bool ignore_stop; /* stop tokens do not end it */
    struct sampling_options sampling;
    enum finish finish;
    struct fingerprint fingerprint; /* of all its logits */
    struct logits_chain *chain;     /* of those of this answer, owned; NULL: no receipt is wanted */
    struct drafting drafting;       /* how well its drafts do */
    /* Seconds of clock_now: when the answer was asked for, its first and its last token. */
    double asked, first, last;
};

/* Seconds of a clock that only runs forward. */
double clock_now(void);

/* A sequence without tokens. Returns 0, or -1 with err set. */
int sequence_start(struct sequence *s, uint32_t id, const struct sampling_options *sampling,
                   struct error *err);

/* Appends n prompt ids and opens an answer to them of at most max_new tokens; asked is set to now.
 * Returns 0, or -1 with err set (no memory). */
int sequence_add_prompt(struct sequence *s, const int32_t *ids, int n, int max_new,
                        struct error *err);

/* Proposes n tokens to follow, in place of what was proposed before; they are read along with the
 * last token, and become the answer's as far as they are what is drawn. Returns 0, or -1 with err
 * set (no memory). */
int sequence_propose(struct sequence *s, const int32_t *ids, int n, struct error *err);

/* Appends one drawn token and notes the time. A draft goes on if it begins with that token, and
 * ends if not. Returns 0, or -1 with err set (no memory). */
int sequence_append(struct sequence *s, int32_t id, struct error *err);

/* Tokens of the answer so far. */
int sequence_new_tokens(const struct sequence *s);

/* Seconds from the question to the first token (TTFT), and milliseconds per token after it (0 when
 * there is no second one). */
double sequence_ttft(const struct sequence *s);
double sequence_ms_per_token(const struct sequence *s);

/* "stop", "length", "context", "stop string", "cancelled" or "error". */
const char *finish_name(enum finish finish);

/* Frees the tokens; a zeroed sequence is fine. */
void sequence_end(struct sequence *s);

#endif
