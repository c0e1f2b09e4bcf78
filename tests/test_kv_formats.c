/*
 * The floats of model/attention/kv_type.h against their formats' definition: a sign, an exponent
 * with a bias, a mantissa, worked out here once more in double and by search. All codes; all ties
 * between two, and the floats beside them; what is too large; and floats of all sizes.
 */
#include "model/attention/kv_view.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* Bits of exponent and mantissa; codes from `not_finite` on, sign aside, are infinity or NaN.
 * saturates: what is larger than all becomes the largest; else it cannot be stored, from `most` on.
 */
static const struct format {
    enum kv_type type;
    int exponent_bits, mantissa_bits;
    uint32_t not_finite;
    bool saturates;
    double most;
} formats[] = {
    {KV_E4M3, 4, 3, 0x7f, true, 0},
    {KV_E5M2, 5, 2, 0x7c, true, 0},
    {KV_FP16, 5, 10, 0x7c00, false, 65520},
    {KV_BF16, 8, 7, 0x7f80, false, 0x1p126},
};

static uint32_t sign_of(const struct format *f) {
    return 1u << (f->exponent_bits + f->mantissa_bits);
}

/* What a finite code means. */
static double value_of(const struct format *f, uint32_t code) {
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    int exponent = (int)(code >> f->mantissa_bits) & ((1 << f->exponent_bits) - 1);
    double fraction = ldexp(code & ((1u << f->mantissa_bits) - 1), -f->mantissa_bits);
    double x = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    return code & sign_of(f) ? -x : x;
}

/* The finite code that is nearest to x, and of two the even one. */
static uint32_t nearest(const struct format *f, double x) {
    uint32_t low = 0, high = f->not_finite - 1;
    double a = fabs(x);
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (value_of(f, middle) <= a)
            low = middle;
        else
            high = middle;
    }
    double below = a - value_of(f, low), above = value_of(f, high) - a;
    uint32_t code = below < above || (below == above && low % 2 == 0) ? low : high;
    return signbit(x) ? code | sign_of(f) : code;
}

static void expect_bits(const struct format *f, float x, uint32_t want) {
    uint32_t got = kv_bits(f->type, x, 0, 1);
    if (got != want)
        fail_msg("%s: %a becomes %#x, want %#x", kv_type_name(f->type), (double)x, got, want);
}

static void test_what_codes_mean(void **state) {
    (void)state;
    for (const struct format *f = formats; f < formats + COUNT(formats); f++)
        for (uint32_t code = 0; code < 2 * sign_of(f); code++) {
            uint32_t magnitude = code & (sign_of(f) - 1);
            double x = value_of(f, code);
            assert_int_equal(kv_magnitude(f->type, code), magnitude);
            int e = kv_read_exponent(f->type, magnitude);
            if (magnitude >= f->not_finite) {
                assert_true(e > BFP_MAX_EXPONENT);
                continue;
            }
            assert_true(kv_float(f->type, code) == x);
            assert_int_equal(e, num_row_exponent(num_magnitude((float)x)));
            if (e > BFP_MAX_EXPONENT) /* of bf16: no row has it */
                assert_true(fabs(x) >= 0x1p126);
            else
                assert_true((double)kv_integer(f->type, code, num_pow2f(15 - e)) ==
                            nearbyint(ldexp(x, 15 - e)));
        }
}

/* Each code is what its value becomes; between two lies a tie, and the floats beside it. */
static void test_ties(void **state) {
    (void)state;
    for (const struct format *f = formats; f < formats + COUNT(formats); f++)
        for (uint32_t code = 0; code < f->not_finite; code++)
            for (int negative = 0; negative < 2; negative++) {
                uint32_t sign = negative ? sign_of(f) : 0;
                float x = (float)value_of(f, code);
                expect_bits(f, negative ? -x : x, code | sign);
                if (code + 1 == f->not_finite)
                    continue;
                float next = (float)value_of(f, code + 1);
                float tie = (float)(((double)x + (double)next) / 2); /* it has a bit more */
                float less = nextafterf(tie, x), more = nextafterf(tie, next);
                expect_bits(f, negative ? -tie : tie, (code + code % 2) | sign);
                expect_bits(f, negative ? -less : less, code | sign);
                expect_bits(f, negative ? -more : more, (code + 1) | sign);
            }
}

/* What is larger than all: the largest, or no row. NaN and infinity are never stored. */
static void test_what_is_too_large(void **state) {
    (void)state;
    static const float always[] = {INFINITY, NAN};
    for (const struct format *f = formats; f < formats + COUNT(formats); f++) {
        float largest = (float)value_of(f, f->not_finite - 1);
        const float large[] = {nextafterf(largest, INFINITY),
                               largest * 1.0625f,
                               largest * 1.25f,
                               largest * 2,
                               0x1p100f,
                               0x1.fffffep127f};
        for (int i = 0; i < COUNT(large) && f->saturates; i++) {
            expect_bits(f, large[i], f->not_finite - 1);
            expect_bits(f, -large[i], (f->not_finite - 1) | sign_of(f));
            assert_int_equal(kv_stored_exponent(f->type, num_magnitude(large[i])), 0);
        }
        if (f->saturates) /* infinity, after the division by the scale */
            assert_int_equal(kv_bits(f->type, -0x1.fffffep127f, 0, 0x1p-14f),
                             (f->not_finite - 1) | sign_of(f));
        if (!f->saturates) {
            float most = (float)f->most, less = nextafterf(most, 0);
            assert_int_equal(kv_stored_exponent(f->type, num_magnitude(less)), 0);
            assert_true(kv_stored_exponent(f->type, num_magnitude(most)) > BFP_MAX_EXPONENT);
            expect_bits(f, less, nearest(f, less));
            /* What is stored can be read. */
            assert_true(kv_read_exponent(f->type, nearest(f, less)) <= BFP_MAX_EXPONENT);
        }
        for (int i = 0; i < COUNT(always); i++)
            assert_true(kv_stored_exponent(f->type, num_magnitude(always[i])) > BFP_MAX_EXPONENT);
    }
}

/* Any float that is stored, with and without a scale. */
static void test_any_float(void **state) {
    (void)state;
    static const float scales[] = {1, 0.25f, 0.017f, 3, 0x1p-14f};
    struct random r = {941};
    for (const struct format *f = formats; f < formats + COUNT(formats); f++)
        for (int i = 0; i < 300000; i++) {
            float x = num_float((uint32_t)random_bits64(&r));
            if (i % 3) /* where the format has its numbers */
                x = ldexpf(random_normal(&r),
                           random_int(&r, -4 - (1 << (f->exponent_bits - 1)) - f->mantissa_bits,
                                      1 << (f->exponent_bits - 1)));
            if (kv_stored_exponent(f->type, num_magnitude(x)) > BFP_MAX_EXPONENT)
                continue;
            float scale = f->saturates ? scales[i % COUNT(scales)] : 1;
            uint32_t want = nearest(f, x / scale), got = kv_bits(f->type, x, 0, scale);
            if (got != want)
                fail_msg("%s: %a over %a becomes %#x, want %#x", kv_type_name(f->type), (double)x,
                         (double)scale, got, want);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_codes_mean),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_what_is_too_large),
        cmocka_unit_test(test_any_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
