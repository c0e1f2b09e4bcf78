/*
 * attention_paged, version 4, its end: rows whose tiles several thread blocks worked on. Each left
 * what it found; this merges it, tile after tile, in the one order that the result depends on.
 *
 *     splits   row groups that several shares worked on (attention_plan.h: struct decode_split)
 *     chains   rows whose tiles were work of the kernels for many rows (struct token_chain): of
 *              long sequences; and of tiles that are shared, where row groups go on
 *
 * The chain of a row is short, a few operations a tile. What takes time is fetching the results, so
 * a thread block has one row, and all of a section's results are on their way together. The kernel
 * may start while the shares are still at work: where their results will be, the plan says before.
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

/* What row lists left of a row. */
struct chain_results {
    const float *kept; /* of place 0 and this kv head */
    const struct chain_segment *segments;
    const struct row_list *row_lists;
    size_t next; /* from place to place */
    int dim;
    int n_segments, n;
    int head_in_group, heads_per_group; /* of the row's query head */

    /* The row in the tokens of a segment, and its row list. */
    __device__ __forceinline__ int row_in(int s) const {
        return segments[s].index * heads_per_group + head_in_group;
    }
    __device__ __forceinline__ const struct row_list *list_of(int s) const {
        return &row_lists[segments[s].row_list + row_in(s) / QUERY_ROWS];
    }

    __device__ __forceinline__ const float *at(int i) const {
        int s = 0;
        while (i >= list_of(s)->n_results)
            i -= list_of(s++)->n_results;
        return kept + (size_t)(list_of(s)->place + i) * next +
               (size_t)(row_in(s) % QUERY_ROWS * kept_floats(dim));
    }
};

/* What the results of a section count for, and where they are. */
struct section_shares {
    float4 of[LONGEST_SECTION];           /* x: of what is before, y: of the result; z: its l */
    const float *values[LONGEST_SECTION]; /* of each result */
    float warp_max[MOST_WARPS];
};

/* Works out the shares of a section, a result a thread, of which there are n; all threads. m: of
 * what is before. Returns that of all. A NaN, the row sees nothing of the tile, does not count: its
 * zeros are multiplied by -0, which leaves all as it is. */
static __device__ __forceinline__ float work_out_shares(struct section_shares *shares, float m,
                                                        float2 ml, int n) {
    int i = (int)threadIdx.x, lane = i % LANES, warp = i / LANES;
    float max = i < n ? ml.x : NAN;
    UNROLL
    for (int step = 1; step < LANES; step *= 2) { /* of all of the warp up to this one */
        float other = __shfl_up_sync(0xffffffffu, max, (unsigned)step);
        max = lane >= step ? fmaxf(max, other) : max;
    }
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
    before = lane ? before : m;
    float old_share = num_exp(before - max), new_share = num_exp(ml.x - max);
    bool sees = new_share >= 0; /* not a NaN */
    if (i < n)
        shares->of[i] =
            make_float4(sees ? old_share : 1, sees ? new_share : -0.0f, sees ? ml.y : 0, 0);
    return all;
}

/* A row of the op. */
struct merged_row {
    int token, head;
};

/* Merges all results of a row, of which there is one at least, and writes it; or leaves a result of
 * all of them in `state`. Waits for the kernel before this one, which makes them. tiles: shared
 * memory [section, dim], dim head_dim rounded up to whole vectors. */
template <class Results>
static __device__ __forceinline__ void
merge_row(const struct attention_arguments *a, const struct attention_variant *variant,
          const Results &results, struct merged_row row, float *tiles,
          struct section_shares *shares, int section, float v_scale, float *state) {
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
                float4 share = shares->of[j];
                l = num_merge(l, share.x, share.z, share.y);
                o = num_merge(o, share.x, tiles[j * dim + d], share.y);
            }
        }
    }
    if (state) {
        if (d < dim)
            state[d] = o;
        if (d == 0)
            *(float2 *)(state + results.dim) = make_float2(m, l);
        return;
    }
    size_t place = (size_t)row.token * (size_t)a->n_heads + (size_t)row.head;
    if (variant->sinks) { /* a tile of values that are 0 */
        float old, fresh;
        attention_merge_sink(variant->sinks[row.head], &m, &l, &old, &fresh);
        if (!attention_sink_is_finite(variant->sinks[row.head]) && d == 0)
            gpu_fault(a->fault, a->site, row.token);
        o = num_merge(o, old, 0, fresh);
    }
    if (d == 0)
        attention_note_sums(variant, place, m, l);
    if (d < a->head_dim)
        a->y[place * (size_t)a->head_dim + (size_t)d] =
            (l > 0 && !variant->m ? o / l : o) * v_scale;
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
              &shares, section, v_scale, NULL);
}

/* Where chains find what they merge; and where it goes, [n_tokens, n_heads, kept_floats], NULL: to
 * y. */
struct chain_memory {
    const struct token_chain *chains;
    const struct chain_segment *segments;
    const struct row_list *row_lists;
    const float *kept;
    float *states;
    int dim;
};

/* blockIdx: a token and a query head. */
__global__ static void merge_chains(struct attention_arguments a, struct attention_variant variant,
                                    struct chain_memory memory, int section) {
    SHARED_DYNAMIC(float, tiles);
    SHARED(struct section_shares, shares);
    let_next_kernel_start();
    int token = (int)blockIdx.x, head = (int)blockIdx.y, group = a.n_heads / a.n_kv_heads;
    struct token_chain chain = memory.chains[token];
    struct chain_results r;
    size_t rows = (size_t)(QUERY_ROWS * kept_floats(memory.dim));
    r.kept = memory.kept + (size_t)(head / group) * rows;
    r.next = (size_t)a.n_kv_heads * rows;
    r.segments = memory.segments + chain.first_segment;
    r.n_segments = chain.n_segments;
    r.row_lists = memory.row_lists;
    r.dim = memory.dim;
    r.head_in_group = head % group;
    r.heads_per_group = group;
    r.n = 0;
    for (int s = 0; s < chain.n_segments; s++)
        r.n += r.list_of(s)->n_results;
    if (!r.n) {
        wait_for_previous_kernel();
        return;
    }
    size_t row = (size_t)token * (size_t)a.n_heads + (size_t)head;
    float *state = memory.states ? memory.states + row * (size_t)kept_floats(memory.dim) : NULL;
    merge_row(&a, &variant, r, {token, head}, tiles, &shares, section, 1, state);
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
                          const struct wide_plan *wide, bool finishes) {
    size_t bytes;
    int section = section_for(gpu, (const void *)merge_chains, a->head_dim, LANES, &bytes);
    const struct wide_arrays *w = &wide->device;
    struct chain_memory memory = {w->chains,
                                  w->segments,
                                  w->row_lists,
                                  wide->kept,
                                  finishes ? NULL : wide->states,
                                  wide_dim(a->head_dim)};
    dim3 grid((unsigned)n_tokens, (unsigned)a->n_heads);
    if (section)
        GPU_LAUNCH_EARLY(gpu, merge_chains, grid, threads_for(a->head_dim), bytes, *a, *variant,
                         memory, section);
}
