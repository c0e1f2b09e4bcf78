/*
 * slow_chapters - the commands of the chapters that take longer (test_chapters runs the others).
 */
#include "tests/chapters.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void the_chapters_print_what_really_happens(void **state) {
    (void)state;
    chapters_rerun(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chapters_print_what_really_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
