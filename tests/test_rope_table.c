/* The tables of cosines and sines: frequencies against the formulas in long double, and the tables
 * against libm's double functions, which are far more precise than float32. */
#include "model/numerics.h"
#include "model/rope_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MOST_HALF = 128, POSITIONS = 131073 };

static const int head_dims[] = {2, 32, 64, 80, 96, 128, 256};
static const double thetas[] = {10000, 100000, 500000, 1000000, 5000000, 1e9, 1.5};

static const struct rope_config llama31 = {.theta = 500000,
                                           .scaling = ROPE_LLAMA3,
                                           .factor = 8,
                                           .low_freq_factor = 1,
                                           .high_freq_factor = 4,
                                           .original_max_positions = 8192};

static struct rope_config plain(double theta) {
    return (struct rope_config){.theta = theta,
                                .scaling = ROPE_PLAIN,
                                .factor = 1,
                                .low_freq_factor = 1,
                                .high_freq_factor = 1,
                                .original_max_positions = 4096};
}

/* ---- frequencies ----------------------------------------------------------------------------- */

/* How far y is from exact, in units of the last place of y. */
static double ulps(float y, long double exact) {
    int exponent;
    frexpf(y, &exponent);
    return (double)fabsl((long double)y - exact) / ldexp(1, exponent - 24);
}

static long double exact_frequency(const struct rope_config *rope, int i, int head_dim) {
    long double f = 1 / powl(rope->theta, (long double)(2 * i) / head_dim);
    if (rope->scaling == ROPE_PLAIN)
        return f;
    if (rope->scaling == ROPE_LINEAR)
        return f / rope->factor;
    long double waves = rope->original_max_positions * f / (2 * acosl(-1)); /* in the context */
    if (waves < rope->low_freq_factor)
        return f / rope->factor;
    if (waves > rope->high_freq_factor)
        return f;
    long double smooth = (waves - rope->low_freq_factor) /
                         (rope->high_freq_factor - (long double)rope->low_freq_factor);
    return (1 - smooth) * f / rope->factor + smooth * f;
}

static void assert_frequencies(const struct rope_config *rope, int head_dim, double most_ulps) {
    float got[MOST_HALF];
    rope_inverse_frequencies(got, rope, head_dim);
    for (int i = 0; i < head_dim / 2; i++) {
        double off = ulps(got[i], exact_frequency(rope, i, head_dim));
        if (!(off <= most_ulps))
            fail_msg("theta %g, head_dim %d, frequency %d: %a is %.2f ulp off", rope->theta,
                     head_dim, i, (double)got[i], off);
    }
}

/* The exponent 2i/head_dim is a float32, as in Hugging Face; half of its last place, times
 * log(theta), is an error of its own when head_dim is not a power of two. */
static double allowed_ulps(double theta, int head_dim) {
    return (head_dim & (head_dim - 1)) == 0 ? 2 : 2 + log(theta) / 2;
}

static void test_plain_frequencies(void **state) {
    (void)state;
    for (size_t t = 0; t < COUNT(thetas); t++)
        for (size_t d = 0; d < COUNT(head_dims); d++) {
            struct rope_config rope = plain(thetas[t]);
            assert_frequencies(&rope, head_dims[d], allowed_ulps(thetas[t], head_dims[d]));
        }
    float first;
    struct rope_config rope = plain(10000);
    rope_inverse_frequencies(&first, &rope, 2);
    assert_true(first == 1.0f);
}

static void test_linear_frequencies(void **state) {
    (void)state;
    static const double factors[] = {1, 2, 4, 8, 2.5, 3};
    for (size_t f = 0; f < COUNT(factors); f++)
        for (size_t d = 0; d < COUNT(head_dims); d++) {
            struct rope_config rope = plain(10000);
            rope.scaling = ROPE_LINEAR;
            rope.factor = factors[f];
            assert_frequencies(&rope, head_dims[d], allowed_ulps(10000, head_dims[d]));
        }
}

/* Llama 3.1 (factor 8) and 3.2 (factor 32). Where the ramp begins, its share of the unscaled
 * frequency is a small difference, of which one rounding error counts `factor` times. */
static void test_llama3_frequencies(void **state) {
    (void)state;
    for (int factor = 8; factor <= 32; factor *= 4)
        for (int head_dim = 64; head_dim <= 128; head_dim *= 2) {
            struct rope_config rope = llama31;
            rope.factor = factor;
            assert_frequencies(&rope, head_dim, 2 + factor);
            float scaled[MOST_HALF], unscaled[MOST_HALF];
            rope_inverse_frequencies(scaled, &rope, head_dim);
            rope.scaling = ROPE_PLAIN;
            rope_inverse_frequencies(unscaled, &rope, head_dim);
            int last = head_dim / 2 - 1;
            assert_true(scaled[0] == unscaled[0]); /* short waves stay */
            assert_true(scaled[last] == unscaled[last] / (float)factor);
        }
}

/* In Llama 3.1 the waves between 2048 and 8192 positions are blended: strictly between kept and
 * divided. Of the 64 these are 29 to 34: 2 pi * 500000^(i/64) is 2402 for 29 and 6695 for 34. */
static void test_llama3_ramp(void **state) {
    (void)state;
    float scaled[64], unscaled[64];
    struct rope_config rope = llama31;
    rope_inverse_frequencies(scaled, &rope, 128);
    rope.scaling = ROPE_PLAIN;
    rope_inverse_frequencies(unscaled, &rope, 128);
    int n_blended = 0;
    for (int i = 0; i < 64; i++) {
        double wave = 2 * acos(-1) / (double)unscaled[i];
        if (wave < 2048)
            assert_true(scaled[i] == unscaled[i]);
        else if (wave > 8192)
            assert_true(scaled[i] == unscaled[i] / 8);
        else {
            assert_true(scaled[i] < unscaled[i] && scaled[i] > unscaled[i] / 8);
            n_blended++;
        }
        assert_true(i == 0 || scaled[i] < scaled[i - 1]);
    }
    assert_int_equal(n_blended, 6);
}

/* ---- tables ---------------------------------------------------------------------------------- */

struct table {
    int half, n;
    float *cosine, *sine; /* [n, half] */
};

static struct table make_table(const float *inverse, int half, int n) {
    size_t bytes = sizeof(float) * (size_t)half * (size_t)n;
    struct table t = {half, n, malloc(bytes), malloc(bytes)};
    assert_true(t.cosine && t.sine);
    rope_fill(t.cosine, t.sine, inverse, half, n);
    return t;
}

static void free_table(struct table *t) {
    free(t->cosine);
    free(t->sine);
}

/* An error of 2^-50 in our functions or in libm's may turn a value that lies so near to a tie; one
 * float in 2^26 does. More than one step from the exact value is never allowed. */
static int count_differing(const struct table *t, const float *inverse) {
    int n_differ = 0;
    for (int p = 0; p < t->n; p++)
        for (int i = 0; i < t->half; i++) {
            double angle = (float)p * inverse[i];
            size_t at = (size_t)p * (size_t)t->half + (size_t)i;
            float c = (float)cos(angle), s = (float)sin(angle);
            n_differ += num_bits(c) != num_bits(t->cosine[at]);
            n_differ += num_bits(s) != num_bits(t->sine[at]);
            if (fabsf(c - t->cosine[at]) > 0x1p-24f || fabsf(s - t->sine[at]) > 0x1p-24f)
                fail_msg("position %d, frequency %a: cos %a, sin %a", p, (double)inverse[i],
                         (double)t->cosine[at], (double)t->sine[at]);
        }
    return n_differ;
}

static void test_tables_like_libm(void **state) {
    (void)state;
    /* The fastest and the slowest waves of a head, and some between. */
    enum { HALF = 6 };
    float all[MOST_HALF], inverse[HALF];
    struct rope_config rope = llama31;
    rope_inverse_frequencies(all, &rope, 128);
    static const int chosen[HALF] = {0, 1, 7, 20, 33, 63};
    for (int i = 0; i < HALF; i++)
        inverse[i] = all[chosen[i]];
    struct table t = make_table(inverse, HALF, POSITIONS);
    assert_in_range(count_differing(&t, inverse), 0, 1);
    free_table(&t);
}

/* Angles of the multiples of pi/2 themselves, as near as float32 comes to them, are where the
 * reduction could lose its digits. */
static void test_angles_near_quadrants(void **state) {
    (void)state;
    enum { HALF = 4 };
    const float inverse[HALF] = {(float)1.5707963267948966, (float)3.141592653589793,
                                 (float)0.7853981633974483, 11.0f};
    struct table t = make_table(inverse, HALF, 131073);
    assert_in_range(count_differing(&t, inverse), 0, 1);
    assert_true(t.cosine[0] == 1 && t.sine[0] == 0 && !signbit(t.sine[0]));
    free_table(&t);
}

/* A row does not depend on how many rows are made. */
static void test_longer_table_begins_with_the_shorter(void **state) {
    (void)state;
    enum { HALF = 32, SHORT = 77, LONG = 300 };
    float inverse[HALF];
    struct rope_config rope = plain(10000);
    rope_inverse_frequencies(inverse, &rope, 2 * HALF);
    struct table a = make_table(inverse, HALF, SHORT), b = make_table(inverse, HALF, LONG);
    assert_memory_equal(a.cosine, b.cosine, sizeof(float) * HALF * SHORT);
    assert_memory_equal(a.sine, b.sine, sizeof(float) * HALF * SHORT);
    for (int i = 0; i < HALF; i++)
        assert_true(a.cosine[i] == 1 && a.sine[i] == 0);
    free_table(&a);
    free_table(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_frequencies),
        cmocka_unit_test(test_linear_frequencies),
        cmocka_unit_test(test_llama3_frequencies),
        cmocka_unit_test(test_llama3_ramp),
        cmocka_unit_test(test_tables_like_libm),
        cmocka_unit_test(test_angles_near_quadrants),
        cmocka_unit_test(test_longer_table_begins_with_the_shorter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
