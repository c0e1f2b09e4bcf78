/* demo_measure: one answer, timed. */
#include "tutorials/common/demo.h"
#include "tutorials/common/terminal.h"

#include <stdlib.h>

/* Notes when each token came. */
struct timing {
    double *at; /* [n_new] seconds */
    int n_new;
    struct progress_bar bar;
};

static int note_time(void *context, const struct sequence *s, const float *logits,
                     struct error *err) {
    struct timing *timing = context;
    (void)logits;
    (void)err;
    timing->at[sequence_new_tokens(s) - 1] = s->last;
    progress_bar_update(&timing->bar, (size_t)sequence_new_tokens(s), (size_t)timing->n_new);
    return 0;
}

/* Mean milliseconds of the last eighth of the tokens: where a cost that grows shows. */
static double last_ms(const struct timing *timing) {
    int n = timing->n_new, first = n - 1 - (n >= 8 ? n / 8 : 1);
    return first < 0 ? 0 : (timing->at[n - 1] - timing->at[first]) * 1e3 / (n - 1 - first);
}

static json_t *row_of(const struct demo *demo, const struct sequence *s,
                      const struct timing *timing, const struct kv_cache *cache) {
    char fingerprint[17];
    fingerprint_text(fingerprint, fingerprint_value(&s->fingerprint));
    return json_pack("{si sf sf sf sf sf sf ss}", "new", timing->n_new, "tok_s",
                     timing->n_new / (s->last - s->asked), "ms_tok", sequence_ms_per_token(s),
                     "last_ms", last_ms(timing), "ttft_ms", sequence_ttft(s) * 1e3, "cache_mb",
                     cache ? (double)cache->bytes / 1e6 : 0.0, "peak_mb",
                     (double)demo->dev->peak_bytes / 1e6, "fingerprint", fingerprint);
}

/* Answers with n_new tokens and times them. */
static json_t *timed_answer(struct demo *demo, struct sequence *s, struct kv_cache *cache,
                            const int32_t *ids, int n, struct timing *timing, struct error *err) {
    struct generator *g = &demo->generator;
    g->ignore_stop = true;
    g->on_token = note_time;
    g->on_token_context = timing;
    int result = sequence_add_prompt(s, ids, n, timing->n_new, err) || generate(g, s, cache, err);
    g->ignore_stop = false;
    g->on_token = NULL;
    progress_bar_end(&timing->bar);
    if (result)
        return NULL;
    if (demo_interrupted(demo)) {
        error_set(err, "interrupted");
        return NULL;
    }
    if (sequence_new_tokens(s) < timing->n_new) {
        error_set(err, "the context of %d tokens is too small for %d prompt and %d new tokens",
                  g->context, n, timing->n_new);
        return NULL;
    }
    return row_of(demo, s, timing, cache);
}

json_t *demo_measure(struct demo *demo, const char *prompt, int n_new,
                     const struct cache_kind *kind, uint64_t *fingerprint, struct error *err) {
    struct timing timing = {.n_new = n_new, .bar = progress_bar_start("measuring")};
    struct sequence s = {0};
    struct kv_cache *cache = NULL;
    int32_t *ids = NULL;
    size_t n;
    json_t *row = NULL;
    demo->dev->peak_bytes = demo->dev->bytes;
    timing.at = malloc(sizeof *timing.at * (size_t)n_new);
    if (!timing.at) {
        error_set(err, "out of memory");
        goto done;
    }
    if (demo_encode_prompt(demo, prompt, &ids, &n, err) ||
        sequence_start(&s, 0, &demo->options.sampling, err))
        goto done;
    if (kind && !(cache = kind->create(&demo->model, demo->generator.context, err)))
        goto done;
    row = timed_answer(demo, &s, cache, ids, (int)n, &timing, err);
    if (row)
        *fingerprint = fingerprint_value(&s.fingerprint);
done:
    if (cache)
        kind->destroy(cache);
    sequence_end(&s);
    free(ids);
    free(timing.at);
    return row;
}
