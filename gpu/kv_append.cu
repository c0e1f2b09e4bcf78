/*
 * kv_append: makes new keys and values [n_tokens, n_kv_heads, head_dim] what the cache holds
 * (model/attention/kv_type.h), and writes each row to its slot, in any layout. A block per token,
 * and a second one (y = 1) for its values; a warp takes the row of a head, and then of others.
 *
 * It runs once in each layer of every step, and is so short that the time goes into waiting for
 * single instructions. So what the engine has, rows of bfp16, has a kernel of its own; a row stays
 * in registers; and the slot is looked up before the kernel that makes the rows has ended.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { MOST_WARPS = 8, EACH = 4 /* elements of a row that a lane has at a time */ };

/* The elements of a row from number `first` on that a lane has; zeros behind the end. */
static __device__ __forceinline__ void load(float (&x)[EACH], const float *from, int first,
                                            int head_dim) {
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int d = first + (int)threadIdx.x + 32 * i;
        x[i] = d < head_dim ? from[d] : 0;
    }
}

/* ROWS: both views are of bfp16, rows in one piece. */
template <bool ROWS>
__global__ static void __launch_bounds__(MOST_WARPS * 32)
    kv_append_1(struct kv_views kv, const float *k, const float *v, const int64_t *slots,
                int page_size, int n_kv_heads, int head_dim, int site_k, int site_v,
                unsigned long long *fault) {
    let_next_kernel_start();
    int token = (int)blockIdx.x, lane = (int)threadIdx.x;
    bool values = blockIdx.y == 1;
    int64_t slot = slots[token]; /* which a copy has brought, no kernel */
    const struct kv_view to = values ? kv.v : kv.k;
    enum kv_type type = ROWS ? KV_BFP16 : to.type;
    int64_t page = slot <= INT32_MAX ? (int)slot / page_size : slot / page_size;
    int64_t position = slot - page * page_size;
    wait_for_previous_kernel();
    if (slot < 0)
        return;
    UNROLL_1
    for (int head = (int)threadIdx.y; head < n_kv_heads; head += (int)blockDim.y) {
        const float *from = (values ? v : k) +
                            ((size_t)token * (size_t)n_kv_heads + (size_t)head) * (size_t)head_dim;
        int64_t row = kv_view_row(&to, page, position, head);
        uint32_t largest = 0;
        float x[EACH];
        UNROLL_1
        for (int first = 0; first < head_dim; first += 32 * EACH) {
            load(x, from, first, head_dim);
            UNROLL
            for (int i = 0; i < EACH; i++)
                largest = max(largest, num_magnitude(x[i]));
        }
        int e = kv_stored_exponent(type, warp_max(largest));
        bool bad = e > BFP_MAX_EXPONENT; /* it becomes a row of zeros */
        UNROLL_1
        for (int first = 0; first < head_dim; first += 32 * EACH) {
            if (head_dim > 32 * EACH)
                load(x, from, first, head_dim);
            UNROLL
            for (int i = 0; i < EACH; i++) {
                int d = first + lane + 32 * i;
                if (d < head_dim)
                    kv_store_bits(to.data, type, row + (ROWS ? d : kv_view_element(&to, d)),
                                  bad ? 0 : kv_bits(type, x[i], e, to.scale));
            }
        }
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
    bool rows = kv_view_has_bfp16_rows(&kv->k) && kv_view_has_bfp16_rows(&kv->v);
    auto kv_append = rows ? kv_append_1<true> : kv_append_1<false>;
    if (n_tokens)
        GPU_LAUNCH_EARLY(gpu, kv_append, dim3((unsigned)n_tokens, 2),
                         dim3(32, (unsigned)min(n_kv_heads, (int)MOST_WARPS)), 0, *kv, k, v, slots,
                         page_size, n_kv_heads, head_dim, site_k, site_v, gpu->fault);
}
