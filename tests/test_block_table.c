/* Block tables: lengths about every block boundary, pools that run dry, slots in scrambled pools,
 * and the page table of a batch. */
#include "scheduler/block_table.h"
#include "tests/random.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const int block_sizes[] = {1, 2, 16, 64, 256};

static void expect_says(const struct error *err, const char *says) {
    if (!strstr(err->text, says))
        fail_msg("\"%s\" does not say \"%s\"", err->text, says);
}

static void test_block_sizes(void **state) {
    (void)state;
    struct block_table t;
    struct error err;
    for (int size = -3; size <= 520; size++) {
        bool good = size == 1 || size == 2 || size == 4 || size == 8 || size == 16 || size == 32 ||
                    size == 64 || size == 128 || size == 256 || size == 512;
        assert_int_equal(block_table_start(&t, size, &err), good ? 0 : -1);
        if (!good)
            expect_says(&err, "power of two");
    }
}

/* A block is added exactly when a position needs it, and every position has a slot of its own. */
static void test_growth_at_boundaries(void **state) {
    (void)state;
    struct error err;
    for (size_t i = 0; i < COUNT(block_sizes); i++) {
        int size = block_sizes[i];
        struct block_allocator a;
        struct block_table t;
        assert_int_equal(block_allocator_start(&a, 5, BLOCKS_LIFO, &err), 0);
        assert_int_equal(block_table_start(&t, size, &err), 0);
        for (int n = 0; n <= 5 * size; n++) {
            int blocks = (n + size - 1) / size;
            assert_int_equal(block_table_missing(&t, n), blocks - t.n_blocks);
            assert_int_equal(block_table_grow(&t, &a, n, &err), 0);
            assert_int_equal(t.n_blocks, blocks);
            assert_int_equal(a.stats.used, blocks);
            assert_int_equal(block_table_slot(&t, blocks * size), -1);
            if (n) {
                int64_t slot = block_table_slot(&t, n - 1);
                assert_int_equal(slot / size, t.blocks[(n - 1) / size]);
                assert_int_equal(slot % size, (n - 1) % size);
            }
        }
        assert_int_equal(block_table_grow(&t, &a, 5 * size + 1, &err), 1); /* the pool is dry */
        assert_int_equal(t.n_blocks, 5);
        assert_int_equal(block_table_slot(&t, -1), -1);
        assert_int_equal(block_table_release(&t, &a, 0, &err), 0);
        assert_int_equal(a.stats.free, 5);
        block_table_end(&t);
        block_allocator_end(&a);
    }
}

static int32_t evicted[4];
static int n_evicted;

static void on_evicted(void *context, int32_t block) {
    (void)context;
    evicted[n_evicted++] = block;
}

static bool is_cached(const struct block_allocator *a, int32_t block) {
    return a->references[block] == -1;
}

/* All or nothing: a table that cannot have all blocks takes none. */
static void test_dry_pool(void **state) {
    (void)state;
    struct error err;
    struct block_allocator a;
    struct block_table t, other;
    assert_int_equal(block_allocator_start(&a, 4, BLOCKS_LIFO, &err), 0);
    block_table_start(&t, 16, &err);
    block_table_start(&other, 16, &err);
    assert_int_equal(block_table_grow(&other, &a, 32, &err), 0);
    assert_int_equal(block_table_grow(&t, &a, 33, &err), 1);
    assert_int_equal(t.n_blocks, 0);
    assert_int_equal(a.stats.free, 2);
    int32_t first = other.blocks[0];
    assert_int_equal(block_table_release(&other, &a, 1, &err), 0); /* one stays cached */
    assert_int_equal(a.stats.cached, 1);
    assert_true(is_cached(&a, first));
    assert_int_equal(block_table_grow(&t, &a, 64, &err), 0); /* and is given out when needed */
    assert_int_equal(a.stats.cached, 0);
    block_table_release(&t, &a, 0, &err);
    block_table_end(&t);
    block_table_end(&other);
    block_allocator_end(&a);
}

/* The beginning of a text stays, and of that the end is given out anew first. */
static void test_what_stays_cached(void **state) {
    (void)state;
    struct error err;
    struct block_allocator a;
    struct block_table t, other;
    int32_t had[3];
    assert_int_equal(block_allocator_start(&a, 4, BLOCKS_LIFO, &err), 0);
    a.evicted = on_evicted;
    n_evicted = 0;
    block_table_start(&t, 16, &err);
    block_table_start(&other, 16, &err);
    assert_int_equal(block_table_grow(&t, &a, 48, &err), 0);
    memcpy(had, t.blocks, sizeof had);
    assert_int_equal(block_table_release(&t, &a, 2, &err), 0);
    assert_int_equal(a.stats.cached, 2);
    assert_true(is_cached(&a, had[0]) && is_cached(&a, had[1]) && !is_cached(&a, had[2]));
    assert_int_equal(block_table_grow(&other, &a, 32, &err), 0); /* the free ones */
    assert_int_equal(n_evicted, 0);
    assert_int_equal(block_table_grow(&other, &a, 64, &err), 0);
    assert_int_equal(n_evicted, 2);
    assert_int_equal(evicted[0], had[1]);
    assert_int_equal(evicted[1], had[0]);
    assert_int_equal(block_table_release(&other, &a, 0, &err), 0);
    block_table_end(&t);
    block_table_end(&other);
    block_allocator_end(&a);
}

static void test_release_finds_double_frees(void **state) {
    (void)state;
    struct error err;
    struct block_allocator a;
    struct block_table t;
    assert_int_equal(block_allocator_start(&a, 4, BLOCKS_LIFO, &err), 0);
    block_table_start(&t, 1, &err);
    assert_int_equal(block_table_grow(&t, &a, 3, &err), 0);
    t.blocks[1] = t.blocks[0];
    assert_int_equal(block_table_release(&t, &a, 0, &err), -1);
    expect_says(&err, "double free");
    block_table_end(&t);
    block_allocator_end(&a);
}

enum { SEQUENCES = 7, LEN = 90 };

/* Sequences that grow in turns get interleaved blocks. */
static void grow_in_turns(struct block_table tables[SEQUENCES], struct block_allocator *a,
                          const int lens[SEQUENCES], struct random *r) {
    struct error err;
    int have[SEQUENCES] = {0}, left = SEQUENCES;
    while (left) {
        left = 0;
        for (int i = 0; i < SEQUENCES; i++) {
            have[i] += random_int(r, 0, 9);
            have[i] = have[i] < lens[i] ? have[i] : lens[i];
            assert_int_equal(block_table_grow(&tables[i], a, have[i], &err), 0);
            left += have[i] < lens[i];
        }
    }
}

static void test_slots_and_pages_of_a_batch(void **state) {
    (void)state;
    struct error err;
    struct random r = {72};
    struct page_table pages = {0};
    for (int round = 0; round < 60; round++) {
        int size = block_sizes[random_int(&r, 0, 4)], lens[SEQUENCES];
        struct block_allocator a;
        struct block_table tables[SEQUENCES];
        const struct block_table *all[SEQUENCES];
        int n_slots = SEQUENCES * (LEN / size + 1) * size;
        bool *taken = calloc((size_t)n_slots, sizeof *taken);
        assert_int_equal(block_allocator_start(&a, n_slots / size, BLOCKS_FIFO, &err), 0);
        for (int i = 0; i < SEQUENCES; i++) {
            lens[i] = i == 3 ? 0 : i == 4 ? size * (LEN / size) : random_int(&r, 0, LEN);
            block_table_start(&tables[i], size, &err);
            all[i] = &tables[i];
        }
        grow_in_turns(tables, &a, lens, &r);
        assert_int_equal(page_table_fill(&pages, all, lens, SEQUENCES, &err), 0);
        assert_int_equal(pages.n_pages, a.stats.used);
        for (int i = 0; i < SEQUENCES; i++) {
            int64_t slots[LEN + MAX_BLOCK_SIZE + 1];
            assert_int_equal(block_table_slots(&tables[i], 0, lens[i], slots, &err), 0);
            int n_pages = pages.kv_indptr[i + 1] - pages.kv_indptr[i];
            assert_int_equal(n_pages ? (n_pages - 1) * size + pages.kv_last_page_len[i] : 0,
                             lens[i]);
            for (int p = 0; p < lens[i]; p++) {
                int page = pages.kv_page_indices[pages.kv_indptr[i] + p / size];
                assert_int_equal(slots[p], (int64_t)page * size + p % size);
                assert_in_range(slots[p], 0, n_slots - 1);
                assert_false(taken[slots[p]]);
                taken[slots[p]] = true;
            }
            assert_int_equal(
                block_table_slots(&tables[i], lens[i] / size * size, size + 1, slots, &err), -1);
            expect_says(&err, "has no block");
        }
        lens[2] = tables[2].n_blocks * size + 1;
        page_table_end(&pages);
        assert_int_equal(page_table_fill(&pages, all, lens, SEQUENCES, &err), -1);
        expect_says(&err, "sequence 2 of the batch");
        for (int i = 0; i < SEQUENCES; i++) {
            assert_int_equal(block_table_release(&tables[i], &a, 0, &err), 0);
            block_table_end(&tables[i]);
        }
        assert_int_equal(a.stats.used, 0);
        assert_int_equal(block_allocator_check(&a, &err), 0);
        block_allocator_end(&a);
        free(taken);
    }
}

/* Counted before any block is looked at: the tables have none. */
static void test_too_many_pages(void **state) {
    (void)state;
    struct error err = {""};
    struct page_table pages = {0};
    struct block_table t = {.n_blocks = INT_MAX, .block_size = 1};
    const struct block_table *tables[] = {&t, &t};
    const int lens[] = {INT_MAX, INT_MAX};
    assert_int_equal(page_table_fill(&pages, tables, lens, 2, &err), -1);
    expect_says(&err, "the batch has 4294967294 pages, more than 2^31 - 1");
    assert_null(pages.kv_page_indices);
    page_table_end(&pages);
}

static void test_empty_batch(void **state) {
    (void)state;
    struct error err;
    struct page_table pages = {0};
    assert_int_equal(page_table_fill(&pages, NULL, NULL, 0, &err), 0);
    assert_int_equal(pages.kv_indptr[0], 0);
    assert_int_equal(pages.n_pages, 0);
    page_table_end(&pages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_sizes),
        cmocka_unit_test(test_growth_at_boundaries),
        cmocka_unit_test(test_dry_pool),
        cmocka_unit_test(test_what_stays_cached),
        cmocka_unit_test(test_release_finds_double_frees),
        cmocka_unit_test(test_slots_and_pages_of_a_batch),
        cmocka_unit_test(test_too_many_pages),
        cmocka_unit_test(test_empty_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
