/*
 * host_api.h - the part of the CUDA runtime and of cuBLAS that this engine calls, for the
 * emulation: same names, same values, same rules for errors.
 *
 * Device memory is host memory that cudaMalloc fills with a pattern which is a NaN as float and as
 * double and a useless index as integer. Everything runs at once, streams included. An error that a
 * real device cannot recover from (a fault in a kernel, a lost device) is returned by every call
 * until cudaDeviceReset().
 */
#ifndef SAMEBITS_HOST_API_H
#define SAMEBITS_HOST_API_H

#include "gpu/emu/controls.h"
#include "gpu/emu/cuda_types.h"

/* ---- errors --------------------------------------------------------------------------------- */

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorIllegalState = 401,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
};
typedef enum cudaError cudaError_t;

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t error);

/* ---- devices -------------------------------------------------------------------------------- */

enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize(void);

/* Frees all device memory and forgets all errors and kernel attributes. */
cudaError_t cudaDeviceReset(void);

/* ---- memory --------------------------------------------------------------------------------- */

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4,
};

typedef struct CUstream_st *cudaStream_t;

cudaError_t emu_malloc(void **data, size_t bytes);
cudaError_t emu_malloc_host(void **data, size_t bytes);
template <class T> cudaError_t cudaMalloc(T **data, size_t bytes) {
    return emu_malloc(reinterpret_cast<void **>(data), bytes);
}
template <class T> cudaError_t cudaMallocHost(T **data, size_t bytes) {
    return emu_malloc_host(reinterpret_cast<void **>(data), bytes);
}
cudaError_t cudaFree(void *data);
cudaError_t cudaFreeHost(void *data);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream = 0);
cudaError_t cudaMemset(void *data, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream = 0);

/* A __device__ or __constant__ variable is a variable of the program. */
cudaError_t emu_copy_symbol(void *to, const void *from, size_t bytes, size_t symbol_bytes);
template <class T> cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t bytes) {
    return emu_copy_symbol(to, reinterpret_cast<const void *>(&symbol), bytes, sizeof symbol);
}

/* ---- streams -------------------------------------------------------------------------------- */

/* What is asked of a stream is done at once; of one that does not block the others
 * (cudaStreamNonBlocking), as late as a GPU may do it: when somebody waits for the stream. An event
 * that such a stream waits for is in the past by then. */
cudaError_t cudaStreamCreate(cudaStream_t *stream);
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

typedef struct CUevent_st *cudaEvent_t;
enum { cudaEventDisableTiming = 2 };
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);

/* ---- graphs --------------------------------------------------------------------------------- */

/* What is captured: launches of kernels and matrix products. Getting memory, giving it back,
 * copying and waiting spoil a capture. (A real one takes copies, too, which this engine does not
 * record.) */

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- kernels -------------------------------------------------------------------------------- */

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

cudaError_t emu_set_function_attribute(const void *function, enum cudaFuncAttribute attribute,
                                       int value);
template <class T>
cudaError_t cudaFuncSetAttribute(T *function, enum cudaFuncAttribute attribute, int value) {
    return emu_set_function_attribute(reinterpret_cast<const void *>(function), attribute, value);
}

struct cudaFuncAttributes {
    int maxThreadsPerBlock;
    int ptxVersion, binaryVersion; /* ten times the compute capability that it was compiled for */
};

/* Fails where a launch would, because the build has no code for this device. */
cudaError_t emu_function_attributes(struct cudaFuncAttributes *attributes);
template <class T> cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, T *) {
    return emu_function_attributes(attributes);
}

/* ---- cuBLAS, answered by OpenBLAS ----------------------------------------------------------- */

typedef struct cublasContext *cublasHandle_t;

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum { CUDA_R_32F = 0, CUDA_R_8I = 3, CUDA_R_32I = 10 } cudaDataType_t;
typedef enum { CUBLAS_COMPUTE_32I = 72, CUBLAS_COMPUTE_32I_PEDANTIC = 73 } cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 } cublasGemmAlgo_t;

const char *cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate(cublasHandle_t *handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);

/* C = alpha op(A) op(B) + beta C, all column-major; alpha and beta are host memory. */
cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                           int m, int n, int k, const double *alpha, /* op(A) is [m, k] */
                           const double *a, int lda,                 /* op(B) is [k, n] */
                           const double *b, int ldb, const double *beta, double *c, int ldc);

/* Products of 8-bit integers into 32-bit integers, with cuBLAS's demand that a, b, lda and ldb
 * are multiples of 4; other types are CUBLAS_STATUS_NOT_SUPPORTED. Exact, like cuBLAS, while
 * k * 2^14 < 2^31. */
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType_t a_type, int lda, const void *b, cudaDataType_t b_type,
                            int ldb, const void *beta, void *c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm);

#endif
