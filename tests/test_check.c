/* The checker of readers' kernels, `make check`: every op of ours passes, and broken kernels do
 * not, each for its own reason. The broken ones are tutorials/gpu-pair/mine.cu with one line
 * changed. And make itself: what another setting asks for is built again. */
#include "tests/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/samebits-check-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    struct command c = command_runf("rm -rf %s", folder);
    command_free(&c);
    return 0;
}

/* A reader's kernel is always compiled as for a release: once is enough. */
static void skip_in_other_builds(void) {
    if (strcmp(build_folder(NULL), "build/release"))
        skip();
}

static void write_file(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Writes mine.cu with the last `old` replaced. */
static void write_changed(const char *name, const char *old, const char *new) {
    struct command c = command_run("cat tutorials/gpu-pair/mine.cu", NULL);
    char text[8192], *at = NULL;
    for (char *found = c.out; (found = strstr(found, old)); found++)
        at = found;
    if (!at)
        fail_msg("mine.cu has no \"%s\" any more", old);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - c.out), c.out, new, at + strlen(old));
    write_file(name, text);
    command_free(&c);
}

/* tests/check on a file of the folder, on the emulation; without the make that runs this test. */
static struct command check(const char *op, const char *name) {
    return command_runf("env -u MAKEFLAGS -u MAKELEVEL tests/check '%s' %s/%s emu", op, folder,
                        name);
}

static void assert_says(const struct command *c, int status, const char *out, const char *err) {
    if (c->status != status || !strstr(c->out, out) || !strstr(c->err, err))
        fail_msg("status %d, expected %d and \"%s\" and \"%s\":\n%s%s", c->status, status, out, err,
                 c->out, c->err);
}

/* ---- ours ------------------------------------------------------------------------------------ */

static void every_op_of_ours_passes(void **state) {
    (void)state;
    struct command list = check("", "none.cu");
    char *ops = strstr(list.err, "the ops are: ");
    int n_ops = 0, step = strcmp(build_folder(NULL), "build/asan") ? 1 : 4; /* a few: slow */
    assert_non_null(ops);
    for (char *op = strtok(ops + strlen("the ops are: "), " \n"); op; op = strtok(NULL, " \n")) {
        if (n_ops++ % step)
            continue;
        struct command c =
            command_runf("SAMEBITS_DEVICE=emu %s/tests/check_kernel %s", build_folder(NULL), op);
        assert_says(&c, 0, "sizes pass: 0 bits differ", "");
        command_free(&c);
    }
    assert_true(n_ops >= 12);
    command_free(&list);
}

/* ---- readers' -------------------------------------------------------------------------------- */

static void a_right_kernel_passes(void **state) {
    (void)state;
    skip_in_other_builds();
    struct command c = command_run("env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory check "
                                   "OP=rmsnorm KERNEL=tutorials/gpu-pair/mine.cu KERNELS=emu",
                                   NULL);
    assert_says(&c, 0, "rmsnorm: tutorials/gpu-pair/mine.cu beside the reference, on the emulation",
                "");
    assert_says(&c, 0, " sizes pass: 0 bits differ\nspeed: measured only on a GPU", "");
    command_free(&c);
}

/* Whole vectors only: rows of 32 are right, rows of 33 are not. */
static void a_missing_tail_fails_where_it_is(void **state) {
    (void)state;
    skip_in_other_builds();
    write_changed("tail.cu", "i < n_cols; i += THREADS", "i < n_cols / 4 * 4; i += THREADS");
    struct command c = check("rmsnorm", "tail.cu");
    assert_says(&c, 1,
                "        5       32  pass\n        5       33  FAIL  y, token 0, index 32: want ",
                "");
    assert_says(&c, 1, "got nan (0x7fff7fff); 5 of 165 elements differ\n", "");
    assert_says(&c, 1, " sizes FAIL\n", "");
    assert_null(strstr(c.out, "speed"));
    command_free(&c);
}

static void a_missing_barrier_is_found(void **state) {
    (void)state;
    skip_in_other_builds();
    write_changed("race.cu", "__syncthreads(); /* all have read", "/* all have read");
    struct command c = check("rmsnorm", "race.cu");
    assert_says(&c, 1, "\nthe device stopped at this fault", "with no barrier between");
    assert_says(&c, 1, "1 of 1 sizes FAIL\n", "race.cu:46: emulation: kernel rmsnorm_mine, block ");
    command_free(&c);
}

/* Behind the end of the last row, and in place, where the input is gone when the row is written. */
static void writes_behind_the_end_are_found(void **state) {
    (void)state;
    skip_in_other_builds();
    write_changed("behind.cu", "    float r = ", "    to[n_cols] = 1;\n    float r = ");
    struct command c = check("rmsnorm", "behind.cu");
    assert_says(&c, 1, "        1        1  FAIL  y: written to behind its end\n", "");
    command_free(&c);
    write_changed("in_place.cu",
                  "    float r = ", "    if (thread == 0)\n        to[0] = 1;\n    float r = ");
    c = check("rmsnorm", "in_place.cu");
    assert_says(&c, 1, "        1        1  FAIL  y over x: y, token 0, index 0: want ", "");
    command_free(&c);
}

static void a_fault_that_nobody_hears_of_is_found(void **state) {
    (void)state;
    skip_in_other_builds();
    write_changed("silent.cu", "row / rows_per_token)", "row)");
    struct command c = check("rmsnorm", "silent.cu");
    assert_says(&c, 1, "  FAIL  a NaN in row ", "");
    assert_says(&c, 1, " of x: want a fault at site 7, token ", "");
    command_free(&c);
}

/* ---- what cannot be checked ------------------------------------------------------------------ */

static void bad_files_and_ops_are_named(void **state) {
    (void)state;
    static const struct {
        const char *op, *file, *err;
    } cases[] = {
        {"", "mine.cu", "check: which op? make check OP=rmsnorm KERNEL=path/to/mine.cu; the ops"},
        {"rmsnorn", "mine.cu", "check: OP=rmsnorn: no such op; the ops are: embed take_rows "},
        {"add add_bias", "mine.cu", "check: OP=add add_bias: no such op"},
        {"rmsnorm", "none.cu", "/none.cu: no such file\n"},
        {"rmsnorm", "broken.cu", "/broken.cu does not compile\n"},
        {"add", "mine.cu",
         "/mine.cu defines no gpu_add with the arguments of model/ops.h: void "
         "gpu_add(struct device *dev, float *y, const float *x, const float *z, size_t count)"},
    };
    skip_in_other_builds();
    write_file("broken.cu", "__global__ void kernel(float *y) { y[0] = x[0]; }\n");
    write_changed("mine.cu", "mine", "mine");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct command c = check(cases[i].op, cases[i].file);
        assert_says(&c, 2, "", cases[i].err);
        assert_string_equal(c.out, "");
        command_free(&c);
    }
    struct command c = command_run("tests/check rmsnorm", NULL);
    assert_says(&c, 2, "", "check: which file?");
    command_free(&c);
}

/* ---- settings -------------------------------------------------------------------------------- */

/* The Makefile with sources that are empty and a compiler that writes nothing. */
static void copy_makefile(void) {
    write_file("cc", "#!/bin/sh\nfor a; do [ \"$p\" = -o ] && : >\"$a\"; p=$a; done; true\n");
    struct command c =
        command_runf("cd %s && chmod +x cc && mkdir tests && for f in tests/compare.c gpu/add.cu "
                     "tutorials/00-no-cache/demo.c scheduler/fingerprint.c scheduler/sequence.c "
                     "scheduler/pass.c scheduler/generate.c scheduler/workload.c; do "
                     "mkdir -p $(dirname $f) && : >$f; done && cp $OLDPWD/Makefile . && "
                     "cp $OLDPWD/tests/tests.mk tests",
                     folder);
    assert_says(&c, 0, "", "");
    command_free(&c);
}

/* Whether make with these settings builds the target, V=1, with this word in a command. */
static bool builds(const char *settings, const char *target, const char *word) {
    struct command c = command_runf("cd %s && env -u MAKEFLAGS -u MAKELEVEL make V=1 CC=./cc "
                                    "NVCC=./cc %s %s",
                                    folder, settings, target);
    bool found = strstr(c.out, word) != NULL;
    assert_says(&c, 0, "", "");
    command_free(&c);
    return found;
}

static void other_settings_are_built_again(void **state) {
    (void)state;
    skip_in_other_builds();
    copy_makefile();
    const char *demo = "build/release/demo0", *object = "build/gpu/add.o";
    assert_true(builds("KERNELS=emu", demo, "-o build/release/demo0"));
    assert_false(builds("KERNELS=emu", demo, "-o "));
    assert_true(builds("KERNELS=gpu CUDA_ARCH=sm_80", demo, "-o build/release/demo0"));
    assert_true(builds("KERNELS=emu", demo, "-o build/release/demo0"));
    assert_false(builds("CUDA_ARCH=sm_80", object, "-o "));
    assert_true(builds("CUDA_ARCH=sm_90", object, "-gencode=arch=compute_90a,code=sm_90a "));
    const char *one = "-B build/release/tests/compare.o";
    assert_true(builds("", one, "-Werror") && !builds("WERROR=", one, "-Werror"));
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_of_ours_passes),
        cmocka_unit_test(a_right_kernel_passes),
        cmocka_unit_test(a_missing_tail_fails_where_it_is),
        cmocka_unit_test(a_missing_barrier_is_found),
        cmocka_unit_test(writes_behind_the_end_are_found),
        cmocka_unit_test(a_fault_that_nobody_hears_of_is_found),
        cmocka_unit_test(bad_files_and_ops_are_named),
        cmocka_unit_test(other_settings_are_built_again),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
