/*
 * random.h - numbers for tests: the same ones in every run and on every machine (integer
 * arithmetic and exact scaling only).
 */
#ifndef SAMEBITS_TESTS_RANDOM_H
#define SAMEBITS_TESTS_RANDOM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

struct random {
    uint64_t state; /* the seed; any value */
};

/* SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014. */
static inline uint64_t random_bits64(struct random *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* An integer in low ... high, both included. */
static inline int random_int(struct random *r, int low, int high) {
    uint64_t span = (uint64_t)((int64_t)high - low) + 1;
    return (int)(low + (int64_t)(random_bits64(r) % span));
}

/* Close to a normal distribution with variance 1: a sum of twelve uniform numbers. */
static inline float random_normal(struct random *r) {
    int64_t sum = 0;
    for (int i = 0; i < 6; i++) {
        uint64_t bits = random_bits64(r);
        sum += (int64_t)(uint32_t)bits + (int64_t)(bits >> 32);
    }
    return (float)((double)(sum - ((int64_t)6 << 32)) * 0x1p-32);
}

/* Uniform from -1 to 1. */
static inline float random_up_to_1(struct random *r) {
    return (float)random_int(r, -(1 << 24), 1 << 24) * 0x1p-24f;
}

/* The kinds of rows that tests feed to every op. */
enum distribution {
    NORMAL,
    HEAVY_TAILED, /* magnitudes from 2^-20 to 2^20 in one row */
    SPARSE,       /* three of four are +0 or -0 */
    TINY,         /* around 2^-115: below the smallest row exponent, down to subnormal */
    HUGE_VALUES,  /* around 2^100: products overflow */
    N_DISTRIBUTIONS
};

static inline float random_value(struct random *r, enum distribution kind) {
    float x = random_normal(r);
    switch (kind) {
    case HEAVY_TAILED:
        return ldexpf(x, random_int(r, -20, 20));
    case SPARSE:
        return random_int(r, 0, 3) ? copysignf(0.0f, x) : x;
    case TINY:
        return ldexpf(x, random_int(r, -140, -100));
    case HUGE_VALUES:
        return ldexpf(x, 100);
    default:
        return x;
    }
}

static inline void random_fill(struct random *r, float *x, size_t n, enum distribution kind) {
    for (size_t i = 0; i < n; i++)
        x[i] = random_value(r, kind);
}

#endif
