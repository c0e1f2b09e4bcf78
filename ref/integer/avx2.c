/* AVX2: vpmaddwd multiplies, vpaddd adds; 16 registers. */
#include "ref/integer/integer.h"

#if defined __AVX2__
#include <immintrin.h>

enum { N_LANES = 16, W_ROWS = 2, X_ROWS = 2 };

typedef __m256i lanes, sums;

#define load(from) _mm256_loadu_si256((const __m256i_u *)(from))
#define zero _mm256_setzero_si256
#define zip_first _mm256_unpacklo_epi16
#define zip_second _mm256_unpackhi_epi16

static inline sums multiply_add(sums s, lanes a, lanes b) {
    return _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
}

static inline lanes pair(const int16_t *x) {
    int32_t both;
    memcpy(&both, x, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Sums of the two halves, in 64 bits. */
static inline __m256i widen(sums s) {
    __m256i first = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(s));
    return _mm256_add_epi64(first, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(s, 1)));
}

static inline int64_t total(sums high, sums low) {
    __m256i both = _mm256_add_epi64(_mm256_slli_epi64(widen(high), 8), widen(low));
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    return _mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1);
}

#include "ref/integer/kernels.h"

const struct integer_kernels integer_avx2 = KERNELS("avx2");
#else
const struct integer_kernels integer_avx2;
#endif
