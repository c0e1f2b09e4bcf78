/*
 * test_ranks - phase 14: several processes that share a model have the bits of one, and end
 * together, with a line that says why, when one of them dies, hangs, or is another.
 *
 * What ranks compute is compared in tests/ranks/worker.c, which this starts. SAMEBITS_BATCHES: how
 * many workloads, and how many faults of each kind (200 in make test-slow; a few without).
 * SAMEBITS_SEED: other faults.
 */
#include "tests/checkpoint_writer.h"
#include "tests/command.h"
#include "tests/random.h"
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

/* Only loopback and shared memory; the sanitizer would report what MPI keeps. */
#define MPIRUN                                                                                     \
    "ASAN_OPTIONS=detect_leaks=0 mpirun --allow-run-as-root --oversubscribe --bind-to none"        \
    " --mca pml ob1 --mca btl self,vader --mca oob_tcp_if_include lo "

static char demo[128], worker[128];

/* How many where a few are enough, unless the environment says so. */
static int batches(int few) {
    const char *asked = getenv("SAMEBITS_BATCHES");
    return asked ? atoi(asked) : few;
}

static void must_pass(const char *what, struct command *c) {
    if (c->status)
        fail_msg("%s: status %d\n%s\n%s", what, c->status, c->out, c->err);
    command_free(c);
}

/* ---- the same bits --------------------------------------------------------------------------- */

static void test_workloads(void **state) {
    (void)state;
    static const int n_ranks[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < sizeof n_ranks / sizeof *n_ranks; i++) {
        struct command c =
            command_runf("SAMEBITS_SEED=%d SAMEBITS_WORKLOADS=%d " MPIRUN "-n %d %s", n_ranks[i],
                         batches(n_ranks[i] > 4 ? 2 : 7), n_ranks[i], worker);
        must_pass("workloads", &c);
    }
}

/* Each rank has some tiles of all sequences. */
static void test_positions(void **state) {
    (void)state;
    static const char options[] = "--device cpu --context-parallel --max-new 9 --chunk 300 "
                                  "--prompts data/prompts/document.jsonl";
    for (int n = 1; n <= 4; n++) {
        struct command c =
            command_runf("SAMEBITS_SEED=%d SAMEBITS_CONTEXT=%d " MPIRUN "-n %d %s", n,
                         getenv("SAMEBITS_BATCHES") ? 20
                         : n == 2                   ? 4
                                                    : 1,
                         n, worker);
        must_pass("positions over ranks", &c);
    }
    struct command one = command_runf("%s %s", demo, options);
    struct command three = command_runf(MPIRUN "-n 3 %s %s", demo, options);
    struct command refused = command_runf(MPIRUN "-n 2 %s %s --block-size 32", demo, options);
    assert_non_null(command_fingerprint(&one));
    assert_non_null(command_fingerprint(&three));
    assert_memory_equal(command_fingerprint(&one), command_fingerprint(&three), 16);
    assert_non_null(strstr(refused.err, "leave out --block-size"));
    command_free(&one);
    command_free(&three);
    command_free(&refused);
}

static void test_goldens(void **state) {
    (void)state;
    static const int n_ranks[] = {2, 3, 4, 8};
    for (size_t i = 0; i < (getenv("SAMEBITS_BATCHES") ? 4 : 1); i++) {
        struct command c =
            command_runf("SAMEBITS_GOLDENS=1 " MPIRUN "-n %d %s", n_ranks[i], worker);
        must_pass("goldens", &c);
    }
}

/* As a user starts them: by --ranks, by mpirun, alone. */
static void test_demo(void **state) {
    (void)state;
    static const char options[] =
        "--device cpu --kv-blocks 12 --max-running 4 --random 5 --mix short --max-new 9 --seed 3";
    struct command alone = command_runf("%s %s", demo, options);
    struct command four =
        command_runf("ASAN_OPTIONS=detect_leaks=0 %s %s --ranks 4", demo, options);
    struct command three = command_runf(MPIRUN "-n 3 %s %s", demo, options);
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
    snprintf(line, sizeof line, MPIRUN "-n 1 %s %s : -n 1 %s %s --seed 4", demo, run, demo, run);
    expect_refused(line, "rank 1 has other options than rank 0");
    struct command copied = command_runf("cp %s %s/other && echo >>%s/other", demo, command_folder,
                                         command_folder); /* as another build has another hash */
    must_pass("a copy of the program", &copied);
    snprintf(line, sizeof line, MPIRUN "-n 2 %s %s : -n 1 %s/other %s", demo, run, command_folder,
             run);
    expect_refused(line, "rank 2 has another program than rank 0");
    snprintf(line, sizeof line, MPIRUN "-n 2 %s %s --ranks 3", demo, run);
    expect_refused(line, "--ranks 3: mpirun has started 2");
    snprintf(line, sizeof line, MPIRUN "-n 9 %s %s", demo, run);
    expect_refused(line, "9 ranks: this model can be shared by 8 at most");
    /* The third rank's folder has a model in which one bit is another. */
    temporary_folder_make(dir);
    snprintf(line, sizeof line,
             "mkdir -p %s/data && cp -r data/model %s/data/ && printf '\\101' | "
             "dd of=%s/data/model/model.safetensors bs=1 seek=1000001 conv=notrunc 2>/dev/null",
             dir, dir, dir);
    struct command made = command_run(line, NULL);
    must_pass("a copy of the model", &made);
    snprintf(line, sizeof line, MPIRUN "-n 2 $PWD/%s %s : -n 1 -wdir %s $PWD/%s %s", demo, run, dir,
             demo, run);
    expect_refused(line, "rank 2 has other files of the model than rank 0");
    made = command_runf("rm -r %s/data", dir);
    command_free(&made);
    temporary_folder_remove(dir);
}

/* ---- one that dies or hangs ------------------------------------------------------------------ */

static void pause_for(int milliseconds) {
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
}

/* The process of a rank among the children of mpirun; -1: not there. */
static pid_t find_rank(pid_t mpirun, int rank) {
    static char text[1 << 17];
    char path[300], wanted[40];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)mpirun, (int)mpirun);
    FILE *f = fopen(path, "r");
    pid_t found = -1;
    snprintf(wanted, sizeof wanted, "OMPI_COMM_WORLD_RANK=%d", rank);
    for (int pid; f && found < 0 && fscanf(f, "%d", &pid) == 1;) {
        snprintf(path, sizeof path, "/proc/%d/environ", pid);
        FILE *e = fopen(path, "r");
        size_t n = e ? fread(text, 1, sizeof text, e) : 0;
        if (e)
            fclose(e);
        if (memmem(text, n, wanted, strlen(wanted) + 1))
            found = pid;
    }
    if (f)
        fclose(f);
    return found;
}

static void redirect(const char *name, int fd) {
    char path[64];
    snprintf(path, sizeof path, "%s/%s", command_folder, name);
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(file, fd);
    close(file);
}

static pid_t start(const char *json) {
    pid_t pid = fork();
    if (pid)
        return pid;
    redirect("out", 1);
    redirect("err", 2);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    execl(demo, demo, "--ranks", "3", "--patience", "2", "--device", "cpu", "--max-running", "3",
          "--prompts", "data/prompts/mixed.jsonl", "--json", json, (char *)NULL);
    _exit(127);
}

/* Waits; -1 when that takes more than so many seconds. */
static int wait_for_end(pid_t pid, int seconds) {
    int status = 0;
    for (int i = 0; i < seconds * 50; i++, pause_for(20))
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    kill(pid, SIGTERM);
    return -1;
}

/* A fault at a random moment: of loading, or of the answers. Either all end soon, with a line that
 * names a rank, and nothing is written but what was shown before, or it came too late: false. */
static bool one_fault(int signal, struct random *r) {
    char json[64], err_path[64], line[400];
    int rank = random_int(r, 0, 2);
    snprintf(json, sizeof json, "%s/json", command_folder);
    snprintf(err_path, sizeof err_path, "%s/err", command_folder);
    unlink(json);
    pid_t mpirun = start(json), victim = -1;
    for (int i = 0; i < 500 && victim < 0; i++, pause_for(10))
        victim = find_rank(mpirun, rank);
    pause_for(random_int(r, 0, 1500));
    if (victim > 0)
        kill(victim, signal);
    int status = wait_for_end(mpirun, 60);
    snprintf(line, sizeof line, "cat %s", err_path);
    struct command told = command_run(line, NULL);
    if (status < 0)
        fail_msg("signal %d for rank %d: nothing ends\n%s", signal, rank, told.out);
    if (status == 0) {
        assert_non_null(strstr(told.out, "fingerprint 1693d29f628f8640"));
        assert_int_equal(access(json, F_OK), 0);
    } else if (!strstr(told.out, "rank ") && !strstr(told.out, "Process name")) {
        fail_msg("signal %d for rank %d: nobody is named\n%s", signal, rank, told.out);
    } else if (strstr(told.out, "fingerprint") && !strstr(told.out, "1693d29f628f8640")) {
        fail_msg("signal %d for rank %d: another fingerprint\n%s", signal, rank, told.out);
    }
    command_free(&told);
    return status != 0;
}

static void test_faults(void **state) {
    (void)state;
    struct random r = {getenv("SAMEBITS_SEED") ? (uint64_t)atoi(getenv("SAMEBITS_SEED")) : 14};
    int n = batches(2), n_ended = 0;
    for (int i = 0; i < n; i++)
        n_ended += one_fault(SIGKILL, &r) + one_fault(SIGSTOP, &r);
    printf("%d faults, %d of them in time\n", 2 * n, n_ended);
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
    pause_for(milliseconds);
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
    pid_t victim = find_rank(three.pid, 1);
    assert_true(victim > 0);
    pid_t killer = kill_later(victim, 700);
    char *broken = served_ask(&three, "POST", path, "", long_one);
    assert_non_null(strstr(broken, "data: "));
    assert_null(fingerprint_in(broken));
    assert_null(strstr(broken, "[DONE]"));
    waitpid(killer, NULL, 0);
    assert_int_not_equal(wait_for_end(three.pid, 30), -1);
    free(alone);
    free(shared);
    free(broken);
}

static void test_damages(void **state) {
    (void)state;
    struct command c =
        command_runf("SAMEBITS_SEED=5 SAMEBITS_DAMAGES=%d " MPIRUN "-n 3 %s", batches(10), worker);
    must_pass("damaged messages", &c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server),    cmocka_unit_test(test_demo),
        cmocka_unit_test(test_others),    cmocka_unit_test(test_faults),
        cmocka_unit_test(test_damages),   cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_workloads), cmocka_unit_test(test_positions),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* as test_faults */
    snprintf(demo, sizeof demo, "%s/demo14", build_folder(argv[0]));
    snprintf(worker, sizeof worker, "%s/tests/ranks/worker", build_folder(argv[0]));
    if (access(worker, X_OK) || system("command -v mpirun >/dev/null")) {
        printf("no mpirun, or no %s: phase 14 is not tested\n", worker);
        return 0;
    }
    return cmocka_run_group_tests(tests, command_folder_make, command_folder_remove);
}
