/* Libraries and compilers that change the arithmetic: it is set right, in every thread, or the
 * program says what is wrong and does not run. */
#include "model/arithmetic.h"
#include "ref/ref.h"
#include "tests/command.h"

#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Rounding modes, and on x86 the bits of FTZ and DAZ. */
static const struct {
    int rounding;
    unsigned bits;
} modes[] = {{FE_DOWNWARD, 0},       {FE_UPWARD, 0},         {FE_TOWARDZERO, 0},
             {FE_TONEAREST, 0x8000}, {FE_TONEAREST, 0x0040}, {FE_UPWARD, 0x8040}};
enum { N_MODES = sizeof modes / sizeof *modes };

static void set_mode(int i) {
    fesetround(modes[i].rounding);
#if defined __x86_64__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | modes[i].bits);
#endif
}

static bool is_right(void) {
#if defined __x86_64__
    if (__builtin_ia32_stmxcsr() & 0xe040)
        return false;
#endif
    return fegetround() == FE_TONEAREST;
}

static void look(void *context, int item, int worker) {
    bool *right = context;
    (void)item;
    right[worker] = is_right();
    for (volatile int i = 0; i < 100000; i++) /* the others get some, too */
        continue;
}

static void test_modes_are_set_right(void **state) {
    (void)state;
    for (int i = 0; i < N_MODES; i++) {
        struct error err = {""};
        bool right[3] = {true, true, true};
        set_mode(i);
        struct device *dev = ref_ops.open(&(struct device_options){.n_threads = 3}, &err);
        assert_non_null(dev);
        ref_parallel(dev, 300, look, right);
        assert_true(is_right() && right[0] && right[1] && right[2]);
        ref_ops.close(dev);
        set_mode(i);
        assert_int_equal(arithmetic_check(&err), 0);
        assert_true(is_right());
    }
}

static const char library[] = "#include <fenv.h>\n"
                              "__attribute__((constructor)) static void meddle(void) {\n"
                              "    fesetround(FE_UPWARD);\n"
                              "#if defined __x86_64__\n"
                              "    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);\n"
                              "#endif\n"
                              "}\n";

/* A library that meddles with the mode before main: there it is right again, and a demo has the
 * same fingerprint. */
static void test_library_that_meddles(void **state) {
    (void)state;
    if (strcmp(build_folder(NULL), "build/release"))
        skip(); /* ASan must be the first library */
    struct command cc = command_runf("cc -shared -fPIC -o %s/meddle.so %s -lm", command_folder,
                                     command_file("meddle.c", library, sizeof library - 1));
    if (cc.status)
        skip(); /* no compiler here */
    command_free(&cc);
    struct command look = command_runf("LD_PRELOAD=%s/meddle.so SAMEBITS_LOOK=1 "
                                       "build/release/tests/test_surroundings",
                                       command_folder);
    assert_int_equal(look.status, 0);
    command_free(&look);
    if (access("build/release/demo1", X_OK))
        return;
    const char *run = "build/release/demo1 --device cpu --max-new 8 --temperature 0.7 --seed 3 "
                      "--prompt 'Tell me a story.'";
    struct command want = command_run(run, NULL);
    struct command got = command_runf("LD_PRELOAD=%s/meddle.so %s", command_folder, run);
    assert_int_equal(got.status, 0);
    assert_memory_equal(command_fingerprint(&got), command_fingerprint(&want), 16);
    command_free(&want);
    command_free(&got);
}

/* What compiles at all with these flags must find out by itself. */
static void test_flags_are_refused(void **state) {
    (void)state;
    const char *const flags[] = {"-Ofast", "-ffast-math"};
    for (int i = 0; i < 2; i++) {
        struct command c = command_runf("cc -std=c11 -D_GNU_SOURCE -I. %s -fsyntax-only "
                                        "model/arithmetic.c",
                                        flags[i]);
        assert_int_not_equal(c.status, 0);
        if (!strstr(c.err, "not found"))
            assert_non_null(strstr(c.err, "change the bits"));
        command_free(&c);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    if (getenv("SAMEBITS_LOOK"))
        return !is_right();
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes_are_set_right),
        cmocka_unit_test(test_library_that_meddles),
        cmocka_unit_test(test_flags_are_refused),
    };
    return cmocka_run_group_tests(tests, command_folder_make, command_folder_remove);
}
