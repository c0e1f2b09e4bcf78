/*
 * graph.cpp - work for later. CUDA graphs: what a stream is asked between the begin and the end of
 * a capture is not done but written down, with its arguments, and every launch of the graph does
 * it. Streams, of which one that does not block the others is as late.
 */
#include "gpu/emu/engine.h"

struct CUstream_st {
    bool is_late; /* its work waits for somebody who waits for it */
    emu::work_list late;
};
struct CUevent_st {};
struct CUgraph_st {
    emu::work_list work;
};
struct CUgraphExec_st {
    emu::work_list work;
};

namespace emu {

/* The capture that is under way: there is one device, and it has one stream at a time. */
static struct {
    struct CUgraph_st *graph; /* NULL: none is */
    bool spoilt;              /* by a call that cannot be captured */
} capture;

work_list *late_work(cudaStream_t stream) {
    return stream && stream->is_late ? &stream->late : NULL;
}

bool is_capturing(void) {
    return capture.graph;
}

void run_work(const work_list &work) {
    for (const std::function<void()> &one : work)
        if (cudaPeekAtLastError() == cudaSuccess)
            one();
}

void capture_work(std::function<void()> work) {
    capture.graph->work.push_back(std::move(work));
}

cudaError_t refuse_in_capture(void) {
    capture.spoilt |= is_capturing();
    return is_capturing() ? set_error(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

static cudaError_t enter_to_wait(void) {
    cudaError_t error = enter_api();
    return error == cudaSuccess ? refuse_in_capture() : error;
}

void forget_capture(void) {
    delete capture.graph;
    capture = {NULL, false};
}

} // namespace emu

using namespace emu;

/* ---- streams -------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    cudaError_t error = enter_api();
    *stream =
        error == cudaSuccess ? new CUstream_st{(flags & cudaStreamNonBlocking) != 0, {}} : NULL;
    return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    return enter_api();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error = enter_to_wait();
    if (error != cudaSuccess || !stream)
        return error;
    work_list late;
    std::swap(late, stream->late);
    run_work(late);
    return cudaPeekAtLastError();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    cudaError_t error = enter_api();
    *event = error == cudaSuccess ? new CUevent_st() : NULL;
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return enter_to_wait();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
    return enter_to_wait();
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return enter_api();
}

/* ---- graphs --------------------------------------------------------------------------------- */

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
    run_work(exec->work);
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
