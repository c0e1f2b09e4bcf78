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
unsigned emu_lane(void); /* of the caller */

enum emu_shuffle { EMU_INDEX, EMU_UP, EMU_DOWN, EMU_XOR };
enum emu_reduce { EMU_ADD, EMU_MAX, EMU_MAX_SIGNED, EMU_OR, EMU_AND };

uint64_t emu_warp_shuffle(enum emu_shuffle how, uint32_t mask, uint64_t value, int operand,
                          int width, const char *file, int line);
uint32_t emu_warp_reduce(enum emu_reduce how, const char *name, uint32_t mask, uint32_t value,
                         const char *file, int line);
void emu_warp_sync(uint32_t mask, const char *file, int line);

/* The caller's place in the source, as default arguments; CUDA's functions take none of these. */
#define EMU_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_PLACE) {
    emu_barrier(file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_PLACE) {
    emu_warp_sync(mask, file, line);
}
/* Atomics are in order with all else. */
inline void __threadfence(void) {
    __asm__ volatile("" ::: "memory");
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_PLACE) {
    return emu_warp_reduce(EMU_OR, "__ballot_sync", mask, predicate ? 1u << emu_lane() : 0, file,
                           line);
}
inline int __any_sync(unsigned mask, int predicate, EMU_PLACE) {
    return (int)emu_warp_reduce(EMU_OR, "__any_sync", mask, predicate != 0, file, line);
}
inline int __all_sync(unsigned mask, int predicate, EMU_PLACE) {
    return (int)emu_warp_reduce(EMU_AND, "__all_sync", mask, predicate != 0, file, line);
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
    return emu_warp_reduce(EMU_ADD, "__reduce_add_sync", mask, value, file, line);
}
inline int __reduce_add_sync(unsigned mask, int value, EMU_PLACE) {
    return (int)emu_warp_reduce(EMU_ADD, "__reduce_add_sync", mask, (uint32_t)value, file, line);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, EMU_PLACE) {
    return emu_warp_reduce(EMU_MAX, "__reduce_max_sync", mask, value, file, line);
}
inline int __reduce_max_sync(unsigned mask, int value, EMU_PLACE) {
    return (int)emu_warp_reduce(EMU_MAX_SIGNED, "__reduce_max_sync", mask, (uint32_t)value, file,
                                line);
}
#undef EMU_PLACE

/* ---- what gpu/ptx/tensor_core.h calls ------------------------------------------------------- */

/* n: as many matrices b, one after the other; those of d, too. */
void emu_mma(int32_t *d, const uint32_t *a, bool a_signed, const uint32_t *b, bool b_signed,
             const char *file, int line, int n = 1);
void emu_mma_f16(float *d, const uint32_t *a, const uint32_t *b, const char *file, int line);
void emu_load_matrices(uint32_t *out, bool transpose, const void *row, const char *file, int line);
void emu_copy_start(void *to, const void *from, size_t from_bytes);
void emu_copy_commit(void);
void emu_copy_wait(size_t n_groups_left);

/* ---- atomics -------------------------------------------------------------------------------- */

/* Checks an access of the caller's, whose place in the program is `from`. */
void emu_atomic_access(const void *address, size_t bytes, const void *from);

/* Changes *address to next(what it was), and returns what it was. The compiler's calls for loads
 * and stores (memory_hooks.cpp) must not be in here. */
template <class T, class Change>
__attribute__((noinline, no_sanitize("thread"))) T emu_change(T *address, Change next) {
    T old, changed;
    emu_atomic_access(address, sizeof *address, __builtin_return_address(0));
    __atomic_load(address, &old, __ATOMIC_SEQ_CST);
    do
        changed = next(old);
    while (!__atomic_compare_exchange(address, &old, &changed, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST));
    return old;
}

template <class T> T atomicAdd(T *address, std::common_type_t<T> value) {
    return emu_change(address, [=](T old) { return (T)(old + value); });
}
template <class T> T atomicMax(T *address, std::common_type_t<T> value) {
    return emu_change(address, [=](T old) { return old < value ? value : old; });
}
template <class T> T atomicMin(T *address, std::common_type_t<T> value) {
    return emu_change(address, [=](T old) { return value < old ? value : old; });
}

/* ---- loads with a cache hint ---------------------------------------------------------------- */

/* Reports an address that is not a multiple of `bytes`. */
void emu_check_aligned(const void *address, size_t bytes);

template <class T> T __ldg(const T *address) {
    emu_check_aligned(address, sizeof(T));
    return *address;
}

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
inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
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

#endif
