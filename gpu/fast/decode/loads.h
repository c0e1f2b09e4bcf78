/*
 * loads.h - for gpu/fast/decode/decode.cu: how keys and values come to shared memory.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_LOADS_H
#define SAMEBITS_GPU_FAST_DECODE_LOADS_H

#include "gpu/fast/decode/decode.h"

/* ---- loading ----------------------------------------------------------------------------------
 *
 * While the keys of a tile are used, its values are fetched, chunk by chunk, and while the values
 * are used, the keys of the next tile. A chunk takes the place in the ring of the one that was used
 * before it. What a chunk needs to be fetched is worked out earlier, a position a thread: the page
 * a tile earlier, the slot and the exponents a phase.
 */

/* A position of the next tile, on its way. */
struct next_position {
    int32_t page;
    uint32_t row;
    int8_t k_exponent, v_exponent;
};

template <class size> struct loader {
    static const int VECTORS = size::COLUMNS, VECTOR = size::VECTOR;
    static const int STEP = size::THREADS / VECTORS; /* rows copied at once */
    static const bool EVEN =
        STEP * VECTORS == size::THREADS; /* a thread's column is always the same */
    const struct attention_arguments *a;
    const struct decode_cache *cache;
    const struct plan_arrays *plan;
    struct decode_memory memory;
    int used, before; /* the chunk in use and the one before it: bytes from the ring's beginning */
    struct next_position positions[size::POSITIONS];

    /* Where the row number of a position of a chunk is kept: those that a thread copies lie side by
     * side.
     */
    static __device__ __forceinline__ int place_of_row(int position) {
        return EVEN ? position % STEP * (size::CHUNK / STEP) + position / STEP : position;
    }

    /* Number i of this thread's positions, in its tile. */
    static __device__ __forceinline__ int place_in_tile(int i) {
        return (int)threadIdx.x + i * size::THREADS;
    }

    /* That place's position in its sequence. Places behind the n that exist have the last one's
     * again: they are hidden from the softmax and have no weight. */
    static __device__ __forceinline__ int position_in(const struct tile_cursor *at, int n, int i) {
        return begin_of(&at->group, at->tile) + min(place_in_tile(i), n - 1);
    }

    __device__ __forceinline__ void fetch_page(const struct tile_cursor *at, int n) {
        if (!n)
            return;
        UNROLL
        for (int i = 0; i < size::POSITIONS; i++)
            positions[i].page = plan->pages[at->group.pages + page_of(plan, position_in(at, n, i))];
    }

    /* Where this thread's positions lie; their pages have come. */
    __device__ __forceinline__ void find_row(const struct tile_cursor *at, int n, int set) {
        if (!n)
            return;
        UNROLL
        for (int i = 0; i < size::POSITIONS; i++) {
            int j = place_in_tile(i);
            positions[i].row = cache_row(cache, plan, positions[i].page, position_in(at, n, i));
            memory
                .rows[set * TILE + j / size::CHUNK * size::CHUNK + place_of_row(j % size::CHUNK)] =
                positions[i].row;
        }
    }

    /* Exponents of the first n keys and values, half a tile apart; behind them any others will do.
     * With a page for each position a warp's are in 32 lines, and shared memory has left the L1
     * cache few of those: all at once took a fifth longer (measured: tests/bench/README.md). */
    __device__ __forceinline__ void fetch_key_exponent(int n) {
        if constexpr (!size::SNAPPED)
            UNROLL
        for (int i = 0; i < size::POSITIONS; i++)
            if (place_in_tile(i) < n)
                positions[i].k_exponent = cache->k_exponents[positions[i].row];
    }
    __device__ __forceinline__ void fetch_value_exponent(int n) {
        if constexpr (!size::SNAPPED)
            UNROLL
        for (int i = 0; i < size::POSITIONS; i++)
            if (place_in_tile(i) < n)
                positions[i].v_exponent = cache->v_exponents[positions[i].row];
    }

    /* All units but those of place number `out`; -1: all. */
    __device__ __forceinline__ void store_units(int set, int out) const {
        if constexpr (!size::SNAPPED)
            UNROLL
        for (int i = 0; i < size::POSITIONS; i++) {
            const struct next_position *p = &positions[i];
            int j = set * TILE + place_in_tile(i);
            if (place_in_tile(i) == out)
                continue;
            memory.k_units[j] = num_pow2f(p->k_exponent) * 0x1p-30f; /* may be subnormal */
            memory.v_units[j] = num_bits(num_pow2f(p->v_exponent));
        }
    }

    /* Starts copying chunk number c of a tile's keys or values, 16 bytes a thread at a time. Behind
     * the n positions that exist come zeros; or the last one again, where a thread's column is not
     * always the same, and of caches of floats, which wait for instructions, not for memory.
     * LEAVES_OUT: all but the one number `out`. */
    template <bool LEAVES_OUT = false>
    __device__ __forceinline__ void copy(const void *mantissas, int set, int c, int n,
                                         int out = 0) const {
        if (c * size::CHUNK >= n)
            return;
        const char *from = (const char *)mantissas;
        uint32_t row_bytes = (uint32_t)(a->head_dim * size::BYTES);
        const uint32_t *rows = memory.rows + set * TILE + c * size::CHUNK;
        unsigned char *to = memory.ring + before;
        if constexpr (EVEN) {
            static_assert(STEP % 8 == 0, "a thread's rows have their columns in the same places");
            const int EACH = size::CHUNK / STEP;
            int row = (int)(threadIdx.x / VECTORS), column = (int)(threadIdx.x % VECTORS);
            if (column * VECTOR >= a->head_dim)
                return;
            to += row * size::ROW_BYTES + 16 * column_in_row<size>(row, column);
            from = in_register(from + 16 * column);
            /* All numbers before the first copy: the compiler would wait for each. */
            alignas(16) uint32_t number[EACH];
            if constexpr (EACH % 4 == 0) {
                UNROLL
                for (int i = 0; i < EACH; i += 4)
                    *(uint4 *)(number + i) = *(const uint4 *)(rows + row * EACH + i);
            } else {
                UNROLL
                for (int i = 0; i < EACH; i++)
                    number[i] = rows[row * EACH + i];
            }
            int left = size::SNAPPED ? size::CHUNK : n - c * size::CHUNK - row;
            UNROLL
            for (int i = 0; i < EACH; i++)
                if (!LEAVES_OUT || i * STEP != out - c * size::CHUNK - row)
                    cp_async_16_or_zero(to + i * STEP * size::ROW_BYTES,
                                        from + (uint64_t)number[i] * row_bytes, i * STEP < left);
        } else {
            for (int i = (int)threadIdx.x; i < size::CHUNK * VECTORS; i += size::THREADS) {
                int row = i / VECTORS, column = i % VECTORS;
                if (column * VECTOR < a->head_dim)
                    cp_async_16(to + row * size::ROW_BYTES + 16 * column_in_row<size>(row, column),
                                from + (uint64_t)rows[row] * row_bytes + 16 * column);
            }
        }
    }

    static __device__ __forceinline__ int after(int chunk) {
        return chunk < (size::STAGES - 1) * size::STAGE_BYTES ? chunk + size::STAGE_BYTES : 0;
    }

    /* Starts chunk number i of a tile, counted on from its keys to its values and to those of the
     * next tile. */
    __device__ __forceinline__ void start(int i, int n, int set, int n_next) const {
        bool of_next = i >= 2 * size::CHUNKS;
        int c = i % size::CHUNKS;
        copy(i / size::CHUNKS % 2 ? cache->v : cache->k, of_next ? 1 - set : set, c,
             of_next ? n_next : n);
        cp_async_commit();
    }

    /* Exponents of the first n_old positions of the first tile, and its keys: all n, or without
     * number n_old, where that is the next one. */
    template <bool LEAVES_OUT> __device__ __forceinline__ void ask_first(int n, int n_old) {
        fetch_key_exponent(n_old); /* before chunks, which take hundreds of cycles to ask for */
        fetch_value_exponent(n_old);
        for (int c = 0; c < size::AHEAD; c++) {
            before = c * size::STAGE_BYTES;
            copy<LEAVES_OUT>(cache->k, 0, c, n, n_old);
            cp_async_commit();
        }
        before = size::AHEAD * size::STAGE_BYTES; /* the last place of the ring, still empty */
        used = 0;
    }

    /* The first chunks of the first tile, whose units are to be stored. NEW: of its first n_old
     * positions, which are all or all but one, before the kernel before this one has ended: they
     * are older than the plan (struct kv_target). cursors: the first one is set; sets the second.
     */
    template <bool NEW>
    __device__ __forceinline__ void begin(const struct tile_cursor *at,
                                          struct tile_cursor cursors[], int n_old) {
        int n = positions_of(&at->group, at->tile);
        UNROLL
        for (int i = 0; i < size::POSITIONS; i++)
            positions[i] = {};
        fetch_page(at, n);
        if (threadIdx.x == 0)
            find_next(&cursors[1], at, plan);
        find_row(at, n, 0);
        __syncthreads();
        if constexpr (NEW)
            ask_first<true>(n, n_old);
        wait_for_previous_kernel(); /* it writes keys and values; the plan is older */
        if constexpr (!NEW)
            ask_first<false>(n, n);
        fetch_page(&cursors[1], size_of(&cursors[1]));
    }

    /* Positions of a tile; 0 when there is none. */
    static __device__ __forceinline__ int size_of(const struct tile_cursor *at) {
        return at->left > 0 ? positions_of(&at->group, at->tile) : 0;
    }

    /* Waits for the next chunk. All threads are done with the one before. */
    __device__ __forceinline__ void wait() const {
        cp_async_wait<size::AHEAD - 1>();
        __syncthreads();
    }

    __device__ __forceinline__ const unsigned char *chunk() const {
        return memory.ring + used;
    }

    /* The chunk i places behind it, when it has come. */
    __device__ __forceinline__ unsigned char *chunk_behind(int i) const {
        int at = used + i * size::STAGE_BYTES, end = size::STAGES * size::STAGE_BYTES;
        return memory.ring + (at < end ? at : at - end);
    }

    /* Waits for all chunks of values; the first of the next tile's keys is on its way already. All
     * threads are done with the chunk before. */
    __device__ __forceinline__ void wait_for_values() const {
        cp_async_wait<1>();
        __syncthreads();
    }

    /* The chunk is done with. */
    __device__ __forceinline__ void step() {
        before = used;
        used = after(used);
    }
};

#endif
