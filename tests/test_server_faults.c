/*
 * test_server_faults - clients as they should not be: they go away at every moment, read or send a
 * byte at a time, send half of it, a hundred megabytes or what is no text. The server goes
 * on, others' answers have the bits that they always have, and afterwards nothing runs and every
 * block is back. In the sanitizer builds a leak or a race changes the exit status.
 *
 * SAMEBITS_BATCHES=N: N hundred clients go away; without, it is 2. An argument chooses tests by
 * their names, as 'memory*'.
 */
#include "tests/command.h"
#include "tests/served.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define POST "/v1/completions"
#define STORY "{\"prompt\":\"Once upon a time\",\"temperature\":0,\"ignore_eos\":true"
static const char question[] = STORY ",\"max_tokens\":16}";
static const char stream[] = STORY ",\"max_tokens\":3000,\"stream\":true}";

/* ---- somebody who behaves ---------------------------------------------------------------------
 */

/* Asks the question again and again, in a thread, while the others misbehave. */
struct witness {
    const struct served *served;
    pthread_t thread;
    char expected[17], wrong[300];
    atomic_bool ends;
    int n_answers;
};

static void ask_once(struct witness *w) {
    char fingerprint[17] = "none";
    char *answer = served_ask(w->served, "POST", POST, "", question);
    bool same = served_fingerprint(answer, fingerprint) &&
                (!w->expected[0] || !strcmp(fingerprint, w->expected));
    if (!same && !w->wrong[0])
        snprintf(w->wrong, sizeof w->wrong, "%s, not %s: %s", fingerprint, w->expected, answer);
    if (!w->expected[0])
        strcpy(w->expected, fingerprint);
    w->n_answers++;
    free(answer);
}

static void *ask_until_end(void *context) {
    struct witness *w = context;
    while (!w->ends)
        ask_once(w);
    return NULL;
}

/* The first answer is what the later ones are compared with. */
static void witness_start(struct witness *w, const struct served *s) {
    *w = (struct witness){.served = s};
    ask_once(w);
    assert_int_equal(strlen(w->expected), 16);
    assert_int_equal(pthread_create(&w->thread, NULL, ask_until_end, w), 0);
}

static void witness_end(struct witness *w) {
    w->ends = true;
    pthread_join(w->thread, NULL);
    if (w->wrong[0])
        fail_msg("after %d answers: %s", w->n_answers, w->wrong);
    served_wait_idle(w->served, "");
}

static void end(struct served *s) {
    assert_int_equal(served_end(s, SIGTERM), 128 + SIGTERM);
}

/* ---- clients that go away ---------------------------------------------------------------------
 */

static int n_hundreds(void) {
    const char *batches = getenv("SAMEBITS_BATCHES");
    return batches ? atoi(batches) : 2;
}

struct leavers {
    const struct served *served;
    pthread_t thread;
    int n, number;
};

/* Closes with a FIN, or throws away what has come with a RST. */
static void leave(int fd, bool reset) {
    if (reset)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(fd);
}

/* One that leaves in the head, in the body, before its answer, or in the middle of it. */
static void visit(const struct served *s, unsigned *random) {
    int when = rand_r(random) % 5, fd = served_connect(s);
    char piece[512], head[120];
    const char *body = rand_r(random) % 2 ? stream : question;
    if (fd < 0)
        return;
    int n =
        snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
                 POST, strlen(body));
    served_send(fd, head, when == 0 ? (size_t)(rand_r(random) % n) : (size_t)n);
    if (when > 0)
        served_send(fd, body, when == 1 ? (size_t)rand_r(random) % strlen(body) : strlen(body));
    if (when == 3)
        usleep((useconds_t)rand_r(random) % 20000);
    for (int i = body == stream ? rand_r(random) % 20 : 0; when == 4 && i >= 0; i--)
        if (recv(fd, piece, sizeof piece, 0) <= 0)
            break;
    leave(fd, rand_r(random) % 2);
}

static void *visit_all(void *context) {
    struct leavers *l = context;
    unsigned random = (unsigned)l->number;
    for (int i = 0; i < l->n; i++)
        visit(l->served, &random);
    return NULL;
}

static void clients_go_away(void **state) {
    struct leavers leavers[4];
    static struct witness w;
    witness_start(&w, *state);
    for (int i = 0; i < 4; i++) {
        leavers[i] = (struct leavers){.served = *state, .n = 25 * n_hundreds(), .number = i};
        assert_int_equal(pthread_create(&leavers[i].thread, NULL, visit_all, &leavers[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(leavers[i].thread, NULL);
    witness_end(&w);
}

/* The tokens that the server has drawn so far. */
static long tokens_drawn(const struct served *s) {
    static const char key[] = "generation_tokens_total{model_name=\"data/model\"} ";
    char *metrics = served_ask(s, "GET", "/metrics", "", "");
    const char *at = strstr(metrics, key);
    long n = at ? atol(at + sizeof key - 1) : -1;
    free(metrics);
    assert_true(n >= 0);
    return n;
}

/* Their answers of 3000 tokens are not made to the end: with a stream, and without. */
static void answers_for_nobody_end(void **state) {
    const struct served *s = *state;
    for (int streams = 0; streams < 2; streams++) {
        long before = tokens_drawn(s);
        char byte;
        int fd = served_connect(s);
        served_post(fd, "POST", POST, "", streams ? stream : STORY ",\"max_tokens\":3000}");
        if (streams)
            assert_int_equal(recv(fd, &byte, 1, 0), 1);
        while (tokens_drawn(s) == before)
            ;
        close(fd);
        served_wait_idle(s, "");
        long drawn = tokens_drawn(s) - before;
        assert_true(drawn > 0 && drawn < 1500);
    }
}

/* ---- slow ones, and half ones -----------------------------------------------------------------
 */

/* Long answers that nobody reads for a while, and then a byte at a time. */
static void slow_readers_hold_up_nobody(void **state) {
    enum { N = 12 };
    static struct witness w;
    char byte;
    int fds[N], small = 1;
    witness_start(&w, *state);
    for (int i = 0; i < N; i++) {
        assert_true((fds[i] = served_connect(*state)) >= 0);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        assert_true(
            served_post(fds[i], "POST", POST, "", STORY ",\"max_tokens\":120,\"stream\":true}"));
    }
    for (int k = 0; k < 300; k++) {
        for (int i = 0; i < N; i++)
            assert_int_equal(recv(fds[i], &byte, 1, 0), 1);
        usleep(2000);
    }
    char *rest = served_read(fds[0]); /* nothing of it is lost */
    assert_non_null(strstr(rest, "data: [DONE]"));
    free(rest);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    witness_end(&w);
}

/* A request that comes in bytes is one. */
static void slow_senders_are_answered(void **state) {
    static struct witness w;
    char *text;
    int fd = served_connect(*state);
    int n = asprintf(&text, "POST %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", POST,
                     strlen(question), question);
    witness_start(&w, *state);
    for (int i = 0; i < n; i++) {
        assert_true(served_send(fd, text + i, 1));
        usleep(1000);
    }
    char *answer = served_read(fd), fingerprint[17];
    assert_true(served_fingerprint(answer, fingerprint));
    assert_string_equal(fingerprint, w.expected);
    free(answer);
    free(text);
    close(fd);
    witness_end(&w);
}

/* Whether a connection is closed, when one of its kind sends a byte every tenth of a second. */
static bool is_closed_after_bytes(const struct served *s, const char *byte) {
    int fd = served_connect(s), i = 0;
    served_send(fd, "POST /v1/completions HTTP/1.0\r\nContent-Length: 5000\r\n", 54);
    if (*byte == 'b')
        served_send(fd, "\r\n", 2);
    while (i < 80 && served_send(fd, byte, 1)) {
        usleep(100000);
        i++;
    }
    close(fd);
    return i < 80;
}

/* With --timeout 2 seconds: nobody keeps a connection by a byte now and then, nor by silence. */
static void connections_have_their_time(void **state) {
    struct served s = served_start(&(struct served_options){.arguments = "--timeout 2"});
    char byte;
    (void)state;
    assert_true(is_closed_after_bytes(&s, "h"));
    assert_true(is_closed_after_bytes(&s, "b"));
    int fd = served_connect(&s);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    /* One that waits for its answer may wait longer. */
    char *answer = served_ask(&s, "POST", POST, "",
                              served_is_slow() ? STORY ",\"n\":2,\"max_tokens\":200}"
                                               : STORY ",\"n\":8,\"max_tokens\":1000}");
    assert_int_equal(served_status(answer), 200);
    free(answer);
    end(&s);
}

/* ---- what cannot be read ----------------------------------------------------------------------
 */

/* A hundred megabytes are read and forgotten; the client can read its answer afterwards. */
static void huge_bodies_are_refused(void **state) {
    enum { PIECE = 1 << 20 };
    static struct witness w;
    char *piece = malloc(PIECE), head[100];
    assert_non_null(piece);
    memset(piece, '[', PIECE);
    witness_start(&w, *state);
    for (int chunked = 0; chunked < 2; chunked++) {
        int fd = served_connect(*state);
        bool sent = true;
        int n = snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", POST,
                         chunked ? "Transfer-Encoding: chunked" : "Content-Length: 104857600");
        served_send(fd, head, (size_t)n);
        for (int i = 0; i < 100 && sent; i++) {
            if (chunked)
                served_send(fd, "100000\r\n", 8);
            sent = served_send(fd, piece, PIECE) && (!chunked || served_send(fd, "\r\n", 2));
        }
        if (chunked)
            served_send(fd, "0\r\n\r\n", 5);
        assert_true(sent);
        char answer[16] = "";
        assert_int_equal(recv(fd, answer, 12, MSG_WAITALL), 12);
        assert_int_equal(served_status(answer), 413);
        close(fd);
    }
    free(piece);
    witness_end(&w);
}

static void expect_400(const struct served *s, const char *body, const char *says) {
    char *answer = served_ask(s, "POST", POST, "", body);
    if (served_status(answer) != 400 || !strstr(answer, says))
        fail_msg("%.100s: %s", body, answer);
    json_decref(served_json(answer));
    free(answer);
}

static void what_is_no_json_is_refused(void **state) {
    enum { DEPTH = 100000 };
    char deep[DEPTH + 1], name[400] = "{\"";
    memset(deep, '[', DEPTH);
    deep[DEPTH] = 0;
    expect_400(*state, deep, "maximum parsing depth");
    for (int i = 0; i < DEPTH - 5; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    expect_400(*state, deep, "maximum parsing depth");
    expect_400(*state, "", "the body");
    expect_400(*state, "[]", "must be a JSON object");
    expect_400(*state, "{\"prompt\":\"\xc3\"}", "unable to decode byte 0xc3");
    expect_400(*state, "{\"prompt\":\"\xff\xfe\"}", "unable to decode byte 0xff");
    expect_400(*state, "{\"prompt\":\"\\ud800\"}", "Unicode");
    expect_400(*state, "{\"prompt\":\"a\\u0000b\"}", "without NUL");
    for (int i = 0; i < 100; i++) /* cut in the middle of a character, wherever that is */
        strcat(name, "\xe2\x82\xac");
    strcat(name, "\":1}");
    expect_400(*state, name, "\"param\":\"\xe2\x82\xac");
    memmove(name + 3, name + 2, strlen(name + 2) + 1);
    name[2] = 'a';
    expect_400(*state, name, "\"param\":\"a\xe2\x82\xac");
    int fd = served_connect(*state); /* no HTTP at all */
    served_send(fd, "\xff\xfe\x01 \x80\r\n\r\n", 9);
    free(served_read(fd));
    close(fd);
}

/* ---- all ---------------------------------------------------------------------------------------
 */

static int start_server(void **state) {
    static struct served s;
    s = served_start(&(struct served_options){.arguments = "--kv-blocks 2000 --max-running 16"});
    *state = &s;
    return 0;
}

static int end_server(void **state) {
    return served_end(*state, SIGINT) == 128 + SIGINT ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_go_away),
        cmocka_unit_test(answers_for_nobody_end),
        cmocka_unit_test(slow_readers_hold_up_nobody),
        cmocka_unit_test(slow_senders_are_answered),
        cmocka_unit_test(connections_have_their_time),
        cmocka_unit_test(huge_bodies_are_refused),
        cmocka_unit_test(what_is_no_json_is_refused),
    };
    build_folder(argv[0]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, start_server, end_server);
}
