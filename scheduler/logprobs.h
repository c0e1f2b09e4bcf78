/*
 * logprobs.h - the log-probability of tokens under a row of logits: what sampling at temperature 1
 * without truncation draws from.
 *
 * log p(i) = (l_i - m) - log(sum of e^(l_j - m)), m the largest logit; e^x and log from
 * model/numerics.h, the sum in float64 and in order of the ids. It is computed on the host from
 * logits whose bits no device changes, so its bits are the same everywhere, too.
 */
#ifndef SAMEBITS_LOGPROBS_H
#define SAMEBITS_LOGPROBS_H

#include "model/error.h"

#include <stdint.h>

enum { MOST_TOP_LOGPROBS = 20 };

struct logprob {
    int32_t id;
    float value; /* natural logarithm, at most 0 */
};

/* logits: host [vocab], finite. *of_id: that of the token `id`. top [n_top <= MOST_TOP_LOGPROBS]:
 * the likeliest tokens, lowest id first on ties; fewer when the vocabulary is smaller. Returns how
 * many there are in top. */
int logprobs_of(const float *logits, int vocab, int32_t id, float *of_id, struct logprob *top,
                int n_top);

#endif
