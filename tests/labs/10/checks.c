/* Lab 10: merge states, and find shared tiles. */
#include "model/attention/cascade.h"
#include "ref/ref.h"
#include "tests/labs/10/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 4, MOST_ROWS = 80, TILE = ATTENTION_TILE, MOST = 40, MOST_PAGES = 24000 };

/* ---- step 1 ---------------------------------------------------------------------------------- */

struct rows {
    float o[MOST_ROWS * DIM], m[MOST_ROWS], l[MOST_ROWS];
};

static struct attention_state state_of(struct rows *r) {
    return (struct attention_state){r->o, r->m, r->l};
}

static void fill(struct rows *rows, struct random *r, float m) {
    for (int i = 0; i < MOST_ROWS; i++) {
        rows->m[i] = m + random_up_to_1(r);
        rows->l[i] = 2 + random_up_to_1(r);
        for (int d = 0; d < DIM; d++)
            rows->o[i * DIM + d] = random_normal(r);
    }
}

static void see_nothing(struct rows *rows, int row) {
    rows->m[row] = -INFINITY;
    rows->l[row] = 0;
    memset(rows->o + row * DIM, 0, sizeof *rows->o * DIM);
}

static void note_states(struct lab_log *log, const struct rows *r, int n, const char *when) {
    for (int i = 0; i < n; i++) {
        lab_floats(log, r->m + i, 1, "", 0, "m of row %d, %s", i, when);
        lab_floats(log, r->l + i, 1, "", 0, "l of row %d, %s", i, when);
        lab_floats(log, r->o + i * DIM, DIM, "column", 0, "o of row %d, %s", i, when);
    }
}

static struct device *open_device(struct lab_log *log) {
    struct error err;
    struct device *dev = ref_ops.open(&(struct device_options){1}, &err);
    lab_int(log, dev != NULL, "the device opens");
    if (!dev)
        exit(2);
    return dev;
}

static void merge(struct lab_log *log, struct rows *to, struct rows *with, int n,
                  const char *when) {
    struct device *dev = open_device(log);
    struct attention_state a = state_of(to), b = state_of(with);
    ref_merge_states(dev, &a, &b, n, DIM);
    note_states(log, to, n, when);
    note_states(log, with, n, "of what was merged into it");
    dev->ops->close(dev);
}

static void run_merge(struct lab_log *log, int n_rows) {
    struct random r = {(uint64_t)n_rows};
    struct rows to, with;
    for (int i = 0; i < (n_rows < 4 ? 10 : 1); i++) {
        fill(&to, &r, 3);
        fill(&with, &r, 0);
        merge(log, &to, &with, n_rows, "where `to` has the larger m");
        fill(&to, &r, 0);
        fill(&with, &r, 3);
        merge(log, &to, &with, n_rows, "where `with` has the larger m");
        fill(&to, &r, 0);
        fill(&with, &r, 0);
        memcpy(with.m, to.m, sizeof to.m);
        merge(log, &to, &with, n_rows, "where both have the same m");
    }
}

static void run_nothing(struct lab_log *log, int n_rows) {
    struct random r = {(uint64_t)n_rows};
    struct rows to, with;
    fill(&to, &r, 0);
    fill(&with, &r, 0);
    see_nothing(&with, n_rows - 1);
    merge(log, &to, &with, n_rows, "where `with` has seen nothing");
    see_nothing(&to, n_rows - 1);
    merge(log, &to, &with, n_rows, "where both have seen nothing");
    fill(&with, &r, 0);
    merge(log, &to, &with, n_rows, "where `to` has seen nothing");
}

/* A sink is a state, too: o = 0, l = 1. */
static void run_chain(struct lab_log *log, int n) {
    struct random r = {(uint64_t)n};
    struct rows to, with;
    fill(&to, &r, 0);
    for (int i = 0; i < n; i++) {
        fill(&with, &r, (float)random_int(&r, -4, 4));
        if (i == n - 1)
            for (int row = 0; row < MOST_ROWS; row++) {
                with.l[row] = 1;
                memset(with.o + row * DIM, 0, sizeof *with.o * DIM);
            }
        merge(log, &to, &with, 2, i == n - 1 ? "after a sink" : "after another state");
    }
}

/* ---- page tables ----------------------------------------------------------------------------- */

struct table {
    int n, page_size, fresh; /* fresh: the next page that nobody has */
    int32_t qo[MOST + 1], indptr[MOST + 1], last[MOST], *pages;
};

static struct table start_table(int page_size) {
    struct table t = {.page_size = page_size, .pages = malloc(sizeof *t.pages * MOST_PAGES)};
    if (!t.pages)
        exit(2);
    return t;
}

/* A sequence of so many positions, whose first `shared` positions lie in the pages of sequence
 * `from`, and of no more than it has. */
static void add(struct table *t, int kv_len, int from, int shared) {
    int n_pages = (kv_len - 1) / t->page_size + 1, at = t->indptr[t->n];
    shared = (shared + t->page_size - 1) / t->page_size;
    for (int i = 0; i < n_pages && at + i < MOST_PAGES; i++) {
        bool is_shared = i < shared && i < t->indptr[from + 1] - t->indptr[from] && t->n > from;
        t->pages[at + i] = is_shared ? t->pages[t->indptr[from] + i] : t->fresh++;
    }
    t->last[t->n] = (kv_len - 1) % t->page_size + 1;
    t->n++;
    t->indptr[t->n] = at + n_pages;
    t->qo[t->n] = t->n;
}

static struct paged_batch batch_of(const struct table *t) {
    return (struct paged_batch){t->n, t->page_size, t->fresh, t->qo, t->indptr, t->pages, t->last};
}

/* ---- what is found --------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Copies the members, sorted; how they were ordered is anybody's. Returns how many there are; 0:
 * the stretch leads out of c->members. */
static int sort_members(int32_t *members, const struct cascade *c, const struct shared_stretch *s,
                        int n) {
    if (s->first_member < 0 || s->n_members < 1 || s->first_member + s->n_members > n)
        return 0;
    memcpy(members, c->members + s->first_member, sizeof *members * (size_t)s->n_members);
    qsort(members, (size_t)s->n_members, sizeof *members, compare_numbers);
    return s->n_members;
}

/* By depth, then by the smallest member: the order within a depth is anybody's, too. */
static bool is_behind(const struct cascade *c, int i, int j, int n) {
    const struct shared_stretch *x = &c->stretches[i], *y = &c->stretches[j];
    int32_t a[MOST] = {0}, b[MOST] = {0};
    sort_members(a, c, x, n);
    sort_members(b, c, y, n);
    return x->depth != y->depth ? x->depth > y->depth : a[0] > b[0];
}

static void sort_stretches(struct cascade *c, int n) {
    for (int k = 0; k < c->n_stretches; k++)
        for (int j = k + 1; j < c->n_stretches; j++)
            if (is_behind(c, k, j, n)) {
                struct shared_stretch s = c->stretches[k];
                c->stretches[k] = c->stretches[j];
                c->stretches[j] = s;
            }
}

static void note_stretch(struct lab_log *log, const struct cascade *c, int k, int n) {
    const struct shared_stretch *s = &c->stretches[k];
    int32_t members[MOST];
    lab_int(log, s->first_tile, "stretch %d: its first tile", k);
    lab_int(log, s->n_tiles, "stretch %d: its number of tiles", k);
    lab_int(log, s->depth, "stretch %d: its depth", k);
    lab_int(log, s->n_members, "stretch %d: its number of members", k);
    int n_members = sort_members(members, c, s, n);
    lab_ints(log, members, n_members, "member", 0, "stretch %d: its members, sorted", k);
}

/* The pages are copied, so that the sanitizer sees who reads behind the table. */
static void note_found(struct lab_log *log, const struct table *t) {
    struct cascade c = {0};
    struct error err;
    struct paged_batch batch = batch_of(t);
    size_t bytes = sizeof *t->pages * (size_t)t->indptr[t->n];
    int32_t *pages = malloc(bytes);
    if (!pages)
        exit(2);
    batch.kv_page_indices = memcpy(pages, t->pages, bytes);
    struct attention_variant v = attention_variant_causal();
    struct cascade_rule rule = {.most_tokens = 16, .least_tiles_less = 1};
    lab_int(log, cascade_find(&c, &batch, &v, &rule, &err), "cascade_find");
    bool falls = false;
    for (int k = 1; k < c.n_stretches; k++)
        falls |= c.stretches[k].depth < c.stretches[k - 1].depth;
    lab_int(log, falls, "a stretch comes behind a deeper one");
    sort_stretches(&c, t->n);
    for (int k = 0; k < c.n_stretches; k++)
        note_stretch(log, &c, k, t->n);
    lab_int(log, c.n_stretches, "number of stretches");
    if (c.n_stretches)
        lab_ints(log, c.own_tile, t->n, "sequence", 0, "own_tile");
    cascade_end(&c);
    free(pages);
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

static void run_length(struct lab_log *log, int kv_len) {
    struct table t = start_table(16);
    add(&t, kv_len, 0, 0);
    add(&t, kv_len, 0, kv_len);
    note_found(log, &t);
    free(t.pages);
}

static void run_shorter(struct lab_log *log, int kv_len) {
    for (int longer = 0; longer < 2; longer++) {
        struct table t = start_table(16);
        add(&t, longer ? 1100 : kv_len, 0, 0);
        add(&t, longer ? kv_len : 1100, 0, kv_len);
        note_found(log, &t);
        free(t.pages);
    }
}

/* One page of the two differs; those behind it are equal. */
static void run_differs(struct lab_log *log, int page) {
    struct table t = start_table(16);
    add(&t, 1100, 0, 0);
    add(&t, 1100, 0, 1100);
    t.pages[t.indptr[1] + page] = t.fresh++;
    note_found(log, &t);
    free(t.pages);
}

static void run_page_size(struct lab_log *log, int page_size) {
    for (int shared = 200; shared < 1400; shared += 150) {
        struct table t = start_table(page_size);
        add(&t, 1500, 0, 0);
        add(&t, 1400, 0, shared);
        note_found(log, &t);
        free(t.pages);
    }
}

static void run_moved(struct lab_log *log, int pages) {
    struct table t = start_table(16);
    add(&t, 600, 0, 0);
    add(&t, 600, 0, 600);
    for (int i = 0; i < 38; i++)
        t.pages[t.indptr[1] + i] = (i + pages) % 38;
    note_found(log, &t);
    free(t.pages);
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

static void run_strangers(struct lab_log *log, int n) {
    struct table t = start_table(16);
    for (int i = 0; i < n; i++)
        add(&t, 600, 0, 0);
    for (int i = 1; i < n; i++) /* alike in less than a tile */
        memcpy(t.pages + t.indptr[i], t.pages, sizeof *t.pages * 15);
    note_found(log, &t);
    free(t.pages);
}

static void run_readers(struct lab_log *log, int n) {
    struct table t = start_table(16);
    add(&t, 900, 0, 0);
    for (int i = 1; i < n; i++)
        add(&t, 800 + i, 0, 700);
    note_found(log, &t);
    free(t.pages);
}

/* Two documents, whose readers come in turn. */
static void run_documents(struct lab_log *log, int n) {
    struct table t = start_table(16);
    for (int i = 0; i < n; i++)
        add(&t, 700, i < 2 ? 0 : i % 2, i < 2 ? 0 : 600);
    note_found(log, &t);
    free(t.pages);
}

/* The chapter's picture: A, B, C and D share four tiles, A and B two more; then E, F, ... */
static void run_tree(struct lab_log *log, int n) {
    struct table t = start_table(16);
    add(&t, 8 * TILE + 5, 0, 0);
    add(&t, 7 * TILE + 5, 0, 4 * TILE);
    for (int i = 2; i < n; i++)
        add(&t, 7 * TILE + i, i % 2, (i < 4 ? 6 : 7) * TILE);
    note_found(log, &t);
    free(t.pages);
}

static void run_random(struct lab_log *log, int n) {
    struct random r = {(uint64_t)n};
    for (int i = 0; i < 20; i++) {
        struct table t = start_table(random_int(&r, 0, 1) ? 16 : random_int(&r, 8, 300));
        for (int k = 0; k < n; k++) {
            int from = k ? random_int(&r, 0, k - 1) : 0;
            add(&t, random_int(&r, 1, 6 * TILE), from, random_int(&r, 0, 6 * TILE));
        }
        note_found(log, &t);
        free(t.pages);
    }
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_READERS, 6, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"merge", 1, "the state of both", "rows", LAB_SIZES(1, 2, 3, 70), run_merge, 0},
    {"nothing", 1, "rows that have seen nothing", "rows", LAB_SIZES(1, 2, 3), run_nothing, 0},
    {"chain", 1, "one state after the other, a sink last", "states", LAB_SIZES(1, 2, 3, 8),
     run_chain, 0},
    {"length", 2, "two sequences with the same pages", "positions",
     LAB_SIZES(1, 255, 256, 257, 511, 512, 513, 1024, 1025), run_length, 0},
    {"shorter", 2, "one is the beginning of the other", "positions of the shorter",
     LAB_SIZES(1, 256, 257, 300, 512, 513, 800), run_shorter, 0},
    {"differs", 2, "one page is another", "its place in the table",
     LAB_SIZES(0, 1, 15, 16, 17, 31, 32, 60), run_differs, 0},
    {"moved", 2, "the same pages at other places", "places", LAB_SIZES(1, 2, 16), run_moved, 0},
    {"page size", 2, "pages that do not divide a tile, or are larger", "positions in a page",
     LAB_SIZES(16, 1, 48, 100, 256, 300, 512, 1000), run_page_size, 0},
    {"strangers", 3, "nobody shares a whole tile", "sequences", LAB_SIZES(3, 4, 16), run_strangers,
     0},
    {"readers", 3, "all share one document", "sequences", LAB_SIZES(3, 4, 16), run_readers, 0},
    {"documents", 3, "readers of two documents, in turn", "sequences", LAB_SIZES(3, 4, 5, 16),
     run_documents, 0},
    {"tree", 3, "stretches behind a stretch", "sequences", LAB_SIZES(3, 4, 5, 6, 12), run_tree, 0},
    {"random", 3, "random trees", "sequences", LAB_SIZES(3, 4, 5, 8, 40), run_random, 0},
    {"serve", 3, "readers of one document", "requests", LAB_SIZES(8), run_serve, 30},
};

const struct lab lab = {
    .number = 10,
    .title = "merge states and find shared tiles",
    .served = "your cascade",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_10_causes,
    .n_causes = N_LAB_10_CAUSES,
};
