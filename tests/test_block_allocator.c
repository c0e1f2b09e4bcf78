/* The block allocator: each rule by hand, then a million random operations beside a plain model,
 * with the whole state compared often. */
#include "scheduler/block_allocator.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct block_allocator start(int n_blocks, enum block_order order) {
    struct block_allocator a;
    struct error err;
    assert_int_equal(block_allocator_start(&a, n_blocks, order, &err), 0);
    return a;
}

static void assert_sound(const struct block_allocator *a) {
    struct error err;
    if (block_allocator_check(a, &err))
        fail_msg("%s", err.text);
}

static void release(struct block_allocator *a, int32_t block, bool keep, int left) {
    struct error err;
    assert_int_equal(block_release(a, block, keep, &err), left);
}

static void test_orders(void **state) {
    (void)state;
    for (int order = BLOCKS_LIFO; order <= BLOCKS_FIFO; order++) {
        struct block_allocator a = start(4, (enum block_order)order);
        for (int i = 0; i < 4; i++)
            assert_int_equal(block_allocate(&a), i);
        assert_int_equal(block_allocate(&a), -1);
        release(&a, 2, false, 0);
        release(&a, 0, false, 0);
        assert_int_equal(block_allocate(&a), order == BLOCKS_LIFO ? 0 : 2);
        assert_int_equal(a.stats.most_used, 4);
        assert_int_equal(a.stats.used, 3);
        assert_sound(&a);
        block_allocator_end(&a);
    }
}

static void test_references(void **state) {
    (void)state;
    struct error err;
    struct block_allocator a = start(2, BLOCKS_LIFO);
    int32_t block = block_allocate(&a);
    assert_int_equal(block_share(&a, block, &err), 0);
    assert_int_equal(block_share(&a, block, &err), 0);
    assert_int_equal(block_references(&a, block), 3);
    release(&a, block, false, 2);
    release(&a, block, false, 1);
    assert_int_equal(a.stats.used, 1);
    release(&a, block, false, 0);
    assert_int_equal(a.stats.free, 2);
    assert_int_equal(block_references(&a, block), 0);
    assert_sound(&a);
    block_allocator_end(&a);
}

static void note(void *context, int32_t block) {
    int32_t *evicted = context;
    evicted[++evicted[0]] = block;
}

static void test_cached_blocks(void **state) {
    (void)state;
    struct error err;
    int32_t evicted[4] = {0};
    struct block_allocator a = start(3, BLOCKS_LIFO);
    a.evicted = note;
    a.context = evicted;
    for (int i = 0; i < 3; i++)
        block_allocate(&a);
    release(&a, 1, true, 0);
    release(&a, 0, true, 0);
    release(&a, 2, false, 0);
    assert_int_equal(block_available(&a), 3);
    assert_int_equal(a.stats.cached, 2);
    assert_int_equal(block_allocate(&a), 2); /* the free one first */
    assert_int_equal(evicted[0], 0);
    assert_int_equal(block_share(&a, 1, &err), 0); /* a hit: used again, not evicted */
    release(&a, 1, true, 0);                       /* now the youngest */
    assert_int_equal(block_allocate(&a), 0);
    assert_int_equal(block_allocate(&a), 1);
    assert_int_equal(evicted[0], 2);
    assert_int_equal(evicted[1], 0);
    assert_int_equal(evicted[2], 1);
    release(&a, 0, true, 0);
    assert_int_equal(block_forget(&a, 0, &err), 0);
    assert_int_equal(a.stats.free, 1);
    assert_sound(&a);
    block_allocator_end(&a);
}

static void expect_refused(int result, const struct error *err, const char *says) {
    assert_int_equal(result, -1);
    if (!strstr(err->text, says))
        fail_msg("\"%s\" does not say \"%s\"", err->text, says);
}

static void test_misuse(void **state) {
    (void)state;
    struct error err;
    struct block_allocator a = start(2, BLOCKS_FIFO);
    static const int32_t strangers[] = {-1, 2, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        expect_refused(block_release(&a, strangers[i], false, &err), &err, "not of this pool");
        expect_refused(block_share(&a, strangers[i], &err), &err, "not of this pool");
        expect_refused(block_forget(&a, strangers[i], &err), &err, "not of this pool");
        assert_int_equal(block_references(&a, strangers[i]), -1);
    }
    expect_refused(block_release(&a, 0, false, &err), &err, "double free");
    expect_refused(block_share(&a, 0, &err), &err, "is free");
    int32_t block = block_allocate(&a);
    expect_refused(block_forget(&a, block, &err), &err, "not cached");
    release(&a, block, true, 0);
    expect_refused(block_release(&a, block, true, &err), &err, "double free");
    assert_sound(&a);
    block_allocator_end(&a);
    expect_refused(block_allocator_start(&a, -1, BLOCKS_LIFO, &err), &err, "negative");
    a = start(0, BLOCKS_LIFO);
    assert_int_equal(block_allocate(&a), -1);
    assert_sound(&a);
    block_allocator_end(&a);
}

/* The check must see what it is for. */
static void test_check_sees_corruption(void **state) {
    (void)state;
    struct error err;
    for (int kind = 0; kind < 12; kind++) {
        struct block_allocator a = start(6, BLOCKS_LIFO);
        for (int i = 0; i < 4; i++)
            block_allocate(&a);
        release(&a, 0, true, 0);
        release(&a, 1, true, 0);
        assert_sound(&a);
        /* Used: 2, 3; cached: 0, 1; free: 4, 5. */
        switch (kind) {
        case 0:
            a.next[1] = 0;
            break; /* a circle */
        case 1:
            a.references[4] = 1;
            break; /* free and used */
        case 2:
            a.stats.used--;
            break; /* a lost block */
        case 3:
            a.previous[1] = 2;
            break; /* a broken link */
        case 4:
            a.next[1] = 77;
            break; /* a wild one */
        case 5:
            a.references[0] = 0;
            break; /* cached and not */
        case 6:
            a.free[5] = 4;
            break; /* free twice, and 5 lost */
        case 7:
            a.free[4] = -1;
            break; /* a wild one */
        case 8:
            a.stats.free++;
            break; /* more free than there are */
        case 9:
            a.first_free = 6;
            break; /* outside the ring */
        case 10:
            a.references[3] = -7;
            break; /* no such state */
        case 11:
            a.lru.last = 0;
            break; /* ends too early */
        }
        assert_int_equal(block_allocator_check(&a, &err), -1);
        block_allocator_end(&a);
    }
}

/* ---- random operations ------------------------------------------------------------------------
 */

/* The plain model: what each block is. */
enum { MODEL_BLOCKS = 97 };
struct plain {
    int references[MODEL_BLOCKS];
    bool cached[MODEL_BLOCKS];
    struct block_allocator *a;
};

static void plain_evicted(void *context, int32_t block) {
    struct plain *plain = context;
    assert_true(plain->cached[block]);
    plain->cached[block] = false;
}

static void one_operation(struct plain *plain, struct random *r) {
    struct error err;
    int32_t block = random_int(r, 0, MODEL_BLOCKS - 1);
    int before = plain->references[block];
    switch (random_int(r, 0, 4)) {
    case 0:
    case 1: {
        int32_t got = block_allocate(plain->a);
        if (got < 0) {
            for (int i = 0; i < MODEL_BLOCKS; i++)
                assert_true(plain->references[i] > 0);
            return;
        }
        assert_int_equal(plain->references[got], 0);
        assert_false(plain->cached[got]);
        plain->references[got] = 1;
        return;
    }
    case 2: {
        bool may = before || plain->cached[block];
        assert_true(block_share(plain->a, block, &err) == (may ? 0 : -1));
        plain->references[block] += may;
        plain->cached[block] = false;
        return;
    }
    case 3: {
        bool keep = random_int(r, 0, 1);
        assert_int_equal(block_release(plain->a, block, keep, &err), before - 1);
        if (before) {
            plain->references[block]--;
            plain->cached[block] = before == 1 && keep;
        }
        return;
    }
    default:
        assert_int_equal(block_forget(plain->a, block, &err), plain->cached[block] ? 0 : -1);
        plain->cached[block] = false;
    }
}

static void test_random_operations(void **state) {
    (void)state;
    struct random r = {71};
    for (int order = BLOCKS_LIFO; order <= BLOCKS_FIFO; order++) {
        struct block_allocator a = start(MODEL_BLOCKS, (enum block_order)order);
        struct plain plain = {.a = &a};
        a.evicted = plain_evicted;
        a.context = &plain;
        for (int i = 0; i < 500000; i++) {
            one_operation(&plain, &r);
            if (i % 1000)
                continue;
            assert_sound(&a);
            for (int b = 0; b < MODEL_BLOCKS; b++) {
                assert_int_equal(block_references(&a, b), plain.references[b]);
                assert_int_equal(a.references[b], plain.cached[b] ? -1 : plain.references[b]);
            }
        }
        block_allocator_end(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_cached_blocks),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_check_sees_corruption),
        cmocka_unit_test(test_random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
