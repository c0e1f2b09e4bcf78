/*
 * attention.h - what the files of the attention kernels share.
 *
 *     attention.cu            version 1, and the choice between the versions; version 1 of
 *                             attention_paged
 *     attention_digits.cu     operands as 8-bit digits, for the tensor cores
 *     attention_prefill.cu    version 2: a warp's products (compute capability 8.0 and later)
 *     attention_warpgroup.cu  version 3: products of four warps together (9.0)
 */
#ifndef SAMEBITS_GPU_ATTENTION_H
#define SAMEBITS_GPU_ATTENTION_H

#include "gpu/gpu.h"

/* The arguments of the op, as a kernel gets them. */
struct attention_arguments {
    float *y;       /* [n_tokens, n_heads, head_dim] */
    const float *q; /* [n_tokens, n_heads, head_dim] */
    struct kv_layer kv;
    int n_tokens, kv_len, n_heads, n_kv_heads, head_dim;
    double scale;
    int site;
    unsigned long long *fault;
    /* Of a paged cache: the sequence's pages, and which of the op's tokens is its first (for
     * faults). NULL: contiguous, slot = position. */
    const int32_t *pages;
    int page_size, first_token;
};

static __device__ __forceinline__ size_t slot_of(const struct attention_arguments *a,
                                                 int position) {
    if (!a->pages)
        return (size_t)position;
    return (size_t)a->pages[position / a->page_size] * (size_t)a->page_size +
           (size_t)(position % a->page_size);
}

/* Versions 2 and 3: for many tokens, on tensor cores; head_dim up to 256. */
void gpu_attention_prefill(struct gpu_device *gpu, const struct attention_arguments *a);
void gpu_attention_warpgroup(struct gpu_device *gpu, const struct attention_arguments *a);

/* The shared memory that version 2 takes, in bytes. */
int gpu_attention_prefill_bytes(int head_dim);

/* Whether these two run here; and the one that is asked for, or the nearest. */
bool gpu_attention_fits_tensor_cores(const struct gpu_device *gpu, int head_dim);
void gpu_attention_many_tokens(struct gpu_device *gpu, const struct attention_arguments *a,
                               int version);

/* Version 1 of attention_paged: a is of the whole batch. */
struct plan_arrays;
void gpu_attention_paged_1(struct gpu_device *gpu, const struct attention_arguments *a,
                           const struct plan_arrays *plan);

/* ---- operands as digits: attention_digits.cu ---------------------------------------------------
 *
 * q = 256 * high + low, high signed, low unsigned. Rows of digits are cut into columns of 16 bytes,
 * and rows into groups of R; within a group
 *
 *     column 0, high digits: row 0, row 1, ... row R-1, 16 bytes each
 *     column 0, low digits:  the same
 *     column 1, high digits: ...
 *
 * so that 8 neighbouring rows of a column are 128 bytes in a row: what tensor cores load in one go
 * without a bank conflict, and what a wgmma descriptor can describe.
 *
 * A row is one token and one query head; the rows of one kv head are numbered token * group + head.
 */
enum { QUERY_ROWS = 64 }; /* in a group */

struct attention_digits {
    uint8_t *queries; /* [n_kv_heads, row groups] of QUERY_ROWS rows of dim; rows behind the end: 0 */
    uint8_t *tiles;   /* [n_kv_heads, n_tiles] of tile_bytes: 256 keys in groups of `keys` rows of
                         dim; then the values on their side, in groups of value_dims rows: the digits
                         of one dimension at all 256 positions, ordered by value_slot */
    int8_t *query_exponents; /* [n_kv_heads, n_rows] */
    int8_t *exponents;       /* [n_kv_heads, n_tiles * 256, 2]: of the key and of the value */
    int n_rows, n_tiles;
    int dim, keys, value_dims; /* dim: head_dim rounded up, with zeros */
};

/* Bytes from one column of a group to the next, and of all columns of `bytes_per_row` digits. */
static __host__ __device__ constexpr int column_bytes(int rows) {
    return 2 * 16 * rows;
}
static __host__ __device__ constexpr int group_bytes(int rows, int bytes_per_row) {
    return 2 * rows * bytes_per_row;
}
static __host__ __device__ constexpr int tile_bytes(int dim) {
    return 4 * ATTENTION_TILE * dim;
}

/*
 * Positions within a tile are summed in another order for the values: a lane of a quad that holds
 * the weights of positions 8 j + 2 t and 8 j + 2 t + 1 (j = 0..3) of a group of 32 after the scores
 * must hand in numbers 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3. value_slot: the position, within
 * its group of 32, that is counted as number `slot`.
 */
static __device__ __forceinline__ int value_slot(int slot) {
    return slot / 16 * 16 + slot % 4 / 2 * 8 + slot % 16 / 4 * 2 + slot % 2;
}

/*
 * Fills d, whose dim, keys and value_dims are set, in scratch memory. Queries that cannot be snapped
 * are faults. Positions from kv_len to the end of the tile are 0. Returns false when the device has
 * failed.
 */
bool gpu_attention_digits(struct gpu_device *gpu, const struct attention_arguments *a,
                          struct attention_digits *d);

#endif
