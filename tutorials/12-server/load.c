#include "tutorials/12-server/load.h"
#include "tutorials/12-server/client.h"
#include "tutorials/12-server/deployment.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROUNDS = 3, PATIENCE = 2 };

struct load {
    struct demo *demo;
    struct workload w;
    uint64_t *alone;             /* [w.n] fingerprints */
    struct call *calls;          /* [w.n] */
    double *ttft, *ms_per_token; /* [w.n] */
};

/* What a run took: its own clock, and the processors' time for it. */
struct cost {
    double seconds, cpu_before, tokens_per_second;
};

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

/* beside: the engine's cost, for the server's row; else NULL. */
static void show(struct demo *demo, const struct cost *c, const struct cost *beside,
                 const struct spread *ttft, const struct spread *ms_per_token) {
    json_t *share =
        beside ? json_real(c->tokens_per_second / beside->tokens_per_second) : json_null();
    json_t *row = json_pack("[sfffoffff]", beside ? "server" : "engine", c->seconds,
                            cpu_seconds() - c->cpu_before, c->tokens_per_second, share,
                            ttft->p50 * 1e3, ttft->p99 * 1e3, ms_per_token->p50, ms_per_token->p99);
    if (demo_interrupted(demo))
        json_decref(row);
    else
        demo_table_row(demo, row);
}

/* The engine of phase 8 with all requests at hand. */
static int run_engine(struct load *l, struct cost *cost, struct error *err) {
    struct demo *demo = l->demo;
    struct serving serving = serving_of(demo);
    struct paged_options options = {(enum preempt_mode)demo->options.preempt,
                                    !demo->options.no_prefix_cache};
    struct engine_metrics m = {0};
    struct paged_memory memory;
    struct kv_pool pool;
    struct engine e = {0};
    *cost = (struct cost){.cpu_before = cpu_seconds()};
    if (demo_pool_start(demo, &pool, 0, err))
        return -1;
    paged_memory_start(&memory, &pool, &options);
    serving.memory = &memory.base;
    int result = serve_all(demo, &l->w, &serving, &e, err) || engine_measure(&e, &m, err);
    engine_end(&e);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    cost->seconds = m.seconds;
    cost->tokens_per_second = m.tokens_per_second;
    if (!result)
        show(demo, cost, NULL, &m.ttft, &m.ms_per_token);
    return result ? -1 : 0;
}

/* Whether each answer has the bits of its request alone; and its row. */
static int show_calls(struct load *l, const struct cost *engine, struct cost *cost,
                      struct error *err) {
    double last = 0;
    long n_tokens = 0;
    int n_several = 0;
    for (int i = 0; i < l->w.n; i++) {
        const struct call *c = &l->calls[i];
        char alone[17];
        fingerprint_text(alone, l->alone[i]);
        if (strcmp(alone, c->fingerprint))
            return error_set(err, "request %d got %s, and alone it gives %s", i, c->fingerprint,
                             alone);
        l->ttft[i] = c->first - l->w.requests[i].arrival;
        if (c->n_events > 1)
            l->ms_per_token[n_several++] = (c->last - c->first) * 1e3 / (c->n_events - 1);
        n_tokens += c->n_events;
        last = c->last > last ? c->last : last;
    }
    struct spread ttft = spread_of(l->ttft, l->w.n);
    struct spread ms_per_token = spread_of(l->ms_per_token, n_several);
    cost->seconds = last - l->w.requests[0].arrival;
    cost->tokens_per_second = (double)n_tokens / cost->seconds;
    show(l->demo, cost, engine, &ttft, &ms_per_token);
    return 0;
}

static int run_server(struct load *l, const struct cost *engine, struct cost *cost,
                      struct error *err) {
    struct demo *demo = l->demo;
    struct server_options options = deployment_limits(demo);
    struct deployment deployed;
    struct error ignored;
    *cost = (struct cost){.cpu_before = cpu_seconds()};
    int result =
        deployment_open(&deployed, demo, &options, err) ||
        client_call_all(demo, &l->w, deployed.server.port, demo->options.clients, l->calls, err);
    if (deployment_close(&deployed, PATIENCE, result ? &ignored : err) || result)
        return -1;
    return demo_interrupted(demo) ? 0 : show_calls(l, engine, cost, err);
}

/* The fingerprint of each request, one after the other. */
static int run_alone(struct load *l, struct error *err) {
    struct serving serving = serving_of(l->demo);
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct workload at_once = {calloc((size_t)l->w.n, sizeof *at_once.requests), l->w.n, l->w.n};
    struct paged_memory memory;
    struct kv_pool pool = {0};
    struct engine e = {0};
    if (!at_once.requests)
        return error_set(err, "out of memory for %d requests", l->w.n);
    for (int i = 0; i < l->w.n; i++) {
        at_once.requests[i] = l->w.requests[i];
        at_once.requests[i].arrival = 0;
    }
    int result = demo_pool_start(l->demo, &pool, paged_enough_blocks(l->demo, &l->w), err);
    paged_memory_start(&memory, &pool, &options);
    serving.memory = &memory.base;
    serving.max_running = 1;
    result = result || serve_all(l->demo, &at_once, &serving, &e, err);
    for (int i = 0; !result && i < l->w.n; i++)
        l->alone[i] = fingerprint_value(&e.answers[i].sequence.fingerprint);
    engine_end(&e);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    free(at_once.requests);
    return result ? -1 : 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run_all(struct load *l, struct error *err) {
    static const struct column columns[] = {{"run", "", -1, 6},
                                            {"seconds", "s", 2, 7},
                                            {"cpu_s", "CPU s", 2, 7},
                                            {"tok_s", "tok/s", 1, 8},
                                            {"share", "of engine's tok/s", 3, 0},
                                            {"ttft_p50", "TTFT ms p50", 1, 0},
                                            {"ttft_p99", "p99 ms", 1, 9},
                                            {"tok_p50", "ms/tok p50", 2, 0},
                                            {"tok_p99", "p99 ms/tok", 2, 0}};
    struct demo *demo = l->demo;
    struct cost engine, server;
    double ratios[ROUNDS];
    char title[160];
    if (run_alone(l, err))
        return -1;
    snprintf(title, sizeof title,
             "%d requests, %d clients: the engine alone, and behind the server", l->w.n,
             demo->options.clients);
    demo_table_begin(demo, "load", title, columns, 9);
    int result = 0;
    for (int i = 0; i < ROUNDS && !result && !demo_interrupted(demo); i++) {
        result = run_engine(l, &engine, err) || run_server(l, &engine, &server, err);
        ratios[i] = server.tokens_per_second / engine.tokens_per_second;
    }
    if (demo_table_end(demo, result) || demo_interrupted(demo))
        return result ? -1 : 0;
    qsort(ratios, ROUNDS, sizeof *ratios, by_value);
    json_object_set_new(demo->json, "server_of_engine", json_real(ratios[ROUNDS / 2]));
    printf("Each answer has the fingerprint of its request alone.\n");
    return 0;
}

static int load_start(struct load *l, struct demo *demo, struct error *err) {
    *l = (struct load){.demo = demo};
    if (demo_draw_requests(demo, &l->w, err))
        return -1;
    size_t n = (size_t)l->w.n;
    l->alone = calloc(n, sizeof *l->alone);
    l->calls = calloc(n, sizeof *l->calls);
    l->ttft = calloc(n, sizeof *l->ttft);
    l->ms_per_token = calloc(n, sizeof *l->ms_per_token);
    if (!l->alone || !l->calls || !l->ttft || !l->ms_per_token)
        return error_set(err, "out of memory for %d requests", l->w.n);
    for (int i = 0; i < l->w.n; i++) /* to their full lengths */
        l->w.requests[i].ignore_stop = true;
    return 0;
}

static void load_end(struct load *l) {
    free(l->alone);
    free(l->calls);
    free(l->ttft);
    free(l->ms_per_token);
    workload_free(&l->w);
}

int load_prompts(struct demo *demo, struct error *err) {
    struct load l;
    if (!demo->options.clients)
        return paged_prompts(demo, err);
    int result = load_start(&l, demo, err) || run_all(&l, err);
    load_end(&l);
    return result ? -1 : 0;
}
