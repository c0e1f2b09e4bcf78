/*
 * attention, version 3, for prompts of up to 128 positions: computes what ../../attention.cu does;
 * gains 30 % of the time over wgmma.cu (64 prompts of 128 tokens, 32 heads of 128, H200: 120 µs,
 * not 172).
 *
 * What changed from wgmma.cu (read it first): all keys and values of such a sequence fit into
 * shared memory, as digits. So a block splits them itself, straight from the pages, and takes row
 * list after row list of the sequence. No kernel before it writes digits to memory, nobody waits
 * for chunks, and the block's two groups of four warps need not wait for each other. While one row
 * list is at work, the queries of the next are on their way. A row sees a single tile, so there is
 * nothing to merge, and outputs are divided in registers.
 */
#include "gpu/fast/prompt/queries.h"
#include "gpu/fast/prompt/short.h"
#include "gpu/fast/prompt/split.h"

enum {
    POSITIONS = SHORT_POSITIONS,
    WARPS = THREADS / 32,
    SPAN = 32, /* positions of a warp that splits values */
    SPANS = POSITIONS / SPAN,
    MOST_EACH = 16 /* items of a block, as long as a grid can be so large */
};

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 64. */
template <int DIM> struct short_sizes {
    static const int KEY_BYTES = group_bytes(POSITIONS, DIM);
    static const int VALUE_BYTES =
        group_bytes(VALUE_DIMS, POSITIONS);     /* of VALUE_DIMS dimensions */
    static const int STAGED_ROW = 2 * DIM + 16; /* neighbouring rows in different banks */
    static const int SHARED_BYTES = KEY_BYTES + DIM / VALUE_DIMS * VALUE_BYTES +
                                    POSITIONS * (STAGED_ROW + 8 + 2 * (int)sizeof(void *)) +
                                    ROWS * (int)sizeof(struct num_score_unit);
};

/* The memory of a block. */
struct short_memory {
    unsigned char *keys, *values;     /* digits */
    unsigned char *staged;            /* [POSITIONS] rows of values, until they are split; then
                                         the queries of the next row list */
    const int16_t **k_rows, **v_rows; /* [POSITIONS] where they lie in the cache */
    float *k_unit, *v_unit;           /* [POSITIONS] */
    struct num_score_unit *q_unit;    /* [ROWS] */
};

template <int DIM> static __device__ struct short_memory cut_memory(unsigned char *memory) {
    typedef struct short_sizes<DIM> size;
    struct short_memory m;
    m.keys = memory;
    m.values = m.keys + size::KEY_BYTES;
    m.staged = m.values + DIM / VALUE_DIMS * size::VALUE_BYTES;
    m.k_rows = (const int16_t **)(m.staged + POSITIONS * size::STAGED_ROW);
    m.v_rows = m.k_rows + POSITIONS;
    m.q_unit = (struct num_score_unit *)(m.v_rows + POSITIONS);
    m.k_unit = (float *)(m.q_unit + ROWS);
    m.v_unit = m.k_unit + POSITIONS;
    return m;
}

/* Looks up where the rows of a sequence of n positions lie, and their exponents. Behind its end,
 * the last row again. */
static __device__ __forceinline__ void find_rows(const struct short_memory *m,
                                                 const struct attention_arguments *a,
                                                 const struct kv_views *kv, const int32_t *pages,
                                                 int n, int kv_head) {
    int i = (int)threadIdx.x, at = min(i, n - 1);
    if (i >= POSITIONS)
        return;
    int64_t page = pages[at / a->page_size], in_page = at % a->page_size;
    m->k_rows[i] = (const int16_t *)kv->k.data + kv_view_row(&kv->k, page, in_page, kv_head);
    m->v_rows[i] = (const int16_t *)kv->v.data + kv_view_row(&kv->v, page, in_page, kv_head);
    set_units<false>(&m->k_unit[i], &m->v_unit[i],
                     kv->k.exponents[kv_view_exponent(&kv->k, page, in_page, kv_head)],
                     kv->v.exponents[kv_view_exponent(&kv->v, page, in_page, kv_head)]);
}

/* Positions whose digits products read; behind the end they are zeros. */
static __device__ __forceinline__ int read_of(int n) {
    return POSITIONS / VALUE_PARTS * parts_of(POSITIONS, n);
}

/* Splits keys: a thread takes 16 mantissas of a row, neighbours those of neighbouring rows. */
template <int DIM>
static __device__ __forceinline__ void split_keys(const struct short_memory *m, int head_dim,
                                                  int n) {
    enum { PARTS = DIM / 16 };
    UNROLL
    for (int i = 0; i < POSITIONS * PARTS / THREADS; i++) {
        int j = (int)threadIdx.x + i * THREADS, row = j % POSITIONS, d = j / POSITIONS * 16;
        if (row >= read_of(n))
            continue;
        const uint4 *from = (const uint4 *)(m->k_rows[row] + d);
        uint4 first = make_uint4(0, 0, 0, 0), second = first;
        if (row < n && d < head_dim)
            first = from[0];
        if (row < n && d + 8 < head_dim)
            second = from[1];
        uint2 high[2], low[2];
        split_vector(&high[0], &low[0], first);
        split_vector(&high[1], &low[1], second);
        unsigned char *to = m->keys + d / 16 * column_bytes(POSITIONS) + row * 16;
        *(uint4 *)to = make_uint4(high[0].x, high[0].y, high[1].x, high[1].y);
        *(uint4 *)(to + column_bytes(POSITIONS) / 2) =
            make_uint4(low[0].x, low[0].y, low[1].x, low[1].y);
    }
}

/* Starts to copy the values of n positions. */
template <int DIM>
static __device__ __forceinline__ void stage_values(const struct short_memory *m, int head_dim,
                                                    int n) {
    enum { VECTORS = DIM / 8 };
    UNROLL
    for (int i = 0; i < POSITIONS * VECTORS / THREADS; i++) {
        int j = (int)threadIdx.x + i * THREADS, row = j / VECTORS, d = j % VECTORS * 8;
        bool exists = row < n && d < head_dim;
        if (row < read_of(n))
            cp_async_16_or_zero(m->staged + row * short_sizes<DIM>::STAGED_ROW + 2 * d,
                                m->v_rows[row] + (exists ? d : 0), exists);
    }
    cp_async_commit();
}

/* Turns them on their side. A warp has SPAN positions. */
template <int DIM>
static __device__ __forceinline__ void split_values(const struct short_memory *m, int n) {
    typedef struct short_sizes<DIM> size;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, span = warp % SPANS;
    if (SPAN * span >= read_of(n))
        return;
    UNROLL
    for (int d = warp / SPANS * SIDE_DIMS; d < DIM; d += WARPS / SPANS * SIDE_DIMS)
        split_side(m->values + d / VALUE_DIMS * size::VALUE_BYTES + d % VALUE_DIMS * 16 +
                       2 * span * column_bytes(VALUE_DIMS),
                   column_bytes(VALUE_DIMS),
                   m->staged + (SPAN * span + lane) * size::STAGED_ROW + 2 * d);
}

/* The digits of the keys and values of a sequence, and their units, for all threads. */
template <int DIM>
static __device__ __forceinline__ void
load_sequence(const struct short_memory *m, const struct attention_arguments *a,
              const struct kv_views *kv, const struct attention_work *work,
              const struct digit_tile *sequence, int kv_head) {
    int n = sequence->n;
    __syncthreads(); /* nobody uses those of the one before */
    find_rows(m, a, kv, work->pages + sequence->pages, n, kv_head);
    __syncthreads();
    stage_values<DIM>(m, a->head_dim, n);
    split_keys<DIM>(m, a->head_dim, n);
    cp_async_wait<0>();
    __syncthreads();
    split_values<DIM>(m, n);
    wgmma_sees_stores();
    __syncthreads();
}

typedef position_scores<POSITIONS> short_scores;

/* The scores of a row, which sees positions before `end`; of those before n somebody's. Returns the
 * largest of this thread's. */
template <int DIM>
static __device__ __forceinline__ float
score_positions(short_scores *scores, const struct row_digits<DIM / 32> *query,
                const struct short_memory *m, int end, int n) {
    int32_t top_bits = INT32_MIN;
    shared_matrix keys = columns_of<POSITIONS>(m->keys);
    UNROLL
    for (int at = 0; at < POSITIONS; at += KEY_COLUMNS) {
        float(*s)[4] = scores->s + at / 16;
        if (at < n) {
            int32_t sums[KEY_COLUMNS / 4];
            multiply<true, 1, POSITIONS>(sums, query, shared_matrix_skip(keys, at, 16));
            score_keys<true>(s, &top_bits, sums, m->k_unit + at, end - at);
        } else {
            leave_out<KEY_COLUMNS / 16>(s);
        }
    }
    return largest_of_bits(scores, top_bits, n);
}

/* Writes VALUE_DIMS dimensions of a row's output from `first` on, from their sums. The row has a
 * single tile, so its sums are divided as they are: integers are near in the sense of
 * num_divide_near. Their unit, a power of 2, comes afterwards. */
static __device__ __forceinline__ void finish_dims(const struct attention_arguments *a,
                                                   const struct thread_rows<1> *row,
                                                   const int32_t (&sums)[VALUE_DIMS / 4],
                                                   int first) {
    float l = row->tile_l[0], unit = row->unit[0], reciprocal = 1 / l;
    bool near = l > 0 && farness_of(unit) <= farness_of(0x1p60f);
    float x[VALUE_DIMS / 4];
    UNROLL
    for (int i = 0; i < VALUE_DIMS / 4; i++)
        x[i] = num_divide_near((float)sums[i], l, reciprocal) * unit;
    if (!near) {
        UNROLL
        for (int i = 0; i < VALUE_DIMS / 4; i++) {
            float sum = (float)sums[i] * unit;
            x[i] = l > 0 ? sum / l : sum;
        }
    }
    int d = first + (int)threadIdx.x % 4 * 4;
    float *y = a->y + (query_at(a, &row->query[0]) - a->q) + d;
    UNROLL
    for (int i = 0; i < VALUE_DIMS / 4; i += 4)
        if (d + 4 * i < a->head_dim)
            *(float4 *)(y + 4 * i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

/* Where this thread's part of a query waits, vector i at [i * THREADS]. */
static __device__ __forceinline__ float4 *query_slot(const struct short_memory *m) {
    return (float4 *)m->staged + threadIdx.x;
}

/* Starts to copy it there. */
template <int DIM>
static __device__ __forceinline__ void stage_query(const struct short_memory *m,
                                                   const struct item_task *t) {
    static_assert(DIM * THREADS <= POSITIONS * short_sizes<DIM>::STAGED_ROW, "queries have room");
    struct thread_rows<1> row;
    begin_rows<false>(&row, t);
    const float *q = query_at(t->a, &row.query[0]);
    UNROLL
    for (int i = 0; i < DIM / 16; i++) {
        int d = 16 * i + (int)threadIdx.x % 4 * 4; /* keys have zeros behind the end of a row */
        cp_async_16(query_slot(m) + i * THREADS, q + min(d, t->a->head_dim - 4));
    }
    cp_async_commit();
}

template <int DIM>
static __device__ __forceinline__ void take_query(struct query_elements<DIM> *out,
                                                  const struct short_memory *m) {
    cp_async_wait<0>();
    UNROLL
    for (int i = 0; i < DIM / 16; i++)
        *(float4 *)out->x[i] = query_slot(m)[i * THREADS];
}

/* The row of a quad of threads, whose query is snapped. Behind the end of a list it is the last
 * one, and written once more. */
template <int DIM>
static __device__ __forceinline__ void
run_row(const struct item_task *t, struct thread_rows<1> *row,
        const struct row_digits<DIM / 32> *query, const struct short_memory *m) {
    int n = t->item->end;
    short_scores scores;
    float scale, top = score_positions<DIM>(&scores, query, m, row->query[0].end, n);
    softmax<false>(&scores, &top, &scale, row, 0, n, m->v_unit, t,
                   [&](int) { return m->q_unit[t->first_row]; });
    struct row_digits<POSITIONS / 32> weights;
    snap_weights(&weights, &scores, scale);
    UNROLL
    for (int part = 0; part < DIM / VALUE_DIMS; part++) {
        int32_t sums[VALUE_DIMS / 4];
        const unsigned char *columns = m->values + part * short_sizes<DIM>::VALUE_BYTES;
        multiply<false, VALUE_PARTS, VALUE_DIMS>(sums, &weights, columns_of<VALUE_DIMS>(columns),
                                                 parts_of(POSITIONS, n));
        finish_dims(t->a, row, sums, part * VALUE_DIMS);
    }
}

/* A row that sees nothing. */
template <int DIM>
static __device__ __forceinline__ void clear_row(const struct item_task *t,
                                                 struct thread_rows<1> *row) {
    const int32_t zeros[VALUE_DIMS / 4] = {};
    row->tile_l[0] = row->unit[0] = 0;
    for (int d = 0; d < DIM; d += VALUE_DIMS)
        finish_dims(t->a, row, zeros, d);
}

/* Item i. All rows of its list are of one sequence: with that said, nothing is looked up. */
static __device__ __forceinline__ struct prompt_item item_at(const struct attention_work *work,
                                                             int i) {
    struct prompt_item item = work->items[i];
    item.list.tokens = -1;
    return item;
}

/* Block y has items number each * y ... each * y + each - 1: neighbours are of the same sequence.
 * While one is at work, the queries of the next one are on their way. */
template <int DIM>
__global__ static void __launch_bounds__(THREADS, 2)
    attention_3_short(struct attention_arguments a, struct kv_views kv, struct attention_work work,
                      int each) {
    SHARED_DYNAMIC(unsigned char, memory);
    if (!compiles_wgmma)
        return;
    let_next_kernel_start();
    struct short_memory m = cut_memory<DIM>(memory);
    int i = (int)blockIdx.y * each, end = min(i + each, work.counts[COUNT_ITEMS]), tile = -1;
    bool staged = false;
    wait_for_previous_kernel();
    struct prompt_item item = item_at(&work, i), next = item;
    struct item_task task = {&a, NULL, &work, &item, (int)blockIdx.x, (int)threadIdx.x / 4};
    struct item_task later = {&a, NULL, &work, &next, (int)blockIdx.x, (int)threadIdx.x / 4};
    for (; i < end; i++, item = next) {
        struct thread_rows<1> row;
        begin_rows<false>(&row, &task);
        if (i + 1 < end)
            next = item_at(&work, i + 1);
        if (!item.n_tiles) {
            clear_row<DIM>(&task, &row);
            continue;
        }
        struct query_elements<DIM> elements;
        if (staged)
            take_query<DIM>(&elements, &m);
        else
            load_query<DIM>(&elements, &row.query[0], &a);
        if (item.tile != tile) {
            tile = item.tile;
            load_sequence<DIM>(&m, &a, &kv, &work, &work.tiles[tile], (int)blockIdx.x);
        }
        struct row_digits<DIM / 32> query;
        __syncwarp(); /* nobody reads the unit of the row before any more */
        snap_query<DIM>(&query, &m.q_unit[task.first_row], &elements, &row.query[0], &a);
        __syncwarp();
        staged = i + 1 < end && next.n_tiles;
        if (staged)
            stage_query<DIM>(&m, &later);
        run_row<DIM>(&task, &row, &query, &m);
    }
}

bool gpu_attention_short_fits(const struct gpu_device *gpu, const struct attention_arguments *a,
                              const struct kv_views *kv, const struct attention_variant *v,
                              const struct attention_work *work) {
    int dim = a->head_dim;
    /* With fewer items it is the splitting that takes the time, which has more blocks by itself. */
    bool pays = work->n_items * a->n_kv_heads > gpu->n_processors;
    return pays && work->is_short && gpu->has_wgmma && gpu->version[GPU_ATTENTION] != 2 &&
           dim <= 128 && gpu_attention_is_plain(kv, v) && is_in_pieces(&kv->k, dim) &&
           is_in_pieces(&kv->v, dim) && (uintptr_t)a->q % 16 == 0 && (uintptr_t)a->y % 16 == 0;
}

void gpu_attention_short(struct gpu_device *gpu, const struct attention_arguments *a,
                         const struct kv_views *kv, const struct attention_work *work) {
    bool small = a->head_dim <= 64;
    auto kernel = small ? attention_3_short<64> : attention_3_short<128>;
    int bytes = small ? short_sizes<64>::SHARED_BYTES : short_sizes<128>::SHARED_BYTES;
    if (!gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                "attention's shared memory"))
        return;
    struct attention_work all = attention_work_of(work, a);
    /* Rows of the same sequence share what was split; but all processors shall be busy, and a grid
     * has a bound. */
    int each = 1, blocks = work->n_items * a->n_kv_heads;
    while ((each < MOST_EACH && blocks > 2 * gpu->n_processors * each) ||
           work->n_items / each >= MOST_ITEM_BLOCKS)
        each *= 2;
    dim3 grid((unsigned)a->n_kv_heads, gpu_blocks((size_t)work->n_items, (size_t)each));
    GPU_LAUNCH_EARLY(gpu, kernel, grid, THREADS, bytes, *a, *kv, all, each);
}
