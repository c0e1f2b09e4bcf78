/*
 * test_bad_gpu - a GPU with too little memory, one that is lost in the middle, one that is too old,
 * and none at all: one line that says so, exit status 2, nothing left allocated. The emulated
 * device plays them all (gpu/emu/controls.h), so these tests need no GPU.
 */
#include "gpu/emu/controls.h"
#include "scheduler/generate.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/service.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/checkpoint_writer.h"
#include "tests/command.h"
#include "tests/device.h"
#include "tests/served.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { ECC_ERROR = 214 }; /* cudaErrorECCUncorrectable */

/* The sanitizers look at fewer of the places that the release build tries, each being slow. */
#ifdef __SANITIZE_ADDRESS__
enum { ALL_PLACES = 0, FIRST_PHASE = 1 };
#else
enum { ALL_PLACES = 1, FIRST_PHASE = 0 };
#endif

/* Where all of it takes long, every fourth case. */
static int coarser(void) {
    return ALL_PLACES && !few_cases_do() ? 1 : 4;
}

static char folder[32]; /* a tiny model */

static int make_model(void **state) {
    (void)state;
    static struct load_fixture f;
    fixture_start(&f, TINY_QWEN3);
    writer_write(&f.writer, f.dir, f.json);
    strcpy(folder, f.dir);
    *state = &f;
    return 0;
}

static int remove_model(void **state) {
    fixture_end(*state);
    return 0;
}

/* What one run on the emulated device came to. */
struct outcome {
    bool ok;
    struct error err;
    uint64_t fingerprint;
};

/* A prompt, the longest in two chunks, and a few tokens; a long prompt makes the cache grow. */
enum { SHORT = 5, LONG = 65, NEW = 2 };

static int write_tokens(struct model *model, int n_prompt, struct outcome *o) {
    int32_t ids[LONG];
    for (int i = 0; i < n_prompt; i++)
        ids[i] = i * 5 % 70;
    struct generator g;
    struct sequence s = {0};
    struct kv_cache *cache = NULL;
    struct sampling_options sampling = {.temperature = 1, .top_p = 1, .seed = 3};
    if (generator_start(&g, model, &o->err))
        return -1;
    g.chunk = 40;
    int failed = !(cache = kv_dynamic_new(model, g.context, &o->err)) ||
                 sequence_start(&s, 0, &sampling, &o->err) ||
                 sequence_add_prompt(&s, ids, n_prompt, NEW, &o->err) ||
                 generate(&g, &s, cache, &o->err);
    if (!failed)
        o->fingerprint = fingerprint_value(&s.fingerprint);
    kv_cache_free(cache);
    sequence_end(&s);
    generator_end(&g);
    return failed ? -1 : 0;
}

/* Of linear: 0, the op's choice; 3, which needs scratch memory. */
static int linear_version;

/* Everything that a program does, from open to close. All memory must be back afterwards. */
static struct outcome run(int n_prompt) {
    struct outcome o = {.err = {""}};
    struct model model = {0};
    struct device *dev = emu_ops.open(&(struct device_options){.n_threads = 1}, &o.err);
    if (dev) {
        o.ok = !emu_ops.set_version(dev, "linear", linear_version, &o.err) &&
               !model_load(&model, dev, folder, NULL, &o.err) &&
               !write_tokens(&model, n_prompt, &o);
        model_free(&model);
        emu_ops.close(dev);
    }
    if (emu_memory_used())
        fail_msg("%zu bytes are left on the device after: %s", emu_memory_used(), o.err.text);
    emu_reset();
    return o;
}

static void assert_refused(const struct outcome *o, const char *word1, const char *word2) {
    if (o->ok || strncmp(o->err.text, "emu: ", 5) || !strstr(o->err.text, word1) ||
        !strstr(o->err.text, word2))
        fail_msg("want a failure with \"%s\" and \"%s\", got: %s", word1, word2,
                 o->ok ? "success" : o->err.text);
}

/* ---- one process ----------------------------------------------------------------------------- */

/* Loses the device at every stride-th call of the runtime, and at each of the last ones. What is
 * still done when the last token has been drawn is giving memory back, and only there a loss may go
 * unnoticed. */
static void lose_device(int n_prompt, long stride, long last) {
    enum { ENOUGH = 8 };
    long before = emu_calls(), n_lost = 0, n_unharmed = 0;
    struct outcome good = run(n_prompt);
    long n_calls = emu_calls() - before, step;
    assert_true(good.ok);
    for (long n = 1; n <= n_calls && n_unharmed < ENOUGH; n += step) {
        step = n_calls - n > last ? stride : 1;
        emu_lose_device_at((int)n, ECC_ERROR);
        struct outcome o = run(n_prompt);
        n_lost += !o.ok;
        n_unharmed += o.ok;
        if (n_unharmed)
            assert_true(o.ok && o.fingerprint == good.fingerprint);
        else
            assert_refused(&o, "", "--device cpu");
    }
    print_message("%ld calls: lost at %ld of them, and at %ld more when all was done\n", n_calls,
                  n_lost, n_unharmed);
    assert_true(n_lost > 10 && n_unharmed > 0);
}

static void the_device_is_lost_at_any_call(void **state) {
    (void)state;
    lose_device(SHORT, 3 * coarser(), 100 / coarser());
    lose_device(LONG, 23, 0);
}

/* ---- a service ------------------------------------------------------------------------------- */

enum { N_ASKED = 3 };

/* A request to a service and what it was told in the end. */
struct asked {
    struct ticket ticket; /* first */
    struct service *service;
    int32_t prompt[SHORT];
    enum finish finish;
    struct error why;
    uint64_t fingerprint;
    int n_done;
    bool was_first; /* told of a failure before service_stopping knew */
};

static void drew(struct ticket *t, const struct answer *a) {
    (void)t, (void)a;
}

static void done(struct ticket *t, const struct answer *a) {
    struct asked *q = (struct asked *)t;
    struct error why;
    q->n_done++;
    q->finish = a->sequence.finish;
    q->why = a->error;
    if (q->finish == FINISH_LENGTH)
        q->fingerprint = fingerprint_value(&a->sequence.fingerprint);
    else
        q->was_first = !service_stopping(q->service, &why) || strcmp(why.text, a->error.text) != 0;
}

static void ask(struct asked *q, struct service *s, int number) {
    struct ticket *tickets[] = {&q->ticket};
    *q = (struct asked){.ticket = {.n_logprobs = -1, .drew = drew, .done = done}, .service = s};
    for (int i = 0; i < SHORT; i++)
        q->prompt[i] = (i * 5 + number) % 70;
    q->ticket.origin = &q->ticket;
    q->ticket.request = (struct request){.prompt = q->prompt,
                                         .n_prompt = SHORT - number,
                                         .max_new = NEW + number,
                                         .sampling = {.top_p = 1},
                                         .ignore_stop = true};
    if (service_submit(s, tickets, 1) != SERVICE_TAKEN) { /* the device is lost already */
        q->n_done = 1;
        q->finish = FINISH_ERROR;
        service_stopping(s, &q->why);
    }
}

/* Serves N_ASKED requests on an emulated device that is lost at a call. Returns whether the service
 * failed, with err set. */
static bool serve(struct model *model, int at, struct asked asked[N_ASKED], struct error *err) {
    struct kv_pool_options options = {.block_size = 4, .n_blocks = 12};
    struct paged_options paged = {PREEMPT_RECOMPUTE, true};
    struct paged_memory memory = {0};
    struct kv_pool pool = {0};
    struct generator g;
    struct service *s = NULL;
    struct service_options how = {
        .scheduler = {2, 16, 8, true}, .memory = &memory, .max_waiting = N_ASKED};
    bool failed = generator_start(&g, model, err) || kv_pool_start(&pool, model, &options, err);
    g.fused = true;
    paged_memory_start(&memory, &pool, &paged);
    emu_lose_device_at(at, ECC_ERROR);
    if (!failed && (s = service_start(&g, &how, err))) {
        for (int i = 0; i < N_ASKED; i++)
            ask(&asked[i], s, i);
        service_drain(s, 1000);
        failed = service_stop(s, err);
    }
    failed = failed || !s;
    service_free(s);
    paged_memory_end(&memory);
    kv_pool_end(&pool);
    generator_end(&g);
    return failed;
}

/* Everybody gets a whole answer, or the reason; nobody waits, and nothing is left allocated. */
static int serve_and_lose(int at, const struct asked good[N_ASKED], struct asked asked[N_ASKED]) {
    struct error err = {""};
    struct model model = {0};
    struct device *dev = emu_ops.open(&(struct device_options){.n_threads = 1}, &err);
    int n_whole = 0;
    assert_non_null(dev);
    assert_int_equal(model_load(&model, dev, folder, NULL, &err), 0);
    memset(asked, 0, sizeof *asked * N_ASKED);
    bool failed = serve(&model, at, asked, &err);
    for (int i = 0; i < N_ASKED; i++) {
        bool whole = asked[i].finish == FINISH_LENGTH;
        n_whole += whole;
        if (asked[i].n_done > 1 || (asked[i].n_done && !whole && !strstr(asked[i].why.text, "ECC")))
            fail_msg("lost at call %d, request %d: done %d times, %s, %s", at, i, asked[i].n_done,
                     finish_name(asked[i].finish), asked[i].why.text);
        assert_false(asked[i].was_first);
        if (whole && good)
            assert_true(asked[i].fingerprint == good[i].fingerprint);
    }
    if (failed ? !strstr(err.text, "ECC") : n_whole < N_ASKED)
        fail_msg("lost at call %d: %d whole answers, %s", at, n_whole,
                 failed ? err.text : "no end");
    model_free(&model);
    emu_ops.close(dev);
    assert_int_equal(emu_memory_used(), 0);
    emu_reset();
    return n_whole;
}

static void the_device_is_lost_while_serving(void **state) {
    (void)state;
    static struct asked good[N_ASKED], asked[N_ASKED];
    int n_runs = 0, n_partly = 0, n_whole = 0;
    assert_int_equal(serve_and_lose(0, NULL, good), N_ASKED);
    for (int at = 1; n_whole < N_ASKED; at += 7 * coarser(), n_runs++) {
        n_whole = serve_and_lose(at, good, asked);
        n_partly += n_whole && n_whole < N_ASKED;
    }
    print_message("lost at %d calls, at %d of them with some answers complete\n", n_runs, n_partly);
    assert_true(n_runs > 10 && n_partly > 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What memory may be too little for, as messages name it. */
static const char *const purposes[] = {"weights",          "rotary tables", "the KV cache",
                                       "the forward pass", "linear",        "sample"};

/* Device memory from none to enough. Marks the purposes for which it ran out. */
static void take_memory(int n_prompt, size_t step, bool seen[COUNT(purposes)]) {
    struct outcome good = run(n_prompt), o = {.ok = false};
    int n_limits = 0;
    for (size_t limit = 0; !o.ok; limit += step, n_limits++) {
        emu_set_memory_limit(limit);
        o = run(n_prompt);
        for (size_t i = 0; i < COUNT(purposes); i++)
            seen[i] = seen[i] || strstr(o.err.text, purposes[i]);
        if (!o.ok)
            assert_refused(&o, "memory", "--device cpu");
    }
    assert_true(o.fingerprint == good.fingerprint);
    print_message("%d sizes of memory\n", n_limits);
}

static void memory_runs_out_anywhere(void **state) {
    (void)state;
    bool seen[COUNT(purposes)] = {false};
    linear_version = 3;
    take_memory(SHORT, 256, seen);
    take_memory(LONG, 2048 * coarser(), seen);
    linear_version = 0;
    for (size_t i = 0; i < COUNT(purposes); i++)
        if (!seen[i])
            fail_msg("memory never ran out for %s", purposes[i]);
}

static void gpus_that_cannot_be_used_are_refused(void **state) {
    (void)state;
    struct outcome o;
    emu_set_capability(0, 80);
    o = run(SHORT);
    assert_refused(&o, "no usable GPU", "no device");
    emu_set_capability(70, 70);
    o = run(SHORT);
    assert_refused(&o, "too old", "7.0");
    emu_set_capability(80, 90);
    o = run(SHORT);
    assert_refused(&o, "no kernels for this GPU", "CUDA_ARCH=sm_80");
}

/* 7.5 has no such tensor cores; kernels built for 7.5 cannot use those of a newer GPU. */
static void older_gpus_give_the_same_bits(void **state) {
    (void)state;
    struct outcome good = run(SHORT);
    static const int capabilities[][2] = {{75, 75}, {90, 75}, {80, 80}};
    for (size_t i = 0; i < COUNT(capabilities); i++) {
        emu_set_capability(capabilities[i][0], capabilities[i][1]);
        struct outcome o = run(SHORT);
        if (!o.ok || o.fingerprint != good.fingerprint)
            fail_msg("%d, built for %d: fingerprint %016" PRIx64 ", want %016" PRIx64 " %s",
                     capabilities[i][0], capabilities[i][1], o.fingerprint, good.fingerprint,
                     o.err.text);
    }
}

/* ---- the demos ------------------------------------------------------------------------------- */

/* The demo on an emulated device with this environment must fail with one line and status 2. */
static void assert_demo_refused(int phase, const char *environment, const char *arguments,
                                const char *word) {
    static struct command c; /* fail_msg does not return, and what it shows is no leak */
    c = command_runf("%s %s/emu-demo%d --device emu --max-new 2 --prompt Hi %s", environment,
                     build_folder(NULL), phase, arguments);
    const char *newline = strchr(c.err, '\n');
    if (c.status != 2 || !newline || newline[1] || strncmp(c.err, "demo: emu: ", 11) ||
        !strstr(c.err, word))
        fail_msg("%s emu-demo%d %s: status %d, expected 2 and a line with \"%s\":\n%s", environment,
                 phase, arguments, c.status, word, c.err);
    command_free(&c);
}

static void demos_end_with_one_line(void **state) {
    (void)state;
    static const struct {
        const char *environment, *word;
    } cases[] = {
        {"SAMEBITS_EMU_CAPABILITY=0", "no usable GPU here (no device)"},
        {"SAMEBITS_EMU_CAPABILITY=70", "too old"},
        {"SAMEBITS_EMU_CAPABILITY=86 SAMEBITS_EMU_BUILT_FOR=90", "CUDA_ARCH=sm_86"},
        {"SAMEBITS_EMU_MEMORY=0", "memory"},
        {"SAMEBITS_EMU_MEMORY=9000000", "not enough memory for weights"},
        {"SAMEBITS_EMU_LOSE_AT=1", "uncorrectable ECC error"},
        {"SAMEBITS_EMU_LOSE_AT=300", "uncorrectable ECC error"},
        {"SAMEBITS_EMU_LOSE_AT=800", "uncorrectable ECC error"},
    };
    for (int phase = FIRST_PHASE; phase <= 1; phase++)
        for (size_t i = 0; i < COUNT(cases); i++)
            if (!few_cases_do() || (int)i % 2 == phase) /* each with one of the phases */
                assert_demo_refused(phase, cases[i].environment, "", cases[i].word);
    assert_demo_refused(0, "SAMEBITS_EMU_MEMORY=15400000", "", "the forward pass");
    assert_demo_refused(1, "SAMEBITS_EMU_MEMORY=20000000", "--cache static", "the KV cache");
}

/* What a test of a server holds; end_told gives it back also if the test fails. */
static struct {
    struct served server;
    int fds[3]; /* 0: none */
    char *streamed, *answer, *health, *log;
} told;

static int end_told(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++)
        if (told.fds[i] > 0)
            close(told.fds[i]);
    if (told.server.pid) {
        kill(told.server.pid, SIGKILL);
        waitpid(told.server.pid, NULL, 0);
    }
    unlink(told.server.log);
    free(told.streamed);
    free(told.answer);
    free(told.health);
    free(told.log);
    return 0;
}

/* A stream and an answer in one piece, until the device is lost: both end with the reason, neither
 * as if it were complete, and so does the server. Who has read such an end finds the server down,
 * or its health bad. */
static void a_server_tells_its_clients(void **state) {
    (void)state;
    static const char path[] = "/v1/completions",
                      fields[] = "\"max_tokens\":3000,\"ignore_eos\":true";
    char stream[200], whole[200];
    int status, *fds = told.fds;
    told.server = served_start(
        &(struct served_options){.arguments = "--kv-blocks 400 --max-running 2", .lose_at = 4200});
    for (int i = 0; i < 2; i++)
        fds[i] = served_connect(&told.server);
    snprintf(stream, sizeof stream, "{\"prompt\":\"a\",%s,\"stream\":true}", fields);
    snprintf(whole, sizeof whole, "{\"prompt\":\"a\",%s}", fields);
    assert_true(served_post(fds[0], "POST", path, "", stream));
    assert_true(served_post(fds[1], "POST", path, "", whole));
    const char *streamed = told.streamed = served_read(fds[0]);
    if ((fds[2] = served_connect(&told.server)) > 0) { /* it ends soon */
        served_post(fds[2], "GET", "/health", "", "");
        told.health = served_read(fds[2]);
    }
    const char *answer = told.answer = served_read(fds[1]), *health = told.health;
    if (!strstr(streamed, "\"text\":") || !strstr(streamed, "\ndata: {\"error\":") ||
        !strstr(streamed, "uncorrectable ECC error") || strstr(streamed, "[DONE]") ||
        strstr(streamed, "samebits_fingerprint"))
        fail_msg("the stream ends as %s", streamed + strlen(streamed) / 2);
    if (served_status(answer) != 500 || !strstr(answer, "uncorrectable ECC error"))
        fail_msg("the answer is %s", answer);
    if (health && *health && (served_status(health) != 503 || !strstr(health, "ECC error")))
        fail_msg("its health is %s", health);
    assert_int_equal(waitpid(told.server.pid, &status, 0), told.server.pid);
    told.server.pid = 0;
    told.log = served_log(&told.server);
    const char *line = strstr(told.log, "demo: emu: ");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 2 || !line || strchr(line, '\n')[1])
        fail_msg("status %x: %s", (unsigned)status, told.log);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_is_lost_at_any_call),
        cmocka_unit_test(the_device_is_lost_while_serving),
        cmocka_unit_test(memory_runs_out_anywhere),
        cmocka_unit_test(gpus_that_cannot_be_used_are_refused),
        cmocka_unit_test(older_gpus_give_the_same_bits),
        cmocka_unit_test(demos_end_with_one_line),
        cmocka_unit_test_teardown(a_server_tells_its_clients, end_told),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
