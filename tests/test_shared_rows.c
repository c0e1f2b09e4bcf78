/*
 * test_shared_rows - phase 14 without processes: which part of a model is whose, what a rank loads,
 * and the ops on parts of rows: put together, they have the bits of the whole.
 */
#include "model/model.h"
#include "model/numerics.h"
#include "tests/checkpoint_writer.h"
#include "tests/device.h"
#include "tests/oracle.h"
#include "tests/random_inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MOST_RANKS = 5 };

static const int row_sizes[] = {5, 31, 64, 65, 255, 256, 257, 513, 1025};

/* ---- ops ------------------------------------------------------------------------------------- */

static size_t bytes_of(int n_rows, int n_cols, size_t element) {
    return element * (size_t)n_rows * (size_t)n_cols;
}

/* Columns of rows, copied. */
static void *columns(const void *rows, int n_rows, int n_cols, struct span part, size_t element) {
    char *to = host_array((size_t)n_rows * (size_t)part.n, element);
    for (int row = 0; row < n_rows; row++)
        memcpy(to + bytes_of(row, part.n, element),
               (const char *)rows + bytes_of(row, n_cols, element) + element * (size_t)part.first,
               element * (size_t)part.n);
    return to;
}

/* The largest numbers of all parts, as ranks find them: host [n_rows]. */
static uint32_t *largest_of(struct test_device *t, const float *x, int n_rows, int n_cols,
                            int n_ranks) {
    uint32_t *all = calloc((size_t)n_rows, sizeof *all);
    for (int r = 0; r < n_ranks; r++) {
        struct span part = parallel_span(n_cols, r, n_ranks);
        float *mine = columns(x, n_rows, n_cols, part, sizeof *x);
        uint32_t *found = device_poisoned(t, bytes_of(n_rows, 1, sizeof *found));
        t->ops->row_largest(t->dev, found, device_put(t, mine, bytes_of(n_rows, part.n, 4)), n_rows,
                            part.n);
        uint32_t *host = device_get(t, found, bytes_of(n_rows, 1, sizeof *found));
        for (int row = 0; row < n_rows; row++)
            all[row] = host[row] > all[row] ? host[row] : all[row];
        free(host);
        free(mine);
    }
    return all;
}

/* One rank's part of the rows, snapped on the device. */
static struct bfp_rows snap_part(struct test_device *t, const float *x, const uint32_t *largest,
                                 int n_rows, int n_cols, struct span part) {
    float *mine = columns(x, n_rows, n_cols, part, sizeof *x);
    struct bfp_rows y = {device_poisoned(t, bytes_of(n_rows, part.n, sizeof(int16_t))),
                         device_poisoned(t, (size_t)n_rows)};
    t->ops->snap_part(t->dev, y, device_put(t, mine, bytes_of(n_rows, part.n, 4)),
                      device_put(t, largest, bytes_of(n_rows, 1, 4)), n_rows, part.n, 7);
    free(mine);
    return y;
}

static void test_snapped_parts(void **state) {
    struct test_device *t = *state;
    struct random r = {71};
    for (size_t i = 0; i < COUNT(row_sizes) * MOST_RANKS; i++) {
        int n_cols = row_sizes[i / MOST_RANKS], n_rows = 1 + (int)i % 7;
        int n_ranks = 1 + (int)i % MOST_RANKS;
        float *x = random_rows(&r, n_rows, n_cols, N_DISTRIBUTIONS);
        struct bfp_rows whole = host_rows(n_rows, n_cols);
        oracle_snap_rows(whole, x, n_rows, n_cols);
        uint32_t *largest = largest_of(t, x, n_rows, n_cols, n_ranks);
        for (int rank = 0; rank < n_ranks; rank++) {
            struct span part = parallel_span(n_cols, rank, n_ranks);
            struct bfp_rows want = {columns(whole.mantissas, n_rows, n_cols, part, 2),
                                    whole.exponents};
            struct bfp_rows got = snap_part(t, x, largest, n_rows, n_cols, part);
            device_expect_rows(t, "snap_part", want, got, n_rows, part.n);
            free(want.mantissas);
        }
        device_expect_fault(t, -1, 0);
        free_host_rows(whole);
        free(largest);
        free(x);
        device_clear(t);
    }
}

/* A NaN or an infinity in one part is a fault in all. */
static void test_faults(void **state) {
    struct test_device *t = *state;
    struct random r = {72};
    enum { ROWS = 4, COLS = 70, BAD = 2, RANKS = 3 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1.7e38f};
    for (size_t i = 0; i < COUNT(bad); i++) {
        float *x = random_rows(&r, ROWS, COLS, NORMAL);
        x[BAD * COLS + 69] = bad[i];
        uint32_t *largest = largest_of(t, x, ROWS, COLS, RANKS);
        for (int rank = 0; rank < RANKS; rank++) {
            struct span part = parallel_span(COLS, rank, RANKS);
            struct bfp_rows y = snap_part(t, x, largest, ROWS, COLS, part);
            device_expect_fault(t, 7, BAD);
            int16_t *q = device_get(t, y.mantissas, bytes_of(ROWS, part.n, 2));
            for (int j = 0; j < part.n; j++)
                assert_int_equal(q[BAD * part.n + j], 0);
            free(q);
        }
        free(largest);
        free(x);
        device_clear(t);
    }
}

/* The integers of the parts, added and rounded, are those of linear. */
static void check_sums(struct test_device *t, struct random *r, int m, int n, int k, int n_ranks) {
    struct bfp_rows x = random_bfp_rows(r, m, k, N_DISTRIBUTIONS);
    struct bfp_rows w = random_bfp_rows(r, n, k, N_DISTRIBUTIONS);
    float *want = host_array((size_t)m * (size_t)n, sizeof *want);
    int64_t *sums = calloc((size_t)m * (size_t)n, sizeof *sums);
    struct error err = {""};
    for (int rank = 0; rank < n_ranks; rank++) {
        struct span part = parallel_span(k, rank, n_ranks);
        struct bfp_rows my_x = {columns(x.mantissas, m, k, part, 2), x.exponents};
        struct bfp_rows my_w = {columns(w.mantissas, n, k, part, 2), w.exponents};
        struct matrix matrix;
        int64_t *mine = device_poisoned(t, bytes_of(m, n, sizeof *mine));
        assert_int_equal(t->ops->matrix_create(t->dev, &matrix, n, part.n, &err), 0);
        t->ops->matrix_put(t->dev, &matrix, 0, n, my_w.mantissas, my_w.exponents);
        t->ops->linear_sums(t->dev, mine, device_put_rows(t, my_x, m, part.n), &matrix, m);
        int64_t *host = device_get(t, mine, bytes_of(m, n, sizeof *mine));
        for (int i = 0; i < m * n; i++)
            sums[i] += host[i];
        t->ops->matrix_free(t->dev, &matrix);
        free(host);
        free(my_x.mantissas);
        free(my_w.mantissas);
    }
    float *got = device_poisoned(t, bytes_of(m, n, sizeof *got));
    t->ops->round_sums(t->dev, got, device_put(t, sums, bytes_of(m, n, sizeof *sums)),
                       device_put(t, x.exponents, (size_t)m), device_put(t, w.exponents, (size_t)n),
                       m, n);
    oracle_linear(want, x, w, m, n, k);
    device_expect_floats(t, "round_sums", want, got, m, n);
    device_expect_fault(t, -1, 0);
    free_host_rows(x);
    free_host_rows(w);
    free(want);
    free(sums);
    device_clear(t);
}

static void test_sums(void **state) {
    struct random r = {73};
    static const int outputs[] = {1, 7, 33, 48, 100};
    for (size_t i = 0; i < COUNT(row_sizes); i++)
        for (size_t j = 0; j < COUNT(outputs); j++)
            check_sums(*state, &r, 1 + (int)(i + j) % 9, outputs[j], row_sizes[i],
                       1 + (int)(i + 2 * j) % MOST_RANKS);
}

/* ---- who has what ---------------------------------------------------------------------------- */

static void check_parts(const struct model_config *c, int n_ranks) {
    struct error err = {""};
    struct span before = {0, 0}, ffn = {0, 0}, words = {0, 0};
    for (int r = 0; r < n_ranks; r++) {
        struct model_part p;
        assert_int_equal(parallel_part(&p, c, r, n_ranks, false, &err), 0);
        assert_int_equal(p.heads.first, before.first + before.n);
        assert_int_equal(p.ffn.first, ffn.first + ffn.n);
        assert_int_equal(p.vocab.first, words.first + words.n);
        assert_true(p.heads.n > 0 && p.kv_heads.n > 0 && p.ffn.n > 0 && p.vocab.n > 0);
        assert_int_equal(p.heads.n % p.kv_heads.n, 0);
        for (int h = 0; h < p.heads.n; h++) /* as attention finds its kv head here, and alone */
            assert_int_equal(p.kv_heads.first + h / (p.heads.n / p.kv_heads.n),
                             (p.heads.first + h) / (c->n_heads / c->n_kv_heads));
        before = p.heads;
        ffn = p.ffn;
        words = p.vocab;
    }
    assert_int_equal(before.first + before.n, c->n_heads);
    assert_int_equal(ffn.first + ffn.n, c->ffn);
    assert_int_equal(words.first + words.n, c->vocab_size);
}

static void test_parts(void **state) {
    (void)state;
    for (int kv = 1; kv <= 12; kv++)
        for (int group = 1; group <= 9; group++) {
            struct model_config c = {.n_heads = kv * group,
                                     .n_kv_heads = kv,
                                     .ffn = 2 * kv * group + 1,
                                     .vocab_size = 999};
            struct model_part part;
            struct error err;
            for (int n = 1; n <= c.n_heads; n++)
                check_parts(&c, n);
            assert_int_equal(parallel_part(&part, &c, 0, c.n_heads + 1, false, &err), -1);
            assert_non_null(strstr(err.text, "can be shared by"));
        }
}

/* ---- what a rank loads ----------------------------------------------------------------------- */

/* Rows and columns of a matrix of the whole model. */
static void expect_part(const struct matrix *whole, const struct matrix *part, struct span rows,
                        struct span cols, int n_zeros) {
    assert_int_equal(part->n, rows.n + n_zeros);
    assert_int_equal(part->k, cols.n);
    for (int i = 0; i < part->n; i++)
        for (int j = 0; j < part->k; j++) {
            int16_t got = ((int16_t *)part->mantissas)[i * part->k + j];
            assert_int_equal(
                got,
                i < rows.n
                    ? ((int16_t *)whole->mantissas)[(rows.first + i) * whole->k + cols.first + j]
                    : 0);
        }
    assert_memory_equal(part->exponents, whole->exponents + rows.first, (size_t)rows.n);
}

static struct span times(struct span s, int n) {
    return (struct span){s.first * n, s.n * n};
}

static void expect_layer(const struct model *whole, const struct model *part, int i) {
    const struct layer_weights *a = &whole->layers[i], *b = &part->layers[i];
    int dim = whole->config.head_dim;
    struct span all = {0, whole->config.hidden}, ffn = part->part.ffn;
    struct span q = times(part->part.heads, dim), kv = times(part->part.kv_heads, dim);
    expect_part(&a->q, &b->q, q, all, 0);
    expect_part(&a->k, &b->k, kv, all, 0);
    expect_part(&a->v, &b->v, kv, all, 0);
    expect_part(&a->o, &b->o, all, q, 0);
    expect_part(&a->gate, &b->gate, ffn, all, 0);
    expect_part(&a->up, &b->up, ffn, all, 0);
    expect_part(&a->down, &b->down, all, ffn, 0);
    if (a->q_bias)
        assert_memory_equal(b->q_bias, a->q_bias + q.first, sizeof(float) * (size_t)q.n);
    if (a->gate_bias)
        assert_memory_equal(b->gate_bias, a->gate_bias + ffn.first, sizeof(float) * (size_t)ffn.n);
    if (a->down_bias)
        assert_memory_equal(b->down_bias, a->down_bias, sizeof(float) * (size_t)all.n);
}

static void test_loading(void **state) {
    (void)state;
    static const char *const configs[] = {TINY_LLAMA, TINY_QWEN2, TINY_QWEN3};
    for (size_t i = 0; i < COUNT(configs) * 4; i++) {
        struct parallel ranks = {.n_ranks = (int)i % 4 + 1};
        struct load_fixture f;
        struct model whole, part;
        struct error err = {""};
        fixture_start(&f, configs[i / 4]);
        fixture_load(&f, &whole);
        size_t bytes = f.dev->bytes, most = 0;
        for (ranks.rank = 0; ranks.rank < ranks.n_ranks; ranks.rank++) {
            if (model_load_part(&part, f.dev, f.dir, &ranks, NULL, &err))
                fail_msg("%s", err.text);
            struct span all = {0, whole.config.hidden};
            expect_part(&whole.embedding, &part.embedding, part.part.vocab, all, 1);
            if (!whole.config.tied)
                expect_part(&whole.output, &part.output, part.part.vocab, all, 0);
            for (int layer = 0; layer < whole.config.n_layers; layer++)
                expect_layer(&whole, &part, layer);
            assert_int_equal(part.config.n_heads, part.part.heads.n);
            most = f.dev->bytes - bytes > most ? f.dev->bytes - bytes : most;
            model_free(&part);
        }
        /* Its share of all but the norms, with some room for what does not divide. */
        assert_true(most < bytes / (size_t)ranks.n_ranks * 3 / 2 + 4096);
        model_free(&whole);
        fixture_end(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapped_parts), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_sums),          cmocka_unit_test(test_parts),
        cmocka_unit_test(test_loading),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
