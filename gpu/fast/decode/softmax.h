/*
 * softmax.h - for gpu/fast/decode/decode.cu: the softmax of a tile, whose scores stay where the
 * products leave them, and the weights of its values.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_SOFTMAX_H
#define SAMEBITS_GPU_FAST_DECODE_SOFTMAX_H

#include "gpu/fast/decode/tile.h"

/*
 * The softmax of a tile. Its scores stay where the products leave them: a lane has those of row g
 * at two positions of each part, s[2 i] and s[2 i + 1]. What a row needs of all warps goes through
 * shared memory: the largest score, then the sum and the largest weight.
 *
 * With at most 4 rows (one token and 4 query heads, say), the lanes of rows 4 to 7 have nothing of
 * their own and take half of the positions of row g - 4.
 */
struct softmax {
    int row;              /* whose scores this lane has */
    int first_part, n;    /* of the n scores */
    bool halves, sees;    /* sees: the row something of the tile */
    float tile_m, tile_l; /* of that row */
    float unit;           /* of its weighted values */
};

/* Writes this warp's largest score of each row where the other warps read it. */
template <class size>
static __device__ __forceinline__ void store_largest(const float s[], struct row_states *rows) {
    float m = s[0];
    UNROLL
    for (int i = 1; i < size::SCORES; i++)
        m = fmaxf(m, s[i]);
    UNROLL
    for (int step = 1; step < 4; step *= 2)
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, step));
    if (is_first_of_row())
        rows->largest_score[row_of_lane()][threadIdx.x / 32] = m;
}

/* Scores become weights, as far as without the others' sums. visible: positions of the tile that
 * the row may see. A NaN, which is -infinity less itself, too, has the probability 0. */
template <class size, bool VARIANT>
static __device__ __forceinline__ void
weigh(struct softmax *x, float s[], int n_rows, int visible, const uint32_t *units_of_values,
      const struct attention_variant *variant, struct row_states *rows) {
    const int N = size::SCORES;
    int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    x->halves = n_rows <= ROWS / 2;
    x->row = row_of_lane();
    x->first_part = 0;
    x->n = N;
    if (x->halves) {
        x->row %= ROWS / 2;
        x->n = N / 2;
        UNROLL
        for (int i = 0; i < N / 2; i++) {
            float other = __shfl_xor_sync(0xffffffffu, s[N / 2 + i], 16);
            s[i] = lane < 16 ? s[i] : other;
        }
        visible = __shfl_sync(0xffffffffu, visible, lane % 16);
        x->first_part = lane < 16 ? 0 : size::PARTS / 2;
    }
    const float4 *largest = (const float4 *)rows->largest_score[x->row];
    float m = NAN; /* of which fmaxf takes the other: hidden scores may be NaNs */
    UNROLL
    for (int i = 0; i < size::WARPS / 4; i++)
        m = fmaxf(m, fmaxf(fmaxf(largest[i].x, largest[i].y), fmaxf(largest[i].z, largest[i].w)));
    bool sees = VARIANT ? m == m : visible > 0;
    struct num_score_unit unit = rows->unit[x->row];
    if (VARIANT)
        unit = attention_score_unit(variant, unit);
    x->tile_m = num_tile_max(m, unit);
    bool bad = sees && num_magnitude(x->tile_m) >= 0x7f800000u; /* float cannot hold it */
    struct num_window window = num_window_of(m, unit.binary);
    uint32_t units = 0, largest_bits = 0; /* of weights that may be a NaN, which is the largest */
    float heaviest = 0;
    const uint32_t *value_units =
        units_of_values + x->first_part * size::PART + warp * 8 + lane % 4 * 2;
    UNROLL
    for (int half = 0; half < N; half += N / 2) {
        if (half >= x->n)
            break;
        UNROLL
        for (int i = half; i < half + N / 2; i++) {
            bool hides = s[i] != s[i];
            float p = num_probability(s[i], window);
            units += num_probability_units(p);
            /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
            s[i] = p * num_float(value_units[i / 2 * size::PART + i % 2]);
            if constexpr (size::SNAPPED) {
                s[i] = hides ? 0 : s[i];
                largest_bits = max(largest_bits, num_bits(s[i]));
            } else {
                heaviest = fmaxf(heaviest, s[i]);
            }
        }
    }
    if (size::SNAPPED)
        heaviest = num_float(min(largest_bits, 0x7f800000u));
    UNROLL
    for (int step = 1; step <= 16; step *= step == 2 ? 8 : 2) {
        if (step == 16 && !x->halves)
            break;
        units += __shfl_xor_sync(0xffffffffu, units, step);
        heaviest = fmaxf(heaviest, __shfl_xor_sync(0xffffffffu, heaviest, step));
    }
    if (is_first_of_row() && row_of_lane() == x->row) /* one lane for all of them */
        rows->units_and_weight[x->row][warp] =
            make_uint2(units, bad ? num_bits(INFINITY) : num_bits(heaviest));
    x->sees = sees;
}

/* Snaps the weights and leaves their digits in shared memory. Returns false: a row that cannot be
 * snapped. */
template <class size>
static __device__ __forceinline__ bool snap_weights(struct softmax *x, const float s[],
                                                    const struct decode_memory *mem,
                                                    const struct row_states *rows) {
    const int N = size::SCORES;
    int warp = (int)(threadIdx.x / 32);
    const uint4 *of_warps = (const uint4 *)rows->units_and_weight[x->row];
    uint32_t units = 0, largest = 0;
    UNROLL
    for (int i = 0; i < size::WARPS / 2; i++) {
        uint4 two = of_warps[i];
        units += two.x + two.z;
        largest = max(largest, max(two.y, two.w));
    }
    int e = num_row_exponent(largest);
    bool bad = e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    float scale = bad ? 0 : num_pow2f(15 - e);
    int position = x->first_part * size::PART + warp * 8 + (int)(threadIdx.x % 4) * 2;
    int8_t *to = mem->weights + x->row * size::WEIGHT_BYTES + summand_of(position);
    UNROLL
    for (int half = 0; half < N; half += N / 2) {
        if (half >= x->n)
            break;
        UNROLL
        for (int i = half; i < half + N / 2; i += 2) {
            int8_t *high = to + i / 2 * size::PART;
            put_two_digits(high, high + ROWS * size::WEIGHT_BYTES, num_mantissa(s[i], scale),
                           num_mantissa(s[i + 1], scale));
        }
    }
    x->tile_l = (float)units * 0x1p-23f;
    x->unit = num_pow2f(e - 22);
    return !bad;
}

#endif
