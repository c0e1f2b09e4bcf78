/*
 * attention_few.h - for attention_decode.cu: 8-bit floats where no sequence has more than four
 * rows, such as the query heads of one token that share a kv head. A kernel of its own.
 *
 * With few rows the operands change places: the elements are the 16 rows of an mma, and the digits
 * of four mantissas its 8 columns. So an mma multiplies twice as many elements, and the digits of a
 * mantissa come to the same lane. Rows and columns of the products:
 *
 *     keys     16 positions; lane 4 g + t has those at g and g + 8, of row t
 *     values   the 16 dimensions of a column, even ones first; lane 4 g + t has 2 g and 2 g + 1
 *
 * attention_floats.h cuts an element into planes, two in e4m3 and three in e5m2. Where elements are
 * small, one less will do. A sum of 128 products is exact up to 2^24 units, so:
 *
 *     e4m3   digits of 4 bits, at most 8, in twice the columns: elements below 32, in units of 2^-9
 *     e5m2   digits of 8 bits, at most 128: elements below 2, up to 2^-6 in units of 2^-16; what is
 *            beyond that, in units of 2^-8
 *
 * One plane is the element held within a limit, the other what that takes away: two operations for
 * both.
 *
 * That all elements of a chunk are so small is not known before they are here: the products are
 * made, and the elements looked at meanwhile. Where one is not (an infinity or a NaN is not,
 * either), the warp does the chunk again with a plane more (in e4m3 what is beyond 32; in e5m2 the
 * three of attention_floats.h), and from then on, until other rows come, does so at once: caches
 * whose scale makes use of the whole range have such elements everywhere.
 */
#ifndef SAMEBITS_ATTENTION_FEW_H
#define SAMEBITS_ATTENTION_FEW_H

#include "gpu/attention_floats.h"

/* ---- digits -----------------------------------------------------------------------------------
 */

/* 2^-power times two digits, which come with `more` more: with 1024 more they are fp16 bits. */
static __device__ __forceinline__ uint32_t halves_of_digit(uint32_t digits, uint32_t more,
                                                           uint32_t power) {
    uint32_t scale = halves_of(0x3c00 - (power << 10));
    uint32_t minus = halves_of(0xe400 + more - (power << 10));
    return halves_fma(digits | 0x64006400u, scale, minus);
}

/*
 * The digits of two mantissas as fp16, highest first; the first mantissa's in the lower half. Each
 * is scaled by what it counts for, 1, 2^-8, or 1, 2^-4, 2^-8, 2^-12, and so are its sums: what is
 * left of putting a dot product together is to add them.
 */
template <int DIGITS>
static __device__ __forceinline__ void split_mantissas(uint32_t out[DIGITS], int first,
                                                       int second) {
    uint32_t bytes = bytes_of_digits(first, second);
    uint32_t high = bytes >> 8 & 0x00ff00ffu, low = bytes & 0x00ff00ffu;
    if constexpr (DIGITS == 2) {
        out[0] = halves_of_digit(high, 128, 0);
        out[1] = halves_of_digit(low, 128, 8);
    } else {
        high += 0x00080008u; /* digits and 8 more, as all are */
        low += 0x00080008u;
        out[0] = halves_of_digit(high >> 4 & 0x001f001fu, 8, 0);
        out[1] = halves_of_digit(high & 0x000f000fu, 8, 4);
        out[2] = halves_of_digit(low >> 4 & 0x001f001fu, 8, 8);
        out[3] = halves_of_digit(low & 0x000f000fu, 8, 12);
    }
}

/* A mantissa from its digits. */
template <int DIGITS> static __host__ __device__ constexpr float few_digit_unit(void) {
    return DIGITS == 2 ? 0x1p8f : 0x1p12f;
}

/* Columns 2 t and 2 t + 1 of an mma are two digits of row t: so many mma are there for all. */
template <class size> struct few_products { static const int N = size::DIGITS / 2; };

/*
 * Where a digit lies, in halves: of number 2 t + w or 2 t + w + 8 (r is 0 or 1) of 16 summands. 16
 * bytes of a lane are two steps, each 16 summands by two digits of all rows.
 */
template <class size>
static __device__ __forceinline__ int place_of_few_digit(int row, int digit, int summands, int t,
                                                         int r, int w) {
    int step = summands * few_products<size>::N + digit / 2, column = 2 * row + digit % 2;
    return (step / 2 * 32 + 4 * column + t) * 8 + step % 2 * 4 + 2 * r + w;
}

/* Of element number `element` of a query, in the order of the bytes that ldmatrix gives to a lane.
 */
template <class size>
static __device__ __forceinline__ int place_of_few_query(int row, int digit, int element) {
    return place_of_few_digit<size>(row, digit, element / 16, element % 16 / 4, element % 4 / 2,
                                    element % 2);
}

/* Of a position of a tile. Those that a lane has of the scores, 8 apart, are neighbours. */
template <class size>
static __device__ __forceinline__ int place_of_few_weight(int row, int digit, int position) {
    return place_of_few_digit<size>(row, digit, position / 16, position % 4, position % 8 / 4,
                                    position % 16 / 8);
}

/* The position, of 32, that summand number `lane` of two times 16 is. */
static __device__ __forceinline__ int position_of_summand(int lane) {
    return lane / 16 * 16 + lane % 2 * 8 + lane / 8 % 2 * 4 + lane % 8 / 2;
}

/* The digits of two times 16 summands, number `first` of 16 and the next. */
template <class size>
static __device__ __forceinline__ void
load_few_digits(uint32_t (&digits)[2][few_products<size>::N][2], const int8_t *from, int first) {
    const int N = few_products<size>::N;
    alignas(16) uint32_t all[4 * N];
    UNROLL
    for (int i = 0; i < N; i++)
        *(uint4 *)(all + 4 * i) =
            ((const uint4 *)from)[32 * (first / 2 * N + i) + (int)(threadIdx.x % 32)];
    UNROLL
    for (int i = 0; i < 4 * N; i++)
        digits[i / (2 * N)][i / 2 % N][i % 2] = all[i];
}

/* ---- sums -------------------------------------------------------------------------------------
 */

/* The planes of an element. LARGE: of any; else of those that `look` lets pass. */
template <kv_type TYPE, bool LARGE> struct few_planes {
    static const int N = (TYPE == KV_E4M3 ? 1 : 2) + LARGE;
};

/* Sums of the products of 16 rows of elements, of each plane and two digits: [j] those of row g
 * with digit j, [2 + j] of row g + 8. */
template <class size, bool LARGE> struct few_sums {
    float of[few_planes<size::TYPE, LARGE>::N][few_products<size>::N][4];
};

template <class size, bool LARGE>
static __device__ __forceinline__ void clear(struct few_sums<size, LARGE> *s) {
    UNROLL
    for (int p = 0; p < few_planes<size::TYPE, LARGE>::N; p++)
        UNROLL
    for (int i = 0; i < few_products<size>::N; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s->of[p][i][j] = 0;
}

/* Adds the products of a plane of 16 rows by 16 elements, as the first operand of an mma. */
template <class size>
static __device__ __forceinline__ void
multiply_plane(float (&sums)[few_products<size>::N][4], const uint32_t plane[4],
               const uint32_t (&digits)[few_products<size>::N][2]) {
    UNROLL
    for (int i = 0; i < few_products<size>::N; i++)
        mma_f16(sums[i], plane, digits[i]);
}

/* Adds the products of the elements x. Of two planes, what lies within the limit, 32 in e4m3 or
 * 2^-6 in e5m2, is multiplied before it is taken away, or the compiler would copy it. */
template <class size, bool LARGE>
static __device__ __forceinline__ void
multiply_few(struct few_sums<size, LARGE> *s, const uint32_t x[4],
             const uint32_t (&digits)[few_products<size>::N][2]) {
    const int N = few_planes<size::TYPE, LARGE>::N;
    if constexpr (N == 1) {
        multiply_plane<size>(s->of[0], x, digits);
    } else if constexpr (N == 2) {
        uint32_t within[4], beyond[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            within[j] = halves_within(x[j], halves_of(size::TYPE == KV_E4M3 ? 0x5000 : 0x2400));
        multiply_plane<size>(s->of[1], within, digits);
        UNROLL
        for (int j = 0; j < 4; j++)
            beyond[j] = halves_subtract(x[j], within[j]);
        multiply_plane<size>(s->of[0], beyond, digits);
    } else {
        uint32_t planes[N][4];
        UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t parts[N];
            cut<size::TYPE>(parts, x[j]);
            UNROLL
            for (int p = 0; p < N; p++)
                planes[p][j] = parts[p];
        }
        UNROLL
        for (int p = 0; p < N; p++)
            multiply_plane<size>(s->of[p], planes[p], digits);
    }
}

/* Notes which of four elements are too large for few planes: with the two upper bits of the
 * exponent, 32 in e4m3; with the uppermost one, 2 in e5m2. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void look(uint32_t *large, uint32_t bytes) {
    *large |= TYPE == KV_E4M3 ? bytes & bytes << 1 : bytes;
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

/* The dot product of row t with row g of the elements, or (j is 1) with row g + 8. */
template <class size, bool LARGE>
static __device__ __forceinline__ struct few_dot dot_of_few(const struct few_sums<size, LARGE> *s,
                                                            int j) {
    const int N = few_planes<size::TYPE, LARGE>::N;
    double sum[N];
    UNROLL
    for (int p = 0; p < N; p++) {
        sum[p] = (double)s->of[p][0][2 * j] + (double)s->of[p][0][2 * j + 1];
        UNROLL
        for (int i = 1; i < few_products<size>::N; i++)
            sum[p] += (double)s->of[p][i][2 * j] + (double)s->of[p][i][2 * j + 1];
    }
    struct few_dot dot = {0, sum[N - 1]};
    if constexpr (N == 2)
        dot.fine += sum[0];
    else if constexpr (N == 3)
        dot.coarse = fma(sum[0], 8.0, sum[1]);
    return dot;
}

/* The sum, rounded as the reference does: to float64, then to float32. */
static __device__ __forceinline__ float few_dot_rounded(const struct few_dot *dot,
                                                        bool has_coarse) {
    return (float)(has_coarse ? dot->coarse + dot->fine : dot->fine);
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* The products of the rows with keys: the chunk's positions of this warp, 16 of each of N parts.
 * Returns whether there are large ones where LARGE says no: the sums may be wrong. */
template <class size, bool LARGE, int N>
static __device__ __forceinline__ bool multiply_few_keys(struct few_sums<size, LARGE> (&sums)[N],
                                                         const unsigned char *keys,
                                                         const struct decode_memory *mem) {
    int lane = (int)(threadIdx.x % 32), begin = (int)(threadIdx.x / 32) * size::OF_PART;
    const unsigned char *row = keys + (begin + lane % 16) * size::ROW_BYTES;
    uint32_t large = 0;
    UNROLL
    for (int i = 0; i < N; i++)
        clear(&sums[i]);
    UNROLL
    for (int k = 0; k < size::COLUMNS; k += 2) {
        uint32_t digits[2][few_products<size>::N][2];
        load_few_digits<size>(digits, mem->query, k);
        UNROLL
        for (int i = 0; i < N; i++) {
            uint32_t m[4];
            ldmatrix_x4(m, row + i * size::PART * size::ROW_BYTES +
                               16 * column_in_row<size>(lane % 16, lane / 16 + k));
            UNROLL
            for (int h = 0; h < 2; h++) {
                uint32_t first[2], second[2]; /* rows g and g + 8 */
                if (!LARGE) {
                    look<size::TYPE>(&large, m[2 * h]);
                    look<size::TYPE>(&large, m[2 * h + 1]);
                }
                to_halves<size::TYPE>(first, m[2 * h]);
                to_halves<size::TYPE>(second, m[2 * h + 1]);
                uint32_t x[4] = {first[0], second[0], first[1], second[1]};
                multiply_few<size, LARGE>(&sums[i], x, digits[h]);
            }
        }
    }
    return !LARGE && any_is_large(large);
}

/* dots: of row t with the keys at g and g + 8 of the chunk's first part, then of the next. Returns
 * what multiply_few_keys does. */
template <class size, bool LARGE, int N>
static __device__ __forceinline__ bool few_keys_of(float (&dots)[N], const unsigned char *keys,
                                                   const struct decode_memory *mem) {
    struct few_sums<size, LARGE> sums[N / 2];
    if (multiply_few_keys<size, LARGE, N / 2>(sums, keys, mem))
        return true;
    UNROLL
    for (int i = 0; i < N; i++) {
        struct few_dot dot = dot_of_few(&sums[i / 2], i % 2);
        dots[i] = few_dot_rounded(&dot, few_planes<size::TYPE, LARGE>::N == 3);
    }
    return false;
}

/* The same of any elements. large: whether this warp has met large ones. */
template <class size, int N>
static __device__ __forceinline__ void few_keys(float (&dots)[N], const unsigned char *keys,
                                                const struct decode_memory *mem, bool *large) {
    if (!*large)
        *large = few_keys_of<size, false>(dots, keys, mem);
    if (*large)
        few_keys_of<size, true>(dots, keys, mem);
}

/* ---- values -----------------------------------------------------------------------------------
 */

/* Weighted sums of a column, of row t: with dimensions 2 g and 2 g + 1. */
struct few_value_dots {
    struct few_dot of[2];
};

static __device__ __forceinline__ void clear(struct few_value_dots *s) {
    UNROLL
    for (int j = 0; j < 2; j++)
        s->of[j].coarse = s->of[j].fine = 0;
}

/* The products of a chunk's weights and values: with each of the warp's columns. Returns what
 * multiply_few_keys does. */
template <class size, bool LARGE>
static __device__ __forceinline__ bool
multiply_few_values(struct few_sums<size, LARGE> sums[], const unsigned char *values,
                    const struct decode_memory *mem, int first) {
    int at = position_of_summand((int)(threadIdx.x % 32));
    uint32_t large = 0;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        clear(&sums[i]);
    UNROLL
    for (int k = 0; k < size::CHUNK; k += 32) {
        uint32_t weights[2][few_products<size>::N][2];
        load_few_digits<size>(weights, mem->weights, (first + k) / 16);
        UNROLL
        for (int i = 0; i < size::SHARE; i++) {
            uint32_t m[4];
            ldmatrix_x4_trans(m, values + (k + at) * size::ROW_BYTES +
                                     16 * column_in_row<size>(at, column_of_warp<size>(i)));
            UNROLL
            for (int h = 0; h < 2; h++) {
                uint32_t x[4]; /* even dimensions and odd ones, of 8 positions and 8 more */
                if (!LARGE) {
                    look<size::TYPE>(&large, m[2 * h]);
                    look<size::TYPE>(&large, m[2 * h + 1]);
                }
                to_columns<size::TYPE>(x, m[2 * h]);
                to_columns<size::TYPE>(x + 2, m[2 * h + 1]);
                multiply_few<size, LARGE>(&sums[i], x, weights[h]);
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
    struct few_sums<size, LARGE> sums[size::SHARE];
    if (multiply_few_values<size, LARGE>(sums, values, mem, first))
        return true;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int j = 0; j < 2; j++) {
        struct few_dot dot = dot_of_few(&sums[i], j);
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

/* The weighted sum of dimension 2 g + j of a column. unit: as weighted_value. */
template <class size>
static __device__ __forceinline__ float few_weighted_value(const struct few_value_dots *dots, int j,
                                                           float unit) {
    return few_dot_rounded(&dots->of[j], size::TYPE == KV_E5M2) *
           (unit * few_digit_unit<size::DIGITS>());
}

#endif
