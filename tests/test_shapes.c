/* Every op of the table at N_SHAPES random shapes, bit for bit beside the reference (which itself
 * is held against the oracle here). Sizes and data are those of pair.h: 1, 2, odd, prime, about the
 * sizes of blocks and tiles; rows of zeros, of subnormals, with one huge value. */
#include "model/numerics.h"
#include "tests/pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int smaller(int a, int b) {
    return a < b ? a : b;
}

/* A random number of columns, and of rows so that not more than this many elements come together.
 */
static void random_rows_and_columns(struct pair *p, int *n_rows, int *n_cols) {
    int most = p->is_small ? 9000 : 400000;
    *n_cols = random_size(&p->random, smaller(most, 16400));
    *n_rows = random_size(&p->random, smaller(most / *n_cols, p->is_small ? 40 : 2000));
}

/* ---- rows of matrices -------------------------------------------------------------------------
 */

static void test_embed(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "embed", 1); p->n_shapes < N_SHAPES; pair_next(p)) {
        int n_tokens, k, vocab = random_size(&p->random, 300);
        random_rows_and_columns(p, &n_tokens, &k);
        vocab = smaller(vocab, 1 + 400000 / k);
        struct bfp_rows w = pair_rows(p, vocab, k, 127);
        int32_t *ids = pair_ids(p, n_tokens, vocab);
        float *y[N_SIDES];
        struct matrix matrix[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            matrix[s] = pair_put_matrix(t, w, vocab, k, vocab / 2);
            y[s] = pair_output(t, (size_t)n_tokens * (size_t)k, sizeof *y[s]);
            t->ops->embed(t->dev, y[s], pair_put(t, ids, (size_t)n_tokens, sizeof *ids), &matrix[s],
                          n_tokens);
        }
        pair_expect_floats(p, "embed", y, n_tokens, k);
        for (int s = 0; s < N_SIDES; s++)
            p->side[s].ops->matrix_free(p->side[s].dev, &matrix[s]);
    }
    pair_report(p);
}

static void test_take_rows(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "take_rows", 2); p->n_shapes < N_SHAPES; pair_next(p)) {
        int n_from, n_rows, n_cols;
        random_rows_and_columns(p, &n_from, &n_cols);
        n_rows = random_size(&p->random, 2 * n_from);
        size_t n = (size_t)n_from * (size_t)n_cols;
        float *x = pair_floats(p, n_from, n_cols, 126), *y[N_SIDES];
        int32_t *rows = pair_ids(p, n_rows, n_from);
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            y[s] = pair_output(t, (size_t)n_rows * (size_t)n_cols, sizeof *x);
            t->ops->take_rows(t->dev, y[s], pair_put(t, x, n, sizeof *x),
                              pair_put(t, rows, (size_t)n_rows, sizeof *rows), n_rows, n_cols);
        }
        pair_expect_floats(p, "take_rows", y, n_rows, n_cols);
    }
    pair_report(p);
}

static void test_snap_rows(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "snap_rows", 3); p->n_shapes < N_SHAPES; pair_next(p)) {
        int n_rows, n_cols;
        random_rows_and_columns(p, &n_rows, &n_cols);
        size_t n = (size_t)n_rows * (size_t)n_cols;
        float *x = pair_floats(p, n_rows, n_cols, 122);
        struct bfp_rows y[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            y[s].mantissas = pair_output(t, n, sizeof *y[s].mantissas);
            y[s].exponents = pair_output(t, (size_t)n_rows, 1);
            t->ops->snap_rows(t->dev, y[s], pair_put(t, x, n, sizeof *x), n_rows, n_cols, 1);
        }
        pair_expect_rows(p, "snap_rows", y, n_rows, n_cols);
    }
    pair_report(p);
}

/* ---- linear -----------------------------------------------------------------------------------
 */

static void test_linear(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "linear", 4); p->n_shapes < N_SHAPES; pair_next(p)) {
        struct random *r = &p->random;
        int most = p->is_small ? 150000 : 100000000; /* products */
        int k = random_size(r, p->is_small ? 1100 : 8200);
        int n = random_size(r, smaller(most / k, p->is_small ? 600 : 8200));
        int m = random_size(r, smaller(most / k / n, p->is_small ? 300 : 2100));
        int spread = random_int(r, 0, 2) ? 20 : 127;
        struct bfp_rows x = pair_rows(p, m, k, spread), w = pair_rows(p, n, k, spread);
        float *y[N_SIDES];
        struct matrix matrix[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            matrix[s] = pair_put_matrix(t, w, n, k, n / 3);
            y[s] = pair_output(t, (size_t)m * (size_t)n, sizeof *y[s]);
            t->ops->linear(t->dev, y[s], pair_put_rows(t, x, m, k), &matrix[s], m);
        }
        pair_expect_floats(p, "linear", y, m, n);
        for (int s = 0; s < N_SIDES; s++)
            p->side[s].ops->matrix_free(p->side[s].dev, &matrix[s]);
    }
    pair_report(p);
}

static void test_linear_parts(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "linear_parts", 14); p->n_shapes < N_SHAPES; pair_next(p)) {
        struct random *r = &p->random;
        int most = p->is_small ? 150000 : 30000000; /* products */
        int n_parts = random_int(r, 1, MOST_LINEAR_PARTS), n[MOST_LINEAR_PARTS];
        int k = random_size(r, p->is_small ? 600 : 4200), m = random_size(r, p->is_small ? 35 : 70);
        struct bfp_rows x = pair_rows(p, m, k, 20), w[MOST_LINEAR_PARTS];
        struct linear_part parts[N_SIDES][MOST_LINEAR_PARTS];
        struct matrix matrix[N_SIDES][MOST_LINEAR_PARTS];
        for (int i = 0; i < n_parts; i++) {
            n[i] = random_size(r, smaller(most / k / m / n_parts + 1, p->is_small ? 200 : 5000));
            w[i] = pair_rows(p, n[i], k, 20);
        }
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            for (int i = 0; i < n_parts; i++) {
                matrix[s][i] = pair_put_matrix(t, w[i], n[i], k, n[i] / 3);
                parts[s][i].y = pair_output(t, (size_t)m * (size_t)n[i], sizeof(float));
                parts[s][i].w = &matrix[s][i];
            }
            t->ops->linear_parts(t->dev, parts[s], n_parts, pair_put_rows(t, x, m, k), m);
        }
        for (int i = 0; i < n_parts; i++) {
            float *y[N_SIDES];
            for (int s = 0; s < N_SIDES; s++)
                y[s] = parts[s][i].y;
            pair_expect_floats(p, "linear_parts", y, m, n[i]);
            for (int s = 0; s < N_SIDES; s++)
                p->side[s].ops->matrix_free(p->side[s].dev, &matrix[s][i]);
        }
    }
    pair_report(p);
}

static void test_add_bias(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "add_bias", 5); p->n_shapes < N_SHAPES; pair_next(p)) {
        int m, n;
        random_rows_and_columns(p, &m, &n);
        float *x = pair_floats(p, m, n, 122), *bias = pair_floats(p, 1, n, 122), *y[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            y[s] = pair_put(t, x, (size_t)m * (size_t)n, sizeof *x);
            t->ops->add_bias(t->dev, y[s], pair_put(t, bias, (size_t)n, sizeof *bias), m, n);
        }
        pair_expect_floats(p, "add_bias", y, m, n);
    }
    pair_report(p);
}

/* ---- rmsnorm and rope -------------------------------------------------------------------------
 */

static const double epsilons[] = {1e-5, 1e-6, 1e-12, 1};

static void test_rmsnorm(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "rmsnorm", 6); p->n_shapes < N_SHAPES; pair_next(p)) {
        int n_rows, n_cols, rows_per_token = random_int(&p->random, 1, 8);
        random_rows_and_columns(p, &n_rows, &n_cols);
        rows_per_token = n_rows % rows_per_token ? 1 : rows_per_token;
        size_t n = (size_t)n_rows * (size_t)n_cols;
        float *x = pair_floats(p, n_rows, n_cols, 122), *gain = pair_floats(p, 1, n_cols, 90);
        float *y[N_SIDES];
        bool in_place = random_int(&p->random, 0, 1);
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            float *from = pair_put(t, x, n, sizeof *x);
            y[s] = in_place ? from : pair_output(t, n, sizeof *x);
            t->ops->rmsnorm(t->dev, y[s], from, pair_put(t, gain, (size_t)n_cols, sizeof *gain),
                            n_rows, n_cols, rows_per_token, epsilons[p->n_shapes % 4], 1);
        }
        pair_expect_floats(p, "rmsnorm", y, n_rows, n_cols);
    }
    pair_report(p);
}

static void test_add_rmsnorm(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "add_rmsnorm", 13); p->n_shapes < N_SHAPES; pair_next(p)) {
        int n_rows, n_cols;
        random_rows_and_columns(p, &n_rows, &n_cols);
        size_t n = (size_t)n_rows * (size_t)n_cols;
        float *x = pair_floats(p, n_rows, n_cols, 122), *gain = pair_floats(p, 1, n_cols, 90);
        float *branch = pair_floats(p, n_rows, n_cols, 122), *sum[N_SIDES], *y[N_SIDES];
        struct bfp_rows snapped[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            snapped[s].mantissas = pair_output(t, n, sizeof(int16_t));
            snapped[s].exponents = pair_output(t, (size_t)n_rows, 1);
            sum[s] = pair_put(t, x, n, sizeof *x);
            y[s] = pair_output(t, n, sizeof *x);
            t->ops->add_rmsnorm(t->dev, y[s], snapped[s], sum[s],
                                pair_put(t, branch, n, sizeof *branch),
                                pair_put(t, gain, (size_t)n_cols, sizeof *gain), n_rows, n_cols,
                                epsilons[p->n_shapes % 4], 1, 2);
        }
        pair_expect_floats(p, "add_rmsnorm's sum", sum, n_rows, n_cols);
        pair_expect_floats(p, "add_rmsnorm", y, n_rows, n_cols);
        pair_expect_rows(p, "add_rmsnorm's rows", snapped, n_rows, n_cols);
    }
    pair_report(p);
}

static const int head_dims[] = {2, 6, 8, 16, 24, 32, 40, 64, 80, 96, 100, 128, 192, 256, 1024};

/* Tables of any numbers from -1 to 1: the op does not care where they come from. */
static float *random_table(struct pair *p, int n_positions, int half) {
    size_t n = (size_t)n_positions * (size_t)half;
    float *table = pair_array(p, n, sizeof *table);
    for (size_t i = 0; i < n; i++)
        table[i] = (float)random_int(&p->random, -(1 << 24), 1 << 24) * 0x1p-24f;
    return table;
}

static void test_rope(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "rope", 7); p->n_shapes < N_SHAPES; pair_next(p)) {
        struct random *r = &p->random;
        int dim = head_dims[random_int(r, 0, COUNT(head_dims) - 1)], half = dim / 2;
        int most = (p->is_small ? 9000 : 400000) / dim, n_heads = random_size(r, smaller(most, 64));
        int n_tokens = random_size(r, smaller(most / n_heads, 1100)), n_positions;
        n_positions = random_size(r, most);
        float *x = pair_floats(p, n_tokens * n_heads, dim, 120), *y[N_SIDES];
        float *c = random_table(p, n_positions, half), *s = random_table(p, n_positions, half);
        int32_t *positions = pair_ids(p, n_tokens, n_positions);
        for (int i = 0; i < N_SIDES; i++) {
            struct test_device *t = &p->side[i];
            size_t n_table = (size_t)n_positions * (size_t)half;
            y[i] = pair_put(t, x, (size_t)n_tokens * (size_t)(n_heads * dim), sizeof *x);
            t->ops->rope(t->dev, y[i], pair_put(t, positions, (size_t)n_tokens, sizeof *positions),
                         pair_put(t, c, n_table, sizeof *c), pair_put(t, s, n_table, sizeof *s),
                         n_tokens, n_heads, dim);
        }
        pair_expect_floats(p, "rope", y, n_tokens, n_heads * dim);
    }
    pair_report(p);
}

static void test_norm_rope(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "norm_rope", 15); p->n_shapes < N_SHAPES; pair_next(p)) {
        struct random *r = &p->random;
        int dim = head_dims[random_int(r, 0, COUNT(head_dims) - 1)], half = dim / 2;
        int most = (p->is_small ? 4500 : 200000) / dim, heads = random_size(r, smaller(most, 64));
        int kv_heads = random_size(r, heads), n_heads[2] = {heads, kv_heads};
        int n_tokens = random_size(r, smaller(most / heads, 1100)), n_positions;
        n_positions = random_size(r, most);
        float *c = random_table(p, n_positions, half), *s = random_table(p, n_positions, half);
        float *x[2], *gain[2], *y[2][N_SIDES];
        int32_t *positions = pair_ids(p, n_tokens, n_positions);
        int norms = random_int(r, 0, 3);
        for (int j = 0; j < 2; j++) {
            x[j] = pair_floats(p, n_tokens * n_heads[j], dim, 60);
            gain[j] = pair_floats(p, 1, dim, 10);
        }
        for (int i = 0; i < N_SIDES; i++) {
            struct test_device *t = &p->side[i];
            size_t n_table = (size_t)n_positions * (size_t)half;
            struct head_rows rows[2];
            for (int j = 0; j < 2; j++) {
                y[j][i] =
                    pair_put(t, x[j], (size_t)n_tokens * (size_t)(n_heads[j] * dim), sizeof *x[j]);
                rows[j] = (struct head_rows){
                    y[j][i],
                    norms >> j & 1 ? pair_put(t, gain[j], (size_t)dim, sizeof *gain[j]) : NULL,
                    n_heads[j], j};
            }
            t->ops->norm_rope(t->dev, &rows[0], &rows[1], NULL, NULL,
                              pair_put(t, positions, (size_t)n_tokens, sizeof *positions),
                              pair_put(t, c, n_table, sizeof *c),
                              pair_put(t, s, n_table, sizeof *s), n_tokens, dim, 1e-6);
        }
        for (int j = 0; j < 2; j++)
            pair_expect_floats(p, j ? "norm_rope's k" : "norm_rope's q", y[j], n_tokens,
                               n_heads[j] * dim);
    }
    pair_report(p);
}

/* ---- cache and attention ----------------------------------------------------------------------
 */

/* n_tokens different slots in random order, some of them skipped. */
static int64_t *random_slots(struct pair *p, int n_tokens, int n_slots) {
    int64_t *slots = pair_array(p, (size_t)n_slots, sizeof *slots);
    for (int i = 0; i < n_slots; i++)
        slots[i] = i;
    for (int i = 0; i < n_tokens; i++) {
        int j = random_int(&p->random, i, n_slots - 1);
        int64_t slot = slots[j];
        slots[j] = slots[i];
        slots[i] = random_int(&p->random, 0, 9) ? slot : -1 - slot;
    }
    return slots;
}

static void test_kv_append(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "kv_append", 8); p->n_shapes < N_SHAPES; pair_next(p)) {
        struct random *r = &p->random;
        int dim = head_dims[random_int(r, 0, COUNT(head_dims) - 1)];
        int most = (p->is_small ? 4500 : 200000) / dim, heads = random_size(r, smaller(most, 64));
        int n_tokens = random_size(r, most / heads), n_slots = n_tokens + random_int(r, 0, 9);
        size_t n = (size_t)n_tokens * (size_t)(heads * dim), n_rows = (size_t)(n_slots * heads);
        float *k = pair_floats(p, n_tokens * heads, dim, 122);
        float *v = pair_floats(p, n_tokens * heads, dim, 122);
        int64_t *slots = random_slots(p, n_tokens, n_slots);
        struct bfp_rows keys[N_SIDES], values[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            for (int i = 0; i < 2; i++)
                (i ? values : keys)[s] =
                    (struct bfp_rows){pair_output(t, n_rows * (size_t)dim, sizeof(int16_t)),
                                      pair_output(t, n_rows, 1)};
            struct kv_layer kv = {keys[s].mantissas, values[s].mantissas, keys[s].exponents,
                                  values[s].exponents};
            struct kv_views views = kv_layer_views(&kv, KV_BFP16, 1, heads, dim);
            t->ops->kv_append(
                t->dev, &views, pair_put(t, k, n, sizeof *k), pair_put(t, v, n, sizeof *v),
                pair_put(t, slots, (size_t)n_tokens, sizeof *slots), n_tokens, 1, heads, dim, 1, 2);
        }
        pair_expect_rows(p, "keys", keys, n_slots * heads, dim);
        pair_expect_rows(p, "values", values, n_slots * heads, dim);
    }
    pair_report(p);
}

static void test_norm_rope_stores(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "norm_rope", 17); p->n_shapes < N_SHAPES; pair_next(p)) {
        struct random *r = &p->random;
        int dim = head_dims[random_int(r, 0, COUNT(head_dims) - 1)], half = dim / 2;
        int most = (p->is_small ? 4500 : 200000) / dim, heads = random_size(r, smaller(most, 64));
        int kv_heads = random_size(r, heads);
        int n_tokens = random_size(r, smaller(most / heads, 1100));
        int n_slots = n_tokens + random_int(r, 0, 9), n_positions = random_size(r, most);
        size_t n_rows = (size_t)(n_slots * kv_heads), n_table = (size_t)(n_positions * half);
        float *c = random_table(p, n_positions, half), *s = random_table(p, n_positions, half);
        float *q = pair_floats(p, n_tokens * heads, dim, 60), *gain = pair_floats(p, 1, dim, 10);
        float *k = pair_floats(p, n_tokens * kv_heads, dim, 60);
        float *v = pair_floats(p, n_tokens * kv_heads, dim, 122), *rotated[2][N_SIDES];
        int32_t *positions = pair_ids(p, n_tokens, n_positions);
        int64_t *slots = random_slots(p, n_tokens, n_slots);
        int norms = random_int(r, 0, 3);
        size_t n = (size_t)n_tokens * (size_t)dim;
        struct bfp_rows keys[N_SIDES], values[N_SIDES];
        for (int i = 0; i < N_SIDES; i++) {
            struct test_device *t = &p->side[i];
            const float *norm = pair_put(t, gain, (size_t)dim, sizeof *gain);
            rotated[0][i] = pair_put(t, q, n * (size_t)heads, sizeof *q);
            rotated[1][i] = pair_put(t, k, n * (size_t)kv_heads, sizeof *k);
            struct head_rows both[2] = {{rotated[0][i], norms & 1 ? norm : NULL, heads, 1},
                                        {rotated[1][i], norms & 2 ? norm : NULL, kv_heads, 2}};
            for (int j = 0; j < 2; j++)
                (j ? values : keys)[i] =
                    (struct bfp_rows){pair_output(t, n_rows * (size_t)dim, sizeof(int16_t)),
                                      pair_output(t, n_rows, 1)};
            struct kv_layer kv = {keys[i].mantissas, values[i].mantissas, keys[i].exponents,
                                  values[i].exponents};
            struct kv_target to = {kv_layer_views(&kv, KV_BFP16, 3, kv_heads, dim),
                                   pair_put(t, slots, (size_t)n_tokens, sizeof *slots),
                                   3,
                                   3,
                                   4,
                                   NULL};
            t->ops->norm_rope(t->dev, &both[0], &both[1],
                              pair_put(t, v, n * (size_t)kv_heads, sizeof *v), &to,
                              pair_put(t, positions, (size_t)n_tokens, sizeof *positions),
                              pair_put(t, c, n_table, sizeof *c),
                              pair_put(t, s, n_table, sizeof *s), n_tokens, dim, 1e-6);
        }
        pair_expect_floats(p, "queries", rotated[0], n_tokens * heads, dim);
        pair_expect_floats(p, "keys", rotated[1], n_tokens * kv_heads, dim);
        pair_expect_rows(p, "stored keys", keys, n_slots * kv_heads, dim);
        pair_expect_rows(p, "stored values", values, n_slots * kv_heads, dim);
    }
    pair_report(p);
}

/* Heads, their grouping, and lengths about the tiles of 256, within a number of products. */
static struct attention_shape random_attention(struct pair *p, int *n_tokens, int *kv_len) {
    static const int groups[] = {1, 1, 2, 3, 4, 5, 7, 8, 16, 32};
    struct random *r = &p->random;
    int most = p->is_small ? 250000 : 60000000;
    int dim = head_dims[random_int(r, 0, COUNT(head_dims) - 1)];
    int group = groups[random_int(r, 0, COUNT(groups) - 1)];
    int n_kv_heads = random_int(r, 0, 2) ? random_int(r, 1, p->is_small ? 3 : 8) : 1;
    *kv_len = random_size(r, smaller(most / (dim * group * n_kv_heads), p->is_small ? 1100 : 5000));
    *n_tokens = random_size(
        r, smaller(*kv_len, smaller(most / (dim * group * n_kv_heads * *kv_len), 1500)));
    if (random_int(r, 0, 3) == 0)
        *n_tokens = 1;
    return (struct attention_shape){group * n_kv_heads, n_kv_heads, dim, 1 / sqrt((double)dim),
                                    KV_BFP16};
}

static void test_attention(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "attention", 9); p->n_shapes < N_SHAPES; pair_next(p)) {
        int n_tokens, kv_len, spread = random_int(&p->random, 0, 1) ? 2 : 40;
        struct attention_shape shape = random_attention(p, &n_tokens, &kv_len);
        int q_cols = shape.n_heads * shape.head_dim, kv_rows = kv_len * shape.n_kv_heads;
        float *q = pair_floats(p, n_tokens * shape.n_heads, shape.head_dim, 40), *y[N_SIDES];
        struct bfp_rows k = pair_rows(p, kv_rows, shape.head_dim, spread);
        struct bfp_rows v = pair_rows(p, kv_rows, shape.head_dim, 2 * spread);
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            struct bfp_rows keys = pair_put_rows(t, k, kv_rows, shape.head_dim);
            struct bfp_rows values = pair_put_rows(t, v, kv_rows, shape.head_dim);
            struct kv_layer kv = {keys.mantissas, values.mantissas, keys.exponents,
                                  values.exponents};
            size_t n = (size_t)n_tokens * (size_t)q_cols;
            y[s] = pair_output(t, n, sizeof *q);
            t->ops->attention(t->dev, y[s], pair_put(t, q, n, sizeof *q), &kv, n_tokens, kv_len,
                              &shape, 1);
        }
        char name[96];
        snprintf(name, sizeof name, "attention, %d/%d heads of %d, %d of %d tokens", shape.n_heads,
                 shape.n_kv_heads, shape.head_dim, n_tokens, kv_len);
        pair_expect_floats(p, name, y, n_tokens, q_cols);
    }
    pair_report(p);
}

/* ---- elementwise ------------------------------------------------------------------------------
 */

/* Into new memory, or over the first or the second input; each array begins anywhere. Inputs are
 * finite: which NaN an operation gives is the one thing in which IEEE 754 leaves machines free. */
static void check_elementwise(struct pair *p, bool is_add) {
    struct random *r = &p->random;
    int n = random_size(r, p->is_small ? 9000 : 400000), to = random_int(r, 0, 2), offsets[3];
    for (int i = 0; i < 3; i++)
        offsets[i] = random_int(r, 0, 1) ? 0 : random_int(r, 0, 5);
    float *inputs[2] = {pair_floats(p, 1, n + offsets[0], 120),
                        pair_floats(p, 1, n + offsets[1], 120)};
    float *y[N_SIDES];
    for (int s = 0; s < N_SIDES; s++) {
        struct test_device *t = &p->side[s];
        float *all[3] = {pair_put(t, inputs[0], (size_t)(n + offsets[0]), sizeof(float)),
                         pair_put(t, inputs[1], (size_t)(n + offsets[1]), sizeof(float)),
                         pair_output(t, (size_t)(n + offsets[2]), sizeof(float))};
        y[s] = all[to];
        (is_add ? t->ops->add : t->ops->silu_mul)(
            t->dev, all[to] + offsets[to], all[0] + offsets[0], all[1] + offsets[1], (size_t)n);
    }
    pair_expect_floats(p, is_add ? "add" : "silu_mul", y, 1, n + offsets[to]);
}

static void test_silu_mul(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "silu_mul", 10); p->n_shapes < N_SHAPES; pair_next(p))
        check_elementwise(p, false);
    pair_report(p);
}

static void test_silu_mul_snap(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "silu_mul_snap", 16); p->n_shapes < N_SHAPES; pair_next(p)) {
        int n_rows, n_cols;
        random_rows_and_columns(p, &n_rows, &n_cols);
        size_t n = (size_t)n_rows * (size_t)n_cols;
        float *gate = pair_floats(p, n_rows, n_cols, 60), *up = pair_floats(p, n_rows, n_cols, 60);
        struct bfp_rows snapped[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            snapped[s].mantissas = pair_output(t, n, sizeof(int16_t));
            snapped[s].exponents = pair_output(t, (size_t)n_rows, 1);
            t->ops->silu_mul_snap(t->dev, snapped[s], pair_put(t, gate, n, sizeof *gate),
                                  pair_put(t, up, n, sizeof *up), n_rows, n_cols, 1);
        }
        pair_expect_rows(p, "silu_mul_snap", snapped, n_rows, n_cols);
    }
    pair_report(p);
}

static void test_add(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "add", 11); p->n_shapes < N_SHAPES; pair_next(p))
        check_elementwise(p, true);
    pair_report(p);
}

/* ---- sample -----------------------------------------------------------------------------------
 */

static struct sampling random_sampling(struct random *r, int vocab) {
    static const float temperatures[] = {0, 0.01f, 0.7f, 1, 5}, top_ps[] = {1, 0.999f, 0.5f, 0.01f};
    return (struct sampling){.temperature = temperatures[random_int(r, 0, 4)],
                             .top_k = random_int(r, 0, 1) ? 0 : random_size(r, 2 * vocab),
                             .top_p = top_ps[random_int(r, 0, 3)],
                             .seed = random_bits64(r),
                             .sample = (uint32_t)random_bits64(r),
                             .position = (uint32_t)random_int(r, 0, 5000)};
}

static void test_sample(void **state) {
    struct pair *p = *state;
    for (pair_begin(p, "sample", 12); p->n_shapes < N_SHAPES; pair_next(p)) {
        int most = p->is_small ? 1500 : 300000, vocab = random_size(&p->random, most);
        int n_rows = random_size(&p->random, smaller(most / vocab, 64));
        float *logits = pair_floats(p, n_rows, vocab, 100);
        struct sampling *how = pair_array(p, (size_t)n_rows, sizeof *how);
        for (int row = 0; row < n_rows; row++)
            how[row] = random_sampling(&p->random, vocab);
        void *y[N_SIDES];
        for (int s = 0; s < N_SIDES; s++) {
            struct test_device *t = &p->side[s];
            y[s] = pair_output(t, (size_t)n_rows, sizeof(int32_t));
            t->ops->sample(t->dev, y[s],
                           pair_put(t, logits, (size_t)n_rows * (size_t)vocab, sizeof *logits), how,
                           n_rows, vocab, 1);
        }
        pair_expect(p, "sample", y, n_rows, 1, ELEMENT_INT32);
    }
    pair_report(p);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_take_rows),
        cmocka_unit_test(test_snap_rows),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_add_bias),
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_kv_append),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_silu_mul),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_sample),
        cmocka_unit_test(test_add_rmsnorm),
        cmocka_unit_test(test_linear_parts),
        cmocka_unit_test(test_norm_rope),
        cmocka_unit_test(test_silu_mul_snap),
        cmocka_unit_test(test_norm_rope_stores),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* as test_faults */
    return cmocka_run_group_tests(tests, pair_group_open, pair_group_close);
}
