/*
 * wgmma.h - for gpu/fast/prompt/wgmma.cu: the sizes of a block, how chunks come to
 * shared memory, and the arithmetic of a tile. Scores, the softmax, weighted sums of values.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_WGMMA_H
#define SAMEBITS_GPU_FAST_PROMPT_WGMMA_H

#include "gpu/fast/prompt/item.h"
#include "gpu/fast/prompt/products.h"

enum {
    KEYS = 128,       /* of a chunk */
    VALUE_DIMS = 64,  /* of one: dimensions of the values of a whole tile */
    VALUE_PARTS = 4,  /* of its positions: whole ones that nobody sees are left out */
    KEY_COLUMNS = 32, /* of a product: there are no registers for more beside the scores */
    THREADS = 256,
    STAGES = 2
};

/* How many of the parts of so many positions have one of the first n. */
static __device__ __forceinline__ int parts_of(int positions, int n) {
    return (n + positions / VALUE_PARTS - 1) / (positions / VALUE_PARTS);
}

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
     * tile it leaves out chunks of keys, and parts of values, which lie in columns of positions, if
     * nobody sees them. */
    __device__ __forceinline__ void start(int c) {
        bool next = c >= size::CHUNKS;
        int chunk = next ? c - size::CHUNKS : c, at = place(c);
        int values = max(chunk - size::KEY_CHUNKS, 0);
        int n = left == (next ? 1 : 0) ? n_last : (int)TILE;
        int bytes = chunk < size::KEY_CHUNKS ? (chunk * KEYS < n ? size::KEY_BYTES : 0)
                                             : size::VALUE_BYTES / VALUE_PARTS * parts_of(TILE, n);
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

/* Four mantissas, x * scale rounded, as digits: to[0] has the high ones, to[1] the low ones. In the
 * low 16 bits, num_rint with the shift left in. SIGNED: low digits from -128 to 127; m + 0x8080 is
 * not negative, and its bytes are the digits and 128. */
template <bool SIGNED>
static __device__ __forceinline__ void split_four(uint32_t to[2], const float x[4], float scale) {
    const float shift = 12582912.0f + (SIGNED ? 0x8080 : 0);
    uint32_t two =
        __byte_perm(num_bits(fmaf(x[0], scale, shift)), num_bits(fmaf(x[1], scale, shift)), 0x5410);
    uint32_t more =
        __byte_perm(num_bits(fmaf(x[2], scale, shift)), num_bits(fmaf(x[3], scale, shift)), 0x5410);
    to[0] = __byte_perm(two, more, 0x7531);
    to[1] = __byte_perm(two, more, 0x6420);
    if (SIGNED) {
        to[0] ^= 0x80808080;
        to[1] ^= 0x80808080;
    }
}

/* ---- a tile --------------------------------------------------------------------------------- */

/*
 * What a thread holds of its row by 256 positions, or the first of them, where lane = 4 g + t, and
 * g the row of its warp: s[i][j] is position 16 i + j / 2 * 8 + 2 t + j % 2. First scores, then
 * weights.
 */
template <int OF> struct position_scores {
    static const int VECTORS = OF / 16, STEP = KEY_COLUMNS / 16, N_ROWS = 1;
    static const int PEER_BEGIN = 1, PEER_END = 4;
    float s[VECTORS][4];

    static __device__ __forceinline__ constexpr int row(int) {
        return 0;
    }
    static __device__ __forceinline__ int position(int i, int j) {
        return 16 * i + j / 2 * 8 + (int)threadIdx.x % 4 * 2 + j % 2;
    }
    /* Hides scores i of a row that sees the first n positions: they become -infinity, which has
     * weight 0. */
    static __device__ __forceinline__ void hide(float s[4], int i, int n) {
        int left = n - (int)threadIdx.x % 4 * 2; /* to be compared with what the compiler knows */
        UNROLL
        for (int j = 0; j < 4; j++)
            if (left <= 16 * i + j / 2 * 8 + j % 2)
                s[j] = -INFINITY;
    }
    static __device__ __forceinline__ void units(float to[4], const float *x, int i) {
        UNROLL
        for (int j = 0; j < 4; j += 2) {
            const float2 two = *(const float2 *)(x + position(i, j));
            to[j] = two.x;
            to[j + 1] = two.y;
        }
    }
};
typedef position_scores<TILE> tile_scores;

/* A thread's part of the values of its row, in shared memory: o[i * THREADS] has four dimensions,
 * from 16 i + 4 t on. */
template <int DIM> struct value_sums {
    static const int SHARE = 4, NEXT = 1; /* of 16 */
    float4 *o;

    static __device__ __forceinline__ int first() {
        return (int)threadIdx.x % 4 * 4;
    }
    __device__ __forceinline__ void get(float to[SHARE], int i, int) const {
        const float4 four = o[i * THREADS];
        to[0] = four.x;
        to[1] = four.y;
        to[2] = four.z;
        to[3] = four.w;
    }
    __device__ __forceinline__ void clear() {
        for (int i = 0; i < DIM / 16; i++)
            o[i * THREADS] = make_float4(0, 0, 0, 0);
    }
};

/* The largest of scores and those before: its bits as a signed integer, which order like numbers if
 * one of them is not negative. The hardware compares three integers at a time, and two floats. */
static __device__ __forceinline__ void note_largest(int32_t *largest, const float s[4]) {
    *largest = max(max(*largest, (int32_t)num_bits(s[0])), (int32_t)num_bits(s[1]));
    *largest = max(max(*largest, (int32_t)num_bits(s[2])), (int32_t)num_bits(s[3]));
}

/* The scores of KEY_COLUMNS keys, but for the query's unit: some vectors of a tile_scores. HIDES:
 * the row sees the first n. */
template <bool HIDES>
static __device__ __forceinline__ void score_keys(float (*s)[4], int32_t *largest,
                                                  const int32_t *sums, const float *k_unit, int n) {
    UNROLL
    for (int i = 0; i < KEY_COLUMNS / 16; i++) {
        float unit[4];
        tile_scores::units(unit, k_unit, i);
        UNROLL
        for (int j = 0; j < 4; j++)
            s[i][j] = num_score((float)sums[4 * i + j], unit[j]);
    }
    UNROLL
    for (int i = 0; i < KEY_COLUMNS / 16 && HIDES && n < KEY_COLUMNS; i++)
        tile_scores::hide(s[i], i, n);
    UNROLL
    for (int i = 0; i < KEY_COLUMNS / 16; i++)
        note_largest(largest, s[i]);
}

/* Hides what the row does not see: it sees `seen` positions of the tile, and no row those from n
 * on. largest: of score_keys, once more. */
static __device__ __forceinline__ void mask(tile_scores *tile, int32_t *largest, int seen, int n) {
    *largest = INT32_MIN;
    UNROLL
    for (int part = 0; part < TILE; part += KEY_COLUMNS) {
        if (part >= n)
            continue;
        UNROLL
        for (int i = part / 16; i < (part + KEY_COLUMNS) / 16 && part + KEY_COLUMNS > seen; i++)
            tile_scores::hide(tile->s[i], i, seen);
        UNROLL
        for (int i = part / 16; i < (part + KEY_COLUMNS) / 16; i++)
            note_largest(largest, tile->s[i]);
    }
}

/* find_largest of the positions before n, from what score_keys or mask has found. Where all of a
 * thread's scores are negative, it was not the largest: that one has the least bits as an unsigned
 * integer. */
template <int POSITIONS>
static __device__ __forceinline__ float
largest_of_bits(const struct position_scores<POSITIONS> *tile, int32_t bits, int n) {
    uint32_t least = UINT32_MAX;
    if (!__any_sync(0xffffffffu, bits < 0))
        return num_float((uint32_t)bits);
    UNROLL
    for (int i = 0; i < POSITIONS / 4; i++)
        if (i / 8 * KEY_COLUMNS < n)
            least = min(least, num_bits(tile->s[i / 4][i % 4]));
    return num_float(bits < 0 ? least : (uint32_t)bits);
}

/* The snapped weights of a tile as digits: of 32 positions two vectors, in the order of column_of.
 */
template <int POSITIONS>
static __device__ __forceinline__ void snap_weights(struct row_digits<POSITIONS / 32> *out,
                                                    const struct position_scores<POSITIONS> *tile,
                                                    float scale) {
    UNROLL
    for (int i = 0; i < tile->VECTORS; i++)
        split_four<false>(out->of[i / 2] + i % 2 * 2, tile->s[i], scale);
}

/* Merges a tile's weighted sums of VALUE_DIMS dimensions into those of value_sums from `o` on.
 * Unless has_sums, those are not there yet, and this is them: 0 and the first tile, which counts 1.
 */
static __device__ __forceinline__ void
add_values(float4 *o, const int32_t *sums, const struct thread_rows<1> *rows, bool has_sums) {
    UNROLL
    for (int i = 0; i < VALUE_DIMS / 16; i++) {
        float x[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            x[j] = (float)sums[4 * i + j] * rows->unit[0];
        if (has_sums) {
            const float4 old = o[i * THREADS];
            x[0] = num_merge(old.x, rows->old_factor[0], x[0], rows->new_factor[0]);
            x[1] = num_merge(old.y, rows->old_factor[0], x[1], rows->new_factor[0]);
            x[2] = num_merge(old.z, rows->old_factor[0], x[2], rows->new_factor[0]);
            x[3] = num_merge(old.w, rows->old_factor[0], x[3], rows->new_factor[0]);
        }
        o[i * THREADS] = make_float4(x[0], x[1], x[2], x[3]);
    }
}

#endif
