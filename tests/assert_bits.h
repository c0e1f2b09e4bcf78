/* assert_bits.h - the bit checker of compare.h as an assertion, and one for single floats. */
#ifndef SAMEBITS_TESTS_ASSERT_BITS_H
#define SAMEBITS_TESTS_ASSERT_BITS_H

#include "model/numerics.h"
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

static inline void assert_bits(float got, float want) {
    if (num_bits(got) != num_bits(want))
        fail_msg("want %a (%08x), got %a (%08x)", (double)want, num_bits(want), (double)got,
                 num_bits(got));
}

#endif
