/* The runtime and cuBLAS as this engine calls them: memory, errors, streams, matrix products. */
#include "tests/emu/device_test.h"

static void test_memory_copies_and_sets(void **) {
    std::vector<int> x(1000);
    for (int i = 0; i < 1000; i++)
        x[i] = i;
    int *a = to_device(x), *b;
    assert_cuda(cudaMalloc(&b, 1000 * sizeof *b));
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_cuda(cudaMemset(b, 0xff, 1000 * sizeof *b));
    assert_cuda(cudaMemcpyAsync(b + 100, a, 800 * sizeof *a, cudaMemcpyDeviceToDevice, 0));
    std::vector<int> y = from_device(b, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(y[i], i < 100 || i >= 900 ? -1 : i - 100);
    assert_cuda(cudaFree(a));
    assert_cuda(cudaFree(NULL));
}

static void test_pinned_memory(void **) {
    float *host, *data;
    assert_cuda(cudaMallocHost(&host, 64));
    assert_cuda(cudaMalloc(&data, 64));
    for (int i = 0; i < 16; i++)
        host[i] = (float)i;
    assert_cuda(cudaMemcpy(data, host, 64, cudaMemcpyHostToDevice));
    memset(host, 0, 64);
    assert_cuda(cudaMemcpy(host, data, 64, cudaMemcpyDeviceToHost));
    assert_true(host[15] == 15);
    assert_cuda(cudaFreeHost(host));
    assert_cuda(cudaFree(data));
}

static void test_streams(void **) {
    cudaStream_t stream;
    char host[64], *data;
    assert_cuda(cudaStreamCreate(&stream));
    assert_cuda(cudaMalloc(&data, sizeof host));
    assert_cuda(cudaMemset(data, 1, sizeof host));
    assert_cuda(cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, stream));
    assert_cuda(cudaStreamSynchronize(stream));
    assert_int_equal(host[63], 1);
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFree(data));
}

__global__ void nothing() {
}

static void test_device_attributes(void **) {
    int count = 0, value = 0;
    assert_cuda(cudaGetDeviceCount(&count));
    assert_true(count >= 1);
    assert_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    assert_true(value >= 48 * 1024);
    assert_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    assert_true(value >= 1);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1000),
                     cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    assert_cuda(cudaGetLastError());
}

/* ---- cuBLAS --------------------------------------------------------------------------------- */

#define assert_blas(call) assert_int_equal(call, CUBLAS_STATUS_SUCCESS)

struct shape {
    int m, n, k;
    cublasOperation_t op_a, op_b;
};

static const struct shape shapes[] = {
    {4, 4, 4, CUBLAS_OP_N, CUBLAS_OP_N},       {64, 12, 32, CUBLAS_OP_T, CUBLAS_OP_N},
    {32, 4, 288, CUBLAS_OP_T, CUBLAS_OP_N},    {128, 64, 96, CUBLAS_OP_N, CUBLAS_OP_N},
    {16, 100, 1024, CUBLAS_OP_T, CUBLAS_OP_N}, {24, 8, 40, CUBLAS_OP_N, CUBLAS_OP_T},
};

/* Element (row, column) of a column-major matrix with `op` applied. */
template <class T>
static int64_t at(const std::vector<T> &x, int stride, cublasOperation_t op, int row, int column) {
    return (int64_t)(op == CUBLAS_OP_N ? x[(size_t)column * stride + row]
                                       : x[(size_t)row * stride + column]);
}

static int stride_of(cublasOperation_t op, int rows, int columns) {
    return (op == CUBLAS_OP_N ? rows : columns) + 4;
}

template <class T> static std::vector<T> random_matrix(size_t n, uint32_t *state, int largest) {
    std::vector<T> x(n);
    for (T &v : x)
        v = (T)((int)(next_number(state) % (2u * largest + 1)) - largest);
    return x;
}

static void test_dgemm(void **) {
    cublasHandle_t handle;
    assert_blas(cublasCreate(&handle));
    assert_blas(cublasSetStream(handle, 0));
    uint32_t state = 29;
    for (const struct shape &s : shapes) {
        int lda = stride_of(s.op_a, s.m, s.k), ldb = stride_of(s.op_b, s.k, s.n), ldc = s.m + 3;
        std::vector<double> a =
            random_matrix<double>((size_t)lda * (s.op_a == CUBLAS_OP_N ? s.k : s.m), &state, 32639);
        std::vector<double> b =
            random_matrix<double>((size_t)ldb * (s.op_b == CUBLAS_OP_N ? s.n : s.k), &state, 32639);
        std::vector<double> c((size_t)ldc * s.n, 7);
        double *in_a = to_device(a), *in_b = to_device(b), *out = to_device(c);
        const double alpha = 2, beta = 1;
        assert_blas(cublasDgemm(handle, s.op_a, s.op_b, s.m, s.n, s.k, &alpha, in_a, lda, in_b, ldb,
                                &beta, out, ldc));
        std::vector<double> found = from_device(out, c.size());
        for (int j = 0; j < s.n; j++)
            for (int i = 0; i < ldc; i++) {
                int64_t sum = 0;
                for (int k = 0; k < s.k && i < s.m; k++)
                    sum += at(a, lda, s.op_a, i, k) * at(b, ldb, s.op_b, k, j);
                assert_true(found[(size_t)j * ldc + i] == (double)(2 * sum + 7));
            }
        assert_cuda(cudaFree(in_a));
        assert_cuda(cudaFree(in_b));
    }
    assert_blas(cublasDestroy(handle));
}

static void test_gemm_of_8_bit_integers(void **) {
    cublasHandle_t handle;
    assert_blas(cublasCreate(&handle));
    uint32_t state = 31;
    for (const struct shape &s : shapes) {
        int lda = stride_of(s.op_a, s.m, s.k), ldb = stride_of(s.op_b, s.k, s.n), ldc = s.m + 4;
        std::vector<int8_t> a =
            random_matrix<int8_t>((size_t)lda * (s.op_a == CUBLAS_OP_N ? s.k : s.m), &state, 127);
        std::vector<int8_t> b =
            random_matrix<int8_t>((size_t)ldb * (s.op_b == CUBLAS_OP_N ? s.n : s.k), &state, 127);
        int8_t *in_a = to_device(a), *in_b = to_device(b);
        int32_t *out;
        assert_cuda(cudaMalloc(&out, (size_t)ldc * s.n * sizeof *out));
        const int32_t one = 1, zero = 0;
        assert_blas(cublasGemmEx(handle, s.op_a, s.op_b, s.m, s.n, s.k, &one, in_a, CUDA_R_8I, lda,
                                 in_b, CUDA_R_8I, ldb, &zero, out, CUDA_R_32I, ldc,
                                 CUBLAS_COMPUTE_32I, CUBLAS_GEMM_DEFAULT));
        std::vector<int32_t> found = from_device(out, (size_t)ldc * s.n);
        for (int j = 0; j < s.n; j++)
            for (int i = 0; i < s.m; i++) {
                int64_t sum = 0;
                for (int k = 0; k < s.k; k++)
                    sum += at(a, lda, s.op_a, i, k) * at(b, ldb, s.op_b, k, j);
                assert_int_equal(found[(size_t)j * ldc + i], sum);
            }
        assert_cuda(cudaFree(in_a));
        assert_cuda(cudaFree(in_b));
    }
    assert_blas(cublasDestroy(handle));
}

#ifdef SAMEBITS_EMU

/* ---- what only the emulation can be told to do ---------------------------------------------- */

static void test_new_memory_is_poisoned(void **) {
    float *f;
    assert_cuda(cudaMalloc(&f, 1001));
    for (int i = 0; i < 250; i++)
        assert_true(f[i] != f[i]);
    double d;
    memcpy(&d, f, sizeof d);
    assert_true(d != d);
    assert_cuda(cudaFree(f));
}

static void test_memory_limit(void **) {
    size_t free_bytes, total, before = emu_memory_used();
    char *a, *b = (char *)1;
    emu_set_memory_limit(before + 1000000);
    assert_cuda(cudaMalloc(&a, 600000));
    assert_cuda(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(total, before + 1000000);
    assert_true(free_bytes <= 400000 && free_bytes > 399000);
    assert_int_equal(cudaMalloc(&b, 400001), cudaErrorMemoryAllocation);
    assert_null(b);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_cuda(cudaGetLastError()); /* not sticky: the device goes on */
    assert_int_equal(cudaMalloc(&b, SIZE_MAX), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_cuda(cudaFree(a));
    assert_cuda(cudaMalloc(&b, 900000));
    assert_cuda(cudaFree(b));
    assert_int_equal(emu_memory_used(), before);
    emu_set_memory_limit((size_t)16 << 30);
}

static void test_bad_copies_are_refused(void **) {
    char host[64] = {}, *data;
    assert_cuda(cudaMalloc(&data, 64));
    assert_int_equal(cudaMemcpy(host, host, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(data + 1, host, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(data, 0, 65), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(data + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaFreeHost(data), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_cuda(cudaFree(data));
}

static void test_lost_device(void **) {
    char *a, *b;
    emu_lose_device_at(3, cudaErrorECCUncorrectable);
    assert_cuda(cudaMalloc(&a, 64));
    assert_cuda(cudaMemset(a, 0, 64));
    LAUNCH(nothing, 1, 1, 0, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorECCUncorrectable);
    assert_int_equal(cudaMalloc(&b, 64), cudaErrorECCUncorrectable);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorECCUncorrectable);
    cublasHandle_t handle;
    assert_int_equal(cublasCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
    assert_int_equal(cudaFree(a), cudaErrorECCUncorrectable);
    assert_int_equal(emu_memory_used(), 0);
    assert_cuda(cudaDeviceReset());
    assert_cuda(cudaDeviceSynchronize());
    assert_int_equal(emu_memory_used(), 0);
}

static void test_device_of_another_kind(void **) {
    int count = -1, value = -1;
    struct cudaFuncAttributes attributes;
    assert_cuda(cudaFuncGetAttributes(&attributes, nothing));
    assert_int_equal(attributes.ptxVersion, 90);
    emu_set_capability(75, 80);
    assert_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor, 0));
    assert_int_equal(value, 5);
    assert_int_equal(cudaFuncGetAttributes(&attributes, nothing), cudaErrorNoKernelImageForDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorNoKernelImageForDevice);
    LAUNCH(nothing, 1, 1, 0, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorNoKernelImageForDevice);
    assert_cuda(cudaGetLastError()); /* the device goes on */
    emu_set_capability(0, 80);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, 0),
                     cudaErrorInvalidDevice);
    emu_reset();
    assert_cuda(cudaGetDeviceCount(&count));
    assert_int_equal(count, 1);
}

static void test_products_of_foreign_memory_are_refused(void **) {
    cublasHandle_t handle;
    assert_blas(cublasCreate(&handle));
    double *a = to_device(std::vector<double>(16, 1)), host[16] = {}, one = 1;
    assert_int_equal(
        cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, a, 3, a, 4, &one, a, 4),
        CUBLAS_STATUS_INVALID_VALUE);
    int8_t *bytes = (int8_t *)a;
    const int32_t one_32 = 1;
    assert_int_equal(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one_32, bytes,
                                  CUDA_R_8I, 2, bytes, CUDA_R_8I, 4, &one_32, a, CUDA_R_32I, 4,
                                  CUBLAS_COMPUTE_32I, CUBLAS_GEMM_DEFAULT),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(
        cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, a, 4, host, 4, &one, a, 4),
        CUBLAS_STATUS_EXECUTION_FAILED);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_blas(cublasDestroy(handle));
    assert_cuda(cudaDeviceReset());
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_copies_and_sets),
        cmocka_unit_test(test_pinned_memory),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_device_attributes),
        cmocka_unit_test(test_dgemm),
        cmocka_unit_test(test_gemm_of_8_bit_integers),
#ifdef SAMEBITS_EMU
        cmocka_unit_test(test_new_memory_is_poisoned),
        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_bad_copies_are_refused),
        cmocka_unit_test(test_lost_device),
        cmocka_unit_test(test_device_of_another_kind),
        cmocka_unit_test(test_products_of_foreign_memory_are_refused),
#endif
    };
    int failures = 0;
    RUN_GROUP(tests, failures);
    return failures;
}
