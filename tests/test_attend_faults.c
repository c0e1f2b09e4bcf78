/*
 * attend: what cannot be computed is a fault of the queries that see it, of no others, on every
 * device: queries, slopes and sinks that are not finite, and caches that somebody else filled.
 */
#include "tests/attend_cases.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* Runs the case, of which `token` is the first that cannot be computed. has_lse: asks for it, so
 * that it takes the kernels for variants. */
static void expect_fault_of(struct test_device *t, const struct attend_case *c, int token,
                            bool has_lse) {
    struct error err = {""};
    struct paged_batch batch = attend_batch(c);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    struct kv_views kv = attend_cache(t, c);
    size_t rows = (size_t)(c->n_tokens * c->shape.n_heads);
    size_t bytes = sizeof(float) * rows * (size_t)c->shape.head_dim;
    struct attention_variant v =
        attend_variant_on(t, c, has_lse ? device_poisoned(t, sizeof(float) * rows) : NULL);
    assert_int_equal(t->ops->attention_plan(t->dev, plan, &batch, &c->shape, &v, &err), 0);
    t->ops->attend(t->dev, device_poisoned(t, bytes), device_put(t, c->q, bytes), &kv, plan, &v,
                   ATTEND_SITE);
    device_expect_fault(t, ATTEND_SITE, token);
    t->ops->attention_plan_free(t->dev, plan);
    device_clear(t);
}

static void expect_fault(struct test_device *t, const struct attend_case *c, int token) {
    expect_fault_of(t, c, token, true);
}

/* By the kernels without variants. */
static void expect_fault_of_plain(struct test_device *t, const struct attend_case *c, int token) {
    struct attend_case plain = *c;
    plain.variant = attention_variant_causal();
    plain.alibi_slopes = plain.sinks = NULL;
    expect_fault_of(t, &plain, token, false);
}

static void test_query_faults(void **state) {
    struct test_device *t = *state;
    struct random r = {905};
    for (int kind = 0; kind < 6; kind++) {
        struct attend_wish wish = attend_anything(700);
        struct attend_case c;
        int token = kind < 3 ? 2 : 0; /* the second one sees nothing */
        wish.batch = 2;
        wish.kv_len = kind == 0 ? 40 : kind < 3 ? 600 : 2;
        wish.qo_len = 3;
        wish.order = kind % 3;
        wish.causal = 1;
        wish.mask = MASK_NONE;
        attend_case_make(&c, &r, &wish);
        c.q[(size_t)(token * c.shape.n_heads * c.shape.head_dim)] = INFINITY;
        expect_fault(t, &c, token);
        attend_case_free(&c);
    }
}

/* A slope or a sink that is not a number: a fault of the first token, whatever kernel takes it,
 * over one tile or several. */
static void test_bad_slopes_and_sinks(void **state) {
    struct test_device *t = *state;
    struct random r = {909};
    for (int kind = 0; kind < 24; kind++) {
        struct attend_wish wish = attend_anything(700);
        struct attend_case c;
        wish.batch = 1;
        wish.kv_len = kind % 2 ? 700 : 40;
        wish.qo_len = kind / 2 % 3 == 2 ? 40 : 2; /* of 40 tokens: the kernels for many rows */
        wish.page_size = 16;
        wish.order = kind / 12 ? KV_VLLM : KV_NHD;
        wish.type = KV_BFP16;
        wish.kv_heads = 2;
        wish.group = 2;
        wish.mask = MASK_NONE;
        wish.sinks = kind / 6 % 2;
        wish.slopes = !wish.sinks;
        attend_case_make(&c, &r, &wish);
        c.variant.window_left = -1;
        (wish.sinks ? c.sinks : c.alibi_slopes)[1] = kind / 2 % 3 ? NAN : INFINITY;
        expect_fault(t, &c, 0);
        attend_case_free(&c);
    }
}

/* Two queries over keys of zeros, with this scale; all numbers of the queries are q. */
static void make_scaled(struct attend_case *c, struct random *r, int kind, double scale, float q) {
    struct attend_wish wish = attend_anything(300);
    wish.batch = 1;
    wish.kv_len = 300;
    wish.qo_len = kind % 2 ? 70 : 2; /* 70: the kernels for many rows */
    wish.kv_heads = 1;
    wish.group = 2;
    wish.order = kind % 3;
    wish.type = kind % N_KV_TYPES;
    wish.window_left = -1;
    wish.causal = 1;
    wish.mask = MASK_NONE;
    wish.cap = wish.sinks = wish.slopes = 0;
    attend_case_make(c, r, &wish);
    c->shape.scale = scale;
    for (int i = 0; i < c->n_tokens * c->shape.n_heads * c->shape.head_dim; i++)
        c->q[i] = q;
    memset(c->k, 0,
           sizeof *c->k * (size_t)(c->n_positions * c->shape.n_kv_heads) *
               (size_t)c->shape.head_dim);
    c->layout.k_scale = 1;
}

/* A query's unit that float32 cannot hold is a fault, even where all its scores are 0; and one with
 * which the largest sum would not be the largest score. */
static void test_units_of_queries(void **state) {
    static const double bad[] = {-0.5, NAN, INFINITY, 0x1p100};
    struct test_device *t = *state;
    struct random r = {913};
    for (int kind = 0; kind < 12; kind++) {
        struct attend_case c;
        float *y, *lse;
        for (int i = 0; i < COUNT(bad); i++) {
            if (device_is_emulated() && i != kind % COUNT(bad)) /* it is slow: one of them each */
                continue;
            make_scaled(&c, &r, kind, bad[i], 0x1p30f);
            expect_fault(t, &c, 0);
            attend_case_free(&c);
        }
        make_scaled(&c, &r, kind, 1, 0x1p126f);
        expect_fault(t, &c, 0);
        attend_case_free(&c);
        make_scaled(&c, &r, kind, 1, 0x1p125f);
        attend_run(t, &c, &y, &lse);
        attend_expect_as_reference(&c, y, lse);
        free(y);
        free(lse);
        attend_case_free(&c);
    }
}

/* What a cache that kv_append did not write may hold of a type: numbers that are no fault, and bits
 * that are: NaN, infinity, and a bf16 number that no snapped row can have. */
static const struct foreign_bits {
    enum kv_type type;
    uint32_t largest, bad[5];
} foreign[] = {
    {KV_E4M3, 0x7e, {0x7f, 0xff, 0x7f, 0xff, 0x7f}},
    {KV_E5M2, 0x7b, {0x7c, 0xfc, 0x7d, 0xfe, 0xff}},
    {KV_FP16, 0x7bff, {0x7c00, 0xfc00, 0x7c01, 0xfe00, 0xffff}},
    {KV_BF16, 0x7e00, {0x7f80, 0xff80, 0x7f81, 0xffc0, 0x7f7f}},
};

/* Queries over 40 positions, one element of which is spoilt; each sees itself and ten before it. */
static void make_foreign(struct attend_case *c, struct random *r, enum kv_type type,
                         int n_queries) {
    struct attend_wish wish = attend_anything(40);
    wish.batch = 1;
    wish.kv_len = 40;
    wish.qo_len = n_queries;
    wish.kv_heads = 1;
    wish.group = 4; /* 20 queries: 80 rows, so the kernels for many; 3: the one for few */
    wish.head_dim = 32;
    wish.type = (int)type;
    wish.order = random_int(r, KV_NHD, KV_VLLM);
    wish.window_left = 10;
    wish.mask = MASK_NONE;
    wish.causal = 1;
    attend_case_make(c, r, &wish);
    c->spoilt.exists = true;
    c->spoilt.d = random_int(r, 0, 31);
}

/* The case gives what it gives without the spoilt element. */
static void expect_unnoticed(struct test_device *t, const struct attend_case *c) {
    struct attend_case clean = *c;
    clean.spoilt.exists = false;
    attend_expect_equal(t, &clean, c, "an unseen element that is not finite");
}

/* A mask that hides position 30 from all queries. */
static void hide_30(struct attend_case *c) {
    size_t n = (size_t)c->n_tokens * 40;
    c->mask = host_array(n, 1);
    memset(c->mask, 1, n);
    for (int i = 0; i < c->n_tokens; i++)
        c->mask[i * 40 + 30] = 0;
    c->variant.mask_form = MASK_BYTES;
    c->mask_offsets[0] = 0;
    c->mask_offsets[1] = (int64_t)n;
}

/* An element that is not finite is a fault of the queries that see its position, and nothing to the
 * others: not to those before it, and not outside of the window or the mask. With a large scale,
 * the probability of most positions is 0. */
static void check_foreign(struct test_device *t, struct random *r, const struct foreign_bits *f,
                          uint32_t bad, double scale, int n_queries) {
    for (int of_values = 0; of_values < 2; of_values++) {
        struct attend_case c;
        make_foreign(&c, r, f->type, n_queries);
        c.shape.scale *= scale;
        c.spoilt.of_values = of_values;
        c.spoilt.bits = bad;
        for (int token = 0; token < n_queries; token += n_queries / 3) {
            c.spoilt.position = 40 - n_queries + token;
            expect_fault(t, &c, token);
            expect_fault_of_plain(t, &c, token);
        }
        c.spoilt.position = 40 - n_queries - 11; /* just before the window of the first */
        expect_unnoticed(t, &c);
        hide_30(&c);
        c.spoilt.position = 30;
        expect_unnoticed(t, &c);
        c.mask[40 + 30] = 1;
        expect_fault(t, &c, 1);
        attend_case_free(&c);
    }
}

static void test_foreign_caches(void **state) {
    struct test_device *t = *state;
    struct random r = {911};
    for (int i = 0; i < COUNT(foreign); i++) {
        for (int j = 0; j < COUNT(foreign[i].bad); j++)
            check_foreign(t, &r, &foreign[i], foreign[i].bad[j], j % 2 ? 1000 : 1,
                          (i + j) % 2 ? 3 : 20);
        for (int of_values = 0; of_values < 2; of_values++) {
            struct attend_case c;
            float *y, *lse;
            make_foreign(&c, &r, foreign[i].type, of_values ? 3 : 20);
            c.spoilt.of_values = of_values;
            c.spoilt.position = 39;
            c.spoilt.bits = foreign[i].largest;
            attend_run(t, &c, &y, &lse);
            attend_expect_as_reference(&c, y, lse);
            free(y);
            free(lse);
            attend_case_free(&c);
        }
    }
}

/* ---- scores of -infinity ------------------------------------------------------------------------
 */

/* How sequences of 600 positions see keys whose scores are -infinity. */
struct low_scores {
    int n_queries, window_left;
    bool shares; /* three of them, over the same pages */
    enum kv_order order;
    enum kv_type type; /* of 16 bits */
    int first, end;    /* these keys */
};

/* All other scores are 0. */
static void make_low(struct attend_case *c, struct random *r, const struct low_scores *low) {
    struct attend_wish wish = attend_anything(3 * 600);
    wish.batch = low->shares ? 3 : 1;
    wish.long_ones = true;
    wish.kv_len = 600;
    wish.qo_len = low->n_queries;
    wish.kv_heads = wish.group = 1;
    wish.head_dim = 32;
    wish.page_size = 16;
    wish.order = (int)low->order;
    wish.type = (int)low->type;
    wish.window_left = low->window_left;
    wish.cap = wish.sinks = wish.slopes = 0;
    wish.causal = 1;
    wish.mask = MASK_NONE;
    attend_case_make(c, r, &wish);
    c->variant.window_left = low->window_left;
    for (int i = 0; i < c->n_tokens * 32; i++)
        c->q[i] = i % 32 ? 0 : 0x1p100f;
    for (int i = 0; i < c->n_positions * 32; i++) {
        int position = i / 32 % 600;
        c->k[i] = i % 32 == 0 && position >= low->first && position < low->end ? -0x1p100f : 0;
        c->v[i] = c->v[i % (600 * 32)];
    }
    for (int i = 1; i < c->n; i++)
        memcpy(c->pages + c->kv_indptr[i], c->pages, sizeof *c->pages * 37);
}

/* The case with a mask that hides those keys and does what causal does. */
static void hide_low(struct attend_case *c, const struct low_scores *low) {
    size_t n = (size_t)(c->n_tokens * 600);
    c->mask = host_array(n, 1);
    for (int i = 0; i < c->n_tokens; i++)
        for (int j = 0; j < 600; j++)
            c->mask[i * 600 + j] =
                j <= 600 - low->n_queries + i % low->n_queries && (j < low->first || j >= low->end);
    c->variant.mask_form = MASK_BYTES;
    for (int i = 0; i <= c->n; i++)
        c->mask_offsets[i] = (int64_t)i * low->n_queries * 600;
}

static void share_always(struct test_device *t, bool shares) {
    struct error err = {""};
    if (t->ops->set_version(t->dev, "attention_plan", shares ? PLAN_SHARES : PLAN_BEST, &err))
        fail_msg("%s", err.text);
}

/* A key that is seen, with a score of -infinity, has the weight 0: the bits are those without it,
 * unless its value cannot be read. */
static void check_one_low(struct test_device *t, struct random *r, struct low_scores low) {
    struct attend_case c;
    float *want, *want_lse, *y, *lse;
    make_low(&c, r, &low);
    struct attend_case hidden = c;
    hide_low(&hidden, &low);
    attend_run(device_reference(), &hidden, &want, &want_lse);
    share_always(t, low.shares);
    attend_run(t, &c, &y, &lse);
    attend_expect_same(&c, "attention with a score of -infinity", want, y, 32);
    attend_expect_same(&c, "log of the sum with a score of -infinity", want_lse, lse, 1);
    free(want);
    free(want_lse);
    free(y);
    free(lse);
    if (low.type == KV_BF16) {
        c.spoilt = (struct attend_spoilt){true, true, low.end - 1, 0, 3, 0x7f80};
        expect_fault(t, &c, 0);
    }
    free(hidden.mask);
    share_always(t, false);
    attend_case_free(&c);
}

/* A row that sees nothing else of a tile is a fault: the token. */
static void check_all_low(struct test_device *t, struct random *r, struct low_scores low,
                          int token) {
    struct attend_case c;
    make_low(&c, r, &low);
    share_always(t, low.shares);
    expect_fault(t, &c, token);
    share_always(t, false);
    attend_case_free(&c);
}

static void test_scores_of_minus_infinity(void **state) {
    static const int n_queries[] = {1, 3, 70}; /* 70 rows: the kernels for many */
    static const enum kv_order orders[] = {KV_NHD, KV_VLLM, KV_NHD, KV_HND};
    struct test_device *t = *state;
    struct random r = {912};
    for (int kind = 0; kind < 24; kind++) {
        struct low_scores low = {n_queries[kind % 3],
                                 kind / 3 % 2 ? 595 : -1,
                                 kind / 6 % 2,
                                 orders[kind % 4],
                                 kind / 12 ? KV_BF16 : KV_BFP16,
                                 100,
                                 101};
        int n = low.n_queries;
        if (device_is_emulated() && kernel_under_test() && kind % 4 > 1)
            continue; /* the other orders have the same kernels */
        check_one_low(t, &r, low);
        low.first = 256; /* all of the second tile */
        low.end = 512;
        check_all_low(t, &r, low, 0);
        if (low.window_left < 0)
            continue;
        low.window_left = 600 - n - 254; /* the first query sees 254 on, the second 255 on */
        low.first = 0;
        low.end = 255;
        check_one_low(t, &r, low);
        low.first = 255;
        low.end = 256;
        if (n > 1)
            check_all_low(t, &r, low, 1);
    }
}

/* One of N_STEEP sequences with that ALiBi slope, whose queries see all that is before them. */
enum { N_STEEP = 6 };

static void make_steep(struct attend_case *c, struct random *r, int kind, int kv_len,
                       enum kv_type type, float slope) {
    struct attend_wish wish = attend_anything(kv_len);
    wish.batch = 1;
    wish.kv_len = kv_len;
    wish.qo_len = kind % 3 == 2 ? 70 : 1 + kind % 3; /* 70: the kernels for many rows */
    wish.page_size = 16;
    wish.order = kind / 3 ? KV_VLLM : KV_NHD;
    wish.type = (int)type;
    wish.kv_heads = wish.group = 1;
    wish.causal = 1;
    wish.mask = MASK_NONE;
    wish.slopes = 1;
    wish.cap = wish.sinks = 0;
    attend_case_make(c, r, &wish);
    c->variant.window_left = -1;
    c->alibi_slopes[0] = slope;
}

/* A slope with which all scores of a tile that is not the row's own are -infinity: no softmax
 * there. */
static void test_slopes_too_steep(void **state) {
    struct test_device *t = *state;
    struct random r = {914};
    for (int kind = 0; kind < N_STEEP; kind++) {
        struct attend_case c;
        make_steep(&c, &r, kind, 600, KV_BFP16, FLT_MAX);
        expect_fault(t, &c, 0);
        attend_case_free(&c);
    }
}

/* A slope with which a position that is seen, but not near, has the score -infinity, and so the
 * weight 0: a value there that cannot be read is a fault all the same. */
static void test_slopes_beyond_floats(void **state) {
    struct test_device *t = *state;
    struct random r = {915};
    for (int kind = 0; kind < N_STEEP; kind++) {
        struct attend_case c;
        float *y, *lse;
        make_steep(&c, &r, kind, 200, KV_BF16, 0x1p126f);
        attend_run(t, &c, &y, &lse);
        attend_expect_as_reference(&c, y, lse);
        free(y);
        free(lse);
        c.spoilt = (struct attend_spoilt){true, true, 0, 0, 3, 0x7f80};
        expect_fault(t, &c, 0);
        attend_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query_faults),
        cmocka_unit_test(test_bad_slopes_and_sinks),
        cmocka_unit_test(test_units_of_queries),
        cmocka_unit_test(test_foreign_caches),
        cmocka_unit_test(test_scores_of_minus_infinity),
        cmocka_unit_test(test_slopes_too_steep),
        cmocka_unit_test(test_slopes_beyond_floats),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
