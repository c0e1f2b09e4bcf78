/*
 * attend, versions 2 and 3: paged attention divided among threads as vLLM's kernels
 * paged_attention_v1 and v2 do it (Kwon et al., "Efficient Memory Management for Large Language
 * Model Serving with PagedAttention", 2023), for caches of any layout and type.
 *
 * q, y [n_tokens, n_heads, head_dim]; a cache behind views (model/attention/kv_view.h); a plan with
 * the page tables (gpu/fast/plan/plan.h).
 *
 * 2  (v1) A block of 256 threads per query token and head goes through its tiles of 256 positions:
 *
 *        scores   a pair of lanes shares a key, vector of 16 bytes by vector in turn; a warp has 16
 *                 keys at a time. In rows (NHD, HND) the vectors of a pair are 32 bytes of memory;
 *                 in vLLM's layout the same vector of 16 positions lies in a row, 256 bytes.
 *        softmax  a position a thread
 *        values   a thread reads vectors of one column of the tile, and adds up its products; then
 *                 the threads of a column add theirs. In rows a vector is elements of one position,
 *                 in vLLM's layout it is one element of neighbouring positions (ACROSS).
 *
 * 3  (v2) A block per query token, head and tile, so that a long context is many blocks' work. Each
 *    leaves m, l and o; a second kernel merges them in order. v2's partitions have 512 positions;
 *    here a tile is what has a softmax of its own, whoever computes it.
 *
 * All sums are of integers, so neither lanes nor warps nor partitions change a bit. What a row does
 * not see has the weight 0, and 0 times what lies there is 0, even if it was never written: there
 * are no NaNs among integers. Caches that do not lie in vectors are read element by element.
 * paged_tile.h has what both do with a tile.
 */
#include "gpu/paged_tile.h"

enum { BLOCKS = 3 /* that a processor is to have room for */ };

static const size_t most_partial_bytes = (size_t)1 << 28; /* of version 3 */

template <enum kv_type TYPE, int N, bool ACROSS>
__global__ static void __launch_bounds__(TILE, BLOCKS)
    attend_2(struct attend_arguments a, struct plan_arrays plan, int most_tokens) {
    SHARED_DYNAMIC(unsigned char, dynamic);
    SHARED(struct tile_memory, memory);
    run_in_turn();
    struct query_row r;
    if (!find_query(&r, &a, &plan, (int)blockIdx.x, most_tokens))
        return;
    struct tile_work w = work_of(&a, &r, dynamic, &memory, plan.page_size);
    float *y = a.y + r.row * (size_t)a.shape.head_dim, m = -INFINITY, l = 0;
    load_query(&r, w.query, &a, &memory.part);
    for (int d = (int)threadIdx.x; d < a.shape.head_dim; d += TILE)
        y[d] = 0;
    for (int tile = r.first / TILE * TILE; tile < r.end; tile += TILE) {
        struct tile_softmax t;
        if (!run_tile<TYPE, N, ACROSS>(&w, &t, tile))
            continue;
        struct merge_factors factor = merge_tile(&m, &l, t.m, t.l);
        for (int d = (int)threadIdx.x; d < a.shape.head_dim; d += TILE)
            y[d] = num_merge(y[d], factor.before, tile_value(&w, d, t.exponent), factor.tile);
    } /* each thread clears the sums that it has read itself */
    finish_row(&a, &r, y, m, l);
}

/* What version 3 leaves of a tile: m, l (0: the row sees nothing of it) and head_dim values;
 * [n_tokens, n_heads, n_tiles] of these. */
static __device__ __forceinline__ float *partial_of(float *partial,
                                                    const struct attend_arguments *a,
                                                    const struct query_row *r, int n_tiles,
                                                    int tile) {
    size_t number = r->row * (size_t)n_tiles + (size_t)tile;
    return partial + number * (size_t)(a->shape.head_dim + 2);
}

template <enum kv_type TYPE, int N, bool ACROSS>
__global__ static void __launch_bounds__(TILE, BLOCKS)
    attend_3(struct attend_arguments a, struct plan_arrays plan, int most_tokens, float *partial) {
    SHARED_DYNAMIC(unsigned char, dynamic);
    SHARED(struct tile_memory, memory);
    run_in_turn();
    int tile = (int)blockIdx.z;
    struct query_row r;
    struct tile_softmax t;
    if (!find_query(&r, &a, &plan, (int)blockIdx.x, most_tokens))
        return;
    if (tile && (tile * TILE >= r.end || (tile + 1) * TILE <= r.first))
        return; /* the first one looks at the query in any case */
    struct tile_work w = work_of(&a, &r, dynamic, &memory, plan.page_size);
    float *to = partial_of(partial, &a, &r, (int)gridDim.z, tile);
    load_query(&r, w.query, &a, &memory.part);
    bool any = run_tile<TYPE, N, ACROSS>(&w, &t, tile * TILE);
    if (threadIdx.x == 0) {
        to[0] = any ? t.m : 0;
        to[1] = any ? t.l : 0;
    }
    for (int d = (int)threadIdx.x; d < a.shape.head_dim && any; d += TILE)
        to[2 + d] = tile_value(&w, d, t.exponent);
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
            struct merge_factors factor = merge_tile(&m, &l, from[0], from[1]);
            o = num_merge(o, factor.before, from[2 + d], factor.tile);
        }
        y[d] = o;
    }
    finish_row(&a, &r, y, m, l);
}

/* ---- launching ------------------------------------------------------------------------------ */

static int tiles_of(const struct attention_plan *plan) {
    return plan->longest > TILE ? blocks_of(plan->longest, TILE) : 1;
}

static size_t partial_bytes(const struct attend_arguments *a, const struct attention_plan *plan) {
    size_t rows = (size_t)plan->n_tokens * (size_t)a->shape.n_heads;
    return sizeof(float) * rows * (size_t)tiles_of(plan) * (size_t)(a->shape.head_dim + 2);
}

template <enum kv_type TYPE, int N, bool ACROSS>
static void launch(struct gpu_device *gpu, const struct attend_arguments *a,
                   const struct attention_plan *plan, int version, int most_tokens) {
    dim3 rows((unsigned)plan->n_tokens, (unsigned)a->shape.n_heads), blocks = rows;
    size_t shared = dynamic_bytes(a->shape.head_dim);
    if (version == 2) {
        GPU_LAUNCH_EARLY(gpu, (attend_2<TYPE, N, ACROSS>), rows, TILE, shared, *a, plan->arrays,
                         most_tokens);
        return;
    }
    float *partial =
        (float *)gpu_scratch(gpu, GPU_SCRATCH_PARTIAL, partial_bytes(a, plan), "attend");
    if (!partial)
        return;
    blocks.z = (unsigned)tiles_of(plan);
    GPU_LAUNCH_EARLY(gpu, (attend_3<TYPE, N, ACROSS>), blocks, TILE, shared, *a, plan->arrays,
                     most_tokens, partial);
    GPU_LAUNCH_EARLY(gpu, merge_tiles, rows, TILE, 0, *a, plan->arrays, most_tokens, partial,
                     tiles_of(plan));
}

/* A kernel for each type: how an element becomes an integer is worked out by the compiler. N: its
 * elements in 16 bytes. */
template <enum kv_type TYPE, int N>
static void launch_type(struct gpu_device *gpu, const struct attend_arguments *a,
                        const struct attention_plan *plan, int version, int most_tokens) {
    bool keys = lies_in_vectors(&a->kv.k, N);
    if (keys && lies_in_vectors(&a->kv.v, N))
        launch<TYPE, N, false>(gpu, a, plan, version, most_tokens);
    else if (keys && lies_across(&a->kv.v, N, plan->arrays.page_size))
        launch<TYPE, N, true>(gpu, a, plan, version, most_tokens);
    else
        launch<TYPE, 1, false>(gpu, a, plan, version, most_tokens);
}

#ifdef FOR_OTHER_TYPES
void gpu_attend_tiles_of_type(struct gpu_device *gpu, const struct attend_arguments *a,
                              const struct attention_plan *plan, int version, int most_tokens) {
    typedef void launcher(struct gpu_device *, const struct attend_arguments *,
                          const struct attention_plan *, int, int);
    static launcher *const launchers[N_KV_TYPES] = {NULL, /* bfp16 */
                                                    launch_type<KV_BFP8, 16>,
                                                    launch_type<KV_E4M3, 16>,
                                                    launch_type<KV_E5M2, 16>,
                                                    launch_type<KV_FP16, 8>,
                                                    launch_type<KV_BF16, 8>};
    launchers[a->kv.k.type](gpu, a, plan, version, most_tokens);
}
#else
bool gpu_attend_tiles(struct gpu_device *gpu, const struct attend_arguments *a,
                      const struct attention_plan *plan, int version, int most_tokens) {
    enum kv_type type = a->kv.k.type;
    bool is_linked = type == KV_BFP16 || gpu_attend_tiles_of_type;
    if (!is_linked || type != a->kv.v.type ||
        dynamic_bytes(a->shape.head_dim) + sizeof(struct tile_memory) > 48 * 1024)
        return false;
    int64_t rows = (int64_t)plan->n_tokens * a->shape.n_heads;
    bool few = rows <= gpu->n_processors * BLOCKS && plan->longest > TILE;
    version = version ? version : few ? 3 : 2;
    if (gpu->recording /* the grid would be too small for longer sequences */ ||
        tiles_of(plan) > 65535 || partial_bytes(a, plan) > most_partial_bytes)
        version = 2;
    if (type == KV_BFP16)
        launch_type<KV_BFP16, 8>(gpu, a, plan, version, most_tokens);
    else
        gpu_attend_tiles_of_type(gpu, a, plan, version, most_tokens);
    return true;
}
#endif
