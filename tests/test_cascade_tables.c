/*
 * Which tiles sequences share, read from page tables; and batches that are given level by level.
 */
#include "model/attention/cascade.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { TILE = ATTENTION_TILE, MOST_SEQUENCES = 24, MOST_PAGES = 4096 };

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

    /* Equal pages in another order, or from another place on. */
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

/* What sharing spares is counted over all stretches: five that share a tile, and two of them four
 * more. */
static void test_what_pays(void **state) {
    (void)state;
    struct table t = {0};
    struct cascade c = {0};
    add(&t, 16, 1500, 1, 0, 0);
    add(&t, 16, 1500, 1, 0, 80);
    for (int i = 0; i < 3; i++)
        add(&t, 16, 400, 1, 0, 16);
    find(&c, &t, 16, NULL, (struct cascade_rule){4, 8});
    assert_int_equal(c.n_stretches, 2);
    expect_stretch(&c, 0, 0, 1, 5, 0);
    expect_stretch(&c, 1, 1, 4, 2, 1);
    find(&c, &t, 16, NULL, (struct cascade_rule){4, 9});
    assert_int_equal(c.n_stretches, 0);
    cascade_end(&c);
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

/* Twenty pages of 8. */
static struct kv_layout cache_of(enum kv_order order, bool one_tensor) {
    return kv_layout_of(order, one_tensor, 20, 8, 2, 32);
}

static int flatten(const struct levels *l, struct paged_batch *b, int32_t *indptr, int32_t *last,
                   int32_t *pages, int most, struct error *err) {
    struct kv_layout cache = cache_of(KV_NHD, false);
    return paged_batch_of_levels(b, l->level, 3, &cache, indptr, last, pages, most, err);
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

/* Levels whose inner last pages are not full: position p of a request is where its levels, one
 * after the other, have it. */
static void expect_positions(const struct levels *l, const struct paged_batch *b, int request) {
    int position = 0;
    for (int i = 0; i < 3; i++) {
        int g = i == 0 ? 0 : i == 1 ? request / 2 : request;
        int pages = l->indptr[i][g + 1] - l->indptr[i][g];
        int n = pages ? (pages - 1) * 8 + l->last[i][g] : 0;
        for (int j = 0; j < n; j++, position++) {
            int64_t slot;
            struct error err = {""};
            if (paged_batch_slots(b, &slot, &request, &position, 1, &err))
                fail_msg("%s", err.text);
            assert_int_equal(slot, l->pages[i][l->indptr[i][g] + j / 8] * 8 + j % 8);
        }
    }
    assert_int_equal(paged_batch_kv_len(b, request), position);
}

static void test_unfilled_levels(void **state) {
    (void)state;
    /* The last pages of the first two levels, and the largest pages of which they are whole ones.
     */
    static const int32_t cases[][4] = {{8, 4, 8, 4}, {4, 6, 8, 2}, {8, 8, 7, 1},
                                       {6, 6, 2, 2}, {4, 4, 4, 4}, {1, 8, 8, 1}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int own = 1; own <= 8; own++) {
            struct levels l;
            struct paged_batch b;
            struct error err = {""};
            int32_t indptr[5], last[4], pages[4 * 6 * 8];
            make_levels(&l);
            l.last[0][0] = cases[k][0];
            l.last[1][0] = cases[k][1];
            l.last[1][1] = cases[k][2];
            l.last[2][1] = own;
            l.indptr[2][4] = l.indptr[2][3]; /* a request without pages of its own */
            if (flatten(&l, &b, indptr, last, pages, 4 * 6 * 8, &err))
                fail_msg("%s", err.text);
            assert_int_equal(b.page_size, cases[k][3]);
            assert_int_equal(b.n_pages * b.page_size, 20 * 8);
            for (int request = 0; request < 4; request++)
                expect_positions(&l, &b, request);
        }
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
    struct kv_layout cache = cache_of(KV_NHD, false);
    assert_int_equal(paged_batch_of_levels(&b, l.level, 0, &cache, indptr, last, pages, 32, &err),
                     -1);
    l.last[1][1] = 9;
    refuse(&l, 32, "level 1, group 1: its last page has 9 positions, not 1 to 8");
    make_levels(&l);
    l.last[0][0] = 0;
    refuse(&l, 32, "level 0, group 0: its last page has 0 positions");
    make_levels(&l);
    l.last[2][3] = 9;
    refuse(&l, 32, "level 2, group 3: its last page has 9");
    make_levels(&l);
    l.last[1][0] = 7;
    refuse(&l, 32, "more than 32 pages of 1");
    make_levels(&l);
    l.qo[1][1] = 3;
    refuse(&l, 32, "level 2, group 1: its queries 2 to 3 do not lie in one group of level 1");
    make_levels(&l);
    l.qo[0][1] = 9;
    refuse(&l, 32, "level 0 has 9 queries, level 2 has 8");
    make_levels(&l);
    l.indptr[1][1] = 5;
    l.pages[1][4] = -1; /* not one of the level's */
    refuse(&l, 32, "level 1, group 1: an indptr falls");
    make_levels(&l);
    l.indptr[2][0] = 1;
    refuse(&l, 32, "level 2: an indptr does not begin at 0");
    make_levels(&l);
    l.level[1].n_groups = -1;
    refuse(&l, 32, "level 1 has -1 groups");
    make_levels(&l);
    l.pages[0][1] = 20;
    refuse(&l, 32, "level 0, group 0: its page number 1 is 20, outside the pool of 20");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_tiles),     cmocka_unit_test(test_tree),
        cmocka_unit_test(test_no_sharing),      cmocka_unit_test(test_rules),
        cmocka_unit_test(test_what_pays),       cmocka_unit_test(test_levels),
        cmocka_unit_test(test_unfilled_levels), cmocka_unit_test(test_bad_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
