/* paged_rotation.h - for the benchmarks of attention over paged caches: several batches over one
 * pool take turns, so that their caches together are several times the L2 cache; pages in random
 * order. The limit, from the same run, is a kernel that only reads. */
#ifndef SAMEBITS_PAGED_ROTATION_H
#define SAMEBITS_PAGED_ROTATION_H

#include "tests/bench/gpu_bench.h"

#include "gpu/fast/plan/plan.h"

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

/* mask: of each word. One bit that is 0 in each byte makes all types' numbers finite, and those of
 * e4m3 less than 2. */
__global__ static void fill_random(uint32_t *x, size_t n, uint32_t mask = 0xbfbfbfbfu) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h ^= h >> 15;
        h *= 0x7feb352du;
        x[i] = (h ^ h >> 13) & mask;
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
    int n_pages, page_size;
    float *q, *y;
    size_t q_bytes;
};

/* variant, type: what the plans are made for; NULL: causal. shared: so many positions, whole pages,
 * of all sequences of a batch are in the pages of the first. */
static struct rotation start(const std::vector<int> &lengths, int qo_len, int page_size,
                             const struct attention_variant *variant = NULL, int shared = 0,
                             enum kv_type type = KV_BFP16) {
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
    r.n_pages = (int)(pages * copies);
    r.page_size = page_size;
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
    for (size_t c = 0; c < copies; c++)
        for (size_t i = 1; i < n; i++)
            std::copy_n(order.begin() + (long)(c * pages), shared / page_size,
                        order.begin() + (long)(c * pages) + indptr[i]);
    struct attention_shape shape = {HEADS, KV_HEADS, DIM, 0.08838834764831845, type};
    for (size_t c = 0; c < copies; c++) {
        struct attention_plan *plan = dev->ops->attention_plan_new(dev, &err);
        struct paged_batch batch = {(int)n,     page_size,     (int)order.size(),
                                    qo.data(),  indptr.data(), order.data() + c * pages,
                                    last.data()};
        check(plan && !dev->ops->attention_plan(dev, plan, &batch, &shape, variant, &err),
              "a plan");
        r.plans.push_back(plan);
    }
    r.q_bytes = (size_t)qo[n] * HEADS * DIM * 4;
    r.q = random_floats(r.q_bytes / 4);
    r.y = (float *)device_bytes(r.q_bytes);
    return r;
}

/* The next call of the rotation, number i: causal attention as the engine has it. */
static inline void attend_plain(const struct rotation *r, int i) {
    struct attention_variant causal = attention_variant_causal();
    struct kv_views kv = kv_layer_views(&r->kv, KV_BFP16, r->page_size, KV_HEADS, DIM);
    dev->ops->attend(dev, r->y, r->q, &kv, r->plans[(size_t)i % r->plans.size()], &causal, 0);
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

#endif
