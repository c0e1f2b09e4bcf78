/* logit_key.h - a logit and its token as one number, of which the largest is the greedy token's. */
#ifndef SAMEBITS_GPU_LOGIT_KEY_H
#define SAMEBITS_GPU_LOGIT_KEY_H

#include "gpu/gpu.h"

/* Orders like the logit; -0 and +0 are the same. */
static __device__ __forceinline__ uint32_t logit_order(float logit) {
    uint32_t bits = num_bits(logit + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static const unsigned long long NOT_FINITE = ~0ull; /* no number's key; and token 0's id */

/* Orders like (logit ascending, id descending). */
static __device__ __forceinline__ unsigned long long key_of(float logit, int id) {
    return (unsigned long long)logit_order(logit) << 32 | (0xffffffffu - (unsigned)id);
}

static __device__ __forceinline__ int token_of_key(unsigned long long key) {
    return (int)(0xffffffffu - (unsigned)(key & 0xffffffffu));
}

#endif
