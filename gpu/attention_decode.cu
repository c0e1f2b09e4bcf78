/*
 * attention_paged, version 4: few tokens per sequence over a long cache, at the speed of memory.
 *
 * What limits it is reading each key and value once. So
 *
 * - a block of 8 warps works on up to 8 rows (tokens and query heads of one kv head) at once: they
 *   share one read of the keys and values;
 * - the blocks' shares of all tiles are equal (attention_plan.cu), whatever the lengths. A share is
 *   walked through without a break, over the ends of sequences, by the blocks of all kv heads at
 * the same time, because keys of the same position lie side by side;
 * - keys and values come in chunks of 128 positions through a ring in shared memory, two on their
 *   way while one is used, so that the loads never wait for the softmax between them;
 * - products are made by int8 tensor cores on digits: the 16 rows of an mma are the high digits of
 * 8 rows and their low ones. The cache's mantissas are int16: their two bytes are the digits
 *   already, high signed and low unsigned. For the other operand, which lies in registers, both are
 *   signed.
 *
 * Per tile of 256 positions:
 *
 *     2 x   keys of 128 positions: each warp takes 16, its scores stay in registers
 *     softmax: all warps, each of its own scores; the snapped weights go to shared memory as digits
 *     2 x   values of 128 positions: each warp takes an eighth of the dimensions
 *     merge into the running result, which stays in registers
 *
 * A row group that several blocks share is merged by a kernel of its own (attention_merge.cu).
 * attention_decode.h has the loads.
 *
 * Keys that are shared by query heads: "multi-query attention", Shazeer, 2019; the split over the
 * context: Dao et al., "Flash-Decoding", 2023; equal shares of all work: "Stream-K", Osama et al.,
 * 2023.
 */
#include "gpu/attention_decode.h"

enum {
    EARLY_TILES = 6 /* of a share: up to these it pays to start before the previous kernel ends */
};

/* ---- queries ----------------------------------------------------------------------------------
 */

/* The order of 32 summands: the tensor core counts as numbers 4 t ... 4 t + 3 and 16 + 4 t ... what
 * ldmatrix gives to lane t of a quad: the elements 2 t and 2 t + 1 of each 8. summand_of: the
 * number of an element. */
static __device__ __forceinline__ int summand_of(int element) {
    return element / 32 * 32 + element % 32 / 16 * 16 + element % 8 / 2 * 4 + element % 16 / 8 * 2 +
           element % 2;
}

static __device__ __forceinline__ void put_digits(int8_t *high, int8_t *low, int mantissa) {
    int digit = (int8_t)(mantissa & 255);
    *low = (int8_t)digit;
    *high = (int8_t)((mantissa - digit) >> 8);
}

/* The digits of two neighbouring summands. */
static __device__ __forceinline__ void put_two_digits(int8_t *high, int8_t *low, int first,
                                                      int second) {
    uint32_t both = __byte_perm((uint32_t)first, (uint32_t)second, 0x5410);
    /* A low digit is signed: where it is negative, the high one is one more. */
    uint32_t carry = both >> 7 & 0x00010001u;
    *(uint16_t *)low = (uint16_t)__byte_perm(both, 0, 0x0020);
    *(uint16_t *)high = (uint16_t)__byte_perm((uint32_t)first + (carry << 8),
                                              (uint32_t)second + (carry >> 8), 0x0051);
}

/* Snaps the rows of the group; a warp has one. Rows that do not exist are zeros. */
template <int DIM>
static __device__ void snap_queries(const struct attention_arguments *a,
                                    const struct tile_cursor *c, const struct decode_memory *mem,
                                    struct row_states *rows) {
    int lane = (int)(threadIdx.x % 32);
    for (int row = (int)(threadIdx.x / 32); row < ROWS; row += WARPS) {
        bool exists = row < c->group.n_rows;
        const float *q = a->q + (exists ? place_of(a, c, row) : 0);
        float x[DIM / 32];
        uint32_t largest = 0;
        UNROLL
        for (int i = 0; i < DIM / 32; i++) {
            int d = lane + 32 * i;
            x[i] = exists && d < a->head_dim ? q[d] : 0;
            largest = max(largest, num_magnitude(x[i]));
        }
        int e = num_row_exponent(warp_max(largest));
        bool bad = e > BFP_MAX_EXPONENT;
        if (bad && lane == 0)
            gpu_fault(a->fault, a->site, c->group.first_token + token_of(a, &c->group, row));
        e = bad ? BFP_MIN_EXPONENT : e;
        UNROLL
        for (int i = 0; i < DIM / 32; i++) {
            /* Summand 4 t + j of row g is byte j of the first register of lane 4 g + t, 16 + 4 t +
             * j of the third; low digits are in the second and fourth. */
            int summand = summand_of(lane);
            int8_t *at = mem->query +
                         ((32 * i + 4 * row + summand % 16 / 4) * 4 + summand / 16 * 2) * 4 +
                         summand % 4;
            put_digits(at, at + 4, bad ? 0 : num_mantissa(x[i], num_pow2f(15 - e)));
        }
        if (lane == 0)
            rows->q_unit[row] = num_pow2(e - 30) * a->scale;
    }
}

/* Digits as the first operand of an mma: 32 summands of 8 rows, high digits as the rows 0 to 7 and
 * low ones as 8 to 15. from: row g of the high digits at summand 4 t. */
static __device__ __forceinline__ void load_digits(uint32_t out[4], const int8_t *from,
                                                   int bytes_to_low) {
    out[0] = *(const uint32_t *)from;
    out[1] = *(const uint32_t *)(from + bytes_to_low);
    out[2] = *(const uint32_t *)(from + 16);
    out[3] = *(const uint32_t *)(from + bytes_to_low + 16);
}

/* Adds the products of digits `a` with 32 summands by 8 columns of mantissas, as ldmatrix gives
 * them: high[] with their high digits, low[] with their low ones. */
static __device__ __forceinline__ void multiply(int32_t high[4], int32_t low[4],
                                                const uint32_t a[4], const uint32_t m[4]) {
    uint32_t b_high[2] = {__byte_perm(m[0], m[1], 0x7531), __byte_perm(m[2], m[3], 0x7531)};
    uint32_t b_low[2] = {__byte_perm(m[0], m[1], 0x6420), __byte_perm(m[2], m[3], 0x6420)};
    mma_s8_s8(high, a, b_high);
    mma_s8_u8(low, a, b_low);
}

/* The exact sum of the products of row g with column 2 t + j. */
static __device__ __forceinline__ double dot_of(const int32_t high[4], const int32_t low[4],
                                                int j) {
    return (double)((long long)high[j] * 65536 + (long long)(high[2 + j] + low[j]) * 256 +
                    low[2 + j]);
}

/* ---- a tile -----------------------------------------------------------------------------------
 */

/* What stands for the score of a position that a row does not see. With variants, a NaN, which no
 * visible score can be, because a row may see none of a tile whose positions it might see. */
template <bool VARIANT> static __device__ __forceinline__ float hidden_score(void) {
    return VARIANT ? NAN : -INFINITY;
}

/* The scores of a chunk's positions `first` ... of the tile that begins at `tile`. A warp has 8 of
 * each part; a lane those of row g at 2 t and 2 t + 1. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
score_chunk(float s[], const unsigned char *keys, const struct decode_memory *mem,
            const uint32_t *units, double q_unit, const struct row_view *row_view,
            const struct attention_variant *variant, int tile, int first) {
    typedef struct decode_sizes<DIM> size;
    const int N = size::CHUNK / PART;
    int lane = (int)(threadIdx.x % 32), begin = (int)(threadIdx.x / 32) * 8;
    const unsigned char *row = keys + (begin + lane % 8) * size::ROW_BYTES;
    int32_t high[N][4], low[N][4];
    UNROLL
    for (int i = 0; i < N; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        high[i][j] = low[i][j] = 0;
    UNROLL
    for (int k = 0; k < DIM / 32; k++) {
        uint4 q = ((const uint4 *)mem->query)[32 * k + lane];
        const uint32_t digits[4] = {q.x, q.y, q.z, q.w};
        UNROLL
        for (int i = 0; i < N; i++) {
            uint32_t m[4];
            ldmatrix_x4(m, row + i * PART * size::ROW_BYTES +
                               16 * column_in_row<DIM>(lane % 8, lane / 8 + 4 * k));
            multiply(high[i], low[i], digits, m);
        }
    }
    UNROLL
    for (int i = 0; i < N; i++) {
        int position = first + i * PART + begin + lane % 4 * 2;
        uint2 unit = *(const uint2 *)(units + position);
        UNROLL
        for (int j = 0; j < 2; j++) {
            double k_unit =
                __longlong_as_double((long long)((uint64_t)(j ? unit.y : unit.x) << 32));
            float score = num_score(dot_of(high[i], low[i], j), k_unit, q_unit);
            int p = tile + position + j;
            bool sees = p < row_view->end;
            if (VARIANT) {
                sees = sees && p >= row_view->first &&
                       attention_shows(variant, row_view->mask, row_view->i, p, row_view->length);
                score = attention_score(variant, score, row_view->at, p, row_view->slope);
            }
            s[2 * i + j] = sees ? score : hidden_score<VARIANT>();
        }
    }
}

/*
 * The softmax of a tile. Its scores stay where the products leave them: a lane has those of row g
 * at two positions of each part, s[2 i] and s[2 i + 1]. What a row needs of all warps goes through
 * shared memory: the largest score, then the sum and the largest weight.
 *
 * With at most 4 rows (one token and 4 query heads, say), the lanes of rows 4 to 7 have nothing of
 * their own and take half of the positions of row g - 4.
 */
struct softmax {
    int row;              /* whose scores this lane has */
    int first_part, n;    /* of the n scores */
    bool halves, sees;    /* sees: the row something of the tile */
    float tile_m, tile_l; /* of that row */
    double unit;          /* 2^(e-30) of its weights */
};

/* Tells the other warps the largest score. */
static __device__ __forceinline__ void tell_largest(const float s[], struct row_states *rows) {
    const int N = 2 * PARTS;
    int lane = (int)(threadIdx.x % 32);
    float m = s[0];
    UNROLL
    for (int i = 1; i < N; i++)
        m = fmaxf(m, s[i]);
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    if (lane % 4 == 0)
        rows->largest_score[lane / 4][threadIdx.x / 32] = m;
}

/* Scores become weights, as far as without the others' sums. visible: positions of the tile that
 * the row may see. */
template <bool VARIANT>
static __device__ __forceinline__ void weigh(struct softmax *x, float s[], int n_rows, int visible,
                                             const uint32_t *units_of_values,
                                             struct row_states *rows) {
    const int N = 2 * PARTS;
    int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    x->halves = n_rows <= ROWS / 2;
    x->row = lane / 4;
    x->first_part = 0;
    x->n = N;
    if (x->halves) {
        x->row %= ROWS / 2;
        x->n = N / 2;
        UNROLL
        for (int i = 0; i < N / 2; i++) {
            float other = __shfl_xor_sync(0xffffffffu, s[N / 2 + i], 16);
            s[i] = lane < 16 ? s[i] : other;
        }
        visible = __shfl_sync(0xffffffffu, visible, lane % 16);
        x->first_part = lane < 16 ? 0 : PARTS / 2;
    }
    const float4 *largest = (const float4 *)rows->largest_score[x->row];
    float4 m0 = largest[0], m1 = largest[1];
    float m = fmaxf(fmaxf(fmaxf(m0.x, m0.y), fmaxf(m0.z, m0.w)),
                    fmaxf(fmaxf(m1.x, m1.y), fmaxf(m1.z, m1.w)));
    bool sees = VARIANT ? m == m : visible > 0;
    bool bad = sees && (m == INFINITY || m == -INFINITY); /* a score that float cannot hold */
    float base = sees && !bad ? m : 0;
    uint32_t units = 0;
    float heaviest = 0;
    const uint32_t *value_units = units_of_values + x->first_part * PART + warp * 8 + lane % 4 * 2;
    UNROLL
    for (int half = 0; half < N; half += N / 2) {
        if (half >= x->n)
            break;
        UNROLL
        for (int i = half; i < half + N / 2; i++) {
            float below = s[i] - base;
            float p = num_exp_below_0(VARIANT && below != below ? -INFINITY : below);
            units += num_probability_units(p);
            /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
            s[i] = p * num_float(value_units[i / 2 * PART + i % 2]);
            heaviest = fmaxf(heaviest, s[i]);
        }
    }
    for (int step = 1; step < (x->halves ? 32 : 4); step *= step == 2 ? 8 : 2) {
        units += __shfl_xor_sync(0xffffffffu, units, step);
        heaviest = fmaxf(heaviest, __shfl_xor_sync(0xffffffffu, heaviest, step));
    }
    if (lane % 4 == 0 && lane / 4 == x->row) /* one lane for all of the row's */
        rows->units_and_weight[x->row][warp] =
            make_uint2(units, bad ? num_bits(INFINITY) : num_bits(heaviest));
    x->tile_m = m;
    x->sees = sees;
}

/* Snaps the weights and leaves their digits in shared memory. Returns false: a row that cannot be
 * snapped. */
template <int DIM>
static __device__ __forceinline__ bool snap_weights(struct softmax *x, const float s[],
                                                    const struct decode_memory *mem,
                                                    const struct row_states *rows) {
    typedef struct decode_sizes<DIM> size;
    const int N = 2 * PARTS;
    int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    const uint4 *of_warps = (const uint4 *)rows->units_and_weight[x->row];
    uint32_t units = 0, largest = 0;
    UNROLL
    for (int i = 0; i < WARPS / 2; i++) {
        uint4 two = of_warps[i];
        units += two.x + two.z;
        largest = max(largest, max(two.y, two.w));
    }
    int e = num_row_exponent(largest);
    bool bad = e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    float scale = bad ? 0 : num_pow2f(15 - e);
    int8_t *to = mem->weights + x->row * size::WEIGHT_BYTES +
                 summand_of(x->first_part * PART + warp * 8 + lane % 4 * 2);
    UNROLL
    for (int half = 0; half < N; half += N / 2) {
        if (half >= x->n)
            break;
        UNROLL
        for (int i = half; i < half + N / 2; i += 2) {
            int8_t *high = to + i / 2 * PART;
            put_two_digits(high, high + ROWS * size::WEIGHT_BYTES, num_mantissa(s[i], scale),
                           num_mantissa(s[i + 1], scale));
        }
    }
    x->tile_l = (float)units * 0x1p-23f;
    x->unit = num_pow2(e - 30);
    return !bad;
}

/* Adds the products of a chunk's weights and values, of n positions. */
template <int DIM>
static __device__ __forceinline__ void
add_chunk(int32_t high[][4], int32_t low[][4], const unsigned char *values,
          const struct decode_memory *mem, int first, int n) {
    typedef struct decode_sizes<DIM> size;
    int lane = (int)(threadIdx.x % 32);
    UNROLL
    for (int k = 0; k < size::CHUNK; k += 32) {
        uint32_t weights[4];
        if (k >= n)
            break;
        load_digits(weights,
                    mem->weights + lane / 4 * size::WEIGHT_BYTES + first + k + lane % 4 * 4,
                    ROWS * size::WEIGHT_BYTES);
        UNROLL
        for (int i = 0; i < size::DIMS_8; i++) {
            uint32_t m[4];
            if (first_dim(i) >= DIM)
                break;
            ldmatrix_x4_trans(m, values + (k + lane) * size::ROW_BYTES +
                                     16 * column_in_row<DIM>(lane, first_dim(i) / 8));
            multiply(high[i], low[i], weights, m);
        }
    }
}

/* ---- the kernel -------------------------------------------------------------------------------
 */

/* Zeros behind the dimensions that exist: the products reach over all of DIM. */
template <int DIM> static __device__ void clear_padding(unsigned char *ring, int head_dim) {
    typedef struct decode_sizes<DIM> size;
    int first = head_dim / VECTOR, columns = DIM / VECTOR - first;
    for (int i = (int)threadIdx.x; i < columns * size::STAGES * size::CHUNK; i += THREADS) {
        int row = i / columns, column = first + i % columns;
        *(uint4 *)(ring + row * size::ROW_BYTES + 16 * column_in_row<DIM>(row, column)) =
            make_uint4(0, 0, 0, 0);
    }
}

/* A stretch of tiles of one row group, as a block goes through it; of row g. */
template <int DIM> struct stretch {
    float o[decode_sizes<DIM>::DIMS_8][2]; /* merged so far: dimension first_dim(i) + 2 t + j */
    float m, l;
    double q_unit;
    struct row_view view;
};

/* What one tile gives for row g. */
template <int DIM> struct tile_result { float o[decode_sizes<DIM>::DIMS_8][2], m, l; };

/* Merges a tile's result. */
template <int DIM>
static __device__ __forceinline__ void merge_tile(struct stretch<DIM> *s,
                                                  const struct tile_result<DIM> *t) {
    float max = s->m > t->m ? s->m : t->m;
    float old_share = num_exp(s->m - max), new_share = num_exp(t->m - max);
    s->l = s->l * old_share + t->l * new_share;
    s->m = max;
    UNROLL
    for (int i = 0; i < decode_sizes<DIM>::DIMS_8; i++)
        UNROLL
    for (int j = 0; j < 2; j++)
        s->o[i][j] = s->o[i][j] * old_share + t->o[i][j] * new_share;
}

/* One tile, and the loads for the next. set: of the slots and units that are this tile's. */
template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
run_tile(struct stretch<DIM> *s, struct tile_result<DIM> *result, struct loader<DIM> *chunks,
         const struct tile_cursor *at, const struct tile_cursor *next,
         struct tile_cursor *after_next, int set, const struct decode_memory *mem,
         struct row_states *rows, const struct attention_arguments *a,
         const struct attention_variant *variant) {
    typedef struct decode_sizes<DIM> size;
    int n = positions_of(&at->group, at->tile), n_next = chunks->size_of(next);
    int warp = (int)(threadIdx.x / 32), tile = begin_of(&at->group, at->tile);
    int visible = s->view.end - tile;
    const int EACH = 2 * size::CHUNK / PART; /* scores of a chunk */
    float scores[2 * PARTS];
    UNROLL
    for (int c = 0; c < size::CHUNKS; c++) {
        chunks->wait();
        chunks->start(c + size::AHEAD, n, set, n_next);
        if (c == 0 && threadIdx.x == 0) /* everybody is done with the tile that was there */
            find_next(after_next, next, chunks->plan);
        if (c == size::ROWS_AT)
            chunks->fetch_exponents(next, n_next, 1 - set);
        UNROLL
        for (int i = 0; i < EACH; i++)
            scores[c * EACH + i] = hidden_score<VARIANT>();
        if (c * size::CHUNK + warp * 8 < n) /* of this warp's positions, the first exists */
            score_chunk<DIM, VARIANT>(scores + c * EACH, chunks->chunk(), mem,
                                      mem->k_units + set * TILE, s->q_unit, &s->view, variant, tile,
                                      c * size::CHUNK);
        chunks->step();
    }
    tell_largest(scores, rows);
    struct softmax softmax;
    int32_t high[size::DIMS_8][4], low[size::DIMS_8][4];
    UNROLL
    for (int i = 0; i < size::DIMS_8; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        high[i][j] = low[i][j] = 0;
    UNROLL
    for (int c = 0; c < size::CHUNKS; c++) {
        chunks->wait(); /* the first time, all have told their largest score, too */
        chunks->start(size::CHUNKS + c + size::AHEAD, n, set, n_next);
        if (c == 0) {
            weigh<VARIANT>(&softmax, scores, at->group.n_rows, visible, mem->v_units + set * TILE,
                           rows);
            chunks->store_units(1 - set);
            __syncthreads();
            bool stored = snap_weights<DIM>(&softmax, scores, mem, rows);
            int row = (int)(threadIdx.x / 4);
            if (!stored && threadIdx.x % 4 == 0 && row < at->group.n_rows)
                gpu_fault(a->fault, a->site, at->group.first_token + token_of(a, &at->group, row));
            __syncthreads(); /* the weights are there */
        }
        if (c == 1)
            chunks->fetch_page(after_next, chunks->size_of(after_next));
        add_chunk<DIM>(high, low, chunks->chunk(), mem, c * size::CHUNK, n - c * size::CHUNK);
        chunks->step();
    }
    bool sees = VARIANT ? softmax.sees : visible > 0;
    result->m = sees ? softmax.tile_m : NAN; /* to be left out of the merge */
    result->l = sees ? softmax.tile_l : 0;
    UNROLL
    for (int i = 0; i < size::DIMS_8; i++)
        UNROLL
    for (int j = 0; j < 2; j++)
        result->o[i][j] = sees ? (float)(dot_of(high[i], low[i], j) * softmax.unit) : 0;
    if (sees)
        merge_tile<DIM>(s, result);
}

template <int DIM, bool VARIANT>
static __device__ __forceinline__ void
write_result(struct stretch<DIM> *s, const struct tile_cursor *at,
             const struct attention_arguments *a, const struct attention_variant *variant) {
    int lane = (int)(threadIdx.x % 32), row = lane / 4;
    if (row >= at->group.n_rows)
        return;
    size_t place = place_of(a, at, row);
    float *y = a->y + place;
    if (VARIANT) {
        if (variant->sinks) { /* a tile of values that are 0 */
            struct tile_result<DIM> sink = {};
            sink.m = variant->sinks[query_head(a, &at->group, row)];
            sink.l = 1;
            merge_tile<DIM>(s, &sink);
        }
        if (variant->lse && threadIdx.x < 32 && lane % 4 == 0)
            variant->lse[place / (size_t)a->head_dim] = attention_lse(variant, s->m, s->l);
    }
    UNROLL
    for (int i = 0; i < decode_sizes<DIM>::DIMS_8; i++)
        UNROLL
    for (int j = 0; j < 2; j++) {
        int d = first_dim(i) + lane % 4 * 2 + j;
        if (d < a->head_dim)
            y[d] = s->l > 0 ? s->o[i][j] / s->l : s->o[i][j];
    }
}

template <int DIM, bool VARIANT>
__global__ static void __launch_bounds__(THREADS, decode_sizes<DIM>::BLOCKS)
    decode(struct attention_arguments a, struct decode_cache cache,
           struct attention_variant variant, struct plan_arrays plan,
           struct partial_results partial) {
    typedef struct decode_sizes<DIM> size;
    SHARED_DYNAMIC(unsigned char, memory);
    SHARED(struct row_states, rows);
    struct decode_memory mem = cut_memory<DIM>(memory);
    let_next_kernel_start();
    const struct decode_share *at_share = &plan.shares[blockIdx.y];
    int4 share_begin = *(const int4 *)&at_share->begin;
    if (!share_begin.x)
        return;
    struct decode_share share = *at_share;
    struct tile_cursor begin = first_tile(&share, share_begin);
    SHARED(struct tile_cursor, cursors, [3]); /* this tile and the next two, in turns */
    if (threadIdx.x == 0)
        cursors[0] = begin;
    struct loader<DIM> chunks;
    chunks.a = &a;
    chunks.cache = &cache;
    chunks.plan = &plan;
    chunks.memory = mem;
    chunks.begin(&begin, cursors);
    if (a.head_dim < DIM)
        clear_padding<DIM>(mem.ring, a.head_dim);
    for (int i = (int)threadIdx.x; i < 2 * ROWS * size::WEIGHT_BYTES; i += THREADS)
        mem.weights[i] = 0; /* of rows that do not exist */

    struct stretch<DIM> s;
    int set = 0, first = 0, turn = 0, lane = (int)(threadIdx.x % 32);
    bool begins = true;
    for (bool goes_on = true; goes_on; set = 1 - set) {
        struct tile_cursor *at = &cursors[turn];
        turn = turn < 2 ? turn + 1 : 0;
        struct tile_cursor *next = &cursors[turn], *after_next = &cursors[turn < 2 ? turn + 1 : 0];
        if (begins) {
            first = at->tile;
            __syncthreads(); /* all are done with the rows before */
            snap_queries<DIM>(&a, at, &mem, &rows);
            __syncthreads();
            UNROLL
            for (int i = 0; i < size::DIMS_8; i++)
                s.o[i][0] = s.o[i][1] = 0;
            s.m = -INFINITY;
            s.l = 0;
            s.q_unit = rows.q_unit[lane / 4];
            s.view = view_of<VARIANT>(&a, &variant, &at->group, lane / 4);
        }
        struct tile_result<DIM> tile;
        run_tile<DIM, VARIANT>(&s, &tile, &chunks, at, next, after_next, set, &mem, &rows, &a,
                               &variant);
        if (first) { /* of a split, not its beginning: each tile for itself */
            const struct decode_split *split = &plan.splits[share.split_first];
            keep<DIM>(&partial, split->partial + 1 + at->tile - split->first_end, at->group.n_rows,
                      tile.o, tile.m, tile.l);
        }
        goes_on = next->left > 0;
        begins = !goes_on || next->tile == 0;
        if (begins && first == 0) {
            if (at->tile + 1 == at->group.n_tiles)
                write_result<DIM, VARIANT>(&s, at, &a, &variant);
            else
                keep<DIM>(&partial, plan.splits[share.split_last].partial, at->group.n_rows, s.o,
                          s.m, s.l);
        }
    }
}

template <int DIM, bool VARIANT>
static void launch(struct gpu_device *gpu, const struct attention_arguments *a,
                   const struct decode_cache *cache, const struct attention_variant *variant,
                   const struct attention_plan *plan) {
    typedef struct decode_sizes<DIM> size;
    struct partial_results partial = {plan->partial, a->n_kv_heads};
    if (!gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)decode<DIM, VARIANT>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    dim3 grid((unsigned)a->n_kv_heads, (unsigned)plan->n_shares);
    if (plan->n_tiles <= EARLY_TILES * plan->n_shares)
        GPU_LAUNCH_EARLY(gpu, (decode<DIM, VARIANT>), grid, THREADS, size::SHARED_BYTES, *a, *cache,
                         *variant, plan->arrays, partial);
    else
        GPU_LAUNCH(gpu, (decode<DIM, VARIANT>), grid, THREADS, size::SHARED_BYTES, *a, *cache,
                   *variant, plan->arrays, partial);
}

/* Variants have fewer sizes of kernels: they take long to compile. */
static void launch_variant(struct gpu_device *gpu, const struct attention_arguments *a,
                           const struct decode_cache *cache,
                           const struct attention_variant *variant,
                           const struct attention_plan *plan) {
    if (decode_dim(a->head_dim, true) == 64)
        launch<64, true>(gpu, a, cache, variant, plan);
    else if (decode_dim(a->head_dim, true) == 128)
        launch<128, true>(gpu, a, cache, variant, plan);
    else
        launch<256, true>(gpu, a, cache, variant, plan);
}

void gpu_attention_decode(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct decode_cache *cache, const struct attention_variant *variant,
                          const struct attention_plan *plan) {
    if (!attention_is_causal_only(variant))
        return launch_variant(gpu, a, cache, variant, plan);
    switch (decode_dim(a->head_dim, false)) {
    case 32:
        return launch<32, false>(gpu, a, cache, variant, plan);
    case 64:
        return launch<64, false>(gpu, a, cache, variant, plan);
    case 96:
        return launch<96, false>(gpu, a, cache, variant, plan);
    case 128:
        return launch<128, false>(gpu, a, cache, variant, plan);
    case 192:
        return launch<192, false>(gpu, a, cache, variant, plan);
    default:
        return launch<256, false>(gpu, a, cache, variant, plan);
    }
}

template <int DIM> static int shared_bytes(void) {
    return decode_sizes<DIM>::SHARED_BYTES +
           (int)(sizeof(struct row_states) + 3 * sizeof(struct tile_cursor));
}

int gpu_attention_decode_bytes(int head_dim, bool variant) {
    switch (decode_dim(head_dim, variant)) {
    case 32:
        return shared_bytes<32>();
    case 64:
        return shared_bytes<64>();
    case 96:
        return shared_bytes<96>();
    case 128:
        return shared_bytes<128>();
    case 192:
        return shared_bytes<192>();
    default:
        return shared_bytes<256>();
    }
}

struct decode_cache decode_cache_of(const struct kv_layer *kv, int page_size, int n_kv_heads) {
    struct decode_cache c = {kv->k,
                             kv->v,
                             kv->k_exponents,
                             kv->v_exponents,
                             (uint32_t)page_size * (uint32_t)n_kv_heads,
                             (uint32_t)n_kv_heads,
                             1};
    return c;
}

static bool in_rows(const struct kv_view *v, int head_dim) {
    return v->type == KV_BFP16 && v->scale == 1 && v->element_step == 1 && v->group_step == v->x &&
           v->page_step == v->page_exponents * head_dim &&
           v->position_step == v->position_exponents * head_dim &&
           v->head_step == v->head_exponents * head_dim;
}

bool decode_cache_of_views(struct decode_cache *out, const struct kv_views *kv, int head_dim) {
    const struct kv_view *k = &kv->k, *v = &kv->v;
    *out = {(const int16_t *)k->data,
            (const int16_t *)v->data,
            k->exponents,
            v->exponents,
            (uint32_t)k->page_exponents,
            (uint32_t)k->position_exponents,
            (uint32_t)k->head_exponents};
    return in_rows(k, head_dim) && in_rows(v, head_dim) && k->page_exponents == v->page_exponents &&
           k->position_exponents == v->position_exponents &&
           k->head_exponents == v->head_exponents &&
           ((uintptr_t)k->data | (uintptr_t)v->data) % 16 == 0;
}
