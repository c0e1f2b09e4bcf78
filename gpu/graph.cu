/* Recordings of ops as CUDA graphs. */
#include "gpu/gpu.h"

#include <stdlib.h>

struct device_graph {
    cudaGraphExec_t exec;
};

int gpu_graph_begin(struct device *dev, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!gpu->failed)
        gpu->recording =
            gpu_ok(gpu, cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeThreadLocal),
                   "recording a graph");
    return gpu->failed ? error_set(err, "%s", gpu->failure.text) : 0;
}

struct device_graph *gpu_graph_end(struct device *dev, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    struct device_graph *g = (struct device_graph *)calloc(1, sizeof *g);
    cudaGraph_t graph = NULL;
    cudaError_t result = cudaStreamEndCapture(gpu->stream, &graph);
    gpu->recording = false;
    if (!gpu->failed && gpu_ok(gpu, result, "recording a graph") && g)
        gpu_ok(gpu, cudaGraphInstantiate(&g->exec, graph, 0), "recording a graph");
    if (graph)
        cudaGraphDestroy(graph);
    if (g && !gpu->failed)
        return g;
    error_set(err, "%s", gpu->failed ? gpu->failure.text : "out of memory for a graph");
    free(g);
    return NULL;
}

void gpu_graph_run(struct device *dev, struct device_graph *g) {
    struct gpu_device *gpu = gpu_of(dev);
    if (gpu->failed)
        return;
    gpu->launches++;
    gpu_ok(gpu, cudaGraphLaunch(g->exec, gpu->stream), "running a graph");
}

void gpu_graph_free(struct device *dev, struct device_graph *g) {
    if (!g)
        return;
    gpu_ok(gpu_of(dev), cudaGraphExecDestroy(g->exec), "freeing a graph");
    free(g);
}
