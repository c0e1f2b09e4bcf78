/*
 * planes.h - for gpu/fast/decode/decode.cu: products with fp8 numbers on fp16 tensor cores.
 *
 * A mantissa is the element times 2^(15-e), rounded. An fp8 number has 4 bits at most, so fp16
 * holds its mantissa, but a sum of such products is too long for float32. So a mantissa is cut in
 * two, 256 high + low, and so are the digits that it is multiplied by. For two elements x with
 * scale = 2^(-9-e), that takes three instructions:
 *
 *     fp16:  shifted = x * scale + 1536 * 2^-16    whose last bit is 2^-16: high is rounded
 *            -high   = 1536 * 2^-16 - shifted      a multiple of 2^-16, at most 2^-9
 *            low     = x * scale - high            at most 2^-17
 *
 * The last bit of fp16 numbers below 2^-13 is 2^-24, so low is rounded as a mantissa is (its unit
 * is 2^-24, and high is even). Where a number is larger than 2047 units it has no bits to round.
 * The largest rows of e5m2 want the scale 2^-25, which fp16 does not have. Their elements are
 * halved first.
 *
 * 256 products of digits up to 128 are sums up to 2^22 units. A sum begins with 1.5 * 2^23 of
 * them: then float32 rounds none, and the lower bits of the result are the integer.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_PLANES_H
#define SAMEBITS_GPU_FAST_DECODE_PLANES_H

#include "gpu/fast/decode/snapped.h"

/* ---- sums -------------------------------------------------------------------------------------
 */

/* Sums of products of 8 rows' digits with 8 columns, of -high and of low. In each, [j] with the
 * rows' high digits, [2 + j] with their low ones. */
struct plane_sums {
    float minus_high[4], low[4];
};

static const float first_high = 0x1.8p23f * 0x1p-16f, first_low = 0x1.8p23f * 0x1p-24f;

/* The sum of the products of row g with column 2 t + j: in units of 256, rounded down. */
static __device__ __forceinline__ int32_t dot_of(const struct plane_sums *s, int j) {
    uint32_t first = num_bits(first_low) + (num_bits(first_low) >> 8) - num_bits(first_high) * 257;
    uint32_t high = num_bits(s->minus_high[j]) * 256 + num_bits(s->minus_high[2 + j]);
    return (int32_t)(num_bits(s->low[j]) + (num_bits(s->low[2 + j]) >> 8) - high - first);
}

/* Adds the products of digits `a` with 16 summands by 8 columns. begins: they are the first. */
static __device__ __forceinline__ void multiply_planes(struct plane_sums *s, bool begins,
                                                       const uint32_t a[4],
                                                       const uint32_t minus_high[2],
                                                       const uint32_t low[2]) {
    if (begins) {
        mma_f16_first(s->minus_high, a, minus_high, first_high);
        mma_f16_first(s->low, a, low, first_low);
    } else {
        mma_f16(s->minus_high, a, minus_high);
        mma_f16(s->low, a, low);
    }
}

/* ---- elements ---------------------------------------------------------------------------------
 */

/* Cuts two elements, each with its scale. */
static __device__ __forceinline__ void cut_two(uint32_t *minus_high, uint32_t *low, uint32_t x,
                                               uint32_t scales) {
    const uint32_t shift = halves_of(0x2600); /* 1536 * 2^-16 */
    uint32_t shifted = halves_fma(x, scales, shift);
    *minus_high = halves_fma(shifted, halves_of(0xbc00), shift);
    *low = halves_fma(x, scales, *minus_high);
}

/* Halves those of n pairs of elements whose scale is negative, and makes it positive. What has no
 * half is far too small for a mantissa of such a row. */
static __device__ __forceinline__ void halve_marked(uint32_t x[], int n, uint32_t *scales) {
    uint32_t factors = halves_of(0x3c00) - ((*scales & 0x80008000u) >> 5); /* 1 or 0.5 */
    UNROLL
    for (int i = 0; i < n; i++)
        x[i] = halves_fma(x[i], factors, 0);
    *scales &= 0x7fff7fffu;
}

/* ---- digits of the other operand --------------------------------------------------------------
 */

/* Where the high digit of a summand of a row lies, as the first operands of mma_f16, in halves; the
 * low one is two halves behind it. */
static __device__ __forceinline__ int place_of_digit(int row, int summand) {
    return (summand / 16 * 32 + 4 * row + summand % 8 / 2) * 8 + summand / 8 % 2 * 4 + summand % 2;
}

/* The summand that an element of a key is: mma_f16 counts as 2 t, 2 t + 1 and 8 + 2 t ... the four
 * neighbours that ldmatrix gives to lane t of a quad. */
static __device__ __forceinline__ int half_summand_of(int element) {
    return element / 16 * 16 + element % 4 / 2 * 8 + element % 16 / 4 * 2 + element % 2;
}

/* The digits of two mantissas, each 256 high + low. */
static __device__ __forceinline__ void cut_mantissas(uint32_t *high, uint32_t *low, float first,
                                                     float second) {
    const float shift = 12582912.0f; /* leaves whole numbers */
    float x = fmaf(first, 0x1p-8f, shift) - shift, y = fmaf(second, 0x1p-8f, shift) - shift;
    *high = halves_of_floats(x, y);
    *low = halves_of_floats(fmaf(x, -256, first), fmaf(y, -256, second));
}

/* ---- keys and values --------------------------------------------------------------------------
 */

/* Finds the largest elements of the keys lane / 4 of both parts; of a quad, lanes with an even
 * number work for the first part from then on, the others for the second. */
template <class size>
static __device__ __forceinline__ int exponent_of_keys(const uint32_t x[2][2 * size::COLUMNS]) {
    uint32_t largest[2] = {};
    UNROLL
    for (int i = 0; i < 2; i++)
        UNROLL
    for (int k = 0; k < 2 * size::COLUMNS; k++)
        largest[i] = larger_magnitudes<KV_FP16>(largest[i], x[i][k]);
    uint32_t both = larger_magnitudes<KV_FP16>(__byte_perm(largest[0], largest[1], 0x5410),
                                               __byte_perm(largest[0], largest[1], 0x7632));
    both = larger_magnitudes<KV_FP16>(both, __shfl_xor_sync(0xffffffffu, both, 1));
    both = larger_magnitudes<KV_FP16>(both, __shfl_xor_sync(0xffffffffu, both, 2));
    return exponent_of_largest<KV_FP16>(threadIdx.x % 2 ? both >> 16 : both & 0xffff);
}

/* The products of the rows with keys: the chunk's positions of this warp, 8 of both parts. Returns
 * the exponent of key lane / 4, of part lane % 2. */
template <class size>
static __device__ __forceinline__ int multiply_fp8_keys(struct plane_sums sums[2],
                                                        const unsigned char *keys,
                                                        const struct decode_memory *mem) {
    static_assert(size::CHUNK == 2 * size::PART, "two parts");
    const int lane = (int)(threadIdx.x % 32);
    uint32_t x[2][2 * size::COLUMNS], scales[2];
    UNROLL
    for (int k = 0; k < size::COLUMNS; k += 4)
        UNROLL
    for (int i = 0; i < 2; i++) {
        alignas(16) uint32_t m[4];
        load_keys<size>(m, keys, i, k);
        UNROLL
        for (int j = 0; j < 4; j++)
            halves_of_fp8<size::TYPE>(&x[i][2 * (k + j)], m[j]);
    }
    int e = exponent_of_keys<size>(x);
    uint32_t scale = half_scale_of(e);
    bool some_marked = size::TYPE == KV_E5M2 && __any_sync(0xffffffffu, scale >> 31);
    UNROLL
    for (int i = 0; i < 2; i++) {
        scales[i] = __shfl_sync(0xffffffffu, scale, (lane & ~1) + i);
        if (some_marked)
            halve_marked(x[i], 2 * size::COLUMNS, &scales[i]);
    }
    UNROLL
    for (int k = 0; k < size::COLUMNS; k++) {
        alignas(16) uint32_t digits[4];
        *(uint4 *)digits = ((const uint4 *)mem->query)[32 * k + lane];
        UNROLL
        for (int i = 0; i < 2; i++) {
            uint32_t minus_high[2], low[2];
            cut_two(&minus_high[0], &low[0], x[i][2 * k], scales[i]);
            cut_two(&minus_high[1], &low[1], x[i][2 * k + 1], scales[i]);
            multiply_planes(&sums[i], k == 0, digits, minus_high, low);
        }
    }
    return e;
}

/* The products of the weights of 32 positions with a column of their values, m, as ldmatrix gives
 * them on their side: a lane has two dimensions of two positions, of each 8. scales: of these two
 * positions. [0] of sums: of the column's even dimensions, [1] of its odd ones. begins: they are
 * the tile's first. */
template <class size>
static __device__ __forceinline__ void
multiply_fp8_values(struct plane_sums sums[2], bool begins, const uint32_t weights[2][4],
                    const uint32_t m[4], const uint32_t scales[4]) {
    uint32_t x[4][2], scale[4]; /* [8 positions][dimension] */
    UNROLL
    for (int j = 0; j < 4; j++) {
        even_and_odd_of_fp8<size::TYPE>(x[j], m[j]);
        scale[j] = scales[j];
    }
    if (size::TYPE == KV_E5M2 &&
        __any_sync(0xffffffffu, (scale[0] | scale[1] | scale[2] | scale[3]) & 0x80008000u))
        UNROLL
    for (int j = 0; j < 4; j++)
        halve_marked(x[j], 2, &scale[j]);
    UNROLL
    for (int j = 0; j < 4; j += 2)
        UNROLL
    for (int d = 0; d < 2; d++) {
        uint32_t minus_high[2], low[2];
        cut_two(&minus_high[0], &low[0], x[j][d], scale[j]);
        cut_two(&minus_high[1], &low[1], x[j + 1][d], scale[j + 1]);
        multiply_planes(&sums[d], begins && j == 0, weights[j / 2], minus_high, low);
    }
}

#endif
