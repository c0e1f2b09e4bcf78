/*
 * test_bad_gpu - a GPU with too little memory, one that is lost in the middle, one that is too old,
 * and none at all: one line that says so, exit status 2, nothing left allocated. The emulated
 * device plays them all (gpu/emu/controls.h), so these tests need no GPU.
 */
#include "gpu/emu/controls.h"
#include "scheduler/generate.h"
#include "scheduler/kv_contiguous.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/checkpoint_writer.h"
#include "tests/command.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { ECC_ERROR = 214 }; /* cudaErrorECCUncorrectable */

/* The sanitizers look at fewer of the places that the release build tries, each being slow. */
#ifdef __SANITIZE_ADDRESS__
enum { COARSER = 4, FIRST_PHASE = 1 };
#else
enum { COARSER = 1, FIRST_PHASE = 0 };
#endif

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
    lose_device(SHORT, 3 * COARSER, 100 / COARSER);
    lose_device(LONG, 23, 0);
}

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
    take_memory(LONG, 2048 * COARSER, seen);
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
    struct command c = command_runf("%s %s/emu-demo%d --device emu --max-new 2 --prompt Hi %s",
                                    environment, build_folder(NULL), phase, arguments);
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
            assert_demo_refused(phase, cases[i].environment, "", cases[i].word);
    assert_demo_refused(0, "SAMEBITS_EMU_MEMORY=15400000", "", "the forward pass");
    assert_demo_refused(1, "SAMEBITS_EMU_MEMORY=20000000", "--cache static", "the KV cache");
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_is_lost_at_any_call),
        cmocka_unit_test(memory_runs_out_anywhere),
        cmocka_unit_test(gpus_that_cannot_be_used_are_refused),
        cmocka_unit_test(older_gpus_give_the_same_bits),
        cmocka_unit_test(demos_end_with_one_line),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
