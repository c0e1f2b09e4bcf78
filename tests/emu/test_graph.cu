/*
 * CUDA graphs: what is captured is done when the graph is launched, not before, and as often; with
 * the arguments of its capture and the memory of its launch. What cannot be captured spoils it. And
 * streams whose work is done later.
 */
#include "tests/emu/device_test.h"

__global__ void add_to(int *y, const int *x, int n, int more) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += x[i] + more;
}

static cudaStream_t stream;

static int start(void **) {
    return cudaStreamCreate(&stream) != cudaSuccess;
}

static int stop(void **) {
    return cudaStreamDestroy(stream) != cudaSuccess;
}

static cudaGraphExec_t captured(void (*work)(void *), void *context) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work(context);
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    assert_cuda(cudaGraphDestroy(graph));
    return exec;
}

static void launch(cudaGraphExec_t exec) {
    assert_cuda(cudaGraphLaunch(exec, stream));
    assert_cuda(cudaStreamSynchronize(stream));
}

struct arrays {
    int *y, *x;
    int more;
};

static void add_twice(void *context) {
    struct arrays *a = static_cast<struct arrays *>(context);
    LAUNCH(add_to, 4, 32, 0, stream, a->y, a->x, 100, a->more);
    LAUNCH(add_to, 2, 64, 0, stream, a->y, a->x, 100, 10 * a->more);
}

static void expect_all(const int *y, int want) {
    std::vector<int> got(100);
    assert_cuda(cudaMemcpy(got.data(), y, 100 * sizeof *y, cudaMemcpyDeviceToHost));
    for (int value : got)
        assert_int_equal(value, want);
}

static void test_launches_are_repeated(void **) {
    struct arrays a = {to_device(std::vector<int>(100, 0)), to_device(std::vector<int>(100, 1)), 3};
    cudaGraphExec_t exec = captured(add_twice, &a);
    expect_all(a.y, 0); /* nothing is done yet */
    a.more = 1000000;   /* too late */
    launch(exec);
    expect_all(a.y, 35);
    assert_cuda(cudaMemset(a.x, 0, 100 * sizeof(int)));
    launch(exec);
    expect_all(a.y, 68);
    assert_cuda(cudaGraphExecDestroy(exec));
    LAUNCH(add_to, 4, 32, 0, stream, a.y, a.x, 100, 1); /* at once again */
    assert_cuda(cudaStreamSynchronize(stream));
    expect_all(a.y, 69);
    assert_cuda(cudaFree(a.x));
    assert_cuda(cudaFree(a.y));
}

/* A stream that does not block the others is as late as can be, and in order. */
static void test_a_stream_beside_the_others(void **) {
    cudaStream_t beside;
    cudaEvent_t event;
    struct arrays a = {to_device(std::vector<int>(100, 0)), to_device(std::vector<int>(100, 1)), 3};
    assert_cuda(cudaStreamCreateWithPriority(&beside, cudaStreamNonBlocking, 0));
    assert_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    assert_cuda(cudaEventRecord(event, stream));
    assert_cuda(cudaStreamWaitEvent(beside, event, 0));
    LAUNCH(add_to, 4, 32, 0, beside, a.x, a.x, 100, 1);
    LAUNCH(add_to, 4, 32, 0, beside, a.y, a.x, 100, a.more);
    assert_cuda(cudaStreamSynchronize(stream));
    expect_all(a.x, 1);
    LAUNCH(add_to, 4, 32, 0, stream, a.y, a.x, 100, 0);
    expect_all(a.y, 1);
    assert_cuda(cudaStreamSynchronize(beside));
    expect_all(a.x, 3);
    expect_all(a.y, 7);
    assert_cuda(cudaStreamSynchronize(beside));
    expect_all(a.y, 7);
    assert_cuda(cudaEventDestroy(event));
    assert_cuda(cudaStreamDestroy(beside));
    assert_cuda(cudaFree(a.x));
    assert_cuda(cudaFree(a.y));
}

static void test_what_cannot_be_captured(void **) {
    cudaGraph_t graph;
    void *data = NULL;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaMalloc(&data, 16), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    cudaGetLastError();
    assert_cuda(cudaMalloc(&data, 16)); /* all is well again */
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    assert_cuda(cudaFree(data));
}

#ifdef SAMEBITS_EMU

struct product {
    cublasHandle_t handle;
    double *a, *b, *c;
};

static void multiply(void *context) {
    struct product *p = static_cast<struct product *>(context);
    double one = 1, zero = 0; /* read now */
    cublasDgemm(p->handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 2, &one, p->a, 1, p->b, 2, &zero, p->c,
                1);
}

static void test_products_are_repeated(void **) {
    struct product p = {NULL, to_device(std::vector<double>{2, 3}),
                        to_device(std::vector<double>{5, 7}), to_device(std::vector<double>{0})};
    double sum;
    assert_int_equal(cublasCreate(&p.handle), CUBLAS_STATUS_SUCCESS);
    cudaGraphExec_t exec = captured(multiply, &p);
    for (double first = 2; first < 5; first++) {
        assert_cuda(cudaMemcpy(p.a, &first, sizeof first, cudaMemcpyHostToDevice));
        launch(exec);
        assert_cuda(cudaMemcpy(&sum, p.c, sizeof sum, cudaMemcpyDeviceToHost));
        assert_true(sum == 5 * first + 21);
    }
    assert_cuda(cudaGraphExecDestroy(exec));
    cublasDestroy(p.handle);
    assert_cuda(cudaFree(p.a));
    assert_cuda(cudaFree(p.b));
    assert_cuda(cudaFree(p.c));
}

/* A graph that uses memory which is no more, and the launch that is told of it. */
static void test_freed_memory_is_found(void **) {
    struct arrays a = {to_device(std::vector<int>(100, 0)), to_device(std::vector<int>(100, 1)), 3};
    cudaGraphExec_t exec = captured(add_twice, &a);
    launch(exec);
    assert_cuda(cudaFree(a.x));
    emu_set_handler([](const struct emu_report *) {}); /* say nothing */
#ifndef __SANITIZE_ADDRESS__                           /* which ends the process */
    assert_cuda(cudaGraphLaunch(exec, stream));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    assert_true(emu_last_report().fault == EMU_DEVICE_BOUNDS);
#endif
    cudaGraphExecDestroy(exec);
    assert_cuda(cudaDeviceReset());
    emu_set_handler(NULL);
}

#define EMU_TESTS                                                                                  \
    cmocka_unit_test_setup_teardown(test_products_are_repeated, start, stop),                      \
        cmocka_unit_test_setup_teardown(test_freed_memory_is_found, start, stop),
#else
#define EMU_TESTS
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_launches_are_repeated, start, stop),
        cmocka_unit_test_setup_teardown(test_a_stream_beside_the_others, start, stop),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_captured, start, stop), EMU_TESTS};
    int failures = 0;
    RUN_GROUP(tests, failures);
    return failures;
}
