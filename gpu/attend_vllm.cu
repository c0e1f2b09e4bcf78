/*
 * attend, versions 3 and 4: caches in vLLM's layout, divided among threads as its kernels
 * paged_attention_v1 and v2 do (Kwon et al., "Efficient Memory Management for Large Language Model
 * Serving with PagedAttention", 2023).
 *
 * Keys [pages, n_kv_heads, head_dim / x, page_size, x], x elements being a vector of 16 bytes, and
 * values [pages, n_kv_heads, head_dim, page_size]: what lies next to a vector of a key is the same
 * vector of the next position, and what lies next to an element of a value is that of the next
 * position. A tile of 256 positions goes through a block of 256 threads like this:
 *
 *     scores   a warp takes a page at a time. 32 / page_size lanes, a thread group, share each of
 *              its keys, vector by vector in turn. So the lanes of a warp read vectors that lie in
 *              a row: with pages of 16, two rows of 256 bytes.
 *     softmax  a position a thread.
 *     values   a warp takes a page at a time again. The vectors of a row of it (one element of the
 *              values at all its positions) go to neighbouring lanes, several rows to a warp; the
 *              lanes of a row add up, then the warps.
 *
 * 3  (v1) A block per query token and head goes through its tiles.
 * 4  (v2) A block per query token, head and tile, so that a long context is many blocks' work. Each
 *    leaves m, l and o; a second kernel merges them. v2's partitions have 512 positions; here a
 *    tile is what has a softmax of its own, whoever computes it.
 *
 * All sums are of integers, so neither the lanes nor the warps nor the partitions change a bit.
 * What the row does not see has the weight 0, and 0 times what lies there is 0, even if it was
 * never written: there are no NaNs among integers.
 *
 * The choice (version 0): 4 where a block for each row leaves processors of the GPU without work.
 */
#include "gpu/attend.h"
#include "gpu/ptx/tensor_core.h"

enum {
    ROWS = 8,      /* of values, that a lane adds up at a time */
    VECTORS = 4,   /* of a key, that a lane loads at a time */
    MANTISSAS = 8, /* in 16 bytes */
    BLOCKS = 3     /* that a processor is to have room for */
};

static const size_t most_partial_bytes = (size_t)1 << 28; /* of version 4 */

/* The shared memory of a block, beside the query. */
struct tile_memory {
    long long sums[WARPS][ROWS * 32]; /* each warp's, of the rows of values at hand */
    int16_t weights[TILE];
    float scores[TILE];
    int32_t pages[TILE];
    int exponents[TILE]; /* of values, where the cache has none */
    bool sees[TILE];
    struct row_parts part;
};

/* A row's tile, and how the warps divide it. */
struct tile_work {
    const struct attend_arguments *a;
    const struct query_row *r;
    const int16_t *query; /* shared [head_dim] */
    struct tile_memory *memory;
    int page_size, keys;  /* keys: that a warp takes at a time, a power of 2 */
    int tile, first, end; /* its first position; those of its positions that the row may see */
};

/* Pages whose size is no power of two, or is more than a warp, are cut into pieces of 32 positions,
 * and a key is one lane's. */
static __device__ __forceinline__ int keys_of_warp(int page_size) {
    return page_size <= 32 && !(page_size & (page_size - 1)) ? page_size : 32;
}

/* Where a warp begins, counted in the tile; it goes on WARPS * keys positions further. */
static __device__ __forceinline__ int begin_of_warp(const struct tile_work *w) {
    return (w->first / w->keys + (int)threadIdx.x / 32) * w->keys;
}

static __device__ __forceinline__ int in_page(const struct tile_work *w, int j) {
    return (w->tile + j) % w->page_size;
}

/* The row of position j of the tile. */
static __device__ __forceinline__ int64_t row_of(const struct tile_work *w, const struct kv_view *v,
                                                 int j) {
    return kv_view_row(v, w->memory->pages[j], in_page(w, j), w->r->kv_head);
}

/* Its exponent, where there is one in the cache. */
static __device__ __forceinline__ int exponent_at(const struct tile_work *w,
                                                  const struct kv_view *v, int j) {
    return v->exponents[kv_view_exponent(v, w->memory->pages[j], in_page(w, j), w->r->kv_head)];
}

/* ---- vectors --------------------------------------------------------------------------------- */

/* N elements that lie next to each other: a vector of 16 bytes, or one (N = 1). Zeros where there
 * is nothing, so that loads can stand together, before any of them is used. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ uint4 load(const struct kv_view *v, int64_t at, bool there) {
    uint4 vector = {0, 0, 0, 0};
    if (there && N == 1)
        vector.x = kv_load_bits(v->data, TYPE, at);
    else if (there)
        vector = __ldg((const uint4 *)v->data + at / N);
    return vector;
}

/* Element i of N. */
template <int N> static __device__ __forceinline__ uint32_t element_of(const uint4 &vector, int i) {
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    const int in_word = N == 1 ? 1 : N / 4, bits = 32 / in_word;
    return words[i / in_word] >> (i % in_word * bits) & (~0u >> (32 - bits));
}

static __device__ __forceinline__ int mantissa_of(const uint4 *vectors, int i) {
    return (int16_t)element_of<MANTISSAS>(vectors[i / MANTISSAS], i % MANTISSAS);
}

/* A mantissa times an element. */
template <enum kv_type TYPE>
static __device__ __forceinline__ long long product(int mantissa, uint32_t bits, float scale) {
    return (long long)mantissa * kv_integer(TYPE, bits, scale);
}

/* What a row of that exponent is multiplied by before it becomes integers, if it is snapped. */
template <enum kv_type TYPE> static __device__ __forceinline__ float scale_of(int exponent) {
    return kv_type_has_exponents(TYPE) ? 1 : num_pow2f(15 - exponent);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Maximum and sum over the lanes of a thread group: they are `keys` lanes apart, so that lanes next
 * to each other have positions next to each other. */
static __device__ __forceinline__ uint32_t group_max(uint32_t x, int keys) {
    for (int step = keys; step < 32; step *= 2)
        x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
static __device__ __forceinline__ long long group_sum(long long x, int keys) {
    for (int step = keys; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* The key that a thread group works on: this lane has vectors number member, member + group, ... */
struct key_of_group {
    int64_t row;
    int member, group, n_vectors; /* n_vectors: 0 for a key that the row does not see */
};

/* Vector number i of the key. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ uint4 key_vector(const struct tile_work *w,
                                                   const struct key_of_group *key, int i) {
    return load<TYPE, N>(&w->a->kv.k, key->row + (int64_t)i * w->page_size * N, i < key->n_vectors);
}

/* The exponent of the key of position j. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ int key_exponent(const struct tile_work *w,
                                                   const struct key_of_group *key, int j) {
    if (kv_type_has_exponents(TYPE))
        return key->n_vectors ? exponent_at(w, &w->a->kv.k, j) : 0;
    uint32_t largest = 0;
    for (int i = key->member; i < key->n_vectors; i += key->group) {
        uint4 vector = key_vector<TYPE, N>(w, key, i);
        UNROLL
        for (int k = 0; k < N; k++)
            largest = max(largest, kv_magnitude(TYPE, element_of<N>(vector, k)));
    }
    return kv_read_exponent(TYPE, group_max(largest, w->keys));
}

/* The key's product with the query, which the whole group gets. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ long long key_dot(const struct tile_work *w,
                                                    const struct key_of_group *key, int exponent) {
    long long dot = 0;
    for (int first = key->member; first < key->n_vectors; first += VECTORS * key->group) {
        uint4 vectors[VECTORS];
        UNROLL
        for (int n = 0; n < VECTORS; n++)
            vectors[n] = key_vector<TYPE, N>(w, key, first + n * key->group);
        UNROLL
        for (int n = 0; n < VECTORS; n++) {
            int i = first + n * key->group;
            i = i < key->n_vectors ? i : 0; /* the query times zeros */
            const uint4 *query = (const uint4 *)w->query + i * (N / MANTISSAS);
            UNROLL
            for (int k = 0; k < N; k++)
                dot += product<TYPE>(mantissa_of(query, k), element_of<N>(vectors[n], k),
                                     scale_of<TYPE>(exponent));
        }
    }
    return group_sum(dot, w->keys);
}

/* The exponent of the value at the same position, for rows without one in the cache. */
template <enum kv_type TYPE>
static __device__ __forceinline__ int value_exponent(const struct tile_work *w,
                                                     const struct key_of_group *key, int j) {
    const struct kv_view *v = &w->a->kv.v;
    uint32_t largest = 0;
    int dim = key->n_vectors ? w->a->shape.head_dim : 0;
    int64_t row = dim ? row_of(w, v, j) : 0;
    for (int d = key->member; d < dim; d += key->group) {
        uint32_t bits = kv_load_bits(v->data, TYPE, row + (int64_t)d * w->page_size);
        largest = max(largest, kv_magnitude(TYPE, bits));
    }
    return kv_read_exponent(TYPE, group_max(largest, w->keys));
}

/* The softmax_scores of what the row sees of the tile. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ void score_tile(const struct tile_work *w) {
    const struct query_row *r = w->r;
    int lane = (int)threadIdx.x % 32, group = 32 / w->keys;
    for (int begin = begin_of_warp(w); begin < w->end; begin += WARPS * w->keys) {
        int j = begin + lane % w->keys;
        struct key_of_group key = {0, lane / w->keys, group, 0};
        if (w->memory->sees[j]) {
            key.row = row_of(w, &w->a->kv.k, j);
            key.n_vectors = w->a->shape.head_dim / N;
        }
        int e = key_exponent<TYPE, N>(w, &key, j);
        float sum = rounded_sum(key_dot<TYPE, N>(w, &key, e));
        if (key.n_vectors && key.member == 0)
            w->memory->scores[j] = softmax_score(r, w->a, sum, e, w->tile + j);
        if (!kv_type_has_exponents(TYPE)) {
            e = value_exponent<TYPE>(w, &key, j);
            if (key.member == 0)
                w->memory->exponents[j] = e;
        }
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Scores, softmax and weights of the tile. Returns false when the row sees nothing of it. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ bool begin_tile(struct tile_work *w, struct tile_softmax *t,
                                                  int tile) {
    struct tile_memory *m = w->memory;
    const struct query_row *r = w->r;
    int j = (int)threadIdx.x, position = tile + j;
    bool sees = position >= r->first && position < r->end &&
                attention_shows(&w->a->variant, r->mask, r->i, position, r->kv_len);
    w->tile = tile;
    w->first = max(r->first - tile, 0);
    w->end = min(r->end - tile, (int)TILE);
    m->sees[j] = sees;
    if (position < r->kv_len)
        m->pages[j] = r->pages[position / w->page_size];
    if (!row_max<WARPS>((uint32_t)sees, m->part.words))
        return false;
    score_tile<TYPE, N>(w);
    __syncthreads();
    int e = !sees                         ? 0
            : kv_type_has_exponents(TYPE) ? exponent_at(w, &w->a->kv.v, j)
                                          : m->exponents[j];
    float s = sees ? m->scores[j] : -INFINITY;
    m->weights[j] = softmax_tile(t, s, sees, e, r, w->a, &m->part);
    __syncthreads();
    return true;
}

/* How many rows of values a block adds up at a time, N positions a lane. */
static __device__ __forceinline__ int rows_at_once(const struct tile_work *w, int n) {
    return ROWS * 32 / (w->keys / n);
}

/* What N values next to each other are multiplied by. */
template <int N> struct value_weights {
    int weights[N];
    float scales[N];
};

template <enum kv_type TYPE, int N>
static __device__ __forceinline__ void load_weights(struct value_weights<N> *to,
                                                    const struct tile_memory *m, int j) {
    UNROLL
    for (int k = 0; k < N; k++) {
        to->weights[k] = N == 1 ? m->weights[j] : mantissa_of((const uint4 *)(m->weights + j), k);
        to->scales[k] = scale_of<TYPE>(kv_type_has_exponents(TYPE) ? 0 : m->exponents[j + k]);
    }
}

/* The warps' weighted sums of rows first_row ... of the values. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ void weigh_rows(const struct tile_work *w, int first_row) {
    const struct kv_view *v = &w->a->kv.v;
    int lanes = w->keys / N, rows = 32 / lanes; /* lanes of a row; rows of the warp at a time */
    int lane = (int)threadIdx.x % 32, row = lane / lanes, d = first_row + row;
    long long sums[ROWS] = {0};
    for (int begin = begin_of_warp(w); begin < w->end; begin += WARPS * w->keys) {
        int j = begin + lane % lanes * N;
        if (j >= w->end) /* there may be no page */
            continue;
        struct value_weights<N> at_j;
        uint4 vectors[ROWS];
        int64_t at = row_of(w, v, j);
        UNROLL
        for (int i = 0; i < ROWS; i++)
            vectors[i] = load<TYPE, N>(v, at + (int64_t)(d + i * rows) * w->page_size,
                                       d + i * rows < w->a->shape.head_dim);
        load_weights<TYPE, N>(&at_j, w->memory, j);
        UNROLL
        for (int i = 0; i < ROWS; i++)
            UNROLL
        for (int k = 0; k < N; k++)
            sums[i] += product<TYPE>(at_j.weights[k], element_of<N>(vectors[i], k), at_j.scales[k]);
    }
    UNROLL
    for (int i = 0; i < ROWS; i++) {
        for (int step = 1; step < lanes; step *= 2)
            sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
        if (lane % lanes == 0)
            w->memory->sums[threadIdx.x / 32][row + i * rows] = sums[i];
    }
    __syncthreads();
}

/* What the tile gives of the row that is this thread's, of those that were added up last. */
static __device__ __forceinline__ float tile_value(const struct tile_work *w, int exponent) {
    long long sum = 0;
    UNROLL
    for (int warp = 0; warp < WARPS; warp++)
        sum += w->memory->sums[warp][threadIdx.x];
    return num_weighted_value(rounded_sum(sum), exponent);
}

/* The values of a tile: o of each of the rows that this thread has, merged into y, or as they are.
 * N is that of the values. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ void add_values(const struct tile_work *w, int exponent, float *y,
                                                  const struct tile_shares *share) {
    int dim = w->a->shape.head_dim, at_once = rows_at_once(w, N);
    for (int first = 0; first < dim; first += at_once) {
        int d = first + (int)threadIdx.x;
        weigh_rows<TYPE, N>(w, first);
        if ((int)threadIdx.x < at_once && d < dim) {
            float o = tile_value(w, exponent);
            y[d] = share ? num_merge(y[d], share->before, o, share->tile) : o;
        }
        __syncthreads(); /* the next rows use the sums again */
    }
}

/* Values are read in vectors where these are whole and begin at multiples of 16 bytes. */
template <enum kv_type TYPE, int N>
static __device__ __forceinline__ void end_tile(const struct tile_work *w, int exponent, float *y,
                                                const struct tile_shares *share) {
    const struct kv_view *v = &w->a->kv.v;
    if ((uintptr_t)v->data % 16 == 0 && w->page_size % N == 0 && v->page_step % N == 0 &&
        v->head_step % N == 0)
        add_values<TYPE, N>(w, exponent, y, share);
    else
        add_values<TYPE, 1>(w, exponent, y, share);
}

/* ---- versions 3 and 4 ------------------------------------------------------------------------ */

static __device__ __forceinline__ struct tile_work
work_of(const struct attend_arguments *a, const struct query_row *r, const int16_t *query,
        struct tile_memory *memory, int page_size) {
    struct tile_work w = {a, r, query, memory, page_size, keys_of_warp(page_size), 0, 0, 0};
    return w;
}

template <enum kv_type TYPE, int N>
__global__ static void __launch_bounds__(TILE, BLOCKS)
    attend_3(struct attend_arguments a, struct plan_arrays plan, int most_tokens) {
    SHARED_DYNAMIC(int16_t, query); /* [head_dim] */
    SHARED(struct tile_memory, memory);
    run_in_turn();
    struct query_row r;
    if (!find_query(&r, &a, &plan, (int)blockIdx.x, most_tokens))
        return;
    float *y = a.y + r.row * (size_t)a.shape.head_dim, m = -INFINITY, l = 0;
    load_query(&r, query, &a, &memory.part);
    struct tile_work w = work_of(&a, &r, query, &memory, plan.page_size);
    for (int d = (int)threadIdx.x; d < a.shape.head_dim; d += TILE)
        y[d] = 0;
    for (int tile = r.first / TILE * TILE; tile < r.end; tile += TILE) {
        struct tile_softmax t;
        if (!begin_tile<TYPE, N>(&w, &t, tile))
            continue;
        struct tile_shares share = merge_tile(&m, &l, t.m, t.l);
        end_tile<TYPE, N>(&w, t.exponent, y, &share);
    }
    finish_row(&a, &r, y, m, l);
}

/* What version 4 leaves of a tile: m, l (0: the row sees nothing of it) and head_dim values;
 * [n_tokens, n_heads, n_tiles] of these. */
static __device__ __forceinline__ float *partial_of(float *partial,
                                                    const struct attend_arguments *a,
                                                    const struct query_row *r, int n_tiles,
                                                    int tile) {
    size_t number = r->row * (size_t)n_tiles + (size_t)tile;
    return partial + number * (size_t)(a->shape.head_dim + 2);
}

template <enum kv_type TYPE, int N>
__global__ static void __launch_bounds__(TILE, BLOCKS)
    attend_4(struct attend_arguments a, struct plan_arrays plan, int most_tokens, float *partial) {
    SHARED_DYNAMIC(int16_t, query); /* [head_dim] */
    SHARED(struct tile_memory, memory);
    run_in_turn();
    int tile = (int)blockIdx.z;
    struct query_row r;
    struct tile_softmax t;
    if (!find_query(&r, &a, &plan, (int)blockIdx.x, most_tokens))
        return;
    if (tile && (tile * TILE >= r.end || (tile + 1) * TILE <= r.first))
        return; /* the first one looks at the query in any case */
    float *to = partial_of(partial, &a, &r, (int)gridDim.z, tile);
    load_query(&r, query, &a, &memory.part);
    struct tile_work w = work_of(&a, &r, query, &memory, plan.page_size);
    bool any = begin_tile<TYPE, N>(&w, &t, tile * TILE);
    if (threadIdx.x == 0) {
        to[0] = any ? t.m : 0;
        to[1] = any ? t.l : 0;
    }
    if (any)
        end_tile<TYPE, N>(&w, t.exponent, to + 2, NULL);
}

/* Merges the tiles of a token and head in ascending order. */
__global__ static void __launch_bounds__(TILE)
    merge_tiles(struct attend_arguments a, struct plan_arrays plan, int most_tokens, float *partial,
                int n_tiles) {
    run_in_turn();
    struct query_row r;
    if (!find_query(&r, &a, &plan, (int)blockIdx.x, most_tokens))
        return;
    float *y = a.y + r.row * (size_t)a.shape.head_dim, m = -INFINITY, l = 0;
    for (int d = (int)threadIdx.x; d < a.shape.head_dim; d += TILE) {
        float o = 0;
        m = -INFINITY;
        l = 0;
        for (int tile = r.first / TILE; tile * TILE < r.end; tile++) {
            const float *from = partial_of(partial, &a, &r, n_tiles, tile);
            if (from[1] == 0)
                continue;
            struct tile_shares share = merge_tile(&m, &l, from[0], from[1]);
            o = num_merge(o, share.before, from[2 + d], share.tile);
        }
        y[d] = o;
    }
    finish_row(&a, &r, y, m, l);
}

/* ---- launching ------------------------------------------------------------------------------- */

static size_t query_bytes(const struct attend_arguments *a) {
    return sizeof(int16_t) * (size_t)a->shape.head_dim;
}

template <enum kv_type TYPE, int N>
static void launch_3(struct gpu_device *gpu, const struct attend_arguments *a,
                     const struct attention_plan *plan, int most_tokens) {
    dim3 rows((unsigned)plan->n_tokens, (unsigned)a->shape.n_heads);
    GPU_LAUNCH_EARLY(gpu, (attend_3<TYPE, N>), rows, TILE, query_bytes(a), *a, plan->arrays,
                     most_tokens);
}

static int tiles_of(const struct attention_plan *plan) {
    return plan->longest > TILE ? (plan->longest + TILE - 1) / TILE : 1;
}

static size_t partial_bytes(const struct attend_arguments *a, const struct attention_plan *plan) {
    size_t rows = (size_t)plan->n_tokens * (size_t)a->shape.n_heads;
    return sizeof(float) * rows * (size_t)tiles_of(plan) * (size_t)(a->shape.head_dim + 2);
}

template <enum kv_type TYPE, int N>
static void launch_4(struct gpu_device *gpu, const struct attend_arguments *a,
                     const struct attention_plan *plan, int most_tokens) {
    dim3 rows((unsigned)plan->n_tokens, (unsigned)a->shape.n_heads), blocks = rows;
    float *partial =
        (float *)gpu_scratch(gpu, GPU_SCRATCH_PARTIAL, partial_bytes(a, plan), "attend");
    if (!partial)
        return;
    blocks.z = (unsigned)tiles_of(plan);
    GPU_LAUNCH_EARLY(gpu, (attend_4<TYPE, N>), blocks, TILE, query_bytes(a), *a, plan->arrays,
                     most_tokens, partial);
    GPU_LAUNCH_EARLY(gpu, merge_tiles, rows, TILE, 0, *a, plan->arrays, most_tokens, partial,
                     tiles_of(plan));
}

/* A kernel for each type: how an element becomes an integer is worked out by the compiler. */
typedef void launch(struct gpu_device *gpu, const struct attend_arguments *a,
                    const struct attention_plan *plan, int most_tokens);
static launch *const launches[N_KV_TYPES][2] = {
    {launch_3<KV_BFP16, 8>, launch_4<KV_BFP16, 8>}, {launch_3<KV_BFP8, 16>, launch_4<KV_BFP8, 16>},
    {launch_3<KV_E4M3, 16>, launch_4<KV_E4M3, 16>}, {launch_3<KV_E5M2, 16>, launch_4<KV_E5M2, 16>},
    {launch_3<KV_FP16, 8>, launch_4<KV_FP16, 8>},   {launch_3<KV_BF16, 8>, launch_4<KV_BF16, 8>},
};

/* Whether the views are of vLLM's layout, and the query has room in shared memory. */
static bool fits(const struct attend_arguments *a, int page_size) {
    const struct kv_view *k = &a->kv.k, *v = &a->kv.v;
    int in_vector = 16 / kv_type_bytes(k->type);
    return k->type == v->type && k->x == in_vector && k->element_step == 1 &&
           k->position_step == in_vector && k->group_step == (int64_t)page_size * in_vector &&
           k->page_step % in_vector == 0 && k->head_step % in_vector == 0 &&
           (uintptr_t)k->data % 16 == 0 && a->shape.head_dim % in_vector == 0 &&
           v->x == a->shape.head_dim && v->element_step == page_size && v->position_step == 1 &&
           query_bytes(a) + sizeof(struct tile_memory) <= 48 * 1024;
}

bool gpu_attend_vllm(struct gpu_device *gpu, const struct attend_arguments *a,
                     const struct attention_plan *plan, int version, int most_tokens) {
    if (!fits(a, plan->arrays.page_size))
        return false;
    int64_t rows = (int64_t)plan->n_tokens * a->shape.n_heads;
    bool few = rows <= gpu->n_processors * BLOCKS && plan->longest > TILE;
    version = version ? version : few ? 4 : 3;
    if (version == 4 && (gpu->recording /* its grid would be too small for longer sequences */ ||
                         tiles_of(plan) > 65535 || partial_bytes(a, plan) > most_partial_bytes))
        version = 3;
    launches[a->kv.k.type][version - 3](gpu, a, plan, most_tokens);
    return true;
}
