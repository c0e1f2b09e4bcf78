/* gpu_bench.h - what the benchmarks of CUDA kernels share: one device, memory, and medians of times
 * between two events. What fails ends the program. */
#ifndef SAMEBITS_GPU_BENCH_H
#define SAMEBITS_GPU_BENCH_H

#include "gpu/gpu.h"

#include <algorithm>
#include <random>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

enum { REPEATS = 21 };

static struct device *dev;

static inline void check(bool ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "%s failed\n", what);
    exit(2);
}

static inline void check_device(void) {
    struct fault fault;
    struct error err;
    if (!dev->ops->sync(dev, &fault, &err))
        return;
    fprintf(stderr, "%s\n", err.text);
    exit(2);
}

/* Ends the program, and says what parts it has, where an argument is none of them. */
static inline void check_parts(int argc, char **argv, const std::vector<const char *> &parts) {
    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (const char *part : parts)
            known = known || !strcmp(argv[i], part);
        if (known)
            continue;
        fprintf(stderr, "%s: no part is called %s. usage: %s", argv[0], argv[i], argv[0]);
        for (const char *part : parts)
            fprintf(stderr, " [%s]", part);
        fprintf(stderr, "\n");
        exit(2);
    }
}

/* Is this part asked for? Without arguments, all are. */
static inline bool wanted(int argc, char **argv, const char *part) {
    bool found = argc < 2;
    for (int i = 1; i < argc; i++)
        found = found || !strcmp(argv[i], part);
    return found;
}

/* Median seconds of one call of body(i), measured in bursts. */
template <class Body> static double seconds(int burst, Body body) {
    cudaStream_t stream = gpu_of(dev)->stream;
    cudaEvent_t begin, end;
    std::vector<double> all;
    check(!cudaEventCreate(&begin) && !cudaEventCreate(&end), "an event");
    for (int r = -2; r < REPEATS; r++) {
        float ms = 0;
        cudaEventRecord(begin, stream);
        for (int i = 0; i < burst; i++)
            body(i);
        cudaEventRecord(end, stream);
        check(!cudaEventSynchronize(end) && !cudaEventElapsedTime(&ms, begin, end), "timing");
        if (r >= 0)
            all.push_back(ms / 1e3 / burst);
    }
    check_device();
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

/* The median of launches that are recorded as a CUDA graph, so that the gaps between short launches
 * are the hardware's only. */
template <class Body> static double graph_seconds(int burst, Body body) {
    cudaStream_t stream = gpu_of(dev)->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    body(0); /* scratch memory must exist before the capture */
    check_device();
    check(!cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
    for (int i = 0; i < burst; i++)
        body(i);
    check(!cudaStreamEndCapture(stream, &graph) && !cudaGraphInstantiate(&exec, graph, 0),
          "a graph");
    double s = seconds(4, [&](int) { cudaGraphLaunch(exec, stream); });
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return s / burst;
}

static inline void *device_bytes(size_t bytes) {
    struct error err;
    void *data = dev->ops->alloc(dev, bytes, "the benchmark", &err);
    check(data, "an allocation");
    return data;
}

static inline float *random_floats(size_t count, float scale = 1) {
    std::mt19937 engine(7);
    std::normal_distribution<float> normal;
    std::vector<float> host(count);
    for (float &x : host)
        x = normal(engine) * scale;
    float *data = (float *)device_bytes(4 * count);
    dev->ops->upload(dev, data, host.data(), 4 * count);
    return data;
}

static inline void use_version(const char *op, int version) {
    struct error err;
    check(!dev->ops->set_version(dev, op, version, &err), op);
}

/* Opens the device and prints its name. */
static inline void open_gpu(void) {
    struct device_options options = {0};
    struct error err;
    struct cudaDeviceProp properties;
    dev = gpu_ops.open(&options, &err);
    if (!dev) {
        fprintf(stderr, "%s\n", err.text);
        exit(2);
    }
    check(!cudaGetDeviceProperties(&properties, 0), "asking for the GPU's name");
    printf("%s, medians of %d\n", properties.name, REPEATS);
}

#endif
