/* The functions of numerics.h against exact arithmetic: integers, or long double where each step is
 * exact in its 64 bits. Those of attention: test_numerics_attention.c. */
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

/* ---- exp and silu ---------------------------------------------------------------------------- */

static void assert_exp_within_1_ulp(float x) {
    float y = num_exp(x);
    double error = oracle_exp_error(x, y);
    if (!(error <= 1.0) || signbit(y))
        fail_msg("num_exp(%a) = %a is %.4f ulp off", (double)x, (double)y, error);
}

/* A prime stride visits every exponent about as often, with ever different fractions. */
static void test_exp_sample_of_all_floats(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 211) {
        float x = num_float((uint32_t)bits);
        if (!isnan(x))
            assert_exp_within_1_ulp(x);
    }
}

/* Where the work is: |x| between 2^-26 and 128, more densely; and all floats about the bounds of
 * the subnormal results and of overflow. */
static void test_exp_where_it_is_hard(void **state) {
    (void)state;
    for (uint32_t bits = num_bits(0x1p-26f); bits < num_bits(128.0f); bits += 53) {
        assert_exp_within_1_ulp(num_float(bits));
        assert_exp_within_1_ulp(-num_float(bits));
    }
    static const float edges[] = {-105.0f,      -103.97208f, -103.27893f, -87.33655f, -86.64f,
                                  -0.34657359f, 0.34657359f, 88.37626f,   88.722839f, 89.0f};
    for (size_t i = 0; i < COUNT(edges); i++)
        for (uint32_t step = 0; step < 20000; step++)
            assert_exp_within_1_ulp(num_float(num_bits(edges[i]) - 10000 + step));
}

static void test_exp_exact_cases(void **state) {
    (void)state;
    assert_bits(num_exp(0.0f), 1.0f);
    assert_bits(num_exp(-0.0f), 1.0f);
    assert_bits(num_exp(INFINITY), INFINITY);
    assert_bits(num_exp(FLT_MAX), INFINITY);
    assert_bits(num_exp(88.72284f), INFINITY); /* e^x = 1.000001 * 2^128 */
    assert_bits(num_exp(-INFINITY), 0.0f);
    assert_bits(num_exp(-FLT_MAX), 0.0f);
    assert_bits(num_exp(-104.0f), 0.0f);
    assert_bits(num_exp(0x1p-149f), 1.0f);
    assert_bits(num_exp(-0x1p-149f), 1.0f);
    assert_true(isnan(num_exp(NAN)));
    assert_true(isnan(num_exp(-NAN)));
    assert_true(isnan(num_exp(num_float(0x7f800001))));
    assert_bits(num_exp(-103.0f), 0x1p-149f); /* 1.33 units of the smallest subnormal */
    assert_true(num_exp(88.7228f) < INFINITY);
}

/* Many polynomials stay within 1 ulp; this engine means this one. A build whose compiler fuses or
 * reorders an operation, or a device with an exp of its own, shows here. The hash is FNV-1a. */
static void test_exp_has_these_bits(void **state) {
    (void)state;
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t bits = 0; bits < num_bits(128.0f); bits += 257) {
        hash = (hash ^ num_bits(num_exp(num_float(bits)))) * 0x100000001b3u;
        hash = (hash ^ num_bits(num_exp(-num_float(bits)))) * 0x100000001b3u;
        hash = (hash ^ num_bits(num_silu(num_float(bits)))) * 0x100000001b3u;
    }
    if (hash != 0x060a9216808818feu)
        fail_msg("the hash is %016llx", (unsigned long long)hash);
}

static void test_silu(void **state) {
    (void)state;
    assert_bits(num_silu(0.0f), 0.0f);
    assert_bits(num_silu(-0.0f), -0.0f);
    assert_bits(num_silu(-200.0f), -0.0f);
    assert_bits(num_silu(200.0f), 200.0f);
    assert_bits(num_silu(FLT_MAX), FLT_MAX);
    assert_bits(num_silu(INFINITY), INFINITY);
    assert_true(isnan(num_silu(NAN)));
    struct random r = {1};
    for (int i = 0; i < 100000; i++) {
        float x = ldexpf(random_normal(&r), random_int(&r, -20, 5));
        double exact = x / (1 + exp(-(double)x));
        double error = fabs(num_silu(x) - exact);
        /* Below -88.7 the denominator is infinite: up to 88.7 / 2^128 becomes 0. */
        if (error > fabs(exact) * 0x1p-22 + 0x1p-121)
            fail_msg("num_silu(%a) = %a", (double)x, (double)num_silu(x));
    }
}

/* ---- tanh and log ---------------------------------------------------------------------------- */

static void assert_tanh_within_1_ulp(float x) {
    float y = num_tanh(x);
    double error = oracle_tanh_error(x, y);
    if (!(error < 1.0) || !(fabsf(y) <= 1))
        fail_msg("num_tanh(%a) = %a is %.4f ulp off", (double)x, (double)y, error);
    assert_bits(num_tanh(-x), -y);
}

static void assert_log_within_1_ulp(float x) {
    float y = num_log(x);
    double error = oracle_log_error(x, y);
    if (!(error < 1.0))
        fail_msg("num_log(%a) = %a is %.4f ulp off", (double)x, (double)y, error);
}

static void test_tanh_and_log_sample_of_all_floats(void **state) {
    (void)state;
    for (uint32_t bits = 1; bits < num_bits(INFINITY); bits += 1009) {
        assert_tanh_within_1_ulp(num_float(bits));
        assert_log_within_1_ulp(num_float(bits));
    }
}

/* Between 2^-13, below which tanh(x) rounds to x, and 10, from where on it is 1; and all floats
 * about the bounds of n, of small and subnormal results, and of 1. */
static void test_tanh_where_it_is_hard(void **state) {
    (void)state;
    for (uint32_t bits = num_bits(0x1p-13f); bits < num_bits(10.0f); bits += 97)
        assert_tanh_within_1_ulp(num_float(bits));
    static const float edges[] = {0x1p-126f,  0x1p-63f,   0x1p-25f,   0x1p-12f,   0.17328680f,
                                  0.5198604f, 7.9711924f, 8.1444788f, 8.4910526f, 8.6643398f,
                                  8.8376265f, 9.0109133f, 9.25f};
    for (size_t i = 0; i < COUNT(edges); i++)
        for (uint32_t step = 0; step < 10000; step++)
            assert_tanh_within_1_ulp(num_float(num_bits(edges[i]) - 5000 + step));
}

/* One octave on either side of 1, where the result is small; and all floats about 1, about the
 * bounds of k, and about the largest subnormals. */
static void test_log_where_it_is_hard(void **state) {
    (void)state;
    for (uint32_t bits = num_bits(0.5f); bits < num_bits(2.0f); bits += 53)
        assert_log_within_1_ulp(num_float(bits));
    static const float edges[] = {
        0x1p-149f,      0x1p-148f,        0x1p-126f,        0x1.555556p-1f,  1,
        0x1.555556p+0f, 0x1.555556p-127f, 0x1.555556p-126f, 0x1.555556p+127f};
    for (size_t i = 0; i < COUNT(edges); i++)
        for (uint32_t step = 0; step < 20000; step++) {
            float x = num_float(num_bits(edges[i]) - 10000 + step);
            if (x > 0)
                assert_log_within_1_ulp(x);
        }
}

static void test_tanh_and_log_exact_cases(void **state) {
    (void)state;
    static const float same[] = {0, 0x1p-149f, 0x1.fffffcp-127f, 0x1p-126f, 0x1.fffffep-14f};
    for (size_t i = 0; i < COUNT(same); i++) {
        assert_bits(num_tanh(same[i]), same[i]);
        assert_bits(num_tanh(-same[i]), -same[i]);
    }
    static const float large[] = {9.25f, 18.5f, 0x1p22f, FLT_MAX, INFINITY};
    for (size_t i = 0; i < COUNT(large); i++) {
        assert_bits(num_tanh(large[i]), 1);
        assert_bits(num_tanh(-large[i]), -1);
    }
    assert_bits(num_log(1), 0.0f);
    assert_bits(num_log(0.0f), -INFINITY);
    assert_bits(num_log(-0.0f), -INFINITY);
    assert_bits(num_log(INFINITY), INFINITY);
    static const float none[] = {-0x1p-149f, -0x1p-126f, -1, -FLT_MAX, -INFINITY};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_bits(num_log(none[i]), num_float(0x7fc00000));
    static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7fffffff, 0x7f800001, 0xff800001};
    for (size_t i = 0; i < COUNT(nans); i++) {
        assert_true(isnan(num_tanh(num_float(nans[i]))));
        assert_bits(num_log(num_float(nans[i])), num_float(0x7fc00000));
    }
}

static void test_tanh_and_log_have_these_bits(void **state) {
    (void)state;
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t bits = 0; bits <= num_bits(INFINITY); bits += 1024) {
        hash = (hash ^ num_bits(num_tanh(num_float(bits)))) * 0x100000001b3u;
        hash = (hash ^ num_bits(num_log(num_float(bits + 1)))) * 0x100000001b3u;
    }
    /* The last place of a high coefficient shows in few results. */
    for (uint32_t bits = num_bits(0x1p-4f); bits < num_bits(10.0f); bits += 29)
        hash = (hash ^ num_bits(num_tanh(num_float(bits)))) * 0x100000001b3u;
    for (uint32_t bits = num_bits(0.5f); bits < num_bits(2.0f); bits += 29)
        hash = (hash ^ num_bits(num_log(num_float(bits)))) * 0x100000001b3u;
    if (hash != 0xd09970cbdc611b11u)
        fail_msg("the hash is %016llx", (unsigned long long)hash);
}

/* ---- rounding to integers, powers of two ----------------------------------------------------- */

static void test_powers_of_two(void **state) {
    (void)state;
    for (int n = -126; n <= 127; n++)
        assert_bits(num_pow2f(n), ldexpf(1, n));
    for (int n = -1022; n <= 1023; n++)
        assert_true(num_pow2(n) == ldexp(1, n));
}

static void test_rounding_ties_to_even(void **state) {
    (void)state;
    for (int64_t half = 0; half <= (int64_t)1 << 24; half++) {
        float x = (float)half / 2; /* every tie and every integer up to 2^23 */
        int64_t want = half / 2 + (half % 4 == 3);
        if (num_rint_positive(x) != want)
            fail_msg("num_rint_positive(%.1f) = %u", (double)x, num_rint_positive(x));
        if (half <= (int64_t)1 << 23 && (num_rint(x) != want || num_rint(-x) != -want))
            fail_msg("num_rint(%.1f) = %d, %d", (double)x, num_rint(x), num_rint(-x));
    }
    struct random r = {2};
    for (int i = 0; i < 1000000; i++) {
        float x = ldexpf((float)(random_bits64(&r) >> 40), random_int(&r, -149, -2));
        assert_true(num_rint(x) == lrintl((long double)x));
        assert_true(num_rint(-x) == lrintl(-(long double)x));
        assert_true(num_rint_positive(x) == (uint32_t)lrintl((long double)x));
    }
}

static void test_sampling_weight(void **state) {
    (void)state;
    assert_int_equal(num_sampling_weight(3, 3, 0.7f), 1 << 30);
    assert_int_equal(num_sampling_weight(-FLT_MAX, FLT_MAX, 1e30f), 0);
    assert_int_equal(num_sampling_weight(1, 2, 1e-30f), 0);
    assert_int_equal(num_sampling_weight(1, 2, 1e30f), 1 << 30);
    struct random r = {3};
    for (int i = 0; i < 1000000; i++) {
        float max = random_normal(&r), temperature = ldexpf(1, random_int(&r, -6, 3));
        float logit = max - ldexpf(fabsf(random_normal(&r)), random_int(&r, -30, 4));
        assert_true(num_sampling_weight(logit, max, temperature) ==
                    oracle_sampling_weight(logit, max, temperature));
    }
}

/* ---- BFP16 rows ------------------------------------------------------------------------------ */

static bool fits(float largest, int e) {
    return rintl(ldexpl((long double)largest, 15 - e)) <= 32639;
}

/* Snaps x[n] and checks every clause of the definition. */
static void assert_snaps(const float *x, int n) {
    int16_t *q = malloc(sizeof *q * (size_t)n);
    float largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    int e = num_snap_row(q, x, n);
    if (e < -100 || e > 127 || !fits(largest, e) || (e > -100 && fits(largest, e - 1)))
        fail_msg("largest %a: exponent %d", (double)largest, e);
    assert_int_equal(e, num_row_exponent(num_magnitude(largest)));
    for (int i = 0; i < n; i++) {
        if (q[i] != lrintl(ldexpl((long double)x[i], 15 - e)))
            fail_msg("%a in a row of exponent %d: mantissa %d", (double)x[i], e, q[i]);
        int high = (q[i] + 128) >> 8, low = q[i] - 256 * high;
        if (abs(high) > 127 || low < -128 || low > 127)
            fail_msg("mantissa %d has the digits %d, %d", q[i], high, low);
    }
    free(q);
}

/* A row of n values whose largest magnitude is `largest`, the rest ties and fractions around every
 * kind of integer. */
static void assert_snaps_around(struct random *r, float largest, int n) {
    float *x = malloc(sizeof *x * (size_t)n);
    int e = num_row_exponent(num_magnitude(largest));
    for (int i = 0; i < n; i++) {
        int half = random_int(r, -65278, 65278);
        float value = ldexpf((float)half, e - 16);
        x[i] = fabsf(value) <= largest ? value : copysignf(0, value);
    }
    x[random_int(r, 0, n - 1)] = random_int(r, 0, 1) ? largest : -largest;
    assert_snaps(x, n);
    free(x);
}

static void test_snap_maxima_at_the_limit(void **state) {
    (void)state;
    struct random r = {4};
    static const int sizes[] = {1, 2, 255, 256, 257, 1000};
    for (int k = -149; k <= 112; k++) {
        float limit = ldexpf(32639.5f, k); /* a tie, which goes to 32640: one too many */
        float all[] = {ldexpf(32639, k),    nextafterf(limit, 0),       limit,
                       ldexpf(32640, k),    nextafterf(limit, FLT_MAX), ldexpf(16384, k),
                       ldexpf(16383.75f, k)};
        for (size_t i = 0; i < COUNT(all); i++)
            if (num_row_exponent(num_magnitude(all[i])) <= 127)
                assert_snaps_around(&r, all[i], sizes[(unsigned)(k + 149 + (int)i) % 6]);
    }
    assert_int_equal(num_row_exponent(num_magnitude(32639.0f)), 15);
    assert_int_equal(num_row_exponent(num_magnitude(nextafterf(32639.5f, 0))), 15);
    assert_int_equal(num_row_exponent(num_magnitude(32639.5f)), 16);
    assert_int_equal(num_row_exponent(num_magnitude(32640.0f)), 16);
}

static void test_snap_small_values(void **state) {
    (void)state;
    static const float tiny[] = {0,
                                 0x1p-149f,
                                 0x1p-127f,
                                 0x1p-126f,
                                 0x1p-117f,
                                 0x1p-116f,
                                 0x3p-117f,
                                 0x5p-117f,
                                 0x1.000002p-116f,
                                 0x1p-115f,
                                 0x7f7fp-116f,
                                 0x7f7fp-115f,
                                 0xfeffp-116f,
                                 0x7f80p-115f};
    int16_t q;
    for (size_t i = 0; i < COUNT(tiny); i++) {
        assert_snaps(&tiny[i], 1);
        float negative = -tiny[i];
        assert_snaps(&negative, 1);
    }
    for (size_t i = 0; i + 3 < COUNT(tiny); i++)
        assert_int_equal(num_snap_row(&q, &tiny[i], 1), -100);
    assert_int_equal(num_snap_row(&q, &(float){0x1p-116f}, 1), -100);
    assert_int_equal(q, 0); /* a tie */
    assert_int_equal(num_snap_row(&q, &(float){0x1p-149f}, 1), -100);
    assert_int_equal(q, 0);
    assert_snaps((float[]){0, -0.0f, 0}, 3);
    assert_int_equal(num_snap_row(&q, &(float){0xfeffp-116f}, 1), -99); /* 32639.5 units */
}

static void test_snap_random_rows(void **state) {
    (void)state;
    struct random r = {5};
    static const int sizes[] = {1, 2, 3, 255, 256, 257, 1000};
    float x[1000];
    for (int i = 0; i < 2000; i++) {
        int n = sizes[i % 7];
        random_fill(&r, x, (size_t)n, (enum distribution)(i % N_DISTRIBUTIONS));
        assert_snaps(x, n);
        x[random_int(&r, 0, n - 1)] = ldexpf(1, random_int(&r, 20, 126)); /* a single huge one */
        assert_snaps(x, n);
    }
}

static void test_snap_refuses_what_it_cannot_store(void **state) {
    (void)state;
    static const float bad[] = {NAN,      -NAN,     INFINITY,  -INFINITY,    FLT_MAX,
                                -FLT_MAX, 0x1p127f, -0x1p127f, 0x7f7f8p108f, 0x1.fffffep126f};
    static const int sizes[] = {1, 2, 255, 256, 257, 1000};
    float x[1000];
    int16_t q[1000];
    for (size_t b = 0; b < COUNT(bad); b++)
        for (size_t s = 0; s < COUNT(sizes); s++) {
            int n = sizes[s], places[] = {0, n / 2, n - 1};
            for (int at = 0; at < 3; at++) {
                for (int i = 0; i < n; i++) {
                    x[i] = (float)(i + 1);
                    q[i] = -1;
                }
                x[places[at]] = bad[b];
                assert_int_equal(num_snap_row(q, x, n), 128);
                for (int i = 0; i < n; i++)
                    assert_int_equal(q[i], 0);
            }
        }
    assert_snaps(&(float){0x7f7fp112f}, 1); /* the largest that can be stored */
    assert_snaps(&(float){nextafterf(0x7f7f8p108f, 0)}, 1);
    assert_snaps(&(float){0x1p126f}, 1);
}

/* ---- one rounding ---------------------------------------------------------------------------- */

/* Whether y is n * 2^exponent rounded to nearest, ties to even. A float's neighbours lie so near
 * that the points half-way, and n * 2^exponent, are exact in long double. */
static bool is_nearest(int64_t n, int exponent, float y) {
    long double exact = ldexpl((long double)llabs(n), exponent), beyond = 0x1p128L;
    if (n != 0 && (signbit(y) != 0) != (n < 0))
        return false;
    y = fabsf(y);
    long double value = isinf(y) ? beyond : (long double)y;
    float next = nextafterf(y, INFINITY), last = nextafterf(y, 0);
    long double above = isinf(next) ? beyond : (long double)next;
    long double low = (value + last) / 2, high = isinf(y) ? INFINITY : (value + above) / 2;
    if (y == 0)
        low = -1;
    bool even = num_bits(y) % 2 == 0;
    return even ? low <= exact && exact <= high : low < exact && exact < high;
}

static void assert_rounds_once(int64_t n, int exponent) {
    float y = num_dot_to_float((double)n, exponent);
    if (!is_nearest(n, exponent, y))
        fail_msg("%lld * 2^%d became %a", (long long)n, exponent, (double)y);
    assert_bits(y, oracle_round(n, exponent));
}

static void test_dot_rounds_once(void **state) {
    (void)state;
    struct random r = {6};
    for (int i = 0; i < 2000000; i++) {
        int64_t n = (int64_t)(random_bits64(&r) >> random_int(&r, 11, 63));
        assert_rounds_once(random_int(&r, 0, 1) ? n : -n, random_int(&r, -230, 224));
    }
    static const int extremes[] = {-1022, -600, -203, -202, -150, 75, 76, 104, 127, 128, 1023};
    for (size_t i = 0; i < COUNT(extremes); i++)
        for (int length = 0; length < 53; length++)
            for (int64_t near = -1; near <= 1; near++) {
                assert_rounds_once(((int64_t)1 << length) + near, extremes[i]);
                assert_rounds_once(-((int64_t)1 << length) - near, extremes[i]);
            }
}

/* Ties and their neighbours: 24 bits, then a half, then perhaps one more unit, at every exponent
 * from overflow to below the subnormals. */
static void test_dot_ties(void **state) {
    (void)state;
    struct random r = {7};
    for (int exponent = -203; exponent <= 100; exponent++)
        for (int i = 0; i < 500; i++) {
            int64_t n = (int64_t)1 << 23 | (int64_t)(random_bits64(&r) >> 41);
            int shift = random_int(&r, 1, 28);
            n = n << shift | (int64_t)1 << (shift - 1);
            for (int64_t near = -1; near <= 1; near++)
                assert_rounds_once(n + near, exponent);
        }
    for (int64_t half = 1; half < 4096; half++) /* ties between subnormals */
        assert_rounds_once(half, -150);
    assert_bits(num_dot_to_float(0x1ffffff, 103), INFINITY); /* half-way above FLT_MAX */
    assert_bits(num_dot_to_float(0x1fffffe, 103), FLT_MAX);
    assert_bits(num_dot_to_float(0, 224), 0.0f);
    assert_bits(num_dot_to_float(-1, -230), -0.0f);
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* From kat_vectors of Random123, the authors' own library. */
static void test_philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct philox_key key;
        struct philox_block counter;
        memcpy(key.word, known[i].key, sizeof key.word);
        memcpy(counter.word, known[i].counter, sizeof counter.word);
        struct philox_block got = num_philox(key, counter);
        assert_memory_equal(got.word, known[i].want, sizeof got.word);
    }
}

static void test_mul_high(void **state) {
    (void)state;
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     0xffffffff,
                                     0x100000000,
                                     0x100000001,
                                     0x8000000000000000,
                                     0xfffffffffffffffe,
                                     0xffffffffffffffff};
    for (size_t i = 0; i < COUNT(edges); i++)
        for (size_t j = 0; j < COUNT(edges); j++)
            assert_true(num_mul_high(edges[i], edges[j]) ==
                        (uint64_t)((unsigned __int128)edges[i] * edges[j] >> 64));
    struct random r = {9};
    for (int i = 0; i < 1000000; i++) {
        uint64_t a = random_bits64(&r) >> random_int(&r, 0, 40), b = random_bits64(&r);
        assert_true(num_mul_high(a, b) == (uint64_t)((unsigned __int128)a * b >> 64));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_sample_of_all_floats),
        cmocka_unit_test(test_exp_where_it_is_hard),
        cmocka_unit_test(test_exp_exact_cases),
        cmocka_unit_test(test_exp_has_these_bits),
        cmocka_unit_test(test_silu),
        cmocka_unit_test(test_tanh_and_log_sample_of_all_floats),
        cmocka_unit_test(test_tanh_where_it_is_hard),
        cmocka_unit_test(test_log_where_it_is_hard),
        cmocka_unit_test(test_tanh_and_log_exact_cases),
        cmocka_unit_test(test_tanh_and_log_have_these_bits),
        cmocka_unit_test(test_powers_of_two),
        cmocka_unit_test(test_rounding_ties_to_even),
        cmocka_unit_test(test_sampling_weight),
        cmocka_unit_test(test_snap_maxima_at_the_limit),
        cmocka_unit_test(test_snap_small_values),
        cmocka_unit_test(test_snap_random_rows),
        cmocka_unit_test(test_snap_refuses_what_it_cannot_store),
        cmocka_unit_test(test_dot_rounds_once),
        cmocka_unit_test(test_dot_ties),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_mul_high),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
