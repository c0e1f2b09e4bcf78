/*
 * step.h - what the files of decode_step share: a decoding pass as one kernel.
 *
 *     step.cu      the kernel, from token to logits
 *     launch.cu    where it applies, and its launch
 *     linear.h     a linear layer: computes what ../../linear.cu does
 *     attention.h  attention: computes what ../../attention_paged.cu does
 *     cache.h      a tile of keys and values from the cache to registers
 *     pack.cu      the weights in the order in which the tensor cores take them
 *
 * A cluster of thread blocks has up to STEP_ROWS rows (sequences) and takes them through all
 * layers. Each block keeps all activations of the rows in its shared memory; it computes a part of
 * a layer's outputs, and writes them into the memory of all blocks of the cluster. So what is left
 * between two linear layers is to wait for the bytes that are expected of the others (a stage ends
 * then: step_stage_end). What is small (norms, rounding to BFP16) every block does for itself.
 *
 * Whatever a block does in a stage, the others wait for: there are no divisions by what is not a
 * constant, and nothing is read from device memory that could have been read before.
 */
#ifndef SAMEBITS_GPU_FAST_STEP_STEP_H
#define SAMEBITS_GPU_FAST_STEP_STEP_H

extern "C" {
#include "model/forward.h"
}

#include "gpu/fast/vector/norm.h"
#include "gpu/ptx/cluster.h"
#include "gpu/ptx/warpgroup.h"

enum {
    STEP_WARPS = 16,
    STEP_THREADS = 32 * STEP_WARPS,
    STEP_UNIT_WARPS = STEP_WARPS - 2, /* those that multiply: the first two make the digits */
    STEP_COPY_THREAD = 2 * 32,        /* it starts copies: its warp has little to do */
    STEP_ROWS = 8,                    /* columns of an mma */
    STEP_UNITS = 32,                  /* of a linear layer at a time: 16 outputs and 64 inputs */
    STEP_OUTPUTS = 16 * STEP_UNITS,
    STEP_MOST_HIDDEN = 1024,
    STEP_MOST_HEADS = 128,
    STEP_MOST_DIM = 128,
    STEP_NUMBERS = 512, /* that come with a launch */
    N_STEP_LINEARS = 5, /* kinds of linear layers: */
};
enum step_kind { STEP_QKV, STEP_O, STEP_GATE_UP, STEP_DOWN, STEP_LOGITS };

/* What a layer has beside its matrices. Behind the last comes one with the final norm as
 * attention_norm, and nothing else. */
struct alignas(16) step_layer {
    const float *gains[4];  /* attention_norm, ffn_norm [hidden]; q_norm, k_norm [head_dim], NULL:
                               none */
    const float *biases[7]; /* of q, k, v, o, gate, up, down; NULL: none */
    struct kv_layer kv;
};

/*
 * Weights are packed for the kernel: a layer's matrices one after the other, as step_kind has them;
 * of each its panels, 16 rows in the order in which an mma has them. A panel is
 *
 *     digits     [inputs / 64][4][32 lanes], 16 bytes each: what lane 4 g + t hands to four mmas,
 *                two for the high digits, then two for the low ones. Each is 4 of inputs 16 t ...
 *                of row g, of row g + 8, then the next 4 of either
 *
 * and behind the last panel, the exponents of all rows follow, one byte each. So what a block
 * computes of a layer comes to its shared memory in two copies; the digits' place is free again
 * when the exponents are still needed.
 */
static inline __host__ __device__ constexpr int step_panel_bytes(int steps) {
    return steps * 2048;
}

/* x / d as x * inverse / 2^20, for x * d < 2^20. (ptx/division.h divides any number, with one
 * instruction more: the kernel is 6 % slower then.) */
static inline __host__ __device__ uint32_t step_inverse(int d) {
    return (uint32_t)(((1 << 20) + d - 1) / d);
}
static __device__ __forceinline__ int step_divide(int x, uint32_t inverse) {
    return (int)((uint32_t)x * inverse >> 20);
}

/* One or several matrices with the same input, and what of them a block computes: panels of 16 rows
 * that follow each other. gated: two matrices, whose rows make one output together; a panel has
 * eight rows of each. */
struct step_linear {
    int columns;               /* of its input */
    int norm;                  /* that is the norm of what came; else what came */
    int parts;                 /* parts of a row, of which the largest came, too */
    int gains, site_x, site_y; /* of the norm, in the layer; of the tensors that it snaps */
    int gated;
    int steps; /* times 64 inputs */
    uint32_t steps_inverse;
    int n, outputs;            /* of all matrices; of a panel */
    int n_sent;                /* floats of a row that the blocks send each other */
    int matrix, second, third; /* the first of its layer's; from which output on it is another's */
    int first_panel, n_panels; /* of the block */
    int room;                  /* panels that there is room for */
    /* In device memory: of all panels of the first layer, then of those of a block. */
    const unsigned char *packed, *exponents;
};

/* Where the rest of a block's shared memory begins, behind struct step_shared, in bytes. */
struct step_sizes {
    int layers;                 /* struct step_layer [n_layers + 1] */
    int x[2];                   /* float [rows][hidden]: the residual stream, before and after */
    int in, out;                /* float [rows][width]: what a stage reads, and what it writes */
    int gains;                  /* float [2][layer_gains]: of a layer and the next */
    int cos, sin;               /* float [rows][head_dim / 2] */
    int high, low;              /* uint8_t [rows][stride]: digits of what a linear layer reads */
    int width, stride, largest; /* largest: where they begin in a row, in floats */
    int layer_gains;            /* attention_norm's, ffn_norm's, q_norm's and k_norm's */
    int bytes;                  /* of all */
};

struct step_arguments {
    const struct step_layer *layers; /* device [n_layers + 1] */
    const unsigned char *packed;     /* device: the weights, */
    size_t layer_bytes;              /* so many of a layer */
    const int8_t *embedding, *embedding_exponents;
    const float *rope_cos, *rope_sin;
    /* The batch: token ids and positions [n_rows], kv_indptr [n_rows + 1] and the page indices
     * (model/attention/paged_batch.h). A small one comes with the launch, which is sooner than any
     * copy; of another one this is device memory. */
    const int32_t *batch;
    int n_numbers;
    int32_t numbers[STEP_NUMBERS];
    float *logits; /* [n_rows, vocab] */
    int n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab;
    bool has_biases;
    int page_bits; /* a page has 2^page_bits positions */
    int n_rows, rows_per_cluster;
    int n_blocks, block_bits;                   /* of a cluster: 2^block_bits */
    struct step_linear linears[N_STEP_LINEARS]; /* without what is a block's */
    struct step_sizes at; /* constants of the launch are operands without a register */
    uint32_t heads_inverse, group_inverse;
    double eps, scale;
    unsigned long long *fault;
};

/* Floats from one row of activations to the next: behind the row are the largest magnitudes of its
 * parts: of 32 dimensions of attention, of the outputs of a panel of gate_up. */
static inline int step_row_floats(const struct step_arguments *a) {
    int qkv = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    int width = qkv > a->ffn ? qkv : a->ffn;
    return width > a->hidden ? width : a->hidden;
}
static inline int step_width(const struct step_arguments *a) {
    int heads = a->n_heads * a->head_dim / 32, panels = (a->ffn + 7) / 8;
    return step_row_floats(a) + ((heads > panels ? heads : panels) + 3) / 4 * 4;
}

/* Bytes from one row of digits to the next: an odd number of 64, so that two rows lie in other
 * banks. */
static inline int step_stride(const struct step_arguments *a) {
    int q = a->n_heads * a->head_dim, most = q > a->ffn ? q : a->ffn;
    return (gpu_padded(most > a->hidden ? most : a->hidden) / 64 | 1) * 64;
}

/* The shared memory of a block: this, then what depends on the sizes of the model (step_sizes). */
struct alignas(128) step_shared {
    unsigned char weights[STEP_UNITS * step_panel_bytes(1)]; /* panels of a linear layer */
    int8_t weight_exponents[2][STEP_OUTPUTS];                /* of these, and those before */
    union {
        long long partial[STEP_UNITS * STEP_ROWS * 16]; /* [unit][row][16] its sums */
        int2 sums[STEP_WARPS * STEP_MOST_DIM];          /* [warp][head_dim] of attention */
    };
    struct bulk_barrier barrier;                   /* of copies of weights */
    float nothing[MOST_CLUSTER_BLOCKS];            /* written by blocks that have no head */
    struct peer_barrier received[2];               /* of what other blocks write */
    alignas(16) uint32_t query[STEP_MOST_DIM / 2]; /* digits: see dot_of_thread */
    alignas(16) int16_t key[STEP_MOST_DIM];        /* of the newest position */
    alignas(16) int16_t value[STEP_MOST_DIM];
    alignas(16) int16_t snapped_query[STEP_MOST_DIM];      /* raised: see digits_of_two */
    alignas(16) uint8_t weight_digits[2 * ATTENTION_TILE]; /* of values: see put_weight */
    int newest_weight;
    int part[STEP_WARPS]; /* of reductions */
    uint2 part_sums[STEP_WARPS];
    int exponents[2][STEP_ROWS];                      /* of the digits, of this stage and before */
    int head_exponents[3];                            /* of query, key and value */
    int positions[STEP_ROWS], first_pages[STEP_ROWS]; /* of the rows */
    struct step_linear linears[N_STEP_LINEARS];
    int32_t numbers[STEP_NUMBERS];
};

/* With so many rows in a cluster. */
static inline struct step_sizes step_sizes_of(const struct step_arguments *a, int rows) {
    struct step_sizes z;
    int at = (int)sizeof(struct step_shared);
    z.width = step_width(a);
    z.stride = step_stride(a);
    z.largest = step_row_floats(a);
    z.layer_gains = 2 * a->hidden + 2 * a->head_dim;
    int x = rows * a->hidden * 4, in = rows * z.width * 4, digits = rows * z.stride;
    int angles = rows * a->head_dim / 2 * 4;
    z.layers = at;
    z.x[0] = z.layers + (a->n_layers + 1) * (int)sizeof(struct step_layer);
    z.x[1] = z.x[0] + x;
    z.in = z.x[1] + x;
    z.out = z.in + in;
    z.gains = z.out + in;
    z.cos = z.gains + 2 * z.layer_gains * 4;
    z.sin = z.cos + angles;
    z.high = z.sin + angles;
    z.low = z.high + digits;
    z.bytes = z.low + digits;
    return z;
}

static __device__ __forceinline__ unsigned char *step_memory(void) {
    SHARED_DYNAMIC(unsigned char, memory);
    return memory;
}
static __device__ __forceinline__ struct step_shared *step_shared(void) {
    return (struct step_shared *)step_memory();
}
static __device__ __forceinline__ float *step_floats(int at) {
    return (float *)(step_memory() + at);
}

/* What a thread knows while it goes through the layers. */
struct step {
    const struct step_arguments *a;
    int in, out;           /* as in step_sizes: they change places */
    int rank;              /* of the block in its cluster */
    int first_row, n_rows; /* of the cluster */
    int warp, lane;
    /* The warps of a block share the rows: this one is number `part` of the n_parts of row `row`,
     * if there is such a row. */
    int row, part, n_parts;       /* n_parts: a power of two */
    unsigned copies;              /* of weights that were started so far */
    unsigned stages;              /* that have ended so far */
    const int32_t *batch, *pages; /* step_arguments.batch, and its page indices */
};

static __device__ __forceinline__ const struct step_layer *step_layer_of(const struct step *s,
                                                                         int i) {
    return (const struct step_layer *)(step_memory() + s->a->at.layers) + i;
}

static __device__ __forceinline__ float *step_input(const struct step *s, int row) {
    return step_floats(s->in) + row * s->a->at.width;
}

/* Counts the bytes of the stage. */
static __device__ __forceinline__ struct peer_barrier *step_received(const struct step *s) {
    return &step_shared()->received[s->stages % 2];
}

/* Where a lane sends four consecutive elements of a row that the next stage reads: those that the
 * lanes from `lane` on hold, to block `block` and every `step`th one behind it. */
struct step_route {
    int lane, block, step;
    int to; /* where they go to, in floats */
};

/* From element `first` of the row on, n elements, a multiple of 4. Lane i has the i-th; `halves`:
 * each half of the warp has 8, which its lanes 0 ... 7 have. */
static __device__ __forceinline__ struct step_route step_route_of(const struct step *s, int row,
                                                                  int first, int n, bool halves) {
    int bits = halves ? 2 : 3, vector = s->lane & ((1 << bits) - 1);
    struct step_route route;
    route.lane = halves ? (vector & 2) * 8 + (vector & 1) * 4 : vector * 4;
    route.block = 4 * vector < n ? s->lane >> bits : (int)MOST_CLUSTER_BLOCKS;
    route.step = 32 >> bits;
    route.to = row * s->a->at.width + first + 4 * vector;
    return route;
}

static __device__ __forceinline__ void step_send(const struct step *s, float x,
                                                 const struct step_route *route) {
    float4 v;
    v.x = __shfl_sync(0xffffffffu, x, route->lane);
    v.y = __shfl_sync(0xffffffffu, x, route->lane + 1);
    v.z = __shfl_sync(0xffffffffu, x, route->lane + 2);
    v.w = __shfl_sync(0xffffffffu, x, route->lane + 3);
    float4 *to = (float4 *)(step_floats(s->out) + route->to);
    UNROLL_1
    for (int block = route->block; block < s->a->n_blocks; block += route->step)
        store_to_peer(to, block, v, step_received(s));
}

/* Sends them the largest magnitude of part `part` of the row, and, if `twice`, of the next one:
 * each lane to a block. */
static __device__ __forceinline__ void step_send_largest(const struct step *s, uint32_t largest,
                                                         int row, int part, bool twice) {
    int block = s->lane % MOST_CLUSTER_BLOCKS, second = s->lane / MOST_CLUSTER_BLOCKS;
    float *to = step_floats(s->out) + row * s->a->at.width + s->a->at.largest + part + second;
    if (block < s->a->n_blocks && (twice || !second))
        store_to_peer(to, block, num_float(largest), step_received(s));
}

/* A block without a head sends a float that nobody reads: every block waits for all. */
static __device__ __forceinline__ void step_send_nothing(const struct step *s) {
    if (s->warp == 0 && s->lane < s->a->n_blocks)
        store_to_peer(&step_shared()->nothing[s->rank], s->lane, 0.0f, step_received(s));
}

/* The copy thread alone: so many floats are expected of all blocks in this stage. */
static __device__ __forceinline__ void step_expect(const struct step *s, int floats) {
    peer_expect(step_received(s), floats * 4);
}

/* Ends the stage. A warp that `reads` what the blocks sent waits until all of it is there. (The
 * others wait for these warps at the next barrier of the block, one in each stage.) */
static __device__ __forceinline__ void step_stage_end(struct step *s, bool reads) {
    peer_wait(step_received(s), s->stages / 2 % 2, reads);
    int was = s->in;
    s->in = s->out;
    s->out = was;
    s->stages++;
}

/* The kernel for a head dimension, or NULL. */
typedef void (*step_kernel)(struct step_arguments);
step_kernel gpu_step_kernel(int head_dim);

/* Packs the weights, unless they are those that were packed last, and sets where they are in a: a
 * matrix that exists has its address for itself, and weights_changes counts every change to one. */
void gpu_step_pack(struct gpu_device *gpu, struct step_arguments *a, const struct model *model);

#endif
