/*
 * attention, version 3: many query tokens at once, on the int8 tensor cores of compute capability
 * 9.0, which multiply 64 rows at a time straight from shared memory.
 *
 * What changed from version 2 (attention_prefill.cu, read it first): there each of eight warps
 * loaded all keys and values into its registers, piece by piece, and the loads were the limit. Here
 * four warps share one load, and the processor's tensor cores run while its threads do something
 * else. Rows are the rows of the product, as in the textbook: 64 rows in 128 threads.
 *
 *     block   64 rows, one group of 4 warps; walks the tiles of 256 positions in ascending order.
 *             Two blocks share a processor: one multiplies while the other takes exponentials
 *     scores  32 keys at a time, from shared memory; the 64 x 256 of a tile stay in registers,
 *             128 per thread
 *     values  64 dimensions at a time; the weights come from registers
 *     output  its sums are in shared memory, where each thread keeps its own
 *
 * The idea of two groups that take turns: Shah et al., "FlashAttention-3", 2024.
 */
#include "gpu/attention.h"
#include "gpu/attention_ring.h"
#include "gpu/warpgroup.h"

enum {
    TILE = ATTENTION_TILE,
    ROWS = QUERY_ROWS,
    KEYS = 64,
    VALUE_DIMS = 64,
    THREADS = 128,
    STAGES = 3
};

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 64. */
template <int DIM> struct warpgroup_sizes {
    static const int STAGES = ::STAGES;
    static const int KEY_BYTES = group_bytes(KEYS, DIM), KEY_CHUNKS = TILE / KEYS;
    static const int VALUE_BYTES = group_bytes(VALUE_DIMS, TILE / 2); /* half of the positions */
    static const int VALUE_CHUNKS = DIM / VALUE_DIMS * 2;
    static const int STAGE_BYTES = KEY_BYTES > VALUE_BYTES ? KEY_BYTES : VALUE_BYTES;
    static const int SHARED_BYTES = STAGES * STAGE_BYTES + group_bytes(ROWS, DIM) + 4 * ROWS * DIM +
                                    20 * TILE + STAGES * (int)sizeof(struct bulk_barrier);
};

/* One thread starts the copy of a whole chunk; a stage's barrier says when it is there. */
struct bulk_copies {
    struct bulk_barrier *arrived; /* [STAGES], in shared memory */
    unsigned rounds;              /* bit i: how often stage i was waited for, modulo 2 */

    template <int BYTES>
    __device__ __forceinline__ void start(unsigned char *to, const uint8_t *from, int stage) {
        if (threadIdx.x == 0)
            bulk_copy_last(&arrived[stage], to, from, BYTES);
    }
    __device__ __forceinline__ void end_group() {
        bulk_end_group();
    }
    __device__ __forceinline__ void wait(int stage) {
        bulk_wait<STAGES - 2>(&arrived[stage], rounds >> stage & 1);
        rounds ^= 1u << stage;
    }
};

/* Sums of products of digits, 64 by 2 * COUNT of them in a block. */
template <int COUNT> struct digit_sums { int32_t high[COUNT], middle[COUNT], low[COUNT]; };

template <int COUNT> static __device__ __forceinline__ void settle(struct digit_sums<COUNT> *s) {
    wgmma_settle(s->high);
    wgmma_settle(s->middle);
    wgmma_settle(s->low);
}

/*
 * (65536 * high + 256 * middle + low) * unit.factor, exact, for powers of two: the bits of 1.5 *
 * 2^52 plus a small integer i are those of 1.5 * 2^52 + i, so no integer is converted; and a fused
 * multiply-add takes the constant off again while it scales.
 */
struct __align__(16) unit {
    double factor, offset; /* offset = -1.5 * 2^52 * factor */
};

static __device__ __forceinline__ struct unit unit_of(double factor) {
    return {factor, -0x1.8p52 * factor};
}

static __device__ __forceinline__ double scaled_dot(int32_t high, int32_t middle, int32_t low,
                                                    struct unit unit) {
    uint64_t bits = (uint64_t)0x43380000u << 32 | (uint32_t)low;
    return fma(__longlong_as_double((long long)bits + (long long)(high * 256 + middle) * 256),
               unit.factor, unit.offset);
}

/*
 * What a thread holds of its block's 64 rows by 256 positions, where lane = 4 g + t: s[i][j] is
 * position 8 i + 2 t + j % 2 of row g + j / 2 * 8 of its warp. First scores, then weights.
 */
struct tile_scores {
    float s[32][4];
};

/* What a thread knows of its two rows. */
struct row_pair {
    struct wide_row query[2];
    float m[2], l[2];                 /* of the tiles so far */
    bool sees[2];                     /* something of this tile, */
    float tile_m[2], tile_l[2];       /* which are its own, */
    float old_share[2], new_share[2]; /* and what both count for in the merge */
    struct unit unit[2];              /* 2^(e-30) of the tile's weights */
};

/* The scores of 32 keys of a group: s[0..3] of a tile_scores. */
template <int DIM>
static __device__ __forceinline__ void
score_32_keys(float s[4][4], const unsigned char *queries, const unsigned char *keys,
              const struct unit *k_unit, const double q_unit[2]) {
    const int q_column = column_bytes(ROWS), k_column = column_bytes(KEYS);
    struct digit_sums<16> sums;
    auto q_high = shared_matrix_at(queries, q_column);
    auto q_low = shared_matrix_at(queries + 16 * ROWS, q_column);
    auto k_high = shared_matrix_at(keys, k_column);
    auto k_low = shared_matrix_at(keys + 16 * KEYS, k_column);
    wgmma_begin();
    wgmma_s8_s8<false>(sums.high, q_high, k_high);
    wgmma_s8_u8<false>(sums.middle, q_high, k_low);
    wgmma_u8_s8<true>(sums.middle, q_low, k_high);
    wgmma_u8_u8<false>(sums.low, q_low, k_low);
    UNROLL
    for (int c = 2; c < DIM / 16; c += 2) {
        auto qh = shared_matrix_skip(q_high, c, q_column),
             ql = shared_matrix_skip(q_low, c, q_column);
        auto kh = shared_matrix_skip(k_high, c, k_column),
             kl = shared_matrix_skip(k_low, c, k_column);
        wgmma_s8_s8<true>(sums.high, qh, kh);
        wgmma_s8_u8<true>(sums.middle, qh, kl);
        wgmma_u8_s8<true>(sums.middle, ql, kh);
        wgmma_u8_u8<true>(sums.low, ql, kl);
    }
    wgmma_end();
    settle(&sums);
    UNROLL
    for (int i = 0; i < 16; i++) {
        struct unit unit = k_unit[i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
        /* num_score, whose first product is exact */
        s[i / 4][i % 4] = (float)(scaled_dot(sums.high[i], sums.middle[i], sums.low[i], unit) *
                                  q_unit[i / 2 % 2]);
    }
}

/* What 32 keys that no row sees have instead of scores. Also for the compiler: registers that are
 * not set on every way through the loop would be kept all the way round it. */
static __device__ __forceinline__ void hide(float s[4][4]) {
    UNROLL
    for (int i = 0; i < 16; i++)
        s[i / 4][i % 4] = -INFINITY;
}

/* Scores of positions that a row does not see become -infinity, which has weight 0. */
static __device__ __forceinline__ void mask(struct tile_scores *tile, int tile_first,
                                            const struct row_pair *rows) {
    int first = tile_first + (int)threadIdx.x % 4 * 2;
    UNROLL
    for (int i = 0; i < 128; i++)
        if (first + i / 4 * 8 + i % 2 >= rows->query[i / 2 % 2].end)
            tile->s[i / 4][i % 4] = -INFINITY;
}

/* The same with a variant, which also changes scores. */
static __device__ __forceinline__ void vary(struct tile_scores *tile, int tile_first,
                                            const struct row_pair *rows,
                                            const struct attention_variant *v) {
    int first = tile_first + (int)threadIdx.x % 4 * 2;
    UNROLL
    for (int i = 0; i < 128; i++) {
        float *s = &tile->s[i / 4][i % 4];
        *s = varied_score(&rows->query[i / 2 % 2], v, *s, first + i / 4 * 8 + i % 2);
    }
}

/* Maximum and sum over the four lanes that share a row. */
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ uint32_t quad_sum(uint32_t x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/*
 * A tile's softmax: scores become weights, scale[r] what snaps them. A row that sees nothing of the
 * tile gets zero weights. Positions from n on, nobody sees. Rows that cannot be snapped are faults.
 */
template <bool VARIANT>
static __device__ __forceinline__ void
softmax(struct tile_scores *tile, float scale[2], struct row_pair *rows, int tile_first, int n,
        const float *v_unit, const struct attention_arguments *a) {
    float m[2] = {-INFINITY, -INFINITY}, base[2], largest[2] = {0, 0};
    uint32_t units[2] = {0, 0};
    bool bad[2];
    UNROLL
    for (int i = 0; i < 128; i++)
        m[i / 2 % 2] = fmaxf(m[i / 2 % 2], tile->s[i / 4][i % 4]);
    UNROLL
    for (int r = 0; r < 2; r++) {
        m[r] = quad_max(m[r]);
        rows->sees[r] = VARIANT ? m[r] > -INFINITY : rows->query[r].end > tile_first;
        /* A score that float32 cannot hold. */
        bad[r] = rows->sees[r] && (m[r] == INFINITY || m[r] == -INFINITY);
        base[r] = rows->sees[r] && !bad[r] ? m[r] : 0;
    }
    UNROLL
    for (int c = 0; c < TILE; c += KEYS) {
        UNROLL
        for (int i = c / 8; i < (c + KEYS) / 8; i++) {
            const float2 unit = *(const float2 *)(v_unit + 8 * i + threadIdx.x % 4 * 2);
            UNROLL
            for (int j = 0; j < 4; j++) {
                float *s = &tile->s[i][j];
                if (c >= n) { /* nobody sees them */
                    *s = 0;
                    continue;
                }
                bool hidden = VARIANT && *s == -INFINITY;
                float p = num_exp_below_0(*s - base[j / 2]);
                /* num_probability_units; the bits of 2^23 come off below */
                units[j / 2] += num_bits(fmaf(p, 8388608.0f, 8388608.0f));
                /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
                *s = p * (j % 2 ? unit.y : unit.x);
                if (VARIANT) { /* a unit may be a NaN, which counts if it is seen */
                    *s = hidden ? 0 : *s == *s ? *s : INFINITY;
                }
                largest[j / 2] = fmaxf(largest[j / 2], *s);
            }
        }
        for (int r = 0; r < 2; r++)
            units[r] -= c < n ? KEYS / 4 * num_bits(8388608.0f) : 0;
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        int e = num_row_exponent(num_bits(quad_max(largest[r])));
        bad[r] = bad[r] || e > BFP_MAX_EXPONENT;
        if (bad[r] && threadIdx.x % 4 == 0)
            gpu_fault(a->fault, a->site, rows->query[r].token);
        e = bad[r] ? BFP_MIN_EXPONENT : e;
        scale[r] = bad[r] ? 0 : num_pow2f(15 - e);
        rows->unit[r] = unit_of(num_pow2(e - 30));
        rows->tile_m[r] = m[r];
        rows->tile_l[r] = (float)quad_sum(units[r]) * 0x1p-23f;
    }
}

/* The snapped weights of a tile as digits, for 8 times 32 positions, as wgmma takes them. */
struct weight_digits {
    uint32_t high[8][4], low[8][4];
};

static __device__ __forceinline__ void
snap_weights(struct weight_digits *out, const struct tile_scores *tile, const float scale[2]) {
    UNROLL
    for (int i = 0; i < 8; i++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        /* a[j]: row g + j % 2 * 8, its positions in two neighbours of the scores. Mantissas in the
         * low 16 bits: num_rint with the shift left in. */
        const float *s = tile->s[4 * i + j / 2 * 2] + j % 2 * 2;
        const float *t = tile->s[4 * i + j / 2 * 2 + 1] + j % 2 * 2;
        uint32_t two = __byte_perm(num_bits(fmaf(s[0], scale[j % 2], 12582912.0f)),
                                   num_bits(fmaf(s[1], scale[j % 2], 12582912.0f)), 0x5410);
        uint32_t more = __byte_perm(num_bits(fmaf(t[0], scale[j % 2], 12582912.0f)),
                                    num_bits(fmaf(t[1], scale[j % 2], 12582912.0f)), 0x5410);
        out->low[i][j] = __byte_perm(two, more, 0x6420);
        out->high[i][j] = __byte_perm(two, more, 0x7531);
    }
}

/* The four products of digits of 32 positions. */
template <bool ADD>
static __device__ __forceinline__ void
multiply_digits(struct digit_sums<32> *sums, const uint32_t high[4], const uint32_t low[4],
                shared_matrix v_high, shared_matrix v_low) {
    wgmma_s8_s8<ADD>(sums->high, high, v_high);
    wgmma_s8_u8<ADD>(sums->middle, high, v_low);
    wgmma_u8_s8<true>(sums->middle, low, v_high);
    wgmma_u8_u8<ADD>(sums->low, low, v_low);
}

/* Multiplies the weights of 128 positions with 64 dimensions of their values, adding to the sums of
 * the first half of the tile if ADD. */
template <bool ADD>
static __device__ __forceinline__ void
multiply_values(struct digit_sums<32> *sums, const uint32_t high[4][4], const uint32_t low[4][4],
                const unsigned char *values) {
    const int column = column_bytes(VALUE_DIMS);
    auto v_high = shared_matrix_at(values, column);
    auto v_low = shared_matrix_at(values + 16 * VALUE_DIMS, column);
    wgmma_begin();
    multiply_digits<ADD>(sums, high[0], low[0], v_high, v_low);
    UNROLL
    for (int k = 1; k < 4; k++)
        multiply_digits<true>(sums, high[k], low[k], shared_matrix_skip(v_high, 2 * k, column),
                              shared_matrix_skip(v_low, 2 * k, column));
    wgmma_end();
    settle(sums);
}

/* What a thread has of the values of its rows, in float32: merges a tile's weighted sums of 64
 * dimensions into it. o[i] at i * THREADS has dimensions 8 i + 2 t and 8 i + 2 t + 1 of both rows.
 */
static __device__ __forceinline__ void add_values(float4 *o, const struct digit_sums<32> *sums,
                                                  const struct row_pair *rows) {
    UNROLL
    for (int i = 0; i < 8; i++) {
        float4 old = o[i * THREADS], sum;
        float x[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            x[j] = (float)scaled_dot(sums->high[4 * i + j], sums->middle[4 * i + j],
                                     sums->low[4 * i + j], rows->unit[j / 2]);
        sum.x = old.x * rows->old_share[0] + x[0] * rows->new_share[0];
        sum.y = old.y * rows->old_share[0] + x[1] * rows->new_share[0];
        sum.z = old.z * rows->old_share[1] + x[2] * rows->new_share[1];
        sum.w = old.w * rows->old_share[1] + x[3] * rows->new_share[1];
        o[i * THREADS] = make_float4(rows->sees[0] ? sum.x : old.x, rows->sees[0] ? sum.y : old.y,
                                     rows->sees[1] ? sum.z : old.z, rows->sees[1] ? sum.w : old.w);
    }
}

/* Keeps them instead: to[r] is where row r's 64 dimensions go. */
static __device__ __forceinline__ void
keep_values(float *const to[2], const struct digit_sums<32> *sums, const struct row_pair *rows) {
    UNROLL
    for (int i = 0; i < 8; i++)
        UNROLL
    for (int r = 0; r < 2; r++) {
        float x[2];
        UNROLL
        for (int j = 0; j < 2; j++)
            x[j] = (float)scaled_dot(sums->high[4 * i + 2 * r + j], sums->middle[4 * i + 2 * r + j],
                                     sums->low[4 * i + 2 * r + j], rows->unit[r]);
        if (to[r])
            *(float2 *)(to[r] + 8 * i + threadIdx.x % 4 * 2) = make_float2(x[0], x[1]);
    }
}

/* Sets 2^exponent of the keys and the values of a tile, two positions a thread. */
template <bool VARIANT>
static __device__ __forceinline__ void set_units(struct unit *k_unit, float *v_unit,
                                                 char4 exponents) {
    const signed char e[4] = {exponents.x, exponents.y, exponents.z, exponents.w};
    UNROLL
    for (int j = 0; j < 2; j++) {
        bool k_bad = VARIANT && e[2 * j] == NOT_FINITE,
             v_bad = VARIANT && e[2 * j + 1] == NOT_FINITE;
        k_unit[2 * threadIdx.x + j] = unit_of(k_bad ? NAN : num_pow2(e[2 * j]));
        v_unit[2 * threadIdx.x + j] = v_bad ? NAN : num_pow2f(e[2 * j + 1]);
    }
}

/* The memory of a block. */
struct block_memory {
    unsigned char *ring, *queries;
    float4 *o; /* of this thread: [DIM / 8] every THREADS */
    struct unit *k_unit;
    float *v_unit;
    struct bulk_barrier *arrived;
};

template <int DIM> static __device__ struct block_memory cut_memory(unsigned char *memory) {
    typedef struct warpgroup_sizes<DIM> size;
    struct block_memory m;
    m.ring = memory;
    m.queries = memory + STAGES * size::STAGE_BYTES; /* [ROWS] rows */
    float4 *o = (float4 *)(m.queries + group_bytes(ROWS, DIM));
    m.o = o + threadIdx.x;
    m.k_unit = (struct unit *)(o + DIM / 8 * THREADS); /* [TILE] */
    m.v_unit = (float *)(m.k_unit + TILE);             /* [TILE] */
    m.arrived = (struct bulk_barrier *)(m.v_unit + TILE);
    return m;
}

/* What a thread's row leaves: its values of all dimensions, m and l. */
template <int DIM>
static __device__ __forceinline__ void keep_row(float *to, const float4 *o, int r, float m,
                                                float l) {
    int t = (int)threadIdx.x % 4;
    for (int i = 0; i < DIM / 8 && o; i++) {
        const float *sum = (const float *)&o[i * THREADS] + 2 * r;
        *(float2 *)(to + 8 * i + 2 * t) = make_float2(sum[0], sum[1]);
    }
    if (t == 0)
        *(float2 *)(to + DIM) = make_float2(m, l);
}

/* The end of a row: y. */
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
    bool divides = l > 0 && !(VARIANT && v->m);
    for (int i = 0; i < DIM / 8; i++) {
        const float *sum = (const float *)&o[i * THREADS] + 2 * r;
        for (int j = 0; j < 2; j++) {
            int d = 8 * i + 2 * t + j;
            float x = VARIANT && v->sinks ? sum[j] * old + 0.0f * fresh : sum[j];
            if (d < a->head_dim)
                y[d] = divides ? x / l : x;
        }
    }
}

/* The tiles of an item, for the rows of a block. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
run_item(const struct attention_arguments *a, const struct attention_digits *in,
         const struct attention_variant *variant, const struct attention_work *work,
         const struct wide_task *task, const struct block_memory *mem, struct bulk_copies *copies) {
    typedef struct warpgroup_sizes<DIM> size;
    const struct wide_item *item = &task->item;
    int kv_head = (int)blockIdx.x, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int my_row = warp * 16 + lane / 4, n_tiles = item->n_tiles;
    int least_visible = INT32_MAX; /* of the rows of this thread's warp */
    size_t group = (size_t)kv_head * (size_t)in->n_groups + (size_t)item->rows;
    struct row_pair rows;
    double q_unit[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = min(my_row + 8 * r, task->rows.n_rows - 1);
        rows.query[r] = wide_row_of<VARIANT>(a, variant, work, &task->rows, kv_head, row);
        least_visible = min(least_visible, rows.query[r].end);
        rows.m[r] = -INFINITY;
        rows.l[r] = 0;
        q_unit[r] = num_pow2(in->query_exponents[group * QUERY_ROWS + (size_t)row] - 30) * a->scale;
    }
    for (int i = 0; i < DIM / 8; i++)
        mem->o[i * THREADS] = make_float4(0, 0, 0, 0);

    int n_last = min((int)TILE, task->end - (item->first_tile + n_tiles - 1) * TILE);
    struct chunk_ring<size, struct bulk_copies> chunks = {};
    chunks.copies = *copies;
    chunks.from = in->tiles + ((size_t)kv_head * (size_t)in->n_tiles + (size_t)item->tile) *
                                  (size_t)tile_bytes(DIM);
    chunks.ring = mem->ring;
    chunks.tiles_left = n_tiles;
    chunks.n_last = (n_last + KEYS - 1) / KEYS;
    if (threadIdx.x == 0 && n_tiles) /* the queries come with the first chunk */
        bulk_copy(&chunks.copies.arrived[0], mem->queries,
                  in->queries + group * (size_t)group_bytes(ROWS, DIM), group_bytes(ROWS, DIM));
    for (int i = 0; i < STAGES - 1; i++)
        chunks.start();
    /* The exponents of two positions a thread, fetched one tile ahead. */
    const char4 *tile_exponents =
        (const char4 *)(in->exponents +
                        2 * ((size_t)kv_head * (size_t)in->n_tiles + (size_t)item->tile) * TILE) +
        threadIdx.x;
    char4 exponents = n_tiles ? tile_exponents[0] : make_char4(0, 0, 0, 0);

    for (int k = 0; k < n_tiles; k++) {
        int first = (item->first_tile + k) * TILE, n = min((int)TILE, task->end - first);
        /* Nobody reads the units of the last tile any more: its values came after a barrier. */
        set_units<VARIANT>(mem->k_unit, mem->v_unit, exponents);
        if (k + 1 < n_tiles)
            exponents = tile_exponents[(k + 1) * (TILE / 2)];
        struct tile_scores scores;
        UNROLL
        for (int c = 0; c < TILE; c += KEYS) {
            const unsigned char *keys = c < n ? chunks.next() : NULL; /* else nobody sees them */
            UNROLL
            for (int i = c; i < c + KEYS; i += 32)
                if (keys)
                    score_32_keys<DIM>(scores.s + i / 8, mem->queries, keys + (i - c) * 16,
                                       mem->k_unit + i, q_unit);
                else
                    hide(scores.s + i / 8);
        }
        if (VARIANT)
            vary(&scores, first, &rows, variant);
        else if (first + TILE > least_visible)
            mask(&scores, first, &rows);
        float scale[2];
        softmax<VARIANT>(&scores, scale, &rows, first, n, mem->v_unit, a);
        struct weight_digits weights;
        snap_weights(&weights, &scores, scale);
        float *kept[2];
        UNROLL
        for (int r = 0; r < 2; r++) {
            int row = my_row + 8 * r;
            kept[r] = !item->merges && row < task->rows.n_rows
                          ? kept_at<DIM>(a, work, item->place + k, kv_head, row)
                          : NULL;
            if (item->merges && rows.sees[r])
                attention_merge_sums(&rows.m[r], &rows.l[r], rows.tile_m[r], rows.tile_l[r],
                                     &rows.old_share[r], &rows.new_share[r]);
            if (kept[r])
                keep_row<DIM>(kept[r], NULL, r, rows.sees[r] ? rows.tile_m[r] : NAN,
                              rows.tile_l[r]);
        }
        for (int d = 0; d < DIM; d += VALUE_DIMS) {
            struct digit_sums<32> sums;
            multiply_values<false>(&sums, weights.high, weights.low, chunks.next());
            const unsigned char *second_half = chunks.next();
            if (n > TILE / 2)
                multiply_values<true>(&sums, weights.high + 4, weights.low + 4, second_half);
            if (item->merges) {
                add_values(mem->o + d / 8 * THREADS, &sums, &rows);
            } else {
                keep_values(kept, &sums, &rows);
                kept[0] = kept[0] ? kept[0] + VALUE_DIMS : NULL;
                kept[1] = kept[1] ? kept[1] + VALUE_DIMS : NULL;
            }
        }
    }
    *copies = chunks.copies;
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = my_row + 8 * r;
        if (row >= task->rows.n_rows)
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
    struct block_memory mem = cut_memory<DIM>(memory);
    struct bulk_copies copies = {mem.arrived, 0};
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++)
            bulk_barrier_start(&mem.arrived[i]);
    int n = work.items ? work.counts[COUNT_ITEMS] : in.n_groups;
    for (int i = (int)blockIdx.y; i < n; i += (int)gridDim.y) {
        __syncthreads(); /* the barriers are ready; all are done with the queries of the item before
                          */
        struct wide_task task = wide_task_of<VARIANT>(&a, &variant, &work, &in, i);
        run_item<DIM, VARIANT>(&a, &in, &variant, &work, &task, &mem, &copies);
    }
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
    if (work)
        all = *work;
    if (!gpu_attention_digits(gpu, a, kv, variant, work, &d) ||
        !gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)attention_3<DIM, VARIANT>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    GPU_LAUNCH(gpu, (attention_3<DIM, VARIANT>), gpu_attention_grid(gpu, a, work, &d), THREADS,
               size::SHARED_BYTES, *a, d, *variant, all);
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
    if (!gpu_attention_is_plain(kv, variant))
        launch_wide<true>(gpu, a, kv, variant, work);
    else if (!work && a->head_dim > 128 && a->head_dim <= 192)
        launch<192, false>(gpu, a, kv, variant, work);
    else
        launch_wide<false>(gpu, a, kv, variant, work);
}
