/*
 * kernel.h - the decode kernel (gpu/fast/decode/decode.cu says how it works), and its launch for a
 * type of cache.
 */
#ifndef SAMEBITS_GPU_FAST_DECODE_KERNEL_H
#define SAMEBITS_GPU_FAST_DECODE_KERNEL_H

#include "gpu/fast/decode/softmax.h"

enum {
    EARLY_TILES = 6 /* of a share: up to these it pays to start before the previous kernel ends */
};

/* ---- the kernel -------------------------------------------------------------------------------
 */

/* Zeros behind the dimensions that exist: the products reach over all of DIM. */
template <class size> static __device__ void clear_padding(unsigned char *ring, int head_dim) {
    int first = head_dim / size::VECTOR, columns = size::COLUMNS - first;
    for (int i = (int)threadIdx.x; i < columns * size::STAGES * size::CHUNK; i += size::THREADS) {
        int row = i / columns, column = first + i % columns;
        *(uint4 *)(ring + row * size::ROW_BYTES + 16 * column_in_row<size>(row, column)) =
            make_uint4(0, 0, 0, 0);
    }
}

/* What a block has merged of the tiles of a row group, of the lane's row. */
template <class size> struct merged_tiles {
    float o[size::SHARE][size::EACH]; /* dimension dim_of_lane(i, j) */
    float m, l;
    struct row_of_lane at;
};

/* What one tile gives for the lane's row. */
template <class size> struct tile_result { float o[size::SHARE][size::EACH], m, l; };

/* Merges a tile's result. Not by attention_merge_sums, which spares one of the two exponentials: to
 * find out which takes longer than to have both at once. */
template <class size>
static __device__ __forceinline__ void merge_tile(struct merged_tiles<size> *s,
                                                  const struct tile_result<size> *t) {
    float max = s->m > t->m ? s->m : t->m, old_scale = 0, new_scale = 1;
    if (s->m != -INFINITY) { /* there are tiles before this one */
        old_scale = num_exp(s->m - max);
        new_scale = num_exp(t->m - max);
    }
    s->l = num_merge(s->l, old_scale, t->l, new_scale);
    s->m = max;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int j = 0; j < size::EACH; j++)
        s->o[i][j] = num_merge(s->o[i][j], old_scale, t->o[i][j], new_scale);
}

/* One tile, and the loads for the next. set: of the slots and units that are this tile's. */
template <class size, bool VARIANT>
static __device__ __forceinline__ void
run_tile(struct merged_tiles<size> *s, struct tile_result<size> *result,
         struct loader<size> *chunks, const struct tile_cursor *at, const struct tile_cursor *next,
         struct tile_cursor *after_next, int set, const struct decode_memory *mem,
         struct row_states *rows, const struct attention_arguments *a,
         const struct attention_variant *variant) {
    int n = positions_of(&at->group, at->tile), n_next = chunks->size_of(next);
    int warp = (int)(threadIdx.x / 32), tile = begin_of(&at->group, at->tile);
    int visible = s->at.view.end - tile;
    const int EACH = size::SCORES / size::CHUNKS; /* of a chunk */
    float scores[size::SCORES];
    UNROLL
    for (int c = 0; c < size::CHUNKS; c++) {
        chunks->wait();
        chunks->start(c + size::AHEAD, n, set, n_next);
        if (c == 0 && threadIdx.x == 0) /* everybody is done with the tile that was there */
            find_next(after_next, next, chunks->plan);
        if (c == size::ROWS_AT) {
            chunks->find_row(next, n_next, 1 - set);
            chunks->fetch_key_exponent(n_next);
        }
        if (c == size::CHUNKS - 1)
            chunks->fetch_value_exponent(n_next);
        UNROLL
        for (int i = 0; i < EACH; i++)
            scores[c * EACH + i] = hidden<size::TYPE, VARIANT>::score();
        if (c * size::CHUNK + warp * 8 < n) /* of this warp's positions, the first exists */
            score_chunk<size, VARIANT>(scores + c * EACH, chunks->chunk(), mem,
                                       mem->k_units + set * TILE, rows, &s->at, variant, tile,
                                       c * size::CHUNK);
        chunks->step();
    }
    store_largest<size>(scores, rows);
    struct softmax softmax;
    struct value_sums<size> sums[size::SHARE] = {};
    UNROLL
    for (int c = 0; c < size::CHUNKS; c++) {
        chunks->wait(); /* the first time, all largest scores are there, too */
        chunks->start(size::CHUNKS + c + size::AHEAD, n, set, n_next);
        if (c == 0) {
            if constexpr (size::SNAPPED) {
                chunks->wait_for_values();
                find_value_units(chunks, set, n);
                __syncthreads();
            }
            weigh<size, VARIANT>(&softmax, scores, at->group.n_rows, visible,
                                 mem->v_units + set * TILE, variant, rows);
            chunks->store_units(1 - set, -1);
            __syncthreads();
            bool stored = snap_weights<size>(&softmax, scores, mem, rows);
            int row = row_of_lane();
            if (!stored && threadIdx.x < 32 && is_first_of_row() && row < at->group.n_rows)
                gpu_fault(a->fault, a->site, at->group.first_token + rows->token[row]);
            __syncthreads(); /* the weights are there */
        }
        if (c == 1)
            chunks->fetch_page(after_next, chunks->size_of(after_next));
        add_chunk<size>(sums, chunks->chunk(), mem, mem->v_scales + set * TILE, c * size::CHUNK,
                        n - c * size::CHUNK);
        chunks->step();
    }
    bool sees = VARIANT ? softmax.sees : visible > 0;
    result->m = sees ? softmax.tile_m : NAN; /* to be left out of the merge */
    result->l = sees ? softmax.tile_l : 0;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int j = 0; j < size::EACH; j++)
        result->o[i][j] = sees ? weighted_value<size>(&sums[i], j, softmax.unit) : 0;
    if (sees)
        merge_tile(s, result);
}

/* Begins with the rows of a group: their digits, and which of them a lane has. */
template <class size, bool VARIANT, bool NEW>
static __device__ void begin_rows(struct merged_tiles<size> *s, const struct attention_arguments *a,
                                  const struct attention_variant *variant,
                                  const struct row_group *group, const struct decode_memory *mem,
                                  struct row_states *rows, const struct new_tokens *t) {
    int row = row_of_lane();
    s->at.row = row;
    s->at.view = view_of<VARIANT>(a, variant, group, row, rows->token[row]);
    snap_queries<size, NEW>(a, group, mem, rows, t);
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int j = 0; j < size::EACH; j++)
        s->o[i][j] = 0;
    s->m = -INFINITY;
    s->l = 0;
}

template <bool VARIANT, class size>
static __device__ __forceinline__ void
write_result(struct merged_tiles<size> *s, const struct tile_cursor *at,
             const struct row_states *rows, const struct attention_arguments *a,
             const struct attention_variant *variant) {
    int row = row_of_lane();
    if (row >= at->group.n_rows)
        return;
    size_t place = rows->place[row];
    float *y = a->y + place;
    if (VARIANT) {
        if (variant->sinks) { /* a tile of values that are 0 */
            struct tile_result<size> sink = {};
            sink.m = variant->sinks[query_head(a, &at->group, row)];
            sink.l = 1;
            if (!attention_sink_is_finite(sink.m))
                gpu_fault(a->fault, a->site, at->group.first_token + rows->token[row]);
            merge_tile(s, &sink);
        }
        if (threadIdx.x < 32 && is_first_of_row())
            attention_note_sums(variant, place / (size_t)a->head_dim, s->m, s->l);
    }
    /* num_divide_near takes fewer instructions than divisions, and seldom may not be used. */
    float l = s->l > 0 && !(VARIANT && variant->m) ? s->l : 1, reciprocal = 1 / l;
    uint32_t farness = 0;
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int j = 0; j < size::EACH; j++)
        farness = max(farness, farness_of(s->o[i][j]));
    bool near = farness <= farness_of(0x1p60f);
    UNROLL
    for (int i = 0; i < size::SHARE; i++)
        UNROLL
    for (int j = 0; j < size::EACH; j++) {
        float quotient = num_divide_near(s->o[i][j], l, reciprocal);
        int d = dim_of_lane<size>(i, j);
        if (d < a->head_dim)
            y[d] = (near ? quotient : s->o[i][j] / l) * (size::SNAPPED ? a->v_scale : 1);
    }
}

/* NEW: norm_rope has left its work to this kernel, and t is what it needs. */
template <class size, bool VARIANT, bool NEW>
__global__ static void __launch_bounds__(size::THREADS, size::BLOCKS)
    decode(struct attention_arguments a, struct decode_cache cache,
           struct attention_variant variant, struct plan_arrays plan,
           struct partial_results partial, struct new_tokens t) {
    SHARED_DYNAMIC(unsigned char, memory);
    SHARED(struct row_states, rows);
    if (!compiles_mma)
        return;
    struct decode_memory mem = cut_memory<size>(memory);
    if (!partial.next_overlaps)
        let_next_kernel_start();
    const struct decode_share *at_share = &plan.shares[blockIdx.y];
    int4 share_begin = *(const int4 *)&at_share->begin;
    if (!share_begin.x) {
        wait_for_previous_kernel(); /* to end is to let the next one start, too */
        return;
    }
    struct decode_share share = *at_share;
    struct tile_cursor begin = first_tile(&share, share_begin);
    SHARED(struct tile_cursor, cursors, [3]); /* this tile and the next two, in turns */
    if (threadIdx.x == 0)
        cursors[0] = begin;
    if (a.head_dim < size::DIM)
        clear_padding<size>(mem.ring, a.head_dim);
    for (int i = (int)threadIdx.x; i < 2 * ROWS * size::WEIGHT_BYTES; i += size::THREADS)
        mem.weights[i] = 0; /* of rows that do not exist */
    struct loader<size> chunks;
    chunks.a = &a;
    chunks.cache = &cache;
    chunks.plan = &plan;
    chunks.memory = mem;
    find_rows(&rows, &a, &begin.group);
    int n_first = positions_of(&begin.group, begin.tile), n_old = n_first;
    if (NEW) /* all but the newest, which may be in this tile */
        n_old = max(0, min(n_first, begin.group.before - begin_of(&begin.group, begin.tile)));
    chunks.template begin<NEW>(&begin, cursors, n_old);
    if constexpr (NEW)
        store_all_newest<size>(&t, &a, &cache, &plan, &begin, &mem);
    if (partial.next_overlaps)
        let_next_kernel_start(); /* all before this one have ended */

    struct merged_tiles<size> s;
    int set = 0, first = 0, turn = 0;
    bool begins = true, is_first = true;
    for (bool goes_on = true; goes_on; set = 1 - set) {
        struct tile_cursor *at = &cursors[turn];
        turn = turn < 2 ? turn + 1 : 0;
        struct tile_cursor *next = &cursors[turn], *after_next = &cursors[turn < 2 ? turn + 1 : 0];
        if (begins) {
            first = at->tile;
            if (!is_first) {
                __syncthreads(); /* all are done with the rows before */
                find_rows(&rows, &a, &at->group);
                __syncthreads();
            }
            begin_rows<size, VARIANT, NEW>(&s, &a, &variant, &at->group, &mem, &rows, &t);
            if (is_first) /* their exponents have come beside the rows */
                chunks.store_units(0, n_old < n_first ? n_old : -1);
            is_first = false;
            __syncthreads();
        }
        struct tile_result<size> tile;
        run_tile<size, VARIANT>(&s, &tile, &chunks, at, next, after_next, set, &mem, &rows, &a,
                                &variant);
        int own_place = at->group.own_place;
        if (own_place >= 0) { /* shared tiles come before these: each for itself */
            keep<size>(&partial, own_place + at->tile, at->group.n_rows, tile.o, tile.m, tile.l);
        } else if (first) { /* of a split, not its beginning: the same */
            const struct decode_split *split = &plan.splits[share.split_first];
            keep<size>(&partial, split->partial + 1 + at->tile - split->first_end, at->group.n_rows,
                       tile.o, tile.m, tile.l);
        }
        goes_on = next->left > 0;
        begins = !goes_on || next->tile == 0;
        if (begins && first == 0 && own_place < 0) {
            if (at->tile + 1 == at->group.n_tiles)
                write_result<VARIANT>(&s, at, &rows, &a, &variant);
            else
                keep<size>(&partial, plan.splits[share.split_last].partial, at->group.n_rows, s.o,
                           s.m, s.l);
        }
    }
}

template <int DIM, enum kv_type TYPE, bool VARIANT, bool NEW = false>
static void launch(struct gpu_device *gpu, const struct attention_arguments *a,
                   const struct decode_cache *cache, const struct attention_variant *variant,
                   const struct attention_plan *plan, const struct new_tokens *t = NULL) {
    typedef struct decode_sizes<DIM, TYPE> size;
    bool shares = attention_plan_has_cascade(plan);
    struct partial_results partial = {plan->partial, a->n_kv_heads, shares};
    if (!gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)decode<size, VARIANT, NEW>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     size::SHARED_BYTES),
                "attention's shared memory"))
        return;
    dim3 grid((unsigned)a->n_kv_heads, (unsigned)plan->n_shares);
    if (shares || plan->n_tiles <= EARLY_TILES * plan->n_shares)
        GPU_LAUNCH_EARLY(gpu, (decode<size, VARIANT, NEW>), grid, size::THREADS, size::SHARED_BYTES,
                         *a, *cache, *variant, plan->arrays, partial, t ? *t : new_tokens{});
    else
        GPU_LAUNCH(gpu, (decode<size, VARIANT, NEW>), grid, size::THREADS, size::SHARED_BYTES, *a,
                   *cache, *variant, plan->arrays, partial, t ? *t : new_tokens{});
}

/* The few sizes. */
template <enum kv_type TYPE, bool VARIANT>
static void launch_size(struct gpu_device *gpu, const struct attention_arguments *a,
                        const struct decode_cache *cache, const struct attention_variant *variant,
                        const struct attention_plan *plan) {
    switch (decode_dim(a->head_dim, true)) {
    case 64:
        return launch<64, TYPE, VARIANT>(gpu, a, cache, variant, plan);
    case 128:
        return launch<128, TYPE, VARIANT>(gpu, a, cache, variant, plan);
    default:
        return launch<256, TYPE, VARIANT>(gpu, a, cache, variant, plan);
    }
}

#endif
