/*
 * Tiles that sequences share: which ones are found, and that attention over them has the bits that
 * it has without; and batches that are given level by level.
 */
#include "tests/attend_cases.h"

#include "tests/assert_bits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TILE = ATTENTION_TILE, MOST_PAGES = 4096 };

/* ---- which tiles are found ---------------------------------------------------------------------
 */

/* A page table that is written down sequence by sequence. */
struct table {
    int n, n_pages;
    int32_t qo_indptr[MOST_SEQUENCES + 1], kv_indptr[MOST_SEQUENCES + 1];
    int32_t last_page_len[MOST_SEQUENCES], pages[MOST_PAGES];
};

/* Adds a sequence of kv_len positions and n_tokens queries, the first n_shared pages of which are
 * those of sequence `like`, the others nobody's. */
static void add(struct table *t, int page_size, int kv_len, int n_tokens, int like, int n_shared) {
    int i = t->n++, n = (kv_len + page_size - 1) / page_size;
    t->qo_indptr[i + 1] = t->qo_indptr[i] + n_tokens;
    t->kv_indptr[i + 1] = t->kv_indptr[i] + n;
    t->last_page_len[i] = kv_len ? (kv_len - 1) % page_size + 1 : 1;
    assert_true(t->kv_indptr[i + 1] <= MOST_PAGES);
    for (int j = 0; j < n; j++)
        t->pages[t->kv_indptr[i] + j] =
            j < n_shared ? t->pages[t->kv_indptr[like] + j] : t->n_pages++;
}

static struct paged_batch batch_of(const struct table *t, int page_size) {
    return (struct paged_batch){t->n,         page_size, t->n_pages + 1,  t->qo_indptr,
                                t->kv_indptr, t->pages,  t->last_page_len};
}

static void find(struct cascade *c, const struct table *t, int page_size,
                 const struct attention_variant *v, struct cascade_rule rule) {
    struct attention_variant causal = attention_variant_causal();
    struct paged_batch b = batch_of(t, page_size);
    struct error err = {""};
    assert_int_equal(paged_batch_check(&b, &err), 0);
    assert_int_equal(cascade_find(c, &b, v ? v : &causal, &rule, &err), 0);
}

static const struct cascade_rule all = {4, 1};

static void expect_stretch(const struct cascade *c, int i, int first_tile, int n_tiles,
                           int n_members, int depth) {
    assert_true(i < c->n_stretches);
    const struct shared_stretch *s = &c->stretches[i];
    if (s->first_tile != first_tile || s->n_tiles != n_tiles || s->n_members != n_members ||
        s->depth != depth)
        fail_msg("stretch %d: tiles %d + %d, %d members, depth %d; want %d + %d, %d, %d", i,
                 s->first_tile, s->n_tiles, s->n_members, s->depth, first_tile, n_tiles, n_members,
                 depth);
}

/* Two sequences that share so many pages: this many tiles. */
static void expect_tiles(int page_size, int kv_len, int n_shared, int tiles) {
    struct table t = {0};
    struct cascade c = {0};
    add(&t, page_size, kv_len, 1, 0, 0);
    add(&t, page_size, kv_len + 3, 1, 0, n_shared);
    find(&c, &t, page_size, NULL, all);
    assert_int_equal(c.n_stretches, tiles > 0);
    if (tiles)
        expect_stretch(&c, 0, 0, tiles, 2, 0);
    assert_int_equal(tiles ? c.own_tile[0] : 0, tiles);
    assert_int_equal(tiles ? c.own_tile[1] : 0, tiles);
    cascade_end(&c);
}

static void test_whole_tiles(void **state) {
    (void)state;
    expect_tiles(16, 600, 15, 0);
    expect_tiles(16, 600, 16, 1);
    expect_tiles(16, 600, 31, 1);
    expect_tiles(16, 600, 32, 2);
    expect_tiles(16, 600, 37, 2);
    expect_tiles(16, 512, 32, 1); /* the last position is a sequence's own */
    expect_tiles(16, 513, 32, 2);
    expect_tiles(16, 256, 16, 0);
    expect_tiles(24, 600, 10, 0); /* 240 positions */
    expect_tiles(24, 600, 11, 1); /* 264 */
    expect_tiles(24, 600, 21, 1); /* 504 */
    expect_tiles(24, 600, 22, 2);
    expect_tiles(1, 300, 255, 0);
    expect_tiles(1, 300, 256, 1);
    expect_tiles(256, 700, 2, 2);
    expect_tiles(1000, 2500, 1, 3); /* 1000 positions: three tiles and a bit */
    expect_tiles(1000, 2500, 2, 7);
    expect_tiles(1000, 2500, 3, 9); /* the last page, too, but not the last tile */
    /* Two tiles of a longer sequence are all that the second one has. */
    struct table t = {0};
    struct cascade c = {0};
    add(&t, 16, 1000, 1, 0, 0);
    add(&t, 16, 512, 1, 0, 32);
    find(&c, &t, 16, NULL, all);
    assert_int_equal(c.n_stretches, 1);
    expect_stretch(&c, 0, 0, 1, 2, 0);
    cascade_end(&c);
}

/* Sixteen share two tiles, of these eight three more, of these two one more; and three are others,
 * of which two share. */
static void test_tree(void **state) {
    (void)state;
    struct table t = {0};
    struct cascade c = {0};
    add(&t, 16, 2000, 1, 0, 0);
    for (int i = 1; i < 16; i++)
        add(&t, 16, 2000 + i, 1 + i % 4, 0, i % 2 ? 32 : i == 8 ? 96 : 80);
    add(&t, 16, 1000, 1, 0, 0);
    add(&t, 16, 1000, 1, 0, 0);
    add(&t, 16, 900, 1, 16, 50);
    find(&c, &t, 16, NULL, all);
    assert_int_equal(c.n_stretches, 4);
    bool others_first = c.stretches[0].n_members == 2;
    expect_stretch(&c, others_first, 0, 2, 16, 0);
    expect_stretch(&c, !others_first, 0, 3, 2, 0);
    expect_stretch(&c, 2, 2, 3, 8, 1);
    expect_stretch(&c, 3, 5, 1, 2, 2);
    for (int i = 0; i < 16; i++)
        assert_int_equal(c.own_tile[i], i % 2 ? 2 : i == 0 || i == 8 ? 6 : 5);
    assert_int_equal(c.own_tile[16], 3);
    assert_int_equal(c.own_tile[17], 0);
    assert_int_equal(c.own_tile[18], 3);
    bool met[19] = {false};
    for (int k = 0; k < c.stretches[3].n_members; k++)
        met[c.members[c.stretches[3].first_member + k]] = true;
    assert_true(met[0] && met[8]);
    cascade_end(&c);
}

/* Who takes no part, and what does not pay. */
static void test_no_sharing(void **state) {
    (void)state;
    struct table t = {0};
    struct cascade c = {0};
    struct attention_variant window = attention_variant_causal();
    add(&t, 16, 1000, 1, 0, 0);
    add(&t, 16, 1000, 5, 0, 40); /* too many queries */
    add(&t, 16, 1000, 0, 0, 40); /* none */
    find(&c, &t, 16, NULL, all);
    assert_int_equal(c.n_stretches, 0);
    add(&t, 16, 1000, 4, 0, 40);
    add(&t, 16, 1000, 2, 0, 40);
    find(&c, &t, 16, NULL, all);
    assert_int_equal(c.n_stretches, 1);
    expect_stretch(&c, 0, 0, 2, 3, 0);
    find(&c, &t, 16, NULL, (struct cascade_rule){4, 4}); /* two tiles are read once for three */
    assert_int_equal(c.n_stretches, 1);
    find(&c, &t, 16, NULL, (struct cascade_rule){4, 5});
    assert_int_equal(c.n_stretches, 0);
    find(&c, &t, 16, NULL, (struct cascade_rule){0, 1});
    assert_int_equal(c.n_stretches, 0);
    find(&c, &t, 16, NULL, (struct cascade_rule){1, 1});
    assert_int_equal(c.n_stretches, 0);
    window.window_left = 999; /* the first position is seen */
    find(&c, &t, 16, &window, all);
    assert_int_equal(c.n_stretches, 1);
    window.window_left = 743; /* of the first tile, its last position; one of the three, nothing */
    find(&c, &t, 16, &window, all);
    assert_int_equal(c.n_stretches, 1);
    expect_stretch(&c, 0, 0, 2, 2, 0);
    window.window_left = 742; /* another one, nothing */
    find(&c, &t, 16, &window, all);
    assert_int_equal(c.n_stretches, 0);
    window.window_left = 700; /* nothing of the first tile */
    find(&c, &t, 16, &window, all);
    assert_int_equal(c.n_stretches, 0);
    cascade_end(&c);

    /* The same pages in another order, or from another place on. */
    struct table moved = {0};
    add(&moved, 16, 1000, 1, 0, 0);
    add(&moved, 16, 1000, 1, 0, 40);
    moved.pages[moved.kv_indptr[1]] = moved.pages[1];
    moved.pages[moved.kv_indptr[1] + 1] = moved.pages[0];
    find(&c, &moved, 16, NULL, all);
    assert_int_equal(c.n_stretches, 0);
    cascade_end(&c);

    /* A page of their own in the middle: what follows is not shared. */
    struct table copied = {0};
    for (int i = 0; i < 3; i++) {
        add(&copied, 16, 1000, 1, 0, i ? 62 : 0);
        copied.pages[copied.kv_indptr[i] + 16] = copied.n_pages++;
    }
    find(&c, &copied, 16, NULL, all);
    assert_int_equal(c.n_stretches, 1);
    expect_stretch(&c, 0, 0, 1, 3, 0);
    cascade_end(&c);
}

static void test_rules(void **state) {
    (void)state;
    const struct cascade_rule pays = {4, 100};
    struct cascade_rule best = cascade_rule_of(PLAN_BEST, &pays);
    struct cascade_rule single = cascade_rule_of(PLAN_SINGLE, &pays);
    struct cascade_rule shares = cascade_rule_of(PLAN_SHARES, &pays);
    assert_int_equal(best.most_tokens, 4);
    assert_int_equal(best.least_tiles_less, 100);
    assert_int_equal(single.most_tokens, 0);
    assert_int_equal(shares.most_tokens, 4);
    assert_int_equal(shares.least_tiles_less, 1);
}

/* ---- the same bits ------------------------------------------------------------------------------
 */

/* Lets sequences begin with pages of those before them. */
static void share_beginnings(struct attend_case *c, struct random *r) {
    int size = c->layout.page_size;
    size_t width = (size_t)c->shape.n_kv_heads * (size_t)c->shape.head_dim;
    for (int i = 1; i < c->n; i++) {
        int like = random_int(r, 0, i - 1);
        int most = c->kv_len[i] < c->kv_len[like] ? c->kv_len[i] : c->kv_len[like];
        int n = random_int(r, 0, 3) ? most / size : random_int(r, 0, most / size);
        size_t bytes = sizeof *c->k * width * (size_t)(n * size);
        size_t to = width * (size_t)c->first_position[i];
        size_t from = width * (size_t)c->first_position[like];
        memcpy(c->pages + c->kv_indptr[i], c->pages + c->kv_indptr[like],
               sizeof *c->pages * (size_t)n);
        memcpy(c->k + to, c->k + from, bytes);
        memcpy(c->v + to, c->v + from, bytes);
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
        c->layout.type = KV_BFP16;
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

/* As many rows as fill row lists, to one row more and one less, over groups that 64 is no multiple
 * of. */
static void test_row_lists(void **state) {
    struct test_device *t = *state;
    static const struct {
        int n, kv_heads, group;
    } kinds[] = {{63, 1, 1}, {64, 1, 1}, {65, 1, 1}, {13, 1, 5},
                 {22, 2, 3}, {9, 1, 8},  {129, 1, 1}};
    struct random r = {1002};
    for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++) {
        bool long_one = kinds[kind].group == 8; /* of several tiles, and more dimensions */
        struct attend_wish wish = attend_anything(kinds[kind].n * (long_one ? 700 : 300));
        struct attend_case c;
        wish.batch = kinds[kind].n > MOST_SEQUENCES ? MOST_SEQUENCES : kinds[kind].n;
        wish.long_ones = true;
        wish.kv_heads = kinds[kind].kv_heads;
        wish.group = kinds[kind].group;
        wish.head_dim = long_one ? 96 : 32;
        wish.page_size = 16;
        wish.order = KV_NHD;
        wish.mask = MASK_NONE;
        attend_case_make(&c, &r, &wish);
        c.layout.type = KV_BFP16;
        c.variant = attention_variant_causal();
        share_beginnings(&c, &r);
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
        c.layout.type = KV_BFP16;
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
        c.layout.type = KV_BFP16;
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

/* A device without memory for what shared tiles take: each sequence is read by itself, and so it
 * stays for this plan. (The emulation can have as little memory as it is told.) */
extern void emu_set_memory_limit(size_t bytes) __attribute__((weak));
extern size_t emu_memory_used(void) __attribute__((weak));

static void test_no_memory(void **state) {
    struct test_device *t = *state;
    struct error err = {""};
    struct table table = {0};
    struct attention_shape shape = {4, 1, 64, 0.125};
    if (!device_is_emulated() || !emu_set_memory_limit || !emu_memory_used)
        skip();
    for (int i = 0; i < 8; i++)
        add(&table, 16, 1000, 1, 0, i ? 60 : 0);
    struct paged_batch b = batch_of(&table, 16);
    struct attention_plan *plans[2];
    use_plan(t, PLAN_SHARES);
    for (int i = 0; i < 2; i++) {
        plans[i] = t->ops->attention_plan_new(t->dev, &err);
        assert_non_null(plans[i]);
        if (i == 0) /* enough for the page tables, not for three tiles as digits */
            emu_set_memory_limit(emu_memory_used() + (100 << 10));
        int result = t->ops->attention_plan(t->dev, plans[i], &b, &shape, NULL, &err);
        emu_set_memory_limit((size_t)16 << 30);
        if (result)
            fail_msg("%s", err.text);
        assert_int_equal(t->ops->attention_plan_form(plans[i]), i);
        assert_int_equal(t->ops->attention_plan(t->dev, plans[i], &b, &shape, NULL, &err), 0);
        assert_int_equal(t->ops->attention_plan_form(plans[i]), i);
    }
    for (int i = 0; i < 2; i++)
        t->ops->attention_plan_free(t->dev, plans[i]);
    use_plan(t, PLAN_BEST);
}

/* ---- states -------------------------------------------------------------------------------------
 */

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
    assert_int_equal(attention_variant_check(&v, &err), 0);
    if (t->ops->attention_plan(t->dev, plan, &batch, &c->shape, &v, &err))
        fail_msg("%s", err.text);
    t->ops->attend(t->dev, s.o, device_put(t, c->q, sizeof(float) * rows * dim), &kv, plan, &v,
                   ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    t->ops->attention_plan_free(t->dev, plan);
    return s;
}

/* The state of positions 0 ... cut - 1 merged with that of the others, and finished. */
static void merge_at(struct test_device *t, const struct attend_case *c, int cut, float **y,
                     float **lse) {
    int rows = c->n_tokens * c->shape.n_heads, dim = c->shape.head_dim;
    struct attention_state s = state_of(t, c, 0, cut), rest = state_of(t, c, cut, c->kv_len[0]);
    float *on_lse = device_poisoned(t, sizeof(float) * (size_t)rows);
    t->ops->merge_states(t->dev, &s, &rest, rows, dim);
    t->ops->finish_states(t->dev, s.o, on_lse, c->variant.lse_base, &s, rows, dim);
    device_expect_fault(t, -1, 0);
    *y = device_get(t, s.o, sizeof(float) * (size_t)(rows * dim));
    *lse = device_get(t, on_lse, sizeof(float) * (size_t)rows);
    device_clear(t);
}

/* A beginning of whole tiles, merged with a tile: the bits of one call. Merged with nothing, or
 * nothing with it: no change. */
static void test_states(void **state) {
    struct test_device *t = *state;
    struct random r = {1003};
    for (int kind = 0; kind < 24; kind++) {
        static const int lengths[] = {600, 513, 256, 40}, cuts[] = {512, 512, 0, 40},
                         queries[] = {1, 3, 7};
        struct attend_wish wish = attend_anything(700);
        struct attend_case c;
        float *want, *want_lse, *y, *lse;
        wish.batch = 1;
        wish.kv_len = lengths[kind % 4];
        wish.qo_len = queries[kind % 3];
        wish.page_size = kind % 2 ? 16 : 256;
        wish.order = kind / 8 == 2 ? KV_VLLM : kind % 2 ? KV_NHD : KV_HND;
        wish.causal = 0;
        wish.mask = MASK_NONE;
        wish.slopes = wish.sinks = 0;
        attend_case_make(&c, &r, &wish);
        c.layout.type = kind % 5 ? KV_BFP16 : KV_BF16;
        c.layout.k_scale = c.layout.v_scale = 1;
        c.variant.window_left = -1;
        attend_run(device_reference(), &c, &want, &want_lse);
        merge_at(t, &c, cuts[kind % 4], &y, &lse);
        attend_expect_same(&c, "merged states", want, y, c.shape.head_dim);
        attend_expect_same(&c, "log of the merged sums", want_lse, lse, 1);
        free(want);
        free(want_lse);
        free(y);
        free(lse);
        attend_case_free(&c);
    }
}

/* Two rows that have seen nothing; and who asks for half a state. */
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
    t->ops->finish_states(t->dev, y, lse, LSE_2, &s[0], 3, 5);
    t->ops->finish_states(t->dev, y, NULL, LSE_E, &s[0], 3, 5);
    device_expect_fault(t, -1, 0);
    device_expect_floats(t, "merged nothing", zeros, y, 3, 5);
    device_expect_floats(t, "log of nothing", nothing, lse, 3, 1);
    device_clear(t);
    v.m = (float *)zeros;
    assert_int_equal(attention_variant_check(&v, &err), -1);
}

/* ---- levels -------------------------------------------------------------------------------------
 */

/* Three levels over four requests: all, pairs, each alone. */
struct levels {
    int32_t qo[3][5], indptr[3][5], pages[3][16], last[3][4];
    struct cascade_level level[3];
};

static void make_levels(struct levels *l) {
    static const int groups[] = {1, 2, 4}, pages_each[] = {3, 2, 1};
    int page = 0;
    *l = (struct levels){0};
    for (int i = 0; i < 3; i++) {
        for (int g = 0; g < groups[i]; g++) {
            l->qo[i][g + 1] = 4 / groups[i] * (g + 1) * 2;
            l->indptr[i][g + 1] = l->indptr[i][g] + pages_each[i];
            l->last[i][g] = i < 2 ? 8 : 1 + g;
            for (int p = 0; p < pages_each[i]; p++)
                l->pages[i][l->indptr[i][g] + p] = page++;
        }
        l->level[i] =
            (struct cascade_level){groups[i], l->qo[i], l->indptr[i], l->pages[i], l->last[i]};
    }
}

static int flatten(const struct levels *l, struct paged_batch *b, int32_t *indptr, int32_t *last,
                   int32_t *pages, int most, struct error *err) {
    return paged_batch_of_levels(b, l->level, 3, 8, 20, indptr, last, pages, most, err);
}

static void test_levels(void **state) {
    (void)state;
    static const int32_t want[] = {0, 1, 2, 3, 4, 7, 0, 1, 2, 3, 4, 8,
                                   0, 1, 2, 5, 6, 9, 0, 1, 2, 5, 6, 10};
    struct levels l;
    struct paged_batch b;
    struct error err = {""};
    int32_t indptr[5], last[4], pages[32];
    make_levels(&l);
    if (flatten(&l, &b, indptr, last, pages, 24, &err))
        fail_msg("%s", err.text);
    assert_int_equal(b.n_sequences, 4);
    assert_memory_equal(b.kv_page_indices, want, sizeof want);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(b.qo_indptr[i], 2 * i);
        assert_int_equal(b.kv_indptr[i], 6 * i);
        assert_int_equal(paged_batch_kv_len(&b, i), 40 + 1 + i);
    }
    /* A request without pages of its own; the page before is full. */
    l.indptr[2][1] = 0;
    if (flatten(&l, &b, indptr, last, pages, 24, &err))
        fail_msg("%s", err.text);
    assert_int_equal(paged_batch_kv_len(&b, 0), 40);
    /* A request without queries, behind all others. */
    make_levels(&l);
    l.qo[2][3] = 8;
    if (flatten(&l, &b, indptr, last, pages, 24, &err))
        fail_msg("%s", err.text);
    assert_memory_equal(b.kv_page_indices, want, sizeof want);
}

static void refuse(const struct levels *l, int most, const char *why) {
    struct paged_batch b;
    struct error err = {""};
    int32_t indptr[5], last[4], pages[32];
    assert_int_equal(flatten(l, &b, indptr, last, pages, most, &err), -1);
    if (!strstr(err.text, why))
        fail_msg("\"%s\", not \"%s\"", err.text, why);
}

static void test_bad_levels(void **state) {
    (void)state;
    struct levels l;
    struct paged_batch b;
    struct error err = {""};
    int32_t indptr[5], last[4], pages[32];
    make_levels(&l);
    refuse(&l, 23, "more than 23 pages");
    assert_int_equal(paged_batch_of_levels(&b, l.level, 0, 8, 20, indptr, last, pages, 32, &err),
                     -1);
    l.last[1][1] = 7;
    refuse(&l, 32, "level 1, group 1: its last page has 7 of 8 positions");
    make_levels(&l);
    l.last[2][3] = 9;
    refuse(&l, 32, "sequence 3: its last page has 9");
    make_levels(&l);
    l.qo[1][1] = 3;
    refuse(&l, 32, "level 2, group 1: its queries 2 to 3 do not lie in one group of level 1");
    make_levels(&l);
    l.qo[0][1] = 9;
    refuse(&l, 32, "level 0 has 9 queries, level 2 has 8");
    make_levels(&l);
    l.indptr[1][1] = 5;
    refuse(&l, 32, "level 1, group 1: an indptr falls");
    make_levels(&l);
    l.indptr[2][0] = 1;
    refuse(&l, 32, "level 2: an indptr does not begin at 0");
    make_levels(&l);
    l.level[1].n_groups = -1;
    refuse(&l, 32, "level 1 has -1 groups");
    make_levels(&l);
    l.pages[0][1] = 20;
    refuse(&l, 32, "outside the pool of 20");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_tiles),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_no_sharing),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_random_trees),
        cmocka_unit_test(test_row_lists),
        cmocka_unit_test(test_one_plan),
        cmocka_unit_test(test_long_stretches),
        cmocka_unit_test(test_queries_at_the_end_of_a_tile),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_empty_states),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_bad_levels),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
