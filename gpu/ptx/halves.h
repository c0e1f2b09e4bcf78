/*
 * halves.h - numbers of 16 bits, two in a register: the few instructions for them that attention
 * needs. PTX under nvcc, plain C in the emulation; the same bits.
 */
#ifndef SAMEBITS_GPU_PTX_HALVES_H
#define SAMEBITS_GPU_PTX_HALVES_H

#include "gpu/cuda_compat.h"
#include "model/attention/kv_type.h"

/* Two times x. */
static __device__ __forceinline__ uint32_t halves_of(uint32_t x) {
    return x << 16 | x;
}

#ifdef SAMEBITS_EMU

/* The value of fp16 bits, and the nearest fp16 number, ties to even. */
static inline float half_to_float(uint32_t bits) {
    struct small_float f = small_float_of(KV_FP16);
    uint32_t magnitude = kv_magnitude(KV_FP16, bits);
    if (magnitude > f.largest)
        return magnitude > f.largest + 1 ? NAN : bits >> 15 & 1 ? -INFINITY : INFINITY;
    return kv_float(KV_FP16, bits);
}

static inline uint32_t half_of_float(float x) {
    if (!(num_magnitude(x) < num_bits(65520.0f)))
        return x == x ? num_bits(x) >> 31 << 15 | 0x7c00 : 0x7fff;
    return small_float_nearest(small_float_of(KV_FP16), x);
}

static inline uint32_t halves_of_float(float x) {
    return halves_of(half_of_float(x));
}

/* a * b + c, rounded once: float64 holds what attention adds, and float32, rounded to odd, enough
 * of it for the next rounding. */
static inline uint32_t half_fma(uint32_t a, uint32_t b, uint32_t c) {
    double sum = (double)half_to_float(a & 0xffff) * (double)half_to_float(b & 0xffff) +
                 (double)half_to_float(c & 0xffff);
    float x = (float)sum;
    if ((double)x != sum && x == x)
        x = num_float((num_bits(x) - (fabs((double)x) > fabs(sum))) | 1);
    return half_of_float(x);
}

static inline uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    return half_fma(a >> 16, b >> 16, c >> 16) << 16 | half_fma(a, b, c);
}

/* For each half: the larger of a, which is a magnitude, and the magnitude of b; a NaN is the
 * largest. */
template <enum kv_type TYPE> static inline uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
    uint32_t low = max(a & 0x7fff, b & 0x7fff), high = max(a & 0x7fff0000, b & 0x7fff0000);
    return high | low;
}

/* For each half, an unsigned number: the largest of three, and the larger of a + b and c. */
static inline uint32_t largest_halves(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t high = max(max(a >> 16, b >> 16), c >> 16);
    return high << 16 | max(max(a & 0xffff, b & 0xffff), c & 0xffff);
}

static inline uint32_t larger_sum_of_halves(uint32_t a, uint32_t b, uint32_t c) {
    return largest_halves((a & 0xffff0000) + (b & 0xffff0000) + ((a + b) & 0xffff), c, c);
}

#else

/* The value of fp16 bits. */
static __device__ __forceinline__ float half_to_float(uint32_t bits) {
    float x;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(bits));
    return x;
}

/* Two times the nearest fp16 number. */
static __device__ __forceinline__ uint32_t halves_of_float(float x) {
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* a * b + c in fp16, rounded once, of both. */
static __device__ __forceinline__ uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* For each half: the larger of a, which is a magnitude, and the magnitude of b; a NaN is the
 * largest. Compute capability 8.0 and later. */
template <enum kv_type TYPE>
static __device__ __forceinline__ uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
    uint32_t larger = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if (TYPE == KV_FP16)
        asm("{.reg .b32 y; abs.f16x2 y, %2; max.NaN.f16x2 %0, %1, y;}"
            : "=r"(larger)
            : "r"(a), "r"(b));
    else
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b & 0x7fff7fffu));
#endif
    return larger;
}

/* For each half, an unsigned number: the largest of three, and the larger of a + b and c. */
static __device__ __forceinline__ uint32_t largest_halves(uint32_t a, uint32_t b, uint32_t c) {
    return __vimax3_u16x2(a, b, c);
}

static __device__ __forceinline__ uint32_t larger_sum_of_halves(uint32_t a, uint32_t b,
                                                                uint32_t c) {
    return __viaddmax_u16x2(a, b, c);
}

#endif

/* Two e4m3 numbers, in the lower bytes of a register, as fp16, which holds them all: their fields
 * where those of fp16 are make numbers that are 2^-8 as large, and of NaN 480; with one bit more of
 * exponent it is a NaN. */
static __device__ __forceinline__ uint32_t widen_e4m3(uint32_t bytes) {
    uint32_t upper = __byte_perm(bytes, 0, 0x1404);
    uint32_t halves = (upper & 0x80008000u) | (upper >> 1 & 0x3f803f80u);
    uint32_t nan = ((halves & 0x7fff7fffu) + 0x00800080u) & 0x40004000u;
    return halves_fma(halves | nan, halves_of(0x5c00), 0);
}

/* Four of them: [0] the lower two. */
static __device__ __forceinline__ void halves_of_e4m3(uint32_t out[2], uint32_t bytes) {
#if !defined(SAMEBITS_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; "
        "cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(bytes));
#else
    out[0] = widen_e4m3(bytes);
    out[1] = widen_e4m3(bytes >> 16);
#endif
}

/* Four fp8 numbers as fp16, which holds them all: [0] the lower two. e5m2 is the upper byte of
 * fp16. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void halves_of_fp8(uint32_t out[2], uint32_t bytes) {
    if constexpr (TYPE == KV_E4M3) {
        halves_of_e4m3(out, bytes);
    } else {
        out[0] = __byte_perm(bytes, 0, 0x1404);
        out[1] = __byte_perm(bytes, 0, 0x3424);
    }
}

#endif
