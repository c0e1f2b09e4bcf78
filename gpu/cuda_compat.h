/*
 * cuda_compat.h - the one CUDA include of every .cu file.
 *
 * nvcc compiles a .cu file for a GPU. With SAMEBITS_EMU defined, g++ compiles the same file for the
 * emulation in gpu/emu, which runs its kernels on a CPU and checks them. Four things are written
 * the way this header says, so that both can; all else is plain CUDA:
 *
 *     __global__ void row_sums(float *y, const float *x, int n) {
 *         SHARED(float, part, [8][32]);       // a __shared__ array:  float part[8][32]
 *         SHARED(int, n_found);               // a __shared__ scalar: int n_found
 *         SHARED_DYNAMIC(float, scratch);     // float *scratch: the launch's shared_bytes
 *         UNROLL                              // #pragma unroll; UNROLL_4, UNROLL_8: by 4, by 8;
 *                                             // UNROLL_1: not at all
 *         ...                                 // OUT_OF_LINE: of a function, __noinline__
 *         for (int i = 0; i < 4; i++)
 *             ...
 *     }
 *
 *     LAUNCH(row_sums, dim3(rows, heads), 256, shared_bytes, stream, y, x, n);
 *     LAUNCH((attention<128, 4>), grid, block, 0, stream, q, k, v); // commas need parentheses
 *
 * Rules
 * - SHARED stands in a function, never has an initialiser, and starts at a multiple of 16 bytes;
 *   SHARED_DYNAMIC starts at a multiple of 1024. Both also work in templates and device functions.
 * - LAUNCH reports errors like <<<>>>: ask cudaGetLastError() after it.
 * - Threads of a block meet only at __syncthreads, __syncwarp and the *_sync calls, and blocks of a
 *   launch do not wait for each other, but in gpu/ptx/exchange.h: no other loop waits for memory
 *   that another thread writes.
 * - No inline PTX but in gpu/ptx: mma, ldmatrix and cp.async come from its tensor_core.h, wgmma and
 *   bulk copies from warpgroup.h, copies of a matrix's tiles from tile_copy.h, blocks of a cluster,
 *   which do wait for each other, from cluster.h, what these wait for from byte_barrier.h, fp16 and
 *   bf16 in pairs from halves.h.
 */
#ifndef SAMEBITS_CUDA_COMPAT_H
#define SAMEBITS_CUDA_COMPAT_H

#ifdef SAMEBITS_EMU

#include "gpu/emu/cuda_emu.h"

#else

#include <cuda_runtime.h>

#define SHARED(type, name, ...) __shared__ __align__(16) type name __VA_ARGS__

/* One name and type for all kernels, because an extern array may be declared only one way. */
#define SHARED_DYNAMIC(type, name)                                                                 \
    extern __shared__ __align__(1024) unsigned char samebits_dynamic_shared[];                     \
    type *name = reinterpret_cast<type *>(samebits_dynamic_shared)

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)

/* LAUNCH_EARLY: the kernel may start while the one before it on the stream still runs, and calls
 * wait_for_previous_kernel() before it touches anything that one may write (programmatic dependent
 * launch; compute capability 9.0). */
template <class... P, class... A>
static inline void samebits_launch_early(void (*kernel)(P...), dim3 grid, dim3 block,
                                         size_t shared_bytes, cudaStream_t stream, A... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {grid, block, shared_bytes, stream, &early, 1};
    cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}
#define LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, ...)                               \
    samebits_launch_early(kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

#define OUT_OF_LINE __noinline__
#define UNROLL _Pragma("unroll")
#define UNROLL_1 _Pragma("unroll 1")
#define UNROLL_4 _Pragma("unroll 4")
#define UNROLL_8 _Pragma("unroll 8")

#endif
#endif
