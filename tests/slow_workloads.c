/* The workload test (workload_runs.h) on the shipped model, longer than test_workloads does it. */
#include "tests/workload_runs.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_the_shipped_model(void **state) {
    (void)state;
    check_shipped_workloads(99, 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_shipped_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
