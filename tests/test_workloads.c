/* The workload test (workload_runs.h) on tiny models and on the shipped one; bad requests. */
#include "scheduler/engine.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/own_caches.h"
#include "tests/device.h"
#include "tests/workload_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { N_TINY = 12, N_SHIPPED = 1 };
#else
enum { N_TINY = 125, N_SHIPPED = 5 };
#endif

static void test_random_workloads(void **state) {
    (void)state;
    struct random r = {94};
    for (int which = 0; which < N_TINY_MODELS; which++) {
        struct tiny_model model;
        tiny_model_open(&model, which);
        int n = device_is_emulated() ? 1 : few_cases_do() ? N_TINY / 4 : N_TINY;
        check_random_workloads(&model, &r, n, OWN_CACHES, NULL);
        tiny_model_close(&model);
    }
}

static void test_the_shipped_model(void **state) {
    (void)state;
    if (device_is_emulated())
        skip(); /* a pass of this model takes the emulation seconds */
    check_shipped_workloads(98, N_SHIPPED, OWN_CACHES);
}

/* One bad request does not harm the others. */
static void test_requests_that_cannot_be_answered(void **state) {
    (void)state;
    struct error err = {""};
    struct tiny_model model;
    struct engine e;
    struct random r = {95};
    double time = 0;
    struct engine_clock clock = {simulated_now, simulated_wait, &time};
    struct own_caches memory;
    struct engine_options options = {
        .scheduler = {2, 64, 32, true}, .memory = &memory.base, .clock = &clock};
    tiny_model_open(&model, 0);
    own_caches_start(&memory, &model.model, kv_dynamic_new, kv_cache_free, 0);
    struct sequence good = tiny_request(&r, &model, 1, 9, 9);
    int32_t *long_prompt = calloc(700, sizeof *long_prompt);
    struct request requests[] = {
        {.max_new = 3},
        {.prompt = good.tokens,
         .n_prompt = good.n_prompt,
         .max_new = good.max_new,
         .sampling = good.sampling},
        {.prompt = long_prompt, .n_prompt = 700, .max_new = 3, .sampling = {.top_p = 1}},
        {.prompt = good.tokens, .n_prompt = good.n_prompt, .max_new = 0},
    };
    if (engine_run(&e, &model.generator, requests, 4, &options, &err))
        fail_msg("%s", err.text);
    assert_int_equal(e.answers[0].sequence.finish, FINISH_ERROR);
    assert_non_null(strstr(e.answers[0].error.text, "empty"));
    assert_int_equal(e.answers[2].sequence.finish, FINISH_ERROR);
    assert_non_null(strstr(e.answers[2].error.text, "context is 700"));
    assert_int_equal(e.answers[3].sequence.finish, FINISH_LENGTH);
    struct sequence alone = tiny_alone(&model, &good);
    assert_same_answer(&alone, &e.answers[1].sequence);
    sequence_end(&alone);
    engine_end(&e);
    own_caches_end(&memory);
    own_caches_start(&memory, &model.model, kv_dynamic_new, kv_cache_free, 0);
    requests[1].arrival = 5;
    assert_int_equal(engine_run(&e, &model.generator, requests, 4, &options, &err), -1);
    assert_non_null(strstr(err.text, "request 2: arrival 0"));
    engine_end(&e);
    own_caches_end(&memory);
    own_caches_start(&memory, &model.model, kv_dynamic_new, kv_cache_free, 0);
    assert_int_equal(engine_run(&e, &model.generator, NULL, 0, &options, &err), 0);
    engine_end(&e);
    own_caches_end(&memory);
    sequence_end(&good);
    free(long_prompt);
    tiny_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_workloads),
        cmocka_unit_test(test_the_shipped_model),
        cmocka_unit_test(test_requests_that_cannot_be_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
