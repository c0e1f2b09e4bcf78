/* cublas.cpp - the cuBLAS of the emulation; OpenBLAS computes. See host_api.h. */
#include "gpu/emu/engine.h"

#include <cblas.h>

struct cublasContext {};

using namespace emu;

const char *cublasGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown status";
}

cublasStatus_t cublasCreate(cublasHandle_t *handle) {
    bool works = enter_api() == cudaSuccess;
    *handle = works ? new cublasContext() : NULL;
    return works ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t) {
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

/* The operands of a product. */
struct operands {
    struct stored sa, sb, sc;
    const void *a, *b;
    void *c;
    size_t input_bytes, output_bytes; /* of an element */
};

static struct operands operands_of(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                   int k, const void *a, int lda, const void *b, int ldb, void *c,
                                   int ldc) {
    return {
        stored_shape(op_a, m, k, lda), stored_shape(op_b, k, n, ldb), {m, n, ldc}, a, b, c, 0, 0};
}

/* Computes the product, or lets a capture do it when its graph is launched. Checks operands before:
 * their addresses when it is computed. (Real cuBLAS does not look at those: the kernel crashes.) */
template <class Product>
static cublasStatus_t multiply(cublasHandle_t handle, const struct operands &o, Product product) {
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (enter_api() != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!is_valid(o.sa) || !is_valid(o.sb) || !is_valid(o.sc))
        return CUBLAS_STATUS_INVALID_VALUE;
    auto work = [o, product] {
        bool fits = is_on_device(o.a, o.sa, o.input_bytes) &&
                    is_on_device(o.b, o.sb, o.input_bytes) &&
                    is_on_device(o.c, o.sc, o.output_bytes);
        if (!fits)
            set_sticky_error(cudaErrorIllegalAddress);
        else if (o.sc.rows > 0 && o.sc.columns > 0)
            product();
        return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
    };
    if (!is_capturing())
        return work();
    capture_work([work] { work(); });
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                           int m, int n, int k, const double *alpha, const double *a, int lda,
                           const double *b, int ldb, const double *beta, double *c, int ldc) {
    struct operands o = operands_of(op_a, op_b, m, n, k, a, lda, b, ldb, c, ldc);
    o.input_bytes = o.output_bytes = sizeof *c;
    return multiply(handle, o, [=, alpha = *alpha, beta = *beta] {
        cblas_dgemm(CblasColMajor, transposition(op_a), transposition(op_b), m, n, k, alpha, a, lda,
                    b, ldb, beta, c, ldc);
    });
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
    if (((uintptr_t)a | (uintptr_t)b | (unsigned)lda | (unsigned)ldb) % 4 != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct operands o = operands_of(op_a, op_b, m, n, k, a, lda, b, ldb, c, ldc);
    o.input_bytes = 1;
    o.output_bytes = sizeof(int32_t);
    int64_t scale = *static_cast<const int32_t *>(alpha);
    int64_t keep = *static_cast<const int32_t *>(beta);
    return multiply(handle, o, [=] {
        std::vector<double> wide_a = widened(a, o.sa), wide_b = widened(b, o.sb);
        std::vector<double> sums((size_t)m * (size_t)n);
        cblas_dgemm(CblasColMajor, transposition(op_a), transposition(op_b), m, n, k, 1.0,
                    wide_a.data(), max(o.sa.rows, 1), wide_b.data(), max(o.sb.rows, 1), 0.0,
                    sums.data(), m);
        int32_t *out = static_cast<int32_t *>(c);
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                int32_t *y = &out[(size_t)j * ldc + i];
                int64_t old = keep ? keep * *y : 0; /* C may be unset when beta is 0 */
                *y = (int32_t)(scale * (int64_t)sums[(size_t)j * m + i] + old);
            }
    });
}
