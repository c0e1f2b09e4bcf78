/*
 * kv_append, kv_convert and what goes with them on the host: layouts, tables of slots and masks.
 */
#include "tests/attend_cases.h"
#include "tests/compare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* ---- layouts -----------------------------------------------------------------------------------
 */

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

/* From every layout to every other: attention finds what kv_append would have put there; and back:
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
        attend_case_make(&c, &r, &wish);
        if (c.shape.head_dim % 16) /* vLLM's layout has whole vectors */
            attend_set_type(&c, KV_BFP16, 1);
        c.layout.order = kinds[i / COUNT(kinds)].order;
        c.layout.one_tensor = kinds[i / COUNT(kinds)].one_tensor;
        struct kv_layout other = c.layout;
        other.order = kinds[i % COUNT(kinds)].order;
        other.one_tensor = kinds[i % COUNT(kinds)].one_tensor;
        float *want, *want_lse;
        attend_run(t, &c, &want, &want_lse);
        struct kv_views from = attend_cache(t, &c), there = attend_empty_cache(t, &other);
        struct kv_views back = attend_empty_cache(t, &c.layout);
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
        float *got, *got_lse;
        attend_run_over(t, &c, &there, &got, &got_lse);
        attend_expect_same(&c, "attention after a conversion", want, got, c.shape.head_dim);
        attend_expect_same(&c, "log of the sum after a conversion", want_lse, got_lse, 1);
        free(want);
        free(want_lse);
        free(got);
        free(got_lse);
        attend_case_free(&c);
    }
}

/* Views of somebody else's cache: pages that are not a whole number of vectors apart, and values whose
 * exponents lie otherwise than the keys'. */
static void test_padded_pages(void **state) {
    struct test_device *t = *state;
    struct random r = {906};
    struct attend_wish wish = attend_anything(300);
    wish.page_size = 8;
    wish.batch = 3;
    wish.order = KV_NHD;
    for (int i = 0; i < 2 * N_KV_TYPES; i++) {
        struct attend_case c;
        float *want, *want_lse, *got, *got_lse;
        attend_case_make(&c, &r, &wish);
        attend_set_type(&c, (enum kv_type)(i / 2), 1);
        c.layout.one_tensor = false;
        attend_run(t, &c, &want, &want_lse);
        struct kv_layout roomy = c.layout;
        roomy.n_pages *= 2;
        struct kv_views from = attend_cache(t, &c), to = attend_empty_cache(t, &roomy);
        to.k.page_step += i % 2 ? 4 : 16;
        to.v.page_step += i % 2 ? 4 : 16;
        to.v.page_exponents++;
        convert(t, &to, &from, &c.layout);
        attend_run_over(t, &c, &to, &got, &got_lse);
        attend_expect_same(&c, "padded pages", want, got, c.shape.head_dim);
        attend_expect_same(&c, "log of the sum over padded pages", want_lse, got_lse, 1);
        free(want);
        free(want_lse);
        free(got);
        free(got_lse);
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
    l = kv_layout_of(KV_NHD, true, 4, 16, 8, 128);
    assert_int_equal(kv_views_of(&kv, &l, base, NULL, exponents, NULL, &err), 0);
    /* [pages, 2, positions, heads, dim] */
    assert_int_equal((int16_t *)kv.v.data - base + kv_view_row(&kv.v, 3, 7, 5) +
                         kv_view_element(&kv.v, 9),
                     (((3 * 2 + 1) * 16 + 7) * 8 + 5) * 128 + 9);
    assert_int_equal(kv_view_row(&kv.k, 3, 7, 5) + kv_view_element(&kv.k, 9),
                     ((3 * 2 * 16 + 7) * 8 + 5) * 128 + 9);
    assert_int_equal(kv.v.exponents - exponents + kv_view_exponent(&kv.v, 3, 7, 5),
                     ((3 * 2 + 1) * 16 + 7) * 8 + 5);
    l = kv_layout_of(KV_NHD, false, 4, 16, 8, 128);
    assert_int_equal(kv_views_of(&kv, &l, base, base, exponents, exponents, &err), 0);
    for (const struct kv_view *v = &kv.k; v <= &kv.v; v++) { /* [pages, positions, heads, dim] */
        assert_ptr_equal(v->data, base);
        assert_int_equal(kv_view_row(v, 3, 7, 5) + kv_view_element(v, 9),
                         ((3 * 16 + 7) * 8 + 5) * 128 + 9);
        assert_int_equal(kv_view_exponent(v, 3, 7, 5), (3 * 16 + 7) * 8 + 5);
    }
    l = kv_layout_of(KV_VLLM, false, 4, 16, 8, 128);
    l.type = KV_E4M3; /* 16 elements in 16 bytes */
    assert_int_equal(kv_views_of(&kv, &l, base, base, NULL, NULL, &err), 0);
    assert_int_equal(kv_view_row(&kv.k, 3, 7, 5) + kv_view_element(&kv.k, 29),
                     (((3 * 8 + 5) * 8 + 29 / 16) * 16 + 7) * 16 + 29 % 16);
    assert_int_equal(kv_view_row(&kv.v, 3, 7, 5) + kv_view_element(&kv.v, 29),
                     ((3 * 8 + 5) * 128 + 29) * 16 + 7);
    l.head_dim = 24;
    assert_int_equal(kv_views_of(&kv, &l, base, base, NULL, NULL, &err), -1);
    assert_non_null(strstr(err.text, "that 16 divides, not 24"));
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

/* Scales are of fp8 alone, and of types that there are. */
static void test_scales(void **state) {
    (void)state;
    struct error err;
    struct kv_views kv;
    int16_t base[1];
    int8_t exponents[1];
    for (int type = 0; type < N_KV_TYPES; type++) {
        bool fp8 = type == KV_E4M3 || type == KV_E5M2;
        struct kv_layout l = kv_layout_of(KV_NHD, false, 4, 16, 8, 128);
        l.type = (enum kv_type)type;
        l.v_scale = 0; /* 1 */
        assert_int_equal(kv_views_of(&kv, &l, base, base, exponents, exponents, &err), 0);
        assert_true(kv.k.scale == 1 && kv.v.scale == 1);
        for (int which = 0; which < 2; which++) {
            l.k_scale = which ? 1 : 0.5f;
            l.v_scale = which ? 0.5f : 1;
            int status = kv_views_of(&kv, &l, base, base, exponents, exponents, &err);
            assert_int_equal(status, fp8 ? 0 : -1);
            if (fp8)
                assert_true(kv.k.scale == l.k_scale && kv.v.scale == l.v_scale);
            else
                assert_non_null(strstr(err.text, "only fp8 (e4m3, e5m2) has scales"));
        }
    }
    const float bad[] = {-1, INFINITY, NAN};
    for (int i = 0; i < 2 * COUNT(bad); i++) {
        struct kv_layout l = kv_layout_of(KV_NHD, false, 4, 16, 8, 128);
        l.type = KV_E5M2;
        *(i % 2 ? &l.k_scale : &l.v_scale) = bad[i / 2];
        assert_int_equal(kv_views_of(&kv, &l, base, base, NULL, NULL, &err), -1);
        assert_non_null(strstr(err.text, "scales positive numbers"));
    }
    struct kv_layout l = kv_layout_of(KV_NHD, false, 4, 16, 8, 128);
    l.type = N_KV_TYPES;
    assert_int_equal(kv_views_of(&kv, &l, base, base, exponents, exponents, &err), -1);
    assert_non_null(strstr(err.text, "a KV cache of type 6"));
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
    assert_int_equal(segment_packbits(out, out_indptr, x, indptr, 3, BITS_BIG, &err), 0);
    assert_int_equal(out[0], 0x80);
    assert_int_equal(out[1], 0x86);
    assert_int_equal(out[2], 0x80);
    assert_int_equal(out_indptr[3], 3);
    assert_int_equal(segment_packbits(out, out_indptr, x, falls, 2, BITS_LITTLE, &err), -1);
    assert_non_null(strstr(err.text, "segment 1: indptr falls from 3 to 2"));
    assert_int_equal(segment_packbits(out, out_indptr, x, late, 1, BITS_LITTLE, &err), -1);
    assert_non_null(strstr(err.text, "begins at 1"));
    assert_int_equal(segment_packbits(out, out_indptr, x, NULL, 0, BITS_LITTLE, &err), 0);
}

/* Masks of more elements than 32 bits count: two sequences of 10^10 each. Of the memory of one, as
 * bits, hardly anything is touched. */
static void test_large_masks(void **state) {
    (void)state;
    enum { LENGTH = 100000, LAST = LENGTH - 1 };
    static const int64_t elements = (int64_t)LENGTH * LENGTH;
    struct error err;
    const int32_t qo[] = {0, LENGTH, 2 * LENGTH}, kv[] = {0, 1, 2}, pages[] = {0, 0};
    const int32_t last[] = {LENGTH, LENGTH};
    const struct paged_batch b = {2, LENGTH, 1, qo, kv, pages, last};
    const int64_t indptr[] = {0, elements, 2 * elements};
    int64_t offsets[3];
    assert_int_equal(attention_mask_offsets(offsets, &b, MASK_BYTES, indptr, &err), 0);
    assert_memory_equal(offsets, indptr, sizeof indptr);
    assert_int_equal(attention_mask_offsets(offsets, &b, MASK_BITS, indptr, &err), 0);
    assert_int_equal(offsets[1], elements / 8);
    assert_int_equal(offsets[2], elements / 4);
    struct attention_variant v = attention_variant_causal();
    uint8_t *mask = calloc((size_t)elements / 8, 1);
    assert_non_null(mask);
    mask[elements / 8 - 1] = 0x40; /* the last position but one of the last query */
    v.mask_form = MASK_BITS;
    assert_true(attention_shows(&v, mask, LAST, LAST - 1, LENGTH));
    assert_false(attention_shows(&v, mask, LAST, LAST, LENGTH));
    assert_false(attention_shows(&v, mask, LAST, LAST - 2, LENGTH));
    free(mask);
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
    assert_non_null(strstr(err.text, "sequence 0: its mask ends at element 37, not at 38"));
    const int64_t late[] = {1, 39, 39}, longer[] = {0, 38, 40};
    assert_int_equal(attention_mask_offsets(offsets, &b, MASK_BYTES, late, &err), -1);
    assert_non_null(strstr(err.text, "sequence 0: its mask begins at element 1, not at 0"));
    assert_int_equal(attention_mask_offsets(offsets, &b, MASK_BYTES, longer, &err), -1);
    assert_non_null(strstr(err.text, "sequence 1: its mask ends at element 40, not at 38"));
    const int32_t sequences[] = {0, -1, 0, 0}, positions[] = {18, 5, 0, 15};
    assert_int_equal(paged_batch_slots(&b, slots, sequences, positions, 4, &err), 0);
    assert_int_equal(slots[0], 18);
    assert_int_equal(slots[1], -1);
    assert_int_equal(slots[2], 64);
    assert_int_equal(slots[3], 79);
    int32_t newest[3], at[3]; /* the last two of 19 positions; one of a sequence that has none */
    const int32_t want_newest[] = {0, 0, -1}, want_at[] = {17, 18, 0};
    const int64_t want_slots[] = {17, 18, -1};
    paged_batch_new_tokens(&b, newest, at);
    assert_memory_equal(newest, want_newest, sizeof newest);
    assert_memory_equal(at, want_at, sizeof at);
    assert_int_equal(paged_batch_slots(&b, slots, newest, at, 3, &err), 0);
    assert_memory_equal(slots, want_slots, sizeof want_slots);
    const int32_t unknown[] = {0, 2}, empty[] = {1}, beyond[] = {19}, zero[] = {0, 0};
    assert_int_equal(paged_batch_slots(&b, slots, unknown, zero, 2, &err), -1);
    assert_non_null(strstr(err.text, "token 1: there is no sequence 2"));
    assert_int_equal(paged_batch_slots(&b, slots, empty, zero, 1, &err), -1);
    assert_non_null(strstr(err.text, "sequence 1 has 0 positions"));
    assert_int_equal(paged_batch_slots(&b, slots, zero, beyond, 1, &err), -1);
    assert_non_null(strstr(err.text, "sequence 0 has 19 positions, and none is 19"));
    pages[1] = 5; /* a page table that nobody has checked */
    assert_int_equal(paged_batch_slots(&b, slots, zero, zero, 1, &err), -1);
    assert_non_null(strstr(err.text, "sequence 0: its page number 1 is 5, outside the pool of 5"));
    pages[1] = 1;
    struct attention_variant v = attention_variant_causal();
    assert_int_equal(attention_variant_check(&v, &err), 0);
    v.soft_cap = NAN;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    v.soft_cap = -1;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    assert_non_null(strstr(err.text, "soft cap of -1"));
    v.soft_cap = INFINITY;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    assert_non_null(strstr(err.text, "soft cap of inf"));
    v.soft_cap = 0;
    v.mask_form = MASK_BITS;
    assert_int_equal(attention_variant_check(&v, &err), -1);
    v.mask_form = MASK_NONE;
    v.mask_offsets = offsets;
    assert_int_equal(attention_variant_check(&v, &err), -1);
}

/* ---- what is not stored ------------------------------------------------------------------------
 */

/* Two sequences, the first of 40 positions, and a cache of that type. */
static void make_two(struct attend_case *c, struct random *r, int type) {
    struct attend_wish wish = attend_anything(100);
    wish.batch = 2;
    wish.kv_len = 40;
    wish.type = type;
    attend_case_make(c, r, &wish);
}

/* A cache on the host: keys and values, and their exponents. */
struct cache_copy {
    void *arrays[4];
    struct kv_views kv;
};

static size_t bytes_of(const struct kv_layout *l, int array) {
    if (l->one_tensor && array % 2)
        return 0; /* it is in the one before it */
    size_t elements = (size_t)kv_type_bytes(l->type) * (size_t)kv_layout_elements(l);
    return array < 2 ? elements : (size_t)kv_layout_exponents(l);
}

static void copy_cache(struct test_device *t, struct cache_copy *out, const struct kv_views *from,
                       const struct kv_layout *l) {
    const void *arrays[4] = {from->k.data, from->v.data, from->k.exponents, from->v.exponents};
    struct error err = {""};
    for (int i = 0; i < 4; i++)
        out->arrays[i] = device_get(t, arrays[i], bytes_of(l, i));
    if (kv_views_of(&out->kv, l, out->arrays[0], out->arrays[1], out->arrays[2], out->arrays[3],
                    &err))
        fail_msg("%s", err.text);
}

/* Compares and frees. */
static void expect_same_copies(struct cache_copy *want, struct cache_copy *got,
                               const struct kv_layout *l) {
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(want->arrays[i], got->arrays[i], bytes_of(l, i));
        free(want->arrays[i]);
        free(got->arrays[i]);
    }
}

/* A slot below 0 is nobody's: nothing is written, and what is there to be written is no fault. */
static void test_skipped_slots(void **state) {
    struct test_device *t = *state;
    struct random r = {907};
    for (int type = 0; type < N_KV_TYPES; type++) {
        struct attend_case c;
        struct cache_copy want, got;
        make_two(&c, &r, type);
        struct kv_views before = attend_empty_cache(t, &c.layout),
                        after = attend_empty_cache(t, &c.layout);
        size_t width = (size_t)c.shape.n_kv_heads * (size_t)c.shape.head_dim;
        int64_t slots[8] = {-1, INT64_MIN, -1, -2, -1, -1, -1, -1};
        c.k[3 * width] = NAN;
        t->ops->kv_append(t->dev, &after, device_put(t, c.k, sizeof *c.k * 8 * width),
                         device_put(t, c.v, sizeof *c.v * 8 * width),
                         device_put(t, slots, sizeof slots), 8, c.layout.page_size,
                         c.shape.n_kv_heads, c.shape.head_dim, ATTEND_SITE, ATTEND_SITE);
        device_expect_fault(t, -1, 0);
        copy_cache(t, &want, &before, &c.layout);
        copy_cache(t, &got, &after, &c.layout);
        expect_same_copies(&want, &got, &c.layout);
        device_clear(t);
        attend_case_free(&c);
    }
}

/* A row of a cache becomes what is stored of one that is not finite. */
static void clear_row(const struct kv_view *v, int64_t page, int64_t position, int head,
                      int head_dim) {
    int64_t row = kv_view_row(v, page, position, head);
    for (int d = 0; d < head_dim; d++)
        kv_store_bits(v->data, v->type, row + kv_view_element(v, d), 0);
    if (kv_type_has_exponents(v->type))
        v->exponents[kv_view_exponent(v, page, position, head)] = BFP_MIN_EXPONENT;
}

/* A key or a value that is not finite is a fault of its token; its row becomes zeros, and all else
 * is as without it. */
static void test_store_faults(void **state) {
    enum { POSITION = 33 };
    struct test_device *t = *state;
    struct random r = {904};
    for (int kind = 0; kind < 2 * N_KV_TYPES; kind++) {
        struct attend_case c;
        struct cache_copy want, got;
        bool of_values = kind % 2;
        make_two(&c, &r, kind / 2);
        int heads = c.shape.n_kv_heads, dim = c.shape.head_dim, size = c.layout.page_size;
        int head = random_int(&r, 0, heads - 1), d = random_int(&r, 0, dim - 1);
        struct kv_views good = attend_cache(t, &c);
        device_expect_fault(t, -1, 0);
        (of_values ? c.v : c.k)[(POSITION * heads + head) * dim + d] = of_values ? -INFINITY : NAN;
        struct kv_views bad = attend_cache(t, &c);
        device_expect_fault(t, ATTEND_SITE, POSITION);
        copy_cache(t, &want, &good, &c.layout);
        copy_cache(t, &got, &bad, &c.layout);
        clear_row(of_values ? &want.kv.v : &want.kv.k, c.pages[POSITION / size], POSITION % size,
                  head, dim);
        expect_same_copies(&want, &got, &c.layout);
        device_clear(t);
        attend_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversions),   cmocka_unit_test(test_padded_pages),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_scales),        cmocka_unit_test(test_packbits),
        cmocka_unit_test(test_large_masks),   cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_skipped_slots), cmocka_unit_test(test_store_faults),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
