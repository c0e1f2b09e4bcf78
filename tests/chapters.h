/*
 * chapters.h - runs the commands that the tutorial's chapters show, and compares what they print
 * with what the chapters say they print.
 *
 * Which commands: in tutorials/NN-.../README.md
 *   - a fenced block whose first line is ./demo, with options or without: each such line is a
 * command, the lines below it are its output, stdout and stderr as a terminal shows them;
 *   - a line indented by four spaces with a ./demo and options: it must end with status 0.
 * The demo is that of the folder's number NN, from a "make phaseN" in such a line on that of N. A
 * block behind the line <!-- slow --> is left to make test-slow.
 *
 * How lines are compared: what depends on the machine is replaced by # on both sides,
 *   - a number in front of a unit of time, speed or memory ("3.7 ms,", "16.9 MB"), and the numbers
 *     behind one ("queue ms  1.2  3.4");
 *   - in a table, a number under a heading that names such a unit, down to the next blank line;
 * runs of spaces become one, and spaces and blank lines at the ends go. All else must be equal:
 * texts, counts, steps, fingerprints. A shown line "..." stands for any lines. A printed line
 * "running on the CPU: ..." is left out: whether it comes depends on the build.
 */
#ifndef SAMEBITS_TESTS_CHAPTERS_H
#define SAMEBITS_TESTS_CHAPTERS_H

#include <stdbool.h>

struct chapter_command {
    int phase;
    int line;      /* number of the command's line in the chapter */
    bool slow;     /* behind <!-- slow --> */
    char *command; /* as sh runs it */
    char *output;  /* as shown; NULL: nothing is shown */
};

struct chapter {
    struct chapter_command *commands; /* [n] in order */
    int n;
};

/* The commands of a chapter's text, for demo number `phase` to begin with. For chapter_free. */
struct chapter chapter_commands(const char *text, int phase);
void chapter_free(struct chapter *c);

/* Does the output that a chapter shows agree with the printed one? If not, *shown_line and
 * *printed_line (malloc'ed, may be NULL pointers when not wanted) are the first lines that do not,
 * with the # in them, or "(end)". */
bool chapter_agrees(const char *shown, const char *printed, char **shown_line, char **printed_line);

/* Runs the slow or the other commands of all chapters in the repository root's tutorials/ with the
 * release demos. Fails the cmocka test at the first that disagrees, or when there are none. */
void chapters_rerun(bool slow);

#endif
