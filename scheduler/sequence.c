#include "scheduler/sequence.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int sequence_start(struct sequence *s, uint32_t id, const struct sampling_options *sampling,
                   struct error *err) {
    *s = (struct sequence){.id = id, .sampling = *sampling};
    return fingerprint_start(&s->fingerprint, err);
}

static int make_room(struct sequence *s, int n, struct error *err) {
    if (n <= s->capacity - s->n_tokens)
        return 0;
    if (n > INT_MAX / 2 - s->n_tokens)
        return error_set(err, "a sequence of more than %d tokens", INT_MAX / 2);
    int capacity = 2 * (s->n_tokens + n);
    int32_t *tokens = realloc(s->tokens, sizeof *tokens * (size_t)capacity);
    if (!tokens)
        return error_set(err, "out of memory for %d tokens", capacity);
    s->tokens = tokens;
    s->capacity = capacity;
    return 0;
}

int sequence_add_prompt(struct sequence *s, const int32_t *ids, int n, int max_new,
                        struct error *err) {
    if (make_room(s, n, err))
        return -1;
    if (n)
        memcpy(s->tokens + s->n_tokens, ids, sizeof *ids * (size_t)n);
    s->n_tokens += n;
    s->n_draft = 0;
    s->n_prompt = s->n_tokens;
    s->max_new = max_new;
    s->finish = max_new > 0 ? FINISH_NOT_YET : FINISH_LENGTH;
    s->asked = s->first = s->last = clock_now();
    return 0;
}

int sequence_propose(struct sequence *s, const int32_t *ids, int n, struct error *err) {
    if (make_room(s, n, err))
        return -1;
    if (n)
        memcpy(s->tokens + s->n_tokens, ids, sizeof *ids * (size_t)n);
    s->n_draft = n;
    return 0;
}

int sequence_append(struct sequence *s, int32_t id, struct error *err) {
    if (make_room(s, 1, err))
        return -1;
    s->n_draft = s->n_draft && s->tokens[s->n_tokens] == id ? s->n_draft - 1 : 0;
    s->tokens[s->n_tokens++] = id;
    s->last = clock_now();
    if (sequence_new_tokens(s) == 1)
        s->first = s->last;
    return 0;
}

int sequence_new_tokens(const struct sequence *s) {
    return s->n_tokens - s->n_prompt;
}

double sequence_ttft(const struct sequence *s) {
    return s->first - s->asked;
}

double sequence_ms_per_token(const struct sequence *s) {
    int n = sequence_new_tokens(s);
    return n > 1 ? (s->last - s->first) * 1000 / (n - 1) : 0;
}

const char *finish_name(enum finish finish) {
    static const char *const names[] = {"not finished", "stop",      "length", "context",
                                        "stop string",  "cancelled", "error"};
    return names[finish];
}

void sequence_end(struct sequence *s) {
    free(s->tokens);
    fingerprint_end(&s->fingerprint);
    logits_chain_free(s->chain);
    *s = (struct sequence){0};
}
