/*
 * digit_sums.h - products of 16-bit mantissas on int8 tensor cores, 16 rows by 8 columns a warp.
 * q = 256 * high + low, high signed, and
 *
 *     a b = 65536 high * high + 256 (high * low + low * high) + low * low
 */
#ifndef SAMEBITS_GPU_PTX_DIGIT_SUMS_H
#define SAMEBITS_GPU_PTX_DIGIT_SUMS_H

#include "gpu/ptx/tensor_core.h"

struct digit_sums {
    int32_t high[4], middle[4], low[4];
};

/* Adds 32 products each. The low digits are unsigned. */
static __device__ __forceinline__ void add_products(struct digit_sums *s, const uint32_t a_high[4],
                                                    const uint32_t a_low[4],
                                                    const uint32_t b_high[2],
                                                    const uint32_t b_low[2]) {
    mma_s8_s8(s->high, a_high, b_high);
    mma_s8_u8(s->middle, a_high, b_low);
    mma_u8_s8(s->middle, a_low, b_high);
    mma_u8_u8(s->low, a_low, b_low);
}

/* Four mantissas as signed digits. A low byte above 127 is the digit 256 less, and one is carried
 * to the high one, byte by byte; |q| <= 32639 makes that possible. */
static __device__ __forceinline__ void split_four(uint32_t *high, uint32_t *low, uint2 four) {
    *low = __byte_perm(four.x, four.y, 0x6420);
    uint32_t h = __byte_perm(four.x, four.y, 0x7531);
    *high = ((h & 0x7f7f7f7f) + (*low >> 7 & 0x01010101)) ^ (h & 0x80808080);
}

#endif
