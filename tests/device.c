#include "tests/device.h"

#include "tests/assert_bits.h"

#include <stdlib.h>
#include <string.h>

/* Declared in gpu/emu/cuda_emu.h. Weak, because tests on a GPU are linked without it. */
extern void emu_set_schedule(uint64_t seed) __attribute__((weak));

void *host_array(size_t n, size_t element_size) {
    void *data = malloc(n * element_size + 1);
    assert_non_null(data);
    poison(data, n * element_size);
    return data;
}

struct bfp_rows host_rows(int n_rows, int n_cols) {
    struct bfp_rows rows;
    rows.mantissas = host_array((size_t)n_rows * (size_t)n_cols, sizeof *rows.mantissas);
    rows.exponents = host_array((size_t)n_rows, sizeof *rows.exponents);
    return rows;
}

void free_host_rows(struct bfp_rows rows) {
    free(rows.mantissas);
    free(rows.exponents);
}

const struct ops *device_under_test(void) {
    struct error err;
    const char *name = getenv("SAMEBITS_DEVICE");
    const struct ops *ops = ops_find(name ? name : "cpu", &err);
    if (!ops)
        fail_msg("%s", err.text);
    return ops;
}

bool few_cases_do(void) {
    const char *batches = getenv("SAMEBITS_BATCHES");
    return batches && atoi(batches) < 100;
}

bool device_is_emulated(void) {
    return !strcmp(device_under_test()->name, "emu");
}

int kernel_under_test(void) {
    const char *text = getenv("SAMEBITS_KERNEL");
    return text ? atoi(text) : 0;
}

/* SAMEBITS_KERNEL is a version for every op that has it, or OP:VERSION for one. */
static void set_versions(struct test_device *t) {
    static const char *const names[] = {"snap_rows",     "linear",    "rmsnorm", "add_rmsnorm",
                                        "norm_rope",     "attention", "attend",  "silu_mul",
                                        "silu_mul_snap", "add"};
    const char *text = getenv("SAMEBITS_KERNEL"), *colon = text ? strchr(text, ':') : NULL;
    struct error err;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int version = kernel_under_test();
        if (colon)
            version = strncmp(names[i], text, (size_t)(colon - text)) ? 0 : atoi(colon + 1);
        if (version && version <= t->ops->versions(names[i]) &&
            t->ops->set_version(t->dev, names[i], version, &err))
            fail_msg("%s", err.text);
    }
}

void device_open(struct test_device *t, const struct ops *ops, int n_threads) {
    struct error err = {""};
    *t = (struct test_device){.ops = ops};
    t->dev = ops->open(&(struct device_options){.n_threads = n_threads}, &err);
    if (!t->dev)
        fail_msg("%s", err.text);
    set_versions(t);
}

void device_clear(struct test_device *t) {
    size_t before = t->dev->bytes, freed = 0;
    for (int i = 0; i < t->n_buffers; i++) {
        t->ops->free(t->dev, t->buffers[i].data, t->buffers[i].bytes);
        freed += t->buffers[i].bytes;
    }
    t->n_buffers = 0;
    assert_true(t->dev->bytes == before - freed);
    if (device_is_emulated())
        emu_set_schedule(++t->schedule % 4);
}

void device_close(struct test_device *t) {
    device_clear(t);
    t->ops->close(t->dev);
}

int device_group_open(void **state) {
    static struct test_device t;
    device_open(&t, device_under_test(), 2);
    *state = &t;
    return 0;
}

int device_group_close(void **state) {
    device_close(*state);
    return 0;
}

static struct test_device reference;

struct test_device *device_reference(void) {
    return &reference;
}

int device_pair_open(void **state) {
    device_open(&reference, &ref_ops, 2);
    return device_group_open(state);
}

int device_pair_close(void **state) {
    device_close(&reference);
    return device_group_close(state);
}

void *device_put(struct test_device *t, const void *host, size_t bytes) {
    struct error err = {""};
    void *data = t->ops->alloc(t->dev, bytes, "a test", &err);
    if (!data)
        fail_msg("%s", err.text);
    assert_true(t->n_buffers < MAX_BUFFERS);
    t->buffers[t->n_buffers].data = data;
    t->buffers[t->n_buffers++].bytes = bytes;
    t->ops->upload(t->dev, data, host, bytes);
    return data;
}

void *device_poisoned(struct test_device *t, size_t bytes) {
    void *host = host_array(bytes, 1);
    void *data = device_put(t, host, bytes);
    free(host);
    return data;
}

struct bfp_rows device_put_rows(struct test_device *t, struct bfp_rows host, int n_rows,
                                int n_cols) {
    struct bfp_rows rows;
    rows.mantissas =
        device_put(t, host.mantissas, sizeof *host.mantissas * (size_t)n_rows * (size_t)n_cols);
    rows.exponents = device_put(t, host.exponents, (size_t)n_rows);
    return rows;
}

void *device_get(struct test_device *t, const void *data, size_t bytes) {
    void *host = host_array(bytes, 1);
    t->ops->download(t->dev, host, data, bytes);
    return host;
}

/* Compares device memory with want->data. */
static void expect(struct test_device *t, const struct tensor_view *want, const void *data,
                   size_t bytes) {
    struct tensor_view got = *want;
    void *host = device_get(t, data, bytes);
    got.data = host;
    assert_same_bits(want, &got);
    free(host);
}

void device_expect_floats(struct test_device *t, const char *name, const float *want,
                          const float *got, int n_rows, int n_cols) {
    struct tensor_view view = {name, -1, (size_t)n_rows, (size_t)n_cols, ELEMENT_FLOAT, want};
    expect(t, &view, got, sizeof *want * (size_t)n_rows * (size_t)n_cols);
}

void device_expect_rows(struct test_device *t, const char *name, struct bfp_rows want,
                        struct bfp_rows got, int n_rows, int n_cols) {
    struct tensor_view exponents = {name, -1, (size_t)n_rows, 1, ELEMENT_INT8, want.exponents};
    struct tensor_view mantissas = {
        name, -1, (size_t)n_rows, (size_t)n_cols, ELEMENT_INT16, want.mantissas};
    expect(t, &exponents, got.exponents, (size_t)n_rows);
    expect(t, &mantissas, got.mantissas, sizeof *want.mantissas * (size_t)n_rows * (size_t)n_cols);
}

void device_expect_fault(struct test_device *t, int site, int token) {
    struct fault fault = {-2, -2};
    struct error err = {""};
    if (t->ops->sync(t->dev, &fault, &err))
        fail_msg("%s", err.text);
    if (fault.site != site || (site >= 0 && fault.token != token))
        fail_msg("want a fault at site %d, token %d; got site %d, token %d", site, token,
                 fault.site, fault.token);
}
