/*
 * attention_few.h - for attention_decode.cu: e4m3 and at most four rows, such as the query heads of
 * one token that share a kv head.
 *
 * Cut into planes (attention_floats.h), an element takes three additions and two products. With
 * four rows there is another way: digits of 4 bits, four of them from a mantissa, so that the 16
 * rows of an mma are full. Such a digit is at most 8, and what is below 32 in e4m3 at most 30, in
 * units of 2^-9. So 128 products have a sum below 2^24 units, which float32 holds exactly, and
 * nothing needs to be cut.
 *
 * That all elements of a chunk are below 32 is not known before they are here: the products are
 * made, and the elements looked at meanwhile. Where one is not (a NaN is not, either), the chunk is
 * done again with planes, and the block takes the other way from its next tile on: caches whose
 * scale makes use of the whole range have such elements everywhere.
 *
 * The digits of row g are rows g, g + 8 (of its upper byte), g + 4 and g + 12 (of the lower one) of
 * the mma. So lanes 4 g ... 4 g + 3 have one half of a row's sums and those 16 above them the other
 * half. They exchange: each takes half of the columns.
 */
#ifndef SAMEBITS_ATTENTION_FEW_H
#define SAMEBITS_ATTENTION_FEW_H

#include "gpu/attention_floats.h"

enum { FEW_ROWS = ROWS / 2 };

/* Rows that are worked on this way. The sum over a key must be one of 128 products. */
template <int DIM, kv_type TYPE> struct takes_few {
    static const bool value = TYPE == KV_E4M3 && DIM <= 128;
};

/* ---- digits -----------------------------------------------------------------------------------
 */

/* 2^-power times two digits, which come with 8 more: with 1024 more they are fp16 bits. */
static __device__ __forceinline__ uint32_t halves_of_digit(uint32_t digits, uint32_t power) {
    uint32_t scale = halves_of(0x3c00 - (power << 10)), minus = halves_of(0xe408 - (power << 10));
    return halves_fma(digits | 0x64006400u, scale, minus);
}

/*
 * The four digits of two mantissas as fp16, highest first; the first mantissa's in the lower half.
 * Each is scaled by what it counts for, 1, 2^-4, 2^-8, 2^-12, and so are its sums: what is left of
 * putting a dot product together is to add them.
 */
static __device__ __forceinline__ uint4 halves_of_four_digits(int first, int second) {
    uint32_t bytes = bytes_of_digits(first, second);
    uint32_t high = (bytes >> 8 & 0x00ff00ffu) + 0x00080008u; /* digits and 8 more, as all are */
    uint32_t low = (bytes & 0x00ff00ffu) + 0x00080008u;
    return make_uint4(
        halves_of_digit(high >> 4 & 0x001f001fu, 0), halves_of_digit(high & 0x000f000fu, 4),
        halves_of_digit(low >> 4 & 0x001f001fu, 8), halves_of_digit(low & 0x000f000fu, 12));
}

/* A mantissa from its digits. */
static const float few_digit_unit = 0x1p12f;

/* From a row's place to that of its lower byte, in halves. */
static const int to_lower_byte = 4 * FEW_ROWS * 8;

/* ---- sums -------------------------------------------------------------------------------------
 */

/* Sums of the products with 8 columns: [j] those of the higher digit with column 2 t + j, [2 + j]
 * of the lower one. Of cut elements, apart: of their whole numbers and of what is left. */
struct few_sums {
    float whole[4], fine[4];
};

static __device__ __forceinline__ void clear(struct few_sums *s) {
    UNROLL
    for (int j = 0; j < 4; j++)
        s->whole[j] = s->fine[j] = 0;
}

/* Adds the products with four elements of a lane. */
template <bool CUT>
static __device__ __forceinline__ void multiply_few(struct few_sums *s, const uint32_t digits[4],
                                                    uint32_t first, uint32_t second) {
    if (CUT) {
        uint32_t x[2], y[2];
        cut<KV_E4M3>(x, first);
        cut<KV_E4M3>(y, second);
        uint32_t whole[2] = {x[0], y[0]}, fine[2] = {x[1], y[1]};
        mma_f16(s->whole, digits, whole);
        mma_f16(s->fine, digits, fine);
    } else {
        uint32_t b[2] = {first, second};
        mma_f16(s->fine, digits, b);
    }
}

/* Notes which of four elements are 32 or more: the two upper bits of the exponent. */
static __device__ __forceinline__ void look(uint32_t *large, uint32_t bytes) {
    *large |= bytes & bytes << 1;
}

/* Whether there is one in this warp, which it tells the others; rows NULL: not, for those that are
 * done do not wait any more. */
static __device__ __forceinline__ bool any_is_large(uint32_t large, struct row_states *rows) {
    bool any = __any_sync(0xffffffffu, large & 0x40404040u);
    if (any && rows && threadIdx.x % 32 == 0)
        atomicExch(&rows->large, 1);
    return any;
}

/* Of row g % 4, with column 2 t + j: of `lower` in the lanes below 16, of `upper` in the others.
 * Exact: float64 holds all digits of a sum. */
static __device__ __forceinline__ double few_dot(const float lower[4], const float upper[4],
                                                 int j) {
    bool above = threadIdx.x % 32 >= 16;
    float high = above ? upper[j] : lower[j], low = above ? upper[2 + j] : lower[2 + j];
    float other_high = __shfl_xor_sync(0xffffffffu, above ? lower[j] : upper[j], 16);
    float other_low = __shfl_xor_sync(0xffffffffu, above ? lower[2 + j] : upper[2 + j], 16);
    return ((double)high + (double)low) + ((double)other_high + (double)other_low);
}

/* Of both sums. */
static __device__ __forceinline__ double cut_dot(const struct few_sums *lower,
                                                 const struct few_sums *upper, int j) {
    return few_dot(lower->whole, upper->whole, j) + few_dot(lower->fine, upper->fine, j);
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* The products of the rows with keys: the chunk's positions of this warp, 8 of each part. Returns
 * the bits of `look`. */
template <int DIM, bool CUT>
static __device__ __forceinline__ uint32_t multiply_few_keys(struct few_sums sums[2],
                                                             const unsigned char *keys,
                                                             const struct decode_memory *mem) {
    typedef struct decode_sizes<DIM, KV_E4M3> size;
    int lane = (int)(threadIdx.x % 32), begin = (int)(threadIdx.x / 32) * 8;
    const unsigned char *row = keys + (begin + lane % 8) * size::ROW_BYTES;
    uint32_t large = 0;
    clear(&sums[0]);
    clear(&sums[1]);
    UNROLL
    for (int k = 0; k < size::COLUMNS; k += 4) {
        alignas(16) uint32_t digits[4][4];
        UNROLL
        for (int j = 0; j < 4; j++)
            *(uint4 *)digits[j] = ((const uint4 *)mem->query)[32 * (k + j) + lane];
        UNROLL
        for (int i = 0; i < 2; i++) {
            alignas(16) uint32_t m[4];
            ldmatrix_x4(m, row + i * PART * size::ROW_BYTES +
                               16 * column_in_row<size::ROW_BYTES>(lane % 8, lane / 8 + k));
            UNROLL
            for (int j = 0; j < 4; j++) {
                uint32_t x[2];
                look(&large, m[j]);
                to_halves<KV_E4M3>(x, m[j]);
                multiply_few<CUT>(&sums[i], digits[j], x[0], x[1]);
            }
        }
    }
    return large;
}

/* dots: of row g % 4 with the keys at 2 t and 2 t + 1 of the chunk's first part, or in the lanes
 * from 16 on of the second. */
template <int DIM>
static __device__ __forceinline__ void few_keys(double dots[2], const unsigned char *keys,
                                                const struct decode_memory *mem,
                                                struct row_states *rows) {
    struct few_sums sums[2];
    if (!any_is_large(multiply_few_keys<DIM, false>(sums, keys, mem), rows)) {
        UNROLL
        for (int j = 0; j < 2; j++)
            dots[j] = few_dot(sums[0].fine, sums[1].fine, j);
        return;
    }
    multiply_few_keys<DIM, true>(sums, keys, mem);
    UNROLL
    for (int j = 0; j < 2; j++)
        dots[j] = cut_dot(&sums[0], &sums[1], j);
}

/* ---- values -----------------------------------------------------------------------------------
 */

/* The products of a chunk's weights and values: with the elements of even numbers, and odd ones. */
template <int DIM, bool CUT>
static __device__ __forceinline__ uint32_t multiply_few_values(struct few_sums sums[2],
                                                               const unsigned char *values,
                                                               const struct decode_memory *mem,
                                                               int first) {
    typedef struct decode_sizes<DIM, KV_E4M3> size;
    int lane = (int)(threadIdx.x % 32);
    uint32_t large = 0;
    clear(&sums[0]);
    clear(&sums[1]);
    UNROLL
    for (int k = 0; k < size::CHUNK; k += 32) {
        alignas(16) uint32_t weights[2][4];
        load_weights(weights, mem, first + k);
        uint32_t m[4];
        ldmatrix_x4_trans(m, values + (k + lane) * size::ROW_BYTES +
                                 16 * column_in_row<size::ROW_BYTES>(lane, column_of_warp(0)));
        UNROLL
        for (int h = 0; h < 2; h++) {
            uint32_t x[2], y[2]; /* two positions of an even element, then of an odd one */
            look(&large, m[2 * h]);
            look(&large, m[2 * h + 1]);
            to_halves<KV_E4M3>(x, __byte_perm(m[2 * h], 0, 0x3120));
            to_halves<KV_E4M3>(y, __byte_perm(m[2 * h + 1], 0, 0x3120));
            multiply_few<CUT>(&sums[0], weights[h], x[0], y[0]);
            multiply_few<CUT>(&sums[1], weights[h], x[1], y[1]);
        }
    }
    return large;
}

/* Adds a chunk of n positions to the sums of row g % 4: with the dimensions of even numbers of the
 * lane's four in the lanes below 16, and of odd ones in the others. first: of the chunk. */
template <int DIM>
static __device__ __forceinline__ void add_few_values(double dots[2], const unsigned char *values,
                                                      const struct decode_memory *mem,
                                                      struct row_states *rows, int first, int n) {
    typedef struct decode_sizes<DIM, KV_E4M3> size;
    static_assert(size::SHARE == 1, "a warp has one column");
    if (n <= 0 || (size::COLUMNS % WARPS && column_of_warp(0) >= size::COLUMNS))
        return;
    struct few_sums sums[2];
    if (!any_is_large(multiply_few_values<DIM, false>(sums, values, mem, first), rows)) {
        UNROLL
        for (int j = 0; j < 2; j++)
            dots[j] += few_dot(sums[0].fine, sums[1].fine, j);
        return;
    }
    multiply_few_values<DIM, true>(sums, values, mem, first);
    UNROLL
    for (int j = 0; j < 2; j++)
        dots[j] += cut_dot(&sums[0], &sums[1], j);
}

/* The weighted sums of the lane's four dimensions, in the lanes below 16; sees: the row something.
 * unit: as weighted_value. */
static __device__ __forceinline__ void few_weighted_values(float o[4], const double dots[2],
                                                           bool sees, float unit) {
    UNROLL
    for (int j = 0; j < 2; j++) {
        o[2 * j] = sees ? (float)dots[j] * (unit * few_digit_unit) : 0;
        o[2 * j + 1] = __shfl_xor_sync(0xffffffffu, o[2 * j], 16);
    }
}

#endif
