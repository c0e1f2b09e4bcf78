/*
 * fp8.h - for gpu/fast/decode/decode.cu: elements that are 8-bit floats, on fp16 tensor
 * cores.
 *
 * Here the operands change places: the elements are the 16 rows of an mma, and the digits of four
 * mantissas, or of eight by another mma, its 8 columns. So the digits of a mantissa come to the
 * same lane, whose sums are
 *
 *     keys     of 16 positions, those at g and g + 8, with rows t and 4 + t (lane 4 g + t)
 *     values   of the 16 dimensions of a column, numbers 2 g and 2 g + 1, with the same rows
 *
 * An e4m3 number has up to 18 bits in units of its smallest step, 2^-9, and an e5m2 number 32: too
 * many for one product of fp16 numbers to be exact in float32 when many are added. So an element is
 * cut into planes, each of which has one unit, as a sum:
 *
 *     e4m3   whole numbers up to 448, and what is left: 2^-9 times whole numbers up to 256
 *     e5m2   2^6 times up to 896, 2^-5 times up to 1024, 2^-16 times up to 1024
 *
 * Digits of queries and weights are whole numbers up to 128. So 128 products of a plane have a sum
 * of at most 2^24 units, however they are added: exact in float32. Cutting needs no bits to be
 * looked at: adding a large number rounds to its unit, and taking it away again leaves the plane.
 *
 * Where elements are small, a plane less will do:
 *
 *     e4m3   below 2, in units of 2^-9
 *     e5m2   below 2: up to 2^-6 in units of 2^-16; what is beyond that, in units of 2^-8
 *
 * With at most four rows, such as the query heads of one token that share a kv head, e4m3 has
 * digits of 4 bits, at most 8, in twice the columns: one plane of elements below 32, or two of all.
 * Where two planes part at a limit, one is the element held within it, the other what that takes
 * away: two operations for both.
 *
 * That all elements of a chunk are so small is not known before they are here: the products are
 * made, and the elements looked at meanwhile. Where one is not, the warp does the chunk again with
 * all planes, and from then on, until other rows come, does so at once: caches whose scale makes
 * use of the whole range have such elements everywhere.
 *
 * A NaN, and an infinity, is not small, either. It gives a NaN in the last plane and so in the sum,
 * whatever the digit. Of a key it is the NaN that the score must be. Of a value it is one for rows,
 * too, that do not see its position: such a tile is computed once more (gpu/fast/decode/fp8_mend.h).
 *
 * All is in real numbers, not in units: a sum is that of the reference times 2^(e-15), where e is
 * the exponent of all rows of the type. So a score's unit is 2^-23 instead of 2^(e-38), and that of
 * a weighted sum, whose weights leave out the 2^e, is 2^-15 instead of 2^-30 times their own.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_FP8_H
#define SAMEBITS_GPU_FAST_DECODE_FP8_H

#include "gpu/fast/decode/decode.h"
#include "gpu/ptx/halves.h"

/* ---- elements ---------------------------------------------------------------------------------
 */

/* Four elements: [0] the first two as fp16, [1] the others. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void to_halves(uint32_t out[2], uint32_t bytes) {
    if constexpr (TYPE == KV_E4M3) {
        halves_of_e4m3(out, bytes);
    } else { /* the upper byte of fp16 */
        out[0] = __byte_perm(bytes, 0, 0x1404);
        out[1] = __byte_perm(bytes, 0, 0x3424);
    }
}

/* Four elements of two positions: [0] those of an even column as fp16, [1] of an odd one. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void to_columns(uint32_t out[2], uint32_t bytes) {
    if constexpr (TYPE == KV_E4M3) {
        halves_of_e4m3(out, __byte_perm(bytes, 0, 0x3120));
    } else {
        out[0] = __byte_perm(bytes, 0, 0x2404);
        out[1] = __byte_perm(bytes, 0, 0x3414);
    }
}

/* The planes of an element. LARGE: of any; else of those that `look` lets pass. */
template <kv_type TYPE, bool LARGE> struct planes {
    static const int N = (TYPE == KV_E4M3 ? 1 : 2) + LARGE;
};

/* Two elements at a time, cut into the planes of any. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void cut(uint32_t out[planes<TYPE, true>::N], uint32_t x) {
    if constexpr (TYPE == KV_E4M3) {
        const uint32_t large = halves_of(0x6600), minus = halves_of(0xe600); /* 1536: unit 1 */
        out[0] = halves_add(halves_add(x, large), minus);
        out[1] = halves_subtract(x, out[0]);
    } else {
        /* Of an eighth, so that it is no infinity: 12288, unit 8. What is beyond 2^12 in it, or
         * beyond 16 in the rest, has a smaller unit or a larger one there, and is a multiple. */
        const uint32_t large = halves_of(0x7200), minus = halves_of(0xf200);
        out[0] = halves_add(halves_fma(x, halves_of(0x3000), large), minus);
        x = halves_fma(out[0], halves_of(0xc800), x);
        const uint32_t middle = halves_of(0x5200), back = halves_of(0xd200); /* 48: unit 2^-5 */
        out[1] = halves_add(halves_add(x, middle), back);
        out[2] = halves_subtract(x, out[1]);
    }
}

/* Notes which of four elements are not small: with the uppermost bit of the exponent, 2; of digits
 * of 4 bits with the two upper ones, 32. */
template <class size> static __device__ __forceinline__ void look(uint32_t *large, uint32_t bytes) {
    *large |= size::DIGITS == 4 ? bytes & bytes << 1 : bytes;
}

/* Whether there is one in this warp. */
static __device__ __forceinline__ bool any_is_large(uint32_t large) {
    return __any_sync(0xffffffffu, large & 0x40404040u);
}

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
    uint32_t both = __byte_perm((uint32_t)first, (uint32_t)second, 0x5410);
    both = (both ^ 0x80008000u) + 0x00800080u; /* bytes: digits of 8 bits, and 128 more */
    uint32_t high = both >> 8 & 0x00ff00ffu, low = both & 0x00ff00ffu;
    if constexpr (DIGITS == 2) {
        out[0] = halves_of_digit(high, 128, 0);
        out[1] = halves_of_digit(low, 128, 8);
    } else {
        high += 0x00080008u; /* digits of 4 bits and 8 more, as all are */
        low += 0x00080008u;
        out[0] = halves_of_digit(high >> 4 & 0x001f001fu, 8, 0);
        out[1] = halves_of_digit(high & 0x000f000fu, 8, 4);
        out[2] = halves_of_digit(low >> 4 & 0x001f001fu, 8, 8);
        out[3] = halves_of_digit(low & 0x000f000fu, 8, 12);
    }
}

/* A mantissa from its digits. */
template <class size> static __host__ __device__ constexpr float digit_unit(void) {
    return size::DIGITS == 2 ? 0x1p8f : 0x1p12f;
}

/* Columns 2 t and 2 t + 1 of an mma are two digits of row t, or 4 + t. So many mma are there for
 * all of them: those of a row follow one another. */
template <class size> struct products {
    static const int OF_ROW = size::DIGITS / 2, N = size::LANE_ROWS * OF_ROW;
};

/*
 * Where a digit lies, in halves: of number 2 t + w or 2 t + w + 8 (r is 0 or 1) of 16 summands. 16
 * bytes of a lane are two steps, each 16 summands by the columns of an mma.
 */
template <class size>
static __device__ __forceinline__ int place_of_digit(int row, int digit, int summands, int t, int r,
                                                     int w) {
    int product = row / 4 * products<size>::OF_ROW + digit / 2;
    int step = summands * products<size>::N + product, column = row % 4 * 2 + digit % 2;
    return (step / 2 * 32 + 4 * column + t) * 8 + step % 2 * 4 + 2 * r + w;
}

/* Of element number `element` of a query, in the order of the bytes that ldmatrix gives to a lane.
 */
template <class size>
static __device__ __forceinline__ int place_of_query_digit(int row, int digit, int element) {
    return place_of_digit<size>(row, digit, element / 16, element % 16 / 4, element % 4 / 2,
                                element % 2);
}

/* Of a position of a tile. Those that a lane has of the scores, 8 apart, are neighbours. */
template <class size>
static __device__ __forceinline__ int place_of_weight_digit(int row, int digit, int position) {
    return place_of_digit<size>(row, digit, position / 16, position % 4, position % 8 / 4,
                                position % 16 / 8);
}

/* The position, of 32, that summand number `lane` of two times 16 is. */
static __device__ __forceinline__ int position_of_summand(int lane) {
    return lane / 16 * 16 + lane % 2 * 8 + lane / 8 % 2 * 4 + lane % 8 / 2;
}

/* The digits of two times 16 summands, number `first` of 16 and the next. */
template <class size>
static __device__ __forceinline__ void load_fp8_digits(uint32_t (&digits)[2][products<size>::N][2],
                                                       const int8_t *from, int first) {
    const int N = products<size>::N;
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

/* Sums of the products of 16 rows of elements, of each plane and mma: [j] those of row g with
 * column 2 t + j, [2 + j] of row g + 8. */
template <class size, bool LARGE> struct plane_sums {
    float of[planes<size::TYPE, LARGE>::N][products<size>::N][4];
};

template <class size, bool LARGE>
static __device__ __forceinline__ void clear(struct plane_sums<size, LARGE> *s) {
    UNROLL
    for (int p = 0; p < planes<size::TYPE, LARGE>::N; p++)
        UNROLL
    for (int i = 0; i < products<size>::N; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s->of[p][i][j] = 0;
}

/* Adds the products of a plane of 16 rows by 16 elements, as the first operand of an mma. */
template <class size>
static __device__ __forceinline__ void
multiply_plane(float (&sums)[products<size>::N][4], const uint32_t plane[4],
               const uint32_t (&digits)[products<size>::N][2]) {
    UNROLL
    for (int i = 0; i < products<size>::N; i++)
        mma_f16(sums[i], plane, digits[i]);
}

/* Adds the products of the elements x. Of two planes that part at a limit, 32 in e4m3 or 2^-6 in
 * e5m2, what lies within is multiplied before it is taken away, or the compiler would copy it. */
template <class size, bool LARGE>
static __device__ __forceinline__ void
multiply_elements(struct plane_sums<size, LARGE> *s, const uint32_t x[4],
                  const uint32_t (&digits)[products<size>::N][2]) {
    const int N = planes<size::TYPE, LARGE>::N;
    if constexpr (N == 1) {
        multiply_plane<size>(s->of[0], x, digits);
    } else if constexpr (size::TYPE == KV_E4M3 ? size::DIGITS == 4 : !LARGE) {
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
        uint32_t of[N][4];
        UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t parts[N];
            cut<size::TYPE>(parts, x[j]);
            UNROLL
            for (int p = 0; p < N; p++)
                of[p][j] = parts[p];
        }
        UNROLL
        for (int p = 0; p < N; p++)
            multiply_plane<size>(s->of[p], of[p], digits);
    }
}

/* A sum over any number of elements, in two parts that are exact: all of e5m2's planes do not fit
 * into a float64. */
struct exact_dot {
    double coarse, fine;
};

/* The dot product of row t, or (h is 1) 4 + t, with row g of the elements, or (j is 1) with row g +
 * 8. */
template <class size, bool LARGE>
static __device__ __forceinline__ struct exact_dot
dot_of_planes(const struct plane_sums<size, LARGE> *s, int h, int j) {
    const int N = planes<size::TYPE, LARGE>::N;
    double sum[N];
    UNROLL
    for (int p = 0; p < N; p++) {
        sum[p] = 0;
        UNROLL
        for (int i = 0; i < products<size>::OF_ROW; i++) {
            const float *two = s->of[p][h * products<size>::OF_ROW + i] + 2 * j;
            double both = (double)two[0] + (double)two[1];
            sum[p] = i ? sum[p] + both : both;
        }
    }
    struct exact_dot dot = {0, sum[N - 1]};
    if constexpr (N == 2)
        dot.fine += sum[0];
    else if constexpr (N == 3)
        dot.coarse = fma(sum[0], 8.0, sum[1]);
    return dot;
}

template <class size, bool LARGE>
static __device__ __forceinline__ void add_dot(struct exact_dot *to, struct exact_dot dot) {
    to->fine += dot.fine;
    if (planes<size::TYPE, LARGE>::N == 3)
        to->coarse += dot.coarse;
}

/* The sum, rounded as the reference does: to float64, then to float32. */
static __device__ __forceinline__ float dot_rounded(const struct exact_dot *dot, bool has_coarse) {
    return (float)(has_coarse ? dot->coarse + dot->fine : dot->fine);
}

/*
 * Of eight rows, a lane has two of the products, t and 4 + t; one of them goes to the lane 16 away,
 * for what that has of the other. So lanes below 16 have the rows from 0 on, with the elements g
 * and g + 4, and those above the rows from 4 on, with g - 4 and g: in this order. of: rows t and 4
 * + t.
 */
static __device__ __forceinline__ float2 exchange_rows(const float of[2]) {
    bool above = threadIdx.x % 32 >= 16;
    float own = above ? of[1] : of[0];
    float other = __shfl_xor_sync(0xffffffffu, above ? of[0] : of[1], 16);
    return above ? make_float2(other, own) : make_float2(own, other);
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* The sum over a row of keys is so many, of 128 products at most. */
template <class size> struct key_parts { static const int N = (size::DIM + 127) / 128; };

/* The products of the rows with keys: the chunk's positions of this warp, 16 of each of N parts.
 * Returns whether there are large ones where LARGE says no: the sums may be wrong. */
template <class size, bool LARGE, int N>
static __device__ __forceinline__ bool
multiply_fp8_keys(struct plane_sums<size, LARGE> (&sums)[N][key_parts<size>::N],
                  const unsigned char *keys, const struct decode_memory *mem) {
    int lane = (int)(threadIdx.x % 32), begin = (int)(threadIdx.x / 32) * size::OF_PART;
    const unsigned char *row = keys + (begin + lane % 16) * size::ROW_BYTES;
    uint32_t large = 0;
    UNROLL
    for (int i = 0; i < N; i++)
        UNROLL
    for (int part = 0; part < key_parts<size>::N; part++)
        clear(&sums[i][part]);
    UNROLL
    for (int k = 0; k < size::COLUMNS; k += 2) {
        uint32_t digits[2][products<size>::N][2];
        load_fp8_digits<size>(digits, mem->query, k);
        UNROLL
        for (int i = 0; i < N; i++) {
            uint32_t m[4];
            ldmatrix_x4(m, row + i * size::PART * size::ROW_BYTES +
                               16 * column_in_row<size>(lane % 16, lane / 16 + k));
            UNROLL
            for (int h = 0; h < 2; h++) {
                uint32_t first[2], second[2]; /* rows g and g + 8 */
                if (!LARGE) {
                    look<size>(&large, m[2 * h]);
                    look<size>(&large, m[2 * h + 1]);
                }
                to_halves<size::TYPE>(first, m[2 * h]);
                to_halves<size::TYPE>(second, m[2 * h + 1]);
                uint32_t x[4] = {first[0], second[0], first[1], second[1]};
                multiply_elements<size, LARGE>(&sums[i][k / 8], x, digits[h]);
            }
        }
    }
    return !LARGE && any_is_large(large);
}

/* dots: of the lane's row with the keys of the chunk's first part, then of the next. Returns what
 * multiply_fp8_keys does. */
template <class size, bool LARGE, int N>
static __device__ __forceinline__ bool dots_of_keys(float (&dots)[N], const unsigned char *keys,
                                                    const struct decode_memory *mem) {
    const int L = size::LANE_ROWS;
    struct plane_sums<size, LARGE> sums[N / (2 * L)][key_parts<size>::N];
    if (multiply_fp8_keys<size, LARGE, N / (2 * L)>(sums, keys, mem))
        return true;
    UNROLL
    for (int i = 0; i < N / L; i++) {
        float of[2];
        UNROLL
        for (int h = 0; h < L; h++) {
            struct exact_dot dot = dot_of_planes(&sums[i / 2][0], h, i % 2);
            UNROLL
            for (int part = 1; part < key_parts<size>::N; part++)
                add_dot<size, LARGE>(&dot, dot_of_planes(&sums[i / 2][part], h, i % 2));
            of[h] = dot_rounded(&dot, planes<size::TYPE, LARGE>::N == 3);
        }
        if (L == 1) {
            dots[i] = of[0];
        } else {
            float2 two = exchange_rows(of);
            dots[2 * i] = two.x;
            dots[2 * i + 1] = two.y;
        }
    }
    return false;
}

/* The same of any elements. large: whether this warp has met large ones. */
template <class size, int N>
static __device__ __forceinline__ void dots_of_any_keys(float (&dots)[N], const unsigned char *keys,
                                                        const struct decode_memory *mem,
                                                        bool *large) {
    if (!*large)
        *large = dots_of_keys<size, false>(dots, keys, mem);
    if (*large)
        dots_of_keys<size, true>(dots, keys, mem);
}

/* ---- values -----------------------------------------------------------------------------------
 */

/* Weighted sums of a column, of rows t and 4 + t: with dimensions 2 g and 2 g + 1. */
template <class size> struct fp8_value_dots { struct exact_dot of[size::LANE_ROWS][2]; };

template <class size> static __device__ __forceinline__ void clear(struct fp8_value_dots<size> *s) {
    UNROLL
    for (int h = 0; h < size::LANE_ROWS; h++)
        UNROLL
    for (int j = 0; j < 2; j++)
        s->of[h][j].coarse = s->of[h][j].fine = 0;
}

/* The products of a chunk's weights and values: with each of the warp's columns. Returns what
 * multiply_fp8_keys does. */
template <class size, bool LARGE>
static __device__ __forceinline__ bool
multiply_fp8_values(struct plane_sums<size, LARGE> sums[], const unsigned char *values,
                    const struct decode_memory *mem, int first) {
    int at = position_of_summand((int)(threadIdx.x % 32));
    uint32_t large = 0;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        clear(&sums[i]);
    UNROLL
    for (int k = 0; k < size::CHUNK; k += 32) {
        uint32_t weights[2][products<size>::N][2];
        load_fp8_digits<size>(weights, mem->weights, (first + k) / 16);
        UNROLL
        for (int i = 0; i < size::SHARE; i++) {
            uint32_t m[4];
            ldmatrix_x4_trans(m, values + (k + at) * size::ROW_BYTES +
                                     16 * column_in_row<size>(at, column_of_warp<size>(i)));
            UNROLL
            for (int h = 0; h < 2; h++) {
                uint32_t x[4]; /* even dimensions and odd ones, of 8 positions and 8 more */
                if (!LARGE) {
                    look<size>(&large, m[2 * h]);
                    look<size>(&large, m[2 * h + 1]);
                }
                to_columns<size::TYPE>(x, m[2 * h]);
                to_columns<size::TYPE>(x + 2, m[2 * h + 1]);
                multiply_elements<size, LARGE>(&sums[i], x, weights[h]);
            }
        }
    }
    return !LARGE && any_is_large(large);
}

/* Adds the dots of multiply_fp8_values; returns what that does. */
template <class size, bool LARGE>
static __device__ __forceinline__ bool add_values(struct fp8_value_dots<size> dots[],
                                                  const unsigned char *values,
                                                  const struct decode_memory *mem, int first) {
    struct plane_sums<size, LARGE> sums[size::SHARE];
    if (multiply_fp8_values<size, LARGE>(sums, values, mem, first))
        return true;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int h = 0; h < size::LANE_ROWS; h++)
        UNROLL
    for (int j = 0; j < 2; j++)
        add_dot<size, LARGE>(&dots[i].of[h][j], dot_of_planes(&sums[i], h, j));
    return false;
}

/* Adds a chunk of n positions to the sums of the warp's columns. first: of the chunk; large: as for
 * dots_of_any_keys. */
template <class size>
static __device__ __forceinline__ void
add_any_values(struct fp8_value_dots<size> dots[], const unsigned char *values,
               const struct decode_memory *mem, int first, int n, bool *large) {
    static_assert(size::COLUMNS % size::WARPS == 0, "all warps have as many columns");
    if (n <= 0)
        return;
    if (!*large)
        *large = add_values<size, false>(dots, values, mem, first);
    if (*large)
        add_values<size, true>(dots, values, mem, first);
}

/* The weighted sums of the lane's dimensions of a column, of its row. unit: 2^(e-15), e of the
 * weights; sees: the row something. */
template <class size>
static __device__ __forceinline__ void weighted_values(float o[size::EACH],
                                                       const struct fp8_value_dots<size> *dots,
                                                       float unit, bool sees) {
    const int L = size::LANE_ROWS;
    UNROLL
    for (int j = 0; j < 2; j++) {
        float of[2];
        UNROLL
        for (int h = 0; h < L; h++)
            of[h] = dot_rounded(&dots->of[h][j], size::TYPE == KV_E5M2);
        if (L == 1) {
            o[j] = of[0];
        } else {
            float2 two = exchange_rows(of);
            o[j] = two.x;
            o[2 + j] = two.y;
        }
    }
    UNROLL
    for (int j = 0; j < size::EACH; j++)
        o[j] = sees ? o[j] * (unit * digit_unit<size>()) : 0;
}

/* The score of a dot product, and its unit. */
template <class size> static __host__ __device__ constexpr float fp8_score_unit(void) {
    return 0x1p-23f * digit_unit<size>();
}

#endif
