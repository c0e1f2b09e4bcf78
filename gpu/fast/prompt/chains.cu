/*
 * Merges chains (gpu/fast/plan/plan.h: struct token_chain): rows whose tiles several items had, and
 * a decode row group behind them where the first tiles are shared. Each item left what it found;
 * this merges it, tile after tile, as ../../attention_paged.cu does within a row.
 *
 * There are many chains, and they are short: a warp has one, so that all rows are at work at once,
 * and some of its results are loaded while others are merged. The kernel may start while the items
 * are still at work: the plan says beforehand where their results will be.
 */
#include "gpu/fast/decode/merge.h"
#include "gpu/ptx/tensor_core.h"

enum { CHAIN_ROWS = 4 /* of a block */, BATCH = 8 /* results */ };

/* What row lists left of a row, and then its row group. */
struct chain_results {
    float *kept, *own; /* of this kv head: of place 0, of its first tile */
    const struct chain_segment *segments;
    const struct row_list *row_lists;
    size_t next, next_own;     /* from place to place */
    int dim, own_dim, own_row; /* own_row: of GROUP_ROWS */
    int n_segments, n_shared, n;
    int head_in_group, heads_per_group; /* of the row's query head */

    /* The row in the tokens of a segment, and its row list. */
    __device__ __forceinline__ int row_in(int s) const {
        return segments[s].index * heads_per_group + head_in_group;
    }
    __device__ __forceinline__ const struct row_list *list_of(int s) const {
        return &row_lists[segments[s].row_list + row_in(s) / QUERY_ROWS];
    }

    __device__ __forceinline__ struct row_result at(int i) const {
        if (i >= n_shared)
            return row_result_of(own + (size_t)(i - n_shared) * next_own, GROUP_ROWS, own_dim,
                                 own_row);
        int s = 0;
        while (i >= list_of(s)->n_results)
            i -= list_of(s++)->n_results;
        return row_result_of(kept + (size_t)(list_of(s)->place + i) * next, QUERY_ROWS, dim,
                             row_in(s) % QUERY_ROWS);
    }
};

/* Where chains find what they merge. */
struct chain_memory {
    const struct token_chain *chains;
    const struct chain_segment *segments;
    const struct row_list *row_lists;
    float *kept;
    int dim;
    struct group_results own;
};

/* The results of a row; n 0: nothing is to be merged. */
static __device__ __forceinline__ struct chain_results
results_of(const struct attention_arguments *a, const struct chain_memory *memory,
           struct merged_row row) {
    struct chain_results r = {};
    struct token_chain chain = memory->chains[row.token];
    int group = a->n_heads / a->n_kv_heads, kv_head = row.head / group;
    size_t heads = (size_t)a->n_kv_heads, rows = kept_floats(QUERY_ROWS, memory->dim);
    r.kept = memory->kept + (size_t)kv_head * rows;
    r.next = heads * rows;
    r.dim = memory->dim;
    r.segments = memory->segments + chain.first_segment;
    r.row_lists = memory->row_lists;
    r.n_segments = chain.n_segments;
    r.head_in_group = row.head % group;
    r.heads_per_group = group;
    for (int s = 0; s < chain.n_segments; s++)
        r.n_shared += r.list_of(s)->n_results;
    r.n = r.n_shared + chain.own_tiles;
    if (chain.own_tiles) {
        int own_row = chain.own_row + r.head_in_group, dim = memory->own.dim;
        size_t place = (size_t)(chain.own_place + own_row / GROUP_ROWS * chain.own_tiles);
        rows = kept_floats(GROUP_ROWS, dim);
        r.next_own = heads * rows;
        r.own_dim = dim;
        r.own_row = own_row % GROUP_ROWS;
        r.own = memory->own.rows + place * r.next_own + (size_t)kv_head * rows;
    }
    return r;
}

/* What a lane has of a row: VECTORS times four neighbouring dimensions. */
template <int VECTORS> struct lane_values {
    float4 v[VECTORS];

    static __device__ __forceinline__ int dim_of(int i) {
        return ((int)threadIdx.x % LANES + i * LANES) * VECTOR;
    }
    /* Reads a row of `dim` dimensions; zeros stand behind them. */
    __device__ __forceinline__ void load(const float *from, int dim) {
        UNROLL
        for (int i = 0; i < VECTORS; i++)
            v[i] = dim_of(i) < dim ? *(const float4 *)(from + dim_of(i)) : make_float4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void merge(float old, const struct lane_values &x, float fresh) {
        UNROLL
        for (int i = 0; i < VECTORS; i++) {
            v[i].x = num_merge(v[i].x, old, x.v[i].x, fresh);
            v[i].y = num_merge(v[i].y, old, x.v[i].y, fresh);
            v[i].z = num_merge(v[i].z, old, x.v[i].z, fresh);
            v[i].w = num_merge(v[i].w, old, x.v[i].w, fresh);
        }
    }
};

/* A lane's pointer, for all lanes. */
static __device__ __forceinline__ const float *pointer_of(const float *p, int lane) {
    unsigned long long bits = (unsigned long long)p;
    unsigned low = __shfl_sync(0xffffffffu, (unsigned)bits, lane);
    unsigned high = __shfl_sync(0xffffffffu, (unsigned)(bits >> 32), lane);
    return (const float *)((unsigned long long)high << 32 | low);
}

/* Loads a batch of n results, from number `first` on; lane i knows where number i is. */
template <int VECTORS>
static __device__ __forceinline__ void load_batch(struct lane_values<VECTORS> *to,
                                                  const float *mine, int first, int n, int dim) {
    UNROLL
    for (int i = 0; i < BATCH; i++)
        if (first + i < n)
            to[i].load(pointer_of(mine, first + i), dim);
}

/* Merges the results of a row, and writes it; a warp. */
template <int VECTORS>
static __device__ __forceinline__ void
merge_chain(const struct attention_arguments *a, const struct attention_variant *variant,
            const struct chain_results *results, struct merged_row row) {
    int lane = (int)threadIdx.x % LANES, dim = (a->head_dim + VECTOR - 1) / VECTOR * VECTOR;
    struct row_result begin = results->at(0);
    struct lane_values<VECTORS> o = {};
    float m = 0, l = 0;
    for (int first = 1; first == 1 || first < results->n; first += LANES) {
        int n = min((int)LANES, results->n - first);
        struct row_result mine = lane < n ? results->at(first + lane) : begin;
        if (first == 1) { /* the plan is older than the results */
            wait_for_previous_kernel();
            o.load(begin.values, dim);
            m = begin.sums[0];
            l = begin.sums[1];
        }
        float2 ml = *(const float2 *)mine.sums;
        struct lane_values<VECTORS> next[BATCH];
        load_batch(next, mine.values, 0, n, dim);
        float max = fmaxf(largest_so_far(lane < n ? ml.x : NAN), m);
        float before = __shfl_up_sync(0xffffffffu, max, 1);
        struct result_shares shares = shares_of(lane ? before : m, max, ml);
        m = __shfl_sync(0xffffffffu, max, LANES - 1);
        for (int done = 0; done < n; done += BATCH) {
            struct lane_values<VECTORS> x[BATCH];
            UNROLL
            for (int i = 0; i < BATCH; i++)
                x[i] = next[i];
            load_batch(next, mine.values, done + BATCH, n, dim);
            UNROLL
            for (int i = 0; i < BATCH; i++)
                if (done + i < n) {
                    float old = __shfl_sync(0xffffffffu, shares.old, done + i);
                    float fresh = __shfl_sync(0xffffffffu, shares.fresh, done + i);
                    l = num_merge(l, old, __shfl_sync(0xffffffffu, shares.l, done + i), fresh);
                    o.merge(old, x[i], fresh);
                }
        }
    }
    struct row_end end = end_row(a, variant, row, m, l, lane == 0);
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        const float values[VECTOR] = {o.v[i].x, o.v[i].y, o.v[i].z, o.v[i].w};
        UNROLL
        for (int j = 0; j < VECTOR; j++)
            if (o.dim_of(i) + j < a->head_dim)
                end.write(o.dim_of(i) + j, values[j]);
    }
}

/* blockIdx: CHAIN_ROWS rows, each a token and a query head. */
template <int VECTORS>
__global__ static void __launch_bounds__(CHAIN_ROWS *LANES)
    merge_chains(struct attention_arguments a, struct attention_variant variant,
                 struct chain_memory memory, int n_rows) {
    let_next_kernel_start();
    int number = (int)blockIdx.x * CHAIN_ROWS + (int)threadIdx.x / LANES;
    struct merged_row row = {number / a.n_heads, number % a.n_heads};
    struct chain_results results = {};
    if (number < n_rows)
        results = results_of(&a, &memory, row);
    if (results.n)
        merge_chain<VECTORS>(&a, &variant, &results, row);
    else
        wait_for_previous_kernel();
}

void gpu_attention_chains(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct attention_variant *variant, int n_tokens,
                          const struct work_plan *plan, const struct group_results *own) {
    const struct work_arrays *w = &plan->device;
    int dim = prompt_dim(a->head_dim), n_rows = n_tokens * a->n_heads;
    struct chain_memory memory = {w->chains,  w->segments, w->row_lists,
                                  plan->kept, dim,         own ? *own : (struct group_results){}};
    auto merge = dim <= LANES * VECTOR ? merge_chains<1> : merge_chains<2>;
    GPU_LAUNCH_EARLY(gpu, merge, (unsigned)blocks_of(n_rows, CHAIN_ROWS), CHAIN_ROWS * LANES, 0, *a,
                     *variant, memory, n_rows);
}
