/*
 * Phase 12: the engine behind HTTP. With --serve it serves until a signal ends it; the tables let
 * 16 clients ask at once, and compare what each gets with what its request gives alone.
 */
#include "tutorials/12-server/client.h"
#include "tutorials/12-server/house.h"
#include "tutorials/12-server/load.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/pool.h"
#include "tutorials/common/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tables: 16 clients at once
 * -------------------------------------------------------------- */

struct client {
    pthread_t thread;
    int port, status, n_new;
    char *body;
    double asked, first, last;
    char fingerprint[17];
    struct error error;
};

static void on_event(void *context, const json_t *json) {
    struct client *c = context;
    const json_t *choice = json_array_get(json_object_get(json, "choices"), 0);
    const char *fingerprint = json_string_value(json_object_get(choice, "samebits_fingerprint"));
    if (!choice)
        return;
    c->last = clock_now();
    c->first = c->n_new++ ? c->first : c->last;
    if (fingerprint)
        snprintf(c->fingerprint, sizeof c->fingerprint, "%s", fingerprint);
}

static void *ask(void *context) {
    struct client *c = context;
    c->asked = clock_now();
    c->status = client_post(c->port, "/v1/completions", c->body, on_event, c, &c->error);
    return NULL;
}

static int ask_all(struct client *clients, const struct workload *w, int port, struct error *err) {
    int result = 0, n = 0;
    for (; n < w->n; n++) {
        clients[n] = (struct client){.port = port, .body = client_body(&w->requests[n])};
        if (!clients[n].body || pthread_create(&clients[n].thread, NULL, ask, &clients[n])) {
            result = error_set(err, "cannot start client %d", n);
            break;
        }
    }
    for (int i = 0; i < n; i++) {
        pthread_join(clients[i].thread, NULL);
        if (!result && clients[i].status != 200)
            result = error_set(err, "client %d: status %d: %s", i, clients[i].status,
                               clients[i].error.text);
    }
    for (int i = 0; i < n; i++)
        free(clients[i].body);
    return result;
}

/* A row for each client, beside what its request gave alone. */
static int show_clients(struct demo *demo, const struct client *clients, const struct workload *w,
                        const struct engine *alone, struct error *err) {
    static const struct column columns[] = {{"client", "#", 0, 0},
                                            {"prompt", "prompt", -1, 0},
                                            {"events", "events", 0, 0},
                                            {"ttft_ms", "TTFT ms", 1, 0},
                                            {"ms_tok", "ms/tok", 2, 0},
                                            {"fingerprint", "fingerprint", -1, 0},
                                            {"alone", "of the request alone", -1, 0}};
    json_t *rows = json_array();
    int result = 0;
    for (int i = 0; i < w->n; i++) {
        const struct client *c = &clients[i];
        char single[17];
        fingerprint_text(single, fingerprint_value(&alone->answers[i].sequence.fingerprint));
        bool same = !strcmp(single, c->fingerprint);
        json_array_append_new(
            rows, json_pack("{si ss si sf so ss ss}", "client", i, "prompt", w->requests[i].title,
                            "events", c->n_new, "ttft_ms", (c->first - c->asked) * 1e3, "ms_tok",
                            c->n_new > 1 ? json_real((c->last - c->first) * 1e3 / (c->n_new - 1))
                                         : json_null(),
                            "fingerprint", c->fingerprint, "alone", same ? "the same" : single));
        if (!same && !result)
            result = error_set(err, "client %d got %s, and its request alone gives %s", i,
                               c->fingerprint, single);
    }
    char title[40];
    snprintf(title, sizeof title, "%d clients at once", w->n);
    demo_table(demo, "clients", title, columns, 7, rows);
    return result;
}

/* Each request alone, one after the other. */
static int run_alone(struct demo *demo, const struct workload *w, struct engine *alone,
                     struct error *err) {
    struct serving serving = serving_of(demo);
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct paged_memory memory;
    struct kv_pool pool;
    if (demo_pool_start(demo, &pool, paged_enough_blocks(demo, w), err))
        return -1;
    paged_memory_start(&memory, &pool, &options);
    serving.memory = &memory.base;
    serving.max_running = 1;
    int result = serve_all(demo, w, &serving, alone, err);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    return result;
}

static int tables(struct demo *demo, struct error *err) {
    struct server_options options = house_limits(demo);
    struct client *clients = NULL;
    struct workload w = {0};
    struct house house;
    struct engine alone = {0};
    struct error ignored;
    int result = demo_read_requests(demo, demo_requests_file(demo), &w, err);
    if (!result && !(clients = calloc((size_t)w.n, sizeof *clients)))
        result = error_set(err, "out of memory for %d clients", w.n);
    if (!result)
        result = run_alone(demo, &w, &alone, err);
    if (!result) {
        result =
            house_open(&house, demo, &options, err) || ask_all(clients, &w, house.server.port, err);
        if (house_close(&house, 0, result ? &ignored : err))
            result = -1;
    }
    if (!result)
        result = show_clients(demo, clients, &w, &alone, err);
    engine_end(&alone);
    free(clients);
    workload_free(&w);
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
        .serve = house_serve,
        .begin = paged_begin,
        .fingerprint = 0x1693d29f628f8640,
    };
    return demo_main(argc, argv, &phase);
}
