/*
 * kv_store and kv_convert: caches of any layout and type.
 *
 * kv_store: a warp per row; the second half of the grid (y = 1) does the values.
 * kv_convert: a warp per row, whose lanes take neighbouring elements.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { WARPS = 4 };

__global__ static void kv_store_1(struct kv_views kv, const float *k, const float *v,
                                  const int64_t *slots, int n_tokens, int page_size, int n_kv_heads,
                                  int head_dim, int site_k, int site_v, unsigned long long *fault) {
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

void gpu_kv_store(struct device *dev, const struct kv_views *kv,
                  const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                  const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                  const int64_t *slots, /* [n_tokens] */
                  int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                  int site_v) {
    struct gpu_device *gpu = gpu_of(dev);
    if (n_tokens)
        GPU_LAUNCH_EARLY(gpu, kv_store_1,
                         dim3(gpu_blocks((size_t)n_tokens * (size_t)n_kv_heads, WARPS), 2),
                         dim3(32, WARPS), 0, *kv, k, v, slots, n_tokens, page_size, n_kv_heads,
                         head_dim, site_k, site_v, gpu->fault);
}

__global__ static void kv_convert_1(struct kv_view to, struct kv_view from, int64_t n_rows,
                                    int page_size, int n_kv_heads, int head_dim) {
    run_in_turn();
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    int lane = (int)threadIdx.x, head = (int)(row % n_kv_heads);
    if (row >= n_rows)
        return;
    int64_t slot = row / n_kv_heads, page = slot / page_size, position = slot % page_size;
    int64_t y = kv_view_row(&to, page, position, head);
    int64_t x = kv_view_row(&from, page, position, head);
    for (int d = lane; d < head_dim; d += 32)
        kv_store_bits(to.data, to.type, y + kv_view_element(&to, d),
                      kv_load_bits(from.data, from.type, x + kv_view_element(&from, d)));
    if (lane == 0 && kv_type_has_exponents(to.type))
        to.exponents[kv_view_exponent(&to, page, position, head)] =
            from.exponents[kv_view_exponent(&from, page, position, head)];
}

void gpu_kv_convert(struct device *dev, const struct kv_view *to, const struct kv_view *from,
                    int n_pages, int page_size, int n_kv_heads, int head_dim) {
    struct gpu_device *gpu = gpu_of(dev);
    int64_t n_rows = (int64_t)n_pages * page_size * n_kv_heads;
    if (n_rows)
        GPU_LAUNCH_EARLY(gpu, kv_convert_1, gpu_blocks((size_t)n_rows, WARPS), dim3(32, WARPS), 0,
                         *to, *from, n_rows, page_size, n_kv_heads, head_dim);
}
