/*
 * device_api.h - the functions that CUDA gives to kernels, for the emulation.
 *
 * Warp operations: every lane names the participants in a mask and waits until all of them (but
 * those that have exited) called the same operation, at the same line, with the same mask. The
 * last to arrive computes the results of all. Only __syncwarp and __syncthreads order memory.
 */
#ifndef SAMEBITS_DEVICE_API_H
#define SAMEBITS_DEVICE_API_H

#include "gpu/emu/cuda_types.h"

#include <type_traits>

/* ---- barriers and warp operations ----------------------------------------------------------- */

void emu_barrier(const char *file, int line);
void emu_fence(void);

/* One lane's part in a warp operation. It lives on the lane's stack; operations with more operands
 * derive from it. */
struct emu_warp_op {
    const char *name, *file;
    int line;
    uint32_t mask;
    /* Called once with the ops of the participants, ops[lane] for each lane in `lanes`. NULL: the
     * operation only waits. */
    void (*complete)(struct emu_warp_op *const *ops, uint32_t lanes);
    bool orders_memory;
};

void emu_warp_wait(struct emu_warp_op *op);

enum emu_vote { EMU_BALLOT, EMU_ANY, EMU_ALL };
enum emu_shuffle { EMU_INDEX, EMU_UP, EMU_DOWN, EMU_XOR };
enum emu_reduce { EMU_ADD, EMU_MAX, EMU_MIN, EMU_MAX_SIGNED, EMU_MIN_SIGNED };

uint32_t emu_warp_vote(enum emu_vote how, uint32_t mask, bool value, const char *file, int line);
uint64_t emu_warp_shuffle(enum emu_shuffle how, uint32_t mask, uint64_t value, int operand,
                          int width, const char *file, int line);
uint32_t emu_warp_reduce(enum emu_reduce how, uint32_t mask, uint32_t value, const char *file,
                         int line);
void emu_warp_sync(uint32_t mask, const char *file, int line);

/* The caller's place in the source, as default arguments; CUDA's functions take none of these. */
#define EMU_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_PLACE) {
    emu_barrier(file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_PLACE) {
    emu_warp_sync(mask, file, line);
}
inline void __threadfence(void) {
    emu_fence();
}
inline void __threadfence_block(void) {
    emu_fence();
}
inline void __threadfence_system(void) {
    emu_fence();
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_PLACE) {
    return emu_warp_vote(EMU_BALLOT, mask, predicate != 0, file, line);
}
inline int __any_sync(unsigned mask, int predicate, EMU_PLACE) {
    return (int)emu_warp_vote(EMU_ANY, mask, predicate != 0, file, line);
}
inline int __all_sync(unsigned mask, int predicate, EMU_PLACE) {
    return (int)emu_warp_vote(EMU_ALL, mask, predicate != 0, file, line);
}

template <class T>
T emu_shuffle_value(enum emu_shuffle how, unsigned mask, T value, int operand, int width,
                    const char *file, int line) {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) >= 4 && sizeof(T) <= 8,
                  "CUDA shuffles 32- and 64-bit numbers");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emu_warp_shuffle(how, mask, bits, operand, width, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMU_PLACE) {
    return emu_shuffle_value(EMU_INDEX, mask, value, lane, width, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_PLACE) {
    return emu_shuffle_value(EMU_UP, mask, value, (int)delta, width, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_PLACE) {
    return emu_shuffle_value(EMU_DOWN, mask, value, (int)delta, width, file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_PLACE) {
    return emu_shuffle_value(EMU_XOR, mask, value, lane_mask, width, file, line);
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value, EMU_PLACE) {
    return emu_warp_reduce(EMU_ADD, mask, value, file, line);
}
inline int __reduce_add_sync(unsigned mask, int value, EMU_PLACE) {
    return (int)emu_warp_reduce(EMU_ADD, mask, (uint32_t)value, file, line);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, EMU_PLACE) {
    return emu_warp_reduce(EMU_MAX, mask, value, file, line);
}
inline int __reduce_max_sync(unsigned mask, int value, EMU_PLACE) {
    return (int)emu_warp_reduce(EMU_MAX_SIGNED, mask, (uint32_t)value, file, line);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value, EMU_PLACE) {
    return emu_warp_reduce(EMU_MIN, mask, value, file, line);
}
inline int __reduce_min_sync(unsigned mask, int value, EMU_PLACE) {
    return (int)emu_warp_reduce(EMU_MIN_SIGNED, mask, (uint32_t)value, file, line);
}

#undef EMU_PLACE

/* ---- what gpu/ptx/tensor_core.h calls ----------------------------------------------------------- */

/* n: as many matrices b, one after the other; those of d, too. */
void emu_mma(int32_t *d, const uint32_t *a, bool a_signed, const uint32_t *b, bool b_signed,
             const char *file, int line, int n = 1);
void emu_mma_f16(float *d, const uint32_t *a, const uint32_t *b, const char *file, int line);
void emu_load_matrices(uint32_t *out, int n_matrices, bool transpose, const void *row,
                       const char *file, int line);
void emu_copy_start(void *to, const void *from, size_t from_bytes);
void emu_copy_commit(void);
void emu_copy_wait(size_t n_groups_left);

/* ---- atomics -------------------------------------------------------------------------------- */

enum emu_atomic {
    EMU_ATOMIC_ADD,
    EMU_ATOMIC_ADD_FLOAT,
    EMU_ATOMIC_MAX,
    EMU_ATOMIC_MIN,
    EMU_ATOMIC_MAX_SIGNED,
    EMU_ATOMIC_MIN_SIGNED,
    EMU_ATOMIC_EXCHANGE,
    EMU_ATOMIC_COMPARE_SWAP,
};

/* The old bits of *address; `expected` is for EMU_ATOMIC_COMPARE_SWAP. */
uint32_t emu_atomic_32(enum emu_atomic how, void *address, uint32_t value, uint32_t expected);
uint64_t emu_atomic_64(enum emu_atomic how, void *address, uint64_t value, uint64_t expected);

template <class T> T emu_atomic_value(enum emu_atomic how, T *address, T value, T expected = T()) {
    T old;
    if constexpr (sizeof(T) == 4) {
        uint32_t v, e;
        memcpy(&v, &value, sizeof v);
        memcpy(&e, &expected, sizeof e);
        v = emu_atomic_32(how, address, v, e);
        memcpy(&old, &v, sizeof old);
    } else {
        uint64_t v, e;
        memcpy(&v, &value, sizeof v);
        memcpy(&e, &expected, sizeof e);
        v = emu_atomic_64(how, address, v, e);
        memcpy(&old, &v, sizeof old);
    }
    return old;
}

#define EMU_ATOMIC(function, how, type)                                                            \
    inline type function(type *address, type value) {                                              \
        return emu_atomic_value(how, address, value);                                              \
    }
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, int)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, unsigned)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD, unsigned long long)
EMU_ATOMIC(atomicAdd, EMU_ATOMIC_ADD_FLOAT, float)
EMU_ATOMIC(atomicMax, EMU_ATOMIC_MAX_SIGNED, int)
EMU_ATOMIC(atomicMax, EMU_ATOMIC_MAX, unsigned)
EMU_ATOMIC(atomicMax, EMU_ATOMIC_MAX_SIGNED, long long)
EMU_ATOMIC(atomicMax, EMU_ATOMIC_MAX, unsigned long long)
EMU_ATOMIC(atomicMin, EMU_ATOMIC_MIN_SIGNED, int)
EMU_ATOMIC(atomicMin, EMU_ATOMIC_MIN, unsigned)
EMU_ATOMIC(atomicMin, EMU_ATOMIC_MIN_SIGNED, long long)
EMU_ATOMIC(atomicMin, EMU_ATOMIC_MIN, unsigned long long)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, int)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, unsigned)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, unsigned long long)
EMU_ATOMIC(atomicExch, EMU_ATOMIC_EXCHANGE, float)
#undef EMU_ATOMIC

inline int atomicCAS(int *address, int compare, int value) {
    return emu_atomic_value(EMU_ATOMIC_COMPARE_SWAP, address, value, compare);
}
inline unsigned atomicCAS(unsigned *address, unsigned compare, unsigned value) {
    return emu_atomic_value(EMU_ATOMIC_COMPARE_SWAP, address, value, compare);
}
inline unsigned long long atomicCAS(unsigned long long *address, unsigned long long compare,
                                    unsigned long long value) {
    return emu_atomic_value(EMU_ATOMIC_COMPARE_SWAP, address, value, compare);
}

/* ---- loads and stores with a cache hint ----------------------------------------------------- */

/* Reports an address that is not a multiple of `bytes`. */
void emu_check_aligned(const void *address, size_t bytes);

#define EMU_LOAD(function)                                                                         \
    template <class T> T function(const T *address) {                                              \
        emu_check_aligned(address, sizeof(T));                                                     \
        return *address;                                                                           \
    }
#define EMU_STORE(function)                                                                        \
    template <class T> void function(T *address, T value) {                                        \
        emu_check_aligned(address, sizeof(T));                                                     \
        *address = value;                                                                          \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldca)
EMU_STORE(__stcs)
EMU_STORE(__stcg)
#undef EMU_LOAD
#undef EMU_STORE

/* ---- integers ------------------------------------------------------------------------------- */

/* Byte i of the result is the byte of (b:a) that the low 3 bits of nibble i of selector name. */
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned from = selector >> (4 * i) & 7;
        result |= (unsigned)(bytes >> (8 * from) & 0xff) << (8 * i);
    }
    return result;
}

/* c + the dot product of the four bytes of a and b. */
inline int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; i++)
        sum += (unsigned)((int8_t)(a >> (8 * i)) * (int8_t)(b >> (8 * i)));
    return (int)sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++)
        c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
    return c;
}

/* c + the dot product of the two 16-bit halves of a and the lower, or upper, two bytes of b. */
inline int __dp2a_lo(int a, int b, int c) {
    return (int)((unsigned)c + (unsigned)((int16_t)a * (int8_t)b) +
                 (unsigned)((a >> 16) * (int8_t)(b >> 8)));
}
inline int __dp2a_hi(int a, int b, int c) {
    return __dp2a_lo(a, b >> 16, c);
}

inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* CUDA's min and max mix types like the usual arithmetic conversions; of a NaN and a number they
 * take the number. */
template <class A, class B> std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return (T)fmin((T)a, (T)b);
    else
        return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B> std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return (T)fmax((T)a, (T)b);
    else
        return (T)a < (T)b ? (T)b : (T)a;
}

/* ---- bit patterns --------------------------------------------------------------------------- */

#define EMU_BITS(function, to, from)                                                               \
    inline to function(from x) {                                                                   \
        to y;                                                                                      \
        static_assert(sizeof x == sizeof y, "same size");                                          \
        memcpy(&y, &x, sizeof y);                                                                  \
        return y;                                                                                  \
    }
EMU_BITS(__float_as_int, int, float)
EMU_BITS(__float_as_uint, unsigned, float)
EMU_BITS(__int_as_float, float, int)
EMU_BITS(__uint_as_float, float, unsigned)
EMU_BITS(__double_as_longlong, long long, double)
EMU_BITS(__longlong_as_double, double, long long)
#undef EMU_BITS

/* ---- arithmetic with the rounding in its name: to nearest, ties to even --------------------- */

#define EMU_BINARY(function, type, operation)                                                      \
    inline type function(type a, type b) {                                                         \
        return a operation b;                                                                      \
    }
EMU_BINARY(__fadd_rn, float, +)
EMU_BINARY(__fsub_rn, float, -)
EMU_BINARY(__fmul_rn, float, *)
EMU_BINARY(__fdiv_rn, float, /)
EMU_BINARY(__dadd_rn, double, +)
EMU_BINARY(__dsub_rn, double, -)
EMU_BINARY(__dmul_rn, double, *)
EMU_BINARY(__ddiv_rn, double, /)
#undef EMU_BINARY

inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
inline double __dsqrt_rn(double x) {
    return sqrt(x);
}
inline float __frcp_rn(float x) {
    return 1.0f / x;
}
inline double __drcp_rn(double x) {
    return 1.0 / x;
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline double __fma_rn(double a, double b, double c) {
    return fma(a, b, c);
}
inline float __int2float_rn(int x) {
    return (float)x;
}
inline float __uint2float_rn(unsigned x) {
    return (float)x;
}
inline float __ll2float_rn(long long x) {
    return (float)x;
}
inline double __int2double_rn(int x) {
    return x;
}
inline double __ll2double_rn(long long x) {
    return (double)x;
}
inline float __double2float_rn(double x) {
    return (float)x;
}

#endif
