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
    int visible[2];                   /* positions that the row sees in all */
    float m[2], l[2];                 /* of the tiles so far */
    float old_share[2], new_share[2]; /* of the merge with this tile */
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
                                            const int visible[2]) {
    int first = tile_first + (int)threadIdx.x % 4 * 2;
    UNROLL
    for (int i = 0; i < 128; i++)
        if (first + i / 4 * 8 + i % 2 >= visible[i / 2 % 2])
            tile->s[i / 4][i % 4] = -INFINITY;
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

/* Merges the tile's maximum and its sum into those of the row; sets the shares for the output. */
static __device__ __forceinline__ void merge(struct row_pair *rows, int r, float m, float l) {
    float max = rows->m[r] > m ? rows->m[r] : m;
    rows->old_share[r] = num_exp(rows->m[r] - max);
    rows->new_share[r] = num_exp(m - max);
    rows->l[r] = rows->l[r] * rows->old_share[r] + l * rows->new_share[r];
    rows->m[r] = max;
}

/*
 * A tile's softmax: scores become weights, scale[r] what snaps them. A row that sees nothing of the
 * tile gets zero weights and keeps what it has. Positions from n on, nobody sees. Rows that cannot
 * be snapped are faults of the tokens token[r].
 */
static __device__ __forceinline__ void softmax(struct tile_scores *tile, float scale[2],
                                               struct row_pair *rows, int tile_first, int n,
                                               const float *v_unit, const int token[2],
                                               const struct attention_arguments *a) {
    float m[2] = {-INFINITY, -INFINITY}, base[2], largest[2] = {0, 0};
    uint32_t units[2] = {0, 0};
    bool sees[2], bad[2];
    UNROLL
    for (int i = 0; i < 128; i++)
        m[i / 2 % 2] = fmaxf(m[i / 2 % 2], tile->s[i / 4][i % 4]);
    UNROLL
    for (int r = 0; r < 2; r++) {
        m[r] = quad_max(m[r]);
        sees[r] = rows->visible[r] > tile_first;
        /* A score that float32 cannot hold. */
        bad[r] = sees[r] && (m[r] == INFINITY || m[r] == -INFINITY);
        base[r] = sees[r] && !bad[r] ? m[r] : 0;
    }
    UNROLL
    for (int c = 0; c < TILE; c += KEYS) {
        UNROLL
        for (int i = c / 8; i < (c + KEYS) / 8; i++) {
            const float2 unit = *(const float2 *)(v_unit + 8 * i + threadIdx.x % 4 * 2);
            UNROLL
            for (int j = 0; j < 4; j++) {
                if (c >= n) { /* nobody sees them */
                    tile->s[i][j] = 0;
                    continue;
                }
                float p = num_exp_below_0(tile->s[i][j] - base[j / 2]);
                /* num_probability_units; the bits of 2^23 come off below */
                units[j / 2] += num_bits(fmaf(p, 8388608.0f, 8388608.0f));
                /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
                tile->s[i][j] = p * (j % 2 ? unit.y : unit.x);
                largest[j / 2] = fmaxf(largest[j / 2], tile->s[i][j]);
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
            gpu_fault(a->fault, a->site, a->first_token + token[r]);
        e = bad[r] ? BFP_MIN_EXPONENT : e;
        scale[r] = bad[r] ? 0 : num_pow2f(15 - e);
        rows->unit[r] = unit_of(num_pow2(e - 30));
        float l = (float)quad_sum(units[r]) * 0x1p-23f;
        if (sees[r])
            merge(rows, r, m[r], l);
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

/* Merges a tile's weighted sums of 64 dimensions into this thread's part of the output: o[i] at
 * i * THREADS has dimensions 8 i + 2 t and 8 i + 2 t + 1 of both rows. */
static __device__ __forceinline__ void add_values(float4 *o, const struct digit_sums<32> *sums,
                                                  const struct row_pair *rows, int tile_first) {
    bool sees[2] = {rows->visible[0] > tile_first, rows->visible[1] > tile_first};
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
        o[i * THREADS] = make_float4(sees[0] ? sum.x : old.x, sees[0] ? sum.y : old.y,
                                     sees[1] ? sum.z : old.z, sees[1] ? sum.w : old.w);
    }
}

/* Sets 2^exponent of the keys and the values of a tile, two positions a thread. */
static __device__ __forceinline__ void set_units(struct unit *k_unit, float *v_unit,
                                                 char4 exponents) {
    k_unit[2 * threadIdx.x] = unit_of(num_pow2(exponents.x));
    k_unit[2 * threadIdx.x + 1] = unit_of(num_pow2(exponents.z));
    ((float2 *)v_unit)[threadIdx.x] = make_float2(num_pow2f(exponents.y), num_pow2f(exponents.w));
}

template <int DIM>
__global__ static void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2)
    attention_3(struct attention_arguments a, struct attention_digits in) {
    typedef struct warpgroup_sizes<DIM> size;
    SHARED_DYNAMIC(unsigned char, memory);
    unsigned char *queries = memory + STAGES * size::STAGE_BYTES;           /* [ROWS] rows */
    float4 *o = (float4 *)(queries + group_bytes(ROWS, DIM)) + threadIdx.x; /* [DIM / 8, THREADS] */
    struct unit *k_unit =
        (struct unit *)(queries + group_bytes(ROWS, DIM) + 4 * ROWS * DIM); /* [TILE] */
    float *v_unit = (float *)(k_unit + TILE);                               /* [TILE] */
    int kv_head = (int)blockIdx.x, group = a.n_heads / a.n_kv_heads;
    int row_group = (int)(gridDim.y - 1 - blockIdx.y); /* those with most to see go first */
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, last_row = in.n_rows - 1;
    int first_row = row_group * ROWS + warp * 16 + lane / 4;

    int before = a.kv_len - a.n_tokens, token[2];
    struct row_pair rows;
    double q_unit[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = min(first_row + 8 * r, last_row);
        token[r] = row / group;
        rows.visible[r] = before + token[r] + 1;
        rows.m[r] = -INFINITY;
        rows.l[r] = 0;
        q_unit[r] =
            num_pow2(in.query_exponents[(size_t)kv_head * (size_t)in.n_rows + (size_t)row] - 30) *
            a.scale;
    }
    for (int i = 0; i < DIM / 8; i++)
        o[i * THREADS] = make_float4(0, 0, 0, 0);

    int block_visible = before + min(row_group * ROWS + ROWS - 1, last_row) / group + 1;
    int least_visible = before + row_group * ROWS / group + 1; /* of any row of the block */
    int n_tiles = block_visible <= 0 ? 0 : (block_visible + TILE - 1) / TILE;
    int n_last = block_visible - (n_tiles - 1) * TILE;
    struct chunk_ring<size, struct bulk_copies> chunks = {};
    chunks.copies.arrived = (struct bulk_barrier *)(v_unit + TILE);
    chunks.from = in.tiles + (size_t)kv_head * (size_t)in.n_tiles * tile_bytes(DIM);
    chunks.ring = memory;
    chunks.tiles_left = n_tiles;
    chunks.n_last = (n_last + KEYS - 1) / KEYS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            bulk_barrier_start(&chunks.copies.arrived[i]);
        if (n_tiles) /* the queries come with the first chunk */
            bulk_copy(&chunks.copies.arrived[0], queries,
                      in.queries + ((size_t)kv_head * gridDim.y + (size_t)row_group) *
                                       (size_t)group_bytes(ROWS, DIM),
                      group_bytes(ROWS, DIM));
    }
    __syncthreads();
    for (int i = 0; i < STAGES - 1; i++)
        chunks.start();
    /* The exponents of two positions a thread, fetched one tile ahead. */
    const char4 *tile_exponents =
        (const char4 *)(in.exponents + 2 * (size_t)kv_head * (size_t)in.n_tiles * TILE) +
        threadIdx.x;
    char4 exponents = n_tiles ? tile_exponents[0] : make_char4(0, 0, 0, 0);

    for (int tile = 0; tile < n_tiles; tile++) {
        int first = tile * TILE, n = min(TILE, block_visible - first);
        /* Nobody reads the units of the last tile any more: its values came after a barrier. */
        set_units(k_unit, v_unit, exponents);
        if (tile + 1 < n_tiles)
            exponents = tile_exponents[(tile + 1) * (TILE / 2)];
        struct tile_scores scores;
        UNROLL
        for (int c = 0; c < TILE; c += KEYS) {
            const unsigned char *keys = c < n ? chunks.next() : NULL; /* else nobody sees them */
            UNROLL
            for (int i = c; i < c + KEYS; i += 32)
                if (keys)
                    score_32_keys<DIM>(scores.s + i / 8, queries, keys + (i - c) * 16, k_unit + i,
                                       q_unit);
                else
                    hide(scores.s + i / 8);
        }
        if (first + TILE > least_visible)
            mask(&scores, first, rows.visible);
        float scale[2];
        softmax(&scores, scale, &rows, first, n, v_unit, token, &a);
        struct weight_digits weights;
        snap_weights(&weights, &scores, scale);
        for (int d = 0; d < DIM; d += VALUE_DIMS) {
            struct digit_sums<32> sums;
            multiply_values<false>(&sums, weights.high, weights.low, chunks.next());
            const unsigned char *second_half = chunks.next();
            if (n > TILE / 2)
                multiply_values<true>(&sums, weights.high + 4, weights.low + 4, second_half);
            add_values(o + d / 8 * THREADS, &sums, &rows, first);
        }
    }

    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = first_row + 8 * r, head = kv_head * group + row % group;
        if (row > last_row)
            continue;
        size_t at = ((size_t)token[r] * (size_t)a.n_heads + (size_t)head) * (size_t)a.head_dim;
        for (int i = 0; i < DIM / 8; i++) {
            const float *sum = (const float *)&o[i * THREADS] + 2 * r;
            for (int j = 0; j < 2; j++) {
                int d = 8 * i + lane % 4 * 2 + j;
                if (d < a.head_dim)
                    a.y[at + (size_t)d] = rows.l[r] > 0 ? sum[j] / rows.l[r] : sum[j];
            }
        }
    }
}

template <int DIM> static void launch(struct gpu_device *gpu, const struct attention_arguments *a) {
    typedef struct warpgroup_sizes<DIM> size;
    struct attention_digits d = {};
    d.dim = DIM;
    d.keys = KEYS;
    d.value_dims = VALUE_DIMS;
    if (!gpu_attention_digits(gpu, a, &d) ||
        !gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)attention_3<DIM>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    GPU_LAUNCH(gpu, attention_3<DIM>,
               dim3((unsigned)a->n_kv_heads, gpu_blocks((size_t)d.n_rows, ROWS)), THREADS,
               size::SHARED_BYTES, *a, d);
}

void gpu_attention_warpgroup(struct gpu_device *gpu, const struct attention_arguments *a) {
    int dim = a->head_dim;
    if (dim <= 64)
        launch<64>(gpu, a);
    else if (dim <= 128)
        launch<128>(gpu, a);
    else if (dim <= 192)
        launch<192>(gpu, a);
    else
        launch<256>(gpu, a);
}
