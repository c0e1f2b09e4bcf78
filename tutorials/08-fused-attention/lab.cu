/*
 * Lab 8: attention that gathers its keys and values through the page table, in CUDA. Your file
 * takes the place of gpu/attend.cu and gpu/attention_paged.cu; the task is in the section "Lab" of
 * this chapter. `make lab8` builds it for the emulation, which runs it on the CPU, and grades it.
 *
 * A block has TILE (256) threads and one query token and head. These headers are yours to use:
 *
 *     gpu/attend.h                the row (struct query_row: its positions first ... end - 1, its
 *                                 page table `pages`), its query as integers, the softmax of a
 *                                 tile, the merge of two tiles
 *     gpu/gpu.h                   row_max: the largest number of all threads, given to all of them
 *     model/attention/kv_view.h   where a row of the cache and its exponent lie
 *     model/attention/variant.h   attention_shows: what a mask hides
 *     model/attention/numerics.h  num_weighted_value, num_merge: what of a result is rounded
 *
 * A barrier must stand between a write to shared memory and the read of it by another thread, and
 * also between that read and the next write to it, in the tile that follows. Each call of row_max
 * and softmax_tile has barriers in it, and counts as one.
 */
#include "gpu/attend.h"
#include "gpu/ptx/tensor_core.h" /* run_in_turn, for the kernels */
#include "tests/labs/not_written.h"

/* ---- given ----------------------------------------------------------------------------------- */

/* The shared memory of a block, beside its query. */
struct row_memory {
    int16_t weights[TILE];  /* of the tile's positions; 0: the row does not see it */
    int64_t values[TILE];   /* where in v's data the value of each position begins */
    int exponents[TILE];    /* of the values */
    struct row_parts parts; /* for softmax_tile, load_query, and row_max<WARPS>(x, parts.words) */
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

/* ---- step 1: a tile -------------------------------------------------------------------------- */

/* The score of a position that the row sees, and where its value is. It lies in page
 * r->pages[position / page_size], at position % page_size there; kv_view_row says where its row of
 * r->kv_head begins in k, and in v, and kv_view_exponent where the exponent is. The score is
 * softmax_score of rounded_sum of the products of the query with the key, summed in 64 bits. Sets
 * values[j] and exponents[j] of the shared memory, where j is the position's place in its tile. */
static __device__ float score_of(const struct row_work *w, int j, int position) {
    (void)w, (void)j, (void)position;
    not_written("the page, key and value of the position, the product, the score");
}

/* The tile whose first position is `from`, by the whole block. Thread j has position from + j: the
 * row sees it if it lies in r->first ... r->end - 1 and attention_shows it. If the row sees nothing
 * of the tile, returns false to all threads and leaves *t as it is; row_max finds that out (of 1u
 * where a thread sees its position, and 0u). Otherwise sets the weights of all positions
 * (softmax_tile gives them, with *t in each thread; what it gets of a position that is not seen
 * does not matter) and returns true to all threads, with all of it in shared memory for all of them
 * to read. Every thread must come to every barrier, those in row_max and softmax_tile included. */
static __device__ bool weigh_tile(const struct row_work *w, struct tile_softmax *t, int from) {
    (void)w, (void)t, (void)from;
    not_written("what each thread sees, its score, its weight, a barrier");
}

/* Element d of the tile's result: the products of the weights with the values, summed in 64 bits
 * over the positions that the row sees, then rounded_sum and num_weighted_value with the exponent
 * of the weights. Where a weight is 0, leave the position out: nobody may have set its value. */
static __device__ float value_of(const struct row_work *w, int d, const struct tile_softmax *t) {
    (void)w, (void)d, (void)t;
    not_written("sum the products of weights and values, then round");
}

/* ---- steps 1 and 2: a block for each row ----------------------------------------------------- */

/* A block for each row: y of its tiles. Thread threadIdx.x has element threadIdx.x of y, and every
 * TILE-th from there. In step 1 there is one tile: its values, then finish_row with its m and l.
 * Step 2: the tiles in ascending order, merged by merge_tile and num_merge(before, factor.before,
 * value, factor.tile), from m = -INFINITY, l = 0 and y = 0; a tile that the row sees nothing of is
 * left out. finish_row ends every row, also one that sees nothing at all, whose y is 0. */
static __device__ void attend_row(const struct row_work *w, float *y) {
    (void)w, (void)y;
    not_written("go through the tiles in order and merge them");
}

/* ---- step 3: split and merge ----------------------------------------------------------------- */

/* A block for each row and tile; tiles are numbered from 0, TILE positions each. Leaves at `to` m,
 * l and the head_dim values of the tile; l = 0 if the row sees nothing of it, and then merge_row
 * looks at nothing else. */
static __device__ void attend_tile(const struct row_work *w, int tile, float *to) {
    (void)w, (void)tile, (void)to;
    not_written("leave m, l and the values of one tile");
}

/* A block for each row, after all its tiles: merges what attend_tile has left in tiles r->first /
 * TILE to the last that begins before r->end, in ascending order, and ends the row as attend_row
 * does. partial_of says where it is. */
static __device__ void merge_row(const struct attend_arguments *a, const struct query_row *r,
                                 float *partial, int n_tiles, float *y) {
    (void)a, (void)r, (void)partial, (void)n_tiles, (void)y;
    not_written("merge what the blocks of the tiles have left, in order");
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
