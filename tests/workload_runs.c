#include "tests/workload_runs.h"

#include "scheduler/engine.h"
#include "scheduler/kv_contiguous.h"
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
    int cancel_one_in;
};

static void make_requests(struct workload_run *w) {
    double arrival = 0;
    int most = device_is_emulated() ? 20 : random_int(w->random, 0, 3) ? 60 : 600;
    for (int i = 0; i < w->n; i++) {
        w->asked[i] = tiny_request(w->random, w->model, (uint32_t)i, most, 30);
        arrival += random_int(w->random, 0, 1) ? 0 : 0.01 * random_int(w->random, 0, 30);
        w->requests[i] = (struct request){.arrival = arrival,
                                          .prompt = w->asked[i].tokens,
                                          .n_prompt = w->asked[i].n_prompt,
                                          .max_new = w->asked[i].max_new,
                                          .sampling = w->asked[i].sampling};
        w->cancelled[i] = false;
    }
}

static void cancel_some(void *context, struct engine *e) {
    struct workload_run *w = context;
    if (random_int(w->random, 1, w->cancel_one_in) > 1)
        return;
    int i = random_int(w->random, 0, w->n - 1);
    if (e->scheduler.jobs[i].state != REQUEST_DONE)
        w->cancelled[i] = true;
    engine_cancel(e, i);
}

/* A cancelled answer is the beginning of the whole one. */
static void check_answers(struct workload_run *w, const struct engine *e) {
    for (int i = 0; i < w->n; i++) {
        const struct sequence *got = &e->answers[i].sequence;
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

static void run_workload(struct tiny_model *model, struct random *r) {
    struct error err = {""};
    struct engine e;
    double time = 0;
    struct engine_clock clock = {simulated_now, simulated_wait, &time};
    struct workload_run *w = calloc(1, sizeof *w);
    w->model = model;
    w->random = r;
    w->n = random_int(r, 0, 3) ? random_int(r, 1, 12) : random_int(r, 1, MAX_REQUESTS);
    w->cancel_one_in = random_int(r, 0, 2) ? 1000000 : 20;
    int max_running = random_int(r, 1, 10);
    struct engine_options options = {
        .scheduler = {max_running, max_running + random_int(r, 0, 150), random_int(r, 1, 150),
                      random_int(r, 0, 3) > 0},
        .cache_new = random_int(r, 0, 1) ? kv_static_new : kv_dynamic_new,
        .cache_free = kv_cache_free,
        .clock = &clock,
        .stepped = cancel_some,
        .context = w,
    };
    make_requests(w);
    if (engine_run(&e, &model->generator, w->requests, w->n, &options, &err))
        fail_msg("%s", err.text);
    check_answers(w, &e);
    struct engine_metrics metrics;
    assert_int_equal(engine_measure(&e, &metrics, &err), 0);
    assert_true(metrics.ttft.p50 <= metrics.ttft.p95 && metrics.ttft.p95 <= metrics.ttft.p99);
    assert_true(metrics.queue.mean <= metrics.ttft.mean);
    assert_int_equal(e.cache_bytes, 0);
    engine_end(&e);
    for (int i = 0; i < w->n; i++)
        sequence_end(&w->asked[i]);
    free(w);
}

void check_random_workloads(struct tiny_model *model, struct random *r, int n) {
    for (int i = 0; i < n; i++)
        run_workload(model, r);
}

void check_shipped_workloads(uint64_t seed, int n) {
    struct error err = {""};
    struct device_options options = {.n_threads = 2};
    struct tiny_model shipped = {.dev = device_under_test()->open(&options, &err)};
    struct random r = {seed};
    if (!shipped.dev || model_load(&shipped.model, shipped.dev, "data/model", NULL, &err) ||
        generator_start(&shipped.generator, &shipped.model, &err))
        fail_msg("%s", err.text);
    check_random_workloads(&shipped, &r, n);
    generator_end(&shipped.generator);
    model_free(&shipped.model);
    shipped.dev->ops->close(shipped.dev);
}
