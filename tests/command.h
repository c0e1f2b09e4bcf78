/*
 * command.h - runs a program as a user would and keeps what it printed.
 */
#ifndef SAMEBITS_TESTS_COMMAND_H
#define SAMEBITS_TESTS_COMMAND_H

#include <stddef.h>

struct command {
    int status;       /* exit status; 128 + signal when it was killed */
    char *out, *err;  /* stdout and stderr, NUL-terminated */
    size_t out_bytes; /* of out */
    long max_rss_kb;  /* peak resident memory */
};

/* Runs `line` with sh -c, with input (may be NULL) as its stdin, and waits. Fails the cmocka test
 * when the shell itself cannot be started. For command_free. */
struct command command_run(const char *line, const char *input);

/* command_run for a line in printf format, without input. */
struct command command_runf(const char *format, ...) __attribute__((format(printf, 1, 2)));

void command_free(struct command *c);

/* Runs the demo of a phase on the CPU. */
struct command demo_run(int phase, const char *arguments);

/* The demo must fail with status 2 and one line on stderr that holds both words; else the cmocka
 * test fails. assert_run_refused: before it wrote anything to stdout. */
void assert_run_fails(int phase, const char *arguments, const char *word1, const char *word2);
void assert_run_refused(int phase, const char *arguments, const char *word1, const char *word2);

int count_lines(const char *text);

/* A folder for the files of a test program: fixtures of its group, its path, and a file in it,
 * whose path is returned (static). */
extern char command_folder[32];
int command_folder_make(void **state);
int command_folder_remove(void **state);
const char *command_file(const char *name, const char *content, size_t n);

/* The 16 digits behind the last "fingerprint " of text, or NULL. Points into text. */
const char *command_fingerprint(const struct command *c);

/* Folder that the running test program was built into, "build/release" or "build/asan". Call once
 * with main's argv[0] first. */
const char *build_folder(const char *argv0);

#endif
