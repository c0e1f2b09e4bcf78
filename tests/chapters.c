#include "tests/chapters.h"

#include "tests/command.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- lines ------------------------------------------------------------------------------------
 */

struct lines {
    char **line;
    int n;
};

static char *copy(const char *text, size_t n) {
    char *to = strndup(text, n);
    assert_non_null(to);
    return to;
}

/* Takes over the line. */
static void add_line(struct lines *l, char *line) {
    l->line = realloc(l->line, sizeof *l->line * (size_t)(l->n + 1));
    assert_non_null(l->line);
    l->line[l->n++] = line;
}

static void free_lines(struct lines *l) {
    for (int i = 0; i < l->n; i++)
        free(l->line[i]);
    free(l->line);
}

static struct lines split(const char *text) {
    struct lines l = {0};
    while (*text) {
        size_t n = strcspn(text, "\n");
        add_line(&l, copy(text, n));
        text += n + (text[n] == '\n');
    }
    return l;
}

static bool begins(const char *line, const char *with) {
    return !strncmp(line, with, strlen(with));
}

static bool is_command(const char *line) {
    return begins(line, "./demo ") || !strcmp(line, "./demo");
}

/* ---- what does not depend on the machine ------------------------------------------------------
 */

/* A word of a line, without the punctuation around it. */
struct word {
    const char *whole, *core;
    int n_whole, n_core;
};

enum { MOST_WORDS = 256, MOST_COLUMNS = 32 };

static int words_of(const char *line, struct word *words) {
    int n = 0;
    for (const char *at = line + strspn(line, " "); *at && n < MOST_WORDS; n++) {
        struct word *w = &words[n];
        w->whole = w->core = at;
        w->n_whole = w->n_core = (int)strcspn(at, " ");
        while (w->n_core && strchr("(", *w->core))
            w->core++, w->n_core--;
        while (w->n_core && strchr(",;:.)", w->core[w->n_core - 1]))
            w->n_core--;
        at += w->n_whole;
        at += strspn(at, " ");
    }
    return n;
}

static bool is_number(const struct word *w) {
    int n = (int)strspn(w->core, "0123456789.");
    return w->n_core && n >= w->n_core && *w->core != '.';
}

static bool is_unit(const struct word *w) {
    static const char *const units[] = {"s", "ms", "us", "ms/tok", "tok/s", "MB", "speed-up"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if ((int)strlen(units[i]) == w->n_core && !strncmp(w->core, units[i], (size_t)w->n_core))
            return true;
    return false;
}

/* Where the headings that name a unit end, in characters from the start of the line; none unless
 * the line is the head of a table: headings two spaces apart, one with a unit, no numbers. */
static int unit_columns(const char *line, int *ends) {
    struct word words[MOST_WORDS];
    int n_words = words_of(line, words), n = 0, headings = 1;
    bool unit = false;
    for (int i = 0; i < n_words; i++) {
        const struct word *w = &words[i];
        bool last = i + 1 == n_words || words[i + 1].whole > w->whole + w->n_whole + 1;
        if (is_number(w))
            return 0;
        unit = unit || is_unit(w);
        headings += last && i + 1 < n_words;
        if (!last)
            continue;
        if (unit && n < MOST_COLUMNS)
            ends[n++] = (int)(w->whole + w->n_whole - line);
        unit = false;
    }
    return headings > 1 ? n : 0;
}

static bool is_among(int value, const int *list, int n) {
    for (int i = 0; i < n; i++)
        if (list[i] == value)
            return true;
    return false;
}

/* The line with # for what depends on the machine, and single spaces. */
static char *normal_line(const char *line, const int *ends, int n_ends) {
    struct word words[MOST_WORDS];
    int n = words_of(line, words), n_out = 0;
    char *out = malloc(2 * strlen(line) + 2);
    bool behind_unit = false;
    assert_non_null(out);
    *out = 0;
    for (int i = 0; i < n; i++) {
        const struct word *w = &words[i];
        bool number = is_number(w);
        int end = (int)(w->whole + w->n_whole - line);
        bool hide = number && (behind_unit || (i + 1 < n && is_unit(&words[i + 1])) ||
                               is_among(end, ends, n_ends));
        int before = (int)(w->core - w->whole), after = w->n_whole - before - w->n_core;
        n_out += sprintf(out + n_out, "%s%.*s%.*s%.*s", i ? " " : "", before, w->whole,
                         hide ? 1 : w->n_core, hide ? "#" : w->core, after, w->core + w->n_core);
        behind_unit = number ? behind_unit : is_unit(w) && w->n_core == w->n_whole;
    }
    return out;
}

static struct lines normal_lines(const char *text) {
    struct lines in = split(text), out = {0};
    int ends[MOST_COLUMNS], n_ends = 0;
    for (int i = 0; i < in.n; i++) {
        const char *line = in.line[i];
        if (begins(line, "running on the CPU: "))
            continue;
        int blank = !line[strspn(line, " ")];
        n_ends = blank ? 0 : n_ends ? n_ends : unit_columns(line, ends);
        if (!blank || out.n)
            add_line(&out, normal_line(line, ends, n_ends));
    }
    while (out.n && !*out.line[out.n - 1])
        free(out.line[--out.n]);
    free_lines(&in);
    return out;
}

/* Do shown lines i ... and printed lines j ... agree? *far and *far_printed: the pair of lines that
 * was compared last, of the attempt that came farthest. */
static bool match(const struct lines *shown, int i, const struct lines *printed, int j, int *far,
                  int *far_printed) {
    for (; i < shown->n && strcmp(shown->line[i], "..."); i++, j++) {
        if (i >= *far) {
            *far = i;
            *far_printed = j;
        }
        if (j == printed->n || strcmp(shown->line[i], printed->line[j]))
            return false;
    }
    if (i == shown->n) {
        if (j < printed->n) {
            *far = i;
            *far_printed = j;
        }
        return j == printed->n;
    }
    for (int next = j; next <= printed->n; next++)
        if (match(shown, i + 1, printed, next, far, far_printed))
            return true;
    return false;
}

static char *line_or_end(const struct lines *l, int i) {
    return strdup(i < l->n ? l->line[i] : "(end)");
}

bool chapter_agrees(const char *shown, const char *printed, char **shown_line,
                    char **printed_line) {
    struct lines s = normal_lines(shown), p = normal_lines(printed);
    int far = 0, far_printed = 0;
    bool agrees = match(&s, 0, &p, 0, &far, &far_printed);
    if (!agrees && shown_line)
        *shown_line = line_or_end(&s, far);
    if (!agrees && printed_line)
        *printed_line = line_or_end(&p, far_printed);
    free_lines(&s);
    free_lines(&p);
    return agrees;
}

/* ---- the commands of a chapter ----------------------------------------------------------------
 */

/* The number behind the line's last "make phase", or `phase` if there is none. */
static int phase_named(const char *line, int phase) {
    for (const char *at = line; (at = strstr(at, "make phase")); at++)
        sscanf(at, "make phase%d", &phase);
    return phase;
}

static struct chapter_command *add_command(struct chapter *c, struct chapter_command command) {
    c->commands = realloc(c->commands, sizeof *c->commands * (size_t)(c->n + 1));
    assert_non_null(c->commands);
    c->commands[c->n] = command;
    return &c->commands[c->n++];
}

static void add_output(struct chapter_command *c, const char *line) {
    size_t n = strlen(c->output);
    c->output = realloc(c->output, n + strlen(line) + 2);
    assert_non_null(c->output);
    sprintf(c->output + n, "%s\n", line);
}

/* An indented line: what is behind "make phaseN && ", if that is ./demo with options. The tables,
 * which ./demo prints without, are shown in a block of their own. */
static void add_indented(struct chapter *c, const char *line, int number, int phase) {
    const char *behind_make = strstr(line, "make phase") ? strstr(line, " && ") : NULL;
    const char *command = behind_make ? behind_make + strlen(" && ") : line + 4;
    if (strstr(command, "./demo -"))
        add_command(c, (struct chapter_command){phase, number, false,
                                                copy(command, strlen(command)), NULL});
}

struct chapter chapter_commands(const char *text, int phase) {
    struct chapter c = {0};
    struct lines lines = split(text);
    bool fenced = false, of_demo = false, slow = false;
    for (int i = 0; i < lines.n; i++) {
        const char *line = lines.line[i];
        if (begins(line, "```")) {
            fenced = !fenced;
            of_demo = fenced && i + 1 < lines.n && is_command(lines.line[i + 1]);
            slow = slow && fenced;
        } else if (!fenced && begins(line, "    ")) {
            phase = phase_named(line, phase);
            add_indented(&c, line, i + 1, phase);
        } else if (!fenced) {
            slow = slow || !strcmp(line, "<!-- slow -->");
        } else if (of_demo && is_command(line)) {
            add_command(&c, (struct chapter_command){phase, i + 1, slow, copy(line, strlen(line)),
                                                     copy("", 0)});
        } else if (of_demo) {
            add_output(&c.commands[c.n - 1], line);
        }
    }
    free_lines(&lines);
    return c;
}

void chapter_free(struct chapter *c) {
    for (int i = 0; i < c->n; i++) {
        free(c->commands[i].command);
        free(c->commands[i].output);
    }
    free(c->commands);
    *c = (struct chapter){0};
}

/* ---- running them -----------------------------------------------------------------------------
 */

/* Commands run in a folder with links to the demo and the data, so that the files that they write
 * do not land in the repository. Failing tests leave it, for a look. */
static void rerun(const char *folder, const char *path, const struct chapter_command *c) {
    char root[1024], *shown = NULL, *printed = NULL;
    assert_non_null(getcwd(root, sizeof root));
    struct command run = command_runf("cd %s && ln -sfn %s/build/release/demo%d demo && "
                                      "ln -sfn %s/data data && exec 2>&1 || exit 127\n%s\n",
                                      folder, root, c->phase, root, c->command);
    if (run.status)
        fail_msg("%s:%d: %s\nstatus %d:\n%s", path, c->line, c->command, run.status, run.out);
    if (c->output && !chapter_agrees(c->output, run.out, &shown, &printed))
        fail_msg("%s:%d: %s\nthe chapter shows:   %s\nthe command prints:  %s\nall of it:\n%s",
                 path, c->line, c->command, shown, printed, run.out);
    print_message("%s:%d: %s\n", path, c->line, c->command);
    command_free(&run);
}

static int rerun_chapter(const char *folder, const char *path, bool slow) {
    int phase = -1, n = 0;
    struct command text = command_runf("cat %s", path);
    assert_int_equal(sscanf(path, "tutorials/%d-", &phase), 1);
    struct chapter c = chapter_commands(text.out, phase);
    for (int i = 0; i < c.n; i++) {
        if (c.commands[i].slow != slow)
            continue;
        if (c.commands[i].phase == 14 && access("build/release/demo14", X_OK)) {
            print_message("%s: left out, MPI is not here\n", path);
            continue;
        }
        rerun(folder, path, &c.commands[i]);
        n++;
    }
    chapter_free(&c);
    command_free(&text);
    return n;
}

void chapters_rerun(bool slow) {
    char folder[] = "/tmp/samebits-chapters-XXXXXX";
    glob_t found;
    int n = 0;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(glob("tutorials/[0-9][0-9]-*/README.md", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        n += rerun_chapter(folder, found.gl_pathv[i], slow);
    globfree(&found);
    assert_true(n > 0);
    struct command c = command_runf("rm -rf %s", folder);
    command_free(&c);
}
