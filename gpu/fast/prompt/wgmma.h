/*
 * wgmma.h - for gpu/fast/prompt/wgmma.cu: the sizes of a block, how chunks come to
 * shared memory, and the arithmetic of a tile. Scores, the softmax, weighted sums of values.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_WGMMA_H
#define SAMEBITS_GPU_FAST_PROMPT_WGMMA_H

#include "gpu/fast/prompt/item.h"
#include "gpu/fast/prompt/products.h"

enum {
    KEYS = 128,      /* of a chunk */
    VALUE_DIMS = 64, /* of one: dimensions of the values of a whole tile */
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
    int n_last;                   /* of the last tile's positions, somebody sees so many */
    int first_place;              /* of chunk 0 */
    int behind;                   /* chunks that were started and not waited for */
    unsigned rounds;              /* bit i: how often place i was waited for, modulo 2 */

    __device__ __forceinline__ int place(int chunk) const {
        return (ODD ? first_place + chunk : chunk) % STAGES;
    }

    /* Starts chunk c of this tile; from CHUNKS on, of the next one, if there is one. Of the last
     * tile it leaves out chunks of keys, and of values, which lie in columns of positions, the
     * second half, if nobody sees them. */
    __device__ __forceinline__ void start(int c) {
        bool next = c >= size::CHUNKS;
        int chunk = next ? c - size::CHUNKS : c, at = place(c);
        int values = max(chunk - size::KEY_CHUNKS, 0);
        int n = left == (next ? 1 : 0) ? n_last : (int)TILE;
        int bytes = chunk < size::KEY_CHUNKS ? (chunk * KEYS < n ? size::KEY_BYTES : 0)
                                             : size::VALUE_BYTES / (n <= TILE / 2 ? 2 : 1);
        const uint8_t *from = tile + (next ? tile_bytes(DIM) : 0) +
                              (chunk - values) * size::KEY_BYTES + values * size::VALUE_BYTES;
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

/* ---- a tile --------------------------------------------------------------------------------- */

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

/* The largest of scores and those before: its bits as a signed integer, which order like numbers if
 * one of them is not negative. The hardware compares three integers at a time, and two floats. */
static __device__ __forceinline__ void note_largest(int32_t largest[2], const float s[8][4]) {
    UNROLL
    for (int i = 0; i < 16; i++)
        largest[i % 2] = max(max(largest[i % 2], (int32_t)num_bits(s[i / 2][i % 2 * 2])),
                             (int32_t)num_bits(s[i / 2][i % 2 * 2 + 1]));
}

/* The scores of 64 keys, but for the queries' units: s[0..7] of a tile_scores. */
static __device__ __forceinline__ void score_keys(float s[8][4], int32_t largest[2],
                                                  const int32_t (&sums)[32], const float *k_unit) {
    UNROLL
    for (int i = 0; i < 8; i++) {
        const float2 unit = *(const float2 *)(k_unit + 8 * i + threadIdx.x % 4 * 2);
        UNROLL
        for (int j = 0; j < 4; j++)
            s[i][j] = num_score((float)sums[4 * i + j], j % 2 ? unit.y : unit.x);
    }
    note_largest(largest, s);
}

/* Scores of positions that a row does not see become -infinity, which has weight 0. least_end:
 * every row sees the positions before it; n: none sees position n of the tile. largest: of
 * score_keys, once more. */
static __device__ __forceinline__ void mask(struct tile_scores *tile, int32_t largest[2],
                                            int tile_first, int least_end, int n,
                                            const struct row_pair *rows) {
    largest[0] = largest[1] = INT32_MIN;
    UNROLL
    for (int part = 0; part < TILE; part += COLUMNS) {
        float(*s)[4] = tile->s + part / 8;
        int first = tile_first + part + (int)threadIdx.x % 4 * 2;
        if (part >= n)
            continue;
        UNROLL
        for (int i = 0; i < COLUMNS / 2 && tile_first + part + COLUMNS > least_end; i++)
            if (first + i / 4 * 8 + i % 2 >= rows->query[i % 4 / 2].end)
                s[i / 4][i % 4] = -INFINITY;
        note_largest(largest, s);
    }
}

/* find_largest of the positions before n, from what score_keys or mask has found. Where all of a
 * thread's scores are negative, it was not the largest: that one has the least bits as an unsigned
 * integer. */
static __device__ __forceinline__ void
largest_of_bits(float largest[2], const struct tile_scores *tile, const int32_t bits[2], int n) {
    largest[0] = num_float((uint32_t)bits[0]);
    largest[1] = num_float((uint32_t)bits[1]);
    if (!__any_sync(0xffffffffu, (bits[0] | bits[1]) < 0))
        return;
    uint32_t least[2] = {UINT32_MAX, UINT32_MAX};
    UNROLL
    for (int i = 0; i < 64 && i / 16 * COLUMNS < n; i++)
        least[i % 2] = min(min(least[i % 2], num_bits(tile->s[i / 2][i % 2 * 2])),
                           num_bits(tile->s[i / 2][i % 2 * 2 + 1]));
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
