/*
 * AVX-512 with VNNI: vpdpwssd multiplies 32 mantissas, adds neighbours, and that to the sums, which
 * wrap around: `low` is one instruction. `high` need not be exact, so it is the sum of products of
 * high bytes, of which vpdpbusd takes 64 at once. With
 *
 *     w = 256 W + w0, 0 <= w0 <= 255            x = 256 X + x0, 0 <= x0 <= 255
 *
 * the rest of a product, w x - 65536 W X = 256 W x0 + w0 x, is at most 16,678,785: 128 of these are
 * below 2^31, and a piece puts 64 into each sum. vpdpbusd wants one of its factors without a sign.
 * That is W + 128, so a row of x says what the sums have to begin with: -128 times the sum of its
 * X.
 */
#include "ref/integer/integer.h"

#if defined __AVX512VNNI__ && defined __AVX512BW__ && defined __AVX512DQ__
#include <immintrin.h>

enum { N_LANES = 32, W_ROWS = 2, X_ROWS = 4 };
enum { STEP = 2 * N_LANES, X_HEAD = 64, X_STEP = 192 };

typedef int16_t lanes __attribute__((vector_size(2 * N_LANES)));
typedef int32_t sums __attribute__((vector_size(2 * N_LANES)));
typedef uint32_t wrapped __attribute__((vector_size(2 * N_LANES)));

static inline sums multiply(lanes a, lanes b) {
    return (sums)_mm512_madd_epi16((__m512i)a, (__m512i)b);
}

static inline lanes pair(const int16_t *x) {
    int32_t both;
    memcpy(&both, x, sizeof both);
    return (lanes)_mm512_set1_epi32(both);
}

static inline lanes zip_first(lanes a, lanes b) {
    return (lanes)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
}

static inline lanes zip_second(lanes a, lanes b) {
    return (lanes)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
}

/* Neighbours of a and b are added, until each of four lanes has the sum of one vector. */
static inline void across(int32_t *to, const sums *s) {
    __m512i a = (__m512i)s[0], b = (__m512i)s[1], c = (__m512i)s[2], d = (__m512i)s[3];
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    _mm_storeu_si128((__m128i *)to, _mm_add_epi32(_mm256_castsi256_si128(half),
                                                  _mm256_extracti128_si256(half, 1)));
}

struct factor {
    __m512i first, second, bytes; /* bytes: of those pairs that go to the same sums */
};

/* The high byte of each number, those of a pair of `first` between those of `second`. */
static inline __m512i high_bytes(__m512i first, __m512i second) {
    return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, _mm512_srli_epi32(first, 8), second);
}

static inline struct factor w_factor(const int16_t *w) {
    __m512i first = _mm512_loadu_si512(w), second = _mm512_loadu_si512(w + N_LANES);
    __m512i bytes = _mm512_xor_si512(high_bytes(first, second), _mm512_set1_epi8(-128));
    return (struct factor){first, second, bytes};
}

static inline struct factor x_factor(const char *x) {
    struct factor f = {_mm512_loadu_si512(x), _mm512_loadu_si512(x + 64),
                       _mm512_loadu_si512(x + 128)};
    __asm__("" : "+v"(f.first), "+v"(f.second), "+v"(f.bytes)); /* once, not for each row of w */
    return f;
}

static inline sums x_head(const char *x) {
    return (sums)_mm512_loadu_si512(x);
}

static inline void multiply_add(wrapped *low, sums *high, struct factor w, struct factor x) {
    __m512i s = _mm512_dpwssd_epi32((__m512i)*low, w.first, x.first);
    *low = (wrapped)_mm512_dpwssd_epi32(s, w.second, x.second);
    *high = (sums)_mm512_dpbusd_epi32((__m512i)*high, w.bytes, x.bytes);
}

/* Writes row r of x, piece by piece: first what the sums `high` begin with, then 64 numbers and
 * their bytes for each step. */
static void put_row(const struct x_rows *to, int r, const int16_t *x) {
    char *out = to->rows + (size_t)r * to->row_bytes, *head = out;
    __m512i high = _mm512_setzero_si512();
    for (int i = 0; i < to->k; i += STEP, out += X_STEP) {
        int left = to->k - i < STEP ? to->k - i : STEP;
        __mmask64 there = ~(__mmask64)0 >> (STEP - left);
        __m512i first = _mm512_maskz_loadu_epi16((__mmask32)there, x + i);
        __m512i second = _mm512_maskz_loadu_epi16((__mmask32)(there >> 32), x + i + N_LANES);
        if (i % ROW_PIECE == 0) {
            head = out;
            out += X_HEAD;
            high = _mm512_setzero_si512();
        }
        __m512i bytes = high_bytes(first, second);
        high = _mm512_dpbusd_epi32(high, _mm512_set1_epi8(-128), bytes); /* 128, without a sign */
        _mm512_storeu_si512(head, _mm512_sub_epi32(_mm512_setzero_si512(), high));
        _mm512_storeu_si512(out, first);
        _mm512_storeu_si512(out + 64, second);
        _mm512_storeu_si512(out + 128, bytes);
    }
}

#include "ref/integer/kernels.h"

const struct integer_kernels integer_avx512 = KERNELS("avx512");
#else
const struct integer_kernels integer_avx512;
#endif
