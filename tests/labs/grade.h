/*
 * grade.h - the parts of the grader: running a check, comparing the notes, telling what is wrong.
 */
#ifndef SAMEBITS_TESTS_LABS_GRADE_H
#define SAMEBITS_TESTS_LABS_GRADE_H

#include "tests/labs/lab.h"

#include <sys/types.h>

/* ---- process.c: a check in a process of its own ---------------------------------------------- */

struct lab_process {
    pid_t pid;
    int notes_fd, output_fd;
    int seconds; /* its limit */
    int status;  /* of waitpid */
    bool hung;
    char *notes, *output; /* malloc'ed: what the check noted, and stdout and stderr */
};

/* Starts the sizes [n] of a check: in `program`, or in a copy of this process if that is NULL. The
 * grader ends when that cannot be done. */
void lab_process_start(struct lab_process *p, const char *program, const struct lab_check *check,
                       const int *sizes, int n);

/* Waits for its end, which the limit brings about if nothing else does. */
void lab_process_finish(struct lab_process *p);

/* Frees the texts. */
void lab_process_free(struct lab_process *p);

/* ---- verdict.c: what the two processes say ----------------------------------------------------
 */

/* Sets *f, whose check is set: the first difference of the notes, or how the process ended. source:
 * the learner's file, whose lines are shown; program: what it was built into. */
void lab_judge(struct lab_finding *f, const struct lab_process *want, const struct lab_process *got,
               const char *program, const char *source);

/* The value of the last note with this label; "" if there is none. */
void lab_last_note(char *out, size_t size, const char *notes, const char *label);

/* ---- explain.c: for people --------------------------------------------------------------------
 */

/* Prints what is wrong, each line behind `indent`. level: of the hint, 1 to 3. */
void lab_explain(const struct lab_finding *f, const char *source, int level, const char *indent);

/* What goes for every lab when a process ends so; NULL: nothing. */
const struct lab_cause *lab_general_cause(enum lab_how how);

/* One word: "passed", "wrong", "memory", ... */
const char *lab_how_name(enum lab_how how);

#endif
