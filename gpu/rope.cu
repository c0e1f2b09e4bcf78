/*
 * rope: rotates the pairs (d, d + head_dim/2) of each head of x [n_tokens, n_heads, head_dim] by
 * the token's angle, in place. Memory-bound: 4 bytes read and 4 written per element; the tables are
 * shared by all heads of a token and come from cache.
 *
 * norm_rope: queries and keys, each head normalised before it is rotated; and keys, with values,
 * may be stored in the cache.
 *
 * 1  up to four ops: rmsnorm and rope (a thread per pair), for each of the two; then kv_append
 * 2  one kernel, a warp per head, which stays in registers (head_dim up to 256). It stores rows of
 *    bfp16 in one piece; kv_append all others. In a step of decoding these are few rows: what it
 *    saves is the way from kernel to kernel. Where attend follows at once and can (struct
 *    kv_target), nothing is launched: the kernel for decoding does it (gpu/fast/decode)
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

/* Where the row of a token's head is stored, which is not if the slot is negative. */
struct stored_row {
    int64_t slot, page, position;
};

/* Snaps a head and stores it there; a head that cannot be snapped is a fault, and zeros. */
template <int PAIRS>
static __device__ __forceinline__ void
store_pairs(const struct kv_view *to, const struct stored_row *at, int head,
            const float (&a)[PAIRS], const float (&b)[PAIRS], int half, int lane, int site,
            int token, unsigned long long *fault) {
    bool bad;
    int e = exponent_of_pairs(&bad, a, b, lane, site, token, fault);
    float scale = num_pow2f(15 - e);
    int16_t *row = (int16_t *)to->data + kv_view_row(to, at->page, at->position, head);
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = lane + 32 * i;
        if (d >= half)
            continue;
        row[d] = bad ? (int16_t)0 : (int16_t)near_mantissa(a[i], scale);
        row[half + d] = bad ? (int16_t)0 : (int16_t)near_mantissa(b[i], scale);
    }
    if (lane == 0)
        to->exponents[kv_view_exponent(to, at->page, at->position, head)] = (int8_t)e;
}

/* PAIRS pairs a lane. STORES: keys and values go to the cache, too; the heads of values come behind
 * those of queries and keys, and nothing else becomes of them. */
template <int PAIRS, bool STORES>
__global__ static void norm_rope_2(struct head_rows q, struct head_rows k, struct head_rows v,
                                   struct kv_target to, const int32_t *positions,
                                   const float *cos_table, const float *sin_table, int n_tokens,
                                   int half, double eps, unsigned long long *fault) {
    let_next_kernel_start();
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    bool is_key = row >= n_tokens * q.n_heads;
    row -= is_key ? n_tokens * q.n_heads : 0;
    bool is_value = STORES && is_key && row >= n_tokens * k.n_heads;
    row -= is_value ? n_tokens * k.n_heads : 0;
    struct head_rows rows = is_value ? v : is_key ? k : q;
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
    struct stored_row at_slot = {};
    if (STORES && is_key) {
        int64_t slot = to.slots[token]; /* which a copy has brought, no kernel */
        at_slot.slot = slot;
        at_slot.page = slot <= INT32_MAX ? (int)slot / to.page_size : slot / to.page_size;
        at_slot.position = slot - at_slot.page * to.page_size;
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
        if (!is_value)
            rotate(&a[i], &b[i], c[i], s[i]);
        if (d >= half || is_value)
            continue;
        x0[d] = a[i];
        x1[d] = b[i];
    }
    if (STORES && is_key && at_slot.slot >= 0)
        store_pairs(is_value ? &to.kv.v : &to.kv.k, &at_slot, row - token * rows.n_heads, a, b,
                    half, lane, is_value ? to.site_v : to.site_k, token, fault);
}

void gpu_norm_rope(struct device *dev, const struct head_rows *q, /* host */
                   const struct head_rows *k,                     /* host */
                   const float *v,             /* [n_tokens, k->n_heads, head_dim] */
                   const struct kv_target *to, /* host; NULL: nothing is stored */
                   const int32_t *positions,   /* [n_tokens] */
                   const float *cos_table,     /* [n_positions, head_dim/2] */
                   const float *sin_table,     /* [n_positions, head_dim/2] */
                   int n_tokens, int head_dim, double eps) {
    struct gpu_device *gpu = gpu_of(dev);
    bool in_registers = gpu->version[GPU_NORM_ROPE] != 1 && head_dim <= 256;
    bool stores = in_registers && to && kv_view_has_bfp16_rows(&to->kv.k) &&
                  kv_view_has_bfp16_rows(&to->kv.v);
    int heads = q->n_heads + k->n_heads * (stores ? 2 : 1), half = head_dim / 2;
    unsigned blocks = gpu_blocks((size_t)n_tokens * (size_t)heads, 4);
    struct head_rows values = {(float *)v, NULL, k->n_heads, 0}; /* only read */
    auto plain = half <= 32   ? norm_rope_2<1, false>
                 : half <= 64 ? norm_rope_2<2, false>
                              : norm_rope_2<4, false>;
    auto storing = half <= 32   ? norm_rope_2<1, true>
                   : half <= 64 ? norm_rope_2<2, true>
                                : norm_rope_2<4, true>;
    auto norm_rope = stores ? storing : plain;
    if (!blocks)
        return;
    if (to && to->then && stores && gpu_attend_takes_new(gpu, &to->kv, to->then)) {
        gpu->left_to_attend = {k->x, v,       q->gain, k->gain,    cos_table, sin_table,
                               eps,  q->site, k->site, to->site_k, to->site_v};
        return;
    }
    if (in_registers) {
        GPU_LAUNCH_EARLY(gpu, norm_rope, blocks, dim3(32, 4), 0, *q, *k, values,
                         stores ? *to : kv_target{}, positions, cos_table, sin_table, n_tokens,
                         half, eps, gpu->fault);
    } else {
        for (const struct head_rows *rows : {q, k}) {
            if (rows->gain)
                gpu_rmsnorm(dev, rows->x, rows->x, rows->gain, n_tokens * rows->n_heads, head_dim,
                            rows->n_heads, eps, rows->site);
            gpu_rope(dev, rows->x, positions, cos_table, sin_table, n_tokens, rows->n_heads,
                     head_dim);
        }
    }
    if (to && !stores)
        gpu_kv_append(dev, &to->kv, k->x, v, to->slots, n_tokens, to->page_size, k->n_heads,
                      head_dim, to->site_k, to->site_v);
}
