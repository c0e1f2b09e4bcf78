/*
 * decode_step: a whole decoding pass as one kernel, from token ids to logits. It computes what the
 * ops of model/forward.c do; gains 2.4 times for one sequence of the shipped model (H200: 0.094 ms
 * a token; the same ops in a CUDA graph take 0.221).
 *
 * With few sequences, each of the hundred ops of a pass takes some two microseconds, most of which
 * is the way from one kernel to the next. Here the blocks of a cluster stay, and wait for each
 * other's bytes where a kernel would end; what they send each other never leaves shared memory.
 * Only weights and the KV cache come from memory, and both are asked for before they are needed.
 * (One kernel for a whole model: Spector et al., "Look Ma, No Bubbles! Designing a Low-Latency
 * Megakernel for Llama-1B", 2025.)
 *
 * What is computed, and the faults, are those of the ops in model/forward.c. launch.cu says where
 * the kernel applies, and where it pays.
 */
#include "gpu/fast/step/attention.h"
#include "gpu/fast/step/linear.h"

/* ---- rows --------------------------------------------------------------------------------------
 *
 * Each of a row's warps works out all of its norm or its exponent for itself, which needs no
 * barrier, and writes its part of the result.
 */

/* Leaves four neighbours, from column `at` of a row on, as digits. */
static __device__ __forceinline__ void put_digits(const struct step *s, int row, int at, float4 v,
                                                  float scale) {
    uint2 m = mantissas_of(v, scale);
    int to = row * s->a->at.stride + at;
    *(uint32_t *)(step_memory() + s->a->at.high + to) = __byte_perm(m.x, m.y, 0x7531);
    *(uint32_t *)(step_memory() + s->a->at.low + to) = __byte_perm(m.x, m.y, 0x6420);
}

/* The scale of this warp's row, input of linear layer i, whose largest magnitude is given; 0 if it
 * cannot be snapped, which is a fault: nobody will look at what comes of it. */
static __device__ __forceinline__ float scale_of_row(const struct step *s, uint32_t largest, int i,
                                                     int site) {
    int e = num_row_exponent(largest);
    bool bad = e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    bool writes = s->lane == 0 && s->part == 0;
    if (writes)
        step_shared()->exponents[i % 2][s->row] = e;
    if (writes && bad)
        gpu_fault(s->a->fault, site, s->first_row + s->row);
    return bad ? 0 : num_pow2f(15 - e);
}

static __device__ __forceinline__ float *gains_of(const struct step *s, int layer) {
    return step_floats(s->a->at.gains) + layer % 2 * s->a->at.layer_gains;
}

/* Whether this warp has a part of its row's n columns. */
static __device__ __forceinline__ bool has_part(const struct step *s, int n) {
    return s->row < s->n_rows && s->part * 128 < n;
}

/* x += what came in, and the digits of the norm of that, for linear layer `number`. Rows of up to
 * 128 * VECTORS. */
template <int VECTORS>
static __device__ __forceinline__ void norm_row(const struct step *s, int number, const float *gain,
                                                int site_x, int site_y) {
    int hidden = s->a->hidden;
    bool odd = number / 2 % 2; /* every second linear layer has a norm: x changes places */
    const float4 *x = (const float4 *)(step_floats(s->a->at.x[odd]) + s->row * hidden);
    const float4 *branch = (const float4 *)step_input(s, s->row);
    float4 *sum = (float4 *)(step_floats(s->a->at.x[!odd]) + s->row * hidden);
    float4 v[VECTORS];
    const float4 zero = make_float4(0, 0, 0, 0);
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = s->lane + 32 * i;
        v[i] = zero;
        if (j < hidden / 4) {
            float4 a = x[j], b = branch[j];
            v[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        }
    }
    UNROLL
    for (int i = 0; i < VECTORS; i++)
        if (s->lane + 32 * i < hidden / 4 && (i & (s->n_parts - 1)) == s->part)
            sum[s->lane + 32 * i] = v[i];
    int token = s->first_row + s->row;
    float r = factor_of_row<1>(v, s->lane, hidden, s->a->eps, site_x, token, s->a->fault);
    uint32_t largest = 0;
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = s->lane + 32 * i;
        v[i] = normed(v[i], r, j < hidden / 4 ? ((const float4 *)gain)[j] : zero);
        largest = max(largest, largest_of(v[i]));
    }
    float scale = scale_of_row(s, warp_max(largest), number, site_y);
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = s->lane + 32 * i;
        if (j < hidden / 4 && (i & (s->n_parts - 1)) == s->part)
            put_digits(s, s->row, 4 * j, v[i], scale);
    }
}

/* The digits of what came in, rows of n columns, `parts` of which have sent their largest. */
static __device__ __forceinline__ void snap_row(const struct step *s, int number, int n, int parts,
                                                int site) {
    const float *row = step_input(s, s->row);
    uint32_t largest = 0;
    UNROLL_1
    for (int i = s->lane; i < parts; i += 128) {
        UNROLL
        for (int j = 0; j < 128; j += 32)
            if (i + j < parts)
                largest = max(largest, num_bits(row[s->a->at.largest + i + j]));
    }
    float scale = scale_of_row(s, warp_max(largest), number, site);
    UNROLL_1
    for (int i = s->part * 32 + s->lane; i < n / 4; i += s->n_parts * 32)
        put_digits(s, s->row, 4 * i, ((const float4 *)row)[i], scale);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Starts copying the gains of layer i, which is w, in the background: a warp for each of them, the
 * last ones, which have the least to do then. */
static __device__ __forceinline__ void copy_gains(const struct step *s, const struct step_layer *w,
                                                  int i) {
    const struct step_arguments *a = s->a;
    int which = s->warp - (STEP_WARPS - 4);
    if (which >= 0) {
        const float *from = w->gains[which];
        float *to = gains_of(s, i) +
                    (which < 2 ? which * a->hidden : 2 * a->hidden + (which - 2) * a->head_dim);
        int n = which < 2 ? a->hidden : a->head_dim;
        UNROLL_1
        for (int k = s->lane * 4; k < n && from; k += 128)
            cp_async_16(to + k, from + k);
    }
    cp_async_commit();
}

/* The embeddings of the rows' tokens, their angles, where they are, and zeros for digits behind the
 * end of rows. Each warp has its part of its row. */
static __device__ __forceinline__ void begin_rows(const struct step *s) {
    const struct step_arguments *a = s->a;
    int first = s->part * 32 + s->lane, step = s->n_parts * 32, half = a->head_dim / 2;
    const int32_t *batch = s->batch + s->first_row + s->row; /* of the rows, the row's */
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    for (int i = (int)threadIdx.x; i < a->rows_per_cluster * a->at.stride / 8; i += STEP_THREADS)
        ((uint4 *)(step_memory() + a->at.high))[i] = zeros; /* and low, behind it */
    if (s->row >= s->n_rows)
        return;
    int token = batch[0], position = batch[a->n_rows], padded = gpu_padded(a->hidden);
    const char4 *high = (const char4 *)(a->embedding + (size_t)token * (size_t)padded);
    const char4 *low = high + (size_t)a->vocab * (size_t)padded / 4;
    for (int i = first; i < a->hidden / 4; i += step) {
        double unit = num_pow2(a->embedding_exponents[token] - 15);
        char4 h = high[i], l = low[i];
        ((float4 *)(step_floats(a->at.x[0]) + s->row * a->hidden))[i] =
            make_float4((float)((256 * h.x + l.x) * unit), (float)((256 * h.y + l.y) * unit),
                        (float)((256 * h.z + l.z) * unit), (float)((256 * h.w + l.w) * unit));
        ((float4 *)step_input(s, s->row))[i] = make_float4(0, 0, 0, 0); /* to be added */
    }
    for (int i = first; i < half; i += step) {
        size_t at = (size_t)position * (size_t)half + (size_t)i;
        step_floats(a->at.cos)[s->row * half + i] = a->rope_cos[at];
        step_floats(a->at.sin)[s->row * half + i] = a->rope_sin[at];
    }
    if (first == 0) {
        step_shared()->positions[s->row] = position;
        step_shared()->first_pages[s->row] = batch[2 * a->n_rows];
    }
}

/* Makes the digits that linear layer i multiplies. (There is one place for each kind: what is there
 * twice takes twice the room in the cache for instructions.) */
static __device__ __forceinline__ void prepare_input(const struct step *s,
                                                     const struct step_linear *w, int i) {
    int layer = i / 4, site = layer * N_TENSORS;
    if (!w->norm) {
        snap_row(s, i, w->columns, w->parts, site + w->site_y);
        return;
    }
    const float *gains = gains_of(s, layer) + w->gains;
    if (w->columns <= 256)
        norm_row<2>(s, i, gains, site + w->site_x, site + w->site_y);
    else
        norm_row<STEP_MOST_HIDDEN / 128>(s, i, gains, site + w->site_x, site + w->site_y);
}

/* One loop over all linear layers, not one over layers: so the code of a linear layer is there
 * once, and stays in the cache for instructions. */
template <int DIM> static __device__ __forceinline__ void run_layers(struct step *s) {
    const struct step_arguments *a = s->a;
    int last = 4 * a->n_layers;
    struct step_tile_rows rows;
    if (step_has_head(s, 0)) {
        struct step_head h = step_head_of(s, 0);
        find_rows(&rows, s, &h, 0);
    }
    for (int i = 0, first = 0;;) {
        /* What can be done before the others have sent what they have is done before. */
        const struct step_linear w = *linear_of(s, i);
        int layer = i / 4;
        struct step_work work;
        begin_panels(&work, s, &w, first);
        if (!first) {
            if (i % 4 == 3)
                cp_async_wait<0>(); /* the next gains */
            bool reads = has_part(s, w.columns);
            if (i)
                step_stage_end(s, reads);
            if (reads)
                prepare_input(s, &w, i);
        }
        multiply_rows(s, &w, &work, i, first);
        first += work.n;
        if (first < w.n_panels)
            continue;
        if (i == last)
            break;
        if (i % 4 == 0) {
            const struct step_layer *here = step_layer_of(s, layer);
            const float *gains = gains_of(s, layer) + 2 * a->hidden;
            struct step_first<DIM> head = {};
            begin_attention(&head, s, here, &rows, gains);
            copy_gains(s, here + 1, layer + 1);
            step_stage_end(s, s->warp < STEP_HEAD_WARPS);
            if (threadIdx.x == STEP_COPY_THREAD)
                step_expect(s, s->n_rows * a->n_heads * (DIM + DIM / 32) +
                                   max(a->n_blocks - s->n_rows * a->n_heads, 0));
            attend_rows(s, here, &head, gains, layer * N_TENSORS);
        }
        i++;
        first = 0;
    }
}

/* What this block has of a kind of linear layer. */
static __device__ __forceinline__ void begin_linear(const struct step *s, int kind) {
    struct step_linear w = s->a->linears[kind];
    unsigned panels = (unsigned)step_panels(&w), rank = (unsigned)s->rank, bits = s->a->block_bits;
    w.first_panel = (int)(panels * rank >> bits);
    w.n_panels = (int)(panels * (rank + 1) >> bits) - w.first_panel;
    w.exponents += w.first_panel * 16;
    w.packed += (size_t)w.first_panel * (size_t)step_panel_bytes(w.steps);
    step_shared()->linears[kind] = w;
}

/* Where this thread is. */
static __device__ __forceinline__ void begin_thread(struct step *s,
                                                    const struct step_arguments *a) {
    s->a = a;
    s->in = a->at.in;
    s->out = a->at.out;
    s->rank = cluster_rank();
    s->first_row = (int)(blockIdx.x >> a->block_bits) * a->rows_per_cluster;
    s->n_rows = min(a->rows_per_cluster, a->n_rows - s->first_row);
    s->warp = (int)(threadIdx.x / 32);
    s->lane = (int)(threadIdx.x % 32);
    s->n_parts = STEP_WARPS;
    s->row = 0;
    for (int rows = 1; rows < s->n_rows; rows *= 2)
        s->n_parts /= 2;
    s->part = s->warp & (s->n_parts - 1);
    for (int warp = s->warp - s->part; warp > 0; warp -= s->n_parts)
        s->row++;
    s->batch = a->batch ? a->batch : step_shared()->numbers;
    s->pages = s->batch + 3 * a->n_rows + 1;
}

template <int DIM>
__global__ static void __launch_bounds__(STEP_THREADS) decode_step_2(struct step_arguments a) {
    if (!compiles_clusters)
        return;
    struct step s = {};
    begin_thread(&s, &a);
    if (s.warp < N_STEP_LINEARS && s.lane == 0) /* a warp for each */
        begin_linear(&s, s.warp);
    for (int i = (int)threadIdx.x; i < a.n_numbers; i += STEP_THREADS)
        step_shared()->numbers[i] = a.numbers[i];
    if (threadIdx.x == STEP_COPY_THREAD) {
        bulk_barrier_start(&step_shared()->barrier);
        for (int i = 0; i < 2; i++)
            peer_barrier_start(&step_shared()->received[i]);
    }
    __syncthreads();
    cluster_arrive();
    run_in_turn();
    if (threadIdx.x == STEP_COPY_THREAD)
        fetch(&s, &step_shared()->linears[0], 0, 0);
    count_fetch(&s);
    copy_gains(&s, a.layers, 0);
    const uint4 *from = (const uint4 *)a.layers;
    int n = (a.n_layers + 1) * (int)(sizeof *a.layers / sizeof *from);
    for (int i = (int)threadIdx.x; i < n; i += STEP_THREADS)
        ((uint4 *)(step_memory() + a.at.layers))[i] = from[i];
    begin_rows(&s);
    cp_async_wait<0>();
    __syncthreads();
    cluster_wait(); /* all blocks have begun */
    run_layers<DIM>(&s);
}

step_kernel gpu_step_kernel(int head_dim) {
    switch (head_dim) {
    case 32:
        return decode_step_2<32>;
    case 64:
        return decode_step_2<64>;
    case 128:
        return decode_step_2<128>;
    default:
        return NULL;
    }
}
