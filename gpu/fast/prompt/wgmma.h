/*
 * wgmma.h - for gpu/fast/prompt/wgmma.cu: the sizes of a block, how chunks come to
 * shared memory, and the arithmetic of a tile. Scores, the softmax, weighted sums of values.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_WGMMA_H
#define SAMEBITS_GPU_FAST_PROMPT_WGMMA_H

#include "gpu/ptx/warpgroup.h"

#include "gpu/fast/prompt/item.h"

enum {
    KEYS = 128,      /* of a chunk */
    VALUE_DIMS = 64, /* of one: dimensions of the values of a whole tile */
    COLUMNS = 64,    /* of a product: keys, or dimensions */
    THREADS = 128,
    STAGES = 2
};

/* Sizes that depend on the head dimension, rounded up to DIM, a multiple of 64. */
template <int DIM> struct sizes {
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
    typedef struct sizes<DIM> size;
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
    static const int VECTORS = 32, ROW_STEP = 8, PEER_BEGIN = 1, PEER_END = 4;
    float s[VECTORS][4];

    static __device__ __forceinline__ constexpr int row(int j) {
        return j / 2;
    }
    static __device__ __forceinline__ constexpr int column(int j) {
        return j % 2;
    }
    static __device__ __forceinline__ int position(int i, int j) {
        return 8 * i + (int)threadIdx.x % 4 * 2 + j % 2;
    }
    static __device__ __forceinline__ float2 units(const float *x, int i) {
        return *(const float2 *)(x + position(i, 0));
    }
};

/* A thread's part of the values of its rows, in shared memory: o[i * THREADS] has dimensions
 * 8 i + 2 t and 8 i + 2 t + 1 of both. */
template <int DIM> struct value_sums {
    static const int PAIRS = DIM / 8, STEP = 8, NEXT = 1;
    float4 *o;

    static __device__ __forceinline__ int first() {
        return (int)threadIdx.x % 4 * 2;
    }
    __device__ __forceinline__ float2 pair(int i, int r) const {
        return *(const float2 *)((const float *)&o[i * THREADS] + 2 * r);
    }
    __device__ __forceinline__ void clear() {
        for (int i = 0; i < PAIRS; i++)
            o[i * THREADS] = make_float4(0, 0, 0, 0);
    }
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

/* find_largest from what score_keys or mask has found. Where all of a thread's scores are negative,
 * it was not the largest: that one has the least bits as an unsigned integer. */
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

/* Merges a tile's weighted sums of 64 dimensions into those of value_sums from `o` on. */
static __device__ __forceinline__ void add_values(float4 *o, const int32_t (&sums)[32],
                                                  const struct row_pair *rows) {
    UNROLL
    for (int i = 0; i < 8; i++) {
        float4 old = o[i * THREADS], sum;
        float x[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            x[j] = (float)sums[4 * i + j] * rows->unit[j / 2];
        sum.x = num_merge(old.x, rows->old_factor[0], x[0], rows->new_factor[0]);
        sum.y = num_merge(old.y, rows->old_factor[0], x[1], rows->new_factor[0]);
        sum.z = num_merge(old.z, rows->old_factor[1], x[2], rows->new_factor[1]);
        sum.w = num_merge(old.w, rows->old_factor[1], x[3], rows->new_factor[1]);
        o[i * THREADS] = sum;
    }
}

#endif
