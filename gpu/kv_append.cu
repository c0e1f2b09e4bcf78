/*
 * kv_append: makes new keys and values [n_tokens, n_kv_heads, head_dim] what the cache holds
 * (model/attention/kv_type.h), and writes each row to its slot, in any layout. A warp per row; the
 * second half of the grid (y = 1) does the values.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { WARPS = 4 };

__global__ static void kv_append_1(struct kv_views kv, const float *k, const float *v,
                                   const int64_t *slots, int n_tokens, int page_size,
                                   int n_kv_heads, int head_dim, int site_k, int site_v,
                                   unsigned long long *fault) {
    run_in_turn();
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    int lane = (int)threadIdx.x, token = (int)(row / n_kv_heads), head = (int)(row % n_kv_heads);
    bool values = blockIdx.y == 1;
    if (token >= n_tokens)
        return;
    int64_t slot = slots[token];
    if (slot < 0)
        return;
    const struct kv_view to = values ? kv.v : kv.k;
    const float *from = (values ? v : k) + row * head_dim;
    int64_t row_at = kv_view_row(&to, slot / page_size, slot % page_size, head);
    uint32_t largest = 0;
    for (int d = lane; d < head_dim; d += 32)
        largest = max(largest, num_magnitude(from[d]));
    int e = kv_stored_exponent(to.type, warp_max(largest));
    bool bad = e > BFP_MAX_EXPONENT; /* it becomes a row of zeros */
    for (int d = lane; d < head_dim; d += 32)
        kv_store_bits(to.data, to.type, row_at + kv_view_element(&to, d),
                      bad ? 0 : kv_bits(to.type, from[d], e, to.scale));
    if (lane)
        return;
    if (bad)
        gpu_fault(fault, values ? site_v : site_k, token);
    if (kv_type_has_exponents(to.type))
        to.exponents[kv_view_exponent(&to, slot / page_size, slot % page_size, head)] =
            (int8_t)(bad ? BFP_MIN_EXPONENT : e);
}

void gpu_kv_append(struct device *dev, const struct kv_views *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                   int site_v) {
    struct gpu_device *gpu = gpu_of(dev);
    if (n_tokens)
        GPU_LAUNCH_EARLY(gpu, kv_append_1,
                         dim3(gpu_blocks((size_t)n_tokens * (size_t)n_kv_heads, WARPS), 2),
                         dim3(32, WARPS), 0, *kv, k, v, slots, n_tokens, page_size, n_kv_heads,
                         head_dim, site_k, site_v, gpu->fault);
}
