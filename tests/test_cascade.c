/*
 * Attention over tiles that sequences share has the bits that it has without sharing; and over
 * batches that are given level by level, those of plain ones. test_cascade_tables: which tiles are
 * found.
 */
#include "tests/attend_cases.h"

#include "tests/assert_bits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TILE = ATTENTION_TILE };

/* ---- the same bits ------------------------------------------------------------------------------
 */

/* Lets sequence i begin with n pages of another one. */
static void share_pages(struct attend_case *c, int i, int like, int n) {
    size_t width = (size_t)c->shape.n_kv_heads * (size_t)c->shape.head_dim;
    size_t bytes = sizeof *c->k * width * (size_t)(n * c->layout.page_size);
    size_t to = width * (size_t)c->first_position[i];
    size_t from = width * (size_t)c->first_position[like];
    memcpy(c->pages + c->kv_indptr[i], c->pages + c->kv_indptr[like], sizeof *c->pages * (size_t)n);
    memcpy(c->k + to, c->k + from, bytes);
    memcpy(c->v + to, c->v + from, bytes);
}

/* Lets sequences begin with pages of those before them. */
static void share_beginnings(struct attend_case *c, struct random *r) {
    int size = c->layout.page_size;
    for (int i = 1; i < c->n; i++) {
        int like = random_int(r, 0, i - 1);
        int most = c->kv_len[i] < c->kv_len[like] ? c->kv_len[i] : c->kv_len[like];
        share_pages(c, i, like, random_int(r, 0, 3) ? most / size : random_int(r, 0, most / size));
    }
}

static void use_plan(struct test_device *t, enum plan_version version) {
    struct error err = {""};
    if (t->ops->set_version(t->dev, "attention_plan", (int)version, &err))
        fail_msg("%s", err.text);
}

/* With plans of that version, and those behind it. */
static void expect_same_from(struct test_device *t, const struct attend_case *c,
                             enum plan_version first) {
    float *want, *want_lse, *y, *lse;
    use_plan(device_reference(), PLAN_SINGLE);
    attend_run(device_reference(), c, &want, &want_lse);
    for (int version = first; version <= PLAN_SHARES; version++) {
        use_plan(t, (enum plan_version)version);
        attend_run(t, c, &y, &lse);
        attend_expect_same(c, version == PLAN_SHARES ? "shared tiles" : "unshared tiles", want, y,
                           c->shape.head_dim);
        attend_expect_same(c, "log of the sum", want_lse, lse, 1);
        free(y);
        free(lse);
    }
    use_plan(t, PLAN_BEST);
    free(want);
    free(want_lse);
}

static void expect_same_either_way(struct test_device *t, const struct attend_case *c) {
    expect_same_from(t, c, PLAN_SINGLE);
}

static int n_cases(void) {
    const char *wanted = getenv("SAMEBITS_BATCHES");
    int n = device_is_emulated() ? 12 : !strcmp(device_under_test()->name, "cpu") ? 60 : 1000;
#ifdef __SANITIZE_ADDRESS__
    n = device_is_emulated() ? 4 : 15;
#endif
    return wanted ? atoi(wanted) : n;
}

/* Sequences of several tiles with few queries each. */
static void make_case(struct attend_case *c, struct random *r, int n) {
    struct attend_wish wish = attend_anything(n * (device_is_emulated() ? 700 : 1400));
    wish.batch = n;
    wish.long_ones = true;
    wish.order = random_int(r, 0, 1) ? KV_NHD : KV_HND;
    wish.page_size = random_int(r, 0, 1) ? 16 : -1;
    if (random_int(r, 0, 1))
        wish.mask = MASK_NONE;
    attend_case_make(c, r, &wish);
    if (random_int(r, 0, 3))
        attend_set_type(c, KV_BFP16, 1);
    if (random_int(r, 0, 1))
        c->variant.window_left = -1;
    if (!c->ragged)
        share_beginnings(c, r);
}

static void test_random_trees(void **state) {
    struct test_device *t = *state;
    struct random r = {1001};
    for (int i = 0; i < n_cases(); i++) {
        struct attend_case c;
        make_case(&c, &r, random_int(&r, 2, 7));
        expect_same_either_way(t, &c);
        attend_case_free(&c);
    }
}

/* n sequences of that length over an NHD cache with pages of 16; make_plain makes it one of bfp16,
 * and what they see causal. */
static struct attend_wish plain_sequences(int n, int kv_len) {
    struct attend_wish wish = attend_anything(n * kv_len);
    wish.batch = n;
    wish.long_ones = true;
    wish.kv_len = kv_len;
    wish.page_size = 16;
    wish.order = KV_NHD;
    wish.type = KV_BFP16;
    wish.mask = MASK_NONE;
    return wish;
}

static void make_plain(struct attend_case *c, struct random *r, const struct attend_wish *wish) {
    attend_case_make(c, r, wish);
    attend_set_type(c, KV_BFP16, 1);
    c->variant = attention_variant_causal();
}

/* A tile that all share, and two more that pairs share: so few lists of rows, for so many kv heads,
 * that both of the two are one item, which does not begin its rows' chains. Once with more rows
 * than a warp has in its first registers, and more dimensions than one product. */
static void test_deeper_stretches_of_several_tiles(void **state) {
    struct test_device *t = *state;
    struct random r = {1007};
    for (int wide = 0; wide < 2; wide++) {
        struct attend_wish wish = plain_sequences(4, 800);
        struct attend_case c;
        wish.qo_len = 1;
        wish.kv_heads = 4;
        wish.group = wide ? 8 : 2;
        wish.head_dim = wide ? 96 : 32;
        make_plain(&c, &r, &wish);
        share_pages(&c, 1, 0, 48);
        share_pages(&c, 2, 0, 16);
        share_pages(&c, 3, 2, 48);
        expect_same_either_way(t, &c);
        attend_case_free(&c);
    }
}

/* As many rows as fill row lists, to one row more and one less, over groups that 64 is no multiple
 * of: a token each of n sequences that share a tile, no more. */
static void test_row_lists(void **state) {
    struct test_device *t = *state;
    static const struct {
        int n, kv_heads, group;
    } kinds[] = {{63, 1, 1}, {64, 1, 1}, {65, 1, 1}, {13, 1, 5}, {22, 2, 3}, {9, 1, 8}, {43, 1, 3}};
    struct random r = {1002};
    for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++) {
        bool long_one = kinds[kind].group == 8; /* of several tiles, and more dimensions */
        if (few_cases_do() && kind % 2)
            continue;
        struct attend_wish wish = attend_anything(kinds[kind].n * (long_one ? 700 : 300));
        struct attend_case c;
        wish.batch = kinds[kind].n;
        wish.long_ones = true;
        wish.qo_len = 1;
        wish.kv_heads = kinds[kind].kv_heads;
        wish.group = kinds[kind].group;
        wish.head_dim = long_one ? 96 : 32;
        wish.page_size = 16;
        wish.order = KV_NHD;
        wish.mask = MASK_NONE;
        attend_case_make(&c, &r, &wish);
        attend_set_type(&c, KV_BFP16, 1);
        c.variant = attention_variant_causal();
        assert_int_equal(c.n_tokens * wish.group, kinds[kind].n * kinds[kind].group);
        for (int i = 1; i < c.n; i++)
            share_pages(&c, i, 0, TILE / wish.page_size);
        expect_same_either_way(t, &c);
        attend_case_free(&c);
    }
}

/* Stretches of so many tiles that a device of few processors, as the emulated one, gives two to a
 * block: the first block of a row merges its own, and the others keep them one by one. The seeds
 * have three and four tiles that are shared; and one, which two of three sequences share two more
 * behind. */
static void test_long_stretches(void **state) {
    static const int seeds[] = {1136, 1182, 1150};
    struct test_device *t = *state;
    for (int i = 0; i < 3; i++) {
        struct random r = {(uint64_t)seeds[i]};
        struct attend_wish wish = attend_anything(3 * 1200);
        struct attend_case c;
        wish.batch = 3;
        wish.long_ones = true;
        wish.kv_heads = 4;
        wish.group = 1;
        wish.head_dim = 32;
        wish.page_size = 16;
        wish.order = KV_NHD;
        wish.mask = MASK_NONE;
        wish.slopes = 1;
        attend_case_make(&c, &r, &wish);
        attend_set_type(&c, KV_BFP16, 1);
        c.variant.window_left = -1;
        share_beginnings(&c, &r);
        expect_same_from(t, &c, PLAN_SHARES);
        attend_case_free(&c);
    }
}

/* One plan for batch after batch: fewer sequences, and more, and longer ones, and other shapes. */
static void test_one_plan(void **state) {
    static const struct {
        int n, positions, heads, dim;
    } kinds[] = {
        {3, 500, 1, 64}, {2, 400, 1, 64}, {7, 900, 1, 64}, {5, 500, 2, 256}, {3, 500, 1, 32}};
    struct test_device *t = *state;
    struct random r = {1004};
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    assert_non_null(plan);
    use_plan(device_reference(), PLAN_SINGLE);
    use_plan(t, PLAN_SHARES);
    for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++) {
        struct attend_wish wish = attend_anything(kinds[kind].n * kinds[kind].positions);
        struct attend_case c;
        float *want, *want_lse, *y, *lse;
        wish.batch = kinds[kind].n;
        wish.long_ones = true;
        wish.kv_heads = kinds[kind].heads;
        wish.group = 2;
        wish.head_dim = kinds[kind].dim;
        wish.page_size = 16;
        wish.order = KV_HND;
        wish.mask = MASK_NONE;
        attend_case_make(&c, &r, &wish);
        attend_set_type(&c, KV_BFP16, 1);
        c.variant.window_left = -1;
        share_beginnings(&c, &r);
        attend_run(device_reference(), &c, &want, &want_lse);
        struct kv_views kv = attend_cache(t, &c);
        attend_run_planned(t, &c, &kv, plan, &y, &lse);
        attend_expect_same(&c, "one plan for all", want, y, c.shape.head_dim);
        attend_expect_same(&c, "log of the sum, one plan for all", want_lse, lse, 1);
        free(want);
        free(want_lse);
        free(y);
        free(lse);
        attend_case_free(&c);
    }
    use_plan(t, PLAN_BEST);
    t->ops->attention_plan_free(t->dev, plan);
}

/* Queries on both sides of the end of the shared tiles: of some rows nothing is left for their own
 * sequence. */
static void test_queries_at_the_end_of_a_tile(void **state) {
    struct test_device *t = *state;
    struct random r = {1004};
    for (int kind = 0; kind < 16; kind++) {
        struct attend_wish wish = attend_anything(2000);
        struct attend_case c;
        wish.batch = 3;
        wish.long_ones = true;
        wish.kv_len = 2 * TILE + 1 + kind % 4;
        wish.qo_len = 1 + kind / 4;
        wish.kv_heads = 1;
        wish.group = kind % 2 ? 4 : 8; /* a row group: two tokens, one */
        wish.head_dim = 32;
        wish.page_size = 16;
        wish.order = KV_NHD;
        wish.mask = MASK_NONE;
        wish.type = KV_BFP16;
        attend_case_make(&c, &r, &wish);
        c.variant = attention_variant_causal();
        share_beginnings(&c, &r);
        expect_same_either_way(t, &c);
        attend_case_free(&c);
    }
}

/* The emulation can have as little memory as a test wants. */
extern void emu_set_memory_limit(size_t bytes) __attribute__((weak));
extern size_t emu_memory_used(void) __attribute__((weak));

/* Sequences of 600 positions with shared tiles and one query each; the last has `queries`. */
static void make_readers(struct attend_case *c, struct random *r, int n, int queries) {
    struct attend_wish wish = attend_anything(n * 600);
    wish.batch = n;
    wish.long_ones = true;
    wish.kv_len = 600;
    wish.qo_len = wish.kv_heads = wish.group = 1;
    wish.head_dim = 64;
    wish.page_size = 16;
    wish.order = KV_NHD;
    wish.type = KV_BFP16;
    wish.mask = MASK_NONE;
    wish.sinks = wish.slopes = 0;
    attend_case_make(c, r, &wish);
    c->variant = attention_variant_causal();
    c->shape.kv_type = KV_BFP16;
    c->n_tokens = c->qo_indptr[n] = n - 1 + queries;
    for (int i = 1; i < n; i++)
        share_pages(c, i, 0, 30); /* a tile, and a part of the next */
}

/* The plan has refused a batch: attention with it does nothing. */
static void expect_nothing(struct test_device *t, const struct attend_case *c,
                           struct attention_plan *plan) {
    enum { BYTES = 256 };
    uint8_t *want = host_array(BYTES, 1);
    struct kv_views kv = attend_cache(t, c);
    float *y = device_poisoned(t, BYTES);
    assert_int_equal(t->ops->attention_plan_form(plan), 0);
    t->ops->attend(t->dev, y, NULL, &kv, plan, &c->variant, ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    uint8_t *got = device_get(t, y, BYTES);
    assert_memory_equal(want, got, BYTES);
    free(want);
    free(got);
    device_clear(t);
}

/* A plan of shared tiles that then refuses a batch, also for want of memory, is of no sequences. */
static void test_refused_after_sharing(void **state) {
    struct test_device *t = *state;
    struct error err = {""};
    struct random r = {1006};
    struct attend_case c, prompt;
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    make_readers(&c, &r, 8, 1);
    make_readers(&prompt, &r, 8, 200);
    struct paged_batch b = attend_batch(&c), bad = b, large = attend_batch(&prompt);
    bad.n_pages = c.pages[0];
    use_plan(t, PLAN_SHARES);
    assert_int_equal(t->ops->attention_plan(t->dev, plan, &b, &c.shape, NULL, &err), 0);
    assert_int_equal(t->ops->attention_plan_form(plan), 1);
    assert_int_equal(t->ops->attention_plan(t->dev, plan, &bad, &c.shape, NULL, &err), -1);
    assert_non_null(strstr(err.text, "sequence 0: its page number 0 is"));
    expect_nothing(t, &c, plan);
    assert_int_equal(t->ops->attention_plan(t->dev, plan, &b, &c.shape, NULL, &err), 0);
    if (device_is_emulated() && emu_set_memory_limit && emu_memory_used) {
        emu_set_memory_limit(emu_memory_used() + (10 << 10));
        int result = t->ops->attention_plan(t->dev, plan, &large, &prompt.shape, NULL, &err);
        emu_set_memory_limit((size_t)16 << 30);
        assert_int_equal(result, -1);
        expect_nothing(t, &c, plan);
    }
    t->ops->attention_plan_free(t->dev, plan);
    use_plan(t, PLAN_BEST);
    attend_case_free(&c);
    attend_case_free(&prompt);
}

/* A device without memory for what shared tiles take: each sequence is read by itself, and so it
 * stays for this plan. */
static void test_no_memory(void **state) {
    struct test_device *t = *state;
    struct error err = {""};
    struct random r = {1005};
    struct attend_wish wish = attend_anything(8 * 1000);
    struct attend_case c;
    if (!device_is_emulated() || !emu_set_memory_limit || !emu_memory_used)
        skip();
    wish.batch = 8;
    wish.long_ones = true;
    wish.kv_len = 1000;
    wish.qo_len = wish.kv_heads = wish.group = 1;
    wish.head_dim = 64;
    wish.page_size = 16;
    wish.order = KV_NHD;
    wish.mask = MASK_NONE;
    attend_case_make(&c, &r, &wish);
    share_beginnings(&c, &r);
    struct paged_batch b = attend_batch(&c);
    use_plan(t, PLAN_SHARES);
    int shares = 0, alone = 0;
    /* From enough for the page tables to enough for all: each array in turn is the one too many. */
    for (size_t room = 100 << 10; !shares && room < (size_t)64 << 20; room += 50 << 10) {
        struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
        assert_non_null(plan);
        emu_set_memory_limit(emu_memory_used() + room);
        int result = t->ops->attention_plan(t->dev, plan, &b, &c.shape, NULL, &err);
        emu_set_memory_limit((size_t)16 << 30);
        if (result)
            fail_msg("%zu bytes: %s", room, err.text);
        shares = t->ops->attention_plan_form(plan);
        alone += !shares;
        assert_int_equal(t->ops->attention_plan(t->dev, plan, &b, &c.shape, NULL, &err), 0);
        assert_int_equal(t->ops->attention_plan_form(plan), shares);
        t->ops->attention_plan_free(t->dev, plan);
    }
    assert_true(shares && alone);
    use_plan(t, PLAN_BEST);
    attend_case_free(&c);
}

/* ---- batches given level by level ---------------------------------------------------------------
 */

enum { READERS = 3, LEVEL_PAGE = 16, LEVEL_LENGTH = 340, LEVEL_PAGES = 40 };

/* Readers of a beginning of `shared` positions, with a copy of it each; and the pages in which they
 * have it together. */
struct readers {
    struct attend_case c;
    struct kv_layout layout; /* of the cache that they share */
    int shared;
    int32_t pages[LEVEL_PAGES], qo[2], kv[2], last[1], own_kv[READERS + 1], own_last[READERS];
    struct cascade_level levels[2];
};

static void make_levels(struct readers *all, struct random *r, int shared, enum kv_order order,
                        bool one_tensor) {
    struct attend_wish wish = attend_anything(READERS * LEVEL_LENGTH);
    struct attend_case *c = &all->c;
    wish.batch = READERS;
    wish.long_ones = true;
    wish.kv_len = LEVEL_LENGTH;
    wish.page_size = LEVEL_PAGE;
    wish.order = order;
    wish.type = shared % 2 ? KV_E4M3 : shared % 4 ? KV_BFP8 : KV_BFP16;
    wish.head_dim = 32;
    attend_case_make(c, r, &wish);
    c->layout.one_tensor = one_tensor;
    size_t width = (size_t)(c->shape.n_kv_heads * c->shape.head_dim);
    for (int i = 1; i < READERS; i++) {
        size_t to = width * (size_t)c->first_position[i], bytes = sizeof *c->k * width;
        memcpy(c->k + to, c->k, bytes * (size_t)shared);
        memcpy(c->v + to, c->v, bytes * (size_t)shared);
    }
    int n_shared = (shared + LEVEL_PAGE - 1) / LEVEL_PAGE, own = LEVEL_LENGTH - shared;
    all->shared = shared;
    all->layout = c->layout;
    all->layout.n_pages = LEVEL_PAGES;
    for (int i = 0; i < LEVEL_PAGES; i++)
        all->pages[i] = i * 7 % LEVEL_PAGES;
    all->qo[0] = all->kv[0] = all->own_kv[0] = 0;
    all->qo[1] = c->n_tokens;
    all->kv[1] = n_shared;
    all->last[0] = (shared - 1) % LEVEL_PAGE + 1;
    for (int i = 0; i < READERS; i++) {
        all->own_kv[i + 1] = all->own_kv[i] + (own + LEVEL_PAGE - 1) / LEVEL_PAGE;
        all->own_last[i] = (own - 1) % LEVEL_PAGE + 1;
    }
    assert_true(n_shared + all->own_kv[READERS] <= LEVEL_PAGES);
    all->levels[0] = (struct cascade_level){1, all->qo, all->kv, all->pages, all->last};
    all->levels[1] = (struct cascade_level){READERS, c->qo_indptr, all->own_kv,
                                            all->pages + n_shared, all->own_last};
}

/* The cache of the levels: the beginning once, then what is each one's own. */
static struct kv_views fill_levels(struct test_device *t, const struct readers *all) {
    const struct attend_case *c = &all->c;
    struct kv_views kv = attend_empty_cache(t, &all->layout);
    size_t width = (size_t)(c->shape.n_kv_heads * c->shape.head_dim);
    int64_t slots[LEVEL_LENGTH];
    for (int i = 0; i < READERS; i++) {
        size_t bytes = sizeof *c->k * width * LEVEL_LENGTH;
        size_t from = width * (size_t)c->first_position[i];
        for (int j = 0; j < LEVEL_LENGTH; j++) {
            bool own = j >= all->shared;
            int at = own ? j - all->shared : j;
            const int32_t *pages = own ? all->levels[1].kv_page_indices + all->own_kv[i]
                                       : all->levels[0].kv_page_indices;
            slots[j] = own || i == 0 ? pages[at / LEVEL_PAGE] * LEVEL_PAGE + at % LEVEL_PAGE : -1;
        }
        t->ops->kv_append(t->dev, &kv, device_put(t, c->k + from, bytes),
                          device_put(t, c->v + from, bytes), device_put(t, slots, sizeof slots),
                          LEVEL_LENGTH, LEVEL_PAGE, c->shape.n_kv_heads, c->shape.head_dim,
                          ATTEND_SITE, ATTEND_SITE);
    }
    return kv;
}

/* Attention over the levels has the bits that it has over the readers' own copies. */
static void expect_same_by_levels(struct test_device *t, const struct readers *all) {
    struct attend_case flat = all->c;
    struct paged_batch b;
    struct error err = {""};
    int32_t pages[READERS * LEVEL_LENGTH];
    float *want, *want_lse, *y, *lse;
    struct kv_views kv = fill_levels(t, all), read;
    if (paged_batch_of_levels(&b, all->levels, 2, &all->layout, flat.kv_indptr, flat.last_page_len,
                              pages, READERS * LEVEL_LENGTH, &err))
        fail_msg("%s", err.text);
    flat.layout = all->layout;
    flat.layout.page_size = b.page_size;
    flat.layout.n_pages = b.n_pages;
    flat.pages = pages;
    if (kv_views_of(&read, &flat.layout, kv.k.data, kv.v.data, kv.k.exponents, kv.v.exponents,
                    &err))
        fail_msg("%s", err.text);
    use_plan(t, PLAN_SHARES);
    attend_run_over(t, &flat, &read, &y, &lse);
    use_plan(t, PLAN_BEST);
    attend_run(device_reference(), &all->c, &want, &want_lse);
    attend_expect_same(&flat, "attention over levels", want, y, flat.shape.head_dim);
    attend_expect_same(&flat, "log of the sum over levels", want_lse, lse, 1);
    free(want);
    free(want_lse);
    free(y);
    free(lse);
}

/* Levels that end with a full page, in every layout; and where smaller pages are needed, of 4, 1
 * and 2: only where these are pages of the cache, too. */
static void test_attention_over_levels(void **state) {
    static const struct {
        enum kv_order order;
        bool one_tensor;
    } kinds[] = {
        {KV_NHD, false}, {KV_NHD, true}, {KV_HND, false}, {KV_HND, true}, {KV_VLLM, false}};
    static const int shared[] = {304, 292, 293, 290};
    struct test_device *t = *state;
    struct random r = {1008};
    for (int kind = 0; kind < 20; kind++) {
        struct readers all;
        struct paged_batch b;
        struct error err = {""};
        int32_t indptr[READERS + 1], last[READERS], pages[READERS * LEVEL_LENGTH];
        int i = kind / 4;
        char why[64];
        make_levels(&all, &r, shared[kind % 4], kinds[i].order, kinds[i].one_tensor);
        if (i == 0 || kind % 4 == 0) {
            expect_same_by_levels(t, &all);
        } else {
            assert_int_equal(paged_batch_of_levels(&b, all.levels, 2, &all.layout, indptr, last,
                                                   pages, READERS * LEVEL_LENGTH, &err),
                             -1);
            snprintf(why, sizeof why, "level 0, group 0: its last page has %d of 16 positions",
                     all.last[0]);
            assert_non_null(strstr(err.text, why));
        }
        attend_case_free(&all.c);
    }
}

/* Several own tiles of two row groups; and so many that a chain has more results than a warp merges
 * at a time. */
static void test_own_tiles(void **state) {
    struct test_device *t = *state;
    struct random r = {1008};
    for (int many = 0; many < 2; many++) {
        struct attend_wish wish = plain_sequences(2, many ? 9000 : 800);
        struct attend_case c;
        wish.qo_len = many ? 1 : 4;
        wish.kv_heads = 1;
        wish.group = many ? 8 : 4; /* heads whose largest scores are in different tiles */
        wish.head_dim = 32;
        make_plain(&c, &r, &wish);
        share_pages(&c, 1, 0, 16);
        expect_same_from(t, &c, PLAN_SHARES);
        use_plan(t, PLAN_SHARES);
        float *want = attend_run_without_lse(device_reference(), &c);
        float *y = attend_run_without_lse(t, &c);
        attend_expect_same(&c, "shared tiles, without lse", want, y, c.shape.head_dim);
        use_plan(t, PLAN_BEST);
        free(want);
        free(y);
        attend_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_trees),
        cmocka_unit_test(test_deeper_stretches_of_several_tiles),
        cmocka_unit_test(test_row_lists),
        cmocka_unit_test(test_one_plan),
        cmocka_unit_test(test_long_stretches),
        cmocka_unit_test(test_queries_at_the_end_of_a_tile),
        cmocka_unit_test(test_refused_after_sharing),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_own_tiles),
        cmocka_unit_test(test_attention_over_levels),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
