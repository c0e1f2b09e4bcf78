/*
 * shared_rows: snap_rows and linear in halves, for rows of which each rank has some columns
 * (model/forward_parallel.h). A block per row; of linear_sums a warp per output, whose lanes read
 * neighbouring digits of the weights.
 */
#include "gpu/gpu.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

__global__ static void row_largest_1(uint32_t *out, const float *x, int n_cols) {
    SHARED(uint32_t, part, [WARPS]);
    const float *from = x + (size_t)blockIdx.x * (size_t)n_cols;
    uint32_t largest = 0;
    for (int i = (int)threadIdx.x; i < n_cols; i += THREADS)
        largest = max(largest, num_magnitude(from[i]));
    largest = row_max<WARPS>(largest, part);
    if (threadIdx.x == 0)
        out[blockIdx.x] = largest;
}

void gpu_row_largest(struct device *dev, uint32_t *largest, /* [n_rows] */
                     const float *x,                        /* [n_rows, n_cols] */
                     int n_rows, int n_cols) {
    if (n_rows)
        GPU_LAUNCH(gpu_of(dev), row_largest_1, n_rows, THREADS, 0, largest, x, n_cols);
}

__global__ static void snap_part_1(struct bfp_rows y, const float *x, const uint32_t *largest,
                                   int n_cols, int site, unsigned long long *fault) {
    int row = (int)blockIdx.x, e = num_row_exponent(largest[row]);
    size_t at = (size_t)row * (size_t)n_cols;
    bool bad = e > BFP_MAX_EXPONENT;
    float scale = num_pow2f(15 - (bad ? BFP_MIN_EXPONENT : e));
    for (int i = (int)threadIdx.x; i < n_cols; i += THREADS)
        y.mantissas[at + (size_t)i] = bad ? (int16_t)0 : num_mantissa(x[at + (size_t)i], scale);
    if (threadIdx.x != 0)
        return;
    if (bad)
        gpu_fault(fault, site, row);
    y.exponents[row] = (int8_t)(bad ? BFP_MIN_EXPONENT : e);
}

void gpu_snap_part(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                   const float *x,                        /* [n_rows, n_cols] */
                   const uint32_t *largest,               /* [n_rows] */
                   int n_rows, int n_cols, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    if (n_rows)
        GPU_LAUNCH(gpu, snap_part_1, n_rows, THREADS, 0, y, x, largest, n_cols, site, gpu->fault);
}

__global__ static void linear_sums_1(int64_t *sums, const int16_t *x, const int8_t *high,
                                     const int8_t *low, size_t count, int n, int k, int padded) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.y;
    if (i >= count)
        return;
    const int16_t *row = x + i / (size_t)n * (size_t)k;
    size_t at = i % (size_t)n * (size_t)padded;
    long long dot = 0;
    for (int j = (int)threadIdx.x; j < k; j += 32)
        dot += (256 * high[at + (size_t)j] + low[at + (size_t)j]) * row[j];
    dot = warp_sum(dot);
    if (threadIdx.x == 0)
        sums[i] = dot;
}

void gpu_linear_sums(struct device *dev, int64_t *sums, /* [n_tokens, w->n] */
                     struct bfp_rows x,                 /* [n_tokens, w->k] */
                     const struct matrix *w, int n_tokens) {
    int padded = gpu_padded(w->k);
    size_t count = (size_t)n_tokens * (size_t)w->n;
    const int8_t *high = (const int8_t *)w->mantissas;
    if (count)
        GPU_LAUNCH(gpu_of(dev), linear_sums_1, gpu_blocks(count, WARPS), dim3(32, WARPS), 0, sums,
                   x.mantissas, high, high + (size_t)w->n * (size_t)padded, count, w->n, w->k,
                   padded);
}

__global__ static void round_sums_1(float *y, const int64_t *sums, const int8_t *x_exponents,
                                    const int8_t *w_exponents, size_t count, int n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        y[i] = num_dot_to_float((double)sums[i],
                                x_exponents[i / (size_t)n] + w_exponents[i % (size_t)n] - 30);
}

void gpu_round_sums(struct device *dev, float *y, /* [n_tokens, n] */
                    const int64_t *sums,          /* [n_tokens, n] */
                    const int8_t *x_exponents,    /* [n_tokens] */
                    const int8_t *w_exponents,    /* [n] */
                    int n_tokens, int n) {
    size_t count = (size_t)n_tokens * (size_t)n;
    if (count)
        GPU_LAUNCH(gpu_of(dev), round_sums_1, gpu_blocks(count, THREADS), THREADS, 0, y, sums,
                   x_exponents, w_exponents, count, n);
}
