#include "tests/labs/grade.h"
#include "tests/labs/not_written.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* ---- the lines of the notes ------------------------------------------------------------------ */

struct line {
    char kind; /* 'S', 'E', 'V', 'P'; 0 at the end */
    const char *at;
    size_t n;
};

/* The part of a V line between two tabs: 1 the label, 2 the unit, 3 the first index, 4 the values.
 */
struct part {
    const char *at;
    size_t n;
};

static struct part part_of(const struct line *l, int which) {
    const char *at = l->at, *end = l->at + l->n;
    for (int i = 0; i < which && at < end; i++) {
        const char *tab = memchr(at, '\t', (size_t)(end - at));
        at = tab ? tab + 1 : end;
    }
    const char *tab = memchr(at, '\t', (size_t)(end - at));
    return (struct part){at, (size_t)((tab ? tab : end) - at)};
}

static void copy(char *out, size_t size, struct part p) {
    snprintf(out, size, "%.*s", (int)(p.n < size ? p.n : size - 1), p.at);
}

static bool same(struct part a, struct part b) {
    return a.n == b.n && !memcmp(a.at, b.at, a.n);
}

/* The next line; an unfinished one counts as none. */
static struct line next_line(const char **at) {
    const char *end = strchr(*at, '\n');
    if (!end)
        return (struct line){0};
    struct line l = {**at, *at, (size_t)(end - *at)};
    *at = end + 1;
    return l;
}

/* The next line that is compared; *places is the last of those that are not. */
static struct line next_seen(const char **at, struct line *places) {
    struct line l = next_line(at);
    while (l.kind == 'P') {
        *places = l;
        l = next_line(at);
    }
    return l;
}

static struct part value(struct part values, long index) {
    const char *at = values.at, *end = at + values.n;
    for (;;) {
        const char *space = memchr(at, ' ', (size_t)(end - at));
        const char *to = space ? space : end;
        if (index-- == 0)
            return (struct part){at, (size_t)(to - at)};
        if (!space)
            return (struct part){end, 0};
        at = space + 1;
    }
}

void lab_last_note(char *out, size_t size, const char *notes, const char *label) {
    out[0] = 0;
    struct part wanted = {label, strlen(label)};
    for (struct line l; (l = next_line(&notes)).kind;)
        if (l.kind == 'V' && same(part_of(&l, 1), wanted))
            copy(out, size, part_of(&l, 4));
}

/* ---- the first difference --------------------------------------------------------------------
 */

static void place_of(char *out, size_t size, const struct line *places, long position) {
    struct part slot = {0};
    int block_size = places->kind ? atoi(part_of(places, 1).at) : 0;
    if (block_size > 0)
        slot = value(part_of(places, 2), position);
    if (!slot.n)
        return;
    long number = atol(slot.at);
    snprintf(out, size,
             "position %ld lies in block %ld of its table, block %ld of the pool, slot %ld",
             position, position / block_size, number / block_size, number);
}

/* The position to be shown: the one that differs or, when that lies where it should, the first
 * before it that does not. */
static long moved_position(const struct line *want, const struct line *got, long position) {
    struct part a = part_of(want, 2), b = part_of(got, 2);
    if (!want->kind || !got->kind || !same(value(a, position), value(b, position)))
        return position;
    for (long i = 0; i < position; i++)
        if (!same(value(a, i), value(b, i)))
            return i;
    return position;
}

static void different_values(struct lab_finding *f, const struct line *want,
                             const struct line *got) {
    struct part a = part_of(want, 4), b = part_of(got, 4);
    copy(f->label, sizeof f->label, part_of(want, 1));
    copy(f->unit, sizeof f->unit, part_of(want, 2));
    long i = 0;
    while (value(a, i).n && same(value(a, i), value(b, i)))
        i++;
    f->index = i + atol(part_of(want, 3).at);
    copy(f->expected, sizeof f->expected, value(a, i));
    copy(f->found, sizeof f->found, value(b, i));
    if (!f->expected[0])
        snprintf(f->expected, sizeof f->expected, "no more values");
    if (!f->found[0])
        snprintf(f->found, sizeof f->found, "no more values");
}

/* Returns true when the notes differ before those of the learner's process end. */
static bool compare(struct lab_finding *f, const char *want, const char *got) {
    struct line want_places = {0}, got_places = {0};
    for (;;) {
        struct line a = next_seen(&want, &want_places), b = next_seen(&got, &got_places);
        if (b.kind == 'S' || (b.kind == 0 && a.kind == 'S'))
            f->size = atoi((b.kind ? b.at : a.at) + 2);
        if (a.kind == 'S')
            want_places = got_places = (struct line){0};
        if (!b.kind)
            return false;
        if (a.n == b.n && !memcmp(a.at, b.at, a.n))
            continue;
        f->how = LAB_WRONG;
        if (a.kind == 'V' && b.kind == 'V' && same(part_of(&a, 1), part_of(&b, 1))) {
            different_values(f, &a, &b);
            if (!strcmp(f->unit, "position")) {
                long shown = moved_position(&want_places, &got_places, f->index);
                place_of(f->where[0], sizeof f->where[0], &want_places, shown);
                place_of(f->where[1], sizeof f->where[1], &got_places, shown);
            }
            return true;
        }
        copy(f->label, sizeof f->label,
             a.kind == 'V' ? part_of(&a, 1) : (struct part){"what comes next", 15});
        copy(f->expected, sizeof f->expected,
             a.kind == 'V' ? part_of(&a, 4) : (struct part){"the end", 7});
        copy(f->found, sizeof f->found,
             b.kind == 'V' ? part_of(&b, 1) : (struct part){"the end", 7});
        return true;
    }
}

/* ---- how the process ended ------------------------------------------------------------------- */

/* Copies the rest of the line behind `mark` in the output, if that is there. */
static bool line_behind(char *out, size_t size, const char *output, const char *mark) {
    const char *at = strstr(output, mark);
    if (!at)
        return false;
    at += strlen(mark);
    snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
    return true;
}

/* Appends where in the learner's file the first frame of it lies: " in FUNCTION (FILE:LINE)". */
static void add_place(char *report, size_t size, const char *from, const char *source) {
    const char *name = strrchr(source, '/');
    name = name ? name + 1 : source;
    for (const char *at = from; (at = strstr(at, " in "));) {
        char function[96], file[400];
        at += 4;
        if (sscanf(at, "%95s %399[^\n]", function, file) != 2 || !strstr(file, name))
            continue;
        const char *line = strstr(file, name) + strlen(name);
        size_t used = strlen(report);
        if (*line == ':')
            snprintf(report + used, size - used, " in %s (%s:%d)", function, source,
                     atoi(line + 1));
        return;
    }
}

/* Puts the place in the learner's file where the emulation says an address of the program, if the
 * code there, or what it is inlined into, is the learner's. */
static void name_address(char *report, size_t size, const char *program, const char *source) {
    char command[600], place[400];
    char *code = strstr(report, " (code: "), *plus = code ? strrchr(code, '+') : NULL;
    unsigned long address; /* behind the call that looks at the access */
    if (!plus || sscanf(plus, "+%lx)", &address) != 1)
        return;
    snprintf(command, sizeof command, "addr2line -ie '%s' 0x%lx", program, address - 1);
    FILE *lines = popen(command, "r");
    while (lines && fgets(place, sizeof place, lines)) {
        const char *at = strstr(place, source);
        if (!at)
            continue;
        snprintf(code, size - (size_t)(code - report), ", in %.*s", (int)strcspn(at, " \n"), at);
        break;
    }
    if (lines)
        pclose(lines);
}

static bool sanitizer_said(struct lab_finding *f, const char *output, const char *source) {
    char text[160];
    const char *at;
    if ((at = strstr(output, "ERROR: AddressSanitizer: "))) {
        f->how = LAB_MEMORY;
        line_behind(text, sizeof text, output, "ERROR: AddressSanitizer: ");
        text[strcspn(text, " ")] = 0;
        snprintf(f->report, sizeof f->report, "%s", text);
        if (strstr(output, "\nWRITE of size"))
            strcat(f->report, ", a write");
        else if (strstr(output, "\nREAD of size"))
            strcat(f->report, ", a read");
        if (!strcmp(text, "SEGV") || !strcmp(text, "FPE"))
            f->how = LAB_CRASHED;
    } else if ((at = strstr(output, ": runtime error: "))) {
        f->how = LAB_UNDEFINED;
        line_behind(text, sizeof text, output, ": runtime error: ");
        snprintf(f->report, sizeof f->report, "%s", text);
    } else if ((at = strstr(output, "ERROR: LeakSanitizer: "))) {
        f->how = LAB_LEAKED;
        if (!line_behind(text, sizeof text, output, "Direct leak of "))
            snprintf(text, sizeof text, "memory");
        text[strcspn(text, ",")] = 0;
        char *in = strstr(text, " in ");
        if (in)
            *in = 0;
        snprintf(f->report, sizeof f->report, "%s allocated and never freed,", text);
    } else {
        return false;
    }
    add_place(f->report, sizeof f->report, at, source);
    return true;
}

static void judge_end(struct lab_finding *f, const struct lab_process *got, const char *program,
                      const char *source) {
    int status = got->status;
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_WRITTEN_STATUS &&
        line_behind(f->report, sizeof f->report, got->output, "not written: ")) {
        f->how = LAB_UNWRITTEN;
    } else if (got->hung) {
        f->how = LAB_HUNG;
        snprintf(f->report, sizeof f->report, "no end within %d seconds", got->seconds);
    } else if (line_behind(f->report, sizeof f->report, got->output, "emulation: ")) {
        f->how = LAB_EMULATED;
        name_address(f->report, sizeof f->report, program, source);
    } else if (sanitizer_said(f, got->output, source)) {
        return;
    } else if (WIFSIGNALED(status)) {
        f->how = LAB_CRASHED;
        snprintf(f->report, sizeof f->report, "signal %d, %s", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else {
        f->how = LAB_STOPPED;
        snprintf(f->report, sizeof f->report, "the program ended in the middle of the check");
    }
}

void lab_judge(struct lab_finding *f, const struct lab_process *want, const struct lab_process *got,
               const char *program, const char *source) {
    const struct lab_check *check = f->check;
    char end[24];
    f->how = LAB_PASSED;
    f->size = check->sizes[0];
    if (compare(f, want->notes, got->notes))
        return;
    snprintf(end, sizeof end, "E %d\n", check->sizes[check->n_sizes - 1]);
    const char *notes = got->notes;
    size_t n = strlen(notes), n_end = strlen(end);
    bool is_complete = n >= n_end && !strcmp(notes + n - n_end, end);
    if (is_complete && WIFEXITED(got->status) && !WEXITSTATUS(got->status))
        return;
    judge_end(f, got, program, source);
}
