/*
 * Plans: what they refuse; the longest sequence that there may be; batches of ragged keys; that the
 * views of a layer are those of the NHD layout; that many prompts are as few launches as two; and
 * that tiles are not shared where that would take too much memory.
 */
#include "tests/attend_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void refuse_variant(struct test_device *t, const struct paged_batch *b,
                           const struct attention_variant *v, const char *why) {
    struct attention_shape shape = {4, 2, 64, 0.125, KV_BFP16};
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    assert_int_equal(t->ops->attention_plan(t->dev, plan, b, &shape, v, &err), -1);
    assert_non_null(strstr(err.text, why));
    /* The plan is of nothing: running it does nothing. */
    struct attention_variant causal = attention_variant_causal();
    t->ops->attend(t->dev, NULL, NULL, &(struct kv_views){0}, plan, &causal, ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    t->ops->attention_plan_free(t->dev, plan);
}

static void refuse(struct test_device *t, const struct paged_batch *b, const char *why) {
    refuse_variant(t, b, NULL, why);
}

static void test_bad_variants(void **state) {
    struct test_device *t = *state;
    const int32_t qo[] = {0, 1}, kv[] = {0, 1}, pages[] = {0}, last[] = {1};
    const struct paged_batch b = {1, 16, 1, qo, kv, pages, last};
    struct attention_variant v = attention_variant_causal();
    v.soft_cap = -30;
    refuse_variant(t, &b, &v, "a soft cap of -30");
    v.soft_cap = 0;
    v.mask_form = MASK_BYTES;
    refuse_variant(t, &b, &v, "a mask needs its elements");
}

static void test_bad_batches(void **state) {
    struct test_device *t = *state;
    int32_t qo[] = {0, 1, 2}, kv[] = {0, 2, 3}, pages[] = {4, 0, 3}, last[] = {16, 1};
    const struct paged_batch good = {2, 16, 5, qo, kv, pages, last};
    struct paged_batch b = good;
    b.page_size = 0;
    refuse(t, &b, "pages of 0 positions");
    b = good;
    b.n_sequences = -1;
    refuse(t, &b, "-1 sequences");
    b.n_sequences = 2;
    b.n_pages = 4;
    refuse(t, &b, "sequence 0: its page number 0 is 4, outside the pool of 4");
    b = good;
    pages[2] = -1;
    refuse(t, &b, "sequence 1: its page number 0 is -1");
    pages[2] = 3;
    last[1] = 0;
    refuse(t, &b, "sequence 1: its last page has 0 positions, not 1 to 16");
    last[1] = 17;
    refuse(t, &b, "sequence 1: its last page has 17");
    last[1] = 1;
    kv[1] = 4;
    refuse(t, &b, "sequence 1: kv_indptr falls from 4 to 3");
    kv[1] = 2;
    qo[0] = 1;
    refuse(t, &b, "qo_indptr begins at 1");
    qo[0] = 0;
    kv[0] = 1;
    refuse(t, &b, "kv_indptr begins at 1, not at 0");
    kv[0] = 0;
    qo[2] = 0;
    refuse(t, &b, "sequence 1: qo_indptr falls from 1 to 0");
    qo[2] = 2;
    struct error err;
    assert_int_equal(paged_batch_check(&good, &err), 0);
    b.page_size = INT32_MAX / 5 + 1;
    refuse(t, &b, "a pool of 5 pages of 429496730 is more than 2^31 - 1 positions");
    b.page_size = 1 << 30;
    b.n_pages = 1;
    int32_t again[] = {0, 0, 0};
    kv[1] = 3;
    last[0] = 1;
    b.kv_page_indices = again;
    refuse(t, &b, "sequence 0: 3 pages of 1073741824 have 2147483649 positions");
}

/* Lengths are rounded up to whole tiles: the longest sequence for which that is a number, of one
 * page that is there twice, and one position more. */
static void test_longest_sequence(void **state) {
    struct test_device *t = *state;
    struct attention_shape shape = {1, 1, 64, 0.125, KV_BFP16};
    struct error err = {""};
    const int32_t qo[] = {0, 65}, kv[] = {0, 2}, pages[] = {0, 0}; /* of 64 rows: too much memory */
    int32_t last[] = {(1 << 30) - ATTENTION_TILE - 1};
    const struct paged_batch b = {1, 1 << 30, 1, qo, kv, pages, last};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    assert_int_equal(paged_batch_kv_len(&b, 0), INT32_MAX - ATTENTION_TILE);
    if (t->ops->attention_plan(t->dev, plan, &b, &shape, NULL, &err))
        fail_msg("%s", err.text);
    t->ops->attention_plan_free(t->dev, plan);
    last[0]++;
    refuse(t, &b,
           "sequence 0: 2 pages of 1073741824 have 2147483392 positions, and attention "
           "counts to 2147483391");
}

/* Each sequence can be followed, but not all in one pass. (The reference, which goes through one
 * after the other, would.) */
static void test_more_tiles_than_can_be_counted(void **state) {
    enum { N = 257, PAGE = 1 << 30 };
    struct test_device *t = *state;
    struct attention_shape shape = {1, 1, 64, 0.125, KV_BFP16};
    struct error err = {""};
    int32_t qo[N + 1] = {0}, kv[N + 1] = {0}, pages[N] = {0}, last[N];
    for (int i = 0; i < N; i++) {
        qo[i + 1] = kv[i + 1] = i + 1;
        last[i] = PAGE;
    }
    const struct paged_batch b = {N, PAGE, 1, qo, kv, pages, last};
    bool is_reference = !strcmp(t->ops->name, "cpu");
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    assert_int_equal(t->ops->set_version(t->dev, "attention_plan", 1, &err), 0); /* none shared */
    int status = t->ops->attention_plan(t->dev, plan, &b, &shape, NULL, &err);
    assert_int_equal(status, is_reference ? 0 : -1);
    assert_true(is_reference || strstr(err.text, "attention over 1077936128 tiles in one pass"));
    assert_int_equal(t->ops->set_version(t->dev, "attention_plan", 0, &err), 0);
    t->ops->attention_plan_free(t->dev, plan);
}

/* Three sequences, one of which is empty; and who comes with an indptr that falls. */
static void test_ragged(void **state) {
    struct test_device *t = *state;
    struct error err = {""};
    const int32_t qo[] = {0, 1, 2, 4}, kv[] = {0, 3, 3, 5}, falls[] = {0, 3, 2, 5};
    int32_t indices[5], ones[3];
    struct paged_batch b = paged_batch_of_ragged(3, qo, kv, indices, ones);
    const int lengths[] = {3, 0, 2};
    int64_t slot;
    assert_int_equal(paged_batch_check(&b, &err), 0);
    assert_int_equal(b.n_pages, 5);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(paged_batch_kv_len(&b, i), lengths[i]);
        for (int32_t j = 0; j < lengths[i]; j++) {
            assert_int_equal(paged_batch_slots(&b, &slot, &i, &j, 1, &err), 0);
            assert_int_equal(slot, kv[i] + j);
        }
    }
    b = paged_batch_of_ragged(3, qo, falls, indices, ones);
    refuse(t, &b, "sequence 1: kv_indptr falls from 3 to 2");
}

static void expect_same_view(const struct kv_view *a, const struct kv_view *b) {
    assert_ptr_equal(a->data, b->data);
    assert_ptr_equal(a->exponents, b->exponents);
    assert_true(a->page_step == b->page_step && a->position_step == b->position_step &&
                a->head_step == b->head_step && a->group_step == b->group_step &&
                a->element_step == b->element_step);
    assert_true(a->page_exponents == b->page_exponents &&
                a->position_exponents == b->position_exponents &&
                a->head_exponents == b->head_exponents);
    assert_true(a->x == b->x && a->type == b->type && a->scale == b->scale);
}

/* The views of a layer are those of the NHD layout, whatever the type. */
static void test_layer_views(void **state) {
    (void)state;
    int16_t k[1], v[1];
    int8_t k_exponents[1], v_exponents[1];
    struct kv_layer layer = {k, v, k_exponents, v_exponents};
    for (enum kv_type type = 0; type < N_KV_TYPES; type++) {
        struct kv_layout layout = kv_layout_of(KV_NHD, false, 5, 16, 3, 80);
        struct kv_views a = kv_layer_views(&layer, type, 16, 3, 80), b;
        struct error err;
        layout.type = type;
        assert_int_equal(kv_views_of(&b, &layout, k, v, k_exponents, v_exponents, &err), 0);
        expect_same_view(&a.k, &b.k);
        expect_same_view(&a.v, &b.v);
    }
}

/* The emulation counts what it is asked for: launches, and little else in attention. */
extern long emu_calls(void) __attribute__((weak));

/* Calls of attention over n prompts of 70 tokens, once its memory is there. */
static long calls_for(struct test_device *t, int n) {
    struct random r = {932};
    struct error err = {""};
    struct attend_wish wish = attend_anything(n * 100);
    struct attend_case c;
    wish.batch = n;
    wish.long_ones = true;
    wish.kv_len = 100;
    wish.qo_len = 70;
    wish.order = KV_NHD;
    wish.type = KV_BFP16;
    wish.kv_heads = 2;
    wish.group = 1;
    wish.head_dim = 64;
    wish.mask = MASK_NONE;
    wish.sinks = wish.slopes = 0;
    attend_case_make(&c, &r, &wish);
    c.layout.one_tensor = false;
    c.shape.kv_type = KV_BFP16;
    size_t bytes = sizeof(float) * (size_t)(c.n_tokens * c.shape.n_heads * c.shape.head_dim);
    struct paged_batch batch = attend_batch(&c);
    struct kv_views kv = attend_cache(t, &c);
    struct attention_variant causal = attention_variant_causal();
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    float *q = device_put(t, c.q, bytes), *y = device_poisoned(t, bytes);
    if (t->ops->attention_plan(t->dev, plan, &batch, &c.shape, NULL, &err))
        fail_msg("%s", err.text);
    t->ops->attend(t->dev, y, q, &kv, plan, &causal, ATTEND_SITE);
    long before = emu_calls();
    t->ops->attend(t->dev, y, q, &kv, plan, &causal, ATTEND_SITE);
    long calls = emu_calls() - before;
    device_expect_fault(t, -1, 0);
    t->ops->attention_plan_free(t->dev, plan);
    device_clear(t);
    attend_case_free(&c);
    return calls;
}

static void test_many_prompts_are_one_launch(void **state) {
    if (!device_is_emulated() || !emu_calls)
        skip();
    long calls = calls_for(*state, 2);
    assert_true(calls >= 1);
    assert_int_equal(calls_for(*state, 7), calls);
}

/* Sequences whose first tile is shared, and many tiles their own: what those leave to be merged
 * must not take too much memory. */
static void test_many_own_tiles(void **state) {
    struct test_device *t = *state;
    enum { SEQUENCES = 8, MOST_TILES = 1100, PAGE = 256 };
    static int32_t qo[SEQUENCES + 1], kv[SEQUENCES + 1], last[SEQUENCES];
    static int32_t pages[SEQUENCES * (1 + MOST_TILES)];
    struct attention_shape shape = {8, 8, 256, 0.0625, KV_BFP16};
    struct error err = {""};
    if (!device_is_emulated())
        skip(); /* the reference always shares, and other GPUs may not */
    if (t->ops->set_version(t->dev, "attention_plan", PLAN_SHARES, &err))
        fail_msg("%s", err.text);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    assert_non_null(plan);
    for (int shares = 0; shares < 2; shares++) {
        int own = shares ? 10 : MOST_TILES;
        for (int i = 0; i < SEQUENCES; i++) {
            qo[i + 1] = i + 1;
            kv[i + 1] = (i + 1) * (1 + own);
            last[i] = PAGE;
            for (int j = 1; j <= own; j++)
                pages[kv[i] + j] = i * own + j;
            pages[kv[i]] = 0;
        }
        struct paged_batch b = {SEQUENCES, PAGE, 1 + SEQUENCES * MOST_TILES, qo, kv, pages, last};
        if (t->ops->attention_plan(t->dev, plan, &b, &shape, NULL, &err))
            fail_msg("%s", err.text);
        assert_int_equal(t->ops->attention_plan_form(plan), shares);
    }
    t->ops->attention_plan_free(t->dev, plan);
    assert_int_equal(t->ops->set_version(t->dev, "attention_plan", PLAN_BEST, &err), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_variants),
        cmocka_unit_test(test_bad_batches),
        cmocka_unit_test(test_more_tiles_than_can_be_counted),
        cmocka_unit_test(test_longest_sequence),
        cmocka_unit_test(test_ragged),
        cmocka_unit_test(test_layer_views),
        cmocka_unit_test(test_many_prompts_are_one_launch),
        cmocka_unit_test(test_many_own_tiles),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
