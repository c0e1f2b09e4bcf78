/*
 * bench_linear - exact products beside cuBLAS bf16 in the same run.
 *
 *     bench_linear            both tables below
 *     bench_linear versions   N = K = 4096, by version of the kernel
 *     bench_linear shapes     every product of a layer of two known models, and their output
 *                             matrices, as the engine chooses
 *
 * A measurement is the median of REPEATS replays of a graph of launches. Both sides read other
 * weights in each launch, so many that the L2 cache cannot hold them.
 */
#include "gpu/blas.h"
#include "tests/bench/random_model.h"

#include <cuda_bf16.h>

enum { MOST_ROWS = 4096 };

static double copy_tbs; /* the limit: terabytes per second of a copy */

static void measure_copy(void) {
    size_t bytes = (size_t)1 << 30;
    void *from = device_bytes(bytes), *to = device_bytes(bytes);
    random_bytes<<<1024, 256>>>((uint32_t *)from, bytes / 4, 1);
    double s = seconds(4, [&](int) { dev->ops->copy(dev, to, from, bytes); });
    copy_tbs = 2.0 * (double)bytes / s / 1e12;
    printf("device copy of 1 GiB: %.2f TB/s read + written\n", copy_tbs);
    dev->ops->free(dev, from, bytes);
    dev->ops->free(dev, to, bytes);
}

/* What a product takes: some matrices with one k, as one launch of ours, and beside it one matrix
 * of bf16 with all their outputs. */
struct product_shape {
    const char *model, *name;
    int n_parts, n[MOST_LINEAR_PARTS], k;
};

static int outputs_of(const struct product_shape *shape) {
    return shape->n[0] + shape->n[1] + shape->n[2];
}

/* Copies of the weights of a product that take turns: 400 MB, or three. */
static int copies_of(const struct product_shape *shape) {
    size_t bytes = 2 * (size_t)outputs_of(shape) * (size_t)shape->k;
    return (int)std::max((size_t)3, ((size_t)400 << 20) / bytes);
}

/* Normally distributed, nearly: sums of four random bytes. */
__global__ static void bf16_from_bytes(__nv_bfloat16 *y, const uint32_t *bytes, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t b = bytes[i];
        int sum = (int)((b & 255) + (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24)) - 510;
        y[i] = __float2bfloat16((float)sum / 148);
    }
}

static __nv_bfloat16 *random_bf16(size_t count, uint32_t seed) {
    uint32_t *bytes = (uint32_t *)device_bytes(4 * count);
    __nv_bfloat16 *y = (__nv_bfloat16 *)device_bytes(2 * count);
    random_bytes<<<1024, 256>>>(bytes, count, seed);
    bf16_from_bytes<<<1024, 256>>>(y, bytes, count);
    check(!cudaDeviceSynchronize(), "random numbers");
    dev->ops->free(dev, bytes, 4 * count);
    return y;
}

/* The operands of a product, for both sides, and the results of either. */
struct operands {
    struct product_shape shape;
    std::vector<struct matrix> w; /* [copies, n_parts] */
    struct bfp_rows x;
    float *y;     /* [MOST_ROWS, outputs] */
    size_t count; /* of the weights */
    __nv_bfloat16 *bf16_w, *bf16_x;
};

static struct operands make_operands(const struct product_shape *shape) {
    struct operands o = {};
    size_t k = (size_t)shape->k, x_count = MOST_ROWS * k;
    int copies = copies_of(shape);
    o.shape = *shape;
    o.count = (size_t)outputs_of(shape) * k;
    o.y = (float *)device_bytes(4 * MOST_ROWS * (size_t)outputs_of(shape));
    o.x = {(int16_t *)device_bytes(2 * x_count), (int8_t *)device_bytes(MOST_ROWS)};
    float *x = random_floats(x_count);
    dev->ops->snap_rows(dev, o.x, x, MOST_ROWS, shape->k, 0);
    check_device();
    dev->ops->free(dev, x, 4 * x_count);
    o.w.resize((size_t)(copies * shape->n_parts));
    for (size_t i = 0; i < o.w.size(); i++)
        random_matrix(&o.w[i], shape->n[i % (size_t)shape->n_parts], shape->k, -3);
    o.bf16_w = random_bf16((size_t)copies * o.count, 3);
    o.bf16_x = random_bf16(x_count, 4);
    return o;
}

static void free_operands(struct operands *o) {
    size_t k = (size_t)o->shape.k;
    for (struct matrix &w : o->w)
        dev->ops->matrix_free(dev, &w);
    dev->ops->free(dev, o->x.mantissas, 2 * MOST_ROWS * k);
    dev->ops->free(dev, o->x.exponents, MOST_ROWS);
    dev->ops->free(dev, o->y, 4 * MOST_ROWS * (size_t)outputs_of(&o->shape));
    dev->ops->free(dev, o->bf16_w, 2 * (size_t)copies_of(&o->shape) * o->count);
    dev->ops->free(dev, o->bf16_x, 2 * MOST_ROWS * k);
}

static double our_seconds(const struct operands *o, int rows) {
    const struct product_shape *s = &o->shape;
    int copies = copies_of(s);
    return graph_seconds(copies, [&](int i) {
        struct linear_part parts[MOST_LINEAR_PARTS];
        float *y = o->y;
        for (int j = 0; j < s->n_parts; j++) {
            parts[j] = {y, &o->w[(size_t)(i % copies * s->n_parts + j)]};
            y += (size_t)rows * (size_t)s->n[j];
        }
        dev->ops->linear_parts(dev, parts, s->n_parts, o->x, rows);
    });
}

static double bf16_seconds(const struct operands *o, int rows) {
    int n = outputs_of(&o->shape), k = o->shape.k, copies = copies_of(&o->shape);
    float one = 1, zero = 0;
    return graph_seconds(copies, [&](int i) {
        check(!cublasGemmEx(gpu_of(dev)->blas, CUBLAS_OP_T, CUBLAS_OP_N, n, rows, k, &one,
                            o->bf16_w + (size_t)(i % copies) * o->count, CUDA_R_16BF, k, o->bf16_x,
                            CUDA_R_16BF, k, &zero, o->y, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT),
              "cublasGemmEx");
    });
}

/* ---- N = K = 4096 by version ------------------------------------------------------------------
 */

static void versions_table(void) {
    static const int rows[] = {1, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 4096};
    const struct product_shape square = {"", "", 1, {4096}, 4096};
    struct operands o = make_operands(&square);
    double weights = 2.0 * (double)o.count;
    printf("\nlinear, N = K = 4096: 2 bytes a weight; cuBLAS bf16 of the same shape beside it\n"
           "rows    version         us  weights TB/s  of a copy   TFLOP/s   bf16 TFLOP/s\n");
    for (int m : rows) {
        double bf16 = bf16_seconds(&o, m), flop = (double)m * weights;
        for (int v = 2; v <= dev->ops->versions("linear"); v++) {
            if (v == 4 && m > 256)
                continue; /* for few rows */
            use_version("linear", v);
            double s = our_seconds(&o, m);
            printf("%-7d %7d %10.1f %13.2f %8.0f %% %9.1f %14.1f\n", m, v, s * 1e6,
                   weights / s / 1e12, weights / s / 1e12 / copy_tbs * 100, flop / s / 1e12,
                   flop / bf16 / 1e12);
        }
    }
    use_version("linear", 0);
    free_operands(&o);
}

/* ---- the products of known models -------------------------------------------------------------
 */

static const struct product_shape shapes[] = {
    {"qwen3-0.6b", "q, k, v", 3, {2048, 1024, 1024}, 1024},
    {"qwen3-0.6b", "o", 1, {1024}, 2048},
    {"qwen3-0.6b", "gate, up", 2, {3072, 3072}, 1024},
    {"qwen3-0.6b", "down", 1, {1024}, 3072},
    {"qwen3-0.6b", "output", 1, {151936}, 1024},
    {"llama-3-8b", "q, k, v", 3, {4096, 1024, 1024}, 4096},
    {"llama-3-8b", "o", 1, {4096}, 4096},
    {"llama-3-8b", "gate, up", 2, {14336, 14336}, 4096},
    {"llama-3-8b", "down", 1, {4096}, 14336},
    {"llama-3-8b", "output", 1, {128256}, 4096},
};

static void shapes_table(void) {
    printf("\nshape       product       N      K   rows       us  of a copy  TFLOP/s  bf16 us  "
           "bf16 TFLOP/s  bf16 : ours\n");
    for (const struct product_shape &shape : shapes) {
        struct operands o = make_operands(&shape);
        for (int m : {32, 64, 128, 256, 1024, 4096}) {
            double s = our_seconds(&o, m), bf16 = bf16_seconds(&o, m);
            double flop = 2.0 * m * (double)o.count;
            printf("%-11s %-8s %6d %6d %6d %8.1f %8.0f %% %8.1f %8.1f %13.1f %11.2f\n", shape.model,
                   shape.name, outputs_of(&shape), shape.k, m, s * 1e6,
                   2.0 * (double)o.count / s / 1e12 / copy_tbs * 100, flop / s / 1e12, bf16 * 1e6,
                   flop / bf16 / 1e12, bf16 / s);
            fflush(stdout);
        }
        free_operands(&o);
    }
}

int main(int argc, char **argv) {
    check_parts(argc, argv, {"versions", "shapes"});
    open_gpu();
    measure_copy();
    if (wanted(argc, argv, "shapes"))
        shapes_table();
    if (wanted(argc, argv, "versions"))
        versions_table();
    return 0; /* the process ends; its device memory goes with it */
}
