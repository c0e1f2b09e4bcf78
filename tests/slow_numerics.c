/* num_exp, num_tanh and num_log of every float: less than 1 ulp off, and the rules for NaN, zeros
 * and signs; num_probability of every float that is not positive: to within 2^-17. Prints the worst
 * error of each. num_row_exponent of every float, and mantissas by a fused operation, which kernels
 * use. num_divide_near of every quotient that could be rounded to the wrong side. */
#include "model/attention/numerics.h"
#include "tests/oracle.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include <cmocka.h>

enum { N_PARTS = 2 };

/* Each returns the error of a function at x in ulp, infinity where it breaks another rule. */

static double exp_error(float x) {
    float y = num_exp(x);
    if (isnan(x))
        return isnan(y) ? 0 : INFINITY;
    if (signbit(y))
        return INFINITY;
    return oracle_exp_error(x, y);
}

static double tanh_error(float x) {
    float y = num_tanh(x);
    if (isnan(x))
        return isnan(y) ? 0 : INFINITY;
    if (!(fabsf(y) <= 1) || num_bits(num_tanh(-x)) != (num_bits(y) ^ 0x80000000u) ||
        signbit(x) != signbit(y))
        return INFINITY;
    return oracle_tanh_error(x, y);
}

static double log_error(float x) {
    float y = num_log(x);
    uint32_t want = isnan(x) || x < 0 ? 0x7fc00000u : x == 0 ? num_bits(-INFINITY) : num_bits(x);
    if (isnan(x) || x <= 0 || isinf(x))
        return num_bits(y) == want ? 0 : INFINITY;
    return oracle_log_error(x, y);
}

/* In units of 2^-17 of the result. */
static double probability_error(float t) {
    struct num_window window = num_window_of(0, 0x1p-7f);
    return t > 0 ? 0 : oracle_probability_error(t, num_probability(t, window)) * 0x1p17;
}

/* The floats whose bit patterns are first, first + N_PARTS, ...: each part has as much work. */
struct part {
    double (*error)(float x);
    uint32_t first;
    uint64_t n_seen, n_wrong; /* wrong: an error that is not below 1 */
    double worst;
    float worst_at;
};

static void *sweep(void *argument) {
    struct part *p = argument;
    for (uint64_t bits = p->first; bits < (uint64_t)1 << 32; bits += N_PARTS) {
        float x = num_float((uint32_t)bits);
        double error = p->error(x);
        p->n_seen++;
        p->n_wrong += !(error < 1.0);
        if (error > p->worst) {
            p->worst = error;
            p->worst_at = x;
        }
    }
    return NULL;
}

static void assert_every_float(const char *name, const char *unit, double (*error)(float x)) {
    struct part parts[N_PARTS], all = {0};
    pthread_t threads[N_PARTS];
    for (int i = 0; i < N_PARTS; i++) {
        parts[i] = (struct part){.error = error, .first = (uint32_t)i};
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
    print_message("%s: worst error %.4f %s at %a, %llu wrong\n", name, all.worst, unit,
                  (double)all.worst_at, (unsigned long long)all.n_wrong);
    assert_true(all.n_seen == (uint64_t)1 << 32);
    assert_int_equal(all.n_wrong, 0);
}

/* Whether a row whose largest value is x fits exponent e. */
static bool fits(float x, int e) {
    return rint(fabs((double)x) * num_pow2(15 - e)) <= BFP_MAX_MANTISSA;
}

static double snap_error(float x) {
    int e = num_row_exponent(num_magnitude(x));
    if (!isfinite(x) || !fits(x, BFP_MAX_EXPONENT))
        return e == BFP_MAX_EXPONENT + 1 ? 0 : INFINITY;
    if (e < BFP_MIN_EXPONENT || !fits(x, e) || (e > BFP_MIN_EXPONENT && fits(x, e - 1)))
        return INFINITY;
    const int exponents[] = {e, e < BFP_MAX_EXPONENT ? e + 1 : e, BFP_MAX_EXPONENT};
    for (int i = 0; i < 3; i++) {
        float scale = num_pow2f(15 - exponents[i]), fused = fmaf(x, scale, 0x1.8p23f);
        if ((int16_t)num_bits(fused) != num_mantissa(x, scale))
            return INFINITY;
    }
    return 0;
}

static void test_exp_of_every_float(void **state) {
    (void)state;
    assert_every_float("num_exp", "ulp", exp_error);
}

static void test_tanh_of_every_float(void **state) {
    (void)state;
    assert_every_float("num_tanh", "ulp", tanh_error);
}

static void test_log_of_every_float(void **state) {
    (void)state;
    assert_every_float("num_log", "ulp", log_error);
}

static void test_probability_of_every_float(void **state) {
    (void)state;
    assert_every_float("num_probability", "* 2^-17", probability_error);
}

static void test_snap_of_every_float(void **state) {
    (void)state;
    assert_every_float("num_row_exponent", "", snap_error);
}

/* 2^-k modulo an odd number. */
static uint64_t half_to_the(int k, uint64_t modulo) {
    uint64_t x = 1 % modulo;
    for (int i = 0; i < k; i++)
        x = x % 2 ? (x + modulo) / 2 : x / 2;
    return x;
}

/*
 * The quotients of a and b, whole numbers of 24 bits, that are within 2^-21.5 units in the last
 * place of the middle between two floats, and those as near to a float: a * 2^k = q * b + c with
 * |c| <= 12 and a whole number q, of 25 bits for one of k = 24 and 25. That is a = c * 2^-k modulo
 * b. Where b is even, so is c, and all three are halved. Returns how many were wrong.
 */
static long divide_by(uint64_t b, long *n) {
    enum { MOST = 12, TOP = 1 << 24 };
    int twos = __builtin_ctzll(b);
    uint64_t odd = b >> twos;
    long wrong = 0;
    for (int k = 24; k <= 25 && 1 << twos <= MOST; k++) {
        uint64_t inverse = half_to_the(k - twos, odd);
        for (int c = -MOST; c <= MOST; c++) {
            if (c % (1 << twos))
                continue;
            uint64_t residue = (uint64_t)(c / (1 << twos) + MOST * (int64_t)odd) % odd;
            for (uint64_t a = inverse * residue % odd; a < TOP; a += odd) {
                float x = ldexpf((float)a, -23), l = ldexpf((float)b, -23);
                if (a < TOP / 2)
                    continue;
                wrong += num_bits(num_divide_near(x, l, 1 / l)) != num_bits(x / l);
                (*n)++;
            }
        }
    }
    return wrong;
}

static void test_every_hard_quotient(void **state) {
    (void)state;
    long n = 0, wrong = 0;
    for (uint64_t b = 1 << 23; b < 1 << 24; b++)
        wrong += divide_by(b, &n);
    print_message("num_divide_near: %ld hard quotients, %ld wrong\n", n, wrong);
    assert_true(n > 200000000);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_of_every_float),
        cmocka_unit_test(test_tanh_of_every_float),
        cmocka_unit_test(test_log_of_every_float),
        cmocka_unit_test(test_probability_of_every_float),
        cmocka_unit_test(test_snap_of_every_float),
        cmocka_unit_test(test_every_hard_quotient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
