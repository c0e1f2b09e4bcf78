/*
 * rmsnorm, to try things on (tutorials/gpu-pair.md):
 *
 *     make check OP=rmsnorm KERNEL=tutorials/gpu-pair/mine.cu
 *
 * y [n_rows, n_cols] = x / sqrt(mean(x^2) + eps) * gain, per row. A block of 256 threads per row, as
 * version 2 of gpu/rmsnorm.cu, with every barrier in sight.
 */
#include "gpu/gpu.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

__global__ static void rmsnorm_mine(float *y, const float *x, const float *gain, int n_cols,
                                    int rows_per_token, double eps, int site,
                                    unsigned long long *fault) {
    SHARED(long long, of_warp, [WARPS]);
    int row = (int)blockIdx.x, thread = (int)threadIdx.x;
    const float *from = x + (size_t)row * (size_t)n_cols;
    float *to = y + (size_t)row * (size_t)n_cols;

    /* The largest magnitude: of my elements, of my warp, of all warps. */
    long long largest = 0;
    for (int i = thread; i < n_cols; i += THREADS)
        largest = max(largest, (long long)num_magnitude(from[i]));
    largest = warp_max(largest);
    if (thread % 32 == 0)
        of_warp[thread / 32] = largest;
    __syncthreads();
    for (int warp = 0; warp < WARPS; warp++)
        largest = max(largest, of_warp[warp]);
    __syncthreads(); /* all have read: of_warp may be used again */

    int e = num_row_exponent((uint32_t)largest);
    if (e > BFP_MAX_EXPONENT) { /* a NaN, an infinity or a value too large: say so */
        if (thread == 0)
            gpu_fault(fault, site, row / rows_per_token);
        return;
    }

    /* The exact sum of squares, the same way. */
    long long sum = 0;
    for (int i = thread; i < n_cols; i += THREADS) {
        int q = num_mantissa(from[i], num_pow2f(15 - e));
        sum += q * q;
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0)
        of_warp[thread / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < WARPS; warp++)
        sum += of_warp[warp];

    float r = num_rms_factor(sum, e, n_cols, eps);
    for (int i = thread; i < n_cols; i += THREADS)
        to[i] = from[i] * r * gain[i];
}

void gpu_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                 const float *x,               /* [n_rows, n_cols] */
                 const float *gain,            /* [n_cols] */
                 int n_rows, int n_cols, int rows_per_token, double eps, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    if (n_rows)
        GPU_LAUNCH(gpu, rmsnorm_mine, n_rows, THREADS, 0, y, x, gain, n_cols, rows_per_token, eps,
                   site, gpu->fault);
}
