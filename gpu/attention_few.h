/*
 * attention_few.h - for attention_decode.cu: 8-bit floats where no sequence has more than four
 * rows, such as the query heads of one token that share a kv head. A kernel of its own.
 *
 * attention_floats.h cuts an element into planes, which takes three operations in e4m3 and five in
 * e5m2. With four rows there is another way: digits of 4 bits, four of them from a mantissa, so
 * that the 16 rows of an mma are full. Such a digit is at most 8, so that 128 products have a sum
 * of at most 2^24 units, which float32 holds exactly, where elements have up to 14 bits:
 *
 *     e4m3   below 32, in units of 2^-9: as they are
 *     e5m2   below 512, two planes: up to 2^-2 in units of 2^-16; what is beyond that, in 2^-4
 *
 * One plane is the element held within a limit, the other what that takes away: two operations for
 * both.
 *
 * That all elements of a chunk are so small is not known before they are here: the products are
 * made, and the elements looked at meanwhile. Where one is not (an infinity or a NaN is not,
 * either), the warp does the chunk again with a plane more (in e4m3 what is beyond 32; in e5m2 the
 * three of attention_floats.h), and from then on, until other rows come, does so at once: caches
 * whose scale makes use of the whole range have such elements everywhere.
 *
 * The digits of row g are rows g, g + 8 (of its upper byte), g + 4 and g + 12 (of the lower one) of
 * the mma. So lanes 4 g ... 4 g + 3 have one half of a row's sums and those 16 above them the other
 * half. They exchange: each takes half of the columns.
 */
#ifndef SAMEBITS_ATTENTION_FEW_H
#define SAMEBITS_ATTENTION_FEW_H

#include "gpu/attention_floats.h"

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

/* The planes of an element. LARGE: of any; else of those that `look` lets pass. */
template <kv_type TYPE, bool LARGE> struct few_planes {
    static const int N = (TYPE == KV_E4M3 ? 1 : 2) + LARGE;
};

/* Sums of the products with 8 columns, of each plane: [j] those of the higher digit with column 2 t
 * + j, [2 + j] of the lower one. */
template <kv_type TYPE, bool LARGE> struct few_sums {
    static const int N = few_planes<TYPE, LARGE>::N;
    float of[N][4];
};

template <kv_type TYPE, bool LARGE>
static __device__ __forceinline__ void clear(struct few_sums<TYPE, LARGE> *s) {
    UNROLL
    for (int p = 0; p < few_sums<TYPE, LARGE>::N; p++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s->of[p][j] = 0;
}

/* Two elements at a time, cut into planes. */
template <enum kv_type TYPE, bool LARGE>
static __device__ __forceinline__ void cut_few(uint32_t out[few_planes<TYPE, LARGE>::N],
                                               uint32_t x) {
    if constexpr (few_planes<TYPE, LARGE>::N == 1) {
        out[0] = x;
    } else if constexpr (few_planes<TYPE, LARGE>::N == 2) { /* within 32, or 2^-2 */
        out[1] = halves_within(x, halves_of(TYPE == KV_E4M3 ? 0x5000 : 0x3400));
        out[0] = halves_subtract(x, out[1]);
    } else {
        cut<TYPE>(out, x);
    }
}

/* Adds the products with four elements of a lane. */
template <enum kv_type TYPE, bool LARGE>
static __device__ __forceinline__ void multiply_few(struct few_sums<TYPE, LARGE> *s,
                                                    const uint32_t digits[4], uint32_t first,
                                                    uint32_t second) {
    const int N = few_planes<TYPE, LARGE>::N;
    uint32_t x[N], y[N];
    cut_few<TYPE, LARGE>(x, first);
    cut_few<TYPE, LARGE>(y, second);
    UNROLL
    for (int p = 0; p < N; p++) {
        uint32_t b[2] = {x[p], y[p]};
        mma_f16(s->of[p], digits, b);
    }
}

/* Notes which of four elements are too large for few planes: with the two upper bits of the
 * exponent, 32 in e4m3 and 512 in e5m2. */
static __device__ __forceinline__ void look(uint32_t *large, uint32_t bytes) {
    *large |= bytes & bytes << 1;
}

/* Whether there is one in this warp. */
static __device__ __forceinline__ bool any_is_large(uint32_t large) {
    return __any_sync(0xffffffffu, large & 0x40404040u);
}

/* A sum over any number of elements, in two parts that are exact: all of e5m2's planes do not fit
 * into a float64. */
struct few_dot {
    double coarse, fine;
};

/* The part of a dot product with column 2 t + j that a lane has: of two digits. */
template <enum kv_type TYPE, bool LARGE>
static __device__ __forceinline__ struct few_dot
dot_of_digits(const struct few_sums<TYPE, LARGE> *s, int j) {
    const int N = few_planes<TYPE, LARGE>::N;
    double sum[N];
    UNROLL
    for (int p = 0; p < N; p++)
        sum[p] = (double)s->of[p][j] + (double)s->of[p][2 + j];
    struct few_dot dot = {0, sum[N - 1]};
    if constexpr (N == 2)
        dot.fine += sum[0];
    else if constexpr (N == 3)
        dot.coarse = fma(sum[0], 8.0, sum[1]);
    return dot;
}

/* What two lanes that have half of a row each make of it together: of `lower` in those below 16, of
 * `upper` in the others. */
static __device__ __forceinline__ double both_halves(double lower, double upper) {
    bool above = threadIdx.x % 32 >= 16;
    return (above ? upper : lower) + __shfl_xor_sync(0xffffffffu, above ? lower : upper, 16);
}

/* The products of row g % 4 with column 2 t + j: of `lower` in the lanes below 16, of `upper` in
 * the others. */
template <enum kv_type TYPE, bool LARGE>
static __device__ __forceinline__ struct few_dot
whole_dot(const struct few_sums<TYPE, LARGE> *lower, const struct few_sums<TYPE, LARGE> *upper,
          int j) {
    struct few_dot l = dot_of_digits(lower, j), u = dot_of_digits(upper, j), dot = {};
    dot.fine = both_halves(l.fine, u.fine);
    if (few_planes<TYPE, LARGE>::N == 3)
        dot.coarse = both_halves(l.coarse, u.coarse);
    return dot;
}

/* The sum, rounded as the reference does: to float64, then to float32. */
template <enum kv_type TYPE>
static __device__ __forceinline__ float few_dot_rounded(const struct few_dot *dot) {
    return (float)(TYPE == KV_E4M3 ? dot->fine : dot->coarse + dot->fine);
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* The products of the rows with keys: the chunk's positions of this warp, 8 of each of N parts.
 * Returns whether there are large ones where LARGE says no: the sums may be wrong. */
template <class size, bool LARGE, int N>
static __device__ __forceinline__ bool
multiply_few_keys(struct few_sums<size::TYPE, LARGE> (&sums)[N], const unsigned char *keys,
                  const struct decode_memory *mem) {
    int lane = (int)(threadIdx.x % 32), begin = (int)(threadIdx.x / 32) * 8;
    const unsigned char *row = keys + (begin + lane % 8) * size::ROW_BYTES;
    uint32_t large = 0;
    UNROLL
    for (int i = 0; i < N; i++)
        clear(&sums[i]);
    UNROLL
    for (int k = 0; k < size::COLUMNS; k += 4) {
        alignas(16) uint32_t digits[4][4];
        UNROLL
        for (int j = 0; j < 4; j++)
            *(uint4 *)digits[j] = ((const uint4 *)mem->query)[32 * (k + j) + lane];
        UNROLL
        for (int i = 0; i < N; i++) {
            alignas(16) uint32_t m[4];
            ldmatrix_x4(m, row + i * size::PART * size::ROW_BYTES +
                               16 * column_in_row<size::ROW_BYTES>(lane % 8, lane / 8 + k));
            UNROLL
            for (int j = 0; j < 4; j++) {
                uint32_t x[2];
                if (!LARGE)
                    look(&large, m[j]);
                to_halves<size::TYPE>(x, m[j]);
                multiply_few<size::TYPE, LARGE>(&sums[i], digits[j], x[0], x[1]);
            }
        }
    }
    return !LARGE && any_is_large(large);
}

/* The dots of multiply_few_keys; returns what that does. */
template <class size, bool LARGE, int N>
static __device__ __forceinline__ bool
few_keys_of(struct few_dot (&dots)[N], const unsigned char *keys, const struct decode_memory *mem) {
    struct few_sums<size::TYPE, LARGE> sums[N];
    if (multiply_few_keys<size, LARGE, N>(sums, keys, mem))
        return true;
    UNROLL
    for (int i = 0; i < N; i++)
        dots[i] = whole_dot(&sums[i / 2 * 2], &sums[i / 2 * 2 + 1], i % 2);
    return false;
}

/* dots: of row g % 4 with the keys at 2 t and 2 t + 1 of the chunk's first part, or in the lanes
 * from 16 on of the second; then of the next two parts, and so on, a dot a part. large: whether
 * this warp has met large ones. */
template <class size, int N>
static __device__ __forceinline__ void few_keys(struct few_dot (&dots)[N],
                                                const unsigned char *keys,
                                                const struct decode_memory *mem, bool *large) {
    if (!*large)
        *large = few_keys_of<size, false>(dots, keys, mem);
    if (*large)
        few_keys_of<size, true>(dots, keys, mem);
}

/* ---- values -----------------------------------------------------------------------------------
 */

/* Weighted sums of a column, of row g % 4: with the dimensions of even numbers of the lane's four
 * in the lanes below 16, and of odd ones in the others. */
struct few_value_dots {
    struct few_dot of[2];
};

static __device__ __forceinline__ void clear(struct few_value_dots *s) {
    UNROLL
    for (int j = 0; j < 2; j++)
        s->of[j].coarse = s->of[j].fine = 0;
}

/* The products of a chunk's weights and values: with the elements of even numbers, and odd ones, of
 * each of the warp's columns. Returns what multiply_few_keys does. */
template <class size, bool LARGE>
static __device__ __forceinline__ bool
multiply_few_values(struct few_sums<size::TYPE, LARGE> sums[][2], const unsigned char *values,
                    const struct decode_memory *mem, int first) {
    int lane = (int)(threadIdx.x % 32);
    uint32_t large = 0;
    UNROLL
    for (int i = 0; i < size::SHARE; i++) {
        clear(&sums[i][0]);
        clear(&sums[i][1]);
    }
    UNROLL
    for (int k = 0; k < size::CHUNK; k += 32) {
        alignas(16) uint32_t weights[2][4];
        load_weights(weights, mem, first + k);
        UNROLL
        for (int i = 0; i < size::SHARE; i++) {
            int column = column_of_warp<size>(i);
            uint32_t m[4];
            ldmatrix_x4_trans(m, values + (k + lane) * size::ROW_BYTES +
                                     16 * column_in_row<size::ROW_BYTES>(lane, column));
            UNROLL
            for (int h = 0; h < 2; h++) {
                uint32_t x[2], y[2];
                if (!LARGE) {
                    look(&large, m[2 * h]);
                    look(&large, m[2 * h + 1]);
                }
                to_columns<size::TYPE>(x, m[2 * h]);
                to_columns<size::TYPE>(y, m[2 * h + 1]);
                multiply_few<size::TYPE, LARGE>(&sums[i][0], weights[h], x[0], y[0]);
                multiply_few<size::TYPE, LARGE>(&sums[i][1], weights[h], x[1], y[1]);
            }
        }
    }
    return !LARGE && any_is_large(large);
}

/* Adds the dots of multiply_few_values; returns what that does. */
template <class size, bool LARGE>
static __device__ __forceinline__ bool
add_few_values_of(struct few_value_dots dots[], const unsigned char *values,
                  const struct decode_memory *mem, int first) {
    struct few_sums<size::TYPE, LARGE> sums[size::SHARE][2];
    if (multiply_few_values<size, LARGE>(sums, values, mem, first))
        return true;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int j = 0; j < 2; j++) {
        struct few_dot dot = whole_dot(&sums[i][0], &sums[i][1], j);
        dots[i].of[j].fine += dot.fine;
        if (few_planes<size::TYPE, LARGE>::N == 3)
            dots[i].of[j].coarse += dot.coarse;
    }
    return false;
}

/* Adds a chunk of n positions to the sums of the warp's columns. first: of the chunk; large: as for
 * few_keys. */
template <class size>
static __device__ __forceinline__ void
add_few_values(struct few_value_dots dots[], const unsigned char *values,
               const struct decode_memory *mem, int first, int n, bool *large) {
    static_assert(size::COLUMNS % size::WARPS == 0, "all warps have as many columns");
    if (n <= 0)
        return;
    if (!*large)
        *large = add_few_values_of<size, false>(dots, values, mem, first);
    if (*large)
        add_few_values_of<size, true>(dots, values, mem, first);
}

/* The weighted sums of the lane's four dimensions of a column, in the lanes below 16; sees: the row
 * something. unit: as weighted_value. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void
few_weighted_values(float o[4], const struct few_value_dots *dots, bool sees, float unit) {
    UNROLL
    for (int j = 0; j < 2; j++) {
        o[2 * j] = sees ? few_dot_rounded<TYPE>(&dots->of[j]) * (unit * few_digit_unit) : 0;
        o[2 * j + 1] = __shfl_xor_sync(0xffffffffu, o[2 * j], 16);
    }
}

#endif
