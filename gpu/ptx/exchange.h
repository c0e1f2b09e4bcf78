/*
 * exchange.h - floats that blocks of one launch hand each other through device memory, without a
 * barrier: the reader waits for the number itself. Memory that nobody has written to holds ABSENT
 * in each word, which is no number that a put writes.
 *
 *     exchange_put(&x[i], y)         hands y over
 *     exchange_ask(&x[i])            what is there by now, four floats or one
 *     exchange_take(v, &x[i])        v was asked for there: waits until all of it is there
 *     exchange_turn()                all threads of the block, before a take
 *
 * All blocks must run at the same time (LAUNCH_TOGETHER). Nothing else is ordered by it: only the
 * numbers themselves are handed over. In the emulation one block does all, also what three would
 * share, so that a turn is a barrier, and nobody ever waits.
 *
 * See the PTX manual's memory model: relaxed loads and stores in the scope of the GPU.
 */
#ifndef SAMEBITS_GPU_PTX_EXCHANGE_H
#define SAMEBITS_GPU_PTX_EXCHANGE_H

#include "gpu/ptx/tensor_core.h"

static const uint32_t EXCHANGE_ABSENT = 0xffffffffu; /* a NaN */

#ifdef SAMEBITS_EMU

inline void exchange_turn(void) {
    __syncthreads();
}
inline void exchange_store(float *to, uint32_t bits) {
    memcpy(to, &bits, sizeof bits);
}
inline float exchange_ask(const float *from) {
    return *from;
}
inline float4 exchange_ask(const float4 *from) {
    return *from;
}
/* What is absent stays so: a NaN, which tests see. */
template <class T> inline void exchange_take(T *, const T *) {
}

#else

static __device__ __forceinline__ void exchange_turn(void) {
}
static __device__ __forceinline__ void exchange_store(float *to, uint32_t bits) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(bits)
                 : "memory");
}
static __device__ __forceinline__ float exchange_ask(const float *from) {
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];"
                 : "=f"(x)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return x;
}
static __device__ __forceinline__ float4 exchange_ask(const float4 *from) {
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}

static __device__ __forceinline__ bool exchange_is_absent(float x) {
    return num_bits(x) == EXCHANGE_ABSENT;
}
static __device__ __forceinline__ bool exchange_is_absent(float4 v) {
    return exchange_is_absent(v.x) || exchange_is_absent(v.y) || exchange_is_absent(v.z) ||
           exchange_is_absent(v.w);
}
template <class T> static __device__ __forceinline__ void exchange_take(T *v, const T *from) {
    while (exchange_is_absent(*v))
        *v = exchange_ask(from);
}

#endif

#ifdef SAMEBITS_EMU
static inline int exchange_blocks(int) {
    return 1;
}
static inline int exchange_shares(int) {
    return 3;
}
#define LAUNCH_TOGETHER LAUNCH
#else
/* How many blocks a group has that should have n. */
static inline int exchange_blocks(int n) {
    return n;
}
/* Into how many parts work is divided for which there are n blocks. */
static inline int exchange_shares(int n) {
    return n;
}

/* A launch whose blocks all run at the same time, or none (a cooperative launch). */
template <class... P, class... A>
static inline void launch_together(void (*kernel)(P...), int n_blocks, int threads, int bytes,
                                   cudaStream_t stream, A... arguments) {
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {
        dim3((unsigned)n_blocks), dim3((unsigned)threads), (size_t)bytes, stream, &together, 1};
    cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}
#define LAUNCH_TOGETHER(kernel, n_blocks, threads, bytes, stream, ...)                             \
    launch_together(kernel, n_blocks, threads, bytes, stream, __VA_ARGS__)
#endif

static __device__ __forceinline__ void exchange_put(float *to, float x) {
    uint32_t bits = num_bits(x);
    exchange_store(to, bits == EXCHANGE_ABSENT ? 0x7fffffffu : bits);
}

#endif
