/*
 * kv_type.h - how the elements of a KV cache are stored, and what they stand for.
 *
 *     bfp16   int16 mantissa and a row's exponent: q * 2^(e - 15)        (the engine's own)
 *     bfp8    int8 mantissa and a row's exponent:  q * 2^(e - 7)
 *     e4m3    8-bit floats with 4 bits of exponent, times a scale of the whole tensor
 *     e5m2    8-bit floats with 5 bits of exponent  (Micikevicius et al., "FP8 Formats for Deep
 *                                                   Learning", 2022)
 *     fp16, bf16   16-bit floats
 *
 * To attention every element is an integer of 16 bits, and a row has one exponent e, which stands
 * for integer * 2^(e - 15). An 8-bit mantissa is the high half of a 16-bit one. Rows of floats have
 * no exponent: they are snapped to bfp16 when they are read, as num_snap_row does it. So the
 * largest number of a row decides how finely the others are read: with 2^n the power of 2 at or
 * below it, multiples of 2^(n-14) are read exactly. Of fp8 that is every number from 2^(n-11) up
 * (e4m3; e5m2: 2^(n-12)), and what is smaller is rounded.
 *
 * A cache that kv_append did not write may hold NaN and infinity: a row with one of them, or with a
 * number that cannot be snapped, is a fault of every query that sees it.
 *
 * The scale of the keys multiplies the scores, with the op's own scale, in double; the scale of the
 * values multiplies the result, once, in float32.
 */
#ifndef SAMEBITS_MODEL_ATTENTION_KV_TYPE_H
#define SAMEBITS_MODEL_ATTENTION_KV_TYPE_H

#include "model/numerics.h"

#include <stdbool.h>

enum kv_type { KV_BFP16, KV_BFP8, KV_E4M3, KV_E5M2, KV_FP16, KV_BF16, N_KV_TYPES };

NUM_FN int kv_type_bytes(enum kv_type t) {
    return t == KV_BFP8 || t == KV_E4M3 || t == KV_E5M2 ? 1 : 2;
}

/* Whether rows have an exponent that is stored beside them; the others are snapped when they are
 * read. */
NUM_FN bool kv_type_has_exponents(enum kv_type t) {
    return t == KV_BFP16 || t == KV_BFP8;
}

/* The bits of an element: 8 or 16. */
NUM_FN uint32_t kv_load_bits(const void *data, enum kv_type t, int64_t i) {
    return kv_type_bytes(t) == 1 ? ((const uint8_t *)data)[i] : ((const uint16_t *)data)[i];
}

NUM_FN void kv_store_bits(void *data, enum kv_type t, int64_t i, uint32_t bits) {
    if (kv_type_bytes(t) == 1)
        ((uint8_t *)data)[i] = (uint8_t)bits;
    else
        ((uint16_t *)data)[i] = (uint16_t)bits;
}

/* ---- small floats ---------------------------------------------------------------------------- */

/* A sign, `exponent` bits, `mantissa` bits; the smallest step is 2^-step. */
struct small_float {
    int exponent, mantissa, step;
    uint32_t largest; /* bits of the largest finite one */
};

NUM_FN struct small_float small_float_of(enum kv_type t) {
    struct small_float f = {4, 3, 9, 0x7e};
    if (t == KV_E5M2)
        f = (struct small_float){5, 2, 16, 0x7b};
    if (t == KV_FP16)
        f = (struct small_float){5, 10, 24, 0x7bff};
    return f;
}

/* x to the nearest small float, ties to even; what is too large becomes the largest. */
NUM_FN uint32_t small_float_nearest(struct small_float f, float x) {
    int smallest = f.mantissa - f.step; /* exponent of the smallest number with all its bits */
    uint32_t sign = num_bits(x) >> 31 << (f.mantissa + f.exponent);
    float a = num_float(num_magnitude(x));
    int e = (int)(num_bits(a) >> 23) - 127;
    e = e < smallest ? smallest : e;
    if (e > 60)
        return sign | f.largest;
    uint32_t steps = (uint32_t)num_rint(a * num_pow2f(f.mantissa - e));
    uint32_t bits = steps + ((uint32_t)(e - smallest) << f.mantissa);
    return sign | (bits < f.largest ? bits : f.largest);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The value of a finite float. Its fields, moved to where a float32 has them, make a number that is
 * too small by a power of 2; that is true of subnormal numbers, too. */
NUM_FN float kv_float(enum kv_type t, uint32_t bits) {
    if (t == KV_BF16)
        return num_float(bits << 16);
    struct small_float f = small_float_of(t);
    uint32_t sign = bits >> (f.exponent + f.mantissa) & 1;
    uint32_t magnitude = bits & ((1u << (f.exponent + f.mantissa)) - 1);
    float x = num_float(magnitude << (23 - f.mantissa)) * num_pow2f(126 + f.mantissa - f.step);
    return sign ? -x : x;
}

/* An element as the integer that attention multiplies. scale: num_pow2f(15 - e) of a row that is
 * snapped; others do not need it. */
NUM_FN int kv_integer(enum kv_type t, uint32_t bits, float scale) {
    if (t == KV_BFP16)
        return (int16_t)bits;
    if (t == KV_BFP8)
        return (int8_t)bits * 256;
    return num_mantissa(kv_float(t, bits), scale);
}

/* The bits of an element without its sign. Those of floats order like the magnitude, with infinity
 * and NaN above everything. */
NUM_FN uint32_t kv_magnitude(enum kv_type t, uint32_t bits) {
    return bits & (kv_type_bytes(t) == 1 ? 0x7fu : 0x7fffu);
}

/* The exponent e of a row of floats whose largest kv_magnitude is `largest`; more than
 * BFP_MAX_EXPONENT: it cannot be read, because of a NaN, an infinity or a number that is too large
 * to be snapped. */
NUM_FN int kv_read_exponent(enum kv_type t, uint32_t largest) {
    if (t != KV_BF16 && largest > small_float_of(t).largest)
        return BFP_MAX_EXPONENT + 1;
    return num_row_exponent(num_bits(kv_float(t, largest)));
}

/* The unit of a value row, 2^e; a NaN for a row that cannot be read, whose weight is then a NaN,
 * too: a fault of every query row that sees it. */
NUM_FN double kv_unit(int e) {
    return e > BFP_MAX_EXPONENT ? (double)NAN : num_pow2(e);
}

/* The unit of a key for num_score; a NaN, as above, for a row that cannot be read. */
NUM_FN float kv_score_unit(int e) {
    return e > BFP_MAX_EXPONENT ? NAN : (float)num_pow2(e - 38);
}

/* The exponent of a bfp8 row whose largest num_magnitude is `largest`: the smallest e >= -100 with
 * rint(max * 2^(7-e)) <= 127. */
NUM_FN int kv_bfp8_exponent(uint32_t largest) {
    int e = (int)(largest >> 23) - 126;
    if (e > BFP_MAX_EXPONENT)
        return BFP_MAX_EXPONENT + 1;
    e = e < BFP_MIN_EXPONENT ? BFP_MIN_EXPONENT : e;
    return num_rint(num_float(largest) * num_pow2f(7 - e)) > 127 ? e + 1 : e;
}

/* The exponent that a row is stored with, 0 for types without one. More than BFP_MAX_EXPONENT: it
 * cannot be stored, because of a NaN, an infinity or, for bfp and 16-bit floats, a number that is
 * too large to be stored, or to be snapped when it is read. */
NUM_FN int kv_stored_exponent(enum kv_type t, uint32_t largest) {
    if (t == KV_BFP16)
        return num_row_exponent(largest);
    if (t == KV_BFP8)
        return kv_bfp8_exponent(largest);
    bool bad = largest >= 0x7f800000u || (t == KV_FP16 && largest >= num_bits(65520.0f)) ||
               (t == KV_BF16 && largest >= num_bits(0x1p126f));
    return bad ? BFP_MAX_EXPONENT + 1 : 0;
}

/* The bits of x in a row with this stored exponent; scale: of the tensor. */
NUM_FN uint32_t kv_bits(enum kv_type t, float x, int e, float scale) {
    switch (t) {
    case KV_BFP16:
        return (uint16_t)num_mantissa(x, num_pow2f(15 - e));
    case KV_BFP8:
        return (uint8_t)num_rint(x * num_pow2f(7 - e));
    case KV_BF16:
        return (num_bits(x) + 0x7fffu + (num_bits(x) >> 16 & 1)) >> 16;
    case KV_FP16:
        return small_float_nearest(small_float_of(t), x);
    default:
        return small_float_nearest(small_float_of(t), x / scale);
    }
}

#endif
