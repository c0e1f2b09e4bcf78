/*
 * test_serve_cli - many requests from the command line (phases 2, 3 and 4), as a user would: the
 * same prompts have one fingerprint in every phase; what cannot be answered, bad options and bad
 * files are named; Ctrl-C ends a run in order. In the sanitizer build nothing is leaked: that would
 * change the exit status.
 */
#include "model/files/json.h"
#include "tests/checkpoint_writer.h"
#include "tests/command.h"
#include "tests/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char folder[32], work[64]; /* work: a file in the folder */

static bool is_release(void) {
    return !strcmp(build_folder(NULL), "build/release");
}

static int make_folder(void **state) {
    (void)state;
    temporary_folder_make(folder);
    snprintf(work, sizeof work, "%s/work.jsonl", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    temporary_folder_remove(folder);
    return 0;
}

static void write_work(const char *content) {
    FILE *f = fopen(work, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static struct command demo_of_work(int phase, const char *arguments) {
    return command_runf("%s/demo%d --device cpu --prompts %s %s", build_folder(NULL), phase, work,
                        arguments);
}

/* ---- one fingerprint --------------------------------------------------------------------------
 */

/* The prompts of data/prompts that do not share a long text, with short answers. Fewer under the
 * sanitizers. And lines of every kind: a text alone, one that draws, one that says null. */
static void write_all_prompts(void) {
    struct command c = command_runf(
        "{ cat data/prompts/[lm]*.jsonl data/prompts/short.jsonl | %s "
        "sed 's/\"max_new\": [0-9]*/\"max_new\": %d/'; echo '\"What is 2 + 2?\"'; "
        "echo '{\"prompt\": \"Tell me a story.\", \"temperature\": 1.5, \"top_k\": 50, "
        "\"top_p\": 0.9, \"seed\": 7, \"max_new\": 4}'; "
        "echo '{\"id\": \"null\", \"prompt\": \"Hello!\", \"messages\": null, \"stop\": []}'; } > "
        "%s",
        is_release() ? "" : "tail -n 10 |", is_release() ? 3 : 2, work);
    assert_int_equal(c.status, 0);
    command_free(&c);
}

static void the_same_prompts_have_one_fingerprint(void **state) {
    (void)state;
    static const struct {
        int phase;
        const char *arguments;
    } runs[] = {{0, ""},
                {1, ""},
                {2, "--cache static"},
                {3, "--max-running 3 --token-budget 20 --chunk 7"},
                {4, ""},
                {4, "--max-running 40 --cache static"},
                {4, "--max-running 5 --token-budget 5"}};
    char first[17] = "";
    size_t step = is_release() && !few_cases_do() ? 1 : 3;
    write_all_prompts();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i += step) {
        struct command c = demo_of_work(runs[i].phase, runs[i].arguments);
        const char *fingerprint = command_fingerprint(&c);
        if (c.status || !fingerprint)
            fail_msg("demo%d %s: status %d\n%s", runs[i].phase, runs[i].arguments, c.status, c.err);
        if (!*first)
            snprintf(first, sizeof first, "%s", fingerprint);
        if (strncmp(first, fingerprint, 16))
            fail_msg("demo%d %s: fingerprint %.16s, phase 0 has %s", runs[i].phase,
                     runs[i].arguments, fingerprint, first);
        command_free(&c);
    }
}

static void the_kernels_have_it_too(void **state) {
    (void)state;
    if (!is_release() || few_cases_do())
        skip(); /* test_ops runs them under the sanitizers; a_seed_fixes_the_answer does, too */
    write_work("{\"prompt\": \"What is 6 * 9?\", \"max_new\": 2}\n"
               "{\"prompt\": \"Hello!\", \"max_new\": 1}\n");
    struct command cpu = demo_of_work(1, "");
    struct command emu =
        command_runf("build/release/emu-demo4 --device emu --prompts %s --chunk 8", work);
    assert_int_equal(emu.status, 0);
    assert_memory_equal(command_fingerprint(&emu), command_fingerprint(&cpu), 16);
    command_free(&cpu);
    command_free(&emu);
}

/* The fingerprint of the run; the caller frees it. */
static char *run_fingerprint(const char *program, const char *arguments) {
    struct command c = command_runf("%s/%s %s", build_folder(NULL), program, arguments);
    const char *fingerprint = command_fingerprint(&c);
    if (c.status || !fingerprint)
        fail_msg("%s %s: status %d\n%s", program, arguments, c.status, c.err);
    char *copy = strndup(fingerprint, 16);
    command_free(&c);
    return copy;
}

static void assert_run(const char *program, const char *arguments, const char *want) {
    char *got = run_fingerprint(program, arguments);
    if (strcmp(got, want))
        fail_msg("%s %s: fingerprint %s instead of %s", program, arguments, got, want);
    free(got);
}

#define DRAWS "\"temperature\": 9, \"max_new\": 2"
#define OTHERS "{\"prompt\": \"a b c\", " DRAWS "}\n"
#define SEEDED "{\"prompt\": \"Hello!\", \"seed\": 5, " DRAWS "}\n"

/* The last of n fingerprints, one per request, that the run of these lines writes. */
static void assert_last_answer(const char *program, const char *list, const char *options,
                               const char *lines, int n, const char *want) {
    char arguments[256], path[64];
    struct error err;
    write_work(lines);
    snprintf(path, sizeof path, "%s/run.json", folder);
    snprintf(arguments, sizeof arguments, "%s --prompts %s --json %s", options, work, path);
    free(run_fingerprint(program, arguments));
    json_t *root = json_read_file(path, &err);
    const json_t *rows = json_object_get(root, list);
    assert_int_equal(json_array_size(rows), n);
    const json_t *row = json_array_get(rows, (size_t)n - 1);
    const char *got = json_string_value(json_object_get(row, "fingerprint"));
    if (strcmp(got, want))
        fail_msg("%s %s: answer %d has fingerprint %s instead of %s", program, options, n - 1, got,
                 want);
    json_decref(root);
}

/* Alone, or behind four others; without a cache, in one padded batch, and in the engine. */
static void a_seed_fixes_the_answer(void **state) {
    (void)state;
    char arguments[128];
    char *alone = run_fingerprint("demo0", "--device cpu --prompt Hello! --seed 5 --temperature "
                                           "9 --max-new 2");
    char *other = run_fingerprint("demo0", "--device cpu --prompt Hello! --seed 6 --temperature "
                                           "9 --max-new 2");
    assert_string_not_equal(alone, other);
    write_work(SEEDED);
    snprintf(arguments, sizeof arguments, "--device cpu --prompts %s", work);
    for (int phase = 0; phase < 5; phase++)
        assert_run((const char *[]){"demo0", "demo1", "demo2", "demo3", "demo4"}[phase], arguments,
                   alone);
    const char *five = OTHERS OTHERS OTHERS OTHERS SEEDED;
    assert_last_answer("demo0", "runs", "--device cpu", five, 5, alone);
    assert_last_answer("demo1", "runs", "--device cpu", five, 5, alone);
    assert_last_answer("demo3", "requests", "--device cpu --max-running 2", five, 5, alone);
    assert_last_answer("demo4", "requests", "--device cpu", five, 5, alone);
    char *batch = run_fingerprint("demo1", arguments);
    assert_run("demo2", arguments, batch);
    if (is_release()) /* the kernels, and only two others, because the emulation is slow */
        assert_last_answer("emu-demo4", "requests", "--device emu --chunk 8", OTHERS OTHERS SEEDED,
                           3, alone);
    free(batch);
    free(alone);
    free(other);
}

/* ---- what the tables say ----------------------------------------------------------------------
 */

/* Runs the demo with --json and returns the rows of "requests", and all of it in *root. status: of
 * the command, 2 when a request cannot be answered. */
static json_t *requests_of(int phase, const char *arguments, int status, json_t **root) {
    char path[64];
    struct error err;
    snprintf(path, sizeof path, "%s/run.json", folder);
    struct command c = command_runf("%s/demo%d --device cpu --json %s %s", build_folder(NULL),
                                    phase, path, arguments);
    if (c.status != status)
        fail_msg("status %d: %s", c.status, c.err);
    command_free(&c);
    *root = json_read_file(path, &err);
    assert_non_null(*root);
    json_t *rows = json_object_get(*root, "requests");
    assert_true(json_is_array(rows));
    return rows;
}

/* Equal requests of a file draw otherwise without a seed; all alike, and as alone, with --seed. */
static void without_a_seed_the_number_of_the_request_counts(void **state) {
    (void)state;
    json_t *root;
    char arguments[128];
    write_work(OTHERS OTHERS OTHERS);
    for (int seeded = 0; seeded < 2; seeded++) {
        snprintf(arguments, sizeof arguments, "--prompts %s %s", work, seeded ? "--seed 0" : "");
        json_t *rows = requests_of(4, arguments, 0, &root);
        const char *a[3];
        for (int i = 0; i < 3; i++)
            a[i] =
                json_string_value(json_object_get(json_array_get(rows, (size_t)i), "fingerprint"));
        for (int i = 0; i < 3; i++)
            assert_int_equal(!strcmp(a[i], a[(i + 1) % 3]), seeded);
        json_decref(root);
    }
}

static void assert_row(const json_t *rows, int i, const char *title, const char *finish,
                       int n_new) {
    const json_t *row = json_array_get(rows, (size_t)i);
    assert_string_equal(json_string_value(json_object_get(row, "prompt")), title);
    assert_string_equal(json_string_value(json_object_get(row, "finish")), finish);
    if (n_new >= 0)
        assert_int_equal(json_integer_value(json_object_get(row, "new")), n_new);
}

static void every_end_is_told(void **state) {
    (void)state;
    char arguments[128];
    json_t *root;
    write_work("{\"id\": \"stops\", \"prompt\": \"What is the capital of France?\"}\n"
               "{\"id\": \"string\", \"prompt\": \"What is the capital of France?\", "
               "\"stop\": [\"is Par\", \"nothing\"]}\n"
               "{\"id\": \"length\", \"prompt\": \"Hello!\", \"max_new\": 3}\n"
               "{\"id\": \"too long\", \"prompt\": \"one two three four five six seven eight nine "
               "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen "
               "twenty thirty forty fifty sixty seventy eighty ninety hundred\"}\n"
               "{\"id\": \"full\", \"prompt\": \"Write a long story about a brave mouse.\"}\n"
               "{\"id\": \"late\", \"prompt\": \"Hello!\", \"max_new\": 3, \"arrival\": 0.5}\n");
    for (int phase = 3; phase <= 4; phase++) {
        snprintf(arguments, sizeof arguments, "--prompts %s --context 40", work);
        json_t *rows = requests_of(phase, arguments, 2, &root);
        assert_int_equal(json_array_size(rows), 6);
        assert_row(rows, 0, "stops", "stop", 11);
        assert_row(rows, 1, "string", "stop string", 8);
        assert_row(rows, 2, "length", "length", 3);
        assert_row(rows, 3, "too long", "error", 0);
        assert_true(json_is_null(json_object_get(json_array_get(rows, 3), "ttft_ms")));
        assert_row(rows, 4, "full", "context", -1);
        assert_row(rows, 5, "late", "length", 3);
        json_decref(root);
    }
    struct command c = demo_of_work(4, "--context 40");
    assert_non_null(strstr(c.out, "request 3: the prompt has "));
    assert_non_null(strstr(c.out, "the context is 40\n"));
    assert_int_equal(c.status, 2);
    assert_non_null(strstr(c.err, "demo: 1 of the requests could not be answered. The first, "
                                  "request 3: the prompt has "));
    assert_non_null(command_fingerprint(&c));
    command_free(&c);
}

/* A request that comes after all others and is refused has no step, but a row in the log. */
static void a_refusal_while_nothing_runs_is_logged(void **state) {
    (void)state;
    char arguments[128];
    json_t *root;
    write_work("{\"prompt\": \"Hello!\", \"max_new\": 2}\n"
               "{\"prompt\": \"What is the capital of France?\", \"max_new\": 2, "
               "\"arrival\": 1}\n");
    snprintf(arguments, sizeof arguments, "--prompts %s --kv-blocks 1", work);
    requests_of(7, arguments, 2, &root);
    const json_t *steps = json_object_get(root, "steps");
    const json_t *last = json_array_get(steps, json_array_size(steps) - 1);
    assert_string_equal(json_string_value(json_object_get(last, "states")), "..");
    json_decref(root);
}

static void random_requests_have_the_lengths_of_their_mix(void **state) {
    (void)state;
    json_t *root, *again, *row;
    size_t i;
    json_t *rows =
        requests_of(4, "--random 5 --mix short --seed 3 --max-new 9 --rate 50", 0, &root);
    json_t *same =
        requests_of(3, "--random 5 --mix short --seed 3 --max-new 9 --rate 50", 0, &again);
    assert_int_equal(json_array_size(rows), 5);
    json_array_foreach(rows, i, row) {
        const json_t *other = json_array_get(same, i);
        assert_row(rows, (int)i, "(random)", "length", -1);
        assert_in_range(json_integer_value(json_object_get(row, "new")), 1, 9);
        assert_in_range(json_integer_value(json_object_get(row, "tokens")), 1, 128);
        assert_true(
            json_equal(json_object_get(row, "fingerprint"), json_object_get(other, "fingerprint")));
    }
    assert_true(
        json_equal(json_object_get(root, "fingerprint"), json_object_get(again, "fingerprint")));
    json_decref(again);
    rows = requests_of(4, "--random 5 --mix short --seed 4 --max-new 9", 0, &again);
    assert_false(
        json_equal(json_object_get(root, "fingerprint"), json_object_get(again, "fingerprint")));
    json_decref(again);
    json_decref(root);
    /* The lengths of ShareGPT, in a context that is too small for them. */
    rows = requests_of(4, "--random 4 --context 16", 0, &root);
    json_array_foreach(rows, i, row) {
        int prompt = (int)json_integer_value(json_object_get(row, "tokens"));
        int new = (int)json_integer_value(json_object_get(row, "new"));
        assert_row(rows, (int)i, "(random)", "length", -1);
        assert_true(prompt <= 8 && new <= 8);
    }
    json_decref(root);
}

/* ---- what is refused --------------------------------------------------------------------------
 */

static void bad_options_are_named(void **state) {
    (void)state;
    static const struct {
        const char *arguments, *word1, *word2;
    } cases[] = {
        {"--max-running 0", "--max-running 0", "from 1"},
        {"--max-running -1", "--max-running -1", "from 1"},
        {"--max-running many", "--max-running many", "whole number"},
        {"--token-budget 0", "--token-budget 0", "from 1"},
        {"--token-budget 1e3", "--token-budget 1e3", "whole number"},
        {"--token-budget 7", "--token-budget 7", "8 requests of --max-running"},
        {"--token-budget 3 --max-running 4", "--token-budget 3", "at least 4"},
        {"--trace t.json", "--trace", "--prompts"},
        {"--trace t.json --prompt x", "--trace", "--prompts"},
        {"--prompts x --trace /nosuch/t.json --random 1", "--random", "exclude"},
        {"--random 0", "--random 0", "from 1"},
        {"--random -3", "--random -3", "from 1"},
        {"--random 1.5", "--random 1.5", "whole number"},
        {"--random 100001", "--random 100001", "to 100000"},
        {"--random 3 --rate -1", "--rate -1", "from 0"},
        {"--random 3 --rate nan", "--rate nan", "number"},
        {"--random 3 --rate 1e-50", "--rate 1e-50", "too close to 0"},
        {"--random 3 --json same --trace same", "--trace and --json", "write same"},
        {"--random 3 --rate 1e-30", "at 1e-30 requests per second", "raise the rate"},
        {"--random 3 --mix long", "--mix long", "sharegpt or short"},
        {"--rate 3", "--rate", "--random"},
        {"--mix short", "--mix", "--random"},
        {"--random 3 --prompt x", "--random", "exclude"},
        {"--random 3 --ids", "--ids", "--prompt"},
        {"--prompts x --dump-logits f.npy", "--dump-logits", "--prompt"},
        {"--rate 0", "--rate", "--random"},
        {"--ids", "--ids", "--prompt, --messages or --chat"},
        {"--max-running 3 --prompt x", "--max-running", "nothing with --prompt"},
        {"--token-budget 30 --chat", "--token-budget", "nothing with --chat"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int phase = is_release() ? 3 : 4; phase <= 4; phase++) /* one code reads them */
            assert_run_refused(phase, cases[i].arguments, cases[i].word1, cases[i].word2);
    assert_run_refused(2, "--max-running 2", "--max-running", "make phase3");
    assert_run_refused(2, "--token-budget 20", "--token-budget", "make phase3");
    assert_run_refused(2, "--prompts x --trace t.json", "--trace", "make phase3");
    assert_run_refused(2, "--random 2", "--random", "make phase3");
    struct command c = demo_run(4, "--help");
    static const char *const options[] = {"--max-running N",   "--token-budget N",
                                          "--trace FILE.json", "--random N",
                                          "--rate R",          "--mix NAME"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        assert_non_null(strstr(c.out, options[i]));
    command_free(&c);
}

static void bad_files_are_named_with_their_line(void **state) {
    (void)state;
    static const struct {
        const char *content, *line, *field;
    } cases[] = {
        {"{\"prompt\": \"x\"}\n{\"prompt\": \"y\"\n", "line 2", "column"},
        {"{\"prompt\": \"x\"}\n\n{\"prompt\": \"y\", \"max_new\": 0}\n", "line 3", "max_new"},
        {"{\"prompt\": \"x\", \"arrival\": -1}\n", "line 1", "arrival"},
        {"{\"prompt\": \"x\", \"id\": \"a\"}\n{\"prompt\": \"y\", \"id\": \"a\"}\n", "line 2",
         "taken"},
        {"{\"prompt\": \"x\", \"stops\": \"y\"}\n", "line 1", "stops: unknown"},
        {"{\"messages\": [{\"role\": 3, \"content\": \"x\"}]}\n", "line 1", "role"},
        {"", "work.jsonl", "no prompts"},
    };
    char arguments[128], where[96];
    snprintf(arguments, sizeof arguments, "--prompts %s", work);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_work(cases[i].content);
        snprintf(where, sizeof where, "%s: %s", work, cases[i].line);
        for (int phase = is_release() ? 2 : 4; phase <= 4; phase++)
            assert_run_refused(phase, arguments, *cases[i].content ? where : work, cases[i].field);
    }
    for (int phase = 2; phase <= 4; phase++)
        assert_run_refused(phase, "--prompts /nosuch.jsonl", "/nosuch.jsonl", "No such file");
    assert_run_refused(4, "--prompts /dev/zero", "/dev/zero: line 1", "more than 16 MiB");
    assert_run_refused(4, "--tokenize /dev/zero", "/dev/zero: line 1", "more than 16 MiB");
    /* What only later phases can do, and what a batch cannot hold. */
    write_work("{\"prompt\": \"x\"}\n{\"id\": \"me\", \"prompt\": \"x\", \"stop\": \"y\"}\n");
    assert_run_refused(2, arguments, "\"me\" has stop", "make phase3");
    write_work("{\"id\": \"me\", \"prompt\": \"x\", \"arrival\": 1}\n");
    assert_run_refused(2, arguments, "\"me\" has an arrival", "make phase3");
    write_work("{\"prompt\": \"x\"}\n{\"id\": \"me\", \"prompt\": \"What is the capital of France "
               "and of Spain?\"}\n");
    snprintf(arguments, sizeof arguments, "--prompts %s --context 16", work);
    assert_run_refused(2, arguments, "\"me\" has ", "the context is 16");
}

/* ---- Ctrl-C -----------------------------------------------------------------------------------
 */

/* Starts the demo with its prompts in a pipe with a name. It reads them when the model is loaded
 * and Ctrl-C is looked after; a moment later it is in the middle of its work, and interrupted. */
static struct command interrupted_demo(int phase, const char *prompts, const char *arguments) {
    return command_runf("mkfifo %s/pipe && { %s/demo%d --device cpu --prompts %s/pipe %s & "
                        "cat %s > %s/pipe; sleep 0.7; kill -INT $!; wait $!; status=$?; "
                        "rm %s/pipe; exit $status; }",
                        folder, build_folder(NULL), phase, folder, arguments, prompts, folder,
                        folder);
}

static void assert_interrupted(const struct command *c, const char *word) {
    const char *last = strstr(c->err, "interrupted\n");
    if (c->status != 130 || !last || strlen(last) != strlen("interrupted\n") ||
        !strstr(c->out, word))
        fail_msg("status %d, expected 130 and \"%s\":\n%s%s", c->status, word, c->out, c->err);
}

/* The page, with a run in which requests were cancelled. */
static void assert_whole_page(const char *path) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    ssize_t n = getdelim(&text, &size, 0, f);
    fclose(f);
    assert_true(n > 9 && !strcmp(text + n - 8, "</html>\n"));
    assert_non_null(strstr(text, "\"finish\":\"cancelled\""));
    free(text);
}

static void ctrl_c_ends_a_padded_batch(void **state) {
    (void)state;
    struct command c = interrupted_demo(2, "data/prompts/long.jsonl", "");
    assert_interrupted(&c, "steps needed");
    assert_non_null(strstr(c.out, "Tell me three short stor..."));
    assert_null(strstr(c.out, "in one batch: 1024 steps")); /* what it takes to the end */
    command_free(&c);
}

static double last_waiting(const json_t *trace) {
    double value = -1;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
        const json_t *counter = json_object_get(json_object_get(event, "args"), "waiting");
        value = counter ? json_number_value(counter) : value;
    }
    return value;
}

static void ctrl_c_ends_a_queue(void **state) {
    (void)state; /* The song has no end of its own. */
    char arguments[200];
    struct error err;
    write_work("{\"id\": \"first\", \"prompt\": \"Hello!\", \"max_new\": 1}\n"
               "{\"id\": \"runs\", \"prompt\": \"la la la la la la la la la la la la\", "
               "\"max_new\": 4000}\n"
               "{\"id\": \"runs, too\", \"prompt\": \"la la la la la la la la la la la la\", "
               "\"max_new\": 4000}\n"
               "{\"id\": \"waits\", \"prompt\": \"Hello!\"}\n"
               "{\"id\": \"comes later\", \"prompt\": \"Hello!\", \"arrival\": 100000}\n");
    for (int phase = 3; phase <= 4; phase++) {
        char trace[48], json[48], html[48];
        snprintf(trace, sizeof trace, "%s/trace.json", folder);
        snprintf(json, sizeof json, "%s/run.json", folder);
        snprintf(html, sizeof html, "%s/run.html", folder);
        snprintf(arguments, sizeof arguments, "--max-running 2 --trace %s --json %s --html %s",
                 trace, json, html);
        struct command c = interrupted_demo(phase, work, arguments);
        assert_interrupted(&c, "cancelled");
        assert_non_null(strstr(c.out, "states"));
        assert_non_null(strstr(c.out, "tok/s"));
        command_free(&c);
        json_t *root = json_read_file(json, &err);
        const json_t *rows = json_object_get(root, "requests");
        assert_row(rows, 0, "first", "length", 1);
        assert_row(rows, 1, "runs", "cancelled", -1);
        assert_row(rows, 4, "comes later", "cancelled", 0);
        assert_true(json_is_true(json_object_get(root, "interrupted")));
        assert_null(json_object_get(root, "fingerprint"));
        json_decref(root);
        root = json_read_file(trace, &err);
        assert_true(last_waiting(root) == 0);
        json_decref(root);
        assert_whole_page(html);
    }
    /* While nobody runs and the next request is far away. */
    write_work("{\"prompt\": \"Hello!\", \"arrival\": 100000}\n");
    struct command c = interrupted_demo(4, work, "");
    assert_interrupted(&c, "cancelled");
    command_free(&c);
}

static void ctrl_c_ends_one_answer_after_the_other(void **state) {
    (void)state;
    struct command c = interrupted_demo(1, "data/prompts/long.jsonl", "");
    assert_interrupted(&c, "[0] Describe the history");
    assert_non_null(strstr(c.err, "new (cancelled)"));
    assert_null(strstr(c.out, "[5] "));
    command_free(&c);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_prompts_have_one_fingerprint),
        cmocka_unit_test(the_kernels_have_it_too),
        cmocka_unit_test(a_seed_fixes_the_answer),
        cmocka_unit_test(without_a_seed_the_number_of_the_request_counts),
        cmocka_unit_test(every_end_is_told),
        cmocka_unit_test(a_refusal_while_nothing_runs_is_logged),
        cmocka_unit_test(random_requests_have_the_lengths_of_their_mix),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(bad_files_are_named_with_their_line),
        cmocka_unit_test(ctrl_c_ends_a_padded_batch),
        cmocka_unit_test(ctrl_c_ends_a_queue),
        cmocka_unit_test(ctrl_c_ends_one_answer_after_the_other),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
