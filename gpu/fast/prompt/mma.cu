/*
 * attention, version 2: computes what ../../attention.cu does, for prompts, on int8 tensor cores;
 * gains a factor of 68 (1024 tokens, 32 heads of 128, H200: 141 µs, not 9631). What it shares with
 * version 3 is in item.h.
 *
 * A row is one token and one query head; the rows of one kv head are numbered token * group + head.
 * Before the kernel proper, queries, keys and values are split into 8-bit digits (q = 256 * high +
 * low, high signed, low unsigned) in the order in which the tensor cores want them; that costs a
 * few percent of the time and leaves the kernel nothing but whole 16-byte copies.
 *
 *     block   64 rows, 8 warps of 8; walks the tiles of 256 positions in ascending order
 *     scores  8 x 256 per warp stay in registers, because a tile's weights are snapped with the
 *             maximum of the whole tile. Positions are the rows of the mma and queries its columns:
 *             the other way round a warp would hold 16 rows, in twice the registers, and half as
 *             many warps would fit on a processor
 *     memory  keys and values arrive in chunks of 16 KB through a ring of STAGES, two in flight
 *             while one is used; a chunk is 64 keys, or 32 dimensions of the values of a tile
 *
 * After the scores a lane holds positions g and g + 8 of each 16; movmatrix gives it 2 t and 2 t +
 * 1 of each 8. That is what it must hand in for the values, if the positions of a group of 32 are
 * counted in another order: column_of().
 *
 * The idea of keeping a block's scores out of memory: Dao et al., "FlashAttention", 2022, and
 * "FlashAttention-2", 2023. There the maximum runs along; here a tile has its own.
 */
#include "gpu/fast/prompt/item.h"
#include "gpu/fast/prompt/ring.h"
#include "gpu/ptx/digit_sums.h"

enum { STAGES = 3, THREADS = 256, VALUE_DIMS = 32 };

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 32. */
template <int DIM> struct sizes {
    static const int STAGES = ::STAGES, THREADS = ::THREADS;
    static const int KEYS = DIM > 128 ? 32 : 64; /* in a chunk */
    static const int KEY_BYTES = group_bytes(KEYS, DIM), KEY_CHUNKS = TILE / KEYS;
    static const int VALUE_BYTES = group_bytes(VALUE_DIMS, TILE), VALUE_CHUNKS = DIM / VALUE_DIMS;
    static const int STAGE_BYTES = KEY_BYTES > VALUE_BYTES ? KEY_BYTES : VALUE_BYTES;
    static const int SHARED_BYTES =
        STAGES * STAGE_BYTES + group_bytes(ROWS, DIM) + 4 * ROWS * DIM + 8 * TILE;
};

/* ---- exact products ------------------------------------------------------------------------- */

/* a: 16 rows in shared memory, high digits at `a` and low ones at `a + low`, as ldmatrix_x4 wants
 * this lane's address. b: the two registers of the high digits, then those of the low ones. */
static __device__ __forceinline__ void multiply(struct digit_sums *s, const unsigned char *a,
                                                int low, const uint32_t b_high[2],
                                                const uint32_t b_low[2]) {
    uint32_t a_high[4], a_low[4];
    ldmatrix_x4(a_high, a);
    ldmatrix_x4(a_low, a + low);
    add_products(s, a_high, a_low, b_high, b_low);
}

/* 65536 * high + 256 * middle + low in units of 256, rounded down. */
static __device__ __forceinline__ float dot_of(const struct digit_sums *s, int i) {
    return (float)(s->high[i] * 256 + s->middle[i] + (s->low[i] >> 8));
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* What a lane holds of its warp's 8 rows by 256 positions: s[i][j] is position 16 i + g + j / 2 * 8
 * of row 2 t + j % 2, where lane = 4 g + t. First scores, then weights. */
struct tile_scores {
    static const int VECTORS = 16, STEP = 4, N_ROWS = 2, PEER_BEGIN = 4, PEER_END = 32;
    float s[VECTORS][4];

    static __device__ __forceinline__ constexpr int row(int j) {
        return j % 2;
    }
    static __device__ __forceinline__ int position(int i, int j) {
        return 16 * i + j / 2 * 8 + (int)threadIdx.x % 32 / 4;
    }
    static __device__ __forceinline__ void units(float to[4], const float *x, int i) {
        to[0] = to[1] = x[position(i, 0)];
        to[2] = to[3] = x[position(i, 2)];
    }
};

/* A lane's part of its warp's values, in shared memory: o [DIM columns, 8 rows], from its first row
 * on. It has columns g, g + 8 ... */
template <int DIM> struct value_sums {
    static const int SHARE = 2, NEXT = 2; /* of 16 */
    float *o;

    static __device__ __forceinline__ int first() {
        int column = (int)threadIdx.x % 32 / 4;
        return column / 2 * 4 + column % 2;
    }
    __device__ __forceinline__ float *at(int i) const { /* column g of the 8 from 8 i on */
        return o + (8 * i + (int)threadIdx.x % 32 / 4) * 8;
    }
    __device__ __forceinline__ void get(float to[SHARE], int i, int r) const {
        to[0] = at(2 * i)[r];
        to[1] = at(2 * i + 1)[r];
    }
    __device__ __forceinline__ void clear() {
        for (int i = 0; i < DIM / 8; i++)
            *(float2 *)at(i) = make_float2(0, 0);
    }
};

/* The scores of 32 keys, but for the query's unit: s[0] and s[1] of a tile_scores. */
template <int DIM>
static __device__ __forceinline__ void score_32_keys(float s[2][4], const unsigned char *queries,
                                                     const unsigned char *keys,
                                                     const float *k_unit) {
    struct digit_sums sums[2] = {};
    int lane = (int)threadIdx.x % 32;
    const int column = column_bytes(sizes<DIM>::KEYS), low = 16 * sizes<DIM>::KEYS;
    const unsigned char *row = keys + lane % 16 * 16 + lane / 16 * column;
    const unsigned char *query =
        queries + lane % 8 * 16 + lane / 16 * 16 * ROWS + lane / 8 % 2 * column_bytes(ROWS);
    UNROLL
    for (int k = 0; k < DIM / 16; k += 2) {
        uint32_t q[4]; /* high digits, low digits */
        ldmatrix_x4(q, query + k * column_bytes(ROWS));
        multiply(&sums[0], row + k * column, low, q, q + 2);
        multiply(&sums[1], row + 16 * 16 + k * column, low, q, q + 2);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        s[i / 4][i % 4] =
            num_score(dot_of(&sums[i / 4], i % 4), k_unit[i / 4 * 16 + i % 4 / 2 * 8 + lane / 4]);
}

/* Scores of positions that a row does not see become -infinity, which has weight 0. */
static __device__ __forceinline__ void mask(struct tile_scores *tile, int tile_first,
                                            const rows_of<tile_scores> *rows) {
    UNROLL
    for (int i = 0; i < 64; i++)
        if (tile_first + tile->position(i / 4, i % 4) >= rows->query[i % 2].end)
            tile->s[i / 4][i % 4] = -INFINITY;
}

/* The snapped weights of a tile as digits, 8 rows by 8 times 32 positions, as mma takes them. */
struct weight_digits {
    uint32_t high[8][2], low[8][2];
};

static __device__ __forceinline__ void
snap_weights(struct weight_digits *out, const struct tile_scores *tile, const float scale[2]) {
    UNROLL
    for (int i = 0; i < 16; i++) { /* 16 positions: two matrices of 8 positions by 8 rows */
        uint32_t turned[2];
        UNROLL
        for (int j = 0; j < 2; j++) {
            /* Mantissas in the low 16 bits: num_rint with the shift left in. */
            uint32_t even = num_bits(fmaf(tile->s[i][2 * j], scale[0], 12582912.0f));
            uint32_t odd = num_bits(fmaf(tile->s[i][2 * j + 1], scale[1], 12582912.0f));
            turned[j] = movmatrix_trans(__byte_perm(even, odd, 0x5410));
        }
        out->low[i / 2][i % 2] = __byte_perm(turned[0], turned[1], 0x6420);
        out->high[i / 2][i % 2] = __byte_perm(turned[0], turned[1], 0x7531);
    }
}

/* Merges a tile's weighted sums of 32 dimensions into value_sums.o from the first of them on. n:
 * positions of the tile that anybody sees. */
static __device__ __forceinline__ void add_values(float *o, const struct weight_digits *w,
                                                  const unsigned char *values,
                                                  const rows_of<tile_scores> *rows, int n) {
    struct digit_sums sums[2] = {};
    int lane = (int)threadIdx.x % 32;
    const int column = column_bytes(VALUE_DIMS), low = 16 * VALUE_DIMS;
    const unsigned char *row = values + lane % 16 * 16 + lane / 16 * column;
    UNROLL
    for (int half = 0; half < 2; half++) {
        if (half && n <= TILE / 2)
            break;
        UNROLL
        for (int k = 4 * half; k < 4 * half + 4; k++) {
            multiply(&sums[0], row + 2 * k * column, low, w->high[k], w->low[k]);
            multiply(&sums[1], row + 16 * 16 + 2 * k * column, low, w->high[k], w->low[k]);
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        float2 *at = (float2 *)(o + (8 * i + lane / 4) * 8);
        float2 sum = *at;
        float x = dot_of(&sums[i / 2], i % 2 * 2) * rows->unit[0];
        float y = dot_of(&sums[i / 2], i % 2 * 2 + 1) * rows->unit[1];
        sum.x = num_merge(sum.x, rows->old_factor[0], x, rows->new_factor[0]);
        sum.y = num_merge(sum.y, rows->old_factor[1], y, rows->new_factor[1]);
        *at = sum;
    }
}

/* The memory of a block. */
struct block_memory {
    unsigned char *ring, *queries;
    float *o; /* of this thread: value_sums */
    float *k_unit, *v_unit;
};

template <int DIM> static __device__ struct block_memory cut_memory(unsigned char *memory) {
    struct block_memory m;
    m.ring = memory;
    m.queries = memory + STAGES * sizes<DIM>::STAGE_BYTES;         /* [ROWS] rows */
    float *o_rows = (float *)(m.queries + group_bytes(ROWS, DIM)); /* [8 warps, DIM, 8 rows] */
    m.o = o_rows + threadIdx.x / 32 * 8 * DIM + threadIdx.x % 4 * 2;
    m.k_unit = o_rows + ROWS * DIM; /* [TILE] */
    m.v_unit = m.k_unit + TILE;     /* [TILE] */
    return m;
}

/* The scores of a tile, of whose positions somebody sees the first n, and the largest of each row,
 * of this lane's. natural: what makes numbers scores. */
template <int DIM, bool VARIANT, class ring>
static __device__ __forceinline__ void
score_tile(struct tile_scores *scores, float top[2], ring *chunks, const struct block_memory *mem,
           const struct item_task *t, const rows_of<tile_scores> *rows, const double natural[2],
           int first, int n) {
    const int KEYS = sizes<DIM>::KEYS;
    const unsigned char *queries = mem->queries + threadIdx.x / 32 * 8 * 16;
    UNROLL
    for (int c = 0; c < TILE; c += KEYS) {
        if (c >= n) { /* nobody sees them */
            leave_out<KEYS / 16>(scores->s + c / 16);
            continue;
        }
        const unsigned char *keys = chunks->next();
        UNROLL
        for (int i = 0; i < KEYS; i += 32)
            score_32_keys<DIM>(scores->s + (c + i) / 16, queries, keys + i * 16,
                               mem->k_unit + c + i);
    }
    if (VARIANT)
        vary(scores, first, rows, natural, t->variant);
    else if (first + TILE > min(rows->query[0].end, rows->query[1].end))
        mask(scores, first, rows);
    find_largest(top, scores);
}

/* Starts copying the queries of a group, which is whole: rows behind the end are not written. */
template <int DIM>
static __device__ __forceinline__ void
copy_queries(const struct block_memory *mem, const struct attention_digits *in, size_t group) {
    const uint8_t *queries = in->queries + group * (size_t)group_bytes(ROWS, DIM);
    for (int at = (int)threadIdx.x * 16; at < group_bytes(ROWS, DIM); at += THREADS * 16)
        cp_async_16(mem->queries + at, queries + at);
}

/* The tiles of an item, for the rows of a block. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void run_item(const struct item_task *t,
                                                const struct attention_digits *in,
                                                const struct block_memory *mem) {
    typedef struct sizes<DIM> size;
    const struct prompt_item *item = t->item;
    int n_tiles = item->n_tiles;
    size_t group = (size_t)t->kv_head * (size_t)in->n_groups + (size_t)item->rows;
    copy_queries<DIM>(mem, in, group);
    rows_of<tile_scores> rows;
    begin_rows<VARIANT>(&rows, t);
    int exponents_of_rows[2];
    UNROLL
    for (int r = 0; r < 2; r++)
        exponents_of_rows[r] =
            in->query_exponents[group * QUERY_ROWS +
                                (size_t)min(t->first_row + r, item->list.n_rows - 1)];
    auto unit_of_row = [&](int r) { return num_score_unit_of(exponents_of_rows[r], t->a->scale); };
    struct value_sums<DIM> values = {
        mem->o
    };
    values.clear();

    int n_last = min((int)TILE, item->end - (item->first_tile + n_tiles - 1) * TILE);
    size_t first_of_digits = (size_t)t->kv_head * (size_t)in->n_tiles + (size_t)item->tile;
    struct chunk_ring<size> chunks = {};
    chunks.from = in->tiles + first_of_digits * (size_t)tile_bytes(DIM);
    chunks.ring = mem->ring;
    chunks.tiles_left = n_tiles;
    chunks.n_last = (n_last + size::KEYS - 1) / size::KEYS;
    for (int i = 0; i < STAGES - 1; i++) /* the queries come with the first chunk */
        chunks.start();
    /* The exponents of a position a thread, fetched one tile ahead. */
    const char2 *tile_exponents =
        (const char2 *)in->exponents + first_of_digits * TILE + threadIdx.x;
    char2 exponents = n_tiles ? tile_exponents[0] : make_char2(0, 0);

    for (int k = 0; k < n_tiles; k++) {
        int first = (item->first_tile + k) * TILE, n = min((int)TILE, item->end - first);
        /* Nobody reads the units of the last tile any more: its values came after a barrier. */
        set_units<VARIANT>(&mem->k_unit[threadIdx.x], &mem->v_unit[threadIdx.x], exponents.x,
                           exponents.y);
        if (k + 1 < n_tiles)
            exponents = tile_exponents[(k + 1) * TILE];
        struct tile_scores scores;
        float top[2], scale[2];
        const double natural[2] = {unit_of_row(0).natural, unit_of_row(1).natural};
        score_tile<DIM, VARIANT>(&scores, top, &chunks, mem, t, &rows, natural, first, n);
        softmax<VARIANT>(&scores, top, scale, &rows, first, n, mem->v_unit, t, unit_of_row);
        struct weight_digits weights;
        snap_weights(&weights, &scores, scale);
        merge_sums(&rows, item->merges);
        for (int d = 0; d < DIM; d += VALUE_DIMS)
            add_values(mem->o + d * 8, &weights, chunks.next(), &rows, n);
        if (!item->merges) {
            keep_tile<DIM, tile_scores>(t, &rows, &values, k);
            values.clear();
        }
    }
    end_rows<DIM, VARIANT, tile_scores>(t, &rows, &values);
}

template <int DIM, bool VARIANT>
__global__ static void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2)
    attention_2(struct attention_arguments a, struct attention_digits in,
                struct attention_variant variant, struct attention_work work) {
    SHARED_DYNAMIC(unsigned char, memory);
    if (!compiles_mma)
        return;
    struct block_memory mem = cut_memory<DIM>(memory);
    int n = work.items ? work.counts[COUNT_ITEMS] : in.n_groups;
    for (int i = (int)blockIdx.y; i < n; i += (int)gridDim.y) {
        __syncthreads(); /* all are done with the item before */
        struct prompt_item item = item_of(&a, &work, &in, i);
        int row = (int)(threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2);
        struct item_task task = {&a, &variant, &work, &item, (int)blockIdx.x, row};
        run_item<DIM, VARIANT>(&task, &in, &mem);
    }
}

template <int DIM, bool VARIANT> struct kernel_of {
    static struct prompt_kernel get(void) {
        return {attention_2<DIM, VARIANT>,
                THREADS,
                sizes<DIM>::SHARED_BYTES,
                DIM,
                sizes<DIM>::KEYS,
                VALUE_DIMS,
                false};
    }
};

#ifdef FOR_VARIANTS
void gpu_attention_prompt_mma_variants(struct gpu_device *gpu, const struct attention_arguments *a,
                                       const struct kv_views *kv,
                                       const struct attention_variant *variant,
                                       const struct attention_work *work) {
    struct prompt_kernel kernel = kernel_for<kernel_of, true>(a->head_dim);
    gpu_attention_prompt_launch(gpu, &kernel, a, kv, variant, work);
}
#else
int gpu_attention_prompt_mma_bytes(int head_dim) {
    return kernel_for<kernel_of, false>(head_dim).shared_bytes;
}

void gpu_attention_prompt_mma(struct gpu_device *gpu, const struct attention_arguments *a,
                              const struct kv_views *kv, const struct attention_variant *variant,
                              const struct attention_work *work) {
    int dim = a->head_dim;
    bool keeps = work && work->kept; /* rows of prompt_dim */
    struct prompt_kernel kernel;
    if (!gpu_attention_is_plain(kv, variant))
        return gpu_attention_prompt_mma_variants(gpu, a, kv, variant, work);
    if (!keeps && dim <= 32)
        kernel = kernel_of<32, false>::get();
    else if (!keeps && dim > 64 && dim <= 96)
        kernel = kernel_of<96, false>::get();
    else if (!keeps && dim > 128 && dim <= 192)
        kernel = kernel_of<192, false>::get();
    else
        kernel = kernel_for<kernel_of, false>(dim);
    gpu_attention_prompt_launch(gpu, &kernel, a, kv, variant, work);
}
#endif
