/*
 * snapped.h - for gpu/fast/decode/decode.cu: floats of 8 and 16 bits, whose rows are snapped when
 * they are read. 16-bit floats become mantissas here, fp8 numbers digits in planes.h.
 *
 * A row's exponent depends on its largest number. Of a key, the four lanes that have it find that.
 * Of values, all exponents of a tile are needed before the first weight, so all chunks of values
 * must have come; each thread looks at its own positions.
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

/* Notes the magnitudes of the elements of two registers: `largest` has two halves, in the larger of
 * which is in the end that of all; of bytes in its upper 7 bits, where that of a byte comes with
 * the sign shifted out and other bits behind it. What is not finite is above everything. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void note_magnitudes(uint32_t *largest, uint32_t a, uint32_t b) {
    if constexpr (bytes_of<TYPE>::value == 1) {
        *largest = larger_sum_of_halves(a, a, *largest);
        *largest = larger_sum_of_halves(b, b, *largest);
        *largest = largest_halves(*largest, a << 9, b << 9);
    } else {
        *largest = larger_magnitudes<TYPE>(*largest, a);
        *largest = larger_magnitudes<TYPE>(*largest, b);
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
            for (int j = 0; j < 4; j += 2)
                note_magnitudes<size::TYPE>(&largest, m[j], m[j + 1]);
        }
        largest = larger_magnitudes<size::TYPE>(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = larger_magnitudes<size::TYPE>(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        exponents[i] = exponent_of_largest<size::TYPE>(largest);
    }
}

/* 2^(e-30) of a key; a NaN for one that cannot be read. */
static __device__ __forceinline__ float unit_of_key(int e) {
    return e > BFP_MAX_EXPONENT ? NAN : num_pow2f(e) * 0x1p-30f;
}

/* What elements of a row of 16-bit floats are multiplied by: 2^(15-e). Any finite number where the
 * row cannot be read. */
static __device__ __forceinline__ uint32_t scale_of(int e) {
    return num_bits(num_pow2f(15 - min(e, BFP_MAX_EXPONENT)));
}

/* What elements of a row of fp8 are multiplied by: 2^(-9-e), as fp16, twice. Any finite number
 * where all elements are 0, or where the row cannot be read. Fp16 has no 2^-25, which the largest
 * rows of e5m2 want: -2^-24 says that their elements are halved before (planes.h). */
static __device__ __forceinline__ uint32_t half_scale_of(int e) {
    float scale = num_pow2f(-9 - max(-15, min(e, 15)));
    scale = e > 15 ? -scale : scale;
    return halves_of_floats(scale, scale);
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
                note_magnitudes<size::TYPE>(&largest, x.x, x.y);
                note_magnitudes<size::TYPE>(&largest, x.z, x.w);
            }
        }
        int e = exponent_of_largest<size::TYPE>(largest);
        bool bad = e > BFP_MAX_EXPONENT;
        chunks->memory.v_units[set * TILE + j] = bad ? num_bits(NAN) : (uint32_t)(e + 127) << 23;
        if constexpr (size::FP8)
            ((uint16_t *)chunks->memory.v_scales)[set * TILE + j] = (uint16_t)half_scale_of(e);
        else
            ((uint32_t *)chunks->memory.v_scales)[set * TILE + j] = scale_of(e);
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

#endif
