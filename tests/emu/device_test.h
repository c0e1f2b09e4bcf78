/*
 * device_test.h - what the tests of tests/emu share. Their .cu files run in the emulation and on a
 * GPU; only what provokes faults is left out there.
 */
#ifndef SAMEBITS_DEVICE_TEST_H
#define SAMEBITS_DEVICE_TEST_H

#include "gpu/cuda_compat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include <vector>

#define assert_cuda(call) assert_string_equal(cudaGetErrorString(call), "no error")

/* An array on the device, with a copy of `from`. */
template <class T> T *to_device(const std::vector<T> &from) {
    T *data;
    assert_cuda(cudaMalloc(&data, from.size() * sizeof(T)));
    assert_cuda(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return data;
}

/* The n elements of a device array, which is freed. Waits for the kernels before. */
template <class T> std::vector<T> from_device(T *data, size_t n) {
    std::vector<T> to(n);
    assert_cuda(cudaGetLastError());
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemcpy(to.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
    assert_cuda(cudaFree(data));
    return to;
}

/* A sequence of numbers that is the same in each run (Marsaglia's xorshift, 2003). */
static inline uint32_t next_number(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Runs the group in several orders of threads and blocks, on one CPU thread and on three; on a GPU
 * once, in its own order. Returns the number of failures. */
#ifdef SAMEBITS_EMU
#define RUN_GROUP(tests, failures)                                                                 \
    do {                                                                                           \
        const uint64_t schedules[] = {0, 1, 2, 12345};                                             \
        for (int i = 0; i < 4; i++) {                                                              \
            emu_set_schedule(schedules[i]);                                                        \
            emu_set_threads(i % 2 ? 3 : 1);                                                        \
            failures += cmocka_run_group_tests(tests, NULL, NULL);                                 \
        }                                                                                          \
    } while (0)
#else
#define RUN_GROUP(tests, failures) failures += cmocka_run_group_tests(tests, NULL, NULL)
#endif

#endif
