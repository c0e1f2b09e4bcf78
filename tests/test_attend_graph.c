/*
 * attend recorded (CUDA graphs): one recording, replayed for other batches of as many sequences,
 * some of which are padding, has the bits of the reference; every layout, type, mask and score. The
 * plan is made anew for each batch; what the recording knows is addresses.
 */
#include "tests/attend_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

enum { SEQUENCES = 5, FEWER = 3 };

/* Two batches over one pool, and the memory that a recording may know. */
struct recorded {
    struct test_device *t;
    struct attend_case cases[2]; /* of SEQUENCES and of FEWER */
    struct kv_views kv;
    struct attention_plan *plan;
    struct attention_variant variant;
    float *q, *y, *lse;
    uint8_t *mask;
    int64_t *mask_offsets;
    struct device_graph *graphs[N_PLAN_FORMS];
    bool is_plain; /* causal, and nothing else */
};

static size_t rows_of(const struct attend_case *c) {
    return (size_t)c->n_tokens * (size_t)c->shape.n_heads;
}

static size_t bytes_of(const struct attend_case *c) {
    return sizeof(float) * rows_of(c) * (size_t)c->shape.head_dim;
}

/* Two cases with one set of heads, layout and variant, but other lengths, numbers and masks; pages
 * behind the first's.
 */
static void make_cases(struct recorded *g, struct random *r, struct attend_wish wish) {
    struct attend_case *a = &g->cases[0], *b = &g->cases[1];
    wish.batch = SEQUENCES;
    attend_case_make(a, r, &wish);
    wish.batch = FEWER;
    attend_case_make(b, r, &wish);
    a->layout.one_tensor = b->layout.one_tensor = a->layout.one_tensor && !g->is_plain;
    attend_set_type(b, a->layout.type, a->layout.k_scale);
    b->layout.v_scale = a->layout.v_scale;
    b->shape = a->shape;
    b->variant.causal = a->variant.causal;
    b->variant.window_left = a->variant.window_left;
    b->variant.soft_cap = a->variant.soft_cap;
    b->variant.lse_base = a->variant.lse_base;
    for (int h = 0; h < a->shape.n_heads; h++) {
        if (a->alibi_slopes)
            b->alibi_slopes[h] = a->alibi_slopes[h];
        if (a->sinks)
            b->sinks[h] = a->sinks[h];
    }
    for (int i = 0; i < b->layout.n_pages; i++)
        b->pages[i] += a->layout.n_pages;
    a->layout.n_pages = b->layout.n_pages += a->layout.n_pages;
}

/* What the next pass reads: the plan of a case, its queries and its masks. Sequences that the case
 * does not have become padding: a query each, and no page. */
static void next_batch(struct recorded *g, int which) {
    struct test_device *t = g->t;
    const struct attend_case *c = &g->cases[which];
    int32_t qo[SEQUENCES + 1], kv[SEQUENCES + 1], last[SEQUENCES];
    int64_t offsets[SEQUENCES + 1];
    struct error err = {""};
    for (int i = 0; i <= SEQUENCES; i++) {
        qo[i] = i <= c->n ? c->qo_indptr[i] : qo[i - 1] + 1;
        kv[i] = i <= c->n ? c->kv_indptr[i] : kv[i - 1];
        offsets[i] = c->mask_offsets[i < c->n ? i : c->n];
        if (i < SEQUENCES)
            last[i] = i < c->n ? c->last_page_len[i] : 0;
    }
    struct paged_batch batch = attend_batch(c);
    batch.n_sequences = SEQUENCES;
    batch.qo_indptr = qo;
    batch.kv_indptr = kv;
    batch.kv_last_page_len = last;
    if (t->ops->attention_plan(t->dev, g->plan, &batch, &c->shape, &g->variant, &err))
        fail_msg("%s", err.text);
    t->ops->upload(t->dev, g->q, c->q, bytes_of(c));
    if (c->mask) {
        t->ops->upload(t->dev, g->mask, c->mask, (size_t)c->mask_offsets[c->n]);
        t->ops->upload(t->dev, g->mask_offsets, offsets, sizeof offsets);
    }
}

static void attend_now(struct recorded *g) {
    struct attention_variant causal = attention_variant_causal();
    g->t->ops->attend(g->t->dev, g->y, g->q, &g->kv, g->plan, g->is_plain ? &causal : &g->variant,
                      ATTEND_SITE);
}

/* The result of a case, behind which padding has zeros. Then it is poison again. */
static void expect_result(struct recorded *g, int which) {
    struct test_device *t = g->t;
    const struct attend_case *c = &g->cases[which], *all = &g->cases[0];
    size_t n = rows_of(c), dim = (size_t)c->shape.head_dim;
    size_t padded = n + (size_t)((SEQUENCES - c->n) * c->shape.n_heads);
    device_expect_fault(t, -1, 0);
    float *y = device_get(t, g->y, bytes_of(all));
    float *lse = device_get(t, g->lse, sizeof(float) * rows_of(all));
    float *want, *want_lse;
    attend_run(device_reference(), c, &want, &want_lse);
    attend_expect_same(c, "attention", want, y, c->shape.head_dim);
    for (size_t i = n * dim; i < padded * dim; i++)
        assert_true(y[i] == 0);
    if (!g->is_plain)
        attend_expect_same(c, "log of the sum", want_lse, lse, 1);
    for (size_t i = n; i < padded && !c->sinks && !g->is_plain; i++)
        assert_true(lse[i] == -INFINITY);
    free(want);
    free(want_lse);
    memset(y, 0xff, bytes_of(all));
    t->ops->upload(t->dev, g->y, y, bytes_of(all));
    t->ops->upload(t->dev, g->lse, y, sizeof(float) * rows_of(all));
    free(y);
    free(lse);
}

/* Lets all sequences of a case begin with the first tiles of the first one. */
static void share(struct attend_case *c, int n_tiles) {
    int n_positions = n_tiles * ATTENTION_TILE;
    size_t width = (size_t)c->shape.n_kv_heads * (size_t)c->shape.head_dim;
    for (int i = 1; i < c->n; i++) {
        size_t first = (size_t)c->first_position[i] * width, n = (size_t)n_positions * width;
        memcpy(c->pages + c->kv_indptr[i], c->pages,
               sizeof *c->pages * (size_t)(n_positions / c->layout.page_size));
        memcpy(c->k + first, c->k, sizeof(float) * n);
        memcpy(c->v + first, c->v, sizeof(float) * n);
    }
}

/* The cases are made; everything that a recording may know. */
static void start_with(struct recorded *g) {
    struct test_device *t = g->t;
    struct error err = {""};
    const struct attend_case *a = &g->cases[0];
    g->kv = attend_cache(t, a);
    attend_fill_cache(t, &g->cases[1], &g->kv);
    g->plan = t->ops->attention_plan_new(t->dev, &err);
    g->q = device_poisoned(t, bytes_of(a));
    g->y = device_poisoned(t, bytes_of(a));
    g->lse = device_poisoned(t, sizeof(float) * rows_of(a));
    g->variant = attend_variant_on(t, a, g->lse);
    if (a->mask) {
        int64_t b = g->cases[1].mask_offsets[FEWER], most = a->mask_offsets[SEQUENCES];
        g->variant.mask = g->mask = device_poisoned(t, (size_t)(b > most ? b : most) + 1);
        g->variant.mask_offsets = g->mask_offsets =
            device_poisoned(t, sizeof(int64_t) * (SEQUENCES + 1));
    }
}

static void start(struct recorded *g, struct test_device *t, struct random *r,
                  const struct attend_wish *wish, bool is_plain) {
    *g = (struct recorded){.t = t, .is_plain = is_plain};
    make_cases(g, r, *wish);
    start_with(g);
}

static void end(struct recorded *g) {
    for (int form = 0; form < N_PLAN_FORMS; form++)
        if (g->graphs[form])
            g->t->ops->graph_free(g->t->dev, g->graphs[form]);
    g->t->ops->attention_plan_free(g->t->dev, g->plan);
    device_clear(g->t);
    for (int i = 0; i < 2; i++)
        attend_case_free(&g->cases[i]);
}

/* Records the batch that is planned, where a device can. */
static void record_form(struct recorded *g) {
    struct test_device *t = g->t;
    struct error err = {""};
    if (!t->ops->graph_begin)
        return;
    if (t->ops->graph_begin(t->dev, &err))
        fail_msg("%s", err.text);
    attend_now(g);
    int form = t->ops->attention_plan_form(g->plan);
    g->graphs[form] = t->ops->graph_end(t->dev, &err);
    if (!g->graphs[form])
        fail_msg("%s", err.text);
}

/* Both as they are, which makes the plan and the ops get their memory; then one is recorded. */
static void record(struct recorded *g) {
    for (int which = 0; which < 2; which++) {
        next_batch(g, which);
        attend_now(g);
        expect_result(g, which);
    }
    next_batch(g, 0);
    record_form(g);
}

/* A batch of another form is recorded first, as the engine does it. */
static void replay(struct recorded *g) {
    int form = g->t->ops->attention_plan_form(g->plan);
    if (!g->graphs[form])
        record_form(g);
    if (g->graphs[form])
        g->t->ops->graph_run(g->t->dev, g->graphs[form]);
    else
        attend_now(g);
}

static long memory_changes(const struct recorded *g) {
    return g->t->ops->memory_changes ? g->t->ops->memory_changes(g->t->dev) : 0;
}

static void replay_for(struct recorded *g, int which) {
    long memory = memory_changes(g);
    next_batch(g, which);
    assert_int_equal(memory_changes(g), memory); /* the recording still knows where all is */
    replay(g);
    expect_result(g, which);
}

static void test_other_batches(void **state) {
    static const int dims[] = {64, 128, 80, 32}, windows[] = {-1, 33, 300}, caps[] = {0, 0, 30};
    struct test_device *t = *state;
    struct random r = {1201};
    for (int kind = 0; kind < 18; kind++) {
        struct attend_wish wish = attend_anything(SEQUENCES * 500);
        struct recorded g;
        if (few_cases_do() && kind % 3)
            continue;
        wish.long_ones = true;
        wish.qo_len = 1;
        wish.page_size = kind % 4 ? 16 : 24;
        wish.kv_heads = 2;
        wish.group = kind % 5 + 1;
        wish.head_dim = dims[kind % COUNT(dims)];
        wish.order = kind % 3;
        wish.type = kind / 3 % N_KV_TYPES;
        wish.window_left = windows[kind % COUNT(windows)];
        wish.cap = caps[(kind + 1) % COUNT(caps)];
        wish.mask = kind % 7 % 3; /* none, bytes, bits */
        wish.slopes = kind % 4 == 2;
        wish.sinks = kind % 3 == 1;
        start(&g, t, &r, &wish, false);
        record(&g);
        replay_for(&g, 0);
        for (int i = 0; i < 4; i++)
            replay_for(&g, (i + 1) % 2);
        end(&g);
    }
}

/* A plain cache, with the kernels of every version. */
static void test_paged_versions(void **state) {
    struct test_device *t = *state;
    struct random r = {1203};
    int n_versions = t->ops->versions("attend");
    for (int version = 0; version <= n_versions; version++) {
        struct attend_wish wish = attend_anything(SEQUENCES * 500);
        struct recorded g;
        struct error err = {""};
        if (version && t->ops->set_version(t->dev, "attend", version, &err))
            fail_msg("%s", err.text);
        wish.long_ones = true;
        wish.qo_len = 1;
        wish.page_size = 16;
        wish.kv_heads = 2;
        wish.group = 4;
        wish.head_dim = 64;
        wish.order = KV_NHD;
        wish.type = KV_BFP16;
        wish.window_left = 1 << 20; /* all */
        wish.cap = wish.mask = wish.slopes = wish.sinks = 0;
        wish.causal = 1;
        start(&g, t, &r, &wish, true);
        record(&g);
        for (int i = 0; i < 4; i++)
            replay_for(&g, (i + 1) % 2);
        end(&g);
    }
    struct error err = {""};
    assert_true(!n_versions || !t->ops->set_version(t->dev, "attend", 0, &err));
}

/* Tiles that sequences share, in one batch more than in the other. */
static void test_shared_tiles(void **state) {
    static const enum kv_type types[] = {KV_BFP16, KV_BFP8, KV_FP16};
    struct test_device *t = *state;
    struct random r = {1204};
    struct error err = {""};
    assert_int_equal(t->ops->set_version(t->dev, "attention_plan", PLAN_SHARES, &err), 0);
    for (int kind = 0; kind < 3; kind++) {
        struct attend_wish wish = attend_anything(SEQUENCES * 1100);
        struct recorded g = {.t = t};
        wish.long_ones = true;
        wish.kv_len = 1060;
        wish.qo_len = 1;
        wish.page_size = kind ? 16 : 64;
        wish.kv_heads = 2;
        wish.group = 2;
        wish.head_dim = kind ? 64 : 128; /* more pieces to be split than blocks */
        wish.order = kind % 2;
        wish.type = (int)types[kind];
        wish.window_left = 1 << 20; /* all */
        wish.mask = MASK_NONE;
        wish.slopes = wish.sinks = 0;
        make_cases(&g, &r, wish);
        share(&g.cases[0], 1);
        share(&g.cases[1], 4);
        start_with(&g);
        record(&g);
        assert_int_equal(t->ops->attention_plan_form(g.plan), 1);
        /* Other keys and values: what is left of the pass before would do. */
        size_t n = (size_t)(g.cases[1].n_positions * wish.kv_heads * wish.head_dim);
        random_fill(&r, g.cases[1].k, n, NORMAL);
        random_fill(&r, g.cases[1].v, n, NORMAL);
        share(&g.cases[1], 4);
        attend_fill_cache(t, &g.cases[1], &g.kv);
        for (int i = 0; i < 4; i++)
            replay_for(&g, (i + 1) % 2);
        end(&g);
    }
    assert_int_equal(t->ops->set_version(t->dev, "attention_plan", PLAN_BEST, &err), 0);
}

/* Several queries each: what is launched depends on lengths, so with the same plan only, and other
 * numbers. Prompts (more than 48 rows), and a few tokens. */
static void test_other_queries(void **state) {
    struct test_device *t = *state;
    struct random r = {1202};
    for (int kind = 0; kind < 6; kind++) {
        struct attend_wish wish = attend_anything(SEQUENCES * 300);
        struct recorded g;
        wish.long_ones = true;
        wish.qo_len = kind % 2 ? 30 : 3;
        wish.page_size = 16;
        wish.kv_heads = 1;
        wish.group = 2;
        wish.head_dim = 64;
        wish.order = kind / 2;
        wish.type = KV_BFP16;
        wish.mask = MASK_NONE;
        wish.slopes = kind % 3 == 1;
        wish.sinks = kind % 3 == 2;
        start(&g, t, &r, &wish, false);
        record(&g);
        for (size_t i = 0; i < bytes_of(&g.cases[0]) / sizeof(float); i++)
            g.cases[0].q[i] = random_normal(&r);
        t->ops->upload(t->dev, g.q, g.cases[0].q, bytes_of(&g.cases[0]));
        replay(&g);
        expect_result(&g, 0);
        end(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_batches),
        cmocka_unit_test(test_paged_versions),
        cmocka_unit_test(test_shared_tiles),
        cmocka_unit_test(test_other_queries),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
