/* assert_bits.h - the bit checker of compare.h as an assertion. */
#ifndef SAMEBITS_TESTS_ASSERT_BITS_H
#define SAMEBITS_TESTS_ASSERT_BITS_H

#include "tests/compare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* Fails the test with the report when the tensors differ. */
#define assert_same_bits(want, got) assert_same_bits_at(want, got, __FILE__, __LINE__)

static inline void assert_same_bits_at(const struct tensor_view *want,
                                       const struct tensor_view *got, const char *file, int line) {
    char report[512];
    if (!compare_bits(want, got, report, sizeof report))
        return;
    print_error("%s\n", report);
    _fail(file, line);
}

#endif
