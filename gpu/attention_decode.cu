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
 * A row group that several blocks share is merged by the one that comes last, in order.
 *
 * Keys that are shared by query heads: "multi-query attention", Shazeer, 2019; the split over the
 * context: Dao et al., "Flash-Decoding", 2023; equal shares of all work: "Stream-K", Osama et al.,
 * 2023.
 */
#include "gpu/attention.h"
#include "gpu/attention_plan.h"
#include "gpu/tensor_core.h"

enum {
    TILE = ATTENTION_TILE,
    ROWS = GROUP_ROWS,
    WARPS = 8,
    THREADS = 32 * WARPS,
    VECTOR = 8,        /* mantissas in 16 bytes */
    MERGED_TILES = 64, /* whose shares are worked out together */
    EARLY_TILES = 6    /* a share, up to which it pays to start before the previous kernel ends */
};

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 32. Rows in shared
 * memory are 16 bytes longer than they must be: then 8 rows of a column lie in different banks. */
template <int DIM> struct decode_sizes {
    static const int CHUNK = 64;            /* positions */
    static const int CHUNKS = TILE / CHUNK; /* of keys in a tile, and of values */
    static const int AHEAD = 4;             /* chunks on their way while one is used */
    static const int STAGES = AHEAD + 1;
    static const int BLOCKS = DIM > 128 ? 1 : 2; /* on a processor */
    static const int DIMS_8 = (DIM + 63) / 64;   /* times 8 dimensions: a warp's share */
    static const int ROW_BYTES = 2 * DIM + 16;   /* of a position in a chunk */
    static const int STAGE_BYTES = CHUNK * ROW_BYTES;
    static const int QUERY_BYTES = 2 * ROWS * DIM; /* of all rows' digits */
    static const int WEIGHT_BYTES = TILE + 16;
    static const int SCORE_FLOATS = TILE + 4;
    static const int SHARED_BYTES = STAGES * STAGE_BYTES + QUERY_BYTES + 2 * ROWS * WEIGHT_BYTES +
                                    4 * ROWS * SCORE_FLOATS + 2 * 8 * TILE + 2 * 4 * TILE;
};

/* The memory of a block. */
struct decode_memory {
    unsigned char *ring; /* [STAGES] chunks */
    uint32_t *slots;     /* [2][TILE] where the positions of a tile are */
    float *scores;       /* [ROWS][SCORE_FLOATS]; in the merge, shares */
    int8_t *query;       /* [DIM / 32][32 lanes][16] digits as the lanes hand them to mma */
    int8_t *weights;     /* [2 ROWS][WEIGHT_BYTES] */
    uint32_t *k_units;   /* [2][TILE] 2^exponent as a double: the upper word */
    uint32_t *v_units;   /* [2][TILE] as a float */
};

/* What the warps tell each other of a row. */
struct row_states {
    double q_unit[ROWS];                    /* 2^(e-30) * scale of the query */
    double unit[ROWS];                      /* 2^(e-30) of the tile's weights */
    float old_share[ROWS], new_share[ROWS]; /* of the merge with this tile */
    float m[ROWS], l[ROWS];                 /* merged so far */
    float tile_m[ROWS], tile_l[ROWS];
};

template <int DIM> static __device__ struct decode_memory cut_memory(unsigned char *memory) {
    typedef struct decode_sizes<DIM> size;
    struct decode_memory m;
    m.ring = memory;
    m.slots = (uint32_t *)(memory + size::STAGES * size::STAGE_BYTES);
    m.scores = (float *)(m.slots + 2 * TILE);
    m.k_units = (uint32_t *)(m.scores + ROWS * size::SCORE_FLOATS);
    m.v_units = m.k_units + 2 * TILE;
    m.query = (int8_t *)(m.v_units + 2 * TILE);
    m.weights = m.query + size::QUERY_BYTES;
    return m;
}

/* ---- the order of the work --------------------------------------------------------------------
 */

/* A tile of a share, and how many are left of it, this one counted. */
struct tile_cursor {
    struct row_group group;
    int number, tile, left; /* number: of the row group */
};

static __device__ struct tile_cursor first_tile(const struct decode_share *share) {
    struct tile_cursor c;
    c.number = share->group;
    c.tile = share->tile;
    c.left = share->n_tiles;
    c.group = share->first;
    return c;
}

static __device__ __forceinline__ void
find_next(struct tile_cursor *next, const struct tile_cursor *at, const struct plan_arrays *plan) {
    *next = *at;
    next->left--;
    if (++next->tile < at->group.n_tiles)
        return;
    next->tile = 0;
    next->number++;
    if (next->left)
        next->group = plan->groups[next->number];
}

/* The kv head of this block. */
static __device__ __forceinline__ int kv_head(void) {
    return (int)blockIdx.x;
}

/* Positions of a tile that the last row sees. */
static __device__ __forceinline__ int positions_of(const struct row_group *g, int tile) {
    return max(0, min((int)TILE, g->kv_len - tile * TILE));
}

/* Positions of a tile that are loaded: products take 32 at a time. Those that do not exist are the
 * last one again; they are hidden from the softmax and have no weight. */
static __device__ __forceinline__ int loaded_of(int n) {
    return (n + 31) / 32 * 32;
}

/* ---- loading ----------------------------------------------------------------------------------
 *
 * While the keys of a tile are used, its values are fetched, chunk by chunk, and while the values
 * are used, the keys of the next tile. A chunk takes the place in the ring of the one that was used
 * before it. What a chunk needs to be fetched is worked out a phase earlier, a position a thread.
 */

/* A position of the next tile, on its way. */
struct next_position {
    int32_t page;
    int8_t k_exponent, v_exponent;
};

template <int DIM> struct loader {
    typedef struct decode_sizes<DIM> size;
    const struct attention_arguments *a;
    const struct plan_arrays *plan;
    struct decode_memory memory;
    int used, before; /* the chunk in use and the one before it: bytes from the ring's beginning */

    /* The number of this thread's position in its sequence, of those loaded. */
    __device__ __forceinline__ int position_in(const struct tile_cursor *at, int n) const {
        return at->tile * TILE + min((int)threadIdx.x, n - 1);
    }

    __device__ __forceinline__ void fetch_page(struct next_position *p,
                                               const struct tile_cursor *at, int n) const {
        if ((int)threadIdx.x < loaded_of(n))
            p->page = plan->pages[at->group.pages + position_in(at, n) / plan->page_size];
    }

    __device__ __forceinline__ void
    fetch_exponents(struct next_position *p, const struct tile_cursor *at, int n, int set) const {
        p->k_exponent = p->v_exponent = 0;
        if ((int)threadIdx.x >= loaded_of(n))
            return;
        uint32_t slot =
            (uint32_t)(p->page * plan->page_size + position_in(at, n) % plan->page_size);
        uint64_t row = (uint64_t)slot * (uint32_t)a->n_kv_heads + (uint32_t)kv_head();
        memory.slots[set * TILE + (int)threadIdx.x] = slot;
        p->k_exponent = a->kv.k_exponents[row];
        p->v_exponent = a->kv.v_exponents[row];
    }

    __device__ __forceinline__ void store_units(const struct next_position *p, int set) const {
        int j = set * TILE + (int)threadIdx.x;
        memory.k_units[j] = (uint32_t)(p->k_exponent + 1023) << 20; /* the upper word of 2^e */
        memory.v_units[j] = (uint32_t)(p->v_exponent + 127) << 23;
    }

    /* Starts copying chunk number c of a tile's keys or values, 16 bytes a thread at a time. */
    __device__ __forceinline__ void copy(const int16_t *mantissas, int set, int c, int n) const {
        const int VECTORS = DIM / VECTOR, STEP = THREADS / VECTORS;
        const char *from = (const char *)(mantissas + kv_head() * a->head_dim);
        uint32_t slot_bytes = (uint32_t)(a->n_kv_heads * a->head_dim * 2);
        const uint32_t *slots = memory.slots + set * TILE + c * size::CHUNK;
        unsigned char *to = memory.ring + before;
        int left = loaded_of(n) - c * size::CHUNK;
        if constexpr (STEP * VECTORS == THREADS) { /* a thread's column is always the same */
            int row = (int)threadIdx.x / VECTORS, column = (int)threadIdx.x % VECTORS * 16;
            to += row * size::ROW_BYTES + column;
            from += column;
            if (column >= a->head_dim * 2)
                return;
            if (left >= size::CHUNK) {
                uint32_t slot[size::CHUNK / STEP];
                UNROLL
                for (int i = 0; i < size::CHUNK / STEP; i++)
                    slot[i] = slots[row + i * STEP];
                UNROLL
                for (int i = 0; i < size::CHUNK / STEP; i++)
                    cp_async_16(to + i * STEP * size::ROW_BYTES,
                                from + (uint64_t)slot[i] * slot_bytes);
            } else {
                for (int i = 0; row + i < left; i += STEP)
                    cp_async_16(to + i * size::ROW_BYTES,
                                from + (uint64_t)slots[row + i] * slot_bytes);
            }
        } else {
            for (int i = (int)threadIdx.x; i < size::CHUNK * VECTORS; i += THREADS) {
                int row = i / VECTORS, column = i % VECTORS * 16;
                if (row < left && column < a->head_dim * 2)
                    cp_async_16(to + row * size::ROW_BYTES + column,
                                from + (uint64_t)slots[row] * slot_bytes + column);
            }
        }
    }

    static __device__ __forceinline__ int after(int chunk) {
        return chunk < (size::STAGES - 1) * size::STAGE_BYTES ? chunk + size::STAGE_BYTES : 0;
    }

    /* Starts chunk number i of a tile, counted on from its keys to its values and to the keys of
     * the next tile. */
    __device__ __forceinline__ void start(int i, int n, int set, int n_next) const {
        if (i < size::CHUNKS)
            copy(a->kv.k, set, i, n);
        else if (i < 2 * size::CHUNKS)
            copy(a->kv.v, set, i - size::CHUNKS, n);
        else
            copy(a->kv.k, 1 - set, i - 2 * size::CHUNKS, n_next);
        cp_async_commit();
    }

    /* The first chunks of the first tile. */
    __device__ __forceinline__ void begin(const struct tile_cursor *at) {
        int n = positions_of(&at->group, at->tile);
        struct next_position p;
        fetch_page(&p, at, n);
        wait_for_previous_kernel(); /* the plan is older */
        fetch_exponents(&p, at, n, 0);
        store_units(&p, 0);
        __syncthreads();
        before = 0;
        for (int c = 0; c < size::AHEAD; c++) {
            start(c, n, 0, 0);
            before = after(before);
        }
        used = 0; /* the next one; `before` is the last place of the ring, still empty */
    }

    /* Waits for the next chunk. All threads are done with the one before. */
    __device__ __forceinline__ void wait() const {
        cp_async_wait<size::AHEAD - 1>();
        __syncthreads();
    }

    __device__ __forceinline__ const unsigned char *chunk() const {
        return memory.ring + used;
    }

    /* The chunk is done with. */
    __device__ __forceinline__ void step() {
        before = used;
        used = after(used);
    }
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

/* Row of the group: its token, counted in the sequence, and its place in q and y. */
static __device__ __forceinline__ int token_of(const struct attention_arguments *a,
                                               const struct row_group *g, int row) {
    return (g->first_row + row) / (a->n_heads / a->n_kv_heads);
}

static __device__ __forceinline__ size_t place_of(const struct attention_arguments *a,
                                                  const struct tile_cursor *c, int row) {
    int group = a->n_heads / a->n_kv_heads;
    size_t token = (size_t)(c->group.first_token + token_of(a, &c->group, row));
    size_t head = (size_t)(kv_head() * group + (c->group.first_row + row) % group);
    return (token * (size_t)a->n_heads + head) * (size_t)a->head_dim;
}

/* Positions that a row sees. */
static __device__ __forceinline__ int visible_to(const struct attention_arguments *a,
                                                 const struct row_group *g, int row) {
    return row < g->n_rows ? g->before + token_of(a, g, row) + 1 : 0;
}

/* Snaps the rows of the group; a warp has every fourth. Rows that do not exist are zeros. */
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

/* The first of the 8 dimensions that a warp has as its number i, of size::DIMS_8; those from DIM on
 * do not exist. */
static __device__ __forceinline__ int first_dim(int i) {
    return ((int)threadIdx.x / 32 + i * WARPS) * 8;
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

/* ---- results that several blocks make ---------------------------------------------------------
 */

/* Device memory [places, n_kv_heads, ROWS, partial_floats(DIM)]: what a row leaves of a tile. */
struct partial_results {
    float *rows;
    int n_kv_heads;
};

/* The first of the rows of a place, for this block's kv head. */
template <int DIM>
static __device__ __forceinline__ float *rows_at(const struct partial_results *p, int place) {
    size_t number = (size_t)place * (size_t)p->n_kv_heads + (size_t)kv_head();
    return p->rows + number * (size_t)(ROWS * partial_floats(DIM));
}

/* m and l of a row. */
template <int DIM> static __device__ __forceinline__ float2 *ml_of(float *rows, int row) {
    return (float2 *)(rows + row * partial_floats(DIM) + DIM);
}

/* What a block holds of the running result: o[i][j] is dimension first_dim(i) + 2 t + j of row g.
 */
template <int DIM>
static __device__ __forceinline__ void keep(const struct partial_results *p, int place,
                                            const float o[][2], const float *m, const float *l) {
    int lane = (int)threadIdx.x % 32;
    float *rows = rows_at<DIM>(p, place);
    float2 *to = (float2 *)(rows + lane / 4 * partial_floats(DIM));
    UNROLL
    for (int i = 0; i < decode_sizes<DIM>::DIMS_8; i++)
        if (first_dim(i) < DIM)
            to[first_dim(i) / 2 + lane % 4] = make_float2(o[i][0], o[i][1]);
    if (threadIdx.x < ROWS)
        *ml_of<DIM>(rows, (int)threadIdx.x) = make_float2(m[threadIdx.x], l[threadIdx.x]);
}

/* The shares of n tiles of a split, for the row of this warp: in shares[row][0] the old ones, in
 * [1] the new ones, in [2] the tiles' l. Takes the m of what is before, returns that of all. */
template <int DIM>
static __device__ float work_out_shares(float shares[ROWS][3][MERGED_TILES], float m,
                                        const struct partial_results *p, int place, int n) {
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32;
    for (int i = 0; i < n; i += 32) {
        bool exists = i + lane < n;
        float2 ml = exists ? *ml_of<DIM>(rows_at<DIM>(p, place + i + lane), row)
                           : make_float2(-INFINITY, 0);
        float max = fmaxf(m, ml.x);
        UNROLL
        for (int step = 1; step < 32; step *= 2) { /* of all up to this one */
            float other = __shfl_up_sync(0xffffffffu, max, (unsigned)step);
            max = lane >= step ? fmaxf(max, other) : max;
        }
        float before = __shfl_up_sync(0xffffffffu, max, 1);
        before = lane ? before : m;
        m = __shfl_sync(0xffffffffu, max, 31);
        if (exists) {
            shares[row][0][i + lane] = num_exp(before - max);
            shares[row][1][i + lane] = num_exp(ml.x - max);
            shares[row][2][i + lane] = ml.y;
        }
    }
    return m;
}

/* Merges all results of a split in order, and writes them. */
template <int DIM>
static __device__ void merge_split(const struct attention_arguments *a, const struct tile_cursor *c,
                                   const struct decode_split *split,
                                   const struct partial_results *p, float *shared) {
    typedef float share_table[3][MERGED_TILES];
    share_table *shares = (share_table *)shared;
    const int EACH = ROWS * DIM / THREADS; /* a thread: one dimension of several rows */
    float o[EACH], l[EACH];
    const int NEXT = ROWS * partial_floats(DIM);
    float *begin = rows_at<DIM>(p, split->partial);
    float m = ml_of<DIM>(begin, (int)threadIdx.x / 32)->x;
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int row = ((int)threadIdx.x + i * THREADS) / DIM,
            d = ((int)threadIdx.x + i * THREADS) % DIM;
        o[i] = begin[row * partial_floats(DIM) + d];
        l[i] = ml_of<DIM>(begin, row)->y;
    }
    for (int tile = split->first_end; tile < split->n_tiles; tile += MERGED_TILES) {
        int n = min((int)MERGED_TILES, split->n_tiles - tile);
        int place = split->partial + 1 + tile - split->first_end;
        __syncthreads();
        m = work_out_shares<DIM>(shares, m, p, place, n);
        __syncthreads();
        UNROLL
        for (int i = 0; i < EACH; i++) {
            int row = ((int)threadIdx.x + i * THREADS) / DIM;
            int d = ((int)threadIdx.x + i * THREADS) % DIM;
            int sees = visible_to(a, &c->group, row) - tile * TILE;
            int n_seen = min(n, (sees + TILE - 1) / TILE);
            const float *from = rows_at<DIM>(p, place) + row * partial_floats(DIM) + d;
            UNROLL_8
            for (int j = 0; j < n_seen; j++) {
                l[i] = l[i] * shares[row][0][j] + shares[row][2][j] * shares[row][1][j];
                o[i] = o[i] * shares[row][0][j] +
                       from[(size_t)j * (size_t)(NEXT * p->n_kv_heads)] * shares[row][1][j];
            }
        }
    }
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int row = ((int)threadIdx.x + i * THREADS) / DIM,
            d = ((int)threadIdx.x + i * THREADS) % DIM;
        if (row < c->group.n_rows && d < a->head_dim)
            a->y[place_of(a, c, row) + (size_t)d] = l[i] > 0 ? o[i] / l[i] : o[i];
    }
}

/* n more tiles of the split are done. Who is last merges. */
template <int DIM>
static __device__ void arrive(const struct attention_arguments *a, const struct plan_arrays *plan,
                              const struct tile_cursor *c, int number, int n,
                              const struct partial_results *p, float *shared) {
    SHARED(int, is_last);
    struct decode_split split = plan->splits[number];
    int32_t *tiles_done = &plan->tiles_done[number * a->n_kv_heads + kv_head()];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicAdd(tiles_done, n) + n == split.n_tiles;
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    merge_split<DIM>(a, c, &split, p, shared);
    if (threadIdx.x == 0)
        *tiles_done = 0; /* for the next launch */
    __syncthreads();     /* `shared` is used again */
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
