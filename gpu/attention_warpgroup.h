/*
 * attention_warpgroup.h - for attention_warpgroup.cu: the sizes of a block, how chunks come to
 * shared memory, and the arithmetic of a tile. Scores, the softmax, weighted sums of values.
 */
#ifndef SAMEBITS_ATTENTION_WARPGROUP_H
#define SAMEBITS_ATTENTION_WARPGROUP_H

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
    const float none = VARIANT ? NAN : -INFINITY; /* as vary and mask hide scores */
    float m[2] = {none, none}, base[2], largest[2] = {0, 0};
    uint32_t units[2] = {0, 0};
    bool bad[2];
    UNROLL
    for (int i = 0; i < 128; i++)
        m[i / 2 % 2] = fmaxf(m[i / 2 % 2], tile->s[i / 4][i % 4]);
    UNROLL
    for (int r = 0; r < 2; r++) {
        m[r] = quad_max(m[r]);
        rows->sees[r] = VARIANT ? m[r] == m[r] : rows->query[r].end > tile_first;
        /* A score that float32 cannot hold, or nothing but -infinity. */
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
                bool hidden = VARIANT && *s != *s;
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

#endif
