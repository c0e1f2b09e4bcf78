#include "tutorials/common/serve.h"

#include "scheduler/own_caches.h"
#include "scheduler/trace.h"
#include "tutorials/common/output.h"
#include "tutorials/common/page.h"
#include "tutorials/common/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the engine's callbacks collect. */
struct log {
    const struct workload *workload;
    double *since; /* [n] when each request entered its state */
    char *states;  /* [n + 1] a letter each */
    json_t *steps; /* NULL: not wanted */
    struct trace trace;
    struct record record;
    int running, waiting, blocks; /* as last counted in the trace */
    struct progress_bar bar;
};

/* The trace's counters, when they changed. */
static void count(struct log *log, const struct engine *e, double now) {
    if (!log->trace.events)
        return;
    int running = e->scheduler.n_running, waiting = scheduler_waiting(&e->scheduler, now);
    if (running != log->running)
        trace_counter(&log->trace, "running", running, now);
    if (waiting != log->waiting)
        trace_counter(&log->trace, "waiting", waiting, now);
    log->running = running;
    log->waiting = waiting;
    const struct request_memory *memory = e->scheduler.memory;
    int blocks = memory && memory->block_bytes ? (int)(memory->bytes / memory->block_bytes) : 0;
    if (blocks != log->blocks)
        trace_counter(&log->trace, "blocks in use", blocks, now);
    log->blocks = blocks;
}

static void on_change(void *context, const struct engine *e, int request, enum request_state from,
                      double now) {
    struct log *log = context;
    const struct job *job = &e->scheduler.jobs[request];
    if (log->trace.events) {
        trace_span(&log->trace, request, from,
                   from == REQUEST_WAITING ? job->arrival : log->since[request], now);
        if (job->state == REQUEST_DONE)
            trace_done(&log->trace, request, finish_name(job->finish), now);
    }
    if (from != REQUEST_WAITING || job->state != REQUEST_DONE) /* that may lie in the future */
        count(log, e, now);
    log->since[request] = now;
}

/* A row of the step log, if a state has changed since the last one. */
static void log_states(struct log *log, const struct engine *e, double now) {
    if (!log->steps)
        return;
    for (int i = 0; i < e->n; i++) {
        const struct job *job = &e->scheduler.jobs[i];
        log->states[i] = job->state == REQUEST_WAITING && job->arrival > now ? '-'
                         : job->state == REQUEST_WAITING                     ? 'W'
                         : job->state == REQUEST_PREFILLING                  ? 'P'
                         : job->state == REQUEST_DECODING                    ? 'D'
                         : job->state == REQUEST_PREEMPTED                   ? 'p'
                                                                             : '.';
    }
    const json_t *last = json_array_get(log->steps, json_array_size(log->steps) - 1);
    if (last && !strcmp(log->states, json_string_value(json_array_get(last, 4))))
        return;
    json_array_append_new(log->steps,
                          json_pack("[ifiis]", (int)e->steps, now * 1e3, e->scheduler.n_running,
                                    scheduler_waiting(&e->scheduler, now), log->states));
}

static void on_step(void *context, struct engine *e) {
    struct log *log = context;
    double now = clock_now() - e->began;
    progress_bar_update(&log->bar, (size_t)e->scheduler.n_done, (size_t)e->n);
    count(log, e, now);
    log_states(log, e, now);
    record_step(&log->record, e, now);
}

/* A trace that cannot be written must not cost the tables: the reason is reported after them. */
static void write_trace(struct log *log, const char *path, struct error *late) {
    struct output o;
    if (output_open(&o, path, late))
        return;
    if (trace_write(&log->trace, o.file, path, late))
        output_discard(&o);
    else
        output_keep(&o, late);
}

/* What happened after the last step: a request that was refused, all that were cancelled. */
static void log_finish(struct log *log, struct demo *demo, const struct engine *e) {
    double now = clock_now() - e->began;
    count(log, e, now);
    log_states(log, e, now);
    record_step(&log->record, e, now);
    if (log->trace.events)
        write_trace(log, demo->options.trace, &demo->late);
    if (log->record.changes)
        record_write(&log->record, demo, demo->options.html, &demo->late);
}

static int log_start(struct log *log, const struct demo *demo, const struct workload *w,
                     const struct request_memory *memory, json_t **steps, struct error *err) {
    size_t n = (size_t)w->n + 1;
    *log = (struct log){.workload = w,
                        .since = calloc(n, sizeof *log->since),
                        .states = calloc(n, 1),
                        .running = -1,
                        .waiting = -1,
                        .bar = progress_bar_start("serving")};
    if (!log->since || !log->states)
        return error_set(err, "out of memory for the log of %d requests", w->n);
    if (steps)
        log->steps = *steps = json_array();
    if (demo->options.html && record_start(&log->record, memory, err))
        return -1;
    if (!demo->options.trace)
        return 0;
    if (trace_start(&log->trace, err))
        return -1;
    for (int i = 0; i < w->n; i++) {
        char name[64];
        snprintf(name, sizeof name, "%d %s", i, w->requests[i].title);
        trace_name(&log->trace, i, name);
    }
    return 0;
}

struct serving serving_of(const struct demo *demo) {
    return (struct serving){.cache = demo->cache,
                            .max_running = demo->options.max_running,
                            .continuous = true,
                            .fused = demo->phase->fused};
}

int serve_run(struct demo *demo, const struct workload *w, const struct serving *serving,
              struct engine *engine, json_t **steps, struct error *err) {
    struct own_caches own;
    struct log log;
    struct generator generator = demo->generator;
    struct engine_options options = {
        .scheduler = {serving->max_running, demo->options.token_budget, demo->options.chunk,
                      serving->continuous},
        .memory = serving->memory ? serving->memory : &own.base,
        .one_pass = serving->fused,
        .tokenizer = demo->tokenizer,
        .stepped = on_step,
        .changed = on_change,
        .context = &log,
    };
    generator.fused = serving->fused;
    *engine = (struct engine){0};
    own_caches_start(&own, &demo->model, serving->cache->create, serving->cache->destroy,
                     demo->generator.context);
    demo->dev->peak_bytes = demo->dev->bytes;
    int result = log_start(&log, demo, w, options.memory, steps, err) ||
                 engine_run(engine, &generator, w->requests, w->n, &options, err);
    progress_bar_end(&log.bar);
    if (!result)
        log_finish(&log, demo, engine);
    own_caches_end(&own);
    trace_end(&log.trace);
    record_end(&log.record);
    for (int i = 0; !result && i < w->n; i++)
        fingerprint_add_sequence(&demo->run,
                                 fingerprint_value(&engine->answers[i].sequence.fingerprint));
    free(log.since);
    free(log.states);
    if (result && steps) {
        json_decref(*steps);
        *steps = NULL;
    }
    return result ? -1 : 0;
}

int serve_all(struct demo *demo, const struct workload *w, const struct serving *serving,
              struct engine *engine, struct error *err) {
    if (serve_run(demo, w, serving, engine, NULL, err))
        return -1;
    for (int i = 0; i < w->n && !demo_interrupted(demo); i++)
        if (engine->answers[i].sequence.finish == FINISH_ERROR)
            return error_set(err, "the table needs an answer to each request. Request %d: %s", i,
                             engine->answers[i].error.text);
    return 0;
}

static void show_steps(struct demo *demo, json_t *steps, bool preempts) {
    static const struct column columns[] = {{"step", "step", 0, 0},
                                            {"ms", "ms", 1, 0},
                                            {"running", "running", 0, 0},
                                            {"waiting", "waiting", 0, 0},
                                            {"states", "states", -1, 0}};
    char title[200];
    snprintf(
        title, sizeof title,
        "Steps in which a state changed; a letter for each request: - not here yet, W waiting, "
        "P prefilling, D decoding,%s . done",
        preempts ? " p preempted," : "");
    demo_table(demo, "steps", title, columns, 5, steps);
}

/* Milliseconds between two moments, or null: the second did not come. */
static json_t *milliseconds(double from, double to) {
    return to < 0 ? json_null() : json_real((to - from) * 1e3);
}

/* Each that could not be answered, and why. */
static void show_failures(struct demo *demo, const struct workload *w,
                          const struct engine *engine) {
    for (int i = 0; i < w->n; i++)
        if (engine->answers[i].sequence.finish == FINISH_ERROR) {
            printf("request %d: %s\n\n", i, engine->answers[i].error.text);
            demo_request_failed(demo, i, &engine->answers[i].error);
        }
}

static void show_requests(struct demo *demo, const struct workload *w,
                          const struct engine *engine) {
    static const struct column columns[] = {{"request", "#", 0, 0},
                                            {"prompt", "prompt", -1, 0},
                                            {"tokens", "prompt tokens", 0, 0},
                                            {"new", "new tokens", 0, 0},
                                            {"finish", "end", -1, 0},
                                            {"queue_ms", "queue ms", 1, 0},
                                            {"ttft_ms", "TTFT ms", 1, 0},
                                            {"ms_tok", "ms/tok", 2, 0},
                                            {"latency_ms", "latency ms", 1, 0},
                                            {"fingerprint", "fingerprint", -1, 0}};
    json_t *rows = json_array();
    for (int i = 0; i < w->n; i++) {
        const struct job *j = &engine->scheduler.jobs[i];
        char fingerprint[17];
        fingerprint_text(fingerprint, fingerprint_value(&engine->answers[i].sequence.fingerprint));
        json_array_append_new(
            rows, json_pack("[isiisoooos]", i, w->requests[i].title, w->requests[i].n_prompt,
                            j->n_new, finish_name(j->finish), milliseconds(j->arrival, j->admitted),
                            milliseconds(j->arrival, j->first),
                            j->n_new > 1 ? json_real((j->done - j->first) * 1e3 / (j->n_new - 1))
                                         : json_null(),
                            milliseconds(j->arrival, j->done), fingerprint));
    }
    demo_table(demo, "requests", "Requests", columns, 10, rows);
    show_failures(demo, w, engine);
}

static json_t *spread_row(const char *what, const struct spread *s, double scale) {
    return json_pack("[sffff]", what, s->mean * scale, s->p50 * scale, s->p95 * scale,
                     s->p99 * scale);
}

static int show_totals(struct demo *demo, const struct engine *engine, struct error *err) {
    static const struct column columns[] = {{"what", "", -1, 0},
                                            {"mean", "mean", 2, 0},
                                            {"p50", "p50", 2, 0},
                                            {"p95", "p95", 2, 0},
                                            {"p99", "p99", 2, 0}};
    struct engine_metrics m;
    char title[160];
    if (engine_measure(engine, &m, err))
        return -1;
    json_t *rows = json_array();
    json_array_append_new(rows, spread_row("queue ms", &m.queue, 1e3));
    json_array_append_new(rows, spread_row("TTFT ms", &m.ttft, 1e3));
    json_array_append_new(rows, spread_row("ms/tok", &m.ms_per_token, 1));
    json_array_append_new(rows, spread_row("latency ms", &m.latency, 1e3));
    snprintf(title, sizeof title,
             "%d requests in %.2f s: %.1f tok/s; %ld steps, %ld passes; caches at most %.1f MB",
             m.n, m.seconds, m.tokens_per_second, engine->steps, engine->passes,
             (double)engine->most_cache_bytes / 1e6);
    demo_table(demo, "totals", title, columns, 5, rows);
    if (demo->generator.drafter)
        printf("%ld of %ld drafted tokens accepted\n\n", engine->accepted, engine->proposed);
    return 0;
}

int serve_requests(struct demo *demo, const char *path, const struct serving *serving,
                   struct error *err) {
    struct workload w = {0};
    struct engine engine = {0};
    json_t *steps = NULL;
    int result = path ? demo_read_requests(demo, path, &w, err) : demo_draw_requests(demo, &w, err);
    if (!result && demo->options.samples)
        result = workload_fork(&w, demo->options.samples, err);
    demo->generator.ignore_stop = !path;
    for (int i = 0; i < w.n; i++)
        w.requests[i].receipt = demo->options.receipt;
    if (!result)
        result = serve_run(demo, &w, serving, &engine, w.n > 100 ? NULL : &steps, err);
    for (int i = 0; i < w.n && !result; i++)
        result = demo_keep_receipt(demo, &w.requests[i], &engine.answers[i].sequence, err);
    demo->generator.ignore_stop = false;
    if (!result) {
        if (steps)
            show_steps(demo, steps, serving->memory != NULL);
        show_requests(demo, &w, &engine);
        result = show_totals(demo, &engine, err);
    }
    engine_end(&engine);
    workload_free(&w);
    return result ? -1 : 0;
}

int serve_prompts(struct demo *demo, struct error *err) {
    struct serving serving = serving_of(demo);
    return serve_requests(demo, demo->options.prompts, &serving, err);
}
