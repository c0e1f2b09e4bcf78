/*
 * The grader of a lab. The learner's code runs in a process of its own (program.c), whose notes it
 * compares with those of the same check with the project's module, which is linked here.
 *
 *     grade PROGRAM SOURCE RESULT HINT
 *
 * RESULT is a file that gets a line "PASSED of ALL" and then one for each check, with tabs between
 * name, step, verdict, smallest input and cause. Exit status: 0 all checks pass, 1 not all do, 2
 * there is nothing to grade.
 */
#include "tests/labs/grade.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHECKS = 64 };

struct grading {
    const char *program, *source;
    int hint;
    struct lab_finding findings[MOST_CHECKS];
    char n_served[8], fingerprint[32]; /* of all requests that were served; empty: none were */
    int n_passed;
};

/* A leak is only seen at the end of a process: which is the smallest input with one? */
static void find_smallest_leak(struct lab_finding *f, const char *program) {
    for (int i = 0; i < f->check->n_sizes; i++) {
        struct lab_process p;
        lab_process_start(&p, program, f->check, &f->check->sizes[i], 1);
        lab_process_finish(&p);
        bool leaks = strstr(p.output, "LeakSanitizer: detected") != NULL;
        lab_process_free(&p);
        f->size = f->check->sizes[i];
        if (leaks)
            return;
    }
}

static void run_check(struct grading *g, int which) {
    const struct lab_check *check = &lab.checks[which];
    struct lab_finding *f = &g->findings[which];
    struct lab_process want, got;
    *f = (struct lab_finding){.lab = &lab, .check = check, .all = g->findings};
    lab_process_start(&got, g->program, check, check->sizes, check->n_sizes);
    lab_process_start(&want, NULL, check, check->sizes, check->n_sizes);
    lab_process_finish(&got);
    lab_process_finish(&want);
    char end[24], status[24];
    snprintf(end, sizeof end, "E %d\n", check->sizes[check->n_sizes - 1]);
    lab_last_note(status, sizeof status, want.notes, "the engine's exit status");
    if (!strstr(want.notes, end) || (status[0] && strcmp(status, "0"))) {
        fprintf(stderr, "the check %s fails with the project's module:\n%s\n", check->name,
                want.output);
        exit(2);
    }
    lab_judge(f, &want, &got, g->program, g->source);
    if (f->how == LAB_LEAKED)
        find_smallest_leak(f, g->program);
    if (f->how == LAB_PASSED) {
        char text[32];
        g->n_passed++;
        lab_last_note(text, sizeof text, got.notes, "fingerprint of all requests");
        if (text[0]) {
            lab_last_note(g->n_served, sizeof g->n_served, got.notes, "requests served");
            snprintf(g->fingerprint, sizeof g->fingerprint, "%s", text);
        }
    }
    lab_process_free(&want);
    lab_process_free(&got);
}

static void find_cause(struct lab_finding *f) {
    if (f->how == LAB_PASSED || f->how == LAB_UNWRITTEN || f->how == LAB_SKIPPED)
        return;
    for (int i = 0; i < lab.n_causes && !f->cause; i++)
        if (lab.causes[i].shows(f))
            f->cause = &lab.causes[i];
    if (!f->cause)
        f->cause = lab_general_cause(f->how);
}

/* In the tests of the labs, when another check failed: a long one, and all behind an endless loop,
 * which may be in their way, too. */
static bool is_left_out(const struct grading *g, int which) {
    bool has_hung = false;
    for (int i = 0; i < which; i++)
        has_hung = has_hung || g->findings[i].how == LAB_HUNG;
    return has_hung || (g->n_passed < which && lab.checks[which].seconds > LAB_SECONDS);
}

static void print_checks(const struct grading *g) {
    int step = 0;
    for (int i = 0; i < lab.n_checks; i++) {
        const struct lab_finding *f = &g->findings[i];
        if (f->check->step != step)
            printf("\nstep %d\n", step = f->check->step);
        printf("  %-4s  %-16s %s\n", f->how == LAB_PASSED ? "ok" : "FAIL", f->check->name,
               f->check->covers);
        if (f->how != LAB_PASSED)
            lab_explain(f, g->source, g->hint, "        ");
    }
}

static void print_summary(const struct grading *g) {
    printf("\n%d of %d checks pass\n", g->n_passed, lab.n_checks);
    for (int i = 0; i < lab.n_checks; i++)
        if (g->findings[i].how != LAB_PASSED) {
            printf("the first that fails: %s (step %d)\n", lab.checks[i].name, lab.checks[i].step);
            lab_explain(&g->findings[i], g->source, g->hint, "    ");
            return;
        }
    if (g->fingerprint[0])
        printf("%s served %s requests: %s, the reference's bits\n", lab.served, g->n_served,
               g->fingerprint);
}

static void write_result(const struct grading *g, const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        exit(2);
    }
    fprintf(file, "%d of %d\n", g->n_passed, lab.n_checks);
    for (int i = 0; i < lab.n_checks; i++) {
        const struct lab_finding *f = &g->findings[i];
        fprintf(file, "%s\t%d\t%s\t%d\t%s\n", f->check->name, f->check->step, lab_how_name(f->how),
                f->size, f->cause ? f->cause->name : "-");
    }
    fclose(file);
}

int main(int argc, char **argv) {
    static struct grading g;
    bool is_short = getenv("LAB_SHORT") != NULL;
    if (argc != 5 || lab.n_checks > MOST_CHECKS) {
        fprintf(stderr, "usage: grade PROGRAM SOURCE RESULT HINT\n");
        return 2;
    }
    g.program = argv[1];
    g.source = argv[2];
    g.hint = atoi(argv[4]);
    g.hint = g.hint < 1 ? 1 : g.hint > 3 ? 3 : g.hint;
    printf("Lab %d, %s: %s\n", lab.number, lab.title, g.source);
    for (int i = 0; i < lab.n_checks; i++)
        if (is_short && is_left_out(&g, i))
            g.findings[i] = (struct lab_finding){
                .lab = &lab, .check = &lab.checks[i], .all = g.findings, .how = LAB_SKIPPED};
        else
            run_check(&g, i);
    for (int i = 0; i < lab.n_checks; i++)
        find_cause(&g.findings[i]);
    print_checks(&g);
    print_summary(&g);
    write_result(&g, argv[3]);
    return g.n_passed < lab.n_checks;
}
