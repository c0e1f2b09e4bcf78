#include "scheduler/logprobs.h"

#include "model/numerics.h"

/* Puts a logit among the n likeliest so far, of at most `most`. Returns how many there are then. */
static int insert(struct logprob *top, int n, int most, int32_t id, float logit) {
    int i = n < most ? n : most - 1;
    if (!most || (n == most && logit <= top[i].value))
        return n;
    for (; i > 0 && top[i - 1].value < logit; i--)
        top[i] = top[i - 1];
    top[i] = (struct logprob){id, logit};
    return n < most ? n + 1 : n;
}

int logprobs_of(const float *logits, int vocab, int32_t id, float *of_id, struct logprob *top,
                int n_top) {
    float largest = logits[0];
    double sum = 0;
    int n = 0;
    for (int i = 1; i < vocab; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (int i = 0; i < vocab; i++) {
        sum += (double)num_exp(logits[i] - largest);
        n = insert(top, n, n_top, i, logits[i]);
    }
    float log_sum = num_log((float)sum);
    *of_id = logits[id] - largest - log_sum;
    for (int i = 0; i < n; i++)
        top[i].value = top[i].value - largest - log_sum;
    return n;
}
