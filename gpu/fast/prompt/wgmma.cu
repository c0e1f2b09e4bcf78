/*
 * attention, version 3: computes what ../../attention.cu does, for prompts, on the int8 tensor
 * cores of compute capability 9.0, which multiply 64 rows at a time with what lies in shared
 * memory; gains a factor of two over version 2 (4096 tokens, 32 heads of 128, H200).
 *
 * What changed from version 2 (gpu/fast/prompt/mma.cu, read it first): there each of eight warps
 * loaded all keys and values into its registers, piece by piece, and the loads were the limit. Here
 * all share one load, and the processor's tensor cores run while its threads do something else.
 * Rows are the rows of the product, as in the textbook, but each takes two: one for either digit
 * (products.h).
 *
 *     block   64 rows, two groups of four warps; walks the tiles of 256 positions in ascending
 *             order. Two blocks share a processor (one, if the head dimension is above 128): some
 *             warps multiply while others take exponentials
 *     queries are snapped and split by the threads that multiply them, and stay in registers
 *     memory  keys and values arrive in chunks, 128 keys or 64 dimensions of a tile's values: one
 *             is used while the next arrives
 *     scores  32 keys at a time; the 64 x 256 of a tile stay in registers, 64 per thread
 *     values  64 dimensions at a time; the weights come from registers
 *     output  its sums are in shared memory, where each thread keeps its own
 *
 * The idea of groups that take turns: Shah et al., "FlashAttention-3", 2024.
 */
#include "gpu/fast/prompt/queries.h"

/* The memory of a block. */
struct block_memory {
    unsigned char *ring;
    float4 *o; /* of this thread: [DIM / 16] every THREADS */
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
    m.k_unit = (float *)(o + DIM / 16 * THREADS);          /* [TILE] */
    m.v_unit = m.k_unit + TILE;                            /* [TILE] */
    m.q_unit = (struct num_score_unit *)(m.v_unit + TILE); /* [ROWS] */
    m.arrived = (struct bulk_barrier *)(m.q_unit + ROWS);
    return m;
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

/* The scores of a tile, of whose positions somebody sees the first n. Returns the largest of this
 * thread's. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ float
score_tile(tile_scores *scores, const struct row_digits<DIM / 32> *query,
           struct tile_chunks<DIM> *chunks, const struct block_memory *mem,
           const struct num_score_unit *q_unit, const struct item_task *t,
           const struct thread_rows<1> *rows, int first, int n) {
    int32_t top_bits = INT32_MIN;
    shared_matrix keys;
    UNROLL
    for (int at = 0; at < TILE; at += KEY_COLUMNS) {
        float(*s)[4] = scores->s + at / 16;
        if (at % KEYS == 0)
            keys = columns_of<KEYS>(chunks->take(at / KEYS));
        if (at < n) {
            int32_t sums[KEY_COLUMNS / 4];
            multiply<true, 1, KEYS>(sums, query, shared_matrix_skip(keys, at % KEYS, 16));
            score_keys<false>(s, &top_bits, sums, mem->k_unit + at, 0);
        } else {
            leave_out<KEY_COLUMNS / 16>(s);
        }
        if ((at + KEY_COLUMNS) % KEYS == 0)
            chunks->replace(at / KEYS);
    }
    float top;
    if (VARIANT) {
        vary(scores, first, rows, &q_unit->natural, t->variant);
        find_largest(&top, scores);
        return top;
    }
    int seen = rows->query[0].end - first;
    if (seen < TILE)
        mask(scores, &top_bits, seen, n);
    return largest_of_bits(scores, top_bits, n);
}

/* The tiles of an item, for the rows of a block. later: the item whose turn comes when this one is
 * done; -1: none. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
run_item(const struct item_task *t, const struct attention_digits *in,
         const struct block_memory *mem, unsigned *rounds, int later) {
    const struct prompt_item *item = t->item;
    int n_tiles = item->n_tiles;
    struct thread_rows<1> row;
    begin_rows<VARIANT>(&row, t);
    struct value_sums<DIM> values = {
        mem->o
    };
    if (!n_tiles)
        values.clear();

    int n_last = min((int)TILE, item->end - (item->first_tile + n_tiles - 1) * TILE);
    size_t first_of_digits = (size_t)t->kv_head * (size_t)in->n_tiles + (size_t)item->tile;
    struct tile_chunks<DIM> chunks =
        chunks_of<DIM>(in, item, mem, first_of_digits, n_last, *rounds);
    /* The kernel before this one began after whatever made the queries had ended; it writes the
     * digits, and may still be at work. */
    struct query_elements<DIM> elements;
    load_query<DIM>(&elements, &row.query[0], t->a);
    wait_for_previous_kernel();
    UNROLL
    for (int i = 0; i < STAGES && n_tiles; i++)
        chunks.start(i);
    if (later >= 0)
        prefetch_queries<VARIANT>(t, in, later);
    /* The exponents of a position a thread, fetched one tile ahead. */
    const char2 *tile_exponents =
        (const char2 *)(in->exponents + 2 * first_of_digits * TILE) + threadIdx.x;
    char2 exponents = n_tiles ? tile_exponents[0] : make_char2(0, 0);
    struct row_digits<DIM / 32> query;
    struct num_score_unit *q_unit = mem->q_unit + t->first_row;
    snap_query<DIM>(&query, q_unit, &elements, &row.query[0], t->a);

    for (int k = 0; k < n_tiles; k++) {
        int first = (item->first_tile + k) * TILE, n = chunks.left ? (int)TILE : n_last;
        /* Nobody reads the units of the last tile any more: its values came after a barrier. */
        set_units<VARIANT>(&mem->k_unit[threadIdx.x], &mem->v_unit[threadIdx.x], exponents.x,
                           exponents.y);
        if (k + 1 < n_tiles)
            exponents = tile_exponents[(k + 1) * TILE];
        __syncthreads();
        tile_scores scores;
        float scale, top = score_tile<DIM, VARIANT>(&scores, &query, &chunks, mem, q_unit, t, &row,
                                                    first, n);
        softmax<VARIANT>(&scores, &top, &scale, &row, first, n, mem->v_unit, t,
                         [&](int) { return *q_unit; });
        struct row_digits<TILE / 32> weights;
        snap_weights(&weights, &scores, scale);
        merge_sums(&row, item->merges);
        UNROLL
        for (int part = 0; part < DIM / VALUE_DIMS; part++) {
            int32_t sums[VALUE_DIMS / 4];
            const unsigned char *values = chunks.take(TILE / KEYS + part);
            multiply<false, VALUE_PARTS, VALUE_DIMS>(sums, &weights, columns_of<VALUE_DIMS>(values),
                                                     parts_of(TILE, n));
            chunks.replace(TILE / KEYS + part);
            add_values(mem->o + part * VALUE_DIMS / 16 * THREADS, sums, &row, k && item->merges);
        }
        if (!item->merges)
            keep_tile<DIM, tile_scores>(t, &row, &values, k);
        chunks.next_tile();
    }
    *rounds = chunks.rounds;
    end_rows<DIM, VARIANT, tile_scores>(t, &row, &values);
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
    int row = (int)threadIdx.x / 4;
    for (int i = (int)blockIdx.y; i < n; i += (int)gridDim.y) {
        __syncthreads(); /* barriers are ready, and nobody uses the units of the item before */
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
