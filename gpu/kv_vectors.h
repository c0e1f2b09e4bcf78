/*
 * kv_vectors.h - a cache read in vectors of 16 bytes: N elements of a row that lie next to each
 * other, or one element of N positions that do. With N = 1 a vector is a single element, which any
 * cache has.
 */
#ifndef SAMEBITS_KV_VECTORS_H
#define SAMEBITS_KV_VECTORS_H

#include "gpu/cuda_compat.h"
#include "model/attention/kv_view.h"

enum { MANTISSAS = 8 /* in 16 bytes */ };

static inline bool is_aligned(const struct kv_view *v, int n) {
    return (uintptr_t)v->data % 16 == 0 && v->page_step % n == 0 && v->head_step % n == 0;
}

/* Whether rows lie in vectors of n elements, in one piece or as vLLM's keys do. */
static inline bool lies_in_vectors(const struct kv_view *v, int n) {
    return is_aligned(v, n) && v->element_step == 1 && (v->x == n || v->group_step == v->x) &&
           v->group_step % n == 0 && v->position_step % n == 0;
}

/* Whether n neighbouring positions of an element do, as in vLLM's values. */
static inline bool lies_across(const struct kv_view *v, int n, int page_size) {
    return is_aligned(v, n) && v->position_step == 1 && v->element_step == page_size &&
           v->group_step == v->x * v->element_step && page_size % n == 0;
}

/* Element i of N. */
template <int N> static __device__ __forceinline__ uint32_t element_of(const uint4 &vector, int i) {
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    const int in_word = N == 1 ? 1 : N / 4, bits = 32 / in_word;
    return words[i / in_word] >> (i % in_word * bits) & (~0u >> (32 - bits));
}

/* Vector i of a row. Zeros where there is nothing, so that loads can stand together, before any of
 * them is used. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ uint4 load(const struct kv_view *v, int64_t row, int i,
                                             bool there) {
    uint4 vector = {0, 0, 0, 0};
    int64_t next = v->x == N ? v->group_step : N; /* vLLM's keys; rows in one piece */
    if (there && N == 1)
        vector.x = kv_load_bits(v->data, TYPE, row + kv_view_element(v, i));
    else if (there)
        vector = __ldg((const uint4 *)v->data + (row + i * next) / N);
    return vector;
}

/* Element d of N neighbouring positions; row: of the first. */
template <int N>
static __device__ __forceinline__ uint4 load_across(const struct kv_view *v, int64_t row, int d) {
    return __ldg((const uint4 *)v->data + (row + d * v->element_step) / N);
}

/* The N mantissas, at a multiple of 16 bytes, that such a vector is multiplied by. */
template <int N> struct mantissas { int at[N]; };
template <int N>
static __device__ __forceinline__ struct mantissas<N> load_mantissas(const int16_t *from) {
    struct mantissas<N> to;
    if (N == 1)
        to.at[0] = *from;
    UNROLL
    for (int k = 0; k < N && N > 1; k++)
        to.at[k] =
            (int16_t)element_of<MANTISSAS>(((const uint4 *)from)[k / MANTISSAS], k % MANTISSAS);
    return to;
}

/* A mantissa times an element. */
template <enum kv_type TYPE>
static __device__ __forceinline__ long long product(int mantissa, uint32_t bits, float scale) {
    return (long long)mantissa * kv_integer(TYPE, bits, scale);
}

/* What a row of that exponent is multiplied by before it becomes integers, if it is snapped. */
template <enum kv_type TYPE> static __device__ __forceinline__ float scale_of(int exponent) {
    return kv_type_has_exponents(TYPE) ? 1 : num_pow2f(15 - exponent);
}

#endif
