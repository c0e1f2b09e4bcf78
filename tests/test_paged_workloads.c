/* The workload test (workload_runs.h) with the keys and values of all requests in one pool: the
 * same ids and fingerprints as alone, whatever is preempted, shared, forked or cancelled; in phase
 * 7's way, a pass for each request, and in phase 8's, one pass with one attention for all. */
#include "tests/device.h"
#include "tests/workload_runs.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { N_TINY = 12, N_SHIPPED = 1 };
#else
enum { N_TINY = 125, N_SHIPPED = 3 };
#endif

static void check_tiny_models(uint64_t seed, enum run_caches caches) {
    struct random r = {seed};
    struct run_counts counts = {0};
    for (int which = 0; which < N_TINY_MODELS; which++) {
        struct tiny_model model;
        /* Slow: each in one way. One pass for all: one model with recordings (below), one that the
         * one op can run, and one with layers of both kinds. */
        if (device_is_emulated() &&
            (which == 1 || which == 2 || which == 5) != (caches == ONE_PASS))
            continue;
        tiny_model_open(&model, which);
        if (which == 1 &&
            model.dev->ops->versions("decode_step")) { /* recordings; others: one op */
            struct error err;
            assert_int_equal(model.dev->ops->set_version(model.dev, "decode_step", 1, &err), 0);
        }
        check_random_workloads(&model, &r, device_is_emulated() ? 1 : N_TINY, caches, &counts);
        tiny_model_close(&model);
    }
    print_message("%ld preemptions, tokens: %ld shared, %ld recomputed, %ld swapped; %ld forks\n",
                  counts.preemptions, counts.shared, counts.recomputed, counts.swapped,
                  counts.forks);
    if (!device_is_emulated())
        assert_true(counts.preemptions && counts.shared && counts.recomputed && counts.swapped &&
                    counts.forks);
}

static void test_a_pass_for_each(void **state) {
    (void)state;
    check_tiny_models(96, ONE_POOL);
}

static void test_one_pass_for_all(void **state) {
    (void)state;
    check_tiny_models(100, ONE_PASS);
}

static void test_the_shipped_model(void **state) {
    (void)state;
    if (device_is_emulated())
        skip(); /* hours */
    check_shipped_workloads(97, N_SHIPPED, ONE_POOL);
    check_shipped_workloads(99, N_SHIPPED, ONE_PASS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pass_for_each),
        cmocka_unit_test(test_one_pass_for_all),
        cmocka_unit_test(test_the_shipped_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
