/*
 * device.h - a device under test: moves arrays to it and back, fills its memory with poison before
 * every op writes there, and owns all of that memory until device_clear.
 */
#ifndef SAMEBITS_TESTS_DEVICE_H
#define SAMEBITS_TESTS_DEVICE_H

#include "model/ops.h"

#include <stdbool.h>

enum { MAX_BUFFERS = 64 };

struct test_device {
    const struct ops *ops;
    struct device *dev;
    uint64_t schedule; /* how often device_clear changed that of the emulation */
    int n_buffers;
    struct {
        void *data;
        size_t bytes;
    } buffers[MAX_BUFFERS];
};

/* The table that SAMEBITS_DEVICE names (cpu when it is not set): the same tests run on every
 * device.
 */
const struct ops *device_under_test(void);

/* The emulation runs every thread of a kernel one after the other: tests leave out there what would
 * take it minutes. The GPU runs everything. */
bool device_is_emulated(void);

/* Whether a few of many cases do: SAMEBITS_BATCHES is below 100, as `make test` has it where tests
 * take long. */
bool few_cases_do(void);

/* The version of the kernels that SAMEBITS_KERNEL asks for; 0 when it is not set. device_open sets
 * it where an op has that many. */
int kernel_under_test(void);

/* A device of the table, with this many threads. Every failure fails the test. */
void device_open(struct test_device *t, const struct ops *ops, int n_threads);

/* Frees all memory and checks that the device's count of it returns to what it was. In the
 * emulation, blocks, warps and lanes run in another order from here on: ascending, descending and
 * two shuffled ones take turns, so that no test depends on one. */
void device_clear(struct test_device *t);

/* device_clear, and the device is closed. */
void device_close(struct test_device *t);

/* Set-up and tear-down of a cmocka group whose tests share one device under test: *state is it. */
int device_group_open(void **state);
int device_group_close(void **state);

/* device_group_open with the reference beside the device: device_reference(). */
int device_pair_open(void **state);
int device_pair_close(void **state);
struct test_device *device_reference(void);

/* Device memory with a copy of the host's bytes, or with poison. Freed by device_clear. */
void *device_put(struct test_device *t, const void *host, size_t bytes);
void *device_poisoned(struct test_device *t, size_t bytes);

/* device_put for BFP16 rows. */
struct bfp_rows device_put_rows(struct test_device *t, struct bfp_rows host, int n_rows,
                                int n_cols);

/* Host memory with a copy of the device's bytes; the caller frees it. */
void *device_get(struct test_device *t, const void *data, size_t bytes);

/* Fails unless got (device memory) has the bits of want (host memory). */
void device_expect_floats(struct test_device *t, const char *name, const float *want,
                          const float *got, int n_rows, int n_cols);
void device_expect_rows(struct test_device *t, const char *name, struct bfp_rows want,
                        struct bfp_rows got, int n_rows, int n_cols);

/* Syncs and fails unless the fault is this one; site -1: none. */
void device_expect_fault(struct test_device *t, int site, int token);

/* Host memory of n elements, or the test fails. The caller frees it. */
void *host_array(size_t n, size_t element_size);
struct bfp_rows host_rows(int n_rows, int n_cols);
void free_host_rows(struct bfp_rows rows);

#endif
