/*
 * attention_paged, version 4: few tokens per sequence over a long cache, at the speed of memory.
 *
 * What limits it is reading each key and value once. So
 *
 * - a block of 8 warps works on up to 8 rows (tokens and query heads of one kv head) at once: they
 *   share one read of the keys and values;
 * - the blocks' shares of all tiles are equal (attention_plan.cu), whatever the lengths. A share is
 *   walked through without a break, over the ends of sequences, by the blocks of all kv heads at the
 *   same time, because keys of the same position lie side by side;
 * - keys and values come in chunks of 64 positions through a ring in shared memory, four on their
 *   way while one is used, so that the loads never wait for the softmax between them;
 * - products are made by int8 tensor cores on digits: the 16 rows of an mma are the high digits of 8
 *   rows and their low ones. The cache's mantissas are int16: their two bytes are the digits
 *   already, high signed and low unsigned. For the other operand, which lies in registers, both are
 *   signed.
 *
 * Per tile of 256 positions:
 *
 *     4 x   keys of 64 positions: each warp takes 8, its scores go to shared memory
 *     softmax: each warp takes a row; the snapped weights go back as digits
 *     4 x   values of 64 positions: each warp takes an eighth of the dimensions
 *     merge into the running result, which stays in registers
 *
 * A row group that several blocks share is merged by the one that comes last, in order
 * (attention_merge.h). attention_decode.h has the loads.
 *
 * Keys that are shared by query heads: "multi-query attention", Shazeer, 2019; the split over the
 * context: Dao et al., "Flash-Decoding", 2023; equal shares of all work: "Stream-K", Osama et al.,
 * 2023.
 */
#include "gpu/attention_decode.h"
#include "gpu/attention_merge.h"

enum { EARLY_TILES = 6 /* of a share: up to these it pays to start before the previous kernel ends */ };

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

/* Snaps the rows of the group; a warp has one. Rows that do not exist are zeros. */
template <int DIM>
static __device__ void snap_queries(const struct attention_arguments *a,
                                    const struct tile_cursor *c, const struct decode_memory *mem,
                                    struct row_states *rows) {
    int lane = (int)threadIdx.x % 32;
    for (int row = (int)threadIdx.x / 32; row < ROWS; row += WARPS) {
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
        if (lane == 0) {
            rows->q_unit[row] = num_pow2(e - 30) * a->scale;
            rows->m[row] = rows->tile_m[row] = -INFINITY;
            rows->l[row] = rows->tile_l[row] = 0;
        }
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

/* The scores of a chunk's positions `first` ... of the tile; a warp has 8 of them. */
template <int DIM>
static __device__ __forceinline__ void
score_chunk(const unsigned char *keys, const struct decode_memory *mem, const uint32_t *units,
            double q_unit, int visible, int first) {
    typedef struct decode_sizes<DIM> size;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int begin = warp * 8, position = first + begin + lane % 4 * 2;
    const unsigned char *row = keys + (begin + lane % 8) * size::ROW_BYTES + lane / 8 * 16;
    uint2 unit = *(const uint2 *)(units + position);
    int32_t high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
    uint32_t m[DIM / 32][4];
    UNROLL
    for (int k = 0; k < DIM / 32; k++)
        ldmatrix_x4(m[k], row + k * 64);
    UNROLL
    for (int k = 0; k < DIM / 32; k++) {
        uint4 q = ((const uint4 *)mem->query)[32 * k + lane];
        const uint32_t digits[4] = {q.x, q.y, q.z, q.w};
        multiply(high, low, digits, m[k]);
    }
    float s[2];
    UNROLL
    for (int j = 0; j < 2; j++) {
        double k_unit = __longlong_as_double((long long)((uint64_t)(j ? unit.y : unit.x) << 32));
        s[j] = num_score(dot_of(high, low, j), k_unit, q_unit);
        s[j] = position + j < visible ? s[j] : -INFINITY;
    }
    *(float2 *)(mem->scores + lane / 4 * size::SCORE_FLOATS + position) = make_float2(s[0], s[1]);
}

/* One row's softmax over the tile, by a warp: weights as digits, and what the merge needs. visible:
 * positions of the tile that the row sees; n: that were loaded. */
template <int DIM>
static __device__ __forceinline__ void
softmax_row(int row, int visible, int n, const struct decode_memory *mem,
            const uint32_t *units_of_values, struct row_states *rows,
            const struct attention_arguments *a, int token) {
    typedef struct decode_sizes<DIM> size;
    const int EACH = TILE / 32;
    int lane = (int)threadIdx.x % 32;
    float s[EACH], m = -INFINITY, largest = 0;
    uint32_t units = 0;
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int j = lane + 32 * i;
        s[i] = j < n ? mem->scores[row * size::SCORE_FLOATS + j] : -INFINITY;
        m = fmaxf(m, s[i]);
    }
    m = warp_max(m);
    bool sees = visible > 0;
    bool bad = sees && (m == INFINITY || m == -INFINITY); /* a score that float cannot hold */
    float base = sees && !bad ? m : 0;
    UNROLL
    for (int i = 0; i < EACH; i++) {
        float p = num_exp_below_0(s[i] - base);
        units += num_probability_units(p);
        /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
        s[i] = p * num_float(units_of_values[lane + 32 * i]);
        largest = fmaxf(largest, s[i]);
    }
    float l = (float)warp_sum(units) * 0x1p-23f;
    int e = num_row_exponent(num_bits(warp_max(largest)));
    bad = bad || e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    float scale = bad ? 0 : num_pow2f(15 - e);
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int at = row * size::WEIGHT_BYTES + summand_of(lane + 32 * i);
        put_digits(mem->weights + at, mem->weights + at + ROWS * size::WEIGHT_BYTES,
                   num_mantissa(s[i], scale));
    }
    if (lane)
        return;
    if (bad)
        gpu_fault(a->fault, a->site, token);
    rows->unit[row] = num_pow2(e - 30);
    rows->tile_m[row] = m;
    rows->tile_l[row] = l;
    if (!sees)
        return;
    float old = rows->m[row], max = old > m ? old : m;
    rows->old_share[row] = num_exp(old - max);
    rows->new_share[row] = num_exp(m - max);
    rows->l[row] = rows->l[row] * rows->old_share[row] + l * rows->new_share[row];
    rows->m[row] = max;
}

/* Adds the products of a chunk's weights and values, of n positions. */
template <int DIM>
static __device__ __forceinline__ void
add_chunk(int32_t high[][4], int32_t low[][4], const unsigned char *values,
          const struct decode_memory *mem, int first, int n) {
    typedef struct decode_sizes<DIM> size;
    int lane = (int)threadIdx.x % 32;
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
            ldmatrix_x4_trans(m, values + (k + lane) * size::ROW_BYTES + first_dim(i) * 2);
            multiply(high[i], low[i], weights, m);
        }
    }
}

/* ---- the kernel -------------------------------------------------------------------------------
 */

/* Zeros behind the dimensions that exist: the products reach over all of DIM. */
template <int DIM> static __device__ void clear_padding(unsigned char *ring, int head_dim) {
    typedef struct decode_sizes<DIM> size;
    int words = (DIM - head_dim) / 2;
    for (int i = (int)threadIdx.x; i < words * size::STAGES * size::CHUNK; i += THREADS)
        ((uint32_t *)(ring + i / words * size::ROW_BYTES + head_dim * 2))[i % words] = 0;
}

/* A stretch of tiles of one row group, as a block goes through it. */
template <int DIM> struct stretch {
    float o[decode_sizes<DIM>::DIMS_8]
           [2];    /* merged so far: dimension first_dim(i) + 2 t + j of row g */
    double q_unit; /* of row g */
    int visible;   /* positions that row g sees */
};

/* One tile, and the loads for the next. Sets tile_o, the tile's own result. set: of the slots and
 * units that are this tile's. */
template <int DIM>
static __device__ __forceinline__ void
run_tile(struct stretch<DIM> *s, float tile_o[][2], struct loader<DIM> *chunks,
         const struct tile_cursor *at, struct tile_cursor *next, int set,
         const struct decode_memory *mem, struct row_states *rows,
         const struct attention_arguments *a) {
    typedef struct decode_sizes<DIM> size;
    int n = positions_of(&at->group, at->tile), first = at->tile * TILE;
    int n_next = 0, row = (int)threadIdx.x / 32, visible = s->visible - first;
    struct next_position position = {};
    UNROLL
    for (int c = 0; c < size::CHUNKS; c++) {
        chunks->wait();
        chunks->start(c + size::AHEAD, n, set, n_next);
        if (c == 0 && threadIdx.x == 0) /* everybody is done with the tile that was there */
            find_next(next, at, chunks->plan);
        if (c == 1) {
            n_next = next->left ? positions_of(&next->group, next->tile) : 0;
            chunks->fetch_page(&position, next, n_next);
        }
        if (c == 3)
            chunks->fetch_exponents(&position, next, n_next, 1 - set);
        if (c * size::CHUNK + row * 8 < n) /* of this warp's 8, the first exists */
            score_chunk<DIM>(chunks->chunk(), mem, mem->k_units + set * TILE, s->q_unit, visible,
                             c * size::CHUNK);
        chunks->step();
    }
    int32_t high[size::DIMS_8][4], low[size::DIMS_8][4];
    UNROLL
    for (int i = 0; i < size::DIMS_8; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        high[i][j] = low[i][j] = 0;
    UNROLL
    for (int c = 0; c < size::CHUNKS; c++) {
        chunks->wait(); /* the first time, all scores are there, too */
        chunks->start(size::CHUNKS + c + size::AHEAD, n, set, n_next);
        if (c == 0) {
            if (row < at->group.n_rows)
                softmax_row<DIM>(row, visible_to(a, &at->group, row) - first, n, mem,
                                 mem->v_units + set * TILE, rows, a,
                                 at->group.first_token + token_of(a, &at->group, row));
            chunks->store_units(&position, 1 - set);
            __syncthreads(); /* the weights are there */
        }
        add_chunk<DIM>(high, low, chunks->chunk(), mem, c * size::CHUNK, n - c * size::CHUNK);
        chunks->step();
    }
    row = (int)threadIdx.x % 32 / 4;
    double unit = visible > 0 ? rows->unit[row] : 0;
    UNROLL
    for (int i = 0; i < size::DIMS_8; i++)
        UNROLL
    for (int j = 0; j < 2; j++) {
        tile_o[i][j] = (float)(dot_of(high[i], low[i], j) * unit);
        if (visible > 0)
            s->o[i][j] = s->o[i][j] * rows->old_share[row] + tile_o[i][j] * rows->new_share[row];
    }
}

template <int DIM>
static __device__ __forceinline__ void
write_result(const struct stretch<DIM> *s, const struct tile_cursor *at,
             const struct row_states *rows, const struct attention_arguments *a) {
    int lane = (int)threadIdx.x % 32, row = lane / 4;
    if (row >= at->group.n_rows)
        return;
    float *y = a->y + place_of(a, at, row), l = rows->l[row];
    UNROLL
    for (int i = 0; i < decode_sizes<DIM>::DIMS_8; i++)
        UNROLL
    for (int j = 0; j < 2; j++) {
        int d = first_dim(i) + lane % 4 * 2 + j;
        if (d < a->head_dim)
            y[d] = l > 0 ? s->o[i][j] / l : s->o[i][j];
    }
}

template <int DIM>
__global__ static void __launch_bounds__(THREADS, decode_sizes<DIM>::BLOCKS)
    decode(struct attention_arguments a, struct plan_arrays plan, struct partial_results partial) {
    typedef struct decode_sizes<DIM> size;
    SHARED_DYNAMIC(unsigned char, memory);
    SHARED(struct row_states, rows);
    struct decode_memory mem = cut_memory<DIM>(memory);
    let_next_kernel_start();
    struct decode_share share = plan.shares[blockIdx.y];
    if (!share.n_tiles)
        return;
    SHARED(struct tile_cursor, cursors, [2]); /* this tile and the next, in turns */
    if (threadIdx.x == 0)
        cursors[0] = first_tile(&share);
    __syncthreads();
    struct loader<DIM> chunks;
    chunks.a = &a;
    chunks.plan = &plan;
    chunks.memory = mem;
    chunks.begin(&cursors[0]);
    if (a.head_dim < DIM)
        clear_padding<DIM>(mem.ring, a.head_dim);
    for (int i = (int)threadIdx.x; i < 2 * ROWS * size::WEIGHT_BYTES; i += THREADS)
        mem.weights[i] = 0; /* of rows that do not exist */

    struct stretch<DIM> s;
    int set = 0, first = 0, lane = (int)threadIdx.x % 32;
    bool begins = true;
    for (bool goes_on = true; goes_on; set = 1 - set) {
        struct tile_cursor *at = &cursors[set], *next = &cursors[1 - set];
        if (begins) {
            first = at->tile;
            __syncthreads(); /* all are done with the rows before */
            snap_queries<DIM>(&a, at, &mem, &rows);
            __syncthreads();
            UNROLL
            for (int i = 0; i < size::DIMS_8; i++)
                s.o[i][0] = s.o[i][1] = 0;
            s.q_unit = rows.q_unit[lane / 4];
            s.visible = visible_to(&a, &at->group, lane / 4);
        }
        float tile_o[size::DIMS_8][2];
        run_tile<DIM>(&s, tile_o, &chunks, at, next, set, &mem, &rows, &a);
        if (first) { /* of a split, not its beginning: each tile for itself */
            const struct decode_split *split = &plan.splits[share.split_first];
            keep<DIM>(&partial, split->partial + 1 + at->tile - split->first_end, tile_o,
                      rows.tile_m, rows.tile_l);
        }
        goes_on = next->left > 0;
        begins = !goes_on || next->tile == 0;
        if (begins && first == 0 && at->tile + 1 == at->group.n_tiles) {
            write_result<DIM>(&s, at, &rows, &a);
        } else if (begins) {
            int split = first ? share.split_first : share.split_last;
            if (!first)
                keep<DIM>(&partial, plan.splits[split].partial, s.o, rows.m, rows.l);
            arrive<DIM>(&a, &plan, at, split, at->tile + 1 - first, &partial, mem.scores);
        }
    }
}

template <int DIM>
static void launch(struct gpu_device *gpu, const struct attention_arguments *a,
                   const struct attention_plan *plan) {
    typedef struct decode_sizes<DIM> size;
    struct partial_results partial = {plan->partial, a->n_kv_heads};
    if (!gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)decode<DIM>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    dim3 grid((unsigned)a->n_kv_heads, (unsigned)plan->n_shares);
    if (plan->n_tiles <= EARLY_TILES * plan->n_shares)
        GPU_LAUNCH_EARLY(gpu, decode<DIM>, grid, THREADS, size::SHARED_BYTES, *a, plan->arrays,
                         partial);
    else
        GPU_LAUNCH(gpu, decode<DIM>, grid, THREADS, size::SHARED_BYTES, *a, plan->arrays, partial);
}

void gpu_attention_decode(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct attention_plan *plan) {
    switch (decode_dim(a->head_dim)) {
    case 32:
        return launch<32>(gpu, a, plan);
    case 64:
        return launch<64>(gpu, a, plan);
    case 96:
        return launch<96>(gpu, a, plan);
    case 128:
        return launch<128>(gpu, a, plan);
    case 192:
        return launch<192>(gpu, a, plan);
    default:
        return launch<256>(gpu, a, plan);
    }
}
