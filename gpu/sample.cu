/*
 * sample: the next token of each row of logits, greedy or drawn, as ref/sample.c says. A block per
 * row; of a few long rows, a cluster finds the largest logit: one processor would read for long.
 *
 * Instead of sorting, those that stay are found bit by bit (a radix select). Every token has a
 * 64-bit key that orders like (logit ascending, id descending). Do the candidates whose highest bit
 * is set weigh enough? Then the others leave. If not, they stay, and the others have to weigh what
 * is missing. Who is decided is not looked at again, so that the next bit asks ever fewer. Top-k
 * wants so many tokens, top-p so much weight; and the token that is drawn is the last one that a
 * random weight needs in order of id, which is found in the same way.
 */
#include "gpu/logit_key.h"
#include "gpu/ptx/cluster.h"
#include "gpu/ptx/tensor_core.h"

enum {
    THREADS = 512,
    AT_ONCE = 16, /* logits that a thread waits for together */
    LONG_ROW = 2 * AT_ONCE * THREADS,
    CLUSTER_BLOCKS = cluster_blocks(8)
};

/* What the threads of a row share, and what is a thread's own. */
struct row {
    const float *logits;
    int begin, end; /* the tokens that each_token goes through */
    int32_t *ids;   /* scratch [vocab]: of candidates; number i of thread t is at i * THREADS + t */
    int n;          /* candidates of this thread */
    float top, temperature;
    unsigned long long *part; /* shared [THREADS / 32] */
};

static __device__ __forceinline__ int32_t *id_at(const struct row *r, int i) {
    return &r->ids[i * THREADS + (int)threadIdx.x];
}

static __device__ __forceinline__ uint32_t weight_of(const struct row *r, float logit) {
    return num_sampling_weight(logit, r->top, r->temperature);
}

/* use(id, logit) for this thread's part of the tokens begin ... end, in order of id. */
template <class user>
static __device__ __forceinline__ void each_token(const struct row *r, user use) {
    for (int first = r->begin + (int)threadIdx.x; first < r->end; first += AT_ONCE * THREADS) {
        float logits[AT_ONCE]; /* behind the end the last one again */
        UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            logits[k] = r->logits[min(first + k * THREADS, r->end - 1)];
        UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * THREADS < r->end)
                use(first + k * THREADS, logits[k]);
    }
}

/* use(i, id, logit) for this thread's candidates from number i on. */
template <class user>
static __device__ __forceinline__ void each_candidate(const struct row *r, int i, user use) {
    for (int n = r->n; i < n; i += AT_ONCE / 2) {
        int32_t ids[AT_ONCE / 2];
        float logits[AT_ONCE / 2];
        UNROLL
        for (int k = 0; k < AT_ONCE / 2; k++)
            ids[k] = *id_at(r, min(i + k, n - 1));
        UNROLL
        for (int k = 0; k < AT_ONCE / 2; k++)
            logits[k] = r->logits[ids[k]];
        UNROLL
        for (int k = 0; k < AT_ONCE / 2; k++)
            if (i + k < n)
                use(i + k, ids[k], logits[k]);
    }
}

static __device__ unsigned long long weight_of_candidates(const struct row *r) {
    unsigned long long sum = 0;
    each_candidate(r, 0, [&](int, int32_t, float logit) { sum += weight_of(r, logit); });
    return row_sum<THREADS / 32>(sum, r->part);
}

/* Keeps the candidates with the largest keys, as few as weigh `enough` together, which all of them
 * do. Keys have so many bits. A thread's candidates before `decided` stay in any case. */
template <class key_of_token, class weight_of_token>
static __device__ void keep(struct row *r, int bits, unsigned long long enough, key_of_token key,
                            weight_of_token weight) {
    int decided = 0;
    unsigned long long open = row_sum<THREADS / 32>((unsigned long long)r->n, r->part);
    for (int bit = bits - 1; bit >= 0 && open > 1; bit--) {
        int end = decided; /* of those that have the bit */
        unsigned long long sum = 0;
        each_candidate(r, decided, [&](int i, int32_t id, float logit) {
            if (!(key(id, logit) >> bit & 1))
                return;
            sum += weight(logit);
            *id_at(r, i) = *id_at(r, end);
            *id_at(r, end++) = id;
        });
        unsigned long long n = row_sum<THREADS / 32>((unsigned long long)(end - decided), r->part);
        sum = row_sum<THREADS / 32>(sum, r->part);
        if (sum >= enough) {
            r->n = end;
            open = n;
        } else {
            enough -= sum;
            decided = end;
            open -= n;
        }
    }
}

/* Draws a token: temperature above 0. */
static __device__ int draw(struct row *r, const struct sampling *how) {
    auto key = [](int32_t id, float logit) { return key_of(logit, id); };
    auto weight = [&](float logit) { return (unsigned long long)weight_of(r, logit); };
    /* Most tokens are so far below the top that they have no weight: e^-22 is 0.3 of a unit. */
    each_token(r, [&](int id, float logit) {
        if (logit - r->top > -22 * r->temperature)
            *id_at(r, r->n++) = id;
    });
    unsigned long long n = row_sum<THREADS / 32>((unsigned long long)r->n, r->part);
    if (how->top_k > 0 && n > (unsigned long long)how->top_k)
        keep(r, 64, (unsigned long long)how->top_k, key, [](float) { return 1ull; });
    unsigned long long range = weight_of_candidates(r);
    if (how->top_p < 1) {
        unsigned long long enough = (unsigned long long)ceil((double)how->top_p * (double)range);
        keep(r, 64, enough ? enough : 1, key, weight);
        range = weight_of_candidates(r);
    }
    int bits = 0, last = 0;
    while (r->end >> bits)
        bits++;
    unsigned long long random = num_draw(how->seed, how->sample, how->position, range);
    keep(
        r, bits, random + 1, [](int32_t id, float) { return ~(unsigned)id; }, weight);
    each_candidate(r, 0, [&](int, int32_t id, float) { last = max(last, id); });
    return row_max<THREADS / 32>(last, (int *)r->part);
}

/* The largest key of the blocks of a cluster, each of which has found its own. */
static __device__ unsigned long long largest_of_cluster(unsigned long long key, double2 *found) {
    if (threadIdx.x == 0)
        *found = {(double)(key >> 32), (double)(uint32_t)key};
    key = 0;
    cluster_arrive();
    cluster_wait();
    for (int i = 0; i < CLUSTER_BLOCKS; i++) {
        double2 other = load_from_peer(found, i);
        key = max(key, (unsigned long long)other.x << 32 | (unsigned long long)other.y);
    }
    cluster_arrive();
    cluster_wait(); /* all have read */
    return key;
}

template <bool IN_CLUSTERS>
__global__ static void __launch_bounds__(THREADS)
    sample_1(int32_t *token_ids, const float *all_logits, const struct sampling *all_how,
             int32_t *ids, int vocab, int site, unsigned long long *fault) {
    const int blocks = IN_CLUSTERS ? CLUSTER_BLOCKS : 1;
    SHARED(unsigned long long, part, [THREADS / 32]);
    SHARED(double2, found, [1]);
    int number = (int)blockIdx.x / blocks, rank = IN_CLUSTERS ? cluster_rank() : 0;
    wait_for_previous_kernel();
    let_next_kernel_start(); /* hash_rows reads the same logits */
    size_t at = (size_t)number * (size_t)vocab;
    int share = (vocab + blocks - 1) / blocks;
    struct row r = {};
    r.logits = all_logits + at;
    r.begin = rank * share;
    r.end = min(r.begin + share, vocab);
    r.ids = ids ? ids + at : NULL;
    r.top = -INFINITY;
    r.part = part;
    struct sampling how = {};
    if (all_how)
        how = all_how[number];
    int first = 0; /* of this thread's largest */
    uint32_t largest = 0;
    each_token(&r, [&](int id, float logit) {
        first = logit > r.top ? id : first;
        r.top = logit > r.top ? logit : r.top;
        largest = max(largest, num_magnitude(logit));
    });
    unsigned long long best = row_max<THREADS / 32>(key_of(r.top, first), part);
    if (row_max<THREADS / 32>(largest, (uint32_t *)part) >= 0x7f800000u)
        best = NOT_FINITE;
    if (IN_CLUSTERS)
        best = largest_of_cluster(best, found);
    if (rank)
        return;
    r.begin = 0;
    r.end = vocab;
    bool bad = best == NOT_FINITE;
    int token = token_of_key(best);
    if (!bad && how.temperature > 0) {
        r.top = r.logits[token];
        r.temperature = how.temperature;
        token = draw(&r, &how);
    }
    if (threadIdx.x)
        return;
    token_ids[number] = token;
    if (bad)
        gpu_fault(fault, site, number);
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
    int32_t *ids = drawn ? (int32_t *)gpu_scratch(gpu, GPU_SCRATCH_SUMS,
                                                  4 * (size_t)n_rows * (size_t)vocab, "sample")
                         : NULL;
    if (gpu->failed || !n_rows)
        return;
    dev->ops->upload(dev, on_device, how, bytes);
    /* With more rows, clusters would wait for others' draws, of which block 0 does all. */
    if (gpu->has_wgmma && vocab > LONG_ROW && n_rows * CLUSTER_BLOCKS <= gpu->n_processors) {
        LAUNCH_CLUSTERS(sample_1<true>, n_rows, (int)CLUSTER_BLOCKS, THREADS, 0, gpu->stream,
                        token_ids, logits, on_device, ids, vocab, site, gpu->fault);
        gpu->launches++;
        gpu_ok(gpu, cudaGetLastError(), "sample");
    } else {
        GPU_LAUNCH_EARLY(gpu, sample_1<false>, n_rows, THREADS, 0, token_ids, logits, on_device,
                         ids, vocab, site, gpu->fault);
    }
    gpu->sampled = logits;
    gpu->sampled_at = gpu->launches;
}
