/*
 * test_chapters - the tutorial's chapters print what really happens: every command that they show
 * is run again. tests/chapters.h says what is compared, and how; here that rule is tested, too.
 */
#include "tests/chapters.h"
#include "tests/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char table[] = "Phase 9: a title, 128 new tokens\n"
                            "\n"
                            "steps  ms/tok of each  prompt tokens  peak MB       fingerprint\n"
                            "   12           27.74             19     87.8  a7bf16f58e50a7bc\n"
                            "  256         1127.74              7   1087.8  7532f5121aef5435\n"
                            "\n"
                            "16 requests in 6.28 s: 151.1 tok/s; 456 steps; at most 4.0 MB\n"
                            "\n"
                            "queue ms  1341.04  0.00\n"
                            "fingerprint 9c48b138ff8cb42a\n";

/* The table with the first `from` replaced by `to`. */
static char *changed(const char *from, const char *to) {
    static char text[2 * sizeof table];
    const char *at = strstr(table, from);
    assert_non_null(at);
    size_t before = (size_t)(at - table);
    memcpy(text, table, before);
    strcpy(text + before, to);
    strcat(text, at + strlen(from));
    return text;
}

static bool agrees_when(const char *from, const char *to) {
    bool one = chapter_agrees(table, changed(from, to), NULL, NULL);
    bool other = chapter_agrees(changed(from, to), table, NULL, NULL);
    assert_int_equal(one, other);
    return one;
}

static void times_and_memory_may_differ(void **state) {
    (void)state;
    assert_true(chapter_agrees(table, table, NULL, NULL));
    assert_true(agrees_when("27.74 ", " 3.70 "));
    assert_true(agrees_when(" 1087.8", "   87.8"));
    assert_true(agrees_when("6.28 s:", "12.5 s:"));
    assert_true(agrees_when("151.1 tok/s", "1500 tok/s"));
    assert_true(agrees_when("4.0 MB", "16.9 MB"));
    assert_true(agrees_when("1341.04  0.00", "7.00  12.50"));
    assert_true(agrees_when("Phase 9", "running on the CPU: no GPU here\nPhase 9"));
    /* a column gets wider when its numbers do */
    assert_true(chapter_agrees("step      ms  states\n   7  1602.1  DDW\n",
                               "step    ms  states\n   7  60.1  DDW\n", NULL, NULL));
}

static void everything_else_must_agree(void **state) {
    (void)state;
    assert_false(agrees_when("a7bf16f58e50a7bc", "a7bf16f58e50a7bd"));
    assert_false(agrees_when("9c48b138ff8cb42a", "9c48b138ff8cb42b"));
    assert_false(agrees_when("   12 ", "   13 "));
    assert_false(agrees_when("      7 ", "      8 "));
    assert_false(agrees_when("456 steps", "457 steps"));
    assert_false(agrees_when("16 requests", "17 requests"));
    assert_false(agrees_when("128 new", "127 new"));
    assert_false(agrees_when("title", "tittle"));
    assert_false(agrees_when("ms/tok of each", "ms/tok of some"));
    assert_false(agrees_when("fingerprint 9c48", "print 9c48"));
    assert_false(
        agrees_when("  256         1127.74              7   1087.8  7532f5121aef5435\n", ""));
    assert_false(agrees_when("queue ms", "one more line\nqueue ms"));
    assert_false(agrees_when("tokens\n\nsteps", "tokens\nsteps"));
    assert_false(agrees_when("fingerprint 9c48b138ff8cb42a\n", ""));
    /* a number that is no time, in the column beside one */
    assert_false(chapter_agrees("step    ms  states\n   7  60.1  DDW\n",
                                "step    ms  states\n   8  60.1  DDW\n", NULL, NULL));
    assert_false(chapter_agrees("step    ms  states\n   7  60.1  DDW\n",
                                "step    ms  states\n   7  60.1  DWW\n", NULL, NULL));
    /* a time where none is shown */
    assert_false(chapter_agrees("7 ms\n", "seven ms\n", NULL, NULL));
}

static void dots_stand_for_any_lines(void **state) {
    (void)state;
    char *shown, *printed;
    assert_true(chapter_agrees("a\n...\nd\n", "a\nb\nc\nd\n", NULL, NULL));
    assert_true(chapter_agrees("a\n...\nd\n", "a\nd\nb\nd\n", NULL, NULL));
    assert_true(chapter_agrees("a\n...\n", "a\n", NULL, NULL));
    assert_true(chapter_agrees("  ...\nd\n", "a\nd\n", NULL, NULL));
    assert_false(chapter_agrees("a\n...\nd\n", "a\nb\nc\n", NULL, NULL));
    assert_false(chapter_agrees("a\n...\nd\n", "a\nd\ne\n", NULL, NULL));
    assert_false(chapter_agrees("a\nc\n...\n", "a\nb\nc\n", &shown, &printed));
    assert_string_equal(shown, "c");
    assert_string_equal(printed, "b");
    free(shown);
    free(printed);
    assert_false(chapter_agrees("a\nb 3 ms\nc\n", "a\nb 4 ms\n", &shown, &printed));
    assert_string_equal(shown, "c");
    assert_string_equal(printed, "(end)");
    free(shown);
    free(printed);
}

static void commands_are_found(void **state) {
    (void)state;
    struct chapter c =
        chapter_commands("    make phase2 && ./demo\n"
                         "```\n./demo\nout\n\nput\n```\n"
                         "<!-- slow -->\n```\n./demo --prompts f\n./demo --ids\n7\n```\n"
                         "```\nPhase 1\n./demo --no\n```\n"
                         "```\n$ make test\n```\n"
                         "text ./demo --no make phase7\n"
                         "    make phase0 && ./demo --prompt \"a && b\"\n"
                         "    ./demo --chat    # talk\n"
                         "    ./demo\n"
                         "    A=b ./demo --ids\n"
                         "```\n./demo --json f\n```\n",
                         3);
    static const struct chapter_command want[] = {
        {2, 3, false, "./demo", "out\n\nput\n"},
        {2, 10, true, "./demo --prompts f", ""},
        {2, 11, true, "./demo --ids", "7\n"},
        {0, 22, false, "./demo --prompt \"a && b\"", NULL},
        {0, 23, false, "./demo --chat    # talk", NULL},
        {0, 25, false, "A=b ./demo --ids", NULL},
        {0, 27, false, "./demo --json f", ""},
    };
    assert_int_equal(c.n, sizeof want / sizeof *want);
    for (int i = 0; i < c.n; i++) {
        assert_int_equal(c.commands[i].phase, want[i].phase);
        assert_int_equal(c.commands[i].line, want[i].line);
        assert_int_equal(c.commands[i].slow, want[i].slow);
        assert_string_equal(c.commands[i].command, want[i].command);
        assert_int_equal(!c.commands[i].output, !want[i].output);
        if (want[i].output)
            assert_string_equal(c.commands[i].output, want[i].output);
    }
    chapter_free(&c);
}

static void the_chapters_print_what_really_happens(void **state) {
    (void)state;
    if (strcmp(build_folder(NULL), "build/release"))
        skip();
    chapters_rerun(false);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_and_memory_may_differ),
        cmocka_unit_test(everything_else_must_agree),
        cmocka_unit_test(dots_stand_for_any_lines),
        cmocka_unit_test(commands_are_found),
        cmocka_unit_test(the_chapters_print_what_really_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
