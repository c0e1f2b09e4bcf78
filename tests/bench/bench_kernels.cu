/*
 * bench_kernels - the CUDA kernels, each beside a limit measured in the same run.
 *
 * Memory-bound ops are compared with a device-to-device copy (bytes read plus bytes written). Every
 * measurement is the median of REPEATS; one repetition is a burst of launches between two events.
 * Arguments name the parts to run: rows, attention, sample; without any, all run. bench_linear has
 * the linear layers.
 */
#include "tests/bench/gpu_bench.h"

enum { ROWS = 8192, COLS = 4096 };

static double copy_tbs; /* the limit: terabytes per second of a copy */

static void print_memory(const char *op, int version, double s, double bytes) {
    printf("%-13s %7d %10.1f %9.2f %8.0f %%\n", op, version, s * 1e6, bytes / s / 1e12,
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
    /* None of z is above 1: silu_mul_snap 1 gates in place, again and again. */
    float *x = random_floats(count), *z = random_floats(count, 0.125f), *gain = random_floats(COLS);
    float *y = (float *)device_bytes(4 * count);
    float *table = random_floats((size_t)ROWS * 64);
    std::vector<int32_t> host(ROWS);
    for (int i = 0; i < ROWS; i++)
        host[(size_t)i] = i;
    int32_t *positions = (int32_t *)device_bytes(4 * ROWS);
    dev->ops->upload(dev, positions, host.data(), 4 * ROWS);
    struct bfp_rows snapped = {(int16_t *)device_bytes(2 * count), (int8_t *)device_bytes(ROWS)};
    printf("%d x %d float32\nop            version         us      TB/s  of a copy\n", ROWS, COLS);
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
        use_version("silu_mul_snap", v);
        dev->ops->copy(dev, y, x, 4 * count);
        print_memory(
            "silu_mul_snap", v,
            seconds(8, [&](int) { dev->ops->silu_mul_snap(dev, snapped, y, z, ROWS, COLS, 0); }),
            10.0 * (double)count);
    }
    for (int v = 1; v <= 3; v++) {
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

/* The draw from as many logits as Qwen3 has words: what reading them once has of a copy's speed. */
static void bench_sample(void) {
    enum { VOCAB = 151936, MOST_ROWS = 64 };
    static const struct {
        const char *what;
        struct sampling how;
    } cases[] = {{"greedy", {0, 0, 1, 0, 0, 0}},
                 {"temperature 1", {1, 0, 1, 0, 0, 0}},
                 {"top-k 50", {1, 50, 1, 0, 0, 0}},
                 {"top-p 0.9", {1, 0, 0.9f, 0, 0, 0}},
                 {"both", {1, 50, 0.9f, 0, 0, 0}}};
    float *logits = random_floats((size_t)VOCAB * MOST_ROWS, 3);
    int32_t *drawn = (int32_t *)device_bytes(4 * MOST_ROWS);
    printf("\nsample, %d logits a row\n%-14s %8s %10s %9s   of a copy\n", VOCAB, "", "rows", "us",
           "TB/s");
    for (auto &c : cases)
        for (int rows : {1, 8, (int)MOST_ROWS}) {
            std::vector<struct sampling> how((size_t)rows, c.how);
            double s = seconds(
                4, [&](int) { dev->ops->sample(dev, drawn, logits, how.data(), rows, VOCAB, 0); });
            double tbs = 4.0 * VOCAB * rows / s / 1e12;
            printf("%-14s %8d %10.1f %9.2f %8.0f %%\n", c.what, rows, s * 1e6, tbs,
                   tbs / copy_tbs * 100);
        }
}

int main(int argc, char **argv) {
    check_parts(argc, argv, {"rows", "attention", "sample"});
    open_gpu();
    bench_copy();
    if (wanted(argc, argv, "rows"))
        bench_rows();
    if (wanted(argc, argv, "sample"))
        bench_sample();
    if (!wanted(argc, argv, "attention"))
        return 0;
    printf("\nattention, 32/8 heads, dim 128, causal, contiguous cache\n");
    bench_attention(1024, 1024);
    bench_attention(4096, 4096);
    bench_attention(1, 1024);
    bench_attention(1, 4096);
    return 0; /* the process ends; its device memory goes with it */
}
