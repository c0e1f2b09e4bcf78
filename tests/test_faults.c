/* What must not become a token: rows that cannot be snapped are named by site and token; memory
 * that is not there is an error and not a crash. */
#include "model/numerics.h"
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/oracle.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const float bad_values[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0x1p127f};

/* Rows of small integers, in which at[0 ... n_bad-1] hold a value that cannot be stored. */
static float *rows_with(float bad, int n, const int *at, int n_bad) {
    float *x = host_array((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = (float)(i % 17 + 1);
    for (int i = 0; i < n_bad; i++)
        x[at[i]] = bad;
    return x;
}

static float *put_rows_with(struct test_device *t, float bad, int n, const int *at, int n_bad) {
    float *x = rows_with(bad, n, at, n_bad);
    float *data = device_put(t, x, sizeof *x * (size_t)n);
    free(x);
    return data;
}

/* ---- each op --------------------------------------------------------------------------------- */

static void test_snap_rows(void **state) {
    struct test_device *t = *state;
    enum { ROWS = 6, COLS = 68 };
    static const int places[] = {0, 33, COLS - 1};
    for (size_t b = 0; b < COUNT(bad_values); b++)
        for (int row = 0; row < ROWS; row++) {
            int at = row * COLS + places[row % 3];
            float *x = rows_with(bad_values[b], ROWS * COLS, &at, 1);
            struct bfp_rows got = {device_poisoned(t, sizeof(int16_t) * ROWS * COLS),
                                   device_poisoned(t, ROWS)};
            t->ops->snap_rows(t->dev, got, device_put(t, x, sizeof *x * ROWS * COLS), ROWS, COLS,
                              9);
            device_expect_fault(t, 9, row);
            device_expect_fault(t, -1, 0);               /* reported once */
            memset(x + row * COLS, 0, sizeof *x * COLS); /* it is stored as zeros */
            struct bfp_rows want = host_rows(ROWS, COLS);
            oracle_snap_rows(want, x, ROWS, COLS);
            device_expect_rows(t, "snap_rows", want, got, ROWS, COLS);
            free_host_rows(want);
            free(x);
            device_clear(t);
        }
}

static void test_rmsnorm_counts_tokens(void **state) {
    struct test_device *t = *state;
    enum { ROWS = 12, COLS = 32 };
    static const int rows_per_token[] = {1, 2, 3, 4, 12};
    for (size_t i = 0; i < COUNT(rows_per_token); i++)
        for (int row = 0; row < ROWS; row++) {
            int at = row * COLS + row;
            float *x = put_rows_with(t, NAN, ROWS * COLS, &at, 1);
            float *gain = put_rows_with(t, 1, COLS, NULL, 0);
            t->ops->rmsnorm(t->dev, x, x, gain, ROWS, COLS, rows_per_token[i], 1e-6, 0);
            device_expect_fault(t, 0, row / rows_per_token[i]);
            device_clear(t);
        }
}

/* The sum decides: two finite numbers may add up to what cannot be stored, and a bad one stays bad.
 */
static void test_add_rmsnorm_looks_at_the_sum(void **state) {
    struct test_device *t = *state;
    enum { ROWS = 6 };
    static const int widths[] = {3, 32, 600, 5000}; /* each takes a kernel of its own */
    static const float pairs[][2] = {
        {NAN, 1}, {1, INFINITY}, {INFINITY, -INFINITY}, {0x1p126f, 0x1p126f}, {FLT_MAX, FLT_MAX}};
    for (size_t w = 0; w < COUNT(widths); w++)
        for (size_t i = 0; i < COUNT(pairs); i++) {
            int n = ROWS * widths[w], row = (int)i, at = row * widths[w] + widths[w] - 1;
            float *x = put_rows_with(t, pairs[i][0], n, &at, 1);
            float *branch = put_rows_with(t, pairs[i][1], n, &at, 1);
            float *gain = put_rows_with(t, 1, widths[w], NULL, 0);
            float *y = device_poisoned(t, sizeof *y * (size_t)n);
            struct bfp_rows snapped = {device_poisoned(t, sizeof(int16_t) * (size_t)n),
                                       device_poisoned(t, ROWS)};
            t->ops->add_rmsnorm(t->dev, y, snapped, x, branch, gain, ROWS, widths[w], 1e-6, 3, 4);
            device_expect_fault(t, 3, row);
            device_clear(t);
        }
}

/* A gain that no row can be snapped with is a fault of what comes out, of the first token. Its row
 * becomes zeros. */
static void test_add_rmsnorm_looks_at_the_result(void **state) {
    struct test_device *t = *state;
    enum { ROWS = 3, MOST = 5000 };
    static const int widths[] = {3, 32, 600, MOST};
    for (size_t w = 0; w < COUNT(widths); w++) {
        int n = widths[w], last = n - 1;
        float *x = put_rows_with(t, 1, ROWS * n, NULL, 0);
        float *branch = put_rows_with(t, 1, ROWS * n, NULL, 0);
        float *gain = put_rows_with(t, INFINITY, n, &last, 1);
        float *y = device_poisoned(t, sizeof *y * (size_t)(ROWS * n));
        struct bfp_rows snapped = {device_poisoned(t, sizeof(int16_t) * (size_t)(ROWS * n)),
                                   device_poisoned(t, ROWS)};
        struct bfp_rows zeros = host_rows(ROWS, n);
        float *nothing = host_array((size_t)(ROWS * n), sizeof *nothing);
        memset(nothing, 0, sizeof *nothing * (size_t)(ROWS * n));
        oracle_snap_rows(zeros, nothing, ROWS, n);
        t->ops->add_rmsnorm(t->dev, y, snapped, x, branch, gain, ROWS, n, 1e-6, 3, 4);
        device_expect_rows(t, "rows that cannot be snapped", zeros, snapped, ROWS, n);
        device_expect_fault(t, 4, 0);
        free(nothing);
        free_host_rows(zeros);
        device_clear(t);
    }
}

/* What is not finite, or becomes too large in the product, is its row's fault; the row becomes
 * zeros. */
static void test_silu_mul_snap_looks_at_the_product(void **state) {
    struct test_device *t = *state;
    enum { ROWS = 5, MOST = 17000 };
    static const int widths[] = {3, 32, 2000, 8000, MOST}; /* each takes a kernel of its own */
    static const float pairs[][2] = {
        {NAN, 1}, {1, INFINITY}, {INFINITY, 1}, {-INFINITY, 1}, {0x1p126f, 4}};
    for (size_t w = 0; w < COUNT(widths); w++)
        for (size_t i = 0; i < COUNT(pairs); i++) {
            int n = widths[w], row = (int)i, at = row * n + n - 1;
            float *gate = put_rows_with(t, pairs[i][0], ROWS * n, &at, 1);
            float *up = put_rows_with(t, pairs[i][1], ROWS * n, &at, 1);
            struct bfp_rows y = {device_poisoned(t, sizeof(int16_t) * (size_t)(ROWS * n)),
                                 device_poisoned(t, ROWS)};
            struct bfp_rows zeros = host_rows(1, n);
            float *nothing = calloc((size_t)n, sizeof *nothing);
            oracle_snap_rows(zeros, nothing, 1, n);
            t->ops->silu_mul_snap(t->dev, y, gate, up, ROWS, n, 5);
            struct bfp_rows bad = {y.mantissas + (size_t)row * (size_t)n, y.exponents + row};
            device_expect_rows(t, "a row that cannot be snapped", zeros, bad, 1, n);
            device_expect_fault(t, 5, row);
            free(nothing);
            free_host_rows(zeros);
            device_clear(t);
        }
}

/* A bad query or key is its token's fault; where there is no norm, nobody looks. */
static void test_norm_rope_looks_at_both(void **state) {
    struct test_device *t = *state;
    enum { TOKENS = 5, HEADS = 3, KV_HEADS = 2 };
    static const int dims[] = {8, 64, 130, 300}; /* each takes a kernel of its own */
    for (size_t i = 0; i < COUNT(dims); i++)
        for (int bad = 1; bad < 4; bad++) /* bit 0: in q, of token 3; 1: in k, of token 1 */
            for (int norms = 0; norms < 4; norms++) {
                int dim = dims[i], n_q = TOKENS * HEADS * dim, n_k = TOKENS * KV_HEADS * dim;
                int at_q = (3 * HEADS + 2) * dim + dim - 1, at_k = KV_HEADS * dim;
                float *gain = put_rows_with(t, 1, dim, NULL, 0);
                float *table = put_rows_with(t, 1, dim / 2, NULL, 0);
                static const int32_t positions[TOKENS] = {0};
                struct head_rows q = {put_rows_with(t, NAN, n_q, &at_q, bad & 1),
                                      norms & 1 ? gain : NULL, HEADS, 6};
                struct head_rows k = {put_rows_with(t, INFINITY, n_k, &at_k, bad >> 1),
                                      norms & 2 ? gain : NULL, KV_HEADS, 7};
                t->ops->norm_rope(t->dev, &q, &k, NULL, NULL,
                                  device_put(t, positions, sizeof positions), table, table, TOKENS,
                                  dim, 1e-6);
                int seen = bad & norms;
                device_expect_fault(t, seen & 1 ? 6 : seen ? 7 : -1, seen & 1 ? 3 : seen ? 1 : 0);
                device_clear(t);
            }
}

/* Appends with these bad elements in k and v; the cache may hold anything afterwards but poison. */
static void append(struct test_device *t, const int *bad_k, int n_k, const int *bad_v, int n_v) {
    enum { TOKENS = 5, HEADS = 3, DIM = 8, ROWS = TOKENS * HEADS };
    static const int64_t slots[TOKENS] = {3, 1, -1, 0, 2};
    enum { BYTES = sizeof(int16_t) * ROWS * DIM };
    struct kv_layer kv = {device_poisoned(t, BYTES), device_poisoned(t, BYTES),
                          device_poisoned(t, ROWS), device_poisoned(t, ROWS)};
    float *k = put_rows_with(t, INFINITY, ROWS * DIM, bad_k, n_k);
    float *v = put_rows_with(t, NAN, ROWS * DIM, bad_v, n_v);
    struct kv_views views = kv_layer_views(&kv, KV_BFP16, 1, HEADS, DIM);
    t->ops->kv_append(t->dev, &views, k, v, device_put(t, slots, sizeof slots), TOKENS, 1, HEADS,
                      DIM, 4, 5);
    if (n_k == 1 && bad_k[0] / (HEADS * DIM) == 1) { /* token 1 went to slot 1 */
        struct bfp_rows zeros = host_rows(1, DIM);
        oracle_snap_rows(zeros, (float[DIM]){0}, 1, DIM);
        int row = HEADS + bad_k[0] / DIM % HEADS;
        device_expect_rows(t, "k", zeros, (struct bfp_rows){kv.k + row * DIM, kv.k_exponents + row},
                           1, DIM);
        free_host_rows(zeros);
    }
}

static void test_kv_append(void **state) {
    struct test_device *t = *state;
    enum { STRIDE = 3 * 8 };
    for (int token = 0; token < 5; token++)
        for (int at = token * STRIDE; at < (token + 1) * STRIDE; at += 5) {
            append(t, &at, 1, NULL, 0);
            device_expect_fault(t, token == 2 ? -1 : 4, token); /* token 2 is skipped */
            append(t, NULL, 0, &at, 1);
            device_expect_fault(t, token == 2 ? -1 : 5, token);
            device_clear(t);
        }
    append(t, (int[]){4 * STRIDE}, 1, (int[]){0}, 1); /* the keys' site comes first */
    device_expect_fault(t, 4, 4);
    append(t, (int[]){4 * STRIDE, 1 * STRIDE}, 2, NULL, 0);
    device_expect_fault(t, 4, 1);
    device_clear(t);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Three heads share a kv head, so neighbouring rows of it are often of two tokens. */
enum { TOKENS = 7, HEADS = 6, KV_HEADS = 2, DIM = 16, LEN = 300 };

/* Attention of the last TOKENS positions over keys and values of ones with these exponents; one
 * query, at bad_token, holds a value of its own. */
static void attend(struct test_device *t, int bad_token, float bad, int8_t k_exponent,
                   int8_t v_exponent) {
    enum { ROWS = LEN * KV_HEADS };
    struct bfp_rows ones = host_rows(ROWS, DIM);
    for (int i = 0; i < ROWS * DIM; i++)
        ones.mantissas[i] = 16384;
    memset(ones.exponents, k_exponent, ROWS);
    struct bfp_rows k = device_put_rows(t, ones, ROWS, DIM);
    memset(ones.exponents, v_exponent, ROWS);
    struct bfp_rows v = device_put_rows(t, ones, ROWS, DIM);
    float q[TOKENS * HEADS * DIM];
    for (int i = 0; i < TOKENS * HEADS * DIM; i++)
        q[i] = 1;
    q[(bad_token * HEADS + bad_token % HEADS) * DIM + 3] = bad;
    struct kv_layer kv = {k.mantissas, v.mantissas, k.exponents, v.exponents};
    struct attention_shape shape = {HEADS, KV_HEADS, DIM, 0.25, KV_BFP16};
    t->ops->attention(t->dev, device_poisoned(t, sizeof q), device_put(t, q, sizeof q), &kv, TOKENS,
                      LEN, &shape, 6);
    free_host_rows(ones);
}

static void test_attention_queries(void **state) {
    struct test_device *t = *state;
    for (int token = 0; token < TOKENS; token++)
        for (size_t b = 0; b < COUNT(bad_values); b++) {
            attend(t, token, bad_values[b], 1, 1);
            device_expect_fault(t, 6, token);
            device_clear(t);
        }
}

/* A finite query whose scores are not: both infinities leave no softmax. */
static void test_attention_scores_overflow(void **state) {
    struct test_device *t = *state;
    for (int token = 0; token < TOKENS; token++) {
        attend(t, token, 0x1p120f, 100, 1);
        device_expect_fault(t, 6, token);
        attend(t, token, -0x1p120f, 100, 1);
        device_expect_fault(t, 6, token);
        attend(t, token, 0x1p20f, 100, 1);
        device_expect_fault(t, -1, 0);
        device_clear(t);
    }
}

/* A value row of the largest exponent can be stored, but its weight, 2^127, cannot be snapped. */
static void test_attention_weights_overflow(void **state) {
    struct test_device *t = *state;
    attend(t, 0, 1, 1, 127);
    device_expect_fault(t, 6, 0);
    attend(t, 0, 1, 1, 126);
    device_expect_fault(t, -1, 0);
    device_clear(t);
}

/* ---- which one is named -----------------------------------------------------------------------
 */

/* One row of NaN, reported as this token of this site. */
static void fault_at(struct test_device *t, int site, int token) {
    enum { COLS = 3 };
    int at = token * COLS;
    int n = (token + 1) * COLS;
    struct bfp_rows y = {device_poisoned(t, sizeof(int16_t) * (size_t)n),
                         device_poisoned(t, (size_t)token + 1)};
    t->ops->snap_rows(t->dev, y, put_rows_with(t, NAN, n, &at, 1), token + 1, COLS, site);
}

static void test_the_first_fault_is_told(void **state) {
    struct test_device *t = *state;
    static const int faults[][2] = {{0, 9}, {1, 0}, {1, 4}, {7, 2}, {7, 3}}; /* in this order */
    for (size_t i = 0; i < COUNT(faults); i++)
        for (size_t j = 0; j < COUNT(faults); j++) {
            size_t first = i < j ? i : j;
            fault_at(t, faults[i][0], faults[i][1]);
            fault_at(t, faults[j][0], faults[j][1]);
            device_expect_fault(t, faults[first][0], faults[first][1]);
            device_expect_fault(t, -1, 0);
            device_clear(t);
        }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_memory_is_counted(void **state) {
    (void)state;
    struct test_device t;
    device_open(&t, &ref_ops, 1);
    struct device *dev = t.dev;
    assert_true(dev->bytes == 0 && dev->peak_bytes == 0);
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096};
    void *data[COUNT(sizes)];
    size_t total = 0;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        data[i] = t.ops->alloc(dev, sizes[i], "a test", NULL);
        assert_non_null(data[i]);
        assert_int_equal((uintptr_t)data[i] % 64, 0);
        memset(data[i], 1, sizes[i]);
        total += sizes[i];
        assert_true(dev->bytes == total && dev->peak_bytes == total);
    }
    t.ops->free(dev, NULL, 100);
    for (size_t i = 0; i < COUNT(sizes); i++)
        t.ops->free(dev, data[i], sizes[i]);
    assert_true(dev->bytes == 0 && dev->peak_bytes == total);
    struct matrix w;
    assert_int_equal(t.ops->matrix_create(dev, &w, 3, 5, NULL), 0);
    assert_true(w.n == 3 && w.k == 5 && dev->bytes > 0);
    t.ops->matrix_free(dev, &w);
    assert_true(dev->bytes == 0);
    device_close(&t);
    t.ops->close(NULL);
}

static void test_copies(void **state) {
    struct test_device *t = *state;
    const char text[] = "seven bytes";
    char *a = device_put(t, text, sizeof text), *b = device_poisoned(t, sizeof text);
    t->ops->copy(t->dev, b, a, sizeof text);
    t->ops->copy(t->dev, b, NULL, 0);
    t->ops->upload(t->dev, b, NULL, 0);
    t->ops->download(t->dev, NULL, b, 0);
    char *back = device_get(t, b, sizeof text);
    assert_string_equal(back, text);
    free(back);
    device_clear(t);
}

static void test_impossible_sizes_are_refused(void **state) {
    struct test_device *t = *state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 64, SIZE_MAX / 2,
                                   (size_t)1 << 60};
    size_t before = t->dev->bytes;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct error err = {""};
        assert_null(t->ops->alloc(t->dev, sizes[i], "the moon", &err));
        assert_non_null(strstr(err.text, "not enough memory for the moon"));
        assert_null(t->ops->alloc(t->dev, sizes[i], "the moon", NULL));
    }
    struct matrix w;
    struct error err = {""};
    assert_int_equal(t->ops->matrix_create(t->dev, &w, INT32_MAX, INT32_MAX, &err), -1);
    assert_non_null(strstr(err.text, "not enough memory for weights"));
    t->ops->matrix_free(t->dev, &w);
    assert_true(t->dev->bytes == before);
}

/* An op that gets no scratch memory returns at once; the next sync tells, and then all is well. */
static void test_scratch_memory_runs_out(void **state) {
    struct test_device *t = *state;
    if (t->ops != &ref_ops)
        skip(); /* the others need none there */
    struct attention_shape shape = {1, 1, 1 << 30, 1, KV_BFP16};
    struct kv_layer kv = {0};
#ifndef __SANITIZE_ADDRESS__     /* which takes more than that for itself */
    struct rlimit before, limit; /* some systems promise memory that they do not have */
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = before.rlim_cur < (rlim_t)1 << 42 ? before.rlim_cur : (rlim_t)1 << 42;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
#endif
    t->ops->attention(t->dev, NULL, NULL, &kv, 1, 1, &shape, 1);
#ifndef __SANITIZE_ADDRESS__
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
#endif
    fault_at(t, 2, 1);
    struct fault fault;
    struct error err = {""};
    assert_int_equal(t->ops->sync(t->dev, &fault, &err), -1);
    assert_non_null(strstr(err.text, "not enough memory for the scratch space of attention"));
    device_expect_fault(t, -1, 0);
    attend(t, 0, 1, 1, 1);
    device_expect_fault(t, -1, 0);
    device_clear(t);
}

static void test_device_names(void **state) {
    (void)state;
    struct error err = {""};
    assert_ptr_equal(ops_find("cpu", &err), &ref_ops);
    assert_null(ops_find("abacus", &err));
    assert_non_null(strstr(err.text, "abacus"));
    assert_non_null(strstr(err.text, "cpu"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snap_rows),
        cmocka_unit_test(test_rmsnorm_counts_tokens),
        cmocka_unit_test(test_add_rmsnorm_looks_at_the_sum),
        cmocka_unit_test(test_add_rmsnorm_looks_at_the_result),
        cmocka_unit_test(test_silu_mul_snap_looks_at_the_product),
        cmocka_unit_test(test_norm_rope_looks_at_both),
        cmocka_unit_test(test_kv_append),
        cmocka_unit_test(test_attention_queries),
        cmocka_unit_test(test_attention_scores_overflow),
        cmocka_unit_test(test_attention_weights_overflow),
        cmocka_unit_test(test_the_first_fault_is_told),
        cmocka_unit_test(test_memory_is_counted),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_impossible_sizes_are_refused),
        cmocka_unit_test(test_scratch_memory_runs_out),
        cmocka_unit_test(test_device_names),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
