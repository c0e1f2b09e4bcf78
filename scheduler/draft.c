#include "scheduler/draft.h"

#include <math.h>
#include <stdlib.h>

/* Drafts begin with the first length, and grow up to the last: with the token before them, 8 and 16
 * rows, which make whole tiles. A pause begins with the first one and doubles up to the last, as
 * long as drafts are not worth their time. */
enum { FIRST_LENGTH = 7, PROBE_LENGTH = 2, MOST_LENGTH = 15, FIRST_PAUSE = 16, MOST_PAUSE = 256 };
/* Tokens that must have stood before; more than that are not compared. */
enum { LEAST_MATCH = 2, MOST_MATCH = 16 };
/* One step in so many has no draft, so that it is known what such a step takes. */
enum { PLAIN_STEP = 64 };

static int min_int(int a, int b) {
    return a < b ? a : b;
}

/* ---- what a drafted token costs ---------------------------------------------------------------
 */

/* What a drafted token is taken to cost before it is measured, and the most that it can. */
static const double likely_cost = 0.3, most_cost = 1.5;

/* A running mean that follows low samples faster than high ones: a step may have been interrupted.
 */
static void add_sample(double *mean, double sample) {
    *mean += (sample - *mean) / (sample < *mean ? 3 : 12);
}

/* The time from proposal to proposal is that of the step between them. */
static void measure_step(struct drafter *d) {
    double now = clock_now(), seconds = now - d->last_call;
    if (d->last_n && !d->last_drafted) {
        double sample = seconds / d->last_n;
        if (d->plain_seconds <= 0)
            d->plain_seconds = sample;
        add_sample(&d->plain_seconds, fmin(sample, 2 * d->plain_seconds));
    } else if (d->last_n && d->plain_seconds > 0) {
        double sample = (seconds / d->plain_seconds - d->last_n) / d->last_drafted;
        if (d->measured_cost <= 0)
            d->measured_cost = likely_cost;
        add_sample(&d->measured_cost, fmin(fmax(sample, 0), most_cost));
    }
    d->last_call = now;
    d->n_steps++;
}

/* What a drafted token takes, as a part of what a token takes that is drawn without drafts. If a
 * smaller part of the drafted ones is accepted, they take more time than they save. */
static double cost(const struct drafter *d) {
    return d->fixed_cost > 0 ? d->fixed_cost : d->measured_cost;
}

/* ---- how long a draft is ----------------------------------------------------------------------
 */

/* What the last draft says of the next: as long as what was accepted, and one more, or twice as
 * long when all of it was; none for a while when too few are accepted. */
static void learn(struct drafting *d, double least) {
    if (!d->length) {
        d->length = FIRST_LENGTH;
        d->next_pause = FIRST_PAUSE;
        d->rate = 1;
    }
    if (!d->last_proposed)
        return;
    d->rate += ((double)d->last_accepted / d->last_proposed - d->rate) / 2;
    if (d->rate > least) {
        bool all = d->last_accepted == d->last_proposed;
        d->length = min_int(all ? 2 * d->length + 1 : d->last_accepted + 1, MOST_LENGTH);
        d->next_pause = FIRST_PAUSE;
    } else {
        d->length = PROBE_LENGTH;
        d->pause = d->next_pause;
        d->next_pause = min_int(2 * d->next_pause, MOST_PAUSE);
    }
    d->last_proposed = 0;
}

int drafter_propose(struct drafter *d, struct sequence *const *sequences, int *most, int n,
                    struct error *err) {
    if (!d)
        return 0;
    measure_step(d);
    bool plain = d->fixed_cost <= 0 && (d->plain_seconds <= 0 || d->n_steps % PLAIN_STEP == 0);
    double least = cost(d);
    for (int i = 0; i < n; i++) {
        struct drafting *of = &sequences[i]->drafting;
        learn(of, least);
        bool waits = plain || of->pause > 0 || sequences[i]->n_draft || most[i] < 1;
        of->pause -= of->pause > 0;
        most[i] = waits ? 0 : min_int(most[i], of->length);
    }
    if (d->propose(d, sequences, most, n, err))
        return -1;
    d->last_n = n;
    d->last_drafted = 0;
    for (int i = 0; i < n; i++)
        d->last_drafted += sequences[i]->n_draft;
    return 0;
}

void drafter_free(struct drafter *d) {
    if (d)
        d->free(d);
}

/* ---- n-grams --------------------------------------------------------------------------------- */

/* How many tokens before position a are those before position b > a. */
static int match_length(const int32_t *tokens, int a, int b) {
    int n = 0;
    while (n < MOST_MATCH && n < a && tokens[a - 1 - n] == tokens[b - 1 - n])
        n++;
    return n;
}

/* Where the longest match with the end of the text ends; of equal ones the last. 0: none. */
static int find_match(const int32_t *tokens, int n_tokens) {
    int best = 0, longest = LEAST_MATCH - 1;
    for (int at = n_tokens - 1; at >= LEAST_MATCH && longest < MOST_MATCH; at--) {
        if (tokens[at - 1] != tokens[n_tokens - 1])
            continue;
        int length = match_length(tokens, at, n_tokens);
        if (length > longest) {
            longest = length;
            best = at;
        }
    }
    return best;
}

struct ngram_drafter {
    struct drafter base; /* first: pointers to it are pointers to the whole */
    const struct model_config *config;
};

/* What followed position `at`; behind the end of the text, the draft goes on with itself. Returns
 * how many tokens it has. */
static int copy_draft(int32_t draft[MOST_LENGTH], const struct sequence *s, int at, int most,
                      const struct model_config *config) {
    int n = 0;
    for (bool stops = false; n < most && !stops; n++) {
        int from = at + n;
        draft[n] = from < s->n_tokens ? s->tokens[from] : draft[from - s->n_tokens];
        stops = model_config_is_stop(config, draft[n]);
    }
    return n;
}

static int propose_ngrams(struct drafter *d, struct sequence *const *sequences, const int *lengths,
                          int n, struct error *err) {
    for (int i = 0; i < n; i++) {
        struct sequence *s = sequences[i];
        int32_t draft[MOST_LENGTH] = {0};
        int at = lengths[i] ? find_match(s->tokens, s->n_tokens) : 0;
        if (at &&
            sequence_propose(
                s, draft, copy_draft(draft, s, at, lengths[i], ((struct ngram_drafter *)d)->config),
                err))
            return -1;
    }
    return 0;
}

static void free_ngrams(struct drafter *d) {
    free(d);
}

struct drafter *ngram_drafter_new(const struct model_config *config, struct error *err) {
    struct ngram_drafter *d = malloc(sizeof *d);
    if (!d) {
        error_set(err, "out of memory for a drafter");
        return NULL;
    }
    *d = (struct ngram_drafter){{.propose = propose_ngrams, .free = free_ngrams}, config};
    return &d->base;
}
