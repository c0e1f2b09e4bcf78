/*
 * byte_barrier.h - a barrier in shared memory that counts bytes, not threads: what gpu/ptx/warpgroup.h and
 * gpu/ptx/cluster.h wait for. It stands for a series of rounds; a round is over when one thread has said
 * how many bytes it has, and as many have come. (An mbarrier of the PTX manual, with a transaction
 * count; compute capability 9.0. The emulation needs none.)
 */
#ifndef SAMEBITS_GPU_PTX_BYTE_BARRIER_H
#define SAMEBITS_GPU_PTX_BYTE_BARRIER_H

#include "gpu/ptx/tensor_core.h"

#ifndef SAMEBITS_EMU
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BARRIER_PTX(...) __trap()
#else
#define BARRIER_PTX(...) asm volatile(__VA_ARGS__)
#endif

static __device__ __forceinline__ void byte_barrier_start(uint64_t *b) {
    BARRIER_PTX("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                "fence.mbarrier_init.release.cluster;" ::"r"(shared_address(b))
                : "memory");
}

static __device__ __forceinline__ void byte_barrier_expect(uint64_t *b, int bytes) {
    BARRIER_PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                "r"(bytes)
                : "memory");
}

/* parity: of the round's number. */
static __device__ __forceinline__ void byte_barrier_wait(uint64_t *b, unsigned parity) {
    BARRIER_PTX("{\n.reg .pred p;\nagain:\n"
                "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                "@!p bra again;\n}" ::"r"(shared_address(b)),
                "r"(parity)
                : "memory");
}

#undef BARRIER_PTX
#endif
#endif
