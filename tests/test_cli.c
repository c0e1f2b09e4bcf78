/*
 * test_cli - the command line that every demo shares, run as a user would: what each option
 * prints, and for every kind of bad input one line that names the culprit, exit status 2 and, in
 * the sanitizer build, nothing leaked (LeakSanitizer would change the status).
 */
#include "model/files/json.h"
#include "tests/command.h"
#include "tests/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

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
        {"--kernel embed=2 --prompt x", "--kernel embed=2", "one version"},
        {"--kernel linear=3 --prompt x", "--kernel linear=3", "versions 1 and 2"},
        {"--kernel nosuch=0 --prompt x", "\"nosuch\"", "attention_plan have 1 and 2"},
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
        {"--raw --chat", "--raw does nothing with --chat", "or the tables"},
        {"--tokenize f --json g", "--tokenize", "--json"},
        {"--tokenize f --ids", "--ids does nothing with --tokenize", "--chat"},
        {"--tokenize f --seed 0", "--seed", "with --tokenize"},
        {"--tokenize f --chunk 7", "--chunk", "with --tokenize"},
        {"--tokenize f --kernel linear=1", "--kernel", "with --tokenize"},
        {"--tokenize f --quick", "--quick", "it goes with the tables"},
        {"--prompt x --quick", "--quick", "it goes with the tables"},
        {"--cache static", "--cache does nothing with the tables", "--prompt"},
        {"--verify", "--verify does nothing with the tables", "it goes with --prompt"},
        {"--device cpu --tokenize f --cache static", "--cache", "with --tokenize"},
        {"--max-new 3", "--max-new", "--prompt"},
        {"--ids", "--ids", "--prompts"},
        {"--dump-logits f.npy", "--dump-logits", "--prompt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_run_refused(1, cases[i].arguments, cases[i].word1, cases[i].word2);
    assert_run_refused(0, "--cache static --prompt x", "--cache", "make phase1 ");
    assert_run_refused(0, "--chunk 3 --prompt x", "--chunk", "make phase1 ");
    assert_run_refused(7, "--cache static --prompt x", "--cache static", "must be paged");
    static const struct {
        int phase;
        const char *arguments, *word;
    } unused[] = {{9, "--seed 3", "--seed"},           {11, "--top-k 0", "--top-k"},
                  {11, "--kv-type e4m3", "--kv-type"}, {7, "--max-new 3", "--max-new"},
                  {7, "--kv-blocks 9", "--kv-blocks"}, {9, "--block-size 4", "--block-size"},
                  {9, "--chunk 4", "--chunk"},         {10, "--max-running 4", "--max-running"}};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        assert_run_refused(unused[i].phase, unused[i].arguments, unused[i].word,
                           "does nothing with the tables");
}

/* The kernels of the emulation: their names are known, and several can be chosen. */
static void kernels_are_chosen_by_name(void **state) {
    (void)state;
    struct command c =
        command_runf("%s/emu-demo1 --device emu --kernel nosuch=0 --prompt x", build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "Ops with versions: snap_rows, linear, "));
    command_free(&c);
    c = command_runf("%s/emu-demo1 --device emu --kernel linear=1 --kernel silu_mul=9 --prompt x",
                     build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "silu_mul has versions 1 to 2"));
    command_free(&c);
    c = command_runf("%s/emu-demo1 --device emu --kernel attention=2 --prompt x",
                     build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "attention has this version from phase 8 on: make phase8"));
    command_free(&c);
    c = command_runf("%s/emu-demo1 --device gpu --prompt x", build_folder(NULL));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "Built in: cpu, emu. Install nvcc"));
    command_free(&c);
}

static void a_gpu_that_is_not_there_is_an_error(void **state) {
    (void)state;
    struct command smi = command_run("nvidia-smi -L", NULL);
    struct command built = demo_run(1, "--device abacus --prompt x");
    bool gpu_expected = smi.status == 0 || !strstr(built.err, "gpu");
    command_free(&built);
    command_free(&smi);
    if (gpu_expected)
        skip();
    assert_run_refused(1, "--device gpu --prompt x", "no usable GPU", "--device cpu");
    struct command c = command_runf("%s/demo1 --max-new 1 --prompt x", build_folder(NULL));
    assert_int_equal(c.status, 0);
    assert_memory_equal(c.err, "running on the CPU: ", 20);
    command_free(&c);
}

static void a_prompt_longer_than_the_context_is_refused(void **state) {
    (void)state;
    assert_run_refused(1, "--context 8 --prompt 'What is the capital of France?'", "19 tokens",
                       "context is 8");
    assert_run_refused(0, "--context 19 --prompt 'What is the capital of France?'", "19 tokens",
                       "context is 19");
    struct command c = demo_run(1, "--context 20 --ids --prompt 'What is the capital of France?'");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.err, "1 new (context)"));
    command_free(&c);
    assert_run_refused(1, "--raw --prompt ''", "empty", "prompt");
    /* Behind others of a file, it does not keep them from being answered. */
    const char *text = "\"Hello!\"\n\"What is the capital of France?\"\n\"Hello!\"\n";
    c = command_runf("%s/demo1 --device cpu --context 18 --max-new 2 --prompts %s",
                     build_folder(NULL), command_file("long.jsonl", text, strlen(text)));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.out, "request 1: the prompt has 19 tokens"));
    assert_non_null(strstr(c.out, "[2] Hello!\nHello!"));
    assert_non_null(strstr(c.err,
                           "demo: 1 of the requests could not be answered. The first, request "
                           "1: the prompt has 19 tokens"));
    struct command other = command_runf("%s/demo4 --device cpu --context 18 --max-new 2 --prompts "
                                        "%s/long.jsonl",
                                        build_folder(NULL), command_folder);
    assert_int_equal(other.status, 2);
    assert_memory_equal(command_fingerprint(&other), command_fingerprint(&c), 16);
    command_free(&other);
    command_free(&c);
}

static void prompts_print_text_and_a_fingerprint(void **state) {
    (void)state;
    for (int phase = 0; phase < 2; phase++) {
        struct command c = demo_run(phase, "--prompt 'What is the capital of France?'");
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
    struct command c = demo_run(1, "--ids --prompt 'What is the capital of France?'");
    assert_string_equal(c.out, "prompt: 4094 533 267 198 462 304 259 565 292 3076 1103 30 4095 198 "
                               "4094 876 527 568 198\n"
                               "output: 288 565 292 3076 1103 304 474 285 276 13 4095\n");
    command_free(&c);
    c = demo_run(1, "--ids --raw --max-new 2 --prompt 'Once upon a time'");
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
             command_file("messages.json", text, strlen(text)));
    struct command c = demo_run(1, arguments);
    assert_string_equal(c.out, "The capital of Japan is Tokyo.\n");
    command_free(&c);
    text =
        "{\"prompt\": \"What is the capital of France?\"}\n\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 2 + 2?\"}], \"max_new\": 3}";
    snprintf(arguments, sizeof arguments, "--prompts %s",
             command_file("prompts.jsonl", text, strlen(text)));
    c = demo_run(1, arguments);
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
        snprintf(path, sizeof path, "%s/chat.json", command_folder);
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
    snprintf(path, sizeof path, "%s/plain", command_folder);
    struct command c =
        command_runf("cp -r data/model %s && rm %s/tokenizer_config.json", path, path);
    assert_int_equal(c.status, 0);
    command_free(&c);
    for (int raw = 0; raw < 2; raw++) {
        snprintf(arguments, sizeof arguments, "--model %s --max-new 2 --prompt 'Once upon' %s",
                 path, raw ? "--raw" : "");
        c = demo_run(1, arguments);
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
             command_folder, build_folder(NULL));
    struct command c = command_run(line, "Hello!\nHello!\n");
    assert_int_equal(c.status, 0);
    const char *answer = strstr(c.out, "output: "), *next = strstr(answer, "prompt: ");
    assert_memory_equal(next - 3, " 0\n", 3);
    assert_memory_equal(next, "prompt: 4095 198 4094 ", 22);
    command_free(&c);
}

/* A template that leaves out all but the last message: the second turn begins a new sequence, and
 * has the answer that it has alone. */
static void a_turn_whose_beginning_changed_starts_again(void **state) {
    (void)state;
    char line[700];
    snprintf(
        line, sizeof line,
        "m=%s/last; cp -r data/model $m && echo '{%%- for m in messages[-1:] %%}<|im_start|>{{ "
        "m.role }}\n{{ m.content }}<|im_end|>\n{%% endfor %%}<|im_start|>assistant\n' > "
        "$m/chat_template.jinja && %s/demo1 --device cpu --ids --chat --model "
        "$m",
        command_folder, build_folder(NULL));
    struct command c = command_run(line, "Hello!\nHello!\n");
    assert_int_equal(c.status, 0);
    size_t half = strlen(c.out) / 2; /* both turns are the same */
    assert_memory_equal(c.out, "prompt: 4094 ", 13);
    assert_true(half > 40);
    assert_memory_equal(c.out, c.out + half, half);
    command_free(&c);
}

/* A tokenizer that begins every text with a special token, and a template that writes it: there is
 * one of it in either case. */
static void a_template_writes_its_own_first_token(void **state) {
    (void)state;
    for (int raw = 0; raw < 2; raw++) {
        struct command c = command_runf(
            "m=%s/bos%d; cp -r data/model $m && tr '\\n' ' ' <data/model/tokenizer.json | sed "
            "'s/\"post_processor\": {[^}]*}/\"post_processor\": {\"type\": \"TemplateProcessing\", "
            "\"single\": [{\"SpecialToken\": {\"id\": \"<|endoftext|>\", \"type_id\": 0}}, "
            "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": "
            "{\"<|endoftext|>\": {\"id\": \"<|endoftext|>\", \"ids\": [4093], \"tokens\": "
            "[\"<|endoftext|>\"]}}}/' >$m/tokenizer.json && echo '{\"bos_token\": {\"content\": "
            "\"<|endoftext|>\"}}' >$m/tokenizer_config.json && echo '{{ bos_token }}"
            "{{ messages[0].content }}<|im_end|>' >$m/chat_template.jinja && %s/demo1 --device cpu "
            "--model $m --ids --max-new 1 --prompt 'Hello!' %s",
            command_folder, raw, build_folder(NULL), raw ? "--raw" : "");
        assert_int_equal(c.status, 0);
        const char *wanted = raw ? "prompt: 4093 2578 0\n" : "prompt: 4093 2578 0 4095\n";
        assert_memory_equal(c.out, wanted, strlen(wanted));
        command_free(&c);
    }
}

/* A template that cannot be read is an error, unless no prompt goes through it. */
static void a_template_that_is_refused_is_told(void **state) {
    (void)state;
    static const char *const options[] = {"--prompt Hi", "--prompt Hi --raw", "--chat"};
    for (int i = 0; i < 3; i++) {
        struct command c =
            command_runf("m=%s/refused%d; cp -r data/model $m && echo '{%% include 1 %%}' > "
                         "$m/chat_template.jinja "
                         "&& %s/demo1 --device cpu --model $m --max-new 2 %s </dev/null",
                         command_folder, i, build_folder(NULL), options[i]);
        assert_int_equal(c.status, i == 1 ? 0 : 2);
        bool told =
            strstr(c.err, "chat_template.jinja: line 1: the tag {% include %} is not supported");
        assert_int_equal(told, i != 1);
        assert_int_equal(strstr(c.err, "--raw continues prompts") != NULL, i == 0);
        command_free(&c);
    }
}

static void tokenize_prints_one_array_a_line(void **state) {
    (void)state;
    char arguments[400];
    const char *text = "\"Hello, world!\"\n\"\"\n\"<|im_start|>a\"\n";
    snprintf(arguments, sizeof arguments, "--tokenize %s",
             command_file("lines.jsonl", text, strlen(text)));
    struct command c = demo_run(0, arguments);
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

static void verify_compares_with_the_reference(void **state) {
    (void)state;
    if (strcmp(build_folder(NULL), "build/release"))
        skip();
    static const char *const runs[] = {"emu-demo1", "emu-demo11 --kv-type e4m3 --context 9"};
    for (int i = few_cases_do(); i < 2; i++) {
        struct command c = command_runf("%s/%s --device emu --verify --raw --prompt Hi",
                                        build_folder(NULL), runs[i]);
        assert_int_equal(c.status, 0);
        assert_non_null(strstr(c.out, "0 bits differ"));
        command_free(&c);
    }
    assert_run_refused(1, "--verify --prompt x", "--verify", "--device gpu");
    assert_run_refused(1, "--verify --device gpu", "--verify", "--prompt");
    static const char *const useless[] = {"--max-new 3",        "--temperature 0", "--top-k 0",
                                          "--top-p 1",          "--seed 0",        "--ids",
                                          "--dump-logits f.npy"};
    for (size_t i = 0; i < sizeof useless / sizeof *useless; i++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments, "--device emu --verify --prompt x %s", useless[i]);
        assert_run_refused(1, arguments, "does nothing with --verify", "it goes with --prompt");
    }
}

/* The README's first command prints what the README says it prints. */
static void the_readme_prints_what_really_happens(void **state) {
    (void)state;
    struct command c =
        demo_run(1, "--prompt 'Write a short story about a robot who learns to paint.'");
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
    struct command c = demo_run(1, "--help");
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
    c = demo_run(7, "--help");
    assert_non_null(strstr(c.out, "paged (paged)"));
    assert_null(strstr(c.out, "dynamic"));
    command_free(&c);
}

/* The reference keeps weights as mantissas: 2 bytes a parameter, and nothing may come near them
 * again while loading or in a pass. What the program takes before it loads a model, its code and
 * libraries, is not counted. */
static void memory_stays_near_two_bytes_a_parameter(void **state) {
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
             command_file("long.jsonl", prompt, (size_t)n));
    /* A program that is linked with cuBLAS pays for that library; this one is not. */
    struct command c = command_runf("build/release/emu-demo1 --device cpu %s", arguments);
    assert_int_equal(c.status, 0);
    /* 8 layers of keys and values for 1024 positions: what the dynamic cache has grown to. */
    double cache = 8.0 * 2 * 1024 * 2 * (2 * 64 + 1);
    struct command idle = command_runf("build/release/emu-demo1 --help");
    double bytes = (double)(c.max_rss_kb - idle.max_rss_kb) * 1024 - cache;
    print_message("%.2f bytes a parameter\n", bytes / 7607552);
    /* The buffers of a pass are a quarter of so small a model. */
    assert_true(bytes <= 2.9 * 7607552);
    command_free(&idle);
    command_free(&c);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(kernels_are_chosen_by_name),
        cmocka_unit_test(a_gpu_that_is_not_there_is_an_error),
        cmocka_unit_test(a_prompt_longer_than_the_context_is_refused),
        cmocka_unit_test(prompts_print_text_and_a_fingerprint),
        cmocka_unit_test(ids_are_two_lines),
        cmocka_unit_test(messages_and_prompts_files),
        cmocka_unit_test(chat_keeps_its_conversation),
        cmocka_unit_test(a_model_without_a_template_is_told),
        cmocka_unit_test(a_chat_ends_with_its_context),
        cmocka_unit_test(a_turn_that_another_id_ended_gets_its_mark),
        cmocka_unit_test(a_turn_whose_beginning_changed_starts_again),
        cmocka_unit_test(a_template_writes_its_own_first_token),
        cmocka_unit_test(a_template_that_is_refused_is_told),
        cmocka_unit_test(tokenize_prints_one_array_a_line),
        cmocka_unit_test(broken_utf8_still_gets_an_answer),
        cmocka_unit_test(verify_compares_with_the_reference),
        cmocka_unit_test(the_readme_prints_what_really_happens),
        cmocka_unit_test(help_lists_every_option),
        cmocka_unit_test(memory_stays_near_two_bytes_a_parameter),
    };
    return cmocka_run_group_tests(tests, command_folder_make, command_folder_remove);
}
