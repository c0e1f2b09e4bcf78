#include "scheduler/draft.h"

#include <stdlib.h>

/* Drafts begin with the first length, and grow up to the last. A pause begins with the first one
 * and doubles up to the last, as long as nothing is accepted. */
enum { FIRST_LENGTH = 4, MOST_LENGTH = 16, FIRST_PAUSE = 4, MOST_PAUSE = 128 };
/* Tokens that must have stood before; more than that are not compared. */
enum { LEAST_MATCH = 2, MOST_MATCH = 16 };

static int min_int(int a, int b) {
    return a < b ? a : b;
}

/* What the last draft says of the next: as long as what was accepted, and one more; twice as long
 * when all of it was; and when nothing was, none for a while. */
static void learn(struct drafting *d) {
    if (!d->length) {
        d->length = FIRST_LENGTH;
        d->next_pause = FIRST_PAUSE;
    }
    if (!d->last_proposed)
        return;
    if (d->last_accepted) {
        int next = d->last_accepted < d->last_proposed ? d->last_accepted + 1 : 2 * d->length;
        d->length = min_int(next, MOST_LENGTH);
        d->next_pause = FIRST_PAUSE;
    } else {
        d->length = LEAST_MATCH;
        d->pause = d->next_pause;
        d->next_pause = min_int(2 * d->next_pause, MOST_PAUSE);
    }
    d->last_proposed = 0;
}

int drafter_propose(struct drafter *d, struct sequence *const *sequences, int *most, int n,
                    struct error *err) {
    if (!d)
        return 0;
    for (int i = 0; i < n; i++) {
        struct drafting *of = &sequences[i]->drafting;
        learn(of);
        bool waits = of->pause > 0 || sequences[i]->n_draft || most[i] < 1;
        of->pause -= of->pause > 0;
        most[i] = waits ? 0 : min_int(most[i], of->length);
    }
    return d->propose(d, sequences, most, n, err);
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

/* Behind the end of the text, what is copied goes on with the copy. */
static int propose_ngrams(struct drafter *d, struct sequence *const *sequences, const int *lengths,
                          int n, struct error *err) {
    (void)d;
    for (int i = 0; i < n; i++) {
        struct sequence *s = sequences[i];
        int32_t draft[MOST_LENGTH] = {0};
        int at = lengths[i] ? find_match(s->tokens, s->n_tokens) : 0;
        for (int j = 0; at && j < lengths[i]; j++)
            draft[j] = at + j < s->n_tokens ? s->tokens[at + j] : draft[at + j - s->n_tokens];
        if (at && sequence_propose(s, draft, lengths[i], err))
            return -1;
    }
    return 0;
}

static void free_ngrams(struct drafter *d) {
    free(d);
}

struct drafter *ngram_drafter_new(struct error *err) {
    struct drafter *d = malloc(sizeof *d);
    if (!d) {
        error_set(err, "out of memory for a drafter");
        return NULL;
    }
    *d = (struct drafter){propose_ngrams, free_ngrams};
    return d;
}
