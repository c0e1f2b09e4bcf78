/*
 * linear: y [n_tokens, n] = x [n_tokens, k] W^T on BFP16 operands; each output is an exact integer
 * dot product, rounded once. Weights lie in memory as two planes of signed 8-bit digits, q = 256 *
 * high + low, each [n, padded k]: two bytes a weight.
 *
 * 1  a thread per output, 64-bit integers: the definition
 * 2  cuBLAS dgemm on doubles that hold the integers; they are made in scratch memory for the call
 * 3  cuBLAS on int8 tensor cores: the digits of x are stacked as 2 * n_tokens rows on those of W as
 *    2 * n rows, so one product gives all four combinations in int32, and
 *    dot = 65536 * high.high + 256 * (high.low + low.high) + low.low
 * 4  for few rows: an own kernel that reads the weights once, 16 bytes a thread, and multiplies
 *    with mma on 16 rows at a time. Needs k % 8 == 0, so that rows of x are aligned. A thread may
 * take any 16 of the 64 columns of a step, as long as x and W agree: the sum has no order. x is
 * split into digits on the way (high signed, low unsigned).
 *
 * The choice (version 0): 4 for up to 32 rows, else 3; 2 where those do not apply (measured:
 * tests/bench/README.md).
 *
 * linear_parts: several matrices, one input. Version 4 takes them in one launch, the others one
 * after the other.
 */
#include "gpu/blas.h"
#include "gpu/ptx/tensor_core.h"

/* ---- 1 ----------------------------------------------------------------------------------------
 */

__global__ static void linear_1(float *y, struct bfp_rows x, const int8_t *high, const int8_t *low,
                                const int8_t *exponents, int n_tokens, int n, int k, int padded) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)n_tokens * (size_t)n)
        return;
    size_t token = i / (size_t)n, out = i % (size_t)n;
    long long dot = 0;
    for (int j = 0; j < k; j++) {
        size_t at = out * (size_t)padded + (size_t)j;
        dot += (256 * high[at] + low[at]) * x.mantissas[token * (size_t)k + (size_t)j];
    }
    y[i] = num_dot_to_float((double)dot, x.exponents[token] + exponents[out] - 30);
}

/* ---- 2: cuBLAS dgemm --------------------------------------------------------------------------
 */

__global__ static void widen_digits(double *out, const int8_t *high, const int8_t *low,
                                    size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = 256 * high[i] + low[i];
}

__global__ static void widen_rows(double *out, const int16_t *q, size_t count, int k, int padded) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t column = i % (size_t)padded;
    if (i < count)
        out[i] = column < (size_t)k ? q[i / (size_t)padded * (size_t)k + column] : 0;
}

/* y[token][first + out] from sums [n_tokens, n_block]. */
__global__ static void round_sums(float *y, const double *sums, const int8_t *x_exponents,
                                  const int8_t *w_exponents, size_t count, int n_block, int first,
                                  int n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    size_t token = i / (size_t)n_block, out = (size_t)first + i % (size_t)n_block;
    y[token * (size_t)n + out] =
        num_dot_to_float(sums[i], x_exponents[token] + w_exponents[out] - 30);
}

static void linear_2(struct gpu_device *gpu, float *y, struct bfp_rows x, const struct matrix *w,
                     int n_tokens) {
    const size_t most = (size_t)1 << 25; /* doubles of W at once: 256 MB */
    int padded = gpu_padded(w->k);
    size_t m = (size_t)n_tokens, stride = (size_t)padded;
    size_t block = most / stride ? most / stride : 1;
    block = block < (size_t)w->n ? block : (size_t)w->n;
    double *x_wide = (double *)gpu_scratch(gpu, GPU_SCRATCH_X, 8 * m * stride, "linear");
    double *w_wide = (double *)gpu_scratch(gpu, GPU_SCRATCH_W, 8 * block * stride, "linear");
    double *sums = (double *)gpu_scratch(gpu, GPU_SCRATCH_SUMS, 8 * m * block, "linear");
    const int8_t *high = (const int8_t *)w->mantissas, *low = high + (size_t)w->n * stride;
    const double one = 1, zero = 0;
    GPU_LAUNCH(gpu, widen_rows, gpu_blocks(m * stride, 256), 256, 0, x_wide, x.mantissas,
               m * stride, w->k, padded);
    for (size_t first = 0; first < (size_t)w->n && !gpu->failed; first += block) {
        size_t rows = (size_t)w->n - first < block ? (size_t)w->n - first : block;
        GPU_LAUNCH(gpu, widen_digits, gpu_blocks(rows * stride, 256), 256, 0, w_wide,
                   high + first * stride, low + first * stride, rows * stride);
        /* Column-major: sums^T [rows, m] = w_wide [rows, k] x_wide^T. */
        gpu_blas_ok(gpu,
                    cublasDgemm(gpu->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)rows, n_tokens, padded,
                                &one, w_wide, padded, x_wide, padded, &zero, sums, (int)rows),
                    "cublasDgemm");
        GPU_LAUNCH(gpu, round_sums, gpu_blocks(m * rows, 256), 256, 0, y, sums, x.exponents,
                   w->exponents, m * rows, (int)rows, (int)first, w->n);
    }
}

/* ---- 3: cuBLAS int8 ---------------------------------------------------------------------------
 */

enum { INT8_ROWS = 1024, INT8_MAX_K = 131008 }; /* 128 * 128 * k stays below 2^31 */

/* sums [2 * n_tokens, 2 * n]: high and low digits of x by high and low digits of W. */
__global__ static void combine_digits(float *y, const int32_t *sums, const int8_t *x_exponents,
                                      const int8_t *w_exponents, int n_tokens, int n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)n_tokens * (size_t)n)
        return;
    size_t token = i / (size_t)n, out = i % (size_t)n;
    const int32_t *high = sums + token * 2 * (size_t)n + out;
    const int32_t *low = high + (size_t)n_tokens * 2 * (size_t)n;
    long long dot = 65536ll * high[0] + 256ll * ((long long)high[n] + low[0]) + low[n];
    y[i] = num_dot_to_float((double)dot, x_exponents[token] + w_exponents[out] - 30);
}

static void linear_3(struct gpu_device *gpu, float *y, struct bfp_rows x, const struct matrix *w,
                     int n_tokens) {
    int padded = gpu_padded(w->k);
    size_t n = (size_t)w->n, stride = (size_t)padded;
    size_t most = (size_t)(n_tokens < INT8_ROWS ? n_tokens : INT8_ROWS);
    int8_t *digits = (int8_t *)gpu_scratch(gpu, GPU_SCRATCH_X, 2 * most * stride, "linear");
    int32_t *sums = (int32_t *)gpu_scratch(gpu, GPU_SCRATCH_SUMS, 16 * most * n, "linear");
    const int32_t one = 1, zero = 0;
    for (int first = 0; first < n_tokens && !gpu->failed; first += INT8_ROWS) {
        int rows = n_tokens - first < INT8_ROWS ? n_tokens - first : INT8_ROWS;
        gpu_split_digits(gpu, digits, digits + (size_t)rows * stride,
                         x.mantissas + (size_t)first * (size_t)w->k, rows, w->k);
        /* Column-major: sums^T [2n, 2 rows] = W digits [2n, k] (x digits [2 rows, k])^T. */
        gpu_blas_ok(gpu,
                    cublasGemmEx(gpu->blas, CUBLAS_OP_T, CUBLAS_OP_N, 2 * w->n, 2 * rows, padded,
                                 &one, w->mantissas, CUDA_R_8I, padded, digits, CUDA_R_8I, padded,
                                 &zero, sums, CUDA_R_32I, 2 * w->n, CUBLAS_COMPUTE_32I,
                                 CUBLAS_GEMM_DEFAULT),
                    "cublasGemmEx");
        GPU_LAUNCH(gpu, combine_digits, gpu_blocks((size_t)rows * n, 256), 256, 0,
                   y + (size_t)first * n, sums, x.exponents + first, w->exponents, rows, w->n);
    }
}

/* ---- 4: few rows ------------------------------------------------------------------------------
 */

enum { ROWS_MAX_K = 1 << 18, WARPS = 8, STEP = 64 }; /* 49,000 * k / 8 stays below 2^31 */

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

struct digit_sums {
    int high_high[4], middle[4], low_low[4];
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
        mma_s8_s8(s->high_high, h, wh + j);
        mma_s8_s8(s->middle, h, wl + j);
        mma_u8_s8(s->middle, l, wh + j);
        mma_u8_s8(s->low_low, l, wl + j);
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

/*
 * A block: 8 * TILES rows of W and 16 rows of x. Its warps take every eighth step of 64 columns and
 * add up at the end. STAGES steps of every warp are on their way at once, so that memory always has
 * work, and the first ones before the kernel that makes x has ended. More tiles read x less often;
 * fewer give more blocks.
 */
template <int TILES, int STAGES>
__global__ static void __launch_bounds__(WARPS * 32, 2)
    linear_4(struct weight_list list, struct bfp_rows x, int n_tokens, int k, int padded) {
    SHARED_DYNAMIC(uint4, ring);
    struct weights w = list.parts[0];
    UNROLL
    for (int i = 1; i < MOST_LINEAR_PARTS; i++)
        if (i < list.n_parts && (int)blockIdx.x >= list.parts[i].first_block)
            w = list.parts[i];
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
    let_next_kernel_start();
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
        part[warp * TILES * 128 + tile * 128 + i * 32 + lane] = 65536ll * sums[tile].high_high[i] +
                                                                256ll * sums[tile].middle[i] +
                                                                sums[tile].low_low[i];
    __syncthreads();
    /* Entry j: element j / 32 % 4 of lane j % 32 of tile j / 128, summed over the eight warps. */
    for (int j = warp * 32 + lane; j < TILES * 128; j += WARPS * 32) {
        long long dot = 0;
        for (int i = 0; i < WARPS; i++)
            dot += part[i * TILES * 128 + j];
        int element = j / 32 % 4;
        token = (int)blockIdx.y * 16 + group + element / 2 * 8;
        int out = first_out + j / 128 * 8 + quarter * 2 + element % 2;
        if (token < n_tokens && out < w.n)
            w.y[(size_t)token * (size_t)w.n + (size_t)out] =
                num_dot_to_float((double)dot, x.exponents[token] + w.exponents[out] - 30);
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

static void linear_4_of(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                        struct bfp_rows x, int n_tokens) {
    int n = 0;
    for (int i = 0; i < n_parts; i++)
        n += parts[i].w->n;
    if (n >= 4096)
        launch_4<2, 3>(gpu, parts, n_parts, x, n_tokens);
    else
        launch_4<1, 3>(gpu, parts, n_parts, x, n_tokens);
}

/* ---- the choice -------------------------------------------------------------------------------
 */

static int choose(const struct gpu_device *gpu, const struct matrix *w, int n_tokens) {
    int version = gpu->version[GPU_LINEAR], padded = gpu_padded(w->k);
    bool int8_fits = padded <= INT8_MAX_K && w->n % 2 == 0;
    bool rows_fit = padded <= ROWS_MAX_K && w->k % 8 == 0 && gpu->has_mma;
    if (!version)
        version = n_tokens <= 32 ? 4 : 3;
    if ((version == 4 && !rows_fit) || (version == 3 && !int8_fits))
        version = 2;
    return version;
}

void gpu_linear(struct device *dev, float *y, /* [n_tokens, w->n] */
                struct bfp_rows x,            /* [n_tokens, w->k] */
                const struct matrix *w, int n_tokens) {
    struct gpu_device *gpu = gpu_of(dev);
    int padded = gpu_padded(w->k);
    const int8_t *high = (const int8_t *)w->mantissas;
    const int8_t *low = high + (size_t)w->n * (size_t)padded;
    if (!n_tokens)
        return;
    switch (choose(gpu, w, n_tokens)) {
    case 1:
        GPU_LAUNCH(gpu, linear_1, gpu_blocks((size_t)n_tokens * (size_t)w->n, 128), 128, 0, y, x,
                   high, low, w->exponents, n_tokens, w->n, w->k, padded);
        break;
    case 2:
        linear_2(gpu, y, x, w, n_tokens);
        break;
    case 3:
        linear_3(gpu, y, x, w, n_tokens);
        break;
    default:
        struct linear_part only = {y, w};
        linear_4_of(gpu, &only, 1, x, n_tokens);
    }
}

void gpu_linear_parts(struct device *dev, const struct linear_part *parts, /* host [n_parts] */
                      int n_parts, struct bfp_rows x, int n_tokens) {
    struct gpu_device *gpu = gpu_of(dev);
    /* Whether version 4 takes a matrix is a matter of k alone, which all have in common. */
    bool together = n_tokens > 0 && choose(gpu, parts->w, n_tokens) == 4;
    if (together)
        linear_4_of(gpu, parts, n_parts, x, n_tokens);
    for (int i = 0; i < n_parts && !together; i++)
        gpu_linear(dev, parts[i].y, x, parts[i].w, n_tokens);
}
