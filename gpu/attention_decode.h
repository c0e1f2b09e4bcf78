/*
 * attention_decode.h - for attention_decode.cu: the sizes and the memory of a block, the order of its
 * work, and how keys and values come to shared memory.
 */
#ifndef SAMEBITS_ATTENTION_DECODE_H
#define SAMEBITS_ATTENTION_DECODE_H

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

/* The first of the 8 dimensions that a warp has as its number i, of size::DIMS_8; those from DIM on
 * do not exist. */
static __device__ __forceinline__ int first_dim(int i) {
    return ((int)threadIdx.x / 32 + i * WARPS) * 8;
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

#endif
