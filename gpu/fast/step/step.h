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
 * A group of thread blocks has up to STEP_ROWS rows (sequences) and takes them through all layers.
 * A block computes a part of a layer's outputs and leaves them in device memory, where all blocks
 * of the group wait for them (ptx/exchange.h). What is small (norms, rounding to BFP16) every block
 * does for itself.
 *
 * Whatever a block does in a stage, the others wait for: there are no divisions by what is not a
 * constant, and nothing is read late that could have been read before.
 */
#ifndef SAMEBITS_GPU_FAST_STEP_STEP_H
#define SAMEBITS_GPU_FAST_STEP_STEP_H

extern "C" {
#include "model/forward.h"
}

#include "gpu/fast/vector/norm.h"
#include "gpu/ptx/digit_sums.h"
#include "gpu/ptx/exchange.h"
#include "gpu/ptx/warpgroup.h"

enum {
    STEP_WARPS = 16,
    STEP_THREADS = 32 * STEP_WARPS,
    STEP_COPY_THREAD = STEP_THREADS / 2, /* it starts copies */
    STEP_MOST_STAGES = STEP_WARPS,       /* a warp waits for each */
    STEP_MOST_PANELS = 24,               /* at a time: their sums take memory, too */
    STEP_ROWS = 4, /* with two digits each they are the eight columns of an mma */
    STEP_MOST_HEADS = 128,
    STEP_MOST_DIM = 128,
    STEP_TILE_MORE = 2, /* floats of a tile behind its values: m, l */
    STEP_NUMBERS = 512, /* that come with a launch */
    N_STEP_LINEARS = 5, /* kinds of linear layers: */
};
enum step_kind { STEP_QKV, STEP_O, STEP_GATE_UP, STEP_DOWN, STEP_LOGITS };

/* What a layer has beside its matrices. Behind the last comes one with the final norm as
 * attention_norm, and nothing else. */
struct alignas(16) step_layer {
    const float *gains[4]; /* attention_norm, ffn_norm [hidden]; q_norm, k_norm [head_dim], NULL:
                              none */
    struct kv_layer kv;
};

/* x / d as x * inverse / 2^20, for x * d < 2^20. (ptx/division.h divides any number, with one
 * instruction more.) */
static inline __host__ __device__ uint32_t step_inverse(int d) {
    return (uint32_t)(((1 << 20) + d - 1) / d);
}
static __device__ __forceinline__ int step_divide(int x, uint32_t inverse) {
    return (int)((uint32_t)x * inverse >> 20);
}

/*
 * Weights are packed for the kernel: a layer's matrices one after the other, as step_kind has them;
 * of each its panels, 8 rows. Of two matrices whose rows make one output together (gated), a panel
 * of the one is followed by one of the other. A panel is
 *
 *     digits   [inputs / 64][2][32 lanes], 16 bytes each: high ones, then low ones, of inputs
 *              16 t ... of row g, for lane 4 g + t: what it hands to two mmas
 *
 * and behind the last panel, a step_tail of each follows. So what a block computes of a layer lies
 * in two pieces.
 */
enum { STEP_UNIT_BYTES = 1024 };
struct alignas(16) step_tail {
    float biases[8]; /* -0 where there is none: y + -0 is y */
    int8_t exponents[16];
};

/* One or several matrices with the same input, and what of them a block computes: panels that
 * follow each other, a chunk of `room` at a time. */
struct step_linear {
    int columns;        /* of its input */
    int steps, entries; /* 64 columns at a time; sums of a panel: of so many warps */
    uint32_t steps_inverse;
    int norm;                    /* its input is the norm of what came; else what came */
    int gated, adds;             /* adds: what is at `add`, to its outputs */
    int gains, site_x, site_y;   /* of the norm, in the layer; of the tensors that it snaps */
    int outputs;                 /* of a row of x */
    int from, to, add;           /* where its input, its outputs, and what is added to these lie in
                                    the exchange, in floats of a row; of the layer, but for */
    int from_before, add_before; /* 1: those that are of the layer before */
    int first_panel, n_panels;   /* of the block */
    int room;                    /* panels at a time */
    /* In device memory: of the first layer, then of the block's first panel. */
    const unsigned char *packed;
    int tails_at; /* from there on */
};

/* Where the rest of a block's shared memory begins, behind struct step_shared, in bytes. */
struct step_sizes {
    int layers;  /* struct step_layer [n_layers + 1] */
    int partial; /* long long [panel][entry][row][8]: sums of a chunk of panels */
    int digits;  /* [rows], stride bytes each: of what a linear layer reads, 16 high ones, then
                    16 low ones, and so on */
    int stride;
    int ring;       /* [stages]: [warps] units of weights, then the tails of a chunk's panels */
    int ring_bytes; /* of a stage */
    int bytes;      /* of all */
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
    int page_bits;   /* a page has 2^page_bits positions */
    bool reads_once; /* weights that do not stay in the L2 cache */
    int n_rows, rows_per_group;
    int n_blocks; /* of a group */
    /* [n_layers + 1][layer_floats * n_rows], then [n_rows][n_blocks] keys of two: of this launch,
     * and what it clears for the next one, so many vectors of four floats. */
    float *exchange, *next;
    int next_vectors, layer_floats;
    int stages, spare; /* of the ring of weights; spare: beyond those that a chunk takes */
    struct step_linear linears[N_STEP_LINEARS]; /* without what is a block's */
    struct step_sizes at; /* constants of the launch are operands without a register */
    /* So many blocks share a head, and have its tiles in turn; so many tiles has the longest one.
     * Of several, what comes of each lies `tiles_at` floats of a row behind the begin of a layer:
     * [heads][n_tiles][head_dim + STEP_TILE_MORE]. */
    int n_splits, n_tiles, tiles_at;
    uint32_t splits_inverse;
    uint32_t heads_inverse, group_inverse;
    double eps, scale;
    unsigned long long *fault;
    int32_t *drawn; /* [n_rows]: greedy tokens */
};

/* Bytes from one row of digits to the next: what lanes load of two rows lies in other banks. */
static inline int step_stride(const struct step_arguments *a) {
    int q = a->n_heads * a->head_dim, most = q > a->ffn ? q : a->ffn;
    return gpu_padded(most > a->hidden ? most : a->hidden) * 2 + 16;
}

/* A row and head, and what they read; number `split` of the blocks that share it, of which the
 * first merges what all have. */
struct step_head {
    int row, head, kv_head, split;
    bool first_of_group;
    int newest; /* its position */
    const int32_t *pages;
};

/* What the copy thread asks for next. (It lies in shared memory: in registers, all have it.) */
struct step_feed {
    int linear, panel, slot;           /* panel: behind the chunk */
    int n_free;                        /* places in the ring for which nothing was asked yet */
    const unsigned char *from, *tails; /* what is left of the chunk: */
    int bytes, tails_bytes;
};

/* The shared memory of a block: this, then what depends on the sizes of the model (step_sizes). */
struct alignas(128) step_shared {
    int2 sums[STEP_WARPS * STEP_MOST_DIM];         /* [warp][head_dim] of attention */
    alignas(16) uint32_t query[STEP_MOST_DIM / 2]; /* digits: see dot_of_thread */
    alignas(16) int16_t key[STEP_MOST_DIM];        /* of the newest position */
    alignas(16) int16_t value[STEP_MOST_DIM];
    alignas(16) int16_t snapped_query[STEP_MOST_DIM];      /* raised: see digits_of_two */
    alignas(16) uint8_t weight_digits[2 * ATTENTION_TILE]; /* of values: see put_weight */
    int newest_weight;
    int part[STEP_WARPS]; /* of reductions */
    uint2 part_sums[STEP_WARPS];
    uint32_t largest[2][STEP_WARPS]; /* of rows */
    long long squares[STEP_WARPS];
    int exponents[2][STEP_ROWS];                      /* of the digits, of this stage and before */
    int head_exponents[3];                            /* of query, key and value */
    int positions[STEP_ROWS], first_pages[STEP_ROWS]; /* of the rows */
    struct bulk_barrier barriers[STEP_MOST_STAGES];   /* of portions of weights */
    struct step_feed feed;
    struct step_linear linears[N_STEP_LINEARS];
    int32_t numbers[STEP_NUMBERS];
};

static __device__ __forceinline__ unsigned char *step_memory(void) {
    SHARED_DYNAMIC(unsigned char, memory);
    return memory;
}
static __device__ __forceinline__ struct step_shared *step_shared(void) {
    return (struct step_shared *)step_memory();
}

/* What a thread knows while it goes through the layers. */
struct step {
    const struct step_arguments *a;
    int rank;              /* of the block in its group */
    int first_row, n_rows; /* of the group */
    uint32_t rows_inverse;
    int warp, lane;
    /* The warps of a block share the rows: this one is number `part` of the n_parts of row `row`,
     * if there is such a row. */
    int row, part, n_parts;       /* n_parts: a power of two */
    const int32_t *batch, *pages; /* step_arguments.batch, and its page indices */
    /* Weights: the place in the ring of the next portion, the parity of its round. */
    int slot, parity;
};

static __device__ __forceinline__ const struct step_layer *step_layer_of(const struct step *s,
                                                                         int i) {
    return (const struct step_layer *)(step_memory() + s->a->at.layers) + i;
}

/* Row `row` of what lies `at` floats of a row behind the begin of a layer, and has n columns. (The
 * embeddings lie where the outputs of layer -1 would be.) */
static __device__ __forceinline__ float *step_exchange(const struct step *s, int layer, int at,
                                                       int row, int n) {
    const struct step_arguments *a = s->a;
    return a->exchange +
           (((layer + 1) * a->layer_floats + at) * a->n_rows + (s->first_row + row) * n);
}

/* Whether the model's weights are those that were packed last: a matrix that exists has its address
 * for itself, and weights_changes counts every change to one. */
bool gpu_step_is_packed(const struct gpu_device *gpu, const struct model *model);

/* Packs the weights, unless they are, and sets where they are in a. */
void gpu_step_pack(struct gpu_device *gpu, struct step_arguments *a, const struct model *model);

/* The kernel for a head dimension, for threads that have so many vectors of a row at most whose
 * norm is taken, or that is snapped. NULL: there is none. */
typedef void (*step_kernel)(struct step_arguments);
step_kernel gpu_step_kernel(int head_dim, int norm, int snap);

#endif
