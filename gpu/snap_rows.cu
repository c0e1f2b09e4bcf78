/*
 * snap_rows: float32 rows [n_rows, n_cols] to BFP16, mantissas [n_rows, n_cols] and one exponent a
 * row. Memory-bound: 4 bytes read and 2 written per element.
 *
 * 1  a thread per row: neighbouring threads read addresses a row apart, so every load is a
 *    transaction of its own
 * 2  a warp (short rows) or a block (long rows) per row: neighbouring threads read neighbouring
 *    addresses, the maximum is found by shuffles; the row is read twice
 * 3  the row stays in registers: 16-byte loads, one pass over memory (rows of up to 16384 columns
 *    in whole vectors; others take version 2)
 */
#include "gpu/fast/vector/norm.h"

__global__ static void snap_rows_1(struct bfp_rows y, const float *x, int n_rows, int n_cols,
                                   int site, unsigned long long *fault) {
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= n_rows)
        return;
    size_t at = (size_t)row * (size_t)n_cols;
    int e = num_snap_row(y.mantissas + at, x + at, n_cols);
    if (e > BFP_MAX_EXPONENT)
        gpu_fault(fault, site, row);
    y.exponents[row] = (int8_t)(e > BFP_MAX_EXPONENT ? BFP_MIN_EXPONENT : e);
}

template <int WARPS>
__global__ static void snap_rows_2(struct bfp_rows y, const float *x, int n_rows, int n_cols,
                                   int site, unsigned long long *fault) {
    run_in_turn();
    SHARED(uint32_t, part, [WARPS]);
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    if (row >= n_rows)
        return;
    const float *from = x + (size_t)row * (size_t)n_cols;
    int16_t *to = y.mantissas + (size_t)row * (size_t)n_cols;
    uint32_t largest = 0;
    for (int i = lane; i < n_cols; i += WARPS * 32)
        largest = max(largest, num_magnitude(from[i]));
    int e = num_row_exponent(row_max<WARPS>(largest, part));
    bool bad = e > BFP_MAX_EXPONENT;
    float scale = num_pow2f(15 - (bad ? BFP_MIN_EXPONENT : e));
    for (int i = lane; i < n_cols; i += WARPS * 32)
        to[i] = bad ? (int16_t)0 : num_mantissa(from[i], scale);
    if (lane == 0) {
        if (bad)
            gpu_fault(fault, site, row);
        y.exponents[row] = (int8_t)(bad ? BFP_MIN_EXPONENT : e);
    }
}

void gpu_snap_rows(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                   const float *x,                        /* [n_rows, n_cols] */
                   int n_rows, int n_cols, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    int version = gpu->version[GPU_SNAP_ROWS] ? gpu->version[GPU_SNAP_ROWS] : 3;
    if (!n_rows || (version == 3 && launch_snap<false>(gpu, y, x, NULL, n_rows, n_cols, site)))
        return;
    if (version == 1)
        GPU_LAUNCH(gpu, snap_rows_1, gpu_blocks(n_rows, 128), 128, 0, y, x, n_rows, n_cols, site,
                   gpu->fault);
    else if (n_cols <= 512)
        GPU_LAUNCH_EARLY(gpu, snap_rows_2<1>, gpu_blocks(n_rows, 4), dim3(32, 4), 0, y, x, n_rows,
                         n_cols, site, gpu->fault);
    else
        GPU_LAUNCH_EARLY(gpu, snap_rows_2<8>, n_rows, dim3(256), 0, y, x, n_rows, n_cols, site,
                         gpu->fault);
}
