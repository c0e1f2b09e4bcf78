#include "tutorials/12-server/load.h"
#include "tutorials/12-server/client.h"
#include "tutorials/12-server/house.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/pool.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 3, PATIENCE = 2 };

/* A client and what it has got so far. */
struct caller {
    int request;
    double first; /* seconds of the run: its first token; 0: not yet */
    char *answer; /* [n] the bytes that came, with a NUL behind */
    size_t n, capacity;
};

struct load {
    struct demo *demo;
    struct workload w;
    uint64_t *alone; /* [w.n] fingerprints */
    int n_callers;
    struct caller *callers;      /* [n_callers] */
    struct pollfd *polled;       /* [n_callers] their sockets; -1: has nothing to do */
    double *ttft, *ms_per_token; /* [w.n] */
    /* Of the run that is measured. */
    int port, n_answered, n_several;
    long n_tokens;
    double began, last;
};

/* ---- the clients, in one thread ---------------------------------------------------------------
 */

static int send_next(struct load *l, int caller, int request, struct error *err) {
    struct caller *c = &l->callers[caller];
    char *body = client_body(&l->w.requests[request]);
    *c = (struct caller){.request = request, .answer = c->answer, .capacity = c->capacity};
    l->polled[caller].fd =
        body ? client_send(l->port, "/v1/completions", body, err) : error_set(err, "out of memory");
    free(body);
    return l->polled[caller].fd < 0 ? -1 : 0;
}

static int count_events(const char *answer) {
    int n = 0;
    while ((answer = strstr(answer, "\ndata: {"))) {
        answer++;
        n++;
    }
    return n;
}

/* The connection is closed: was that an answer, and the right one? */
static int finish(struct load *l, const struct caller *c, double now, struct error *err) {
    static const char key[] = "\"samebits_fingerprint\":\"";
    const char *found = c->answer ? strstr(c->answer, key) : NULL;
    char alone[17];
    int n = found ? count_events(c->answer) : 0;
    fingerprint_text(alone, l->alone[c->request]);
    if (!found || !strstr(c->answer, "data: [DONE]"))
        return error_set(err, "request %d was not answered: %.200s", c->request,
                         c->answer ? c->answer : "");
    if (strncmp(found + sizeof key - 1, alone, 16))
        return error_set(err, "request %d got %.16s, and alone it gives %s", c->request,
                         found + sizeof key - 1, alone);
    l->ttft[l->n_answered++] = c->first - l->w.requests[c->request].arrival;
    l->n_tokens += n;
    if (n > 1)
        l->ms_per_token[l->n_several++] = (now - c->first) * 1e3 / (n - 1);
    l->last = now;
    return 0;
}

/* Reads what has come. Returns 1 when that was all, or -1 with err set. */
static int read_some(struct load *l, struct caller *c, int fd, struct error *err) {
    if (c->capacity - c->n < 4096) {
        size_t capacity = 2 * c->capacity + 8192;
        char *larger = realloc(c->answer, capacity);
        if (!larger)
            return error_set(err, "out of memory for an answer");
        c->answer = larger;
        c->capacity = capacity;
    }
    ssize_t n = recv(fd, c->answer + c->n, c->capacity - c->n - 1, 0);
    double now = clock_now() - l->began;
    if (n <= 0)
        return finish(l, c, now, err) ? -1 : 1;
    c->n += (size_t)n;
    c->answer[c->n] = 0;
    if (!c->first && strstr(c->answer, "\ndata: {"))
        c->first = now;
    return 0;
}

/* Milliseconds until something can be sent: -1 when all callers are busy, or nothing is left. */
static int send_all_due(struct load *l, int *next, struct error *err) {
    double wait = -1;
    for (int i = 0; i < l->n_callers && *next < l->w.n; i++) {
        if (l->polled[i].fd >= 0)
            continue;
        wait = l->w.requests[*next].arrival - (clock_now() - l->began);
        if (wait > 0)
            return (int)(wait * 1e3) + 1;
        if (send_next(l, i, (*next)++, err))
            return -2;
    }
    return -1;
}

static int call_all(struct load *l, struct error *err) {
    int next = 0, n_done = 0, result = 0;
    l->began = clock_now();
    while (!result && n_done < l->w.n && !demo_interrupted(l->demo)) {
        int wait = send_all_due(l, &next, err);
        if (wait < -1 || poll(l->polled, (nfds_t)l->n_callers, wait) < 0)
            return wait < -1 ? -1 : error_set(err, "poll failed");
        for (int i = 0; i < l->n_callers && result >= 0; i++) {
            struct pollfd *p = &l->polled[i];
            if (p->fd < 0 || !p->revents || !(result = read_some(l, &l->callers[i], p->fd, err)))
                continue;
            close(p->fd);
            p->fd = -1;
            n_done++;
        }
        result = result < 0 ? -1 : 0;
    }
    return result;
}

/* ---- what is measured -------------------------------------------------------------------------
 */

static json_t *row(const char *what, double seconds, double tokens_per_second,
                   const struct spread *ttft, const struct spread *ms_per_token) {
    return json_pack("[sfffffff]", what, seconds, tokens_per_second, ttft->p50 * 1e3,
                     ttft->p99 * 1e3, ms_per_token->p50, ms_per_token->p95, ms_per_token->p99);
}

/* The engine of phase 8 with all requests at hand. */
static int run_engine(struct load *l, double *tokens_per_second, struct error *err) {
    struct demo *demo = l->demo;
    struct serving serving = serving_of(demo);
    struct paged_options options = {(enum preempt_mode)demo->options.preempt,
                                    !demo->options.no_prefix_cache};
    struct engine_metrics m = {0};
    struct paged_memory memory;
    struct kv_pool pool;
    struct engine e = {0};
    if (demo_pool_start(demo, &pool, 0, err))
        return -1;
    paged_memory_start(&memory, &pool, &options);
    serving.memory = &memory.base;
    int result = serve_all(demo, &l->w, &serving, &e, err) || engine_measure(&e, &m, err);
    engine_end(&e);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    *tokens_per_second = m.tokens_per_second;
    if (!result && !demo_interrupted(demo))
        demo_table_row(demo,
                       row("engine", m.seconds, m.tokens_per_second, &m.ttft, &m.ms_per_token));
    return result ? -1 : 0;
}

static int run_server(struct load *l, double *tokens_per_second, struct error *err) {
    struct server_options options = house_limits(l->demo);
    struct house house;
    struct error ignored;
    l->n_answered = l->n_several = 0;
    l->n_tokens = 0;
    int result = house_open(&house, l->demo, &options, err);
    if (!result) {
        l->port = house.server.port;
        result = call_all(l, err);
    }
    for (int i = 0; i < l->n_callers; i++)
        if (l->polled[i].fd >= 0) { /* it was interrupted, or failed */
            close(l->polled[i].fd);
            l->polled[i].fd = -1;
        }
    if (house_close(&house, PATIENCE, result ? &ignored : err) || result)
        return -1;
    if (demo_interrupted(l->demo))
        return 0;
    double seconds = l->last - l->w.requests[0].arrival;
    struct spread ttft = spread_of(l->ttft, l->n_answered);
    struct spread ms_per_token = spread_of(l->ms_per_token, l->n_several);
    *tokens_per_second = (double)l->n_tokens / seconds;
    demo_table_row(l->demo, row("server", seconds, *tokens_per_second, &ttft, &ms_per_token));
    return 0;
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
    static const struct column columns[] = {
        {"run", "", -1, 6},           {"seconds", "s", 2, 8},
        {"tok_s", "tok/s", 1, 8},     {"ttft_p50", "TTFT p50", 1, 9},
        {"ttft_p99", "p99 ms", 1, 9}, {"itl_p50", "ms/tok p50", 2, 10},
        {"itl_p95", "p95", 2, 8},     {"itl_p99", "p99", 2, 8}};
    struct demo *demo = l->demo;
    double engine = 0, server = 0, ratios[ROUNDS];
    char title[160];
    if (run_alone(l, err))
        return -1;
    snprintf(title, sizeof title,
             "%d requests, %d clients: the engine alone, and behind the server", l->w.n,
             l->n_callers);
    demo_table_begin(demo, "load", title, columns, 8);
    int result = 0;
    for (int i = 0; i < ROUNDS && !result && !demo_interrupted(demo); i++) {
        result = run_engine(l, &engine, err) || run_server(l, &server, err);
        ratios[i] = server / engine;
    }
    if (demo_table_end(demo, result) || demo_interrupted(demo))
        return result ? -1 : 0;
    qsort(ratios, ROUNDS, sizeof *ratios, by_value);
    printf("server / engine, tokens/s: %.3f, the median of %d. Each answer has the fingerprint of "
           "its request alone.\n",
           ratios[ROUNDS / 2], ROUNDS);
    json_object_set_new(demo->json, "server_of_engine", json_real(ratios[ROUNDS / 2]));
    return 0;
}

static int load_start(struct load *l, struct demo *demo, struct error *err) {
    *l = (struct load){.demo = demo, .n_callers = demo->options.clients};
    if (demo_draw_requests(demo, &l->w, err))
        return -1;
    size_t n = (size_t)l->w.n, n_callers = (size_t)l->n_callers;
    l->alone = calloc(n, sizeof *l->alone);
    l->ttft = calloc(n, sizeof *l->ttft);
    l->ms_per_token = calloc(n, sizeof *l->ms_per_token);
    l->callers = calloc(n_callers, sizeof *l->callers);
    l->polled = calloc(n_callers, sizeof *l->polled);
    if (!l->alone || !l->ttft || !l->ms_per_token || !l->callers || !l->polled)
        return error_set(err, "out of memory for %d requests and %d clients", l->w.n, l->n_callers);
    for (int i = 0; i < l->n_callers; i++)
        l->polled[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    for (int i = 0; i < l->w.n; i++) /* to their full lengths */
        l->w.requests[i].ignore_stop = true;
    return 0;
}

static void load_end(struct load *l) {
    for (int i = 0; l->callers && i < l->n_callers; i++)
        free(l->callers[i].answer);
    free(l->alone);
    free(l->ttft);
    free(l->ms_per_token);
    free(l->callers);
    free(l->polled);
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
