/*
 * sample: the next token of each row of logits, greedy or drawn, as ref/sample.c says. A block per
 * row.
 *
 * Instead of sorting, a threshold is searched bit by bit. Every token has a 64-bit key that orders
 * like (logit ascending, id descending); the tokens that stay are those with key >= T. Top-k looks
 * for the largest T that leaves k tokens, top-p for the largest T whose tokens hold enough weight.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { THREADS = 256, AT_ONCE = 16 /* logits that a thread waits for together */ };

/* Orders like the logit; -0 and +0 are the same. */
static __device__ __forceinline__ uint32_t logit_order(float logit) {
    uint32_t bits = num_bits(logit + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ unsigned long long key_of(float logit, int id) {
    return (unsigned long long)logit_order(logit) << 32 | (0xffffffffu - (unsigned)id);
}

/* What the threads of a row share. */
struct row {
    const float *logits;
    uint32_t *weights; /* scratch [vocab] */
    int vocab;
    unsigned long long *part; /* shared [THREADS / 32] */
};

/* Sum over the tokens with key >= threshold of 1 (count) or of their weights. */
static __device__ unsigned long long sum_above(const struct row *r, unsigned long long threshold,
                                               bool count) {
    unsigned long long sum = 0;
    for (int i = (int)threadIdx.x; i < r->vocab; i += THREADS)
        if (key_of(r->logits[i], i) >= threshold)
            sum += count ? 1 : r->weights[i];
    return row_sum<THREADS / 32>(sum, r->part);
}

/* The largest threshold whose tokens sum to at least `enough`. */
static __device__ unsigned long long find_threshold(const struct row *r, unsigned long long enough,
                                                    bool count) {
    unsigned long long threshold = 0;
    for (int bit = 63; bit >= 0; bit--) {
        unsigned long long tried = threshold | 1ull << bit;
        if (sum_above(r, tried, count) >= enough)
            threshold = tried;
    }
    return threshold;
}

static __device__ unsigned long long truncate_row(const struct row *r, int top_k, float top_p) {
    unsigned long long threshold = 0;
    if (top_k > 0 && top_k < r->vocab)
        threshold = find_threshold(r, (unsigned long long)top_k, true);
    if (top_p < 1) {
        double kept = (double)sum_above(r, threshold, false);
        unsigned long long enough = (unsigned long long)ceil((double)top_p * kept);
        threshold = find_threshold(r, enough ? enough : 1, false);
    }
    return threshold;
}

/* The first id whose running sum of kept weights exceeds random. Each thread adds up a run of
 * ids; the one whose run contains the answer walks through it. */
static __device__ void walk(int32_t *out, const struct row *r, unsigned long long threshold,
                            unsigned long long random, unsigned long long *run_sums) {
    int run = (r->vocab + THREADS - 1) / THREADS, first = (int)threadIdx.x * run;
    int end = min(first + run, r->vocab);
    unsigned long long sum = 0, before = 0;
    for (int i = first; i < end; i++)
        sum += key_of(r->logits[i], i) >= threshold ? r->weights[i] : 0;
    run_sums[threadIdx.x] = sum;
    __syncthreads();
    for (int t = 0; t < (int)threadIdx.x; t++)
        before += run_sums[t];
    if (random < before || random >= before + sum)
        return;
    for (int i = first; i < end; i++) {
        before += key_of(r->logits[i], i) >= threshold ? r->weights[i] : 0;
        if (before > random) {
            *out = i;
            return;
        }
    }
}

__global__ static void sample_1(int32_t *token_ids, const float *all_logits,
                                const struct sampling *all_how, uint32_t *all_weights, int vocab,
                                int site, unsigned long long *fault) {
    SHARED(unsigned long long, part, [THREADS / 32]);
    SHARED(unsigned long long, run_sums, [THREADS]);
    wait_for_previous_kernel();
    let_next_kernel_start(); /* hash_rows reads the same logits */
    size_t at = (size_t)blockIdx.x * (size_t)vocab;
    struct row r = {all_logits + at, all_weights ? all_weights + at : NULL, vocab, part};
    struct sampling how = {};
    if (all_how)
        how = all_how[blockIdx.x];
    unsigned long long best = 0, largest = 0;
    for (int first = (int)threadIdx.x; first < vocab; first += AT_ONCE * THREADS) {
        float logits[AT_ONCE]; /* behind the end the last one again, as an id that loses */
        UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            logits[k] = r.logits[min(first + k * THREADS, vocab - 1)];
        UNROLL
        for (int k = 0; k < AT_ONCE; k++) {
            best = max(best, key_of(logits[k], first + k * THREADS));
            largest = max(largest, (unsigned long long)num_magnitude(logits[k]));
        }
    }
    best = row_max<THREADS / 32>(best, part);
    largest = row_max<THREADS / 32>(largest, part);
    int32_t greedy = (int32_t)(0xffffffffu - (unsigned)(best & 0xffffffffu));
    bool bad = largest >= 0x7f800000u;
    if (bad || !(how.temperature > 0)) {
        if (threadIdx.x == 0) {
            token_ids[blockIdx.x] = bad ? 0 : greedy;
            if (bad)
                gpu_fault(fault, site, (int)blockIdx.x);
        }
        return;
    }
    float top = r.logits[greedy];
    for (int i = (int)threadIdx.x; i < vocab; i += THREADS)
        r.weights[i] = num_sampling_weight(r.logits[i], top, how.temperature);
    /* Each thread reads back only its own weights until walk, which begins behind a barrier. */
    unsigned long long threshold = truncate_row(&r, how.top_k, how.top_p);
    unsigned long long range = sum_above(&r, threshold, false);
    walk(&token_ids[blockIdx.x], &r, threshold, num_draw(how.seed, how.sample, how.position, range),
         run_sums);
}

void gpu_sample(struct device *dev, int32_t *token_ids, /* [n_rows] */
                const float *logits,                    /* [n_rows, vocab] */
                const struct sampling *how,             /* host [n_rows] */
                int n_rows, int vocab, int site) {
    struct gpu_device *gpu = gpu_of(dev);
    bool drawn = false;
    for (int i = 0; i < n_rows; i++)
        drawn = drawn || how[i].temperature > 0;
    size_t bytes = drawn ? sizeof *how * (size_t)n_rows : 0; /* greedy has no settings */
    struct sampling *on_device =
        drawn ? (struct sampling *)gpu_scratch(gpu, GPU_SCRATCH_SAMPLING, bytes, "sample") : NULL;
    uint32_t *weights = drawn
                            ? (uint32_t *)gpu_scratch(gpu, GPU_SCRATCH_SUMS,
                                                      4 * (size_t)n_rows * (size_t)vocab, "sample")
                            : NULL;
    if (gpu->failed || !n_rows)
        return;
    dev->ops->upload(dev, on_device, how, bytes);
    GPU_LAUNCH_EARLY(gpu, sample_1, n_rows, THREADS, 0, token_ids, logits, on_device, weights,
                     vocab, site, gpu->fault);
    gpu->sampled = logits;
    gpu->sampled_at = gpu->launches;
}
