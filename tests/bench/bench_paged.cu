/*
 * bench_paged - attention over a paged cache: 32 query heads, 8 kv heads, dimension 128, pages in
 * random order. Each time is the median of REPEATS replays of a CUDA graph in which batches take
 * turns whose caches together are several times the L2 cache. The limit beside it, from the same
 * run, is a kernel that only reads. Bytes counted: mantissas and exponents of all keys and values.
 *
 *     bench_paged            decode, every version; mixed lengths; page sizes; prefill
 *     bench_paged BxN ...    version 4 for B sequences of N positions; mixed: of 1 to 8192
 *
 * paged_beside_pytorch.py runs it beside PyTorch.
 */
#include "tests/bench/gpu_bench.h"

#include "gpu/attention_plan.h"

enum { HEADS = 32, KV_HEADS = 8, DIM = 128 };

static const size_t rotated_bytes = (size_t)1 << 30; /* at least */
static double read_tbs;

__global__ static void read_all(const uint4 *x, size_t n, unsigned *out) {
    unsigned sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = x[i];
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u) /* never known in advance: the loads stay */
        *out = sum;
}

__global__ static void fill_random(uint32_t *x, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h ^= h >> 15;
        h *= 0x7feb352du;
        x[i] = (h ^ h >> 13) & 0x3fff3fffu;
    }
}

static void bench_read(void) {
    size_t bytes = (size_t)2 << 30;
    uint4 *x = (uint4 *)device_bytes(bytes);
    unsigned *out = (unsigned *)device_bytes(4);
    fill_random<<<1024, 256>>>((uint32_t *)x, bytes / 4);
    cudaDeviceSynchronize();
    double s = seconds(
        4, [&](int) { read_all<<<132 * 8, 512, 0, gpu_of(dev)->stream>>>(x, bytes / 16, out); });
    read_tbs = (double)bytes / s / 1e12;
    printf("a kernel that only reads 2 GiB: %.2f TB/s\n", read_tbs);
    dev->ops->free(dev, x, bytes);
    dev->ops->free(dev, out, 4);
}

/* Several batches over one pool. */
struct rotation {
    std::vector<struct attention_plan *> plans;
    struct kv_layer kv;
    size_t slots, positions; /* of the pool; of one batch */
    float *q, *y;
    size_t q_bytes;
};

static struct rotation start(const std::vector<int> &lengths, int qo_len, int page_size) {
    struct rotation r = {};
    struct error err;
    size_t pages = 0, n = lengths.size();
    for (int length : lengths) {
        pages += (size_t)((length + page_size - 1) / page_size);
        r.positions += (size_t)length;
    }
    size_t bytes_per_slot = (size_t)KV_HEADS * (DIM + DIM) * 2;
    size_t copies = rotated_bytes / (pages * (size_t)page_size * bytes_per_slot) + 1;
    copies = copies > 256 ? 256 : copies;
    r.slots = pages * copies * (size_t)page_size;
    size_t rows = r.slots * KV_HEADS;
    r.kv.k = (int16_t *)device_bytes(2 * DIM * rows);
    r.kv.v = (int16_t *)device_bytes(2 * DIM * rows);
    r.kv.k_exponents = (int8_t *)device_bytes(rows);
    r.kv.v_exponents = (int8_t *)device_bytes(rows);
    fill_random<<<1024, 256>>>((uint32_t *)r.kv.k, DIM * rows / 2);
    fill_random<<<1024, 256>>>((uint32_t *)r.kv.v, DIM * rows / 2);
    cudaMemset(r.kv.k_exponents, 0, rows);
    cudaMemset(r.kv.v_exponents, 0, rows);
    cudaDeviceSynchronize();
    std::vector<int32_t> order(pages * copies), qo(n + 1), indptr(n + 1), last(n);
    for (size_t i = 0; i < order.size(); i++)
        order[i] = (int32_t)i;
    std::shuffle(order.begin(), order.end(), std::mt19937(11));
    for (size_t i = 0; i < n; i++) {
        qo[i + 1] = qo[i] + qo_len;
        indptr[i + 1] = indptr[i] + (lengths[i] + page_size - 1) / page_size;
        last[i] = (lengths[i] - 1) % page_size + 1;
    }
    struct attention_shape shape = {HEADS, KV_HEADS, DIM, 0.08838834764831845};
    for (size_t c = 0; c < copies; c++) {
        struct attention_plan *plan = dev->ops->attention_plan_new(dev, &err);
        struct paged_batch batch = {(int)n,     page_size,     (int)order.size(),
                                    qo.data(),  indptr.data(), order.data() + c * pages,
                                    last.data()};
        check(plan && !dev->ops->attention_plan(dev, plan, &batch, &shape, &err), "a plan");
        r.plans.push_back(plan);
    }
    r.q_bytes = (size_t)qo[n] * HEADS * DIM * 4;
    r.q = random_floats(r.q_bytes / 4);
    r.y = (float *)device_bytes(r.q_bytes);
    return r;
}

static void end(struct rotation *r) {
    size_t rows = r->slots * KV_HEADS;
    for (struct attention_plan *plan : r->plans)
        dev->ops->attention_plan_free(dev, plan);
    dev->ops->free(dev, r->kv.k, 2 * DIM * rows);
    dev->ops->free(dev, r->kv.v, 2 * DIM * rows);
    dev->ops->free(dev, r->kv.k_exponents, rows);
    dev->ops->free(dev, r->kv.v_exponents, rows);
    dev->ops->free(dev, r->q, r->q_bytes);
    dev->ops->free(dev, r->y, r->q_bytes);
}

static double time_of(struct rotation *r) {
    int burst = (int)r->plans.size() < 4 ? 4 : (int)r->plans.size();
    return graph_seconds(burst, [&](int i) {
        dev->ops->attention_paged(dev, r->y, r->q, &r->kv, r->plans[(size_t)i % r->plans.size()],
                                  0);
    });
}

static void print_decode(const char *what, int version, double s, size_t positions) {
    double bytes = (double)positions * KV_HEADS * 2 * (2 * DIM + 1);
    printf("%-22s %7d %10.1f %8.2f %8.0f %%\n", what, version, s * 1e6, bytes / s / 1e12,
           bytes / s / 1e12 / read_tbs * 100);
    fflush(stdout);
}

static void decode(const char *what, const std::vector<int> &lengths, int page_size, int first) {
    struct rotation r = start(lengths, 1, page_size);
    for (int v = first; v <= 4; v++) {
        use_version("attention_paged", v);
        print_decode(what, v, time_of(&r), r.positions);
    }
    end(&r);
}

static void prefill(int n, int length) {
    struct rotation r = start(std::vector<int>((size_t)n, length), length, 16);
    use_version("attention_paged", 4);
    double s = time_of(&r), seen = (double)length * (length + 1) / 2 * n;
    printf("%4d x %5d tokens: %10.1f us, %7.1f TFLOP/s\n", n, length, s * 1e6,
           4.0 * seen * HEADS * DIM / s / 1e12);
    end(&r);
}

/* Lengths from 1 to 8192, 64 of them, as many positions as 64 x 4096. */
static std::vector<int> mixed_lengths(void) {
    std::vector<int> lengths;
    int left = 64 * 4096;
    for (int i = 0; i < 64; i++) {
        int length = i < 63 ? 1 + i * 130 : left;
        lengths.push_back(length);
        left -= length;
    }
    std::shuffle(lengths.begin(), lengths.end(), std::mt19937(12));
    return lengths;
}

static void heading(const char *what) {
    printf("\n%-22s version         us     TB/s  of a read\n", what);
}

int main(int argc, char **argv) {
    static const int cases[][2] = {{1, 1024},  {1, 4096},  {1, 32768}, {8, 4096},
                                   {64, 1024}, {64, 4096}, {256, 1024}};
    open_gpu();
    bench_read();
    heading("sequences x positions");
    for (int i = 1; i < argc; i++) {
        int n = 0, length = 0;
        if (!strcmp(argv[i], "mixed")) {
            decode("64 of 1 ... 8192", mixed_lengths(), 16, 4);
            continue;
        }
        check(sscanf(argv[i], "%dx%d", &n, &length) == 2 && n > 0 && length > 0, argv[i]);
        decode(argv[i], std::vector<int>((size_t)n, length), 16, 4);
    }
    if (argc > 1)
        return 0;
    for (const int *c : cases) {
        char what[40];
        snprintf(what, sizeof what, "%d x %d", c[0], c[1]);
        decode(what, std::vector<int>((size_t)c[0], c[1]), 16, c[0] * c[1] > 100000 ? 2 : 1);
    }
    decode("64 of 1 ... 8192", mixed_lengths(), 16, 4);
    heading("page size, 64 x 4096");
    for (int size : {1, 16, 64, 256}) {
        char what[40];
        snprintf(what, sizeof what, "%d", size);
        decode(what, std::vector<int>(64, 4096), size, 4);
    }
    printf("\nprefill, causal, pages of 16\n");
    prefill(1, 4096);
    prefill(16, 4096);
    return 0; /* the process ends; its device memory goes with it */
}
