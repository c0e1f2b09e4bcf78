#include "tests/labs/grade.h"

#include <stdio.h>
#include <string.h>

const char *lab_how_name(enum lab_how how) {
    static const char *const names[] = {
        [LAB_PASSED] = "passed",   [LAB_WRONG] = "wrong",        [LAB_UNWRITTEN] = "not written",
        [LAB_MEMORY] = "memory",   [LAB_LEAKED] = "leak",        [LAB_UNDEFINED] = "undefined",
        [LAB_HUNG] = "endless",    [LAB_CRASHED] = "crash",      [LAB_STOPPED] = "stopped",
        [LAB_SKIPPED] = "skipped", [LAB_EMULATED] = "emulation",
    };
    return names[how];
}

/* What is told when a process ends badly and none of the lab's causes shows. */
static const struct lab_cause general[LAB_SKIPPED + 1] = {
    [LAB_MEMORY] = {"memory that is not yours",
                    NULL,
                    {"Which element does that line want, and how many are there?",
                     "One index too far (<= for <), room for one element too few, or something "
                     "that was freed before.",
                     "Look at the line above, with the smallest input: work out its index by "
                     "hand."}},
    [LAB_UNDEFINED] = {"undefined behaviour",
                       NULL,
                       {"What is the largest number on that line, and the smallest?",
                        "A sum that does not fit its type, a negative shift, a NULL pointer.",
                        "Look at the types of the variables on the line above."}},
    [LAB_LEAKED] = {"a leak",
                    NULL,
                    {"Who frees what that line allocates?",
                     "Every allocation needs a free on every way out, the failing ones, too.",
                     "Look at each return behind the line above."}},
    [LAB_EMULATED] = {"a kernel that was stopped",
                      NULL,
                      {"Which thread is it, and which element should it have?",
                       "The report names block, thread and access; all is counted from 0.",
                       "Look at the line above and put the report's numbers in."}},
    [LAB_CRASHED] = {"a crash",
                     NULL,
                     {"Which pointer does that line follow, and who has set it?",
                      "NULL, a pointer that was never set, or a function that calls itself "
                      "without end.",
                      "Look at the line above, or at what the check's call comes to first."}},
    [LAB_HUNG] = {"an endless loop",
                  NULL,
                  {"Which of your loops does not come to its end, and what should end it?",
                   "A list that leads back to itself, a condition that nothing in the loop "
                   "changes, an unsigned number that should become negative.",
                   "Look at every loop that the check's call comes to."}},
    [LAB_STOPPED] = {"the program's end",
                     NULL,
                     {"What in your file ends the program?",
                      "A function says with what it returns that something is wrong; exit, abort "
                      "and assert end everything.",
                      "Look for them in your file."}},
};

const struct lab_cause *lab_general_cause(enum lab_how how) {
    return general[how].name ? &general[how] : NULL;
}

/* The line on which the learner's file defines a function: the name is not indented there. 0: none.
 */
static int line_of(const char *source, const char *function) {
    char line[1024], call[128];
    int number = 0, found = 0;
    FILE *file = fopen(source, "r");
    snprintf(call, sizeof call, "%s(", function);
    while (file && !found && fgets(line, sizeof line, file)) {
        number++;
        const char *at = strstr(line, call);
        if (at && !strchr(" \t/*#", line[0]) && !strchr(line, ';'))
            found = number;
    }
    if (file)
        fclose(file);
    return found;
}

/* {name} becomes the name and the line of that function. */
static void print_hint(const char *hint, const char *source) {
    while (*hint) {
        size_t n = strcspn(hint, "{");
        printf("%.*s", (int)n, hint);
        hint += n;
        const char *end = *hint ? strchr(hint, '}') : NULL;
        if (!end)
            break;
        char name[96];
        snprintf(name, sizeof name, "%.*s", (int)(end - hint - 1), hint + 1);
        int line = line_of(source, name);
        printf("%s", name);
        if (line)
            printf(" (%s:%d)", source, line);
        hint = end + 1;
    }
    printf("\n");
}

static void print_difference(const struct lab_finding *f, const char *indent) {
    printf("%s%s", indent, f->label);
    if (f->unit[0])
        printf(", %s %ld", f->unit, f->index);
    if (f->expected[0] == '#')
        printf(": other bits than expected\n");
    else
        printf(": expected %s, found %s\n", f->expected, f->found);
    for (int i = 0; i < 2; i++)
        if (f->where[i][0])
            printf("%s%s: %s\n", indent, i ? "found   " : "expected", f->where[i]);
}

static void print_failure(const struct lab_finding *f, const char *indent) {
    static const char *const what[] = {
        [LAB_MEMORY] = "memory that is not yours",
        [LAB_UNDEFINED] = "undefined behaviour",
        [LAB_LEAKED] = "a leak",
        [LAB_CRASHED] = "a crash",
        [LAB_HUNG] = "an endless loop",
        [LAB_STOPPED] = "an early end",
        [LAB_EMULATED] = "the emulation has stopped the kernel",
    };
    printf("%s%s: %s\n", indent, what[f->how], f->report);
    if (f->label[0])
        printf("%sthe last note before it: %s\n", indent, f->label);
}

/* The function's task once, then its name. */
static void print_not_written(const struct lab_finding *f, const char *indent) {
    bool is_known = false;
    for (const struct lab_finding *other = f->all; other < f && !is_known; other++)
        is_known = other->how == LAB_UNWRITTEN && !strcmp(other->report, f->report);
    int n = is_known ? (int)strcspn(f->report, ":") : (int)strlen(f->report);
    printf("%snot written yet: %.*s\n", indent, n, f->report);
}

/* The check before it that was told the same hints. NULL: none. */
static const struct lab_check *told_before(const struct lab_finding *f) {
    for (const struct lab_finding *other = f->all; other < f; other++)
        if (other->how != LAB_PASSED && other->cause == f->cause)
            return other->check;
    return NULL;
}

void lab_explain(const struct lab_finding *f, const char *source, int level, const char *indent) {
    if (f->how == LAB_UNWRITTEN) {
        print_not_written(f, indent);
        return;
    }
    if (f->how == LAB_SKIPPED) {
        printf("%snot run\n", indent);
        return;
    }
    printf("%sthe smallest input that shows it: %s = %d\n", indent, f->check->input, f->size);
    if (f->how == LAB_WRONG)
        print_difference(f, indent);
    else
        print_failure(f, indent);
    if (!f->cause)
        return;
    const struct lab_check *told = told_before(f);
    if (told) {
        printf("%shint: as for \"%s\"\n", indent, told->name);
        return;
    }
    for (int i = 0; i < level; i++) {
        printf("%shint %d: ", indent, i + 1);
        print_hint(f->cause->hints[i], source);
    }
    if (level < 3)
        printf("%s        (HINT=%d says more)\n", indent, level + 1);
}
