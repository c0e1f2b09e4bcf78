/*
 * check_kernel - one op of a device beside the CPU's reference, bit for bit, at the sizes where
 * kernels break; on a GPU, its speed beside ours.
 *
 *     SAMEBITS_DEVICE=emu|gpu check_kernel OP [FILE]
 *
 * `make check` links it with a reader's FILE and its launcher is checked; alone it checks ours.
 * Each shape is one line. Exit status: 0 every shape passes, 1 some do not, 2 there is nothing to
 * check.
 */
#include "tests/check_cases.h"
#include "tests/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of check_reader.h, when a reader's file is linked. */
extern void check_use_reader(struct ops *ops) __attribute__((weak));

enum { REPORT = 640, NO_ARRAY = -1 };

/* The arrays of a call on a device, as check_op's run wants them. */
struct placed {
    void *at[CHECK_ARRAYS];
    struct matrix weights[CHECK_ARRAYS];
};

struct side {
    struct test_device t;
    struct ops ops; /* what is called: the device's table, perhaps with the reader's launcher */
    struct placed arrays;
};

struct check {
    const struct check_op *op;
    const char *name; /* of what is checked: the reader's file, or gpu/ */
    struct side cpu, device;
    struct random random;
    bool is_lost; /* the device stopped; nothing runs on it any more */
};

static void stop(const char *what, const char *why) {
    fprintf(stderr, "check: %s%s\n", what, why);
    exit(2);
}

/* ---- a call on one device -------------------------------------------------------------------- */

static void place_weights(struct test_device *t, const struct check_array *a, struct matrix *w) {
    struct error err;
    if (t->ops->matrix_create(t->dev, w, a->rows, a->cols, &err))
        stop(err.text, "");
    t->ops->matrix_put(t->dev, w, 0, a->rows, a->data, a->exponents);
}

/* Puts the arrays on the device, array 0 over array `over`. What an op only reads ends where its
 * memory ends; behind what it writes there is a guard. */
static void place(struct test_device *t, struct placed *p, const struct check_call *call,
                  int over) {
    for (int i = call->n_arrays - 1; i >= 0; i--) {
        const struct check_array *a = &call->arrays[i];
        bool is_read_only = a->role == CHECK_INPUT && i != over;
        if (a->role == CHECK_WEIGHTS)
            place_weights(t, a, p->at[i] = &p->weights[i]);
        else if (a->role == CHECK_ON_HOST)
            p->at[i] = a->data;
        else if (i == 0 && over != NO_ARRAY)
            p->at[i] = p->at[over];
        else
            p->at[i] = device_put(t, a->data, a->bytes + (is_read_only ? 0 : CHECK_GUARD));
    }
}

static void free_weights(struct test_device *t, struct placed *p, const struct check_call *call) {
    for (int i = 0; i < call->n_arrays; i++)
        if (call->arrays[i].role == CHECK_WEIGHTS)
            t->ops->matrix_free(t->dev, &p->weights[i]);
}

static void clear(struct side *s, const struct check_call *call) {
    free_weights(&s->t, &s->arrays, call);
    device_clear(&s->t);
}

/* Runs the call. Returns false with a report when the device failed. */
static bool run(const struct check_op *op, struct side *s, const int *size, struct fault *fault,
                char *report) {
    struct error err;
    op->run(&s->ops, s->t.dev, size, s->arrays.at);
    if (!s->t.ops->sync(s->t.dev, fault, &err))
        return true;
    snprintf(report, REPORT, "%.600s", err.text);
    return false;
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
    snprintf(report, REPORT, "want %s, got %s", a, b);
    return false;
}

/* What the reference wrote, and what a kernel must leave alone, beside what is there now. */
static bool same_array(struct check *c, const struct check_array *a, const void *want,
                       const void *at, bool is_written, char *report) {
    size_t bytes = a->bytes + (is_written ? CHECK_GUARD : 0);
    unsigned char *got = device_get(&c->device.t, at, bytes);
    struct tensor_view x = {a->name, -1, (size_t)a->rows, (size_t)a->cols, a->type, want}, y = x;
    y.data = got;
    bool same = false;
    if (!is_written && memcmp(want, got, bytes))
        snprintf(report, REPORT, "%s, an input, was written to", a->name);
    else if (is_written && compare_bits(&x, &y, report, REPORT))
        ;
    else if (is_written && memcmp((char *)a->data + a->bytes, got + a->bytes, CHECK_GUARD))
        snprintf(report, REPORT, "%s: written to behind its end", a->name);
    else
        same = true;
    free(got);
    return same;
}

static bool same_arrays(struct check *c, const struct check_call *call, void *const *want, int over,
                        char *report) {
    for (int i = 0; i < call->n_arrays; i++) {
        const struct check_array *a = &call->arrays[i];
        bool is_written = a->role == CHECK_OUTPUT || a->role == CHECK_INOUT;
        if (a->role == CHECK_WEIGHTS || a->role == CHECK_ON_HOST || i == over)
            continue;
        if (!same_array(c, a, is_written ? want[i] : a->data, c->device.arrays.at[i], is_written,
                        report))
            return false;
    }
    return true;
}

/* ---- one shape ------------------------------------------------------------------------------- */

/* The op of the device with array 0 over array `over`; want are the reference's arrays. */
static bool check_placed(struct check *c, const struct check_call *call, const int *size, int over,
                         void *const *want, const struct fault *want_fault, char *report) {
    struct fault fault;
    place(&c->device.t, &c->device.arrays, call, over);
    c->is_lost = !run(c->op, &c->device, size, &fault, report);
    if (c->is_lost)
        return false;
    bool same = same_fault(want_fault, &fault, report) &&
                (!want || same_arrays(c, call, want, over, report));
    clear(&c->device, call);
    return same;
}

/* Into memory of its own, and over each input that may be the output. */
static bool check_outputs(struct check *c, const struct check_call *call, const int *size,
                          char *report) {
    void *want[CHECK_ARRAYS] = {NULL};
    struct fault fault;
    place(&c->cpu.t, &c->cpu.arrays, call, NO_ARRAY);
    if (!run(c->op, &c->cpu, size, &fault, report))
        stop(report, "");
    for (int i = 0; i < call->n_arrays; i++)
        if (call->arrays[i].role == CHECK_OUTPUT || call->arrays[i].role == CHECK_INOUT)
            want[i] = device_get(&c->cpu.t, c->cpu.arrays.at[i], call->arrays[i].bytes);
    clear(&c->cpu, call);
    bool same = check_placed(c, call, size, NO_ARRAY, want, &fault, report);
    for (int i = 0; i < 2 && c->op->over[i] && same; i++) {
        char inner[REPORT] = "";
        same = check_placed(c, call, size, c->op->over[i], want, &fault, inner);
        snprintf(report, REPORT, "y over %s: %.500s", call->arrays[c->op->over[i]].name, inner);
    }
    for (int i = 0; i < call->n_arrays; i++)
        free(want[i]);
    return same;
}

/* The op must tell of a NaN in the first, the middle or the last column of any row. */
static bool check_fault(struct check *c, struct check_call *call, const int *size, char *report) {
    int second = c->op->nan_arrays[1] && random_int(&c->random, 0, 1);
    const struct check_array *a = &call->arrays[c->op->nan_arrays[second]];
    int row = random_int(&c->random, 0, a->rows - 1);
    int col = random_int(&c->random, 0, 2) * (a->cols - 1) / 2;
    char inner[REPORT] = "";
    struct fault fault;
    ((float *)a->data)[(size_t)row * (size_t)a->cols + (size_t)col] = NAN;
    place(&c->cpu.t, &c->cpu.arrays, call, NO_ARRAY);
    if (!run(c->op, &c->cpu, size, &fault, report))
        stop(report, "");
    clear(&c->cpu, call);
    if (check_placed(c, call, size, NO_ARRAY, NULL, &fault, inner))
        return true;
    snprintf(report, REPORT, "a NaN in row %d, column %d of %s: %.500s", row, col, a->name, inner);
    return false;
}

/* Prints the line of one shape. */
static bool check_shape(struct check *c, const int *size) {
    char report[REPORT] = "";
    struct check_call call = {.n_arrays = 0};
    c->op->make(&call, &c->random, size);
    bool same = check_outputs(c, &call, size, report) &&
                (!c->op->nan_arrays[0] || check_fault(c, &call, size, report));
    for (int i = 0; i < CHECK_SIZES && c->op->sizes[i]; i++)
        printf("%9d", size[i]);
    printf("  %s%s\n", same ? "pass" : "FAIL  ", same ? "" : report);
    check_free_call(&call);
    return same;
}

static bool check_shapes(struct check *c) {
    int n_bad = 0, n = c->op->n_shapes, done = 0;
    printf("%s: %s beside the reference, %s\n", c->op->name, c->name,
           device_is_emulated() ? "on the emulation" : "on the GPU");
    for (int i = 0; i < CHECK_SIZES && c->op->sizes[i]; i++)
        printf("%9s", c->op->sizes[i]);
    printf("\n");
    for (; done < n && !c->is_lost; done++)
        n_bad += !check_shape(c, c->op->shapes[done]);
    if (!device_is_emulated() && !c->is_lost) {
        n_bad += !check_shape(c, c->op->speed);
        done++, n++;
    }
    if (c->is_lost)
        printf("the device stopped at this fault; %d more sizes did not run\n", n - done);
    if (n_bad)
        printf("%d of %d sizes FAIL\n", n_bad, done);
    else
        printf("all %d sizes pass: 0 bits differ\n", done);
    return n_bad == 0;
}

/* ---- speed ----------------------------------------------------------------------------------- */

enum { REPEATS = 21, MAX_COPIES = 8 };

struct race {
    const struct check_op *op;
    struct test_device *t;
    struct placed copies[MAX_COPIES]; /* used in turn, so that the cache does not hold the next */
    int n_copies;
    double copy_bytes_per_second;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wait_for_device(struct test_device *t) {
    struct fault fault;
    struct error err;
    if (t->ops->sync(t->dev, &fault, &err))
        stop(err.text, "");
}

/* Bytes that a call must at least read and write. */
static double bytes_of(const struct check_call *call) {
    double bytes = 0;
    for (int i = 0; i < call->n_arrays; i++)
        bytes += (double)call->arrays[i].bytes * (call->arrays[i].role == CHECK_INOUT ? 2 : 1);
    return bytes;
}

/* Seconds of one call in a burst of n. */
static double burst(struct race *r, const struct ops *ops, const int *size, int n) {
    double begin = now();
    for (int i = 0; i < n; i++)
        r->op->run(ops, r->t->dev, size, r->copies[i % r->n_copies].at);
    wait_for_device(r->t);
    return (now() - begin) / n;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x) {
    qsort(x, REPEATS, sizeof *x, by_size);
    return x[REPEATS / 2];
}

static double measure_copy(struct test_device *t) {
    size_t bytes = (size_t)1 << 30;
    struct error err;
    double s[REPEATS];
    void *from = t->ops->alloc(t->dev, bytes, "measuring a copy", &err);
    void *to = from ? t->ops->alloc(t->dev, bytes, "measuring a copy", &err) : NULL;
    if (!to)
        stop(err.text, "");
    for (int i = -1; i < REPEATS; i++) {
        double begin = now();
        for (int j = 0; j < 4; j++)
            t->ops->copy(t->dev, to, from, bytes);
        wait_for_device(t);
        s[i < 0 ? 0 : i] = (now() - begin) / 4;
    }
    t->ops->free(t->dev, from, bytes);
    t->ops->free(t->dev, to, bytes);
    return 2 * (double)bytes / median(s);
}

static void print_speed(const struct race *r, const char *name, double s, double bytes) {
    printf("%-30s %9.1f %9.2f %8.0f %%\n", name, s * 1e6, bytes / s / 1e12,
           100 * bytes / s / r->copy_bytes_per_second);
}

/* Both in turn, in bursts of about 5 ms. */
static void race(struct race *r, struct check *c, const int *size, double bytes) {
    const struct ops *runners[2] = {&c->device.ops, c->device.t.ops};
    double s[2][REPEATS];
    int n[2];
    for (int i = 0; i < 2; i++) {
        burst(r, runners[i], size, 2); /* scratch memory, the first load of the kernel */
        double longest = burst(r, runners[i], size, 8);
        n[i] = 0.005 / longest > 1000 ? 1000 : 1 + (int)(0.005 / longest);
    }
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (int i = 0; i < 2; i++)
            s[i][repeat] = burst(r, runners[i], size, n[i]);
    print_speed(r, c->name, median(s[0]), bytes);
    print_speed(r, "ours, in gpu/", median(s[1]), bytes);
}

static void print_speeds(struct check *c) {
    static const double cold_bytes = 256e6; /* more than the caches of these GPUs */
    const int *size = c->op->speed;
    struct check_call call = {.n_arrays = 0};
    struct race r = {.op = c->op, .t = &c->device.t};
    c->op->make(&call, &c->random, size);
    double bytes = bytes_of(&call);
    while (r.n_copies < MAX_COPIES && (r.n_copies < 1 || r.n_copies * bytes < cold_bytes))
        place(r.t, &r.copies[r.n_copies++], &call, NO_ARRAY);
    r.copy_bytes_per_second = measure_copy(r.t);
    printf("speed at");
    for (int i = 0; i < CHECK_SIZES && c->op->sizes[i]; i++)
        printf("%s %d %s", i ? "," : "", size[i], c->op->sizes[i]);
    printf(": medians of %d; a copy of 1 GiB moves %.2f TB/s (read + written)\n", REPEATS,
           r.copy_bytes_per_second / 1e12);
    printf("%-30s %9s %9s %10s\n", "", "us", "TB/s", "of a copy");
    race(&r, c, size, bytes);
    for (int i = 0; i < r.n_copies; i++)
        free_weights(r.t, &r.copies[i], &call);
    device_clear(r.t);
    check_free_call(&call);
}

int main(int argc, char **argv) {
    static struct check c = {.random = {2026}};
    if (argc < 2 || argc > 3)
        stop("usage: check_kernel OP [FILE]", "");
    c.op = check_find_op(argv[1]);
    c.name = argc > 2 ? argv[2] : "gpu/";
    if (!c.op)
        stop(argv[1], ": no such op, or tests/check_cases.c does not know it yet");
    setvbuf(stdout, NULL, _IOLBF, 0);
    device_open(&c.cpu.t, &ref_ops, 2);
    device_open(&c.device.t, device_under_test(), 2);
    c.cpu.ops = ref_ops;
    c.device.ops = *c.device.t.ops;
    if (check_use_reader)
        check_use_reader(&c.device.ops);
    bool same = check_shapes(&c);
    if (same && device_is_emulated()) /* a wrong kernel has no speed */
        printf("speed: measured only on a GPU; this was the emulation on a CPU\n");
    else if (same)
        print_speeds(&c);
    return !same;
}
