/*
 * test_server_limits - too many connections and requests, too few files, blocks and places, a full
 * disk, many requests one after the other, and the end. Everybody is answered or told why not,
 * answers have the bits that they have alone, memory does not grow, and every block comes back. In
 * the sanitizer builds a leak or a race changes the exit status.
 *
 * SAMEBITS_BATCHES=N: N thousand ask while memory is watched; without, it is 2. An argument chooses
 * tests by their names, as 'memory*'.
 */
#include "tests/command.h"
#include "tests/served.h"

#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define POST "/v1/completions"
#define STORY "{\"prompt\":\"Once upon a time\",\"temperature\":0,\"ignore_eos\":true"
static const char question[] = STORY ",\"max_tokens\":12}";

static int n_thousands(void) {
    const char *batches = getenv("SAMEBITS_BATCHES");
    return batches ? atoi(batches) : 2;
}

static void end(struct served *s) {
    assert_int_equal(served_end(s, SIGTERM), 128 + SIGTERM);
}

/* ---- too many, too few ------------------------------------------------------------------------
 */

/* More than the server has room for: they wait until others have left. */
static void two_thousand_connections_are_served(void **state) {
    enum { N = 2000 };
    static int fds[N];
    struct served s = served_start(&(struct served_options){0});
    struct rlimit files;
    (void)state;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    assert_true(files.rlim_cur >= N + 100);
    for (int i = 0; i < N; i++)
        assert_true((fds[i] = served_connect(&s)) >= 0);
    for (int i = 0; i < N; i++)
        assert_true(served_post(fds[i], "GET", "/health", "", ""));
    for (int i = 0; i < N; i++) {
        char *answer = served_read(fds[i]);
        if (served_status(answer) != 200)
            fail_msg("connection %d: %s", i, answer);
        free(answer);
        close(fds[i]);
    }
    served_wait_idle(&s, "");
    end(&s);
}

/* Asks n times at once. Returns how many have each status, and checks that those that were answered
 * have one fingerprint. */
static void ask_at_once(const struct served *s, int n, const char *body, int counts[1000]) {
    char first[17] = "", fingerprint[17];
    int *fds = calloc((size_t)n, sizeof *fds);
    memset(counts, 0, 1000 * sizeof *counts);
    for (int i = 0; i < n; i++) {
        assert_true((fds[i] = served_connect(s)) >= 0);
        served_post(fds[i], "POST", POST, "", body);
    }
    for (int i = 0; i < n; i++) {
        char *answer = served_read(fds[i]);
        int status = served_status(answer);
        counts[status]++;
        if (status == 429 || status == 503)
            assert_non_null(strstr(answer, "Retry-After: "));
        if (status == 200) {
            assert_true(served_fingerprint(answer, fingerprint));
            if (!first[0])
                strcpy(first, fingerprint);
            assert_string_equal(first, fingerprint);
        }
        free(answer);
        close(fds[i]);
    }
    free(fds);
    served_wait_idle(s, "");
}

static void a_full_queue_says_so(void **state) {
    struct served s =
        served_start(&(struct served_options){.arguments = "--max-waiting 3 --max-running 2"});
    int counts[1000];
    (void)state;
    ask_at_once(&s, 40, question, counts);
    assert_int_equal(counts[200] + counts[429], 40);
    assert_true(counts[200] >= 3 && counts[429] > 0);
    end(&s);
}

static void who_waits_too_long_is_told(void **state) {
    struct served s =
        served_start(&(struct served_options){.arguments = "--max-wait 0.01 --max-running 1"});
    int counts[1000];
    (void)state;
    ask_at_once(&s, 20, STORY ",\"max_tokens\":60}", counts);
    assert_int_equal(counts[200] + counts[503], 20);
    assert_true(counts[200] > 0 && counts[503] > 0);
    end(&s);
}

/* Room for 96 positions: answers end there, and many take turns. */
static void a_small_pool_is_enough_for_all(void **state) {
    struct served s = served_start(&(struct served_options){.arguments = "--kv-blocks 6"});
    int counts[1000], n = served_is_slow() ? 2 : 12;
    (void)state;
    ask_at_once(&s, n, STORY ",\"max_tokens\":3000}", counts);
    assert_int_equal(counts[200], n);
    ask_at_once(&s, n / 2, STORY ",\"n\":2,\"seed\":1,\"max_tokens\":3000}", counts);
    assert_int_equal(counts[200], n / 2);
    end(&s);
}

/* 40 descriptors: the other clients wait until there are some again. */
static void too_few_files_make_clients_wait(void **state) {
    struct served s = served_start(&(struct served_options){.most_files = 40});
    int counts[1000], n = served_is_slow() ? 60 : 120;
    (void)state;
    ask_at_once(&s, n, question, counts);
    assert_int_equal(counts[200], n);
    end(&s);
}

/* A disk that is full is no reason to stop. */
static void a_log_that_cannot_be_written_is_left_out(void **state) {
    struct served s = served_start(&(struct served_options){.log = "/dev/full"});
    int counts[1000];
    (void)state;
    ask_at_once(&s, 20, question, counts);
    assert_int_equal(counts[200], 20);
    end(&s);
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static long resident_kb(const struct served *s) {
    char path[40];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)s->pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

struct asker {
    const struct served *served;
    pthread_t thread;
    int n, n_answered;
};

/* Short requests of several kinds, and some that are refused. */
static void *ask_many(void *context) {
    static const char *const bodies[] = {
        "{\"prompt\":[1],\"max_tokens\":1}",
        "{\"prompt\":\"Hi\",\"max_tokens\":2,\"stream\":true,\"logprobs\":1}",
        "{\"prompt\":[5,6],\"max_tokens\":1,\"n\":2,\"stop\":\"a\",\"echo\":true}",
        "{\"prompt\":[5,6],\"unknown\":1}"};
    struct asker *a = context;
    for (int i = 0; i < a->n; i++) {
        char *answer = served_ask(a->served, "POST", POST, "", bodies[i % 4]);
        a->n_answered += served_status(answer) == (i % 4 == 3 ? 400 : 200);
        free(answer);
    }
    return NULL;
}

static void ask_in_threads(const struct served *s, int n) {
    enum { N = 40 };
    struct asker askers[N];
    for (int i = 0; i < N; i++) {
        askers[i] = (struct asker){.served = s, .n = n / N};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_many, &askers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].n_answered, askers[i].n);
    }
    served_wait_idle(s, "");
}

/* After a hundred times as many requests (with SAMEBITS_BATCHES=100) within one percent. With
 * fewer, a thread's first memory may come late: what grows with the requests does so every time,
 * and in one of three thousands it must not. */
static void memory_does_not_grow(void **state) {
    struct served s =
        served_start(&(struct served_options){.arguments = "--kv-blocks 400 --max-running 32"});
    /* The sanitizers keep what is freed: with them, a hundred requests at once are all. */
    int n_rounds = served_is_slow() ? 0 : n_thousands() < 100 ? 3 : 1;
    int n = 1000 * n_thousands() - 1000;
    long resident[4], least = LONG_MAX;
    (void)state;
    ask_in_threads(&s, served_is_slow() ? 100 : 1000);
    resident[0] = resident_kb(&s);
    for (int i = 0; i < n_rounds; i++) {
        ask_in_threads(&s, n);
        resident[i + 1] = resident_kb(&s);
        long grown = resident[i + 1] - resident[i];
        least = grown < least ? grown : least;
        fprintf(stderr, "resident: %ld kB, and after %d more requests %ld kB\n", resident[i], n,
                resident[i + 1]);
    }
    assert_true(!n_rounds || least <= resident[0] / 100);
    end(&s);
}

/* ---- the end ----------------------------------------------------------------------------------
 */

/* Those that run are finished, and what comes meanwhile is refused. */
static void sigterm_lets_answers_end(void **state) {
    enum { N = 16 };
    struct served s = served_start(&(struct served_options){.arguments = "--max-running 16"});
    int fds[N], status, n_refused = 0;
    char byte;
    (void)state;
    for (int i = 0; i < N; i++) {
        assert_true((fds[i] = served_connect(&s)) >= 0);
        served_post(fds[i], "POST", POST, "", STORY ",\"max_tokens\":1000,\"stream\":true}");
        assert_int_equal(recv(fds[i], &byte, 1, 0), 1);
    }
    kill(s.pid, SIGTERM);
    for (int fd; (fd = served_connect(&s)) >= 0; close(fd)) {
        served_post(fd, "POST", POST, "", question);
        char *answer = served_read(fd);
        n_refused += served_status(answer) == 503;
        free(answer);
    }
    assert_true(n_refused > 0);
    for (int i = 0; i < N; i++) {
        char *answer = served_read(fds[i]);
        bool whole = strstr(answer, "\"finish_reason\":\"length\"") != NULL;
        if (!strstr(answer, whole ? "data: [DONE]" : "shutting down") ||
            (!whole && strstr(answer, "[DONE]")))
            fail_msg("answer %d: %s", i,
                     answer + (strlen(answer) > 600 ? strlen(answer) - 600 : 0));
        free(answer);
        close(fds[i]);
    }
    assert_int_equal(waitpid(s.pid, &status, 0), s.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
    unlink(s.log);
}

static void a_second_signal_ends_it_at_once(void **state) {
    struct served s = served_start(&(struct served_options){0});
    int fd = served_connect(&s);
    char byte;
    (void)state;
    served_post(fd, "POST", POST, "", STORY ",\"n\":64,\"max_tokens\":4000,\"stream\":true}");
    assert_int_equal(recv(fd, &byte, 1, 0), 1);
    kill(s.pid, SIGTERM);
    usleep(300000);
    assert_int_equal(waitpid(s.pid, NULL, WNOHANG), 0); /* it lets it run */
    assert_int_equal(served_end(&s, SIGTERM), -SIGTERM);
    close(fd);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_thousand_connections_are_served),
        cmocka_unit_test(a_full_queue_says_so),
        cmocka_unit_test(who_waits_too_long_is_told),
        cmocka_unit_test(a_small_pool_is_enough_for_all),
        cmocka_unit_test(too_few_files_make_clients_wait),
        cmocka_unit_test(a_log_that_cannot_be_written_is_left_out),
        cmocka_unit_test(memory_does_not_grow),
        cmocka_unit_test(sigterm_lets_answers_end),
        cmocka_unit_test(a_second_signal_ends_it_at_once),
    };
    build_folder(argv[0]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
