/*
 * item.h - what both prompt kernels, mma.cu and wgmma.cu, do with an item: its rows, a tile's
 * softmax, the merge of tiles, the end of a row. A kernel says in two types how its threads
 * divide the work:
 *
 *     tile_scores      what a thread holds of its rows by 256 positions: s[i][j], VECTORS times
 *                      four, of the same positions of all its rows, among 16 i ... 16 i + 15
 *         N_ROWS               rows of a thread, neighbours
 *         STEP                 vectors that are left out together
 *         PEER_BEGIN, PEER_END  lanes that share rows: their numbers differ in these bits
 *         row(j)               which of the rows j is
 *         position(i, j)       in the tile
 *         units(to, x, i)      x of the positions of s[i], four
 *     value_sums<DIM>  what a thread holds of its rows' weighted sums: SHARE of 16 dimensions
 *         first(), NEXT    its first dimension, and from one to the next, of 16
 *         get(to, i, r)    those of row r from dimension 16 i on
 *         clear()
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_ITEM_H
#define SAMEBITS_GPU_FAST_PROMPT_ITEM_H

#include "gpu/fast/prompt/prompt.h"
#include "gpu/ptx/tensor_core.h"

enum { TILE = ATTENTION_TILE, ROWS = QUERY_ROWS };

/* What a block works on, and the first row of a thread. */
struct item_task {
    const struct attention_arguments *a;
    const struct attention_variant *variant;
    const struct attention_work *work;
    const struct prompt_item *item;
    int kv_head, first_row;
};

/* What a thread knows of its rows. */
template <int N> struct thread_rows {
    struct prompt_row query[N];
    float m[N], l[N];                   /* of the tiles so far */
    bool sees[N];                       /* something of this tile, */
    float tile_m[N], tile_l[N];         /* which are its own, */
    float old_factor[N], new_factor[N]; /* and what both count for in the merge */
    float unit[N];                      /* 2^(e-22), e of the tile's weights */
};

template <class tile_scores> using rows_of = struct thread_rows<tile_scores::N_ROWS>;

/* Rows behind the end are the last one again, and are not written. */
template <bool VARIANT, int N>
static __device__ __forceinline__ void begin_rows(struct thread_rows<N> *rows,
                                                  const struct item_task *t) {
    UNROLL
    for (int r = 0; r < N; r++) {
        int row = min(t->first_row + r, t->item->list.n_rows - 1);
        rows->query[r] =
            prompt_row_of<VARIANT>(t->variant, t->work, &t->item->list, t->kv_head, row);
        rows->m[r] = -INFINITY;
        rows->l[r] = 0;
    }
}

/* Sets 2^(e-30) of a position's key and 2^e of its value. */
template <bool VARIANT>
static __device__ __forceinline__ void set_units(float *k_unit, float *v_unit, int k, int v) {
    *k_unit = VARIANT && k == NOT_FINITE ? NAN : num_pow2f(k) * 0x1p-30f; /* may be subnormal */
    *v_unit = VARIANT && v == NOT_FINITE ? NAN : num_pow2f(v);
}

/* ---- a tile's softmax ----------------------------------------------------------------------- */

/* What positions that no row sees have instead of scores: anything: mask, vary or weigh_values
 * hides them. For the compiler: registers that are not set on every way through the loop would be
 * kept all the way round it. */
template <int N> static __device__ __forceinline__ void leave_out(float s[N][4]) {
    UNROLL
    for (int i = 0; i < 4 * N; i++)
        ANY_FLOAT(s[i / 4][i % 4]);
}

/* Changes and hides scores as the variant says. */
template <class tile_scores>
static __device__ __forceinline__ void vary(tile_scores *tile, int tile_first,
                                            const rows_of<tile_scores> *rows, const double *natural,
                                            const struct attention_variant *v) {
    UNROLL
    for (int i = 0; i < 4 * tile->VECTORS; i++) {
        const int r = tile->row(i % 4);
        float *s = &tile->s[i / 4][i % 4];
        if (attention_changes_scores(v))
            *s = (float)(*s * natural[r]);
        *s = varied_score(&rows->query[r], v, *s, tile_first + tile->position(i / 4, i % 4));
    }
}

/* The largest score of each row, of this thread's; a NaN, if vary has hidden all. */
template <class tile_scores>
static __device__ __forceinline__ void find_largest(float *largest, const tile_scores *tile) {
    UNROLL
    for (int r = 0; r < tile->N_ROWS; r++)
        largest[r] = NAN;
    UNROLL
    for (int i = 0; i < 4 * tile->VECTORS; i++) {
        const int r = tile->row(i % 4);
        largest[r] = fmaxf(largest[r], tile->s[i / 4][i % 4]);
    }
}

/* Takes from scores what their windows want to have taken, most often nothing. */
template <class tile_scores>
static __device__ __forceinline__ void make_near(tile_scores *tile,
                                                 const struct num_window *window) {
    bool far = false;
    UNROLL
    for (int r = 0; r < tile->N_ROWS; r++)
        far = far || window[r].less != 0;
    if (!__any_sync(0xffffffffu, far))
        return;
    UNROLL
    for (int i = 0; i < 4 * tile->VECTORS; i++)
        tile->s[i / 4][i % 4] -= window[tile->row(i % 4)].less;
}

/* Maximum and sum over the lanes that share rows. */
static __device__ __forceinline__ float larger(float x, float y) {
    return fmaxf(x, y);
}
static __device__ __forceinline__ uint32_t larger(uint32_t x, uint32_t y) {
    return max(x, y);
}

template <class tile_scores, class T> static __device__ __forceinline__ T peer_max(T x) {
    UNROLL
    for (int step = tile_scores::PEER_BEGIN; step < tile_scores::PEER_END; step *= 2)
        x = larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <class tile_scores> static __device__ __forceinline__ uint32_t peer_sum(uint32_t x) {
    UNROLL
    for (int step = tile_scores::PEER_BEGIN; step < tile_scores::PEER_END; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* True in the first of the lanes that share rows. */
template <class tile_scores> static __device__ __forceinline__ bool leads_peers(void) {
    return ((int)threadIdx.x & (tile_scores::PEER_END - tile_scores::PEER_BEGIN)) == 0;
}

/* The probabilities of a tile and their sums in units; scores become weights. Positions from n on,
 * nobody sees. */
template <bool VARIANT, class tile_scores>
static __device__ __forceinline__ void
weigh_values(tile_scores *tile, uint32_t *units, uint32_t *largest, const struct num_window *window,
             int n, const float *v_unit) {
    const int STEP = tile->STEP;
    UNROLL
    for (int c = 0; c < tile->VECTORS; c += STEP) {
        if (c && 16 * c >= n) { /* nobody sees them */
            UNROLL
            for (int i = 0; i < STEP * 4; i++)
                ZERO_HERE(tile->s[c + i / 4][i % 4]);
            continue;
        }
        UNROLL
        for (int i = c; i < c + STEP; i++) {
            float unit[4];
            tile->units(unit, v_unit, i);
            UNROLL
            for (int j = 0; j < 4; j++) {
                const int r = tile->row(j);
                float *s = &tile->s[i][j];
                bool hidden = VARIANT && *s != *s;
                float p = num_probability_near(*s, window[r]);
                /* num_probability_units; the bits of 2^23 come off below */
                units[r] += num_bits(fmaf(p, 8388608.0f, 8388608.0f));
                /* num_value_weight without the flush: what it flushes is snapped to 0 anyway */
                *s = p * unit[j];
                if (VARIANT) /* a unit may be a NaN, which counts if it is seen */
                    *s = hidden ? 0 : *s == *s ? *s : INFINITY;
            }
            UNROLL
            for (int j = 0; j < 4; j++) {
                const int r = tile->row(j);
                largest[r] = max(largest[r], num_bits(tile->s[i][j]));
            }
        }
        for (int r = 0; r < tile->N_ROWS; r++)
            units[r] -= STEP * 4 / tile->N_ROWS * num_bits(8388608.0f);
    }
}

/*
 * A tile's softmax: scores become weights, scale[r] what snaps them. top: the largest score of each
 * row, of this thread's; query_unit: of the rows' scores. A row that sees nothing of the tile gets
 * zero weights: a NaN, which is -infinity less itself, too, has the probability 0. Positions from n
 * on, nobody sees. Rows that cannot be snapped are faults.
 */
template <bool VARIANT, class tile_scores, class unit_of_row>
static __device__ __forceinline__ void
softmax(tile_scores *tile, float *top, float *scale, rows_of<tile_scores> *rows, int tile_first,
        int n, const float *v_unit, const struct item_task *t, unit_of_row query_unit) {
    const int N = tile_scores::N_ROWS;
    struct num_window window[N];
    uint32_t units[N] = {}, largest[N] = {}; /* of weights, whose bits order like them */
    bool bad[N];
    UNROLL
    for (int r = 0; r < N; r++) {
        struct num_score_unit unit = query_unit(r);
        if (VARIANT)
            unit = attention_score_unit(t->variant, unit);
        top[r] = peer_max<tile_scores>(top[r]);
        window[r] = num_window_of(top[r], unit.binary);
        rows->sees[r] = VARIANT ? top[r] == top[r] : rows->query[r].end > tile_first;
        rows->tile_m[r] = num_tile_max(top[r], unit);
        /* A score that float32 cannot hold, or nothing but -infinity. */
        bad[r] = rows->sees[r] && num_magnitude(rows->tile_m[r]) >= 0x7f800000u;
    }
    make_near(tile, window);
    weigh_values<VARIANT>(tile, units, largest, window, n, v_unit);
    UNROLL
    for (int r = 0; r < N; r++) {
        int e = num_row_exponent(peer_max<tile_scores>(largest[r]));
        bad[r] = bad[r] || e > BFP_MAX_EXPONENT;
        if (bad[r] && leads_peers<tile_scores>())
            gpu_fault(t->a->fault, t->a->site, rows->query[r].token);
        e = bad[r] ? BFP_MIN_EXPONENT : e;
        scale[r] = bad[r] ? 0 : num_pow2f(15 - e);
        rows->unit[r] = num_pow2f(e - 22);
        rows->tile_l[r] = (float)peer_sum<tile_scores>(units[r]) * 0x1p-23f;
    }
}

/* What the tile and those before it count for. */
template <int N>
static __device__ __forceinline__ void merge_sums(struct thread_rows<N> *rows, bool merges) {
    UNROLL
    for (int r = 0; r < N; r++) {
        rows->old_factor[r] = rows->new_factor[r] = 1; /* what is not merged is added to 0 */
        if (merges && rows->sees[r])
            attention_merge_sums(&rows->m[r], &rows->l[r], rows->tile_m[r], rows->tile_l[r],
                                 &rows->old_factor[r], &rows->new_factor[r]);
        if (!rows->sees[r]) /* its sums are 0: old values stay as they are, -0 too */
            rows->new_factor[r] = -0.0f;
    }
}

/* ---- the end of a row ----------------------------------------------------------------------- */

/* Writes a thread's share of 16 dimensions. to: the first of the 16. */
template <class value_sums>
static __device__ __forceinline__ void put_share(float *to, const float x[]) {
    to += value_sums::first();
    if (value_sums::SHARE == 4) {
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    } else {
        to[0] = x[0];
        to[value_sums::NEXT] = x[1];
    }
}

/* Keeps row r: its values of all dimensions, m and l. */
template <int DIM, class tile_scores, class value_sums>
static __device__ __forceinline__ void keep_row(struct row_result to, const value_sums *sums, int r,
                                                float m, float l) {
    float x[value_sums::SHARE];
    for (int i = 0; i < DIM / 16; i++) {
        sums->get(x, i, r);
        put_share<value_sums>(to.values + 16 * i, x);
    }
    if (leads_peers<tile_scores>())
        *(float2 *)to.sums = make_float2(m, l);
}

/* A tile whose result is not merged here: keeps it, as number `k` of the item. */
template <int DIM, class tile_scores, class value_sums>
static __device__ __forceinline__ void keep_tile(const struct item_task *t,
                                                 const rows_of<tile_scores> *rows,
                                                 const value_sums *sums, int k) {
    for (int r = 0; r < tile_scores::N_ROWS; r++) {
        int row = t->first_row + r;
        if (row < t->item->list.n_rows)
            keep_row<DIM, tile_scores>(
                kept_at<DIM>(t->a, t->work, t->item->place + k, t->kv_head, row), sums, r,
                rows->sees[r] ? rows->tile_m[r] : NAN, rows->tile_l[r]);
    }
}

/* The quotients of row r, where num_divide_near gives them. Returns whether it does. (l is near: in
 * it the largest score counts 1, and each other at most that.) */
template <class value_sums, class sums_of>
static __device__ __forceinline__ bool divide_near(float *y, int dim, float l, float v_scale,
                                                   sums_of get) {
    float reciprocal = 1 / l;
    uint32_t farness = 0;
    UNROLL_4
    for (int d = 0; d < dim; d += 16) {
        float x[value_sums::SHARE];
        get(x, d / 16);
        UNROLL
        for (int j = 0; j < value_sums::SHARE; j++) {
            farness = max(farness, farness_of(x[j]));
            x[j] = num_divide_near(x[j], l, reciprocal) * v_scale;
        }
        put_share<value_sums>(y + d, x);
    }
    return farness <= farness_of(0x1p60f);
}

/* The end of row r: y. Divisions take many instructions, and branches, for numbers that rows seldom
 * have: all are done by num_divide_near, and where that is not enough once more. */
template <bool VARIANT, class tile_scores, class value_sums>
static __device__ __forceinline__ void finish_row(const struct item_task *t,
                                                  const struct prompt_row *row,
                                                  const value_sums *sums, int r, float m, float l) {
    const struct attention_arguments *a = t->a;
    const struct attention_variant *v = t->variant;
    size_t number = (size_t)row->token * (size_t)a->n_heads + (size_t)row->head;
    float *y = a->y + number * (size_t)a->head_dim, old = 1, fresh = 0;
    if (VARIANT) {
        if (v->sinks) /* a tile of values that are 0 */
            attention_merge_sink(v->sinks[row->head], &m, &l, &old, &fresh);
        if (v->sinks && !attention_sink_is_finite(v->sinks[row->head]))
            gpu_fault(a->fault, a->site, row->token);
        if (leads_peers<tile_scores>())
            attention_note_sums(v, number, m, l);
    }
    float v_scale = VARIANT ? a->v_scale : 1;
    auto get = [&](float x[], int i) {
        sums->get(x, i, r);
        UNROLL
        for (int j = 0; j < value_sums::SHARE && VARIANT && v->sinks; j++)
            x[j] = num_merge(x[j], old, 0, fresh);
    };
    bool divides = l > 0 && !(VARIANT && v->m);
    bool near = divides && a->head_dim % 16 == 0 && (uintptr_t)a->y % 16 == 0;
    if (near)
        near = divide_near<value_sums>(y, a->head_dim, l, v_scale, get);
    UNROLL_1
    for (int first = value_sums::first(); first < a->head_dim && !near; first += 16) {
        float x[value_sums::SHARE];
        get(x, first / 16);
        UNROLL
        for (int j = 0; j < value_sums::SHARE; j++)
            if (first + j * value_sums::NEXT < a->head_dim)
                y[first + j * value_sums::NEXT] = (divides ? x[j] / l : x[j]) * v_scale;
    }
}

/* The rows behind their last tile: finished, or kept. */
template <int DIM, bool VARIANT, class tile_scores, class value_sums>
static __device__ __forceinline__ void
end_rows(const struct item_task *t, const rows_of<tile_scores> *rows, const value_sums *sums) {
    UNROLL
    for (int r = 0; r < tile_scores::N_ROWS; r++) {
        int row = t->first_row + r;
        if (row >= t->item->list.n_rows)
            continue;
        if (t->item->place < 0)
            finish_row<VARIANT, tile_scores>(t, &rows->query[r], sums, r, rows->m[r], rows->l[r]);
        else if (t->item->merges)
            keep_row<DIM, tile_scores>(kept_at<DIM>(t->a, t->work, t->item->place, t->kv_head, row),
                                       sums, r, rows->m[r], rows->l[r]);
    }
}

/* ---- the choice of a kernel ----------------------------------------------------------------- */

/* kernel<DIM, VARIANT>::get() for the rounded head dimension. */
template <template <int, bool> class kernel, bool VARIANT>
static struct prompt_kernel kernel_for(int head_dim) {
    switch (prompt_dim(head_dim)) {
    case 64:
        return kernel<64, VARIANT>::get();
    case 128:
        return kernel<128, VARIANT>::get();
    default:
        return kernel<256, VARIANT>::get();
    }
}

#endif
