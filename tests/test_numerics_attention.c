/* model/attention/numerics.h against exact arithmetic: integers, or long double where each step is
 * exact in its 64 bits. */
#include "model/attention/kv_type.h"
#include "tests/assert_bits.h"
#include "tests/oracle.h"
#include "tests/random.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- probabilities --------------------------------------------------------------------------- */

/* The probability of what is so far below a largest score of 0. */
static float probability(float below, float binary) {
    return num_probability(below, num_window_of(0, binary));
}

static void assert_probability(float t) {
    float p = probability(t, 0x1p-7f);
    double error = oracle_probability_error(t, p);
    if (!(error <= 0x1p-17))
        fail_msg("probability(%a) = %a is off by 2^%.2f", (double)t, (double)p, log2(error));
}

/* Densely where weights are not 0, and about the bounds of n, of the normal results and of 0. */
static void test_probability_is_close(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < num_bits(INFINITY); bits += 1009)
        assert_probability(-num_float(bits));
    for (uint32_t bits = num_bits(0x1p-26f); bits < num_bits(128.0f); bits += 37)
        assert_probability(-num_float(bits));
    static const float edges[] = {0x1p-26f, 0x1p-25f, 0x1p-24f, 0.5f,   1,   1.5f,   2,
                                  24,       125.5f,   126,      126.5f, 127, 127.5f, 128};
    for (size_t i = 0; i < COUNT(edges); i++)
        for (uint32_t step = 0; step < 20000; step++)
            assert_probability(-num_float(num_bits(edges[i]) - 10000 + step));
}

static void test_probability_exact_cases(void **state) {
    (void)state;
    static const float binaries[] = {0,       0x1p-149f,      0x1p-126f, 0x1p-60f, 0.125f,
                                     0x1p-7f, 0x1.715476p-7f, 0x1p60f,   FLT_MAX};
    for (size_t i = 0; i < COUNT(binaries); i++) {
        assert_bits(probability(0.0f, binaries[i]), 1);
        assert_bits(probability(-0.0f, binaries[i]), 1);
        assert_bits(probability(-0x1p-149f, binaries[i] < 1 ? binaries[i] : 1), 1);
        assert_bits(probability(-INFINITY, binaries[i]), 0); /* of 0: a NaN */
        assert_bits(probability(NAN, binaries[i]), 0);
        assert_bits(probability(-NAN, binaries[i]), 0);
        /* A row that sees nothing. */
        assert_bits(num_probability(-INFINITY, num_window_of(-INFINITY, binaries[i])), 0);
        assert_bits(num_probability(NAN, num_window_of(NAN, binaries[i])), 0);
    }
    assert_bits(probability(-0x1p-100f, 0x1p-100f), 1); /* the product is -0 */
    assert_bits(probability(-FLT_MAX, 0), 1);
    assert_bits(probability(-FLT_MAX, FLT_MAX), 0); /* the product is -infinity */
    assert_bits(probability(-FLT_MAX, 1), 0);
    assert_bits(probability(-127, 0x1p-7f), 0);
    assert_bits(probability(-127.5f, 0x1p-7f), 0);
    assert_bits(probability(-254, 0x1p-8f), 0);
    for (int n = 0; n <= 126; n++)
        assert_bits(probability((float)-n, 0x1p-7f), ldexpf(1, -n));
}

/* The window of a largest score: that score has the probability 1, exactly, no score has more, and
 * all are close, whether the largest score is taken off first or not. */
static void test_probability_in_windows(void **state) {
    (void)state;
    struct random r = {10};
    int n_near = 0, n_tries = 1000000;
    for (int i = 0; i < n_tries; i++) {
        float largest = ldexpf(random_normal(&r), random_int(&r, -20, 20));
        float top =
            fabsf(random_normal(&r)) * (float)random_int(&r, 0, 2); /* largest, times that */
        float binary = num_float(num_bits(top / largest) & 0x7fffffffu);
        binary = binary < INFINITY ? binary : 1;
        struct num_window w = num_window_of(largest, binary);
        n_near += w.less == 0;
        assert_true(w.less == 0 || num_bits(w.less) == num_bits(largest));
        assert_bits(num_probability(largest, w), 1);
        long double t = -128 * fabsl((long double)random_normal(&r)) / random_int(&r, 1, 100);
        float u = (float)(largest + (binary > 0 ? t / 128 / binary : 0));
        u = u < largest ? u : nextafterf(largest, -INFINITY);
        float p = num_probability(u, w);
        t = 128 * ((long double)u - largest) * binary;
        assert_true(p >= 0 && p <= 1);
        if (w.less == 0)
            assert_bits(num_probability_near(u, w), p);
        if (t >= -126 && !(fabsl(p - exp2l(t)) <= exp2l(t) * 0x1p-16L))
            fail_msg("%a of %a, %a: %a", (double)u, (double)largest, (double)binary, (double)p);
    }
    assert_in_range(n_near, n_tries / 4, n_tries * 3 / 4);
}

/* A largest score is taken off where 127/128 less it, in units of the window, is not below 1. */
static void test_windows_that_are_far(void **state) {
    (void)state;
    static const struct {
        float largest;
        bool far;
    } cases[] = {{0, false},
                 {-0.0f, false},
                 {1, false},
                 {-0x1p-8f, false},
                 {-0x1p-7f, true},
                 {0x1.fap+0f, false},
                 {0x1.fdfffep+0f, false},
                 {0x1.fep+0f, true},
                 {-1, true},
                 {FLT_MAX, true},
                 {-FLT_MAX, true},
                 {-INFINITY, true}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct num_window w = num_window_of(cases[i].largest, 1);
        assert_bits(w.less, cases[i].far ? cases[i].largest : 0);
        assert_bits(w.binary, 1);
        assert_bits(w.base, cases[i].far ? 127.0f / 128 : 127.0f / 128 - cases[i].largest);
    }
    struct num_window w = num_window_of(0.1f, 0.3f); /* one rounding */
    assert_bits(w.base, (float)(127.0 / 128 - (double)0.1f * (double)0.3f));
}

/* As with num_exp: many polynomials would do, this one is meant. */
static void test_probability_has_these_bits(void **state) {
    (void)state;
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t bits = num_bits(0x1p-26f); bits <= num_bits(128.0f); bits += 59)
        hash = (hash ^ num_bits(probability(-num_float(bits), 0x1p-7f))) * 0x100000001b3u;
    if (hash != 0x38a5ad1a34ad5307u)
        fail_msg("the hash is %016llx", (unsigned long long)hash);
}

static void test_probability_units(void **state) {
    (void)state;
    assert_int_equal(num_probability_units(0), 0);
    assert_int_equal(num_probability_units(1), 1 << 23);
    assert_int_equal(num_probability_units(0x1p-24f), 0); /* ties: to 0, to 2, to 2 */
    assert_int_equal(num_probability_units(0x3p-24f), 2);
    assert_int_equal(num_probability_units(0x5p-24f), 2);
    assert_int_equal(num_probability_units(0x1.000002p-24f), 1);
    assert_int_equal(num_probability_units(0x1.fffffep-1f), 1 << 23); /* the tie below 1: even */
    for (uint32_t bits = 0; bits <= num_bits(1.0f); bits += 509) {
        float p = num_float(bits);
        assert_true(num_probability_units(p) == (uint32_t)lrintl(ldexpl(p, 23)));
    }
}

/* ---- sums and units -------------------------------------------------------------------------- */

static void assert_floors(int64_t sum) {
    double got = num_floor_256((double)sum);
    int64_t want = oracle_floor_256(sum);
    assert_true(want % 256 == 0 && want <= sum && sum - want < 256);
    if (!(got == (double)want))
        fail_msg("num_floor_256(%lld) = %.1f", (long long)sum, got);
}

static void test_floor_256(void **state) {
    (void)state;
    struct random r = {11};
    for (int64_t sum = -70000; sum <= 70000; sum++)
        assert_floors(sum);
    for (int length = 17; length <= 51; length++)
        for (int64_t rest = -300; rest <= 300; rest++) {
            int64_t sum = ((int64_t)1 << length) + (length == 51 ? -300 : 0) + rest;
            if (sum >= (int64_t)1 << 51)
                break;
            assert_floors(sum);
            assert_floors(-sum);
        }
    for (int i = 0; i < 1000000; i++) {
        int64_t sum = (int64_t)(random_bits64(&r) >> random_int(&r, 13, 63));
        assert_floors(sum);
        assert_floors(-sum);
    }
    /* 512 products of the largest mantissas: 32 bits in units of 256. */
    double largest = 512.0 * BFP_MAX_MANTISSA * BFP_MAX_MANTISSA;
    assert_true(num_floor_256(largest) / 256 <= INT32_MAX);
    assert_true(num_floor_256(-largest) / 256 >= INT32_MIN);
}

static void test_score(void **state) {
    (void)state;
    for (int e = -100; e <= 127; e++)
        assert_bits(kv_score_unit(e), ldexpf(1, e - 38));
    assert_true(isnan(kv_score_unit(BFP_MAX_EXPONENT + 1)));
    assert_bits(num_score(-256, kv_score_unit(-100)), -0x1p-130f); /* subnormal units: exact, */
    assert_bits(num_score(0x800001, kv_score_unit(-100)), 0x1.000002p-115f);
    assert_bits(num_score(0x1.8p-11f, 0x1p-138f), 0x1p-148f); /* or rounded: a tie */
    assert_true(isnan(num_score(0, kv_score_unit(BFP_MAX_EXPONENT + 1))));
    struct random r = {12};
    for (int i = 0; i < 1000000; i++) {
        float sum = ldexpf(random_normal(&r), random_int(&r, 8, 48));
        int e = random_int(&r, -100, 127);
        assert_bits(num_score(sum, kv_score_unit(e)), (float)ldexp((double)sum, e - 38));
    }
}

/* x times log2(e) / 128, rounded to float; to within the rounding of two doubles before. */
static bool is_binary_of(float binary, double x) {
    long double exact = (long double)x * 1.442695040888963407359924681L / 128;
    long double largest = 0x1.ffffffp127L; /* from here on, infinity */
    if (fabsl(exact) >= largest * (1 + 0x1p-50L))
        return isinf(binary) && (binary < 0) == (x < 0);
    if (isinf(binary))
        return fabsl(exact) >= largest * (1 - 0x1p-50L);
    long double ulp = fabsl(exact) < 0x1p-126L ? 0x1p-149L : ldexpl(1, ilogbl(exact) - 23);
    return fabsl(binary - exact) <= ulp * (0.5L + 0x1p-26L);
}

static void test_score_unit(void **state) {
    (void)state;
    static const double scales[] = {1, 0.125, 0.08838834764831845, 1.0 / 3, 7.25, 0, 1e-30, 1e30};
    for (int e = -100; e <= 128; e++)
        for (size_t i = 0; i < COUNT(scales); i++) {
            struct num_score_unit unit = num_score_unit_of(e, scales[i]);
            assert_true(unit.natural == ldexp(scales[i], e + 8));
            if (!is_binary_of(unit.binary, unit.natural))
                fail_msg("exponent %d, scale %g: %a is the binary unit of %a", e, scales[i],
                         (double)unit.binary, unit.natural);
        }
    struct num_score_unit natural = num_score_unit_natural();
    assert_true(natural.natural == 1);
    assert_bits(natural.binary, num_score_unit_of(-8, 1).binary);
    assert_true(isnan(num_score_unit_of(0, NAN).binary));
    /* log2(e) is rounded after it was multiplied: 9 times its float is 0x1.9f7f04p+3. */
    assert_bits(num_score_unit_of(-8, 9).binary, 0x1.9f7f06p-4f);
    assert_bits(num_score_unit_of(127, 1).binary, INFINITY);
}

static void test_tile_max(void **state) {
    (void)state;
    struct num_score_unit third = num_score_unit_of(-8, 1.0 / 3), two = num_score_unit_of(-7, 1);
    struct num_score_unit huge = num_score_unit_of(127, 1), over = num_score_unit_of(127, 0.75);
    assert_bits(num_tile_max(3, third), 1);
    assert_bits(num_tile_max(-0x1p-149f, third), -0.0f);
    assert_bits(num_tile_max(FLT_MAX, third), (float)(FLT_MAX / 3.0));
    assert_bits(num_tile_max(FLT_MAX, two), INFINITY);
    assert_bits(num_tile_max(-FLT_MAX, two), -INFINITY);
    assert_bits(num_tile_max(-INFINITY, two), -INFINITY);
    assert_bits(num_tile_max(INFINITY, two), INFINITY);
    assert_bits(num_tile_max(0x1p-149f, num_score_unit_of(20, 1)), 0x1p-121f);
    assert_bits(num_tile_max(0, huge), INFINITY);         /* 128 of the unit are beyond float32, */
    assert_bits(num_tile_max(0x1p-100f, over), INFINITY); /* or only log2(e) times it is, */
    assert_bits(num_tile_max(0, num_score_unit_of(127, 0.5)), 0); /* or nothing */
    assert_bits(num_tile_max(0, num_score_unit_of(0, NAN)), INFINITY);
    assert_bits(num_tile_max(1, num_score_unit_of(-8, -1)), INFINITY);
    assert_bits(num_tile_max(1, num_score_unit_of(-8, 0)), 0);
    assert_bits(num_tile_max(1, num_score_unit_of(-8, -0.0)), -0.0f);
    struct random r = {13};
    for (int i = 0; i < 1000000; i++) {
        float largest = ldexpf(random_normal(&r), random_int(&r, -60, 60));
        struct num_score_unit unit = num_score_unit_of(random_int(&r, -100, 60), 1.0 / 3);
        assert_bits(num_tile_max(largest, unit), (float)((double)largest * unit.natural));
    }
}

static void test_weighted_value(void **state) {
    (void)state;
    assert_bits(num_weighted_value(0x1p30f, 0), 1);
    assert_bits(num_weighted_value(-256, -100), -0x1p-122f);
    assert_bits(num_weighted_value(0x1.8p-20f, -100), 0x1p-149f); /* 1.5 * 2^-150 */
    assert_bits(num_weighted_value(0x1p30f, 127), 0x1p127f);
    assert_bits(num_weighted_value(0x1p31f, 127), INFINITY);
    struct random r = {14};
    for (int i = 0; i < 1000000; i++) {
        float sum = ldexpf(random_normal(&r), random_int(&r, 8, 38));
        int e = random_int(&r, -100, 127);
        assert_bits(num_weighted_value(sum, e), (float)ldexp((double)sum, e - 30));
    }
}

static void test_value_weight(void **state) {
    (void)state;
    assert_bits(num_value_weight(1, -126), 0x1p-126f);
    assert_bits(num_value_weight(nextafterf(1, 0), -126), 0); /* would round up to 2^-126 */
    assert_bits(num_value_weight(0.5f, -126), 0);
    assert_bits(num_value_weight(0x1p-26f, -100), 0x1p-126f);
    assert_bits(num_value_weight(nextafterf(0x1p-26f, 0), -100), 0);
    assert_bits(num_value_weight(1, 127), 0x1p127f);
    assert_bits(num_value_weight(0x1p-149f, 23), 0x1p-126f);
    assert_bits(num_value_weight(0x1p-149f, 22), 0);
    assert_bits(num_value_weight(0x3p-149f, 127), 0x3p-22f);
    assert_bits(num_value_weight(0, 127), 0);
    assert_true(isnan(num_value_weight(NAN, 0)));
    struct random r = {8};
    for (int i = 0; i < 1000000; i++) {
        float p = num_float((uint32_t)random_int(&r, 0, (int)num_bits(1.0f)));
        int e = random_int(&r, -100, 127);
        long double exact = ldexpl((long double)p, e);
        assert_bits(num_value_weight(p, e), exact < 0x1p-126L ? 0 : (float)exact);
    }
}

/* ---- divisions ------------------------------------------------------------------------------- */

static void test_divisions(void **state) {
    (void)state;
    struct random r = {920};
    for (int i = 0; i < 1000000; i++) {
        float x =
            ldexpf(1 + (float)random_int(&r, 0, (1 << 23) - 1) * 0x1p-23f, random_int(&r, -60, 59));
        float l =
            ldexpf(1 + (float)random_int(&r, 0, (1 << 23) - 1) * 0x1p-23f, random_int(&r, -60, 59));
        x = i % 2 ? -x : x;
        assert_bits(num_divide_near(x, l, 1 / l), x / l);
    }
    assert_bits(num_divide_near(0x1p-60f, 0x1p60f, 0x1p-60f), 0x1p-120f);
    assert_bits(num_divide_near(0x1p60f, 0x1p-60f, 0x1p60f), 0x1p120f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probability_is_close),
        cmocka_unit_test(test_probability_exact_cases),
        cmocka_unit_test(test_probability_in_windows),
        cmocka_unit_test(test_windows_that_are_far),
        cmocka_unit_test(test_probability_has_these_bits),
        cmocka_unit_test(test_probability_units),
        cmocka_unit_test(test_floor_256),
        cmocka_unit_test(test_score),
        cmocka_unit_test(test_score_unit),
        cmocka_unit_test(test_tile_max),
        cmocka_unit_test(test_weighted_value),
        cmocka_unit_test(test_value_weight),
        cmocka_unit_test(test_divisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
