/*
 * Lab 8, solved for speed: two lanes share a key, and 16 bytes are read at a time (the chapter's
 * stretch task). Threads with the same eight dimensions of the values take turns with the
 * positions, and add their sums in shared memory. Caches whose rows are not such vectors are read
 * element by element.
 */
#include "gpu/attend.h"
#include "gpu/ptx/tensor_core.h"

enum { VECTOR = 8 /* elements in 16 bytes */, MOST_DIMS = 256, FLIGHT = 4 /* loads at once */ };

/* ---- given ----------------------------------------------------------------------------------- */

/* The shared memory of a block, beside its query. */
struct row_memory {
    int16_t weights[TILE];  /* of the tile's positions; 0: the row does not see it */
    int64_t values[TILE];   /* where in v's data the value of each position begins */
    int exponents[TILE];    /* of the values */
    struct row_parts parts; /* for row_max, softmax_tile, load_query */
    unsigned long long sums[MOST_DIMS];
};

/* What a block works on. */
struct row_work {
    const struct attend_arguments *a;
    const struct query_row *r;
    const int16_t *query; /* shared [head_dim]: mantissas */
    struct row_memory *memory;
    int page_size;
};

/* The exponent of the row of elements that begins at `row` of a view; exponent_at: kv_view_exponent
 * of it. */
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

/* Element d of that row as an integer. */
static __device__ int integer_of(const struct kv_view *v, int64_t row, int d, int exponent) {
    return kv_integer(v->type, kv_load_bits(v->data, v->type, row + kv_view_element(v, d)),
                      num_pow2f(15 - exponent));
}

/* Where the split leaves (m, l, o[head_dim]) of a tile: partial is [rows, n_tiles, head_dim + 2].
 */
static __device__ float *partial_of(float *partial, const struct attend_arguments *a,
                                    const struct query_row *r, int n_tiles, int tile) {
    size_t number = r->row * (size_t)n_tiles + (size_t)tile;
    return partial + number * (size_t)(a->shape.head_dim + 2);
}

/* ---- vectors --------------------------------------------------------------------------------- */

static __device__ bool lies_in_vectors(const struct kv_view *v, int dim) {
    return v->type == KV_BFP16 && v->element_step == 1 && (v->x >= dim || v->group_step == v->x) &&
           (v->page_step | v->position_step | v->head_step | dim) % VECTOR == 0 &&
           dim <= MOST_DIMS && (uintptr_t)v->data % 16 == 0;
}

/* The elements of vector i of a row. */
static __device__ uint4 vector_of(const struct kv_view *v, int64_t row, int i) {
    return *(const uint4 *)((const int16_t *)v->data + row + i * VECTOR);
}

/* Element k of it. */
static __device__ int element_of(const uint4 *vector, int k) {
    return ((const int16_t *)vector)[k];
}

/* The product of the query with the key that begins at `row`; -1: none. Both lanes of a pair go
 * through the key of the first, then that of the second, each with every other vector. */
static __device__ long long dot_of_pair(const struct row_work *w, int64_t row) {
    int lane = (int)threadIdx.x % 32, n = w->a->shape.head_dim / VECTOR;
    long long mine = 0;
    for (int turn = 0; turn < 2; turn++) {
        int64_t key = __shfl_sync(0xffffffffu, row, lane / 2 * 2 + turn);
        long long half = 0;
        for (int i = lane % 2; i < n && key >= 0; i += 2 * FLIGHT) {
            uint4 vectors[FLIGHT];
            UNROLL
            for (int f = 0; f < FLIGHT; f++)
                vectors[f] = i + 2 * f < n ? vector_of(&w->a->kv.k, key, i + 2 * f) : uint4();
            UNROLL
            for (int f = 0; f < FLIGHT; f++)
                UNROLL
            for (int k = 0; k < VECTOR; k++)
                half += w->query[(i + 2 * f < n ? i + 2 * f : 0) * VECTOR + k] *
                        element_of(&vectors[f], k);
        }
        half += __shfl_xor_sync(0xffffffffu, half, 1);
        mine = lane % 2 == turn ? half : mine;
    }
    return mine;
}

/* Adds the tile's weighted values to the shared sums. */
static __device__ void add_values(const struct row_work *w) {
    struct row_memory *m = w->memory;
    int n = w->a->shape.head_dim / VECTOR, turns = TILE / n;
    int column = (int)threadIdx.x % n, turn = (int)threadIdx.x / n;
    long long sums[VECTOR] = {0};
    for (int first = turn; first < TILE && turn < turns; first += turns * FLIGHT) {
        uint4 vectors[FLIGHT];
        UNROLL
        for (int f = 0; f < FLIGHT; f++) {
            int j = first + f * turns;
            vectors[f] = j < TILE && m->values[j] >= 0
                             ? vector_of(&w->a->kv.v, m->values[j], column)
                             : uint4();
        }
        UNROLL
        for (int f = 0; f < FLIGHT; f++)
            UNROLL
        for (int k = 0; k < VECTOR; k++)
            sums[k] += m->weights[(first + f * turns) % TILE] * element_of(&vectors[f], k);
    }
    for (int k = 0; k < VECTOR && turn < turns; k++)
        atomicAdd(&m->sums[column * VECTOR + k], (unsigned long long)sums[k]);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* The product of the query with a key, element by element. */
static __device__ long long dot_with(const struct row_work *w, int64_t key, int exponent) {
    long long dot = 0;
    for (int d = 0; d < w->a->shape.head_dim; d++)
        dot += w->query[d] * integer_of(&w->a->kv.k, key, d, exponent);
    return dot;
}

/* The score of the thread's position, if the row sees it; all threads of a warp call this. */
static __device__ float score_of(const struct row_work *w, int j, int position, bool sees) {
    const struct attend_arguments *a = w->a;
    const struct kv_view *k = &a->kv.k, *v = &a->kv.v;
    int head = w->r->kv_head, dim = a->shape.head_dim, exponent = 0;
    int64_t key = -1, value = -1;
    if (sees) {
        int64_t page = w->r->pages[position / w->page_size], in_page = position % w->page_size;
        key = kv_view_row(k, page, in_page, head);
        value = kv_view_row(v, page, in_page, head);
        exponent = exponent_of(k, key, kv_view_exponent(k, page, in_page, head), dim);
        w->memory->exponents[j] =
            exponent_of(v, value, kv_view_exponent(v, page, in_page, head), dim);
    }
    w->memory->values[j] = value;
    long long dot = lies_in_vectors(k, dim) ? dot_of_pair(w, key)
                    : sees                  ? dot_with(w, key, exponent)
                                            : 0;
    return sees ? softmax_score(w->r, a, rounded_sum(dot), exponent, position) : -INFINITY;
}

/* Weights and, where values are vectors, their sums, of the tile from position `tile` on. */
static __device__ bool weigh_tile(const struct row_work *w, struct tile_softmax *t, int tile) {
    const struct query_row *r = w->r;
    struct row_memory *m = w->memory;
    int j = (int)threadIdx.x, position = tile + j;
    bool sees = position >= r->first && position < r->end &&
                attention_shows(&w->a->variant, r->mask, r->i, position, r->kv_len);
    if (!row_max<WARPS>((uint32_t)sees, m->parts.words))
        return false;
    m->sums[j] = 0;
    float s = score_of(w, j, position, sees);
    m->weights[j] = softmax_tile(t, s, sees, sees ? m->exponents[j] : 0, r, w->a, &m->parts);
    __syncthreads();
    if (lies_in_vectors(&w->a->kv.v, w->a->shape.head_dim)) {
        add_values(w);
        __syncthreads();
    }
    return true;
}

static __device__ float value_of(const struct row_work *w, int d, const struct tile_softmax *t) {
    const struct row_memory *m = w->memory;
    long long sum = 0;
    if (lies_in_vectors(&w->a->kv.v, w->a->shape.head_dim))
        return num_weighted_value(rounded_sum((long long)m->sums[d]), t->exponent);
    for (int j = 0; j < TILE; j++)
        if (m->values[j] >= 0)
            sum += m->weights[j] * integer_of(&w->a->kv.v, m->values[j], d, m->exponents[j]);
    return num_weighted_value(rounded_sum(sum), t->exponent);
}

/* ---- steps 1 and 2: a block for each row ----------------------------------------------------- */

/* A block for each row: y of its tiles. Thread threadIdx.x has element threadIdx.x of y, and every
 * TILE-th from there. In step 1 there is one tile. Step 2: the tiles in ascending order, merged by
 * merge_tile and num_merge(before, factor.before, value, factor.tile), from m = -INFINITY, l = 0
 * and y = 0; a tile that the row sees nothing of is left out. finish_row ends the row. */
static __device__ void attend_row(const struct row_work *w, float *y) {
    const struct query_row *r = w->r;
    int dim = w->a->shape.head_dim;
    float m = -INFINITY, l = 0;
    for (int d = (int)threadIdx.x; d < dim; d += TILE)
        y[d] = 0;
    for (int tile = r->first / TILE * TILE; tile < r->end; tile += TILE) {
        struct tile_softmax t;
        if (!weigh_tile(w, &t, tile))
            continue;
        struct merge_factors factor = merge_tile(&m, &l, t.m, t.l);
        for (int d = (int)threadIdx.x; d < dim; d += TILE)
            y[d] = num_merge(y[d], factor.before, value_of(w, d, &t), factor.tile);
        __syncthreads(); /* the next tile writes weights again */
    }
    finish_row(w->a, r, y, m, l);
}

/* ---- step 3: split and merge ----------------------------------------------------------------- */

/* A block for each row and tile. Leaves at `to` m, l and the head_dim values of the tile; l = 0 if
 * the row sees nothing of it. */
static __device__ void attend_tile(const struct row_work *w, int tile, float *to) {
    struct tile_softmax t;
    bool any = weigh_tile(w, &t, tile * TILE);
    if (threadIdx.x == 0) {
        to[0] = any ? t.m : 0;
        to[1] = any ? t.l : 0;
    }
    for (int d = (int)threadIdx.x; d < w->a->shape.head_dim && any; d += TILE)
        to[2 + d] = value_of(w, d, &t);
}

/* A block for each row, after all its tiles: merges what attend_tile has left in tiles r->first /
 * TILE to the last before r->end, in ascending order. partial_of says where it is. */
static __device__ void merge_row(const struct attend_arguments *a, const struct query_row *r,
                                 float *partial, int n_tiles, float *y) {
    float m = -INFINITY, l = 0;
    for (int d = (int)threadIdx.x; d < a->shape.head_dim; d += TILE)
        y[d] = 0;
    for (int tile = r->first / TILE; tile * TILE < r->end; tile++) {
        const float *from = partial_of(partial, a, r, n_tiles, tile);
        if (from[1] == 0)
            continue;
        struct merge_factors factor = merge_tile(&m, &l, from[0], from[1]);
        for (int d = (int)threadIdx.x; d < a->shape.head_dim; d += TILE)
            y[d] = num_merge(y[d], factor.before, from[2 + d], factor.tile);
    }
    finish_row(a, r, y, m, l);
}

/* ---- given: the kernels and their launches --------------------------------------------------- */

static __device__ struct row_work work_of(const struct attend_arguments *a,
                                          const struct query_row *r, const int16_t *query,
                                          struct row_memory *memory,
                                          const struct plan_arrays *plan) {
    return {a, r, query, memory, plan->page_size};
}

__global__ static void rows_kernel(struct attend_arguments a, struct plan_arrays plan) {
    SHARED_DYNAMIC(int16_t, query);
    SHARED(struct row_memory, memory);
    run_in_turn();
    struct query_row r;
    find_query(&r, &a, &plan, (int)blockIdx.x, INT32_MAX);
    load_query(&r, query, &a, &memory.parts);
    struct row_work w = work_of(&a, &r, query, &memory, &plan);
    attend_row(&w, a.y + r.row * (size_t)a.shape.head_dim);
}

__global__ static void tiles_kernel(struct attend_arguments a, struct plan_arrays plan,
                                    float *partial) {
    SHARED_DYNAMIC(int16_t, query);
    SHARED(struct row_memory, memory);
    run_in_turn();
    int tile = (int)blockIdx.z;
    struct query_row r;
    find_query(&r, &a, &plan, (int)blockIdx.x, INT32_MAX);
    load_query(&r, query, &a, &memory.parts);
    struct row_work w = work_of(&a, &r, query, &memory, &plan);
    if (tile * TILE < r.end && (tile + 1) * TILE > r.first)
        attend_tile(&w, tile, partial_of(partial, &a, &r, (int)gridDim.z, tile));
}

__global__ static void merge_kernel(struct attend_arguments a, struct plan_arrays plan,
                                    float *partial, int n_tiles) {
    run_in_turn();
    struct query_row r;
    find_query(&r, &a, &plan, (int)blockIdx.x, INT32_MAX);
    merge_row(&a, &r, partial, n_tiles, a.y + r.row * (size_t)a.shape.head_dim);
}

/* --kernel attend=3 splits; every other version is a block for each row. */
void gpu_attend(struct device *dev, float *y, const float *q, const struct kv_views *kv,
                const struct attention_plan *plan, const struct attention_variant *variant,
                int site) {
    struct gpu_device *gpu = gpu_of(dev);
    struct attend_arguments a = {y, q, *kv, *variant, plan->shape, site, gpu->fault};
    if (variant->m) /* a state is without the scale: finish_states has it */
        a.kv.v.scale = 1;
    dim3 rows((unsigned)plan->n_tokens, (unsigned)plan->shape.n_heads), tiles = rows;
    size_t shared = sizeof(int16_t) * (size_t)plan->shape.head_dim;
    int n_tiles = plan->longest > TILE ? blocks_of(plan->longest, TILE) : 1;
    if (!plan->n_tokens)
        return;
    if (gpu->version[GPU_ATTEND] != 3) {
        GPU_LAUNCH_EARLY(gpu, rows_kernel, rows, TILE, shared, a, plan->arrays);
        return;
    }
    size_t floats = (size_t)plan->n_tokens * (size_t)a.shape.n_heads * (size_t)n_tiles *
                    (size_t)(a.shape.head_dim + 2);
    float *partial =
        (float *)gpu_scratch(gpu, GPU_SCRATCH_PARTIAL, sizeof(float) * floats, "attend");
    if (!partial)
        return;
    tiles.z = (unsigned)n_tiles;
    GPU_LAUNCH_EARLY(gpu, tiles_kernel, tiles, TILE, shared, a, plan->arrays, partial);
    GPU_LAUNCH_EARLY(gpu, merge_kernel, rows, TILE, 0, a, plan->arrays, partial, n_tiles);
}
