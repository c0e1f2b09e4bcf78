/*
 * linear.h - a linear layer of decode_step: computes what ../../linear.cu does, for up to eight
 * rows whose digits are in the shared memory of every block; gains a launch.
 *
 * Sixteen rows of weights are a panel: the rows of an mma, whose columns are the rows of x. A block
 * has panels that follow each other. A unit is a panel and 64 inputs; the warps of a block take its
 * units in turn, leave their sums in shared memory, and a thread per output adds those of the
 * panel. The weights are on their way from the moment at which those before have been multiplied.
 */
#ifndef SAMEBITS_GPU_FAST_STEP_LINEAR_H
#define SAMEBITS_GPU_FAST_STEP_LINEAR_H

#include "gpu/fast/step/step.h"

/* A kind of linear layer, without what a block has of it. */
static inline struct step_linear step_linear_of(const struct step_arguments *a,
                                                enum step_kind kind) {
    static const int tensors[N_STEP_LINEARS][2] = {{TENSOR_EMBEDDING, TENSOR_ATTENTION_NORM},
                                                   {TENSOR_ATTENTION, TENSOR_ATTENTION},
                                                   {TENSOR_MIDDLE, TENSOR_FFN_NORM},
                                                   {TENSOR_ACTIVATION, TENSOR_ACTIVATION},
                                                   {TENSOR_RESIDUAL, TENSOR_FINAL_NORM}};
    int q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    struct step_linear w = {};
    w.columns = kind == STEP_O ? q : kind == STEP_DOWN ? a->ffn : a->hidden;
    w.norm = kind != STEP_O && kind != STEP_DOWN;
    w.parts = kind == STEP_O ? q / 32 : kind == STEP_DOWN ? (a->ffn + 7) / 8 : 0;
    w.gains = kind == STEP_GATE_UP ? a->hidden : 0;
    w.site_x = tensors[kind][0];
    w.site_y = tensors[kind][1];
    w.gated = kind == STEP_GATE_UP;
    w.matrix = kind == STEP_O ? 3 : kind == STEP_GATE_UP ? 4 : kind == STEP_DOWN ? 6 : 0;
    w.n = kind == STEP_QKV       ? q + 2 * kv
          : kind == STEP_GATE_UP ? a->ffn
          : kind == STEP_LOGITS  ? a->vocab
                                 : a->hidden;
    w.second = kind == STEP_QKV ? q : w.n;
    w.third = kind == STEP_QKV ? q + kv : w.n;
    w.steps = gpu_padded(w.columns) / 64;
    w.steps_inverse = step_inverse(w.steps);
    w.outputs = w.gated ? 8 : 16;
    w.n_sent = w.n + (w.gated ? (w.n + 7) / 8 : 0);
    w.room = STEP_UNITS / w.steps;
    return w;
}

static inline __host__ __device__ int step_panels(const struct step_linear *w) {
    return (w->n + w->outputs - 1) / w->outputs;
}

/* Where the exponents begin in what is packed of it, and the bytes of all. */
static inline __host__ __device__ size_t step_exponents_offset(const struct step_linear *w) {
    return (size_t)step_panels(w) * (size_t)step_panel_bytes(w->steps);
}
static inline size_t step_packed_bytes(const struct step_linear *w) {
    return step_exponents_offset(w) + (size_t)step_panels(w) * 16;
}

/* Where a kind begins in what is packed of a layer; of STEP_LOGITS, the bytes of a layer. (It comes
 * behind the last one, as a layer of its own.) */
static inline size_t step_packed_offset(const struct step_arguments *a, enum step_kind kind) {
    size_t at = 0;
    for (int i = 0; i < kind; i++) {
        struct step_linear w = step_linear_of(a, (enum step_kind)i);
        at += step_packed_bytes(&w);
    }
    return at;
}

/* The bias of output i, or NULL where there is none. of_up: the second row of a gated one. (Adding
 * 0 would make a +0 of a -0.) */
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

/* The copy thread alone: starts copying the weights of panels first ... of the block, as many as
 * there is room for. Nobody reads the digits before any more. */
static __device__ __forceinline__ void fetch(const struct step *s, const struct step_linear *w,
                                             int layer, int first) {
    int n = min(w->n_panels - first, w->room), bytes = step_panel_bytes(w->steps);
    size_t at = (size_t)layer * s->a->layer_bytes;
    struct bulk_barrier *barrier = &step_shared()->barrier;
    bulk_expect(barrier, n * (bytes + 16));
    bulk_part(barrier, step_shared()->weights, w->packed + at + first * bytes, n * bytes);
    bulk_part(barrier, step_shared()->weight_exponents[s->copies % 2],
              w->exponents + at + first * 16, n * 16);
}

/* All: one copy more has been started. */
static __device__ __forceinline__ void count_fetch(struct step *s) {
    bulk_end_group();
    s->copies++;
}

/* What a warp multiplies: the weights of a unit. */
struct step_unit {
    alignas(16) uint32_t high[2][4], low[2][4];
    int step; /* of its inputs */
};

static __device__ __forceinline__ void load_unit(struct step_unit *u, const struct step *s,
                                                 const struct step_linear *w, int unit) {
    int panel = step_divide(unit, w->steps_inverse);
    u->step = unit - panel * w->steps;
    const uint4 *from = (const uint4 *)(step_shared()->weights + unit * 2048) + s->lane;
    UNROLL
    for (int j = 0; j < 2; j++) {
        *(uint4 *)u->high[j] = from[32 * j];
        *(uint4 *)u->low[j] = from[32 * (2 + j)];
    }
}

/* Leaves the sums of a unit at `to`, [rows][16]. */
static __device__ __forceinline__ void multiply_unit(long long *to, const struct step *s,
                                                     const struct step_unit *u) {
    int g = s->lane / 4, t = s->lane % 4; /* a column that is no row has the last one's sums */
    int at = min(g, s->n_rows - 1) * s->a->at.stride + u->step * 64 + t * 16;
    alignas(16) uint32_t x_high[4], x_low[4]; /* unsigned, as attention has it */
    *(uint4 *)x_high = *(const uint4 *)(step_memory() + s->a->at.high + at);
    *(uint4 *)x_low = *(const uint4 *)(step_memory() + s->a->at.low + at);
    int32_t high_high[4] = {}, high_low[4] = {}, low_high[4] = {}, low_low[4] = {};
    UNROLL
    for (int j = 0; j < 2; j++) {
        mma_s8_s8(high_high, u->high[j], x_high + 2 * j);
        mma_s8_u8(high_low, u->high[j], x_low + 2 * j);
        mma_s8_s8(low_high, u->low[j], x_high + 2 * j);
        mma_s8_u8(low_low, u->low[j], x_low + 2 * j);
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
    if (exponent >= -126 && exponent <= 60)
        return (float)dot * num_pow2f(exponent);
    return num_dot_to_float((double)dot, exponent);
}

/* An output of a lane, while there are panels left for its warp, of which each has two of a row at
 * a time. Of a gated layer, 8 rows of gate and 8 of up are a panel; both lanes of an output work it
 * out. */
struct step_output {
    int row;     /* of the panels, less the lane: the warp's first one */
    int n_rows;  /* of all panels; 0: this warp has none */
    int from;    /* where its sums begin */
    int output;  /* of the layer */
    bool exists; /* it is one */
    struct step_route route;
};

/* That of row at + lane of the block's n panels from `first` on. */
static __device__ __forceinline__ struct step_output
output_at(const struct step *s, const struct step_linear *w, int first, int n, int at) {
    struct step_output o;
    o.row = at;
    o.n_rows = s->row < s->n_rows ? n * 16 : 0;
    unsigned row = (unsigned)min(at + s->lane, max(n * 16 - 1, 0));
    o.from = (int)((row / 16 * (unsigned)w->steps * (unsigned)s->n_rows + (unsigned)s->row) * 16 +
                   row % 16);
    o.output =
        (w->first_panel + first) * w->outputs + (int)(w->gated ? row / 16 * 8 + row % 8 : row);
    o.exists = at + s->lane < n * 16 && o.output < w->n;
    int begin = (w->first_panel + first + (at >> 4)) * w->outputs;
    int end = min((w->first_panel + first + n) * w->outputs, w->n);
    o.route = step_route_of(s, s->row, begin, end - begin, w->gated);
    return o;
}

/* A row of weights times this warp's row of x, from its sums; exponent: of both. */
static __device__ __forceinline__ float step_dot(const struct step *s, const struct step_linear *w,
                                                 int from, int exponent) {
    const int AT_ONCE = 4;
    const long long *sums = step_shared()->partial + from;
    int stride = s->n_rows * 16;
    long long dot = 0;
    UNROLL_1
    for (int left = w->steps; left > 0; left -= AT_ONCE) {
        long long part[AT_ONCE];
        UNROLL
        for (int j = 0; j < AT_ONCE; j++)
            part[j] = j < left ? sums[j * stride] : 0;
        dot += part[0] + part[1] + (part[2] + part[3]);
        sums += AT_ONCE * stride;
    }
    return step_round(dot, exponent - 30);
}

/* What comes of the panels whose sums are there: for all blocks, or the logits. */
static __device__ __forceinline__ void finish_panels(const struct step *s,
                                                     const struct step_linear *w, int number,
                                                     int first, int n, struct step_output o,
                                                     const int8_t *exponents) {
    int layer = number / 4;
    UNROLL_1
    while (o.row < o.n_rows) {
        bool is_up = w->gated && s->lane % 16 >= 8;
        int exponent = step_shared()->exponents[number % 2][s->row];
        float y = step_dot(s, w, o.from, exponent + exponents[min(o.row + s->lane, o.n_rows - 1)]);
        if (s->a->has_biases && o.exists) {
            const float *bias = bias_of(w, step_layer_of(s, layer), o.output, is_up);
            y = bias ? y + *bias : y;
        }
        if (layer == s->a->n_layers) {
            if (o.exists)
                s->a->logits[(size_t)(s->first_row + s->row) * (size_t)w->n + (size_t)o.output] = y;
        } else {
            if (w->gated) {
                int panel = w->first_panel + first + (o.row >> 4);
                float other = __shfl_xor_sync(0xffffffffu, y, 8);
                y = num_silu(is_up ? other : y) * (is_up ? y : other);
                step_send_largest(s, warp_max(o.exists ? num_magnitude(y) : 0), s->row, panel,
                                  o.row + 16 < o.n_rows);
            }
            step_send(s, y, &o.route);
        }
        o = output_at(s, w, first, n, o.row + s->n_parts * 32);
    }
}

/* The kind of linear layer number i of the pass: four of each layer, then the output matrix. */
static __device__ __forceinline__ const struct step_linear *linear_of(const struct step *s, int i) {
    return &step_shared()->linears[i < 4 * s->a->n_layers ? i % 4 : (int)STEP_LOGITS];
}

/* What a warp can make ready for panels first ... of the block before their input is there. */
struct step_work {
    int n; /* panels */
    struct step_unit unit;
    struct step_output output;
};

/* The warp's first unit: the last warp has the first. Those that have none wait for no weights. */
static __device__ __forceinline__ int first_unit(const struct step *s) {
    int unit = STEP_WARPS - 1 - s->warp;
    return unit < STEP_UNIT_WARPS ? unit : (int)STEP_UNITS;
}

/* Waits for the weights that were fetched last. */
static __device__ __forceinline__ void begin_panels(struct step_work *work, const struct step *s,
                                                    const struct step_linear *w, int first) {
    work->n = min(w->room, w->n_panels - first);
    /* The last parts of a row begin: the first ones have the next input to make. */
    work->output = output_at(s, w, first, work->n, (s->n_parts - 1 - s->part) * 32);
    bool multiplies = first_unit(s) < work->n * w->steps;
    bulk_wait_if(&step_shared()->barrier, (s->copies - 1) % 2, 0,
                 multiplies || work->output.row < work->output.n_rows);
    if (multiplies)
        load_unit(&work->unit, s, w, first_unit(s));
}

/*
 * Linear layer i, the block's panels from `first` on, on which the work has begun: multiplies the
 * digits that this block's warps are leaving in shared memory by the weights. What comes of it goes
 * to the next stage of all blocks, or is the logits.
 */
static __device__ __forceinline__ void multiply_rows(struct step *s, const struct step_linear *w,
                                                     struct step_work *work, int i, int first) {
    int layer = i / 4, n_units = work->n * w->steps, next = first + work->n;
    __syncthreads(); /* the digits are there, and the sums before have been read */
    UNROLL_1
    for (int unit = first_unit(s); unit < n_units; unit += STEP_UNIT_WARPS) {
        if (unit >= STEP_UNIT_WARPS)
            load_unit(&work->unit, s, w, unit);
        multiply_unit(step_shared()->partial + unit * s->n_rows * 16, s, &work->unit);
    }
    __syncthreads();
    if (threadIdx.x == STEP_COPY_THREAD) {
        if (next < w->n_panels)
            fetch(s, linear_of(s, i), layer, next);
        else if (layer < s->a->n_layers) {
            fetch(s, linear_of(s, i + 1), (i + 1) / 4, 0);
            step_expect(s, s->n_rows * w->n_sent);
        }
    }
    finish_panels(s, w, i, first, work->n, work->output,
                  step_shared()->weight_exponents[(s->copies - 1) % 2]);
    count_fetch(s);
}

#endif
