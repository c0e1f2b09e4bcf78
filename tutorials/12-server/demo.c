/*
 * Phase 12: the engine behind HTTP. With --serve it serves until a signal ends it; the tables let
 * 16 clients ask at once, and compare what each gets with what its request gives alone.
 */
#include "tutorials/12-server/client.h"
#include "tutorials/12-server/deployment.h"
#include "tutorials/12-server/load.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/pool.h"
#include "tutorials/common/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a row compares: the client's answer with its request among others in the engine of phase 8,
 * and alone. */
struct runs {
    struct workload w;
    struct call *calls;         /* [w.n] what the clients saw */
    struct engine alone, batch; /* batch: all at once, without a server */
};

/* A time in milliseconds for each token after the first, or null. */
static json_t *per_token(double seconds, int n) {
    return n > 1 ? json_real(seconds * 1e3 / (n - 1)) : json_null();
}

static json_t *client_row(const struct runs *r, int i, bool same, const char *alone) {
    const struct call *c = &r->calls[i];
    const struct job *job = &r->batch.scheduler.jobs[i];
    return json_pack(
        "[isiffooss]", i, r->w.requests[i].title, c->n_events, (c->first - c->sent) * 1e3,
        (job->first - job->arrival) * 1e3, per_token(c->last - c->first, c->n_events),
        per_token(job->done - job->first, job->n_new), c->fingerprint, same ? "the same" : alone);
}

/* Fails when an answer has other bits than its request alone. */
static int show_clients(struct demo *demo, const struct runs *r, struct error *err) {
    static const struct column columns[] = {{"client", "#", 0, 0},
                                            {"prompt", "prompt", -1, 0},
                                            {"events", "events", 0, 0},
                                            {"ttft_ms", "TTFT ms", 1, 0},
                                            {"ttft_batch", "engine ms", 1, 0},
                                            {"ms_tok", "ms/tok", 2, 0},
                                            {"ms_tok_batch", "engine ms/tok", 2, 0},
                                            {"fingerprint", "fingerprint", -1, 0},
                                            {"alone", "alone", -1, 0}};
    json_t *rows = json_array();
    int result = 0;
    for (int i = 0; i < r->w.n; i++) {
        const struct call *c = &r->calls[i];
        char alone[17], batch[17];
        fingerprint_text(alone, fingerprint_value(&r->alone.answers[i].sequence.fingerprint));
        fingerprint_text(batch, fingerprint_value(&r->batch.answers[i].sequence.fingerprint));
        bool same = !strcmp(alone, c->fingerprint) && !strcmp(alone, batch);
        json_array_append_new(rows, client_row(r, i, same, alone));
        if (!same && !result)
            result =
                error_set(err, "client %d got %s; its request gives %s alone, and %s in phase 8", i,
                          c->fingerprint, alone, batch);
    }
    char title[80];
    snprintf(title, sizeof title, "%d clients at once, and the same requests in phase 8", r->w.n);
    demo_table(demo, "clients", title, columns, 9, rows);
    return result;
}

/* The requests without a server. */
static int run_engine(struct demo *demo, const struct workload *w, int max_running,
                      struct engine *engine, struct error *err) {
    struct serving serving = serving_of(demo);
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct paged_memory memory;
    struct kv_pool pool;
    if (demo_pool_start(demo, &pool, paged_enough_blocks(demo, w), err))
        return -1;
    paged_memory_start(&memory, &pool, &options);
    serving.memory = &memory.base;
    serving.max_running = max_running;
    int result = serve_all(demo, w, &serving, engine, err);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    return result;
}

static int run_clients(struct demo *demo, struct runs *r, struct error *err) {
    struct server_options options = deployment_limits(demo);
    struct deployment deployed;
    struct error ignored;
    int result = deployment_open(&deployed, demo, &options, err) ||
                 client_call_all(demo, &r->w, deployed.server.port, r->w.n, r->calls, err);
    return deployment_close(&deployed, 0, result ? &ignored : err) || result ? -1 : 0;
}

static int tables(struct demo *demo, struct error *err) {
    struct runs r = {0};
    int result = demo_read_requests(demo, demo_requests_file(demo), &r.w, err);
    if (!result && !(r.calls = calloc((size_t)r.w.n, sizeof *r.calls)))
        result = error_set(err, "out of memory for %d clients", r.w.n);
    result = result || run_engine(demo, &r.w, 1, &r.alone, err) ||
             run_engine(demo, &r.w, demo->options.max_running, &r.batch, err) ||
             run_clients(demo, &r, err) || show_clients(demo, &r, err);
    engine_end(&r.alone);
    engine_end(&r.batch);
    free(r.calls);
    workload_free(&r.w);
    return result ? -1 : 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 12,
        .title = "a server",
        .about = "The engine behind HTTP: clients come and go while it runs.",
        .caches = paged_caches,
        .fused = true,
        .tables = tables,
        .prompts = load_prompts,
        .serve = deployment_run,
        .begin = paged_begin,
        .fingerprint = 0x989b4f8e06199bde,
    };
    return demo_main(argc, argv, &phase);
}
