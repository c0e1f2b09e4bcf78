/* The checker of readers' kernels, `make check`: every op of ours passes, and broken kernels do
 * not, each for its own reason; those that cheat are refused. The broken ones are
 * tutorials/gpu-pair/mine.cu with one line changed. And make itself: what another setting asks for
 * is built again. */
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
    write_changed("race.cu", "__syncthreads(); /* all have read", "/* all have read");
    struct command c = check("rmsnorm", "race.cu");
    assert_says(&c, 1, "\nthe device stopped at this fault", "with no barrier between");
    assert_says(&c, 1, "1 of 1 sizes FAIL\n", "race.cu:46: emulation: kernel rmsnorm_mine, block ");
    command_free(&c);
}

/* Behind the end of the last row, and in place, where the input is gone when the row is written. */
static void writes_behind_the_end_are_found(void **state) {
    (void)state;
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
    write_changed("silent.cu", "row / rows_per_token)", "row)");
    struct command c = check("rmsnorm", "silent.cu");
    assert_says(&c, 1, "  FAIL  a NaN in row ", "");
    assert_says(&c, 1, " of x: want a fault at site 7, token ", "");
    command_free(&c);
}

/* ---- cheats ---------------------------------------------------------------------------------- */

/* The launcher of mine.cu with `begin` as its first line and `end` as its last. */
static struct command check_cheat(const char *name, const char *begin, const char *end) {
    char text[8192];
    struct command c = command_run("cat tutorials/gpu-pair/mine.cu", NULL);
    char *brace = strstr(c.out, "struct gpu_device *gpu = "), *last = strrchr(c.out, '}');
    assert_true(brace && last && brace < last);
    snprintf(text, sizeof text, "#include <stdio.h>\n#include <stdlib.h>\n%.*s%s\n    %.*s%s\n}\n",
             (int)(brace - c.out), c.out, begin, (int)(last - brace), brace, end);
    write_file(name, text);
    command_free(&c);
    return check("rmsnorm", name);
}

static void expect_cheat(const char *name, const char *begin, const char *end, int status,
                         const char *out, const char *err) {
    struct command c = check_cheat(name, begin, end);
    assert_says(&c, status, out, err);
    assert_null(strstr(c.out, "0 bits differ"));
    command_free(&c);
}

static void zeros_fail(void **state) {
    (void)state;
    expect_cheat("zeros.cu",
                 "cudaMemsetAsync(y, 0, sizeof *y * n_rows * n_cols, gpu_of(dev)->stream); return;",
                 "", 1, "FAIL  y, token 0, index 0: want ", "");
}

/* Keeps the last result of this size, wherever it was asked for. */
static void old_results_fail(void **state) {
    (void)state;
    expect_cheat("old.cu",
                 "static float *old; static int rows, cols;\n"
                 "    size_t bytes = sizeof *y * n_rows * n_cols;\n"
                 "    if (rows == n_rows && cols == n_cols) {\n"
                 "        cudaMemcpy(y, old, bytes, cudaMemcpyDeviceToDevice);\n"
                 "        return;\n    }",
                 "if (old) cudaFree(old);\n    cudaMalloc((void **)&old, bytes);\n"
                 "    cudaMemcpy(old, y, bytes, cudaMemcpyDeviceToDevice);\n"
                 "    rows = n_rows; cols = n_cols;",
                 1, "FAIL  y over x: y, token 0, index 0: want ", "");
}

static void writes_before_the_beginning_fail(void **state) {
    (void)state;
    write_changed("before.cu", "    float r = ", "    to[-1] = 1;\n    float r = ");
    struct command c = check("rmsnorm", "before.cu");
    assert_says(&c, 1, "        1        1  FAIL  y: written to before its beginning\n", "");
    command_free(&c);
}

static void writes_to_an_input_fail(void **state) {
    (void)state;
    expect_cheat("input.cu", "", "cudaMemset((float *)gain, 0x55, sizeof *gain);", 1,
                 "        1        1  FAIL  gain, an input, was written to\n", "");
}

/* Right in the first three calls of a size (3 ... are those of batches, which are timed). */
static void cheats_in_timed_calls_fail(void **state) {
    (void)state;
#define COUNT                                                                                      \
    "static int rows, cols, calls;\n"                                                              \
    "    calls = rows == n_rows && cols == n_cols ? calls + 1 : 0;\n"                              \
    "    rows = n_rows; cols = n_cols;\n    "
    expect_cheat("skips.cu", COUNT "if (calls > 5) return;", "", 1,
                 "pass\nFAIL  timed as a batch: call 4 of 6: y, token 0, index 0: want ", "");
    expect_cheat("keeps.cu",
                 COUNT "static float *first;\n    if (calls <= 3) first = y;\n    else {\n"
                       "        cudaMemcpy(y, first, sizeof *y * n_rows * n_cols, "
                       "cudaMemcpyDeviceToDevice);\n        return;\n    }",
                 "", 1, "pass\nFAIL  timed as a batch: call 2 of 6: y, token 0, index 0: want ",
                 "");
    expect_cheat("addresses.cu",
                 COUNT "static float *ys[6]; static const float *xs[6], *gains[6];\n"
                       "    int i = (calls + 3) % 6;\n    if (calls >= 9) y = ys[i], x = xs[i], "
                       "gain = gains[i];\n    ys[i] = y; xs[i] = x; gains[i] = gain;",
                 "", 1, "pass\nFAIL  timed as a batch: ", "");
}

static void replaced_timers_are_refused(void **state) {
    (void)state;
    static const char *const timers[] = {
        "#include <time.h>\nextern \"C\" int clock_gettime(clockid_t, struct timespec *t) noexcept "
        "{\n    *t = {};\n    return 0;\n}\n",
        "cudaError_t cudaStreamSynchronize(cudaStream_t) {\n    return cudaSuccess;\n}\n"};
    static const char *const says[] = {"/timer.cu defines clock_gettime: only C++ functions",
                                       "/timer.cu defines cudaStreamSynchronize("};
    for (int i = 0; i < 2; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%s\nvoid gpu_rmsnorm(", timers[i]);
        write_changed("timer.cu", "void gpu_rmsnorm(", text);
        struct command c = check("rmsnorm", "timer.cu");
        assert_says(&c, 2, "", says[i]);
        command_free(&c);
    }
}

static void a_patched_checker_is_refused(void **state) {
    (void)state;
    write_changed("patch.cu", "void gpu_rmsnorm(",
                  "extern \"C\" int compare_bits(const void *, const void *, char *, size_t) {\n"
                  "    return 0;\n}\nvoid gpu_rmsnorm(");
    struct command c = check("rmsnorm", "patch.cu");
    assert_says(&c, 2, "", "/patch.cu defines compare_bits: only C++ functions");
    command_free(&c);
    expect_cheat("exits.cu", "exit(0);", "", 2, "", "/exits.cu calls exit: a kernel under check");
    expect_cheat("at_exit.cu", "atexit([] { puts(\"all 56 sizes pass\"); });", "", 2, "",
                 "/at_exit.cu calls atexit: a kernel under check");
}

/* System calls without a library: exit_group(0) after a verdict of its own, and the shared memory
 * mapped and made to say that all is done (CHECK_ANSWERED). */
static void what_a_kernel_prints_is_no_verdict(void **state) {
    (void)state;
    expect_cheat("prints.cu",
                 "puts(\"all 56 sizes pass: 0 bits differ\");\n#ifdef __x86_64__\n"
                 "    asm volatile(\"syscall\" : : \"a\"(231), \"D\"(0));\n#endif\n    abort();",
                 "", 1, "FAIL  the process ended before its answer: status 0\n",
                 "/prints.cu printed: all 56 sizes pass: 0 bits differ\n");
    expect_cheat("answers.cu",
                 "long at;\n    register long flags asm(\"r10\") = 1, fd asm(\"r8\") = 4, "
                 "from asm(\"r9\") = 0;\n"
                 "    asm volatile(\"syscall\" : \"=a\"(at) : \"a\"(9), \"D\"(0), \"S\"(4096), "
                 "\"d\"(3), \"r\"(flags), \"r\"(fd), \"r\"(from) : \"rcx\", \"r11\", \"memory\");\n"
                 "    for (;;)\n        *(volatile int *)at = 4;",
                 "", 1, "FAIL  y, token 0, index 0: want ", "");
}

static void crashes_and_endless_output_are_named(void **state) {
    (void)state;
    expect_cheat("crash.cu", "*(volatile int *)8 = 1;", "", 1,
                 "FAIL  the process ended before its answer: signal 11 (Segmentation fault)\n", "");
    expect_cheat(
        "output.cu", "for (;;) printf(\"%01000d\\n\", 1);", "", 1,
        "FAIL  the process ended before its answer: signal 25 (File size limit exceeded)\n",
        "/output.cu printed: 00000");
}

/* Busy, and asleep: pause(2) without a library. */
static void a_kernel_that_hangs_is_ended(void **state) {
    (void)state;
    setenv("CHECK_SECONDS", "1", 1);
    expect_cheat("hangs.cu", "for (volatile int i = 0;;) (void)i;", "", 1,
                 "FAIL  no answer within 1 seconds of processor time\n", "");
#ifdef __x86_64__
    expect_cheat(
        "sleeps.cu",
        "long status;\n    for (;;) asm volatile(\"syscall\" : \"=a\"(status) : \"a\"(34) : "
        "\"rcx\", \"r11\", \"memory\");",
        "", 1, "FAIL  no answer within 10 seconds\n", "");
#endif
    unsetenv("CHECK_SECONDS");
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
    struct command c = command_runf(
        "cd %s && chmod +x cc && mkdir tests && for f in tests/compare.c gpu/add.cu "
        "tutorials/00-no-cache/demo.c scheduler/fingerprint.c scheduler/logits_chain.c "
        "scheduler/draft.c scheduler/sequence.c scheduler/pass.c scheduler/pass_arrays.c "
        "scheduler/generate.c scheduler/workload.c; do "
        "mkdir -p $(dirname $f) && : >$f; done && cp $OLDPWD/Makefile . && "
        "cp $OLDPWD/tests/tests.mk tests && mkdir tests/labs && "
        "cp $OLDPWD/tests/labs/labs.mk tests/labs",
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
    const struct CMUnitTest ours[] = {
        cmocka_unit_test(every_op_of_ours_passes),
    };
    const struct CMUnitTest readers[] = {
        cmocka_unit_test(a_right_kernel_passes),
        cmocka_unit_test(a_missing_tail_fails_where_it_is),
        cmocka_unit_test(a_missing_barrier_is_found),
        cmocka_unit_test(writes_behind_the_end_are_found),
        cmocka_unit_test(a_fault_that_nobody_hears_of_is_found),
        cmocka_unit_test(zeros_fail),
        cmocka_unit_test(old_results_fail),
        cmocka_unit_test(writes_before_the_beginning_fail),
        cmocka_unit_test(writes_to_an_input_fail),
        cmocka_unit_test(cheats_in_timed_calls_fail),
        cmocka_unit_test(replaced_timers_are_refused),
        cmocka_unit_test(a_patched_checker_is_refused),
        cmocka_unit_test(what_a_kernel_prints_is_no_verdict),
        cmocka_unit_test(crashes_and_endless_output_are_named),
        cmocka_unit_test(a_kernel_that_hangs_is_ended),
        cmocka_unit_test(bad_files_and_ops_are_named),
        cmocka_unit_test(other_settings_are_built_again),
    };
    int n_failed = cmocka_run_group_tests(ours, NULL, NULL);
    /* A reader's kernel is always compiled as for a release: once is enough. */
    if (!strcmp(build_folder(NULL), "build/release"))
        n_failed += cmocka_run_group_tests(readers, make_folder, remove_folder);
    return n_failed;
}
