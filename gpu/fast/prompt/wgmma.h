/*
 * wgmma.h - for gpu/fast/prompt/wgmma.cu: the sizes of a block, how chunks come to
 * shared memory, and the arithmetic of a tile. Scores, the softmax, weighted sums of values.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_WGMMA_H
#define SAMEBITS_GPU_FAST_PROMPT_WGMMA_H

#include "gpu/attention.h"
#include "gpu/ptx/warpgroup.h"

enum {
    TILE = ATTENTION_TILE,
    ROWS = QUERY_ROWS,
    KEYS = 128,      /* of a chunk */
    VALUE_DIMS = 64, /* of one: dimensions of the values of a whole tile */
    COLUMNS = 64,    /* of a product: keys, or dimensions */
    THREADS = 128,
    STAGES = 2
};

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 64. */
template <int DIM> struct warpgroup_sizes {
    static const int KEY_BYTES = group_bytes(KEYS, DIM), KEY_CHUNKS = TILE / KEYS;
    static const int VALUE_BYTES = group_bytes(VALUE_DIMS, TILE), VALUE_CHUNKS = DIM / VALUE_DIMS;
    static const int CHUNKS = KEY_CHUNKS + VALUE_CHUNKS; /* of a tile */
    static const int STAGE_BYTES = KEY_BYTES > VALUE_BYTES ? KEY_BYTES : VALUE_BYTES;
    static const int SHARED_BYTES = STAGES * STAGE_BYTES + 4 * ROWS * DIM + 8 * TILE +
                                    ROWS * (int)sizeof(struct num_score_unit) +
                                    STAGES * (int)sizeof(struct bulk_barrier);
};

/*
 * The digits of a tile come in chunks: those of its keys, then those of its values. Chunk c + 2
 * goes where chunk c was, as soon as nobody uses that any more; a barrier for each of the two
 * places says when it is there. Which chunk it is, is known when this is compiled, and so is its
 * place, if a tile has an even number of chunks, and which round of the barrier it is, if it has
 * four: that spares a few percent of a tile's instructions.
 */
template <int DIM> struct tile_chunks {
    typedef struct warpgroup_sizes<DIM> size;
    static const bool ODD = size::CHUNKS % 2 != 0, ROUNDS_VARY = size::CHUNKS % 4 != 0;
    struct bulk_barrier *arrived; /* [STAGES], in shared memory */
    unsigned char *ring;          /* [STAGES] of STAGE_BYTES */
    const uint8_t *tile;          /* the digits of the tile that is at work */
    int left;                     /* tiles behind it */
    int n_last;                   /* key chunks of the last tile that somebody sees */
    int first_place;              /* of chunk 0 */
    int behind;                   /* chunks that were started and not waited for */
    unsigned rounds;              /* bit i: how often place i was waited for, modulo 2 */

    __device__ __forceinline__ int place(int chunk) const {
        return (ODD ? first_place + chunk : chunk) % STAGES;
    }

    /* Starts chunk c of this tile; from CHUNKS on, of the next one, if there is one. */
    __device__ __forceinline__ void start(int c) {
        bool next = c >= size::CHUNKS;
        int chunk = next ? c - size::CHUNKS : c, at = place(c);
        int values = max(chunk - size::KEY_CHUNKS, 0);
        int bytes = chunk < size::KEY_CHUNKS ? size::KEY_BYTES : size::VALUE_BYTES;
        const uint8_t *from = tile + (next ? tile_bytes(DIM) : 0) +
                              (chunk - values) * size::KEY_BYTES + values * size::VALUE_BYTES;
        if (chunk && chunk < size::KEY_CHUNKS && chunk >= n_last && left == (next ? 1 : 0))
            bytes = 0;
        if (threadIdx.x == 0 && !(next && !left))
            bulk_copy(&arrived[at], ring + at * size::STAGE_BYTES, from, bytes);
        bulk_end_group();
        behind++;
    }

    /* Waits for chunk c of this tile. */
    __device__ __forceinline__ const unsigned char *take(int c) {
        int at = place(c);
        bulk_wait(&arrived[at], ROUNDS_VARY ? rounds >> at & 1 : (unsigned)c / STAGES % 2,
                  --behind);
        rounds ^= 1u << at;
        return ring + at * size::STAGE_BYTES;
    }

    /* Waits for all threads, none of which uses chunk c any more. */
    __device__ __forceinline__ void replace(int c) {
        __syncthreads();
        start(c + STAGES);
    }

    __device__ __forceinline__ void next_tile() {
        tile += tile_bytes(DIM);
        left--;
        first_place = (first_place + size::CHUNKS) % STAGES;
    }
};

/*
 * ---- exact products ----------------------------------------------------------------------------
 *
 * Of the 64 rows of a block with 64 columns, keys or dimensions of values. A product of mantissas
 * is one of digits four times:
 *
 *     65536 high * high + 256 (high * low + low * high) + low * low
 *
 * The sums of the outer two come first; joined, in units of 256, they are what the inner ones are
 * added to. So a row holds two sums of a column and then one, not three, and the tensor cores have
 * the next columns' outer products to do while a sum is joined or used.
 */

/* Digits of a thread's rows, 32 summands a step, as wgmma takes them. */
template <int STEPS> struct row_digits { uint32_t high[STEPS][4], low[STEPS][4]; };

struct outer_sums {
    int32_t high[32], low[32];
};

/* Where the digits of columns begin, in a chunk of CHUNK_COLUMNS. */
struct column_digits {
    shared_matrix high, low;
};

template <int CHUNK_COLUMNS>
static __device__ __forceinline__ struct column_digits digits_at(const unsigned char *columns) {
    const int step = column_bytes(CHUNK_COLUMNS);
    return {shared_matrix_at(columns, step), shared_matrix_at(columns + 16 * CHUNK_COLUMNS, step)};
}

template <int CHUNK_COLUMNS>
static __device__ __forceinline__ shared_matrix digits_of_step(shared_matrix m, int k) {
    return shared_matrix_skip(m, 2 * k, column_bytes(CHUNK_COLUMNS));
}

/* Products of the steps from `first` on. HALVES: not of the second half, if `half` says that all of
 * its summands are 0. (The compiler wants a beginning wherever ways meet.) */
template <bool HALVES, int STEPS, class step>
static __device__ __forceinline__ void add_steps(int first, bool half, step add) {
    UNROLL
    for (int k = first; k < (HALVES ? STEPS / 2 : STEPS); k++)
        add(k);
    if (HALVES && !half) {
        wgmma_begin();
        UNROLL
        for (int k = STEPS / 2; k < STEPS; k++)
            add(k);
    }
    if (HALVES)
        wgmma_begin();
}

template <bool HALVES, int CHUNK_COLUMNS, int STEPS, class digits>
static __device__ __forceinline__ void start_outer(struct outer_sums *s, const digits *rows,
                                                   const unsigned char *columns, bool half) {
    struct column_digits c = digits_at<CHUNK_COLUMNS>(columns);
    wgmma_begin();
    wgmma_s8_s8<false>(s->high, rows->high[0], c.high);
    wgmma_u8_u8<false>(s->low, rows->low[0], c.low);
    add_steps<HALVES, STEPS>(1, half, [&](int k) {
        wgmma_s8_s8<true>(s->high, rows->high[k], digits_of_step<CHUNK_COLUMNS>(c.high, k));
        wgmma_u8_u8<true>(s->low, rows->low[k], digits_of_step<CHUNK_COLUMNS>(c.low, k));
    });
    wgmma_end();
}

template <bool HALVES, int CHUNK_COLUMNS, int STEPS, class digits>
static __device__ __forceinline__ void start_inner(int32_t (&sums)[32], const digits *rows,
                                                   const unsigned char *columns, bool half) {
    struct column_digits c = digits_at<CHUNK_COLUMNS>(columns);
    wgmma_begin();
    add_steps<HALVES, STEPS>(0, half, [&](int k) {
        wgmma_s8_u8<true>(sums, rows->high[k], digits_of_step<CHUNK_COLUMNS>(c.low, k));
        wgmma_u8_s8<true>(sums, rows->low[k], digits_of_step<CHUNK_COLUMNS>(c.high, k));
    });
    wgmma_end();
}

static __device__ __forceinline__ void join(int32_t (&sums)[32], const struct outer_sums *outer) {
    UNROLL
    for (int i = 0; i < 32; i++) /* low: of unsigned digits */
        sums[i] = outer->high[i] * 256 + (int32_t)((uint32_t)outer->low[i] >> 8);
}

/* The products of rows, STEPS * 32 summands, with 64 columns after the other: parts. They are those
 * of the tile's chunks from number FIRST on. HALVES, half: add_steps. */
template <bool HALVES, int FIRST, int CHUNK_COLUMNS, int STEPS, class digits, class tile>
struct part_products {
    enum { IN_CHUNK = CHUNK_COLUMNS / COLUMNS };
    const digits *rows;
    tile *chunks;
    bool half;
    const unsigned char *columns; /* of the part that was started last */
    struct outer_sums outer;
    int32_t sums[2][32]; /* of two parts in turns: in units of 256, rounded down */

    /* Starts the outer products of a part. */
    __device__ __forceinline__ void start(int part) {
        columns = part % IN_CHUNK ? columns + 16 * COLUMNS : chunks->take(FIRST + part / IN_CHUNK);
        start_outer<HALVES, CHUNK_COLUMNS, STEPS>(&outer, rows, columns, half);
    }

    /* Waits for them, and for the inner ones of the part before; starts this part's inner ones. */
    __device__ __forceinline__ void go_on(int part) {
        wgmma_wait();
        wgmma_settle(outer.high);
        wgmma_settle(outer.low);
        if (part)
            wgmma_settle(sums[(part + 1) % 2]);
        join(sums[part % 2], &outer);
        start_inner<HALVES, CHUNK_COLUMNS, STEPS>(sums[part % 2], rows, columns, half);
        if (part && part % IN_CHUNK == 0)
            chunks->replace(FIRST + part / IN_CHUNK - 1);
    }

    /* Waits for the last part. */
    __device__ __forceinline__ void end(int part) {
        wgmma_wait();
        wgmma_settle(sums[part % 2]);
        chunks->replace(FIRST + part / IN_CHUNK);
    }
};

/* The products with PARTS times 64 columns; or, if `few` says so, with FEW times as many. use(part,
 * sums): what is done with them. meanwhile(): what else there is to do before, while the first
 * products run. leave_rest(): what is done with the parts that are left out. */
template <bool HALVES, int PARTS, int FEW, int FIRST, int CHUNK_COLUMNS, int STEPS, class digits,
          class tile, class work, class user, class rest>
static __device__ __forceinline__ void multiply(const digits *rows, tile *chunks, bool half,
                                                bool few, work meanwhile, user use,
                                                rest leave_rest) {
    struct part_products<HALVES, FIRST, CHUNK_COLUMNS, STEPS, digits, tile> p;
    p.rows = rows;
    p.chunks = chunks;
    p.half = half;
    auto end = [&](int part) {
        if (part)
            use(part - 1, p.sums[(part + 1) % 2]);
        p.end(part);
        use(part, p.sums[part % 2]);
    };
    p.start(0);
    meanwhile();
    UNROLL
    for (int part = 0; part < FEW; part++) {
        p.go_on(part);
        if (part + 1 == FEW)
            break;
        p.start(part + 1);
        if (part)
            use(part - 1, p.sums[(part + 1) % 2]);
    }
    if (FEW == PARTS || few) {
        end(FEW - 1);
        leave_rest();
    } else {
        UNROLL
        for (int part = FEW; part < PARTS; part++) {
            p.start(part);
            use(part - 2, p.sums[part % 2]); /* the part before is not waited for yet */
            p.go_on(part);
        }
        end(PARTS - 1);
    }
}

/* Four mantissas as digits: x * scale, rounded. In the low 16 bits, num_rint with the shift left
 * in. */
static __device__ __forceinline__ void split_four(uint32_t *high, uint32_t *low, float x0, float x1,
                                                  float x2, float x3, float scale) {
    uint32_t two = __byte_perm(num_bits(fmaf(x0, scale, 12582912.0f)),
                               num_bits(fmaf(x1, scale, 12582912.0f)), 0x5410);
    uint32_t more = __byte_perm(num_bits(fmaf(x2, scale, 12582912.0f)),
                                num_bits(fmaf(x3, scale, 12582912.0f)), 0x5410);
    *low = __byte_perm(two, more, 0x6420);
    *high = __byte_perm(two, more, 0x7531);
}

/* ---- a tile ------------------------------------------------------------------------------------
 */

/*
 * What a thread holds of its block's 64 rows by 256 positions, where lane = 4 g + t: s[i][j] is
 * position 8 i + 2 t + j % 2 of row g + j / 2 * 8 of its warp. First scores, then weights.
 */
struct tile_scores {
    float s[32][4];
};

/* What a thread knows of its two rows. */
struct row_pair {
    struct prompt_row query[2];
    const struct num_score_unit *q_unit; /* of the first, in shared memory; [8]: of the second */
    float m[2], l[2];                    /* of the tiles so far */
    bool sees[2];                        /* something of this tile, */
    float tile_m[2], tile_l[2];          /* which are its own, */
    float old_share[2], new_share[2];    /* and what both count for in the merge */
    float unit[2];                       /* 2^(e-22), e of the tile's weights */
};

/* The scores of 64 keys, but for the queries' units: s[0..7] of a tile_scores, and the largest: its
 * bits as a signed integer, which order like numbers if one of them is not negative. The hardware
 * compares three integers at a time, and two floats. */
static __device__ __forceinline__ void score_keys(float s[8][4], int32_t largest[2],
                                                  const int32_t (&sums)[32], const float *k_unit) {
    UNROLL
    for (int i = 0; i < 8; i++) {
        const float2 unit = *(const float2 *)(k_unit + 8 * i + threadIdx.x % 4 * 2);
        UNROLL
        for (int j = 0; j < 4; j++)
            s[i][j] = num_score((float)sums[4 * i + j], j % 2 ? unit.y : unit.x);
        UNROLL
        for (int r = 0; r < 2; r++)
            largest[r] = max(max(largest[r], (int32_t)num_bits(s[i][2 * r])),
                             (int32_t)num_bits(s[i][2 * r + 1]));
    }
}

/* What 128 keys that no row sees have instead of scores: anything, mask and vary hide them. For the
 * compiler: registers that are not set on every way through the loop would be kept all the way
 * round it. */
static __device__ __forceinline__ void leave_out(float s[16][4]) {
    UNROLL
    for (int i = 0; i < 64; i++)
        ANY_FLOAT(s[i / 4][i % 4]);
}

/* Scores of positions that a row does not see become -infinity, which has weight 0. largest: of
 * score_keys, once more. */
static __device__ __forceinline__ void mask(struct tile_scores *tile, int32_t largest[2],
                                            int tile_first, const struct row_pair *rows) {
    int first = tile_first + (int)threadIdx.x % 4 * 2;
    UNROLL
    for (int r = 0; r < 2; r++) {
        int n = max(rows->query[r].end - first, 0);
        n = n / 8 * 2 + min(n % 8, 2); /* of a thread's 64 positions, the first n are seen */
        UNROLL
        for (int half = 0; half < 2; half++) {
            int in_half = n - 32 * half;
            uint32_t seen = in_half >= 32 ? ~0u : (1u << max(in_half, 0)) - 1;
            UNROLL
            for (int i = 0; i < 32; i++) {
                float *s = &tile->s[16 * half + i / 2][2 * r + i % 2];
                *s = seen >> i & 1 ? *s : -INFINITY;
            }
        }
        largest[r] = INT32_MIN;
        UNROLL
        for (int i = 0; i < 32; i++)
            largest[r] = max(max(largest[r], (int32_t)num_bits(tile->s[i][2 * r])),
                             (int32_t)num_bits(tile->s[i][2 * r + 1]));
    }
}

/* The same with a variant, which may also change scores. */
static __device__ __forceinline__ void vary(struct tile_scores *tile, int tile_first,
                                            const struct row_pair *rows,
                                            const struct attention_variant *v) {
    int first = tile_first + (int)threadIdx.x % 4 * 2;
    const double natural[2] = {rows->q_unit[0].natural, rows->q_unit[8].natural};
    UNROLL
    for (int i = 0; i < 128; i++) {
        float *s = &tile->s[i / 4][i % 4];
        if (attention_changes_scores(v))
            *s = (float)(*s * natural[i / 2 % 2]);
        *s = varied_score(&rows->query[i / 2 % 2], v, *s, first + i / 4 * 8 + i % 2);
    }
}

/* The largest score of each row; a NaN, if vary has hidden all. */
static __device__ __forceinline__ void find_largest(float largest[2],
                                                    const struct tile_scores *tile) {
    largest[0] = largest[1] = NAN;
    UNROLL
    for (int i = 0; i < 128; i++)
        largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], tile->s[i / 4][i % 4]);
}

/* The same from what score_keys or mask has found. Where all of a thread's scores are negative, it
 * was not the largest: that one has the least bits as an unsigned integer. */
static __device__ __forceinline__ void
largest_of_bits(float largest[2], const struct tile_scores *tile, const int32_t bits[2]) {
    largest[0] = num_float((uint32_t)bits[0]);
    largest[1] = num_float((uint32_t)bits[1]);
    if (!__any_sync(0xffffffffu, (bits[0] | bits[1]) < 0))
        return;
    uint32_t least[2] = {UINT32_MAX, UINT32_MAX};
    UNROLL
    for (int i = 0; i < 32; i++)
        UNROLL
    for (int r = 0; r < 2; r++)
        least[r] = min(min(least[r], num_bits(tile->s[i][2 * r])), num_bits(tile->s[i][2 * r + 1]));
    UNROLL
    for (int r = 0; r < 2; r++)
        largest[r] = bits[r] < 0 ? num_float(least[r]) : largest[r];
}

/* Takes from scores what their windows want to have taken, most often nothing. */
static __device__ __forceinline__ void make_near(struct tile_scores *tile,
                                                 const struct num_window window[2]) {
    if (!__any_sync(0xffffffffu, window[0].less != 0 || window[1].less != 0))
        return;
    UNROLL
    for (int i = 0; i < 128; i++)
        tile->s[i / 4][i % 4] -= window[i / 2 % 2].less;
}

/* Maximum and sum over the four lanes that share a row. */
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ uint32_t quad_max(uint32_t x) {
    x = max(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return max(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ uint32_t quad_sum(uint32_t x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/*
 * A tile's softmax: scores become weights, scale[r] what snaps them. top: the largest score of each
 * row, of this thread's. A row that sees nothing of the tile gets zero weights: a NaN, which is
 * -infinity less itself, too, has the probability 0. Positions from n on, nobody sees. Rows that
 * cannot be snapped are faults.
 */
template <bool VARIANT>
static __device__ __forceinline__ void
softmax(struct tile_scores *tile, float top[2], float scale[2], struct row_pair *rows,
        int tile_first, int n, const float *v_unit, const struct attention_arguments *a,
        const struct attention_variant *v) {
    const int STEP = 64; /* positions */
    struct num_window window[2];
    uint32_t units[2] = {0, 0}, largest[2] = {0, 0}; /* of weights, whose bits order like them */
    bool bad[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        struct num_score_unit unit = rows->q_unit[8 * r];
        if (VARIANT)
            unit = attention_score_unit(v, unit);
        top[r] = quad_max(top[r]);
        window[r] = num_window_of(top[r], unit.binary);
        rows->sees[r] = VARIANT ? top[r] == top[r] : rows->query[r].end > tile_first;
        rows->tile_m[r] = num_tile_max(top[r], unit);
        /* A score that float32 cannot hold, or nothing but -infinity. */
        bad[r] = rows->sees[r] && num_magnitude(rows->tile_m[r]) >= 0x7f800000u;
    }
    make_near(tile, window);
    UNROLL
    for (int c = 0; c < TILE; c += STEP) {
        if (c && c >= n) { /* nobody sees them */
            UNROLL
            for (int i = 0; i < STEP / 2; i++)
                ZERO_HERE(tile->s[c / 8 + i / 4][i % 4]);
            continue;
        }
        UNROLL
        for (int i = c / 8; i < (c + STEP) / 8; i++) {
            const float2 unit = *(const float2 *)(v_unit + 8 * i + threadIdx.x % 4 * 2);
            UNROLL
            for (int j = 0; j < 4; j++) {
                float *s = &tile->s[i][j];
                bool hidden = VARIANT && *s != *s;
                float p = num_probability_near(*s, window[j / 2]);
                /* num_probability_units; the bits of 2^23 come off below */
                units[j / 2] += num_bits(fmaf(p, 8388608.0f, 8388608.0f));
                /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
                *s = p * (j % 2 ? unit.y : unit.x);
                if (VARIANT) { /* a unit may be a NaN, which counts if it is seen */
                    *s = hidden ? 0 : *s == *s ? *s : INFINITY;
                }
            }
            UNROLL
            for (int r = 0; r < 2; r++)
                largest[r] = max(max(largest[r], num_bits(tile->s[i][2 * r])),
                                 num_bits(tile->s[i][2 * r + 1]));
        }
        for (int r = 0; r < 2; r++)
            units[r] -= STEP / 4 * num_bits(8388608.0f);
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        int e = num_row_exponent(quad_max(largest[r]));
        bad[r] = bad[r] || e > BFP_MAX_EXPONENT;
        if (bad[r] && threadIdx.x % 4 == 0)
            gpu_fault(a->fault, a->site, rows->query[r].token);
        e = bad[r] ? BFP_MIN_EXPONENT : e;
        scale[r] = bad[r] ? 0 : num_pow2f(15 - e);
        rows->unit[r] = num_pow2f(e - 22);
        rows->tile_l[r] = (float)quad_sum(units[r]) * 0x1p-23f;
    }
}

/* The snapped weights of a tile as digits. */
static __device__ __forceinline__ void snap_weights(struct row_digits<TILE / 32> *out,
                                                    const struct tile_scores *tile,
                                                    const float scale[2]) {
    UNROLL
    for (int i = 0; i < TILE / 32; i++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        /* Element j: row g + j % 2 * 8, its positions in two neighbours of the scores. */
        const float *s = tile->s[4 * i + j / 2 * 2] + j % 2 * 2;
        const float *t = tile->s[4 * i + j / 2 * 2 + 1] + j % 2 * 2;
        split_four(&out->high[i][j], &out->low[i][j], s[0], s[1], t[0], t[1], scale[j % 2]);
    }
}

/* What a thread has of the values of its rows, in float32: merges a tile's weighted sums of 64
 * dimensions into it. o[i] at i * THREADS has dimensions 8 i + 2 t and 8 i + 2 t + 1 of both rows.
 */
static __device__ __forceinline__ void add_values(float4 *o, const int32_t (&sums)[32],
                                                  const struct row_pair *rows) {
    UNROLL
    for (int i = 0; i < 8; i++) {
        float4 old = o[i * THREADS], sum;
        float x[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            x[j] = (float)sums[4 * i + j] * rows->unit[j / 2];
        sum.x = num_merge(old.x, rows->old_share[0], x[0], rows->new_share[0]);
        sum.y = num_merge(old.y, rows->old_share[0], x[1], rows->new_share[0]);
        sum.z = num_merge(old.z, rows->old_share[1], x[2], rows->new_share[1]);
        sum.w = num_merge(old.w, rows->old_share[1], x[3], rows->new_share[1]);
        o[i * THREADS] = sum;
    }
}

/* Sets 2^(e-30) of the keys and 2^e of the values of a tile, two positions a thread. */
template <bool VARIANT>
static __device__ __forceinline__ void set_units(float *k_unit, float *v_unit, char4 exponents) {
    const signed char e[4] = {exponents.x, exponents.y, exponents.z, exponents.w};
    UNROLL
    for (int j = 0; j < 2; j++) {
        bool k_bad = VARIANT && e[2 * j] == NOT_FINITE,
             v_bad = VARIANT && e[2 * j + 1] == NOT_FINITE;
        k_unit[2 * threadIdx.x + j] =
            k_bad ? NAN : num_pow2f(e[2 * j]) * 0x1p-30f; /* may be subnormal */
        v_unit[2 * threadIdx.x + j] = v_bad ? NAN : num_pow2f(e[2 * j + 1]);
    }
}

#endif
