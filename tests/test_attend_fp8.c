/*
 * attend over caches of 8-bit floats: every number in a row of every exponent, and the largest
 * sums.
 */
#include "tests/attend_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* The largest number, the smallest, the last one that is read exactly beside the largest, and the
 * first that is not; and one beside all of them. */
static const struct extreme {
    enum kv_type type;
    float number, unit;
} extremes[] = {
    {KV_E4M3, 448, 1},
    {KV_E4M3, 448, 0x1p-9f},
    {KV_E4M3, 32, 0x1p-9f},
    {KV_E4M3, 60, 0x1p-9f},
    {KV_E4M3, 1.875f, 0x1p-9f},
    {KV_E4M3, 0x1p-9f, 0x1p-9f},
    {KV_E5M2, 57344, 64},
    {KV_E5M2, 57344, 0x1p-16f},
    {KV_E5M2, 160, 0x1p-5f},
    {KV_E5M2, 0x1.8p-5f, 0x1p-16f},
    {KV_E5M2, 0x1p-16f, 0x1p-16f},
};

/* BACK_AGAIN: a sum over all grows large, and small again; TWICE: one over a half. */
enum signs { ALL_PLUS, ALTERNATING, BACK_AGAIN, TWICE, ALMOST_ALL_MINUS, N_SIGNS };

static float sign_of(int signs, int i, int n) {
    switch (signs) {
    case ALTERNATING:
        return i % 2 ? 1 : -1;
    case BACK_AGAIN:
        return i < n * 9 / 16 ? 1 : -1;
    case TWICE:
        return i % 128 < 72 ? 1 : -1;
    case ALMOST_ALL_MINUS:
        return i ? -1 : 1;
    default:
        return 1;
    }
}

/* A case with 4 query heads: one query is four rows, for which a row's scores are two lanes'. */
static void make_case(struct attend_case *c, struct random *r, enum kv_type type, int dim,
                      int n_queries, int kv_len) {
    struct attend_wish wish = attend_anything(kv_len);
    wish.batch = 1;
    wish.kv_len = kv_len;
    wish.qo_len = n_queries;
    wish.kv_heads = 1;
    wish.group = 4;
    wish.head_dim = dim;
    wish.order = KV_NHD + dim % 3 % 2;
    wish.type = (int)type;
    wish.cap = 0;
    wish.causal = 1;
    wish.mask = MASK_NONE;
    wish.sinks = wish.slopes = 0;
    attend_case_make(c, r, &wish);
    /* All positions are seen; by the plain kernels, or by those for variants. */
    c->variant.window_left = random_int(r, 0, 1) ? -1 : 1000;
}

static void check(struct test_device *t, struct attend_case *c) {
    float *y, *lse;
    attend_run(t, c, &y, &lse);
    attend_expect_as_reference(c, y, lse);
    free(y);
    free(lse);
    attend_case_free(c);
}

/* Every product of a key's sum is the largest: queries of digits 127 and 127, or 127 and -128. One
 * query: what the unit is multiplied by is odd. */
static void check_keys(struct test_device *t, struct random *r, const struct extreme *x, int dim,
                       int signs, int n_queries) {
    struct attend_case c;
    make_case(&c, r, x->type, dim, n_queries, 300);
    c.layout.k_scale = 1;
    c.shape.scale = 0x1p12 / ((double)x->number * dim); /* the logarithm of the sum shows it */
    for (int i = 0; i < c.n_tokens * c.shape.n_heads * dim; i++)
        c.q[i] = (n_queries == 1 && i % dim == 1 ? 0x1111
                  : i / dim % 2                  ? 0x7e80
                                                 : 0x7f7f) *
                 (i / dim % 4 < 2 ? 0x1p-15f : -0x1p-15f);
    for (int i = 0; i < c.n_positions * dim; i++)
        c.k[i] = i % dim == 1 ? x->unit : x->number * sign_of(signs, i % dim, dim);
    check(t, &c);
}

/* Every product of a sum of values is the largest: one position of each tile has the probability 1,
 * the others one whose mantissa is 16256, the digits 64 and -128; but one 16257. */
static void check_values(struct test_device *t, struct random *r, const struct extreme *x, int dim,
                         int signs, int n_queries) {
    struct attend_case c;
    make_case(&c, r, x->type, dim, n_queries, 300);
    c.layout.k_scale = c.layout.v_scale = 1;
    c.shape.scale = 0.0078432; /* log(16384 / 16256) */
    for (int i = 0; i < c.n_tokens * c.shape.n_heads * dim; i++)
        c.q[i] = i % dim == 0 ? 1 : i % dim == 1 ? 0x1p-6f : 0;
    for (int i = 0; i < c.n_positions * dim; i++) {
        int position = i / dim % 256;
        bool likely = position == 0 && i % dim == 0, odd = position == 100 && i % dim == 1;
        c.k[i] = likely ? 1 : odd ? 0.5f : 0;
        c.v[i] = position == 100 ? x->unit : x->number * sign_of(signs, position, 256);
    }
    check(t, &c);
}

static void test_largest_sums(void **state) {
    static const int dims[] = {256, 128, 48};
    struct test_device *t = *state;
    struct random r = {921};
    for (int i = 0; i < COUNT(extremes); i++)
        for (int signs = 0; signs < N_SIGNS; signs++) {
            int dim = signs == BACK_AGAIN ? 256 : dims[(i + signs) % COUNT(dims)];
            check_keys(t, &r, &extremes[i], dim, signs, 1 + signs % 2);
            check_values(t, &r, &extremes[i], dim, signs, 1 + signs % 2);
        }
}

/* A row that has this code, and none that is larger: a random sign, and all smaller ones in turn.
 */
static void fill_row(float *row, struct random *r, enum kv_type type, int dim, uint32_t largest) {
    for (int d = 0; d < dim; d++) {
        uint32_t code = largest - (uint32_t)d % (largest + 1);
        row[d] = (random_int(r, 0, 1) ? 1 : -1) * kv_float(type, code);
    }
}

/* Queries that see one position each, whatever the kernels for so many in a sequence: the result is
 * the value row as it was read, and the logarithm of the sum the key's score. Each number is the
 * largest of a row, with all smaller ones beside it, behind rows with other largest numbers. */
static void check_every_number(struct test_device *t, struct random *r, enum kv_type type, int dim,
                               int group, int n_queries) {
    int n_codes = (int)small_float_of(type).largest, before = n_queries == 1 ? 26 : 2;
    int length = n_queries + before;
    struct attend_wish wish = attend_anything(0);
    struct attend_case c;
    wish.batch = (n_codes + n_queries - 1) / n_queries;
    wish.most_positions = wish.batch * length;
    wish.long_ones = true; /* all have these lengths */
    wish.kv_len = length;
    wish.qo_len = n_queries;
    wish.kv_heads = 1;
    wish.group = group;
    wish.head_dim = dim;
    wish.order = KV_NHD;
    wish.type = (int)type;
    wish.cap = 0;
    wish.causal = 1;
    wish.mask = MASK_NONE;
    wish.sinks = wish.slopes = 0;
    attend_case_make(&c, r, &wish);
    c.layout.k_scale = c.layout.v_scale = 1;
    c.variant.window_left = 0;
    for (int p = 0; p < c.n_positions; p++) {
        int query = p % length - before, code = p / length * n_queries + abs(query);
        fill_row(c.k + p * dim, r, type, dim, (uint32_t)(code % n_codes + 1));
        fill_row(c.v + p * dim, r, type, dim, (uint32_t)(code % n_codes + 1));
    }
    check(t, &c);
}

static void test_every_number(void **state) {
    static const int dims[] = {128, 256, 64};
    struct test_device *t = *state;
    struct random r = {922};
    for (int i = 0; i < COUNT(dims); i++) {
        check_every_number(t, &r, KV_E4M3, dims[i], 4 + 4 * (i % 2), 1);
        check_every_number(t, &r, KV_E5M2, dims[i], 8 - 4 * (i % 2), 1);
    }
    check_every_number(t, &r, KV_E4M3, 128, 4, 20);
    check_every_number(t, &r, KV_E5M2, 128, 4, 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_largest_sums),
        cmocka_unit_test(test_every_number),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
