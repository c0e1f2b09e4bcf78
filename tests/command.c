#include "tests/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static FILE *temporary(const char *content) {
    FILE *f = tmpfile();
    assert_non_null(f);
    if (content)
        fputs(content, f);
    rewind(f);
    return f;
}

static char *read_all(FILE *f, size_t *n) {
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *n, f), *n);
    text[*n] = 0;
    fclose(f);
    return text;
}

struct command command_run(const char *line, const char *input) {
    FILE *in = temporary(input), *out = temporary(NULL), *err = temporary(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(fileno(in), 0);
        dup2(fileno(out), 1);
        dup2(fileno(err), 2);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    struct command c = {0};
    struct rusage usage;
    int status;
    size_t n;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    fclose(in);
    c.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    c.max_rss_kb = usage.ru_maxrss;
    c.out = read_all(out, &c.out_bytes);
    c.err = read_all(err, &n);
    return c;
}

struct command command_runf(const char *format, ...) {
    char line[4096];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    assert_true(n > 0 && n < (int)sizeof line);
    return command_run(line, NULL);
}

void command_free(struct command *c) {
    free(c->out);
    free(c->err);
}

struct command demo_run(int phase, const char *arguments) {
    return command_runf("%s/demo%d --device cpu %s", build_folder(NULL), phase, arguments);
}

int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void check_failure(int phase, const char *arguments, const char *word1, const char *word2,
                          bool may_print) {
    struct command c = demo_run(phase, arguments);
    if (c.status != 2 || (*c.out && !may_print) || count_lines(c.err) != 1 ||
        strncmp(c.err, "demo: ", 6) || !strstr(c.err, word1) || !strstr(c.err, word2))
        fail_msg("demo%d %s: status %d, expected 2 and a line with \"%s\" and \"%s\":\n%s%s", phase,
                 arguments, c.status, word1, word2, c.out, c.err);
    command_free(&c);
}

void assert_run_fails(int phase, const char *arguments, const char *word1, const char *word2) {
    check_failure(phase, arguments, word1, word2, true);
}

void assert_run_refused(int phase, const char *arguments, const char *word1, const char *word2) {
    check_failure(phase, arguments, word1, word2, false);
}

char command_folder[32];

int command_folder_make(void **state) {
    (void)state;
    strcpy(command_folder, "/tmp/samebits-cli-XXXXXX");
    return mkdtemp(command_folder) ? 0 : -1;
}

int command_folder_remove(void **state) {
    (void)state;
    struct command c = command_runf("rm -rf %s", command_folder);
    command_free(&c);
    return 0;
}

const char *command_file(const char *name, const char *content, size_t n) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", command_folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, n, f), n);
    fclose(f);
    return path;
}

const char *command_fingerprint(const struct command *c) {
    const char *found = NULL;
    for (const char *at = c->err; (at = strstr(at, "fingerprint ")); at++)
        found = at + strlen("fingerprint ");
    return found && strspn(found, "0123456789abcdef") == 16 ? found : NULL;
}

const char *build_folder(const char *argv0) {
    static char folder[256];
    if (argv0) {
        const char *end = strstr(argv0, "/tests/");
        snprintf(folder, sizeof folder, "%.*s", end ? (int)(end - argv0) : 0, argv0);
    }
    return folder;
}
