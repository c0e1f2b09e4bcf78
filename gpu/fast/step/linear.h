/*
 * linear.h - a linear layer of decode_step: computes what ../../linear.cu does, for up to four
 * rows whose digits are in the shared memory of every block; gains a launch.
 *
 * Eight rows of weights are a panel: their digits are the rows of an mma, whose columns are those
 * of x. A block has panels that follow each other. A unit is a panel and 64 inputs; warps share a
 * panel, leave their sums in shared memory, and a thread for each output adds them. Weights are
 * asked for a ring of units ahead, across layers: memory reads on while blocks wait for each other.
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
    int qkv_at = 0, attention_at = q + 2 * kv, o_at = attention_at + q, ffn_at = o_at + a->hidden;
    int down_at = ffn_at + a->ffn;
    struct step_linear w = {};
    w.columns = kind == STEP_O ? q : kind == STEP_DOWN ? a->ffn : a->hidden;
    w.steps = gpu_padded(w.columns) / 64;
    w.entries = min(w.steps, (int)STEP_WARPS);
    w.steps_inverse = step_inverse(w.steps);
    w.norm = kind != STEP_O && kind != STEP_DOWN;
    w.gated = kind == STEP_GATE_UP;
    w.gains = kind == STEP_GATE_UP;
    w.site_x = tensors[kind][0];
    w.site_y = tensors[kind][1];
    w.outputs = kind == STEP_QKV      ? q + 2 * kv
                : w.gated             ? a->ffn
                : kind == STEP_LOGITS ? a->vocab
                                      : a->hidden;
    w.from = kind == STEP_O ? attention_at : w.gated ? o_at : kind == STEP_DOWN ? ffn_at : down_at;
    w.from_before = kind == STEP_QKV || kind == STEP_LOGITS;
    w.to = kind == STEP_QKV ? qkv_at : kind == STEP_O ? o_at : w.gated ? ffn_at : down_at;
    w.adds = kind == STEP_O || kind == STEP_DOWN;
    w.add = kind == STEP_O ? down_at : o_at;
    w.add_before = kind == STEP_O;
    return w;
}

static inline __host__ __device__ int step_panels(const struct step_linear *w) {
    return (w->outputs + 7) / 8 * (w->gated ? 2 : 1);
}

/* Where the tails begin in what is packed of it, and the bytes of all. */
static inline __host__ __device__ size_t step_tails_offset(const struct step_linear *w) {
    return (size_t)step_panels(w) * (size_t)w->steps * STEP_UNIT_BYTES;
}
static inline size_t step_packed_bytes(const struct step_linear *w) {
    return step_tails_offset(w) + (size_t)step_panels(w) * sizeof(struct step_tail);
}

/* Where a kind begins in what is packed of a layer; of STEP_LOGITS, the bytes of a layer. (It comes
 * behind the last one, as a layer of its own.) */
static inline size_t step_packed_offset(const struct step_arguments *a, enum step_kind kind) {
    size_t at = 0;
    for (int i = 0; i < kind; i++)
        at += step_packed_bytes(&a->linears[i]);
    return at;
}

/* The kind of linear layer number i of the pass: four of each layer, then the output matrix. */
static __device__ __forceinline__ const struct step_linear *linear_of(const struct step *s, int i) {
    return &step_shared()->linears[i < 4 * s->a->n_layers ? i % 4 : (int)STEP_LOGITS];
}

/* ---- weights, on their way ---------------------------------------------------------------------
 */

/* The copy thread: goes to the next chunk of which this block has something. */
static __device__ __forceinline__ void begin_chunk(const struct step *s, struct step_feed *f) {
    UNROLL_1
    for (; f->linear <= 4 * s->a->n_layers; f->linear++, f->panel = 0) {
        const struct step_linear *w = linear_of(s, f->linear);
        int panels = min(w->room, w->n_panels - f->panel);
        if (panels <= 0)
            continue;
        const unsigned char *from = w->packed + (size_t)(f->linear / 4) * s->a->layer_bytes;
        f->from = from + f->panel * w->steps * STEP_UNIT_BYTES;
        f->tails = from + w->tails_at + f->panel * (int)sizeof(struct step_tail);
        f->bytes = panels * w->steps * STEP_UNIT_BYTES;
        f->tails_bytes = panels * (int)sizeof(struct step_tail);
        f->panel += panels;
        return;
    }
}

/* The copy thread: asks for the next n portions of up to 16 units, of which no chunk shares one
 * with the next. */
static __device__ __forceinline__ void copy_portions(const struct step *s, struct step_feed *f,
                                                     int n) {
    auto copy = s->a->reads_once ? bulk_part_once : bulk_part;
    UNROLL_1
    for (; n > 0 && f->bytes > 0; n--) {
        struct bulk_barrier *barrier = &step_shared()->barriers[f->slot];
        unsigned char *to = step_memory() + s->a->at.ring + f->slot * s->a->at.ring_bytes;
        int bytes = min(f->bytes, STEP_WARPS * STEP_UNIT_BYTES);
        bulk_expect(barrier, bytes + f->tails_bytes);
        copy(barrier, to, f->from, bytes);
        bulk_part(barrier, to + STEP_WARPS * STEP_UNIT_BYTES, f->tails, f->tails_bytes);
        f->tails_bytes = 0;
        f->from += bytes;
        f->bytes -= bytes;
        f->slot = f->slot + 1 < s->a->stages ? f->slot + 1 : 0;
        if (!f->bytes)
            begin_chunk(s, f);
    }
}

/* How many portions to ask for at a time, where the ring has some to spare. What blocks hand each
 * other goes through the L2 cache, too, and is late where many copies wait for memory there. So
 * they are spread over a layer; most beside attention, which has no weights. (Measured.) */
enum { ASK_BESIDE_SUMS = 1, ASK_BESIDE_PRODUCTS = 2, ASK_BESIDE_ATTENTION = 3 };

/* n_free more places of the ring are free. Asks for up to `most` portions, and for more only if a
 * chunk would wait for them else. */
static __device__ __forceinline__ void ask_for_portions(const struct step *s, int n_free,
                                                        int most) {
    if (threadIdx.x == STEP_COPY_THREAD) {
        struct step_feed f = step_shared()->feed;
        f.n_free += n_free;
        int n = max(min(f.n_free, most), f.n_free - s->a->spare);
        f.n_free -= n;
        copy_portions(s, &f, n);
        step_shared()->feed = f;
    }
    bulk_end_group();
}

/* ---- products ----------------------------------------------------------------------------------
 */

/* A warp that needs number i of the portions that come next waits for it. */
static __device__ __forceinline__ void await_portion(const struct step *s, int i, bool needs) {
    int stages = s->a->stages, slot = s->slot + (needs ? i : 0), parity = s->parity;
    if (slot >= stages) {
        slot -= stages;
        parity ^= 1;
    }
    bulk_wait_if(&step_shared()->barriers[slot], (unsigned)parity, 0, needs);
}

/*
 * What a lane has of a unit: digits of x and of weights as operands of mma. The rows of the one are
 * the high digits of eight rows of weights, then their low ones; the columns of the other, high and
 * low digits of each row of x.
 */
struct step_unit {
    alignas(16) uint32_t x[4], high[4], low[4];
    bool ends; /* this warp's part of a panel */
};

/* The sums of this warp's units of a chunk of n panels. (A warp has a sixteenth of the inputs of a
 * row, 896 of 14,336: a product of digits is at most 2^14, so a sum stays below 2^24.) */
static __device__ __forceinline__ void multiply_panels(struct step *s, const struct step_linear *w,
                                                       int n) {
    int g = s->lane / 4, t = s->lane % 4, steps = w->steps, n_units = n * steps, slot = s->slot;
    const unsigned char *x = step_memory() + s->a->at.digits +
                             min(g / 2, s->n_rows - 1) * s->a->at.stride + t * 32 + g % 2 * 16;
    const unsigned char *ring =
        step_memory() + s->a->at.ring + s->warp * STEP_UNIT_BYTES + s->lane * 16;
    int panel = step_divide(s->warp, w->steps_inverse), step = s->warp - panel * steps;
    long long *to = (long long *)(step_memory() + s->a->at.partial) +
                    ((panel * w->entries + step) * s->n_rows + t) * 8 + g;
    uint32_t inverse = w->steps_inverse;
    struct step_unit first, second;
    int32_t sums[4] = {};
    auto load_x = [&](struct step_unit *u) { *(uint4 *)u->x = *(const uint4 *)(x + step * 128); };
    bool same_x = steps == STEP_WARPS; /* the warp has the same columns of all panels */
    load_x(&first);
    load_x(&second);
    auto load = [&](struct step_unit *u) {
        const unsigned char *from = ring + slot * s->a->at.ring_bytes;
        if (!same_x)
            load_x(u);
        *(uint4 *)u->high = *(const uint4 *)from;
        *(uint4 *)u->low = *(const uint4 *)(from + STEP_UNIT_BYTES / 2);
        slot = slot + 1 < s->a->stages ? slot + 1 : 0;
        step += STEP_WARPS;
        u->ends = step >= steps;
        if (u->ends)
            step -= step_divide(step, inverse) * steps;
    };
    auto multiply = [&](const struct step_unit *u) {
        UNROLL
        for (int i = 0; i < 4; i += 2) {
            const uint32_t weights[4] = {u->high[i], u->low[i], u->high[i + 1], u->low[i + 1]};
            mma_s8_s8(sums, weights, u->x + i);
        }
        if (!u->ends)
            return;
        if (t < s->n_rows)
            *to = 65536ll * sums[0] + 256ll * (sums[1] + sums[2]) + sums[3];
        to += STEP_WARPS * 8 * s->n_rows;
        UNROLL
        for (int i = 0; i < 4; i++)
            sums[i] = 0;
    };
    UNROLL_1
    for (int unit = s->warp; unit < n_units; unit += 2 * STEP_WARPS) {
        bool two = unit + STEP_WARPS < n_units;
        load(&first);
        if (two)
            load(&second);
        multiply(&first);
        if (two)
            multiply(&second);
    }
}

/* num_dot_to_float, without float64 where the result is a normal number: the rounding of dot to a
 * float is then the only one. */
static __device__ __forceinline__ float step_round(long long dot, int exponent) {
    if (exponent >= -126 && exponent <= 60)
        return (float)dot * num_pow2f(exponent);
    return num_dot_to_float((double)dot, exponent);
}

/* An output of a thread; all that is known of it before its input comes, but after its weights. */
struct step_output {
    bool exists, is_up;
    int row, from; /* from: its first sum */
    int exponent;  /* of its weights */
    float bias, add;
    float *to;
};

/* Which output of a chunk is this thread's. The last warps have the first: the others have a row to
 * wait for. */
static __device__ __forceinline__ int step_output_number(const struct step *s) {
    return (STEP_WARPS - 1 - s->warp) * 32 + s->lane;
}
/* Whether this warp has outputs of n panels. */
static __device__ __forceinline__ bool has_outputs(const struct step *s, int n) {
    return (STEP_WARPS - 1 - s->warp) * 32 < n * 8 * s->n_rows;
}

/* This thread's output of panels first ... first + n of the block. */
static __device__ __forceinline__ struct step_output
output_of(const struct step *s, const struct step_linear *w, int i, int first, int n) {
    struct step_output o = {};
    const struct step_arguments *a = s->a;
    int index = step_output_number(s), up = w->gated, layer = i / 4;
    int j = index >> up & 7, rest = index >> (3 + up), pair = rest;
    if (s->n_rows > 1) {
        pair = step_divide(rest, s->rows_inverse);
        o.row = rest - pair * s->n_rows;
    }
    o.is_up = up & index;
    int panel = up ? 2 * pair + o.is_up : pair;
    int output = (((w->first_panel + first) >> up) + pair) * 8 + j;
    o.exists = panel < n && output < w->outputs;
    if (!o.exists)
        return o;
    o.from = (panel * w->entries * s->n_rows + o.row) * 8 + j;
    const struct step_tail *tail =
        (const struct step_tail *)(step_memory() + a->at.ring + s->slot * a->at.ring_bytes +
                                   STEP_WARPS * STEP_UNIT_BYTES) +
        panel;
    o.exponent = tail->exponents[j];
    o.bias = tail->biases[j];
    o.add = -0.0f; /* y + -0 is y */
    o.to = i == 4 * a->n_layers
               ? a->logits + (size_t)(s->first_row + o.row) * (size_t)a->vocab + output
               : step_exchange(s, layer, w->to, o.row, w->outputs) + output;
    if (layer + 1 < a->n_layers) /* the next layer's place for it */
        prefetch_l2(o.to + a->layer_floats * a->n_rows);
    if (w->adds)
        o.add = exchange_ask(step_exchange(s, layer - w->add_before, w->add, o.row, w->outputs) +
                             output);
    return o;
}

/* Adds up the output, and hands it to the next stage of all blocks, or it is a logit. */
static __device__ __forceinline__ void finish_output(const struct step *s,
                                                     const struct step_linear *w, int i,
                                                     const struct step_output *o) {
    int exponent = o->exponent + step_shared()->exponents[i % 2][o->row] - 30;
    const long long *sums = (const long long *)(step_memory() + s->a->at.partial) + o->from;
    int n = o->exists ? w->entries : 0, stride = s->n_rows * 8;
    long long part[4] = {};
    UNROLL
    for (int k = 0; k < STEP_WARPS; k++)
        part[k % 4] += k < n ? sums[k * stride] : 0;
    float y = step_round((part[0] + part[1]) + (part[2] + part[3]), exponent) + o->bias;
    if (w->gated)
        y = num_silu(y) * __shfl_xor_sync(0xffffffffu, y, 1);
    if (o->exists && !o->is_up)
        exchange_put(o->to, o->add + y);
}

#endif
