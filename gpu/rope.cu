/*
 * rope: rotates the pairs (d, d + head_dim/2) of each head of x [n_tokens, n_heads, head_dim] by
 * the token's angle, in place. Memory-bound: 4 bytes read and 4 written per element; the tables are
 * shared by all heads of a token and come from cache.
 *
 * 1  a thread per pair
 * 2  a thread per four pairs: 16-byte loads (head_dim a multiple of 8)
 */
#include "gpu/gpu.h"
#include "gpu/tensor_core.h"

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

__global__ static void rope_2(float4 *x, const int32_t *positions, const float4 *cos_table,
                              const float4 *sin_table, size_t n_quads, int n_heads, int half) {
    run_in_turn();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_quads)
        return;
    unsigned quads = (unsigned)half / 4; /* float4 in half a head */
    size_t row = i / quads, d = i % quads;
    float4 *x0 = x + row * quads * 2 + d, *x1 = x0 + quads;
    size_t at = (size_t)positions[row / (unsigned)n_heads] * quads + d;
    float4 a = *x0, b = *x1, c = cos_table[at], s = sin_table[at];
    *x0 = make_float4(a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y, a.z * c.z - b.z * s.z,
                      a.w * c.w - b.w * s.w);
    *x1 = make_float4(b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y, b.z * c.z + a.z * s.z,
                      b.w * c.w + a.w * s.w);
}

void gpu_rope(struct device *dev, float *x, /* [n_tokens, n_heads, head_dim] */
              const int32_t *positions,     /* [n_tokens] */
              const float *cos_table,       /* [n_positions, head_dim / 2] */
              const float *sin_table,       /* [n_positions, head_dim / 2] */
              int n_tokens, int n_heads, int head_dim) {
    struct gpu_device *gpu = gpu_of(dev);
    int half = head_dim / 2;
    size_t n_pairs = (size_t)n_tokens * (size_t)n_heads * (size_t)half;
    if (!n_pairs)
        return;
    if (gpu->version[GPU_ROPE] == 1 || half % 4)
        GPU_LAUNCH(gpu, rope_1, gpu_blocks(n_pairs, 256), 256, 0, x, positions, cos_table,
                   sin_table, n_pairs, n_heads, half);
    else
        GPU_LAUNCH_EARLY(gpu, rope_2, gpu_blocks(n_pairs / 4, 256), 256, 0, (float4 *)x, positions,
                   (const float4 *)cos_table, (const float4 *)sin_table, n_pairs / 4, n_heads,
                   half);
}
