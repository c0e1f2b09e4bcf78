/* One paged cache and its neighbours in the pool: who may write where, swap, corrupt tables, and a
 * forward pass of several at once. */
#include "scheduler/kv_paged.h"
#include "scheduler/pass.h"
#include "tests/device.h"
#include "tests/tiny_models.h"
#include "tutorials/common/paged.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A pool of a tiny model with a prefix cache. */
struct fixture {
    struct tiny_model t;
    struct kv_pool pool;
    struct prefix_cache prefixes;
    struct error err;
};

static void start(struct fixture *f, int n_blocks, int block_size) {
    struct kv_pool_options o = {.block_size = block_size, .n_blocks = n_blocks, .poison = true};
    tiny_model_open(&f->t, 1);
    if (kv_pool_start(&f->pool, &f->t.model, &o, &f->err) ||
        prefix_cache_start(&f->prefixes, n_blocks, block_size, &f->err))
        fail_msg("%s", f->err.text);
}

static void end(struct fixture *f) {
    assert_int_equal(f->pool.blocks.stats.used, 0);
    if (block_allocator_check(&f->pool.blocks, &f->err))
        fail_msg("%s", f->err.text);
    prefix_cache_end(&f->prefixes);
    kv_pool_end(&f->pool);
    tiny_model_close(&f->t);
}

static struct kv_paged cache_in(struct fixture *f) {
    struct kv_paged c;
    assert_int_equal(kv_paged_start(&c, &f->pool, &f->prefixes, &f->err), 0);
    return c;
}

/* The keys' mantissas of the last layer in a block; the caller frees them. */
static int16_t *keys_of(const struct fixture *f, int32_t block) {
    const struct kv_pool *p = &f->pool;
    size_t n = (size_t)p->block_size * (size_t)p->n_kv_heads * (size_t)p->head_dim;
    int16_t *keys = malloc(sizeof *keys * n);
    p->dev->ops->download(p->dev, keys, p->layers[p->n_layers - 1].k + (size_t)block * n,
                          sizeof *keys * n);
    return keys;
}

static void fill(const struct fixture *f, int32_t block, int16_t value) {
    const struct kv_pool *p = &f->pool;
    size_t n = (size_t)p->block_size * (size_t)p->n_kv_heads * (size_t)p->head_dim;
    int16_t *keys = malloc(sizeof *keys * n);
    for (size_t i = 0; i < n; i++)
        keys[i] = value;
    for (int layer = 0; layer < p->n_layers; layer++)
        p->dev->ops->upload(p->dev, p->layers[layer].k + (size_t)block * n, keys, sizeof *keys * n);
    free(keys);
}

static void assert_holds(const struct fixture *f, int32_t block, int16_t value) {
    int16_t *keys = keys_of(f, block);
    assert_int_equal(keys[0], value);
    assert_int_equal(keys[f->pool.block_size * f->pool.n_kv_heads * f->pool.head_dim - 1], value);
    free(keys);
}

static const int32_t tokens[64] = {5, 1, 2, 3, 4, 9, 8, 7, 6, 11, 12, 13, 14, 15, 16, 17, 18};

/* A fork writes into a copy, as long as the other is there, and also when only the prefix cache
 * still knows the block. */
static void test_copy_on_write(void **state) {
    (void)state;
    for (int other_is_gone = 0; other_is_gone < 2; other_is_gone++) {
        struct fixture f;
        start(&f, 8, 4);
        struct kv_paged a = cache_in(&f), b = cache_in(&f);
        assert_int_equal(kv_paged_reserve(&a, 8, &f.err), 0);
        fill(&f, a.table.blocks[0], 100);
        fill(&f, a.table.blocks[1], 101);
        kv_paged_stored(&a, tokens, 8); /* two full blocks, known */
        assert_int_equal(kv_paged_fork(&b, &a, 6, &f.err), 0);
        int32_t shared = b.table.blocks[1];
        assert_int_equal(shared, a.table.blocks[1]);
        if (other_is_gone)
            assert_int_equal(kv_paged_clear(&a, &f.err), 0);
        assert_int_equal(kv_paged_missing(&b, 7), 1);
        assert_int_equal(kv_paged_reserve(&b, 7, &f.err), 0);
        assert_true(b.table.blocks[1] != shared);
        assert_holds(&f, b.table.blocks[1], 101);
        fill(&f, b.table.blocks[1], 7);
        assert_holds(&f, shared, 101);
        assert_int_equal(prefix_cache_find(&f.prefixes, b.table.blocks[0], tokens + 4), shared);
        assert_int_equal(block_references(&f.pool.blocks, shared), other_is_gone ? 0 : 1);
        kv_paged_end(&a);
        kv_paged_end(&b);
        end(&f);
    }
}

static void test_reserve_that_fails_changes_nothing(void **state) {
    (void)state;
    struct fixture f;
    start(&f, 3, 4);
    struct kv_paged a = cache_in(&f), b = cache_in(&f);
    assert_int_equal(kv_paged_reserve(&a, 8, &f.err), 0);
    kv_paged_stored(&a, tokens, 6);
    assert_int_equal(kv_paged_fork(&b, &a, 6, &f.err), 0);
    assert_int_equal(kv_paged_missing(&b, 9), 2);
    assert_int_equal(kv_paged_reserve(&b, 9, &f.err), 1);
    assert_int_equal(b.base.reserve(&b.base, 9, &f.err), -1); /* the same for a forward pass */
    assert_non_null(strstr(f.err.text, "the KV pool of 3 blocks of 4 positions is full"));
    assert_int_equal(b.table.n_blocks, 2);
    assert_int_equal(b.table.blocks[1], a.table.blocks[1]);
    assert_int_equal(f.pool.blocks.stats.used, 2);
    assert_int_equal(kv_paged_reserve(&b, 8, &f.err), 0); /* the copy alone fits */
    assert_true(b.table.blocks[1] != a.table.blocks[1]);
    kv_paged_end(&a);
    kv_paged_end(&b);
    end(&f);
}

static void test_match_leaves_a_token(void **state) {
    (void)state;
    struct fixture f;
    start(&f, 8, 4);
    struct kv_paged a = cache_in(&f), b = cache_in(&f);
    assert_int_equal(kv_paged_reserve(&a, 8, &f.err), 0);
    kv_paged_stored(&a, tokens, 8);
    static const int want[] = {0, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8};
    for (int n = 1; n <= 10; n++) {
        assert_int_equal(kv_paged_match(&b, tokens, n, &f.err), 0);
        assert_int_equal(b.n_stored, want[n]);
        assert_int_equal(kv_paged_clear(&b, &f.err), 0);
    }
    kv_paged_end(&a);
    assert_int_equal(f.pool.blocks.stats.cached, 2); /* still there for the next */
    assert_int_equal(kv_paged_match(&b, tokens, 9, &f.err), 0);
    assert_int_equal(b.n_stored, 8);
    kv_paged_end(&b);
    end(&f);
}

static void test_swap(void **state) {
    (void)state;
    struct fixture f;
    start(&f, 4, 4);
    struct kv_paged a = cache_in(&f), other = cache_in(&f);
    struct kv_swapped swapped;
    assert_int_equal(kv_paged_reserve(&a, 7, &f.err), 0);
    fill(&f, a.table.blocks[0], 50);
    fill(&f, a.table.blocks[1], 51);
    kv_paged_stored(&a, tokens, 6);
    assert_int_equal(kv_paged_swap_out(&a, &swapped, &f.err), 0);
    assert_int_equal(a.table.n_blocks, 0);
    assert_int_equal(swapped.n_stored, 6);
    assert_int_equal(kv_paged_reserve(&other, 12, &f.err), 0);
    for (int i = 0; i < 3; i++)
        fill(&f, other.table.blocks[i], 99);
    assert_int_equal(kv_paged_swap_in(&a, &swapped, &f.err), 1); /* one block left of two */
    assert_int_equal(a.table.n_blocks, 0);
    assert_non_null(swapped.data);
    kv_paged_end(&other);
    assert_int_equal(kv_paged_swap_in(&a, &swapped, &f.err), 0);
    assert_null(swapped.data);
    assert_int_equal(a.n_stored, 6);
    assert_holds(&f, a.table.blocks[0], 50);
    assert_holds(&f, a.table.blocks[1], 51);
    kv_paged_end(&a);
    end(&f);
}

/* Refused before any kernel follows the table: the slots of all positions are asked for, or, with
 * one attention for all, the pages; there the last of nine positions is read alone. */
static void test_corrupt_tables(void **state) {
    (void)state;
    static const struct {
        int32_t number; /* -2: the same as entry 0; -3: a free block */
        const char *message;
    } cases[] = {{-1, "entry 1 is block -1 of a pool of 6"},
                 {6, "entry 1 is block 6 of a pool of 6"},
                 {-2, "stands in it twice"},
                 {-3, "which nobody holds"}};
    struct fixture f;
    start(&f, 6, 4);
    for (int i = 0; i < 8; i++) {
        bool fused = i >= 4;
        int32_t number = cases[i % 4].number;
        struct kv_paged a = cache_in(&f);
        struct sequence s = {0};
        assert_int_equal(sequence_start(&s, 0, &(struct sampling_options){.top_p = 1}, &f.err), 0);
        assert_int_equal(sequence_add_prompt(&s, tokens, 9, 1, &f.err), 0);
        assert_int_equal(kv_paged_reserve(&a, 9, &f.err), 0);
        f.t.generator.fused = fused;
        struct pass_part part = {&s, &a.base, 0, 8, 0, false};
        if (fused) {
            assert_int_equal(pass_run(&f.t.generator, &part, 1, &f.err), 0);
            kv_paged_stored(&a, tokens, 8);
        }
        int32_t good = a.table.blocks[1], free_block = block_allocate(&f.pool.blocks);
        block_release(&f.pool.blocks, free_block, false, &f.err);
        a.table.blocks[1] = number == -2 ? a.table.blocks[0] : number == -3 ? free_block : number;
        part = (struct pass_part){&s, &a.base, fused ? 8 : 0, 9, 0, true};
        assert_int_equal(pass_run(&f.t.generator, &part, 1, &f.err), -1);
        if (!strstr(f.err.text, cases[i % 4].message))
            fail_msg("case %d: %s", i, f.err.text);
        a.table.blocks[1] = good;
        sequence_end(&s);
        kv_paged_end(&a);
    }
    end(&f);
}

/* Several paged sequences in one pass, of lengths about the block size. */
static void test_a_pass_of_several(void **state) {
    (void)state;
    enum { N = 5, NEW = 6 };
    static const int lengths[N] = {1, 4, 5, 9, 3};
    struct fixture f;
    struct sequence s[N], alone[N];
    struct kv_paged caches[N];
    struct random r = {111};
    start(&f, 40, 4);
    for (int i = 0; i < N; i++) {
        do {
            s[i] = tiny_request(&r, &f.t, (uint32_t)i, 12, NEW);
            if (s[i].n_prompt >= lengths[i] && s[i].max_new == NEW)
                break;
            sequence_end(&s[i]);
        } while (true);
        s[i].n_tokens = s[i].n_prompt = lengths[i];
        alone[i] = tiny_alone(&f.t, &s[i]);
        caches[i] = cache_in(&f);
        caches[i].prefixes = NULL;
    }
    for (int step = 0; step < NEW; step++) {
        struct pass_part parts[N];
        int n = 0;
        for (int i = 0; i < N; i++)
            if (s[i].finish == FINISH_NOT_YET)
                parts[n++] = (struct pass_part){
                    &s[i], &caches[i].base, s[i].n_cached, s[i].n_tokens, 0, true};
        assert_int_equal(pass_run(&f.t.generator, parts, n, &f.err), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_same_answer(&alone[i], &s[i]);
        sequence_end(&alone[i]);
        sequence_end(&s[i]);
        kv_paged_end(&caches[i]);
    }
    end(&f);
}

/* The blocks of requests with the longest answers that --max-new allows. */
static void test_blocks_of_long_answers(void **state) {
    (void)state;
    struct demo demo = {.options = {.block_size = 16}, .generator = {.context = 4096}};
    struct request requests[] = {{.n_prompt = 10, .max_new = INT_MAX},
                                 {.n_prompt = 10, .max_new = 5}};
    struct workload w = {.requests = requests, .n = 2};
    assert_int_equal(paged_most_blocks(&demo, &requests[0]), 256);
    assert_int_equal(paged_enough_blocks(&demo, &w), 257);
    demo.options.block_size = 1;
    demo.generator.context = INT_MAX;
    requests[1] = requests[0];
    assert_int_equal(paged_enough_blocks(&demo, &w), INT_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_on_write),
        cmocka_unit_test(test_reserve_that_fails_changes_nothing),
        cmocka_unit_test(test_match_leaves_a_token),
        cmocka_unit_test(test_swap),
        cmocka_unit_test(test_corrupt_tables),
        cmocka_unit_test(test_a_pass_of_several),
        cmocka_unit_test(test_blocks_of_long_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
