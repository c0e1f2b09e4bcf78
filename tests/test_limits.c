/* Just inside and just outside of what each kernel is made for: rows too long for its registers,
 * digit sums near 2^31, more rows than one product takes, arrays that do not begin at whole
 * vectors, memory that is not there. */
#include "model/numerics.h"
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/oracle.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static float *random_floats(struct random *r, int n) {
    float *x = host_array((size_t)n, sizeof *x);
    random_fill(r, x, (size_t)n, NORMAL);
    return x;
}

static float *put_floats(struct test_device *t, const float *x, int n) {
    return device_put(t, x, sizeof *x * (size_t)n);
}

/* ---- long rows ------------------------------------------------------------------------------- */

enum { ROWS = 9 };

/* The largest value of a row decides its exponent, wherever it stands: row i has it at column i, or
 * i before the end. */
static void check_long_rows(struct test_device *t, struct random *r, int n_cols, bool at_end) {
    float *x = random_floats(r, ROWS * n_cols), *gain = random_floats(r, n_cols);
    for (int i = 0; i < ROWS; i++)
        x[i * n_cols + (at_end ? n_cols - 1 - i : i)] = i % 2 ? 1000.0f : -1000.0f;
    const float *from = put_floats(t, x, ROWS * n_cols);

    struct bfp_rows snapped = host_rows(ROWS, n_cols);
    struct bfp_rows got = {device_poisoned(t, sizeof(int16_t) * (size_t)(ROWS * n_cols)),
                           device_poisoned(t, ROWS)};
    oracle_snap_rows(snapped, x, ROWS, n_cols);
    t->ops->snap_rows(t->dev, got, from, ROWS, n_cols, 1);
    device_expect_rows(t, "snap_rows", snapped, got, ROWS, n_cols);
    free_host_rows(snapped);

    float *normed = host_array((size_t)(ROWS * n_cols), sizeof *normed);
    float *to = device_poisoned(t, sizeof *to * (size_t)(ROWS * n_cols));
    oracle_rmsnorm(normed, x, gain, ROWS, n_cols, 1e-6);
    t->ops->rmsnorm(t->dev, to, from, put_floats(t, gain, n_cols), ROWS, n_cols, 1, 1e-6, 1);
    device_expect_floats(t, "rmsnorm", normed, to, ROWS, n_cols);
    device_expect_fault(t, -1, 0);
    free(normed);
    free(gain);
    free(x);
    device_clear(t);
}

static void test_long_rows(void **state) {
    struct random r = {61};
    static const int sizes[] = {508,  516,  1020, 1024, 1028,  2052,  4092,
                                4096, 4100, 8192, 8196, 16380, 16384, 16388};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int at_end = 0; at_end < 2; at_end++)
            check_long_rows(*state, &r, sizes[i], at_end);
}

/* ---- linear ---------------------------------------------------------------------------------- */

static void check_linear(struct test_device *t, struct bfp_rows x, struct bfp_rows w, int m, int n,
                         int k) {
    struct matrix matrix;
    struct error err = {""};
    if (t->ops->matrix_create(t->dev, &matrix, n, k, &err))
        fail_msg("%s", err.text);
    t->ops->matrix_put(t->dev, &matrix, 0, n, w.mantissas, w.exponents);
    float *want = host_array((size_t)m * (size_t)n, sizeof *want);
    float *got = device_poisoned(t, sizeof *got * (size_t)m * (size_t)n);
    t->ops->linear(t->dev, got, device_put_rows(t, x, m, k), &matrix, m);
    oracle_linear(want, x, w, m, n, k);
    device_expect_floats(t, "linear", want, got, m, n);
    device_expect_fault(t, -1, 0);
    free(want);
    t->ops->matrix_free(t->dev, &matrix);
    device_clear(t);
}

/* Any mantissas, exponents that tell rows apart. */
static struct bfp_rows random_mantissas(struct random *r, int n_rows, int n_cols) {
    struct bfp_rows rows = host_rows(n_rows, n_cols);
    for (int64_t i = 0; i < (int64_t)n_rows * n_cols; i++)
        rows.mantissas[i] = (int16_t)((int)(random_bits64(r) % 65279) - BFP_MAX_MANTISSA);
    for (int i = 0; i < n_rows; i++)
        rows.exponents[i] = (int8_t)(i % 23 - 11);
    return rows;
}

/* The largest sums of digits: signed digits of 32639 are 127 and 127, those of 32384 are 127 and
 * -128; the unsigned low digit of 32511 is 255. Around the lengths at which they no longer fit into
 * 32 bits. */
static void test_digit_sums(void **state) {
    static const int ks[] = {65536, 65544, 70000, 131008, 131009, 262144, 262145, 1 << 20, 1 << 21};
    /* Version 3 takes even N. Version 4 shares a sum among fewer warps where rows are more than 16:
     * at the most columns that it takes, each row comes five times. */
    enum { PATTERNS = 4, N = 4, TIMES = 5, MOST_OF_4 = 262144 };
    for (size_t i = 0; i < COUNT(ks); i++) {
        int m = ks[i] == MOST_OF_4 ? TIMES * PATTERNS : PATTERNS;
        struct bfp_rows x = host_rows(m, ks[i]), w = host_rows(N, ks[i]);
        for (int j = 0; j < ks[i]; j++) {
            w.mantissas[3 * ks[i] + j] = 32511;
            x.mantissas[j] = w.mantissas[j] = 32639;
            x.mantissas[ks[i] + j] = 32511;
            x.mantissas[2 * ks[i] + j] = w.mantissas[ks[i] + j] = -32639;
            x.mantissas[3 * ks[i] + j] = w.mantissas[2 * ks[i] + j] = 32384;
        }
        for (int j = PATTERNS; j < m; j++)
            memcpy(x.mantissas + (size_t)j * (size_t)ks[i],
                   x.mantissas + (size_t)(j % PATTERNS) * (size_t)ks[i],
                   sizeof *x.mantissas * (size_t)ks[i]);
        for (int j = 0; j < m; j++)
            x.exponents[j] = (int8_t)j;
        for (int j = 0; j < N; j++)
            w.exponents[j] = (int8_t)j;
        check_linear(*state, x, w, m, N, ks[i]);
        free_host_rows(x);
        free_host_rows(w);
    }
}

/* More rows of x than one int8 product takes. */
static void test_many_rows(void **state) {
    struct random r = {62};
    static const int ms[] = {1023, 1024, 1025, 2055};
    enum { N = 6, K = 67 };
    struct bfp_rows w = random_mantissas(&r, N, K);
    for (size_t i = 0; i < COUNT(ms); i++) {
        struct bfp_rows x = random_mantissas(&r, ms[i], K);
        check_linear(*state, x, w, ms[i], N, K);
        free_host_rows(x);
    }
    free_host_rows(w);
}

/* Ends of tiles, of bands of tiles, and of steps along k. */
static void test_tile_ends(void **state) {
    struct random r = {67};
    static const int ms[] = {1, 32, 33, 63, 64, 65, 129, 577}, ns[] = {1, 127, 128, 129, 257},
                     ks[] = {8, 56, 72, 136, 264};
    for (size_t i = 0; i < COUNT(ms); i++)
        for (size_t j = 0; j < COUNT(ns); j++) {
            int m = ms[i], n = ns[j], k = ks[(i + 2 * j) % COUNT(ks)];
            struct bfp_rows x = random_mantissas(&r, m, k), w = random_mantissas(&r, n, k);
            check_linear(*state, x, w, m, n, k);
            free_host_rows(x);
            free_host_rows(w);
        }
}

/* More weights than the dgemm version widens at once. */
static void test_many_weights(void **state) {
    struct test_device *t = *state;
    if (t->ops == &ref_ops || (device_is_emulated() && kernel_under_test() != 2))
        skip();
    struct random r = {63};
    enum { M = 2, N = 4101, K = 8190 };
    struct bfp_rows w = random_mantissas(&r, N, K), x = random_mantissas(&r, M, K);
    check_linear(t, x, w, M, N, K);
    free_host_rows(x);
    free_host_rows(w);
}

/* ---- arrays of any place and size ------------------------------------------------------------ */

/* y, x and z begin `offsets` elements behind a whole vector. */
static void check_offsets(struct test_device *t, struct random *r, const int offsets[3]) {
    enum { N = 1030, ROOM = N + 4 };
    float *x = random_floats(r, ROOM), *z = random_floats(r, ROOM), want[ROOM];
    const float *from_x = put_floats(t, x, ROOM), *from_z = put_floats(t, z, ROOM);
    for (int silu = 0; silu < 2; silu++) {
        poison(want, sizeof want);
        float *y = put_floats(t, want, ROOM);
        (silu ? t->ops->silu_mul : t->ops->add)(t->dev, y + offsets[0], from_x + offsets[1],
                                                from_z + offsets[2], N);
        for (int i = 0; i < N && !silu; i++)
            want[offsets[0] + i] = x[offsets[1] + i] + z[offsets[2] + i];
        if (silu)
            oracle_silu_mul(want + offsets[0], x + offsets[1], z + offsets[2], N);
        device_expect_floats(t, silu ? "silu_mul" : "add", want, y, 1, ROOM);
    }
    free(z);
    free(x);
    device_clear(t);
}

static void test_any_offsets(void **state) {
    struct random r = {64};
    for (int i = 0; i < 64; i++)
        check_offsets(*state, &r, (int[3]){i % 4, i / 4 % 4, i / 16});
}

/* Heads of which a half is not made of whole vectors. */
static void test_small_heads(void **state) {
    struct test_device *t = *state;
    struct random r = {65};
    enum { TOKENS = 5, HEADS = 3, POSITIONS = 7 };
    for (int half = 1; half <= 12; half++) {
        int n = TOKENS * HEADS * 2 * half;
        float *x = random_floats(&r, n), *c = random_floats(&r, POSITIONS * half);
        float *s = random_floats(&r, POSITIONS * half), *got = put_floats(t, x, n);
        int32_t positions[TOKENS] = {0, POSITIONS - 1, 3, 2, 1};
        t->ops->rope(t->dev, got, device_put(t, positions, sizeof positions),
                     put_floats(t, c, POSITIONS * half), put_floats(t, s, POSITIONS * half), TOKENS,
                     HEADS, 2 * half);
        oracle_rope(x, positions, c, s, TOKENS, HEADS, 2 * half);
        device_expect_floats(t, "rope", x, got, TOKENS, HEADS * 2 * half);
        free(s);
        free(c);
        free(x);
        device_clear(t);
    }
}

/* ---- sample ---------------------------------------------------------------------------------- */

/* 641 equal logits have weights of 2^30, and 641 * 6700417 = 2^32 + 1. So with top_p = 6700417 /
 * 2^32 the tokens that stay must hold 2^30 and a quarter: the first one is not enough, two are. */
static void test_share_just_above_a_token(void **state) {
    struct test_device *t = *state;
    enum { VOCAB = 641, DRAWS = 32 };
    float logits[VOCAB * DRAWS] = {0};
    struct sampling how[DRAWS];
    int32_t want[DRAWS];
    int n_second = 0;
    for (int i = 0; i < DRAWS; i++) {
        how[i] = (struct sampling){.temperature = 1, .top_p = 6700417 * 0x1p-32f};
        how[i].position = (uint32_t)i;
        want[i] = oracle_sample(logits, &how[i], VOCAB);
        n_second += want[i] == 1;
        assert_in_range(want[i], 0, 1);
    }
    assert_in_range(n_second, 1, DRAWS - 1);
    int32_t *ids = device_poisoned(t, sizeof want);
    t->ops->sample(t->dev, ids, device_put(t, logits, sizeof logits), how, DRAWS, VOCAB, 1);
    int32_t *got = device_get(t, ids, sizeof want);
    assert_memory_equal(got, want, sizeof want);
    free(got);
    device_clear(t);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* An allocation that fails is the caller's matter; the device goes on. */
static void test_life_after_a_failed_allocation(void **state) {
    struct test_device *t = *state;
    struct random r = {66};
    struct error err = {""};
    assert_null(t->ops->alloc(t->dev, SIZE_MAX / 2, "the moon", &err));
    check_long_rows(t, &r, 40, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_any_offsets),
        cmocka_unit_test(test_small_heads),
        cmocka_unit_test(test_share_just_above_a_token),
        cmocka_unit_test(test_life_after_a_failed_allocation),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_tile_ends),
        cmocka_unit_test(test_digit_sums),
        cmocka_unit_test(test_many_weights),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
