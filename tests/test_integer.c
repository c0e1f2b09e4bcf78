/* The integer kernels, every set of instructions that this CPU has, beside version 1, OpenBLAS: the
 * same bits in every shape, with the largest sums, and nothing written elsewhere. */
#include "ref/attention.h"
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct test_device device;

static struct ref_device *ref(void) {
    return (struct ref_device *)device.dev;
}

static const struct integer_kernels *const all[] = {&integer_plain, &integer_avx2, &integer_avx512,
                                                    &integer_neon};

/* Whether this CPU runs these; if so they are the device's. */
static bool use(const struct integer_kernels *kernels) {
    struct error err;
    if (!kernels->name)
        return false;
    setenv("SAMEBITS_ISA", kernels->name, 1);
    const struct integer_kernels *chosen = integer_choose(&err);
    unsetenv("SAMEBITS_ISA");
    ref()->kernels = chosen ? chosen : ref()->kernels;
    assert_true(!chosen || chosen == kernels);
    return chosen != NULL;
}

static void set_version(int version) {
    struct error err = {""};
    if (ref_ops.set_version(device.dev, "linear", version, &err) ||
        ref_ops.set_version(device.dev, "attend", version, &err))
        fail_msg("%s", err.text);
}

/* ---- mantissas --------------------------------------------------------------------------------
 */

/* The largest products of either sign, and those with most beside the high bytes; or anything. */
enum fill { LARGEST, SMALLEST, LOW_BYTE, NEAREST_BYTE, MIXED, ANY, N_FILLS };

static int16_t mantissa(enum fill fill, struct random *r) {
    static const int16_t ends[] = {32639, -32639, 32511, 32384, 127, -32512, -128, 1};
    if (fill == ANY)
        return (int16_t)random_int(r, -32639, 32639);
    return fill == MIXED ? ends[random_int(r, 0, 7)] : ends[fill];
}

static int16_t *mantissas(size_t n, enum fill fill, struct random *r) {
    int16_t *x = host_array(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = mantissa(fill, r);
    return x;
}

static int8_t *exponents(int n) {
    int8_t *e = host_array((size_t)n, 1);
    for (int i = 0; i < n; i++)
        e[i] = (int8_t)(i % 23 - 11);
    return e;
}

/* ---- linear -----------------------------------------------------------------------------------
 */

enum { GUARD = 64 };

static float *multiply(struct bfp_rows x, const struct matrix *w, int m) {
    size_t n = (size_t)m * (size_t)w->n;
    float *y = host_array(n + GUARD, sizeof *y);
    device.ops->linear(device.dev, y, x, w, m);
    return y;
}

static void check_linear(int m, int n, int k, enum fill of_x, enum fill of_w, struct random *r) {
    struct matrix w;
    struct error err = {""};
    struct bfp_rows x = {mantissas((size_t)m * (size_t)k, of_x, r), exponents(m)};
    int16_t *q = mantissas((size_t)n * (size_t)k, of_w, r);
    int8_t *e = exponents(n);
    assert_int_equal(device.ops->matrix_create(device.dev, &w, n, k, &err), 0);
    device.ops->matrix_put(device.dev, &w, 0, n, q, e);
    set_version(1);
    float *want = multiply(x, &w, m);
    set_version(2);
    for (size_t i = 0; i < COUNT(all); i++) {
        if (!use(all[i]))
            continue;
        float *got = multiply(x, &w, m);
        if (memcmp(got, want, sizeof *got * ((size_t)m * (size_t)n + GUARD)))
            fail_msg("%s: linear of %d x %d x %d, mantissas of kinds %d and %d", all[i]->name, m, n,
                     k, of_x, of_w);
        free(got);
    }
    free(want);
    free(q);
    free(e);
    free(x.mantissas);
    free(x.exponents);
    device.ops->matrix_free(device.dev, &w);
}

/* About the ends of vectors, tiles, pieces and groups of rows. */
static void test_linear_shapes(void **state) {
    (void)state;
    struct random r = {1};
    static const int ks[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257};
    static const int ns[] = {1, 2, 5, 6, 7, 47, 48, 49, 53, 96, 97, 800};
    static const int ms[] = {1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 129, 256, 257};
    for (size_t i = 0; i < COUNT(ks); i++)
        for (size_t j = 0; j < COUNT(ns); j++)
            check_linear(ms[(i + j) % COUNT(ms)], ns[j], ks[i], MIXED, ANY, &r);
    for (size_t i = 0; i < COUNT(ms); i++)
        check_linear(ms[i], 50, 40, ANY, MIXED, &r);
}

/* About the ends of the pieces that are summed in 32 bits. */
static void test_long_sums(void **state) {
    (void)state;
    struct random r = {2};
    static const int ks[] = {1023, 1024, 1025, 1088, 2047,  2048,
                             2049, 3072, 4113, 8193, 65535, 65536};
    static const int ms[] = {1, 2, 3, 4, 7};
    static const enum fill of_w[] = {LARGEST, SMALLEST, LOW_BYTE, ANY};
    for (size_t i = 0; i < COUNT(ks); i++)
        for (size_t x = 0; x < N_FILLS; x++)
            for (size_t w = 0; w < COUNT(of_w); w++)
                check_linear(ms[(i + x + w) % COUNT(ms)], 7, ks[i], (enum fill)x, of_w[w], &r);
}

/* Rows that are as long as what is summed before lanes are added, or longer, and so many of them
 * that the weights are turned. */
static void test_many_rows(void **state) {
    (void)state;
    struct random r = {8};
    static const int ks[] = {192, 255, 256, 257, 320, 513, 1025, 1280};
    static const int ms[] = {4, 26, 64, 65};
    static const enum fill fills[] = {LARGEST, SMALLEST, NEAREST_BYTE, ANY};
    for (size_t i = 0; i < COUNT(ks); i++)
        for (size_t j = 0; j < COUNT(ms); j++)
            for (size_t x = 0; x < COUNT(fills); x++)
                check_linear(ms[j], j % 2 ? 50 : 33, ks[i], fills[x], fills[(x + i) % 4], &r);
}

/* Several matrices in one call: each as alone. */
static void test_linear_parts(void **state) {
    (void)state;
    struct random r = {4};
    struct error err;
    enum { M = 5, K = 70, PARTS = 3 };
    static const int n[PARTS] = {50, 1, 200};
    struct bfp_rows x = {mantissas(M * K, ANY, &r), exponents(M)};
    struct matrix w[PARTS];
    struct linear_part parts[PARTS];
    float *want[PARTS];
    set_version(1);
    for (int p = 0; p < PARTS; p++) {
        int16_t *q = mantissas((size_t)(n[p] * K), ANY, &r);
        int8_t *e = exponents(n[p]);
        assert_int_equal(device.ops->matrix_create(device.dev, &w[p], n[p], K, &err), 0);
        device.ops->matrix_put(device.dev, &w[p], 0, n[p], q, e);
        want[p] = multiply(x, &w[p], M);
        parts[p] =
            (struct linear_part){host_array((size_t)(M * n[p] + GUARD), sizeof(float)), &w[p]};
        free(q);
        free(e);
    }
    set_version(2);
    device.ops->linear_parts(device.dev, parts, PARTS, x, M);
    for (int p = 0; p < PARTS; p++) {
        assert_memory_equal(parts[p].y, want[p], sizeof(float) * (size_t)(M * n[p] + GUARD));
        free(parts[p].y);
        free(want[p]);
        device.ops->matrix_free(device.dev, &w[p]);
    }
    free(x.mantissas);
    free(x.exponents);
}

/* ---- attention --------------------------------------------------------------------------------
 */

/* The products of a tile: scores [n_rows, n], then sums [n_rows, dim]. */
static float *products(const int16_t *q, const int16_t *k, const int16_t *v, const int16_t *weights,
                       int first, int n_rows, int n, int dim) {
    void *scratch = ref_block_scratch(device.dev, dim, "a test");
    assert_non_null(scratch);
    struct block_memory m = ref_block_memory(device.dev, scratch, dim, 1);
    float *out = host_array((size_t)n_rows * (size_t)(n + dim), sizeof *out), *to = out;
    poison(m.k, sizeof *m.k * 2 * TILE * (size_t)m.padded);
    for (int j = 0; j < n; j++) {
        memcpy(m.k + j * m.padded, k + j * dim, sizeof *k * (size_t)dim);
        memcpy(m.v + j * m.padded, v + j * dim, sizeof *v * (size_t)dim);
    }
    for (int r = 0; r < n_rows; r++) {
        ref_put_query(&m, first + r, q + r * dim);
        memcpy(m.weights + (first + r) * TILE, weights + r * n, sizeof *weights * (size_t)n);
        if (n % 2)
            m.weights[(first + r) * TILE + n] = 0;
    }
    ref_multiply_keys(&m, first, n_rows, n);
    ref_multiply_values(&m, first, n_rows, n);
    for (int r = first; r < first + n_rows; r++, to += n)
        memcpy(to, m.scores + r * TILE, sizeof *to * (size_t)n);
    for (int r = first; r < first + n_rows; r++, to += dim)
        memcpy(to, m.sums + r * m.padded, sizeof *to * (size_t)dim);
    return out;
}

static void check_products(int first, int n_rows, int n, int dim, enum fill x, enum fill y,
                           struct random *r) {
    int16_t *q = mantissas((size_t)(n_rows * dim), x, r), *k = mantissas((size_t)(n * dim), y, r);
    int16_t *w = mantissas((size_t)(n_rows * n), x, r), *v = mantissas((size_t)(n * dim), y, r);
    set_version(1);
    float *want = products(q, k, v, w, first, n_rows, n, dim);
    set_version(2);
    for (size_t i = 0; i < COUNT(all); i++) {
        if (!use(all[i]))
            continue;
        float *got = products(q, k, v, w, first, n_rows, n, dim);
        if (memcmp(got, want, sizeof *got * (size_t)n_rows * (size_t)(n + dim)))
            fail_msg("%s: products of %d rows from %d on, %d positions, %d dimensions",
                     all[i]->name, n_rows, first, n, dim);
        free(got);
    }
    free(want);
    free(q);
    free(k);
    free(v);
    free(w);
}

static void test_products_of_attention(void **state) {
    (void)state;
    struct random r = {3};
    static const int dims[] = {1, 2, 8, 16, 31, 32, 33, 64, 80, 96, 128, 129, 256, 512};
    static const int ns[] = {1, 2, 3, 5, 6, 7, 31, 32, 33, 127, 255, 256};
    static const int rows[] = {1, 2, 3, 4, 31, 32, 33, 65};
    for (size_t i = 0; i < COUNT(dims); i++)
        for (size_t j = 0; j < COUNT(ns); j++)
            check_products((int)(i + j) % 3, rows[(i + j) % COUNT(rows)], ns[j], dims[i],
                           (enum fill)((i + 3 * j) % N_FILLS), (enum fill)((i + j) % N_FILLS), &r);
    check_products(0, BLOCK_ROWS, TILE, 64, LARGEST, SMALLEST, &r);
}

/* ---- rows that the threads share out ------------------------------------------------------------
 */

/* The last share has fewer rows; each row is snapped as alone. */
static void test_shares(void **state) {
    (void)state;
    enum { ROWS = 300, COLS = 100 };
    struct random r = {5};
    float *x = host_array(ROWS * COLS, sizeof *x);
    int16_t alone[COLS];
    struct bfp_rows y = {host_array(ROWS * COLS, sizeof *y.mantissas), host_array(ROWS, 1)};
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)random_int(&r, -1000, 1000) * num_pow2f(i / COLS % 9);
    device.ops->snap_rows(device.dev, y, x, ROWS, COLS, 0);
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(y.exponents[i], num_snap_row(alone, x + i * COLS, COLS));
        assert_memory_equal(y.mantissas + i * COLS, alone, sizeof alone);
    }
    free(x);
    free(y.mantissas);
    free(y.exponents);
}

/* ---- the choice -------------------------------------------------------------------------------
 */

static void test_choice(void **state) {
    (void)state;
    struct error err = {""};
    assert_true(use(&integer_plain));
    setenv("SAMEBITS_ISA", "abacus", 1);
    assert_null(integer_choose(&err));
    assert_non_null(strstr(err.text, "SAMEBITS_ISA=abacus"));
    assert_null(ref_ops.open(&(struct device_options){0}, &err));
    unsetenv("SAMEBITS_ISA");
    assert_non_null(integer_choose(&err));
}

static int open_device(void **state) {
    (void)state;
    device_open(&device, &ref_ops, 2);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    device_close(&device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_shapes),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_linear_parts),
        cmocka_unit_test(test_long_sums),
        cmocka_unit_test(test_products_of_attention),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
