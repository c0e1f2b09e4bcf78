/* The ops of a paged cache: gathering scattered slots, and attention over what was gathered beside
 * attention over a contiguous cache. Slots that nobody gathers hold poison. */
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/oracle.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { SPARE = 3 };

struct host_cache {
    int n_slots, heads, dim;
    struct bfp_rows k, v; /* [n_slots * heads, dim] */
};

/* n random tokens in the slots `slots`, poison in the others. */
static struct host_cache make_cache(struct random *r, const int64_t *slots, int n, int n_slots,
                                    int heads, int dim) {
    struct host_cache c = {n_slots, heads, dim, host_rows(n_slots * heads, dim),
                           host_rows(n_slots * heads, dim)};
    float x[256];
    poison(c.k.mantissas, sizeof(int16_t) * (size_t)(n_slots * heads * dim));
    poison(c.v.mantissas, sizeof(int16_t) * (size_t)(n_slots * heads * dim));
    for (int i = 0; i < n * heads; i++) {
        int row = (int)slots[i / heads] * heads + i % heads;
        random_fill(r, x, (size_t)dim, NORMAL);
        c.k.exponents[row] = (int8_t)oracle_snap(c.k.mantissas + row * dim, x, dim);
        random_fill(r, x, (size_t)dim, HEAVY_TAILED);
        c.v.exponents[row] = (int8_t)oracle_snap(c.v.mantissas + row * dim, x, dim);
    }
    return c;
}

static void free_cache(struct host_cache *c) {
    free_host_rows(c->k);
    free_host_rows(c->v);
}

static void pick_rows(struct bfp_rows to, struct bfp_rows from, const int64_t *slots, int n,
                      int heads, int dim) {
    for (int i = 0; i < n * heads; i++) {
        int row = (int)slots[i / heads] * heads + i % heads;
        memcpy(to.mantissas + i * dim, from.mantissas + row * dim, sizeof(int16_t) * (size_t)dim);
        to.exponents[i] = from.exponents[row];
    }
}

static struct kv_layer put(struct test_device *t, const struct host_cache *c) {
    struct bfp_rows k = device_put_rows(t, c->k, c->n_slots * c->heads, c->dim);
    struct bfp_rows v = device_put_rows(t, c->v, c->n_slots * c->heads, c->dim);
    return (struct kv_layer){k.mantissas, v.mantissas, k.exponents, v.exponents};
}

static struct kv_layer poisoned(struct test_device *t, int n_slots, int heads, int dim) {
    size_t rows = (size_t)(n_slots * heads);
    return (struct kv_layer){device_poisoned(t, 2 * rows * (size_t)dim),
                             device_poisoned(t, 2 * rows * (size_t)dim), device_poisoned(t, rows),
                             device_poisoned(t, rows)};
}

/* n different slots of n_slots, in random order. */
static int64_t *scattered(struct random *r, int n, int n_slots) {
    int64_t *slots = host_array((size_t)n_slots, sizeof *slots);
    for (int i = 0; i < n_slots; i++)
        slots[i] = i;
    for (int i = 0; i < n; i++) {
        int j = random_int(r, i, n_slots - 1);
        int64_t slot = slots[j];
        slots[j] = slots[i];
        slots[i] = slot;
    }
    return slots;
}

static void check_gather(struct test_device *t, struct random *r, int n, int heads, int dim) {
    int n_slots = n + random_int(r, 0, 40);
    int64_t *slots = scattered(r, n, n_slots);
    struct host_cache c = make_cache(r, slots, n, n_slots, heads, dim);
    struct bfp_rows k = host_rows((n + SPARE) * heads, dim),
                    v = host_rows((n + SPARE) * heads, dim);
    size_t bytes = sizeof(int16_t) * (size_t)((n + SPARE) * heads * dim);
    poison(k.mantissas, bytes), poison(v.mantissas, bytes);
    poison(k.exponents, (size_t)((n + SPARE) * heads));
    poison(v.exponents, (size_t)((n + SPARE) * heads));
    pick_rows(k, c.k, slots, n, heads, dim);
    pick_rows(v, c.v, slots, n, heads, dim);
    struct kv_layer from = put(t, &c), to = poisoned(t, n + SPARE, heads, dim);
    int64_t *device_slots = device_put(t, slots, sizeof *slots * (size_t)n_slots);
    t->ops->kv_gather(t->dev, &to, &from, device_slots, n, heads, dim);
    struct bfp_rows got_k = {to.k, to.k_exponents}, got_v = {to.v, to.v_exponents};
    device_expect_rows(t, "gathered keys", k, got_k, (n + SPARE) * heads, dim);
    device_expect_rows(t, "gathered values", v, got_v, (n + SPARE) * heads, dim);
    device_expect_fault(t, -1, 0);
    device_clear(t);
    free_host_rows(k);
    free_host_rows(v);
    free_cache(&c);
    free(slots);
}

static void test_kv_gather(void **state) {
    struct test_device *t = *state;
    struct random r = {81};
    static const int lens[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 255, 257};
    static const int heads[] = {1, 3, 8, 33}, dims[] = {2, 4, 7, 8, 48, 128, 256};
    for (size_t l = 0; l < COUNT(lens); l++)
        for (size_t h = 0; h < COUNT(heads); h++)
            for (size_t d = 0; d < COUNT(dims); d++)
                if (!device_is_emulated() || lens[l] * heads[h] * dims[d] < 20000)
                    check_gather(t, &r, lens[l], heads[h], dims[d]);
}

/* Attention over a text is one and the same, contiguous or scattered over a pool. */
static void test_attention_over_gathered(void **state) {
    struct test_device *t = *state;
    struct random r = {82};
    static const int lens[] = {1, 16, 17, 255, 256, 257, 300};
    enum { HEADS = 4, KV_HEADS = 2, DIM = 32, TOKENS = 5 };
    struct attention_shape shape = {HEADS, KV_HEADS, DIM, 0.25, KV_BFP16};
    for (size_t l = 0; l < COUNT(lens); l++) {
        int n = lens[l], n_slots = 2 * n + 7, tokens = n < TOKENS ? n : TOKENS;
        int64_t *slots = scattered(&r, n, n_slots);
        struct host_cache pool = make_cache(&r, slots, n, n_slots, KV_HEADS, DIM);
        struct host_cache line = {n, KV_HEADS, DIM, host_rows(n * KV_HEADS, DIM),
                                  host_rows(n * KV_HEADS, DIM)};
        pick_rows(line.k, pool.k, slots, n, KV_HEADS, DIM);
        pick_rows(line.v, pool.v, slots, n, KV_HEADS, DIM);
        float *q = host_array((size_t)(tokens * HEADS * DIM), sizeof *q);
        random_fill(&r, q, (size_t)(tokens * HEADS * DIM), NORMAL);
        size_t bytes = sizeof *q * (size_t)(tokens * HEADS * DIM);
        struct kv_layer contiguous = put(t, &line), from = put(t, &pool);
        struct kv_layer to = poisoned(t, n, KV_HEADS, DIM);
        float *device_q = device_put(t, q, bytes), *y = device_poisoned(t, bytes);
        float *y_gathered = device_poisoned(t, bytes);
        t->ops->attention(t->dev, y, device_q, &contiguous, tokens, n, &shape, 1);
        t->ops->kv_gather(t->dev, &to, &from, device_put(t, slots, sizeof *slots * (size_t)n_slots),
                          n, KV_HEADS, DIM);
        t->ops->attention(t->dev, y_gathered, device_q, &to, tokens, n, &shape, 1);
        float *want = device_get(t, y, bytes);
        device_expect_floats(t, "attention over gathered", want, y_gathered, tokens, HEADS * DIM);
        device_expect_fault(t, -1, 0);
        device_clear(t);
        free(want);
        free(q);
        free_cache(&line);
        free_cache(&pool);
        free(slots);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_gather),
        cmocka_unit_test(test_attention_over_gathered),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
