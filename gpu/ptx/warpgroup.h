/*
 * warpgroup.h - integer matrix products of four warps together, from shared memory: wgmma; and
 * copies to shared memory of any size, started by one thread. PTX under nvcc (compute
 * capability 9.0, compiled for sm_90a), plain C in the emulation; the same bits.
 *
 *     d[64][n] = a b, or d += a b with ADD: 8-bit integers a[64][32], from registers, and
 *     b[32][n], from shared memory; 32-bit sums that wrap around. n is 32, 64 or 128, twice the
 *     number of d's registers
 *
 * Who holds what: warp w of the group has rows 16 w .. 16 w + 15 of a and d, lane = 4 g + t of it
 *
 *     d[4 i + j]: row g + j / 2 * 8, column 8 i + 2 t + j % 2
 *     a[0..3]:    as in mma (gpu/ptx/tensor_core.h)
 *
 * In shared memory, a matrix lies in columns of 16 bytes along k; a column holds its rows (of b:
 * its columns) one after the other, 16 bytes each. struct shared_matrix says where. Or it is part of
 * a tile that tile_copy brought (gpu/ptx/tile_copy.h): shared_matrix_swizzled.
 *
 * Rules for the caller
 * - All 128 threads of four warps whose first is a multiple of 4 call every function together.
 * - Products run in the background: wgmma_begin, products, wgmma_end. Until wgmma_wait, which waits
 *   for all that were begun, nobody may touch d, the registers of a, or the shared memory of b.
 *   wgmma_wait_but_last leaves those that were begun last at work.
 * - b comes to shared memory by bulk_copy; or threads store it, and call wgmma_sees_stores and then
 *   __syncthreads.
 *
 * Bulk copies. A bulk_barrier stands for a series of rounds; in each, one thread starts a copy, and
 * bulk_wait lets everybody wait for it.
 *
 *     thread 0:    bulk_barrier_start(&b); then __syncthreads()
 *     thread 0:    bulk_copy(&b, ...);
 *     all threads: bulk_end_group(); ... bulk_wait(&b, round % 2, behind)
 *
 * A copy of several parts is a bulk_expect of the bytes of all, then a bulk_part for each. Who
 * reads nothing of what came need not wait: bulk_wait_if.
 *
 * behind: how many groups, of whatever barriers, were ended after the one that is waited for; only
 * the emulation counts them, in which a thread waits for its own copies and then for the others.
 * Addresses and sizes are multiples of 16 bytes. A copy of 0 bytes is a round, too.
 *
 * See the PTX manual's chapters on wgmma, cp.async.bulk and mbarrier.
 */
#ifndef SAMEBITS_GPU_PTX_WARPGROUP_H
#define SAMEBITS_GPU_PTX_WARPGROUP_H

#include "gpu/ptx/byte_barrier.h"

#ifdef SAMEBITS_EMU

struct shared_matrix {
    const unsigned char *rows;
    int column_bytes, first_column; /* column_bytes 0: swizzled */
};

static inline struct shared_matrix shared_matrix_at(const void *first, int column_bytes) {
    return {static_cast<const unsigned char *>(first), column_bytes, 0};
}

/* From `column` on, in a tile with rows of eight columns. `first` is its row 0, 8, 16 ... */
static inline struct shared_matrix shared_matrix_swizzled(const void *first, int column) {
    return {static_cast<const unsigned char *>(first), 0, column};
}

/* The matrix that begins n columns of 16 bytes further on. */
static inline struct shared_matrix shared_matrix_skip(struct shared_matrix m, int columns,
                                                      int column_bytes) {
    return {m.rows + columns * column_bytes, m.column_bytes, 0};
}

static inline uint32_t emu_matrix_word(const struct shared_matrix *m, int row, int word) {
    int at = word / 4 * m->column_bytes + row * 16;
    if (!m->column_bytes)
        at = row * 128 + ((m->first_column + word / 4) ^ row % 8) * 16;
    return *(const uint32_t *)(m->rows + at + word % 4 * 4);
}

struct bulk_barrier {
    uint64_t unused;
};

static inline void bulk_barrier_start(struct bulk_barrier *) {
}
static inline void bulk_expect(struct bulk_barrier *, int) {
}
static inline void bulk_part(struct bulk_barrier *, void *to, const void *from, int bytes) {
    for (int at = 0; at < bytes; at += 16)
        emu_copy_start((char *)to + at, (const char *)from + at, 16);
}
static inline void bulk_part_once(struct bulk_barrier *b, void *to, const void *from, int bytes) {
    bulk_part(b, to, from, bytes);
}
static inline void bulk_end_group(void) {
    emu_copy_commit();
}
static inline void bulk_wait_if(struct bulk_barrier *, unsigned, int behind, bool) {
    emu_copy_wait((size_t)behind);
    __syncthreads();
}

static inline void wgmma_begin(void) {
}
static inline void wgmma_end(void) {
}
static inline void wgmma_wait(void) {
}
static inline void wgmma_wait_but_last(void) {
}
template <int N> static inline void wgmma_settle(int32_t (&)[N]) {
}
static inline void wgmma_sees_stores(void) {
}

template <int N>
static inline void emu_wgmma(int32_t (&d)[N], const uint32_t a[4], bool a_signed,
                             struct shared_matrix b, bool b_signed, bool add, const char *file,
                             int line) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t columns[N / 4][2];
    for (int i = 0; i < N / 4; i++)
        for (int j = 0; j < 2; j++)
            columns[i][j] = emu_matrix_word(&b, 8 * i + g, 4 * j + t);
    for (int i = 0; i < N; i++)
        d[i] = add ? d[i] : 0;
    emu_mma(d, a, a_signed, columns[0], b_signed, file, line, N / 4);
}

#define SAMEBITS_WGMMA(name, types, a_signed, b_signed)                                            \
    template <bool ADD, int N>                                                                     \
    inline void name(int32_t(&d)[N], const uint32_t a[4], struct shared_matrix b,                  \
                     const char *file = __builtin_FILE(), int line = __builtin_LINE()) {           \
        emu_wgmma(d, a, a_signed, b, b_signed, ADD, file, line);                                   \
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

/* With swizzling: eight rows are 1024 bytes, of which a column's place depends on the address. */
static __device__ __forceinline__ shared_matrix shared_matrix_swizzled(const void *first,
                                                                       int column) {
    return (uint64_t)((shared_address(first) >> 4) + (unsigned)column) |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
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

struct bulk_barrier {
    uint64_t state;
};

static __device__ __forceinline__ void bulk_barrier_start(struct bulk_barrier *b) {
    byte_barrier_start(&b->state);
}
static __device__ __forceinline__ void bulk_expect(struct bulk_barrier *b, int bytes) {
    byte_barrier_expect(&b->state, bytes);
}
static __device__ __forceinline__ void bulk_part(struct bulk_barrier *b, void *to, const void *from,
                                                 int bytes) {
    if (bytes)
        SAMEBITS_PTX(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(shared_address(to)),
            "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(b))
            : "memory");
}
/* bulk_part, of what nobody will read for long: it is the first to leave the L2 cache. */
static __device__ __forceinline__ void bulk_part_once(struct bulk_barrier *b, void *to,
                                                      const void *from, int bytes) {
    SAMEBITS_PTX(
        "{\n.reg .b64 p;\n"
        "createpolicy.fractional.L2::evict_first.b64 p, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1], %2, [%3], p;\n}" ::"r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(b))
        : "memory");
}
static __device__ __forceinline__ void bulk_end_group(void) {
}
static __device__ __forceinline__ void bulk_wait_if(struct bulk_barrier *b, unsigned parity, int,
                                                    bool waits) {
    if (waits)
        byte_barrier_wait(&b->state, parity);
}

static __device__ __forceinline__ void wgmma_begin(void) {
    SAMEBITS_PTX("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_end(void) {
    SAMEBITS_PTX("wgmma.commit_group.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_wait(void) {
    SAMEBITS_PTX("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_wait_but_last(void) {
    SAMEBITS_PTX("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
/* What this thread has stored in shared memory, b may hold behind the next __syncthreads. */
static __device__ __forceinline__ void wgmma_sees_stores(void) {
    SAMEBITS_PTX("fence.proxy.async.shared::cta;" ::: "memory");
}
/* After wgmma_wait: the compiler must not read d before it. */
template <int N> static __device__ __forceinline__ void wgmma_settle(int32_t (&d)[N]) {
    UNROLL
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

/* All of d as operands: "+r", added to, or "=r", only written, so that no register need be kept for
 * it before. */
#define SAMEBITS_D8(how, i)                                                                        \
    how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3]), how(d[i + 4]), how(d[i + 5]),          \
        how(d[i + 6]), how(d[i + 7])
#define SAMEBITS_D16(how, i) SAMEBITS_D8(how, i), SAMEBITS_D8(how, i + 8)
#define SAMEBITS_D32(how, i) SAMEBITS_D16(how, i), SAMEBITS_D16(how, i + 16)
#define SAMEBITS_16_NAMES                                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SAMEBITS_32_NAMES                                                                          \
    SAMEBITS_16_NAMES                                                                              \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SAMEBITS_64_NAMES                                                                          \
    SAMEBITS_32_NAMES                                                                              \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SAMEBITS_WGMMA_TEXT(n, types, d_names, a_b_names, add)                                     \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                               \
    "wgmma.mma_async.sync.aligned.m64n" n "k32.s32." types " {" d_names "}, " a_b_names ", p;\n}"
#define SAMEBITS_WGMMA_32(types, how, add)                                                         \
    SAMEBITS_PTX(SAMEBITS_WGMMA_TEXT("32", types, SAMEBITS_16_NAMES, "{%16, %17, %18, %19}, %20",  \
                                     add)                                                          \
                 : SAMEBITS_D16(how, 0)                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define SAMEBITS_WGMMA_64(types, how, add)                                                         \
    SAMEBITS_PTX(SAMEBITS_WGMMA_TEXT("64", types, SAMEBITS_32_NAMES, "{%32, %33, %34, %35}, %36",  \
                                     add)                                                          \
                 : SAMEBITS_D32(how, 0)                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define SAMEBITS_WGMMA_128(types, how, add)                                                        \
    SAMEBITS_PTX(SAMEBITS_WGMMA_TEXT("128", types, SAMEBITS_64_NAMES, "{%64, %65, %66, %67}, %68", \
                                     add)                                                          \
                 : SAMEBITS_D32(how, 0), SAMEBITS_D32(how, 32)                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define SAMEBITS_WGMMA_OF(name, types, n_registers, ptx)                                           \
    template <bool ADD>                                                                            \
    static __device__ __forceinline__ void name(int32_t(&d)[n_registers], const uint32_t a[4],     \
                                                shared_matrix b) {                                 \
        if (ADD)                                                                                   \
            ptx(types, "+r", "1");                                                                 \
        else                                                                                       \
            ptx(types, "=r", "0");                                                                 \
    }
#define SAMEBITS_WGMMA(name, types, a_signed, b_signed)                                            \
    SAMEBITS_WGMMA_OF(name, types, 16, SAMEBITS_WGMMA_32)                                          \
    SAMEBITS_WGMMA_OF(name, types, 32, SAMEBITS_WGMMA_64)                                          \
    SAMEBITS_WGMMA_OF(name, types, 64, SAMEBITS_WGMMA_128)
#endif

SAMEBITS_WGMMA(wgmma_s8_s8, "s8.s8", true, true)
SAMEBITS_WGMMA(wgmma_s8_u8, "s8.u8", true, false)
SAMEBITS_WGMMA(wgmma_u8_s8, "u8.s8", false, true)
SAMEBITS_WGMMA(wgmma_u8_u8, "u8.u8", false, false)
#undef SAMEBITS_WGMMA
#undef SAMEBITS_PTX

static __device__ __forceinline__ void bulk_copy(struct bulk_barrier *b, void *to, const void *from,
                                                 int bytes) {
    bulk_expect(b, bytes);
    bulk_part(b, to, from, bytes);
}

static __device__ __forceinline__ void bulk_wait(struct bulk_barrier *b, unsigned parity,
                                                 int behind) {
    bulk_wait_if(b, parity, behind, true);
}

#endif
