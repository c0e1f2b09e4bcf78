/*
 * kv_convert: copies a cache to one of another layout, bit for bit. A warp per row, whose lanes
 * take neighbouring elements.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { WARPS = 4 };

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
