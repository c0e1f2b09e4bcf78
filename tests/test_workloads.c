/*
 * The workload test: random requests through the engine, at random times, with random budgets and
 * cancellations; each gives the ids and the fingerprint that it gives alone. Time is simulated, so
 * that nobody waits.
 */
#include "scheduler/engine.h"
#include "scheduler/kv_contiguous.h"
#include "tests/device.h"
#include "tests/tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_REQUESTS = 64 };

/* A clock that moves a little whenever somebody looks, and jumps when somebody waits. */
static double simulated_now(void *context) {
    double *time = context;
    return *time += 0.0005;
}

static void simulated_wait(void *context, double until) {
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
    size_t before = model->dev->bytes;
    make_requests(w);
    if (engine_run(&e, &model->generator, w->requests, w->n, &options, &err))
        fail_msg("%s", err.text);
    check_answers(w, &e);
    struct engine_metrics metrics;
    assert_int_equal(engine_measure(&e, &metrics, &err), 0);
    assert_true(metrics.ttft.p50 <= metrics.ttft.p95 && metrics.ttft.p95 <= metrics.ttft.p99);
    assert_true(metrics.queue.mean <= metrics.ttft.mean);
    engine_end(&e);
    assert_true(model->dev->bytes >=
                before); /* the forward pass may have grown, no cache is left */
    for (int i = 0; i < w->n; i++)
        sequence_end(&w->asked[i]);
    free(w);
}

static void test_random_workloads(void **state) {
    (void)state;
    struct random r = {94};
#ifdef __SANITIZE_ADDRESS__
    int n = 12; /* of each model */
#else
    int n = device_is_emulated() ? 1 : 125;
#endif
    for (int which = 0; which < N_TINY_MODELS; which++) {
        struct tiny_model model;
        tiny_model_open(&model, which);
        for (int i = 0; i < n; i++)
            run_workload(&model, &r);
        tiny_model_close(&model);
    }
}

/* One bad request does not harm the others. */
static void test_requests_that_cannot_be_answered(void **state) {
    (void)state;
    struct error err = {""};
    struct tiny_model model;
    struct engine e;
    struct random r = {95};
    double time = 0;
    struct engine_clock clock = {simulated_now, simulated_wait, &time};
    struct engine_options options = {.scheduler = {2, 64, 32, true},
                                     .cache_new = kv_dynamic_new,
                                     .cache_free = kv_cache_free,
                                     .clock = &clock};
    tiny_model_open(&model, 0);
    struct sequence good = tiny_request(&r, &model, 1, 9, 9);
    int32_t *long_prompt = calloc(700, sizeof *long_prompt);
    struct request requests[] = {
        {.max_new = 3},
        {.prompt = good.tokens,
         .n_prompt = good.n_prompt,
         .max_new = good.max_new,
         .sampling = good.sampling},
        {.prompt = long_prompt, .n_prompt = 700, .max_new = 3, .sampling = {0, 0, 1, 0}},
        {.prompt = good.tokens, .n_prompt = good.n_prompt, .max_new = 0},
    };
    if (engine_run(&e, &model.generator, requests, 4, &options, &err))
        fail_msg("%s", err.text);
    assert_int_equal(e.answers[0].sequence.finish, FINISH_ERROR);
    assert_non_null(strstr(e.answers[0].error.text, "empty"));
    assert_int_equal(e.answers[2].sequence.finish, FINISH_ERROR);
    assert_non_null(strstr(e.answers[2].error.text, "context is 700"));
    assert_int_equal(e.answers[3].sequence.finish, FINISH_LENGTH);
    struct sequence alone = tiny_alone(&model, &good);
    assert_same_answer(&alone, &e.answers[1].sequence);
    sequence_end(&alone);
    engine_end(&e);
    requests[1].arrival = 5;
    assert_int_equal(engine_run(&e, &model.generator, requests, 4, &options, &err), -1);
    assert_non_null(strstr(err.text, "request 2: arrival 0"));
    engine_end(&e);
    assert_int_equal(engine_run(&e, &model.generator, NULL, 0, &options, &err), 0);
    engine_end(&e);
    sequence_end(&good);
    free(long_prompt);
    tiny_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_workloads),
        cmocka_unit_test(test_requests_that_cannot_be_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
