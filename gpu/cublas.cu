/*
 * cuBLAS, loaded when a GPU is opened. Linked, it would make every start of a program 0.1 s longer,
 * with a GPU or without. These are the library's own functions, as its header
 * declares them, each of which calls the one of the library; without it they fail, and the status
 * says why. (The emulation has its own: gpu/emu/cublas.cpp.)
 */
#ifndef SAMEBITS_EMU
#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdio.h>

#define TEXT(x) #x
#define NAME_OF(version) "libcublas.so." TEXT(version)

static char why_not[256] = "cuBLAS is not loaded"; /* after a failure */

static void *load(void) {
    void *library = dlopen(NAME_OF(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(why_not, sizeof why_not,
                 "%s (is the CUDA toolkit's library folder known to ld.so?)", dlerror());
    return library;
}

/* The library's function of this name; NULL: there is none. */
static void *find(const char *name) {
    static void *library = load();
    return library ? dlsym(library, name) : NULL;
}

/* Calls it with arguments of just these types. */
template <class... A> static cublasStatus_t call(const char *name, A... arguments) {
    auto function = (cublasStatus_t(*)(A...))find(name);
    return function ? function(arguments...) : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    return call("cublasCreate_v2", handle);
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    return call("cublasDestroy_v2", handle);
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    return call("cublasSetStream_v2", handle, stream);
}

cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                              int m, int n, int k, const double *alpha, const double *a, int lda,
                              const double *b, int ldb, const double *beta, double *c, int ldc) {
    return call("cublasDgemm_v2", handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType type_a, int lda, const void *b, cudaDataType type_b,
                            int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    return call("cublasGemmEx", handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb,
                beta, c, type_c, ldc, compute, algorithm);
}

const char *cublasGetStatusString(cublasStatus_t status) {
    auto function = (const char *(*)(cublasStatus_t))find("cublasGetStatusString");
    return function ? function(status) : why_not;
}
#endif
