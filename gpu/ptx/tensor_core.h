/*
 * tensor_core.h - the instructions that C has no word for: matrix products on tensor
 * cores, the load that feeds them, and copies that run in the background. PTX under nvcc (compute
 * capability 8.0 and later), plain C in the emulation; the same bits.
 *
 * Rules for the caller
 * - mma_*, ldmatrix_* and movmatrix_trans are operations of a whole warp: all 32 lanes call them
 * together.
 * - None of them orders memory: between writing shared memory and ldmatrix by other lanes stands a
 *   __syncwarp or __syncthreads.
 *
 * See the PTX manual's chapters on mma.m16n8k32, mma.m16n8k16, ldmatrix and cp.async.
 */
#ifndef SAMEBITS_GPU_PTX_TENSOR_CORE_H
#define SAMEBITS_GPU_PTX_TENSOR_CORE_H

#include "gpu/cuda_compat.h"

#include <stdint.h>

/* Whether the code that is being compiled may have these instructions, or those of
 * gpu/ptx/warpgroup.h. For other GPUs a kernel that needs them is left empty (it is never started
 * there, and would only take time to compile): `if (!compiles_mma) return;`. */
#if defined(SAMEBITS_EMU) || !defined(__CUDA_ARCH__)
static const bool compiles_mma = true, compiles_wgmma = true;
#else
static const bool compiles_mma = __CUDA_ARCH__ >= 800;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static const bool compiles_wgmma = true;
#else
static const bool compiles_wgmma = false;
#endif
#endif

/*
 * d[16][8] += a[16][32] * b[32][8]: 8-bit integers, 32-bit sums that wrap around.
 *
 * Who holds what: lane = 4 g + t, with g = 0..7 and t = 0..3. Each 32-bit register of a and b holds
 * four neighbours along k, the lowest k in the lowest byte.
 *
 *     a: 16 rows x 32 k                         b: 32 k x 8 columns
 *
 *               k = 4t..4t+3   k = 16+4t..                     column g
 *              +--------------+--------------+                +----------+
 *     row g    |     a[0]     |     a[2]     |   k = 4t..4t+3 |   b[0]   |
 *              +--------------+--------------+                +----------+
 *     row g+8  |     a[1]     |     a[3]     |   k = 16+4t..  |   b[1]   |
 *              +--------------+--------------+                +----------+
 *
 *     d: 16 rows x 8 columns
 *
 *               column 2t   column 2t+1
 *              +-----------+-----------+
 *     row g    |   d[0]    |   d[1]    |
 *              +-----------+-----------+
 *     row g+8  |   d[2]    |   d[3]    |
 *              +-----------+-----------+
 *
 * A sum over k does not care in which order k is counted, as long as a and b agree. So a kernel may
 * hand lane t any four k's, for instance eight bytes in a row as a[0] and a[2] with b[0] and b[1].
 *
 * The name tells which operands are signed: mma_s8_u8 takes a signed and b unsigned.
 */
#ifdef SAMEBITS_EMU
#define SAMEBITS_MMA(name, types, a_signed, b_signed)                                              \
    inline void name(int32_t d[4], const uint32_t a[4], const uint32_t b[2],                       \
                     const char *file = __builtin_FILE(), int line = __builtin_LINE()) {           \
        emu_mma(d, a, a_signed, b, b_signed, file, line);                                          \
    }
#else
#define SAMEBITS_MMA(name, types, a_signed, b_signed)                                              \
    static __device__ __forceinline__ void name(int32_t d[4], const uint32_t a[4],                 \
                                                const uint32_t b[2]) {                             \
        SAMEBITS_PTX("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 "                        \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }

/* Older GPUs have no such instructions; a kernel that runs one there stops with an error. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define SAMEBITS_PTX(...) asm volatile(__VA_ARGS__)
#else
#define SAMEBITS_PTX(...) __trap()
#endif
#endif

SAMEBITS_MMA(mma_s8_s8, "s8.s8", true, true)
SAMEBITS_MMA(mma_s8_u8, "s8.u8", true, false)
SAMEBITS_MMA(mma_u8_s8, "u8.s8", false, true)
SAMEBITS_MMA(mma_u8_u8, "u8.u8", false, false)
#undef SAMEBITS_MMA

/*
 * d[16][8] += a[16][16] * b[16][8]: fp16, sums in float32. Who holds what is as above, but that a
 * register holds two neighbours along k, so that 4t becomes 2t, and 16 becomes 8.
 *
 * In which order the sums are made is the GPU's secret: all of them must be exact, that is, below
 * 2^24 in units that all products are multiples of.
 */
#ifdef SAMEBITS_EMU
inline void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2],
                    const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    emu_mma_f16(d, a, b, file, line);
}
#else
static __device__ __forceinline__ void mma_f16(float d[4], const uint32_t a[4],
                                               const uint32_t b[2]) {
    SAMEBITS_PTX("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

/* d[16][8] = a[16][8] * b[8][8] + c, for half as many summands, those of a[0], a[1] and b[0]; c is
 * of the same place as d, and stays. */
#ifdef SAMEBITS_EMU
inline void mma_f16_half(float d[4], const uint32_t a[2], uint32_t b, const float c[4],
                         const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    const uint32_t all_a[4] = {a[0], a[1], 0, 0}, all_b[2] = {b, 0};
    for (int i = 0; i < 4; i++)
        d[i] = c[i];
    emu_mma_f16(d, all_a, all_b, file, line);
}
#else
static __device__ __forceinline__ void mma_f16_half(float d[4], const uint32_t a[2], uint32_t b,
                                                    const float c[4]) {
    SAMEBITS_PTX("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#endif

/*
 * ldmatrix: loads four 8x8 matrices of 16-bit elements from shared memory. Lanes 8i .. 8i+7 give
 * the addresses of the rows of matrix i, 16 bytes each, 16-byte aligned. Afterwards r[i] of lane 4g
 * + t holds, low half first,
 *
 *     plain:      row g, columns 2t and 2t+1   of matrix i
 *     transposed: rows 2t and 2t+1, column g   of matrix i
 *
 * Plain, a row of 16 bytes is also 16 8-bit elements along k, four per lane: with matrices 0..3 at
 * (rows 0-7, k 0-15), (rows 8-15, k 0-15), (rows 0-7, k 16-31), (rows 8-15, k 16-31), it gives an
 * mma's a[0..3].
 */
#ifdef SAMEBITS_EMU
#define SAMEBITS_LDMATRIX(name, transpose)                                                         \
    inline void name(uint32_t r[4], const void *row, const char *file = __builtin_FILE(),          \
                     int line = __builtin_LINE()) {                                                \
        emu_load_matrices(r, transpose, row, file, line);                                          \
    }
SAMEBITS_LDMATRIX(ldmatrix_x4, false)
SAMEBITS_LDMATRIX(ldmatrix_x4_trans, true)
#undef SAMEBITS_LDMATRIX
#else
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *row) {
    SAMEBITS_PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    SAMEBITS_PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
#endif

/*
 * movmatrix: turns an 8x8 matrix of 16-bit elements that lies across the registers of a warp.
 * Before and after, lane 4g + t holds row g, columns 2t (low half) and 2t+1.
 */
#ifdef SAMEBITS_EMU
inline uint32_t movmatrix_trans(uint32_t x, const char *file = __builtin_FILE(),
                                int line = __builtin_LINE()) {
    int lane = (int)(threadIdx.x + threadIdx.y * blockDim.x) % 32, g = lane / 4, t = lane % 4;
    uint32_t even = __shfl_sync(0xffffffffu, x, 8 * t + g / 2, 32, file, line);
    uint32_t odd = __shfl_sync(0xffffffffu, x, 8 * t + 4 + g / 2, 32, file, line);
    return __byte_perm(even, odd, g % 2 ? 0x7632 : 0x5410);
}
#else
static __device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
    uint32_t y = 0;
    SAMEBITS_PTX("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
#endif

/*
 * cp.async: copies 16 bytes from device to shared memory, both 16-byte aligned, in the background.
 *
 *     cp_async_16(&tile[i], &x[i]);   start; any number of them
 *     cp_async_commit();              the copies since the last commit are one group
 *     cp_async_wait<1>();             this thread's groups are done, but for the latest 1
 *     __syncthreads();                now the others' are, too
 *
 * in_register keeps the compiler from taking an address to pieces: then one that is a multiple
 * behind it takes one instruction, not three. cp_async_16_or_zero copies when `valid`, else writes
 * zeros; `from` must be valid either way.
 */
#ifdef SAMEBITS_EMU
inline const char *in_register(const char *p) {
    return p;
}
inline void cp_async_16(void *to, const void *from) {
    emu_copy_start(to, from, 16);
}
inline void cp_async_16_or_zero(void *to, const void *from, bool valid) {
    emu_copy_start(to, from, valid ? 16 : 0);
}
inline void cp_async_commit(void) {
    emu_copy_commit();
}
template <int N> void cp_async_wait(void) {
    emu_copy_wait(N);
}
#else
static __device__ __forceinline__ const char *in_register(const char *p) {
    asm("" : "+l"(p));
    return p;
}
static __device__ __forceinline__ void cp_async_16(void *to, const void *from) {
    SAMEBITS_PTX("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
static __device__ __forceinline__ void cp_async_16_or_zero(void *to, const void *from, bool valid) {
    SAMEBITS_PTX("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void cp_async_commit(void) {
    SAMEBITS_PTX("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void cp_async_wait(void) {
    SAMEBITS_PTX("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

/*
 * Registers. ANY_FLOAT gives x any value, without an instruction. ZERO_HERE makes it 0 by an
 * instruction that stays where it is: the compiler would have it come before the question whether
 * it is needed.
 */
#ifdef SAMEBITS_EMU
#define ANY_FLOAT(x) ((x) = NAN)
#define ZERO_HERE(x) ((x) = 0)
#else
#define ANY_FLOAT(x) asm("" : "=f"(x))
#define ZERO_HERE(x) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(x))
#endif

/*
 * Programmatic dependent launch. A kernel that was started with LAUNCH_EARLY may prefetch what
 * nobody writes (weights), then waits here for all that the kernel before it wrote; and any kernel
 * may let the next one start early. Nothing happens on GPUs before compute capability 9.0.
 *
 * At least one thread of every kernel that was started early must wait, whatever there is to do:
 * the next one knows only that this one has ended, and takes it that all before it have.
 */
#if defined(SAMEBITS_EMU) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
static __device__ __forceinline__ void wait_for_previous_kernel(void) {
}
static __device__ __forceinline__ void let_next_kernel_start(void) {
}
#else
static __device__ __forceinline__ void wait_for_previous_kernel(void) {
    SAMEBITS_PTX("griddepcontrol.wait;" ::: "memory");
}
static __device__ __forceinline__ void let_next_kernel_start(void) {
    SAMEBITS_PTX("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif

/* Asks for the line of 128 bytes that x lies in, so that it is in the L2 cache when it is needed. */
#ifdef SAMEBITS_EMU
static inline void prefetch_l2(const void *) {
}
#else
static __device__ __forceinline__ void prefetch_l2(const void *x) {
    SAMEBITS_PTX("prefetch.global.L2 [%0];" ::"l"(x));
}
#endif

/* The first line of a kernel that is started early and needs what the one before it wrote: only the
 * launches overlap. */
static __device__ __forceinline__ void run_in_turn(void) {
    let_next_kernel_start();
    wait_for_previous_kernel();
}

#undef SAMEBITS_PTX

#endif
