/*
 * snapped.h - for gpu/fast/decode/decode.cu: 16-bit floats, whose rows are snapped when they
 * are read.
 *
 * What a row's exponent is, its largest number decides. Of a key, the four lanes that have it find
 * that with one more look at shared memory. Of values, all exponents of a tile are needed before
 * the first weight, so that all chunks of values must have come: a thread a position.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_SNAPPED_H
#define SAMEBITS_GPU_FAST_DECODE_SNAPPED_H

#include "gpu/fast/decode/decode.h"
#include "gpu/ptx/halves.h"

/* The number that an element's bits are. */
template <enum kv_type TYPE> static __device__ __forceinline__ float number_of(uint32_t bits) {
    return TYPE == KV_BF16 ? num_float(bits << 16) : half_to_float(bits);
}

/* The exponent of a row whose largest magnitudes are these two; more than BFP_MAX_EXPONENT: it
 * cannot be read. */
template <enum kv_type TYPE>
static __device__ __forceinline__ int exponent_of_largest(uint32_t largest) {
    uint32_t magnitude = max(largest & 0xffff, largest >> 16);
    return num_row_exponent(num_bits(number_of<TYPE>(magnitude)));
}

/* Two neighbouring elements as mantissas; each of a row with that scale. */
template <enum kv_type TYPE>
static __device__ __forceinline__ uint32_t snap_two(uint32_t elements, float first_scale,
                                                    float second_scale) {
    const float shift = 12582912.0f; /* num_mantissa: the lower bits are the integer */
    float first = fmaf(number_of<TYPE>(elements & 0xffff), first_scale, shift);
    float second = fmaf(number_of<TYPE>(elements >> 16), second_scale, shift);
    return __byte_perm(num_bits(first), num_bits(second), 0x5410);
}

/* Of the keys that this warp multiplies, 8 of each part: the exponent of key lane / 4. */
template <class size, int N>
static __device__ __forceinline__ void find_key_exponents(int exponents[N],
                                                          const unsigned char *keys) {
    int lane = (int)(threadIdx.x % 32), begin = (int)(threadIdx.x / 32) * 8;
    const unsigned char *row = keys + (begin + lane % 8) * size::ROW_BYTES;
    UNROLL
    for (int i = 0; i < N; i++) {
        uint32_t largest = 0;
        UNROLL
        for (int k = 0; k < size::COLUMNS; k += 4) {
            alignas(16) uint32_t m[4];
            ldmatrix_x4(m, row + i * size::PART * size::ROW_BYTES +
                               16 * column_in_row<size>(lane % 8, lane / 8 + k));
            UNROLL
            for (int j = 0; j < 4; j++)
                largest = larger_magnitudes<size::TYPE>(largest, m[j]);
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

/* The unit of a tile's value of this thread, of n, whose chunks have all come. */
template <class size>
static __device__ __forceinline__ void find_value_unit(const struct loader<size> *chunks, int set,
                                                       int n) {
    static_assert(size::THREADS == TILE && size::CHUNKS == 2, "a position each, of two chunks");
    int j = (int)threadIdx.x, row = j % size::CHUNK;
    const unsigned char *chunk = chunks->chunk();
    if (j >= size::CHUNK)
        chunk = chunks->next_chunk();
    uint32_t largest = 0;
    if (j / size::CHUNK * size::CHUNK < n) {
        UNROLL
        for (int i = 0; i < size::COLUMNS; i++) {
            uint4 x =
                *(const uint4 *)(chunk + row * size::ROW_BYTES + 16 * column_in_row<size>(row, i));
            largest = larger_magnitudes<size::TYPE>(largest, x.x);
            largest = larger_magnitudes<size::TYPE>(largest, x.y);
            largest = larger_magnitudes<size::TYPE>(largest, x.z);
            largest = larger_magnitudes<size::TYPE>(largest, x.w);
        }
    }
    int e = exponent_of_largest<size::TYPE>(largest);
    chunks->memory.v_units[set * TILE + j] =
        e > BFP_MAX_EXPONENT ? num_bits(NAN) : (uint32_t)(e + 127) << 23;
}

/* 2^(15-e) of a row with that unit, 2^e. Of one that cannot be read, any finite number. */
static __device__ __forceinline__ float scale_of_unit(uint32_t unit) {
    return num_float(((142u + 127u) << 23) - unit);
}

#endif
