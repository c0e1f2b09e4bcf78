/*
 * decode_step.h - what the files of decode_step share: a decoding pass as one kernel.
 *
 *     decode_step.cu           the kernel, from token to logits, and its launch
 *     decode_step_linear.h     a linear layer of it
 *     decode_step_attention.h  its attention
 *     decode_step_pack.cu      the weights as it wants them
 *
 * A cluster of thread blocks has up to STEP_ROWS rows (sequences) and takes them through all
 * layers. Each block keeps all activations of the rows in its shared memory; it computes a share of
 * a layer's outputs, and writes them into the memory of all blocks of the cluster. So what is left
 * between two linear layers is to wait for the bytes that are expected of the others (a stage ends
 * then: step_meet). What is small (norms, rounding to BFP16) every block does for itself.
 *
 * Whatever a block does in a stage, the others wait for: there are no divisions by what is not a
 * constant, and nothing is read from device memory that could have been read before.
 */
#ifndef SAMEBITS_GPU_DECODE_STEP_H
#define SAMEBITS_GPU_DECODE_STEP_H

#include "gpu/cluster.h"
#include "gpu/norm.h"
#include "gpu/warpgroup.h"

enum {
    STEP_WARPS = 16,
    STEP_THREADS = 32 * STEP_WARPS,
    STEP_CLERK = STEP_THREADS - 1, /* the thread that starts copies: of a warp that others wait for
                                      least */
    STEP_ROWS = 8,                 /* columns of an mma */
    STEP_UNITS = 32,               /* of a linear layer at a time: 16 outputs and 64 inputs */
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
 * of each its tiles, 16 rows in the order in which an mma has them. A tile is
 *
 *     digits     [inputs / 64][4][32 lanes], 16 bytes each: what lane 4 g + t hands to four mmas,
 *                two for the high digits, then two for the low ones. Each is 4 of inputs 16 t ...
 *                of row g, of row g + 8, then the next 4 of either
 *     exponents  [16], one byte each
 *
 * so that what a block computes of a layer comes to its shared memory in one copy.
 */
static inline __host__ __device__ constexpr int step_tile_bytes(int steps) {
    return steps * 2048 + 16;
}

/* x / d as x * inverse / 2^20, for x * d < 2^20. */
static inline __host__ __device__ uint32_t step_inverse(int d) {
    return (uint32_t)(((1 << 20) + d - 1) / d);
}
static __device__ __forceinline__ int step_divide(int x, uint32_t inverse) {
    return (int)((uint32_t)x * inverse >> 20);
}

/* One or several matrices with the same input, and what of them a block computes: tiles of 16 rows
 * that follow each other. gated: two matrices, whose rows make one output together; a tile has
 * eight rows of each. */
struct step_linear {
    int gated;
    int steps; /* times 64 inputs */
    uint32_t steps_inverse;
    int n, outputs;            /* of all matrices; of a tile */
    int matrix, second, third; /* the first of its layer's; from which output on it is another's */
    int first_tile, n_tiles;   /* of the block */
    int at_once;               /* tiles that there is room for */
    const unsigned char *packed; /* the block's tiles of the first layer */
};

struct step_arguments {
    const struct step_layer *layers; /* device [n_layers + 1] */
    const unsigned char *packed;     /* device: the weights, */
    size_t layer_bytes;              /* so many of a layer */
    const int8_t *embedding, *embedding_exponents;
    const float *rope_cos, *rope_sin;
    /* The batch: token ids and positions [n_rows], kv_indptr [n_rows + 1] and the page indices
     * (paged_batch.h). A small one comes with the launch, which is sooner than any copy; of another
     * one this is device memory. */
    const int32_t *batch;
    int32_t numbers[STEP_NUMBERS];
    float *logits; /* [n_rows, vocab] */
    int n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab;
    bool has_biases;
    int page_bits; /* a page has 2^page_bits positions */
    int n_rows, rows_per_cluster;
    uint32_t heads_inverse, group_inverse;
    double eps, scale;
    unsigned long long *fault;
};

/* Floats from one row of activations to the next: behind the row are the largest magnitudes of its
 * parts, of which each block, or each head, has one. */
static inline __host__ __device__ int step_row_floats(const struct step_arguments *a) {
    int qkv = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    int width = qkv > a->ffn ? qkv : a->ffn;
    return width > a->hidden ? width : a->hidden;
}
static inline __host__ __device__ int step_width(const struct step_arguments *a) {
    int parts = a->n_heads > MOST_CLUSTER_BLOCKS ? a->n_heads : (int)MOST_CLUSTER_BLOCKS;
    return step_row_floats(a) + (parts + 3) / 4 * 4;
}

/* Bytes from one row of digits to the next: an odd number of 64, so that two rows lie in other
 * banks. */
static inline __host__ __device__ int step_stride(const struct step_arguments *a) {
    int q = a->n_heads * a->head_dim, most = q > a->ffn ? q : a->ffn;
    return (gpu_padded(most > a->hidden ? most : a->hidden) / 64 | 1) * 64;
}

/* The gains of a layer's norms: of attention_norm, ffn_norm, q_norm and k_norm. */
static inline __host__ __device__ int step_gains(const struct step_arguments *a) {
    return 2 * a->hidden + 2 * a->head_dim;
}

/* The shared memory of a block: this, then what depends on the sizes of the model (step_sizes). */
struct alignas(128) step_shared {
    unsigned char weights[STEP_UNITS * step_tile_bytes(1)]; /* tiles of a linear layer */
    union {
        long long partial[STEP_UNITS * STEP_ROWS * 16]; /* [unit][row][16] its sums */
        long long sums[STEP_WARPS * STEP_MOST_DIM];     /* [warp][head_dim] of attention */
    };
    float outputs[STEP_ROWS * STEP_OUTPUTS];       /* [row]: what is to be told the other blocks */
    struct bulk_barrier barrier;                   /* of copies of weights */
    float nothing[MOST_CLUSTER_BLOCKS];            /* written by blocks that have no head */
    struct peer_barrier came[2];                   /* of what other blocks write */
    alignas(16) uint32_t query[STEP_MOST_DIM / 2]; /* digits: see dot_of_thread */
    alignas(16) int16_t key[STEP_MOST_DIM];        /* of the newest position */
    alignas(16) int16_t value[STEP_MOST_DIM];
    int16_t snapped_query[STEP_MOST_DIM];
    int16_t value_weights[ATTENTION_TILE];
    uint32_t largest[STEP_WARPS][STEP_ROWS]; /* of the outputs so far, for each warp itself */
    int part[STEP_WARPS];                    /* of reductions */
    uint2 part_sums[STEP_WARPS];
    int exponents[STEP_ROWS];                         /* of the digits */
    int head_exponents[3];                            /* of query, key and value */
    int positions[STEP_ROWS], first_pages[STEP_ROWS]; /* of the rows */
    struct step_linear linears[N_STEP_LINEARS];
    int32_t numbers[STEP_NUMBERS];
};

/* Where the rest begins, in bytes. */
struct step_sizes {
    int layers;                 /* struct step_layer [n_layers + 1] */
    int x, next_x;              /* float [rows][hidden]: the residual stream */
    int in, out;                /* float [rows][width]: what a stage reads, and what it writes */
    int gains;                  /* float [2][step_gains]: of a layer and the next */
    int cos, sin;               /* float [rows][head_dim / 2] */
    int high, low;              /* uint8_t [rows][stride]: digits of what a linear layer reads */
    int width, stride, largest; /* largest: where they begin in a row, in floats */
    int bytes;                  /* of all */
};

static inline __host__ __device__ struct step_sizes step_sizes_of(const struct step_arguments *a) {
    struct step_sizes z;
    int rows = a->rows_per_cluster, at = (int)sizeof(struct step_shared);
    z.width = step_width(a);
    z.stride = step_stride(a);
    z.largest = step_row_floats(a);
    int x = rows * a->hidden * 4, in = rows * z.width * 4, digits = rows * z.stride;
    int angles = rows * a->head_dim / 2 * 4;
    z.layers = at;
    z.x = z.layers + (a->n_layers + 1) * (int)sizeof(struct step_layer);
    z.next_x = z.x + x;
    z.in = z.next_x + x;
    z.out = z.in + in;
    z.gains = z.out + in;
    z.cos = z.gains + 2 * step_gains(a) * 4;
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
    struct step_sizes at;
    int rank, n_blocks;    /* of the block in its cluster */
    int first_row, n_rows; /* of the cluster */
    int warp, lane;
    /* The warps of a block share the rows: this one is number `part` of the n_parts of row `row`,
     * if there is such a row. */
    int row, part, n_parts;
    unsigned copies;              /* of weights that were started so far */
    unsigned stages;              /* that have ended so far */
    const int32_t *batch, *pages; /* step_arguments.batch, and its page indices */
};

static __device__ __forceinline__ const struct step_layer *step_layer_of(const struct step *s,
                                                                         int i) {
    return (const struct step_layer *)(step_memory() + s->at.layers) + i;
}

static __device__ __forceinline__ float *step_input(const struct step *s, int row) {
    return step_floats(s->at.in) + row * s->at.width;
}

/* Tells all blocks of the cluster elements first ... first + n - 1 of a row of what the next stage
 * reads, a multiple of 4: a warp for each block. With `compares`, returns the largest magnitude of
 * them and of `before` in every lane of such a warp. */
static __device__ __forceinline__ uint32_t step_publish(const struct step *s, const float *x,
                                                        int row, int first, int n, bool compares,
                                                        uint32_t before) {
    float4 *to = (float4 *)(step_floats(s->at.out) + row * s->at.width + first);
    if (s->warp >= s->n_blocks)
        return 0;
    UNROLL_1
    for (int i = s->lane; i < n / 4; i += 32) {
        float4 v = ((const float4 *)x)[i];
        store_to_peer(to + i, s->warp, v, &step_shared()->came[s->stages % 2]);
        if (compares)
            before = max(before, largest_of(v));
    }
    return compares ? warp_max(before) : 0;
}

/* Tells them the largest magnitude of part `part` of the row. */
static __device__ __forceinline__ void step_publish_largest(const struct step *s, uint32_t largest,
                                                            int row, int part) {
    float *to = step_floats(s->at.out) + row * s->at.width + s->at.largest + part;
    if (s->warp < s->n_blocks && s->lane == 0)
        store_to_peer(to, s->warp, num_float(largest), &step_shared()->came[s->stages % 2]);
}

/* Tells all blocks that this one has nothing to tell. */
static __device__ __forceinline__ void step_tell(const struct step *s) {
    if (s->warp < s->n_blocks && s->lane == 0)
        store_to_peer(&step_shared()->nothing[s->rank], s->warp, 0.0f,
                      &step_shared()->came[s->stages % 2]);
}

/* Waits until all blocks have told all of a stage, which is so many floats. */
static __device__ __forceinline__ void step_meet(struct step *s, int floats) {
    struct peer_barrier *came = &step_shared()->came[s->stages % 2];
    if (threadIdx.x == STEP_CLERK)
        peer_expect(came, floats * 4);
    peer_wait(came, s->stages / 2 % 2);
    int was = s->at.in;
    s->at.in = s->at.out;
    s->at.out = was;
    s->stages++;
}

/* Packs the weights, unless they are those that were packed last, and tells a where they are: a
 * matrix that exists has its address for itself, and weights_changes tells of every change to one.
 */
void gpu_step_pack(struct gpu_device *gpu, struct step_arguments *a, const struct model *model);

#endif
