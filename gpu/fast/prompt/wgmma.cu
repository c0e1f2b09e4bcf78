/*
 * attention, version 3: many query tokens at once, on the int8 tensor cores of compute capability
 * 9.0, which multiply 64 rows at a time with what lies in shared memory.
 *
 * What changed from version 2 (gpu/fast/prompt/mma.cu, read it first): there each of eight warps
 * loaded all keys and values into its registers, piece by piece, and the loads were the limit. Here
 * four warps share one load, and the processor's tensor cores run while its threads do something
 * else. Rows are the rows of the product, as in the textbook: 64 rows in 128 threads.
 *
 *     block   64 rows, one group of 4 warps; walks the tiles of 256 positions in ascending order.
 *             Two blocks share a processor: one multiplies while the other takes exponentials
 *     queries are snapped and split by the threads that multiply them, and stay in registers
 *     memory  keys and values arrive in chunks, 128 keys or 64 dimensions of a tile's values: one
 *             is used while the next arrives
 *     scores  64 keys at a time; the 64 x 256 of a tile stay in registers, 128 per thread
 *     values  64 dimensions at a time; the weights come from registers
 *     output  its sums are in shared memory, where each thread keeps its own
 *
 * The idea of two groups that take turns: Shah et al., "FlashAttention-3", 2024.
 */
#include "gpu/fast/prompt/wgmma.h"

/* The memory of a block. */
struct block_memory {
    unsigned char *ring;
    float4 *o; /* of this thread: [DIM / 8] every THREADS */
    float *k_unit, *v_unit;
    struct num_score_unit *q_unit;
    struct bulk_barrier *arrived;
};

template <int DIM> static __device__ struct block_memory cut_memory(unsigned char *memory) {
    typedef struct warpgroup_sizes<DIM> size;
    struct block_memory m;
    m.ring = memory;
    float4 *o = (float4 *)(memory + STAGES * size::STAGE_BYTES);
    m.o = o + threadIdx.x;
    m.k_unit = (float *)(o + DIM / 8 * THREADS);           /* [TILE] */
    m.v_unit = m.k_unit + TILE;                            /* [TILE] */
    m.q_unit = (struct num_score_unit *)(m.v_unit + TILE); /* [ROWS] */
    m.arrived = (struct bulk_barrier *)(m.q_unit + ROWS);
    return m;
}

/* A thread's part of two rows of queries: of 32 elements, 4 t ... 4 t + 3 and 16 + 4 t ... */
template <int DIM> struct query_elements { float4 x[2][DIM / 16]; };

template <int DIM>
static __device__ __forceinline__ void load_queries(struct query_elements<DIM> *out,
                                                    const struct wide_row query[2],
                                                    const struct attention_arguments *a) {
    int t = (int)threadIdx.x % 4, dim = a->head_dim;
    bool vectors = dim % 4 == 0 && (uintptr_t)a->q % 16 == 0;
    UNROLL
    for (int r = 0; r < 2; r++) {
        const float *q =
            a->q +
            ((size_t)query[r].token * (size_t)a->n_heads + (size_t)query[r].head) * (size_t)dim;
        UNROLL
        for (int i = 0; i < DIM / 16; i++) {
            int d = 16 * i + 4 * t;
            float4 four = make_float4(0, 0, 0, 0);
            if (vectors) {
                if (d < dim)
                    four = *(const float4 *)(q + d);
            } else {
                four.x = d < dim ? q[d] : 0;
                four.y = d + 1 < dim ? q[d + 1] : 0;
                four.z = d + 2 < dim ? q[d + 2] : 0;
                four.w = d + 3 < dim ? q[d + 3] : 0;
            }
            out->x[r][i] = four;
        }
    }
}

/* Snaps and splits them. Their units go to q_unit[0] and [8]. A row that cannot be snapped is a
 * fault, and zeros. */
template <int DIM>
static __device__ __forceinline__ void
snap_queries(struct row_digits<DIM / 32> *out, struct num_score_unit *q_unit,
             const struct query_elements<DIM> *in, const struct wide_row query[2],
             const struct attention_arguments *a) {
    int t = (int)threadIdx.x % 4;
    UNROLL
    for (int r = 0; r < 2; r++) {
        uint32_t largest = 0;
        UNROLL
        for (int i = 0; i < DIM / 16; i++) {
            float4 four = in->x[r][i];
            largest = max(max(largest, num_magnitude(four.x)), num_magnitude(four.y));
            largest = max(max(largest, num_magnitude(four.z)), num_magnitude(four.w));
        }
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        int e = num_row_exponent(largest);
        bool bad = e > BFP_MAX_EXPONENT;
        if (bad && t == 0)
            gpu_fault(a->fault, a->site, query[r].token);
        e = bad ? BFP_MIN_EXPONENT : e;
        if (t == 0)
            q_unit[8 * r] = num_score_unit_of(e, a->scale);
        float scale = num_pow2f(15 - e);
        UNROLL
        for (int i = 0; i < DIM / 16; i++) {
            uint32_t high, low;
            float4 four = in->x[r][i];
            split_four(&high, &low, four.x, four.y, four.z, four.w, scale);
            out->high[i / 2][i % 2 * 2 + r] = high;
            out->low[i / 2][i % 2 * 2 + r] = low;
        }
        if (!__any_sync(0xffffffffu, bad))
            continue;
        UNROLL
        for (int i = 0; i < DIM / 16; i++) {
            uint32_t *high = &out->high[i / 2][i % 2 * 2 + r],
                     *low = &out->low[i / 2][i % 2 * 2 + r];
            *high = bad ? 0 : *high;
            *low = bad ? 0 : *low;
        }
    }
}

template <int DIM> static __device__ __forceinline__ void clear_values(float4 *o) {
    for (int i = 0; i < DIM / 8; i++)
        o[i * THREADS] = make_float4(0, 0, 0, 0);
}

/* What a thread's row leaves: its values of all dimensions, m and l. */
template <int DIM>
static __device__ __forceinline__ void keep_row(struct row_result to, const float4 *o, int r,
                                                float m, float l) {
    int t = (int)threadIdx.x % 4;
    for (int i = 0; i < DIM / 8; i++) {
        const float *sum = (const float *)&o[i * THREADS] + 2 * r;
        *(float2 *)(to.values + 8 * i + 2 * t) = make_float2(sum[0], sum[1]);
    }
    if (t == 0)
        *(float2 *)to.sums = make_float2(m, l);
}

/* The end of a row: y. Divisions take many instructions, and branches, for numbers that rows seldom
 * have: all are done by num_divide_near, and where that is not enough once more. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
finish_row(const struct attention_arguments *a, const struct attention_variant *v,
           const struct wide_row *row, const float4 *o, int r, float m, float l) {
    int t = (int)threadIdx.x % 4;
    size_t number = (size_t)row->token * (size_t)a->n_heads + (size_t)row->head;
    float *y = a->y + number * (size_t)a->head_dim, old = 1, fresh = 0;
    if (VARIANT) {
        if (v->sinks) /* a tile of values that are 0 */
            attention_merge_sink(v->sinks[row->head], &m, &l, &old, &fresh);
        if (v->sinks && !attention_sink_is_finite(v->sinks[row->head]))
            gpu_fault(a->fault, a->site, row->token);
        if (t == 0)
            attention_note_sums(v, number, m, l);
    }
    auto values_of = [&](int i) {
        float2 x = *(const float2 *)((const float *)&o[i * THREADS] + 2 * r);
        return VARIANT && v->sinks
                   ? make_float2(num_merge(x.x, old, 0, fresh), num_merge(x.y, old, 0, fresh))
                   : x;
    };
    bool divides = l > 0 && !(VARIANT && v->m);
    bool near = divides && a->head_dim % 2 == 0 && (uintptr_t)a->y % 8 == 0;
    if (near) {
        float least = l, most = l, reciprocal = 1 / l;
        UNROLL_4
        for (int i = 0; i < DIM / 8; i++) {
            bool exists = 8 * i + 2 * t < a->head_dim;
            float2 x = values_of(i);
            float2 quotients = make_float2(num_divide_near(x.x, l, reciprocal),
                                           num_divide_near(x.y, l, reciprocal));
            x = exists ? x : make_float2(l, l);
            least = fminf(fminf(least, fabsf(x.x)), fabsf(x.y));
            most = fmaxf(fmaxf(most, fabsf(x.x)), fabsf(x.y));
            if (exists)
                *(float2 *)(y + 8 * i + 2 * t) =
                    make_float2(quotients.x * a->v_scale, quotients.y * a->v_scale);
        }
        near = num_is_near(least, most);
    }
    for (int d = 2 * t; d < a->head_dim && !near; d += d % 2 ? 7 : 1) {
        float2 x = values_of(d / 8);
        float one = d % 2 ? x.y : x.x;
        y[d] = (divides ? one / l : one) * a->v_scale;
    }
}

/* The tiles of an item, for the rows of a block. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
run_item(const struct attention_arguments *a, const struct attention_digits *in,
         const struct attention_variant *variant, const struct attention_work *work,
         const struct wide_item *item, const struct block_memory *mem, unsigned *rounds) {
    typedef struct warpgroup_sizes<DIM> size;
    /* There are not enough registers to keep larger queries while values are multiplied. */
    const bool AGAIN = DIM > 128;
    int kv_head = (int)blockIdx.x, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int my_row = warp * 16 + lane / 4, n_tiles = item->n_tiles;
    int least_visible = INT32_MAX; /* of the rows of this thread's warp */
    struct row_pair rows;
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = min(my_row + 8 * r, item->list.n_rows - 1);
        rows.query[r] = wide_row_of<VARIANT>(a, variant, work, &item->list, kv_head, row);
        least_visible = min(least_visible, rows.query[r].end);
        rows.m[r] = -INFINITY;
        rows.l[r] = 0;
    }
    clear_values<DIM>(mem->o);

    int n_last = min((int)TILE, item->end - (item->first_tile + n_tiles - 1) * TILE);
    struct tile_chunks<DIM> chunks = {};
    chunks.arrived = mem->arrived;
    chunks.ring = mem->ring;
    chunks.tile = in->tiles + ((size_t)kv_head * (size_t)in->n_tiles + (size_t)item->tile) *
                                  (size_t)tile_bytes(DIM);
    chunks.left = n_tiles - 1;
    chunks.n_last = (n_last + KEYS - 1) / KEYS;
    chunks.rounds = *rounds;
    /* The kernel before this one began after whatever made the queries had ended; it writes the
     * digits, and may still be at work. */
    struct query_elements<DIM> elements;
    if (!AGAIN)
        load_queries<DIM>(&elements, rows.query, a);
    wait_for_previous_kernel();
    for (int i = 0; i < STAGES && n_tiles; i++)
        chunks.start(i);
    /* The exponents of two positions a thread, fetched one tile ahead. */
    const char4 *tile_exponents =
        (const char4 *)(in->exponents +
                        2 * ((size_t)kv_head * (size_t)in->n_tiles + (size_t)item->tile) * TILE) +
        threadIdx.x;
    char4 exponents = n_tiles ? tile_exponents[0] : make_char4(0, 0, 0, 0);
    struct row_digits<DIM / 32> queries;
    rows.q_unit = mem->q_unit + my_row;
    if (!AGAIN)
        snap_queries<DIM>(&queries, mem->q_unit + my_row, &elements, rows.query, a);

    for (int k = 0; k < n_tiles; k++) {
        int first = (item->first_tile + k) * TILE, n = chunks.left ? (int)TILE : n_last;
        if (AGAIN) {
            load_queries<DIM>(&elements, rows.query, a);
            snap_queries<DIM>(&queries, mem->q_unit + my_row, &elements, rows.query, a);
        }
        struct tile_scores scores;
        float top[2], scale[2];
        int32_t top_bits[2] = {INT32_MIN, INT32_MIN};
        auto prepare = [&]() {
            /* Nobody reads the units of the last tile any more: its values came after a barrier. */
            set_units<VARIANT>(mem->k_unit, mem->v_unit, exponents);
            if (k + 1 < n_tiles)
                exponents = tile_exponents[(k + 1) * (TILE / 2)];
            __syncthreads();
        };
        auto score = [&](int part, const int32_t(&sums)[32]) {
            score_keys(scores.s + part * COLUMNS / 8, top_bits, sums, mem->k_unit + part * COLUMNS);
        };
        multiply<false, TILE / COLUMNS, KEYS / COLUMNS, 0, KEYS, DIM / 32>(
            &queries, &chunks, false, n <= KEYS, prepare, score, [&]() {
                chunks.take(1); /* nothing */
                chunks.replace(1);
                leave_out(scores.s + KEYS / 8);
            });
        if (VARIANT)
            vary(&scores, first, &rows, variant);
        else if (first + TILE > least_visible)
            mask(&scores, top_bits, first, &rows);
        if (VARIANT)
            find_largest(top, &scores);
        else
            largest_of_bits(top, &scores, top_bits);
        softmax<VARIANT>(&scores, top, scale, &rows, first, n, mem->v_unit, a, variant);
        struct row_digits<TILE / 32> weights;
        snap_weights(&weights, &scores, scale);
        auto merge_sums = [&]() {
            UNROLL
            for (int r = 0; r < 2; r++) {
                rows.old_share[r] = rows.new_share[r] = 1; /* what is not merged is added to 0 */
                if (item->merges && rows.sees[r])
                    attention_merge_sums(&rows.m[r], &rows.l[r], rows.tile_m[r], rows.tile_l[r],
                                         &rows.old_share[r], &rows.new_share[r]);
                if (!rows.sees[r]) /* its sums are 0: old values stay as they are, -0 too */
                    rows.new_share[r] = -0.0f;
            }
        };
        auto add = [&](int part, const int32_t(&sums)[32]) {
            add_values(mem->o + part * COLUMNS / 8 * THREADS, sums, &rows);
        };
        const int PARTS = DIM / COLUMNS;
        multiply<true, PARTS, PARTS, size::KEY_CHUNKS, VALUE_DIMS, TILE / 32>(
            &weights, &chunks, n <= TILE / 2, false, merge_sums, add, []() {});
        if (!item->merges) {
            for (int r = 0; r < 2; r++)
                if (my_row + 8 * r < item->list.n_rows)
                    keep_row<DIM>(kept_at<DIM>(a, work, item->place + k, kv_head, my_row + 8 * r),
                                  mem->o, r, rows.sees[r] ? rows.tile_m[r] : NAN, rows.tile_l[r]);
            clear_values<DIM>(mem->o);
        }
        chunks.next_tile();
    }
    *rounds = chunks.rounds;
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = my_row + 8 * r;
        if (row >= item->list.n_rows)
            continue;
        if (item->place < 0)
            finish_row<DIM, VARIANT>(a, variant, &rows.query[r], mem->o, r, rows.m[r], rows.l[r]);
        else if (item->merges)
            keep_row<DIM>(kept_at<DIM>(a, work, item->place, kv_head, row), mem->o, r, rows.m[r],
                          rows.l[r]);
    }
}

template <int DIM, bool VARIANT>
__global__ static void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2)
    attention_3(struct attention_arguments a, struct attention_digits in,
                struct attention_variant variant, struct attention_work work) {
    SHARED_DYNAMIC(unsigned char, memory);
    if (!compiles_wgmma)
        return;
    let_next_kernel_start();
    struct block_memory mem = cut_memory<DIM>(memory);
    unsigned rounds = 0; /* tile_chunks */
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++)
            bulk_barrier_start(&mem.arrived[i]);
    int n = work.items ? work.counts[COUNT_ITEMS] : in.n_groups;
    for (int i = (int)blockIdx.y; i < n; i += (int)gridDim.y) {
        __syncthreads(); /* the barriers are ready; all are done with the units of the item before
                          */
        struct wide_item item = item_of(&a, &work, &in, i);
        run_item<DIM, VARIANT>(&a, &in, &variant, &work, &item, &mem, &rounds);
    }
    if (!n)
        wait_for_previous_kernel();
}

template <int DIM, bool VARIANT>
static void launch(struct gpu_device *gpu, const struct attention_arguments *a,
                   const struct kv_views *kv, const struct attention_variant *variant,
                   const struct attention_work *work) {
    typedef struct warpgroup_sizes<DIM> size;
    struct attention_digits d = {};
    struct attention_work all = {};
    d.dim = DIM;
    d.keys = KEYS;
    d.value_dims = VALUE_DIMS;
    d.without_queries = true;
    if (work)
        all = *work;
    if (!gpu_attention_digits(gpu, a, kv, work, &d) ||
        !gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)attention_3<DIM, VARIANT>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    dim3 grid = gpu_attention_grid(gpu, a, work, &d);
    /* Where blocks come and go for long, an early start of the first ones is no gain. */
    if (grid.x * grid.y <= (unsigned)(2 * gpu->n_processors))
        GPU_LAUNCH_EARLY(gpu, (attention_3<DIM, VARIANT>), grid, THREADS, size::SHARED_BYTES, *a, d,
                         *variant, all);
    else
        GPU_LAUNCH(gpu, (attention_3<DIM, VARIANT>), grid, THREADS, size::SHARED_BYTES, *a, d,
                   *variant, all);
}

template <bool VARIANT>
static void launch_wide(struct gpu_device *gpu, const struct attention_arguments *a,
                        const struct kv_views *kv, const struct attention_variant *variant,
                        const struct attention_work *work) {
    switch (wide_dim(a->head_dim)) {
    case 64:
        return launch<64, VARIANT>(gpu, a, kv, variant, work);
    case 128:
        return launch<128, VARIANT>(gpu, a, kv, variant, work);
    default:
        return launch<256, VARIANT>(gpu, a, kv, variant, work);
    }
}

void gpu_attention_warpgroup(struct gpu_device *gpu, const struct attention_arguments *a,
                             const struct kv_views *kv, const struct attention_variant *variant,
                             const struct attention_work *work) {
    bool keeps = work && work->kept; /* rows of wide_dim */
    if (!gpu_attention_is_plain(kv, variant))
        launch_wide<true>(gpu, a, kv, variant, work);
    else if (!keeps && a->head_dim > 128 && a->head_dim <= 192)
        launch<192, false>(gpu, a, kv, variant, work);
    else
        launch_wide<false>(gpu, a, kv, variant, work);
}
