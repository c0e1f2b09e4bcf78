/* AVX-512 with VNNI: vpdpwssd multiplies and adds at once, in 32 registers. */
#include "ref/integer/integer.h"

#if defined __AVX512VNNI__ && defined __AVX512BW__ && defined __AVX512DQ__
#include <immintrin.h>

enum { N_LANES = 32, W_ROWS = 6, X_ROWS = 2 };

typedef __m512i lanes, sums;

#define load(from) _mm512_loadu_si512(from)
#define zero _mm512_setzero_si512
#define multiply_add _mm512_dpwssd_epi32
#define zip_first _mm512_unpacklo_epi16
#define zip_second _mm512_unpackhi_epi16

static inline lanes pair(const int16_t *x) {
    int32_t both;
    memcpy(&both, x, sizeof both);
    return _mm512_set1_epi32(both);
}

/* Neighbours added, in 64 bits. */
static inline __m512i widen(sums s) {
    __m512i even = _mm512_srai_epi64(_mm512_slli_epi64(s, 32), 32);
    return _mm512_add_epi64(even, _mm512_srai_epi64(s, 32));
}

static inline int64_t total(sums high, sums low) {
    __m512i both = _mm512_add_epi64(_mm512_slli_epi64(widen(high), 8), widen(low));
    return _mm512_reduce_add_epi64(both);
}

#include "ref/integer/kernels.h"

const struct integer_kernels integer_avx512 = KERNELS("avx512");
#else
const struct integer_kernels integer_avx512;
#endif
