/*
 * test_receipts_cli - phase 13's demo as a user meets it: receipts are written and checked, changed
 * ones refused with status 1, texts scored, and drafts change no fingerprint.
 */
#include "model/files/json.h"
#include "tests/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct command run(int status, const char *format, ...) {
    char arguments[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    struct command c = demo_run(13, arguments);
    if (c.status != status)
        fail_msg("%s: status %d\n%s%s", arguments, c.status, c.out, c.err);
    return c;
}

static void expect(int status, const char *says, const char *arguments) {
    struct command c = run(status, "%s", arguments);
    if (!strstr(c.out, says) && !strstr(c.err, says))
        fail_msg("%s: expected \"%s\":\n%s%s", arguments, says, c.out, c.err);
    command_free(&c);
}

static char *read_text(const char *path) {
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    assert_non_null(f);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static void receipts_are_written_and_checked(void **state) {
    static const char requests[] =
        "{\"prompt\": \"Tell me a story.\", \"temperature\": 0.9, \"seed\": 5, \"max_new\": 20}\n"
        "{\"prompt\": \"What is the capital of France?\", \"stop\": \"Paris\"}\n"
        "{\"prompt\": \"Hi\", \"temperature\": 2, \"top_k\": 9, \"max_new\": 4}\n";
    char asked[64], file[64], line[256];
    (void)state;
    snprintf(asked, sizeof asked, "%s", command_file("asked", requests, strlen(requests)));
    snprintf(file, sizeof file, "%s", command_file("receipts", "", 0));
    struct command c = run(0, "--prompts %s --kv-blocks 300 --receipt %s", asked, file);
    command_free(&c);
    c = run(0, "--verify-receipt %s --max-running 1 --chunk 7", file);
    assert_int_equal(count_lines(c.out), 3);
    assert_non_null(strstr(c.out, "receipt 0: verified, 16 prompt tokens, 20 tokens (length)"));
    assert_non_null(strstr(c.out, "tokens (stop string)"));
    assert_non_null(strstr(c.err, "3 of 3 receipts verified"));
    command_free(&c);
    /* With another kind of cache the same text, and another receipt, which says so. */
    c = run(0, "--prompt Hi --kv-type bfp8 --receipt %s", file);
    command_free(&c);
    snprintf(line, sizeof line, "--verify-receipt %s", file);
    expect(0, "receipt 0: verified", line);
}

/* Replaces the first `from` behind `behind` by `to`, which is as long. */
static void change(char *text, const char *behind, const char *from, const char *to) {
    char *at = strstr(text, behind);
    at = at ? strstr(at, from) : NULL;
    assert_non_null(at);
    memcpy(at, to, strlen(to));
}

static void changed_receipts_have_status_1(void **state) {
    char file[64], line[256];
    (void)state;
    snprintf(file, sizeof file, "%s", command_file("changed", "", 0));
    struct command c = run(0, "--prompt 'What is the capital of France?' --receipt %s", file);
    command_free(&c);
    char *honest = read_text(file), *both = calloc(2, strlen(honest) + 1);
    static const char *const changes[][4] = {
        {"\"output\"", "565", "566", "refused, other token: token 1 of 11: 565 is drawn here"},
        {"\"finish\"", "stop", "stoq", "refused, not a receipt"},
        {"\"max_new\"", "512", "513", "refused, other options"},
        {"\"numerics\"", "1", "2", "refused, other numerics"},
        {"\"model.safetensors\":\"", "1", "2", "refused, other weights: model.safetensors"},
        {"\"tokenizer.json\":\"", "a", "b", "refused, other tokenizer"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        strcpy(both, honest);
        strcat(both, honest);
        change(both + strlen(honest), changes[i][0], changes[i][1], changes[i][2]);
        snprintf(file, sizeof file, "%s", command_file("changed", both, strlen(both)));
        snprintf(line, sizeof line, "--verify-receipt %s", file);
        expect(1, "receipt 0: verified", line);
        expect(1, changes[i][3], line);
        expect(1, "1 of 2 receipts verified", line);
    }
    both[20] = 0;
    snprintf(line, sizeof line, "--verify-receipt %s", command_file("cut", both, 20));
    expect(2, "line 1", line);
    assert_run_refused(12, "--prompt x --receipt /dev/null", "make phase13", "--receipt");
    expect(2, "exclude each other", "--prompt x --verify-receipt /dev/null");
    expect(2, "does nothing with --chat", "--chat --receipt /dev/null");
    free(both);
    free(honest);
}

static void texts_are_scored(void **state) {
    static const char texts[] =
        "{\"id\": 7, \"prompt\": \"The capital of France is\", \"continuation\": \" Paris.\"}\n"
        "{\"text\": \"Once upon a time, there was a little robot.\"}\n"
        "{\"prompt\": [562, 579], \"continuation\": [258]}\n"
        "{\"text\": \"Once upon a\"}\n";
    char file[64];
    (void)state;
    snprintf(file, sizeof file, "%s", command_file("texts", texts, strlen(texts)));
    struct command c = run(0, "--score %s --kv-blocks 300 --top-logprobs 2 --token-budget 8", file);
    assert_int_equal(count_lines(c.out), 4);
    assert_non_null(
        strstr(c.out, "{\"id\":7,\"tokens\":[474,285,276,13],\"logprobs\":[-1.22282338,"));
    char *second = strchr(c.out, '\n') + 1, *third = strchr(second, '\n') + 1;
    json_t *text = json_loadb(second, (size_t)(third - second), JSON_DISABLE_EOF_CHECK, NULL);
    json_t *pair = json_loads(third, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *logprobs = json_object_get(text, "logprobs");
    assert_int_equal(json_array_size(logprobs), 11);
    assert_true(json_is_null(json_array_get(logprobs, 0)));
    /* The third text is the beginning of the second. */
    assert_true(json_equal(json_array_get(logprobs, 2),
                           json_array_get(json_object_get(pair, "logprobs"), 0)));
    assert_true(json_is_true(json_object_get(pair, "is_greedy")));
    assert_int_equal(json_array_size(json_array_get(json_object_get(text, "top"), 1)), 2);
    json_decref(text);
    json_decref(pair);
    assert_non_null(strstr(c.err, "4 texts, 17 tokens scored"));
    command_free(&c);
    static const char *const wrong[][2] = {
        {"\"a\"", "must be an object"},
        {"{\"text\": \"a\", \"prompt\": \"b\"}", "must be an object"},
        {"{\"prompt\": \"b\"}", "must be an object"},
        {"{\"prompt\": [1], \"continuation\": \"a\"}", "two texts, or two lists"},
        {"{\"text\": [99999]}", "element 0"},
        {"{\"text\": \"\"}", "the prompt is empty"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[128];
        snprintf(line, sizeof line, "--kv-blocks 300 --score %s",
                 command_file("wrong", wrong[i][0], strlen(wrong[i][0])));
        expect(2, wrong[i][1], line);
    }
    snprintf(file, sizeof file, "%s", command_file("long", texts, strlen(texts)));
    c = run(2, "--score %s --kv-blocks 300 --context 8", file);
    assert_non_null(strstr(c.out, "\"error\":\"11 tokens do not fit in the context of 8\""));
    command_free(&c);
}

static void drafts_change_no_fingerprint(void **state) {
    static const char *const drafts[] = {"--speculate", "--draft data/model"};
    static const char *const runs[] = {
        "--max-new 60 --prompt 'Repeat after me: one two three four five six seven eight nine.'",
        "--prompt 'Tell me a story.' --temperature 0.8 --seed 4 --max-new 40",
        "--prompts data/prompts/short.jsonl --temperature 0.5 --max-new 24 --kv-blocks 30"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct command without = run(0, "%s", runs[i]);
        for (int j = 0; j < 2; j++) {
            struct command with = run(0, "%s %s", runs[i], drafts[j]);
            assert_memory_equal(command_fingerprint(&with), command_fingerprint(&without), 16);
            assert_true(strstr(with.out, "drafted tokens accepted") ||
                        strstr(with.err, "drafted tokens accepted"));
            command_free(&with);
        }
        command_free(&without);
    }
    expect(2, "exclude each other", "--prompt x --speculate --draft data/model");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(receipts_are_written_and_checked),
        cmocka_unit_test(changed_receipts_have_status_1),
        cmocka_unit_test(texts_are_scored),
        cmocka_unit_test(drafts_change_no_fingerprint),
    };
    (void)argc;
    build_folder(argv[0]);
    return cmocka_run_group_tests(tests, command_folder_make, command_folder_remove);
}
