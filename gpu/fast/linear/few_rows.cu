/*
 * linear, version 4: computes what ../../linear.cu does, for few rows of x; gains 40 % of
 * the time over version 3 (4096 x 4096 weights, 1 row, H200: 9.4 µs, not 16.1).
 *
 * The weights are read once, 16 bytes a thread, and multiplied with mma. It needs k % 8 == 0, so
 * that rows of x are aligned. A thread may take any 16 of the 64 columns of a step, as long as x
 * and W agree: the sum has no order. x is split into signed digits on the way. The high digits of 8
 * rows of x are the first 8 rows of an mma, their low digits the other 8: with the high and the low
 * digits of W, two mma make all four products.
 */
#include "gpu/fast/linear/linear.h"
#include "gpu/ptx/digit_sums.h"

enum { MAX_K = 1 << 18, LEAST_WARPS = 8, STEP = 64 };

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

/*
 * A thread's sums of 8 rows of x by 8 rows of W: products with the high and with the low digits of
 * W. Of each, elements 0 and 1 are those with the high digits of x, 2 and 3 those with the low
 * ones. A product is at most 2^14, and a warp has at most MAX_K / LEAST_WARPS = 2^15 columns: none
 * is above 2^29.
 */
struct tile_sums {
    int32_t by_high[4], by_low[4];
};

/* 16 mantissas of a row of x as the first operand of two mma. */
static __device__ __forceinline__ void digits_of(uint32_t a[2][4], const uint4 x[2]) {
    UNROLL
    for (int i = 0; i < 2; i++) {
        split_four(&a[i][0], &a[i][1], make_uint2(x[i].x, x[i].y));
        split_four(&a[i][2], &a[i][3], make_uint2(x[i].z, x[i].w));
    }
}

/* Adds the products of 64 columns. */
static __device__ __forceinline__ void add_columns(struct tile_sums *s, const uint32_t a[2][4],
                                                   uint4 w_high, uint4 w_low) {
    const uint32_t high[2][2] = {{w_high.x, w_high.y}, {w_high.z, w_high.w}};
    const uint32_t low[2][2] = {{w_low.x, w_low.y}, {w_low.z, w_low.w}};
    UNROLL
    for (int i = 0; i < 2; i++) {
        mma_s8_s8(s->by_high, a[i], high[i]);
        mma_s8_s8(s->by_low, a[i], low[i]);
    }
}

/* What is in the sums for element i, 0 or 1. */
static __device__ __forceinline__ long long total_of(const struct tile_sums *s, int i) {
    return 65536ll * s->by_high[i] + 256ll * (s->by_high[2 + i] + s->by_low[i]) + s->by_low[2 + i];
}

/* What a thread works on: a row of x in each group of 8 and one row of each tile of W, and in every
 * step of 64 columns 16 of them. */
struct row_task {
    const int16_t *x;         /* the first row, at this thread's columns of step 0 */
    int columns, n_rows;      /* from there on */
    const int8_t *high, *low; /* W likewise */
    int rows_behind;          /* of W, behind the first */
    int k, padded;
};

/* 16 mantissas of each row, in the step that begins at a column. */
template <int GROUPS>
static __device__ __forceinline__ void load_x(uint4 x[GROUPS][2], const struct row_task *t,
                                              int column) {
    UNROLL
    for (int i = 0; i < 2 * GROUPS; i++) {
        int at = column + i % 2 * 8;
        x[i / 2][i % 2] = make_uint4(0, 0, 0, 0);
        if (at < t->columns && i / 2 * 8 < t->n_rows)
            x[i / 2][i % 2] = *(const uint4 *)(t->x + i / 2 * 8 * t->k + at);
    }
}

/*
 * Starts copying a thread's weights of a step: for each tile 16 high and 16 low digits. They wait
 * in shared memory at [stage][which][thread]; no thread reads what another has copied.
 */
template <int WARPS, int TILES>
static __device__ __forceinline__ void copy_weights(uint4 *stage, const struct row_task *t,
                                                    int column) {
    if (column < t->padded) {
        UNROLL
        for (int tile = 0; tile < TILES; tile++) { /* the last row again behind the end */
            int at = min(tile * 8, t->rows_behind) * t->padded + column;
            cp_async_16(&stage[2 * tile * WARPS * 32], t->high + at);
            cp_async_16(&stage[(2 * tile + 1) * WARPS * 32], t->low + at);
        }
    }
    cp_async_commit();
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

/* Blocks on a processor, as registers allow: those of the next kernel begin beside them. */
static constexpr int blocks_with(int warps, int groups, int tiles, int ahead) {
    if (warps == 16)
        return groups * tiles * ahead == 1 ? 2 : 1;
    return groups == 4 ? 1 : groups == 2 || (ahead == 2 && tiles == 3) ? 2 : ahead == 2 ? 3 : 4;
}

/*
 * A block: 8 * TILES rows of W and 8 * GROUPS rows of x. Its warps take steps of 64 columns in
 * turns and add up at the end. STAGES steps of every warp are on their way at once, so that memory
 * always has work, and the first ones before the kernel that makes x has ended; x is loaded AHEAD
 * steps before it is used. More tiles read x less often; fewer give more blocks, which is good
 * while all of them run at once. Where one on each processor is enough, it has 16 warps: with 8,
 * each would wait for x twice as often, one step after the other.
 */
template <int WARPS, int GROUPS, int TILES, int STAGES, int AHEAD>
__global__ static void __launch_bounds__(WARPS * 32, blocks_with(WARPS, GROUPS, TILES, AHEAD))
    linear_4(struct weight_list list, struct bfp_rows x, int n_tokens, int k, int padded) {
    SHARED_DYNAMIC(uint4, ring);
    struct weights w = weights_of_block(&list);
    const int vectors = 2 * TILES * WARPS * 32; /* of a stage */
    int lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    int group = lane / 4, quarter = lane % 4; /* of the mma: a row, and 16 of its 64 columns */
    int token = (int)blockIdx.y * 8 * GROUPS + group;
    int first_out = ((int)blockIdx.x - w.first_block) * 8 * TILES;
    int row = min(first_out + group, w.n - 1);
    const int8_t *high = w.high + (size_t)row * (size_t)padded + quarter * 16;
    const struct row_task task = {x.mantissas + (size_t)token * (size_t)k + quarter * 16,
                                  k - quarter * 16,
                                  n_tokens - token,
                                  high,
                                  w.low + (high - w.high),
                                  w.n - 1 - row,
                                  k,
                                  padded};
    uint4 *mine = ring + warp * 32 + lane;
    /* Sum number warp + WARPS i is added up by this thread; sum number s is element s % 2 of group
     * s / 2 % GROUPS of rows of x and of tile s / 2 / GROUPS. */
    const int SUMS = 2 * GROUPS * TILES, EACH = (SUMS + WARPS - 1) / WARPS;
    const int OUTS_ON = WARPS / 2 / GROUPS * 8; /* from one sum of this thread to the next */
    int exponents[EACH];
    first_out += warp / 2 / GROUPS * 8 + quarter * 2 + warp % 2;
    token += warp / 2 % GROUPS * 8;
    let_next_kernel_start();
    UNROLL
    for (int i = 0; i < EACH; i++)
        exponents[i] = w.exponents[min(first_out + i * OUTS_ON, w.n - 1)];
    UNROLL
    for (int i = 0; i < STAGES; i++)
        copy_weights<WARPS, TILES>(mine + i * vectors, &task, (warp + i * WARPS) * STEP);
    wait_for_previous_kernel();
    uint4 next[AHEAD][GROUPS][2];
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        load_x<GROUPS>(next[i], &task, (warp + i * WARPS) * STEP);
    UNROLL
    for (int i = 0; i < EACH; i++)
        exponents[i] += x.exponents[min(token, n_tokens - 1)] - 30;
    struct tile_sums sums[TILES][GROUPS] = {};
    int stage = 0;
    for (int column = warp * STEP; column < padded;)
        UNROLL
    for (int i = 0; i < AHEAD && column < padded; i++, column += WARPS * STEP) {
        uint32_t digits[GROUPS][2][4];
        UNROLL
        for (int j = 0; j < GROUPS; j++)
            digits_of(digits[j], next[i][j]);
        load_x<GROUPS>(next[i], &task, column + AHEAD * WARPS * STEP);
        cp_async_wait<STAGES - 1>();
        const uint4 *at = mine + stage * vectors;
        UNROLL
        for (int j = 0; j < TILES * GROUPS; j++)
            add_columns(&sums[j / GROUPS][j % GROUPS], digits[j % GROUPS],
                        at[j / GROUPS * 2 * WARPS * 32], at[(j / GROUPS * 2 + 1) * WARPS * 32]);
        copy_weights<WARPS, TILES>(mine + stage * vectors, &task, column + STAGES * WARPS * STEP);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    __syncthreads();                     /* the ring is free: it takes the sums of the warps */
    long long *part = (long long *)ring; /* [WARPS][SUMS][32] */
    UNROLL
    for (int i = 0; i < SUMS; i++)
        part[(warp * SUMS + i) * 32 + lane] =
            total_of(&sums[i / 2 / GROUPS][i / 2 % GROUPS], i % 2);
    __syncthreads();
    UNROLL
    for (int i = 0; i < EACH; i++) {
        int sum = warp + i * WARPS;
        if (sum >= SUMS || token >= n_tokens || first_out + i * OUTS_ON >= w.n)
            continue;
        long long dot = 0;
        for (int j = 0; j < WARPS; j++)
            dot += part[(j * SUMS + sum) * 32 + lane];
        w.y[(size_t)token * (size_t)w.n + (size_t)(first_out + i * OUTS_ON)] =
            num_dot_to_float((double)dot, exponents[i]);
    }
}

template <int WARPS, int GROUPS, int TILES, int STAGES, int AHEAD>
static void launch_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                        struct bfp_rows x, int n_tokens) {
    int n_blocks = 0, k = parts->w->k, padded = gpu_padded(k);
    /* Stages that no warp has a step for would keep out blocks of the next kernel. */
    int n_stages = min(STAGES, (padded + WARPS * STEP - 1) / (WARPS * STEP));
    int bytes = max(n_stages * 2 * TILES * WARPS * 32 * 16, 2 * GROUPS * TILES * WARPS * 32 * 8);
    struct weight_list list = {};
    for (; list.n_parts < n_parts; list.n_parts++) {
        const struct matrix *w = parts[list.n_parts].w;
        const int8_t *high = (const int8_t *)w->mantissas;
        list.parts[list.n_parts] = {high,         high + (size_t)w->n * (size_t)padded,
                                    w->exponents, parts[list.n_parts].y,
                                    w->n,         n_blocks};
        n_blocks += (int)gpu_blocks((size_t)w->n, 8 * TILES);
    }
    dim3 grid((unsigned)n_blocks, gpu_blocks((size_t)n_tokens, 8 * GROUPS));
    auto kernel = linear_4<WARPS, GROUPS, TILES, STAGES, AHEAD>;
    if (gpu_ok(gpu,
               cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "the linear layer's shared memory"))
        GPU_LAUNCH_EARLY(gpu, kernel, grid, dim3(32, WARPS), bytes, list, x, n_tokens, k, padded);
}

bool gpu_linear_few_rows_fits(const struct gpu_device *gpu, const struct matrix *w) {
    return gpu_padded(w->k) <= MAX_K && w->k % 8 == 0 && gpu->has_mma;
}

template <int WARPS, int TILES, int STAGES>
static void launch_8_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                          struct bfp_rows x, int n_tokens) {
    auto launch = n_tokens > 4 && parts->w->k < 4096 ? launch_rows<WARPS, 1, TILES, STAGES, 1>
                                                     : launch_rows<WARPS, 1, TILES, STAGES, 2>;
    launch(gpu, parts, n_parts, x, n_tokens);
}

void gpu_linear_few_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                         struct bfp_rows x, int n_tokens) {
    /* Whether blocks of so many tiles are at most so many on each processor. */
    auto fit = [&](unsigned on_each, int tiles) {
        unsigned n = 0;
        for (int i = 0; i < n_parts; i++)
            n += gpu_blocks((size_t)parts[i].w->n, (size_t)(8 * tiles));
        return n <= on_each * (unsigned)gpu->n_processors;
    };
    /* Whether one of 16 warps on each is enough, and each warp has a step. */
    auto wide_fit = [&](int tiles) { return parts->w->k >= 16 * STEP && fit(1, tiles); };
    auto launch = n_tokens > 16  ? (fit(1, 1)   ? launch_rows<8, 4, 1, 6, 1>
                                    : fit(1, 2) ? launch_rows<8, 4, 2, 6, 1>
                                                : launch_rows<8, 4, 4, 4, 1>)
                  : n_tokens > 8 ? (wide_fit(1) ? launch_rows<16, 2, 1, 6, 1>
                                    : fit(2, 1) ? launch_rows<8, 2, 1, 6, 1>
                                    : fit(2, 2) ? launch_rows<8, 2, 2, 3, 1>
                                                : launch_rows<8, 2, 3, 3, 1>)
                  : wide_fit(1)  ? launch_8_rows<16, 1, 6>
                  : wide_fit(2)  ? launch_8_rows<16, 2, 3>
                  : wide_fit(4)  ? launch_8_rows<16, 4, 3>
                  : fit(2, 1)    ? launch_8_rows<8, 1, 6>
                  : fit(2, 2)    ? launch_8_rows<8, 2, 3>
                                 : launch_8_rows<8, 3, 3>;
    launch(gpu, parts, n_parts, x, n_tokens);
}
