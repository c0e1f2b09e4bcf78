/*
 * rope: rotates the pairs (d, d + head_dim/2) of each head of x [n_tokens, n_heads, head_dim] by
 * the token's angle, in place. Memory-bound: 4 bytes read and 4 written per element; the tables are
 * shared by all heads of a token and come from cache.
 *
 * norm_rope: queries and keys, each head normalised before it is rotated.
 *
 * 1  up to four ops: rmsnorm and rope (a thread per pair), for each of the two
 * 2  one kernel, a warp per head, which stays in registers (head_dim up to 256). In a step of
 *    decoding these are few rows: what it saves is the way from kernel to kernel
 */
#include "gpu/fast/vector/norm.h"
#include "gpu/ptx/tensor_core.h"

__global__ static void rope_1(float *x, const int32_t *positions, const float *cos_table,
                              const float *sin_table, size_t n_pairs, int n_heads, int half) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_pairs)
        return;
    size_t row = i / (size_t)half, d = i % (size_t)half;
    float *x0 = x + row * (size_t)half * 2 + d, *x1 = x0 + half;
    size_t at = (size_t)positions[row / (size_t)n_heads] * (size_t)half + d;
    float a = *x0, b = *x1, c = cos_table[at], s = sin_table[at];
    *x0 = a * c - b * s;
    *x1 = b * c + a * s;
}

void gpu_rope(struct device *dev, float *x, /* [n_tokens, n_heads, head_dim] */
              const int32_t *positions,     /* [n_tokens] */
              const float *cos_table,       /* [n_positions, head_dim / 2] */
              const float *sin_table,       /* [n_positions, head_dim / 2] */
              int n_tokens, int n_heads, int head_dim) {
    struct gpu_device *gpu = gpu_of(dev);
    int half = head_dim / 2;
    size_t n_pairs = (size_t)n_tokens * (size_t)n_heads * (size_t)half;
    if (n_pairs)
        GPU_LAUNCH(gpu, rope_1, gpu_blocks(n_pairs, 256), 256, 0, x, positions, cos_table,
                   sin_table, n_pairs, n_heads, half);
}

/* PAIRS pairs a lane. */
template <int PAIRS>
__global__ static void norm_rope_2(struct head_rows q, struct head_rows k, const int32_t *positions,
                                   const float *cos_table, const float *sin_table, int n_tokens,
                                   int half, double eps, unsigned long long *fault) {
    let_next_kernel_start();
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    bool is_key = row >= n_tokens * q.n_heads;
    struct head_rows rows = is_key ? k : q;
    row -= is_key ? n_tokens * q.n_heads : 0;
    bool exists = row < n_tokens * rows.n_heads;
    int token = exists ? row / rows.n_heads : 0;
    /* What no kernel writes is read before the one that makes x has ended. */
    float a[PAIRS], b[PAIRS], c[PAIRS], s[PAIRS], gain[2][PAIRS] = {};
    if (rows.gain)
        load_pairs(gain[0], gain[1], rows.gain, half, lane);
    size_t at = (size_t)positions[token] * (size_t)half;
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = min(lane + 32 * i, half - 1);
        c[i] = cos_table[at + (size_t)d];
        s[i] = sin_table[at + (size_t)d];
    }
    wait_for_previous_kernel();
    if (!exists)
        return;
    float *x0 = rows.x + (size_t)row * (size_t)(2 * half), *x1 = x0 + half;
    load_pairs(a, b, x0, half, lane);
    if (rows.gain)
        norm_pairs(a, b, gain, half, lane, eps, rows.site, token, fault);
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = lane + 32 * i;
        if (d >= half)
            continue;
        rotate(&a[i], &b[i], c[i], s[i]);
        x0[d] = a[i];
        x1[d] = b[i];
    }
}

void gpu_norm_rope(struct device *dev, const struct head_rows *q, /* host */
                   const struct head_rows *k,                     /* host */
                   const int32_t *positions,                      /* [n_tokens] */
                   const float *cos_table,                        /* [n_positions, head_dim/2] */
                   const float *sin_table,                        /* [n_positions, head_dim/2] */
                   int n_tokens, int head_dim, double eps) {
    struct gpu_device *gpu = gpu_of(dev);
    size_t n_rows = (size_t)n_tokens * (size_t)(q->n_heads + k->n_heads);
    int half = head_dim / 2;
    if (!n_rows)
        return;
    if (gpu->version[GPU_NORM_ROPE] == 1 || head_dim > 256) {
        for (const struct head_rows *rows : {q, k}) {
            if (rows->gain)
                gpu_rmsnorm(dev, rows->x, rows->x, rows->gain, n_tokens * rows->n_heads, head_dim,
                            rows->n_heads, eps, rows->site);
            gpu_rope(dev, rows->x, positions, cos_table, sin_table, n_tokens, rows->n_heads,
                     head_dim);
        }
        return;
    }
    auto norm_rope = half <= 32 ? norm_rope_2<1> : half <= 64 ? norm_rope_2<2> : norm_rope_2<4>;
    GPU_LAUNCH_EARLY(gpu, norm_rope, gpu_blocks(n_rows, 4), dim3(32, 4), 0, *q, *k, positions,
                     cos_table, sin_table, n_tokens, half, eps, gpu->fault);
}
