/*
 * AVX-512 with VNNI: vpdpwssd multiplies 32 mantissas, adds neighbours, and that to the sums, which
 * wrap around: `low` is one instruction. `high` need not be exact, so it is the sum of products of
 * high bytes, of which vpdpbusd takes 64 at once. With
 *
 *     w = 256 W + w0, -128 <= w0 <= 127         x = 256 X + x0, -128 <= x0 <= 127
 *
 * the rest of a product, w x - 65536 W X = 256 (W x0 + X w0) + w0 x0, is at most 8,339,456: 257 of
 * these are below 2^31, and a piece puts 64 into each sum. vpdpbusd wants one of its factors
 * without a sign. That is W + 128, so a row of x says what the sums have to begin with: -128 times
 * the sum of its X.
 *
 * For many rows of x, 32 rows of w are turned first: a vector then has two numbers of each of 16
 * rows, to be multiplied by the same two of x, and a sum is one output's. Nothing is added across
 * lanes, which for short rows takes half as long as the products.
 */
#include "ref/integer/integer.h"

#if defined __AVX512VNNI__ && defined __AVX512BW__ && defined __AVX512DQ__
#include <immintrin.h>

enum { N_LANES = 32, W_ROWS = 2, X_ROWS = 4 };
enum { STEP = 2 * N_LANES, X_HEAD = 128, X_STEP = 192, REST_FITS = 256 };

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

/* The nearest high byte of each number plus `offset`, those of a pair of `first` between those of
 * `second`. */
static inline __m512i high_bytes(__m512i first, __m512i second, int offset) {
    __m512i more = _mm512_set1_epi16((short)(offset + 128));
    first = _mm512_srli_epi32(_mm512_add_epi16(first, more), 8);
    return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, first, _mm512_add_epi16(second, more));
}

static inline struct factor w_factor_of(__m512i first, __m512i second) {
    return (struct factor){first, second, high_bytes(first, second, 128 << 8)};
}

static inline struct factor w_factor(const int16_t *w) {
    return w_factor_of(_mm512_loadu_si512(w), _mm512_loadu_si512(w + N_LANES));
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

enum { TURNED_STEPS = REST_FITS / STEP, HEAD_SUMS = 64 };

/* Writes row r of x, piece by piece: first what the sums `high` begin with, in lanes, and behind
 * HEAD_SUMS bytes as one number for each TURNED_STEPS; then 64 numbers and their bytes for each
 * step. */
static void put_row(const struct x_rows *to, int r, const int16_t *x) {
    char *out = to->rows + (size_t)r * to->row_bytes, *head = out;
    __m512i zero = _mm512_setzero_si512(), high = zero, turned = zero;
    for (int i = 0; i < to->k; i += STEP, out += X_STEP) {
        int left = to->k - i < STEP ? to->k - i : STEP, step = i % ROW_PIECE / STEP;
        __mmask64 there = ~(__mmask64)0 >> (STEP - left);
        __m512i first = _mm512_maskz_loadu_epi16((__mmask32)there, x + i);
        __m512i second = _mm512_maskz_loadu_epi16((__mmask32)(there >> 32), x + i + N_LANES);
        if (step == 0) {
            head = out;
            out += X_HEAD;
            high = zero;
        }
        __m512i bytes = high_bytes(first, second, 0), factor = _mm512_set1_epi8(-128);
        high = _mm512_dpbusd_epi32(high, factor, bytes); /* 128, without a sign */
        turned = _mm512_dpbusd_epi32(step % TURNED_STEPS ? turned : zero, factor, bytes);
        int32_t sum = -_mm512_reduce_add_epi32(turned);
        memcpy(head + HEAD_SUMS + (size_t)(step / TURNED_STEPS) * sizeof sum, &sum, sizeof sum);
        _mm512_storeu_si512(head, _mm512_sub_epi32(zero, high));
        _mm512_storeu_si512(out, first);
        _mm512_storeu_si512(out + 64, second);
        _mm512_storeu_si512(out + 128, bytes);
    }
}

#include "ref/integer/kernels.h"

/* ---- 32 rows of w at once -----------------------------------------------------------------------
 */

enum {
    TURNED = 32,        /* rows of w, in two groups */
    GROUP = 16,         /* rows: one in each lane of the sums */
    LEAST_W = 8,        /* rows of w, for which it is worth it to turn them; and of x, */
    ENOUGH_X = 32,      /* or fewer where rows are short: */
    NUMBERS_PER_X = 8,  /* of a row for each row of x */
    PREFETCH_ROWS = 64, /* w that comes next */
};

/* Four pairs of 16 rows: vector i has pair i of all rows. */
UNROLLED void turn(__m512i to[4], const int16_t *const rows[GROUP], int at) {
    __m512i a[4];
    UNROLL for (int i = 0; i < 4; i++) {
        a[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[i] + at)));
        UNROLL for (int lane = 1; lane < 4; lane++) a[i] = _mm512_mask_broadcast_i32x4(
            a[i], (__mmask16)(15 << 4 * lane),
            _mm_loadu_si128((const __m128i *)(rows[4 * lane + i] + at)));
    }
    __m512i ab = _mm512_unpacklo_epi32(a[0], a[1]), cd = _mm512_unpacklo_epi32(a[2], a[3]);
    to[0] = _mm512_unpacklo_epi64(ab, cd);
    to[1] = _mm512_unpackhi_epi64(ab, cd);
    ab = _mm512_unpackhi_epi32(a[0], a[1]), cd = _mm512_unpackhi_epi32(a[2], a[3]);
    to[2] = _mm512_unpacklo_epi64(ab, cd);
    to[3] = _mm512_unpackhi_epi64(ab, cd);
}

/* Some steps of n_w <= 32 rows; behind the last row that one is taken again. */
static void turn_steps(struct factor to[TURNED_STEPS * GROUP][2], const int16_t *w, size_t w_step,
                       int n_w, int steps) {
    for (int group = 0; group < 2; group++) {
        const int16_t *rows[GROUP];
        for (int i = 0; i < GROUP; i++) {
            int row = group * GROUP + i;
            rows[i] = w + (size_t)(row < n_w ? row : n_w - 1) * w_step;
            for (int at = 0; at < steps * STEP; at += LINE)
                __builtin_prefetch(rows[i] + PREFETCH_ROWS * w_step + at, 0, 2);
        }
        for (int quarter = 0; quarter < 4 * steps; quarter++) {
            int at = quarter / 4 * STEP + quarter % 4 * 8;
            __m512i first[4], second[4];
            turn(first, rows, at);
            turn(second, rows, at + N_LANES);
            UNROLL for (int i = 0; i < 4; i++) to[4 * quarter + i][group] =
                w_factor_of(first[i], second[i]);
        }
    }
}

static inline __m256i half_of(__m512i x, int half) { /* clang wants the half as a constant */
    return half ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x);
}

static inline __m512i everywhere(const char *from) {
    int32_t both;
    memcpy(&both, from, sizeof both);
    return _mm512_set1_epi32(both);
}

/* Some steps of n_x rows of x, with all that was turned. sums: what `high` begins with. */
UNROLLED void multiply_turned(double *out, size_t out_step, const char *x, const char *sums_of_x,
                              size_t x_step, int n_x, const struct factor w[][2], int n_w,
                              int steps, bool is_first) {
    sums high[8];
    wrapped low[8] = {{0}};
    UNROLL for (int i = 0; i < 2 * n_x; i++) high[i] =
        (sums)everywhere(sums_of_x + (size_t)(i / 2) * x_step);
    for (int s = 0; s < steps; s++, x += X_STEP) {
        for (int i = 0; i < GROUP; i++, w++) {
            UNROLL for (int t = 0; t < n_x; t++) {
                const char *from = x + (size_t)t * x_step + 4 * i;
                struct factor of_x = {everywhere(from), everywhere(from + 64),
                                      everywhere(from + 128)};
                multiply_add(&low[2 * t], &high[2 * t], w[0][0], of_x);
                multiply_add(&low[2 * t + 1], &high[2 * t + 1], w[0][1], of_x);
            }
        }
    }
    UNROLL for (int i = 0; i < 4 * n_x; i++) { /* 8 outputs */
        int left = n_w - i % 4 * 8;
        __mmask8 there = left >= 8 ? 0xff : left > 0 ? (__mmask8)((1 << left) - 1) : 0;
        double *to = out + (size_t)(i / 4) * out_step + i % 4 * 8;
        wrapped rest = low[i / 2] - ((wrapped)high[i / 2] << 16);
        __m256i h = half_of((__m512i)high[i / 2], i % 2), l = half_of((__m512i)rest, i % 2);
        __m512d found =
            _mm512_fmadd_pd(_mm512_set1_pd(65536), _mm512_cvtepi32_pd(h), _mm512_cvtepi32_pd(l));
        if (!is_first)
            found = _mm512_add_pd(found, _mm512_maskz_loadu_pd(there, to));
        _mm512_mask_storeu_pd(to, there, found);
    }
}

static void dots_turned(double *out, size_t out_step, const struct x_rows *x, int first_x, int n_x,
                        const int16_t *w, size_t w_step, int n_w) {
    if (n_w < LEAST_W || (n_x < ENOUGH_X && n_x * NUMBERS_PER_X < x->k)) {
        dots(out, out_step, x, first_x, n_x, w, w_step, n_w);
        return;
    }
    struct factor turned[TURNED_STEPS * GROUP][2];
    for (int first = 0; first < n_steps(x->k); first += TURNED_STEPS) {
        int steps = n_steps(x->k) - first, in_piece = first % PIECE_STEPS;
        steps = steps < TURNED_STEPS ? steps : TURNED_STEPS;
        const char *head =
            x->rows + (size_t)first_x * x->row_bytes + (size_t)(first / PIECE_STEPS) * PIECE_BYTES;
        const char *from = head + X_HEAD + in_piece * X_STEP;
        head += HEAD_SUMS + in_piece / TURNED_STEPS * (int)sizeof(int32_t);
        for (int r = 0; r < n_w; r += TURNED) {
            int n = n_w - r < TURNED ? n_w - r : TURNED, t = 0;
            turn_steps(turned, w + (size_t)r * w_step + first * STEP, w_step, n, steps);
#define MULTIPLY(n_rows)                                                                           \
    multiply_turned(out + (size_t)t * out_step + r, out_step, from + (size_t)t * x->row_bytes,     \
                    head + (size_t)t * x->row_bytes, x->row_bytes, n_rows, turned, n, steps,       \
                    first == 0)
            for (; t + 4 <= n_x; t += 4)
                MULTIPLY(4);
            for (; t < n_x; t++)
                MULTIPLY(1);
#undef MULTIPLY
        }
    }
}

const struct integer_kernels integer_avx512 = KERNELS("avx512", dots_turned);
#else
const struct integer_kernels integer_avx512;
#endif
