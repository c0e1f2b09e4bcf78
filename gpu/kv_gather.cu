/*
 * kv_gather: copies the keys and values of a sequence out of the slots of a pool, into one piece. A
 * warp per token; the second half of the grid (y = 1) does the values. Memory-bound: every byte is
 * read once and written once.
 *
 * 1  two bytes a thread
 * 2  16 bytes a thread, where a token's row allows it
 */
#include "gpu/gpu.h"

template <class T>
__global__ static void kv_gather_1(struct kv_layer to, struct kv_layer from, const int64_t *slots,
                                   int n_tokens, int n_kv_heads, int row_elements) {
    int token = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    bool values = blockIdx.y == 1;
    if (token >= n_tokens)
        return;
    size_t slot = (size_t)slots[token], n = (size_t)row_elements, heads = (size_t)n_kv_heads;
    T *y = (T *)(values ? to.v : to.k) + (size_t)token * n;
    const T *x = (const T *)(values ? from.v : from.k) + slot * n;
    for (int i = lane; i < row_elements; i += 32)
        y[i] = x[i];
    int8_t *e = (values ? to.v_exponents : to.k_exponents) + (size_t)token * heads;
    const int8_t *e_from = (values ? from.v_exponents : from.k_exponents) + slot * heads;
    for (int i = lane; i < n_kv_heads; i += 32)
        e[i] = e_from[i];
}

void gpu_kv_gather(struct device *dev, const struct kv_layer *to, const struct kv_layer *from,
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int n_kv_heads, int head_dim) {
    struct gpu_device *gpu = gpu_of(dev);
    int elements = n_kv_heads * head_dim;
    dim3 grid(gpu_blocks((size_t)n_tokens, 4), 2), block(32, 4);
    if (!n_tokens)
        return;
    if (gpu->version[GPU_KV_GATHER] == 1 || elements % 8)
        GPU_LAUNCH(gpu, kv_gather_1<int16_t>, grid, block, 0, *to, *from, slots, n_tokens,
                   n_kv_heads, elements);
    else
        GPU_LAUNCH(gpu, kv_gather_1<uint4>, grid, block, 0, *to, *from, slots, n_tokens, n_kv_heads,
                   elements / 8);
}
