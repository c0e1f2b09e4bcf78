/*
 * test_rank_faults - phase 14: whatever happens to a rank, and whenever, all end soon, with a line
 * that says why, and nobody is given a wrong answer.
 *
 * SAMEBITS_BATCHES: how many faults, and how many damaged messages (200 in make test-slow; a few
 * without). SAMEBITS_SEED: other ones.
 */
#include "tests/command.h"
#include "tests/launch_ranks.h"
#include "tests/random.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Of all answers, in what is printed and in the file of --json. */
static const char right[] = "1693d29f628f8640";

static uint64_t seed(void) {
    const char *asked = getenv("SAMEBITS_SEED");
    return asked ? (uint64_t)atoi(asked) : 14;
}

/* What is in a file of command_folder; "": nothing, or no file. For command_free. */
static struct command content_of(const char *name) {
    return command_runf("cat %s/%s 2>/dev/null", command_folder, name);
}

static pid_t launch(bool by_hand) {
    char arguments[160], *json;
    int n = snprintf(arguments, sizeof arguments,
                     "--threads 1 --max-running 3 --prompts data/prompts/mixed.jsonl --json ");
    json = arguments + n;
    snprintf(json, sizeof arguments - (size_t)n, "%s/json", command_folder);
    unlink(json);
    return ranks_launch(by_hand, arguments);
}

/* ---- killed and stopped ranks ---------------------------------------------------------------- */

enum {
    EARLY = 150,  /* milliseconds: ranks join */
    LONGEST = 240 /* seconds of a run, however busy the machine: nothing that ends takes longer */
};

struct fault_at {
    bool by_hand;
    int signal, rank, after; /* milliseconds after the rank has begun */
};

/* Before, while and after the ranks join, and in the answers. */
static struct fault_at random_fault(struct random *r, int milliseconds) {
    struct fault_at f = {random_int(r, 0, 1), random_int(r, 0, 1) ? SIGKILL : SIGSTOP,
                         random_int(r, 0, 2), 0};
    f.after = random_int(r, 0, random_int(r, 0, 2) ? milliseconds : EARLY);
    return f;
}

/* How long it takes when nothing happens. */
static int milliseconds_of_run(void) {
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    assert_int_equal(ranks_wait(launch(true), LONGEST), 0);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return (int)((ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000);
}

/* Nothing is written but right answers, and somebody says what has happened. */
static const char *what_is_wrong(int status, const char *told, const char *json) {
    const char *shown = strstr(told, "fingerprint ");
    bool named =
        strstr(told, "rank ") || strstr(told, "Process name") || strstr(told, "did not all join");
    if (status < 0)
        return "nothing ends";
    if ((shown && memcmp(shown + 12, right, 16)) || (*json && !strstr(json, right)))
        return "another answer";
    if (!status)
        return shown && *json ? NULL : "no answer";
    return named ? NULL : "nobody is named";
}

struct counts {
    int ended, early, named; /* named: the rank itself is, not one that waited for it */
};

static bool is_named(const char *told, int rank, pid_t process) {
    char name[24], number[24];
    snprintf(name, sizeof name, "rank %d", rank);
    snprintf(number, sizeof number, "process %d", (int)process);
    return strstr(told, name) || strstr(told, number);
}

static void one_fault(const struct fault_at *f, struct counts *counts) {
    pid_t mpirun = launch(f->by_hand), victim = ranks_process(mpirun, f->rank);
    ranks_pause(f->after);
    if (victim > 0)
        kill(victim, f->signal);
    int status = ranks_wait(mpirun, LONGEST);
    struct command told = content_of("err"), json = content_of("json");
    const char *wrong = what_is_wrong(status, told.out, json.out);
    if (wrong)
        fail_msg("signal %d for rank %d after %d ms%s: %s: status %d\n%s", f->signal, f->rank,
                 f->after, f->by_hand ? ", mpirun by hand" : "", wrong, status, told.out);
    counts->ended += status != 0;
    counts->early += f->after <= EARLY;
    counts->named += status && is_named(told.out, f->rank, victim);
    command_free(&told);
    command_free(&json);
}

static void test_faults(void **state) {
    (void)state;
    struct random r = {seed()};
    struct counts counts = {0};
    int n = ranks_batches(4), milliseconds = milliseconds_of_run();
    for (int i = 1; i <= n; i++) {
        struct fault_at f = random_fault(&r, milliseconds);
        one_fault(&f, &counts);
        if (i % 10 == 0 || i == n)
            printf("%d faults, %d of them in time, %d while ranks join; %d ranks are named\n", i,
                   counts.ended, counts.early, counts.named);
        fflush(stdout); /* a campaign may be stopped */
    }
}

/* ---- ranks that have nothing to do ------------------------------------------------------------
 */

/* Waits until there is a line of the server, or of the chat: then all ranks are there. */
static void await_line(const char *line) {
    for (bool there = false; !there; ranks_pause(10)) {
        struct command told = content_of("err");
        there = strstr(told.out, line);
        command_free(&told);
    }
}

/* Nobody asks for anything, for longer than ranks are patient; then one is stopped, and named. */
static void check_idle(const char *arguments, const char *line, int rank) {
    char name[40];
    pid_t mpirun = ranks_launch(false, arguments), victim = ranks_process(mpirun, rank);
    await_line(line);
    ranks_pause(8000);
    assert_int_equal(waitpid(mpirun, NULL, WNOHANG), 0);
    snprintf(name, sizeof name, "rank %d (process %d", rank, (int)victim);
    assert_int_equal(kill(victim, SIGSTOP), 0);
    int status = ranks_wait(mpirun, 20);
    struct command told = content_of("err");
    if (status <= 0 || !strstr(told.out, name))
        fail_msg("%s, rank %d: status %d\n%s", arguments, rank, status, told.out);
    command_free(&told);
}

static void test_idle(void **state) {
    (void)state;
    check_idle("--serve 0", "listening", 0);
    check_idle("--serve 0", "listening", 2);
    check_idle("--chat", "", 0);
}

/* ---- mpirun itself --------------------------------------------------------------------------- */

/* mpirun does not notice that its ranks are gone. */
static void test_idle_mpirun(void **state) {
    (void)state;
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        pid_t mpirun = launch(by_hand), ranks[3];
        for (int i = 0; i < 3; i++)
            ranks[i] = ranks_process(mpirun, i);
        ranks_pause(300);
        kill(mpirun, SIGSTOP);
        for (int i = 0; i < 3; i++)
            if (ranks[i] > 0)
                kill(ranks[i], SIGKILL);
        int status = ranks_wait(mpirun, 20);
        struct command told = content_of("err");
        assert_int_equal(status, 128 + SIGKILL);
        assert_non_null(strstr(told.out, "no rank is left, and mpirun waits for itself"));
        command_free(&told);
    }
}

/* The others have left, and nobody waits for the rank any more but mpirun. */
static void test_stopped_at_end(void **state) {
    (void)state;
    pid_t mpirun = launch(true), last = ranks_process(mpirun, 0);
    for (bool shown = false; !shown; ranks_pause(1)) {
        struct command told = content_of("err");
        shown = strstr(told.out, right);
        command_free(&told);
    }
    kill(last, SIGSTOP);
    int status = ranks_wait(mpirun, 40);
    assert_true(status >= 0);
    printf("a rank stopped at its end: status %d\n", status);
}

/* ---- damaged messages ------------------------------------------------------------------------ */

static void test_damages(void **state) {
    (void)state;
    struct command c = command_runf("SAMEBITS_SEED=%d SAMEBITS_DAMAGES=%d " MPIRUN "-n 3 %s",
                                    (int)seed(), ranks_batches(10), ranks_worker);
    if (c.status)
        fail_msg("status %d\n%s\n%s", c.status, c.out, c.err);
    printf("%s", c.out);
    command_free(&c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_damages),
                                       cmocka_unit_test(test_idle_mpirun),
                                       cmocka_unit_test(test_stopped_at_end),
                                       cmocka_unit_test(test_idle), cmocka_unit_test(test_faults)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* as test_faults */
    return ranks_can_run(argv[0])
               ? cmocka_run_group_tests(tests, command_folder_make, command_folder_remove)
               : 0;
}
