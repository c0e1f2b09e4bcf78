/*
 * check_candidate - runs one op of a device for the grader of `make check` (check_call.h): a
 * reader's launcher where one is linked (check_reader.h), else ours.
 *
 *     check_candidate OP      (started by check_kernel)
 *
 * Nothing that it says is believed: it has no clock, and it knows no result.
 */
#include "tests/check_call.h"
#include "tests/device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of check_reader.h, when a reader's file is linked, and of the CUDA runtime. */
extern void check_use_reader(struct ops *ops) __attribute__((weak));
extern int cudaDeviceSynchronize(void) __attribute__((weak));

/* The arrays of one call on the device, as check_op's run wants them. */
struct placed {
    struct test_device t;
    unsigned char *base[CHECK_ARRAYS]; /* of the allocation: the first zone; NULL: there is none */
    void *at[CHECK_ARRAYS];
    void *host[CHECK_ARRAYS]; /* what stays there */
    struct matrix weights[CHECK_ARRAYS];
};

/* Calls take the sets of arrays in turn. A set is freed when its turn comes: no array lies where
 * one of the calls before it had any. */
enum { SETS = CHECK_BATCH + 1 };

struct server {
    const struct check_op *op;
    struct ops ops; /* the device's table, perhaps with the reader's launcher */
    struct test_device t;
    struct placed sets[SETS];
    int next;
    void *copies[2]; /* what is copied where: on a GPU, when it is first needed */
    struct check_memory *memory;
};

static void stop(const char *why) {
    fprintf(stderr, "check: %s\n", why);
    exit(2);
}

static void set_state(struct server *s, enum check_state state) {
    atomic_store(&s->memory->state, (int)state);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static void clear(struct placed *p) {
    for (int i = 0; i < CHECK_ARRAYS; i++) {
        free(p->host[i]);
        p->host[i] = NULL;
        if (p->weights[i].mantissas)
            p->t.ops->matrix_free(p->t.dev, &p->weights[i]);
    }
    device_clear(&p->t);
}

static void place_weights(struct test_device *t, const struct check_place *a, struct matrix *w,
                          const unsigned char *call) {
    struct error err;
    if (t->ops->matrix_create(t->dev, w, a->rows, a->cols, &err))
        stop(err.text);
    t->ops->matrix_put(t->dev, w, 0, a->rows, (const int16_t *)(call + a->at),
                       (const int8_t *)(call + a->exponents));
}

/* Puts the arrays of a call on the device; call: its part of the shared memory. */
static void place(struct placed *p, const struct check_request *request, unsigned char *call) {
    clear(p);
    for (int i = request->n_arrays - 1; i >= 0; i--) {
        const struct check_place *a = &request->places[i];
        p->base[i] = NULL;
        if (a->role == CHECK_WEIGHTS) {
            place_weights(&p->t, a, &p->weights[i], call);
            p->at[i] = &p->weights[i];
        } else if (a->role == CHECK_ON_HOST) {
            p->at[i] = p->host[i] = host_array(a->bytes, 1); /* no address of the shared memory */
            memcpy(p->at[i], call + a->at, a->bytes);
        } else if (i == 0 && request->over != CHECK_NO_ARRAY) {
            p->at[i] = p->at[request->over];
        } else {
            p->base[i] = device_put(&p->t, call + a->at, a->bytes + 2 * a->zone);
            p->at[i] = p->base[i] + a->zone;
        }
    }
}

/* What the device holds now, zones included. */
static void fetch(struct placed *p, const struct check_request *request, unsigned char *call) {
    for (int i = 0; i < request->n_arrays; i++) {
        const struct check_place *a = &request->places[i];
        if (p->base[i])
            p->t.ops->download(p->t.dev, call + a->at, p->base[i], a->bytes + 2 * a->zone);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Waits for everything on the device, in every stream. */
static void wait_for_device(struct server *s) {
    struct check_memory *m = s->memory;
    int failed = cudaDeviceSynchronize ? cudaDeviceSynchronize() : 0;
    m->is_lost = s->t.ops->sync(s->t.dev, &m->fault, &m->err) != 0;
    if (failed && !m->is_lost)
        m->is_lost = error_set(&m->err, "the device failed") != 0;
}

static void copy(struct server *s, int n) {
    struct error err;
    for (int i = 0; i < 2 && !s->copies[i]; i++)
        if (!(s->copies[i] = s->t.ops->alloc(s->t.dev, CHECK_COPY_BYTES, "copies", &err)))
            stop(err.text);
    for (int i = 0; i < n; i++)
        s->t.ops->copy(s->t.dev, s->copies[0], s->copies[1], CHECK_COPY_BYTES);
}

static void answer(struct server *s, const struct check_request *r, unsigned char *calls) {
    enum { WARM_UP = 40 }; /* copies: some 20 ms */
    struct placed *sets[CHECK_BATCH];
    for (int i = 0; i < r->n_calls; i++, s->next = (s->next + 1) % SETS)
        place(sets[i] = &s->sets[s->next], r, calls + (size_t)i * r->call_bytes);
    if (r->is_timed && !device_is_emulated())
        copy(s, WARM_UP);
    wait_for_device(s);
    set_state(s, CHECK_READY);
    while (atomic_load(&s->memory->state) != CHECK_GO)
        sched_yield();
    for (int i = 0; i < r->n_calls; i++)
        s->op->run(&s->ops, s->t.dev, r->size, sets[i]->at);
    if (r->n_copies)
        copy(s, r->n_copies);
    wait_for_device(s);
    set_state(s, CHECK_DONE);
    for (int i = 0; i < r->n_calls && !s->memory->is_lost; i++)
        fetch(sets[i], r, calls + (size_t)i * r->call_bytes);
    set_state(s, CHECK_ANSWERED);
}

/* Reads the next request; false at the end. */
static bool next_request(struct check_request *r) {
    ssize_t n = read(PROCESS_REQUESTS_FD, r, sizeof *r); /* written at once, and below PIPE_BUF */
    if (n && n != sizeof *r)
        stop("a broken request");
    return n > 0;
}

int main(int argc, char **argv) {
    static struct server s;
    struct check_request r;
    if (argc != 2 || !(s.op = check_find_op(argv[1])))
        stop("check_candidate is started by check_kernel");
    setvbuf(stdout, NULL, _IOLBF, 0);
    device_open(&s.t, device_under_test(), 2);
    s.ops = *s.t.ops;
    if (check_use_reader)
        check_use_reader(&s.ops);
    for (int i = 0; i < SETS; i++)
        s.sets[i].t = s.t;
    s.memory = mmap(NULL, CHECK_HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, PROCESS_MEMORY_FD, 0);
    if (s.memory == MAP_FAILED)
        stop("no shared memory");
    while (next_request(&r)) {
        size_t bytes = CHECK_HEAD + (size_t)r.n_calls * r.call_bytes;
        unsigned char *memory =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, PROCESS_MEMORY_FD, 0);
        if (memory == MAP_FAILED)
            stop("no shared memory");
        answer(&s, &r, memory + CHECK_HEAD);
        munmap(memory, bytes);
    }
    return 0;
}
