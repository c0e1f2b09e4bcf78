/*
 * cuda_emu.h - CUDA kernels on a CPU: what a .cu file sees when g++ compiles it.
 *
 * Each CUDA thread is a fiber (fiber.h) that runs until it waits at a barrier or in a warp
 * operation; block.cpp decides who runs next. Sums of this engine are exact, so the bits are the
 * GPU's. Blocks may be spread over CPU threads; one block always stays on one.
 *
 * What is checked: barriers and warp operations always. Memory accesses are checked in .cu files
 * compiled with -fsanitize=thread,alignment (compile only, never link with it): the compiler then
 * calls a function before every load and store, and memory_hooks.cpp defines these functions. They
 * report out-of-bounds and uninitialised shared memory, races in shared memory, misaligned accesses
 * and accesses that are neither this thread's, its block's nor the device's. In an AddressSanitizer
 * build (the two exclude each other) that sanitizer finds what is out of bounds.
 *
 * A fault prints one line, ends the launch and leaves cudaErrorLaunchFailure behind until
 * cudaDeviceReset().
 *
 * Not here, on purpose: expf, rsqrtf and others whose bits depend on the chip (model/numerics.h).
 * The emulation says nothing about speed, and is no proof about hardware: the GPU run is.
 */
#ifndef SAMEBITS_CUDA_EMU_H
#define SAMEBITS_CUDA_EMU_H

#include "gpu/emu/cuda_types.h"
#include "gpu/emu/host_api.h"

#include <tuple>
#include <type_traits>
#include <utility>

/* ---- what tests may turn -------------------------------------------------------------------- */

enum emu_fault {
    EMU_NO_FAULT,
    EMU_DIVERGENT_BARRIER, /* threads of a block wait at different barriers */
    EMU_WARP_DEADLOCK,     /* a warp operation waits for lanes that do not come */
    EMU_WARP_LANE,         /* a lane reads from a lane that takes no part, or is not in its mask */
    EMU_SHARED_BOUNDS,     /* shared memory outside of every variable */
    EMU_SHARED_UNINITIALISED, /* shared memory that this block has not written */
    EMU_SHARED_RACE,          /* two threads, at least one writes, nothing orders them */
    EMU_DEVICE_BOUNDS,        /* an address that is not the device's */
    EMU_MISALIGNED,
    EMU_NO_INSTRUCTION, /* one of gpu/ptx/tensor_core.h, in kernels built for an older GPU */
};

struct emu_report {
    enum emu_fault fault;
    char text[512]; /* kernel, block, thread and what happened, in one line */
};

/* Called once for the first fault of a launch, perhaps from another CPU thread. NULL: print the
 * line to stderr. */
void emu_set_handler(void (*handler)(const struct emu_report *report));

/* The fault of the last launch; its `fault` is EMU_NO_FAULT when there was none. */
struct emu_report emu_last_report(void);

/* The order in which blocks, warps and lanes run: 0 ascending, 1 descending, else shuffled with
 * this seed. Correct kernels give the same result in each. Tests in C call it, too. */
extern "C" void emu_set_schedule(uint64_t seed);

/* CPU threads that run the blocks of a launch, at least 1 (which is the default). */
void emu_set_threads(int n);

/* ---- keywords ------------------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define OUT_OF_LINE inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static_assert(false, "write SHARED(type, name, [n]): see gpu/cuda_compat.h");
#define UNROLL
#define UNROLL_1
#define UNROLL_4
#define UNROLL_8

/* ---- launches ------------------------------------------------------------------------------- */

struct emu_kernel {
    const char *name;
    const void *function;                /* names the kernel in cudaFuncSetAttribute */
    void (*call)(const void *arguments); /* runs one thread of it */
    const void *arguments;
    size_t argument_bytes;
};

void emu_launch(const struct emu_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                cudaStream_t stream);

template <class... Parameters, class... Arguments>
void emu_launch_with(const char *name, void (*function)(Parameters...), dim3 grid, dim3 block,
                     size_t shared_bytes, cudaStream_t stream, Arguments &&...arguments) {
    struct call {
        void (*function)(Parameters...);
        std::tuple<Parameters...> arguments;
    } call = {function, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)};
    struct emu_kernel kernel = {name, reinterpret_cast<const void *>(function),
                                [](const void *data) {
                                    const struct call *c = static_cast<const struct call *>(data);
                                    std::apply(c->function, c->arguments);
                                },
                                &call, sizeof call};
    emu_launch(&kernel, grid, block, shared_bytes, stream);
}

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    emu_launch_with(#kernel, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define LAUNCH_EARLY LAUNCH /* one after the other here */

/* ---- where a thread is ---------------------------------------------------------------------- */

uint3 emu_thread_index(void) __attribute__((const));
uint3 emu_block_index(void) __attribute__((const));
dim3 emu_block_dim(void) __attribute__((const));
dim3 emu_grid_dim(void) __attribute__((const));

#define threadIdx emu_thread_index()
#define blockIdx emu_block_index()
#define blockDim emu_block_dim()
#define gridDim emu_grid_dim()
static const int warpSize = 32;

/* ---- shared memory -------------------------------------------------------------------------- */

/* One declaration of a shared variable; its address identifies it. */
struct emu_shared_site {
    const char *name;
    size_t bytes, alignment;
};

void *emu_shared_variable(const struct emu_shared_site *site);
void *emu_shared_dynamic(void);

#define SHARED(type, name, ...)                                                                    \
    typedef type emu_type_##name __VA_ARGS__;                                                      \
    static const struct emu_shared_site emu_site_##name = {#name, sizeof(emu_type_##name),         \
                                                           alignof(emu_type_##name)};              \
    emu_type_##name &name = *static_cast<emu_type_##name *>(emu_shared_variable(&emu_site_##name))

#define SHARED_DYNAMIC(type, name) type *name = static_cast<type *>(emu_shared_dynamic())

#include "gpu/emu/device_api.h"

#endif
