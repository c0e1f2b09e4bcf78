/*
 * attention: causal attention of one sequence over its contiguous BFP16 cache, as ref/attention.c:
 * tiles of 256 positions, integer sums in units of 256, tiles merged in ascending order.
 *
 * q, y [n_tokens, n_heads, head_dim]; k, v [kv_len, n_kv_heads, head_dim] mantissas with an
 * exponent per row.
 *
 * 1  a block of 256 threads per query token and head: a thread per position of the tile for the
 *    scores and the softmax, then a thread per dimension for the weighted sum of values. Plain
 *    loops over 64-bit integers; every step of the definition can be seen.
 * 2  for many tokens, on tensor cores: gpu/fast/prompt/mma.cu
 * 3  the same with the products of four warps (compute capability 9.0): gpu/fast/prompt/wgmma.cu
 *
 * The choice (version 0): 3 from 16 tokens or 1024 positions on, 2 where there is no 3, else 1
 * (measured: tests/bench/README.md).
 */
#include "gpu/fast/prompt/prompt.h"

enum { TILE = ATTENTION_TILE, WARPS = TILE / 32 };

/* Snaps the block's query to shared memory and returns its exponent. */
static __device__ int load_query(const struct attention_arguments *a, int16_t *mantissas,
                                 const float *q, int token, uint32_t *part) {
    uint32_t largest = 0;
    for (int d = (int)threadIdx.x; d < a->head_dim; d += TILE)
        largest = max(largest, num_magnitude(q[d]));
    int e = num_row_exponent(row_max<WARPS>(largest, part));
    bool bad = e > BFP_MAX_EXPONENT;
    if (bad && threadIdx.x == 0)
        gpu_fault(a->fault, a->site, token);
    e = bad ? BFP_MIN_EXPONENT : e;
    for (int d = (int)threadIdx.x; d < a->head_dim; d += TILE)
        mantissas[d] = bad ? (int16_t)0 : num_mantissa(q[d], num_pow2f(15 - e));
    __syncthreads();
    return e;
}

/* The dot product of the query with the key row at `row`, rounded down to a multiple of 256. */
static __device__ __forceinline__ float dot_with_key(const struct kv_layer *kv, int head_dim,
                                                     const int16_t *q, size_t row) {
    const int16_t *k = kv->k + row * (size_t)head_dim;
    long long dot = 0;
    for (int d = 0; d < head_dim; d++)
        dot += q[d] * k[d];
    return (float)(dot & -256);
}

/* (One block a processor is promised: registers for 16 loads at a time.) */
__global__ static void __launch_bounds__(TILE, 1)
    attention_1(struct attention_arguments a, struct kv_layer kv) {
    SHARED_DYNAMIC(int16_t, query); /* [head_dim] */
    SHARED(int16_t, weights, [TILE]);
    SHARED(float, part_float, [WARPS]);
    SHARED(uint32_t, part, [WARPS]);
    int j = (int)threadIdx.x, token = (int)blockIdx.x, head = (int)blockIdx.y;
    int kv_head = head / (a.n_heads / a.n_kv_heads);
    size_t at = ((size_t)token * (size_t)a.n_heads + (size_t)head) * (size_t)a.head_dim;
    struct num_score_unit unit =
        num_score_unit_of(load_query(&a, query, a.q + at, token, part), a.scale);
    int visible = a.kv_len - a.n_tokens + token + 1; /* positions that this query sees */
    float m = -INFINITY, l = 0;
    for (int d = j; d < a.head_dim; d += TILE)
        a.y[at + (size_t)d] = 0;
    for (int tile = 0; tile < visible; tile += TILE) {
        bool sees = tile + j < visible;
        size_t row = sees ? (size_t)(tile + j) * (size_t)a.n_kv_heads + (size_t)kv_head : 0;
        float s = -INFINITY;
        if (sees)
            s = num_score(dot_with_key(&kv, a.head_dim, query, row),
                          kv_score_unit(kv.k_exponents[row]));
        float largest = row_max<WARPS>(s, part_float), tile_m = num_tile_max(largest, unit);
        float p = sees ? num_probability(s, num_window_of(largest, unit.binary)) : 0;
        uint32_t units = row_sum<WARPS>(sees ? num_probability_units(p) : 0, part);
        float w = sees ? num_value_weight(p, kv.v_exponents[row]) : 0;
        int e = num_row_exponent(row_max<WARPS>(num_magnitude(w), part));
        bool bad = num_magnitude(tile_m) >= 0x7f800000u || e > BFP_MAX_EXPONENT;
        if (bad && j == 0)
            gpu_fault(a.fault, a.site, token);
        e = bad ? BFP_MIN_EXPONENT : e;
        weights[j] = bad ? (int16_t)0 : num_mantissa(w, num_pow2f(15 - e));
        __syncthreads();
        float old_factor, new_factor;
        attention_merge_sums(&m, &l, tile_m, (float)units * 0x1p-23f, &old_factor, &new_factor);
        int n = min(TILE, visible - tile);
        for (int d = j; d < a.head_dim; d += TILE) {
            long long sum = 0;
            for (int i = 0; i < n; i++) {
                size_t v_row = (size_t)(tile + i) * (size_t)a.n_kv_heads + (size_t)kv_head;
                sum += weights[i] * kv.v[v_row * (size_t)a.head_dim + (size_t)d];
            }
            float *o = &a.y[at + (size_t)d];
            *o = num_merge(*o, old_factor, num_weighted_value((float)(sum & -256), e), new_factor);
        }
        __syncthreads(); /* the next tile writes weights again */
    }
    for (int d = j; d < a.head_dim; d += TILE)
        if (l > 0)
            a.y[at + (size_t)d] /= l;
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* Version 2 or 3 for many rows, on a GPU that has them and from phase 8 on. */
bool gpu_attention_fits_tensor_cores(const struct gpu_device *gpu, int head_dim) {
    return gpu_attention_prompt_mma && gpu->has_mma && head_dim <= 256 &&
           gpu_attention_prompt_mma_bytes(prompt_dim(head_dim)) <= gpu->most_shared;
}

void gpu_attention_prompt(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_variant *variant,
                          const struct attention_work *work) {
    if (gpu->version[GPU_ATTENTION] != 2 && gpu->has_wgmma)
        gpu_attention_prompt_wgmma(gpu, a, kv, variant, work);
    else
        gpu_attention_prompt_mma(gpu, a, kv, variant, work);
}

void gpu_attention(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                   const float *q,               /* [n_tokens, n_heads, head_dim] */
                   const struct kv_layer *kv, int n_tokens, int kv_len,
                   const struct attention_shape *shape, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    struct attention_arguments a = {};
    a.y = y;
    a.q = q;
    a.n_tokens = n_tokens;
    a.kv_len = kv_len;
    a.n_heads = shape->n_heads;
    a.n_kv_heads = shape->n_kv_heads;
    a.head_dim = shape->head_dim;
    a.scale = shape->scale;
    a.v_scale = 1;
    a.site = site;
    a.fault = gpu->fault;
    int version = gpu->version[GPU_ATTENTION];
    if (!version) /* the rule: tests/bench/README.md */
        version = n_tokens >= 16 || kv_len >= 1024 ? 3 : 1;
    if (version >= 2 && gpu_attention_fits_tensor_cores(gpu, shape->head_dim)) {
        struct kv_views views = kv_layer_views(kv, KV_BFP16, 1, shape->n_kv_heads, shape->head_dim);
        struct attention_variant causal = attention_variant_causal();
        gpu_attention_prompt(gpu, &a, &views, &causal, NULL);
    } else if (n_tokens) {
        GPU_LAUNCH(gpu, attention_1, dim3((unsigned)n_tokens, (unsigned)shape->n_heads), TILE,
                   sizeof(int16_t) * (size_t)shape->head_dim, a, *kv);
    }
}
