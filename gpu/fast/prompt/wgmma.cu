/*
 * attention, version 3: computes what ../../attention.cu does, for prompts, on the int8 tensor
 * cores of compute capability 9.0, which multiply 64 rows at a time with what lies in shared
 * memory; gains a factor of two over version 2 (4096 tokens, 32 heads of 128, H200).
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
    typedef struct sizes<DIM> size;
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

/* Where a row's query begins. */
static __device__ __forceinline__ const float *query_at(const struct attention_arguments *a,
                                                        const struct prompt_row *row) {
    return a->q +
           ((size_t)row->token * (size_t)a->n_heads + (size_t)row->head) * (size_t)a->head_dim;
}

template <int DIM>
static __device__ __forceinline__ void load_queries(struct query_elements<DIM> *out,
                                                    const struct prompt_row query[2],
                                                    const struct attention_arguments *a) {
    int t = (int)threadIdx.x % 4, dim = a->head_dim;
    bool vectors = dim % 4 == 0 && (uintptr_t)a->q % 16 == 0, whole = vectors && dim == DIM;
    UNROLL
    for (int r = 0; r < 2; r++) {
        const float *q = query_at(a, &query[r]) + 4 * t;
        UNROLL
        for (int i = 0; i < DIM / 16 && whole; i++)
            out->x[r][i] = *(const float4 *)(q + 16 * i);
        UNROLL
        for (int i = 0; i < DIM / 16 && !whole; i++, q += 16) {
            int n = dim - 16 * i - 4 * t; /* that are left */
            out->x[r][i] = vectors && n > 0 ? *(const float4 *)q
                                            : make_float4(n > 0 ? q[0] : 0, n > 1 ? q[1] : 0,
                                                          n > 2 ? q[2] : 0, n > 3 ? q[3] : 0);
        }
    }
}

/* Snaps and splits them. Their units go to q_unit[0] and [8]. A row that cannot be snapped is a
 * fault, and zeros. */
template <int DIM>
static __device__ __forceinline__ void
snap_queries(struct row_digits<DIM / 32> *out, struct num_score_unit *q_unit,
             const struct query_elements<DIM> *in, const struct prompt_row query[2],
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

/* Asks for the queries of a later item, so that its block need not wait for memory. */
template <bool VARIANT>
static __device__ __forceinline__ void
prefetch_queries(const struct item_task *t, const struct attention_digits *in, int later) {
    struct row_list list = item_of(t->a, t->work, in, later).list;
    int row = (int)threadIdx.x / 2;
    if (row >= list.n_rows)
        return;
    struct prompt_row query =
        prompt_row_of<VARIANT>(t->a, t->variant, t->work, &list, t->kv_head, row);
    for (int d = (int)threadIdx.x % 2 * 32; d < t->a->head_dim; d += 64) /* a line is 32 floats */
        prefetch_l2(query_at(t->a, &query) + d);
}

/* The digits of an item's tiles: they begin at tile number `tile`, counted over all kv heads. */
template <int DIM>
static __device__ __forceinline__ struct tile_chunks<DIM>
chunks_of(const struct attention_digits *in, const struct prompt_item *item,
          const struct block_memory *mem, size_t tile, int n_last, unsigned rounds) {
    struct tile_chunks<DIM> chunks = {};
    chunks.arrived = mem->arrived;
    chunks.ring = mem->ring;
    chunks.tile = in->tiles + tile * (size_t)tile_bytes(DIM);
    chunks.left = item->n_tiles - 1;
    chunks.n_last = n_last;
    chunks.rounds = rounds;
    return chunks;
}

/* The scores of a tile, of whose positions somebody sees the first n, and the largest of each row,
 * of this thread's. prepare(): what is to be done before they are used. */
template <int DIM, bool VARIANT, class work>
static __device__ __forceinline__ void
score_tile(struct tile_scores *scores, float top[2], const struct row_digits<DIM / 32> *queries,
           struct tile_chunks<DIM> *chunks, const struct block_memory *mem,
           const struct num_score_unit *q_unit, const struct item_task *t,
           const struct row_pair *rows, int least_end, int first, int n, work prepare) {
    int32_t top_bits[2] = {INT32_MIN, INT32_MIN};
    auto score = [&](int part, const int32_t(&sums)[32]) {
        score_keys(scores->s + part * COLUMNS / 8, top_bits, sums, mem->k_unit + part * COLUMNS);
    };
    multiply<false, TILE / COLUMNS, KEYS / COLUMNS, 0, KEYS, DIM / 32>(
        queries, chunks, false, n <= KEYS, prepare, score, [&]() {
            chunks->take(1); /* nothing */
            chunks->replace(1);
            leave_out<(TILE - KEYS) / 8>(scores->s + KEYS / 8);
        });
    if (VARIANT) {
        const double natural[2] = {q_unit[0].natural, q_unit[8].natural};
        vary(scores, first, rows, natural, t->variant);
        find_largest(top, scores);
    } else {
        if (first + TILE > least_end)
            mask(scores, top_bits, first, least_end, n, rows);
        largest_of_bits(top, scores, top_bits, n);
    }
}

/* The tiles of an item, for the rows of a block. later: the item whose turn comes when this one is
 * done; -1: none. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
run_item(const struct item_task *t, const struct attention_digits *in,
         const struct block_memory *mem, unsigned *rounds, int later) {
    /* There are not enough registers to keep larger queries while values are multiplied. */
    const bool AGAIN = DIM > 128;
    const struct prompt_item *item = t->item;
    int n_tiles = item->n_tiles;
    struct row_pair rows;
    begin_rows<VARIANT, tile_scores::ROW_STEP>(&rows, t);
    int least_end = min(rows.query[0].end, rows.query[1].end);
    struct value_sums<DIM> values = {
        mem->o
    };
    values.clear();

    int n_last = min((int)TILE, item->end - (item->first_tile + n_tiles - 1) * TILE);
    size_t first_of_digits = (size_t)t->kv_head * (size_t)in->n_tiles + (size_t)item->tile;
    struct tile_chunks<DIM> chunks =
        chunks_of<DIM>(in, item, mem, first_of_digits, n_last, *rounds);
    /* The kernel before this one began after whatever made the queries had ended; it writes the
     * digits, and may still be at work. */
    struct query_elements<DIM> elements;
    if (!AGAIN)
        load_queries<DIM>(&elements, rows.query, t->a);
    wait_for_previous_kernel();
    for (int i = 0; i < STAGES && n_tiles; i++)
        chunks.start(i);
    if (later >= 0)
        prefetch_queries<VARIANT>(t, in, later);
    /* The exponents of two positions a thread, fetched one tile ahead. */
    const char4 *tile_exponents =
        (const char4 *)(in->exponents + 2 * first_of_digits * TILE) + threadIdx.x;
    char4 exponents = n_tiles ? tile_exponents[0] : make_char4(0, 0, 0, 0);
    struct row_digits<DIM / 32> queries;
    struct num_score_unit *q_unit = mem->q_unit + t->first_row; /* [8]: of the second row */
    if (!AGAIN)
        snap_queries<DIM>(&queries, q_unit, &elements, rows.query, t->a);

    for (int k = 0; k < n_tiles; k++) {
        int first = (item->first_tile + k) * TILE, n = chunks.left ? (int)TILE : n_last;
        if (AGAIN) {
            load_queries<DIM>(&elements, rows.query, t->a);
            snap_queries<DIM>(&queries, q_unit, &elements, rows.query, t->a);
        }
        struct tile_scores scores;
        float top[2], scale[2];
        auto prepare = [&]() {
            /* Nobody reads the units of the last tile any more: its values came after a barrier. */
            int at = 2 * (int)threadIdx.x;
            set_units<VARIANT>(&mem->k_unit[at], &mem->v_unit[at], exponents.x, exponents.y);
            set_units<VARIANT>(&mem->k_unit[at + 1], &mem->v_unit[at + 1], exponents.z,
                               exponents.w);
            if (k + 1 < n_tiles)
                exponents = tile_exponents[(k + 1) * (TILE / 2)];
            __syncthreads();
        };
        score_tile<DIM, VARIANT>(&scores, top, &queries, &chunks, mem, q_unit, t, &rows, least_end,
                                 first, n, prepare);
        softmax<VARIANT>(&scores, top, scale, &rows, first, n, mem->v_unit, t,
                         [&](int r) { return q_unit[8 * r]; });
        struct row_digits<TILE / 32> weights;
        snap_weights(&weights, &scores, scale);
        auto add = [&](int part, const int32_t(&sums)[32]) {
            add_values(mem->o + part * COLUMNS / 8 * THREADS, sums, &rows);
        };
        const int PARTS = DIM / COLUMNS;
        multiply<true, PARTS, PARTS, TILE / KEYS, VALUE_DIMS, TILE / 32>(
            &weights, &chunks, n <= TILE / 2, false, [&]() { merge_sums(&rows, item->merges); },
            add, []() {});
        if (!item->merges)
            keep_tile<DIM, tile_scores>(t, &rows, &values, k);
        chunks.next_tile();
    }
    *rounds = chunks.rounds;
    end_rows<DIM, VARIANT, tile_scores>(t, &rows, &values);
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
    int row = (int)(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4);
    for (int i = (int)blockIdx.y; i < n; i += (int)gridDim.y) {
        __syncthreads(); /* the barriers are ready; all are done with the units of the item before
                          */
        struct prompt_item item = item_of(&a, &work, &in, i);
        struct item_task task = {&a, &variant, &work, &item, (int)blockIdx.x, row};
        int later = i + work.n_at_once;
        run_item<DIM, VARIANT>(&task, &in, &mem, &rounds, later < n ? later : -1);
    }
    if (!n)
        wait_for_previous_kernel();
}

template <int DIM, bool VARIANT> struct kernel_of {
    static struct prompt_kernel get(void) {
        return {attention_3<DIM, VARIANT>,
                THREADS,
                sizes<DIM>::SHARED_BYTES,
                DIM,
                KEYS,
                VALUE_DIMS,
                true,
                true};
    }
};

#ifdef FOR_VARIANTS
void gpu_attention_prompt_wgmma_variants(struct gpu_device *gpu,
                                         const struct attention_arguments *a,
                                         const struct kv_views *kv,
                                         const struct attention_variant *variant,
                                         const struct attention_work *work) {
    struct prompt_kernel kernel = kernel_for<kernel_of, true>(a->head_dim);
    gpu_attention_prompt_launch(gpu, &kernel, a, kv, variant, work);
}
#else
void gpu_attention_prompt_wgmma(struct gpu_device *gpu, const struct attention_arguments *a,
                                const struct kv_views *kv, const struct attention_variant *variant,
                                const struct attention_work *work) {
    int dim = a->head_dim;
    struct prompt_kernel kernel;
    if (!gpu_attention_is_plain(kv, variant))
        return gpu_attention_prompt_wgmma_variants(gpu, a, kv, variant, work);
    if (!(work && work->kept) && dim > 128 && dim <= 192) /* kept rows are of prompt_dim */
        kernel = kernel_of<192, false>::get();
    else
        kernel = kernel_for<kernel_of, false>(dim);
    gpu_attention_prompt_launch(gpu, &kernel, a, kv, variant, work);
}
#endif
