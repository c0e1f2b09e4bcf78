/*
 * merge.h - the end of a row whose tiles several thread blocks worked on: what each
 * result counts for, and what is done with the sums. For gpu/fast/decode/merge.cu and
 * gpu/fast/prompt/chains.cu.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_MERGE_H
#define SAMEBITS_GPU_FAST_DECODE_MERGE_H

#include "gpu/fast/plan/plan.h"

enum { LANES = 32, VECTOR = 4 /* floats in 16 bytes */ };

/* ---- shares -----------------------------------------------------------------------------------
 */

/* The largest of this lane's and those of the lanes before it. */
static __device__ __forceinline__ float largest_so_far(float x) {
    UNROLL
    for (int step = 1; step < LANES; step *= 2) {
        float other = __shfl_up_sync(0xffffffffu, x, (unsigned)step);
        x = (int)threadIdx.x % LANES >= step ? fmaxf(x, other) : x;
    }
    return x;
}

/* What a result counts for, and what is before it; and its l. */
struct result_shares {
    float old, fresh, l;
};

/* before: m of what is before; max: of both. A NaN, the row sees nothing of the tile, does not
 * count: its zeros are multiplied by -0, which leaves all as it is. */
static __device__ __forceinline__ struct result_shares shares_of(float before, float max,
                                                                 float2 ml) {
    float old = num_exp(before - max), fresh = num_exp(ml.x - max);
    return fresh >= 0 /* not a NaN */ ? (struct result_shares){old, fresh, ml.y}
                                      : (struct result_shares){1, -0.0f, 0};
}

/* ---- the end of a row -------------------------------------------------------------------------
 */

/* A row of the op. */
struct merged_row {
    int token, head;
};

/* What is still to be done with the values of a row. */
struct row_end {
    float *y; /* the row's */
    bool sinks, divides;
    float old, fresh, l, v_scale;

    __device__ __forceinline__ void write(int d, float o) const {
        o = sinks ? num_merge(o, old, 0, fresh) : o; /* a tile of values that are 0 */
        y[d] = (divides ? o / l : o) * v_scale;
    }
};

/* The sums of a row are complete. first: of the threads that have its values. */
static __device__ __forceinline__ struct row_end end_row(const struct attention_arguments *a,
                                                         const struct attention_variant *variant,
                                                         struct merged_row row, float m, float l,
                                                         bool first) {
    struct row_end e = {};
    size_t number = (size_t)row.token * (size_t)a->n_heads + (size_t)row.head;
    e.y = a->y + number * (size_t)a->head_dim;
    e.sinks = variant->sinks != NULL;
    if (e.sinks) {
        attention_merge_sink(variant->sinks[row.head], &m, &l, &e.old, &e.fresh);
        if (!attention_sink_is_finite(variant->sinks[row.head]) && first)
            gpu_fault(a->fault, a->site, row.token);
    }
    if (first)
        attention_note_sums(variant, number, m, l);
    e.l = l;
    e.divides = l > 0 && !variant->m;
    e.v_scale = a->v_scale;
    return e;
}

#endif
