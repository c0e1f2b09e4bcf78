/*
 * attend: caches of every layout and type, every mask and score. The reference is held against an
 * evaluation in float64 that snaps nothing, over what was stored and over what the cache holds of
 * it; every device against the reference, bit for bit, and against each sequence alone in another
 * layout.
 */
#include "tests/attend_cases.h"
#include "tests/compare.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

static bool is_reference(const struct test_device *t) {
    return !strcmp(t->ops->name, "cpu");
}

enum { ROWS_OF_CASE = 6 }; /* that are compared with float64 */

/* Errors so far: of rows, relative to their norm, and of logarithms. */
static struct errors {
    double squares, worst;
    long n;
} row_errors[N_KV_TYPES], lse_errors[N_KV_TYPES], own_row_errors, own_lse_errors, whole_errors;

/* What the root mean square of a type's errors may be: of rows, relative to their norm, and of
 * logarithms; and the worst, in multiples of it. */
struct error_bounds {
    double rows, logarithms, worst;
};
static const struct error_bounds bounds[N_KV_TYPES] = {
    {1.2e-4, 1e-4, 20}, {2e-2, 1e-2, 20}, {6e-2, 3e-2, 20},
    {1.2e-1, 6e-2, 20}, {6e-4, 3e-4, 20}, {5e-3, 2e-3, 20},
};

/* What attention adds, whatever the type. */
static const struct error_bounds own_bounds = {1e-4, 2e-5, 10};

static void note_error(struct errors *e, double x) {
    if (x < 0) /* there is none */
        return;
    e->squares += x * x;
    e->worst = x > e->worst ? x : e->worst;
    e->n++;
}

/* Root mean square and worst. (A mantissa is rounded by 2^-16 of its row's largest number. Where a
 * query sees many keys that hardly shows; where it sees one or two, a score is off by 5e-5, one
 * standard deviation, for rows of numbers around 1. The fewer cases, the more their mean wanders:
 * rows of one case have much in common.) */
static void expect_small(const char *type, const char *what, const struct errors *e, double mean,
                         double worst) {
    double got = e->n ? sqrt(e->squares / (double)e->n) : 0;
    print_message("%-8s %-10s %6ld errors against float64: %.2g root mean square, %.2g at worst\n",
                  type, what, e->n, got, e->worst);
    double wanders = e->n ? 1 + 3 / sqrt((double)e->n / ROWS_OF_CASE) : 1;
    assert_true(got <= mean * wanders && e->worst <= worst * mean);
}

/* Some rows of the result against float64. */
static void expect_close(const struct attend_case *c, struct random *r, const float *y,
                         const float *lse) {
    for (int k = 0; k < ROWS_OF_CASE && c->n_tokens; k++) {
        int token = random_int(r, 0, c->n_tokens - 1);
        int head = random_int(r, 0, c->shape.n_heads - 1);
        struct attend_errors e = attend_expect_close(c, token, head, y, lse);
        note_error(&row_errors[c->layout.type], e.all.row);
        note_error(&lse_errors[c->layout.type], e.all.lse);
        if (c->layout.type == KV_BFP16)
            note_error(&whole_errors, e.all.whole);
        note_error(&own_row_errors, e.own.row);
        note_error(&own_lse_errors, e.own.lse);
    }
}

/* Sequence i alone, ragged: other pages, another layout, nobody beside it. */
static struct attend_case alone(const struct attend_case *c, int i) {
    struct attend_case one = *c;
    int n = c->kv_len[i];
    size_t width = (size_t)c->shape.n_kv_heads * (size_t)c->shape.head_dim;
    one.n = 1;
    one.ragged = true;
    one.n_tokens = one.qo_indptr[1] = c->qo_indptr[i + 1] - c->qo_indptr[i];
    one.n_positions = one.kv_len[0] = one.first_position[1] = one.kv_indptr[1] = n;
    one.last_page_len[0] = 1;
    one.layout.order = KV_NHD;
    one.layout.one_tensor = false;
    one.layout.n_pages = n ? n : 1;
    one.layout.page_size = 1;
    one.pages = host_array((size_t)n + 1, sizeof *one.pages);
    for (int j = 0; j < n; j++)
        one.pages[j] = j;
    one.q += (size_t)c->qo_indptr[i] * (size_t)c->shape.n_heads * (size_t)c->shape.head_dim;
    one.k += (size_t)c->first_position[i] * width;
    one.v += (size_t)c->first_position[i] * width;
    if (c->mask) {
        one.mask += c->mask_offsets[i];
        one.mask_offsets[0] = 0;
        one.mask_offsets[1] = c->mask_offsets[i + 1] - c->mask_offsets[i];
    }
    return one;
}

static void expect_same_alone(struct test_device *t, const struct attend_case *c, int i,
                              const float *y, const float *lse) {
    struct attend_case one = alone(c, i);
    float *one_y, *one_lse;
    size_t first = (size_t)c->qo_indptr[i] * (size_t)c->shape.n_heads;
    attend_run(t, &one, &one_y, &one_lse);
    attend_expect_same(&one, "attention, alone", one_y, y + first * (size_t)c->shape.head_dim,
                       c->shape.head_dim);
    attend_expect_same(&one, "log of the sum, alone", one_lse, lse + first, 1);
    free(one.pages);
    free(one_y);
    free(one_lse);
}

static void check(struct test_device *t, struct random *r, const struct attend_case *c) {
    float *y, *lse;
    attend_run(t, c, &y, &lse);
    if (is_reference(t))
        expect_close(c, r, y, lse);
    else
        attend_expect_as_reference(c, y, lse);
    if (c->n)
        expect_same_alone(t, c, random_int(r, 0, c->n - 1), y, lse);
    free(y);
    free(lse);
}

static void check_case(struct test_device *t, struct random *r, const struct attend_wish *wish) {
    struct attend_case c;
    attend_case_make(&c, r, wish);
    check(t, r, &c);
    attend_case_free(&c);
}

/* How many random cases; SAMEBITS_BATCHES: for tools that make everything slow, or for more. */
static int n_cases(const struct test_device *t) {
    const char *wanted = getenv("SAMEBITS_BATCHES");
    int n = device_is_emulated() ? 25 : is_reference(t) ? 150 : 2000;
#ifdef __SANITIZE_ADDRESS__
    n = device_is_emulated() ? 8 : 40;
#endif
    return wanted ? atoi(wanted) : n;
}

static void test_random_cases(void **state) {
    struct test_device *t = *state;
    struct random r = {901};
    struct attend_wish wish = attend_anything(device_is_emulated() ? 500 : 1500);
    for (int i = 0; i < n_cases(t); i++)
        check_case(t, &r, &wish);
    if (is_reference(t)) {
        for (int type = 0; type < N_KV_TYPES; type++) {
            expect_small(kv_type_name((enum kv_type)type), "rows", &row_errors[type],
                         bounds[type].rows, bounds[type].worst);
            expect_small(kv_type_name((enum kv_type)type), "logarithms", &lse_errors[type],
                         bounds[type].logarithms, bounds[type].worst);
        }
        /* At worst 2e-4 of the row, if nothing cancelled in it. */
        expect_small("bfp16", "uncancelled", &whole_errors, 4e-5, 5);
        expect_small("own", "rows", &own_row_errors, own_bounds.rows, own_bounds.worst);
        expect_small("own", "logarithms", &own_lse_errors, own_bounds.logarithms, own_bounds.worst);
    }
}

static void fill_up_to_1(struct random *r, float *x, int n) {
    for (int i = 0; i < n; i++)
        x[i] = random_up_to_1(r);
}

/* Queries, keys and values from -1 to 1: no row is off by more than 2e-4 of its norm, and no
 * logarithm by more than 1e-4, however few keys it sees. (What a score is off by grows with the
 * largest number of the query, and of the key; above they are 3 or 4. With slopes it is the
 * uncancelled row that must be close, as above: they make many weights small beside the largest of
 * a tile, which says how finely all are rounded.) */
static void test_numbers_up_to_1(void **state) {
    struct test_device *t = *state;
    struct random r = {903};
    struct attend_wish wish = attend_anything(1500);
    struct errors rows = {0}, logarithms = {0};
    if (!is_reference(t))
        skip(); /* others have its bits */
    wish.type = KV_BFP16;
    wish.slopes = 0;
    for (int i = 0; i < n_cases(t); i++) {
        struct attend_case c;
        float *y, *lse;
        attend_case_make(&c, &r, &wish);
        fill_up_to_1(&r, c.q, c.n_tokens * c.shape.n_heads * c.shape.head_dim);
        fill_up_to_1(&r, c.k, c.n_positions * c.shape.n_kv_heads * c.shape.head_dim);
        fill_up_to_1(&r, c.v, c.n_positions * c.shape.n_kv_heads * c.shape.head_dim);
        attend_run(t, &c, &y, &lse);
        for (int k = 0; k < 6 && c.n_tokens; k++) {
            struct attend_error e =
                attend_expect_close(&c, random_int(&r, 0, c.n_tokens - 1),
                                    random_int(&r, 0, c.shape.n_heads - 1), y, lse)
                    .all;
            note_error(&rows, e.row);
            note_error(&logarithms, e.lse);
        }
        free(y);
        free(lse);
        attend_case_free(&c);
    }
    expect_small("up to 1", "rows", &rows, 5e-5, 4);
    expect_small("up to 1", "logarithms", &logarithms, 1e-5, 10);
}

/* Every value of every axis of the grid, with random company. */
static void test_every_value(void **state) {
    static const int batches[] = {1, 7, 12, 17, 128}, kv_lens[] = {1, 54, 97, 512, 2048, 16384},
                     qo_lens[] = {1, 17, 37, 127, 577}, sizes[] = {1, 3, 5, 8, 16, 24, 32, 64, 256},
                     heads[] = {1, 2, 4, 8}, groups[] = {1, 2, 3, 4, 5, 7, 8},
                     dims[] = {32, 64, 80, 96, 128, 256}, windows[] = {0, 3, 33, 128},
                     caps[] = {0, 30, 50};
    struct test_device *t = *state;
    struct random r = {902};
    bool slow = device_is_emulated();
#ifdef __SANITIZE_ADDRESS__
    slow = true;
#endif
    for (int i = 0; i < 9 && !getenv("SAMEBITS_BATCHES"); i++) {
        struct attend_wish w = attend_anything(slow ? 200 : 1200);
        struct attend_wish few = w; /* lengths with few heads, heads with short texts */
        w.batch = batches[i % COUNT(batches)];
        w.page_size = sizes[i];
        w.kv_heads = heads[i % COUNT(heads)];
        w.group = groups[i % COUNT(groups)];
        w.head_dim = dims[i % COUNT(dims)];
        w.order = i % 3;
        w.causal = i % 2;
        if (!slow || w.batch * w.kv_heads * w.group <= 60)
            check_case(t, &r, &w);
        few.batch = 1 + i % 2;
        few.kv_len = kv_lens[i % COUNT(kv_lens)];
        few.qo_len = qo_lens[i % COUNT(qo_lens)];
        few.kv_heads = few.group = 1;
        few.head_dim = 32;
        few.window_left = windows[i % COUNT(windows)];
        few.cap = caps[i % COUNT(caps)];
        if (!slow || few.kv_len * few.qo_len <= 20000)
            check_case(t, &r, &few);
    }
}

/* ---- special cases -----------------------------------------------------------------------------
 */

/* Rows that see nothing of some tiles, or of all, over sequences that several thread blocks share;
 * with sinks and without. */
static void test_rows_that_see_little(void **state) {
    struct test_device *t = *state;
    struct random r = {906};
    for (int kind = 0; kind < 16; kind++) {
        struct attend_wish wish = attend_anything(1100);
        struct attend_case c;
        wish.batch = 1;
        wish.kv_len = kind % 4 == 3 ? 1026 : 700;
        wish.qo_len = 4;
        wish.kv_heads = wish.group = 1;
        wish.head_dim = 64;
        wish.page_size = 16;
        wish.order = kind / 8 ? KV_VLLM : KV_NHD;
        wish.type = KV_BFP16;
        wish.window_left = kind % 4 == 3 ? 0 : -1;
        wish.mask = kind % 4 == 3 ? MASK_NONE : MASK_BYTES;
        wish.sinks = kind / 4 % 2;
        attend_case_make(&c, &r, &wish);
        for (int i = 0; c.mask && i < 4 * 700; i++) /* nothing; the last position; the first */
            c.mask[i] = i == 1 * 700 + 699 && kind % 4 > 0;
        if (c.mask && kind % 4 == 2)
            c.mask[2 * 700] = 1;
        check(t, &r, &c);
        attend_case_free(&c);
    }
}

/* A plan made for another type of cache than there is, or for none: prompts, and layouts that
 * version 4 does not read. */
static void test_plans_of_other_types(void **state) {
    struct test_device *t = *state;
    struct random r = {912};
    static const enum kv_type planned[] = {KV_BFP16, KV_E5M2}, types[] = {KV_BFP16, KV_E4M3};
    for (int kind = 0; kind < 8; kind++) {
        struct attend_wish wish = attend_anything(60);
        struct attend_case c;
        if (device_is_emulated() && few_cases_do() && (kind + kind / 4) % 2)
            continue;
        wish.batch = 2;
        wish.kv_len = 40;
        wish.qo_len = 70;
        wish.head_dim = 64;
        wish.order = kind % 2 ? KV_VLLM : KV_NHD;
        wish.type = (int)types[kind / 2 % 2];
        attend_case_make(&c, &r, &wish);
        c.shape.kv_type = planned[kind / 4];
        check(t, &r, &c);
        attend_case_free(&c);
    }
}

/* So many queries that several blocks have them: without a causal mask all see what is behind the
 * last query of a block; and windows of one block begin in two tiles. */
static void test_many_queries(void **state) {
    struct test_device *t = *state;
    struct random r = {914};
    for (int kind = 0; kind < 4; kind++) {
        struct attend_wish wish = attend_anything(600);
        struct attend_case c;
        wish.batch = 1;
        wish.kv_len = kind % 2 ? 600 : 300; /* windows: behind the first tile */
        wish.qo_len = kind % 2 ? 90 : 130;
        wish.kv_heads = wish.group = 1;
        wish.head_dim = 32;
        wish.order = kind / 2 ? KV_VLLM : KV_NHD;
        wish.type = KV_BFP16;
        wish.mask = MASK_NONE;
        wish.causal = kind % 2;
        attend_case_make(&c, &r, &wish);
        c.variant.window_left = kind % 2 ? 20 : -1;
        check(t, &r, &c);
        attend_case_free(&c);
    }
}

/* Prompts with heads about the widths of kernels that are compiled for a few. */
static void test_widths_of_prompts(void **state) {
    static const int dims[] = {62, 66, 126, 130, 254};
    struct test_device *t = *state;
    struct random r = {917};
    for (int i = 0; i < (int)COUNT(dims); i++) {
        struct attend_wish wish = attend_anything(90);
        wish.batch = wish.kv_heads = wish.group = 1;
        wish.kv_len = 90;
        wish.qo_len = 70;
        wish.head_dim = dims[i];
        wish.type = KV_BFP16;
        wish.window_left = 60;
        check_case(t, &r, &wish);
    }
}

/* The longest sequences that are no prompts for version 4, of 48 rows or 4 tokens, and the shortest
 * that are; in a layout that its kernels for decoding do not read, too. */
static void test_where_prompts_begin(void **state) {
    static const int groups[] = {8, 16}, longest[] = {6, 4};
    struct test_device *t = *state;
    struct random r = {915};
    for (int kind = 0; kind < 8; kind++) {
        struct attend_wish wish = attend_anything(60);
        struct attend_case c;
        wish.batch = 2;
        wish.kv_len = 40;
        wish.qo_len = longest[kind % 2] + kind / 2 % 2;
        wish.kv_heads = 1;
        wish.group = groups[kind % 2];
        wish.head_dim = 64;
        wish.order = kind / 4 ? KV_VLLM : KV_NHD;
        wish.type = KV_BFP16;
        attend_case_make(&c, &r, &wish);
        check(t, &r, &c);
        attend_case_free(&c);
    }
}

/* vLLM's layout, whose kernels read vectors of 16 bytes where a page has whole ones: every type,
 * over several tiles, with pages of a part of a warp, of a warp, of more, and of no power of two;
 * and rows of more elements than the block adds up at a time. */
static void test_vllm_layout(void **state) {
    static const int sizes[] = {16, 8, 32, 24, 1, 64, 3, 16, 2, 256, 40}, dims[] = {32, 96, 272};
    struct test_device *t = *state;
    struct random r = {910};
    for (int i = 0; i < N_KV_TYPES * COUNT(sizes); i++) {
        struct attend_wish wish = attend_anything(1100);
        struct attend_case c;
        enum kv_type type = (enum kv_type)(i % N_KV_TYPES);
        float scale = type == KV_E4M3   ? 0.25f
                      : type == KV_E5M2 ? 0x1p-14f /* integers beyond 32 bits */
                                        : 0;
        if (device_is_emulated() && (few_cases_do() ? i % 7 : (i / N_KV_TYPES + i) % 3))
            continue;
        wish.batch = 2;
        wish.kv_len = i % 2 ? 513 : 700;
        wish.qo_len = 1 + i % 4;
        wish.kv_heads = 2;
        wish.group = 1 + i % 2;
        wish.page_size = sizes[i / N_KV_TYPES];
        wish.head_dim = dims[i % 5 == 4 ? 2 : i % 2];
        wish.order = KV_VLLM;
        attend_case_make(&c, &r, &wish);
        attend_set_type(&c, type, scale);
        c.variant.window_left = i % 3 ? -1 : 290;
        check(t, &r, &c);
        attend_case_free(&c);
    }
}

/* A plan for another window than attend's: it is slower, not wrong. */
static void test_another_plan(void **state) {
    struct test_device *t = *state;
    struct random r = {908};
    struct attend_wish wish = attend_anything(700);
    struct attend_case c;
    wish.batch = 2;
    wish.kv_len = 600;
    wish.qo_len = 1;
    wish.window_left = 300;
    wish.order = KV_HND;
    wish.type = KV_BFP16; /* for the kernel that goes by the plan */
    wish.mask = MASK_NONE;
    attend_case_make(&c, &r, &wish);
    struct attend_case other = c;
    other.other_plan = true;
    attend_expect_equal(t, &c, &other, "another plan");
    attend_case_free(&c);
}

/* The largest windows hide nothing, also from queries that are before the first position. */
static void test_largest_windows(void **state) {
    struct test_device *t = *state;
    struct random r = {910};
    for (int kind = 0; kind < 8; kind++) {
        struct attend_wish wish = attend_anything(100);
        struct attend_case c;
        wish.batch = 2;
        wish.kv_len = kind / 4 ? 3 : 0;
        wish.qo_len = kind % 4 / 2 ? 70 : 4; /* of 4 tokens: the kernel that goes by the plan */
        wish.causal = kind % 2;
        wish.mask = MASK_NONE;
        wish.order = KV_NHD;
        wish.type = KV_BFP16;
        wish.kv_heads = wish.group = 1;
        attend_case_make(&c, &r, &wish);
        c.variant.window_left = -1;
        struct attend_case largest = c, next = c;
        largest.variant.window_left = INT_MAX;
        next.variant.window_left = INT_MAX - 1;
        check(t, &r, &largest);
        attend_expect_equal(t, &c, &largest, "the largest window");
        attend_expect_equal(t, &c, &next, "the largest window but one");
        attend_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_cases),         cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_numbers_up_to_1),      cmocka_unit_test(test_rows_that_see_little),
        cmocka_unit_test(test_many_queries),         cmocka_unit_test(test_vllm_layout),
        cmocka_unit_test(test_another_plan),         cmocka_unit_test(test_largest_windows),
        cmocka_unit_test(test_plans_of_other_types), cmocka_unit_test(test_where_prompts_begin),
        cmocka_unit_test(test_widths_of_prompts),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
