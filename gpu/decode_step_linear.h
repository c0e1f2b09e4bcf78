/*
 * decode_step_linear.h - a linear layer of decode_step.
 *
 * Sixteen rows of weights are a tile: the rows of an mma, whose columns are the rows of x. A block
 * has tiles that follow each other. A unit is a tile and 64 inputs; the warps of a block take its
 * units in turn, leave their sums in shared memory, and a thread per output adds those of the tile.
 * The weights are on their way while the blocks still tell each other the layer's input.
 */
#ifndef SAMEBITS_GPU_DECODE_STEP_LINEAR_H
#define SAMEBITS_GPU_DECODE_STEP_LINEAR_H

#include "gpu/decode_step.h"

/* A kind of linear layer, without what a block has of it. */
static inline __host__ __device__ struct step_linear step_linear_of(const struct step_arguments *a,
                                                                    enum step_kind kind) {
    int q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    int k = kind == STEP_O ? q : kind == STEP_DOWN ? a->ffn : a->hidden;
    struct step_linear w = {};
    w.gated = kind == STEP_GATE_UP;
    w.matrix = kind == STEP_O ? 3 : kind == STEP_GATE_UP ? 4 : kind == STEP_DOWN ? 6 : 0;
    w.n = kind == STEP_QKV       ? q + 2 * kv
          : kind == STEP_GATE_UP ? a->ffn
          : kind == STEP_LOGITS  ? a->vocab
                                 : a->hidden;
    w.second = kind == STEP_QKV ? q : w.n;
    w.third = kind == STEP_QKV ? q + kv : w.n;
    w.steps = gpu_padded(k) / 64;
    w.steps_inverse = step_inverse(w.steps);
    w.outputs = w.gated ? 8 : 16;
    w.at_once = STEP_UNITS / w.steps;
    return w;
}

static inline __host__ __device__ int step_tiles(const struct step_linear *w) {
    return (w->n + w->outputs - 1) / w->outputs;
}

static inline __host__ __device__ size_t step_packed_bytes(const struct step_linear *w) {
    return (size_t)step_tiles(w) * (size_t)step_tile_bytes(w->steps);
}

/* Where a kind begins in what is packed of a layer; of STEP_LOGITS, the bytes of a layer. (It comes
 * behind the last one, as a layer of its own.) */
static inline __host__ __device__ size_t step_packed_offset(const struct step_arguments *a,
                                                            enum step_kind kind) {
    size_t at = 0;
    for (int i = 0; i < kind; i++) {
        struct step_linear w = step_linear_of(a, (enum step_kind)i);
        at += step_packed_bytes(&w);
    }
    return at;
}

/* Of output i, the bias; NULL: there is none. of_up: the second row of a gated one. (Adding 0 would
 * make a +0 of a -0.) */
static __device__ __forceinline__ const float *
bias_of(const struct step_linear *w, const struct step_layer *layer, int i, bool of_up) {
    int matrix = w->matrix + (of_up || i >= w->second), first = i >= w->second ? w->second : 0;
    if (i >= w->third) {
        matrix++;
        first = w->third;
    }
    const float *biases = layer->biases[matrix];
    return biases ? biases + (i - first) : NULL;
}

/* Starts copying the weights of tiles first ... of the block, as many as there is room for. Nobody
 * reads those before any more. */
static __device__ __forceinline__ void fetch(struct step *s, const struct step_linear *w, int layer,
                                             int first) {
    if (threadIdx.x == STEP_CLERK) {
        int n = min(w->n_tiles - first, w->at_once), bytes = step_tile_bytes(w->steps);
        bulk_copy(&step_shared()->barrier, step_shared()->weights,
                  w->packed + (size_t)layer * s->a->layer_bytes + first * bytes, n * bytes);
    }
    bulk_end_group();
    s->copies++;
}

/* Leaves the sums of a unit at `to`, [rows][16]. */
static __device__ __forceinline__ void multiply_unit(long long *to, const struct step *s,
                                                     const unsigned char *weights, int step) {
    int g = s->lane / 4, t = s->lane % 4, at = g * s->at.stride + step * 64 + t * 16;
    alignas(16) uint32_t x_high[4] = {}, x_low[4] = {}; /* unsigned, as attention has it */
    if (g < s->n_rows) {
        *(uint4 *)x_high = *(const uint4 *)(step_memory() + s->at.high + at);
        *(uint4 *)x_low = *(const uint4 *)(step_memory() + s->at.low + at);
    }
    int32_t high_high[4] = {}, high_low[4] = {}, low_high[4] = {}, low_low[4] = {};
    UNROLL
    for (int j = 0; j < 2; j++) {
        alignas(16) uint32_t high[4], low[4];
        *(uint4 *)high = ((const uint4 *)weights)[32 * j + s->lane];
        *(uint4 *)low = ((const uint4 *)weights)[32 * (2 + j) + s->lane];
        mma_s8_s8(high_high, high, x_high + 2 * j);
        mma_s8_u8(high_low, high, x_low + 2 * j);
        mma_s8_s8(low_high, low, x_high + 2 * j);
        mma_s8_u8(low_low, low, x_low + 2 * j);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        int row = 2 * t + i % 2;
        if (row < s->n_rows)
            to[row * 16 + g + i / 2 * 8] =
                65536ll * high_high[i] + 256ll * (high_low[i] + low_high[i]) + low_low[i];
    }
}

/* num_dot_to_float, without float64 where the result is a normal number: the rounding of dot to a
 * float is then the only one. */
static __device__ __forceinline__ float step_round(long long dot, int exponent) {
    return exponent >= -126 && exponent <= 60 ? (float)dot * num_pow2f(exponent)
                                              : num_dot_to_float((double)dot, exponent);
}

/* Row `i` of tile `tile` times this warp's row of x, from the sums that are there. */
static __device__ __forceinline__ float step_dot(const struct step *s, const struct step_linear *w,
                                                 int tile, int i, const float *bias) {
    int stride = s->n_rows * 16;
    const long long *from = step_shared()->partial + tile * w->steps * stride + s->row * 16 + i;
    const int8_t *exponents =
        (const int8_t *)step_shared()->weights + tile * step_tile_bytes(w->steps) + w->steps * 2048;
    long long dot = 0;
    UNROLL_4
    for (int step = 0; step < w->steps; step++)
        dot += from[step * stride];
    float y = step_round(dot, step_shared()->exponents[s->row] + exponents[i] - 30);
    return bias ? y + *bias : y;
}

/* The bias of row i of the block's tiles from tile `first` on; NULL: none. */
static __device__ __forceinline__ const float *
step_bias(const struct step *s, const struct step_linear *w, int layer, int first, int i) {
    int tile = w->first_tile + first + i / 16;
    if (!s->a->has_biases)
        return NULL;
    int output = w->gated ? tile * 8 + i % 8 : tile * 16 + i % 16;
    return output < w->n ? bias_of(w, step_layer_of(s, layer), output, w->gated && i % 16 >= 8)
                         : NULL;
}

/* Row i of the block's tiles from tile `first` on times this warp's row of x; of a gated layer,
 * what it gives together with its other row, for both. 0 if i >= n. A whole warp calls this. */
static __device__ __forceinline__ float
step_output(const struct step *s, const struct step_linear *w, int layer, int first, int i, int n) {
    float y = 0;
    if (i < n)
        y = step_dot(s, w, i / 16, i % 16, step_bias(s, w, layer, first, i));
    if (w->gated) { /* eight rows of gate, then eight of up */
        float other = __shfl_xor_sync(0xffffffffu, y, 8);
        bool is_gate = i % 16 < 8;
        y = num_silu(is_gate ? y : other) * (is_gate ? other : y);
    }
    return y;
}

/* Which output that is, counted from the first of these tiles; -1: another thread has it. */
static __device__ __forceinline__ int output_of_row(const struct step_linear *w, int i) {
    return !w->gated ? i : i % 16 < 8 ? i / 16 * 8 + i % 8 : -1;
}

/* The outputs of n tiles whose sums are there, for all blocks. */
static __device__ __forceinline__ void
tell_outputs(const struct step *s, const struct step_linear *w, int layer, int first, int n) {
    int base = (w->first_tile + first) * w->outputs;
    int n_outputs = min(n * w->outputs, w->n - base);
    bool more = first + n < w->n_tiles;
    UNROLL_1
    for (int i = s->part * 32 + s->lane; i - s->lane < n * 16 && s->row < s->n_rows;
         i += s->n_parts * 32) {
        float y = step_output(s, w, layer, first, i, n * 16);
        int output = output_of_row(w, i);
        if (output >= 0 && output < n_outputs)
            step_shared()->outputs[s->row * STEP_OUTPUTS + output] = y;
    }
    __syncthreads();
    UNROLL_1
    for (int row = 0; row < s->n_rows; row++) {
        const float *outputs = step_shared()->outputs + row * STEP_OUTPUTS;
        uint32_t *so_far = &step_shared()->largest[s->warp][row]; /* of lane 0 */
        uint32_t largest = w->gated && first && s->lane == 0 ? *so_far : 0;
        largest = step_publish(s, outputs, row, base, n_outputs, w->gated, largest);
        if (w->gated && !more)
            step_publish_largest(s, largest, row, s->rank);
        else if (w->gated && s->lane == 0)
            *so_far = largest;
    }
}

/* The outputs of n tiles of the output matrix. */
static __device__ __forceinline__ void
write_logits(const struct step *s, const struct step_linear *w, int layer, int first, int n) {
    int base = (w->first_tile + first) * 16;
    float *logits = s->a->logits + (size_t)(s->first_row + s->row) * (size_t)w->n + (size_t)base;
    UNROLL_1
    for (int i = s->part * 32 + s->lane; i < n * 16 && s->row < s->n_rows; i += s->n_parts * 32)
        if (base + i < w->n)
            logits[i] = step_dot(s, w, i / 16, i % 16, step_bias(s, w, layer, first, i));
    __syncthreads();
}

/*
 * Multiplies the digits in shared memory by the weights of linear layer w, the first of which are
 * being copied. The outputs go to the next stage of all blocks, or to the logits. At the end (and
 * behind the barrier in either of the two functions above) the room for weights is free.
 */
static __device__ __forceinline__ void multiply_rows(struct step *s, const struct step_linear *w,
                                                     int layer) {
    for (int first = 0;;) {
        int n = min(w->at_once, w->n_tiles - first), n_units = n * w->steps;
        bulk_wait(&step_shared()->barrier, (s->copies - 1) % 2, 0);
        UNROLL_1
        for (int unit = s->warp; unit < n_units; unit += STEP_WARPS) {
            int tile = step_divide(unit, w->steps_inverse), step = unit - tile * w->steps;
            multiply_unit(step_shared()->partial + unit * s->n_rows * 16, s,
                          step_shared()->weights + tile * step_tile_bytes(w->steps) + step * 2048,
                          step);
        }
        __syncthreads();
        if (layer == s->a->n_layers)
            write_logits(s, w, layer, first, n);
        else
            tell_outputs(s, w, layer, first, n);
        first += n;
        if (first >= w->n_tiles)
            break;
        fetch(s, w, layer, first);
    }
}

#endif
