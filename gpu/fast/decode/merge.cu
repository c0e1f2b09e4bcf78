/*
 * The end of decode: row groups that several shares worked on (gpu/fast/plan/plan.h: struct
 * decode_split). Each left what it found; this merges it, tile after tile, in the one order
 * that the result depends on.
 *
 * The chain of a row is short, a few operations a tile. What takes time is fetching the results, so
 * a thread block has one row, and all of a section's results are on their way together. The kernel
 * may start while the shares are still at work: where their results will be, the plan says before.
 */
#include "gpu/fast/decode/merge.h"
#include "gpu/ptx/tensor_core.h"

enum {
    LONGEST_SECTION = 128, /* results that are merged at a time; as many threads at least */
    MOST_WARPS = 8,
};

/* What shares left of a row: the first one's merged tiles, then a result a tile. */
struct split_results {
    struct row_result begin;
    size_t next;
    int n;

    __device__ __forceinline__ struct row_result at(int i) const {
        return {begin.values + (size_t)i * next, begin.sums + (size_t)i * next};
    }
};

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
static __device__ __forceinline__ void merge_row(const struct attention_arguments *a,
                                                 const struct attention_variant *variant,
                                                 const struct split_results &results,
                                                 struct merged_row row, float *tiles,
                                                 struct section_shares *shares, int section) {
    int d = (int)threadIdx.x, dim = (a->head_dim + VECTOR - 1) / VECTOR * VECTOR;
    float o = 0, m = -INFINITY, l = 0;
    for (int first = 1; first == 1 || first < results.n; first += section) {
        int n = min(section, results.n - first);
        struct row_result mine = results.at(first + min(d, n - 1));
        if (first > 1)
            __syncthreads(); /* the section's memory is used again */
        if (d < n)
            shares->values[d] = mine.values;
        __syncthreads();
        if (first == 1) { /* the plan is older than the results */
            wait_for_previous_kernel();
            o = d < dim ? results.begin.values[d] : 0;
            m = results.begin.sums[0];
            l = results.begin.sums[1];
        }
        float2 ml = *(const float2 *)mine.sums;
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
    struct row_end end = end_row(a, variant, row, m, l, d == 0);
    if (d < a->head_dim)
        end.write(d, o);
}

/* blockIdx: a split, a kv head, a row of the group. dim: as the decode kernel has it. */
__global__ static void merge_splits(struct attention_arguments a, struct attention_variant variant,
                                    struct plan_arrays plan, float *partial, int dim, int section) {
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
    results.n = 1 + split.n_tiles - split.first_end;
    results.next = (size_t)a.n_kv_heads * kept_floats(GROUP_ROWS, dim);
    results.begin = row_result_of(partial + (size_t)split.partial * results.next +
                                      (size_t)head * kept_floats(GROUP_ROWS, dim),
                                  GROUP_ROWS, dim, row);
    merge_row(&a, &variant, results, {token, head * group + (g.first_row + row) % group}, tiles,
              &shares, section);
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
    if (!plan->n_splits)
        return;
    size_t bytes;
    int section =
        section_for(gpu, (const void *)merge_splits, a->head_dim, plan->longest_split, &bytes);
    int dim = decode_dim(a->head_dim, decode_has_few(cache, variant));
    dim3 grid((unsigned)plan->n_shares, (unsigned)a->n_kv_heads, (unsigned)plan->most_rows);
    if (section)
        GPU_LAUNCH_EARLY(gpu, merge_splits, grid, threads_for(a->head_dim), bytes, *a, *variant,
                         plan->arrays, plan->partial, dim, section);
}
