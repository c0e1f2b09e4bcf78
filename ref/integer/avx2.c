/* AVX2: vpmaddwd multiplies 16 mantissas and adds neighbours; 16 registers. */
#include "ref/integer/integer.h"

#if defined __AVX2__
#include <immintrin.h>

enum { N_LANES = 16, W_ROWS = 3, X_ROWS = 2 };

typedef int16_t lanes __attribute__((vector_size(2 * N_LANES)));
typedef int32_t sums __attribute__((vector_size(2 * N_LANES)));
typedef uint32_t wrapped __attribute__((vector_size(2 * N_LANES)));

static inline sums multiply(lanes a, lanes b) {
    return (sums)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}

static inline lanes pair(const int16_t *x) {
    int32_t both;
    memcpy(&both, x, sizeof both);
    return (lanes)_mm256_set1_epi32(both);
}

static inline lanes zip_first(lanes a, lanes b) {
    return (lanes)_mm256_unpacklo_epi16((__m256i)a, (__m256i)b);
}

static inline lanes zip_second(lanes a, lanes b) {
    return (lanes)_mm256_unpackhi_epi16((__m256i)a, (__m256i)b);
}

static inline void across(int32_t *to, const sums *s) {
    __m256i ab = _mm256_hadd_epi32((__m256i)s[0], (__m256i)s[1]);
    __m256i cd = _mm256_hadd_epi32((__m256i)s[2], (__m256i)s[3]);
    __m256i all = _mm256_hadd_epi32(ab, cd);
    _mm_storeu_si128((__m128i *)to,
                     _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

#include "ref/integer/pairs.h"

#include "ref/integer/kernels.h"

const struct integer_kernels integer_avx2 = KERNELS("avx2", dots);
#else
const struct integer_kernels integer_avx2;
#endif
