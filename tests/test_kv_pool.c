/* The KV pool: how large it becomes, what it refuses, what it gives back, and poison in every layer
 * of the blocks that nobody uses, and in no other. */
#include "scheduler/kv_pool.h"

#include "model/kv_cache.h"
#include "tests/device.h"
#include "tests/tiny_models.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

/* Declared in gpu/emu/controls.h. Weak, because tests on a GPU are linked without it. */
extern void emu_set_memory_limit(size_t bytes) __attribute__((weak));
extern size_t emu_memory_used(void) __attribute__((weak));

static struct tiny_model tiny;

static struct kv_pool start(struct kv_pool_options options) {
    struct kv_pool p;
    struct error err;
    if (kv_pool_start(&p, &tiny.model, &options, &err))
        fail_msg("%s", err.text);
    return p;
}

static void expect_refused(struct kv_pool_options options, const char *says1, const char *says2) {
    struct kv_pool p;
    struct error err = {""};
    size_t before = tiny.dev->bytes;
    assert_int_equal(kv_pool_start(&p, &tiny.model, &options, &err), -1);
    if (!strstr(err.text, says1) || !strstr(err.text, says2))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.text, says1, says2);
    assert_true(tiny.dev->bytes == before);
    kv_pool_end(&p);
}

/* ---- size -------------------------------------------------------------------------------------
 */

static size_t block_bytes(int block_size) {
    const struct model_config *c = &tiny.model.config;
    return (size_t)c->n_layers * 2 * (size_t)block_size * (size_t)c->n_kv_heads *
           (2 * (size_t)c->head_dim + 1);
}

static void expect_size(struct kv_pool_options options, int n_blocks) {
    size_t before = tiny.dev->bytes;
    struct kv_pool p = start(options);
    assert_int_equal(p.blocks.stats.total, n_blocks);
    assert_int_equal(p.blocks.stats.free, n_blocks);
    assert_true(p.bytes_per_block == block_bytes(options.block_size));
    assert_true(p.bytes == p.bytes_per_block * (size_t)n_blocks);
    assert_true(tiny.dev->bytes == before + p.bytes);
    kv_pool_end(&p);
    assert_true(tiny.dev->bytes == before);
    kv_pool_end(&p); /* zeroed: fine */
}

static void test_sizes(void **state) {
    (void)state;
    for (int size = 1; size <= MAX_BLOCK_SIZE; size *= 2) {
        size_t one = block_bytes(size);
        expect_size((struct kv_pool_options){.block_size = size, .n_blocks = 1}, 1);
        expect_size((struct kv_pool_options){.block_size = size, .n_blocks = 37}, 37);
        expect_size((struct kv_pool_options){.block_size = size, .bytes = one}, 1);
        expect_size((struct kv_pool_options){.block_size = size, .bytes = 9 * one - 1}, 8);
        expect_size((struct kv_pool_options){.block_size = size, .bytes = 9 * one}, 9);
    }
}

enum { ROOM = 48 << 20 };

/* From now on about ROOM bytes are available, where that can be arranged. */
static void leave_little_room(struct rlimit *old) {
    unsigned long long pages = 0;
    assert_int_equal(getrlimit(RLIMIT_AS, old), 0);
    if (device_is_emulated()) {
        emu_set_memory_limit(emu_memory_used() + ROOM);
        return;
    }
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu", &pages), 1);
    fclose(f);
    struct rlimit less = *old;
    less.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ROOM;
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
}

static void leave_room(const struct rlimit *old) {
    if (device_is_emulated())
        emu_set_memory_limit((size_t)16 << 30);
    assert_int_equal(setrlimit(RLIMIT_AS, old), 0);
}

/* 80 % of what is available; and no more than that, though asked for. */
static void test_budget_of_the_device(void **state) {
    (void)state;
    struct kv_pool p;
    struct error err = {""}, too_much = {""}, too_many = {""};
    struct rlimit old;
    if (!strcmp(tiny.dev->ops->name, "gpu"))
        skip(); /* others may use it at the same time */
    leave_little_room(&old);
    size_t left = tiny.dev->ops->available(tiny.dev), one = block_bytes(16);
    int result = kv_pool_start(&p, &tiny.model, &(struct kv_pool_options){.block_size = 16}, &err);
    size_t bytes = p.bytes;
    kv_pool_end(&p);
    int refused =
        kv_pool_start(&p, &tiny.model,
                      &(struct kv_pool_options){.block_size = 16, .bytes = ROOM + one}, &too_much) +
        kv_pool_start(&p, &tiny.model,
                      &(struct kv_pool_options){.block_size = 16, .n_blocks = ROOM / (int)one + 1},
                      &too_many);
    leave_room(&old); /* before anything fails */
    if (result)
        fail_msg("%s", err.text);
    assert_true(left <= ROOM && left > ROOM - (4 << 20));
    assert_true(bytes <= left / 5 * 4 && bytes > left / 5 * 4 - (1 << 20));
    assert_int_equal(refused, -2);
    if (!strstr(too_much.text, "MB are free") || !strstr(too_many.text, "MB are free"))
        fail_msg("%s\n%s", too_much.text, too_many.text);
}

static void test_refused(void **state) {
    (void)state;
    static const int bad_sizes[] = {0, -1, -16, 3, 24, 500, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof bad_sizes / sizeof *bad_sizes; i++)
        expect_refused((struct kv_pool_options){.block_size = bad_sizes[i], .n_blocks = 1},
                       "block size", "power of two from 1 to 256");
    expect_refused((struct kv_pool_options){.block_size = 16, .n_blocks = -1}, "-1 blocks",
                   "negative");
    expect_refused((struct kv_pool_options){.block_size = 16, .bytes = 1}, "no block", "one takes");
    expect_refused((struct kv_pool_options){.block_size = 16, .bytes = block_bytes(16) - 1},
                   "no block", "one takes");
    expect_refused((struct kv_pool_options){.block_size = 16, .bytes = SIZE_MAX}, "MB are free",
                   "smaller");
    expect_refused((struct kv_pool_options){.block_size = 256, .n_blocks = INT_MAX}, "MB are free",
                   "smaller");
}

/* ---- a device that fails, or has more than can be numbered ------------------------------------
 */

static int allocations_left;

static void *scarce_alloc(struct device *dev, size_t bytes, const char *what, struct error *err) {
    if (allocations_left-- > 0)
        return device_under_test()->alloc(dev, bytes, what, err);
    error_set(err, "no memory for %s", what);
    return NULL;
}

static size_t endless(struct device *dev) {
    (void)dev;
    return SIZE_MAX;
}

/* Each allocation fails once: everything before it is given back. */
static void test_failing_allocations(void **state) {
    (void)state;
    struct ops scarce = *tiny.dev->ops;
    const struct ops *real = tiny.dev->ops;
    int n_arrays = 4 * tiny.model.config.n_layers;
    scarce.alloc = scarce_alloc;
    tiny.dev->ops = &scarce;
    for (int n = 0; n <= n_arrays; n++) {
        struct kv_pool p;
        struct error err;
        size_t before = tiny.dev->bytes;
        allocations_left = n;
        int result = kv_pool_start(&p, &tiny.model,
                                   &(struct kv_pool_options){.block_size = 4, .n_blocks = 5}, &err);
        assert_int_equal(result, n < n_arrays ? -1 : 0);
        assert_true(tiny.dev->bytes == before + (n < n_arrays ? 0 : p.bytes));
        kv_pool_end(&p);
    }
    tiny.dev->ops = real;
}

/* Slots are counted in int32: a number of blocks that goes beyond is refused, when nobody chose it
 * the pool stays below. */
static void test_too_many_slots(void **state) {
    (void)state;
    struct ops wide = *tiny.dev->ops;
    const struct ops *real = tiny.dev->ops;
    wide.available = endless;
    wide.alloc = scarce_alloc;
    tiny.dev->ops = &wide;
    allocations_left = 0;
    expect_refused((struct kv_pool_options){.block_size = 256, .n_blocks = INT_MAX / 256 + 1},
                   "8388608 blocks", "more than 2^31 - 1");
    expect_refused(
        (struct kv_pool_options){.block_size = 256, .bytes = block_bytes(256) * 8388608u},
        "8388608 blocks", "more than 2^31 - 1");
    expect_refused((struct kv_pool_options){.block_size = 256}, "no memory", "KV cache");
    tiny.dev->ops = real;
}

/* ---- poison -----------------------------------------------------------------------------------
 */

enum { BLOCK = 4, BLOCKS = 6 };

static bool holds(const void *data, size_t count, size_t element, const void *value) {
    for (size_t i = 0; i < count; i++)
        if (memcmp((const char *)data + i * element, value, element))
            return false;
    return true;
}

/* Is a part of a device array full of one value? */
static bool part_holds(const void *array, size_t first, size_t count, size_t element,
                       const void *value) {
    void *host = host_array(count, element);
    tiny.dev->ops->download(tiny.dev, host, (const char *)array + first * element, count * element);
    bool yes = holds(host, count, element, value);
    free(host);
    return yes;
}

/* Do all arrays of all layers hold these values in a block? */
static bool block_holds(const struct kv_pool *p, int32_t block, int16_t mantissa, int8_t exponent) {
    size_t rows = (size_t)(BLOCK * p->n_kv_heads), count = rows * (size_t)p->head_dim;
    size_t row = rows * (size_t)block, at = count * (size_t)block;
    bool yes = true;
    for (int i = 0; i < p->n_layers; i++) {
        const struct kv_layer *l = &p->layers[i];
        yes = yes && part_holds(l->k, at, count, sizeof mantissa, &mantissa) &&
              part_holds(l->v, at, count, sizeof mantissa, &mantissa) &&
              part_holds(l->k_exponents, row, rows, 1, &exponent) &&
              part_holds(l->v_exponents, row, rows, 1, &exponent);
    }
    return yes;
}

static void expect_poison(const struct kv_pool *p, int32_t block) {
    if (!block_holds(p, block, INT16_MIN, 127))
        fail_msg("block %d does not hold poison everywhere", block);
}

static void expect_rows(const struct kv_pool *p, int32_t block) {
    if (!block_holds(p, block, 16384, 1))
        fail_msg("block %d does not hold what was written", block);
}

/* Ones in all rows of a block, by the op that the forward pass uses. */
static void write_rows(const struct kv_pool *p, int32_t block) {
    size_t count = (size_t)(BLOCK * p->n_kv_heads * p->head_dim);
    const struct ops *ops = tiny.dev->ops;
    float *ones = host_array(count, sizeof *ones);
    int64_t slots[BLOCK];
    struct error err;
    for (size_t i = 0; i < count; i++)
        ones[i] = 1;
    for (int i = 0; i < BLOCK; i++)
        slots[i] = (int64_t)block * BLOCK + i;
    float *x = ops->alloc(tiny.dev, sizeof *ones * count, "a test", &err);
    int64_t *where = ops->alloc(tiny.dev, sizeof slots, "a test", &err);
    assert_true(x && where);
    ops->upload(tiny.dev, x, ones, sizeof *ones * count);
    ops->upload(tiny.dev, where, slots, sizeof slots);
    for (int i = 0; i < p->n_layers; i++) {
        struct kv_views kv =
            kv_layer_views(&p->layers[i], KV_BFP16, BLOCK, p->n_kv_heads, p->head_dim);
        ops->kv_append(tiny.dev, &kv, x, x, where, BLOCK, BLOCK, p->n_kv_heads, p->head_dim, 0, 0);
    }
    struct fault fault;
    assert_int_equal(ops->sync(tiny.dev, &fault, &err), 0);
    ops->free(tiny.dev, x, sizeof *ones * count);
    ops->free(tiny.dev, where, sizeof slots);
    free(ones);
}

static int release(struct kv_pool *p, int32_t block, bool keep) {
    struct error err;
    int left = kv_pool_release(p, block, keep, &err);
    if (left < 0)
        fail_msg("%s", err.text);
    return left;
}

static void test_poison(void **state) {
    (void)state;
    struct error err;
    for (int order = BLOCKS_LIFO; order <= BLOCKS_FIFO; order++) {
        struct kv_pool p = start((struct kv_pool_options){
            .block_size = BLOCK, .n_blocks = BLOCKS, .order = order, .poison = true});
        for (int32_t b = 0; b < BLOCKS; b++) {
            expect_poison(&p, b);
            assert_int_equal(block_allocate(&p.blocks), b);
            write_rows(&p, b);
        }
        for (int32_t b = 0; b < BLOCKS; b++)
            expect_rows(&p, b);
        assert_int_equal(block_share(&p.blocks, 3, &err), 0);
        assert_int_equal(release(&p, 3, false), 1); /* somebody still uses it */
        expect_rows(&p, 3);
        assert_int_equal(release(&p, 3, false), 0);
        assert_int_equal(release(&p, 1, true), 0); /* cached: kept as it is */
        assert_int_equal(release(&p, BLOCKS - 1, false), 0);
        for (int32_t b = 0; b < BLOCKS; b++)
            if (b == 3 || b == BLOCKS - 1)
                expect_poison(&p, b);
            else
                expect_rows(&p, b);
        assert_int_equal(kv_pool_release(&p, 3, false, &err), -1); /* a double free */
        assert_non_null(strstr(err.text, "double free"));
        assert_int_equal(kv_pool_release(&p, BLOCKS, false, &err), -1);
        assert_int_equal(block_forget(&p.blocks, 1, &err), 0);
        kv_pool_poison(&p, 1);
        expect_poison(&p, 1);
        expect_rows(&p, 0);
        expect_rows(&p, 2);
        kv_pool_end(&p);
    }
}

/* The poison of every type: the lowest mantissa and the highest exponent, or a NaN. */
static void test_poison_of_types(void **state) {
    static const unsigned char bytes[N_KV_TYPES] = {0x80, 0x80, 0xff, 0xff, 0xff, 0xff};
    (void)state;
    for (int type = 0; type < N_KV_TYPES; type++) {
        struct kv_pool p = start((struct kv_pool_options){
            .block_size = BLOCK, .n_blocks = BLOCKS, .poison = true, .type = (enum kv_type)type});
        size_t size = (size_t)kv_type_bytes((enum kv_type)type);
        size_t count = (size_t)(BLOCKS * BLOCK * p.n_kv_heads * p.head_dim);
        size_t rows = count / (size_t)p.head_dim;
        unsigned char want[2] = {type == KV_BFP16 ? 0 : bytes[type], bytes[type]};
        const int8_t exponent = 127;
        for (int i = 0; i < p.n_layers; i++) {
            const struct kv_layer *l = &p.layers[i];
            assert_true(part_holds(l->k, 0, count, size, want));
            assert_true(part_holds(l->v, 0, count, size, want));
            if (!kv_type_has_exponents((enum kv_type)type))
                continue;
            assert_true(part_holds(l->k_exponents, 0, rows, 1, &exponent));
            assert_true(part_holds(l->v_exponents, 0, rows, 1, &exponent));
        }
        kv_pool_end(&p);
    }
}

static void test_no_poison(void **state) {
    (void)state;
    struct kv_pool p = start((struct kv_pool_options){.block_size = BLOCK, .n_blocks = BLOCKS});
    assert_int_equal(block_allocate(&p.blocks), 0);
    write_rows(&p, 0);
    assert_int_equal(release(&p, 0, false), 0);
    expect_rows(&p, 0);
    kv_pool_end(&p);
}

/* ---- every test with every tiny model ---------------------------------------------------------
 */

static int open_tiny(void **state) {
    tiny_model_open(&tiny, *(const int *)*state);
    return 0;
}

static int close_tiny(void **state) {
    (void)state;
    tiny_model_close(&tiny);
    return 0;
}

int main(void) {
    static int first = 0, second = 1, third = 2;
#define WITH(model, test)                                                                          \
    cmocka_unit_test_prestate_setup_teardown(test, open_tiny, close_tiny, model)
    const struct CMUnitTest tests[] = {
        WITH(&first, test_sizes),
        WITH(&second, test_sizes),
        WITH(&second, test_budget_of_the_device),
        WITH(&first, test_refused),
        WITH(&second, test_failing_allocations),
        WITH(&second, test_too_many_slots),
        WITH(&first, test_poison),
        WITH(&second, test_poison),
        WITH(&third, test_poison),
        WITH(&second, test_poison_of_types),
        WITH(&second, test_no_poison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
