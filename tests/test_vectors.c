/*
 * test_vectors - the files of data/numerics are what the device under test computes, byte for byte;
 * and the implementation in Python's integers, written from tutorials/numerics-1.md alone, computes
 * them too, and does not with any of its rules broken.
 *
 *     build/release/tests/test_vectors --write     writes the files anew
 */
#include "model/numerics.h"
#include "tests/command.h"
#include "tests/device.h"
#include "tests/vectors.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

#define FOLDER "data/numerics"
#define MODELS FOLDER "/models"

struct file {
    const char *name, *about;
    void (*write)(struct vectors *v, const char *folder);
};

static const struct file files[] = {
    {"functions.jsonl", "section 3", vectors_functions},
    {"ops.jsonl", "sections 2 and 5", vectors_ops},
    {"rope.jsonl", "section 6", vectors_rope},
    {"attention.jsonl", "section 7", vectors_attention},
    {"caches.jsonl", "section 8", vectors_caches},
    {"sampling.jsonl", "sections 9 to 11", vectors_sampling},
    {"models.jsonl", "all of it together", vectors_models},
};
enum { N_FILES = sizeof files / sizeof *files };

static const char *programs; /* the folder that this one was built into */

/* The file's text, for free. */
static char *text_of(const struct file *f, size_t *bytes) {
    char *text = NULL;
    struct vectors v = {.random = {(uint64_t)(f - files)}};
    v.out = open_memstream(&text, bytes);
    assert_non_null(v.out);
    device_open(&v.t, device_under_test(), 1);
    fprintf(v.out, "{\"samebits numerics\":%d,\"about\":\"%s\"}\n", NUMERICS_VERSION, f->about);
    f->write(&v, MODELS);
    device_close(&v.t);
    assert_int_equal(fclose(v.out), 0);
    return text;
}

static char *read_file(const char *path, size_t *bytes) {
    char *text = NULL, buffer[4096];
    FILE *in = fopen(path, "rb"), *out = open_memstream(&text, bytes);
    if (!in)
        fail_msg("%s is not there", path);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;)
        fwrite(buffer, 1, n, out);
    fclose(in);
    fclose(out);
    return text;
}

static void make_folder(const char *path) {
    if (mkdir(path, 0777) && errno != EEXIST)
        fail_msg("cannot make %s", path);
}

static void write_models(const char *folder) {
    for (int i = 0; i < N_VECTOR_MODELS; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s", folder, vector_model_names[i]);
        make_folder(path);
        vector_model_write(i, path);
    }
}

static void test_models(void **state) {
    (void)state;
    write_models(command_folder);
    struct command c = command_runf("diff -r %s " MODELS, command_folder);
    if (c.status)
        fail_msg("%s", c.out);
    command_free(&c);
}

/* Fails at the first line that differs. */
static void expect_text(const char *path, const char *want, size_t n_want, const char *got,
                        size_t n_got) {
    size_t at = 0, begin = 0;
    int line = 1;
    for (; at < n_want && at < n_got && want[at] == got[at]; at++)
        if (want[at] == '\n') {
            begin = at + 1;
            line++;
        }
    if (at < n_want || at < n_got)
        fail_msg("%s, line %d, character %zu: this device gives\n%.200s\nthe file has\n%.200s",
                 path, line, at - begin, got + begin, want + begin);
}

static void test_files(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES; i++) {
        char path[64];
        size_t n_want, n_got;
        snprintf(path, sizeof path, FOLDER "/%s", files[i].name);
        char *want = read_file(path, &n_want), *got = text_of(&files[i], &n_got);
        expect_text(path, want, n_want, got, n_got);
        free(want);
        free(got);
    }
}

/* ---- the implementation in Python --------------------------------------------------------------
 */

static void run_python(const char *options) {
    if (system("command -v python3 >/dev/null")) {
        print_message("no python3 here: the implementation in Python is not run\n");
        skip();
    }
    /* It is one and the same for every device, build and version of the kernels. */
    if (device_under_test() != &ref_ops || !strstr(programs, "release") || kernel_under_test())
        skip();
    struct command c = command_runf("python3 -B tests/numerics/check.py " FOLDER " %s", options);
    if (c.status)
        fail_msg("check.py %s:\n%s%s", options, c.out, c.err);
    print_message("%s", c.out);
    command_free(&c);
}

static void test_python(void **state) {
    (void)state;
    run_python("");
}

static void test_breaks(void **state) {
    (void)state;
    if (few_cases_do())
        skip();
    run_python("--breaks");
}

/* ---- writing -----------------------------------------------------------------------------------
 */

static void write_files(void **state) {
    (void)state;
    make_folder(FOLDER);
    make_folder(MODELS);
    write_models(MODELS);
    for (int i = 0; i < N_FILES; i++) {
        char path[64];
        size_t bytes;
        char *text = text_of(&files[i], &bytes);
        snprintf(path, sizeof path, FOLDER "/%s", files[i].name);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(text, 1, bytes, out), bytes);
        assert_int_equal(fclose(out), 0);
        free(text);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest writing[] = {cmocka_unit_test(write_files)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_models, command_folder_make, command_folder_remove),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_python),
        cmocka_unit_test(test_breaks),
    };
    programs = build_folder(argv[0]);
    if (argc == 2 && !strcmp(argv[1], "--write"))
        return cmocka_run_group_tests(writing, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
