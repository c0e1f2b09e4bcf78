/*
 * test_fingerprint - the promise: one fingerprint for one prompt, whatever runs it.
 *
 * Phase 0 and phase 1, static and dynamic cache, 1, 2 and 8 threads, every OpenBLAS kernel that
 * this CPU can run, the prompt read at once or in pieces, the release build and the sanitizer
 * build (compiled for different instruction sets). Runs the demos as a user would.
 */
#include "tests/command.h"
#include "tests/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A short prompt for many tokens, and one of more than two tiles of 256 positions. */
static const char story[] = "--max-new 24 --prompt 'Write a short story about a robot who learns "
                            "to paint.'";
static char long_file[] = "/tmp/samebits-prompt-XXXXXX";
static char long_prompt[128];

static int write_long_prompt(void **state) {
    (void)state;
    int fd = mkstemp(long_file);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fputs("{\"prompt\": \"Repeat after me:", f);
    for (int i = 0; i < 75; i++)
        fprintf(f, " the %s boat sails over lake %d.", i % 3 ? "green" : "old", i);
    fputs("\"}\n", f);
    fclose(f);
    snprintf(long_prompt, sizeof long_prompt, "--max-new 6 --prompts %s", long_file);
    return 0;
}

static int remove_long_prompt(void **state) {
    (void)state;
    return unlink(long_file);
}

/* The fingerprint of one run, in a static buffer that the next but one call reuses. */
static const char *fingerprint_of(const char *environment, int phase, const char *arguments) {
    static char results[2][17];
    static int next;
    char *result = results[next ^= 1];
    struct command c = command_runf("%s %s/demo%d --device cpu %s", environment, build_folder(NULL),
                                    phase, arguments);
    const char *found = command_fingerprint(&c);
    if (c.status || !found)
        fail_msg("%s demo%d %s: status %d\n%s", environment, phase, arguments, c.status, c.err);
    snprintf(result, sizeof results[0], "%.16s", found);
    command_free(&c);
    return result;
}

static void assert_same(const char *environment, int phase, const char *options, const char *prompt,
                        const char *want) {
    char arguments[512];
    snprintf(arguments, sizeof arguments, "%s %s", options, prompt);
    const char *got = fingerprint_of(environment, phase, arguments);
    if (strcmp(got, want))
        fail_msg("%s demo%d %s: fingerprint %s, expected %s", environment, phase, arguments, got,
                 want);
}

static void phase_0_equals_phase_1_static_and_dynamic(void **state) {
    (void)state;
    const char *prompts[] = {story, long_prompt};
    int n = strcmp(build_folder(NULL), "build/asan") ? 2 : 1; /* phase 0 is slow on long ones */
    for (int i = 0; i < n; i++) {
        char want[17];
        strcpy(want, fingerprint_of("", 0, prompts[i]));
        assert_same("", 1, "--cache static", prompts[i], want);
        assert_same("", 1, "--cache dynamic", prompts[i], want);
    }
}

/* What varies OpenBLAS is shown once, by the release build: the sanitizers watch our own code,
 * which the other tests run. */
static void skip_under_sanitizers(void) {
    if (strcmp(build_folder(NULL), "build/release"))
        skip();
}

static void threads_change_nothing(void **state) {
    (void)state;
    skip_under_sanitizers();
    char want[17];
    strcpy(want, fingerprint_of("", 1, long_prompt));
    assert_same("", 1, "--threads 1", long_prompt, want);
    assert_same("", 1, "--threads 2", long_prompt, want);
    assert_same("", 1, "--threads 8", long_prompt, want);
    assert_same("", 0, "--threads 8", long_prompt, want);
}

static void pieces_of_the_prompt_change_nothing(void **state) {
    (void)state;
    skip_under_sanitizers();
    static const char *const pieces[] = {"7", "255", "256", "257", "4096"};
    char want[17], options[64];
    strcpy(want, fingerprint_of("", 1, long_prompt));
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        snprintf(options, sizeof options, "--chunk %s --cache %s", pieces[i],
                 i % 2 ? "static" : "dynamic");
        assert_same("", 1, options, long_prompt, want);
    }
    assert_same("", 1, "--chunk 1", long_prompt, want);
}

static void every_openblas_kernel_gives_the_same_bits(void **state) {
    (void)state;
    skip_under_sanitizers();
#if defined(__x86_64__)
    const struct {
        const char *name;
        int runs;
    } cores[] = {{"Prescott", __builtin_cpu_supports("sse3")},
                 {"Nehalem", __builtin_cpu_supports("sse4.2")},
                 {"Sandybridge", __builtin_cpu_supports("avx")},
                 {"Haswell", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
                 {"Zen", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
                 {"SkylakeX", __builtin_cpu_supports("avx512f")}};
    char want[17], environment[128], verbose[64];
    int used = 0;
    strcpy(want, fingerprint_of("", 1, long_prompt));
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++) {
        if (!cores[i].runs)
            continue;
        snprintf(environment, sizeof environment, "OPENBLAS_CORETYPE=%s", cores[i].name);
        assert_same(environment, 1, "--threads 2", long_prompt, want);
        /* The library says which kernels it took; a name that it does not know would prove
         * nothing. */
        struct command c =
            command_runf("OPENBLAS_VERBOSE=2 %s %s/demo1 --device cpu --max-new 1 --prompt x",
                         environment, build_folder(NULL));
        snprintf(verbose, sizeof verbose, "Core: %s", cores[i].name);
        used += strstr(c.err, verbose) != NULL;
        command_free(&c);
    }
    print_message("%d kinds of OpenBLAS kernels\n", used);
    assert_true(used >= 2);
#else
    skip();
#endif
}

static void sampling_draws_the_same_tokens_everywhere(void **state) {
    (void)state;
    const char *how = "--temperature 0.9 --top-k 50 --top-p 0.95 --seed 18446744073709551615 "
                      "--ids --max-new 24 --prompt 'Tell me a story.'";
    struct command a = command_runf("%s/demo0 --device cpu %s", build_folder(NULL), how);
    struct command b =
        command_runf("%s/demo1 --device cpu --threads 1 --chunk 5 %s", build_folder(NULL), how);
    assert_int_equal(a.status, 0);
    assert_string_equal(a.out, b.out);
    assert_memory_equal(command_fingerprint(&a), command_fingerprint(&b), 16);
    command_free(&a);
    command_free(&b);
}

static void the_release_and_the_sanitizer_build_agree(void **state) {
    (void)state;
    if (strcmp(build_folder(NULL), "build/asan") || access("build/release/demo1", X_OK))
        skip();
    const char *prompts[] = {story, long_prompt};
    for (int i = 0; i < (few_cases_do() ? 1 : 2); i++) {
        struct command c = command_runf("build/release/demo1 --device cpu %s", prompts[i]);
        assert_int_equal(c.status, 0);
        char want[17];
        snprintf(want, sizeof want, "%.16s", command_fingerprint(&c));
        assert_same("", 1, "", prompts[i], want);
        command_free(&c);
    }
}

/* Every kernel that a GPU would run, on real activations. */
static void the_emulated_kernels_give_the_same_bits(void **state) {
    (void)state;
    skip_under_sanitizers();
    for (int phase = 0; phase < 2; phase++) {
        struct command cpu = command_runf("build/release/demo%d --device cpu --max-new 3 "
                                          "--temperature 0.8 --prompt Hi",
                                          phase);
        struct command emu = command_runf("build/release/emu-demo%d --device emu --max-new 3 "
                                          "--temperature 0.8 --prompt Hi",
                                          phase);
        if (emu.status)
            fail_msg("%s", emu.err);
        assert_string_equal(cpu.out, emu.out);
        assert_memory_equal(command_fingerprint(&cpu), command_fingerprint(&emu), 16);
        command_free(&cpu);
        command_free(&emu);
    }
}

/* The kernels for variants of attention come with phase 9. Until then others do for a model that
 * has one. */
static void phase_8_reads_sliding_windows(void **state) {
    (void)state;
    skip_under_sanitizers();
    const char *devices[] = {"cpu", "emu"};
    struct command c[2];
    for (int i = 0; i < 2; i++) {
        c[i] =
            command_runf("d=$(mktemp -d) && ln -s \"$PWD\"/data/model/[!c]* $d && "
                         "sed -e 's/\"use_sliding_window\": false/\"use_sliding_window\": true/' "
                         "-e 's/\"sliding_window\": null/\"sliding_window\": 4, "
                         "\"max_window_layers\": 0/' data/model/config.json > $d/config.json && "
                         "build/release/emu-demo8 --device %s --model $d --max-new 3 "
                         "--prompt 'The quick brown fox jumps over'; s=$?; rm -r $d; exit $s",
                         devices[i]);
        if (c[i].status)
            fail_msg("%s", c[i].err);
    }
    assert_memory_equal(command_fingerprint(&c[0]), command_fingerprint(&c[1]), 16);
    struct command without = command_runf("build/release/emu-demo8 --device cpu --max-new 3 "
                                          "--prompt 'The quick brown fox jumps over'");
    assert_memory_not_equal(command_fingerprint(&c[0]), command_fingerprint(&without), 16);
    command_free(&without);
    command_free(&c[0]);
    command_free(&c[1]);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phase_0_equals_phase_1_static_and_dynamic),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(pieces_of_the_prompt_change_nothing),
        cmocka_unit_test(every_openblas_kernel_gives_the_same_bits),
        cmocka_unit_test(sampling_draws_the_same_tokens_everywhere),
        cmocka_unit_test(the_release_and_the_sanitizer_build_agree),
        cmocka_unit_test(the_emulated_kernels_give_the_same_bits),
        cmocka_unit_test(phase_8_reads_sliding_windows),
    };
    return cmocka_run_group_tests(tests, write_long_prompt, remove_long_prompt);
}
