/* Plain C, with GCC's and Clang's vectors, for any CPU: a compiler makes of them what it has. */
#include "ref/integer/integer.h"

enum { N_LANES = 8, W_ROWS = 2, X_ROWS = 2 };

typedef int16_t lanes __attribute__((vector_size(2 * N_LANES)));
typedef int32_t sums __attribute__((vector_size(2 * N_LANES)));
typedef uint32_t wrapped __attribute__((vector_size(2 * N_LANES)));

/* The two halves of each 32 bits. */
static inline sums multiply(lanes a, lanes b) {
    sums x = (sums)a, y = (sums)b;
    return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
}

static inline lanes pair(const int16_t *x) {
    return (lanes){x[0], x[1], x[0], x[1], x[0], x[1], x[0], x[1]};
}

static inline lanes zip_first(lanes a, lanes b) {
    return (lanes){a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]};
}

static inline lanes zip_second(lanes a, lanes b) {
    return (lanes){a[4], b[4], a[5], b[5], a[6], b[6], a[7], b[7]};
}

static inline void across(int32_t *to, const sums *s) {
    for (int i = 0; i < 4; i++) {
        wrapped w = (wrapped)s[i];
        to[i] = (int32_t)(w[0] + w[1] + w[2] + w[3]);
    }
}

#include "ref/integer/pairs.h"

#include "ref/integer/kernels.h"

const struct integer_kernels integer_plain = KERNELS("plain", dots);
