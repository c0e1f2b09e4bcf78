/*
 * division.h - division by a number that is known before the kernels start, as a product: a
 * division takes some 20 instructions, this three. Granlund and Montgomery, "Division by invariant
 * integers using multiplication", 1994.
 *
 *     struct division by_ten = division_by(10);     // host
 *     int tens = quotient(n, by_ten);               // device
 */
#ifndef SAMEBITS_GPU_PTX_DIVISION_H
#define SAMEBITS_GPU_PTX_DIVISION_H

#include "gpu/cuda_compat.h"

#include <stdint.h>

struct division {
    uint32_t factor;
    int shift;
};

/* divisor: at least 1. The quotient is n * (2^32 + factor) / 2^(32 + shift), rounded down. */
static inline struct division division_by(int divisor) {
    struct division d = {0, 0};
    uint64_t by = (uint64_t)divisor, power = 1;
    for (; power < by; power *= 2)
        d.shift++;
    d.factor = (uint32_t)(((power - by) << 32) / by) + 1;
    return d;
}

/* n divided by it, rounded down; n is not negative. */
static __device__ __forceinline__ int quotient(int n, struct division d) {
    return (int)((__umulhi((uint32_t)n, d.factor) + (uint32_t)n) >> d.shift);
}

#endif
