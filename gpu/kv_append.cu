/*
 * kv_append: makes new keys and values [n_tokens, n_kv_heads, head_dim] what the cache holds
 * (model/attention/kv_type.h), and writes each row to its slot, in any layout. A block per token,
 * and a second one (y = 1) for its values; a warp takes the row of a head, and then of others.
 *
 * It runs once in each layer of every step, and is so short that the time goes into waiting for
 * single instructions. So the engine's own type has a kernel of its own, a division has 32 bits or
 * is left out, and the slot is looked up before the kernel that makes the rows has ended.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { MOST_WARPS = 8 };

/* BFP16: both views are of that type. */
template <bool BFP16>
__global__ static void __launch_bounds__(MOST_WARPS * 32)
    kv_append_1(struct kv_views kv, const float *k, const float *v, const int64_t *slots,
                int page_size, int n_kv_heads, int head_dim, int site_k, int site_v,
                unsigned long long *fault) {
    let_next_kernel_start();
    int token = (int)blockIdx.x, lane = (int)threadIdx.x;
    bool values = blockIdx.y == 1;
    int64_t slot = slots[token]; /* which a copy has brought, no kernel */
    const struct kv_view to = values ? kv.v : kv.k;
    enum kv_type type = BFP16 ? KV_BFP16 : to.type;
    bool in_one_piece = to.element_step == 1 && to.group_step == to.x;
    int64_t page = slot <= INT32_MAX ? (int)slot / page_size : slot / page_size;
    int64_t position = slot - page * page_size;
    wait_for_previous_kernel();
    if (slot < 0)
        return;
    for (int head = (int)threadIdx.y; head < n_kv_heads; head += (int)blockDim.y) {
        const float *from = (values ? v : k) +
                            ((size_t)token * (size_t)n_kv_heads + (size_t)head) * (size_t)head_dim;
        int64_t row = kv_view_row(&to, page, position, head);
        uint32_t largest = 0;
        for (int d = lane; d < head_dim; d += 32)
            largest = max(largest, num_magnitude(from[d]));
        int e = kv_stored_exponent(type, warp_max(largest));
        bool bad = e > BFP_MAX_EXPONENT; /* it becomes a row of zeros */
        for (int d = lane; d < head_dim; d += 32)
            kv_store_bits(to.data, type, row + (in_one_piece ? d : kv_view_element(&to, d)),
                          bad ? 0 : kv_bits(type, from[d], e, to.scale));
        if (bad && lane == 0)
            gpu_fault(fault, values ? site_v : site_k, token);
        if (kv_type_has_exponents(type) && lane == 0)
            to.exponents[kv_view_exponent(&to, page, position, head)] =
                (int8_t)(bad ? BFP_MIN_EXPONENT : e);
    }
}

void gpu_kv_append(struct device *dev, const struct kv_views *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                   int site_v) {
    struct gpu_device *gpu = gpu_of(dev);
    bool bfp16 = kv->k.type == KV_BFP16 && kv->v.type == KV_BFP16;
    auto kv_append = bfp16 ? kv_append_1<true> : kv_append_1<false>;
    if (n_tokens)
        GPU_LAUNCH_EARLY(gpu, kv_append, dim3((unsigned)n_tokens, 2),
                         dim3(32, (unsigned)min(n_kv_heads, (int)MOST_WARPS)), 0, *kv, k, v, slots,
                         page_size, n_kv_heads, head_dim, site_k, site_v, gpu->fault);
}
