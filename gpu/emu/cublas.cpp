/* cublas.cpp - the cuBLAS of the emulation; OpenBLAS computes. See host_api.h. */
#include "gpu/emu/engine.h"

#include <cblas.h>

struct cublasContext {
    cublasMath_t mode;
};

using namespace emu;

const char *cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown status";
}

const char *cublasGetStatusString(cublasStatus_t status) {
    return cublasGetStatusName(status);
}

cublasStatus_t cublasCreate(cublasHandle_t *handle) {
    bool works = enter_api() == cudaSuccess;
    *handle = works ? new cublasContext{CUBLAS_DEFAULT_MATH} : NULL;
    return works ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t) {
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *, size_t) {
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

/* A column-major matrix as stored: rows x columns, columns `stride` elements apart. */
struct stored {
    int rows, columns, stride;
};

static struct stored stored_shape(cublasOperation_t op, int rows, int columns, int stride) {
    return op == CUBLAS_OP_N ? stored{rows, columns, stride} : stored{columns, rows, stride};
}

static bool is_valid(struct stored s) {
    return s.rows >= 0 && s.columns >= 0 && s.stride >= (s.rows > 1 ? s.rows : 1);
}

static bool is_on_device(const void *data, struct stored s, size_t element_bytes) {
    if (s.rows == 0 || s.columns == 0)
        return true;
    size_t elements = (size_t)s.stride * (size_t)(s.columns - 1) + (size_t)s.rows;
    struct address_range r = device_range(data, elements * element_bytes);
    return r.begin != r.end;
}

static CBLAS_TRANSPOSE transposition(cublasOperation_t op) {
    return op == CUBLAS_OP_N ? CblasNoTrans : CblasTrans;
}

/* What any product checks first. Real cuBLAS does not look at the addresses: the kernel crashes. */
static cublasStatus_t check_operands(cublasHandle_t handle, struct stored sa, const void *a,
                                     struct stored sb, const void *b, size_t input_bytes,
                                     struct stored sc, const void *c, size_t output_bytes) {
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (enter_api() != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!is_valid(sa) || !is_valid(sb) || !is_valid(sc))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_on_device(a, sa, input_bytes) && is_on_device(b, sb, input_bytes) &&
        is_on_device(c, sc, output_bytes))
        return CUBLAS_STATUS_SUCCESS;
    set_sticky_error(cudaErrorIllegalAddress);
    return CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                           int m, int n, int k, const double *alpha, const double *a, int lda,
                           const double *b, int ldb, const double *beta, double *c, int ldc) {
    cublasStatus_t status =
        check_operands(handle, stored_shape(op_a, m, k, lda), a, stored_shape(op_b, k, n, ldb), b,
                       sizeof *a, stored{m, n, ldc}, c, sizeof *c);
    if (status == CUBLAS_STATUS_SUCCESS && m > 0 && n > 0)
        cblas_dgemm(CblasColMajor, transposition(op_a), transposition(op_b), m, n, k, *alpha, a,
                    lda, b, ldb, *beta, c, ldc);
    return status;
}

/* The integers as doubles, packed. */
static std::vector<double> widened(const void *data, struct stored s) {
    const int8_t *from = static_cast<const int8_t *>(data);
    std::vector<double> to((size_t)s.rows * (size_t)s.columns);
    for (int j = 0; j < s.columns; j++)
        for (int i = 0; i < s.rows; i++)
            to[(size_t)j * s.rows + i] = from[(size_t)j * s.stride + i];
    return to;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType_t a_type, int lda, const void *b, cudaDataType_t b_type,
                            int ldb, const void *beta, void *c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t) {
    if (a_type != CUDA_R_8I || b_type != CUDA_R_8I || c_type != CUDA_R_32I)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct stored sa = stored_shape(op_a, m, k, lda), sb = stored_shape(op_b, k, n, ldb);
    cublasStatus_t status =
        check_operands(handle, sa, a, sb, b, 1, stored{m, n, ldc}, c, sizeof(int32_t));
    if (status != CUBLAS_STATUS_SUCCESS || m == 0 || n == 0)
        return status;
    if (((uintptr_t)a | (uintptr_t)b | (unsigned)lda | (unsigned)ldb) % 4 != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    std::vector<double> wide_a = widened(a, sa), wide_b = widened(b, sb);
    std::vector<double> sums((size_t)m * (size_t)n);
    cblas_dgemm(CblasColMajor, transposition(op_a), transposition(op_b), m, n, k, 1.0,
                wide_a.data(), max(sa.rows, 1), wide_b.data(), max(sb.rows, 1), 0.0, sums.data(),
                m);
    int64_t scale = *static_cast<const int32_t *>(alpha);
    int64_t keep = *static_cast<const int32_t *>(beta);
    int32_t *out = static_cast<int32_t *>(c);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            int32_t *y = &out[(size_t)j * ldc + i];
            int64_t old = keep ? keep * *y : 0; /* C may be unset when beta is 0 */
            *y = (int32_t)(scale * (int64_t)sums[(size_t)j * m + i] + old);
        }
    return CUBLAS_STATUS_SUCCESS;
}
