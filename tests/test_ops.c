/* Every op but attention and sample against the oracle, bit for bit; the device's memory. */
#include "model/numerics.h"
#include "model/rope_table.h"
#include "tests/device.h"
#include "tests/oracle.h"
#include "tests/random_inputs.h"

#include <openssl/sha.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const int row_sizes[] = {1,   2,   3,   31,  63,  64,   65,   97,  127,
                                128, 255, 256, 257, 509, 1023, 1024, 1025};

static size_t float_bytes(int n_rows, int n_cols) {
    return sizeof(float) * (size_t)n_rows * (size_t)n_cols;
}

/* ---- snap_rows ------------------------------------------------------------------------------- */

static void test_snap_rows(void **state) {
    struct test_device *t = *state;
    struct random r = {11};
    for (size_t i = 0; i < COUNT(row_sizes); i++) {
        int n_cols = row_sizes[i], n_rows = 1 + (int)i % 11;
        float *x = random_rows(&r, n_rows, n_cols, N_DISTRIBUTIONS);
        struct bfp_rows want = host_rows(n_rows, n_cols);
        oracle_snap_rows(want, x, n_rows, n_cols);
        struct bfp_rows got = {device_poisoned(t, sizeof(int16_t) * (size_t)(n_rows * n_cols)),
                               device_poisoned(t, (size_t)n_rows)};
        t->ops->snap_rows(t->dev, got, device_put(t, x, float_bytes(n_rows, n_cols)), n_rows,
                          n_cols, 1);
        device_expect_rows(t, "snap_rows", want, got, n_rows, n_cols);
        device_expect_fault(t, -1, 0);
        free_host_rows(want);
        free(x);
        device_clear(t);
    }
}

/* ---- linear ---------------------------------------------------------------------------------- */

/* The matrix on the device, put there in two pieces. */
static struct matrix put_matrix(struct test_device *t, struct bfp_rows w, int n, int k) {
    struct matrix matrix;
    struct error err = {""};
    if (t->ops->matrix_create(t->dev, &matrix, n, k, &err))
        fail_msg("%s", err.text);
    int split = n / 3;
    t->ops->matrix_put(t->dev, &matrix, 0, split, w.mantissas, w.exponents);
    t->ops->matrix_put(t->dev, &matrix, split, n - split, w.mantissas + (size_t)split * (size_t)k,
                       w.exponents + split);
    return matrix;
}

static void check_linear(struct test_device *t, struct bfp_rows x, struct bfp_rows w, int m, int n,
                         int k) {
    struct matrix matrix = put_matrix(t, w, n, k);
    float *want = host_array((size_t)m * (size_t)n, sizeof *want);
    float *got = device_poisoned(t, float_bytes(m, n));
    t->ops->linear(t->dev, got, device_put_rows(t, x, m, k), &matrix, m);
    oracle_linear(want, x, w, m, n, k);
    device_expect_floats(t, "linear", want, got, m, n);
    device_expect_fault(t, -1, 0);
    free(want);
    t->ops->matrix_free(t->dev, &matrix);
    device_clear(t);
}

/* linear_parts with n_parts of the numbers of outputs in n. */
static void check_linear_parts(struct test_device *t, struct random *r, int m, const int *n,
                               int n_parts, int k) {
    struct bfp_rows x = random_bfp_rows(r, m, k, N_DISTRIBUTIONS), w[MOST_LINEAR_PARTS];
    struct matrix matrices[MOST_LINEAR_PARTS];
    struct linear_part parts[MOST_LINEAR_PARTS];
    for (int i = 0; i < n_parts; i++) {
        w[i] = random_bfp_rows(r, n[i], k, N_DISTRIBUTIONS);
        matrices[i] = put_matrix(t, w[i], n[i], k);
        parts[i] = (struct linear_part){device_poisoned(t, float_bytes(m, n[i])), &matrices[i]};
    }
    t->ops->linear_parts(t->dev, parts, n_parts, device_put_rows(t, x, m, k), m);
    for (int i = 0; i < n_parts; i++) {
        float *want = host_array((size_t)m * (size_t)n[i], sizeof *want);
        oracle_linear(want, x, w[i], m, n[i], k);
        device_expect_floats(t, "linear_parts", want, parts[i].y, m, n[i]);
        free(want);
        free_host_rows(w[i]);
        t->ops->matrix_free(t->dev, &matrices[i]);
    }
    device_expect_fault(t, -1, 0);
    free_host_rows(x);
    device_clear(t);
}

/* Parts that end in the middle of a block, some so small that all of a block is behind their end,
 * and an odd one among them, which a kernel may not take. */
static void test_linear_parts(void **state) {
    struct test_device *t = *state;
    struct random r = {27};
    static const int ns[][MOST_LINEAR_PARTS] = {{1, 1, 1},   {8, 16, 8},    {7, 9, 1},
                                                {64, 2, 66}, {256, 64, 64}, {2, 4098, 31}};
    static const int ms[] = {1, 9, 16, 17, 33, 64, 65, 129}, ks[] = {1, 8, 64, 65, 72, 136, 520};
    for (size_t i = 0; i < COUNT(ns); i++)
        for (size_t j = 0; j < COUNT(ms); j++) /* every k with every n, over the rows */
            check_linear_parts(t, &r, ms[j], ns[i], 1 + (int)(i + j) % MOST_LINEAR_PARTS,
                               ks[(i + j) % COUNT(ks)]);
}

/* Larger ones have fewer outputs. Under the sanitizers the emulation is slow. */
static int64_t most_products(void) {
#ifdef __SANITIZE_ADDRESS__
    return device_is_emulated() ? 600000 : 6000000;
#else
    return 6000000;
#endif
}

static void test_linear_shapes(void **state) {
    struct test_device *t = *state;
    struct random r = {12};
    static const int ms[] = {1, 2, 7, 255, 256, 257, 300}, ns[] = {1, 3, 64, 65, 255, 256, 257},
                     ks[] = {1, 2, 7, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4096};
    for (size_t i = 0; i < COUNT(ms); i++)
        for (size_t j = 0; j < COUNT(ks); j++)
            for (size_t l = (i + j) % 3; l < COUNT(ns); l += few_cases_do() ? COUNT(ns) : 3) {
                int m = ms[i], k = ks[j], n = ns[l];
                if ((int64_t)m * n * k > most_products())
                    n = n < 3 ? n : 3;
                struct bfp_rows x = random_bfp_rows(&r, m, k, (int)(i + j) % (N_DISTRIBUTIONS + 1));
                struct bfp_rows w = random_bfp_rows(&r, n, k, (int)l % (N_DISTRIBUTIONS + 1));
                check_linear(t, x, w, m, n, k);
                free_host_rows(x);
                free_host_rows(w);
            }
}

/* Layers with thousands of outputs, for which kernels choose other block sizes (in the emulation,
 * which has four processors, for hundreds, or for tens of long rows); the last three have more
 * tiles than a GPU has. */
static void test_linear_wide(void **state) {
    struct test_device *t = *state;
    struct random r = {22};
    static const int shapes[][3] = {
        {1, 4096, 256},    {5, 4099, 65},    {8, 146, 4680},   {16, 4127, 520},  {17, 4097, 130},
        {6, 63, 1096},     {9, 31, 1032},    {16, 32, 2056},   {8, 1057, 1032},  {12, 1050, 2056},
        {5, 4099, 1096},   {24, 2050, 392},  {60, 4096, 1160}, {90, 4098, 1160}, {90, 4098, 2184},
        {1100, 2177, 264}, {33, 40001, 136}, {100, 17026, 72}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        if (i > 7 && (device_is_emulated() || few_cases_do()))
            break;
        int m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        struct bfp_rows x = random_bfp_rows(&r, m, k, N_DISTRIBUTIONS);
        struct bfp_rows w = random_bfp_rows(&r, n, k, N_DISTRIBUTIONS);
        check_linear(t, x, w, m, n, k);
        free_host_rows(x);
        free_host_rows(w);
    }
}

/* Mantissas of any size and exponents of any size: results overflow, and are subnormal or zero of
 * either sign. */
static void test_linear_any_exponents(void **state) {
    struct test_device *t = *state;
    struct random r = {13};
    enum { M = 9, N = 67, MAX_K = 130 };
    static const int ks[] = {1, 2, MAX_K};
    for (int i = 0; i < 30; i++) {
        int k = ks[i % 3];
        struct bfp_rows x = host_rows(M, k), w = host_rows(N, k);
        for (int j = 0; j < M * k; j++)
            x.mantissas[j] = (int16_t)(random_int(&r, -32639, 32639) >> random_int(&r, 0, 16));
        for (int j = 0; j < N * k; j++)
            w.mantissas[j] = (int16_t)(random_int(&r, -32639, 32639) >> random_int(&r, 0, 16));
        for (int j = 0; j < M; j++)
            x.exponents[j] = (int8_t)random_int(&r, -100, 127);
        for (int j = 0; j < N; j++)
            w.exponents[j] = (int8_t)random_int(&r, -100, 127);
        check_linear(t, x, w, M, N, k);
        free_host_rows(x);
        free_host_rows(w);
    }
}

/* Rows of the largest mantissas, of equal and of alternating signs: the largest sums, sums that
 * cancel to nothing, and the one that loses all but its last bit. */
static void test_linear_extreme_rows(void **state) {
    struct test_device *t = *state;
    enum { M = 5, N = 66, K = 4096 };
    struct bfp_rows x = host_rows(M, K), w = host_rows(N, K);
    for (int row = 0; row < M; row++) {
        x.exponents[row] = (int8_t)(row * 7);
        for (int i = 0; i < K; i++)
            x.mantissas[row * K + i] = (int16_t)((row & 1 && i & 1) || row == 4 ? -32639 : 32639);
    }
    for (int row = 0; row < N; row++) {
        w.exponents[row] = (int8_t)(row - 33);
        for (int i = 0; i < K; i++)
            w.mantissas[row * K + i] = (int16_t)((i >> (row % 3)) & 1 && row % 4 ? -32639 : 32639);
        w.mantissas[row * K + row] = (int16_t)(row % 5 ? 32638 : 0);
    }
    check_linear(t, x, w, M, N, K);
    check_linear(t, x, w, 1, N, K);
    free_host_rows(x);
    free_host_rows(w);
}

/* -5 * 0 is -0 for a processor and 0 for an integer. */
static void test_linear_zero_is_positive(void **state) {
    struct test_device *t = *state;
    int16_t negative[2] = {-5, -7}, zeros[2] = {0, 0};
    int8_t exponents[2] = {3, 4};
    for (int k = 1; k <= 2; k++) {
        check_linear(t, (struct bfp_rows){negative, exponents}, (struct bfp_rows){zeros, exponents},
                     1, 1, k);
        check_linear(t, (struct bfp_rows){zeros, exponents}, (struct bfp_rows){negative, exponents},
                     2 / k, 2 / k, k);
    }
}

static void test_linear_threads(void **state) {
    (void)state;
    struct random r = {14};
    if (device_under_test() != device_reference()->ops) /* kernels have others */
        skip();
    enum { N = 300, K = 1025 };
    static const int ms[] = {1, 64, 257};
    struct bfp_rows w = random_bfp_rows(&r, N, K, NORMAL);
    for (int i = 0; i < 3; i++) {
        struct bfp_rows x = random_bfp_rows(&r, ms[i], K, NORMAL);
        float *want = NULL;
        for (int n_threads = 1; n_threads <= 2; n_threads++) {
            struct test_device t;
            device_open(&t, device_under_test(), n_threads);
            struct matrix matrix = put_matrix(&t, w, N, K);
            float *y = device_poisoned(&t, float_bytes(ms[i], N));
            t.ops->linear(t.dev, y, device_put_rows(&t, x, ms[i], K), &matrix, ms[i]);
            if (want)
                device_expect_floats(&t, "linear, 2 threads", want, y, ms[i], N);
            else
                want = device_get(&t, y, float_bytes(ms[i], N));
            t.ops->matrix_free(t.dev, &matrix);
            device_close(&t);
        }
        free(want);
        free_host_rows(x);
    }
    free_host_rows(w);
}

/* ---- rows of matrices ------------------------------------------------------------------------ */

static void test_embed_and_take_rows(void **state) {
    struct test_device *t = *state;
    struct random r = {15};
    enum { VOCAB = 37, IDS = 65 };
    static const int ks[] = {1, 7, 64, 257};
    for (size_t i = 0; i < COUNT(ks); i++) {
        int k = ks[i];
        struct bfp_rows w = random_bfp_rows(&r, VOCAB, k, N_DISTRIBUTIONS);
        struct matrix matrix = put_matrix(t, w, VOCAB, k);
        int32_t ids[IDS] = {0, VOCAB - 1, VOCAB - 1};
        for (int j = 3; j < IDS; j++)
            ids[j] = random_int(&r, 0, VOCAB - 1);
        float *want = host_array((size_t)IDS * (size_t)k, sizeof *want);
        float *got = device_poisoned(t, float_bytes(IDS, k));
        const int32_t *rows = device_put(t, ids, sizeof ids);
        t->ops->embed(t->dev, got, rows, &matrix, IDS);
        oracle_embed(want, ids, w, IDS, k);
        device_expect_floats(t, "embed", want, got, IDS, k);

        float *taken = device_poisoned(t, float_bytes(IDS, k));
        t->ops->take_rows(t->dev, taken, got, rows, IDS, k);
        float *picked = host_array((size_t)IDS * (size_t)k, sizeof *picked);
        for (int j = 0; j < IDS * k; j++)
            picked[j] = want[ids[j / k] * k + j % k];
        device_expect_floats(t, "take_rows", picked, taken, IDS, k);
        free(picked);
        free(want);
        free_host_rows(w);
        t->ops->matrix_free(t->dev, &matrix);
        device_clear(t);
    }
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* The definition: of the pieces, of the digests of the pieces, and so on. */
static void hash_as_defined(unsigned char *digest, const void *bytes, size_t n_bytes) {
    unsigned char *digests = host_array(n_bytes + SHA256_BYTES, 1);
    size_t n = 0;
    for (size_t at = 0; at < n_bytes; at += HASH_PIECE_BYTES, n++)
        SHA256((const unsigned char *)bytes + at,
               n_bytes - at < HASH_PIECE_BYTES ? n_bytes - at : HASH_PIECE_BYTES,
               digests + n * SHA256_BYTES);
    if (n > 1)
        hash_as_defined(digest, digests, n * SHA256_BYTES);
    else
        memcpy(digest, digests, SHA256_BYTES);
    free(digests);
}

/* Hashes rows and changes them at once: their hashes are of what they were. */
static void hash_rows_now(struct test_device *t, unsigned char *digests, float *x, int n_rows,
                          int n_cols) {
    struct error err;
    t->ops->hash_rows(t->dev, digests, x, n_rows, n_cols);
    t->ops->add(t->dev, x, x, x, (size_t)n_rows * (size_t)n_cols);
    if (t->ops->hash_wait && t->ops->hash_wait(t->dev, &err))
        fail_msg("%s", err.text);
}

/* Ends of messages within a block of SHA-256 (13 and 14 numbers, 29 and 30), pieces of 128 numbers,
 * 16 digests to a piece, four levels, and 257 pieces, several times: blocks run in another order
 * each time. */
static void test_hash_rows(void **state) {
    static const int sizes[] = {1,    2,    13,   14,   15,    16,    17,    29,    30,
                                31,   125,  126,  127,  128,   129,   257,   1024,  2047,
                                2048, 2049, 4096, 4225, 32800, 32804, 32808, 32812, 32816};
    struct test_device *t = *state;
    struct random r = {29};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        int n_cols = sizes[i], n_rows = i % 3 ? 1 + (int)i % 3 : 40;
        if (device_is_emulated() && n_cols > 3000)
            n_rows = 1;
        float *x = random_rows(&r, n_rows, n_cols, N_DISTRIBUTIONS);
        size_t bytes = SHA256_BYTES * (size_t)n_rows;
        unsigned char *digests = device_poisoned(t, bytes), want[SHA256_BYTES];
        hash_rows_now(t, digests, device_put(t, x, float_bytes(n_rows, n_cols)), n_rows, n_cols);
        unsigned char *got = device_get(t, digests, bytes);
        for (int row = 0; row < n_rows; row++) {
            hash_as_defined(want, x + row * n_cols, float_bytes(1, n_cols));
            assert_memory_equal(got + row * SHA256_BYTES, want, SHA256_BYTES);
        }
        device_expect_fault(t, -1, 0);
        free(got);
        free(x);
        device_clear(t);
    }
}

/* Rows that are hashed while nobody has waited for the ones before. */
static void test_hashes_behind_each_other(void **state) {
    enum { TIMES = 3, ROWS = 2, COLS = 300 };
    struct test_device *t = *state;
    struct random r = {30};
    struct error err;
    float *x[TIMES];
    unsigned char *digests[TIMES], want[SHA256_BYTES];
    for (int i = 0; i < TIMES; i++) {
        x[i] = random_rows(&r, ROWS, COLS, N_DISTRIBUTIONS);
        digests[i] = device_poisoned(t, SHA256_BYTES * ROWS);
        float *on_device = device_put(t, x[i], float_bytes(ROWS, COLS));
        t->ops->hash_rows(t->dev, digests[i], on_device, ROWS, COLS);
    }
    if (t->ops->hash_wait)
        assert_int_equal(t->ops->hash_wait(t->dev, &err), 0);
    for (int i = 0; i < TIMES; i++) {
        unsigned char *got = device_get(t, digests[i], SHA256_BYTES * ROWS);
        for (int row = 0; row < ROWS; row++) {
            hash_as_defined(want, x[i] + row * COLS, float_bytes(1, COLS));
            assert_memory_equal(got + row * SHA256_BYTES, want, SHA256_BYTES);
        }
        free(got);
        free(x[i]);
    }
    device_expect_fault(t, -1, 0);
    device_clear(t);
}

/* SHA-256 of the text "abcd", and no row. */
static void test_hash_of_a_text(void **state) {
    static const unsigned char start[] = {0x88, 0xd4, 0x26, 0x6f, 0xd4, 0xe6, 0x33, 0x8d};
    struct test_device *t = *state;
    unsigned char *digest = device_poisoned(t, SHA256_BYTES);
    hash_rows_now(t, digest, device_put(t, "abcd", 4), 1, 1);
    unsigned char *got = device_get(t, digest, SHA256_BYTES);
    assert_memory_equal(got, start, sizeof start);
    free(got);
    hash_rows_now(t, NULL, NULL, 0, 1);
    device_expect_fault(t, -1, 0);
    device_clear(t);
}

/* ---- elementwise ----------------------------------------------------------------------------- */

/* One elementwise op into new memory, over its first input and over its second. */
static void check_elementwise(struct test_device *t, const char *name,
                              void (*op)(struct device *, float *, const float *, const float *,
                                         size_t),
                              const float *a, const float *b, const float *want, int n) {
    for (int aliased = 0; aliased < 3; aliased++) {
        float *x = device_put(t, a, float_bytes(1, n)), *z = device_put(t, b, float_bytes(1, n));
        float *y = aliased == 0 ? device_poisoned(t, float_bytes(1, n)) : aliased == 1 ? x : z;
        op(t->dev, y, x, z, (size_t)n);
        device_expect_floats(t, name, want, y, 1, n);
        device_clear(t);
    }
}

static void test_add_and_silu_mul(void **state) {
    struct test_device *t = *state;
    struct random r = {16};
    for (size_t i = 0; i < COUNT(row_sizes); i++)
        for (int kind = 0; kind < N_DISTRIBUTIONS; kind++) {
            int n = row_sizes[i];
            float *a = random_rows(&r, 1, n, kind), *b = random_rows(&r, 1, n, kind);
            float *want = host_array((size_t)n, sizeof *want);
            for (int j = 0; j < n; j++)
                want[j] = a[j] + b[j];
            check_elementwise(t, "add", t->ops->add, a, b, want, n);
            oracle_silu_mul(want, a, b, (size_t)n);
            check_elementwise(t, "silu_mul", t->ops->silu_mul, a, b, want, n);
            free(want);
            free(b);
            free(a);
        }
}

/* Rows at the ends of vectors, and of what the kernels keep in registers. */
static void test_silu_mul_snap(void **state) {
    struct test_device *t = *state;
    struct random r = {29};
    static const int sizes[] = {1,    3,    4,    97,   640,  1020, 1024,  1028,  2048,
                                2052, 3072, 4092, 4096, 4100, 4104, 16380, 16384, 16388};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int kind = 0; kind < N_DISTRIBUTIONS; kind++) {
            int n_cols = sizes[i], n_rows = n_cols > 1028 ? 2 : 1 + (int)(i + (size_t)kind) % 9;
            if (n_cols == 2052 || n_cols == 4100) /* more than processors, or than have clusters */
                n_rows = 140;
            if (n_cols == 3072) /* between the two */
                n_rows = 70;
            size_t bytes = float_bytes(n_rows, n_cols), n = bytes / sizeof(float);
            float *gate = random_rows(&r, n_rows, n_cols, kind);
            float *up = random_rows(&r, n_rows, n_cols, NORMAL);
            float *want = host_array(n, sizeof *want);
            struct bfp_rows rows = host_rows(n_rows, n_cols);
            struct bfp_rows got = {device_poisoned(t, bytes / 2), device_poisoned(t, n_rows)};
            oracle_silu_mul(want, gate, up, n);
            oracle_snap_rows(rows, want, n_rows, n_cols);
            t->ops->silu_mul_snap(t->dev, got, device_put(t, gate, bytes), device_put(t, up, bytes),
                                  n_rows, n_cols, 1);
            device_expect_rows(t, "silu_mul_snap", rows, got, n_rows, n_cols);
            device_expect_fault(t, -1, 0);
            free_host_rows(rows);
            free(want);
            free(up);
            free(gate);
            device_clear(t);
        }
}

static void test_add_bias(void **state) {
    struct test_device *t = *state;
    struct random r = {17};
    for (size_t i = 0; i < COUNT(row_sizes); i++) {
        int n = row_sizes[i], n_tokens = 1 + (int)i % 6;
        float *y = random_rows(&r, n_tokens, n, NORMAL), *bias = random_rows(&r, 1, n, SPARSE);
        float *got = device_put(t, y, float_bytes(n_tokens, n));
        t->ops->add_bias(t->dev, got, device_put(t, bias, float_bytes(1, n)), n_tokens, n);
        for (int j = 0; j < n_tokens * n; j++)
            y[j] = y[j] + bias[j % n];
        device_expect_floats(t, "add_bias", y, got, n_tokens, n);
        free(bias);
        free(y);
        device_clear(t);
    }
}

/* ---- rmsnorm --------------------------------------------------------------------------------- */

static void test_rmsnorm(void **state) {
    struct test_device *t = *state;
    struct random r = {18};
    static const double epsilons[] = {1e-5, 1e-6, 1e-12, 1.0};
    for (size_t i = 0; i < COUNT(row_sizes); i++)
        for (int kind = 0; kind <= N_DISTRIBUTIONS; kind++) {
            int n_cols = row_sizes[i], rows_per_token = 1 + kind % 3, n_rows = rows_per_token * 3;
            double eps = epsilons[(i + (size_t)kind) % 4];
            size_t bytes = float_bytes(n_rows, n_cols);
            float *x = random_rows(&r, n_rows, n_cols, kind);
            float *gain = random_rows(&r, 1, n_cols, NORMAL);
            float *want = host_array((size_t)n_rows * (size_t)n_cols, sizeof *want);
            oracle_rmsnorm(want, x, gain, n_rows, n_cols, eps);
            float *from = device_put(t, x, bytes), *to = device_poisoned(t, bytes);
            const float *g = device_put(t, gain, float_bytes(1, n_cols));
            t->ops->rmsnorm(t->dev, to, from, g, n_rows, n_cols, rows_per_token, eps, 1);
            device_expect_floats(t, "rmsnorm", want, to, n_rows, n_cols);
            device_expect_floats(t, "rmsnorm's input", x, from, n_rows, n_cols);
            t->ops->rmsnorm(t->dev, from, from, g, n_rows, n_cols, rows_per_token, eps, 1);
            device_expect_floats(t, "rmsnorm in place", want, from, n_rows, n_cols);
            device_expect_fault(t, -1, 0);
            free(want);
            free(gain);
            free(x);
            device_clear(t);
        }
}

static void test_add_rmsnorm(void **state) {
    struct test_device *t = *state;
    struct random r = {23};
    static const int sizes[] = {1,   3,    4,    64,   97,   256,  508, 512,
                                516, 1024, 4092, 4096, 4100, 8192, 8196};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int kind = 0; kind <= N_DISTRIBUTIONS; kind++) {
            int n_cols = sizes[i], n_rows = n_cols > 1024 ? 2 : 1 + kind;
            size_t bytes = float_bytes(n_rows, n_cols), n = bytes / sizeof(float);
            float *x = random_rows(&r, n_rows, n_cols, kind),
                  *gain = random_rows(&r, 1, n_cols, NORMAL);
            float *branch = random_rows(&r, n_rows, n_cols, kind);
            float *want = host_array(n, sizeof *want);
            float *sum = device_put(t, x, bytes), *y = device_poisoned(t, bytes);
            struct bfp_rows snapped = {device_poisoned(t, bytes / 2), device_poisoned(t, n_rows)};
            t->ops->add_rmsnorm(t->dev, y, snapped, sum, device_put(t, branch, bytes),
                                device_put(t, gain, float_bytes(1, n_cols)), n_rows, n_cols, 1e-6,
                                1, 2);
            for (size_t j = 0; j < n; j++)
                x[j] = x[j] + branch[j];
            oracle_rmsnorm(want, x, gain, n_rows, n_cols, 1e-6);
            device_expect_floats(t, "add_rmsnorm's sum", x, sum, n_rows, n_cols);
            device_expect_floats(t, "add_rmsnorm", want, y, n_rows, n_cols);
            struct bfp_rows rows = host_rows(n_rows, n_cols);
            oracle_snap_rows(rows, want, n_rows, n_cols);
            device_expect_rows(t, "add_rmsnorm's rows", rows, snapped, n_rows, n_cols);
            free_host_rows(rows);
            device_expect_fault(t, -1, 0);
            free(want);
            free(branch);
            free(gain);
            free(x);
            device_clear(t);
        }
}

/* ---- rope ------------------------------------------------------------------------------------ */

static void test_rope(void **state) {
    struct test_device *t = *state;
    struct random r = {19};
    enum { POSITIONS = 300, TOKENS = 13 };
    static const int dims[] = {2, 32, 64, 80, 128}, heads[] = {1, 2, 7, 40};
    struct rope_config rope = {.theta = 10000, .scaling = ROPE_PLAIN, .factor = 1};
    for (size_t i = 0; i < COUNT(dims); i++)
        for (size_t h = 0; h < COUNT(heads); h++) {
            int half = dims[i] / 2, n_cols = heads[h] * dims[i];
            float inverse[64];
            rope_inverse_frequencies(inverse, &rope, dims[i]);
            float *c = host_array((size_t)(POSITIONS * half), sizeof *c);
            float *s = host_array((size_t)(POSITIONS * half), sizeof *s);
            rope_fill(c, s, inverse, half, POSITIONS);
            int32_t positions[TOKENS] = {0, POSITIONS - 1, 1, 1};
            for (int j = 4; j < TOKENS; j++)
                positions[j] = random_int(&r, 0, POSITIONS - 1);
            float *x = random_rows(&r, TOKENS, n_cols, (int)(i + h) % N_DISTRIBUTIONS);
            float *got = device_put(t, x, float_bytes(TOKENS, n_cols));
            t->ops->rope(t->dev, got, device_put(t, positions, sizeof positions),
                         device_put(t, c, float_bytes(POSITIONS, half)),
                         device_put(t, s, float_bytes(POSITIONS, half)), TOKENS, heads[h], dims[i]);
            oracle_rope(x, positions, c, s, TOKENS, heads[h], dims[i]);
            device_expect_floats(t, "rope", x, got, TOKENS, n_cols);
            free(x);
            free(s);
            free(c);
            device_clear(t);
        }
}

/* Queries, and keys with fewer heads, each with a norm or without. */
static void check_norm_rope(struct test_device *t, struct random *r, int dim, int heads,
                            int kv_heads, int norms) {
    enum { POSITIONS = 40, TOKENS = 7 };
    int half = dim / 2, n_heads[2] = {heads, kv_heads};
    float *c = random_rows(r, POSITIONS, half, NORMAL),
          *s = random_rows(r, POSITIONS, half, NORMAL);
    int32_t positions[TOKENS] = {0, POSITIONS - 1, 1, 1};
    for (int i = 4; i < TOKENS; i++)
        positions[i] = random_int(r, 0, POSITIONS - 1);
    float *x[2], *gain[2];
    struct head_rows rows[2];
    for (int i = 0; i < 2; i++) {
        x[i] = random_rows(r, TOKENS * n_heads[i], dim, N_DISTRIBUTIONS);
        gain[i] = random_rows(r, 1, dim, NORMAL);
        rows[i] = (struct head_rows){
            device_put(t, x[i], float_bytes(TOKENS * n_heads[i], dim)),
            norms >> i & 1 ? device_put(t, gain[i], float_bytes(1, dim)) : NULL, n_heads[i], i};
    }
    t->ops->norm_rope(t->dev, &rows[0], &rows[1], NULL, NULL,
                      device_put(t, positions, sizeof positions),
                      device_put(t, c, float_bytes(POSITIONS, half)),
                      device_put(t, s, float_bytes(POSITIONS, half)), TOKENS, dim, 1e-6);
    for (int i = 0; i < 2; i++) {
        if (norms >> i & 1)
            oracle_rmsnorm(x[i], x[i], gain[i], TOKENS * n_heads[i], dim, 1e-6);
        oracle_rope(x[i], positions, c, s, TOKENS, n_heads[i], dim);
        device_expect_floats(t, i ? "norm_rope's k" : "norm_rope's q", x[i], rows[i].x, TOKENS,
                             n_heads[i] * dim);
        free(x[i]);
        free(gain[i]);
    }
    device_expect_fault(t, -1, 0);
    free(c);
    free(s);
    device_clear(t);
}

static void test_norm_rope(void **state) {
    struct random r = {28};
    static const int dims[] = {2, 6, 30, 62, 64, 66, 80, 126, 128, 130, 256, 258};
    static const int heads[][2] = {{1, 1}, {4, 2}, {7, 1}, {3, 3}};
    for (size_t i = 0; i < COUNT(dims); i++)
        for (size_t h = 0; h < COUNT(heads); h++)
            check_norm_rope(*state, &r, dims[i], heads[h][0], heads[h][1], (int)(i + h) % 4);
}

/* ---- kv_append ------------------------------------------------------------------------------- */

enum { SLOTS = 19 };

/* What norm_rope reads and writes where it stores keys and values. */
enum { NEW_TOKENS = 7, NEW_POSITIONS = 9, NEW_PAGE = 4, NEW_PAGES = 5 };
struct new_heads {
    int dim, heads[3], norms; /* heads of q, k, v; bit i of norms: x[i] has one */
    enum kv_order orders[2];  /* of keys, of values */
    float *x[3], *gain, *cos, *sin;
};
static const int64_t new_slots[NEW_TOKENS] = {5, -1, 0, 18, INT64_MIN, 7, 3};

/* One op, or two. out: device memory, the queries, then stored keys, values and the exponents of
 * both, and the keys. */
static void append_new_heads(struct test_device *t, const struct new_heads *h, bool at_once,
                             void *out[6]) {
    static const int32_t positions[NEW_TOKENS] = {0, NEW_POSITIONS - 1, 1, 1, 0, 4, 3};
    size_t n_rows = (size_t)(NEW_PAGES * NEW_PAGE * h->heads[1]);
    size_t table = float_bytes(NEW_POSITIONS, h->dim / 2);
    struct error err;
    float *x[3];
    for (int i = 0; i < 3; i++)
        x[i] = device_put(t, h->x[i], float_bytes(NEW_TOKENS * h->heads[i], h->dim));
    out[0] = x[0];
    out[5] = x[1];
    for (int i = 1; i < 5; i++)
        out[i] = device_poisoned(t, i < 3 ? sizeof(int16_t) * n_rows * (size_t)h->dim : n_rows);
    struct kv_target to = {.slots = device_put(t, new_slots, sizeof new_slots),
                           .page_size = NEW_PAGE,
                           .site_k = 3,
                           .site_v = 4};
    for (int i = 0; i < 2; i++) {
        struct kv_layout layout =
            kv_layout_of(h->orders[i], false, NEW_PAGES, NEW_PAGE, h->heads[1], h->dim);
        struct kv_views views;
        if (kv_views_of(&views, &layout, out[1], out[2], out[3], out[4], &err))
            fail_msg("%s", err.text);
        *(i ? &to.kv.v : &to.kv.k) = i ? views.v : views.k;
    }
    const float *gain = device_put(t, h->gain, float_bytes(1, h->dim));
    const float *c = device_put(t, h->cos, table), *s = device_put(t, h->sin, table);
    const int32_t *at = device_put(t, positions, sizeof positions);
    struct head_rows q = {x[0], h->norms & 1 ? gain : NULL, h->heads[0], 1};
    struct head_rows k = {x[1], h->norms & 2 ? gain : NULL, h->heads[1], 2};
    t->ops->norm_rope(t->dev, &q, &k, at_once ? x[2] : NULL, at_once ? &to : NULL, at, c, s,
                      NEW_TOKENS, h->dim, 1e-6);
    if (!at_once)
        t->ops->kv_append(t->dev, &to.kv, x[1], x[2], to.slots, NEW_TOKENS, NEW_PAGE, h->heads[1],
                          h->dim, to.site_k, to.site_v);
}

/* norm_rope that stores, beside the two ops: the same queries and keys, and every byte of a
 * poisoned cache. bad: an element of q, k or v (0, 1, 2) of a token is not finite; -1: none. */
static void check_norm_rope_stores(struct test_device *t, struct random *r, struct new_heads *h,
                                   int bad) {
    enum { BAD_TOKEN = 2 };
    int half = h->dim / 2, n_rows = NEW_PAGES * NEW_PAGE * h->heads[1];
    h->cos = random_rows(r, NEW_POSITIONS, half, NORMAL);
    h->sin = random_rows(r, NEW_POSITIONS, half, NORMAL);
    h->gain = random_rows(r, 1, h->dim, NORMAL);
    for (int i = 0; i < 3; i++)
        h->x[i] = random_rows(r, NEW_TOKENS * h->heads[i], h->dim, N_DISTRIBUTIONS);
    if (bad >= 0)
        h->x[bad][(BAD_TOKEN + 1) * h->heads[bad] * h->dim - 1] = bad ? INFINITY : NAN;
    /* Where there is no norm, nobody looks at q; at k, who stores it. */
    int site = bad == 2 ? 4 : bad >= 0 && h->norms >> bad & 1 ? bad + 1 : bad == 1 ? 3 : -1;
    void *by_two[6], *at_once[6];
    append_new_heads(t, h, false, by_two);
    device_expect_fault(t, site, site < 0 ? 0 : BAD_TOKEN);
    append_new_heads(t, h, true, at_once);
    device_expect_fault(t, site, site < 0 ? 0 : BAD_TOKEN);
    for (int i = 0; i < 6; i += 5) {
        int n = NEW_TOKENS * h->heads[i / 5];
        float *want = device_get(t, by_two[i], float_bytes(n, h->dim));
        device_expect_floats(t, i ? "keys" : "queries", want, at_once[i], n, h->dim);
        free(want);
    }
    for (int i = 1; i < 3; i++) {
        size_t n = (size_t)n_rows;
        struct bfp_rows want = {device_get(t, by_two[i], sizeof(int16_t) * n * (size_t)h->dim),
                                device_get(t, by_two[i + 2], n)};
        device_expect_rows(t, i == 1 ? "stored k" : "stored v", want,
                           (struct bfp_rows){at_once[i], at_once[i + 2]}, n_rows, h->dim);
        free_host_rows(want);
    }
    for (int i = 0; i < 3; i++)
        free(h->x[i]);
    free(h->gain);
    free(h->sin);
    free(h->cos);
    device_clear(t);
}

static void test_norm_rope_stores(void **state) {
    struct random r = {29};
    static const int dims[] = {2, 62, 64, 66, 128, 130, 256, 258};
    static const int heads[][2] = {{1, 1}, {4, 2}, {7, 1}, {3, 3}};
    static const enum kv_order orders[] = {KV_NHD, KV_HND, KV_VLLM};
    for (size_t i = 0; i < COUNT(dims); i++)
        for (int j = 0; j < 12; j++) {
            const int *n = heads[j % 4], n_orders = dims[i] % 8 ? 2 : 3; /* vLLM's has groups */
            struct new_heads h = {.dim = dims[i],
                                  .heads = {n[0], n[1], n[1]},
                                  .norms = (int)(i + (size_t)j) % 4,
                                  .orders = {orders[j % n_orders], orders[j / 2 % n_orders]}};
            check_norm_rope_stores(*state, &r, &h, j < 6 ? -1 : j % 3);
        }
}

/* Appends n_tokens rows to a poisoned cache; the host's cache, poisoned too, says what must be in
 * every byte of it afterwards. */
static void check_kv_append(struct test_device *t, struct random *r, const int64_t *slots,
                            int n_tokens, int heads, int dim) {
    int n_cols = heads * dim;
    struct bfp_rows want_k = host_rows(SLOTS * heads, dim), want_v = host_rows(SLOTS * heads, dim);
    struct bfp_rows k = device_put_rows(t, want_k, SLOTS * heads, dim);
    struct bfp_rows v = device_put_rows(t, want_v, SLOTS * heads, dim);
    float *new_k = random_rows(r, n_tokens, n_cols, N_DISTRIBUTIONS);
    float *new_v = random_rows(r, n_tokens, n_cols, N_DISTRIBUTIONS);
    struct kv_layer kv = {k.mantissas, v.mantissas, k.exponents, v.exponents};
    int page_size = random_int(r, 1, 7); /* any: the pages follow each other */
    struct kv_views views = kv_layer_views(&kv, KV_BFP16, page_size, heads, dim);
    t->ops->kv_append(t->dev, &views, device_put(t, new_k, float_bytes(n_tokens, n_cols)),
                      device_put(t, new_v, float_bytes(n_tokens, n_cols)),
                      device_put(t, slots, sizeof *slots * (size_t)n_tokens), n_tokens, page_size,
                      heads, dim, 1, 2);
    for (int token = 0; token < n_tokens; token++) {
        if (slots[token] < 0)
            continue;
        int64_t row = slots[token] * heads;
        oracle_snap_rows((struct bfp_rows){want_k.mantissas + row * dim, want_k.exponents + row},
                         new_k + token * n_cols, heads, dim);
        oracle_snap_rows((struct bfp_rows){want_v.mantissas + row * dim, want_v.exponents + row},
                         new_v + token * n_cols, heads, dim);
    }
    device_expect_rows(t, "k", want_k, k, SLOTS * heads, dim);
    device_expect_rows(t, "v", want_v, v, SLOTS * heads, dim);
    device_expect_fault(t, -1, 0);
    free(new_v);
    free(new_k);
    free_host_rows(want_v);
    free_host_rows(want_k);
    device_clear(t);
}

static void test_kv_append(void **state) {
    struct test_device *t = *state;
    struct random r = {20};
    static const int64_t scattered[] = {5, -1, 0, 18, INT64_MIN, 7, 3, -7};
    static const int64_t none[] = {-1, -1}, last[] = {SLOTS - 1};
    static const int heads[] = {1, 3, 8, 9, 20}, dims[] = {2, 80, 128, 129, 300};
    for (size_t i = 0; i < COUNT(heads); i++)
        for (size_t j = 0; j < COUNT(dims); j++) {
            check_kv_append(t, &r, scattered, COUNT(scattered), heads[i], dims[j]);
            check_kv_append(t, &r, none, COUNT(none), heads[i], dims[j]);
            check_kv_append(t, &r, last, COUNT(last), heads[i], dims[j]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snap_rows),
        cmocka_unit_test(test_linear_shapes),
        cmocka_unit_test(test_linear_parts),
        cmocka_unit_test(test_linear_wide),
        cmocka_unit_test(test_linear_any_exponents),
        cmocka_unit_test(test_linear_extreme_rows),
        cmocka_unit_test(test_linear_zero_is_positive),
        cmocka_unit_test(test_linear_threads),
        cmocka_unit_test(test_embed_and_take_rows),
        cmocka_unit_test(test_hash_rows),
        cmocka_unit_test(test_hashes_behind_each_other),
        cmocka_unit_test(test_hash_of_a_text),
        cmocka_unit_test(test_add_and_silu_mul),
        cmocka_unit_test(test_silu_mul_snap),
        cmocka_unit_test(test_add_bias),
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_add_rmsnorm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_norm_rope),
        cmocka_unit_test(test_kv_append),
        cmocka_unit_test(test_norm_rope_stores),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
