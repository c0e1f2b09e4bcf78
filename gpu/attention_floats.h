/*
 * attention_floats.h - for attention_decode.cu: elements that are 8-bit floats, on fp16 tensor
 * cores.
 *
 * An e4m3 number has up to 18 bits in units of its smallest step, 2^-9, and an e5m2 number 32: too
 * many for one product of fp16 numbers to be exact in float32 when many are added. So an element is
 * cut into planes, each of which has one unit, as a sum:
 *
 *     e4m3   whole numbers up to 448, and what is left: 2^-9 times whole numbers up to 256
 *     e5m2   2^6 times up to 896, 2^-5 times up to 1024, 2^-16 times up to 1024
 *
 * Digits of queries and weights are whole numbers up to 128. So 256 products of a plane of e4m3, or
 * 128 of one of e5m2, have a sum of at most 2^24 units, however they are added: exact in float32.
 *
 * Cutting needs no bits to be looked at: adding a large number rounds to its unit, and taking it
 * away again leaves the plane. A NaN, and an infinity, gives a NaN in the last plane and so in the
 * sum, whatever the digit. Of a key it is the NaN that the score must be. Of a value it is one for
 * rows, too, that do not see its position: such a tile is computed once more (attention_mend.h).
 *
 * With at most four rows there is another way, with less to cut: attention_few.h.
 *
 * All is in real numbers, not in units: a sum is that of the reference times 2^(e-15), where e is
 * the exponent of all rows of the type. So a score's unit is 2^-23 instead of 2^(e-38), and that of
 * a weighted sum, whose weights leave out the 2^e, is 2^-15 instead of 2^-30 times their own.
 */
#ifndef SAMEBITS_ATTENTION_FLOATS_H
#define SAMEBITS_ATTENTION_FLOATS_H

#include "gpu/attention_decode.h"
#include "gpu/halves.h"

static const float fp8_score_unit = 0x1p-23f;

template <kv_type TYPE> struct planes {
    static const int N = TYPE == KV_E4M3 ? 2 : 3;
    static const int SUMMANDS = TYPE == KV_E4M3 ? 256 : 128; /* of an exact sum, at most */
};

/* Sums of the products of 8 rows with 8 columns, of each plane: [j] with the rows' high digits, [2
 * + j] with their low ones. */
template <kv_type TYPE> struct plane_sums { float of[planes<TYPE>::N][4]; };

template <enum kv_type TYPE> static __device__ __forceinline__ void clear(plane_sums<TYPE> *s) {
    UNROLL
    for (int p = 0; p < planes<TYPE>::N; p++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s->of[p][j] = 0;
}

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

/* Two elements at a time, cut into planes. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void cut(uint32_t out[planes<TYPE>::N], uint32_t x) {
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

/* Adds the products of digits with 16 summands by 8 columns: summands in pairs, as halves. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void multiply_halves(plane_sums<TYPE> *s, const uint32_t a[4],
                                                       uint32_t first, uint32_t second) {
    const int N = planes<TYPE>::N;
    uint32_t x[N], y[N];
    cut<TYPE>(x, first);
    cut<TYPE>(y, second);
    UNROLL
    for (int p = 0; p < N; p++) {
        uint32_t b[2] = {x[p], y[p]};
        mma_f16(s->of[p], a, b);
    }
}

/* The exact sum of the products of row g with column 2 t + j, rounded to float64; of n parts. All
 * sums but the last of e5m2 are exact. */
template <enum kv_type TYPE>
static __device__ __forceinline__ double dot_of_planes(const plane_sums<TYPE> s[], int n, int j) {
    double dot[planes<TYPE>::N];
    UNROLL
    for (int p = 0; p < planes<TYPE>::N; p++) {
        dot[p] = fma((double)s[0].of[p][j], 256.0, (double)s[0].of[p][2 + j]);
        UNROLL
        for (int i = 1; i < n; i++)
            dot[p] += fma((double)s[i].of[p][j], 256.0, (double)s[i].of[p][2 + j]);
    }
    if constexpr (TYPE == KV_E4M3)
        return dot[0] + dot[1];
    else
        return fma(dot[0], 8.0, dot[1]) + dot[2];
}

/* ---- digits -----------------------------------------------------------------------------------
 */

/* The digits of two mantissas, high and low, the first in the lower half. They are -128 ... 127;
 * with 128 more each is a byte. */
static __device__ __forceinline__ uint32_t bytes_of_digits(int first, int second) {
    uint32_t both = __byte_perm((uint32_t)first, (uint32_t)second, 0x5410);
    return (both ^ 0x80008000u) + 0x00800080u;
}

/* The same as fp16, high digits and low ones: a byte is below 1024. */
static __device__ __forceinline__ uint2 halves_of_digits(int first, int second) {
    uint32_t bytes = bytes_of_digits(first, second);
    const uint32_t minus = halves_of(0xe480); /* 1024 + 128 */
    return make_uint2(halves_add(__byte_perm(bytes, 0x64646464u, 0x4341), minus),
                      halves_add(__byte_perm(bytes, 0x64646464u, 0x4240), minus));
}

/* Where digits of row `row` lie, in halves: of summand number `element` of a query, whose order is
 * that of the bytes that ldmatrix gives to a lane; of a position of a tile. The low digit is two
 * halves behind. */
static __device__ __forceinline__ int place_of_query_digit(int row, int element) {
    return (element / 16 * 32 + 4 * row + element % 16 / 4) * 8 + element % 4 / 2 * 4 + element % 2;
}

static __device__ __forceinline__ int place_of_weight_digit(int row, int position) {
    return (position / 16 * 32 + 4 * row + position % 8 / 2) * 8 + position % 16 / 8 * 4 +
           position % 2;
}

/* ---- keys and values --------------------------------------------------------------------------
 */

/* The parts of the sum over n summands. */
template <enum kv_type TYPE> static __host__ __device__ constexpr int parts_of(int n) {
    return (n + planes<TYPE>::SUMMANDS - 1) / planes<TYPE>::SUMMANDS;
}

/* Sums over a row of keys. */
template <class size> struct fp8_key_sums {
    plane_sums<size::TYPE> part[parts_of<size::TYPE>(size::DIM)];
};

/* The products of the rows with keys: the chunk's positions of this warp, 8 of each part. */
template <class size, int N>
static __device__ __forceinline__ void
multiply_keys(struct fp8_key_sums<size> sums[N], const unsigned char *keys,
              const struct decode_memory *mem, const float *) {
    int lane = (int)(threadIdx.x % 32), begin = (int)(threadIdx.x / 32) * 8;
    const unsigned char *row = keys + (begin + lane % 8) * size::ROW_BYTES;
    UNROLL
    for (int i = 0; i < N; i++)
        UNROLL
    for (int part = 0; part < parts_of<size::TYPE>(size::DIM); part++)
        clear(&sums[i].part[part]);
    UNROLL
    for (int k = 0; k < size::COLUMNS; k += 4) {
        const int part = 16 * k / planes<size::TYPE>::SUMMANDS;
        alignas(16) uint32_t digits[4][4];
        UNROLL
        for (int j = 0; j < 4; j++)
            *(uint4 *)digits[j] = ((const uint4 *)mem->query)[32 * (k + j) + lane];
        UNROLL
        for (int i = 0; i < N; i++) {
            alignas(16) uint32_t m[4];
            ldmatrix_x4(m, row + i * size::PART * size::ROW_BYTES +
                               16 * column_in_row<size>(lane % 8, lane / 8 + k));
            UNROLL
            for (int j = 0; j < 4; j++) {
                uint32_t x[2];
                to_halves<size::TYPE>(x, m[j]);
                multiply_halves<size::TYPE>(&sums[i].part[part], digits[j], x[0], x[1]);
            }
        }
    }
}

/* The sum of the products of row g with key 2 t + j. */
template <class size>
static __device__ __forceinline__ double dot_of_key(const struct fp8_key_sums<size> *s, int j) {
    return dot_of_planes<size::TYPE>(s->part, parts_of<size::TYPE>(size::DIM), j);
}

/* Sums over a tile's values: a column is two, of the elements with even numbers and with odd ones.
 */
template <kv_type TYPE> struct fp8_value_sums {
    static const int PARTS_OF_TILE = parts_of<TYPE>(TILE);
    plane_sums<TYPE> even[PARTS_OF_TILE], odd[PARTS_OF_TILE];
};

template <enum kv_type TYPE>
static __device__ __forceinline__ void clear(struct fp8_value_sums<TYPE> *s) {
    UNROLL
    for (int i = 0; i < fp8_value_sums<TYPE>::PARTS_OF_TILE; i++) {
        clear(&s->even[i]);
        clear(&s->odd[i]);
    }
}

/* The digits of 32 weights of a tile, from number `first` on, for two products. */
static __device__ __forceinline__ void load_weights(uint32_t weights[2][4],
                                                    const struct decode_memory *mem, int first) {
    UNROLL
    for (int h = 0; h < 2; h++)
        *(uint4 *)weights[h] =
            ((const uint4 *)mem->weights)[32 * (first / 16 + h) + (int)(threadIdx.x % 32)];
}

/* Adds the products of a chunk's weights and values, of n positions; those behind them have weights
 * of 0. first: of the chunk. */
template <class size>
static __device__ __forceinline__ void
add_chunk(struct fp8_value_sums<size::TYPE> sums[], const unsigned char *values,
          const struct decode_memory *mem, const uint32_t *, int first, int n) {
    int lane = (int)(threadIdx.x % 32);
    const int part = first / planes<size::TYPE>::SUMMANDS;
    if (n <= 0)
        return;
    UNROLL
    for (int k = 0; k < size::CHUNK; k += 32) {
        alignas(16) uint32_t weights[2][4];
        load_weights(weights, mem, first + k);
        UNROLL
        for (int i = 0; i < size::SHARE; i++) {
            uint32_t m[4];
            if (size::COLUMNS % size::WARPS && column_of_warp<size>(i) >= size::COLUMNS)
                break;
            ldmatrix_x4_trans(m, values + (k + lane) * size::ROW_BYTES +
                                     16 * column_in_row<size>(lane, column_of_warp<size>(i)));
            UNROLL
            for (int h = 0; h < 2; h++) {
                uint32_t x[2], y[2];
                to_columns<size::TYPE>(x, m[2 * h]);
                to_columns<size::TYPE>(y, m[2 * h + 1]);
                multiply_halves<size::TYPE>(&sums[i].even[part], weights[h], x[0], y[0]);
                multiply_halves<size::TYPE>(&sums[i].odd[part], weights[h], x[1], y[1]);
            }
        }
    }
}

/* The weighted sum of dimension first_dim + j of a column. unit: 2^(e-15), e of the weights. */
template <enum kv_type TYPE>
static __device__ __forceinline__ float weighted_value(const struct fp8_value_sums<TYPE> *s, int j,
                                                       float unit) {
    const int N = fp8_value_sums<TYPE>::PARTS_OF_TILE;
    return (float)dot_of_planes<TYPE>(j % 2 ? s->odd : s->even, N, j / 2) * unit;
}

#endif
