/*
 * attention_paged: causal attention of a batch over one paged BFP16 cache, as
 * ref/attention_paged.c.
 *
 * q, y [n_tokens, n_heads, head_dim]; the cache [slots, n_kv_heads, head_dim] mantissas with an
 * exponent per row; a plan with the page tables (gpu/fast/plan/plan.h).
 *
 * 1  a block of 256 threads per token and query head, plain loops (attention.cu).
 * 2  the same blocks, after vLLM's paged_attention_v1 (Kwon et al., 2023): two lanes share a key
 *    and read it in vectors of 16 bytes, a warp has the keys of a page at a time, scores stay in
 *    shared memory; a lane reads 16 bytes of a value.
 * 3  a block per token, query head and tile, after paged_attention_v2: long contexts are many
 *    blocks' work. Each leaves the result of its tile; a second kernel merges them in order.
 * 4  for few tokens per sequence (decoding): all query heads of a kv head and all digits go through
 *    the tensor cores together, each key and value is read once, in the background
 *    (gpu/fast/decode/decode.cu). For many tokens (prompts): versions 2 and 3 of `attention`, to which
 *    the pages are copied as digits anyway.
 *
 * The choice (version 0) is the highest that applies.
 */
#include "gpu/attention.h"
#include "gpu/fast/plan/plan.h"

enum { TILE = ATTENTION_TILE, WARPS = TILE / 32, VECTOR = 8 /* mantissas in 16 bytes */ };

/* The shared memory of a block of versions 2 and 3: head_dim is a multiple of VECTOR. */
struct tile_memory {
    int16_t *query;          /* [head_dim] */
    unsigned long long *sum; /* [head_dim] weighted sums of values, as signed integers */
    float *scores;           /* [TILE] */
    int16_t *weights;        /* [TILE] */
    float *part_float;       /* [WARPS] */
    uint32_t *part;          /* [WARPS] */
};

static size_t tile_memory_bytes(int head_dim) {
    return (size_t)head_dim * 10 + TILE * 6 + WARPS * 8;
}

static __device__ struct tile_memory cut_memory(unsigned char *memory, int head_dim) {
    struct tile_memory m;
    m.sum = (unsigned long long *)memory;
    m.query = (int16_t *)(m.sum + head_dim);
    m.scores = (float *)(m.query + head_dim);
    m.part_float = m.scores + TILE;
    m.part = (uint32_t *)(m.part_float + WARPS);
    m.weights = (int16_t *)(m.part + WARPS);
    return m;
}

/* A token and query head of the batch. */
struct query_row {
    int sequence, head, kv_head;
    int visible;  /* positions that it sees */
    size_t at;    /* its place in q and y */
    int exponent; /* of the query */
    const int32_t *pages;
};

static __device__ struct query_row find_row(const struct attention_arguments *a,
                                            const struct plan_arrays *plan, int token, int head) {
    struct query_row r;
    r.sequence = plan->token_sequence[token];
    r.head = head;
    r.kv_head = head / (a->n_heads / a->n_kv_heads);
    r.visible = plan->kv_lens[r.sequence] - plan->qo_indptr[r.sequence + 1] + token + 1;
    r.at = ((size_t)token * (size_t)a->n_heads + (size_t)head) * (size_t)a->head_dim;
    r.pages = plan->pages + plan->kv_indptr[r.sequence];
    return r;
}

/* Snaps the query to shared memory and sets the row's exponent. */
static __device__ void snap_query(struct query_row *r, const struct attention_arguments *a,
                                  const struct tile_memory *m, int token) {
    uint32_t largest = 0;
    for (int d = (int)threadIdx.x; d < a->head_dim; d += TILE)
        largest = max(largest, num_magnitude(a->q[r->at + (size_t)d]));
    int e = num_row_exponent(row_max<WARPS>(largest, m->part));
    bool bad = e > BFP_MAX_EXPONENT;
    if (bad && threadIdx.x == 0)
        gpu_fault(a->fault, a->site, token);
    e = bad ? BFP_MIN_EXPONENT : e;
    for (int d = (int)threadIdx.x; d < a->head_dim; d += TILE)
        m->query[d] = bad ? (int16_t)0 : num_mantissa(a->q[r->at + (size_t)d], num_pow2f(15 - e));
    r->exponent = e;
    __syncthreads();
}

/* The row of the cache that holds a position. */
static __device__ __forceinline__ size_t cache_row(const struct query_row *r,
                                                   const struct attention_arguments *a,
                                                   const struct plan_arrays *plan, int position) {
    int page = position / plan->page_size;
    size_t slot = (size_t)r->pages[page] * (size_t)plan->page_size +
                  (size_t)(position - page * plan->page_size);
    return slot * (size_t)a->n_kv_heads + (size_t)r->kv_head;
}

/* Two mantissas a word: the sum of their products with two others. */
static __device__ __forceinline__ long long dot_2(uint32_t x, uint32_t y) {
    return (long long)((int16_t)(x & 0xffff) * (int16_t)(y & 0xffff)) +
           (int16_t)(x >> 16) * (int16_t)(y >> 16);
}

/* The scores of a tile, but for the query's unit: 16 keys a warp at a time, two lanes a key. */
static __device__ void score_tile(const struct query_row *r, const struct attention_arguments *a,
                                  const struct plan_arrays *plan, const struct tile_memory *m,
                                  int tile) {
    int lane = (int)threadIdx.x % 32, half = lane % 2, n = min(TILE, r->visible - tile);
    const uint4 *query = (const uint4 *)m->query;
    for (int j = (int)threadIdx.x / 2; j < (n + 15) / 16 * 16; j += TILE / 2) {
        bool sees = j < n;
        size_t row = cache_row(r, a, plan, tile + (sees ? j : 0));
        const uint4 *key = (const uint4 *)(a->kv.k + row * (size_t)a->head_dim);
        long long dot = 0;
        for (int i = half; i < a->head_dim / VECTOR; i += 2) {
            uint4 k = key[i], q = query[i];
            dot += dot_2(k.x, q.x) + dot_2(k.y, q.y) + dot_2(k.z, q.z) + dot_2(k.w, q.w);
        }
        dot += __shfl_xor_sync(0xffffffffu, dot, 1);
        if (half == 0)
            m->scores[j] =
                sees ? num_score((float)(dot & -256), kv_score_unit(a->kv.k_exponents[row]))
                     : -INFINITY;
    }
    for (int j = (n + 15) / 16 * 16 + (int)threadIdx.x; j < TILE; j += TILE)
        m->scores[j] = -INFINITY;
    __syncthreads();
}

/* What a tile gives: maximum, sum, and the exponent of the weights in the sums of m->sum. */
struct tile_result {
    float m, l;
    int exponent;
};

/* One softmax over the tile, a position a thread; then the weighted sums, 16 bytes a lane. */
static __device__ struct tile_result run_tile(const struct query_row *r,
                                              const struct attention_arguments *a,
                                              const struct plan_arrays *plan,
                                              const struct tile_memory *m, int tile, int token) {
    int j = (int)threadIdx.x, n = min(TILE, r->visible - tile);
    struct tile_result result;
    score_tile(r, a, plan, m, tile);
    float s = m->scores[j];
    float largest = row_max<WARPS>(s, m->part_float);
    struct num_score_unit unit = num_score_unit_of(r->exponent, a->scale);
    result.m = num_tile_max(largest, unit);
    struct num_window window = num_window_of(largest, unit.binary);
    float p = j < n ? num_probability(s, window) : 0;
    uint32_t units = row_sum<WARPS>(j < n ? num_probability_units(p) : 0, m->part);
    result.l = (float)units * 0x1p-23f;
    float w = j < n ? num_value_weight(p, a->kv.v_exponents[cache_row(r, a, plan, tile + j)]) : 0;
    result.exponent = num_row_exponent(row_max<WARPS>(num_magnitude(w), m->part));
    bool bad = num_magnitude(result.m) >= 0x7f800000u || result.exponent > BFP_MAX_EXPONENT;
    if (bad && j == 0)
        gpu_fault(a->fault, a->site, token);
    result.exponent = bad ? BFP_MIN_EXPONENT : result.exponent;
    m->weights[j] = bad ? (int16_t)0 : num_mantissa(w, num_pow2f(15 - result.exponent));
    for (int d = j; d < a->head_dim; d += TILE)
        m->sum[d] = 0;
    __syncthreads();
    int vectors = a->head_dim / VECTOR, rows_at_once = TILE / vectors;
    if (j < rows_at_once * vectors) { /* with 1024 dimensions a row is half of the block's work */
        long long sum[VECTOR] = {0};
        for (int i = j / vectors; i < n; i += rows_at_once) {
            size_t row = cache_row(r, a, plan, tile + i);
            uint4 v = ((const uint4 *)(a->kv.v + row * (size_t)a->head_dim))[j % vectors];
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
            int weight = m->weights[i];
            UNROLL
            for (int k = 0; k < VECTOR; k++)
                sum[k] += weight * (int16_t)(words[k / 2] >> (k % 2 * 16));
        }
        UNROLL
        for (int k = 0; k < VECTOR; k++) /* integers: the order of the additions is free */
            atomicAdd(&m->sum[j % vectors * VECTOR + k], (unsigned long long)sum[k]);
    }
    __syncthreads();
    return result;
}

static __device__ __forceinline__ float weighted_value(const struct tile_memory *m,
                                                       const struct tile_result *t, int d) {
    return num_weighted_value((float)((long long)m->sum[d] & -256), t->exponent);
}

__global__ static void __launch_bounds__(TILE)
    attention_paged_2(struct attention_arguments a, struct plan_arrays plan) {
    SHARED_DYNAMIC(unsigned char, memory);
    struct tile_memory mem = cut_memory(memory, a.head_dim);
    int token = (int)blockIdx.x;
    struct query_row r = find_row(&a, &plan, token, (int)blockIdx.y);
    snap_query(&r, &a, &mem, token);
    float m = -INFINITY, l = 0;
    for (int d = (int)threadIdx.x; d < a.head_dim; d += TILE)
        a.y[r.at + (size_t)d] = 0;
    for (int tile = 0; tile < r.visible; tile += TILE) {
        struct tile_result t = run_tile(&r, &a, &plan, &mem, tile, token);
        float old_share, new_share;
        attention_merge_sums(&m, &l, t.m, t.l, &old_share, &new_share);
        for (int d = (int)threadIdx.x; d < a.head_dim; d += TILE) {
            float *o = &a.y[r.at + (size_t)d];
            *o = num_merge(*o, old_share, weighted_value(&mem, &t, d), new_share);
        }
    }
    for (int d = (int)threadIdx.x; d < a.head_dim; d += TILE)
        if (l > 0)
            a.y[r.at + (size_t)d] /= l;
}

/* Results of all tiles: [n_tokens, n_heads, n_tiles] of m, l and head_dim values each. */
static __device__ __forceinline__ float *partial_of(float *partial,
                                                    const struct attention_arguments *a,
                                                    int n_tiles, int token, int head, int tile) {
    size_t row = (size_t)token * (size_t)a->n_heads + (size_t)head;
    return partial + (row * (size_t)n_tiles + (size_t)tile) * (size_t)(a->head_dim + 2);
}

__global__ static void __launch_bounds__(TILE)
    attention_paged_3(struct attention_arguments a, struct plan_arrays plan, float *partial) {
    SHARED_DYNAMIC(unsigned char, memory);
    struct tile_memory mem = cut_memory(memory, a.head_dim);
    int token = (int)blockIdx.x, head = (int)blockIdx.y, tile = (int)blockIdx.z;
    struct query_row r = find_row(&a, &plan, token, head);
    if (tile * TILE >= r.visible && tile) /* the first one looks at the query in any case */
        return;
    snap_query(&r, &a, &mem, token);
    if (tile * TILE >= r.visible)
        return;
    struct tile_result t = run_tile(&r, &a, &plan, &mem, tile * TILE, token);
    float *to = partial_of(partial, &a, (int)gridDim.z, token, head, tile);
    for (int d = (int)threadIdx.x; d < a.head_dim; d += TILE)
        to[2 + d] = weighted_value(&mem, &t, d);
    if (threadIdx.x == 0) {
        to[0] = t.m;
        to[1] = t.l;
    }
}

/* Merges the tiles of a token and head in ascending order. */
__global__ static void __launch_bounds__(TILE)
    merge_tiles(struct attention_arguments a, struct plan_arrays plan, float *partial,
                int most_tiles) {
    int token = (int)blockIdx.x, head = (int)blockIdx.y;
    struct query_row r = find_row(&a, &plan, token, head);
    for (int d = (int)threadIdx.x; d < a.head_dim; d += TILE) {
        float m = -INFINITY, l = 0, o = 0;
        for (int tile = 0; tile * TILE < r.visible; tile++) {
            const float *from = partial_of(partial, &a, most_tiles, token, head, tile);
            float old_share, new_share;
            attention_merge_sums(&m, &l, from[0], from[1], &old_share, &new_share);
            o = num_merge(o, old_share, from[2 + d], new_share);
        }
        a.y[r.at + (size_t)d] = l > 0 ? o / l : o;
    }
}

static void launch_3(struct gpu_device *gpu, const struct attention_arguments *a,
                     const struct attention_plan *plan) {
    int most_tiles = plan->longest > TILE ? (plan->longest + TILE - 1) / TILE : 1;
    size_t rows = (size_t)plan->n_tokens * (size_t)a->n_heads;
    size_t floats = rows * (size_t)most_tiles * (size_t)(a->head_dim + 2);
    float *partial =
        (float *)gpu_scratch(gpu, GPU_SCRATCH_PARTIAL, sizeof *partial * floats, "attention_paged");
    if (!partial)
        return;
    GPU_LAUNCH(gpu, attention_paged_3,
               dim3((unsigned)plan->n_tokens, (unsigned)a->n_heads, (unsigned)most_tiles), TILE,
               tile_memory_bytes(a->head_dim), *a, plan->arrays, partial);
    GPU_LAUNCH(gpu, merge_tiles, dim3((unsigned)plan->n_tokens, (unsigned)a->n_heads), TILE, 0, *a,
               plan->arrays, partial, most_tiles);
}

/* Row groups, shared tiles, and what must be merged of both. */
void gpu_attention_short(struct gpu_device *gpu, const struct attention_arguments *a,
                         const struct kv_views *kv, const struct decode_cache *cache,
                         const struct attention_variant *variant,
                         const struct attention_plan *plan) {
    if (!plan->n_groups)
        return;
    struct group_results own = {plan->partial,
                                decode_dim(a->head_dim, decode_has_few(cache, variant))};
    gpu_attention_decode(gpu, a, cache, variant, plan);
    if (attention_plan_has_cascade(plan))
        gpu_attention_shared(gpu, a, kv, variant, plan, &own);
    gpu_attention_merge(gpu, a, cache, variant, plan);
}

/* Version 4: row groups together, and long sequences together. */
static void launch_4(struct gpu_device *gpu, const struct attention_arguments *a,
                     const struct attention_plan *plan) {
    struct attention_variant causal = attention_variant_causal();
    struct kv_views views = kv_layer_views(&a->kv, plan->arrays.page_size, &plan->shape);
    struct decode_cache cache = decode_cache_of(&a->kv, plan->arrays.page_size, a->n_kv_heads);
    gpu_attention_short(gpu, a, &views, &cache, &causal, plan);
    gpu_attention_long(gpu, a, &views, &causal, plan);
}

void gpu_attention_paged(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                         const float *q,               /* [n_tokens, n_heads, head_dim] */
                         const struct kv_layer *kv, const struct attention_plan *plan, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    const struct attention_shape *shape = &plan->shape;
    struct attention_arguments a = {};
    a.y = y;
    a.q = q;
    a.kv = *kv;
    a.n_heads = shape->n_heads;
    a.n_kv_heads = shape->n_kv_heads;
    a.head_dim = shape->head_dim;
    a.scale = shape->scale;
    a.v_scale = 1;
    a.site = site;
    a.fault = gpu->fault;
    if (!plan->n_tokens)
        return;
    int version = gpu->version[GPU_ATTENTION_PAGED];
    bool whole_vectors = a.head_dim % VECTOR == 0 && a.head_dim / VECTOR <= TILE;
    version = version ? version : 4;
    bool rows_fit = plan->n_slots <= UINT32_MAX / a.n_kv_heads;
    if (version == 4 &&
        !(whole_vectors && rows_fit && gpu_attention_fits_tensor_cores(gpu, a.head_dim) &&
          gpu_attention_decode_bytes(a.head_dim, false) <= gpu->most_shared))
        version = 3;
    if (version == 3 && gpu->recording) /* its grid would be too small for longer sequences */
        version = 2;
    if (version == 4)
        launch_4(gpu, &a, plan);
    else if (version == 3 && whole_vectors)
        launch_3(gpu, &a, plan);
    else if (version == 2 && whole_vectors)
        GPU_LAUNCH(gpu, attention_paged_2, dim3((unsigned)plan->n_tokens, (unsigned)a.n_heads),
                   TILE, tile_memory_bytes(a.head_dim), a, plan->arrays);
    else
        gpu_attention_paged_1(gpu, &a, &plan->arrays);
}
