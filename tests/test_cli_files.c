/*
 * test_cli_files - files from the command line, read and written: bad ones are named in one line,
 * none is lost or left empty, whatever ends the run; damaged models are refused by file.
 */
#include "model/files/json.h"
#include "tests/command.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void bad_files_are_named(void **state) {
    (void)state;
    char arguments[512];
    assert_run_refused(1, "--model /nosuch --prompt x", "/nosuch", "--model");
    assert_run_refused(1, "--model README.md --prompt x", "README.md", "folder");
    assert_run_refused(1, "--model tests --prompt x", "tests/", "tokenizer.json");
    assert_run_refused(1, "--prompts /nosuch", "/nosuch", "No such file");
    assert_run_refused(1, "--messages /nosuch", "/nosuch", "No such file");
    assert_run_refused(1, "--tokenize /nosuch", "/nosuch", "No such file");
    assert_run_refused(1, "--prompt x --max-new 1 --dump-logits /nosuch/f", "/nosuch/f", "No such");
    assert_run_refused(1, "--model /nosuch --json /nosuch/f", "/nosuch/f", "cannot write: No such");
    static const struct {
        const char *option, *content, *word;
    } files[] = {
        {"prompts", "{\"prompt\": \"x\"", "line 1"},
        {"prompts", "\"fine\"\n{\"max_new\": 3}", "line 2"},
        {"prompts", "{\"prompt\": 3}", "prompt"},
        {"prompts", "{\"prompt\": \"x\", \"max_new\": 0}", "max_new"},
        {"prompts", "\n\n", "no prompts"},
        {"prompts", "\"a\\u0000b\"", "NUL"},
        {"prompts", "{\"prompt\": \"x\", \"maxnew\": 3}", "maxnew: unknown"},
        {"prompts", "{\"prompt\": \"x\", \"temperature\": -1}", "temperature"},
        {"prompts", "{\"prompt\": \"x\", \"stop\": \"y\"}", "\"x\" has stop: make phase3"},
        {"prompts", "{\"prompt\": \"x\", \"arrival\": 1}", "\"x\" has an arrival: make phase3"},
        {"messages", "{}", "list"},
        {"messages", "[]", "empty"},
        {"messages", "[{\"role\": \"user\"}]", "content"},
        {"messages", "[{\"role\": 3, \"content\": \"x\"}]", "role"},
        {"messages", "[{\"role\": \"user\", \"content\": \"x\"}", "line 1"},
        {"tokenize", "3", "string"},
        {"tokenize", "\"open", "line 1"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = command_file("bad.json", files[i].content, strlen(files[i].content));
        snprintf(arguments, sizeof arguments, "--%s %s%s", files[i].option, path,
                 strcmp(files[i].option, "tokenize") ? " --max-new 1" : "");
        struct command c = demo_run(1, arguments);
        if (c.status != 2 || !strstr(c.err, "bad.json") || !strstr(c.err, files[i].word))
            fail_msg("%s with %s: status %d\n%s", arguments, files[i].content, c.status, c.err);
        command_free(&c);
    }
}

/* A copy of the model folder with one file replaced by its first n bytes. */
static const char *damaged_model(const char *file, long n) {
    static char path[256];
    snprintf(path, sizeof path, "%s/model", command_folder);
    struct command c = command_runf("rm -rf %s && cp -r data/model %s && head -c %ld data/model/%s "
                                    "> %s/%s",
                                    path, path, n, file, path, file);
    assert_int_equal(c.status, 0);
    command_free(&c);
    return path;
}

static void damaged_models_are_refused_by_file(void **state) {
    (void)state;
    static const struct {
        const char *file;
        long n;
    } cases[] = {
        {"model.safetensors", 0},        {"model.safetensors", 7}, {"model.safetensors", 5000},
        {"model.safetensors", 15224807}, {"config.json", 0},       {"config.json", 300},
        {"tokenizer.json", 100000},      {"tokenizer.json", 0},    {"generation_config.json", 20},
        {"tokenizer_config.json", 100}};
    char arguments[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *model = damaged_model(cases[i].file, cases[i].n);
        snprintf(arguments, sizeof arguments, "--model %s --prompt x --max-new 1", model);
        assert_run_refused(1, arguments, cases[i].file, command_folder);
    }
}

static void a_nan_in_a_weight_is_refused_by_tensor(void **state) {
    (void)state;
    char path[300], arguments[400];
    const char *model = damaged_model("model.safetensors", 15224808);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -2, SEEK_END);
    fwrite("\xc0\x7f", 1, 2, f); /* a bf16 NaN in the last number of the last tensor */
    fclose(f);
    snprintf(arguments, sizeof arguments, "--model %s --prompt x", model);
    assert_run_refused(1, arguments, "tensor \"", "NaN");
}

static void logits_are_dumped_as_npy(void **state) {
    (void)state;
    char arguments[400], path[300];
    snprintf(path, sizeof path, "%s/logits.npy", command_folder);
    snprintf(arguments, sizeof arguments, "--ids --dump-logits %s --prompt 'What is 2 + 2?'", path);
    struct command c = demo_run(1, arguments);
    assert_int_equal(c.status, 0);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char header[129] = {0};
    float row[4096];
    int best = 0, steps = 0;
    assert_int_equal(fread(header, 1, 128, f), 128);
    assert_memory_equal(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    assert_non_null(strstr(header + 10, "'shape': (9, 4096)"));
    while (fread(row, sizeof row, 1, f) == 1 && ++steps)
        if (steps == 1)
            for (int i = 0; i < 4096; i++)
                best = row[i] > row[best] ? i : best;
    assert_int_equal(steps, 9);
    assert_int_equal(best, 17); /* the id of "2" */
    fclose(f);
    command_free(&c);
}

static void json_holds_the_run(void **state) {
    (void)state;
    char arguments[400], path[300];
    struct error err;
    snprintf(path, sizeof path, "%s/run.json", command_folder);
    snprintf(arguments, sizeof arguments, "--json %s --prompt 'What is 2 + 2?'", path);
    struct command c = demo_run(1, arguments);
    assert_int_equal(c.status, 0);
    json_t *root = json_read_file(path, &err);
    assert_non_null(root);
    assert_memory_equal(json_string_value(json_object_get(root, "fingerprint")),
                        command_fingerprint(&c), 16);
    json_t *run = json_array_get(json_object_get(root, "runs"), 0);
    assert_int_equal(json_integer_value(json_object_get(run, "new_tokens")), 9);
    json_decref(root);
    command_free(&c);
}

static void assert_holds(const char *path, const char *want) {
    char text[100] = "";
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    assert_string_equal(text, want);
}

/* What is read is never written, and what a file had is there until there is something else. */
static void no_file_is_lost(void **state) {
    (void)state;
    static const char *const options[] = {"json", "dump-logits"};
    static char old[20000];
    char arguments[700];
    struct error err;
    const char *path = command_file("keep.jsonl", "\"Hi\"\n", 5);
    for (int i = 0; i < 2; i++) {
        snprintf(arguments, sizeof arguments, "--max-new 1 --prompts %s --%s %s/./keep.jsonl", path,
                 options[i], command_folder);
        assert_run_refused(1, arguments, options[i], "would overwrite what the first reads");
        assert_holds(path, "\"Hi\"\n");
    }
    snprintf(arguments, sizeof arguments, "--model /nosuch --prompt x --json %s", path);
    assert_run_refused(1, arguments, "/nosuch", "no such folder");
    assert_holds(path, "\"Hi\"\n");
    memset(old, 'x', sizeof old);
    path = command_file("old.json", old, sizeof old);
    snprintf(arguments, sizeof arguments, "--prompt x --max-new 1 --json %s", path);
    struct command c = demo_run(1, arguments);
    assert_int_equal(c.status, 0);
    json_t *root = json_read_file(path, &err);
    assert_non_null(root);
    json_decref(root);
    command_free(&c);
}

/* Ctrl-C while a chat waits for its user: what --json has is written. */
static void ctrl_c_ends_a_chat(void **state) {
    (void)state;
    char path[300];
    struct error err;
    snprintf(path, sizeof path, "%s/chat.json", command_folder);
    struct command c = command_runf(
        "F=%s; mkfifo $F/in && { %s/demo1 --device cpu --chat --json $F/chat.json <$F/in >$F/out & "
        "exec 3>$F/in; echo 'Hello!' >&3; for i in $(seq 100); do [ -s $F/out ] && break; "
        "sleep 0.1; done; sleep 0.3; kill -INT $!; wait $!; exit $?; }",
        command_folder, build_folder(NULL));
    assert_int_equal(c.status, 130);
    assert_non_null(strstr(c.err, "interrupted\n"));
    json_t *root = json_read_file(path, &err);
    assert_true(json_is_true(json_object_get(root, "interrupted")));
    assert_int_equal(json_array_size(json_object_get(root, "runs")), 1);
    json_decref(root);
    command_free(&c);
}

static void a_full_disk_is_reported(void **state) {
    (void)state;
    if (access("/dev/full", W_OK))
        skip();
    struct command c =
        command_runf("%s/demo1 --device cpu --prompt 'Hello!' > /dev/full", build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "stdout"));
    command_free(&c);
    c = demo_run(1, "--max-new 1 --json /dev/full --prompt Hello!");
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "demo: /dev/full: cannot write: No space"));
    command_free(&c);
    assert_run_fails(1, "--ids --max-new 2 --dump-logits /dev/full --prompt 'Hello!'", "/dev/full",
                     "No space");
}

/* A disk, a limit or a reader that takes no more: one line, and no file that is empty or half. */
static void what_cannot_be_written_leaves_nothing(void **state) {
    (void)state;
    static const char *const ways[] = {"--prompt Hi --max-new 2 >&-",
                                       "--tokenize data/prompts/mixed.jsonl >&-", "--help >&-"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        assert_run_refused(1, ways[i], "stdout: cannot write", "Bad file descriptor");
    struct command c = command_runf(
        "ulimit -f 1; %s/demo1 --device cpu --prompt Hi --max-new 2 --json %s/limited.json "
        "--dump-logits %s/limited.npy",
        build_folder(NULL), command_folder, command_folder);
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "limited.npy: cannot write: File too large"));
    command_free(&c);
    c = command_runf("ls %s | grep limited", command_folder);
    assert_string_equal(c.out, "");
    command_free(&c);
}

/* A signal ends a run as Ctrl-C does: --json has what there was, with no file left beside it. */
static void signals_end_a_run_in_order(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int status;
    } signals[] = {{"TERM", 143}, {"HUP", 129}};
    signal(SIGHUP, SIG_DFL); /* nohup has it ignored, here and in what is started from here */
    for (int i = 0; i < 2; i++) {
        char path[300];
        struct error err;
        snprintf(path, sizeof path, "%s/signal.json", command_folder);
        struct command c = command_runf(
            "F=%s; mkfifo $F/p; { %s/demo1 --device cpu --json $F/signal.json --dump-logits "
            "$F/signal.npy --prompts $F/p >$F/out & "
            "yes '\"Tell me a long story.\"' | head -n 200 >$F/p; "
            "sleep 0.7; kill -%s $!; wait $!; s=$?; rm $F/p; ls $F | grep -c signal; exit $s; }",
            command_folder, build_folder(NULL), signals[i].name);
        assert_int_equal(c.status, signals[i].status);
        assert_string_equal(c.out, "2\n");
        assert_non_null(strstr(c.err, "interrupted\n"));
        command_free(&c);
        json_t *root = json_read_file(path, &err);
        assert_true(json_is_true(json_object_get(root, "interrupted")));
        json_decref(root);
    }
}

/* A row is in a file or pipe as soon as it is measured, and stays when the run is ended. */
static void rows_come_one_by_one(void **state) {
    (void)state;
    struct command c = command_runf(
        "F=%s/rows; { %s/demo1 --device cpu >$F & for i in $(seq 200); do grep -q dynamic $F && "
        "break; sleep 0.1; done; kill -TERM $!; wait $!; s=$?; grep -c 'dynamic\\|static' $F; "
        "exit $s; }",
        command_folder, build_folder(NULL));
    assert_int_equal(c.status, 143);
    assert_in_range(atoi(c.out), 1, 5);
    command_free(&c);
}

/* A long table shows its first and last rows; --json has all. */
static void long_tables_are_abridged(void **state) {
    (void)state;
    struct error err;
    char path[300];
    snprintf(path, sizeof path, "%s/long.json", command_folder);
    struct command c = command_runf("%s/demo4 --device cpu --random 101 --context 4 --max-new 1 "
                                    "--json %s",
                                    build_folder(NULL), path);
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "\n... 21 more rows, which --json has ...\n 61 "));
    command_free(&c);
    json_t *root = json_read_file(path, &err);
    assert_int_equal(json_array_size(json_object_get(root, "requests")), 101);
    json_decref(root);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(damaged_models_are_refused_by_file),
        cmocka_unit_test(a_nan_in_a_weight_is_refused_by_tensor),
        cmocka_unit_test(logits_are_dumped_as_npy),
        cmocka_unit_test(json_holds_the_run),
        cmocka_unit_test(no_file_is_lost),
        cmocka_unit_test(ctrl_c_ends_a_chat),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(what_cannot_be_written_leaves_nothing),
        cmocka_unit_test(signals_end_a_run_in_order),
        cmocka_unit_test(rows_come_one_by_one),
        cmocka_unit_test(long_tables_are_abridged),
    };
    return cmocka_run_group_tests(tests, command_folder_make, command_folder_remove);
}
