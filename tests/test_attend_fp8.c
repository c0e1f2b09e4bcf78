/*
 * attend over caches of 8-bit floats that hold the largest sums: kernels add products in float32,
 * and all numbers are such that a sum too many would not be exact any more.
 */
#include "tests/attend_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* Numbers whose parts, as kernels cut them, are the largest, smallest, or ties between two; the
 * smallest one beside them, without which a sum would be a multiple of more than its unit; and one
 * that is too large for kernels to cut them otherwise, or 0. For which kernels they are: those for
 * any number of rows, or the one for few. */
static const struct extreme {
    enum kv_type type;
    float number, unit, large;
    bool any_rows, few;
} extremes[] = {
    {KV_E4M3, 448, 1, 0, true, true},
    {KV_E4M3, 30, 0x1p-9f, 0, true, true},
    {KV_E4M3, 32, 0x1p-9f, 0, true, true},
    {KV_E4M3, 60, 0x1p-9f, 0, true, true},
    {KV_E4M3, 0.5f, 0x1p-9f, 2, true, false},
    {KV_E4M3, 1.5f, 0x1p-9f, 2, true, false},
    {KV_E4M3, 1.875f, 0x1p-9f, 0, true, false},
    {KV_E4M3, 0x1p-9f, 0x1p-9f, 0, true, true},
    {KV_E5M2, 57344, 64, 0, true, true},
    {KV_E5M2, 32, 0x1p-5f, 0, true, false},
    {KV_E5M2, 96, 0x1p-5f, 0, true, false},
    {KV_E5M2, 160, 0x1p-5f, 0, true, false},
    {KV_E5M2, 0x1p-5f, 0x1p-16f, 2, true, false},
    {KV_E5M2, 0x1.8p-5f, 0x1p-16f, 2, true, false},
    {KV_E5M2, 0x1p-16f, 0x1p-16f, 0, true, false},
    {KV_E5M2, 1.75f, 0x1.4p-6f, 0, false, true},
    {KV_E5M2, 1.75f, 0x1.4p-8f, 0, true, true},
    {KV_E5M2, 2, 0x1p-16f, 0, false, true},
    {KV_E5M2, 0x1p-6f, 0x1p-16f, 0, true, true},
    {KV_E5M2, 0x1.4p-6f, 0x1p-16f, 0, true, true},
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

/* Of 4 query heads: one query is four rows, which have a kernel's other way. */
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

/* Every product of a key's sum is the largest: queries of digits 127 and 127, or 127 and -128; of
 * 4 bits they are 8 and -1, or 8 and 0. One query: what the unit is multiplied by is odd. */
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
        c.k[i] = i % dim == 1               ? x->unit
                 : i % dim == 3 && x->large ? x->large
                                            : x->number * sign_of(signs, i % dim, dim);
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
        c.v[i] = position == 100               ? x->unit
                 : position == 101 && x->large ? x->large
                                               : x->number * sign_of(signs, position, 256);
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
            if (extremes[i].any_rows) {
                check_keys(t, &r, &extremes[i], dim, signs, 2);
                check_values(t, &r, &extremes[i], dim, signs, 2);
            }
            if (extremes[i].few) {
                check_keys(t, &r, &extremes[i], 128, signs, 1);
                check_values(t, &r, &extremes[i], 128, signs, 1);
            }
        }
}

/* What kernels for one query take for small: below 2^small. */
static const struct few_type {
    enum kv_type type;
    int smallest, small, largest; /* exponents */
    int mantissas;                /* of an exponent */
    float largest_number;
} few_types[] = {{KV_E4M3, -9, 5, 8, 8, 448}, {KV_E5M2, -16, 1, 15, 4, 57344}};

/* A number with a random sign, exponent and mantissa. */
static float any_number(struct random *r, const struct few_type *type, bool large) {
    int e = random_int(r, type->smallest, large ? type->largest : type->small - 1);
    float mantissa = 1 + (float)random_int(r, 0, type->mantissas - 1) / (float)type->mantissas;
    float x = fminf(ldexpf(mantissa, e), type->largest_number);
    return random_int(r, 0, 1) ? x : -x;
}

/* What is large among keys or values of one query: nothing, all, or one element, at this position.
 * Or many, of one sign, where a kernel has them in the same register (keys: of 8 of 16 positions;
 * values: of 4 of 8), and the keys in the same part of it (each fourth element): their sums are
 * large, too. */
enum { NOTHING = -1, ALL = -2, SOME = -8 };

static bool is_some_key(int large, int position, int d) {
    int some = SOME - large;
    return some >= 0 && d % 4 == some && position / 8 % 2 == some % 2;
}

static bool is_some_value(int large, int position) {
    int some = SOME - large;
    return some >= 0 && position / 4 % 2 == some % 2;
}

static void check_large(struct test_device *t, struct random *r, const struct few_type *type,
                        int dim, int large_key, int large_value) {
    struct attend_case c;
    make_case(&c, r, type->type, dim, 1, 600);
    c.layout.k_scale = c.layout.v_scale = 1;
    int most = large_key == ALL || large_key <= SOME ? type->largest : type->small;
    c.shape.scale = ldexp(large_key <= SOME ? 4 : 1, -4 - most);
    float least_large = ldexpf(1, type->small), most_large = type->largest_number;
    for (int i = 0; i < c.n_tokens * c.shape.n_heads * dim; i++)
        c.q[i] = (float)(large_key <= SOME && i % dim % 4 == SOME - large_key
                             ? 32639
                             : random_int(r, -32639, 32639)) *
                 0x1p-15f;
    for (int i = 0; i < c.n_positions * dim; i++) {
        c.k[i] = is_some_key(large_key, i / dim, i % dim) ? most_large
                                                          : any_number(r, type, large_key == ALL);
        c.v[i] = is_some_value(large_value, i / dim) ? most_large
                                                     : any_number(r, type, large_value == ALL);
    }
    if (large_key >= 0)
        c.k[large_key * dim + random_int(r, 0, dim - 1)] =
            random_int(r, 0, 1) ? least_large : -most_large;
    if (large_value >= 0)
        c.v[large_value * dim + random_int(r, 0, dim - 1)] =
            random_int(r, 0, 1) ? least_large : -most_large;
    check(t, &c);
}

static void test_few_rows(void **state) {
    static const int dims[] = {32, 64, 112, 128, 160};
    static const int large[] = {NOTHING, 0, 127, ALL, 128, 255, 256, 300, 511, 512, 599};
    struct test_device *t = *state;
    struct random r = {922};
    for (int k = 0; k < COUNT(few_types); k++) {
        const struct few_type *type = &few_types[k];
        for (int i = 0; i < COUNT(large); i += 1 + 2 * k) /* of e5m2, some of it */
            for (int j = k; j < COUNT(dims); j += 1 + k) {
                check_large(t, &r, type, dims[j], large[i], large[(i + j) % COUNT(large)]);
                check_large(t, &r, type, dims[j], NOTHING, large[i]);
            }
        for (int i = 0; i < 4; i++) {
            check_large(t, &r, type, 128, SOME - i, NOTHING);
            check_large(t, &r, type, 128, NOTHING, SOME - i);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_largest_sums),
        cmocka_unit_test(test_few_rows),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
