/*
 * attend, kv_store and kv_convert: caches of every layout, every mask and score. The reference is
 * held against an evaluation in float64 that snaps nothing; every device against the reference, bit
 * for bit, and against each sequence alone in another layout.
 */
#include "ref/ref.h"
#include "tests/attend_cases.h"
#include "tests/compare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

static struct test_device reference; /* of this program */

static bool is_reference(const struct test_device *t) {
    return !strcmp(t->ops->name, "cpu");
}

static const char *const type_names[N_KV_TYPES] = {"bfp16",    "bfp8", "fp8 e4m3",
                                                   "fp8 e5m2", "fp16", "bf16"};

static void describe(char *out, size_t size, const struct attend_case *c, const char *what) {
    static const char *const orders[] = {"NHD", "HND", "vLLM's layout"};
    const struct attention_variant *v = &c->variant;
    snprintf(
        out, size,
        "%s of %d sequences, %s, %s%s%s, pages of %d, %d/%d heads of %d%s, window %d, cap %g, mask "
        "%d%s%s",
        what, c->n, type_names[c->layout.type], orders[c->layout.order],
        c->layout.one_tensor ? " in one tensor" : "", c->ragged ? ", ragged" : "",
        c->layout.page_size, c->shape.n_heads, c->shape.n_kv_heads, c->shape.head_dim,
        v->causal ? ", causal" : "", v->window_left, (double)v->soft_cap, (int)v->mask_form,
        c->alibi_slopes ? ", ALiBi" : "", c->sinks ? ", sinks" : "");
}

static void expect_same(const struct attend_case *c, const char *what, const float *want,
                        const float *got, int cols) {
    char name[256];
    describe(name, sizeof name, c, what);
    size_t n = (size_t)c->n_tokens * (size_t)c->shape.n_heads * (size_t)cols;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&want[i], &got[i], sizeof *want)) {
            uint32_t bits[2];
            memcpy(&bits[0], &want[i], 4);
            memcpy(&bits[1], &got[i], 4);
            size_t row = i / (size_t)cols;
            fail_msg("%s: token %zu, head %zu, index %zu: want %.9g (0x%08x), got %.9g (0x%08x)",
                     name, row / (size_t)c->shape.n_heads, row % (size_t)c->shape.n_heads,
                     i % (size_t)cols, (double)want[i], bits[0], (double)got[i], bits[1]);
        }
}

/* Errors so far: of rows, relative to their norm, and of logarithms. */
static struct errors {
    double squares, worst;
    long n;
} row_errors[N_KV_TYPES], lse_errors[N_KV_TYPES];

/* What the root mean square of a type's errors may be: of rows, relative to their norm, and of
 * logarithms; and the worst, in multiples of it. */
static const struct {
    double rows, logarithms, worst;
} bounds[N_KV_TYPES] = {
    {1.2e-4, 1e-4, 20}, {2e-2, 1e-2, 20}, {6e-2, 3e-2, 20},
    {1.2e-1, 6e-2, 20}, {6e-4, 3e-4, 20}, {5e-3, 2e-3, 20},
};

static void note_error(struct errors *e, double x) {
    e->squares += x * x;
    e->worst = x > e->worst ? x : e->worst;
    e->n++;
}

/* Root mean square and worst. (A mantissa is rounded by 2^-16 of its row's largest number. Where a
 * query sees many keys that hardly shows; where it sees one or two, a score is off by 5e-5, one
 * standard deviation, for rows of numbers around 1.) */
static void expect_small(const char *type, const char *what, const struct errors *e, double mean,
                         double worst) {
    double got = e->n ? sqrt(e->squares / (double)e->n) : 0;
    print_message("%-8s %-10s %6ld errors against float64: %.2g root mean square, %.2g at worst\n",
                  type, what, e->n, got, e->worst);
    assert_true(got <= mean && e->worst <= worst * mean);
}

/* Some rows of the result against float64. */
static void expect_close(const struct attend_case *c, struct random *r, const float *y,
                         const float *lse, int n_rows) {
    int dim = c->shape.head_dim;
    double *exact = host_array((size_t)dim, sizeof *exact);
    for (int k = 0; k < n_rows && c->n_tokens; k++) {
        int token = random_int(r, 0, c->n_tokens - 1),
            head = random_int(r, 0, c->shape.n_heads - 1);
        int i = 0;
        while (c->qo_indptr[i + 1] <= token)
            i++;
        double want_lse = attend_exact(c, i, token - c->qo_indptr[i], head, exact);
        size_t row = (size_t)token * (size_t)c->shape.n_heads + (size_t)head;
        double norm = 0, error = 0, scale = c->variant.lse_base == LSE_2 ? 1 / log(2) : 1;
        for (int d = 0; d < dim; d++) {
            norm += exact[d] * exact[d];
            error += pow(y[row * (size_t)dim + (size_t)d] - exact[d], 2);
        }
        char name[256];
        describe(name, sizeof name, c, "attention");
        double far = c->layout.type ? 4 : 1e-4; /* beyond: a mistake */
        if (norm == 0 ? error > 0 : !(error <= norm * far))
            fail_msg("%s: sequence %d, query %d, head %d: error %g, norm %g", name, i,
                     token - c->qo_indptr[i], head, sqrt(error), sqrt(norm));
        if (isinf(want_lse) ? lse[row] != want_lse
                            : !(fabs(lse[row] / scale - want_lse) <= (c->layout.type ? 2 : 1e-2)))
            fail_msg("%s: sequence %d, query %d, head %d: lse %g, want %g", name, i,
                     token - c->qo_indptr[i], head, lse[row] / scale, want_lse);
        if (norm > 0)
            note_error(&row_errors[c->layout.type], sqrt(error / norm));
        if (!isinf(want_lse))
            note_error(&lse_errors[c->layout.type], fabs(lse[row] / scale - want_lse));
    }
    free(exact);
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
    expect_same(&one, "attention, alone", one_y, y + first * (size_t)c->shape.head_dim,
                c->shape.head_dim);
    expect_same(&one, "log of the sum, alone", one_lse, lse + first, 1);
    free(one.pages);
    free(one_y);
    free(one_lse);
}

static void check(struct test_device *t, struct random *r, const struct attend_case *c) {
    float *want, *want_lse, *y, *lse;
    attend_run(t, c, &y, &lse);
    if (is_reference(t)) {
        expect_close(c, r, y, lse, 6);
    } else {
        attend_run(&reference, c, &want, &want_lse);
        expect_same(c, "attention", want, y, c->shape.head_dim);
        expect_same(c, "log of the sum", want_lse, lse, 1);
        free(want);
        free(want_lse);
    }
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
            expect_small(type_names[type], "rows", &row_errors[type], bounds[type].rows,
                         bounds[type].worst);
            expect_small(type_names[type], "logarithms", &lse_errors[type], bounds[type].logarithms,
                         bounds[type].worst);
        }
    }
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

/* ---- layouts -----------------------------------------------------------------------------------
 */

/* A cache that kv_store did not fill. */
static struct kv_views empty_cache(struct test_device *t, const struct kv_layout *l) {
    struct kv_views kv;
    struct error err = {""};
    size_t elements = (size_t)kv_type_bytes(l->type) * (size_t)kv_layout_elements(l);
    size_t exponents = (size_t)kv_layout_exponents(l);
    void *k = device_poisoned(t, elements);
    void *v = l->one_tensor ? NULL : device_poisoned(t, elements);
    int8_t *k_exponents = device_poisoned(t, exponents);
    int8_t *v_exponents = l->one_tensor ? NULL : device_poisoned(t, exponents);
    if (kv_views_of(&kv, l, k, v, k_exponents, v_exponents, &err))
        fail_msg("%s", err.text);
    return kv;
}

static void convert(struct test_device *t, const struct kv_views *to, const struct kv_views *from,
                    const struct kv_layout *l) {
    t->ops->kv_convert(t->dev, &to->k, &from->k, l->n_pages, l->page_size, l->n_kv_heads,
                       l->head_dim);
    t->ops->kv_convert(t->dev, &to->v, &from->v, l->n_pages, l->page_size, l->n_kv_heads,
                       l->head_dim);
}

static void expect_same_memory(struct test_device *t, const void *x, const void *y, size_t bytes) {
    void *a = device_get(t, x, bytes), *b = device_get(t, y, bytes);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
}

/* From every layout to every other: attention finds what kv_store would have put there; and back:
 * every byte is where it was, poison and all. */
static void test_conversions(void **state) {
    static const struct {
        enum kv_order order;
        bool one_tensor;
    } kinds[] = {
        {KV_NHD, false}, {KV_NHD, true}, {KV_HND, false}, {KV_HND, true}, {KV_VLLM, false}};
    struct test_device *t = *state;
    struct random r = {903};
    struct attend_wish wish = attend_anything(200);
    wish.page_size = 7;
    for (int i = 0; i < COUNT(kinds) * COUNT(kinds); i++) {
        struct attend_case c;
        struct error err = {""};
        attend_case_make(&c, &r, &wish);
        if (c.shape.head_dim % 16) /* vLLM's layout has whole vectors */
            c.layout.type = KV_BFP16;
        c.layout.order = kinds[i / COUNT(kinds)].order;
        c.layout.one_tensor = kinds[i / COUNT(kinds)].one_tensor;
        struct kv_layout other = c.layout;
        other.order = kinds[i % COUNT(kinds)].order;
        other.one_tensor = kinds[i % COUNT(kinds)].one_tensor;
        float *want, *want_lse;
        attend_run(t, &c, &want, &want_lse);
        struct kv_views from = attend_cache(t, &c), there = empty_cache(t, &other);
        struct kv_views back = empty_cache(t, &c.layout);
        convert(t, &there, &from, &c.layout);
        convert(t, &back, &there, &c.layout);
        size_t elements =
            (size_t)kv_type_bytes(c.layout.type) * (size_t)kv_layout_elements(&c.layout);
        size_t exponents = (size_t)kv_layout_exponents(&c.layout);
        expect_same_memory(t, from.k.data, back.k.data, elements);
        expect_same_memory(t, from.k.exponents, back.k.exponents, exponents);
        if (!c.layout.one_tensor) {
            expect_same_memory(t, from.v.data, back.v.data, elements);
            expect_same_memory(t, from.v.exponents, back.v.exponents, exponents);
        }
        struct paged_batch batch = attend_batch(&c);
        struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
        if (!plan || t->ops->attention_plan(t->dev, plan, &batch, &c.shape, &c.variant, &err))
            fail_msg("%s", err.text);
        size_t bytes =
            sizeof(float) * (size_t)(c.n_tokens * c.shape.n_heads) * (size_t)c.shape.head_dim;
        float *y = device_poisoned(t, bytes);
        struct attention_variant v = attend_variant_on(t, &c, NULL);
        t->ops->attend(t->dev, y, device_put(t, c.q, bytes), &there, plan, &v, ATTEND_SITE);
        device_expect_fault(t, -1, 0);
        float *got = device_get(t, y, bytes);
        expect_same(&c, "attention after a conversion", want, got, c.shape.head_dim);
        t->ops->attention_plan_free(t->dev, plan);
        device_clear(t);
        free(want);
        free(want_lse);
        free(got);
        attend_case_free(&c);
    }
}

static void test_layouts(void **state) {
    (void)state;
    struct error err;
    struct kv_views kv;
    int16_t base[1];
    int8_t exponents[1];
    struct kv_layout l = kv_layout_of(KV_HND, true, 4, 16, 8, 128);
    assert_int_equal(kv_layout_elements(&l), 2 * 4 * 16 * 8 * 128);
    assert_int_equal(kv_layout_exponents(&l), 2 * 4 * 16 * 8);
    assert_int_equal(kv_views_of(&kv, &l, base, NULL, exponents, NULL, &err), 0);
    /* [pages, 2, heads, positions, dim]: page 3, values, head 5, position 7, element 9 */
    assert_int_equal((int16_t *)kv.v.data - base + kv_view_row(&kv.v, 3, 7, 5) +
                         kv_view_element(&kv.v, 9),
                     (((3 * 2 + 1) * 8 + 5) * 16 + 7) * 128 + 9);
    assert_int_equal(kv.v.exponents - exponents + kv_view_exponent(&kv.v, 3, 7, 5),
                     ((3 * 2 + 1) * 8 + 5) * 16 + 7);
    l = kv_layout_of(KV_VLLM, false, 4, 16, 8, 128);
    assert_int_equal(kv_views_of(&kv, &l, base, base, exponents, exponents, &err), 0);
    /* keys [pages, heads, dim / 8, positions, 8], values [pages, heads, dim, positions] */
    assert_int_equal(kv_view_row(&kv.k, 3, 7, 5) + kv_view_element(&kv.k, 29),
                     (((3 * 8 + 5) * 16 + 29 / 8) * 16 + 7) * 8 + 29 % 8);
    assert_int_equal(kv_view_row(&kv.v, 3, 7, 5) + kv_view_element(&kv.v, 29),
                     ((3 * 8 + 5) * 128 + 29) * 16 + 7);
    l.head_dim = 100;
    assert_int_equal(kv_views_of(&kv, &l, base, base, exponents, exponents, &err), -1);
    assert_non_null(strstr(err.text, "that 8 divide"));
    l.head_dim = 128;
    l.one_tensor = true;
    assert_int_equal(kv_views_of(&kv, &l, base, base, exponents, exponents, &err), -1);
    assert_non_null(strstr(err.text, "two tensors"));
    l = kv_layout_of(KV_NHD, false, 4, 0, 8, 128);
    assert_int_equal(kv_layout_elements(&l), 0);
    assert_int_equal(kv_views_of(&kv, &l, base, base, exponents, exponents, &err), -1);
    assert_non_null(strstr(err.text, "4 pages of 0 positions"));
    l = kv_layout_of(KV_NHD, false, INT32_MAX, INT32_MAX, 8, 128);
    assert_int_equal(kv_layout_elements(&l), 0);
}

/* ---- masks and tables on the host --------------------------------------------------------------
 */

static void test_packbits(void **state) {
    (void)state;
    struct error err;
    static const uint8_t x[] = {1, 0, 0, 7, 0, 0, 0, 0, 255, 1, 0, 1};
    static const int64_t indptr[] = {0, 3, 3, 12}, falls[] = {0, 3, 2}, late[] = {1, 2};
    uint8_t out[4] = {9, 9, 9, 9};
    int64_t out_indptr[4];
    packbits(out, x, 12, BITS_LITTLE);
    assert_int_equal(out[0], 0x09);
    assert_int_equal(out[1], 0x0b);
    packbits(out, x, 12, BITS_BIG);
    assert_int_equal(out[0], 0x90);
    assert_int_equal(out[1], 0xd0);
    assert_int_equal(out[2], 9); /* nothing behind the end */
    assert_int_equal(segment_packbits(out, out_indptr, x, indptr, 3, BITS_LITTLE, &err), 0);
    assert_int_equal(out[0], 0x01);
    assert_int_equal(out[1], 0x61);
    assert_int_equal(out[2], 0x01);
    assert_int_equal(out_indptr[1], 1);
    assert_int_equal(out_indptr[2], 1);
    assert_int_equal(out_indptr[3], 3);
    assert_int_equal(segment_packbits(out, out_indptr, x, falls, 2, BITS_LITTLE, &err), -1);
    assert_non_null(strstr(err.text, "segment 1: indptr falls from 3 to 2"));
    assert_int_equal(segment_packbits(out, out_indptr, x, late, 1, BITS_LITTLE, &err), -1);
    assert_non_null(strstr(err.text, "begins at 1"));
    assert_int_equal(segment_packbits(out, out_indptr, x, NULL, 0, BITS_LITTLE, &err), 0);
}

static void test_bad_input(void **state) {
    (void)state;
    struct error err;
    int32_t qo[] = {0, 2, 3}, kv[] = {0, 2, 2}, pages[] = {4, 1}, last[] = {3, 9};
    struct paged_batch b = {2, 16, 5, qo, kv, pages, last};
    int64_t offsets[3], slots[4];
    const int64_t good[] = {0, 38, 38}, bad[] = {0, 37, 37};
    assert_int_equal(attention_mask_offsets(offsets, &b, MASK_BITS, good, &err), 0);
    assert_int_equal(offsets[2], 5);
    assert_int_equal(attention_mask_offsets(offsets, &b, MASK_BYTES, bad, &err), -1);
    assert_non_null(strstr(err.text, "sequence 1: its mask begins at element 37"));
    const int32_t sequences[] = {0, -1, 0, 0}, positions[] = {18, 5, 0, 15};
    assert_int_equal(paged_batch_slots(&b, slots, sequences, positions, 4, &err), 0);
    assert_int_equal(slots[0], 18);
    assert_int_equal(slots[1], -1);
    assert_int_equal(slots[2], 64);
    assert_int_equal(slots[3], 79);
    const int32_t unknown[] = {0, 2}, empty[] = {1}, beyond[] = {19}, zero[] = {0, 0};
    assert_int_equal(paged_batch_slots(&b, slots, unknown, zero, 2, &err), -1);
    assert_non_null(strstr(err.text, "token 1: there is no sequence 2"));
    assert_int_equal(paged_batch_slots(&b, slots, empty, zero, 1, &err), -1);
    assert_non_null(strstr(err.text, "sequence 1 has 0 positions"));
    assert_int_equal(paged_batch_slots(&b, slots, zero, beyond, 1, &err), -1);
    assert_non_null(strstr(err.text, "sequence 0 has 19 positions, and none is 19"));
    struct attention_variant v = attention_variant_causal();
    assert_int_equal(attention_variant_check(&v, &err), 0);
    v.soft_cap = NAN;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    v.soft_cap = -1;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    assert_non_null(strstr(err.text, "soft cap of -1"));
    v.soft_cap = 0;
    v.mask_form = MASK_BITS;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    v.mask_form = MASK_NONE;
    v.mask_offsets = offsets;
    assert_int_equal(attention_variant_check(&v, &err), -1);
}

/* ---- special cases -----------------------------------------------------------------------------
 */

/* Rows that see nothing of some tiles, or of all, over sequences that several thread blocks share;
 * with sinks and without. */
static void test_rows_that_see_little(void **state) {
    struct test_device *t = *state;
    struct random r = {906};
    for (int kind = 0; kind < 8; kind++) {
        struct attend_wish wish = attend_anything(1100);
        struct attend_case c;
        wish.batch = 1;
        wish.kv_len = kind % 4 == 3 ? 1026 : 700;
        wish.qo_len = 4;
        wish.kv_heads = wish.group = 1;
        wish.head_dim = 64;
        wish.page_size = 16;
        wish.order = KV_NHD;
        wish.window_left = kind % 4 == 3 ? 0 : -1;
        wish.mask = kind % 4 == 3 ? MASK_NONE : MASK_BYTES;
        wish.sinks = kind / 4;
        attend_case_make(&c, &r, &wish);
        c.layout.type = KV_BFP16;
        for (int i = 0; c.mask && i < 4 * 700; i++) /* nothing; the last position; the first */
            c.mask[i] = i == 1 * 700 + 699 && kind % 4 > 0;
        if (c.mask && kind % 4 == 2)
            c.mask[2 * 700] = 1;
        check(t, &r, &c);
        attend_case_free(&c);
    }
}

/* A plan for another window than attend is told of: it is slower, not wrong. */
static void test_another_plan(void **state) {
    struct test_device *t = *state;
    struct random r = {908};
    struct attend_wish wish = attend_anything(700);
    struct attend_case c;
    float *want, *want_lse, *y, *lse;
    wish.batch = 2;
    wish.kv_len = 600;
    wish.qo_len = 1;
    wish.window_left = 300;
    wish.order = KV_HND;
    wish.mask = MASK_NONE;
    attend_case_make(&c, &r, &wish);
    c.layout.type = KV_BFP16; /* for the kernel that goes by the plan */
    attend_run(t, &c, &want, &want_lse);
    c.other_plan = true;
    attend_run(t, &c, &y, &lse);
    expect_same(&c, "attention with another plan", want, y, c.shape.head_dim);
    expect_same(&c, "log of the sum with another plan", want_lse, lse, 1);
    free(want);
    free(want_lse);
    free(y);
    free(lse);
    attend_case_free(&c);
}

/* A slot below 0 is nobody's: nothing is written. */
static void test_skipped_slots(void **state) {
    struct test_device *t = *state;
    struct random r = {907};
    struct attend_wish wish = attend_anything(40);
    struct attend_case c;
    wish.batch = 1;
    wish.kv_len = 8;
    attend_case_make(&c, &r, &wish);
    struct kv_views before = empty_cache(t, &c.layout), after = empty_cache(t, &c.layout);
    size_t elements = (size_t)kv_type_bytes(c.layout.type) * (size_t)kv_layout_elements(&c.layout);
    size_t width = (size_t)c.shape.n_kv_heads * (size_t)c.shape.head_dim;
    int64_t slots[8] = {-1, INT64_MIN, -1, -2, -1, -1, -1, -1};
    t->ops->kv_store(t->dev, &after, device_put(t, c.k, sizeof *c.k * 8 * width),
                     device_put(t, c.v, sizeof *c.v * 8 * width),
                     device_put(t, slots, sizeof slots), 8, c.layout.page_size, c.shape.n_kv_heads,
                     c.shape.head_dim, ATTEND_SITE, ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    expect_same_memory(t, before.k.data, after.k.data, elements);
    device_clear(t);
    attend_case_free(&c);
}

/* A key that is not a number is a fault and leaves a row of zeros; a skipped slot is left alone. */
static void test_store_faults(void **state) {
    struct test_device *t = *state;
    struct random r = {904};
    struct attend_wish wish = attend_anything(100);
    struct attend_case c;
    wish.batch = 2;
    wish.kv_len = 40;
    attend_case_make(&c, &r, &wish);
    c.k[(size_t)(33 * c.shape.n_kv_heads * c.shape.head_dim)] = NAN;
    attend_cache(t, &c);
    device_expect_fault(t, ATTEND_SITE, 33);
    device_clear(t);
    attend_case_free(&c);
}

static void test_query_faults(void **state) {
    struct test_device *t = *state;
    struct random r = {905};
    struct error err = {""};
    struct attend_wish wish = attend_anything(100);
    struct attend_case c;
    wish.batch = 2;
    wish.kv_len = 40;
    wish.qo_len = 3;
    attend_case_make(&c, &r, &wish);
    c.q[(size_t)(2 * c.shape.n_heads * c.shape.head_dim)] = INFINITY;
    struct paged_batch batch = attend_batch(&c);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    assert_int_equal(t->ops->attention_plan(t->dev, plan, &batch, &c.shape, &c.variant, &err), 0);
    struct kv_views kv = attend_cache(t, &c);
    size_t bytes = sizeof(float) * (size_t)(c.n_tokens * c.shape.n_heads * c.shape.head_dim);
    struct attention_variant v = attend_variant_on(t, &c, NULL);
    t->ops->attend(t->dev, device_poisoned(t, bytes), device_put(t, c.q, bytes), &kv, plan, &v,
                   ATTEND_SITE);
    device_expect_fault(t, ATTEND_SITE, 2);
    t->ops->attention_plan_free(t->dev, plan);
    device_clear(t);
    attend_case_free(&c);
}

static int open_both(void **state) {
    device_open(&reference, &ref_ops, 2);
    return device_group_open(state);
}

static int close_both(void **state) {
    device_close(&reference);
    return device_group_close(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_cases),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_packbits),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_rows_that_see_little),
        cmocka_unit_test(test_another_plan),
        cmocka_unit_test(test_skipped_slots),
        cmocka_unit_test(test_store_faults),
        cmocka_unit_test(test_query_faults),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
