/*
 * fp8_mend.h - for gpu/fast/decode/decode.cu: values of 8-bit floats that are not finite. In a sum
 * they make a NaN of every row, those that do not see them, too; such a tile is computed once more
 * here.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_FP8_MEND_H
#define SAMEBITS_GPU_FAST_DECODE_FP8_MEND_H

#include "gpu/fast/decode/fp8.h"

/* What stands in the cache at position j of a tile. rows: of the tile. */
template <class size>
static __device__ __forceinline__ const uint8_t *value_row(const struct loader<size> *chunks,
                                                           int set, int j) {
    uint32_t row = chunks->memory.rows[set * TILE + j / size::CHUNK * size::CHUNK +
                                       loader<size>::place_of_row(j % size::CHUNK)];
    return (const uint8_t *)chunks->cache->v + (uint64_t)row * (uint32_t)chunks->a->head_dim;
}

/* A weight from its digits. */
template <class size>
static __device__ __forceinline__ int weight_at(const uint16_t *weights, int row, int position) {
    float sum = 0;
    for (int i = 0; i < size::DIGITS; i++)
        sum += half_to_float(weights[place_of_weight_digit<size>(row, i, position)]);
    return (int)(sum * digit_unit<size>());
}

/* The weighted sum of dimension d, of row `row`: in integers, a NaN is a number, and where its
 * weight is 0, nothing. */
template <class size>
static __device__ float mend_value(const struct loader<size> *chunks, int set, int n, int row,
                                   int d, float unit) {
    const uint16_t *weights = (const uint16_t *)chunks->memory.weights;
    long long sum = 0;
    for (int j = 0; j < n && d < chunks->a->head_dim; j++)
        sum += (long long)weight_at<size>(weights, row, j) *
               kv_integer(size::TYPE, value_row(chunks, set, j)[d], 1);
    return (float)(double)sum * (unit * num_pow2f(kv_fixed_exponent(size::TYPE) - 15));
}

/* Faults of the rows that see a value of the tile's n that is not finite; by a warp. */
template <class size, bool VARIANT>
static __device__ void fault_bad_values(const struct loader<size> *chunks, int set, int n,
                                        const struct row_group *g, int tile,
                                        const struct attention_variant *variant) {
    const struct attention_arguments *a = chunks->a;
    for (int j = (int)(threadIdx.x % 32); j < n; j += 32) {
        const uint8_t *row = value_row(chunks, set, j);
        uint32_t largest = 0;
        for (int d = 0; d < a->head_dim; d++)
            largest = max(largest, kv_magnitude(size::TYPE, row[d]));
        for (int r = 0; r < g->n_rows && kv_read_exponent(size::TYPE, largest) > BFP_MAX_EXPONENT;
             r++) {
            struct row_view v = view_of<VARIANT>(a, variant, g, r);
            int p = tile + j;
            if (p >= v.first && p < v.end &&
                (!VARIANT || attention_shows(variant, v.mask, v.i, p, v.length)))
                gpu_fault(a->fault, a->site, g->first_token + token_of(a, g, r));
        }
    }
}

#endif
