/*
 * kv_append: snaps new keys and values [n_tokens, n_kv_heads, head_dim] and writes each row to its
 * slot of the cache. A warp per row; the second half of the grid (y = 1) does the values.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

__global__ static void kv_append_1(struct kv_layer kv, const float *k, const float *v,
                                   const int64_t *slots, int n_tokens, int n_kv_heads, int head_dim,
                                   int site_k, int site_v, unsigned long long *fault) {
    run_in_turn();
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    bool values = blockIdx.y == 1;
    if (row >= n_tokens * n_kv_heads)
        return;
    int64_t slot = slots[row / n_kv_heads];
    if (slot < 0)
        return;
    const float *from = (values ? v : k) + (size_t)row * (size_t)head_dim;
    size_t to = (size_t)slot * (size_t)n_kv_heads + (size_t)(row % n_kv_heads);
    int16_t *mantissas = (values ? kv.v : kv.k) + to * (size_t)head_dim;
    uint32_t largest = 0;
    for (int i = lane; i < head_dim; i += 32)
        largest = max(largest, num_magnitude(from[i]));
    int e = num_row_exponent(warp_max(largest));
    bool bad = e > BFP_MAX_EXPONENT;
    float scale = num_pow2f(15 - (bad ? BFP_MIN_EXPONENT : e));
    for (int i = lane; i < head_dim; i += 32)
        mantissas[i] = bad ? (int16_t)0 : num_mantissa(from[i], scale);
    if (lane == 0) {
        if (bad)
            gpu_fault(fault, values ? site_v : site_k, row / n_kv_heads);
        (values ? kv.v_exponents : kv.k_exponents)[to] = (int8_t)(bad ? BFP_MIN_EXPONENT : e);
    }
}

void gpu_kv_append(struct device *dev, const struct kv_layer *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int n_kv_heads, int head_dim, int site_k, int site_v) {
    struct gpu_device *gpu = gpu_of(dev);
    int rows = n_tokens * n_kv_heads;
    if (rows)
        GPU_LAUNCH_EARLY(gpu, kv_append_1, dim3(gpu_blocks(rows, 4), 2), dim3(32, 4), 0, *kv, k, v, slots,
                   n_tokens, n_kv_heads, head_dim, site_k, site_v, gpu->fault);
}
