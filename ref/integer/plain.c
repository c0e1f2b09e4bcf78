/* Plain C, for any CPU: a compiler makes of it what it can. */
#include "ref/integer/integer.h"

enum { N_LANES = 8, W_ROWS = 1, X_ROWS = 1 };

typedef struct {
    int16_t of[N_LANES];
} lanes;

typedef struct {
    int32_t of[N_LANES / 2];
} sums;

static inline lanes load(const int16_t *from) {
    lanes a;
    memcpy(&a, from, sizeof a);
    return a;
}

static inline sums zero(void) {
    return (sums){{0}};
}

static inline sums multiply_add(sums s, lanes a, lanes b) {
    for (int i = 0; i < N_LANES / 2; i++)
        s.of[i] += a.of[2 * i] * b.of[2 * i] + a.of[2 * i + 1] * b.of[2 * i + 1];
    return s;
}

static inline lanes pair(const int16_t *x) {
    lanes a;
    for (int i = 0; i < N_LANES; i++)
        a.of[i] = x[i % 2];
    return a;
}

static inline lanes zip(lanes a, lanes b, int first) {
    lanes both;
    for (int i = 0; i < N_LANES; i++)
        both.of[i] = i % 2 ? b.of[first + i / 2] : a.of[first + i / 2];
    return both;
}

#define zip_first(a, b) zip(a, b, 0)
#define zip_second(a, b) zip(a, b, 4)

static inline int64_t total(sums high, sums low) {
    int64_t sum = 0;
    for (int i = 0; i < N_LANES / 2; i++)
        sum += 256 * (int64_t)high.of[i] + low.of[i];
    return sum;
}

#include "ref/integer/kernels.h"

const struct integer_kernels integer_plain = KERNELS("plain");
