/*
 * rmsnorm: y [n_rows, n_cols] = x / sqrt(mean(x^2) + eps) * gain, per row. The sum of squares is an
 * exact integer (numerics.h), so threads may add it in any order. Memory-bound: 4 bytes read and 4
 * written per element.
 *
 * 1  a thread per row
 * 2  a warp (short rows) or a block (long rows) per row; reads the row three times, twice of them
 *    from cache
 * 3  the row stays in registers: 16-byte loads, one pass over memory (rows of 1024 to 8192 columns
 *    in whole vectors; others take version 2)
 *
 * add_rmsnorm: x += branch, y = rmsnorm of the new x, and y snapped. 8 bytes read and 10 written
 * per element.
 *
 * 1  three ops: add, rmsnorm, snap_rows; the new x and y are written and read again
 * 2  one kernel: the sum stays in registers, a warp (short rows) or a block per row (rows of up to
 *    8192 columns in whole vectors; others take version 1)
 */
#include "gpu/fast/vector/norm.h"
#include "gpu/ptx/tensor_core.h"

__global__ static void rmsnorm_1(float *y, const float *x, const float *gain, int n_rows,
                                 int n_cols, int rows_per_token, double eps, int site,
                                 unsigned long long *fault) {
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= n_rows)
        return;
    const float *from = x + (size_t)row * (size_t)n_cols;
    float *to = y + (size_t)row * (size_t)n_cols;
    uint32_t largest = 0;
    for (int i = 0; i < n_cols; i++)
        largest = max(largest, num_magnitude(from[i]));
    int e = num_row_exponent(largest);
    long long sum = 0;
    if (e > BFP_MAX_EXPONENT) {
        gpu_fault(fault, site, row / rows_per_token);
        e = BFP_MIN_EXPONENT;
    } else {
        for (int i = 0; i < n_cols; i++) {
            int q = num_mantissa(from[i], num_pow2f(15 - e));
            sum += q * q;
        }
    }
    float r = num_rms_factor(sum, e, n_cols, eps);
    for (int i = 0; i < n_cols; i++)
        to[i] = from[i] * r * gain[i];
}

template <int WARPS>
__global__ static void rmsnorm_2(float *y, const float *x, const float *gain, int n_rows,
                                 int n_cols, int rows_per_token, double eps, int site,
                                 unsigned long long *fault) {
    run_in_turn();
    SHARED(uint32_t, part_max, [WARPS]);
    SHARED(long long, part_sum, [WARPS]);
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    if (row >= n_rows)
        return;
    const float *from = x + (size_t)row * (size_t)n_cols;
    float *to = y + (size_t)row * (size_t)n_cols;
    uint32_t largest = 0;
    for (int i = lane; i < n_cols; i += WARPS * 32)
        largest = max(largest, num_magnitude(from[i]));
    int e = num_row_exponent(row_max<WARPS>(largest, part_max));
    bool bad = e > BFP_MAX_EXPONENT;
    if (bad && lane == 0)
        gpu_fault(fault, site, row / rows_per_token);
    e = bad ? BFP_MIN_EXPONENT : e;
    float scale = num_pow2f(15 - e);
    long long sum = 0;
    for (int i = lane; i < n_cols && !bad; i += WARPS * 32) {
        int q = num_mantissa(from[i], scale);
        sum += q * q;
    }
    float r = num_rms_factor(row_sum<WARPS>(sum, part_sum), e, n_cols, eps);
    for (int i = lane; i < n_cols; i += WARPS * 32)
        to[i] = from[i] * r * gain[i];
}

/* VECTORS float4 per thread of a block of 256. */
template <int VECTORS>
__global__ static void rmsnorm_3(float4 *y, const float4 *x, const float4 *gain, int n_vectors,
                                 int n_cols, int rows_per_token, double eps, int site,
                                 unsigned long long *fault) {
    run_in_turn();
    int row = (int)blockIdx.x, lane = (int)threadIdx.x;
    size_t at = (size_t)row * (size_t)n_vectors;
    float4 v[VECTORS];
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = lane + i * 256;
        v[i] = j < n_vectors ? x[at + (size_t)j] : make_float4(0, 0, 0, 0);
    }
    float r = factor_of_row<8>(v, lane, n_cols, eps, site, row / rows_per_token, fault);
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = lane + i * 256;
        if (j < n_vectors)
            y[at + (size_t)j] = normed(v[i], r, gain[j]);
    }
}

void gpu_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                 const float *x,               /* [n_rows, n_cols] */
                 const float *gain,            /* [n_cols] */
                 int n_rows, int n_cols, int rows_per_token, double eps, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    int version = gpu->version[GPU_RMSNORM] ? gpu->version[GPU_RMSNORM] : 3;
    bool vectors = n_cols % 4 == 0 && n_cols >= 1024 && n_cols <= 8192;
    auto rmsnorm = n_cols <= 4096 ? rmsnorm_3<4> : rmsnorm_3<8>;
    if (!n_rows)
        return;
    if (version == 1)
        GPU_LAUNCH(gpu, rmsnorm_1, gpu_blocks(n_rows, 128), 128, 0, y, x, gain, n_rows, n_cols,
                   rows_per_token, eps, site, gpu->fault);
    else if (version == 3 && vectors)
        GPU_LAUNCH_EARLY(gpu, rmsnorm, n_rows, 256, 0, (float4 *)y, (const float4 *)x,
                         (const float4 *)gain, n_cols / 4, n_cols, rows_per_token, eps, site,
                         gpu->fault);
    else if (n_cols <= 512)
        GPU_LAUNCH_EARLY(gpu, rmsnorm_2<1>, gpu_blocks(n_rows, 4), dim3(32, 4), 0, y, x, gain,
                         n_rows, n_cols, rows_per_token, eps, site, gpu->fault);
    else
        GPU_LAUNCH_EARLY(gpu, rmsnorm_2<8>, n_rows, dim3(256), 0, y, x, gain, n_rows, n_cols,
                         rows_per_token, eps, site, gpu->fault);
}

/* VECTORS float4 per thread of the WARPS warps of a row. */
template <int WARPS, int VECTORS>
__global__ static void add_rmsnorm_2(float4 *y, struct bfp_rows snapped, float4 *x,
                                     const float4 *branch, const float4 *gain, int n_rows,
                                     int n_vectors, double eps, int site_x, int site_y,
                                     unsigned long long *fault) {
    let_next_kernel_start();
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    size_t at = (size_t)row * (size_t)n_vectors;
    float4 v[VECTORS], g[VECTORS];
    UNROLL
    for (int i = 0; i < VECTORS; i++) /* no kernel writes the gains */
        g[i] = gain[min(lane + i * WARPS * 32, n_vectors - 1)];
    wait_for_previous_kernel();
    if (row >= n_rows)
        return;
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = lane + i * WARPS * 32;
        v[i] = make_float4(0, 0, 0, 0);
        if (j < n_vectors) {
            float4 a = x[at + (size_t)j], b = branch[at + (size_t)j];
            v[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
            x[at + (size_t)j] = v[i];
        }
    }
    float r = factor_of_row<WARPS>(v, lane, 4 * n_vectors, eps, site_x, row, fault);
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = lane + i * WARPS * 32;
        if (j < n_vectors)
            y[at + (size_t)j] = v[i] = normed(v[i], r, g[i]);
    }
    SHARED(uint32_t, part, [WARPS]);
    snap_vectors(snapped, v, row_max<WARPS>(largest_of_vectors(v), part), row, n_vectors, lane,
                 WARPS * 32, site_y, fault);
}

void gpu_add_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                     struct bfp_rows snapped,      /* [n_rows, n_cols] */
                     float *x,                     /* [n_rows, n_cols] */
                     const float *branch,          /* [n_rows, n_cols] */
                     const float *gain,            /* [n_cols] */
                     int n_rows, int n_cols, double eps, int site_x, int site_y) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!n_rows)
        return;
    if (gpu->version[GPU_ADD_RMSNORM] == 1 || n_cols % 4 || n_cols > 8192) {
        gpu_add(dev, x, x, branch, (size_t)n_rows * (size_t)n_cols);
        gpu_rmsnorm(dev, y, x, gain, n_rows, n_cols, 1, eps, site_x);
        gpu_snap_rows(dev, snapped, y, n_rows, n_cols, site_y);
        return;
    }
    bool is_short = n_cols <= 512;
    auto add_rmsnorm = is_short         ? add_rmsnorm_2<1, 4>
                       : n_cols <= 1024 ? add_rmsnorm_2<8, 1>
                       : n_cols <= 4096 ? add_rmsnorm_2<8, 4>
                                        : add_rmsnorm_2<8, 8>;
    GPU_LAUNCH_EARLY(gpu, add_rmsnorm, is_short ? gpu_blocks(n_rows, 4) : (unsigned)n_rows,
                     is_short ? dim3(32, 4) : dim3(256), 0, (float4 *)y, snapped, (float4 *)x,
                     (const float4 *)branch, (const float4 *)gain, n_rows, n_cols / 4, eps, site_x,
                     site_y, gpu->fault);
}
