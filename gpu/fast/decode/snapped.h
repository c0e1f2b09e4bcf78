/*
 * snapped.h - for gpu/fast/decode/decode.cu: floats of 8 and 16 bits, whose rows are snapped when
 * they are read.
 *
 * A row's exponent depends on its largest number. Of a key, the four lanes that have it find that
 * with one more look at shared memory. Of values, all exponents of a tile are needed before the
 * first weight, so all chunks of values must have come; each thread looks at its own positions.
 *
 * A mantissa is the element times 2^(15-e), rounded. 16-bit floats: in float32, by adding a number
 * whose last bit is 1 (num_mantissa). Fp8 is read as fast as bfp16 only if two elements go through
 * one instruction, so it is rounded in fp16:
 *
 *     fp16:        y = x * 2^(15-e) + 1536
 *     tensor core: y * 1 + (12582912 - 1536)       float32; the lower 16 bits are the mantissa
 *
 * Both are exact but for the rounding that is wanted. fp16 numbers from 1024 to 2047 have 1 as
 * their last bit, so where a mantissa m is less than 512, y is rounded to a whole number. A larger
 * m is whole already: fp8 numbers have 4 bits at most, so m is a multiple of 64 from 512 on, of 128
 * from 1024 on and so on, and so is 1536 + m, or of 512; fp16 holds it. The tensor core multiplies
 * by the identity matrix and adds: it turns four fp16 numbers of each lane into float32, in place,
 * which would take four instructions, and four for the addition. (All is in units of 2^-16, for
 * fp16 to hold 2^(15-e) of any row.)
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_SNAPPED_H
#define SAMEBITS_GPU_FAST_DECODE_SNAPPED_H

#include "gpu/fast/decode/loads.h"
#include "gpu/ptx/halves.h"

/* ---- exponents --------------------------------------------------------------------------------
 */

/* The number that an element's bits are. */
template <enum kv_type TYPE> static __device__ __forceinline__ float number_of(uint32_t bits) {
    if constexpr (TYPE == KV_BF16) {
        return num_float(bits << 16);
    } else if constexpr (TYPE == KV_FP16) {
        return half_to_float(bits);
    } else {
        uint32_t halves[2];
        halves_of_fp8<TYPE>(halves, bits);
        return half_to_float(halves[0] & 0xffff);
    }
}

/* Notes the magnitudes of the elements of a register of a key: `largest` has two halves, in the
 * larger of which is in the end that of all; of bytes as the fp16 numbers that they are turned into
 * for the products anyway. What is not finite is above everything. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void note_key(uint32_t *largest, uint32_t elements) {
    if constexpr (bytes_of<TYPE>::value == 1) {
        uint32_t halves[2];
        halves_of_fp8<TYPE>(halves, elements);
        *largest = larger_magnitudes<KV_FP16>(*largest, halves[0]);
        *largest = larger_magnitudes<KV_FP16>(*largest, halves[1]);
    } else {
        *largest = larger_magnitudes<TYPE>(*largest, elements);
    }
}

/* Notes the magnitudes of the elements of two registers of a value. A byte's stands in the upper 7
 * bits of a half of `largest`: the sign is shifted out, and other bits come behind. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void note_value(uint32_t *largest, uint32_t a, uint32_t b) {
    if constexpr (bytes_of<TYPE>::value == 1) {
        *largest = larger_sum_of_halves(a, a, *largest);
        *largest = larger_sum_of_halves(b, b, *largest);
        *largest = largest_halves(*largest, a << 9, b << 9);
    } else {
        note_key<TYPE>(largest, a);
        note_key<TYPE>(largest, b);
    }
}

/* The exponent of a row of which that was noted; more than BFP_MAX_EXPONENT: it cannot be read. */
template <enum kv_type TYPE>
static __device__ __forceinline__ int exponent_of_largest(uint32_t largest) {
    uint32_t magnitude = max(largest & 0xffff, largest >> 16);
    magnitude = bytes_of<TYPE>::value == 1 ? magnitude >> 9 : magnitude;
    return num_row_exponent(num_bits(number_of<TYPE>(magnitude)));
}

/* This warp multiplies 8 keys of each part; finds the exponents of key lane / 4 of each. */
template <class size, int N>
static __device__ __forceinline__ void find_key_exponents(int exponents[N],
                                                          const unsigned char *keys) {
    UNROLL
    for (int i = 0; i < N; i++) {
        uint32_t largest = 0;
        UNROLL
        for (int k = 0; k < size::COLUMNS; k += 4) {
            alignas(16) uint32_t m[4];
            load_keys<size>(m, keys, i, k);
            UNROLL
            for (int j = 0; j < 4; j++)
                note_key<size::TYPE>(&largest, m[j]);
        }
        UNROLL
        for (int step = 1; step < 4; step *= 2) {
            uint32_t other = __shfl_xor_sync(0xffffffffu, largest, step);
            largest = largest_halves(largest, other, other);
        }
        exponents[i] = exponent_of_largest<(size::BYTES == 1 ? KV_FP16 : size::TYPE)>(largest);
    }
}

/* 2^(e-30) of a key; a NaN for one that cannot be read. */
static __device__ __forceinline__ float unit_of_key(int e) {
    return e > BFP_MAX_EXPONENT ? NAN : num_pow2f(e) * 0x1p-30f;
}

/* What elements of a row are multiplied by: 2^(15-e) as float32, or, fp8, 2^(-1-e) twice as fp16.
 * A finite number where all elements are 0; any where the row cannot be read. */
template <enum kv_type TYPE> static __device__ __forceinline__ uint32_t scale_of(int e) {
    if constexpr (bytes_of<TYPE>::value == 2)
        return num_bits(num_pow2f(15 - min(e, BFP_MAX_EXPONENT)));
    return halves_of_float(num_float((uint32_t)(126 - max(e, -15)) << 23));
}

/* The units and scales of this thread's values of a tile, of n, whose chunks have all come. Values
 * that cannot be read become zeros, for the rows that do not see them: a NaN would spread. */
template <class size>
static __device__ __forceinline__ void find_value_units(const struct loader<size> *chunks, int set,
                                                        int n) {
    UNROLL
    for (int p = 0; p < size::POSITIONS; p++) {
        int j = chunks->place_in_tile(p), row = j % size::CHUNK;
        unsigned char *from = chunks->chunk_behind(j / size::CHUNK) + row * size::ROW_BYTES;
        uint32_t largest = 0;
        if (j / size::CHUNK * size::CHUNK < n) {
            UNROLL
            for (int i = 0; i < size::COLUMNS; i++) {
                uint4 x = *(const uint4 *)(from + 16 * column_in_row<size>(row, i));
                note_value<size::TYPE>(&largest, x.x, x.y);
                note_value<size::TYPE>(&largest, x.z, x.w);
            }
        }
        int e = exponent_of_largest<size::TYPE>(largest);
        bool bad = e > BFP_MAX_EXPONENT;
        chunks->memory.v_units[set * TILE + j] = bad ? num_bits(NAN) : (uint32_t)(e + 127) << 23;
        chunks->memory.v_scales[set * TILE + j] = bad ? 0 : scale_of<size::TYPE>(e);
        for (int i = 0; i < size::COLUMNS && bad; i++)
            *(uint4 *)(from + 16 * i) = make_uint4(0, 0, 0, 0);
    }
}

/* ---- mantissas --------------------------------------------------------------------------------
 */

/* Two neighbouring elements of 16 bits as mantissas; each of a row with that scale. */
template <enum kv_type TYPE>
static __device__ __forceinline__ uint32_t snap_two(uint32_t elements, uint32_t first_scale,
                                                    uint32_t second_scale) {
    const float shift = 12582912.0f; /* num_mantissa: the lower bits are the integer */
    float first = fmaf(number_of<TYPE>(elements & 0xffff), num_float(first_scale), shift);
    float second = fmaf(number_of<TYPE>(elements >> 16), num_float(second_scale), shift);
    return __byte_perm(num_bits(first), num_bits(second), 0x5410);
}

/* The identity matrix as the second operand of mma_f16_half. */
static __device__ __forceinline__ uint32_t identity_matrix(void) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return g / 2 != t ? 0 : g % 2 ? 0x3c000000u : 0x3c00u;
}

/* Four elements of 8 bits as mantissas, each in the lower half of its word; the first two are of a
 * row with the first scale. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void snap_four(uint32_t mantissas[4], uint32_t elements,
                                                 uint32_t first_scale, uint32_t second_scale) {
    const uint32_t shift = halves_of(0x2600); /* 1536 * 2^-16 */
    const float rest = (12582912.0f - 1536.0f) * 0x1p-16f;
    uint32_t x[2];
    halves_of_fp8<TYPE>(x, elements);
    x[0] = halves_fma(x[0], first_scale, shift);
    x[1] = halves_fma(x[1], second_scale, shift);
    const float rests[4] = {rest, rest, rest, rest};
    float sums[4];
    mma_f16_half(sums, x, identity_matrix(), rests);
    UNROLL
    for (int i = 0; i < 4; i++)
        mantissas[i] = num_bits(sums[i]);
}

/* Four neighbouring elements of a key: the mantissas of the first two, and of the others. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void snap_key_bytes(uint32_t pairs[2], uint32_t elements,
                                                      uint32_t scale) {
    uint32_t m[4];
    snap_four<TYPE>(m, elements, scale, scale);
    pairs[0] = __byte_perm(m[0], m[1], 0x5410);
    pairs[1] = __byte_perm(m[2], m[3], 0x5410);
}

/* Two dimensions of a value, then of the next one: the mantissas of both values in the even
 * dimension, and in the odd one. scales: of both values. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void snap_value_bytes(uint32_t *even, uint32_t *odd,
                                                        uint32_t elements, uint2 scales) {
    uint32_t m[4];
    snap_four<TYPE>(m, elements, scales.x, scales.y);
    *even = __byte_perm(m[0], m[2], 0x5410);
    *odd = __byte_perm(m[1], m[3], 0x5410);
}

#endif
