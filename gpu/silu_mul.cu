/*
 * silu_mul: y [count] = silu(gate) * up. Memory-bound: 8 bytes read and 4 written per element.
 *
 * 1  an element per thread
 * 2  four elements per thread: 16-byte loads and stores (arrays that start at whole vectors; the
 *    last elements one by one)
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

__global__ static void silu_mul_1(float *y, const float *gate, const float *up, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = num_silu(gate[i]) * up[i];
}

__global__ static void silu_mul_2(float *y, const float *gate, const float *up, size_t count) {
    run_in_turn();
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 4 <= count) {
        float4 g = *(const float4 *)(gate + i), u = *(const float4 *)(up + i);
        *(float4 *)(y + i) = make_float4(num_silu(g.x) * u.x, num_silu(g.y) * u.y,
                                         num_silu(g.z) * u.z, num_silu(g.w) * u.w);
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
