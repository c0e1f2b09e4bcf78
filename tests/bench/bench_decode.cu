/*
 * bench_decode - where the time of a decode step goes: one token of the shipped model at batch 1.
 *
 * The step is measured as the engine runs it, a launch per kernel, and with its kernels replayed as
 * one CUDA graph, which costs one launch. Both upload the batch, download token and logits, and
 * wait; so the difference is the price of the launches. What the graph takes on the GPU alone is
 * the kernels and the gaps that the hardware leaves between them; the rest is copies and waiting.
 * The step is repeated at one position, so all repetitions do the same work, and the logits of the
 * graph must have the same bits.
 */
#include "gpu/gpu.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

extern "C" {
#include "model/forward.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/sequence.h"
}

enum { REPEATS = 21, BURST = 50, CONTEXT = 1024 };

static struct device *dev;
static struct model model;
static struct workspace *ws;
static struct error err;
static const struct sampling greedy = {0, 0, 1, 0, 0, 0};

static void check(bool ok, const char *what) {
    if (ok)
        return;
    bool device_failed = dev && gpu_of(dev)->failed;
    fprintf(stderr, "bench_decode: %s failed: %s\n", what,
            device_failed ? gpu_of(dev)->failure.text : err.text);
    exit(2);
}

/* The last n_tokens of a text of n_positions. */
struct step {
    std::vector<int32_t> ids, positions;
    int32_t indptr[2], last, drawn;
    struct kv_cache *cache;
    struct batch batch;
    float *on_device; /* logits */
    std::vector<float> logits;
};

static void make_step(struct step *s, struct kv_cache *cache, int n_tokens, int n_positions) {
    int first = n_positions - n_tokens;
    for (int i = 0; i < n_tokens; i++) {
        s->ids.push_back((first + i) % 1000 + 10);
        s->positions.push_back(first + i);
    }
    s->indptr[0] = 0;
    s->indptr[1] = n_tokens;
    s->last = n_tokens - 1;
    s->cache = cache;
    s->batch = {n_tokens, 1, 1, s->ids.data(), s->positions.data(), s->indptr, &s->last, &s->cache};
    s->logits.resize((size_t)model.config.vocab_size);
}

/* As scheduler/generate.c does it. */
static void run(struct step *s, cudaGraphExec_t graph) {
    s->on_device = forward(&model, ws, &s->batch, NULL, &err);
    check(s->on_device, "a pass");
    if (graph)
        check(!cudaGraphLaunch(graph, gpu_of(dev)->stream), "launching the graph");
    dev->ops->download(dev, s->logits.data(), s->on_device, sizeof(float) * s->logits.size());
    check(!forward_finish(&model, ws, &s->batch, &greedy, &s->drawn, &err), "a pass");
}

/* Stands in for any op. */
template <class... Arguments> static void nothing(Arguments...) {
}

/* A table that copies and waits, and computes nothing. */
static struct ops copies_only(void) {
    struct ops t = gpu_ops;
    t.embed = nothing, t.take_rows = nothing, t.snap_rows = nothing, t.linear = nothing;
    t.linear_parts = nothing, t.norm_rope = nothing;
    t.add_bias = nothing, t.rmsnorm = nothing, t.add_rmsnorm = nothing, t.rope = nothing;
    t.kv_append = nothing, t.attention = nothing, t.silu_mul = nothing, t.add = nothing;
    t.silu_mul_snap = nothing, t.sample = nothing;
    return t;
}

/* The kernels of the step that ran last; what they read of the batch is on the device already. */
static cudaGraphExec_t capture(struct step *s) {
    cudaStream_t stream = gpu_of(dev)->stream;
    struct ops kernels_only = gpu_ops;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int32_t *drawn = (int32_t *)dev->ops->alloc(dev, sizeof *drawn, "the benchmark", &err);
    check(drawn, "an allocation");
    kernels_only.upload = nothing;
    dev->ops = &kernels_only;
    check(!cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
    float *logits = forward(&model, ws, &s->batch, NULL, &err);
    check(logits, "a pass");
    dev->ops->sample(dev, drawn, logits, &greedy, 1, model.config.vocab_size, 0);
    check(!cudaStreamEndCapture(stream, &graph) && !gpu_of(dev)->failed, "the capture of a step");
    check(!cudaGraphInstantiate(&exec, graph, 0), "a graph");
    dev->ops = &gpu_ops;
    return exec;
}

/* Median seconds of body(), measured in bursts that end when the device is done. */
template <class Body> static double seconds(Body body) {
    std::vector<double> all;
    for (int r = -2; r < REPEATS; r++) {
        double begin = clock_now();
        for (int i = 0; i < BURST; i++)
            body();
        check(!cudaStreamSynchronize(gpu_of(dev)->stream), "waiting");
        if (r >= 0)
            all.push_back((clock_now() - begin) / BURST);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

static void print_row(const char *what, double s) {
    printf("%-44s %8.3f %10.0f\n", what, s * 1e3, 1 / s);
}

static void bench_step(struct kv_cache *cache, int n_positions) {
    struct step prompt, token;
    make_step(&prompt, cache, n_positions - 1, n_positions - 1);
    make_step(&token, cache, 1, n_positions);
    run(&prompt, NULL);
    run(&token, NULL); /* scratch memory must exist before the capture */
    long before = gpu_of(dev)->launches;
    run(&token, NULL);
    long launches = gpu_of(dev)->launches - before;
    double whole = seconds([&] { run(&token, NULL); });
    std::vector<float> want = token.logits;
    cudaGraphExec_t graph = capture(&token);
    double alone = seconds([&] { cudaGraphLaunch(graph, gpu_of(dev)->stream); });
    struct ops copies = copies_only();
    dev->ops = &copies;
    check(!cudaMemset(token.on_device, 0xff, sizeof(float) * want.size()), "clearing logits");
    double with_graph = seconds([&] { run(&token, graph); });
    dev->ops = &gpu_ops;
    check(!memcmp(want.data(), token.logits.data(), sizeof(float) * want.size()),
          "comparing the logits of the graph");
    printf("\nposition %d, %ld launches        %21s %10s\n", n_positions - 1, launches, "ms/token",
           "tokens/s");
    print_row("a step, kernel by kernel", whole);
    print_row("a step, its kernels as one graph", with_graph);
    print_row("the graph alone", alone);
    printf("of a step: launches %.0f %%, kernels %.0f %%, copies and waiting %.0f %%\n",
           (1 - with_graph / whole) * 100, alone / whole * 100, (with_graph - alone) / whole * 100);
    cudaGraphExecDestroy(graph);
}

int main(void) {
    struct device_options options = {0};
    struct cudaDeviceProp properties;
    dev = gpu_ops.open(&options, &err);
    check(dev, "opening the GPU");
    check(!model_load(&model, dev, "data/model", NULL, &err), "loading data/model");
    ws = workspace_new(&model, &err);
    struct kv_cache *cache = kv_static_new(&model, CONTEXT, &err);
    check(ws && cache && !cudaGetDeviceProperties(&properties, 0), "starting");
    printf("a decode step of the shipped model, batch 1; %s, medians of %d\n", properties.name,
           REPEATS);
    bench_step(cache, 64);
    bench_step(cache, CONTEXT);
    return 0; /* the process ends; its device memory goes with it */
}
