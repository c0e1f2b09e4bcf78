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
 * 4  for few rows: weights are read once, and multiplied on tensor cores
 *    (gpu/fast/linear/few_rows.cu). Needs k % 8 == 0
 * 5  for many rows: four products of digits on wgmma, which meet in registers
 *    (gpu/fast/linear/many_rows.cu). Needs k % 8 == 0, k <= 65536 and a GPU of 9.0
 * 6  the same with mma (gpu/fast/linear/many_rows_mma.cu), for GPUs from 8.0 on
 *
 * The choice (version 0), as measured (tests/bench/README.md): 4 for up to 32 rows where k is below
 * 1024 or 5 does not apply; else for up to 8 where each processor has 128 outputs, up to 16 from
 * k = 4096 or 32 outputs on each on, up to 32 elsewhere. For more, 5; where 5 does not apply, 6 if
 * k is below 4096 and each processor has a tile, else 3. 2 where these do not.
 *
 * linear_parts: several matrices, one input. Versions 4 to 6 take them in one launch, the others
 * one after the other.
 */
#include "gpu/blas.h"
#include "gpu/fast/linear/linear.h"

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

/* ---- the choice -------------------------------------------------------------------------------
 */

/* n_outs: of all matrices that the op multiplies, which have the k of this one. */
static int choose(const struct gpu_device *gpu, const struct matrix *w, size_t n_outs,
                  int n_tokens) {
    int version = gpu->version[GPU_LINEAR], padded = gpu_padded(w->k);
    bool many_fit = gpu_linear_many_rows_fits(gpu, w);
    bool mma_fits = gpu_linear_many_rows_mma_fits(gpu, w);
    size_t n_tiles =
        n_outs / GPU_LINEAR_MMA_OUTS * gpu_blocks((size_t)n_tokens, GPU_LINEAR_MMA_ROWS);
    size_t outs_on_each = n_outs / (size_t)gpu->n_processors;
    int few = !many_fit || padded < 1024                              ? 32
              : outs_on_each >= GPU_LINEAR_MANY_OUTS                  ? 8
              : padded >= 4096 || outs_on_each >= GPU_LINEAR_FEW_OUTS ? 16
                                                                      : 32;
    if (!version && n_tokens <= few)
        version = 4;
    else if (!version)
        version = many_fit ? 5 : w->k < 4096 && n_tiles >= (size_t)gpu->n_processors ? 6 : 3;
    if ((version == 6 && !mma_fits) || (version == 5 && !many_fit) ||
        (version == 4 && !gpu_linear_few_rows_fits(gpu, w)))
        version = 3;
    if (version == 3 && (padded > INT8_MAX_K || w->n % 2))
        version = 2;
    return version;
}

/* Versions 4 to 6. */
static void linear_parts_at_once(struct gpu_device *gpu, int version,
                                 const struct linear_part *parts, int n_parts, struct bfp_rows x,
                                 int n_tokens) {
    if (version == 4)
        gpu_linear_few_rows(gpu, parts, n_parts, x, n_tokens);
    else if (version == 5)
        gpu_linear_many_rows(gpu, parts, n_parts, x, n_tokens);
    else
        gpu_linear_many_rows_mma(gpu, parts, n_parts, x, n_tokens);
}

void gpu_linear(struct device *dev, float *y, /* [n_tokens, w->n] */
                struct bfp_rows x,            /* [n_tokens, w->k] */
                const struct matrix *w, int n_tokens) {
    struct gpu_device *gpu = gpu_of(dev);
    int padded = gpu_padded(w->k), version = n_tokens ? choose(gpu, w, (size_t)w->n, n_tokens) : 0;
    const int8_t *high = (const int8_t *)w->mantissas;
    const int8_t *low = high + (size_t)w->n * (size_t)padded;
    struct linear_part only = {y, w};
    if (version == 1)
        GPU_LAUNCH(gpu, linear_1, gpu_blocks((size_t)n_tokens * (size_t)w->n, 128), 128, 0, y, x,
                   high, low, w->exponents, n_tokens, w->n, w->k, padded);
    else if (version == 2)
        linear_2(gpu, y, x, w, n_tokens);
    else if (version == 3)
        linear_3(gpu, y, x, w, n_tokens);
    else if (version)
        linear_parts_at_once(gpu, version, &only, 1, x, n_tokens);
}

void gpu_linear_parts(struct device *dev, const struct linear_part *parts, /* host [n_parts] */
                      int n_parts, struct bfp_rows x, int n_tokens) {
    struct gpu_device *gpu = gpu_of(dev);
    size_t n_outs = 0;
    for (int i = 0; i < n_parts; i++)
        n_outs += (size_t)parts[i].w->n;
    /* Whether versions 4 to 6 take a matrix is a matter of k alone, which all have in common. */
    int version = n_tokens ? choose(gpu, parts->w, n_outs, n_tokens) : 0;
    if (version >= 4)
        linear_parts_at_once(gpu, version, parts, n_parts, x, n_tokens);
    for (int i = 0; i < n_parts && version && version < 4; i++)
        gpu_linear(dev, parts[i].y, x, parts[i].w, n_tokens);
}
