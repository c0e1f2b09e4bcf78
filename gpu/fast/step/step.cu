/*
 * decode_step: a whole decoding pass as one kernel, from token ids to logits and greedy tokens. It
 * computes what the ops of model/forward.c do, and greedy sample.
 */
#include "gpu/fast/step/attention.h"
#include "gpu/fast/step/linear.h"
#include "gpu/logit_key.h"

/* ---- rows --------------------------------------------------------------------------------------
 *
 * The warps that share a row have every n_parts-th 32 of its vectors of four floats, in registers.
 */

/* Over the warps of this one's row, a barrier between the two: what each leaves, and the largest,
 * or the sum, of all. `which`: of two that come without another barrier in between. */
static __device__ __forceinline__ void leave_largest(const struct step *s, uint32_t x, int which) {
    x = warp_max(x);
    if (s->lane == 0)
        step_shared()->largest[which][s->warp] = x;
}
static __device__ __forceinline__ uint32_t largest_of_row(const struct step *s, int which) {
    return warp_max(
        step_shared()->largest[which][s->warp - s->part + (s->lane & (s->n_parts - 1))]);
}
static __device__ __forceinline__ void leave_sum(const struct step *s, long long x) {
    x = warp_sum(x);
    if (s->lane == 0)
        step_shared()->squares[s->warp] = x;
}
static __device__ __forceinline__ long long sum_of_row(const struct step *s) {
    const long long *part = step_shared()->squares + s->warp - s->part;
    return warp_sum(s->lane < s->n_parts ? part[s->lane] : 0);
}

/* This thread's vector number i of its row. */
static __device__ __forceinline__ int vector_of(const struct step *s, int i) {
    return (s->part + i * s->n_parts) * 32 + s->lane;
}

/* Waits for the row's n vectors, at `from`. Zeros behind the end. */
template <int VECTORS>
static __device__ __forceinline__ void take_row(float4 (&v)[VECTORS], const struct step *s,
                                                const float4 *from, int n) {
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = vector_of(s, i);
        v[i] = make_float4(0, 0, 0, 0);
        if (j < n)
            v[i] = exchange_ask(from + j);
    }
    UNROLL
    for (int i = 0; i < VECTORS; i++)
        if (vector_of(s, i) < n)
            exchange_take(&v[i], from + vector_of(s, i));
}

/* Snaps the row, input of linear layer i, whose largest magnitude is given, and leaves its digits.
 * One that cannot be snapped is a fault: nobody will look at what comes of it. */
template <int VECTORS>
static __device__ __forceinline__ void put_row(const struct step *s, const float4 (&v)[VECTORS],
                                               uint32_t largest, int n, int i, int site) {
    int e = num_row_exponent(largest);
    bool bad = e > BFP_MAX_EXPONENT, writes = s->lane == 0 && s->part == 0;
    e = bad ? BFP_MIN_EXPONENT : e;
    if (writes)
        step_shared()->exponents[i % 2][s->row] = e;
    if (writes && bad)
        gpu_fault(s->a->fault, site, s->first_row + s->row);
    float scale = bad ? 0 : num_pow2f(15 - e);
    unsigned char *to = step_memory() + s->a->at.digits + s->row * s->a->at.stride;
    UNROLL
    for (int k = 0; k < VECTORS; k++) {
        int j = vector_of(s, k);
        if (j < n) {
            uint32_t high, low;
            split_four(&high, &low, mantissas_of(v[k], scale));
            uint32_t *word = (uint32_t *)(to + j / 4 * 32 + j % 4 * 4);
            word[0] = high;
            word[4] = low;
        }
    }
}

/* Leaves the digits of the norm of this warp's row, input of linear layer i. A warp that has
 * nothing of a row only keeps the barriers. */
template <int VECTORS>
static __device__ __forceinline__ void norm_row(const struct step *s, const struct step_linear *w,
                                                int i, const float4 *from, bool works) {
    int n = w->columns / 4, layer = i / 4, site = layer * N_TENSORS, e = 0;
    float4 v[VECTORS] = {}, g[VECTORS] = {};
    bool bad = false;
    if (works) {
        const float4 *gains = (const float4 *)step_layer_of(s, layer)->gains[w->gains];
        UNROLL
        for (int k = 0; k < VECTORS; k++)
            if (vector_of(s, k) < n)
                g[k] = gains[vector_of(s, k)];
        take_row(v, s, from, n);
    }
    leave_largest(s, works ? largest_of_vectors(v) : 0, 0);
    __syncthreads();
    if (works) {
        e = num_row_exponent(largest_of_row(s, 0));
        bad = e > BFP_MAX_EXPONENT;
        if (bad && s->lane == 0 && s->part == 0)
            gpu_fault(s->a->fault, site + w->site_x, s->first_row + s->row);
        e = bad ? BFP_MIN_EXPONENT : e;
        long long sum = 0;
        UNROLL
        for (int k = 0; k < VECTORS; k++)
            sum += squares_of(v[k], num_pow2f(15 - e));
        leave_sum(s, bad ? 0 : sum);
    } else if (s->lane == 0)
        step_shared()->squares[s->warp] = 0;
    __syncthreads();
    if (works) {
        float r = rms_factor(sum_of_row(s), e, w->columns, s->a->eps);
        UNROLL
        for (int k = 0; k < VECTORS; k++)
            v[k] = normed(v[k], r, g[k]);
    }
    leave_largest(s, works ? largest_of_vectors(v) : 0, 1);
    __syncthreads();
    if (works)
        put_row(s, v, largest_of_row(s, 1), n, i, site + w->site_y);
}

/* Leaves the digits of the row itself. */
template <int VECTORS>
static __device__ __forceinline__ void snap_row(const struct step *s, const struct step_linear *w,
                                                int i, const float4 *from, bool works) {
    int n = w->columns / 4;
    float4 v[VECTORS] = {};
    if (works)
        take_row(v, s, from, n);
    leave_largest(s, works ? largest_of_vectors(v) : 0, 0);
    __syncthreads();
    if (works)
        put_row(s, v, largest_of_row(s, 0), n, i, i / 4 * N_TENSORS + w->site_y);
}

/* Makes the digits that linear layer i multiplies. */
template <int NORM, int SNAP>
static __device__ __forceinline__ void prepare_input(const struct step *s,
                                                     const struct step_linear *w, int i) {
    const float4 *from =
        (const float4 *)step_exchange(s, i / 4 - w->from_before, w->from, s->row, w->columns);
    bool works = s->row < s->n_rows && s->part * 32 < w->columns / 4;
    if (w->norm)
        norm_row<NORM>(s, w, i, from, works);
    else
        snap_row<SNAP>(s, w, i, from, works);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* One warp asks for the gains of the norm of the next layer. */
static __device__ __forceinline__ void ask_for_layer(const struct step *s,
                                                     const struct step_linear *w, int i) {
    if (s->warp != STEP_COPY_THREAD / 32 || !w->norm || i + 4 > 4 * s->a->n_layers)
        return;
    const float *gains = step_layer_of(s, i / 4 + 1)->gains[w->gains];
    for (int at = s->lane * 32; at < w->columns; at += 32 * 32)
        prefetch_l2(gains + at);
}

/* One loop over all linear layers, not one over layers: so the code of a linear layer is there
 * once, and stays in the cache for instructions. */
template <int DIM, int NORM, int SNAP>
static __device__ __forceinline__ void run_layers(struct step *s) {
    int last = 4 * s->a->n_layers;
    for (int i = 0; i <= last; i++) {
        const struct step_linear *w = linear_of(s, i);
        ask_for_layer(s, w, i);
        for (int first = 0; first == 0 || first < w->n_panels; first += w->room) {
            int n = min(w->room, w->n_panels - first);
            int portions = (n * w->steps + STEP_WARPS - 1) / STEP_WARPS;
            bool finishes = has_outputs(s, n);
            struct step_output output = {};
            /* One warp waits for each portion, and all see it behind the next barrier; but a warp
             * with outputs reads their exponents before. */
            await_portion(s, 0, finishes);
            await_portion(s, STEP_WARPS - 1 - s->warp, STEP_WARPS - 1 - s->warp < portions);
            if (finishes)
                output = output_of(s, w, i, first, n);
            exchange_turn();
            if (!first)
                prepare_input<NORM, SNAP>(s, w, i);
            __syncthreads(); /* digits and weights are there, and the sums before have been read */
            ask_for_portions(s, 0, ASK_BESIDE_PRODUCTS);
            multiply_panels(s, w, n);
            __syncthreads();
            ask_for_portions(s, portions, ASK_BESIDE_SUMS);
            if (finishes)
                finish_output(s, w, i, &output);
            s->slot += portions;
            if (s->slot >= s->a->stages) {
                s->slot -= s->a->stages;
                s->parity ^= 1;
            }
        }
        if (i % 4 == 0 && i < last) {
            ask_for_portions(s, 0, ASK_BESIDE_ATTENTION);
            attend_rows<DIM>(s, step_layer_of(s, i / 4), i / 4);
        }
    }
}

/* What this block has of a kind of linear layer. */
static __device__ __forceinline__ void begin_linear(const struct step *s, int kind) {
    struct step_linear w = s->a->linears[kind];
    int shift = w.gated, panels = step_panels(&w) >> shift;
    w.first_panel = panels * s->rank / s->a->n_blocks << shift;
    w.n_panels = (panels * (s->rank + 1) / s->a->n_blocks << shift) - w.first_panel;
    int at = w.first_panel * w.steps * STEP_UNIT_BYTES;
    w.packed += at;
    w.tails_at = (int)step_tails_offset(&w) + w.first_panel * (int)sizeof(struct step_tail) - at;
    step_shared()->linears[kind] = w;
}

/* The embeddings of the rows: each block of the group has a part of the vectors. */
static __device__ __forceinline__ void put_embeddings(const struct step *s) {
    const struct step_arguments *a = s->a;
    int each = a->hidden / 4, padded = gpu_padded(a->hidden);
    for (int i = s->rank * STEP_THREADS + (int)threadIdx.x; i < each * s->n_rows;
         i += a->n_blocks * STEP_THREADS) {
        int row = i / each, vector = i - row * each, token = s->batch[s->first_row + row];
        const char4 *high = (const char4 *)(a->embedding + (size_t)token * (size_t)padded);
        const char4 *low = high + (size_t)a->vocab * (size_t)padded / 4;
        double unit = num_pow2(a->embedding_exponents[token] - 15);
        char4 h = high[vector], l = low[vector];
        float *to = step_exchange(s, -1, a->linears[STEP_DOWN].to, row, a->hidden) + 4 * vector;
        exchange_put(to, (float)((256 * h.x + l.x) * unit));
        exchange_put(to + 1, (float)((256 * h.y + l.y) * unit));
        exchange_put(to + 2, (float)((256 * h.z + l.z) * unit));
        exchange_put(to + 3, (float)((256 * h.w + l.w) * unit));
    }
}

/* Where this thread is. */
static __device__ __forceinline__ void begin_thread(struct step *s,
                                                    const struct step_arguments *a) {
    int group = (int)blockIdx.x / a->n_blocks;
    s->a = a;
    s->rank = (int)blockIdx.x - group * a->n_blocks;
    s->first_row = group * a->rows_per_group;
    s->n_rows = min(a->rows_per_group, a->n_rows - s->first_row);
    s->rows_inverse = step_inverse(s->n_rows);
    s->warp = (int)(threadIdx.x / 32);
    s->lane = (int)(threadIdx.x % 32);
    s->n_parts = STEP_WARPS;
    for (int rows = 1; rows < s->n_rows; rows *= 2)
        s->n_parts /= 2;
    s->part = s->warp & (s->n_parts - 1);
    s->row = s->warp / s->n_parts;
    s->batch = a->batch ? a->batch : step_shared()->numbers;
    s->pages = s->batch + 3 * a->n_rows + 1;
}

/* The largest of all keys of this warp's row. `which`: as of leave_largest. */
static __device__ __forceinline__ unsigned long long
largest_key(const struct step *s, unsigned long long key, int which) {
    unsigned long long *part = (unsigned long long *)step_shared()->sums + which * STEP_WARPS;
    key = warp_max(key);
    if (s->lane == 0)
        part[s->warp] = key;
    __syncthreads();
    return warp_max(part[s->warp - s->part + (s->lane & (s->n_parts - 1))]);
}

/* The greedy token of each row: each block finds the largest of its own logits, and the first one
 * that of all blocks. (Out of line: what it knows would be in registers all through the layers.) */
static __device__ OUT_OF_LINE void draw_greedy(const struct step_arguments *a) {
    struct step state = {}, *s = &state;
    begin_thread(s, a);
    const struct step_linear *w = &step_shared()->linears[STEP_LOGITS];
    bool has_row = s->row < s->n_rows, tells = has_row && s->part == 0 && s->lane == 0;
    int row = s->first_row + s->row, first = s->part * 32 + s->lane, step = s->n_parts * 32;
    int begin = w->first_panel * 8, end = min(begin + w->n_panels * 8, a->vocab);
    const float *logits = a->logits + (size_t)row * (size_t)a->vocab;
    unsigned long long key = 0;
    __syncthreads(); /* the logits of all warps are there */
    UNROLL_1
    for (int i = begin + first; has_row && i < end; i += step) {
        bool bad = num_magnitude(logits[i]) >= 0x7f800000u;
        key = max(key, bad ? NOT_FINITE : key_of(logits[i], i));
    }
    key = largest_key(s, key, 0);
    /* In two words, none of which may be an absent number: an id, not its complement; and 1 below
     * NOT_FINITE, which is above all numbers, too. (A block without logits hands over order 0,
     * which is below all numbers, with any id.) */
    float *keys = step_exchange(s, a->n_layers, 0, 0, 0) + row * a->n_blocks * 2;
    if (tells) {
        exchange_put(keys + 2 * s->rank, num_float((uint32_t)(key >> 32) - (key == NOT_FINITE)));
        exchange_put(keys + 2 * s->rank + 1, num_float((uint32_t)token_of_key(key)));
    }
    exchange_turn();
    if (s->rank)
        return;
    key = 0;
    UNROLL_1
    for (int i = first; has_row && i < a->n_blocks; i += step) {
        float order = exchange_ask(keys + 2 * i), id = exchange_ask(keys + 2 * i + 1);
        exchange_take(&order, keys + 2 * i);
        exchange_take(&id, keys + 2 * i + 1);
        key = max(key, (unsigned long long)num_bits(order) << 32 | (0xffffffffu - num_bits(id)));
    }
    key = largest_key(s, key, 1);
    if (!tells)
        return;
    a->drawn[row] = token_of_key(key);
    if (key >> 32 == (NOT_FINITE >> 32) - 1)
        gpu_fault(a->fault, a->n_layers * N_TENSORS + TENSOR_LOGITS, row);
}

template <int DIM, int NORM, int SNAP>
__global__ static void __launch_bounds__(STEP_THREADS, 1)
    decode_step_2(const __grid_constant__ struct step_arguments a) {
    if (!compiles_mma)
        return;
    struct step s = {};
    begin_thread(&s, &a);
    if (s.warp < N_STEP_LINEARS && s.lane == 0) /* a warp for each */
        begin_linear(&s, s.warp);
    if (threadIdx.x == STEP_COPY_THREAD)
        for (int i = 0; i < a.stages; i++)
            bulk_barrier_start(&step_shared()->barriers[i]);
    for (int i = (int)threadIdx.x; i < a.n_numbers; i += STEP_THREADS)
        step_shared()->numbers[i] = a.numbers[i];
    run_in_turn();
    const uint4 *from = (const uint4 *)a.layers;
    int n = (a.n_layers + 1) * (int)(sizeof *a.layers / sizeof *from);
    for (int i = (int)threadIdx.x; i < n; i += STEP_THREADS)
        ((uint4 *)(step_memory() + a.at.layers))[i] = from[i];
    __syncthreads();
    if (threadIdx.x == STEP_COPY_THREAD) {
        struct step_feed feed = {};
        begin_chunk(&s, &feed);
        step_shared()->feed = feed;
    }
    ask_for_portions(&s, a.stages, a.stages);
    put_embeddings(&s);
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    for (int i = (int)threadIdx.x; i < s.n_rows * a.at.stride / 16; i += STEP_THREADS)
        ((uint4 *)(step_memory() + a.at.digits))[i] = zeros; /* also behind the end of rows */
    if ((int)threadIdx.x < s.n_rows) {
        int row = s.first_row + (int)threadIdx.x;
        step_shared()->positions[threadIdx.x] = s.batch[a.n_rows + row];
        step_shared()->first_pages[threadIdx.x] = s.batch[2 * a.n_rows + row];
    }
    __syncthreads();
    for (int i = (int)(blockIdx.x * STEP_THREADS + threadIdx.x); i < a.next_vectors;
         i += (int)gridDim.x * STEP_THREADS)
        ((uint4 *)a.next)[i] =
            make_uint4(EXCHANGE_ABSENT, EXCHANGE_ABSENT, EXCHANGE_ABSENT, EXCHANGE_ABSENT);
    run_layers<DIM, NORM, SNAP>(&s);
    draw_greedy(&a);
}

template <int DIM> static step_kernel kernel_with(int norm, int snap) {
    return norm <= 1 && snap <= 3   ? decode_step_2<DIM, 1, 3>
           : norm <= 2 && snap <= 7 ? decode_step_2<DIM, 2, 7>
                                    : NULL;
}

step_kernel gpu_step_kernel(int head_dim, int norm, int snap) {
    return head_dim == 32    ? kernel_with<32>(norm, snap)
           : head_dim == 64  ? kernel_with<64>(norm, snap)
           : head_dim == 128 ? kernel_with<128>(norm, snap)
                             : NULL;
}
