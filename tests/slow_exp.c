/* num_exp of every float that is not a NaN: at most 1 ulp from e^x. Prints the worst one. */
#include "model/numerics.h"
#include "tests/oracle.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include <cmocka.h>

enum { N_PARTS = 2 };

/* The floats whose bit patterns are first, first + N_PARTS, ...: each part has as much work. */
struct part {
    uint32_t first;
    uint64_t n_seen, n_wrong; /* wrong: an error that is not at most 1, a result below zero, or
                                  another one from num_exp_below_0 */
    double worst;
    float worst_at;
};

static void *sweep(void *argument) {
    struct part *p = argument;
    for (uint64_t bits = p->first; bits < (uint64_t)1 << 32; bits += N_PARTS) {
        float x = num_float((uint32_t)bits);
        if (isnan(x))
            continue;
        float y = num_exp(x);
        double error = oracle_exp_error(x, y);
        p->n_seen++;
        p->n_wrong += !(error <= 1.0) || signbit(y);
        p->n_wrong += x <= 0 && num_bits(num_exp_below_0(x)) != num_bits(y);
        if (error > p->worst) {
            p->worst = error;
            p->worst_at = x;
        }
    }
    return NULL;
}

static void test_exp_of_every_float(void **state) {
    (void)state;
    struct part parts[N_PARTS], all = {0};
    pthread_t threads[N_PARTS];
    for (int i = 0; i < N_PARTS; i++) {
        parts[i] = (struct part){.first = (uint32_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, sweep, &parts[i]), 0);
    }
    for (int i = 0; i < N_PARTS; i++) {
        pthread_join(threads[i], NULL);
        all.n_seen += parts[i].n_seen;
        all.n_wrong += parts[i].n_wrong;
        if (parts[i].worst > all.worst) {
            all.worst = parts[i].worst;
            all.worst_at = parts[i].worst_at;
        }
    }
    print_message("num_exp: %llu floats, worst error %.4f ulp at %a\n",
                  (unsigned long long)all.n_seen, all.worst, (double)all.worst_at);
    assert_true(all.n_seen == ((uint64_t)1 << 32) - 2 * (((uint64_t)1 << 23) - 1));
    assert_int_equal(all.n_wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_of_every_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
