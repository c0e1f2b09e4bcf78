/*
 * linear, version 4: computes what ../../linear.cu does, for few rows of x; gains a third of
 * the time over version 3 (4096 x 4096 weights, 1 row, H200: 10.5 µs, not 15.0).
 *
 * The weights are read once, 16 bytes a thread, and multiplied with mma on 16 rows at a time. It
 * needs k % 8 == 0, so that rows of x are aligned. A thread may take any 16 of the 64 columns of a
 * step, as long as x and W agree: the sum has no order. x is split into digits on the way (high
 * signed, low unsigned).
 */
#include "gpu/fast/linear/linear.h"
#include "gpu/ptx/digit_sums.h"

enum { MAX_K = 1 << 18, WARPS = 8, STEP = 64 }; /* 49,000 * k / 8 stays below 2^31 */

/* The matrices of a launch: one after the other, whole blocks of each. */
struct weights {
    const int8_t *high, *low; /* digits */
    const int8_t *exponents;
    float *y;
    int n, first_block;
};
struct weight_list {
    struct weights parts[MOST_LINEAR_PARTS];
    int n_parts;
};

/* 16 mantissas of x as digits: high[4] signed and low[4] unsigned, 4 a word. */
static __device__ __forceinline__ void digits_of(uint32_t high[4], uint32_t low[4], uint4 a,
                                                 uint4 b) {
    const uint32_t pairs[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    UNROLL
    for (int i = 0; i < 4; i++) {
        low[i] = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x6420);
        high[i] = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x7531);
    }
}

/* 64 columns: two mma of 32, each in the four combinations of digits. */
static __device__ __forceinline__ void
multiply_step(struct digit_sums *s, const uint32_t high0[4], const uint32_t low0[4],
              const uint32_t high1[4], const uint32_t low1[4], uint4 w_high, uint4 w_low) {
    const uint32_t wh[4] = {w_high.x, w_high.y, w_high.z, w_high.w};
    const uint32_t wl[4] = {w_low.x, w_low.y, w_low.z, w_low.w};
    UNROLL
    for (int j = 0; j < 4; j += 2) {
        const uint32_t h[4] = {high0[j], high1[j], high0[j + 1], high1[j + 1]};
        const uint32_t l[4] = {low0[j], low1[j], low0[j + 1], low1[j + 1]};
        add_products<true>(s, h, l, wh + j, wl + j);
    }
}

/* What a thread works on: two rows of x and one row of each mma tile of W, and in every step of 64
 * columns 16 of them. */
struct row_task {
    const int16_t *x[2]; /* its rows of x, at its columns of the first step; NULL: no such row */
    const int8_t *high, *low; /* W */
    int first_out, quarter, k, padded, n;
};

/* 16 mantissas of a thread's two rows in a step. */
struct x_vectors {
    uint4 v[2][2];
};

static __device__ __forceinline__ struct x_vectors load_x(const struct row_task *t, int step) {
    struct x_vectors x;
    UNROLL
    for (int i = 0; i < 4; i++) {
        int at = step * STEP + i % 2 * 8;
        bool exists = t->x[i / 2] && t->quarter * 16 + at < t->k;
        x.v[i / 2][i % 2] = exists ? *(const uint4 *)(t->x[i / 2] + at) : make_uint4(0, 0, 0, 0);
    }
    return x;
}

/*
 * Starts copying a thread's weights of a step: for each tile 16 high and 16 low digits. They wait
 * in shared memory at [stage][which][thread]; a thread reads only what it copied itself, so nobody
 * waits for anybody.
 */
template <int TILES>
static __device__ __forceinline__ void copy_weights(uint4 *stage, const struct row_task *t,
                                                    int step) {
    int column = step * STEP;
    if (column < t->padded) {
        UNROLL
        for (int tile = 0; tile < TILES; tile++) {
            int out = min(t->first_out + tile * 8, t->n - 1); /* behind the end: not written */
            size_t at = (size_t)out * (size_t)t->padded + (size_t)(column + t->quarter * 16);
            cp_async_16(&stage[2 * tile * WARPS * 32], t->high + at);
            cp_async_16(&stage[(2 * tile + 1) * WARPS * 32], t->low + at);
        }
    }
    cp_async_commit();
}

template <int TILES>
static __device__ __forceinline__ void
multiply_stage(struct digit_sums sums[TILES], const uint4 *stage, const struct x_vectors *x) {
    uint32_t high0[4], low0[4], high1[4], low1[4];
    digits_of(high0, low0, x->v[0][0], x->v[0][1]);
    digits_of(high1, low1, x->v[1][0], x->v[1][1]);
    UNROLL
    for (int tile = 0; tile < TILES; tile++)
        multiply_step(&sums[tile], high0, low0, high1, low1, stage[2 * tile * WARPS * 32],
                      stage[(2 * tile + 1) * WARPS * 32]);
}

/* The matrix that a block works on. */
static __device__ __forceinline__ struct weights weights_of_block(const struct weight_list *list) {
    struct weights w = list->parts[0];
    UNROLL
    for (int i = 1; i < MOST_LINEAR_PARTS; i++)
        if (i < list->n_parts && (int)blockIdx.x >= list->parts[i].first_block)
            w = list->parts[i];
    return w;
}

/*
 * A block: 8 * TILES rows of W and 16 rows of x. Its warps take every eighth step of 64 columns and
 * add up at the end. STAGES steps of every warp are on their way at once, so that memory always has
 * work, and the first ones before the kernel that makes x has ended. More tiles read x less often;
 * fewer give more blocks, which is good while all of them run at once, two on a processor.
 */
template <int TILES, int STAGES>
__global__ static void __launch_bounds__(WARPS * 32, 2)
    linear_4(struct weight_list list, struct bfp_rows x, int n_tokens, int k, int padded) {
    SHARED_DYNAMIC(uint4, ring);
    struct weights w = weights_of_block(&list);
    const int vectors = 2 * TILES * WARPS * 32; /* of a stage */
    int lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    int group = lane / 4, quarter = lane % 4; /* of the mma: a row, and 16 of its 64 columns */
    int token = (int)blockIdx.y * 16 + group;
    int first_out = ((int)blockIdx.x - w.first_block) * 8 * TILES;
    const int16_t *row = x.mantissas + (size_t)token * (size_t)k + (size_t)(quarter * 16);
    const struct row_task task = {
        {token < n_tokens ? row : NULL, token + 8 < n_tokens ? row + 8 * (size_t)k : NULL},
        w.high,
        w.low,
        first_out + group,
        quarter,
        k,
        padded,
        w.n};
    uint4 *mine = ring + warp * 32 + lane;
    /* Entry j of the sums is element j / 32 % 4 of lane j % 32 of tile j / 128: EACH for a thread,
     * one in every second tile, whose exponents it reads while it waits. */
    const int EACH = (TILES + 1) / 2;
    int element = warp % 4, w_exponents[EACH];
    first_out += warp / 4 * 8 + quarter * 2 + element % 2;
    let_next_kernel_start();
    UNROLL
    for (int i = 0; i < EACH; i++)
        w_exponents[i] = w.exponents[min(first_out + i * 16, w.n - 1)];
    UNROLL
    for (int i = 0; i < STAGES; i++)
        copy_weights<TILES>(mine + i * vectors, &task, warp + i * WARPS);
    wait_for_previous_kernel();
    struct x_vectors next = load_x(&task, warp);
    struct digit_sums sums[TILES] = {};
    int stage = 0;
    for (int step = warp; step < padded / STEP; step += WARPS) {
        struct x_vectors now = next;
        next = load_x(&task, step + WARPS);
        cp_async_wait<STAGES - 1>();
        multiply_stage<TILES>(sums, mine + stage * vectors, &now);
        copy_weights<TILES>(mine + stage * vectors, &task, step + STAGES * WARPS);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    __syncthreads();                     /* the ring is free: it takes the sums of the warps */
    long long *part = (long long *)ring; /* [WARPS][TILES * 128] */
    UNROLL
    for (int tile = 0; tile < TILES; tile++)
        UNROLL
    for (int i = 0; i < 4; i++)
        part[warp * TILES * 128 + tile * 128 + i * 32 + lane] =
            65536ll * sums[tile].high[i] + 256ll * sums[tile].middle[i] + sums[tile].low[i];
    __syncthreads();
    token += element / 2 * 8;
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int tile = warp / 4 + i * 2, out = first_out + i * 16;
        if (tile >= TILES || token >= n_tokens || out >= w.n)
            continue;
        long long dot = 0;
        for (int j = 0; j < WARPS; j++)
            dot += part[j * TILES * 128 + tile * 128 + element * 32 + lane];
        w.y[(size_t)token * (size_t)w.n + (size_t)out] =
            num_dot_to_float((double)dot, x.exponents[token] + w_exponents[i] - 30);
    }
}

template <int TILES, int STAGES>
static void launch_4(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                     struct bfp_rows x, int n_tokens) {
    const int bytes = STAGES * 2 * TILES * WARPS * 32 * 16;
    int n_blocks = 0, k = parts->w->k, padded = gpu_padded(k);
    struct weight_list list = {};
    for (; list.n_parts < n_parts; list.n_parts++) {
        const struct matrix *w = parts[list.n_parts].w;
        const int8_t *high = (const int8_t *)w->mantissas;
        list.parts[list.n_parts] = {high,         high + (size_t)w->n * (size_t)padded,
                                    w->exponents, parts[list.n_parts].y,
                                    w->n,         n_blocks};
        n_blocks += (int)gpu_blocks((size_t)w->n, 8 * TILES);
    }
    dim3 grid((unsigned)n_blocks, gpu_blocks((size_t)n_tokens, 16));
    if (gpu_ok(gpu,
               cudaFuncSetAttribute((const void *)linear_4<TILES, STAGES>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "the linear layer's shared memory"))
        GPU_LAUNCH_EARLY(gpu, (linear_4<TILES, STAGES>), grid, dim3(32, WARPS), bytes, list, x,
                         n_tokens, k, padded);
}

bool gpu_linear_few_rows_fits(const struct gpu_device *gpu, const struct matrix *w) {
    return gpu_padded(w->k) <= MAX_K && w->k % 8 == 0 && gpu->has_mma;
}

void gpu_linear_few_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                         struct bfp_rows x, int n_tokens) {
    auto all_run = [&](int tiles) {
        unsigned n = 0;
        for (int i = 0; i < n_parts; i++)
            n += gpu_blocks((size_t)parts[i].w->n, (size_t)(8 * tiles));
        return n <= 2 * (unsigned)gpu->n_processors;
    };
    if (all_run(1))
        launch_4<1, 3>(gpu, parts, n_parts, x, n_tokens);
    else if (!all_run(2) && all_run(3))
        launch_4<3, 3>(gpu, parts, n_parts, x, n_tokens);
    else
        launch_4<2, 3>(gpu, parts, n_parts, x, n_tokens);
}
