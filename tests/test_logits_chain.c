/*
 * logits_chain: rows whose hashes are awaited, on a device that has them as late as it may, and
 * only then.
 */
#include "scheduler/logits_chain.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 200, CHAINS = 5 };

static struct {
    unsigned char ready[ROWS][SHA256_BYTES], seen[ROWS][SHA256_BYTES];
    int waits;
    bool is_lost;
} late;

static int wait_for_all(struct device *dev, struct error *err) {
    (void)dev;
    late.waits++;
    memcpy(late.seen, late.ready, sizeof late.seen);
    return late.is_lost ? error_set(err, "the device is lost") : 0;
}

static const struct ops ops = {.hash_wait = wait_for_all};
static struct device device = {.ops = &ops};

static struct logits_chain *new_chain(void) {
    struct error err;
    struct logits_chain *c = logits_chain_new(&err);
    assert_non_null(c);
    return c;
}

static int start(void **state) {
    struct random r = {3};
    (void)state;
    memset(&late, 0, sizeof late);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < SHA256_BYTES; j++)
            late.ready[i][j] = (unsigned char)random_int(&r, 0, 255);
    return 0;
}

static void expect_same(const struct logits_chain *got, const struct logits_chain *want) {
    assert_int_equal(got->n, want->n);
    assert_memory_equal(got->last, want->last, SHA256_BYTES);
    if (want->n)
        assert_memory_equal(got->marks, want->marks, (size_t)want->n * LINK_MARK_BYTES);
}

/* Rows of five chains, one behind the other; chain 3 goes away, and takes of chain 4 what waits. */
static void rows_come_in_order(void **state) {
    struct logits_chain *got[CHAINS], *want[CHAINS];
    struct awaited_hashes *list = awaited_hashes_new(&device, NULL);
    struct random r = {4};
    struct error err;
    (void)state;
    for (int i = 0; i < CHAINS; i++)
        got[i] = new_chain(), want[i] = new_chain();
    for (int i = 0; i < ROWS; i++) {
        int c = random_int(&r, 0, CHAINS - 1);
        assert_int_equal(logits_chain_await(got[c], list, late.seen[i], &err), 0);
        assert_int_equal(logits_chain_add(want[c], late.ready[i], &err), 0);
    }
    assert_int_equal(late.waits, 0);
    logits_chain_free(got[3]);
    logits_chain_free(want[3]);
    assert_int_equal(logits_chain_complete(got[4], &err), 0);
    for (int i = 0; i < CHAINS; i++) {
        if (i == 3)
            continue;
        expect_same(got[i], want[i]);
        assert_null(got[i]->awaited);
        assert_int_equal(logits_chain_complete(got[i], &err), 0); /* nothing is left */
        logits_chain_free(got[i]);
        logits_chain_free(want[i]);
    }
    assert_int_equal(late.waits, 1);
    assert_int_equal(list->n, 0);
    awaited_hashes_free(list);
}

/* Nobody waits where nothing is awaited; a list that ends leaves chains without it. */
static void lists_end(void **state) {
    struct awaited_hashes *list = awaited_hashes_new(&device, NULL);
    struct logits_chain *c = new_chain(), *none = new_chain();
    struct error err;
    (void)state;
    assert_int_equal(awaited_hashes_take(list, &err), 0);
    assert_int_equal(late.waits, 0);
    assert_int_equal(logits_chain_await(c, list, late.seen[0], &err), 0);
    assert_ptr_equal(c->awaited, list);
    awaited_hashes_free(list);
    assert_int_equal(logits_chain_complete(c, &err), 0);
    expect_same(c, none);
    logits_chain_free(c);
    logits_chain_free(none);
    logits_chain_free(NULL);
}

/* A device that is lost: no row of it is added. */
static void a_lost_device_is_told(void **state) {
    struct awaited_hashes *list = awaited_hashes_new(&device, NULL);
    struct logits_chain *c = new_chain();
    struct error err;
    (void)state;
    late.is_lost = true;
    assert_int_equal(logits_chain_await(c, list, late.seen[0], &err), 0);
    assert_int_equal(logits_chain_complete(c, &err), -1);
    assert_string_equal(err.text, "the device is lost");
    assert_int_equal(c->n, 0);
    assert_null(c->awaited);
    logits_chain_free(c);
    awaited_hashes_free(list);
}

/* A device without hash_wait has them at once. */
static void devices_without_waiting(void **state) {
    static const struct ops at_once = {0};
    struct device cpu = {.ops = &at_once};
    struct awaited_hashes *list = awaited_hashes_new(&cpu, NULL);
    struct logits_chain *got = new_chain(), *want = new_chain();
    struct error err;
    (void)state;
    assert_int_equal(logits_chain_await(got, list, late.ready[0], &err), 0);
    assert_int_equal(logits_chain_add(want, late.ready[0], &err), 0);
    assert_int_equal(awaited_hashes_take(list, &err), 0);
    expect_same(got, want);
    logits_chain_free(got);
    logits_chain_free(want);
    awaited_hashes_free(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rows_come_in_order, start),
        cmocka_unit_test_setup(lists_end, start),
        cmocka_unit_test_setup(a_lost_device_is_told, start),
        cmocka_unit_test_setup(devices_without_waiting, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
