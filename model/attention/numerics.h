/*
 * numerics.h - the arithmetic of attention that every device shares: scores, probabilities, weights
 * of values, and the merge of two results. tutorials/numerics-1.md has every step in order.
 *
 * Scores and weighted sums of values are sums of products of mantissas. Those of 16 bits are taken
 * in units of 256, rounded down: far less than the rounding of the mantissas has taken from the sum
 * before, and what is left is a 32-bit integer (of up to 512 products), so that no device needs 64
 * bits or float64 for it.
 */
#ifndef SAMEBITS_MODEL_ATTENTION_NUMERICS_H
#define SAMEBITS_MODEL_ATTENTION_NUMERICS_H

#include "model/numerics.h"

enum { ATTENTION_TILE = 256 }; /* KV positions per tile: the one order that this engine fixes */

/* The largest multiple of 256 that is not above `sum`, an integer below 2^51: adding 1.5 * 2^60
 * rounds to a multiple of 256, to the nearest one. */
NUM_FN double num_floor_256(double sum) {
    const double shift = 0x1.8p60;
    return (sum - 127.5 + shift) - shift;
}

/* The factors that turn what num_score gives into scores, for one row of queries. */
struct num_score_unit {
    double natural; /* gives the score */
    float binary;   /* gives the score times log2(e) / 128: 1 stands for 2^128 */
};

/* The factors of a row of queries with exponent e; scale multiplies q * k. */
NUM_FN struct num_score_unit num_score_unit_of(int e, double scale) {
    struct num_score_unit unit;
    unit.natural = num_pow2(e + 8) * scale;
    unit.binary = (float)(unit.natural * 0x1.71547652b82fep-7);
    return unit;
}

/* The factors where the numbers are scores already. */
NUM_FN struct num_score_unit num_score_unit_natural(void) {
    struct num_score_unit unit = {1, 0x1.715476p-7f};
    return unit;
}

/* A score without the query's unit. sum: the sum of products, after num_floor_256 if that applies;
 * k_unit: 2^(ek-38), where ek is the exponent of the key's row (2^(ek-30) for a sum in units of
 * 256). */
NUM_FN float num_score(float sum, float k_unit) {
    return sum * k_unit;
}

/* The m of a tile, a score, from the largest number of num_score. Infinite when float32 cannot hold
 * it, or unit.binary, or when that is negative, so that the largest number would be the lowest
 * score: no softmax then. */
NUM_FN float num_tile_max(float largest, struct num_score_unit unit) {
    return unit.binary >= 0 && unit.binary < INFINITY ? (float)(largest * unit.natural) : INFINITY;
}

/* x, but 0 below 0 and for a NaN, and 1 above 1. */
NUM_FN float num_saturate(float x) {
#ifdef __CUDA_ARCH__
    return __saturatef(x); /* a part of the operation before it, at no cost */
#else
    x = x > 0 ? x : 0;
    return x < 1 ? x : 1;
#endif
}

/*
 * The scores of one row and tile that have a probability: u, what num_score gives, is at
 *
 *     (u - less) * binary + base        the largest one at 127/128, what is 2^127 times less at 0
 *
 * less is 0 wherever base < 1 leaves the largest one exactly there, so that a kernel may leave it
 * out; scores that are large against 1, or all negative, are made small first. No number at all, or
 * a row that sees nothing (largest = -infinity), has a less that is not 0, and probabilities 0.
 */
struct num_window {
    float binary, base, less;
};

NUM_FN struct num_window num_window_of(float largest, float binary) {
    const float top = 127.0f / 128;
    struct num_window w = {binary, fmaf(-largest, binary, top), 0};
    if (!(w.base < 1 && w.base > -1)) {
        w.less = largest;
        w.base = top;
    }
    return w;
}

/*
 * e^(s - m) = 2^t, to within 2^-16 of itself, where s is the score of u, from which `less` has been
 * taken, and m is the largest score. 1 for t = 0, and 0 for t <= -127 and for a NaN; between -127
 * and -126 only the sign and the order of magnitude are right.
 *
 * x = (t + 127) / 128 = n / 128 + r with |r| <= 1/256; 2^(128 r) is a polynomial, to within 2^-18,
 * and n - 127 goes to its exponent as it is.
 */
NUM_FN float num_probability_near(float u, struct num_window w) {
    const float shift = 0x1.8p16f - 127.0f / 128; /* leaves multiples of 1/128, and n - 127 */
    float x = num_saturate(fmaf(u, w.binary, w.base));
    float shifted = x + shift;
    float r = x - (shifted - shift);
    float q = 0x1.3a02cap+21f;
    q = fmaf(q, r, 0x1.c9fc4cp+16f);
    q = fmaf(q, r, 0x1.ec0378p+11f);
    q = fmaf(q, r, 0x1.62e12cp+6f);
    q = fmaf(q, r, 1.0f);
    return num_float(num_bits(q) + (num_bits(shifted) << 23));
}

/* num_probability_near with `less` subtracted from u first: right for every window. */
NUM_FN float num_probability(float u, struct num_window w) {
    return num_probability_near(u - w.less, w);
}

/* A probability p in [0, 1] as an integer in units of 2^-23: tiles sum these, so that the order of
 * the sum cannot matter. */
NUM_FN uint32_t num_probability_units(float p) {
    return num_rint_positive(p * 8388608.0f);
}

/*
 * The weight of a value row: p * unit, where unit = 2^e and e is the row's exponent. Exact, with
 * results below 2^-126 set to 0; a NaN stays one. In double, because a float product just below
 * 2^-126 would be rounded up to it.
 */
NUM_FN float num_weight_in_units(float p, double unit) {
    double w = (double)p * unit;
    return (float)(w * (w >= 0x1p-126)); /* no branch: compilers turn the loop into vectors */
}

/* num_weight_in_units for an exponent. */
NUM_FN float num_value_weight(float p, int e) {
    return num_weight_in_units(p, num_pow2(e));
}

/* A weighted sum of values. sum: the sum of products, after num_floor_256 if that applies; e: the
 * exponent of the weights. */
NUM_FN float num_weighted_value(float sum, int e) {
    return sum * (float)num_pow2(e - 30);
}

/*
 * x / l, rounded as a division is, for magnitudes of 2^-60 to 2^60: x times the reciprocal, 1 / l,
 * and a correction (Markstein, "Computation of elementary functions on the IBM RISC System/6000
 * processor", 1990). For kernels: a GPU can't divide in one instruction.
 *
 * The product is off by up to two units in the last place, of which the correction, itself rounded,
 * leaves up to 2^-22. So a quotient could be wrong only within that of the middle between two
 * floats: tests/slow_numerics.c tries all of these.
 */
NUM_FN float num_divide_near(float x, float l, float reciprocal) {
    float q = x * reciprocal;
    return fmaf(fmaf(-q, l, x), reciprocal, q);
}

/* Two values, or two sums, as one: each times its factor. */
NUM_FN float num_merge(float before, float old_factor, float fresh, float new_factor) {
    return fmaf(fresh, new_factor, before * old_factor);
}

#endif
