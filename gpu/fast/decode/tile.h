/*
 * tile.h - for gpu/fast/decode/decode.cu: the products of a tile. Queries as digits, scores,
 * weighted sums of values.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_TILE_H
#define SAMEBITS_GPU_FAST_DECODE_TILE_H

#include "gpu/fast/decode/new_tokens.h"
#include "gpu/fast/decode/snapped.h"

/* ---- queries ----------------------------------------------------------------------------------
 */

/* The order of 32 summands: the tensor core counts as numbers 4 t ... 4 t + 3 and 16 + 4 t ... what
 * ldmatrix gives to lane t of a quad: of elements of 16 bits, number 2 t and 2 t + 1 of each 8.
 * summand_of: the number of an element. (Elements of 8 bits come as the tensor core wants them.) */
static __device__ __forceinline__ int summand_of(int element) {
    return element / 32 * 32 + element % 32 / 16 * 16 + element % 8 / 2 * 4 + element % 16 / 8 * 2 +
           element % 2;
}

static __device__ __forceinline__ void put_digits(int8_t *high, int8_t *low, int mantissa) {
    int digit = (int8_t)(mantissa & 255);
    *low = (int8_t)digit;
    *high = (int8_t)((mantissa - digit) >> 8);
}

/* The digits of two neighbouring summands. */
static __device__ __forceinline__ void put_two_digits(int8_t *high, int8_t *low, int first,
                                                      int second) {
    uint32_t both = __byte_perm((uint32_t)first, (uint32_t)second, 0x5410);
    /* A low digit is signed: where it is negative, the high one is one more. */
    uint32_t carry = both >> 7 & 0x00010001u;
    *(uint16_t *)low = (uint16_t)__byte_perm(both, 0, 0x0020);
    *(uint16_t *)high = (uint16_t)__byte_perm((uint32_t)first + (carry << 8),
                                              (uint32_t)second + (carry >> 8), 0x0051);
}

/* Snaps the rows of the group; a warp has one. Rows that do not exist are zeros. NEW: they are to
 * be turned first. */
template <class size, bool NEW>
static __device__ void snap_queries(const struct attention_arguments *a,
                                    const struct row_group *group, const struct decode_memory *mem,
                                    struct row_states *rows, const struct new_tokens *t) {
    int lane = (int)(threadIdx.x % 32);
    for (int row = (int)(threadIdx.x / 32); row < ROWS; row += size::WARPS) {
        bool exists = row < group->n_rows;
        const float *q = a->q + rows->place[row];
        float x[size::DIM / 32];
        uint32_t largest = 0;
        UNROLL
        for (int i = 0; i < size::DIM / 32; i++) {
            int d = lane + 32 * i;
            x[i] = exists && d < a->head_dim ? q[d] : 0;
        }
        if constexpr (NEW)
            if (exists)
                turn_head<size::DIM>(x, t->q_gain, t, group->before, t->site_q, group->first_token,
                                     a->fault);
        UNROLL
        for (int i = 0; i < size::DIM / 32; i++)
            largest = max(largest, num_magnitude(x[i]));
        int e = num_row_exponent(warp_max(largest));
        bool bad = e > BFP_MAX_EXPONENT;
        if (bad && lane == 0)
            gpu_fault(a->fault, a->site, group->first_token + rows->token[row]);
        e = bad ? BFP_MIN_EXPONENT : e;
        UNROLL
        for (int i = 0; i < size::DIM / 32; i++) {
            int mantissa = bad ? 0 : num_mantissa(x[i], num_pow2f(15 - e));
            /* Summand 4 t + j of row g is byte j of the first register of lane 4 g + t, 16 + 4 t +
             * j of the third; low digits are in the second and fourth. */
            int summand = size::BYTES == 1 ? lane : summand_of(lane);
            int8_t *at = mem->query +
                         ((32 * i + 4 * row + summand % 16 / 4) * 4 + summand / 16 * 2) * 4 +
                         summand % 4;
            put_digits(at, at + 4, mantissa);
        }
        if (lane == 0)
            rows->unit[row] = num_score_unit_of(e, a->scale);
    }
}

/* Digits as the first operand of an mma: 32 summands of 8 rows, high digits as the rows 0 to 7 and
 * low ones as 8 to 15. from: row g of the high digits at summand 4 t. */
static __device__ __forceinline__ void load_digits(uint32_t out[4], const int8_t *from,
                                                   int bytes_to_low) {
    out[0] = *(const uint32_t *)from;
    out[1] = *(const uint32_t *)(from + bytes_to_low);
    out[2] = *(const uint32_t *)(from + 16);
    out[3] = *(const uint32_t *)(from + bytes_to_low + 16);
}

/* Sums of the products of 8 rows with 8 columns. Of 16 bits: high[] with the columns' high digits,
 * low[] with their low ones. Of bytes: a column is two, high[] with its odd elements, low[] with
 * its even ones. In each, [j] with the rows' high digits, [2 + j] with their low ones. */
struct digit_sums {
    int32_t high[4], low[4];
};

static __device__ __forceinline__ void clear(struct digit_sums *s) {
    UNROLL
    for (int j = 0; j < 4; j++)
        s->high[j] = s->low[j] = 0;
}

/* Adds the products of digits `a` with 32 summands by 8 columns of 16 bits, as ldmatrix gives
 * them. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void multiply(struct digit_sums *s, const uint32_t a[4],
                                                const uint32_t m[4]) {
    uint32_t b_high[2] = {__byte_perm(m[0], m[1], 0x7531), __byte_perm(m[2], m[3], 0x7531)};
    uint32_t b_low[2] = {__byte_perm(m[0], m[1], 0x6420), __byte_perm(m[2], m[3], 0x6420)};
    mma_s8_s8(s->high, a, b_high);
    if (TYPE == KV_BFP8)
        mma_s8_s8(s->low, a, b_low);
    else
        mma_s8_u8(s->low, a, b_low);
}

/* The sum of the products of row g with column 2 t + j, of mantissas of 16 bits: in units of 256,
 * rounded down. */
static __device__ __forceinline__ int32_t dot_of(const struct digit_sums *s, int j) {
    return s->high[j] * 256 + s->high[2 + j] + s->low[j] + (s->low[2 + j] >> 8);
}

/* A dot product with mantissas of 8 bits, from one of the two sums: exact, because one of them is
 * the upper half of one of 16 bits, whose unit is 256. */
static __device__ __forceinline__ int32_t dot_of_bytes(const int32_t sums[4], int j) {
    return sums[j] * 256 + sums[2 + j];
}

/* Sums over a column of values. Floats of 8 bits: [0] of its even dimensions, [1] of its odd ones.
 */
template <class size> struct value_sums {
    struct digit_sums of[size::SNAPPED && size::BYTES == 1 ? 2 : 1];
};

/* The sum of the products of row g with key 2 t + j, in units of 256. */
template <class size>
static __device__ __forceinline__ int32_t dot_of_key(const struct digit_sums *s, int j) {
    return size::TYPE == KV_BFP8 ? dot_of_bytes(s->low, j) : dot_of(s, j);
}

/* ---- a tile -----------------------------------------------------------------------------------
 */

/* What stands for the score of a position that a row does not see. With variants, a NaN, which no
 * visible score can be, because a row may see none of a tile whose positions it might see. So, too,
 * with values whose unit may be a NaN, because hidden ones must have no weight. */
template <enum kv_type TYPE, bool VARIANT> struct hidden {
    static const bool IS_NAN = VARIANT || is_snapped<TYPE>::value;
    static __device__ __forceinline__ float score(void) {
        return IS_NAN ? NAN : -INFINITY;
    }
};

/* The products of the rows with keys: the chunk's positions of this warp, 8 of each part. scales:
 * of keys that are snapped now, scale_of key lane / 4 of each part. */
template <class size, int N>
static __device__ __forceinline__ void
multiply_keys(struct digit_sums sums[N], const unsigned char *keys, const struct decode_memory *mem,
              const uint32_t scales[N]) {
    UNROLL
    for (int i = 0; i < N; i++)
        clear(&sums[i]);
    UNROLL
    for (int k = 0; k < size::COLUMNS; k += 4) {
        const int AT_ONCE = 2 / size::BYTES; /* times 32 elements in four columns */
        uint32_t digits[AT_ONCE][4];
        UNROLL
        for (int j = 0; j < AT_ONCE; j++)
            *(uint4 *)digits[j] =
                ((const uint4 *)mem->query)[32 * (k / 4 * AT_ONCE + j) + threadIdx.x % 32];
        UNROLL
        for (int i = 0; i < N; i++) {
            alignas(16) uint32_t m[4];
            load_keys<size>(m, keys, i, k);
            if constexpr (size::TYPE == KV_BFP8) {
                mma_s8_s8(sums[i].low, digits[0], m);
                mma_s8_s8(sums[i].low, digits[1], m + 2);
            } else if constexpr (size::BYTES == 1) {
                UNROLL
                for (int j = 0; j < AT_ONCE; j++) {
                    uint32_t pairs[4];
                    snap_key_bytes<size::TYPE>(pairs, m[2 * j], scales[i]);
                    snap_key_bytes<size::TYPE>(pairs + 2, m[2 * j + 1], scales[i]);
                    multiply<size::TYPE>(&sums[i], digits[j], pairs);
                }
            } else {
                UNROLL
                for (int j = 0; j < 4 && size::SNAPPED; j++)
                    m[j] = snap_two<size::TYPE>(m[j], scales[i], scales[i]);
                multiply<size::TYPE>(&sums[i], digits[0], m);
            }
        }
    }
}

/* What the scores of a tile depend on, of the row that a lane has. */
struct row_of_lane {
    int row;
    struct row_view view;
};

/* The score of a product at position p, but for the query's unit unless the variant changes scores.
 * sees: the position is before the end of what the row sees. */
template <class size, bool VARIANT>
static __device__ __forceinline__ float
score_of(float dot, float k_unit, int p, bool sees, const struct row_of_lane *at,
         const struct attention_variant *variant, const struct row_states *rows) {
    const struct row_view *view = &at->view;
    float score = num_score(dot, k_unit);
    if (VARIANT) {
        sees = sees && p >= view->first &&
               attention_shows(variant, view->mask, view->i, p, view->length);
        if (attention_changes_scores(variant))
            score = attention_score(variant, (float)(score * rows->unit[at->row].natural), view->at,
                                    p, view->slope);
    }
    if (VARIANT || size::SNAPPED)
        score = fminf(score, INFINITY); /* a NaN is a fault, too, and not hidden */
    return sees ? score : hidden<size::TYPE, VARIANT>::score();
}

/* The scores of a chunk's positions `first` ... of the tile that begins at `tile`. A warp has 8 of
 * each part; a lane those of row g at 2 t and 2 t + 1. */
template <class size, bool VARIANT>
static __device__ __forceinline__ void
score_chunk(float s[], const unsigned char *keys, const struct decode_memory *mem,
            const float *units, const struct row_states *rows, const struct row_of_lane *at,
            const struct attention_variant *variant, int tile, int first) {
    const int N = size::CHUNK / size::PART;
    int position = (int)(threadIdx.x / 32) * 8 + (int)threadIdx.x % 4 * 2; /* of part 0 */
    int end = at->view.end - tile - position;
    struct digit_sums sums[N];
    int exponents[N] = {}; /* of key lane / 4 of each part */
    uint32_t scales[N] = {};
    if constexpr (size::SNAPPED) {
        find_key_exponents<size, N>(exponents, keys);
        UNROLL
        for (int i = 0; i < N; i++)
            scales[i] = scale_of<size::TYPE>(exponents[i]);
    }
    multiply_keys<size, N>(sums, keys, mem, scales);
    UNROLL
    for (int i = 0; i < N; i++) {
        int begin = first + i * size::PART;
        float own_unit = unit_of_key(exponents[i]);
        float2 unit = make_float2(0, 0);
        if (!size::SNAPPED)
            unit = *(const float2 *)(units + begin + position);
        UNROLL
        for (int j = 0; j < 2; j++) {
            float k_unit = j ? unit.y : unit.x;
            if (size::SNAPPED)
                k_unit = __shfl_sync(0xffffffffu, own_unit, (int)threadIdx.x % 4 * 8 + 4 * j);
            s[2 * i + j] = score_of<size, VARIANT>((float)dot_of_key<size>(&sums[i], j), k_unit,
                                                   tile + begin + position + j, begin + j < end, at,
                                                   variant, rows);
        }
    }
}

/* The products of the weights of 32 positions with a column of their values, as ldmatrix gives them
 * on their side. scales: of the positions 2 t and 2 t + 1 of each 8, if they are snapped. */
template <class size>
static __device__ __forceinline__ void multiply_values(struct value_sums<size> *s,
                                                       const uint32_t weights[4],
                                                       const uint32_t m[4], const uint2 scales[4]) {
    if constexpr (!size::SNAPPED) {
        multiply<size::TYPE>(&s->of[0], weights, m);
    } else if constexpr (size::BYTES == 1) {
        uint32_t even[4], odd[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            snap_value_bytes<size::TYPE>(&even[j], &odd[j], m[j], scales[j]);
        multiply<size::TYPE>(&s->of[0], weights, even);
        multiply<size::TYPE>(&s->of[1], weights, odd);
    } else {
        uint32_t snapped[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            snapped[j] = snap_two<size::TYPE>(m[j], scales[j].x, scales[j].y);
        multiply<size::TYPE>(&s->of[0], weights, snapped);
    }
}

/* Adds the products of a chunk's weights and values, of n positions. scales: of the tile's values,
 * if they are snapped. */
template <class size>
static __device__ __forceinline__ void
add_chunk(struct value_sums<size> sums[], const unsigned char *values,
          const struct decode_memory *mem, const uint32_t *scales, int first, int n) {
    int lane = (int)(threadIdx.x % 32);
    UNROLL
    for (int k = 0; k < size::CHUNK; k += 32) {
        uint32_t weights[4];
        if (k >= n)
            break;
        load_digits(weights,
                    mem->weights + lane / 4 * size::WEIGHT_BYTES + first + k + lane % 4 * 4,
                    ROWS * size::WEIGHT_BYTES);
        uint2 scale[4];
        UNROLL
        for (int j = 0; j < 4 && size::SNAPPED; j++)
            scale[j] = *(const uint2 *)(scales + first + k + 8 * j + lane % 4 * 2);
        UNROLL
        for (int i = 0; i < size::SHARE; i++) {
            uint32_t m[4];
            if (size::COLUMNS % size::WARPS && column_of_warp<size>(i) >= size::COLUMNS)
                break;
            ldmatrix_x4_trans(m, values + (k + lane) * size::ROW_BYTES +
                                     16 * column_in_row<size>(lane, column_of_warp<size>(i)));
            multiply_values<size>(&sums[i], weights, m, scale);
        }
    }
}

/* The weighted sum of dimension first_dim + j of a column. unit: 2^(e-22), e of the weights. */
template <class size>
static __device__ __forceinline__ float weighted_value(const struct value_sums<size> *s, int j,
                                                       float unit) {
    if constexpr (size::BYTES == 2)
        return (float)dot_of(&s->of[0], j) * unit;
    else if constexpr (size::SNAPPED)
        return (float)dot_of(&s->of[j % 2], j / 2) * unit;
    else
        return (float)dot_of_bytes(j % 2 ? s->of[0].high : s->of[0].low, j / 2) * unit;
}

#endif
