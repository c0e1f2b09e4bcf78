/*
 * numerics.h - the arithmetic that every device shares, from one source.
 *
 * gcc, g++ and nvcc compile these lines with contraction off, so a value computed here has the
 * same bits on every CPU and GPU. Only IEEE 754 operations, fmaf and bit patterns are used: never
 * libm's or CUDA's exp, log or tanh, whose last bits differ between versions.
 *
 * BFP16 (block floating point, 16 bits): a row of n values is stored as int16 mantissas q[i] and
 * one exponent e and stands for q[i] * 2^(e-15). The sum of products of two such rows is an
 * integer below 2^53, so it is exact in int64 and in double, in every order.
 * The idea of exact, order-free sums: Demmel and Nguyen, "Fast Reproducible Floating-Point
 * Summation", 2013; block floating point: Wilkinson, "Rounding Errors in Algebraic Processes".
 */
#ifndef SAMEBITS_NUMERICS_H
#define SAMEBITS_NUMERICS_H

#ifdef __FAST_MATH__
#error "-ffast-math and -Ofast change the bits: compile without them"
#endif

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined __CUDACC__ && FLT_EVAL_METHOD != 0
#error "float32 is computed with more digits here: the bits would be others (-mfpmath=sse)"
#endif

#ifdef __CUDACC__
#define NUM_FN static __host__ __device__ __forceinline__
#else
#define NUM_FN static inline
#endif

/* The version of the rules by which every bit is computed: of this file, of model/attention/, of
 * the ops in ref/, of the rounding of weights and of the draw of tokens. A change of any bit of any
 * result gets another number. tutorials/numerics-1.md states version 1; data/numerics/ tests it. */
enum { NUMERICS_VERSION = 1 };

enum {
    BFP_MAX_MANTISSA = 32639, /* 0x7F7F: splits into 256*h + l with h and l signed 8-bit digits */
    BFP_MIN_EXPONENT = -100,
    BFP_MAX_EXPONENT = 127,
};

NUM_FN uint32_t num_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

NUM_FN float num_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^n as a float, -126 <= n <= 127. */
NUM_FN float num_pow2f(int n) {
    return num_float((uint32_t)(n + 127) << 23);
}

/* 2^n as a double, -1022 <= n <= 1023. */
NUM_FN double num_pow2(int n) {
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/*
 * x rounded to the nearest integer, ties to even, for |x| <= 2^22. Adding 1.5 * 2^23 leaves no
 * fraction bits, so the hardware's own rounding does the work and the low bits are the integer.
 * (rintf would need a rounding instruction that old CPUs lack, and a call there.)
 */
NUM_FN int32_t num_rint(float x) {
    const float shift = 12582912.0f;
    return (int32_t)(num_bits(x + shift) - num_bits(shift));
}

/* |x| as an integer that orders like the magnitude, with infinity and NaN above everything: the
 * maximum over a row of these finds the largest value and any non-finite one, in any order. */
NUM_FN uint32_t num_magnitude(float x) {
    return num_bits(x) & 0x7fffffffu;
}

/*
 * The exponent of a BFP16 row whose largest num_magnitude is `largest`: the smallest e >= -100
 * with rint(max * 2^(15-e)) <= 32639. More than BFP_MAX_EXPONENT means that the row cannot be
 * stored: it holds a NaN, an infinity or a value too large.
 *
 * That is the float's own exponent + 1, and 2 from the significand of 32639.5 on, which is
 * 0x7eff00: 0x10100 more carries into the exponent.
 */
NUM_FN int num_row_exponent(uint32_t largest) {
    int e = (int)((largest + 0x10100u) >> 23) - 126;
    e = e < BFP_MIN_EXPONENT ? BFP_MIN_EXPONENT : e;
    return e > BFP_MAX_EXPONENT ? BFP_MAX_EXPONENT + 1 : e;
}

/* The mantissa of x in a row with scale = num_pow2f(15 - e). */
NUM_FN int16_t num_mantissa(float x, float scale) {
    return (int16_t)num_rint(x * scale);
}

/* Snaps x[n] to mantissas q[n] and returns the exponent; BFP_MAX_EXPONENT + 1, with q all zero,
 * when the row cannot be stored. For one thread; kernels share the pieces above. */
NUM_FN int num_snap_row(int16_t *q, const float *x, int n) {
    uint32_t largest = 0;
    for (int i = 0; i < n; i++) {
        uint32_t m = num_magnitude(x[i]);
        largest = m > largest ? m : largest;
    }
    int e = num_row_exponent(largest);
    if (e > BFP_MAX_EXPONENT) {
        memset(q, 0, sizeof *q * (size_t)n);
        return e;
    }
    float scale = num_pow2f(15 - e);
    for (int i = 0; i < n; i++)
        q[i] = num_mantissa(x[i], scale);
    return e;
}

/* An exact integer sum of products, scaled by 2^exponent: the one rounding of a linear layer.
 * -1022 <= exponent <= 1023. */
NUM_FN float num_dot_to_float(double dot, int exponent) {
    return (float)(dot * num_pow2(exponent));
}

/* What RMSNorm multiplies a row of n values by, from the exact sum of the squares of its mantissas
 * and its exponent e. */
NUM_FN float num_rms_factor(int64_t sum, int e, int n, double eps) {
    double mean = (double)sum * num_pow2(2 * (e - 15)) / n;
    return (float)(1.0 / sqrt(mean + eps));
}

/* e^r for r = x - whole * ln2, |r| <= ln2 / 2: ln2 in two pieces, and a polynomial whose
 * coefficients keep (e^r - 1 - r) / r^2 to within 4e-9 of e^r. */
NUM_FN float num_exp_reduced(float x, float whole) {
    float r = fmaf(whole, -0x1.62e430p-1f, x); /* exact: a multiple of 2^-24 below 1 */
    r = fmaf(whole, 0x1.05c610p-29f, r);
    float q = 0x1.6a23cep-10f;
    q = fmaf(q, r, 0x1.123a20p-7f);
    q = fmaf(q, r, 0x1.5558f2p-5f);
    q = fmaf(q, r, 0x1.555492p-3f);
    q = fmaf(q, r, 0x1.fffffcp-2f);
    q = fmaf(q, r, 1.0f);
    return fmaf(q, r, 1.0f);
}

/*
 * e^x to within 1 ulp for every float; exp(0) = 1, exp(-inf) = 0, exp(inf) = inf, NaN stays NaN.
 *
 * Cody and Waite's reduction x = n*ln2 + r, then 2^n in two factors, so that results below 2^-126
 * are rounded once and not flushed.
 */
NUM_FN float num_exp(float x) {
    const float shift = 12582912.0f;
    /* Outside these bounds the result is 0 or infinity already; NaN fails both comparisons. */
    x = x < -105.0f ? -105.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = fmaf(x, 0x1.715476p+0f, shift);
    float y = num_exp_reduced(x, shifted - shift);
    /* Unsigned, because n is meaningless when x is a NaN and must only not be undefined. */
    uint32_t n = num_bits(shifted) - num_bits(shift);
    uint32_t half = (n + 256) >> 1;
    uint32_t rest = n + 256 - half;
    y = y * num_float((half - 128u + 127u) << 23);
    return y * num_float((rest - 128u + 127u) << 23);
}

/* silu(x) = x / (1 + e^-x) (Elfwing et al., 2017; SwiGLU: Shazeer, 2020). */
NUM_FN float num_silu(float x) {
    return x / (1.0f + num_exp(-x));
}

/*
 * tanh(x) to within 1 ulp for every float; odd, tanh(-0) = -0, tanh(+-inf) = +-1, NaN stays NaN.
 *
 * With 2|x| = n*ln2 + r, E = e^r - 1 and h = 2^-n, tanh|x| = (1 - h + E) / (1 + h + E): for small
 * x, h is 1 and nothing cancels, so one path does for all. E, numerator and denominator are sums
 * of two floats each, the second being what rounding took from the first; the remainder of the
 * quotient of the first ones then corrects it.
 */
NUM_FN float num_tanh(float x) {
    const float shift = 12582912.0f;
    /* From 9.02 on the result is 1; NaN fails the comparison and is put back at the end. */
    float y = num_float(num_magnitude(x));
    y = y < 9.25f ? y * 2.0f : 18.5f;
    float shifted = fmaf(y, 0x1.715476p+0f, shift);
    float whole = shifted - shift;
    float r = fmaf(whole, -0x1.62e430p-1f, y); /* as in num_exp_reduced */
    r = fmaf(whole, 0x1.05c610p-29f, r);
    /* E = r + r^2 * q(r) to within 5e-10 of E; num_exp's is good to 4e-9 of e^r only. */
    float q = 0x1.9e69e6p-13f;
    q = fmaf(q, r, 0x1.6d3a38p-10f);
    q = fmaf(q, r, 0x1.1112dcp-7f);
    q = fmaf(q, r, 0x1.5554f8p-5f);
    q = fmaf(q, r, 0x1.555554p-3f);
    q = fmaf(q, r, 0.5f);
    float curve = r * r * q;
    float e = r + curve, e_rest = curve - (e - r);
    /* From n = 24 on, 1 + h is rounded, which is harmless as long as the numerator stays 2h below
     * the denominator: not 1 - h, whose rounding is another. */
    float h = num_pow2f(-(int)(num_bits(shifted) - num_bits(shift)));
    float above = 1.0f + h, below = above - 2.0f * h;
    float top = below + e, top_rest = e - (top - below) + e_rest;
    float bottom = above + e, bottom_rest = e - (bottom - above) + e_rest;
    float inverse = 1.0f / bottom;
    float t = top * inverse;
    float remainder = fmaf(-t, bottom, top) + fmaf(-t, bottom_rest, top_rest);
    t = fmaf(remainder, inverse, t);
    t = num_float(num_bits(t) | (num_bits(x) & 0x80000000u));
    return x == x ? t : x;
}

/*
 * The natural logarithm to within 1 ulp for every float; log(1) = +0, log(+-0) = -inf, log(inf) =
 * inf; below zero, and of a NaN, the one NaN 0x7fc00000.
 *
 * x = 2^k * (1 + f) with 1 + f in [2/3, 4/3): around 1, k is 0 and f is exact, so that the result
 * loses nothing where it is small. log x = k*ln2 + f + f^2 * q(f).
 */
NUM_FN float num_log(float x) {
    const uint32_t two_thirds = 0x3f2aaaabu;
    /* 2^23 makes the subnormals normal. Arguments without a logarithm go along: the bit patterns
     * are unsigned, and the last lines replace the result. */
    float scaled = x < 0x1p-126f ? x * 0x1p23f : x;
    int scaled_by = x < 0x1p-126f ? 23 : 0;
    uint32_t steps = num_bits(scaled) - two_thirds + (128u << 23); /* 128 more: not below zero */
    float k = (float)((int)(steps >> 23) - 128 - scaled_by);
    float f = num_float(two_thirds + (steps & 0x007fffffu)) - 1.0f;
    /* log(1 + f) = f + f^2 * q(f) to within 5e-9 of itself. */
    float q = -0x1.07c894p-3f;
    q = fmaf(q, f, 0x1.1e678cp-3f);
    q = fmaf(q, f, -0x1.f332f8p-4f);
    q = fmaf(q, f, 0x1.1ed662p-3f);
    q = fmaf(q, f, -0x1.559c44p-3f);
    q = fmaf(q, f, 0x1.99d044p-3f);
    q = fmaf(q, f, -0x1.fffefcp-3f);
    q = fmaf(q, f, 0x1.555506p-2f);
    q = fmaf(q, f, -0.5f);
    float whole = k * 0x1.62e4p-1f; /* exact: ln2's first 16 bits, and k has 8 */
    float low = fmaf(f * f, q, k * 0x1.7f7d1cp-20f);
    /* |whole| > |f|, or whole = 0: the difference is exactly what rounding took from the sum. */
    float sum = whole + f;
    float y = sum + (f - (sum - whole) + low);
    y = x < INFINITY ? y : x;
    y = x == 0.0f ? -INFINITY : y;
    return x >= 0.0f ? y : num_float(0x7fc00000u);
}

/* 0 <= x <= 2^23 rounded to the nearest integer, ties to even: adding 2^23 leaves no fraction bits,
 * and the bit pattern of 2^23 + i is i above that of 2^23. */
NUM_FN uint32_t num_rint_positive(float x) {
    return num_bits(x + 8388608.0f) - num_bits(8388608.0f);
}

/* ---- sampling ---------------------------------------------------------------------------------
 */

/* The weight of a logit in sampling, in units of 2^-30; logit <= max, temperature > 0. */
NUM_FN uint32_t num_sampling_weight(float logit, float max, float temperature) {
    float p = num_exp((logit - max) / temperature) * 1073741824.0f;
    return p >= 8388608.0f ? (uint32_t)p : num_rint_positive(p); /* from 2^23 on, no fraction */
}

struct philox_key {
    uint32_t word[2];
};
struct philox_block {
    uint32_t word[4];
};

/* Philox4x32-10, a counter-based generator: Salmon et al., "Parallel Random Numbers: As Easy as
 * 1, 2, 3", 2011. The same key and counter give the same 128 bits everywhere, in any order. */
NUM_FN struct philox_block num_philox(struct philox_key key, struct philox_block counter) {
    struct philox_block x = counter;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x.word[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * x.word[2];
        uint32_t y0 = (uint32_t)(b >> 32) ^ x.word[1] ^ key.word[0];
        uint32_t y2 = (uint32_t)(a >> 32) ^ x.word[3] ^ key.word[1];
        x.word[1] = (uint32_t)b;
        x.word[3] = (uint32_t)a;
        x.word[0] = y0;
        x.word[2] = y2;
        key.word[0] += 0x9E3779B9u;
        key.word[1] += 0xBB67AE85u;
    }
    return x;
}

/* The upper 64 bits of a * b: maps a random 64-bit a to 0 ... b-1. */
NUM_FN uint64_t num_mul_high(uint64_t a, uint64_t b) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t low = a0 * b0, mid = a1 * b0 + (low >> 32);
    uint64_t mid2 = a0 * b1 + (uint32_t)mid;
    return a1 * b1 + (mid >> 32) + (mid2 >> 32);
}

/* A number in 0 ... range-1 for one draw: the key is the seed and the number of the sample, the
 * counter the position of the token to be drawn, so no draw depends on any other. */
NUM_FN uint64_t num_draw(uint64_t seed, uint32_t sample, uint32_t position, uint64_t range) {
    struct philox_key key = {{(uint32_t)seed, sample}};
    struct philox_block counter = {{position, (uint32_t)(seed >> 32), 0, 0}};
    struct philox_block bits = num_philox(key, counter);
    return num_mul_high((uint64_t)bits.word[1] << 32 | bits.word[0], range);
}

#endif
