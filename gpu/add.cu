/*
 * add: y [count] = x + z, the residual stream. add_bias: y [n_tokens, n] += bias [n].
 *
 * 1  an element per thread
 * 2  four elements per thread, as silu_mul 2
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

__global__ static void add_1(float *y, const float *x, const float *z, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = x[i] + z[i];
}

__global__ static void add_2(float *y, const float *x, const float *z, size_t count) {
    run_in_turn();
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 4 <= count) {
        float4 a = *(const float4 *)(x + i), b = *(const float4 *)(z + i);
        *(float4 *)(y + i) = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    } else {
        for (; i < count; i++)
            y[i] = x[i] + z[i];
    }
}

void gpu_add(struct device *dev, float *y, /* [count] */
             const float *x,               /* [count] */
             const float *z,               /* [count] */
             size_t count) {
    struct gpu_device *gpu = gpu_of(dev);
    bool aligned = ((uintptr_t)y | (uintptr_t)x | (uintptr_t)z) % 16 == 0;
    if (!count)
        return;
    if (gpu->version[GPU_ADD] == 1 || !aligned)
        GPU_LAUNCH(gpu, add_1, gpu_blocks(count, 256), 256, 0, y, x, z, count);
    else
        GPU_LAUNCH_EARLY(gpu, add_2, gpu_blocks(count, 1024), 256, 0, y, x, z, count);
}

__global__ static void add_bias_1(float *y, const float *bias, size_t count, int n) {
    run_in_turn();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] += bias[i % (size_t)n];
}

void gpu_add_bias(struct device *dev, float *y, /* [n_tokens, n] */
                  const float *bias,            /* [n] */
                  int n_tokens, int n) {
    struct gpu_device *gpu = gpu_of(dev);
    size_t count = (size_t)n_tokens * (size_t)n;
    if (count)
        GPU_LAUNCH_EARLY(gpu, add_bias_1, gpu_blocks(count, 256), 256, 0, y, bias, count, n);
}
