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
 * 2  one kernel: a row stays in registers, of a warp (short rows) or a block (rows of up to 16384
 *    columns in whole vectors; others take version 1)
 */
#include "gpu/fast/vector/norm.h"
#include "gpu/ptx/tensor_core.h"

__global__ static void silu_mul_1(float *y, const float *gate, const float *up, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = num_silu(gate[i]) * up[i];
}

static __device__ __forceinline__ float4 gated(float4 g, float4 u) {
    return make_float4(num_silu(g.x) * u.x, num_silu(g.y) * u.y, num_silu(g.z) * u.z,
                       num_silu(g.w) * u.w);
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

/* VECTORS float4 of gate and of up per thread of the WARPS warps of a row. */
template <int WARPS, int VECTORS>
__global__ static void silu_mul_snap_2(struct bfp_rows y, const float4 *gate, const float4 *up,
                                       int n_rows, int n_vectors, int site,
                                       unsigned long long *fault) {
    run_in_turn();
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    if (row >= n_rows)
        return;
    size_t at = (size_t)row * (size_t)n_vectors;
    float4 v[VECTORS];
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = lane + i * WARPS * 32;
        v[i] = make_float4(0, 0, 0, 0);
        if (j < n_vectors)
            v[i] = gated(gate[at + (size_t)j], up[at + (size_t)j]);
    }
    snap_vectors<WARPS>(y, v, row, n_vectors, lane, site, fault);
}

void gpu_silu_mul_snap(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                       float *gate,                           /* [n_rows, n_cols] */
                       const float *up,                       /* [n_rows, n_cols] */
                       int n_rows, int n_cols, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!n_rows)
        return;
    if (gpu->version[GPU_SILU_MUL_SNAP] == 1 || n_cols % 4 || n_cols > 16384) {
        gpu_silu_mul(dev, gate, gate, up, (size_t)n_rows * (size_t)n_cols);
        gpu_snap_rows(dev, y, gate, n_rows, n_cols, site);
        return;
    }
    bool is_short = n_cols <= 1024;
    auto silu_mul_snap = is_short         ? silu_mul_snap_2<1, 8>
                         : n_cols <= 4096 ? silu_mul_snap_2<8, 4>
                                          : silu_mul_snap_2<16, 8>;
    GPU_LAUNCH_EARLY(gpu, silu_mul_snap, is_short ? gpu_blocks(n_rows, 4) : (unsigned)n_rows,
                     is_short         ? dim3(32, 4)
                     : n_cols <= 4096 ? dim3(256)
                                      : dim3(512),
                     0, y, (const float4 *)gate, (const float4 *)up, n_rows, n_cols / 4, site,
                     gpu->fault);
}
