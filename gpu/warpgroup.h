/*
 * warpgroup.h - integer matrix products of four warps together, from shared memory: wgmma. PTX under
 * nvcc (compute capability 9.0, compiled for sm_90a), plain C in the emulation; the same bits.
 *
 *     d[64][64] (+)= a[64][32] * b[32][64]: 8-bit integers, 32-bit sums that wrap around
 *
 * Who holds what: warp w of the group has rows 16 w .. 16 w + 15 of a and d, lane = 4 g + t of it
 *
 *     d[4 i + j]: row g + j / 2 * 8, column 8 i + 2 t + j % 2
 *     a[0..3]:    as in mma (tensor_core.h), if a is given in registers
 *
 * In shared memory, a matrix lies in columns of 16 bytes along k; a column holds its rows (of b: its
 * columns) one after the other, 16 bytes each. struct shared_matrix says where.
 *
 * Rules for the caller
 * - All 128 threads of four warps whose first is a multiple of 4 call every function together.
 * - Products run in the background: between wgmma_begin and wgmma_end nobody may touch d, the
 *   registers of a, or the shared memory of a and b.
 * - Shared memory that threads (or cp.async) wrote becomes visible to wgmma by
 *   wgmma_publish_shared() of the writer, then a barrier.
 *
 * See the PTX manual's chapter on asynchronous warpgroup-level matrix instructions.
 */
#ifndef SAMEBITS_WARPGROUP_H
#define SAMEBITS_WARPGROUP_H

#include "gpu/tensor_core.h"

#ifdef SAMEBITS_EMU

struct shared_matrix {
    const unsigned char *rows;
    int column_bytes;
};

static inline struct shared_matrix shared_matrix_at(const void *first, int column_bytes) {
    return {static_cast<const unsigned char *>(first), column_bytes};
}

/* The matrix that begins n columns of 16 bytes further on. */
static inline struct shared_matrix shared_matrix_skip(struct shared_matrix m, int columns,
                                                      int column_bytes) {
    return {m.rows + columns * column_bytes, m.column_bytes};
}

static inline uint32_t emu_matrix_word(const struct shared_matrix *m, int row, int word) {
    return *(const uint32_t *)(m->rows + word / 4 * m->column_bytes + row * 16 + word % 4 * 4);
}

static inline void wgmma_publish_shared(void) {
}
static inline void wgmma_begin(void) {
}
static inline void wgmma_end(void) {
}
static inline void wgmma_settle(int32_t *) {
}

inline void emu_wgmma(int32_t d[32], const uint32_t a[4], bool a_signed, struct shared_matrix b,
                      bool b_signed, bool add, const char *file, int line) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 8; i++) {
        const uint32_t columns[2] = {emu_matrix_word(&b, 8 * i + g, t),
                                     emu_matrix_word(&b, 8 * i + g, 4 + t)};
        for (int j = 0; j < 4; j++)
            d[4 * i + j] = add ? d[4 * i + j] : 0;
        emu_mma(d + 4 * i, a, a_signed, columns, b_signed, file, line);
    }
}

#define SAMEBITS_WGMMA(name, types, a_signed, b_signed)                                            \
    inline void name(int32_t d[32], const uint32_t a[4], struct shared_matrix b, bool add,         \
                     const char *file = __builtin_FILE(), int line = __builtin_LINE()) {           \
        emu_wgmma(d, a, a_signed, b, b_signed, add, file, line);                                   \
    }                                                                                              \
    inline void name(int32_t d[32], struct shared_matrix a, struct shared_matrix b, bool add,      \
                     const char *file = __builtin_FILE(), int line = __builtin_LINE()) {           \
        int lane = (int)threadIdx.x % 32, t = lane % 4;                                            \
        int row = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;                                       \
        const uint32_t mine[4] = {                                                                 \
            emu_matrix_word(&a, row, t), emu_matrix_word(&a, row + 8, t),                          \
            emu_matrix_word(&a, row, 4 + t), emu_matrix_word(&a, row + 8, 4 + t)};                 \
        emu_wgmma(d, mine, a_signed, b, b_signed, add, file, line);                                \
    }

#else

/* A descriptor without swizzling: address, bytes from column to column, and from 8 rows to the next
 * 8, each in units of 16 bytes. */
typedef uint64_t shared_matrix;

static __device__ __forceinline__ shared_matrix shared_matrix_at(const void *first,
                                                                 int column_bytes) {
    return (uint64_t)(shared_address(first) >> 4) | (uint64_t)(column_bytes >> 4) << 16 |
           (uint64_t)(128 >> 4) << 32;
}

static __device__ __forceinline__ shared_matrix shared_matrix_skip(shared_matrix m, int columns,
                                                                   int column_bytes) {
    return m + (uint64_t)(columns * column_bytes >> 4);
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SAMEBITS_PTX(...) asm volatile(__VA_ARGS__)
#else
#define SAMEBITS_PTX(...) __trap()
#endif

static __device__ __forceinline__ void wgmma_publish_shared(void) {
    SAMEBITS_PTX("fence.proxy.async;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_begin(void) {
    SAMEBITS_PTX("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_end(void) {
    SAMEBITS_PTX("wgmma.commit_group.sync.aligned;\n"
                 "wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
/* The compiler must not read d before wgmma_end, nor write it after wgmma_begin. */
static __device__ __forceinline__ void wgmma_settle(int32_t d[32]) {
    UNROLL
    for (int i = 0; i < 32; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

#define SAMEBITS_D8(i)                                                                             \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]),    \
        "+r"(d[i + 6]), "+r"(d[i + 7])
#define SAMEBITS_D32                                                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define SAMEBITS_WGMMA(name, types, a_signed, b_signed)                                            \
    static __device__ __forceinline__ void name(int32_t d[32], const uint32_t a[4],                \
                                                shared_matrix b, bool add) {                       \
        SAMEBITS_PTX("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n64k32.s32." types " " SAMEBITS_D32          \
                     "{%32, %33, %34, %35}, %36, p;\n}"                                            \
                     : SAMEBITS_D8(0), SAMEBITS_D8(8), SAMEBITS_D8(16), SAMEBITS_D8(24)            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));         \
    }                                                                                              \
    static __device__ __forceinline__ void name(int32_t d[32], shared_matrix a, shared_matrix b,   \
                                                bool add) {                                        \
        SAMEBITS_PTX("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n64k32.s32." types " " SAMEBITS_D32          \
                     "%32, %33, p;\n}"                                                             \
                     : SAMEBITS_D8(0), SAMEBITS_D8(8), SAMEBITS_D8(16), SAMEBITS_D8(24)            \
                     : "l"(a), "l"(b), "r"((int)add));                                             \
    }
#endif

SAMEBITS_WGMMA(wgmma_s8_s8, "s8.s8", true, true)
SAMEBITS_WGMMA(wgmma_s8_u8, "s8.u8", true, false)
SAMEBITS_WGMMA(wgmma_u8_s8, "u8.s8", false, true)
SAMEBITS_WGMMA(wgmma_u8_u8, "u8.u8", false, false)
#undef SAMEBITS_WGMMA
#undef SAMEBITS_PTX

#endif
