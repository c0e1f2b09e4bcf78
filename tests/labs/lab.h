/*
 * lab.h - what a lab is for its grader: a table of checks and a table of typical mistakes.
 *
 * A check is a function that uses the learner's code and notes what it sees. It judges nothing: it
 * runs twice, in a process with the learner's code and in one with the project's module, and the
 * grader compares the two notes, line by line. So the right answers are never in the process in
 * which the learner's code runs, and a check cannot be wrong about them.
 */
#ifndef SAMEBITS_TESTS_LAB_H
#define SAMEBITS_TESTS_LAB_H

#include "scheduler/sequence.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- notes ----------------------------------------------------------------------------------- */

struct lab_log;

/* Notes a value. The label, as of printf, says what was done to get it: "block_allocate, call 3".
 * The grader shows the label of the first value that differs. */
void lab_int(struct lab_log *log, long long value, const char *label, ...)
    __attribute__((format(printf, 3, 4)));
void lab_text(struct lab_log *log, const char *value, const char *label, ...)
    __attribute__((format(printf, 3, 4)));

/* Notes n values. `unit` names what the index counts, "column" or "position", and the first value
 * has the index `first`. */
void lab_ints(struct lab_log *log, const int32_t *values, int n, const char *unit, int first,
              const char *label, ...) __attribute__((format(printf, 6, 7)));
void lab_floats(struct lab_log *log, const float *values, int n, const char *unit, int first,
                const char *label, ...) __attribute__((format(printf, 6, 7)));

/* Notes a 32-bit hash of each row of x [n_rows, n_cols], for tensors too large to be noted whole.
 */
void lab_rows(struct lab_log *log, const float *x, int n_rows, int n_cols, const char *unit,
              int first, const char *label, ...) __attribute__((format(printf, 7, 8)));

/* Where the positions 0 ... n - 1 of a request lie: its slots [n]. Not compared; a later difference
 * at a position is shown with its block and slot. */
void lab_places(struct lab_log *log, const int64_t *slots, int n, int block_size);

/* ---- checks ---------------------------------------------------------------------------------- */

struct lab_check {
    const char *name;
    int step;           /* 1, 2, ...: those of a step can be passed before the next is begun */
    const char *covers; /* what it looks at, in a few words */
    const char *input;  /* what a size counts: "blocks" */
    const int *sizes;   /* [n_sizes] from small to large, each run by itself */
    int n_sizes;
    void (*run)(struct lab_log *log, int size);
    int seconds; /* of processor time for all sizes; 0: LAB_SECONDS */
};

enum { LAB_SECONDS = 2 };

#define LAB_SIZES(...)                                                                             \
    .sizes = (const int[]){__VA_ARGS__}, .n_sizes = sizeof((const int[]){__VA_ARGS__}) / sizeof(int)

/* ---- what the grader found ------------------------------------------------------------------- */

enum lab_how {
    LAB_PASSED,
    LAB_WRONG,     /* another value than the project's module gives */
    LAB_UNWRITTEN, /* a function of the starter that is still to be written */
    LAB_MEMORY,    /* found by AddressSanitizer: out of bounds, used after free, freed twice */
    LAB_UNDEFINED, /* found by UndefinedBehaviorSanitizer: an overflow, a bad shift */
    LAB_LEAKED,
    LAB_EMULATED, /* found by the emulation of kernels: a race, a barrier, a bound */
    LAB_CRASHED,  /* ended by a signal */
    LAB_HUNG,     /* no end within the limit */
    LAB_STOPPED,  /* the process ended before the check did */
    LAB_SKIPPED   /* not run: in the tests of the labs, behind a failed check */
};

struct lab_finding {
    const struct lab *lab;
    const struct lab_check *check;
    const struct lab_cause *cause; /* NULL: none of the typical mistakes */
    enum lab_how how;
    int size; /* the smallest that shows it */
    char label[256], unit[32], expected[256], found[256];
    long index;         /* of the value, in its unit */
    char report[512];   /* what the sanitizer says, and where */
    char where[2][192]; /* the expected and the found block and slot of the position, or empty */
    const struct lab_finding *all; /* [lab->n_checks] of all checks, in their order */
};

/* For predicates: whether the finding is the check's, and its label begins so. */
bool lab_is(const struct lab_finding *f, const char *check, const char *label);

/* Whether another check failed, in any way. */
bool lab_failed(const struct lab_finding *f, const char *check);

/* The expected and the found value as numbers; 0 if they are none. */
double lab_expected(const struct lab_finding *f);
double lab_found(const struct lab_finding *f);

/* ---- typical mistakes ------------------------------------------------------------------------ */

struct lab_cause {
    const char *name; /* "lifo and fifo mixed up" */
    bool (*shows)(const struct lab_finding *f);
    /* A question; what to compare; where to look. {block_release} in it becomes the function's name
     * and line in the learner's file. */
    const char *hints[3];
};

struct lab {
    int number;
    const char *title;  /* "the block allocator" */
    const char *served; /* "your allocator" */
    const struct lab_check *checks;
    int n_checks;
    bool
        batches; /* all checks call lab_serve_batch: the model is loaded once for a check's sizes */
    const struct lab_cause *causes; /* the first one that shows is told */
    int n_causes;
};

/* Defined by tests/labs/NN/checks.c. */
extern const struct lab lab;

/* ---- serving --------------------------------------------------------------------------------- */

enum lab_way {
    LAB_NO_CACHE,   /* a request alone, everything read again for every token (phase 0) */
    LAB_OWN_CACHES, /* many requests, each with a cache of its own (phases 1 to 4) */
    LAB_BATCHES,    /* as before, but the next batch starts when one is done (phase 3) */
    LAB_PAGED,      /* all in one small pool, with shared prefixes and preemption (phases 5 to 7) */
    LAB_FUSED,      /* one attention for all of them (phase 8) */
    LAB_READERS,    /* LAB_FUSED for readers of one document, who share its tiles (phase 10) */
    LAB_SMALL,      /* LAB_FUSED over a cache of bfp8 (phase 11) */
    LAB_KERNELS     /* LAB_FUSED on the device of lab_device (phase 8) */
};

/* Where a check of kernels runs: in the emulation in the learner's process, which is linked with
 * it, and on the CPU in the grader, which is not. */
const struct ops *lab_device(void);

/* Serves the first n requests of data/prompts/mixed.jsonl (LAB_READERS: document.jsonl;
 * LAB_KERNELS: short.jsonl) with the shipped model, at most max_new tokens each, and notes every
 * tensor, token and fingerprint. */
void lab_serve(struct lab_log *log, int n, enum lab_way way, int max_new,
               const struct sampling_options *sampling);

/* Answers n requests with prompts of these lengths [n] in one naive batch (phase 2), of at most
 * max_new[i] tokens each, and notes rows of every pass, waste, ends and answers; tensors, too, if
 * asked for. chunk: columns per pass. stop_after: the pass after which it is interrupted, 0: none.
 */
struct lab_batch {
    const int *lengths, *max_new;
    int n, chunk, stop_after;
    bool tensors;
};
void lab_serve_batch(struct lab_log *log, const struct lab_batch *batch);

/* ---- between the parts of the grader --------------------------------------------------------- */

/* Loads the model for lab_serve_batch, and calls run(context). */
void lab_with_model(void (*run)(void *context), void *context);

/* Runs the sizes of a check [n] and writes its notes to a file descriptor. */
void lab_run(const struct lab_check *check, const int *sizes, int n, int fd);

#endif
