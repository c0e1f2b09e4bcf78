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

/* The same with a printf format. */
struct command command_runf(const char *format, ...) __attribute__((format(printf, 1, 2)));

void command_free(struct command *c);

/* The 16 digits behind the last "fingerprint " of text, or NULL. Points into text. */
const char *command_fingerprint(const struct command *c);

/* Folder that the running test program was built into, "build/release" or "build/asan". Call once
 * with main's argv[0] first. */
const char *build_folder(const char *argv0);

#endif
