/*
 * request.h - what somebody asks of the engine.
 */
#ifndef SAMEBITS_REQUEST_H
#define SAMEBITS_REQUEST_H

#include "scheduler/sequence.h"

struct request {
    double arrival;  /* seconds after the start of the run */
    int32_t *prompt; /* [n_prompt] */
    int n_prompt, max_new;
    struct sampling_options sampling;
    char **stops; /* [n_stops] texts that end the answer */
    int n_stops;
    char *title;      /* for tables: the id, or the beginning of the prompt; may be NULL */
    bool ignore_stop; /* stop tokens do not end it */
    /* Not 0: it is another sample of the request that stands this many places before it, with the
     * same prompt. In a paged cache (phase 7) it begins with the blocks of that one. */
    int fork_back;
    /* Phase 13: an answer that is known and is only read: whether it is what is drawn (receipt.h),
     * or, forced, how likely it is (score.h); an answer goes on behind it up to max_new tokens.
     * n_draft is 0 for others. */
    const int32_t *draft; /* [n_draft], the submitter's */
    int n_draft;
    bool forced;
    bool receipt; /* the answer keeps a logits_chain */
};

/* Where a request is on its way. */
enum request_state {
    REQUEST_WAITING,    /* in the queue */
    REQUEST_PREFILLING, /* admitted; its prompt is being read */
    REQUEST_DECODING,   /* has its first token, draws one a step */
    REQUEST_PREEMPTED,  /* gave its memory to others (phase 7); waits in front of the queue */
    REQUEST_DONE,       /* its finish says why */
    N_REQUEST_STATES
};

/* "waiting", "prefilling", "decoding", "preempted" or "done". */
const char *request_state_name(enum request_state state);

#endif
