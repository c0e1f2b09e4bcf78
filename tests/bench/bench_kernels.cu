/*
 * bench_kernels - the CUDA kernels, each beside a limit measured in the same run.
 *
 * Memory-bound ops are compared with a device-to-device copy (bytes read plus bytes written), the
 * linear layers also with a cuBLAS bf16 product of the same shape. Every measurement is the median
 * of REPEATS; one repetition is a burst of launches between two events. Inputs are random and
 * rotate over enough copies that the L2 cache cannot hold them. Arguments name the parts to run:
 * rows, linear, attention; without any, all run.
 */
#include "gpu/blas.h"
#include "tests/bench/gpu_bench.h"

#include <cuda_bf16.h>

enum { ROWS = 8192, COLS = 4096, N = 4096, COPIES = 16 };

static double copy_tbs; /* the limit: terabytes per second of a copy */

static void print_memory(const char *op, int version, double s, double bytes) {
    printf("%-11s %7d %10.1f %9.2f %8.0f %%\n", op, version, s * 1e6, bytes / s / 1e12,
           bytes / s / 1e12 / copy_tbs * 100);
}

static void bench_copy(void) {
    size_t bytes = (size_t)1 << 30;
    char *from = (char *)random_floats(bytes / 4), *to = (char *)device_bytes(bytes);
    double s = seconds(4, [&](int) { dev->ops->copy(dev, to, from, bytes); });
    copy_tbs = 2.0 * (double)bytes / s / 1e12;
    printf("device copy of 1 GiB: %.2f TB/s read + written\n\n", copy_tbs);
    dev->ops->free(dev, from, bytes);
    dev->ops->free(dev, to, bytes);
}

static void bench_rows(void) {
    size_t count = (size_t)ROWS * COLS;
    float *x = random_floats(count), *z = random_floats(count), *gain = random_floats(COLS);
    float *y = (float *)device_bytes(4 * count);
    float *table = random_floats((size_t)ROWS * 64);
    std::vector<int32_t> host(ROWS);
    for (int i = 0; i < ROWS; i++)
        host[(size_t)i] = i;
    int32_t *positions = (int32_t *)device_bytes(4 * ROWS);
    dev->ops->upload(dev, positions, host.data(), 4 * ROWS);
    struct bfp_rows snapped = {(int16_t *)device_bytes(2 * count), (int8_t *)device_bytes(ROWS)};
    printf("%d x %d float32\nop          version         us      TB/s  of a copy\n", ROWS, COLS);
    for (int v = 1; v <= 3; v++) {
        use_version("rmsnorm", v);
        print_memory(
            "rmsnorm", v,
            seconds(8, [&](int) { dev->ops->rmsnorm(dev, y, x, gain, ROWS, COLS, 1, 1e-6, 0); }),
            8.0 * (double)count);
    }
    for (int v = 1; v <= 2; v++) {
        use_version("add_rmsnorm", v);
        print_memory("add_rmsnorm", v,
                     seconds(8,
                             [&](int) {
                                 dev->ops->add_rmsnorm(dev, y, snapped, x, z, gain, ROWS, COLS,
                                                       1e-6, 0, 1);
                             }),
                     18.0 * (double)count);
    }
    for (int v = 1; v <= 2; v++) {
        use_version("silu_mul", v);
        print_memory("silu_mul", v,
                     seconds(8, [&](int) { dev->ops->silu_mul(dev, y, x, z, count); }),
                     12.0 * (double)count);
    }
    print_memory("rope", 1,
                 seconds(8,
                         [&](int) {
                             dev->ops->rope(dev, y, positions, table, table, ROWS, COLS / 128, 128);
                         }),
                 8.0 * (double)count);
    for (int v = 1; v <= 2; v++) {
        use_version("snap_rows", v);
        print_memory("snap_rows", v,
                     seconds(8, [&](int) { dev->ops->snap_rows(dev, snapped, x, ROWS, COLS, 0); }),
                     6.0 * (double)count);
    }
    for (int v = 1; v <= 2; v++) {
        use_version("add", v);
        print_memory("add", v, seconds(8, [&](int) { dev->ops->add(dev, y, x, z, count); }),
                     12.0 * (double)count);
    }
}

/* Weights with random mantissas; COPIES of them are 512 MB. */
static struct matrix random_matrix(int n, int k, unsigned seed) {
    std::mt19937 engine(seed);
    std::vector<int16_t> q((size_t)n * (size_t)k);
    std::vector<int8_t> e((size_t)n, (int8_t)-3);
    struct matrix w;
    struct error err;
    for (int16_t &x : q)
        x = (int16_t)((int)(engine() % 65279) - 32639);
    check(!dev->ops->matrix_create(dev, &w, n, k, &err), "a matrix");
    dev->ops->matrix_put(dev, &w, 0, n, q.data(), e.data());
    return w;
}

static double bf16_seconds(int m) {
    size_t count = (size_t)N * N;
    std::mt19937 engine(5);
    std::normal_distribution<float> normal;
    std::vector<__nv_bfloat16> host(count);
    for (__nv_bfloat16 &x : host)
        x = __float2bfloat16(normal(engine));
    void *w = device_bytes(2 * count), *x = device_bytes(2 * count), *y = device_bytes(2 * count);
    dev->ops->upload(dev, w, host.data(), 2 * count);
    dev->ops->upload(dev, x, host.data(), 2 * count);
    float one = 1, zero = 0;
    double s = seconds(16, [&](int) {
        check(!cublasGemmEx(gpu_of(dev)->blas, CUBLAS_OP_T, CUBLAS_OP_N, N, m, N, &one, w,
                            CUDA_R_16BF, N, x, CUDA_R_16BF, N, &zero, y, CUDA_R_16BF, N,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              "cublasGemmEx");
    });
    dev->ops->free(dev, w, 2 * count);
    dev->ops->free(dev, x, 2 * count);
    dev->ops->free(dev, y, 2 * count);
    return s;
}

static void bench_linear(void) {
    static const int rows[] = {1, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 4096};
    const int most = 4096;
    std::vector<struct matrix> w;
    for (int i = 0; i < COPIES; i++)
        w.push_back(random_matrix(N, N, (unsigned)i + 1));
    float *x = random_floats((size_t)most * N), *y = (float *)device_bytes((size_t)most * N * 4);
    struct bfp_rows snapped = {(int16_t *)device_bytes((size_t)most * N * 2),
                               (int8_t *)device_bytes(most)};
    dev->ops->snap_rows(dev, snapped, x, most, N, 0);
    printf("\nlinear, N = K = %d: 2 bytes a weight; cuBLAS bf16 of the same shape beside it\n"
           "rows    version         us  weights TB/s  of a copy   TFLOP/s   bf16 TFLOP/s\n",
           N);
    for (int m : rows) {
        double bf16 = bf16_seconds(m), flop = 2.0 * m * N * N;
        for (int v = 2; v <= dev->ops->versions("linear"); v++) {
            if (v == 4 && m > 256)
                continue; /* for few rows */
            use_version("linear", v);
            auto one = [&](int i) {
                dev->ops->linear(dev, y, snapped, &w[(size_t)(i % COPIES)], m);
            };
            double s = v == 2 ? seconds(2, one) : graph_seconds(COPIES * 2, one);
            printf("%-7d %7d %10.1f %13.2f %8.0f %% %9.1f %14.1f\n", m, v, s * 1e6,
                   2.0 * N * N / s / 1e12, 2.0 * N * N / s / 1e12 / copy_tbs * 100, flop / s / 1e12,
                   flop / bf16 / 1e12);
        }
    }
    use_version("linear", 0);
}

/* Version 1 is left out where it would take seconds. */
static void bench_attention(int n_tokens, int kv_len) {
    struct attention_shape shape = {32, 8, 128, 0.08838834764831845, KV_BFP16};
    float *q = random_floats((size_t)n_tokens * 4096), *kv = random_floats((size_t)kv_len * 1024);
    float *y = (float *)device_bytes((size_t)n_tokens * 4096 * 4);
    size_t rows = (size_t)kv_len * 8;
    struct kv_layer layer = {(int16_t *)device_bytes(256 * rows),
                             (int16_t *)device_bytes(256 * rows), (int8_t *)device_bytes(rows),
                             (int8_t *)device_bytes(rows)};
    std::vector<int64_t> host((size_t)kv_len);
    for (int i = 0; i < kv_len; i++)
        host[(size_t)i] = i;
    int64_t *slots = (int64_t *)device_bytes(8 * (size_t)kv_len);
    dev->ops->upload(dev, slots, host.data(), 8 * (size_t)kv_len);
    struct kv_views views = kv_layer_views(&layer, KV_BFP16, 1, 8, 128);
    dev->ops->kv_append(dev, &views, kv, kv, slots, kv_len, 1, 8, 128, 0, 0);
    for (int v = n_tokens * kv_len > 1 << 20 ? 2 : 1; v <= dev->ops->versions("attention"); v++) {
        use_version("attention", v);
        double s = seconds(
            1, [&](int) { dev->ops->attention(dev, y, q, &layer, n_tokens, kv_len, &shape, 0); });
        double seen = (double)n_tokens * (kv_len - (n_tokens - 1) / 2.0);
        printf("%6d of %6d tokens, version %d: %10.1f us, %7.2f TFLOP/s, KV %.3f TB/s\n", n_tokens,
               kv_len, v, s * 1e6, 4.0 * seen * 4096 / s / 1e12,
               4.0 * 128 * (double)rows / s / 1e12);
    }
    use_version("attention", 0);
}

int main(int argc, char **argv) {
    check_parts(argc, argv, {"rows", "linear", "attention"});
    open_gpu();
    bench_copy();
    if (wanted(argc, argv, "rows"))
        bench_rows();
    if (wanted(argc, argv, "linear"))
        bench_linear();
    if (!wanted(argc, argv, "attention"))
        return 0;
    printf("\nattention, 32/8 heads, dim 128, causal, contiguous cache\n");
    bench_attention(1024, 1024);
    bench_attention(4096, 4096);
    bench_attention(1, 1024);
    bench_attention(1, 4096);
    return 0; /* the process ends; its device memory goes with it */
}
