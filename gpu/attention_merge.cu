/*
 * attention_paged, version 4, its end: rows whose tiles several thread blocks worked on. Each left
 * what it found; this merges it, tile after tile, in the one order that the result depends on.
 *
 *     splits   row groups that several shares worked on (attention_plan.h: struct decode_split)
 *     chains   rows whose tiles were work of the kernels for many rows (struct token_chain): of
 *              long sequences; and of tiles that are shared, behind which come those of row groups
 *
 * The chain of a row is short, a few operations a tile. What takes time is fetching the results.
 * Splits are few and long: a thread block has one row, and all of a section's results are on their
 * way together. Chains are many and short: a warp has one, and some of its results are on their way
 * while others are merged. The kernels may start while the shares are still at work: where their
 * results will be, the plan says before.
 */
#include "gpu/attention_plan.h"

#include "gpu/tensor_core.h"

enum {
    TILE = ATTENTION_TILE,
    LANES = 32,
    LONGEST_SECTION = 128, /* results that are merged at a time; as many threads at least */
    MOST_WARPS = 8,
    VECTOR = 4, /* floats in 16 bytes */
};

/* What shares left of a row: the first one's merged tiles, then a result a tile. Of a result, there
 * are the values of `dim` dimensions, then m and l. */
struct split_results {
    const float *begin;
    size_t next;
    int dim, n;

    __device__ __forceinline__ const float *at(int i) const {
        return begin + (size_t)i * next;
    }
};

/* A result, as the kernels leave it: its values, its m and its l. */
struct row_result {
    const float *values, *sums;
};

/* What row lists left of a row, and then its row group. */
struct chain_results {
    const float *kept, *own; /* of place 0 and this kv head */
    const struct chain_segment *segments;
    const struct row_list *row_lists;
    size_t next, next_own; /* from place to place */
    int dim, own_dim;
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
        if (i >= n_shared) {
            const float *values = own + (size_t)(i - n_shared) * next_own;
            return {values, values + own_dim};
        }
        int s = 0;
        while (i >= list_of(s)->n_results)
            i -= list_of(s++)->n_results;
        const float *values = kept + (size_t)(list_of(s)->place + i) * next +
                              (size_t)(row_in(s) % QUERY_ROWS * kept_floats(dim));
        return {values, values + dim};
    }
};

/* ---- shares -----------------------------------------------------------------------------------
 */

/* The largest of this lane's and those of the lanes before it. */
static __device__ __forceinline__ float largest_so_far(float x) {
    UNROLL
    for (int step = 1; step < LANES; step *= 2) {
        float other = __shfl_up_sync(0xffffffffu, x, (unsigned)step);
        x = (int)threadIdx.x % LANES >= step ? fmaxf(x, other) : x;
    }
    return x;
}

/* What a result counts for, and what is before it; and its l. */
struct result_shares {
    float old, fresh, l;
};

/* before: m of what is before; max: of both. A NaN, the row sees nothing of the tile, does not
 * count: its zeros are multiplied by -0, which leaves all as it is. */
static __device__ __forceinline__ struct result_shares shares_of(float before, float max,
                                                                 float2 ml) {
    float old = num_exp(before - max), fresh = num_exp(ml.x - max);
    return fresh >= 0 /* not a NaN */ ? (struct result_shares){old, fresh, ml.y}
                                      : (struct result_shares){1, -0.0f, 0};
}

/* ---- the end of a row -------------------------------------------------------------------------
 */

/* A row of the op. */
struct merged_row {
    int token, head;
};

/* What is still to be done with the values of a row. */
struct row_end {
    float *y; /* the row's */
    bool sinks, divides;
    float old, fresh, l, v_scale;

    __device__ __forceinline__ void write(int d, float o) const {
        o = sinks ? num_merge(o, old, 0, fresh) : o; /* a tile of values that are 0 */
        y[d] = (divides ? o / l : o) * v_scale;
    }
};

/* The sums of a row are complete. first: of the threads that have its values. */
static __device__ __forceinline__ struct row_end end_row(const struct attention_arguments *a,
                                                         const struct attention_variant *variant,
                                                         struct merged_row row, float m, float l,
                                                         float v_scale, bool first) {
    struct row_end e = {};
    size_t number = (size_t)row.token * (size_t)a->n_heads + (size_t)row.head;
    e.y = a->y + number * (size_t)a->head_dim;
    e.sinks = variant->sinks != NULL;
    if (e.sinks) {
        attention_merge_sink(variant->sinks[row.head], &m, &l, &e.old, &e.fresh);
        if (!attention_sink_is_finite(variant->sinks[row.head]) && first)
            gpu_fault(a->fault, a->site, row.token);
    }
    if (first)
        attention_note_sums(variant, number, m, l);
    e.l = l;
    e.divides = l > 0 && !variant->m;
    e.v_scale = v_scale;
    return e;
}

/* ---- splits -----------------------------------------------------------------------------------
 */

/* What the results of a section count for, and where they are. */
struct section_shares {
    struct result_shares of[LONGEST_SECTION];
    const float *values[LONGEST_SECTION]; /* of each result */
    float warp_max[MOST_WARPS];
};

/* Works out the shares of a section, a result a thread, of which there are n; all threads. m: of
 * what is before. Returns that of all. */
static __device__ __forceinline__ float work_out_shares(struct section_shares *shares, float m,
                                                        float2 ml, int n) {
    int i = (int)threadIdx.x, lane = i % LANES, warp = i / LANES;
    float max = largest_so_far(i < n ? ml.x : NAN);
    if (lane == LANES - 1)
        shares->warp_max[warp] = max;
    __syncthreads();
    float all = m;
    for (int w = 0; w < (int)blockDim.x / LANES; w++) {
        m = w < warp ? fmaxf(m, shares->warp_max[w]) : m;
        all = fmaxf(all, shares->warp_max[w]);
    }
    max = fmaxf(max, m);
    float before = __shfl_up_sync(0xffffffffu, max, 1);
    if (i < n)
        shares->of[i] = shares_of(lane ? before : m, max, ml);
    return all;
}

/* Merges all results of a row, of which there is one at least, and writes it. Waits for the kernel
 * before this one, which makes them. tiles: shared memory [section, dim], dim head_dim rounded up
 * to whole vectors. */
static __device__ __forceinline__ void
merge_row(const struct attention_arguments *a, const struct attention_variant *variant,
          const struct split_results &results, struct merged_row row, float *tiles,
          struct section_shares *shares, int section, float v_scale) {
    int d = (int)threadIdx.x, dim = (a->head_dim + VECTOR - 1) / VECTOR * VECTOR;
    const float *begin = results.at(0);
    float o = 0, m = -INFINITY, l = 0;
    for (int first = 1; first == 1 || first < results.n; first += section) {
        int n = min(section, results.n - first);
        const float *mine = d < n ? results.at(first + d) : NULL;
        if (first > 1)
            __syncthreads(); /* the section's memory is used again */
        if (mine)
            shares->values[d] = mine;
        __syncthreads();
        if (first == 1) { /* the plan is older than the results */
            wait_for_previous_kernel();
            o = d < dim ? begin[d] : 0;
            m = begin[results.dim];
            l = begin[results.dim + 1];
        }
        float2 ml = mine ? *(const float2 *)(mine + results.dim) : make_float2(NAN, 0);
        UNROLL_8
        for (int i = d / LANES; i < n; i += (int)blockDim.x / LANES) /* a warp copies a result */
            for (int j = d % LANES * VECTOR; j < dim; j += LANES * VECTOR)
                cp_async_16(tiles + i * dim + j, shares->values[i] + j);
        cp_async_commit();
        m = work_out_shares(shares, m, ml, n);
        cp_async_wait<0>();
        __syncthreads();
        if (d < dim) {
            UNROLL_8
            for (int j = 0; j < n; j++) {
                struct result_shares share = shares->of[j];
                l = num_merge(l, share.old, share.l, share.fresh);
                o = num_merge(o, share.old, tiles[j * dim + d], share.fresh);
            }
        }
    }
    struct row_end end = end_row(a, variant, row, m, l, v_scale, d == 0);
    if (d < a->head_dim)
        end.write(d, o);
}

/* blockIdx: a split, a kv head, a row of the group. dim: as version 4 has it. */
__global__ static void merge_splits(struct attention_arguments a, struct attention_variant variant,
                                    struct plan_arrays plan, const float *partial, int dim,
                                    int section, float v_scale) {
    SHARED_DYNAMIC(float, tiles);
    SHARED(struct section_shares, shares);
    let_next_kernel_start();
    struct decode_split split = plan.splits[blockIdx.x];
    int head = (int)blockIdx.y, row = (int)blockIdx.z;
    struct row_group g = {};
    if (split.n_tiles)
        g = plan.groups[split.group];
    if (row >= g.n_rows) {
        wait_for_previous_kernel(); /* all do, so that who waits for this one waits for that */
        return;
    }
    int group = a.n_heads / a.n_kv_heads, token = g.first_token + (g.first_row + row) / group;
    struct split_results results;
    results.dim = dim;
    results.n = 1 + split.n_tiles - split.first_end;
    results.next = (size_t)(a.n_kv_heads * GROUP_ROWS * kept_floats(dim));
    results.begin = partial + (size_t)split.partial * results.next +
                    (size_t)((head * GROUP_ROWS + row) * kept_floats(dim));
    merge_row(&a, &variant, results, {token, head * group + (g.first_row + row) % group}, tiles,
              &shares, section, v_scale);
}

/* ---- chains -----------------------------------------------------------------------------------
 */

enum { CHAIN_ROWS = 4 /* of a block: a warp has one */, BATCH = 8 /* results */ };

/* Where chains find what they merge. */
struct chain_memory {
    const struct token_chain *chains;
    const struct chain_segment *segments;
    const struct row_list *row_lists;
    const float *kept;
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
    size_t rows = (size_t)(QUERY_ROWS * kept_floats(memory->dim));
    r.kept = memory->kept + (size_t)kv_head * rows;
    r.next = (size_t)a->n_kv_heads * rows;
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
        r.next_own = (size_t)(a->n_kv_heads * GROUP_ROWS * kept_floats(dim));
        r.own_dim = dim;
        r.own = memory->own.rows + place * r.next_own +
                (size_t)((kv_head * GROUP_ROWS + own_row % GROUP_ROWS) * kept_floats(dim));
    }
    return r;
}

/* What a lane has of a row: VECTORS times four neighbouring dimensions. */
template <int VECTORS> struct lane_values {
    float4 v[VECTORS];

    static __device__ __forceinline__ int dim_of(int i) {
        return ((int)threadIdx.x % LANES + i * LANES) * VECTOR;
    }
    /* Of `dim` dimensions; zeros behind them. */
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
    struct row_end end = end_row(a, variant, row, m, l, 1, lane == 0);
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

/* Results of `results` that a block of `kernel` has room for at once, at least; and asks for that
 * shared memory. 0: the device has failed. */
static int section_for(struct gpu_device *gpu, const void *kernel, int head_dim, int results,
                       size_t *bytes) {
    int section = (results + LANES - 1) / LANES * LANES;
    section = section < LANES ? LANES : section > LONGEST_SECTION ? LONGEST_SECTION : section;
    int dim = (head_dim + VECTOR - 1) / VECTOR * VECTOR;
    /* No more than fits beside the shares. */
    int room = (gpu->most_shared - (int)sizeof(struct section_shares)) / (int)sizeof(float) / dim;
    section = section < room ? section : room / LANES * LANES;
    *bytes = sizeof(float) * (size_t)(section * dim);
    return gpu_ok(gpu,
                  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       (int)*bytes),
                  "attention's shared memory")
               ? section
               : 0;
}

/* A thread for each dimension. */
static int threads_for(int head_dim) {
    return head_dim <= LONGEST_SECTION ? (int)LONGEST_SECTION : 256;
}

void gpu_attention_merge(struct gpu_device *gpu, const struct attention_arguments *a,
                         const struct decode_cache *cache, const struct attention_variant *variant,
                         const struct attention_plan *plan) {
    if (!plan->n_splits && !gpu->recording)
        return;
    size_t bytes;
    int section =
        section_for(gpu, (const void *)merge_splits, a->head_dim, plan->longest_split, &bytes);
    int dim = decode_dim(a->head_dim, decode_has_few(cache, variant));
    dim3 grid((unsigned)plan->n_shares, (unsigned)a->n_kv_heads, (unsigned)plan->most_rows);
    if (section)
        GPU_LAUNCH_EARLY(gpu, merge_splits, grid, threads_for(a->head_dim), bytes, *a, *variant,
                         plan->arrays, plan->partial, dim, section, cache->v_scale);
}

void gpu_attention_chains(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct attention_variant *variant, int n_tokens,
                          const struct wide_plan *wide, const struct group_results *own) {
    const struct wide_arrays *w = &wide->device;
    int dim = wide_dim(a->head_dim), n_rows = n_tokens * a->n_heads;
    struct chain_memory memory = {w->chains,  w->segments, w->row_lists,
                                  wide->kept, dim,         own ? *own : (struct group_results){}};
    unsigned blocks = (unsigned)blocks_of(n_rows, CHAIN_ROWS);
    if (dim <= LANES * VECTOR)
        GPU_LAUNCH_EARLY(gpu, merge_chains<1>, blocks, CHAIN_ROWS * LANES, 0, *a, *variant, memory,
                         n_rows);
    else
        GPU_LAUNCH_EARLY(gpu, merge_chains<2>, blocks, CHAIN_ROWS * LANES, 0, *a, *variant, memory,
                         n_rows);
}
