/*
 * queries.h - for gpu/fast/prompt/wgmma.cu and short.cu: a row's query, snapped and split into
 * digits by the threads that multiply it.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_QUERIES_H
#define SAMEBITS_GPU_FAST_PROMPT_QUERIES_H

#include "gpu/fast/prompt/wgmma.h"

/* A thread's part of a row of queries: of 32 elements, 4 t ... 4 t + 3 and 16 + 4 t ... */
template <int DIM> struct query_elements { alignas(16) float x[DIM / 16][4]; };

/* Where a row's query begins. */
static __device__ __forceinline__ const float *query_at(const struct attention_arguments *a,
                                                        const struct prompt_row *row) {
    return a->q +
           ((size_t)row->token * (size_t)a->n_heads + (size_t)row->head) * (size_t)a->head_dim;
}

template <int DIM>
static __device__ __forceinline__ void load_query(struct query_elements<DIM> *out,
                                                  const struct prompt_row *query,
                                                  const struct attention_arguments *a) {
    int t = (int)threadIdx.x % 4, dim = a->head_dim;
    bool vectors = dim % 4 == 0 && (uintptr_t)a->q % 16 == 0, whole = vectors && dim == DIM;
    const float *q = query_at(a, query) + 4 * t;
    UNROLL
    for (int i = 0; i < DIM / 16; i++, q += 16) {
        int n = whole ? 4 : dim - 16 * i - 4 * t; /* that are left */
        *(float4 *)out->x[i] = vectors && n > 0 ? *(const float4 *)q
                                                : make_float4(n > 0 ? q[0] : 0, n > 1 ? q[1] : 0,
                                                              n > 2 ? q[2] : 0, n > 3 ? q[3] : 0);
    }
}

/* Snaps and splits it. Its unit goes to q_unit. A row that cannot be snapped is a fault, and zeros.
 */
template <int DIM>
static __device__ __forceinline__ void
snap_query(struct row_digits<DIM / 32> *out, struct num_score_unit *q_unit,
           const struct query_elements<DIM> *in, const struct prompt_row *query,
           const struct attention_arguments *a) {
    int t = (int)threadIdx.x % 4;
    /* As signed integers, the bits of the largest number; as unsigned ones, those of the smallest
     * if it is negative. The hardware compares three at a time. */
    int32_t top = 0;
    uint32_t bottom = 0;
    UNROLL
    for (int i = 0; i < DIM / 4; i++) {
        top = max(top, (int32_t)num_bits(in->x[i / 4][i % 4]));
        bottom = max(bottom, num_bits(in->x[i / 4][i % 4]));
    }
    uint32_t largest = max((uint32_t)top, bottom & 0x7fffffff);
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    int e = num_row_exponent(largest);
    bool bad = e > BFP_MAX_EXPONENT;
    if (bad && t == 0)
        gpu_fault(a->fault, a->site, query->token);
    e = bad ? BFP_MIN_EXPONENT : e;
    if (t == 0)
        *q_unit = num_score_unit_of(e, a->scale);
    float scale = num_pow2f(15 - e);
    UNROLL
    for (int i = 0; i < DIM / 16; i++)
        split_four<true>(out->of[i / 2] + i % 2 * 2, in->x[i], scale);
    if (!__any_sync(0xffffffffu, bad))
        return;
    UNROLL
    for (int i = 0; i < DIM / 8; i++)
        out->of[i / 4][i % 4] = bad ? 0 : out->of[i / 4][i % 4];
}

/* Asks for the queries of a later item, so that its block need not wait for memory. */
template <bool VARIANT>
static __device__ __forceinline__ void
prefetch_queries(const struct item_task *t, const struct attention_digits *in, int later) {
    int row = (int)threadIdx.x;
    if (row >= ROWS)
        return;
    struct row_list list = item_of(t->a, t->work, in, later).list;
    if (row >= list.n_rows)
        return;
    struct prompt_row query = prompt_row_of<VARIANT>(t->variant, t->work, &list, t->kv_head, row);
    for (int d = 0; d < t->a->head_dim; d += 32) /* a line: 32 floats */
        prefetch_l2(query_at(t->a, &query) + d);
}

#endif
