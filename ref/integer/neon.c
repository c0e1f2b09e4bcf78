/* NEON: smull and smlal2 multiply 4 of 8 mantissas each, and add; ssra adds high halves; 32
 * registers. */
#include "ref/integer/integer.h"

#if defined __ARM_NEON
#include <arm_neon.h>

enum { N_LANES = 8, W_ROWS = 4, X_ROWS = 2 };

typedef int16x8_t lanes;
typedef int32x4_t sums;
typedef uint32x4_t wrapped;

/* Neighbours are number i and number i + 4 here. */
static inline sums multiply(lanes a, lanes b) {
    return vmlal_high_s16(vmull_s16(vget_low_s16(a), vget_low_s16(b)), a, b);
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

static inline void across(int32_t *to, const sums *s) {
    vst1q_s32(to, vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])));
}

#include "ref/integer/pairs.h"

#include "ref/integer/kernels.h"

const struct integer_kernels integer_neon = KERNELS("neon", dots);
#else
const struct integer_kernels integer_neon;
#endif
