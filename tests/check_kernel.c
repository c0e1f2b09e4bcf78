/*
 * check_kernel - the grader of kernels: one op of a device beside the CPU's reference, bit for bit,
 * at the sizes where kernels break; on a GPU, its speed beside ours.
 *
 *     SAMEBITS_DEVICE=emu|gpu check_kernel OP [FILE THEIRS OURS]
 *
 * The kernels run in processes of their own: THEIRS is the program check_candidate linked with a
 * reader's FILE, OURS the one without; alone, it checks ours, which lies beside this program. What
 * a kernel must give never leaves this process (check_call.h). Every call has new random inputs,
 * other memory, and outputs full of poison. CHECK_SEED=N: the inputs of an earlier run.
 * CHECK_SECONDS=N: how long a kernel may take for one request (check_process.h).
 *
 * Each shape is one line. Exit status: 0 every shape passes, 1 some do not, 2 there is nothing to
 * check.
 */
#include "tests/check_grader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void stop(const char *what, const char *why) {
    fprintf(stderr, "check: %s%s\n", what, why);
    exit(2);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Prints the line of one shape: into memory of its own, over each input that may be the output, and
 * with a NaN, which the op must tell of. */
static bool check_shape(struct grader *g, const int *size) {
    char inner[PROCESS_REPORT] = "", report[PROCESS_REPORT] = "";
    const struct check_op *op = g->op;
    struct grading how = {.over = CHECK_NO_ARRAY, .n_calls = 1};
    bool same = grade_calls(g, &g->checked, size, &how, report);
    for (int i = 0; i < 2 && op->over[i] && same; i++) {
        how.over = op->over[i];
        same = grade_calls(g, &g->checked, size, &how, inner);
        snprintf(report, sizeof report, "y over %s: %.1100s",
                 g->calls[0].call.arrays[op->over[i]].name, inner);
    }
    how = (struct grading){.over = CHECK_NO_ARRAY, .n_calls = 1, .has_nan = true};
    if (same && op->nan_arrays[0])
        same = grade_calls(g, &g->checked, size, &how, report);
    for (int i = 0; i < CHECK_SIZES && op->sizes[i]; i++)
        printf("%9d", size[i]);
    printf("  %s%s\n", same ? "pass" : "FAIL  ", same ? "" : report);
    return same;
}

/* Batches as they are timed: several calls of a size, one right after the other. */
static bool check_batches(struct grader *g, const int *size) {
    char report[PROCESS_REPORT] = "";
    struct grading how = {.over = CHECK_NO_ARRAY, .n_calls = CHECK_BATCH, .is_timed = true};
    for (int i = 0; i < 2; i++)
        if (!grade_calls(g, &g->checked, size, &how, report)) {
            printf("FAIL  timed as a batch: %s\n", report);
            return false;
        }
    return true;
}

static bool check_shapes(struct grader *g) {
    const struct check_op *op = g->op;
    int n_bad = 0, n = op->n_shapes, done = 0;
    const int *timed = g->is_emulated ? op->shapes[n - 1] : op->speed;
    printf("%s: %s beside the reference, %s\n", op->name, g->checked.name,
           g->is_emulated ? "on the emulation" : "on the GPU");
    for (int i = 0; i < CHECK_SIZES && op->sizes[i]; i++)
        printf("%9s", op->sizes[i]);
    printf("\n");
    for (; done < n && !g->checked.is_lost; done++)
        n_bad += !check_shape(g, op->shapes[done]);
    if (!g->is_emulated && !g->checked.is_lost) {
        n_bad += !check_shape(g, op->speed);
        done++, n++;
    }
    if (!n_bad && check_batches(g, timed)) {
        printf("all %d sizes pass: 0 bits differ\n", done);
        return true;
    }
    if (g->checked.is_lost)
        printf("the device stopped at this fault; %d more sizes did not run\n", n - done);
    if (n_bad)
        printf("%d of %d sizes FAIL", n_bad, done);
    printf("%sthe same inputs again: CHECK_SEED=%llu make check ...\n", n_bad ? "\n" : "",
           (unsigned long long)g->seed);
    return false;
}

/* ---- speed ----------------------------------------------------------------------------------- */

enum { REPEATS = 5, COPIES = 8 };

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x) {
    qsort(x, REPEATS, sizeof *x, by_size);
    return x[REPEATS / 2];
}

/* Seconds of a request without calls. */
static double time_of(struct process *c, const struct check_request *r) {
    char report[PROCESS_REPORT];
    double s[REPEATS];
    for (int i = 0; i < REPEATS; i++)
        if (!run_request(c, r, &s[i], report))
            stop(report, "");
    return median(s);
}

/* Bytes that a call must at least read and write. */
static double bytes_of(const struct check_call *call) {
    double bytes = 0;
    for (int i = 0; i < call->n_arrays; i++)
        bytes += (double)call->arrays[i].bytes * (call->arrays[i].role == CHECK_INOUT ? 2 : 1);
    return bytes;
}

static void print_speed(const char *name, double s, double bytes, double copy) {
    printf("%-30s %9.1f %9.2f %8.0f %%\n", name, s * 1e6, bytes / s / 1e12, 100 * bytes / s / copy);
}

/* Seconds of one call of each side: batches in turn, each with inputs of its own. Returns false
 * when an output of a timed call is wrong: a wrong kernel has no speed. */
static bool race(struct grader *g, const int *size, double median_of[2]) {
    struct process *sides[2] = {&g->checked, &g->ours};
    struct check_request nothing = {.is_timed = 1};
    char report[PROCESS_REPORT];
    double s[2][REPEATS];
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (int i = 0; i < 2; i++) {
            struct grading batch = {CHECK_NO_ARRAY, CHECK_BATCH, false, true, &s[i][repeat]};
            if (!grade_calls(g, sides[i], size, &batch, report)) {
                printf("FAIL  %s, timed: %s\n", sides[i]->name, report);
                return false;
            }
        }
    for (int i = 0; i < 2; i++)
        median_of[i] = (median(s[i]) - time_of(sides[i], &nothing)) / CHECK_BATCH;
    return true;
}

static bool print_speeds(struct grader *g) {
    const int *size = g->op->speed;
    struct check_request copies = {.is_timed = 1, .n_copies = COPIES};
    double s[2];
    double copy = 2.0 * COPIES * (double)CHECK_COPY_BYTES / time_of(&g->ours, &copies);
    if (!race(g, size, s))
        return false;
    double bytes = bytes_of(&g->calls[0].call);
    printf("speed at");
    for (int i = 0; i < CHECK_SIZES && g->op->sizes[i]; i++)
        printf("%s %d %s", i ? "," : "", size[i], g->op->sizes[i]);
    printf(": medians of %d batches of %d calls, all with new inputs, all outputs checked;\n"
           "a copy of 1 GiB moves %.2f TB/s (read + written)\n",
           REPEATS, CHECK_BATCH, copy / 1e12);
    printf("%-30s %9s %9s %10s\n", "", "us", "TB/s", "of a copy");
    print_speed(g->checked.name, s[0], bytes, copy);
    print_speed("ours, in gpu/", s[1], bytes, copy);
    return true;
}

/* ---- main ------------------------------------------------------------------------------------ */

/* The program of our kernels that lies beside this one. */
static const char *beside(const char *program) {
    static char path[4096];
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*scheck_candidate", slash ? (int)(slash + 1 - program) : 0,
             program);
    return path;
}

static void start(struct grader *g, struct process *p, const char *name, const char *program) {
    process_start(p, name, (const char *const[]){program, g->op->name, NULL});
    process_memory(p, CHECK_HEAD);
}

static uint64_t new_seed(void) {
    const char *text = getenv("CHECK_SEED");
    uint64_t seed;
    if (text)
        return strtoull(text, NULL, 10);
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        stop("no random numbers", "");
    return seed;
}

int main(int argc, char **argv) {
    static struct grader g;
    const char *device = getenv("SAMEBITS_DEVICE");
    if (argc != 2 && argc != 5)
        stop("usage: check_kernel OP [FILE THEIRS OURS]", "");
    g.op = check_find_op(argv[1]);
    if (!g.op)
        stop(argv[1], ": no such op, or tests/check_cases.c does not know it yet");
    g.is_emulated = !device || strcmp(device, "gpu");
    g.seed = new_seed();
    g.random.state = g.seed;
    setvbuf(stdout, NULL, _IOLBF, 0);
    start(&g, &g.checked, argc > 2 ? argv[2] : "gpu/", argc > 2 ? argv[3] : beside(argv[0]));
    if (!g.is_emulated)
        start(&g, &g.ours, "ours, in gpu/", argc > 2 ? argv[4] : beside(argv[0]));
    setenv("SAMEBITS_DEVICE", "cpu", 1); /* this process has the reference only */
    device_open(&g.cpu, &ref_ops, 2);
    bool same = check_shapes(&g);
    if (same && g.is_emulated)
        printf("speed: measured only on a GPU; this was the emulation on a CPU\n");
    else if (same)
        same = print_speeds(&g);
    process_stop(&g.checked);
    if (!g.is_emulated)
        process_stop(&g.ours);
    free_calls(&g);
    return !same;
}
