/*
 * States of attention: what several calls have found for the same queries over parts of the keys,
 * merged, has the bits of one call over all of them.
 */
#include "tests/attend_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Attention of the same queries over part of the positions of a case of one sequence, without
 * masks: its state, device memory. */
static struct attention_state state_of(struct test_device *t, const struct attend_case *c,
                                       int first, int end) {
    struct error err = {""};
    struct attend_case part = *c;
    size_t rows = (size_t)(c->n_tokens * c->shape.n_heads), dim = (size_t)c->shape.head_dim;
    int page = first / c->layout.page_size, n_pages = (end - first - 1) / c->layout.page_size + 1;
    part.kv_indptr[1] = end > first ? n_pages : 0;
    part.last_page_len[0] = (end - first - 1) % c->layout.page_size + 1;
    part.pages = c->pages + page;
    struct paged_batch batch = attend_batch(&part);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    struct kv_views kv = attend_cache(t, c); /* of all positions */
    struct attention_state s = {device_poisoned(t, sizeof(float) * rows * dim),
                                device_poisoned(t, sizeof(float) * rows),
                                device_poisoned(t, sizeof(float) * rows)};
    struct attention_variant v = attend_variant_on(t, c, NULL);
    v.m = s.m;
    v.l = s.l;
    if (t->ops->attention_plan(t->dev, plan, &batch, &c->shape, &v, &err))
        fail_msg("%s", err.text);
    t->ops->attend(t->dev, s.o, device_put(t, c->q, sizeof(float) * rows * dim), &kv, plan, &v,
                   ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    t->ops->attention_plan_free(t->dev, plan);
    return s;
}

/* state_of over all positions, of which a mask of bytes shows only some. */
static struct attention_state masked_state_of(struct test_device *t, const struct attend_case *c,
                                              int first, int end) {
    struct attend_case part = *c;
    int n = c->kv_len[0];
    part.sinks = NULL;
    part.mask = host_array((size_t)(c->n_tokens * n), 1);
    for (int i = 0; i < c->n_tokens * n; i++)
        part.mask[i] = i % n >= first && i % n < end && c->mask[i];
    struct attention_state s = state_of(t, &part, 0, n);
    free(part.mask);
    return s;
}

/* The states of positions 0 ... cut - 1, of the others, and of the sinks. */
struct parts {
    struct attention_state state[3];
    int n;
};

/* The states, merged and finished. */
static void merge_all(struct test_device *t, const struct attend_case *c, const struct parts *p,
                      float **y, float **lse) {
    int rows = c->n_tokens * c->shape.n_heads, dim = c->shape.head_dim;
    const struct attention_state *to = &p->state[0];
    float *on_lse = device_poisoned(t, sizeof(float) * (size_t)rows);
    for (int i = 1; i < p->n; i++)
        t->ops->merge_states(t->dev, to, &p->state[i], rows, dim);
    t->ops->finish_states(t->dev, to->o, on_lse, c->variant.lse_base, to, attend_v_scale(c), rows,
                          dim);
    device_expect_fault(t, -1, 0);
    *y = device_get(t, to->o, sizeof(float) * (size_t)(rows * dim));
    *lse = device_get(t, on_lse, sizeof(float) * (size_t)rows);
    device_clear(t);
}

/* The case gives the same in parts. */
static void expect_same_merged(struct test_device *t, const struct attend_case *c,
                               const struct parts *p) {
    float *want, *want_lse, *y, *lse;
    merge_all(t, c, p, &y, &lse);
    attend_run(device_reference(), c, &want, &want_lse);
    attend_expect_same(c, "merged states", want, y, c->shape.head_dim);
    attend_expect_same(c, "log of the merged sums", want_lse, lse, 1);
    free(want);
    free(want_lse);
    free(y);
    free(lse);
}

/* A beginning of whole tiles, merged with a tile: the bits of one call. Merged with nothing, or
 * nothing with it: no change. */
static void test_states(void **state) {
    struct test_device *t = *state;
    struct random r = {1003};
    for (int kind = 0; kind < 24; kind++) {
        static const enum kv_type types[] = {KV_BF16, KV_BFP16, KV_BFP16, KV_E4M3, KV_E5M2};
        static const int lengths[] = {600, 513, 256, 40}, cuts[] = {512, 512, 0, 40},
                         queries[] = {1, 3, 7};
        struct attend_wish wish = attend_anything(700);
        struct attend_case c;
        wish.batch = 1;
        wish.kv_len = lengths[kind % 4];
        wish.qo_len = queries[kind % 3];
        wish.page_size = kind % 2 ? 16 : 256;
        wish.order = kind / 8 == 2 ? KV_VLLM : kind % 2 ? KV_NHD : KV_HND;
        wish.head_dim = kind % 5 > 2 ? 48 : -1; /* of fp8: whole vectors in vLLM's layout */
        wish.causal = 0;
        wish.mask = MASK_NONE;
        wish.slopes = wish.sinks = 0;
        attend_case_make(&c, &r, &wish);
        attend_set_type(&c, types[kind % 5], kind % 5 > 2 ? 0.017f : 1);
        c.variant.window_left = -1;
        int cut = cuts[kind % 4];
        struct parts p = {{state_of(t, &c, 0, cut), state_of(t, &c, cut, c.kv_len[0])}, 2};
        expect_same_merged(t, &c, &p);
        attend_case_free(&c);
    }
}

/* Parts that masks make, so that every position is where it was: with slopes, soft
 * caps, masks, and sinks, which are a state of their own. */
static void test_masked_states(void **state) {
    static const enum kv_type types[] = {KV_E4M3, KV_BFP16, KV_E5M2, KV_FP16};
    static const int queries[] = {1, 3, 7};
    struct test_device *t = *state;
    struct random r = {1007};
    for (int kind = 0; kind < 12; kind++) {
        struct attend_wish wish = attend_anything(700);
        struct attend_case c;
        wish.batch = 1;
        wish.kv_len = kind % 2 ? 600 : 513;
        wish.qo_len = queries[kind % 3];
        wish.page_size = 16;
        wish.order = kind / 4;
        wish.mask = MASK_BYTES;
        wish.slopes = 1;
        wish.sinks = kind / 2 % 2;
        wish.head_dim = 64;
        attend_case_make(&c, &r, &wish);
        attend_set_type(&c, types[kind % 4], kind % 2 ? 1 : 0.017f);
        struct parts p = {{masked_state_of(t, &c, 0, 512), masked_state_of(t, &c, 512, 600)}, 2};
        if (c.sinks)
            p.state[p.n++] = attend_state_of_sinks(t, &c);
        expect_same_merged(t, &c, &p);
        attend_case_free(&c);
    }
}

/* Two rows that have seen nothing; and who asks for half a state, or for one with sinks. */
static void test_empty_states(void **state) {
    struct test_device *t = *state;
    const float nothing[] = {-INFINITY, -INFINITY, -INFINITY}, zeros[3 * 5] = {0};
    struct attention_state s[2];
    struct attention_variant v = attention_variant_causal();
    struct error err = {""};
    for (int i = 0; i < 2; i++)
        s[i] = (struct attention_state){device_put(t, zeros, sizeof zeros),
                                        device_put(t, nothing, sizeof nothing),
                                        device_put(t, zeros, sizeof nothing)};
    float *y = device_poisoned(t, sizeof zeros), *lse = device_poisoned(t, sizeof nothing);
    t->ops->merge_states(t->dev, &s[0], &s[1], 3, 5);
    t->ops->finish_states(t->dev, y, lse, LSE_2, &s[0], 1, 3, 5);
    t->ops->finish_states(t->dev, y, NULL, LSE_E, &s[0], 1, 3, 5);
    device_expect_fault(t, -1, 0);
    device_expect_floats(t, "merged nothing", zeros, y, 3, 5);
    device_expect_floats(t, "log of nothing", nothing, lse, 3, 1);
    device_clear(t);
    v.m = s[0].m;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    v.l = s[0].l;
    assert_int_equal(attention_variant_check(&v, &err), 0);
    v.sinks = zeros;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    assert_non_null(strstr(err.text, "leave sinks out, and merge a state of theirs last"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_masked_states),
        cmocka_unit_test(test_empty_states),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
