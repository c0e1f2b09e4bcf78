/*
 * attend: attention over a cache of any layout, with any masks and scores, as
 * ref/attention_blocks.c.
 *
 * 1  a block of 256 threads per query token and head: a thread per position of the tile for the
 * score and the softmax, then a thread per dimension for the weighted sum of values. Tiles that the
 *    window or the causal mask hide are left out.
 * 2  for sequences of few tokens over a cache whose rows are in one piece (NHD, HND): version 4 of
 *    attention_paged; of many tokens over any cache but one of fp8: versions 2 and 3 of attention; 1
 *    for the others
 *
 * The choice (version 0): 2, where it applies.
 */
#include "gpu/attention.h"
#include "gpu/attention_plan.h"
#include "gpu/tensor_core.h"

enum { TILE = ATTENTION_TILE, WARPS = TILE / 32, VECTOR = 8 /* mantissas in 16 bytes */ };

/* The arguments of the op, as the kernel gets them. */
struct attend_arguments {
    float *y;       /* [n_tokens, n_heads, head_dim] */
    const float *q; /* [n_tokens, n_heads, head_dim] */
    struct kv_views kv;
    struct attention_variant variant;
    struct attention_shape shape;
    int site;
    unsigned long long *fault;
};

/* One query token and head. */
struct query_row {
    int token, head, kv_head; /* token: of the batch */
    int i, at, kv_len;        /* number among the sequence's queries; its position */
    int first, end;           /* positions that it may see */
    const int32_t *pages;
    const uint8_t *mask;
    float slope;
    double q_unit;
    bool bad; /* it cannot be snapped */
};

/* Returns false: its sequence has more than most_tokens, and is somebody else's. */
static __device__ bool find_query(struct query_row *r, const struct attend_arguments *a,
                                  const struct plan_arrays *plan, int token, int most_tokens) {
    const struct attention_variant *v = &a->variant;
    r->token = token;
    r->head = (int)blockIdx.y;
    r->kv_head = r->head / (a->shape.n_heads / a->shape.n_kv_heads);
    int sequence = plan->token_sequence[r->token], qo_begin = plan->qo_indptr[sequence];
    int n_tokens = plan->qo_indptr[sequence + 1] - qo_begin;
    int before = plan->kv_lens[sequence] - n_tokens;
    r->i = r->token - qo_begin;
    r->at = before + r->i;
    r->kv_len = plan->kv_lens[sequence];
    r->first = attention_first(v, before, r->i);
    r->end = attention_end(v, before, r->i, r->kv_len);
    r->pages = plan->pages + plan->kv_indptr[sequence];
    r->mask = v->mask_form ? v->mask + v->mask_offsets[sequence] : NULL;
    r->slope = v->alibi_slopes ? v->alibi_slopes[r->head] : 0;
    return n_tokens <= most_tokens;
}

/* Snaps the block's query to shared memory. */
static __device__ void load_query(struct query_row *r, int16_t *mantissas,
                                  const struct attend_arguments *a, const float *q,
                                  uint32_t *part) {
    uint32_t largest = 0;
    int dim = a->shape.head_dim;
    for (int d = (int)threadIdx.x; d < dim; d += TILE)
        largest = max(largest, num_magnitude(q[d]));
    int e = num_row_exponent(row_max<WARPS>(largest, part));
    r->bad = e > BFP_MAX_EXPONENT;
    if (r->bad && threadIdx.x == 0)
        gpu_fault(a->fault, a->site, r->token);
    e = r->bad ? BFP_MIN_EXPONENT : e;
    for (int d = (int)threadIdx.x; d < dim; d += TILE)
        mantissas[d] = r->bad ? (int16_t)0 : num_mantissa(q[d], num_pow2f(15 - e));
    r->q_unit = num_pow2(e - 30) * (a->shape.scale * (double)a->kv.k.scale);
} /* the next barrier is in row_max, before anybody reads the query */

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
static __device__ __forceinline__ long long integer_of(const struct kv_view *v, int64_t row, int d,
                                                       int exponent) {
    float scale = kv_type_is_snapped(v->type) ? num_pow2f(15 - exponent) : 1;
    return kv_integer(v->type, kv_load_bits(v->data, v->type, row + kv_view_element(v, d)), scale);
}

/* The score of this thread's position, which the row sees. */
static __device__ float score_of(const struct query_row *r, const struct attend_arguments *a,
                                 const int16_t *query, int64_t page, int64_t in_page,
                                 int position) {
    const struct kv_view *k = &a->kv.k;
    int64_t row = kv_view_row(k, page, in_page, r->kv_head);
    int e = exponent_of(k, row, kv_view_exponent(k, page, in_page, r->kv_head), a->shape.head_dim);
    long long dot = 0;
    for (int d = 0; d < a->shape.head_dim; d++)
        dot += query[d] * integer_of(k, row, d, e);
    return attention_score(&a->variant, num_score((double)dot, kv_unit(e), r->q_unit), r->at,
                           position, r->slope);
}

__global__ static void __launch_bounds__(TILE)
    attend_1(struct attend_arguments a, struct plan_arrays plan, int most_tokens) {
    SHARED_DYNAMIC(int16_t, query); /* [head_dim] */
    SHARED(int16_t, weights, [TILE]);
    SHARED(int64_t, value_rows, [TILE]); /* where the values of the tile's positions begin */
    SHARED(int, value_exponents, [TILE]);
    SHARED(float, part_float, [WARPS]);
    SHARED(uint32_t, part, [WARPS]);
    run_in_turn();
    struct query_row r;
    if (!find_query(&r, &a, &plan, (int)blockIdx.x, most_tokens))
        return;
    const struct attention_variant *variant = &a.variant;
    const struct kv_view *v = &a.kv.v;
    int j = (int)threadIdx.x, dim = a.shape.head_dim;
    size_t row = (size_t)r.token * (size_t)a.shape.n_heads + (size_t)r.head;
    const float *q = a.q + row * (size_t)dim;
    float *y = a.y + row * (size_t)dim, m = -INFINITY, l = 0;
    load_query(&r, query, &a, q, part);
    for (int d = j; d < dim; d += TILE)
        y[d] = 0;
    for (int tile = r.first / TILE * TILE; tile < r.end; tile += TILE) {
        int position = tile + j;
        bool sees = position >= r.first && position < r.end &&
                    attention_shows(variant, r.mask, r.i, position, r.kv_len);
        if (!row_max<WARPS>((uint32_t)sees, part)) /* nothing of this tile: it does not take part */
            continue;
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
        float tile_m = row_max<WARPS>(s, part_float);
        float p = sees ? num_exp(s - tile_m) : 0;
        uint32_t units = row_sum<WARPS>(sees ? num_probability_units(p) : 0, part);
        float w = sees ? num_weight_in_units(p, kv_unit(v_exponent)) : 0;
        int e = num_row_exponent(row_max<WARPS>(num_magnitude(w), part));
        bool bad = e > BFP_MAX_EXPONENT;
        if (bad && j == 0)
            gpu_fault(a.fault, a.site, r.token);
        e = bad ? BFP_MIN_EXPONENT : e;
        int16_t weight = bad ? (int16_t)0 : num_mantissa(w, num_pow2f(15 - e));
        weights[j] = weight;
        if (!sees)
            value_rows[j] = -1;
        __syncthreads();
        float new_m = m > tile_m ? m : tile_m;
        float old_share = num_exp(m - new_m), new_share = num_exp(tile_m - new_m);
        l = l * old_share + (float)units * 0x1p-23f * new_share;
        for (int d = j; d < dim; d += TILE) {
            long long sum = 0;
            for (int i = 0; i < TILE; i++)
                if (value_rows[i] >= 0)
                    sum += weights[i] * integer_of(v, value_rows[i], d, value_exponents[i]);
            y[d] = y[d] * old_share + num_dot_to_float((double)sum, e - 30) * new_share;
        }
        m = new_m;
        __syncthreads(); /* the next tile writes weights again */
    }
    if (variant->sinks) { /* a tile of values that are 0 */
        float old_share, new_share;
        attention_merge_sink(variant->sinks[r.head], &m, &l, &old_share, &new_share);
        if (!attention_sink_is_finite(variant->sinks[r.head]) && j == 0)
            gpu_fault(a.fault, a.site, r.token);
        for (int d = j; d < dim; d += TILE)
            y[d] = y[d] * old_share + 0.0f * new_share;
    }
    if (j == 0)
        attention_note_sums(variant, row, m, l);
    for (int d = j; d < dim; d += TILE)
        if (l > 0 && !variant->m)
            y[d] /= l;
    for (int d = j; d < dim && v->scale != 1; d += TILE)
        y[d] *= v->scale;
}

/* The sequences of at most most_tokens. */
static void launch_1(struct gpu_device *gpu, const struct attend_arguments *a,
                     const struct attention_plan *plan, int most_tokens) {
    dim3 grid((unsigned)plan->n_tokens, (unsigned)plan->shape.n_heads);
    GPU_LAUNCH_EARLY(gpu, attend_1, grid, TILE, sizeof(int16_t) * (size_t)plan->shape.head_dim, *a,
                     plan->arrays, most_tokens);
}

/* The row groups of the plan, then the long sequences. */
static void launch_2(struct gpu_device *gpu, const struct attend_arguments *a,
                     const struct decode_cache *cache, const struct attention_plan *plan) {
    struct attention_arguments all = {};
    all.y = a->y;
    all.q = a->q;
    all.n_heads = a->shape.n_heads;
    all.n_kv_heads = a->shape.n_kv_heads;
    all.head_dim = a->shape.head_dim;
    all.scale = a->shape.scale;
    all.site = a->site;
    all.fault = a->fault;
    if (cache)
        gpu_attention_short(gpu, &all, &a->kv, cache, &a->variant, plan);
    else if (plan->n_groups)
        launch_1(gpu, a, plan, SHORT_TOKENS);
    gpu_attention_long(gpu, &all, &a->kv, &a->variant, plan);
}

void gpu_attend(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                const float *q,               /* [n_tokens, n_heads, head_dim] */
                const struct kv_views *kv, const struct attention_plan *plan,
                const struct attention_variant *variant, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    struct attend_arguments a = {y, q, *kv, *variant, plan->shape, site, gpu->fault};
    const struct attention_variant *planned = &plan->variant;
    struct decode_cache cache;
    int dim = plan->shape.head_dim;
    if (!plan->n_tokens)
        return;
    bool as_planned = variant->causal == planned->causal &&
                      variant->window_left == planned->window_left &&
                      !variant->mask_form == !planned->mask_form;
    bool in_rows = decode_cache_of_views(&cache, kv, dim) && dim % VECTOR == 0 &&
                   plan->n_slots * 2 <= UINT32_MAX / plan->shape.n_kv_heads &&
                   gpu_attention_decode_bytes(dim, true) <= gpu->most_shared;
    bool fits = gpu_attention_fits_tensor_cores(gpu, dim) && gpu_attention_can_split(kv);
    if (gpu->version[GPU_ATTEND] != 1 && fits && as_planned)
        launch_2(gpu, &a, in_rows ? &cache : NULL, plan);
    else
        launch_1(gpu, &a, plan, INT32_MAX);
}
