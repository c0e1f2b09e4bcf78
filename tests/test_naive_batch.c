/* Phase 2 beside each sequence alone: every padding, prompts of mixed lengths, batches of 1 to 16,
 * greedy and sampled, prompts read in pieces that cut through the padding. */
#include "scheduler/kv_contiguous.h"
#include "scheduler/naive_batch.h"
#include "tests/device.h"
#include "tests/tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_BATCH = 16 };

/* Answers the batch and compares each sequence with itself alone. */
static struct naive_waste check_batch(struct tiny_model *t, struct sequence *s, int n) {
    struct error err = {""};
    struct sequence *sequences[MAX_BATCH] = {0};
    struct kv_cache *caches[MAX_BATCH] = {0};
    struct naive_waste waste;
    for (int i = 0; i < n; i++) {
        sequences[i] = &s[i];
        caches[i] = (i % 2 ? kv_static_new : kv_dynamic_new)(&t->model, 700, &err);
        assert_non_null(caches[i]);
    }
    if (naive_batch_generate(&t->generator, sequences, caches, n, &waste, &err))
        fail_msg("%s", err.text);
    int64_t needed = 0, prompts = 0;
    for (int i = 0; i < n; i++) {
        struct sequence alone = tiny_alone(t, &s[i]);
        assert_same_answer(&alone, &s[i]);
        needed += sequence_new_tokens(&s[i]) - 1;
        prompts += s[i].n_prompt;
        sequence_end(&alone);
        sequence_end(&s[i]);
        kv_cache_free(caches[i]);
    }
    assert_int_equal(waste.answer_rows - waste.idle_rows, needed);
    assert_int_equal(waste.prompt_rows - waste.padding_rows, prompts);
    assert_int_equal(waste.answer_rows, (int64_t)n * (waste.steps - 1));
    return waste;
}

static int tests_of_this_device(int n) {
    return device_is_emulated() ? (n + 29) / 30 : n;
}

static void test_random_batches(void **state) {
    (void)state;
    static const int chunks[] = {128, 1, 7, 64, 300};
    struct random r = {91};
    for (int which = 0; which < N_TINY_MODELS; which++) {
        struct tiny_model t;
        tiny_model_open(&t, which);
        for (int round = 0; round < tests_of_this_device(30); round++) {
            struct sequence s[MAX_BATCH];
            static const int sizes[] = {1, 2, 7, 16};
            int n = sizes[random_int(&r, 0, 3)];
            t.generator.chunk = chunks[random_int(&r, 0, 4)];
            for (int i = 0; i < n; i++)
                s[i] = tiny_request(&r, &t, (uint32_t)i, device_is_emulated() ? 30 : 300,
                                    device_is_emulated() ? 8 : 24);
            check_batch(&t, s, n);
        }
        tiny_model_close(&t);
    }
}

/* Two sequences, the shorter one padded by 0, 1, 2 ... columns. */
static void test_every_padding(void **state) {
    (void)state;
    struct random r = {92};
    struct tiny_model t;
    tiny_model_open(&t, 1);
    for (int padding = 0; padding < tests_of_this_device(40); padding++) {
        struct sequence s[2];
        for (int i = 0; i < 2; i++) {
            s[i] = tiny_request(&r, &t, (uint32_t)i, 3, 6);
            while (s[i].n_tokens < 3)
                assert_int_equal(sequence_add_prompt(&s[i], (int32_t[]){5}, 1, s[i].max_new, NULL),
                                 0);
        }
        int32_t *more = host_array((size_t)padding + 1, sizeof *more);
        for (int i = 0; i < padding; i++)
            more[i] = i % 60;
        assert_int_equal(sequence_add_prompt(&s[1], more, padding, 6, NULL), 0);
        free(more);
        t.generator.chunk = padding % 3 ? 5 : 128;
        struct naive_waste waste = check_batch(&t, s, 2);
        assert_int_equal(waste.padding_rows, padding);
    }
    tiny_model_close(&t);
}

static void test_refused_prompts(void **state) {
    (void)state;
    struct tiny_model t;
    struct error err;
    struct naive_waste waste;
    struct sequence s;
    struct sampling_options greedy = {.top_p = 1};
    tiny_model_open(&t, 0);
    assert_int_equal(sequence_start(&s, 0, &greedy, &err), 0);
    struct sequence *sequences[1] = {&s};
    struct kv_cache *caches[1] = {kv_static_new(&t.model, 700, &err)};
    assert_int_equal(naive_batch_generate(&t.generator, sequences, caches, 1, &waste, &err), -1);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(naive_batch_generate(&t.generator, NULL, NULL, 0, &waste, &err), 0);
    kv_cache_free(caches[0]);
    sequence_end(&s);
    tiny_model_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_batches),
        cmocka_unit_test(test_every_padding),
        cmocka_unit_test(test_refused_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
