#include "tests/workload_runs.h"
#include "tests/pool_waste.h"

#include "scheduler/engine.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/own_caches.h"
#include "scheduler/paged_memory.h"
#include "tests/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_REQUESTS = 64 };

double simulated_now(void *context) {
    double *time = context;
    return *time += 0.0005;
}

void simulated_wait(void *context, double until) {
    double *time = context;
    *time = until > *time ? until : *time;
}

struct workload_run {
    struct tiny_model *model;
    struct random *random;
    int n;
    struct sequence asked[MAX_REQUESTS]; /* what is asked, as a sequence that has not begun */
    struct request requests[MAX_REQUESTS];
    bool cancelled[MAX_REQUESTS];
    int cancel_one_in, longest_prompt;
    int least_block; /* of ranks that share positions; else 0 */
    enum run_caches caches;
    struct own_caches own;
    struct kv_pool pool;
    struct paged_memory paged;
    struct run_counts counts;
};

/* Request i gets another prompt: n_like ids of that of request `from`, then n_own of its own. */
static void begin_like(struct workload_run *w, int i, int from, int n_like, int n_own) {
    struct error err = {""};
    struct sequence old = w->asked[i], *s = &w->asked[i];
    const struct sequence *other = &w->asked[from];
    int32_t *prompt = malloc(sizeof *prompt * (size_t)(n_like + n_own));
    assert_non_null(prompt);
    memcpy(prompt, other->tokens, sizeof *prompt * (size_t)n_like);
    for (int j = 0; j < n_own; j++)
        prompt[n_like + j] = old.tokens[j % old.n_prompt];
    assert_int_equal(sequence_start(s, old.id, &old.sampling, &err), 0);
    assert_int_equal(sequence_add_prompt(s, prompt, n_like + n_own, old.max_new, &err), 0);
    free(prompt);
    sequence_end(&old);
}

/* A prompt that ends near the end of a block, so that the answer needs another; it may begin like
 * an earlier one. */
static void fill_block(struct workload_run *w, int i) {
    int from = random_int(w->random, 0, i), n = w->asked[from].n_prompt;
    int whole = blocks_for(n + 20, w->least_block) * w->least_block;
    if (whole <= w->longest_prompt)
        begin_like(w, i, from, n, whole - n - random_int(w->random, 0, 19));
}

/* Where passes take long: in the emulation, and where ranks share a GPU and take turns. */
static bool is_slow(const struct tiny_model *t) {
    const struct parallel *ranks = t->model.parallel;
    return device_is_emulated() ||
           (ranks && !ranks->on_device && !strcmp(t->dev->ops->name, "gpu"));
}

static void make_requests(struct workload_run *w) {
    double arrival = 0;
    bool slow = is_slow(w->model);
    int most = slow ? 20 : random_int(w->random, 0, 3) ? 60 : w->longest_prompt;
    for (int i = 0; i < w->n; i++) {
        w->asked[i] = tiny_request(w->random, w->model, (uint32_t)i, most, slow ? 12 : 30);
        int alike = w->caches != OWN_CACHES && i ? random_int(w->random, 0, 3) : 0;
        bool is_fork = alike == 1;
        if (!is_fork && !random_int(w->random, 0, 1))
            arrival += 0.01 * random_int(w->random, 0, 30);
        if (is_fork) {
            begin_like(w, i, i - 1, w->asked[i - 1].n_prompt, 0);
        } else if (alike) {
            int from = random_int(w->random, 0, i - 1);
            int n_like = random_int(w->random, 1, w->asked[from].n_prompt);
            begin_like(w, i, from, n_like, random_int(w->random, 1, 20));
        }
        if (w->least_block && random_int(w->random, 0, 1))
            fill_block(w, i);
        w->counts.forks += is_fork;
        w->requests[i] = (struct request){.arrival = arrival,
                                          .prompt = w->asked[i].tokens,
                                          .n_prompt = w->asked[i].n_prompt,
                                          .max_new = w->asked[i].max_new,
                                          .sampling = w->asked[i].sampling,
                                          .fork_back = is_fork};
        w->cancelled[i] = false;
    }
}

/* After every step: the books of the pool are right, and waste is less than a block a sequence. */
static void check_pool(struct workload_run *w, const struct engine *e) {
    struct error err;
    if (block_allocator_check(&w->pool.blocks, &err))
        fail_msg("%s", err.text);
    assert_true(pool_waste(&w->paged) <=
                (int64_t)e->scheduler.n_running * (w->pool.block_size - 1));
}

static void after_step(void *context, struct engine *e) {
    struct workload_run *w = context;
    if (w->caches != OWN_CACHES)
        check_pool(w, e);
    if (random_int(w->random, 1, w->cancel_one_in) > 1)
        return;
    int i = random_int(w->random, 0, w->n - 1);
    if (e->scheduler.jobs[i].state != REQUEST_DONE)
        w->cancelled[i] = true;
    engine_cancel(e, i);
}

/* A pool of any size that can serve each request alone, whose free blocks are in disorder. */
static void start_pool(struct workload_run *w) {
    static const int sizes[] = {1, 2, 16, 64, 256};
    struct error err = {""};
    struct random *r = w->random;
    int size = sizes[random_int(r, 0, 4)], longest = 0, all = 0;
    size = w->least_block ? w->least_block : size;
    for (int i = 0; i < w->n; i++) {
        int n = w->asked[i].n_prompt + w->asked[i].max_new - 1;
        n = blocks_for(n < w->model->generator.context ? n : w->model->generator.context, size);
        longest = n > longest ? n : longest;
        all += n;
    }
    struct kv_pool_options options = {.block_size = size,
                                      .n_blocks = random_int(r, 0, 1) ? longest
                                                                      : random_int(r, longest, all),
                                      .order = random_int(r, 0, 1) ? BLOCKS_LIFO : BLOCKS_FIFO,
                                      .poison = true};
    if (kv_pool_start(&w->pool, &w->model->model, &options, &err))
        fail_msg("%s", err.text);
    int n = options.n_blocks;
    int32_t *blocks = malloc(sizeof *blocks * (size_t)n);
    for (int i = 0; i < n; i++)
        blocks[i] = block_allocate(&w->pool.blocks);
    for (int i = n; i > 0; i--) {
        int j = random_int(r, 0, i - 1);
        assert_int_equal(kv_pool_release(&w->pool, blocks[j], false, &err), 0);
        blocks[j] = blocks[i - 1];
    }
    free(blocks);
    struct paged_options paged = {random_int(r, 0, 1) ? PREEMPT_RECOMPUTE : PREEMPT_SWAP,
                                  random_int(r, 0, 1)};
    paged_memory_start(&w->paged, &w->pool, &paged);
}

static void end_pool(struct workload_run *w) {
    struct error err = {""};
    paged_memory_end(&w->paged);
    if (block_allocator_check(&w->pool.blocks, &err))
        fail_msg("%s", err.text);
    assert_int_equal(w->pool.blocks.stats.free, w->pool.blocks.stats.total);
    kv_pool_end(&w->pool);
}

/* Ranks must have the same answers, so each holds a part of them against what is answered alone. */
static bool is_others(struct workload_run *w, const struct engine *e, int i) {
    struct parallel *ranks = w->model->model.parallel;
    const struct sequence *got = &e->answers[i].sequence;
    struct error err;
    if (!ranks)
        return false;
    if (parallel_check_same(ranks, fingerprint_value(&got->fingerprint), "another answer", &err))
        fail_msg("%s", err.text);
    return i % ranks->n_ranks != ranks->rank;
}

/* A cancelled answer is the beginning of the whole one. */
static void check_answers(struct workload_run *w, const struct engine *e) {
    for (int i = 0; i < w->n; i++) {
        const struct sequence *got = &e->answers[i].sequence;
        if (is_others(w, e, i))
            continue;
        struct sequence alone = tiny_alone(w->model, &w->asked[i]);
        if (w->cancelled[i]) {
            assert_int_equal(got->finish, FINISH_CANCELLED);
            assert_true(got->n_tokens <= alone.n_tokens);
            assert_memory_equal(got->tokens, alone.tokens,
                                sizeof *got->tokens * (size_t)got->n_tokens);
        } else {
            assert_same_answer(&alone, got);
        }
        sequence_end(&alone);
    }
}

static void run_workload(struct tiny_model *model, struct random *r, enum run_caches caches,
                         struct run_counts *counts) {
    struct error err = {""};
    struct engine e;
    double time = 0;
    struct engine_clock clock = {simulated_now, simulated_wait, &time};
    struct workload_run *w = calloc(1, sizeof *w);
    w->model = model;
    w->random = r;
    w->caches = caches;
    if (model->model.parallel && model->model.parallel->by_position)
        w->least_block = ATTENTION_TILE * model->model.parallel->n_ranks;
    w->longest_prompt = w->least_block ? model->generator.context / 7 * 6 : 600;
    w->n = random_int(r, 0, 3) ? random_int(r, 1, 12) : random_int(r, 1, MAX_REQUESTS);
    w->cancel_one_in = random_int(r, 0, 2) ? 1000000 : 20;
    int max_running = random_int(r, 1, 10);
    struct engine_options options = {
        .scheduler = {max_running, max_running + random_int(r, 0, 150), random_int(r, 1, 150),
                      random_int(r, 0, 3) > 0},
        .memory = &w->own.base,
        .clock = &clock,
        .stepped = after_step,
        .context = w,
    };
    own_caches_start(&w->own, &model->model, random_int(r, 0, 1) ? kv_static_new : kv_dynamic_new,
                     kv_cache_free, 0);
    options.one_pass = caches == ONE_PASS || (caches == OWN_CACHES && w->n % 2);
    model->generator.fused = caches == ONE_PASS;
    make_requests(w);
    if (caches != OWN_CACHES) {
        start_pool(w);
        options.memory = &w->paged.base;
    }
    if (engine_run(&e, &model->generator, w->requests, w->n, &options, &err))
        fail_msg("%s", err.text);
    check_answers(w, &e);
    struct engine_metrics metrics;
    assert_int_equal(engine_measure(&e, &metrics, &err), 0);
    assert_true(metrics.ttft.p50 <= metrics.ttft.p95 && metrics.ttft.p95 <= metrics.ttft.p99);
    assert_true(metrics.queue.mean <= metrics.ttft.mean);
    if (counts) {
        counts->preemptions += w->paged.stats.preemptions;
        counts->shared += w->paged.stats.shared;
        counts->recomputed += w->paged.stats.recomputed;
        counts->swapped += w->paged.stats.swapped;
        counts->forks += w->counts.forks;
        counts->proposed += e.proposed;
        counts->accepted += e.accepted;
    }
    if (caches == OWN_CACHES)
        assert_int_equal(w->own.base.bytes, 0);
    else
        assert_int_equal(w->pool.blocks.stats.used, 0);
    engine_end(&e);
    own_caches_end(&w->own);
    if (caches != OWN_CACHES)
        end_pool(w);
    for (int i = 0; i < w->n; i++)
        sequence_end(&w->asked[i]);
    free(w);
}

void check_random_workloads(struct tiny_model *model, struct random *r, int n,
                            enum run_caches caches, struct run_counts *counts) {
    for (int i = 0; i < n; i++)
        run_workload(model, r, caches, counts);
}

void check_shipped_workloads(uint64_t seed, int n, enum run_caches caches) {
    struct tiny_model shipped;
    struct random r = {seed};
    shipped_model_open(&shipped);
    check_random_workloads(&shipped, &r, n, caches, NULL);
    shipped_model_close(&shipped);
}
