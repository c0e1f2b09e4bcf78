/* The prefix cache beside a plain list of what it should know. */
#include "scheduler/prefix_cache.h"
#include "tests/random.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <xxhash.h>

#include <cmocka.h>

enum { BLOCKS = 40, SIZE = 2 };

/* What a block holds: the whole text up to its end, as long as it is known. */
struct known {
    int32_t text[BLOCKS * SIZE];
    int n;       /* tokens; 0: not known */
    bool orphan; /* the block before it was forgotten: nobody finds it any more */
};

static int32_t find_slowly(const struct known *all, const int32_t *text, int n) {
    for (int32_t b = 0; b < BLOCKS; b++)
        if (all[b].n == n && !all[b].orphan && !memcmp(all[b].text, text, sizeof *text * (size_t)n))
            return b;
    return -1;
}

static void forget(struct known *all, int32_t block) {
    for (int32_t b = 0; b < BLOCKS; b++)
        if (all[block].n && !all[block].orphan && all[b].n > all[block].n &&
            !memcmp(all[b].text, all[block].text, sizeof *all[b].text * (size_t)all[block].n))
            all[b].orphan = true;
    all[block].n = 0;
    all[block].orphan = false;
}

/* Walks along a random text, as a sequence does: finds what is there, adds the next block. */
static void walk(struct prefix_cache *p, struct known *all, struct random *r) {
    int32_t text[6 * SIZE], before = -1;
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < SIZE; j++)
            text[i * SIZE + j] = random_int(r, 0, 1);
        int32_t want = find_slowly(all, text, (i + 1) * SIZE);
        assert_int_equal(prefix_cache_find(p, before, text + i * SIZE), want);
        if (want < 0) {
            int32_t block = random_int(r, 0, BLOCKS - 1);
            if (block == before)
                return;
            prefix_cache_forget(p, block);
            forget(all, block);
            if (before >= 0 && (all[before].orphan || !all[before].n))
                return; /* the new block was one of those before */
            prefix_cache_add(p, block, before, text + i * SIZE);
            memcpy(all[block].text, text, sizeof *text * (size_t)(i + 1) * SIZE);
            all[block].n = (i + 1) * SIZE;
            want = block;
        }
        assert_true(prefix_cache_knows(p, want));
        before = want;
    }
}

static void test_random_texts(void **state) {
    (void)state;
    struct error err;
    struct prefix_cache p;
    struct random r = {110};
    struct known all[BLOCKS] = {0};
    assert_int_equal(prefix_cache_start(&p, BLOCKS, SIZE, &err), 0);
    for (int i = 0; i < 20000; i++)
        walk(&p, all, &r);
    prefix_cache_end(&p);
}

static void test_what_is_not_added(void **state) {
    (void)state;
    struct error err;
    struct prefix_cache p;
    const int32_t a[SIZE] = {1, 2}, b[SIZE] = {3, 4};
    assert_int_equal(prefix_cache_start(&p, 5, SIZE, &err), 0);
    prefix_cache_add(&p, 0, -1, a);
    prefix_cache_add(&p, 1, -1, a); /* another block with the same text */
    assert_false(prefix_cache_knows(&p, 1));
    prefix_cache_add(&p, 0, -1, b); /* it holds something already */
    assert_int_equal(prefix_cache_find(&p, -1, b), -1);
    prefix_cache_add(&p, 2, 3, b); /* behind one that is not known */
    assert_false(prefix_cache_knows(&p, 2));
    assert_int_equal(prefix_cache_find(&p, 3, b), -1);
    prefix_cache_forget(&p, 4); /* not known: no harm */
    /* A number that is used again does not get the children of its old contents. */
    prefix_cache_add(&p, 1, 0, b);
    assert_int_equal(prefix_cache_find(&p, 0, b), 1);
    prefix_cache_forget(&p, 0);
    prefix_cache_add(&p, 0, -1, a);
    assert_int_equal(prefix_cache_find(&p, 0, b), -1);
    prefix_cache_end(&p);
    assert_int_equal(prefix_cache_start(&p, 0, SIZE, &err), 0);
    assert_int_equal(prefix_cache_find(&p, -1, a), -1);
    prefix_cache_end(&p);
}

/* Two texts whose hashes are made equal: the tokens, and what is before, still tell them apart. */
static void test_equal_hashes(void **state) {
    (void)state;
    struct error err;
    struct prefix_cache p;
    const int32_t a[SIZE] = {1, 2}, b[SIZE] = {3, 4}, c[SIZE] = {5, 6};
    assert_int_equal(prefix_cache_start(&p, 1, SIZE, &err), 0); /* one bucket */
    prefix_cache_add(&p, 0, -1, a);
    p.entries[0].hash = XXH3_64bits_withSeed(b, sizeof b, 0);
    assert_int_equal(prefix_cache_find(&p, -1, b), -1);
    prefix_cache_end(&p);
    assert_int_equal(prefix_cache_start(&p, 3, SIZE, &err), 0);
    prefix_cache_add(&p, 0, -1, a);
    prefix_cache_add(&p, 1, -1, b);
    prefix_cache_add(&p, 2, 0, c);
    p.entries[2].hash =
        XXH3_64bits_withSeed(c, sizeof c, p.entries[1].serial); /* as if it stood behind b */
    for (int i = 0; i < p.n_buckets; i++)
        p.buckets[i] = 2;
    p.entries[2].next = -1;
    assert_int_equal(prefix_cache_find(&p, 1, c), -1);
    prefix_cache_end(&p);
}

/* More blocks than any power of two of an int: refused for their memory. A limit on it, so that no
 * machine has it. */
static void test_a_pool_too_large(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its shadow memory is larger than any limit */
#endif
    struct rlimit old, low;
    struct prefix_cache p;
    struct error err;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)4 << 30;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    int result = prefix_cache_start(&p, INT_MAX, 256, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(result, -1);
    assert_non_null(strstr(err.text, "out of memory for a prefix cache of 2147483647 blocks"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_what_is_not_added),
        cmocka_unit_test(test_equal_hashes),
        cmocka_unit_test(test_a_pool_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
