/*
 * check_grader.h - calls of an op with new inputs: what the reference makes of them, and whether
 * another process (check_process.h) makes the same.
 */
#ifndef SAMEBITS_TESTS_CHECK_GRADER_H
#define SAMEBITS_TESTS_CHECK_GRADER_H

#include "tests/check_call.h"
#include "tests/device.h"

/* A call and what must come of it. */
struct graded_call {
    struct check_call call;
    void *want[CHECK_ARRAYS]; /* of the arrays that the op writes; else NULL */
    unsigned char zone;       /* the byte that its zones are filled with */
};

struct grader {
    const struct check_op *op;
    struct process checked, ours; /* ours: only on a GPU */
    struct test_device cpu;       /* the reference */
    bool is_emulated;
    uint64_t seed;
    struct random random;
    struct graded_call calls[CHECK_BATCH]; /* the last ones that were made */
    struct fault want;                     /* of all of them together */
};

/* How calls are made. */
struct grading {
    int over;     /* array 0 is this array, too, or CHECK_NO_ARRAY */
    int n_calls;  /* 1 ... CHECK_BATCH */
    bool has_nan; /* one of the op's nan_arrays has a NaN: only the fault is compared */
    bool is_timed;
    double *seconds; /* of all calls together, by the grader's clock; or NULL */
};

/* Makes calls of this size with new inputs, has the reference and the candidate run them, and
 * compares. Returns false with a report (PROCESS_REPORT bytes) when something differs, or the
 * process gave no answer (it is then lost). */
bool grade_calls(struct grader *g, struct process *p, const int *size, const struct grading *how,
                 char *report);

/* Has a process do what is asked; the arrays of calls are in its memory already. *seconds, if not
 * NULL: from the moment it was allowed to begin until everything on its device had ended. Returns
 * false with a report (PROCESS_REPORT bytes) when there is no answer; the process is then lost. */
bool run_request(struct process *p, const struct check_request *r, double *seconds, char *report);

/* Frees what the last calls hold. */
void free_calls(struct grader *g);

#endif
