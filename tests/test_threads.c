/* The reference's threads: every item once, by one thread at a time, however short the loops. */
#include "ref/threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/device.h"

enum { MOST_ITEMS = 1000, MOST_THREADS = 8 };

struct count {
    unsigned char times[MOST_ITEMS];  /* not atomic: a second thread in an item would race */
    atomic_int at_work[MOST_THREADS]; /* calls with this number that run now */
    atomic_int n_shared, n_strangers; /* ... while another did; with a number that is none */
    atomic_int n_together;            /* items at work now */
    atomic_int most_together;
    int n_threads;
};

static void count_item(void *context, int item, int worker) {
    struct count *c = context;
    if (worker < 0 || worker >= c->n_threads || item < 0 || item >= MOST_ITEMS) {
        atomic_fetch_add(&c->n_strangers, 1);
        return;
    }
    if (atomic_fetch_add(&c->at_work[worker], 1))
        atomic_fetch_add(&c->n_shared, 1);
    c->times[item]++;
    atomic_fetch_sub(&c->at_work[worker], 1);
}

static void check_loop(struct ref_threads *t, struct count *c, int n_items) {
    memset(c->times, 0, sizeof c->times);
    ref_threads_run(t, n_items, count_item, c);
    for (int i = 0; i < MOST_ITEMS; i++)
        assert_int_equal(c->times[i], i < n_items);
    assert_int_equal(c->n_shared, 0);
    assert_int_equal(c->n_strangers, 0);
}

static void test_every_item_once(void **state) {
    (void)state;
    for (int n = 1; n <= MOST_THREADS; n++) {
        struct ref_threads *t = ref_threads_new(n);
        struct count *c = calloc(1, sizeof *c);
        assert_non_null(t);
        assert_non_null(c);
        c->n_threads = ref_threads_count(t);
        assert_int_equal(c->n_threads, n);
        static const int sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 999, 1000};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            check_loop(t, c, sizes[i]);
        for (int i = 0; i < 2000; i++) /* the next begins while late threads still look for items */
            check_loop(t, c, i % 5);
        free(c);
        ref_threads_free(t);
    }
}

static void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

/* Long enough without work, they sleep, and must be woken. */
static void test_threads_wake_up(void **state) {
    (void)state;
    struct ref_threads *t = ref_threads_new(4);
    struct count *c = calloc(1, sizeof *c);
    assert_non_null(t);
    assert_non_null(c);
    c->n_threads = 4;
    for (int i = 0; i < 20; i++) {
        sleep_ms(5);
        check_loop(t, c, 50);
    }
    free(c);
    ref_threads_free(t);
}

/* Waits until the other item of the loop is at work, too (or gives up after a second). */
static void wait_for_other(void *context, int item, int worker) {
    struct count *c = context;
    (void)item, (void)worker;
    atomic_fetch_add(&c->n_together, 1);
    for (int i = 0; i < 1000 && atomic_load(&c->n_together) < 2; i++)
        sleep_ms(1);
    if (atomic_load(&c->n_together) == 2)
        atomic_store(&c->most_together, 2);
}

static void test_two_items_run_at_once(void **state) {
    (void)state;
    struct ref_threads *t = ref_threads_new(2);
    struct count c = {.n_threads = 2};
    assert_non_null(t);
    ref_threads_run(t, 2, wait_for_other, &c);
    assert_int_equal(c.most_together, 2);
    ref_threads_free(t);
}

static void test_end_without_work(void **state) {
    (void)state;
    ref_threads_free(NULL);
    for (int n = 1; n <= MOST_THREADS; n++)
        ref_threads_free(ref_threads_new(n)); /* before they have even begun */
}

static void count_shared(void *context, int item) {
    ((unsigned char *)context)[item]++;
}

/* Threads that a device starts are ended with it: the sanitizers look. */
static void test_devices_share_out(void **state) {
    (void)state;
    const struct ops *const all[] = {&ref_ops, &emu_ops};
    for (size_t i = 0; i < 2; i++) {
        struct test_device t;
        if (!all[i]) /* not linked */
            continue;
        device_open(&t, all[i], 3);
        for (int n = 0; n < 100; n += n < 3 ? 1 : 50) {
            unsigned char times[100] = {0};
            t.ops->share_out(t.dev, n, count_shared, times);
            for (int k = 0; k < 100; k++)
                assert_int_equal(times[k], k < n);
        }
        device_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_threads_wake_up),
        cmocka_unit_test(test_two_items_run_at_once),
        cmocka_unit_test(test_end_without_work),
        cmocka_unit_test(test_devices_share_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
