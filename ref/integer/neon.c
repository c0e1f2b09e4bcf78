/* NEON: smlal multiplies and adds 4 of 8 lanes; 32 registers. */
#include "ref/integer/integer.h"

#if defined __ARM_NEON
#include <arm_neon.h>

enum { N_LANES = 8, W_ROWS = 4, X_ROWS = 2 };

typedef int16x8_t lanes;
typedef int32x4_t sums;

#define load(from) vld1q_s16(from)

static inline sums zero(void) {
    return vdupq_n_s32(0);
}

static inline sums multiply_add(sums s, lanes a, lanes b) {
    return vmlal_high_s16(vmlal_s16(s, vget_low_s16(a), vget_low_s16(b)), a, b);
}

static inline lanes pair(const int16_t *x) {
    return vcombine_s16(vld1_dup_s16(x), vld1_dup_s16(x + 1));
}

static inline lanes zip_first(lanes a, lanes b) {
    return vcombine_s16(vget_low_s16(a), vget_low_s16(b));
}

static inline lanes zip_second(lanes a, lanes b) {
    return vcombine_s16(vget_high_s16(a), vget_high_s16(b));
}

static inline int64_t total(sums high, sums low) {
    return 256 * vaddlvq_s32(high) + vaddlvq_s32(low);
}

#include "ref/integer/kernels.h"

const struct integer_kernels integer_neon = KERNELS("neon");
#else
const struct integer_kernels integer_neon;
#endif
