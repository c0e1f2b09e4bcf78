/*
 * attend where 32 bits do not count what there is: pools of more than 2^31 elements, and masks of
 * more than 2^32.
 */
#include "tests/attend_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* A cache whose memory is not the test's: it may be too much for a copy on the host. */
struct large_cache {
    struct kv_views kv;
    void *arrays[4];
    size_t bytes[4];
};

static void free_cache(struct test_device *t, const struct large_cache *c) {
    for (int i = 0; i < 4; i++)
        t->ops->free(t->dev, c->arrays[i], c->bytes[i]);
}

/* Returns false where there is not the memory. */
static bool alloc_cache(struct test_device *t, struct large_cache *c, const struct kv_layout *l) {
    struct error err = {""};
    *c = (struct large_cache){0};
    for (int i = 0; i < 4; i++) {
        int64_t n = i < 2 ? kv_layout_elements(l) * kv_type_bytes(l->type) : kv_layout_exponents(l);
        size_t bytes = l->one_tensor && i % 2 ? 0 : (size_t)n;
        c->arrays[i] = bytes ? t->ops->alloc(t->dev, bytes, "a large cache", &err) : NULL;
        c->bytes[i] = c->arrays[i] ? bytes : 0;
        if (c->bytes[i] < bytes) {
            free_cache(t, c);
            return false;
        }
    }
    if (kv_views_of(&c->kv, l, c->arrays[0], c->arrays[1], c->arrays[2], c->arrays[3], &err))
        fail_msg("%s", err.text);
    return true;
}

/* The case gives the same in a pool of n_pages. Its pages are at the beginning of each fifth: an
 * address that loses its upper bits is that of another page, if a fifth has 2^n elements. Returns
 * false where there is not the memory. */
static bool expect_equal_in_pool(struct test_device *t, const struct attend_case *c, int n_pages) {
    struct attend_case large = *c;
    struct large_cache cache;
    float *want, *want_lse, *y, *lse;
    large.layout.n_pages = n_pages;
    if (!alloc_cache(t, &cache, &large.layout))
        return false;
    large.pages = host_array((size_t)c->layout.n_pages, sizeof *large.pages);
    for (int i = 0; i < c->layout.n_pages; i++)
        large.pages[i] = c->pages[i] % 5 * (n_pages / 5) + c->pages[i] / 5;
    attend_run(t, c, &want, &want_lse);
    attend_fill_cache(t, &large, &cache.kv);
    attend_run_over(t, &large, &cache.kv, &y, &lse);
    attend_expect_same(&large, "attention over a large pool", want, y, c->shape.head_dim);
    attend_expect_same(&large, "log of the sum over a large pool", want_lse, lse, 1);
    free_cache(t, &cache);
    free(large.pages);
    free(want);
    free(want_lse);
    free(y);
    free(lse);
    return true;
}

/* Pools of 5 * 2^30 elements, of which the CPU touches little. Where there is not the memory, and
 * in the emulation, small ones: whether the test is right. */
static void test_pools_beyond_32_bits(void **state) {
    static const struct {
        enum kv_order order;
        bool one_tensor;
        enum kv_type type;
    } kinds[] = {
        {KV_NHD, true, KV_BFP16},   {KV_HND, false, KV_BFP16}, {KV_HND, true, KV_BFP16},
        {KV_VLLM, false, KV_BFP16}, {KV_NHD, false, KV_FP16},  {KV_HND, true, KV_FP16},
        {KV_VLLM, false, KV_FP16},  {KV_NHD, true, KV_BFP8},   {KV_HND, false, KV_BFP8},
        {KV_VLLM, false, KV_BFP8},  {KV_VLLM, false, KV_E4M3}, {KV_NHD, true, KV_E4M3},
        {KV_HND, false, KV_E4M3},   {KV_NHD, false, KV_E5M2},  {KV_HND, true, KV_E5M2},
        {KV_VLLM, false, KV_E5M2},  {KV_HND, false, KV_BF16},
    };
    struct test_device *t = *state;
    struct random r = {913};
    bool is_large = !device_is_emulated();
#ifdef __SANITIZE_ADDRESS__
    is_large = false; /* its own notes on that memory are too many */
#endif
    for (int i = 0; i < COUNT(kinds); i++) {
        struct attend_wish wish = attend_anything(is_large ? 1500 : 200);
        struct attend_case c;
        wish.batch = 3;
        wish.kv_len = is_large ? 700 : 100;
        wish.qo_len = i % 2 ? 3 : 1; /* 4 rows or fewer share out their scores otherwise */
        wish.page_size = 16;
        wish.kv_heads = is_large ? 8 : 2;
        wish.group = 2;
        wish.head_dim = is_large ? 128 : 32;
        wish.order = (int)kinds[i].order;
        wish.type = (int)kinds[i].type;
        attend_case_make(&c, &r, &wish);
        c.layout.one_tensor = kinds[i].one_tensor;
        /* Pages of 2^14 elements. */
        if (!is_large || !expect_equal_in_pool(t, &c, 5 << 16)) {
            print_message("a small pool for kind %d\n", i);
            if (!expect_equal_in_pool(t, &c, 5 << 4))
                fail_msg("not even the memory for a small pool");
        }
        attend_case_free(&c);
    }
}

/* ---- masks -------------------------------------------------------------------------------------
 */

enum { TILE = ATTENTION_TILE, PAGE = 1 << 20, N_LISTED = 1024 };

/* The last tile of a sequence of 2^30 positions, a page that is listed over and over, with a mask
 * of 2^30 bits for each query: y and lse of a case of one tile. Windows hide the rest. */
static void run_masked(struct test_device *t, const struct attend_case *c, float **y, float **lse) {
    static const size_t row_bytes = (size_t)PAGE * N_LISTED / 8;
    static const int32_t pages[N_LISTED]; /* 0 */
    struct error err = {""};
    struct large_cache cache;
    struct kv_layout l = c->layout;
    const int32_t indptr[] = {0, N_LISTED}, last[] = {PAGE};
    l.n_pages = 1;
    l.page_size = PAGE;
    const struct paged_batch b = {1, PAGE, 1, c->qo_indptr, indptr, pages, last};
    size_t rows = (size_t)(c->n_tokens * c->shape.n_heads);
    size_t bytes = sizeof(float) * rows * (size_t)c->shape.head_dim;
    size_t kv_bytes = sizeof *c->k * TILE * (size_t)(c->shape.n_kv_heads * c->shape.head_dim);
    size_t mask_bytes = row_bytes * (size_t)c->n_tokens;
    uint8_t *mask = t->ops->alloc(t->dev, mask_bytes, "a large mask", &err);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    if (!mask || !plan || !alloc_cache(t, &cache, &l))
        fail_msg("not enough memory for a large mask: %s", err.text);
    for (int i = 0; i < c->n_tokens; i++)
        t->ops->upload(t->dev, mask + (size_t)(i + 1) * row_bytes - TILE / 8,
                       c->mask + i * TILE / 8, TILE / 8);
    int64_t slots[TILE];
    for (int j = 0; j < TILE; j++)
        slots[j] = PAGE - TILE + j;
    t->ops->kv_append(t->dev, &cache.kv, device_put(t, c->k, kv_bytes),
                     device_put(t, c->v, kv_bytes), device_put(t, slots, sizeof slots), TILE, PAGE,
                     c->shape.n_kv_heads, c->shape.head_dim, ATTEND_SITE, ATTEND_SITE);
    float *on_y = device_poisoned(t, bytes), *on_lse = device_poisoned(t, sizeof(float) * rows);
    struct attention_variant v = attend_variant_on(t, c, on_lse);
    v.mask = mask;
    if (t->ops->attention_plan(t->dev, plan, &b, &c->shape, &v, &err))
        fail_msg("%s", err.text);
    t->ops->attend(t->dev, on_y, device_put(t, c->q, bytes), &cache.kv, plan, &v, ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    *y = device_get(t, on_y, bytes);
    *lse = device_get(t, on_lse, sizeof(float) * rows);
    t->ops->attention_plan_free(t->dev, plan);
    t->ops->free(t->dev, mask, mask_bytes);
    free_cache(t, &cache);
    device_clear(t);
}

static void test_masks_beyond_32_bits(void **state) {
    struct test_device *t = *state;
    struct random r = {914};
    for (int kind = 0; kind < 4; kind++) {
        struct attend_wish wish = attend_anything(TILE);
        struct attend_case c;
        float *want, *want_lse, *y, *lse;
        wish.batch = 1;
        wish.kv_len = wish.page_size = TILE;
        wish.qo_len = kind / 2 ? 4 : 5; /* each has kernels of its own */
        wish.kv_heads = 1;
        wish.group = 2;
        wish.head_dim = 32;
        wish.order = kind % 2 ? KV_HND : KV_NHD;
        wish.type = KV_BFP16;
        wish.window_left = 5;
        wish.mask = MASK_BITS;
        attend_case_make(&c, &r, &wish);
        for (int i = 0; i < c.n_tokens * TILE / 8; i++)
            c.mask[i] = (uint8_t)random_bits64(&r);
        attend_run(device_reference(), &c, &want, &want_lse);
        run_masked(t, &c, &y, &lse);
        attend_expect_same(&c, "attention with a large mask", want, y, c.shape.head_dim);
        attend_expect_same(&c, "log of the sum with a large mask", want_lse, lse, 1);
        free(want);
        free(want_lse);
        free(y);
        free(lse);
        attend_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools_beyond_32_bits),
        cmocka_unit_test(test_masks_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
