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
 *     memory  keys and values arrive in chunks of 16 KB through a ring of STAGES, three on their
 * way while one is used; a chunk is 64 keys, or 32 dimensions of the values of a tile
 *
 * After the scores a lane holds positions g and g + 8 of each 16; movmatrix gives it 2 t and 2 t +
 * 1 of each 8. That is what it must hand in for the values, if the positions of a group of 32 are
 * counted in another order: value_slot().
 *
 * The idea of keeping a block's scores out of memory: Dao et al., "FlashAttention", 2022, and
 * "FlashAttention-2", 2023. There the maximum runs along; here a tile has its own.
 */
#include "gpu/attention.h"
#include "gpu/attention_ring.h"

enum { TILE = ATTENTION_TILE, ROWS = QUERY_ROWS, STAGES = 3, THREADS = 256, VALUE_DIMS = 32 };

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 32. */
template <int DIM> struct sizes {
    static const int STAGES = ::STAGES;
    static const int KEYS = DIM > 128 ? 32 : 64; /* in a chunk */
    static const int KEY_BYTES = group_bytes(KEYS, DIM), KEY_CHUNKS = TILE / KEYS;
    static const int VALUE_BYTES = group_bytes(VALUE_DIMS, TILE), VALUE_CHUNKS = DIM / VALUE_DIMS;
    static const int STAGE_BYTES = KEY_BYTES > VALUE_BYTES ? KEY_BYTES : VALUE_BYTES;
    static const int SHARED_BYTES =
        STAGES * STAGE_BYTES + group_bytes(ROWS, DIM) + 4 * ROWS * DIM + 12 * TILE;
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
    __device__ __forceinline__ void wait(int) {
        cp_async_wait<STAGES - 2>();
    }
};

/* ---- exact products ----------------------------------------------------------------------------
 */

/* Sums of products of digits, 16 by 8 of them in a warp. high starts at HIGH_START and low is a sum
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

/* ---- the kernel --------------------------------------------------------------------------------
 */

/* What a lane holds of its warp's 8 rows by 256 positions: s[i][j] is position 16 i + g + j / 2 * 8
 * of row 2 t + j % 2, where lane = 4 g + t. First scores, then weights. */
struct tile_scores {
    float s[16][4];
};

/* What a lane knows of its rows 2 t and 2 t + 1. */
struct row_pair {
    int visible[2];                   /* positions that the row sees in all */
    float m[2], l[2];                 /* of the tiles so far */
    float old_share[2], new_share[2]; /* of the merge with this tile */
    double unit[2];                   /* 2^(e-30) of the tile's weights */
};

/* The scores of 32 keys: s[0] and s[1] of a tile_scores. */
template <int DIM>
static __device__ __forceinline__ void score_32_keys(float s[2][4], const unsigned char *queries,
                                                     const unsigned char *keys,
                                                     const double *k_unit, const double q_unit[2]) {
    struct digit_sums sums[2];
    int lane = (int)threadIdx.x % 32;
    const int column = column_bytes(sizes<DIM>::KEYS), low = 16 * sizes<DIM>::KEYS;
    const unsigned char *row = keys + lane % 16 * 16 + lane / 16 * column;
    const unsigned char *query = queries + lane % 8 * 16 + lane / 16 * 16 * ROWS +
                                 lane / 8 % 2 * column_bytes(ROWS);
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
        s[i / 4][i % 4] = num_score(dot_of(&sums[i / 4], i % 4),
                                    k_unit[i / 4 * 16 + i % 4 / 2 * 8 + lane / 4], q_unit[i % 2]);
}

/* What n keys that no row sees have instead of scores. Also for the compiler: registers that are not
 * set on every way through the loop would be kept all the way round it. */
template <int N> static __device__ __forceinline__ void hide(float s[N / 16][4]) {
    UNROLL
    for (int i = 0; i < N / 4; i++)
        s[i / 4][i % 4] = -INFINITY;
}

/* Scores of positions that a row does not see become -infinity, which has weight 0. */
static __device__ __forceinline__ void mask(struct tile_scores *tile, int tile_first,
                                            const int visible[2]) {
    int first = tile_first + (int)threadIdx.x % 32 / 4;
    UNROLL
    for (int i = 0; i < 64; i++)
        if (first + i / 4 * 16 + i % 4 / 2 * 8 >= visible[i % 2])
            tile->s[i / 4][i % 4] = -INFINITY;
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

/* Where a tile's softmax begins: the largest score of each row, and what is wrong. */
struct tile_top {
    float m[2], base[2];
    bool sees[2], bad[2];
};

static __device__ __forceinline__ struct tile_top find_top(const struct tile_scores *tile,
                                                           const int visible[2], int tile_first) {
    struct tile_top top;
    UNROLL
    for (int r = 0; r < 2; r++) {
        float m = -INFINITY;
        UNROLL
        for (int i = 0; i < 32; i++)
            m = fmaxf(m, tile->s[i / 2][i % 2 * 2 + r]);
        top.m[r] = rows_max(m);
        top.sees[r] = visible[r] > tile_first;
        /* A score that float32 cannot hold. */
        top.bad[r] = top.sees[r] && (top.m[r] == INFINITY || top.m[r] == -INFINITY);
        top.base[r] = top.sees[r] && !top.bad[r] ? top.m[r] : 0;
    }
    return top;
}

/* Merges the tile's maximum and its sum into those of the row; sets the shares for o. */
static __device__ __forceinline__ void merge(struct row_pair *rows, int r, float m, float l) {
    float max = rows->m[r] > m ? rows->m[r] : m;
    rows->old_share[r] = num_exp(rows->m[r] - max);
    rows->new_share[r] = num_exp(m - max);
    rows->l[r] = rows->l[r] * rows->old_share[r] + l * rows->new_share[r];
    rows->m[r] = max;
}

/*
 * A tile's softmax: scores become weights, scale[r] what snaps them. A row that sees nothing of the
 * tile gets zero weights and keeps what it has. Rows that cannot be snapped are faults of the
 * tokens token[r].
 */
static __device__ __forceinline__ void softmax(struct tile_scores *tile, float scale[2],
                                               struct row_pair *rows, int tile_first,
                                               const float *v_unit, const int token[2],
                                               const struct attention_arguments *a) {
    struct tile_top top = find_top(tile, rows->visible, tile_first);
    float largest[2] = {0, 0};
    uint32_t units[2] = {0, 0};
    int lane = (int)threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < 64; i++) {
        float *s = &tile->s[i / 4][i % 4];
        float p = num_exp_below_0(*s - top.base[i % 2]);
        units[i % 2] += num_probability_units(p);
        /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
        *s = p * v_unit[i / 4 * 16 + i % 4 / 2 * 8 + lane / 4];
        largest[i % 2] = fmaxf(largest[i % 2], *s);
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        int e = num_row_exponent(num_bits(rows_max(largest[r])));
        bool bad = top.bad[r] || e > BFP_MAX_EXPONENT;
        if (bad && lane < 4)
            gpu_fault(a->fault, a->site, a->first_token + token[r]);
        e = bad ? BFP_MIN_EXPONENT : e;
        scale[r] = bad ? 0 : num_pow2f(15 - e);
        rows->unit[r] = num_pow2(e - 30);
        float l = (float)rows_sum(units[r]) * 0x1p-23f;
        if (top.sees[r])
            merge(rows, r, top.m[r], l);
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

/* Adds a tile's weighted sum of 32 dimensions to o [32, 8], which only this warp uses: dimension,
 * row. n: positions of the tile that anybody sees. */
template <int DIM>
static __device__ __forceinline__ void
add_values(float *o, const struct weight_digits *w, const unsigned char *values,
           const struct row_pair *rows, int tile_first, int n) {
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
        float x = (float)(dot_of(&sums[i / 2], i % 2 * 2) * rows->unit[0]);
        float y = (float)(dot_of(&sums[i / 2], i % 2 * 2 + 1) * rows->unit[1]);
        if (rows->visible[0] > tile_first)
            sum.x = sum.x * rows->old_share[0] + x * rows->new_share[0];
        if (rows->visible[1] > tile_first)
            sum.y = sum.y * rows->old_share[1] + y * rows->new_share[1];
        *at = sum;
    }
}

/* Sets 2^exponent of the keys and the values of a tile, a position a thread. */
static __device__ __forceinline__ void set_units(double *k_unit, float *v_unit, char2 exponents) {
    k_unit[threadIdx.x] = num_pow2(exponents.x);
    v_unit[threadIdx.x] = num_pow2f(exponents.y);
}

template <int DIM>
__global__ static void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2)
    attention_2(struct attention_arguments a, struct attention_digits in) {
    typedef struct sizes<DIM> size;
    SHARED_DYNAMIC(unsigned char, memory);
    unsigned char *queries = memory + STAGES * size::STAGE_BYTES; /* [ROWS] rows */
    float *o_rows = (float *)(queries + group_bytes(ROWS, DIM)); /* [8 warps, DIM, 8 rows] */
    double *k_unit = (double *)(o_rows + ROWS * DIM); /* [TILE] 2^exponent of the keys */
    float *v_unit = (float *)(k_unit + TILE);         /* [TILE] of the values */
    int kv_head = (int)blockIdx.x, group = a.n_heads / a.n_kv_heads;
    int block_row = (int)(gridDim.y - 1 - blockIdx.y) * ROWS; /* those with most to see go first */
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int warp_row = block_row + warp * 8, last_row = in.n_rows - 1;
    float *o = o_rows + warp * 8 * DIM;

    /* A group of queries is whole; rows behind the end are not written. */
    const unsigned char *my_queries = queries + warp * 8 * 16;
    const uint8_t *query_group = in.queries + ((size_t)kv_head * gridDim.y + block_row / ROWS) *
                                                  (size_t)group_bytes(ROWS, DIM);
    for (int at = (int)threadIdx.x * 16; at < group_bytes(ROWS, DIM); at += THREADS * 16)
        cp_async_16(queries + at, query_group + at);
    int before = a.kv_len - a.n_tokens, token[2];
    struct row_pair rows;
    double q_unit[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = min(warp_row + lane % 4 * 2 + r, last_row);
        token[r] = row / group;
        rows.visible[r] = before + token[r] + 1;
        rows.m[r] = -INFINITY;
        rows.l[r] = 0;
        q_unit[r] = num_pow2(in.query_exponents[(size_t)kv_head * (size_t)in.n_rows + (size_t)row] - 30) * a.scale;
    }
    for (int i = lane; i < 8 * DIM; i += 32)
        o[i] = 0;
    __syncwarp();

    int block_visible = before + min(block_row + ROWS - 1, last_row) / group + 1;
    int n_tiles = block_visible <= 0 ? 0 : (block_visible + TILE - 1) / TILE;
    int n_last = block_visible - (n_tiles - 1) * TILE;
    struct chunk_ring<size, struct thread_copies> chunks = {};
    chunks.from = in.tiles + (size_t)kv_head * (size_t)in.n_tiles * tile_bytes(DIM);
    chunks.ring = memory;
    chunks.tiles_left = n_tiles;
    chunks.n_last = (n_last + size::KEYS - 1) / size::KEYS;
    for (int i = 0; i < STAGES - 1; i++) /* the queries come with the first chunk */
        chunks.start();
    /* The exponents of a position a thread, fetched one tile ahead. */
    const char2 *tile_exponents =
        (const char2 *)in.exponents + (size_t)kv_head * (size_t)in.n_tiles * TILE + threadIdx.x;
    char2 exponents = n_tiles ? tile_exponents[0] : make_char2(0, 0);

    for (int tile = 0; tile < n_tiles; tile++) {
        int first = tile * TILE, n = min(TILE, block_visible - first);
        /* Nobody reads the units of the last tile any more: its values came after a barrier. */
        set_units(k_unit, v_unit, exponents);
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
                                   k_unit + c + i, q_unit);
        }
        if (first + TILE > rows.visible[0]) /* the other row sees as much or more */
            mask(&scores, first, rows.visible);
        float scale[2];
        softmax(&scores, scale, &rows, first, v_unit, token, &a);
        struct weight_digits weights;
        snap_weights(&weights, &scores, scale);
        for (int d = 0; d < DIM; d += VALUE_DIMS)
            add_values<DIM>(o + d * 8, &weights, chunks.next(), &rows, first, n);
    }

    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = warp_row + lane % 4 * 2 + r;
        if (row > last_row)
            continue;
        int head = kv_head * group + row % group;
        size_t at = ((size_t)token[r] * (size_t)a.n_heads + (size_t)head) * (size_t)a.head_dim;
        for (int d = lane / 4; d < a.head_dim; d += 8) {
            float sum = o[d * 8 + lane % 4 * 2 + r];
            a.y[at + (size_t)d] = rows.l[r] > 0 ? sum / rows.l[r] : sum;
        }
    }
}

template <int DIM>
static void launch(struct gpu_device *gpu, const struct attention_arguments *a) {
    typedef struct sizes<DIM> size;
    struct attention_digits d = {};
    d.dim = DIM;
    d.keys = size::KEYS;
    d.value_dims = VALUE_DIMS;
    if (!gpu_attention_digits(gpu, a, &d) ||
        !gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)attention_2<DIM>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    GPU_LAUNCH(gpu, attention_2<DIM>,
               dim3((unsigned)a->n_kv_heads, gpu_blocks((size_t)d.n_rows, ROWS)), THREADS,
               size::SHARED_BYTES, *a, d);
}

int gpu_attention_prefill_bytes(int head_dim) {
    return head_dim <= 32    ? sizes<32>::SHARED_BYTES
           : head_dim <= 64  ? sizes<64>::SHARED_BYTES
           : head_dim <= 96  ? sizes<96>::SHARED_BYTES
           : head_dim <= 128 ? sizes<128>::SHARED_BYTES
           : head_dim <= 192 ? sizes<192>::SHARED_BYTES
                             : sizes<256>::SHARED_BYTES;
}

void gpu_attention_prefill(struct gpu_device *gpu, const struct attention_arguments *a) {
    int dim = a->head_dim;
    if (dim <= 32)
        launch<32>(gpu, a);
    else if (dim <= 64)
        launch<64>(gpu, a);
    else if (dim <= 96)
        launch<96>(gpu, a);
    else if (dim <= 128)
        launch<128>(gpu, a);
    else if (dim <= 192)
        launch<192>(gpu, a);
    else
        launch<256>(gpu, a);
}
