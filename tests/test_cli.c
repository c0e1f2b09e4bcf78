/*
 * test_cli - the command line that every demo shares, run as a user would: what each option
 * prints, and for every kind of bad input one line that names the culprit, exit status 2 and, in
 * the sanitizer build, nothing leaked (LeakSanitizer would change the status).
 */
#include "model/files/json.h"
#include "tests/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/samebits-cli-XXXXXX";

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

/* Writes folder/name and returns its path (static). */
static const char *write_file(const char *name, const char *content, size_t n) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, n, f), n);
    fclose(f);
    return path;
}

static struct command demo(int phase, const char *arguments) {
    return command_runf("%s/demo%d --device cpu %s", build_folder(NULL), phase, arguments);
}

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* The command must fail with one line on stderr that holds both words, and status 2. */
static void assert_refused(int phase, const char *arguments, const char *word1, const char *word2) {
    struct command c = demo(phase, arguments);
    if (c.status != 2 || count_lines(c.err) != 1 || strncmp(c.err, "demo: ", 6) ||
        !strstr(c.err, word1) || !strstr(c.err, word2))
        fail_msg("demo%d %s: status %d, expected 2 and a line with \"%s\" and \"%s\":\n%s", phase,
                 arguments, c.status, word1, word2, c.err);
    command_free(&c);
}

static void bad_options_are_named(void **state) {
    (void)state;
    static const struct {
        const char *arguments, *word1, *word2;
    } cases[] = {
        {"--max-new 0 --prompt x", "--max-new 0", "from 1"},
        {"--max-new -3 --prompt x", "--max-new -3", "from 1"},
        {"--max-new 4x --prompt x", "--max-new 4x", "whole number"},
        {"--max-new 99999999999 --prompt x", "--max-new", "whole number"},
        {"--temperature -1 --prompt x", "--temperature -1", "from 0"},
        {"--temperature nan --prompt x", "--temperature nan", "number"},
        {"--top-p 1.5 --prompt x", "--top-p 1.5", "to 1"},
        {"--top-k -1 --prompt x", "--top-k -1", "from 0"},
        {"--seed -1 --prompt x", "--seed -1", "whole number"},
        {"--threads 0", "--threads 0", "from 1"},
        {"--chunk 0", "--chunk 0", "from 1"},
        {"--context 1", "--context 1", "from 2"},
        {"--context 5000 --prompt x", "--context 5000", "4096"},
        {"--cache paged --prompt x", "--cache paged", "dynamic or static"},
        {"--device tpu --prompt x", "--device tpu", "cpu"},
        {"--kernel linear --prompt x", "--kernel linear", "OP=N"},
        {"--kernel linear=2 --prompt x", "--kernel linear=2", "one version"},
        {"--kernel nosuch=0 --prompt x", "\"nosuch\"", "attention_plan, which has 1 and 2"},
        {"--kernel attention_plan=1 --kernel nosuch=1 --prompt x", "nosuch=1", "attention_plan"},
        {"--kernel nosuch=1 --kernel attention_plan=1 --prompt x", "nosuch=1", "attention_plan"},
        {"--kernel attention_plan=1 --kernel attention_plan=2 --prompt x",
         "=2: --kernel "
         "attention_plan=1",
         "one for an op"},
        {"--device cuda --prompt x", "--device cuda", "Do you mean gpu?"},
        {"--device gpu0 --prompt x", "--device gpu0", "Choose one of them"},
        {"--nonsense", "--nonsense", "--help"},
        {"--prompt x -abc", "-a: unknown option", "--help"},
        {"--max 3", "--max: ", "short for several"},
        {"--help=3", "--help=3: ", "no value"},
        {"--prompt", "--prompt", "needs a value"},
        {"stray", "stray", "--prompt"},
        {"--prompt x --chat", "--chat", "exclude"},
        {"--raw --chat", "--raw", "template"},
        {"--tokenize f --json g", "--tokenize", "--json"},
        {"--tokenize f --ids", "--ids", "no model"},
        {"--tokenize f --seed 0", "--seed", "no model"},
        {"--device cpu --tokenize f --cache static", "--cache", "no model"},
        {"--max-new 3", "--max-new", "--prompt"},
        {"--ids", "--ids", "or --prompts"},
        {"--dump-logits f.npy", "--dump-logits", "--prompt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(1, cases[i].arguments, cases[i].word1, cases[i].word2);
    assert_refused(0, "--cache static --prompt x", "--cache static", "phase");
    assert_refused(7, "--cache static --prompt x", "--cache static", "must be paged");
    assert_refused(9, "--seed 3", "--seed", "draw no tokens");
    assert_refused(11, "--kv-type e4m3 --top-k 0", "--top-k", "draw no tokens");
}

/* The kernels of the emulation: their names are known, and several can be chosen. */
static void kernels_are_chosen_by_name(void **state) {
    (void)state;
    struct command c =
        command_runf("%s/emu-demo1 --device emu --kernel nosuch=0 --prompt x", build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "Ops with versions: snap_rows, linear, "));
    command_free(&c);
    c = command_runf("%s/emu-demo1 --device emu --kernel linear=1 --kernel rope=9 --prompt x",
                     build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "rope has versions 1 to 2"));
    command_free(&c);
    c = command_runf("%s/emu-demo1 --device emu --kernel attention=2 --prompt x", build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "attention has this version from phase 8 on: make phase8"));
    command_free(&c);
    c = command_runf("%s/emu-demo1 --device gpu --prompt x", build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "Built in: cpu, emu. Install nvcc"));
    command_free(&c);
}

static void bad_files_are_named(void **state) {
    (void)state;
    char arguments[512];
    assert_refused(1, "--model /nosuch --prompt x", "/nosuch", "--model");
    assert_refused(1, "--model README.md --prompt x", "README.md", "folder");
    assert_refused(1, "--model tests --prompt x", "tests/", "tokenizer.json");
    assert_refused(1, "--prompts /nosuch", "/nosuch", "No such file");
    assert_refused(1, "--messages /nosuch", "/nosuch", "No such file");
    assert_refused(1, "--tokenize /nosuch", "/nosuch", "No such file");
    assert_refused(1, "--prompt x --max-new 1 --dump-logits /nosuch/f", "/nosuch/f", "No such");
    assert_refused(1, "--model /nosuch --json /nosuch/f", "/nosuch/f", "cannot write: No such");
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
        {"messages", "[{\"role\": \"king\", \"content\": \"x\"}]", "king"},
        {"messages", "[{\"role\": \"user\", \"content\": \"x\"}", "line 1"},
        {"tokenize", "3", "string"},
        {"tokenize", "\"open", "line 1"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = write_file("bad.json", files[i].content, strlen(files[i].content));
        snprintf(arguments, sizeof arguments, "--%s %s%s", files[i].option, path,
                 strcmp(files[i].option, "tokenize") ? " --max-new 1" : "");
        struct command c = demo(1, arguments);
        if (c.status != 2 || !strstr(c.err, "bad.json") || !strstr(c.err, files[i].word))
            fail_msg("%s with %s: status %d\n%s", arguments, files[i].content, c.status, c.err);
        command_free(&c);
    }
}

static void a_gpu_that_is_not_there_is_an_error(void **state) {
    (void)state;
    struct command smi = command_run("nvidia-smi -L", NULL);
    struct command built = demo(1, "--device abacus --prompt x");
    bool gpu_expected = smi.status == 0 || !strstr(built.err, "gpu");
    command_free(&built);
    command_free(&smi);
    if (gpu_expected)
        skip();
    assert_refused(1, "--device gpu --prompt x", "no usable GPU", "--device cpu");
    struct command c = command_runf("%s/demo1 --max-new 1 --prompt x", build_folder(NULL));
    assert_int_equal(c.status, 0);
    assert_memory_equal(c.err, "running on the CPU: ", 20);
    command_free(&c);
}

static void a_prompt_longer_than_the_context_is_refused(void **state) {
    (void)state;
    assert_refused(1, "--context 8 --prompt 'What is the capital of France?'", "19 tokens",
                   "context is 8");
    assert_refused(0, "--context 19 --prompt 'What is the capital of France?'", "19 tokens",
                   "context is 19");
    struct command c = demo(1, "--context 20 --ids --prompt 'What is the capital of France?'");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.err, "1 new (context)"));
    command_free(&c);
    assert_refused(1, "--raw --prompt ''", "empty", "prompt");
    /* Behind others of a file, it does not keep them from being answered. */
    const char *text = "\"Hello!\"\n\"What is the capital of France?\"\n\"Hello!\"\n";
    c = command_runf("%s/demo1 --device cpu --context 18 --max-new 2 --prompts %s",
                     build_folder(NULL), write_file("long.jsonl", text, strlen(text)));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.out, "request 1: the prompt has 19 tokens"));
    assert_non_null(strstr(c.out, "[2] Hello!\nHello!"));
    assert_non_null(strstr(c.err,
                           "demo: 1 of the requests could not be answered. The first, request "
                           "1: the prompt has 19 tokens"));
    struct command other = command_runf("%s/demo4 --device cpu --context 18 --max-new 2 --prompts "
                                        "%s/long.jsonl",
                                        build_folder(NULL), folder);
    assert_int_equal(other.status, 2);
    assert_memory_equal(command_fingerprint(&other), command_fingerprint(&c), 16);
    command_free(&other);
    command_free(&c);
}

/* A copy of the model folder with one file replaced by its first n bytes. */
static const char *damaged_model(const char *file, long n) {
    static char path[256];
    snprintf(path, sizeof path, "%s/model", folder);
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
        assert_refused(1, arguments, cases[i].file, folder);
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
    assert_refused(1, arguments, "tensor \"", "NaN");
}

static void prompts_print_text_and_a_fingerprint(void **state) {
    (void)state;
    for (int phase = 0; phase < 2; phase++) {
        struct command c = demo(phase, "--prompt 'What is the capital of France?'");
        assert_int_equal(c.status, 0);
        assert_string_equal(c.out, "The capital of France is Paris.\n");
        assert_non_null(strstr(c.err, "19 prompt tokens, 11 new (stop)"));
        const char *fingerprint = command_fingerprint(&c);
        assert_non_null(fingerprint);
        assert_string_equal(fingerprint + 16, "\n"); /* it is the last thing on stderr */
        command_free(&c);
    }
}

static void ids_are_two_lines(void **state) {
    (void)state;
    struct command c = demo(1, "--ids --prompt 'What is the capital of France?'");
    assert_string_equal(c.out, "prompt: 4094 533 267 198 462 304 259 565 292 3076 1103 30 4095 198 "
                               "4094 876 527 568 198\n"
                               "output: 288 565 292 3076 1103 304 474 285 276 13 4095\n");
    command_free(&c);
    c = demo(1, "--ids --raw --max-new 2 --prompt 'Once upon a time'");
    assert_int_equal(strncmp(c.out, "prompt: 562 579 258 456\noutput: ", 32), 0);
    command_free(&c);
}

static void messages_and_prompts_files(void **state) {
    (void)state;
    char arguments[400];
    const char *text = "[{\"role\": \"user\", \"content\": \"Hello!\"}, "
                       "{\"role\": \"assistant\", \"content\": \"Hello! How can I help you?\"}, "
                       "{\"role\": \"user\", \"content\": \"What is the capital of Japan?\"}]";
    snprintf(arguments, sizeof arguments, "--messages %s",
             write_file("messages.json", text, strlen(text)));
    struct command c = demo(1, arguments);
    assert_string_equal(c.out, "The capital of Japan is Tokyo.\n");
    command_free(&c);
    text =
        "{\"prompt\": \"What is the capital of France?\"}\n\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 2 + 2?\"}], \"max_new\": 3}";
    snprintf(arguments, sizeof arguments, "--prompts %s",
             write_file("prompts.jsonl", text, strlen(text)));
    c = demo(1, arguments);
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "The capital of France is Paris.\n"));
    assert_non_null(strstr(c.out, "\n2 +"));
    assert_non_null(strstr(c.err, "3 new (length)"));
    command_free(&c);
}

static void chat_keeps_its_conversation(void **state) {
    (void)state;
    char line[300];
    for (int phase = 0; phase < 2; phase++) {
        snprintf(line, sizeof line, "%s/demo%d --device cpu --chat --max-new 40",
                 build_folder(NULL), phase);
        struct command c = command_run(line, "Hello!\n\nWhat is the capital of Japan?\n");
        assert_int_equal(c.status, 0);
        assert_string_equal(c.out, "Hello! How can I help you?\nThe capital of Japan is Tokyo.\n");
        command_free(&c);
    }
    struct command nul = command_runf(
        "printf 'Hello!\\nHel\\0lo!\\n' | %s/demo1 --device cpu --chat", build_folder(NULL));
    assert_int_equal(nul.status, 2);
    assert_non_null(strstr(nul.err, "demo: stdin: a line has a NUL character"));
    command_free(&nul);
}

/* The context is full in the middle of an answer, or the next question does not fit: in both cases
 * what was said stays said. */
static void a_chat_ends_with_its_context(void **state) {
    (void)state;
    static const int contexts[] = {16, 26};
    for (int i = 0; i < 2; i++) {
        char line[600], path[300];
        struct error err;
        snprintf(path, sizeof path, "%s/chat.json", folder);
        snprintf(line, sizeof line, "%s/demo1 --device cpu --ids --chat --context %d --json %s",
                 build_folder(NULL), contexts[i], path);
        struct command c = command_run(line, "Hello!\nWhat is the capital of Japan?\nHello!\n");
        assert_int_equal(c.status, 0);
        assert_int_equal(count_lines(c.out), 2); /* prompt: and output: of the first turn */
        assert_non_null(strstr(c.err, "is full: the conversation ends here"));
        assert_non_null(command_fingerprint(&c));
        json_t *root = json_read_file(path, &err);
        assert_int_equal(json_array_size(json_object_get(root, "runs")), 1);
        json_decref(root);
        command_free(&c);
    }
    struct command c = command_runf("echo 'What is the capital of Japan?' | %s/demo1 --device cpu "
                                    "--ids --chat --context 16",
                                    build_folder(NULL));
    assert_int_equal(c.status, 2); /* nothing was said */
    assert_string_equal(c.out, "");
    assert_non_null(strstr(c.err, " tokens and needs one more, but the context is 16"));
    command_free(&c);
}

static void a_model_without_a_template_is_told(void **state) {
    (void)state;
    char path[256], arguments[400];
    snprintf(path, sizeof path, "%s/plain", folder);
    struct command c =
        command_runf("cp -r data/model %s && rm %s/tokenizer_config.json", path, path);
    assert_int_equal(c.status, 0);
    command_free(&c);
    for (int raw = 0; raw < 2; raw++) {
        snprintf(arguments, sizeof arguments, "--model %s --max-new 2 --prompt 'Once upon' %s",
                 path, raw ? "--raw" : "");
        c = demo(1, arguments);
        assert_int_equal(c.status, 0);
        assert_int_equal(strstr(c.err, "prompts are continued as they are") != NULL, !raw);
        command_free(&c);
    }
}

/* A model that also stops at "!": its answer has no end mark, and the next turn begins with one. */
static void a_turn_that_another_id_ended_gets_its_mark(void **state) {
    (void)state;
    char line[600];
    snprintf(line, sizeof line,
             "m=%s/stops; cp -r data/model $m && echo '{\"eos_token_id\": [4095, 0]}' > "
             "$m/generation_config.json && %s/demo1 --device cpu --ids --chat --model $m",
             folder, build_folder(NULL));
    struct command c = command_run(line, "Hello!\nHello!\n");
    assert_int_equal(c.status, 0);
    const char *answer = strstr(c.out, "output: "), *next = strstr(answer, "prompt: ");
    assert_memory_equal(next - 3, " 0\n", 3);
    assert_memory_equal(next, "prompt: 4095 198 4094 ", 22);
    command_free(&c);
}

static void logits_are_dumped_as_npy(void **state) {
    (void)state;
    char arguments[400], path[300];
    snprintf(path, sizeof path, "%s/logits.npy", folder);
    snprintf(arguments, sizeof arguments, "--ids --dump-logits %s --prompt 'What is 2 + 2?'", path);
    struct command c = demo(1, arguments);
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

static void tokenize_prints_one_array_a_line(void **state) {
    (void)state;
    char arguments[400];
    const char *text = "\"Hello, world!\"\n\"\"\n\"<|im_start|>a\"\n";
    snprintf(arguments, sizeof arguments, "--tokenize %s",
             write_file("lines.jsonl", text, strlen(text)));
    struct command c = demo(0, arguments);
    assert_int_equal(c.status, 0);
    assert_string_equal(c.out, "[2578, 11, 1089, 0]\n[]\n[4094, 64]\n");
    command_free(&c);
}

static void broken_utf8_still_gets_an_answer(void **state) {
    (void)state;
    struct command c = command_runf(
        "%s/demo1 --device cpu --ids --raw --max-new 1 --prompt \"$(printf 'a\\377\\300b')\"",
        build_folder(NULL));
    assert_int_equal(c.status, 0);
    int ids = 0;
    for (const char *at = strchr(c.out, ':'); *at != '\n'; at++)
        ids += *at == ' ';
    assert_int_equal(ids, 4); /* a, two bytes, b */
    command_free(&c);
}

static void json_holds_the_run(void **state) {
    (void)state;
    char arguments[400], path[300];
    struct error err;
    snprintf(path, sizeof path, "%s/run.json", folder);
    snprintf(arguments, sizeof arguments, "--json %s --prompt 'What is 2 + 2?'", path);
    struct command c = demo(1, arguments);
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
    const char *path = write_file("keep.jsonl", "\"Hi\"\n", 5);
    for (int i = 0; i < 2; i++) {
        snprintf(arguments, sizeof arguments, "--max-new 1 --prompts %s --%s %s/./keep.jsonl", path,
                 options[i], folder);
        assert_refused(1, arguments, options[i], "would overwrite what the first reads");
        assert_holds(path, "\"Hi\"\n");
    }
    snprintf(arguments, sizeof arguments, "--model /nosuch --prompt x --json %s", path);
    assert_refused(1, arguments, "/nosuch", "no such folder");
    assert_holds(path, "\"Hi\"\n");
    memset(old, 'x', sizeof old);
    path = write_file("old.json", old, sizeof old);
    snprintf(arguments, sizeof arguments, "--prompt x --max-new 1 --json %s", path);
    struct command c = demo(1, arguments);
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
    snprintf(path, sizeof path, "%s/chat.json", folder);
    struct command c = command_runf(
        "F=%s; mkfifo $F/in && { %s/demo1 --device cpu --chat --json $F/chat.json <$F/in >$F/out & "
        "exec 3>$F/in; echo 'Hello!' >&3; for i in $(seq 100); do [ -s $F/out ] && break; "
        "sleep 0.1; done; sleep 0.3; kill -INT $!; wait $!; exit $?; }",
        folder, build_folder(NULL));
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
    c = demo(1, "--max-new 1 --json /dev/full --prompt Hello!");
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "demo: /dev/full: cannot write: No space"));
    command_free(&c);
    assert_refused(1, "--ids --max-new 2 --dump-logits /dev/full --prompt 'Hello!'", "/dev/full",
                   "No space");
}

static void verify_compares_with_the_reference(void **state) {
    (void)state;
    if (strcmp(build_folder(NULL), "build/release"))
        skip();
    static const char *const runs[] = {"emu-demo1", "emu-demo11 --kv-type e4m3 --context 9"};
    for (int i = 0; i < 2; i++) {
        struct command c = command_runf("%s/%s --device emu --verify --raw --prompt Hi",
                                        build_folder(NULL), runs[i]);
        assert_int_equal(c.status, 0);
        assert_non_null(strstr(c.out, "0 bits differ"));
        command_free(&c);
    }
    assert_refused(1, "--verify --prompt x", "--verify", "--device gpu");
    assert_refused(1, "--verify --device gpu", "--verify", "--prompt");
    static const char *const useless[] = {"--max-new 3",        "--temperature 0", "--top-k 0",
                                          "--top-p 1",          "--seed 0",        "--ids",
                                          "--dump-logits f.npy"};
    for (size_t i = 0; i < sizeof useless / sizeof *useless; i++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments, "--device emu --verify --prompt x %s", useless[i]);
        assert_refused(1, arguments, "--verify draws a few greedy tokens", "leave out --");
    }
}

/* The README's first command prints what the README says it prints. */
static void the_readme_prints_what_really_happens(void **state) {
    (void)state;
    struct command c = demo(1, "--prompt 'Write a short story about a robot who learns to paint.'");
    struct command readme = command_run("cat README.md", NULL);
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(readme.out, c.out));
    const char *fingerprint = command_fingerprint(&c);
    char line[32];
    snprintf(line, sizeof line, "fingerprint %.16s", fingerprint);
    assert_non_null(strstr(readme.out, line));
    command_free(&readme);
    command_free(&c);
}

static void help_lists_every_option(void **state) {
    (void)state;
    struct command c = demo(1, "--help");
    assert_int_equal(c.status, 0);
    static const char *const options[] = {
        "--model DIR", "--device",    "--threads N", "--prompt TEXT", "--prompts FILE",
        "--messages",  "--chat",      "--raw",       "--max-new N",   "--temperature T",
        "--top-k K",   "--top-p P",   "--seed S",    "--ids",         "--dump-logits FILE.npy",
        "--tokenize",  "--json FILE", "--help",      "--cache",       "--context N"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        assert_non_null(strstr(c.out, options[i]));
    assert_non_null(strstr(c.out, "dynamic or static (dynamic)"));
    command_free(&c);
    c = demo(7, "--help");
    assert_non_null(strstr(c.out, "paged (paged)"));
    assert_null(strstr(c.out, "dynamic"));
    command_free(&c);
}

/* The reference keeps weights as doubles: 8 bytes a parameter, and nothing may come near them
 * again while loading or in a pass. What the program takes before it loads a model, its code and
 * libraries, is not counted. */
static void memory_stays_near_eight_bytes_a_parameter(void **state) {
    (void)state;
    if (strcmp(build_folder(NULL), "build/release"))
        skip(); /* the sanitizers keep shadow memory */
    const char *text = "\"A long prompt: ";
    char prompt[8192], arguments[400];
    int n = snprintf(prompt, sizeof prompt, "%s", text);
    for (int i = 0; i < 60; i++)
        n += snprintf(prompt + n, sizeof prompt - (size_t)n, "the green boat sails over lake %d. ",
                      i);
    n += snprintf(prompt + n, sizeof prompt - (size_t)n, "\"\n");
    snprintf(arguments, sizeof arguments, "--threads 2 --max-new 16 --prompts %s",
             write_file("long.jsonl", prompt, (size_t)n));
    /* A program that is linked with cuBLAS pays for that library; this one is not. */
    struct command c = command_runf("build/release/emu-demo1 --device cpu %s", arguments);
    assert_int_equal(c.status, 0);
    /* 8 layers of keys and values for 1024 positions: what the dynamic cache has grown to. */
    double cache = 8.0 * 2 * 1024 * 2 * (2 * 64 + 1);
    struct command idle = command_runf("build/release/emu-demo1 --help");
    double bytes = (double)(c.max_rss_kb - idle.max_rss_kb) * 1024 - cache;
    print_message("%.2f bytes a parameter\n", bytes / 7607552);
    assert_true(bytes <= 9.1 * 7607552);
    command_free(&idle);
    command_free(&c);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(kernels_are_chosen_by_name),
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(a_gpu_that_is_not_there_is_an_error),
        cmocka_unit_test(a_prompt_longer_than_the_context_is_refused),
        cmocka_unit_test(damaged_models_are_refused_by_file),
        cmocka_unit_test(a_nan_in_a_weight_is_refused_by_tensor),
        cmocka_unit_test(prompts_print_text_and_a_fingerprint),
        cmocka_unit_test(ids_are_two_lines),
        cmocka_unit_test(messages_and_prompts_files),
        cmocka_unit_test(chat_keeps_its_conversation),
        cmocka_unit_test(a_model_without_a_template_is_told),
        cmocka_unit_test(a_chat_ends_with_its_context),
        cmocka_unit_test(a_turn_that_another_id_ended_gets_its_mark),
        cmocka_unit_test(logits_are_dumped_as_npy),
        cmocka_unit_test(tokenize_prints_one_array_a_line),
        cmocka_unit_test(broken_utf8_still_gets_an_answer),
        cmocka_unit_test(json_holds_the_run),
        cmocka_unit_test(no_file_is_lost),
        cmocka_unit_test(ctrl_c_ends_a_chat),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(verify_compares_with_the_reference),
        cmocka_unit_test(the_readme_prints_what_really_happens),
        cmocka_unit_test(help_lists_every_option),
        cmocka_unit_test(memory_stays_near_eight_bytes_a_parameter),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
