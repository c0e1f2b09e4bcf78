#include "tests/check_grader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_on_device(const struct check_array *a) {
    return a->role != CHECK_WEIGHTS && a->role != CHECK_ON_HOST;
}

static bool is_written(const struct check_array *a) {
    return a->role == CHECK_OUTPUT || a->role == CHECK_INOUT;
}

static void free_graded(struct graded_call *c) {
    for (int i = 0; i < c->call.n_arrays; i++)
        free(c->want[i]);
    check_free_call(&c->call);
    *c = (struct graded_call){.zone = 0};
}

void free_calls(struct grader *g) {
    for (int i = 0; i < CHECK_BATCH; i++)
        free_graded(&g->calls[i]);
}

/* ---- the reference --------------------------------------------------------------------------- */

/* The fault that a device keeps of two. */
static struct fault earlier(struct fault a, struct fault b) {
    bool a_first = b.site < 0 ||
                   (a.site >= 0 && (a.site < b.site || (a.site == b.site && a.token <= b.token)));
    return a_first ? a : b;
}

static void place_weights(struct test_device *t, const struct check_array *a, struct matrix *w) {
    struct error err;
    if (t->ops->matrix_create(t->dev, w, a->rows, a->cols, &err)) {
        fprintf(stderr, "check: %s\n", err.text);
        exit(2);
    }
    t->ops->matrix_put(t->dev, w, 0, a->rows, a->data, a->exponents);
}

/* Runs the call on the CPU and keeps what it wrote, and the fault that it found. */
static void run_reference(struct grader *g, struct graded_call *c, const int *size) {
    struct test_device *t = &g->cpu;
    void *at[CHECK_ARRAYS];
    struct matrix weights[CHECK_ARRAYS];
    struct fault fault;
    struct error err;
    for (int i = 0; i < c->call.n_arrays; i++) {
        const struct check_array *a = &c->call.arrays[i];
        if (a->role == CHECK_WEIGHTS)
            place_weights(t, a, at[i] = &weights[i]);
        else
            at[i] = a->role == CHECK_ON_HOST ? a->data : device_put(t, a->data, a->bytes);
    }
    g->op->run(t->ops, t->dev, size, at);
    t->ops->sync(t->dev, &fault, &err);
    g->want = earlier(g->want, fault);
    for (int i = 0; i < c->call.n_arrays; i++) {
        const struct check_array *a = &c->call.arrays[i];
        if (is_written(a))
            c->want[i] = device_get(t, at[i], a->bytes);
        if (a->role == CHECK_WEIGHTS)
            t->ops->matrix_free(t->dev, at[i]);
    }
    device_clear(t);
}

/* A NaN in the first, the middle or the last column of any row. The text says where. */
static void put_nan(struct grader *g, struct check_call *call, char *text, size_t size) {
    int second = g->op->nan_arrays[1] && random_int(&g->random, 0, 1);
    const struct check_array *a = &call->arrays[g->op->nan_arrays[second]];
    int row = random_int(&g->random, 0, a->rows - 1);
    int col = random_int(&g->random, 0, 2) * (a->cols - 1) / 2;
    ((float *)a->data)[(size_t)row * (size_t)a->cols + (size_t)col] = NAN;
    snprintf(text, size, "a NaN in row %d, column %d of %s: ", row, col, a->name);
}

/* ---- the shared memory ----------------------------------------------------------------------- */

static size_t aligned(size_t bytes) {
    return (bytes + CHECK_ZONE - 1) / CHECK_ZONE * CHECK_ZONE;
}

/* What the op may write lies between two zones. What it only reads does, too, on a GPU; in the
 * emulation its memory ends where it ends, and every access outside of it is found. */
static void describe(struct grader *g, struct check_request *r, const int *size,
                     const struct grading *how) {
    const struct check_call *call = &g->calls[0].call;
    size_t at = 0;
    *r = (struct check_request){.over = how->over,
                                .n_calls = how->n_calls,
                                .is_timed = how->is_timed,
                                .n_arrays = call->n_arrays};
    memcpy(r->size, size, sizeof r->size);
    for (int i = 0; i < call->n_arrays; i++) {
        const struct check_array *a = &call->arrays[i];
        bool has_zones = is_on_device(a) && (!g->is_emulated || is_written(a) || i == how->over);
        struct check_place p = {a->role,
                                a->rows,
                                a->cols,
                                a->bytes,
                                has_zones ? CHECK_ZONE : 0,
                                .at = at,
                                .exponents = at + aligned(a->bytes)};
        at += aligned(a->bytes + 2 * p.zone) + (a->exponents ? aligned((size_t)a->rows) : 0);
        r->places[i] = p;
    }
    r->call_bytes = at;
}

static void share(const struct graded_call *c, const struct check_request *r, unsigned char *to) {
    memset(to, c->zone, r->call_bytes);
    for (int i = 0; i < r->n_arrays; i++) {
        const struct check_array *a = &c->call.arrays[i];
        const struct check_place *p = &r->places[i];
        memcpy(to + p->at + p->zone, a->data, a->bytes);
        if (a->exponents)
            memcpy(to + p->exponents, a->exponents, (size_t)a->rows);
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void print_fault(char *out, size_t size, const struct fault *fault) {
    if (fault->site < 0)
        snprintf(out, size, "no fault");
    else
        snprintf(out, size, "a fault at site %d, token %d", fault->site, fault->token);
}

static bool same_fault(const struct fault *want, const struct fault *got, char *report) {
    char a[64], b[64];
    if (want->site == got->site && (want->site < 0 || want->token == got->token))
        return true;
    print_fault(a, sizeof a, want);
    print_fault(b, sizeof b, got);
    snprintf(report, PROCESS_REPORT, "want %s, got %s", a, b);
    return false;
}

static bool is_filled(const unsigned char *zone, size_t bytes, unsigned char with) {
    for (size_t i = 0; i < bytes; i++)
        if (zone[i] != with)
            return false;
    return true;
}

/* What the reference wrote (want NULL: what a kernel must leave alone), beside what is there now.
 * at: the first zone. */
static bool same_array(const struct check_array *a, const void *want, const unsigned char *at,
                       size_t zone, unsigned char with, char *report) {
    const unsigned char *got = at + zone;
    struct tensor_view x = {a->name, -1, (size_t)a->rows, (size_t)a->cols, a->type, want}, y = x;
    y.data = got;
    if (!want && memcmp(a->data, got, a->bytes))
        snprintf(report, PROCESS_REPORT, "%s, an input, was written to", a->name);
    else if (want && compare_bits(&x, &y, report, PROCESS_REPORT))
        ;
    else if (!is_filled(at, zone, with))
        snprintf(report, PROCESS_REPORT, "%s: written to before its beginning", a->name);
    else if (!is_filled(got + a->bytes, zone, with))
        snprintf(report, PROCESS_REPORT, "%s: written to behind its end", a->name);
    else
        return true;
    return false;
}

static bool same_call(const struct graded_call *c, const struct check_request *r,
                      const unsigned char *got, char *report) {
    for (int i = 0; i < r->n_arrays; i++) {
        const struct check_array *a = &c->call.arrays[i];
        const struct check_place *p = &r->places[i ? i : r->over == CHECK_NO_ARRAY ? 0 : r->over];
        if (is_on_device(a) && i != r->over &&
            !same_array(a, c->want[i], got + p->at, p->zone, c->zone, report))
            return false;
    }
    return true;
}

/* ---- asking ---------------------------------------------------------------------------------- */

bool run_request(struct process *p, const struct check_request *r, double *seconds, char *report) {
    struct check_memory *m = p->memory;
    atomic_store(&m->state, (int)CHECK_ASKED);
    process_ask(p, r, sizeof *r);
    if (!process_wait(p, CHECK_READY, report))
        return false;
    double begin = process_clock();
    atomic_store(&m->state, (int)CHECK_GO);
    if (!process_wait(p, CHECK_DONE, report))
        return false;
    if (seconds)
        *seconds = process_clock() - begin;
    if (!process_wait(p, CHECK_ANSWERED, report))
        return false;
    p->is_lost = m->is_lost != 0;
    if (p->is_lost) {
        snprintf(report, PROCESS_REPORT, "%.*s", (int)sizeof m->err.text - 1, m->err.text);
        process_plain(report);
    }
    return !p->is_lost;
}

/* ---- all of it ------------------------------------------------------------------------------- */

bool grade_calls(struct grader *g, struct process *p, const int *size, const struct grading *how,
                 char *report) {
    char where[128] = "", inner[PROCESS_REPORT] = "";
    struct check_request r;
    free_calls(g);
    g->want = (struct fault){-1, 0};
    for (int i = 0; i < how->n_calls; i++) {
        g->op->make(&g->calls[i].call, &g->random, size);
        g->calls[i].zone = (unsigned char)random_int(&g->random, 0x20, 0x3f); /* no NaN: a sum would
                                                                                 keep its bits */
        if (how->has_nan)
            put_nan(g, &g->calls[i].call, where, sizeof where);
        run_reference(g, &g->calls[i], size);
    }
    describe(g, &r, size, how);
    unsigned char *memory = process_memory(p, CHECK_HEAD + (size_t)r.n_calls * r.call_bytes);
    memory += CHECK_HEAD;
    for (int i = 0; i < how->n_calls; i++)
        share(&g->calls[i], &r, memory + (size_t)i * r.call_bytes);
    bool same = run_request(p, &r, how->seconds, inner) &&
                same_fault(&g->want, &((struct check_memory *)p->memory)->fault, inner);
    for (int i = 0; i < how->n_calls && same && !how->has_nan; i++) {
        same = same_call(&g->calls[i], &r, memory + (size_t)i * r.call_bytes, inner);
        if (how->n_calls > 1)
            snprintf(where, sizeof where, "call %d of %d: ", i + 1, how->n_calls);
    }
    snprintf(report, PROCESS_REPORT, "%s%.1100s", where, inner);
    return same;
}
