/*
 * attend: attention over a paged cache of any layout and type, with any masks and scores, as
 * ref/attend.c.
 *
 * q, y [n_tokens, n_heads, head_dim]; a cache behind views (model/attention/kv_view.h); a plan with
 * the page tables (gpu/fast/plan/plan.h).
 *
 * 1  a block of 256 threads per query token and head: a thread per position of the tile for the
 *    score and the softmax, then a thread per dimension for the weighted sum of values. Tiles that
 *    the window or the causal mask hide are left out.
 * 2  the same blocks, divided among threads as vLLM's paged_attention_v1 does it
 * 3  a block per query token, head and tile, after paged_attention_v2 (both: attention_paged.cu)
 * 4  on tensor cores (compute capability 8.0): sequences of few tokens over a cache whose rows are
 *    in one piece by the kernels for decoding (gpu/fast/decode), sequences of many by those for
 *    prompts (gpu/fast/prompt, versions 2 and 3 of attention)
 *
 * The choice (version 0): 4; for what it cannot do 3, where a block for each row would leave
 * processors without work, or 2.
 */
#include "gpu/attend.h"
#include "gpu/attention.h"
#include "gpu/ptx/tensor_core.h"

/* The exponent of a row, by the thread that has its position. */
static __device__ int exponent_of(const struct kv_view *v, int64_t row, int64_t exponent_at,
                                  int dim) {
    if (kv_type_has_exponents(v->type))
        return v->exponents[exponent_at];
    uint32_t largest = 0;
    for (int d = 0; d < dim; d++) {
        uint32_t bits = kv_load_bits(v->data, v->type, row + kv_view_element(v, d));
        largest = max(largest, kv_magnitude(v->type, bits));
    }
    return kv_read_exponent(v->type, largest);
}

/* Element d of a row with that exponent, as an integer. */
static __device__ __forceinline__ int integer_of(const struct kv_view *v, int64_t row, int d,
                                                 int exponent) {
    return kv_integer(v->type, kv_load_bits(v->data, v->type, row + kv_view_element(v, d)),
                      num_pow2f(15 - exponent));
}

/* The softmax_score of this thread's position, which the row sees. */
static __device__ float score_of(const struct query_row *r, const struct attend_arguments *a,
                                 const int16_t *query, int64_t page, int64_t in_page,
                                 int position) {
    const struct kv_view *k = &a->kv.k;
    int64_t row = kv_view_row(k, page, in_page, r->kv_head);
    int e = exponent_of(k, row, kv_view_exponent(k, page, in_page, r->kv_head), a->shape.head_dim);
    long long dot = 0;
    for (int d = 0; d < a->shape.head_dim; d++)
        dot += query[d] * integer_of(k, row, d, e);
    return softmax_score(r, a, rounded_sum(dot), e, position);
}

__global__ static void __launch_bounds__(TILE)
    attend_1(struct attend_arguments a, struct plan_arrays plan, int most_tokens) {
    SHARED_DYNAMIC(int16_t, query); /* [head_dim] */
    SHARED(int16_t, weights, [TILE]);
    SHARED(int64_t, value_rows, [TILE]); /* where the values of the tile's positions begin */
    SHARED(int, value_exponents, [TILE]);
    SHARED(struct row_parts, part);
    run_in_turn();
    struct query_row r;
    if (!find_query(&r, &a, &plan, (int)blockIdx.x, most_tokens))
        return;
    const struct kv_view *v = &a.kv.v;
    int j = (int)threadIdx.x, dim = a.shape.head_dim;
    float *y = a.y + r.row * (size_t)dim, m = -INFINITY, l = 0;
    load_query(&r, query, &a, &part);
    for (int d = j; d < dim; d += TILE)
        y[d] = 0;
    for (int tile = r.first / TILE * TILE; tile < r.end; tile += TILE) {
        int position = tile + j;
        bool sees = position >= r.first && position < r.end &&
                    attention_shows(&a.variant, r.mask, r.i, position, r.kv_len);
        if (!row_max<WARPS>((uint32_t)sees, part.words))
            continue; /* nothing of this tile: it does not take part */
        float s = -INFINITY;
        int v_exponent = 0;
        if (sees) {
            int64_t page = r.pages[position / plan.page_size], in_page = position % plan.page_size;
            s = score_of(&r, &a, query, page, in_page, position);
            value_rows[j] = kv_view_row(v, page, in_page, r.kv_head);
            v_exponent =
                exponent_of(v, value_rows[j], kv_view_exponent(v, page, in_page, r.kv_head), dim);
            value_exponents[j] = v_exponent;
        }
        struct tile_softmax t;
        weights[j] = softmax_tile(&t, s, sees, v_exponent, &r, &a, &part);
        if (!sees)
            value_rows[j] = -1;
        __syncthreads();
        struct merge_factors factor = merge_tile(&m, &l, t.m, t.l);
        for (int d = j; d < dim; d += TILE) {
            long long sum = 0;
            for (int i = 0; i < TILE; i++)
                if (value_rows[i] >= 0)
                    sum += weights[i] * integer_of(v, value_rows[i], d, value_exponents[i]);
            float o = num_weighted_value(rounded_sum(sum), t.exponent);
            y[d] = num_merge(y[d], factor.before, o, factor.tile);
        }
        __syncthreads(); /* the next tile writes weights again */
    }
    finish_row(&a, &r, y, m, l);
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* Versions 1 to 3, for the sequences of at most most_tokens. */
static void launch_rows(struct gpu_device *gpu, const struct attend_arguments *a,
                        const struct attention_plan *plan, int most_tokens) {
    int version = gpu->version[GPU_ATTEND];
    dim3 grid((unsigned)plan->n_tokens, (unsigned)plan->shape.n_heads);
    if (version == 1 || !gpu_attend_tiles(gpu, a, plan, version == 4 ? 0 : version, most_tokens))
        GPU_LAUNCH_EARLY(gpu, attend_1, grid, TILE, sizeof(int16_t) * (size_t)plan->shape.head_dim,
                         *a, plan->arrays, most_tokens);
}

/* The kernels for decoding, for the plan's row groups; shared tiles; and what must be merged of
 * both. t: what norm_rope has left to them; k is NULL: nothing. */
static void launch_decode(struct gpu_device *gpu, const struct attention_arguments *all,
                          const struct attend_arguments *a, const struct decode_cache *cache,
                          const struct attention_plan *plan, const struct new_tokens *t) {
    struct group_results own = {plan->partial,
                                decode_dim(a->shape.head_dim, decode_has_few(cache, &a->variant))};
    if (t->k)
        gpu_attention_decode_new(gpu, all, cache, &a->variant, plan, t);
    else
        gpu_attention_decode(gpu, all, cache, &a->variant, plan);
    if (attention_plan_has_cascade(plan))
        gpu_attention_shared(gpu, all, &a->kv, &a->variant, plan, &own);
    gpu_attention_merge(gpu, all, cache, &a->variant, plan);
}

/* cache: NULL where the kernels for decoding cannot read it. */
static void launch_4(struct gpu_device *gpu, const struct attend_arguments *a,
                     const struct decode_cache *cache, const struct attention_plan *plan,
                     const struct new_tokens *t) {
    struct attention_arguments all = {};
    all.y = a->y;
    all.q = a->q;
    all.n_heads = a->shape.n_heads;
    all.n_kv_heads = a->shape.n_kv_heads;
    all.head_dim = a->shape.head_dim;
    all.scale = a->shape.scale * (double)a->kv.k.scale;
    all.v_scale = a->kv.v.scale;
    all.site = a->site;
    all.fault = a->fault;
    if (plan->n_groups && cache)
        launch_decode(gpu, &all, a, cache, plan, t);
    else if (plan->n_groups)
        launch_rows(gpu, a, plan, plan->decode_tokens);
    gpu_attention_prompts(gpu, &all, &a->kv, &a->variant, plan);
}

/* Kernels for variants, and for other types than bfp16, come with phase 9. */
static bool has_kernels(const struct kv_views *kv, const struct attention_variant *variant) {
    return gpu_attention_decode_variants ||
           (attention_is_causal_only(variant) && kv->k.type == KV_BFP16 && kv->v.type == KV_BFP16);
}

/* Whether the plan was made for this variant. */
static bool is_planned(const struct attention_variant *v, const struct attention_plan *plan) {
    const struct attention_variant *planned = &plan->variant;
    return v->causal == planned->causal && v->window_left == planned->window_left &&
           !v->mask_form == !planned->mask_form;
}

static bool is_version_4(const struct gpu_device *gpu, const struct kv_views *kv,
                         const struct attention_plan *plan, const struct attention_variant *v) {
    int version = gpu->version[GPU_ATTEND];
    return (version == 0 || version == 4) && is_planned(v, plan) && has_kernels(kv, v) &&
           gpu_attention_fits_tensor_cores(gpu, plan->shape.head_dim);
}

/* Whether the kernels for decoding can read the cache. */
static bool decodes(struct decode_cache *cache, const struct gpu_device *gpu,
                    const struct kv_views *kv, const struct attention_plan *plan,
                    const struct attention_variant *v) {
    int dim = plan->shape.head_dim;
    return decode_cache_of_views(cache, kv, dim) &&
           plan->n_slots * 2 <= UINT32_MAX / plan->shape.n_kv_heads &&
           gpu_attention_decode_bytes(dim, decode_has_few(cache, v)) <= gpu->most_shared;
}

bool gpu_attend_takes_new(const struct gpu_device *gpu, const struct kv_views *kv,
                          const struct attention_plan *plan) {
    struct decode_cache cache;
    int dim = plan->shape.head_dim;
    return gpu->base.ops->attend == gpu_attend && (dim == 64 || dim == 128) &&
           is_version_4(gpu, kv, plan, &plan->variant) &&
           decodes(&cache, gpu, kv, plan, &plan->variant) &&
           !decode_has_few(&cache, &plan->variant) && !attention_plan_has_cascade(plan);
}

void gpu_attend(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                const float *q,               /* [n_tokens, n_heads, head_dim] */
                const struct kv_views *kv, const struct attention_plan *plan,
                const struct attention_variant *variant, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    struct attend_arguments a = {y, q, *kv, *variant, plan->shape, site, gpu->fault};
    struct new_tokens left = gpu->left_to_attend;
    struct decode_cache cache;
    gpu->left_to_attend = {};
    if (variant->m) /* a state is without the scale: finish_states has it */
        a.kv.v.scale = 1;
    if (!plan->n_tokens)
        return;
    if (is_version_4(gpu, &a.kv, plan, variant))
        launch_4(gpu, &a, decodes(&cache, gpu, &a.kv, plan, variant) ? &cache : NULL, plan, &left);
    else
        launch_rows(gpu, &a, plan, INT32_MAX);
}
