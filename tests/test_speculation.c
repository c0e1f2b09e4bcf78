/*
 * test_speculation - drafts change no bit: random workloads with drafters of all kinds, good ones
 * and bad ones, give each request the ids and the fingerprint that it has alone and without drafts.
 * SAMEBITS_WORKLOADS=N: so many workloads; SAMEBITS_SEED=S: others.
 */
#include "scheduler/draft.h"
#include "scheduler/kv_contiguous.h"
#include "tests/device.h"
#include "tests/workload_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

static int n_workloads(void) {
    const char *text = getenv("SAMEBITS_WORKLOADS");
    return text ? atoi(text) : device_is_emulated() ? 4 : 36;
}

/* The end of the text followed by anything: most are wrong, and some are right. */
static int propose_anything(struct drafter *d, struct sequence *const *sequences,
                            const int *lengths, int n, struct error *err) {
    static struct random r = {31};
    (void)d;
    for (int i = 0; i < n; i++) {
        int32_t ids[64];
        int length = random_int(&r, 0, lengths[i]);
        for (int j = 0; j < length; j++)
            ids[j] = random_int(&r, 0, 60);
        if (sequence_propose(sequences[i], ids, length, err))
            return -1;
    }
    return 0;
}

static void free_nothing(struct drafter *d) {
    (void)d;
}

static const struct ops *real_ops;

/* The op that makes a whole pass computes its rows side by side, so that none may read what another
 * stores: no two write into one page. */
static int only_one_row_of_a_page(struct device *dev, float *logits, int32_t *drawn,
                                  const struct model *model, const struct kv_layer *kv,
                                  const struct paged_batch *pages, const int32_t *ids,
                                  struct error *err) {
    const int32_t *page = pages->kv_page_indices - 1;
    for (int i = 1; i < pages->n_sequences; i++)
        if (page[pages->kv_indptr[i]] == page[pages->kv_indptr[i + 1]])
            fail_msg("sequences %d and %d of one op have their newest token in one page", i - 1, i);
    return real_ops->decode_step(dev, logits, drawn, model, kv, pages, ids, err);
}

static void watch(struct device *dev) {
    static struct ops watched;
    if (!dev->ops->decode_step)
        return;
    real_ops = dev->ops;
    watched = *real_ops;
    watched.decode_step = only_one_row_of_a_page;
    dev->ops = &watched;
}

enum kind { NGRAMS, SAME_MODEL, OTHER_MODEL, ANYTHING, N_KINDS };

static void workloads(enum kind kind) {
    static struct drafter anything = {.propose = propose_anything, .free = free_nothing};
    struct run_counts counts = {0};
    const char *seed = getenv("SAMEBITS_SEED");
    struct random r = {41 + (uint64_t)kind + 1000 * (uint64_t)(seed ? atoi(seed) : 0)};
    for (int i = 0; i < n_workloads() / N_KINDS; i++) {
        struct tiny_model model, other;
        struct error err;
        tiny_model_open(&model, i % N_TINY_MODELS);
        watch(model.model.dev);
        tiny_model_open(&other, (i + (kind == OTHER_MODEL)) % N_TINY_MODELS);
        struct drafter *d = kind == NGRAMS ? ngram_drafter_new(&model.model.config, &err)
                            : kind == ANYTHING
                                ? &anything
                                : model_drafter_new(&other.model, 61, random_int(&r, 1, 10), &err);
        must(!d, &err);
        d->fixed_cost = i % 4 ? 0.3 : 0; /* 0: what is drafted depends on the time it takes */
        model.generator.drafter = d;
        check_random_workloads(&model, &r, 1, (enum run_caches)((i + 2) % 3), &counts);
        drafter_free(d);
        tiny_model_close(&other);
        tiny_model_close(&model);
    }
    printf("%ld of %ld drafted tokens accepted\n", counts.accepted, counts.proposed);
    if (n_workloads() >= 36) {
        assert_true(counts.accepted < counts.proposed || kind == SAME_MODEL);
        assert_true(counts.accepted > 0 || kind == OTHER_MODEL || kind == ANYTHING);
        assert_true(kind != SAME_MODEL || counts.accepted * 10 > counts.proposed * 8);
    }
}

static void drafts_of_ngrams(void **state) {
    (void)state;
    workloads(NGRAMS);
}

static void drafts_of_the_model_itself(void **state) {
    (void)state;
    workloads(SAME_MODEL);
}

static void drafts_of_another_model(void **state) {
    (void)state;
    workloads(OTHER_MODEL);
}

static void drafts_of_anything(void **state) {
    (void)state;
    workloads(ANYTHING);
}

/* One sequence, and a cache of its own. */
static void one_sequence_alone(void **state) {
    struct tiny_model model;
    struct random r = {51};
    struct error err;
    long accepted = 0;
    (void)state;
    tiny_model_open(&model, 1);
    struct drafter *drafters[] = {ngram_drafter_new(&model.model.config, &err),
                                  model_drafter_new(&model.model, 61, 1, &err)};
    for (int i = 0; i < (device_is_emulated() ? 4 : 100); i++) {
        struct sequence asked = tiny_request(&r, &model, 3, 200, device_is_emulated() ? 6 : 60), s;
        struct sequence alone = tiny_alone(&model, &asked);
        must(sequence_start(&s, asked.sampling.has_seed ? 0 : 3, &asked.sampling, &err) ||
                 sequence_add_prompt(&s, asked.tokens, asked.n_prompt, asked.max_new, &err),
             &err);
        struct kv_cache *cache = kv_dynamic_new(&model.model, 700, &err);
        must(!cache, &err);
        model.generator.drafter = drafters[i % 2];
        model.generator.chunk = random_int(&r, 1, 128);
        must(generate(&model.generator, &s, cache, &err), &err);
        model.generator.drafter = NULL;
        assert_same_answer(&alone, &s);
        accepted += s.drafting.accepted;
        kv_cache_free(cache);
        sequence_end(&s);
        sequence_end(&alone);
        sequence_end(&asked);
    }
    assert_true(accepted > 0);
    drafter_free(drafters[0]);
    drafter_free(drafters[1]);
    tiny_model_close(&model);
}

/* What one proposal to a text is: its length, and its tokens in draft. */
static int propose_to(struct drafter *d, struct sequence *s, int most, int32_t draft[16]) {
    struct error err;
    s->n_draft = 0;
    must(drafter_propose(d, &s, &most, 1, &err), &err);
    for (int i = 0; i < s->n_draft; i++)
        draft[i] = s->tokens[s->n_tokens + i];
    return s->n_draft;
}

static void ngrams_find_the_longest_match(void **state) {
    static const int32_t text[] = {1, 2, 3, 4, 9, 8, 7, 2, 3, 4, 5, 5, 5, 9, 1, 2, 3, 4};
    struct sampling_options sampling = {.top_p = 1};
    struct error err;
    struct sequence s;
    int32_t draft[16];
    struct model_config config = {.n_stop_ids = 1, .stop_ids = {50}};
    struct drafter *d = ngram_drafter_new(&config, &err);
    d->fixed_cost = 0.3;
    (void)state;
    must(!d || sequence_start(&s, 0, &sampling, &err) ||
             sequence_add_prompt(&s, text, 18, 100, &err),
         &err);
    assert_int_equal(propose_to(d, &s, 3, draft), 3); /* behind 1 2 3 4, not behind 2 3 4 */
    assert_memory_equal(draft, text + 4, 3 * sizeof *draft);
    assert_int_equal(propose_to(d, &s, 100, draft), 7); /* the first draft is short */
    assert_int_equal(propose_to(d, &s, 0, draft), 0);
    must(sequence_append(&s, 60, &err), &err);
    assert_int_equal(propose_to(d, &s, 100, draft), 0); /* that has not stood before */
    sequence_end(&s);
    must(sequence_start(&s, 0, &sampling, &err) ||
             sequence_add_prompt(&s, (const int32_t[]){4, 5, 4, 5, 4}, 5, 100, &err),
         &err);
    assert_int_equal(propose_to(d, &s, 4, draft), 4); /* it goes on with itself */
    assert_memory_equal(draft, ((const int32_t[]){5, 4, 5, 4}), 4 * sizeof *draft);
    sequence_end(&s);
    must(sequence_start(&s, 0, &sampling, &err) ||
             sequence_add_prompt(&s, (const int32_t[]){3, 4, 5, 50, 6, 3, 4, 5}, 8, 100, &err),
         &err);
    assert_int_equal(propose_to(d, &s, 4, draft), 1); /* a stop token is the last */
    assert_int_equal(draft[0], 50);
    sequence_end(&s);
    drafter_free(d);
}

/* Lengths follow what is accepted, and nobody asks for long who never gets anything. */
static void drafts_that_fail_become_rare(void **state) {
    static const int32_t text[] = {4, 5, 4, 5, 4};
    struct sampling_options sampling = {.top_p = 1};
    struct error err;
    struct sequence s;
    int32_t draft[16];
    struct model_config config = {.n_stop_ids = 1, .stop_ids = {50}};
    struct drafter *d = ngram_drafter_new(&config, &err);
    int tried = 0;
    d->fixed_cost = 0.1;
    (void)state;
    must(!d || sequence_start(&s, 0, &sampling, &err) ||
             sequence_add_prompt(&s, text, 5, 10000, &err),
         &err);
    for (int length = 7; length < 15; length = 2 * length + 1) {
        assert_int_equal(propose_to(d, &s, 100, draft), length);
        s.drafting.last_proposed = s.drafting.last_accepted = length;
    }
    assert_int_equal(propose_to(d, &s, 100, draft), 15);
    s.drafting.last_proposed = 15;
    s.drafting.last_accepted = 3;
    assert_int_equal(propose_to(d, &s, 100, draft), 4);
    for (int step = 0; step < 1000; step++) {
        int n = propose_to(d, &s, 100, draft);
        s.drafting.last_proposed = n;
        s.drafting.last_accepted = 0;
        tried += n > 0;
    }
    assert_in_range(tried, 3, 20);
    sequence_end(&s);
    drafter_free(d);
}

static void another_vocabulary_is_refused(void **state) {
    struct tiny_model model;
    struct error err = {""};
    (void)state;
    tiny_model_open(&model, 0);
    assert_null(model_drafter_new(&model.model, 62, 1, &err));
    assert_string_equal(err.text,
                        "the draft model has a vocabulary of 61, and the model one of 62");
    tiny_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_of_ngrams),
        cmocka_unit_test(drafts_of_the_model_itself),
        cmocka_unit_test(drafts_of_another_model),
        cmocka_unit_test(drafts_of_anything),
        cmocka_unit_test(one_sequence_alone),
        cmocka_unit_test(ngrams_find_the_longest_match),
        cmocka_unit_test(drafts_that_fail_become_rare),
        cmocka_unit_test(another_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
