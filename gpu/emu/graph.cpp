/*
 * graph.cpp - CUDA graphs: what a stream is asked between the begin and the end of a capture is not
 * done but written down, with its arguments, and every launch of the graph does it.
 */
#include "gpu/emu/engine.h"

typedef std::vector<std::function<void()>> work_list;

struct CUgraph_st {
    work_list work;
};
struct CUgraphExec_st {
    work_list work;
};

namespace emu {

/* The capture that is under way: there is one device, and it has one stream at a time. */
static struct {
    struct CUgraph_st *graph; /* NULL: none is */
    bool spoilt;              /* by a call that cannot be captured */
} capture;

bool is_capturing(void) {
    return capture.graph;
}

void capture_work(std::function<void()> work) {
    capture.graph->work.push_back(std::move(work));
}

cudaError_t refuse_in_capture(void) {
    capture.spoilt |= is_capturing();
    return is_capturing() ? set_error(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

void forget_capture(void) {
    delete capture.graph;
    capture = {NULL, false};
}

} // namespace emu

using namespace emu;

cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode) {
    cudaError_t error = enter_api();
    if (error != cudaSuccess)
        return error;
    if (is_capturing())
        return set_error(cudaErrorIllegalState);
    capture = {new CUgraph_st(), false};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) {
    cudaError_t error = enter_api();
    *graph = NULL;
    if (error == cudaSuccess && !is_capturing())
        error = set_error(cudaErrorIllegalState);
    if (error == cudaSuccess && capture.spoilt)
        error = set_error(cudaErrorStreamCaptureInvalidated);
    if (error == cudaSuccess)
        std::swap(*graph, capture.graph);
    forget_capture();
    return error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    cudaError_t error = enter_api();
    *exec = error == cudaSuccess ? new CUgraphExec_st{graph->work} : NULL;
    return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
    cudaError_t error = enter_api();
    for (const std::function<void()> &work : exec->work)
        if (cudaPeekAtLastError() == cudaSuccess) /* a fault is reported by what waits for it */
            work();
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return enter_api();
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return enter_api();
}
