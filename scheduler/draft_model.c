#include "scheduler/draft.h"
#include "scheduler/generate.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/pass.h"

#include <stdlib.h>
#include <string.h>

/* What the draft model knows of a sequence: a copy of its tokens, as far as they were read. */
struct follower {
    const struct sequence *of; /* NULL: free */
    struct sequence copy;
    struct kv_cache *cache;
    long used; /* number of the proposal that used it last */
};

struct model_drafter {
    struct drafter base; /* first: pointers to it are pointers to the whole */
    struct generator generator;
    struct follower *followers; /* [n] */
    struct follower **asked;    /* [n] by the sequences of a proposal; NULL: none is wanted */
    struct pass_part *parts;    /* [n] */
    int n;
    long n_proposals;
};

/* The follower of a sequence, or else the one that was not used for the longest time. */
static struct follower *find(struct model_drafter *d, const struct sequence *s) {
    struct follower *oldest = d->followers;
    for (int i = 0; i < d->n; i++) {
        if (d->followers[i].of == s)
            return &d->followers[i];
        if (d->followers[i].used < oldest->used)
            oldest = &d->followers[i];
    }
    return oldest;
}

/* The copy becomes the sequence's tokens; what is cached of it stays as far as they are the same,
 * but for the last token, which must be read to know what follows. */
static int follow(struct follower *f, const struct sequence *s, struct error *err) {
    int n_same = 0, most = f->copy.n_cached < s->n_tokens ? f->copy.n_cached : s->n_tokens - 1;
    while (n_same < most && f->copy.tokens[n_same] == s->tokens[n_same])
        n_same++;
    f->of = s;
    f->copy.sampling = s->sampling;
    f->copy.sampling.sample = s->sampling.has_seed ? s->sampling.sample : s->id;
    f->copy.sampling.has_seed = true;
    f->copy.n_tokens = f->copy.n_cached = n_same;
    return sequence_add_prompt(&f->copy, s->tokens + n_same, s->n_tokens - n_same, INT32_MAX, err);
}

static int start(struct model_drafter *d, struct follower *f, struct error *err) {
    if (!f->cache) {
        struct sampling_options greedy = {.top_p = 1};
        f->cache = kv_dynamic_new(d->generator.model, d->generator.context, err);
        if (!f->cache || sequence_start(&f->copy, 0, &greedy, err))
            return -1;
    }
    f->used = d->n_proposals;
    return 0;
}

/* One pass of all that want more tokens: pieces of what they have not read, or their next draft.
 * Returns how many parts it had, 0: nobody wants more; or -1 with err set. */
static int step(struct model_drafter *d, struct sequence *const *sequences, const int *lengths,
                int n, struct error *err) {
    int n_parts = 0;
    for (int i = 0; i < n; i++) {
        struct follower *f = d->asked[i];
        if (!f || f->copy.n_tokens - sequences[i]->n_tokens >= lengths[i] || f->copy.finish)
            continue;
        int first = f->copy.n_cached, left = f->copy.n_tokens - first;
        bool all = left <= d->generator.chunk;
        d->parts[n_parts++] = (struct pass_part){
            &f->copy, f->cache, first, all ? f->copy.n_tokens : first + d->generator.chunk, 0, all};
    }
    return n_parts && pass_run(&d->generator, d->parts, n_parts, err) ? -1 : n_parts;
}

static int propose(struct drafter *base, struct sequence *const *sequences, const int *lengths,
                   int n, struct error *err) {
    struct model_drafter *d = (struct model_drafter *)base;
    d->n_proposals++;
    n = n < d->n ? n : d->n;
    for (int i = 0; i < n; i++) {
        bool fits = sequences[i]->n_tokens + lengths[i] < d->generator.context;
        d->asked[i] = lengths[i] && fits ? find(d, sequences[i]) : NULL;
        if (d->asked[i] && (start(d, d->asked[i], err) || follow(d->asked[i], sequences[i], err)))
            return -1;
    }
    int result;
    do
        result = step(d, sequences, lengths, n, err);
    while (result > 0);
    for (int i = 0; i < n && !result; i++)
        if (d->asked[i])
            result =
                sequence_propose(sequences[i], d->asked[i]->copy.tokens + sequences[i]->n_tokens,
                                 d->asked[i]->copy.n_tokens - sequences[i]->n_tokens, err);
    return result;
}

static void free_all(struct drafter *base) {
    struct model_drafter *d = (struct model_drafter *)base;
    for (int i = 0; d->followers && i < d->n; i++) {
        sequence_end(&d->followers[i].copy);
        if (d->followers[i].cache)
            kv_cache_free(d->followers[i].cache);
    }
    generator_end(&d->generator);
    free(d->followers);
    free(d->asked);
    free(d->parts);
    free(d);
}

static int begin(struct model_drafter *d, struct model *model, int vocab, int n,
                 struct error *err) {
    if (model->config.vocab_size != vocab)
        return error_set(err, "the draft model has a vocabulary of %d, and the model one of %d",
                         model->config.vocab_size, vocab);
    if (generator_start(&d->generator, model, err))
        return -1;
    d->generator.ids_only = d->generator.ignore_stop = true;
    d->followers = calloc((size_t)n, sizeof *d->followers);
    d->asked = calloc((size_t)n, sizeof *d->asked);
    d->parts = calloc((size_t)n, sizeof *d->parts);
    d->n = n;
    return d->followers && d->asked && d->parts ? 0 : error_set(err, "out of memory for drafts");
}

struct drafter *model_drafter_new(struct model *model, int vocab, int n, struct error *err) {
    struct model_drafter *d = calloc(1, sizeof *d);
    if (!d) {
        error_set(err, "out of memory for drafts");
        return NULL;
    }
    d->base = (struct drafter){.propose = propose, .free = free_all};
    if (begin(d, model, vocab, n, err)) {
        free_all(&d->base);
        return NULL;
    }
    return &d->base;
}
