/*
 * test_ranks - phase 14: several processes that share a model have the bits of one, and end
 * together, with a line that says why, when one of them is another (test_rank_faults.c: when one
 * dies or hangs).
 *
 * What ranks compute is compared in tests/ranks/worker.c, which this starts. SAMEBITS_BATCHES: how
 * many workloads (200 in make test-slow; a few without).
 */
#include "tests/checkpoint_writer.h"
#include "tests/command.h"
#include "tests/launch_ranks.h"
#include "tests/served.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void must_pass(const char *what, struct command *c) {
    if (c->status)
        fail_msg("%s: status %d\n%s\n%s", what, c->status, c->out, c->err);
    command_free(c);
}

/* ---- the same bits --------------------------------------------------------------------------- */

/* What takes the release build a minute takes the sanitizers six. */
static bool is_slow(void) {
    return strstr(ranks_demo, "asan");
}

static void test_workloads(void **state) {
    (void)state;
    static const int n_ranks[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < sizeof n_ranks / sizeof *n_ranks; i++) {
        struct command c =
            command_runf("SAMEBITS_SEED=%d SAMEBITS_WORKLOADS=%d " MPIRUN "-n %d %s", n_ranks[i],
                         ranks_batches(n_ranks[i] > 4 ? 2
                                       : is_slow()    ? 4
                                                      : 7),
                         n_ranks[i], ranks_worker);
        must_pass("workloads", &c);
    }
}

/* Each rank has some tiles of all sequences. */
static void test_positions(void **state) {
    (void)state;
    char options[200];
    struct command some = command_runf("sed %dq data/prompts/document.jsonl >%s/some.jsonl",
                                       is_slow() ? 3 : 99, command_folder);
    snprintf(options, sizeof options,
             "--device cpu --context-parallel --max-new 9 --chunk 300 --prompts %s/some.jsonl",
             command_folder);
    command_free(&some);
    for (int n = is_slow() ? 3 : 1; n <= (is_slow() ? 3 : 4); n++) {
        struct command c =
            command_runf("SAMEBITS_SEED=%d SAMEBITS_CONTEXT=%d " MPIRUN "-n %d %s", n,
                         getenv("SAMEBITS_BATCHES") ? 20
                         : n == 2                   ? 4
                                                    : 1,
                         n, ranks_worker);
        must_pass("positions over ranks", &c);
    }
    struct command one = command_runf("%s %s", ranks_demo, options);
    struct command three = command_runf(MPIRUN "-n 3 %s %s", ranks_demo, options);
    struct command refused = command_runf(MPIRUN "-n 2 %s %s --block-size 32", ranks_demo, options);
    assert_non_null(command_fingerprint(&one));
    assert_non_null(command_fingerprint(&three));
    assert_memory_equal(command_fingerprint(&one), command_fingerprint(&three), 16);
    assert_non_null(strstr(refused.err, "leave out --block-size"));
    command_free(&one);
    command_free(&three);
    command_free(&refused);
}

/* Caches that are larger than a device's memory: one process refuses them, ranks share them. */
static void test_large_cache(void **state) {
    (void)state;
    if (is_slow())
        skip(); /* these are the release build's programs */
    static const char prompt[] = "{\"prompt\": \"Hi\"}\n";
    const char *file = command_file("hi.jsonl", prompt, sizeof prompt - 1);
    char line[300];
    snprintf(line, sizeof line, "build/release/emu-demo14 --device emu --max-new 2 --prompts %s",
             file);
    struct command with_more = command_runf("%s --kv-blocks 40 --block-size 256", line);
    struct command one =
        command_runf("SAMEBITS_EMU_MEMORY=40000000 %s --kv-blocks 40 --block-size 256", line);
    assert_non_null(command_fingerprint(&with_more));
    assert_int_equal(one.status, 2);
    assert_non_null(strstr(one.err, "a KV pool of 42.3 MB"));
    for (int n = 2; n <= 4; n += 2) {
        struct command shared = command_runf("SAMEBITS_EMU_MEMORY=40000000 %s --kv-blocks %d "
                                             "--ranks %d --context-parallel",
                                             line, 40 / n, n);
        if (shared.status)
            fail_msg("a cache over %d ranks: %s", n, shared.err);
        assert_memory_equal(command_fingerprint(&with_more), command_fingerprint(&shared), 16);
        command_free(&shared);
    }
    command_free(&with_more);
    command_free(&one);
}

static void test_goldens(void **state) {
    (void)state;
    static const int n_ranks[] = {2, 3, 4, 8};
    for (size_t i = 0; i < (getenv("SAMEBITS_BATCHES") ? 4 : 1); i++) {
        struct command c =
            command_runf("SAMEBITS_GOLDENS=1 " MPIRUN "-n %d %s", n_ranks[i], ranks_worker);
        must_pass("goldens", &c);
    }
}

/* As a user starts them: by --ranks, by mpirun, alone. Receipts are the same, too. */
static void test_demo(void **state) {
    (void)state;
    static const char options[] =
        "--device cpu --kv-blocks 12 --max-running 4 --random 5 --mix short --max-new 9 --seed 3";
    struct command alone =
        command_runf("%s %s --receipt %s/alone", ranks_demo, options, command_folder);
    struct command four = command_runf("ASAN_OPTIONS=detect_leaks=0 %s %s --ranks 4 "
                                       "--receipt %s/four",
                                       ranks_demo, options, command_folder);
    struct command three = command_runf(MPIRUN "-n 3 %s %s", ranks_demo, options);
    struct command same = command_runf("cmp %s/alone %s/four", command_folder, command_folder);
    struct command verified = command_runf(MPIRUN "-n 2 %s --device cpu --verify-receipt %s/alone",
                                           ranks_demo, command_folder);
    must_pass("receipts of one process and of ranks", &same);
    must_pass("a receipt that ranks verify", &verified);
    assert_int_equal(alone.status, 0);
    assert_non_null(command_fingerprint(&alone));
    assert_non_null(command_fingerprint(&three));
    assert_non_null(command_fingerprint(&four));
    assert_memory_equal(command_fingerprint(&alone), command_fingerprint(&three), 16);
    assert_memory_equal(command_fingerprint(&alone), command_fingerprint(&four), 16);
    command_free(&alone);
    command_free(&three);
    command_free(&four);
}

/* ---- who must not be among them -------------------------------------------------------------- */

static void expect_refused(const char *line, const char *word) {
    struct command c = command_run(line, NULL);
    if (c.status == 0 || !strstr(c.err, word) || command_fingerprint(&c))
        fail_msg("%s: status %d, expected \"%s\"\n%s\n%s", line, c.status, word, c.out, c.err);
    command_free(&c);
}

static void test_others(void **state) {
    (void)state;
    char line[2000], dir[32];
    static const char run[] = "--device cpu --max-new 3 --prompt Hi";
    snprintf(line, sizeof line, MPIRUN "-n 1 %s %s : -n 1 %s %s --seed 4", ranks_demo, run,
             ranks_demo, run);
    expect_refused(line, "rank 1 has other options than rank 0");
    struct command copied = command_runf("cp %s %s/other && echo >>%s/other", ranks_demo,
                                         command_folder, command_folder); /* as another build */
    must_pass("a copy of the program", &copied);
    snprintf(line, sizeof line, MPIRUN "-n 2 %s %s : -n 1 %s/other %s", ranks_demo, run,
             command_folder, run);
    expect_refused(line, "rank 2 has another program than rank 0");
    snprintf(line, sizeof line, MPIRUN "-n 2 %s %s --ranks 3", ranks_demo, run);
    expect_refused(line, "--ranks 3: mpirun has started 2");
    assert_run_refused(14, "--speculate --prompt x", "--speculate", "make phase13 ");
    snprintf(line, sizeof line, MPIRUN "-n 9 %s %s", ranks_demo, run);
    expect_refused(line, "9 ranks: this model can be shared by 8 at most");
    /* The third rank's folder has a model in which one bit is another. */
    temporary_folder_make(dir);
    snprintf(line, sizeof line,
             "mkdir -p %s/data && cp -r data/model %s/data/ && printf '\\101' | "
             "dd of=%s/data/model/model.safetensors bs=1 seek=1000001 conv=notrunc 2>/dev/null",
             dir, dir, dir);
    struct command made = command_run(line, NULL);
    must_pass("a copy of the model", &made);
    snprintf(line, sizeof line, MPIRUN "-n 2 $PWD/%s %s : -n 1 -wdir %s $PWD/%s %s", ranks_demo,
             run, dir, ranks_demo, run);
    expect_refused(line, "rank 2 has other files of the model than rank 0");
    made = command_runf("rm -r %s/data", dir);
    command_free(&made);
    temporary_folder_remove(dir);
}

/* ---- a server -------------------------------------------------------------------------------- */

static struct served start_server(const char *arguments) {
    return served_start(&(struct served_options){.arguments = arguments, .phase = 14});
}

/* The fingerprint in an answer; NULL: there is none. */
static const char *fingerprint_in(const char *answer) {
    static const char key[] = "\"samebits_fingerprint\"";
    const char *at = strstr(answer, key);
    return at ? strchr(at + sizeof key, '"') : NULL;
}

/* In another process: kills the rank after a while. */
static pid_t kill_later(pid_t victim, int milliseconds) {
    pid_t pid = fork();
    if (pid)
        return pid;
    ranks_pause(milliseconds);
    kill(victim, SIGKILL);
    _exit(0);
}

/* The same answer as from one process; and when a rank dies in an answer, no end of it. */
static void test_server(void **state) {
    (void)state;
    static const char path[] = "/v1/completions";
    static const char short_one[] = "{\"prompt\": \"Once upon a time\", \"max_tokens\": 9, "
                                    "\"temperature\": 0.9, \"seed\": 5, \"stream\": true}";
    static const char long_one[] = "{\"prompt\": \"Once upon a time\", \"max_tokens\": 3000, "
                                   "\"ignore_eos\": true, \"stream\": true}";
    struct served one = start_server("--kv-blocks 400");
    char *alone = served_ask(&one, "POST", path, "", short_one);
    served_end(&one, SIGTERM);
    struct served three = start_server("--kv-blocks 400 --ranks 3 --patience 3");
    char *shared = served_ask(&three, "POST", path, "", short_one);
    assert_non_null(fingerprint_in(alone));
    assert_non_null(fingerprint_in(shared));
    assert_memory_equal(fingerprint_in(alone), fingerprint_in(shared), 18);
    pid_t victim = ranks_process(three.pid, 1);
    assert_true(victim > 0);
    pid_t killer = kill_later(victim, 700);
    char *broken = served_ask(&three, "POST", path, "", long_one);
    assert_non_null(strstr(broken, "data: "));
    assert_null(fingerprint_in(broken));
    assert_null(strstr(broken, "[DONE]"));
    waitpid(killer, NULL, 0);
    assert_int_not_equal(ranks_wait(three.pid, 30), -1);
    free(alone);
    free(shared);
    free(broken);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server),      cmocka_unit_test(test_demo),
        cmocka_unit_test(test_others),      cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_workloads),   cmocka_unit_test(test_positions),
        cmocka_unit_test(test_large_cache),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* as test_goldens */
    return ranks_can_run(argv[0])
               ? cmocka_run_group_tests(tests, command_folder_make, command_folder_remove)
               : 0;
}
