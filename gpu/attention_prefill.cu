/*
 * attention, version 2: many query tokens at once, on int8 tensor cores.
 *
 * A row is one token and one query head; the rows of one kv head are numbered token * group + head.
 * Before the kernel proper, queries, keys and values are split into 8-bit digits (q = 256 * high +
 * low, high signed, low unsigned) in the order in which the tensor cores want them; that costs a
 * few percent of the time and leaves the kernel nothing but whole 16-byte copies.
 *
 *     block   64 rows, 4 warps of 16; walks the tiles of 256 positions in ascending order
 *     scores  16 x 256 per warp stay in registers, because a tile's weights are snapped with the
 *             maximum of the whole tile
 *     memory  keys and values arrive in chunks of 16 KB through a ring of STAGES, three on their
 * way while one is used; a chunk is 64 keys, or 32 dimensions of the values of a tile
 *
 * What a lane holds after the scores (two neighbouring columns of each 8) is what it must hand in
 * for the values, if the positions of a group of 32 are counted in another order: value_slot().
 *
 * The idea of keeping a block's scores out of memory: Dao et al., "FlashAttention", 2022, and
 * "FlashAttention-2", 2023. There the maximum runs along; here a tile has its own.
 */
#include "gpu/attention.h"
#include "gpu/tensor_core.h"

enum { TILE = ATTENTION_TILE, ROWS = 64, STAGES = 4, THREADS = 128, VALUE_DIMS = 32 };

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 32. Rows in shared
 * memory are 16 bytes longer than their data: then the eight rows that ldmatrix reads at once lie
 * in different banks. */
template <int DIM> struct sizes {
    static const int KEYS = DIM > 128 ? 32 : 64; /* in a chunk */
    static const int KEY_STRIDE = 2 * DIM + 16;  /* bytes: high digits, low digits */
    static const int VALUE_STRIDE = TILE + 16;   /* bytes: a plane of one dimension */
    static const int KEY_BYTES = KEYS * KEY_STRIDE, VALUE_BYTES = 2 * VALUE_DIMS * VALUE_STRIDE;
    static const int STAGE_BYTES = KEY_BYTES > VALUE_BYTES ? KEY_BYTES : VALUE_BYTES;
    static const int O_STRIDE = DIM + 8; /* floats */
    static const int SHARED_BYTES = STAGES * STAGE_BYTES + 4 * ROWS * O_STRIDE + 12 * TILE;
};

/* The operands as digits, in scratch memory. Positions from kv_len to the end of the tile are 0. */
struct digits {
    uint8_t *queries;        /* [n_kv_heads, n_rows, 2, DIM] */
    int8_t *query_exponents; /* [n_kv_heads, n_rows] */
    uint8_t *keys;           /* [n_kv_heads, n_tiles * 256, 2, DIM] */
    uint8_t *values; /* [n_kv_heads, n_tiles, DIM / 32, 2, 32, 256], positions by value_slot */
    int n_rows, n_tiles;
};

/* ---- operands to digits ------------------------------------------------------------------------
 */

/* A warp snaps one row of queries. */
__global__ static void split_queries(struct attention_arguments a, struct digits out, int dim) {
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), kv_head = (int)blockIdx.y;
    int lane = (int)threadIdx.x, group = a.n_heads / a.n_kv_heads;
    if (row >= out.n_rows)
        return;
    int token = row / group, head = kv_head * group + row % group;
    const float *q = a.q + ((size_t)token * (size_t)a.n_heads + (size_t)head) * (size_t)a.head_dim;
    uint32_t largest = 0;
    for (int d = lane; d < a.head_dim; d += 32)
        largest = max(largest, num_magnitude(q[d]));
    int e = num_row_exponent(warp_max(largest));
    bool bad = e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    size_t at = (size_t)kv_head * (size_t)out.n_rows + (size_t)row;
    uint8_t *to = out.queries + at * 2 * (size_t)dim;
    for (int d = lane; d < dim; d += 32) {
        int m = d < a.head_dim && !bad ? num_mantissa(q[d], num_pow2f(15 - e)) : 0;
        to[d] = (uint8_t)(m >> 8);
        to[dim + d] = (uint8_t)m;
    }
    if (lane == 0) {
        out.query_exponents[at] = (int8_t)e;
        if (bad)
            gpu_fault(a.fault, a.site, token);
    }
}

/* A thread splits four neighbouring dimensions of a key. */
__global__ static void split_keys(struct attention_arguments a, struct digits out, int dim) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    int words = dim / 4, kv_head = (int)blockIdx.y;
    size_t position = i / (size_t)words;
    int d = (int)(i % (size_t)words) * 4;
    if (position >= (size_t)out.n_tiles * TILE)
        return;
    const int16_t *from =
        a.kv.k + (position * (size_t)a.n_kv_heads + (size_t)kv_head) * (size_t)a.head_dim;
    uint32_t high = 0, low = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        bool exists = position < (size_t)a.kv_len && d + j < a.head_dim;
        uint32_t m = exists ? (uint16_t)from[d + j] : 0;
        high |= (m >> 8) << (8 * j);
        low |= (m & 255) << (8 * j);
    }
    size_t row = (size_t)kv_head * (size_t)out.n_tiles * TILE + position;
    uint32_t *to = (uint32_t *)(out.keys + row * 2 * (size_t)dim);
    to[d / 4] = high;
    to[words + d / 4] = low;
}

/*
 * The position of a group of 32 that is counted as number `slot` in the sums over values. Lane t of
 * a quad ends up with the scores of positions 8 j + 2 t and 8 j + 2 t + 1 (j = 0..3), and an mma
 * takes numbers 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3 from it.
 */
static __device__ __forceinline__ int value_slot(int slot) {
    return slot / 16 * 16 + slot % 4 / 2 * 8 + slot % 16 / 4 * 2 + slot % 2;
}

/* A block turns 32 dimensions of a tile of values on their side. */
__global__ static void __launch_bounds__(256)
    split_values(struct attention_arguments a, struct digits out, int dim) {
    SHARED(int16_t, tile, [TILE][VALUE_DIMS + 2]);
    int first = (int)blockIdx.x * VALUE_DIMS, t = (int)blockIdx.y, kv_head = (int)blockIdx.z;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int j = warp; j < TILE; j += 8) {
        size_t position = (size_t)t * TILE + (size_t)j;
        int d = first + lane;
        bool exists = position < (size_t)a.kv_len && d < a.head_dim;
        size_t at = (position * (size_t)a.n_kv_heads + (size_t)kv_head) * (size_t)a.head_dim;
        tile[j][lane] = exists ? a.kv.v[at + (size_t)d] : (int16_t)0;
    }
    __syncthreads();
    size_t chunk =
        ((size_t)kv_head * (size_t)out.n_tiles + (size_t)t) * (size_t)(dim / VALUE_DIMS) +
        blockIdx.x;
    uint8_t *to = out.values + chunk * (2 * VALUE_DIMS * TILE);
    for (int i = (int)threadIdx.x; i < VALUE_DIMS * TILE / 4; i += 256) {
        int d = i / (TILE / 4), slot = i % (TILE / 4) * 4;
        uint32_t high = 0, low = 0;
        UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t m = (uint16_t)tile[slot / 32 * 32 + value_slot(slot % 32 + j)][d];
            high |= (m >> 8) << (8 * j);
            low |= (m & 255) << (8 * j);
        }
        *(uint32_t *)(to + d * TILE + slot) = high;
        *(uint32_t *)(to + (VALUE_DIMS + d) * TILE + slot) = low;
    }
}

/* ---- exact products ----------------------------------------------------------------------------
 */

/* Sums of products of digits for 16 rows by 8 columns. high starts at HIGH_START and low is a sum
 * of unsigned products, so that dot_of can treat both as unsigned. */
struct digit_sums {
    int32_t high[4], middle[4], low[4];
};
enum { HIGH_START = 1 << 23 };

static __device__ __forceinline__ void clear_sums(struct digit_sums *s) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        s->high[i] = HIGH_START;
        s->middle[i] = s->low[i] = 0;
    }
}

/* b: the two registers of the high digits, then the two of the low ones. */
static __device__ __forceinline__ void multiply(struct digit_sums *s, const uint32_t a_high[4],
                                                const uint32_t a_low[4], const uint32_t b[4]) {
    mma_s8_s8(s->high, a_high, b);
    mma_s8_u8(s->middle, a_high, b + 2);
    mma_u8_s8(s->middle, a_low, b);
    mma_u8_u8(s->low, a_low, b + 2);
}

/* A double from its two halves of 32 bits. */
static __device__ __forceinline__ double double_of(uint32_t high, uint32_t low) {
    return __longlong_as_double((long long)((uint64_t)high << 32 | low));
}

/*
 * 65536 * high + 256 * middle + low as a double, exact, without converting an integer: the bits of
 * 2^60 + 256 u and of 2^52 + u are u behind a constant. The constants and the start of `high`
 * (2^23 * 65536 = 2^39) are taken off again; no step has more than 53 bits.
 */
static __device__ __forceinline__ double dot_of(const struct digit_sums *s, int i) {
    uint32_t upper = (uint32_t)s->high[i] * 256u + (uint32_t)s->middle[i];
    double a = double_of(0x43b00000u, upper) - (0x1p60 + 0x1p39 + 0x1p52);
    return a + double_of(0x43300000u, (uint32_t)s->low[i]);
}

/* ---- the ring of chunks ------------------------------------------------------------------------
 */

/* The chunks of a block, in the order of their use: per tile the keys that somebody sees, then all
 * dimensions of the values. */
template <int DIM> struct chunks {
    typedef struct sizes<DIM> size;
    const uint8_t *keys, *values; /* of the block's kv head */
    unsigned char *ring;
    int n_tiles, n_last; /* tiles, and key chunks of the last one */
    int started, used;

    static const int PER_TILE = TILE / size::KEYS + DIM / VALUE_DIMS;

    /* Starts copying the next chunk into the ring, if there is one left. */
    __device__ __forceinline__ void start() {
        int tile = started / PER_TILE, i = started % PER_TILE;
        int n_keys = tile == n_tiles - 1 ? n_last : TILE / size::KEYS;
        unsigned char *stage = ring + started % STAGES * size::STAGE_BYTES;
        started++;
        if (tile >= n_tiles || i >= n_keys + DIM / VALUE_DIMS) {
            cp_async_commit(); /* an empty group, so that waiting can count */
            return;
        }
        bool key = i < n_keys;
        const uint8_t *from =
            key ? keys + ((size_t)tile * TILE + (size_t)(i * size::KEYS)) * 2 * DIM
                : values + ((size_t)tile * (DIM / VALUE_DIMS) + (size_t)(i - n_keys)) *
                               (2 * VALUE_DIMS * TILE);
        int row_units = key ? 2 * DIM / 16 : TILE / 16,
            stride = key ? size::KEY_STRIDE : size::VALUE_STRIDE;
        int units = key ? size::KEYS * (2 * DIM / 16) : 2 * VALUE_DIMS * (TILE / 16);
        for (int u = (int)threadIdx.x; u < units; u += THREADS)
            cp_async_16(stage + u / row_units * stride + u % row_units * 16, from + 16 * u);
        cp_async_commit();
    }

    /* Waits for the next chunk and starts another one in the place of the one before. */
    __device__ __forceinline__ const unsigned char *next() {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        start();
        return ring + used++ % STAGES * size::STAGE_BYTES;
    }
};

/* ---- the kernel --------------------------------------------------------------------------------
 */

/* The scores of a warp's 16 rows with 32 keys: s[i] are columns 8 i + 2 t, + 1 of row g, then of
 * row g + 8. */
template <int DIM>
static __device__ __forceinline__ void
score_32_keys(float s[4][4], const uint32_t q_high[DIM / 32][4], const uint32_t q_low[DIM / 32][4],
              const unsigned char *keys, const double *k_unit, const double q_unit[2]) {
    struct digit_sums sums[4];
    int lane = (int)threadIdx.x % 32;
    const unsigned char *row =
        keys + lane % 8 * sizes<DIM>::KEY_STRIDE + lane / 16 * DIM + lane / 8 % 2 * 16;
    UNROLL
    for (int i = 0; i < 4; i++)
        clear_sums(&sums[i]);
    UNROLL
    for (int k = 0; k < DIM / 32; k++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t b[4];
        ldmatrix_x4(b, row + 8 * i * sizes<DIM>::KEY_STRIDE + 32 * k);
        multiply(&sums[i], q_high[k], q_low[k], b);
    }
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s[i][j] =
            num_score(dot_of(&sums[i], j), k_unit[8 * i + lane % 4 * 2 + j % 2], q_unit[j / 2]);
}

/* The largest of a row's values, which four neighbouring lanes hold. */
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ uint32_t quad_sum(uint32_t x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* What a lane knows of its rows g and g + 8. */
struct row_pair {
    float m[2], l[2];                 /* of the tiles so far */
    float old_share[2], new_share[2]; /* of the merge with this tile */
    double unit[2];                   /* 2^(e-30) of the tile's weights */
    int visible[2];                   /* positions that the row sees in all */
};

/*
 * A tile's softmax: scores become weights, snapped and split into the digits that the products with
 * the values take. Sets the shares of the merge. A row that sees nothing of the tile gets zero
 * weights and keeps what it has.
 */
static __device__ __forceinline__ void softmax(float s[32][4], uint32_t w_high[8][4],
                                               uint32_t w_low[8][4], struct row_pair *rows,
                                               int tile_first, const float *v_unit,
                                               const struct attention_arguments *a, int first_row) {
    int lane = (int)threadIdx.x % 32, group = a->n_heads / a->n_kv_heads;
    float scale[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        bool sees = rows->visible[r] > tile_first;
        float m = -INFINITY;
        UNROLL
        for (int i = 0; i < 32; i++)
            m = fmaxf(m, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
        m = quad_max(m);
        bool bad = sees && (m == INFINITY || m == -INFINITY); /* scores that float32 cannot hold */
        float base = sees && !bad ? m : 0;
        uint32_t units = 0;
        float largest = 0;
        UNROLL
        for (int i = 0; i < 32; i++)
            UNROLL
        for (int j = 0; j < 2; j++) {
            float p = num_exp_below_0(s[i][2 * r + j] - base);
            /* num_probability_units(p) with the constant left in: 256 of them are 0 mod 2^32 */
            units += num_bits(fmaf(p, 8388608.0f, 8388608.0f));
            /* num_value_weight: what it flushes is snapped to 0 anyway */
            s[i][2 * r + j] = p * v_unit[8 * i + lane % 4 * 2 + j];
            largest = fmaxf(largest, s[i][2 * r + j]);
        }
        int e = num_row_exponent(num_bits(quad_max(largest)));
        bad = bad || e > BFP_MAX_EXPONENT;
        if (bad && lane % 4 == 0)
            gpu_fault(a->fault, a->site, (first_row + 8 * r) / group);
        e = bad ? BFP_MIN_EXPONENT : e;
        scale[r] = bad ? 0 : num_pow2f(15 - e);
        rows->unit[r] = num_pow2(e - 30);
        float l = (float)quad_sum(units) * 0x1p-23f;
        float max = rows->m[r] > m ? rows->m[r] : m;
        rows->old_share[r] = rows->new_share[r] = 1;
        if (sees) {
            rows->old_share[r] = num_exp(rows->m[r] - max);
            rows->new_share[r] = num_exp(m - max);
            rows->l[r] = rows->l[r] * rows->old_share[r] + l * rows->new_share[r];
            rows->m[r] = max;
        }
    }
    UNROLL
    for (int k = 0; k < 8; k++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        int r = i % 2, at = 4 * k + i / 2 * 2;
        uint32_t m[4]; /* mantissas in the low 16 bits: num_rint with the shift left in */
        UNROLL
        for (int j = 0; j < 4; j++)
            m[j] = num_bits(fmaf(s[at + j / 2][2 * r + j % 2], scale[r], 12582912.0f));
        uint32_t a01 = __byte_perm(m[0], m[1], 0x5140), a23 = __byte_perm(m[2], m[3], 0x5140);
        w_low[k][i] = __byte_perm(a01, a23, 0x5410);
        w_high[k][i] = __byte_perm(a01, a23, 0x7632);
    }
}

/* Adds a tile's weighted sum of 32 dimensions to o, row g of which begins at `o` (row g + 8 lies
 * 8 rows on). n: positions of the tile that anybody sees. */
template <int DIM>
static __device__ __forceinline__ void
add_values(float *o, const uint32_t w_high[8][4], const uint32_t w_low[8][4],
           const unsigned char *values, const struct row_pair *rows, int tile_first, int n) {
    struct digit_sums sums[4];
    int lane = (int)threadIdx.x % 32;
    const unsigned char *row =
        values + (lane / 16 * VALUE_DIMS + lane % 8) * sizes<DIM>::VALUE_STRIDE + lane / 8 % 2 * 16;
    UNROLL
    for (int i = 0; i < 4; i++)
        clear_sums(&sums[i]);
    UNROLL
    for (int k = 0; k < 8; k++)
        if (32 * k < n)
            UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t b[4];
        ldmatrix_x4(b, row + 8 * i * sizes<DIM>::VALUE_STRIDE + 32 * k);
        multiply(&sums[i], w_high[k], w_low[k], b);
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        if (rows->visible[r] <= tile_first)
            continue;
        UNROLL
        for (int i = 0; i < 4; i++) {
            float2 *at = (float2 *)(o + 8 * r * sizes<DIM>::O_STRIDE + 8 * i + lane % 4 * 2);
            float2 sum = *at;
            float x = (float)(dot_of(&sums[i], 2 * r) * rows->unit[r]);
            float y = (float)(dot_of(&sums[i], 2 * r + 1) * rows->unit[r]);
            sum.x = sum.x * rows->old_share[r] + x * rows->new_share[r];
            sum.y = sum.y * rows->old_share[r] + y * rows->new_share[r];
            *at = sum;
        }
    }
}

template <int DIM>
__global__ static void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2)
    attention_2(struct attention_arguments a, struct digits in) {
    typedef struct sizes<DIM> size;
    SHARED_DYNAMIC(unsigned char, memory);
    float *o_rows = (float *)(memory + STAGES * size::STAGE_BYTES); /* [ROWS, O_STRIDE] */
    double *k_unit = (double *)(o_rows + ROWS * size::O_STRIDE); /* [TILE] 2^exponent of the keys */
    float *v_unit = (float *)(k_unit + TILE);                    /* [TILE] of the values */
    int kv_head = (int)blockIdx.x, group = a.n_heads / a.n_kv_heads;
    int block_row = (int)(gridDim.y - 1 - blockIdx.y) * ROWS; /* those with most to see go first */
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int row = block_row + warp * 16 + lane / 4; /* and row + 8 */
    float *o = o_rows + (warp * 16 + lane / 4) * size::O_STRIDE;

    int last_row = min(block_row + ROWS, in.n_rows) - 1, before = a.kv_len - a.n_tokens;
    int block_visible = before + last_row / group + 1;
    struct row_pair rows;
    double q_unit[2];
    uint32_t q_high[DIM / 32][4], q_low[DIM / 32][4];
    UNROLL
    for (int r = 0; r < 2; r++) {
        int my_row = min(row + 8 * r, in.n_rows - 1); /* rows behind the end repeat the last one */
        size_t at = (size_t)kv_head * (size_t)in.n_rows + (size_t)my_row;
        const uint32_t *q = (const uint32_t *)(in.queries + at * 2 * DIM);
        rows.m[r] = -INFINITY;
        rows.l[r] = 0;
        rows.visible[r] = before + my_row / group + 1;
        q_unit[r] = num_pow2(in.query_exponents[at] - 30) * a.scale;
        UNROLL
        for (int k = 0; k < DIM / 32; k++)
            UNROLL
        for (int half = 0; half < 2; half++) {
            q_high[k][2 * half + r] = q[8 * k + 4 * half + lane % 4];
            q_low[k][2 * half + r] = q[DIM / 4 + 8 * k + 4 * half + lane % 4];
        }
        UNROLL
        for (int d = 0; d < DIM; d += 8)
            *(float2 *)(o + 8 * r * size::O_STRIDE + d + lane % 4 * 2) = make_float2(0, 0);
    }

    int n_tiles = block_visible <= 0 ? 0 : (block_visible + TILE - 1) / TILE;
    int n_last = block_visible - (n_tiles - 1) * TILE;
    struct chunks<DIM> chunks = {
        in.keys + (size_t)kv_head *(size_t)in.n_tiles *TILE * 2 * DIM,
            in.values + (size_t)kv_head *(size_t)in.n_tiles *TILE * 2 * DIM, memory, n_tiles,
            (n_last + size::KEYS - 1) / size::KEYS, 0, 0
    };
    for (int i = 0; i < STAGES - 1; i++)
        chunks.start();
    for (int tile = 0; tile < n_tiles; tile++) {
        int first = tile * TILE, n = min(TILE, block_visible - first);
        /* Nobody reads the units of the last tile any more: its values came after a barrier. */
        for (int j = (int)threadIdx.x; j < TILE; j += THREADS) {
            size_t at = (size_t)(first + j) * (size_t)a.n_kv_heads + (size_t)kv_head;
            bool exists = first + j < a.kv_len;
            k_unit[j] = num_pow2(exists ? a.kv.k_exponents[at] : 0);
            v_unit[j] = num_pow2f(exists ? a.kv.v_exponents[at] : 0);
        }
        float s[32][4];
        UNROLL
        for (int c = 0; c < TILE / size::KEYS; c++) {
            const unsigned char *keys = c * size::KEYS < n ? chunks.next() : NULL;
            UNROLL
            for (int half = 0; half < size::KEYS / 32; half++) {
                int column = c * size::KEYS + half * 32;
                if (column < n)
                    score_32_keys<DIM>(s + column / 8, q_high, q_low,
                                       keys + half * 32 * size::KEY_STRIDE, k_unit + column,
                                       q_unit);
                else
                    UNROLL
                for (int i = 0; i < 16; i++)
                    s[column / 8 + i / 4][i % 4] = -INFINITY;
            }
        }
        if (first + TILE > rows.visible[0]) /* row g + 8 sees as much or more */
            UNROLL
        for (int i = 0; i < 128; i++)
            if (first + i / 4 * 8 + lane % 4 * 2 + i % 2 >= rows.visible[i % 4 / 2])
                s[i / 4][i % 4] = -INFINITY;
        uint32_t w_high[8][4], w_low[8][4];
        softmax(s, w_high, w_low, &rows, first, v_unit, &a, row);
        for (int d = 0; d < DIM; d += VALUE_DIMS)
            add_values<DIM>(o + d, w_high, w_low, chunks.next(), &rows, first, n);
    }

    UNROLL
    for (int r = 0; r < 2; r++) {
        int my_row = row + 8 * r;
        if (my_row >= in.n_rows)
            continue;
        int head = kv_head * group + my_row % group;
        size_t at =
            ((size_t)(my_row / group) * (size_t)a.n_heads + (size_t)head) * (size_t)a.head_dim;
        for (int i = 0; i < DIM / 4; i++) {
            int d = i / 2 * 8 + lane % 4 * 2 + i % 2;
            float sum = o[8 * r * size::O_STRIDE + d];
            if (d < a.head_dim)
                a.y[at + (size_t)d] = rows.l[r] > 0 ? sum / rows.l[r] : sum;
        }
    }
}

template <int DIM>
static void launch(struct gpu_device *gpu, const struct attention_arguments *a, struct digits in) {
    unsigned rows = gpu_blocks((size_t)in.n_rows, ROWS);
    int bytes = sizes<DIM>::SHARED_BYTES;
    if (gpu_ok(gpu,
               cudaFuncSetAttribute((const void *)attention_2<DIM>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "attention's shared memory"))
        GPU_LAUNCH(gpu, attention_2<DIM>, dim3((unsigned)a->n_kv_heads, rows), THREADS,
                   (size_t)bytes, *a, in);
}

void gpu_attention_prefill(struct gpu_device *gpu, const struct attention_arguments *a) {
    int multiple = a->head_dim > 128 ? 64 : 32; /* fewer sizes to compile */
    size_t dim = (size_t)((a->head_dim + multiple - 1) / multiple * multiple),
           kv_heads = (size_t)a->n_kv_heads;
    struct digits d;
    d.n_rows = a->n_tokens * (a->n_heads / a->n_kv_heads);
    d.n_tiles = (a->kv_len + TILE - 1) / TILE;
    size_t query_bytes = kv_heads * (size_t)d.n_rows * 2 * dim;
    size_t kv_bytes = kv_heads * (size_t)d.n_tiles * TILE * 2 * dim;
    size_t n_exponents = kv_heads * (size_t)d.n_rows;
    uint8_t *scratch = (uint8_t *)gpu_scratch(
        gpu, GPU_SCRATCH_ATTENTION, query_bytes + 2 * kv_bytes + n_exponents, "attention");
    d.queries = scratch;
    d.keys = d.queries + query_bytes;
    d.values = d.keys + kv_bytes;
    d.query_exponents = (int8_t *)(d.values + kv_bytes);
    GPU_LAUNCH(gpu, split_queries, dim3(gpu_blocks((size_t)d.n_rows, 4), (unsigned)kv_heads),
               dim3(32, 4), 0, *a, d, (int)dim);
    if (d.n_tiles) {
        GPU_LAUNCH(gpu, split_keys,
                   dim3(gpu_blocks((size_t)d.n_tiles * TILE * dim / 4, 256), (unsigned)kv_heads),
                   256, 0, *a, d, (int)dim);
        GPU_LAUNCH(gpu, split_values,
                   dim3((unsigned)dim / VALUE_DIMS, (unsigned)d.n_tiles, (unsigned)kv_heads), 256,
                   0, *a, d, (int)dim);
    }
    switch (dim) {
    case 32:
        return launch<32>(gpu, a, d);
    case 64:
        return launch<64>(gpu, a, d);
    case 96:
        return launch<96>(gpu, a, d);
    case 128:
        return launch<128>(gpu, a, d);
    case 192:
        return launch<192>(gpu, a, d);
    default:
        return launch<256>(gpu, a, d);
    }
}
