/*
 * silu_mul: y [count] = silu(gate) * up. Memory-bound: 8 bytes read and 4 written per element.
 *
 * 1  an element per thread
 * 2  four elements per thread: 16-byte loads and stores (arrays that start at whole vectors; the
 *    last elements one by one)
 *
 * silu_mul_snap: these rows snapped to BFP16, which is what the next linear layer wants. 8 bytes
 * read and 2 written per element.
 *
 * 1  two ops: silu_mul, then snap_rows
 * 2  one kernel: a row stays in registers, of a warp, a block or a cluster (up to 16384 columns in
 *    whole vectors; others take version 1): version 3 of snap_rows on the gated values
 */
#include "gpu/fast/vector/norm.h"

__global__ static void silu_mul_1(float *y, const float *gate, const float *up, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = num_silu(gate[i]) * up[i];
}

__global__ static void silu_mul_2(float *y, const float *gate, const float *up, size_t count) {
    run_in_turn();
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 4 <= count) {
        *(float4 *)(y + i) = gated(*(const float4 *)(gate + i), *(const float4 *)(up + i));
    } else {
        for (; i < count; i++)
            y[i] = num_silu(gate[i]) * up[i];
    }
}

void gpu_silu_mul(struct device *dev, float *y, /* [count] */
                  const float *gate,            /* [count] */
                  const float *up,              /* [count] */
                  size_t count) {
    struct gpu_device *gpu = gpu_of(dev);
    bool aligned = ((uintptr_t)y | (uintptr_t)gate | (uintptr_t)up) % 16 == 0;
    if (!count)
        return;
    if (gpu->version[GPU_SILU_MUL] == 1 || !aligned)
        GPU_LAUNCH(gpu, silu_mul_1, gpu_blocks(count, 256), 256, 0, y, gate, up, count);
    else
        GPU_LAUNCH_EARLY(gpu, silu_mul_2, gpu_blocks(count, 1024), 256, 0, y, gate, up, count);
}

void gpu_silu_mul_snap(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                       float *gate,                           /* [n_rows, n_cols] */
                       const float *up,                       /* [n_rows, n_cols] */
                       int n_rows, int n_cols, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!n_rows || (gpu->version[GPU_SILU_MUL_SNAP] != 1 &&
                    launch_snap<true>(gpu, y, gate, up, n_rows, n_cols, site)))
        return;
    gpu_silu_mul(dev, gate, gate, up, (size_t)n_rows * (size_t)n_cols);
    gpu_snap_rows(dev, y, gate, n_rows, n_cols, site);
}
