/*
 * attention_paged, version 4, its end: the row groups that several shares worked on. Each share
 * left what it found (attention_plan.h: struct decode_split); this merges it, tile after tile, in
 * the one order that the result depends on.
 *
 * The chain of a row is short, a few operations a tile. What takes time is fetching the results, so
 * a thread block has one row, and all of a section's results are on their way together. The kernel
 * may start while the shares are still at work, and waits for them.
 */
#include "gpu/attention_plan.h"

#include "gpu/attention.h"
#include "gpu/tensor_core.h"

enum {
    THREADS = 256,
    LANES = 32,
    LONGEST_SECTION = 128, /* tiles that are merged at a time */
    VECTOR = 4,            /* floats in 16 bytes */
};

/* What the tiles of a section count for. */
struct section_shares {
    float old[LONGEST_SECTION], fresh[LONGEST_SECTION], l[LONGEST_SECTION];
    float m; /* of all up to the last of them */
};

/* Works out the shares of n tiles; a warp. rows: what this row left of the first of them. Takes the
 * m of what is before, returns that of all. */
static __device__ float work_out_shares(struct section_shares *shares, float m, const float *rows,
                                        size_t next, int dim, int n) {
    int lane = (int)(threadIdx.x % LANES);
    float2 ml[LONGEST_SECTION / LANES];
    UNROLL
    for (int i = 0; i < LONGEST_SECTION / LANES; i++) {
        size_t tile = (size_t)(i * LANES + lane);
        ml[i] = i * LANES + lane < n ? *(const float2 *)(rows + tile * next + dim)
                                     : make_float2(NAN, 0);
    }
    UNROLL
    for (int i = 0; i < LONGEST_SECTION / LANES; i++) {
        float max = fmaxf(m, ml[i].x); /* a NaN, the row sees nothing of the tile, does not count */
        UNROLL
        for (int step = 1; step < LANES; step *= 2) { /* of all up to this one */
            float other = __shfl_up_sync(0xffffffffu, max, (unsigned)step);
            max = lane >= step ? fmaxf(max, other) : max;
        }
        float before = __shfl_up_sync(0xffffffffu, max, 1);
        before = lane ? before : m;
        m = __shfl_sync(0xffffffffu, max, LANES - 1);
        if (i * LANES + lane < n) {
            shares->old[i * LANES + lane] = num_exp(before - max);
            shares->fresh[i * LANES + lane] = num_exp(ml[i].x - max);
            shares->l[i * LANES + lane] = ml[i].y;
        }
    }
    return m;
}

/* blockIdx: a split, a kv head, a row of the group. dim: as version 4 has it. */
__global__ static void merge_splits(struct attention_arguments a, struct attention_variant variant,
                                    struct plan_arrays plan, const float *partial, int dim,
                                    int section) {
    SHARED_DYNAMIC(float, tiles); /* [section, dim] */
    SHARED(struct section_shares, shares);
    let_next_kernel_start();
    struct decode_split split = plan.splits[blockIdx.x]; /* the plan is older than the results */
    wait_for_previous_kernel(); /* all do, so that who waits for this kernel waits for that one */
    if (!split.n_tiles)
        return;
    int head = (int)blockIdx.y, row = (int)blockIdx.z, d = (int)threadIdx.x;
    struct row_group g = plan.groups[split.group];
    if (row >= g.n_rows)
        return;
    int group = a.n_heads / a.n_kv_heads, token = (g.first_row + row) / group;
    size_t floats = (size_t)partial_floats(dim), next = (size_t)a.n_kv_heads * GROUP_ROWS * floats;
    const float *begin =
        partial + (size_t)split.partial * next + (size_t)(head * GROUP_ROWS + row) * floats;
    float o = 0, m = begin[dim], l = begin[dim + 1];
    if (d < dim)
        o = begin[d];
    for (int tile = split.first_end; tile < split.n_tiles; tile += section) {
        int n = min(section, split.n_tiles - tile), vectors = dim / VECTOR;
        const float *rows = begin + (size_t)(1 + tile - split.first_end) * next;
        for (int i = d; i < n * vectors; i += THREADS)
            cp_async_16(tiles + i * VECTOR,
                        rows + (size_t)(i / vectors) * next + i % vectors * VECTOR);
        cp_async_commit();
        if (d < LANES) {
            m = work_out_shares(&shares, m, rows, next, dim, n);
            if (d == 0)
                shares.m = m;
        }
        cp_async_wait<0>();
        __syncthreads();
        m = shares.m;
        if (d < dim) {
            UNROLL_8
            for (int j = 0; j < n; j++) {
                float old = shares.old[j], fresh = shares.fresh[j];
                bool sees = fresh >= 0; /* not a NaN: the row sees something of the tile */
                float next_l = l * old + shares.l[j] * fresh;
                float next_o = o * old + tiles[j * dim + d] * fresh;
                l = sees ? next_l : l;
                o = sees ? next_o : o;
            }
        }
        __syncthreads(); /* the section's memory is used again */
    }
    int query_head = head * group + (g.first_row + row) % group;
    size_t place = (size_t)(g.first_token + token) * (size_t)a.n_heads + (size_t)query_head;
    if (variant.sinks) { /* a tile of values that are 0 */
        float sink = variant.sinks[query_head], max = fmaxf(m, sink);
        if (!attention_sink_is_finite(sink) && d == 0)
            gpu_fault(a.fault, a.site, g.first_token + token);
        float old = num_exp(m - max), fresh = num_exp(sink - max);
        l = l * old + fresh;
        o = o * old + 0.0f * fresh;
        m = max;
    }
    if (variant.lse && d == 0)
        variant.lse[place] = attention_lse(&variant, m, l);
    if (d < a.head_dim)
        a.y[place * (size_t)a.head_dim + (size_t)d] = l > 0 ? o / l : o;
}

void gpu_attention_merge(struct gpu_device *gpu, const struct attention_arguments *a,
                         const struct attention_variant *variant,
                         const struct attention_plan *plan) {
    if (!plan->n_splits && !gpu->recording)
        return;
    int section = (plan->longest_split + LANES - 1) / LANES * LANES;
    section = section < LANES ? LANES : section > LONGEST_SECTION ? LONGEST_SECTION : section;
    int dim = decode_dim(a->head_dim, !attention_is_causal_only(variant));
    /* No more than fits beside the shares. */
    int room = (gpu->most_shared - (int)sizeof(struct section_shares)) / (int)sizeof(float) / dim;
    section = section < room ? section : room / LANES * LANES;
    size_t bytes = sizeof(float) * (size_t)(section * dim);
    dim3 grid((unsigned)plan->n_shares, (unsigned)a->n_kv_heads, (unsigned)plan->most_rows);
    if (gpu_ok(gpu,
               cudaFuncSetAttribute((const void *)merge_splits,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
               "attention's shared memory"))
        GPU_LAUNCH_EARLY(gpu, merge_splits, grid, THREADS, bytes, *a, *variant, plan->arrays,
                         plan->partial, dim, section);
}
