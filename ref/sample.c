/*
 * sample: greedy choice, or a draw whose probabilities are integers (units of 2^-30 of the most
 * likely token), so that prefix sums are exact and the same token is drawn on every device.
 *
 * 1. The largest logit, lowest id on ties. Temperature 0 ends here.
 * 2. w_i = rint(exp((l_i - max) / T) * 2^30).
 * 3. Tokens ordered by (logit descending, id ascending): top-k keeps the first k, then top-p the
 *    shortest prefix whose weights reach top_p times the sum of the kept ones (at least one).
 * 4. A 64-bit Philox number becomes r in [0, sum of kept); walking the kept tokens in order of id,
 *    the first whose running sum exceeds r is drawn.
 */
#include "ref/ref.h"

#include <stdlib.h>

struct candidate {
    float logit;
    int32_t id;
    uint32_t weight;
};

static int by_id(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

static int by_logit(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return x->logit == y->logit ? by_id(a, b) : x->logit > y->logit ? -1 : 1;
}

/* Integers in the order of the numbers: compilers compare many of them at once. */
static int32_t order_of(float x) {
    int32_t magnitude = (int32_t)num_magnitude(x);
    return num_bits(x) >> 31 ? -magnitude : magnitude;
}

/* -1 when a logit is not finite. */
static int32_t argmax(const float *logits, int vocab) {
    int32_t most = INT32_MIN, least = INT32_MAX, first = 0;
    for (int i = 0; i < vocab; i++) {
        int32_t x = order_of(logits[i]);
        most = x > most ? x : most;
        least = x < least ? x : least;
    }
    while (order_of(logits[first]) != most)
        first++;
    return most < 0x7f800000 && least > -0x7f800000 ? first : -1;
}

static uint64_t sum_of(const struct candidate *c, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

/* Orders the candidates by likelihood and returns how many of them stay. Those without weight are
 * nobody's to draw, and behind all others: to sort them would take longest. */
static int truncate_candidates(struct candidate *c, int vocab, int top_k, float top_p) {
    int n = 0;
    for (int i = 0; i < vocab; i++)
        if (c[i].weight)
            c[n++] = c[i];
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (top_k > 0 && top_k < n)
        n = top_k;
    double enough = ceil((double)top_p * (double)sum_of(c, n));
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += c[i].weight;
        if ((double)sum >= enough)
            return i + 1;
    }
    return n;
}

static int32_t draw(const float *logits, int vocab, float max, const struct sampling *how,
                    struct candidate *c) {
    int n = vocab;
    for (int i = 0; i < n; i++)
        c[i] =
            (struct candidate){logits[i], i, num_sampling_weight(logits[i], max, how->temperature)};
    if ((how->top_k > 0 && how->top_k < vocab) || how->top_p < 1) {
        n = truncate_candidates(c, vocab, how->top_k, how->top_p);
        qsort(c, (size_t)n, sizeof *c, by_id);
    }
    uint64_t r = num_draw(how->seed, how->sample, how->position, sum_of(c, n));
    uint64_t sum = 0;
    int i = 0;
    while ((sum += c[i].weight) <= r)
        i++;
    return c[i].id;
}

struct call {
    struct device *dev;
    int32_t *token_ids;
    const float *logits;
    const struct sampling *how;
    struct candidate *candidates; /* of each thread: [vocab] */
    int vocab, site;
};

static void sample_row(void *context, int row, int worker) {
    const struct call *c = context;
    size_t vocab = (size_t)c->vocab;
    const float *l = c->logits + (size_t)row * vocab;
    int32_t best = argmax(l, c->vocab);
    c->token_ids[row] = best < 0 ? 0 : best;
    if (best < 0)
        ref_fault(c->dev, c->site, row);
    else if (c->how[row].temperature > 0)
        c->token_ids[row] =
            draw(l, c->vocab, l[best], &c->how[row], c->candidates + (size_t)worker * vocab);
}

void ref_sample(struct device *dev, int32_t *token_ids, /* [n_rows] */
                const float *logits,                    /* [n_rows, vocab] */
                const struct sampling *how,             /* host [n_rows] */
                int n_rows, int vocab, int site) {
    struct call c = {dev, token_ids, logits, how, NULL, vocab, site};
    size_t bytes = sizeof *c.candidates * (size_t)vocab;
    bool draws = false;
    for (int row = 0; row < n_rows; row++)
        draws = draws || how[row].temperature > 0;
    if (n_rows > 1)
        bytes *= (size_t)ref_n_threads(dev);
    if (!draws || (c.candidates = ref_scratch(dev, SCRATCH_X, bytes, "sample")))
        ref_parallel(dev, n_rows, sample_row, &c);
}
