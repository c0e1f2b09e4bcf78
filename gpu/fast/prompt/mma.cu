/*
 * attention, version 2: many query tokens at once, on int8 tensor cores.
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
 *     memory  keys and values arrive in chunks of 16 KB through a ring of STAGES, two on their way
 *             while one is used; a chunk is 64 keys, or 32 dimensions of the values of a tile
 *
 * After the scores a lane holds positions g and g + 8 of each 16; movmatrix gives it 2 t and 2 t +
 * 1 of each 8. That is what it must hand in for the values, if the positions of a group of 32 are
 * counted in another order: value_slot().
 *
 * The idea of keeping a block's scores out of memory: Dao et al., "FlashAttention", 2022, and
 * "FlashAttention-2", 2023. There the maximum runs along; here a tile has its own.
 */
#include "gpu/attention.h"
#include "gpu/fast/prompt/ring.h"

enum { TILE = ATTENTION_TILE, ROWS = QUERY_ROWS, STAGES = 3, THREADS = 256, VALUE_DIMS = 32 };

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 32. */
template <int DIM> struct sizes {
    static const int STAGES = ::STAGES;
    static const int KEYS = DIM > 128 ? 32 : 64; /* in a chunk */
    static const int KEY_BYTES = group_bytes(KEYS, DIM), KEY_CHUNKS = TILE / KEYS;
    static const int VALUE_BYTES = group_bytes(VALUE_DIMS, TILE), VALUE_CHUNKS = DIM / VALUE_DIMS;
    static const int STAGE_BYTES = KEY_BYTES > VALUE_BYTES ? KEY_BYTES : VALUE_BYTES;
    static const int SHARED_BYTES =
        STAGES * STAGE_BYTES + group_bytes(ROWS, DIM) + 4 * ROWS * DIM + 8 * TILE;
};

/* All threads copy 16 bytes at a time. */
struct thread_copies {
    template <int BYTES>
    __device__ __forceinline__ void start(unsigned char *to, const uint8_t *from, int) {
        for (int at = (int)threadIdx.x * 16; at < BYTES; at += THREADS * 16)
            cp_async_16(to + at, from + at);
    }
    __device__ __forceinline__ void end_group() {
        cp_async_commit();
    }
    __device__ __forceinline__ void wait(int, int) {
        cp_async_wait<STAGES - 2>();
    }
};

/* ---- exact products ----------------------------------------------------------------------------
 */

/* Sums of products of digits, 16 by 8 of them in a warp. */
struct digit_sums {
    int32_t high[4], middle[4], low[4];
};

static __device__ __forceinline__ void clear_sums(struct digit_sums *s) {
    UNROLL
    for (int i = 0; i < 4; i++)
        s->high[i] = s->middle[i] = s->low[i] = 0;
}

/* a: 16 rows in shared memory, high digits at `a` and low ones at `a + low`, as ldmatrix_x4 wants
 * this lane's address. b: the two registers of the high digits, then those of the low ones. */
static __device__ __forceinline__ void multiply(struct digit_sums *s, const unsigned char *a,
                                                int low, const uint32_t b_high[2],
                                                const uint32_t b_low[2]) {
    uint32_t a_high[4], a_low[4];
    ldmatrix_x4(a_high, a);
    ldmatrix_x4(a_low, a + low);
    mma_s8_s8(s->high, a_high, b_high);
    mma_s8_u8(s->middle, a_high, b_low);
    mma_u8_s8(s->middle, a_low, b_high);
    mma_u8_u8(s->low, a_low, b_low);
}

/* 65536 * high + 256 * middle + low in units of 256, rounded down. */
static __device__ __forceinline__ float dot_of(const struct digit_sums *s, int i) {
    return (float)(s->high[i] * 256 + s->middle[i] + (s->low[i] >> 8));
}

/* ---- the kernel --------------------------------------------------------------------------------
 */

/* What a lane holds of its warp's 8 rows by 256 positions: s[i][j] is position 16 i + g + j / 2 * 8
 * of row 2 t + j % 2, where lane = 4 g + t. First scores, then weights. */
struct tile_scores {
    float s[16][4];
};

/* What a lane knows of its rows 2 t and 2 t + 1. */
struct row_pair {
    struct wide_row query[2];
    float m[2], l[2];                 /* of the tiles so far */
    bool sees[2];                     /* something of this tile, */
    float tile_m[2], tile_l[2];       /* which are its own, */
    float old_share[2], new_share[2]; /* and what both count for in the merge */
    float unit[2];                    /* 2^(e-22), e of the tile's weights */
    int exponent[2];                  /* of the queries */
};

/* The scores of 32 keys, but for the query's unit: s[0] and s[1] of a tile_scores. */
template <int DIM>
static __device__ __forceinline__ void score_32_keys(float s[2][4], const unsigned char *queries,
                                                     const unsigned char *keys,
                                                     const float *k_unit) {
    struct digit_sums sums[2];
    int lane = (int)threadIdx.x % 32;
    const int column = column_bytes(sizes<DIM>::KEYS), low = 16 * sizes<DIM>::KEYS;
    const unsigned char *row = keys + lane % 16 * 16 + lane / 16 * column;
    const unsigned char *query =
        queries + lane % 8 * 16 + lane / 16 * 16 * ROWS + lane / 8 % 2 * column_bytes(ROWS);
    clear_sums(&sums[0]);
    clear_sums(&sums[1]);
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

/* What n keys that no row sees have instead of scores. Also for the compiler: registers that are
 * not set on every way through the loop would be kept all the way round it. */
template <int N> static __device__ __forceinline__ void hide(float s[N / 16][4]) {
    UNROLL
    for (int i = 0; i < N / 4; i++)
        s[i / 4][i % 4] = -INFINITY;
}

/* Scores of positions that a row does not see become -infinity, which has weight 0. */
static __device__ __forceinline__ void mask(struct tile_scores *tile, int tile_first,
                                            const struct row_pair *rows) {
    int first = tile_first + (int)threadIdx.x % 32 / 4;
    UNROLL
    for (int i = 0; i < 64; i++)
        if (first + i / 4 * 16 + i % 4 / 2 * 8 >= rows->query[i % 2].end)
            tile->s[i / 4][i % 4] = -INFINITY;
}

/* The same with a variant, which may also change scores. */
static __device__ __forceinline__ void vary(struct tile_scores *tile, int tile_first,
                                            const struct row_pair *rows, double scale,
                                            const struct attention_variant *v) {
    int first = tile_first + (int)threadIdx.x % 32 / 4;
    const double natural[2] = {num_score_unit_of(rows->exponent[0], scale).natural,
                               num_score_unit_of(rows->exponent[1], scale).natural};
    UNROLL
    for (int i = 0; i < 64; i++) {
        float *s = &tile->s[i / 4][i % 4];
        if (attention_changes_scores(v))
            *s = (float)(*s * natural[i % 2]);
        *s = varied_score(&rows->query[i % 2], v, *s, first + i / 4 * 16 + i % 4 / 2 * 8);
    }
}

/* Maximum and sum over the eight lanes that share two rows. */
static __device__ __forceinline__ float rows_max(float x) {
    UNROLL
    for (int step = 4; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

static __device__ __forceinline__ uint32_t rows_sum(uint32_t x) {
    UNROLL
    for (int step = 4; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Where a tile's softmax begins: the largest score of each row, its unit, and what is wrong. */
struct tile_top {
    struct num_window window[2];
    bool bad[2];
};

template <bool VARIANT>
static __device__ __forceinline__ struct tile_top
find_top(const struct tile_scores *tile, struct row_pair *rows, int tile_first, double scale,
         const struct attention_variant *v) {
    struct tile_top top;
    UNROLL
    for (int r = 0; r < 2; r++) {
        float m = VARIANT ? NAN : -INFINITY;
        UNROLL
        for (int i = 0; i < 32; i++)
            m = fmaxf(m, tile->s[i / 2][i % 2 * 2 + r]);
        m = rows_max(m);
        struct num_score_unit unit = num_score_unit_of(rows->exponent[r], scale);
        if (VARIANT)
            unit = attention_score_unit(v, unit);
        rows->tile_m[r] = num_tile_max(m, unit);
        rows->sees[r] = VARIANT ? m == m : rows->query[r].end > tile_first;
        /* A score that float32 cannot hold, or nothing but -infinity. */
        top.bad[r] = rows->sees[r] && num_magnitude(rows->tile_m[r]) >= 0x7f800000u;
        top.window[r] = num_window_of(m, unit.binary);
    }
    return top;
}

/*
 * A tile's softmax: scores become weights, scale[r] what snaps them. A row that sees nothing of the
 * tile gets zero weights: a NaN, which is -infinity less itself, too, has the probability 0. Rows
 * that cannot be snapped are faults.
 */
template <bool VARIANT>
static __device__ __forceinline__ void
softmax(struct tile_scores *tile, float scale[2], struct row_pair *rows, int tile_first,
        const float *v_unit, const struct attention_arguments *a,
        const struct attention_variant *v) {
    struct tile_top top = find_top<VARIANT>(tile, rows, tile_first, a->scale, v);
    float largest[2] = {0, 0};
    uint32_t units[2] = {0, 0};
    int lane = (int)threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < 64; i++) {
        float *s = &tile->s[i / 4][i % 4];
        bool hidden = VARIANT && *s != *s;
        float p = num_probability(*s, top.window[i % 2]);
        units[i % 2] += num_probability_units(p);
        /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
        *s = p * v_unit[i / 4 * 16 + i % 4 / 2 * 8 + lane / 4];
        if (VARIANT) /* a unit may be a NaN, which counts if it is seen */
            *s = hidden ? 0 : *s == *s ? *s : INFINITY;
        largest[i % 2] = fmaxf(largest[i % 2], *s);
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        int e = num_row_exponent(num_bits(rows_max(largest[r])));
        bool bad = top.bad[r] || e > BFP_MAX_EXPONENT;
        if (bad && lane < 4)
            gpu_fault(a->fault, a->site, rows->query[r].token);
        e = bad ? BFP_MIN_EXPONENT : e;
        scale[r] = bad ? 0 : num_pow2f(15 - e);
        rows->unit[r] = num_pow2f(e - 22);
        rows->tile_l[r] = (float)rows_sum(units[r]) * 0x1p-23f;
    }
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

/* A tile's weighted sum of 32 dimensions: merged into o [32, 8], which only this warp uses,
 * dimension by row, or kept: to[r] is where row r's begin. n: positions of the tile that anybody
 * sees. */
template <int DIM>
static __device__ __forceinline__ void
add_values(float *o, float *const to[2], bool merges, const struct weight_digits *w,
           const unsigned char *values, const struct row_pair *rows, int n) {
    struct digit_sums sums[2];
    int lane = (int)threadIdx.x % 32;
    const int column = column_bytes(VALUE_DIMS), low = 16 * VALUE_DIMS;
    const unsigned char *row = values + lane % 16 * 16 + lane / 16 * column;
    clear_sums(&sums[0]);
    clear_sums(&sums[1]);
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
        float2 *at = (float2 *)o + (8 * i + lane / 4) * 4 + lane % 4;
        float2 sum = *at;
        float x = dot_of(&sums[i / 2], i % 2 * 2) * rows->unit[0];
        float y = dot_of(&sums[i / 2], i % 2 * 2 + 1) * rows->unit[1];
        if (!merges) {
            if (to[0])
                to[0][8 * i + lane / 4] = x;
            if (to[1])
                to[1][8 * i + lane / 4] = y;
            continue;
        }
        if (rows->sees[0])
            sum.x = num_merge(sum.x, rows->old_share[0], x, rows->new_share[0]);
        if (rows->sees[1])
            sum.y = num_merge(sum.y, rows->old_share[1], y, rows->new_share[1]);
        *at = sum;
    }
}

/* Sets 2^(e-30) of the keys and 2^e of the values of a tile, a position a thread. */
template <bool VARIANT>
static __device__ __forceinline__ void set_units(float *k_unit, float *v_unit, char2 exponents) {
    int k = exponents.x, v = exponents.y;
    k_unit[threadIdx.x] =
        VARIANT && k == NOT_FINITE ? NAN : num_pow2f(k) * 0x1p-30f; /* may be subnormal */
    v_unit[threadIdx.x] = VARIANT && v == NOT_FINITE ? NAN : num_pow2f(v);
}

/* The memory of a block. */
struct block_memory {
    unsigned char *ring, *queries;
    float *o; /* of this warp: [DIM, 8 rows] */
    float *k_unit, *v_unit;
};

template <int DIM> static __device__ struct block_memory cut_memory(unsigned char *memory) {
    struct block_memory m;
    m.ring = memory;
    m.queries = memory + STAGES * sizes<DIM>::STAGE_BYTES;         /* [ROWS] rows */
    float *o_rows = (float *)(m.queries + group_bytes(ROWS, DIM)); /* [8 warps, DIM, 8 rows] */
    m.o = o_rows + threadIdx.x / 32 * 8 * DIM;
    m.k_unit = o_rows + ROWS * DIM; /* [TILE] */
    m.v_unit = m.k_unit + TILE;     /* [TILE] */
    return m;
}

/* What row r of this lane leaves: its values of all dimensions, m and l. */
template <int DIM>
static __device__ __forceinline__ void keep_row(struct row_result to, const float *o, int r,
                                                float m, float l) {
    int lane = (int)threadIdx.x % 32;
    for (int d = lane / 4; d < DIM && o; d += 8)
        to.values[d] = o[d * 8 + lane % 4 * 2 + r];
    if (lane < 4)
        *(float2 *)to.sums = make_float2(m, l);
}

/* The end of a row: y. */
template <bool VARIANT>
static __device__ __forceinline__ void
finish_row(const struct attention_arguments *a, const struct attention_variant *v,
           const struct wide_row *row, const float *o, int r, float m, float l) {
    int lane = (int)threadIdx.x % 32;
    size_t number = (size_t)row->token * (size_t)a->n_heads + (size_t)row->head;
    float *y = a->y + number * (size_t)a->head_dim, old = 1, fresh = 0;
    if (VARIANT) {
        if (v->sinks) /* a tile of values that are 0 */
            attention_merge_sink(v->sinks[row->head], &m, &l, &old, &fresh);
        if (v->sinks && !attention_sink_is_finite(v->sinks[row->head]))
            gpu_fault(a->fault, a->site, row->token);
        if (lane < 4)
            attention_note_sums(v, number, m, l);
    }
    bool divides = l > 0 && !(VARIANT && v->m);
    for (int d = lane / 4; d < a->head_dim; d += 8) {
        float sum = o[d * 8 + lane % 4 * 2 + r];
        float x = VARIANT && v->sinks ? num_merge(sum, old, 0, fresh) : sum;
        y[d] = (divides ? x / l : x) * a->v_scale;
    }
}

/* The tiles of an item, for the rows of a block. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
run_item(const struct attention_arguments *a, const struct attention_digits *in,
         const struct attention_variant *variant, const struct attention_work *work,
         const struct wide_item *item, const struct block_memory *mem) {
    typedef struct sizes<DIM> size;
    int kv_head = (int)blockIdx.x, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int my_row = warp * 8 + lane % 4 * 2, n_tiles = item->n_tiles;
    size_t group = (size_t)kv_head * (size_t)in->n_groups + (size_t)item->rows;

    /* A group of queries is whole; rows behind the end are not written. */
    const unsigned char *my_queries = mem->queries + warp * 8 * 16;
    const uint8_t *query_group = in->queries + group * (size_t)group_bytes(ROWS, DIM);
    for (int at = (int)threadIdx.x * 16; at < group_bytes(ROWS, DIM); at += THREADS * 16)
        cp_async_16(mem->queries + at, query_group + at);
    struct row_pair rows;
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = min(my_row + r, item->list.n_rows - 1);
        rows.query[r] = wide_row_of<VARIANT>(a, variant, work, &item->list, kv_head, row);
        rows.m[r] = -INFINITY;
        rows.l[r] = 0;
        rows.exponent[r] = in->query_exponents[group * QUERY_ROWS + (size_t)row];
    }
    for (int i = lane; i < 8 * DIM; i += 32)
        mem->o[i] = 0;
    __syncwarp();

    int n_last = min((int)TILE, item->end - (item->first_tile + n_tiles - 1) * TILE);
    size_t first_of_digits = (size_t)kv_head * (size_t)in->n_tiles + (size_t)item->tile;
    struct chunk_ring<size, struct thread_copies> chunks = {};
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

    for (int tile = 0; tile < n_tiles; tile++) {
        int first = (item->first_tile + tile) * TILE, n = min((int)TILE, item->end - first);
        /* Nobody reads the units of the last tile any more: its values came after a barrier. */
        set_units<VARIANT>(mem->k_unit, mem->v_unit, exponents);
        if (tile + 1 < n_tiles)
            exponents = tile_exponents[(tile + 1) * TILE];
        struct tile_scores scores;
        UNROLL
        for (int c = 0; c < TILE; c += size::KEYS) {
            if (c >= n) { /* nobody sees them */
                hide<size::KEYS>(scores.s + c / 16);
                continue;
            }
            const unsigned char *keys = chunks.next();
            UNROLL
            for (int i = 0; i < size::KEYS; i += 32)
                score_32_keys<DIM>(scores.s + (c + i) / 16, my_queries, keys + i * 16,
                                   mem->k_unit + c + i);
        }
        if (VARIANT)
            vary(&scores, first, &rows, a->scale, variant);
        else if (first + TILE > min(rows.query[0].end, rows.query[1].end))
            mask(&scores, first, &rows);
        float scale[2];
        softmax<VARIANT>(&scores, scale, &rows, first, mem->v_unit, a, variant);
        struct weight_digits weights;
        snap_weights(&weights, &scores, scale);
        struct row_result kept[2] = {};
        UNROLL
        for (int r = 0; r < 2; r++) {
            if (!item->merges && my_row + r < item->list.n_rows)
                kept[r] = kept_at<DIM>(a, work, item->place + tile, kv_head, my_row + r);
            if (item->merges && rows.sees[r])
                attention_merge_sums(&rows.m[r], &rows.l[r], rows.tile_m[r], rows.tile_l[r],
                                     &rows.old_share[r], &rows.new_share[r]);
            if (kept[r].values)
                keep_row<DIM>(kept[r], NULL, r, rows.sees[r] ? rows.tile_m[r] : NAN,
                              rows.tile_l[r]);
        }
        for (int d = 0; d < DIM; d += VALUE_DIMS) {
            float *to[2] = {kept[0].values ? kept[0].values + d : NULL,
                            kept[1].values ? kept[1].values + d : NULL};
            add_values<DIM>(mem->o + d * 8, to, item->merges, &weights, chunks.next(), &rows, n);
        }
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        if (my_row + r >= item->list.n_rows)
            continue;
        if (item->place < 0)
            finish_row<VARIANT>(a, variant, &rows.query[r], mem->o, r, rows.m[r], rows.l[r]);
        else if (item->merges)
            keep_row<DIM>(kept_at<DIM>(a, work, item->place, kv_head, my_row + r), mem->o, r,
                          rows.m[r], rows.l[r]);
    }
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
        struct wide_item item = item_of(&a, &work, &in, i);
        run_item<DIM, VARIANT>(&a, &in, &variant, &work, &item, &mem);
    }
}

template <int DIM, bool VARIANT>
static void launch(struct gpu_device *gpu, const struct attention_arguments *a,
                   const struct kv_views *kv, const struct attention_variant *variant,
                   const struct attention_work *work) {
    typedef struct sizes<DIM> size;
    struct attention_digits d = {};
    struct attention_work all = {};
    d.dim = DIM;
    d.keys = size::KEYS;
    d.value_dims = VALUE_DIMS;
    if (work)
        all = *work;
    if (!gpu_attention_digits(gpu, a, kv, work, &d) ||
        !gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)attention_2<DIM, VARIANT>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    GPU_LAUNCH(gpu, (attention_2<DIM, VARIANT>), gpu_attention_grid(gpu, a, work, &d), THREADS,
               size::SHARED_BYTES, *a, d, *variant, all);
}

int gpu_attention_prefill_bytes(int head_dim) {
    return head_dim <= 32    ? sizes<32>::SHARED_BYTES
           : head_dim <= 64  ? sizes<64>::SHARED_BYTES
           : head_dim <= 96  ? sizes<96>::SHARED_BYTES
           : head_dim <= 128 ? sizes<128>::SHARED_BYTES
           : head_dim <= 192 ? sizes<192>::SHARED_BYTES
                             : sizes<256>::SHARED_BYTES;
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

void gpu_attention_prefill(struct gpu_device *gpu, const struct attention_arguments *a,
                           const struct kv_views *kv, const struct attention_variant *variant,
                           const struct attention_work *work) {
    int dim = a->head_dim;
    bool keeps = work && work->kept; /* rows of wide_dim */
    if (!gpu_attention_is_plain(kv, variant))
        launch_wide<true>(gpu, a, kv, variant, work);
    else if (!keeps && dim <= 32)
        launch<32, false>(gpu, a, kv, variant, work);
    else if (!keeps && dim > 64 && dim <= 96)
        launch<96, false>(gpu, a, kv, variant, work);
    else if (!keeps && dim > 128 && dim <= 192)
        launch<192, false>(gpu, a, kv, variant, work);
    else
        launch_wide<false>(gpu, a, kv, variant, work);
}
