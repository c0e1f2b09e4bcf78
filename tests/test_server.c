/*
 * test_server - phase 12's demo as a process, over loopback: what clients get, what is refused and
 * with which status, clients that go away in the middle, and its end.
 */
#include "model/files/json.h"
#include "tests/command.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct served {
    pid_t pid;
    FILE *log; /* its stderr */
    int port;
};

static char program[64]; /* the demo of this build */

static struct served serve(const char *key_file) {
    struct served s;
    int out[2];
    char line[512] = "";
    assert_int_equal(pipe(out), 0);
    s.pid = fork();
    if (!s.pid) {
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        execl(program, "demo12", "--device", "cpu", "--serve", "0", "--kv-blocks", "400",
              key_file ? "--api-key" : NULL, key_file, NULL);
        _exit(127);
    }
    close(out[1]);
    s.log = fdopen(out[0], "r");
    assert_non_null(s.log);
    while (fgets(line, sizeof line, s.log) && !strstr(line, "http://"))
        ;
    assert_int_equal(sscanf(line, "listening on http://127.0.0.1:%d", &s.port), 1);
    return s;
}

/* A signal, and the status that it ends with. */
static int end(struct served *s, int signal) {
    int status;
    kill(s->pid, signal);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    fclose(s->log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int connect_to(const struct served *s) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)s->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    struct timeval limit = {20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

/* One request; the whole answer, malloc'ed. head: more lines of the head, each with its end. */
static char *ask(const struct served *s, const char *method, const char *path, const char *head,
                 const char *body) {
    int fd = connect_to(s);
    size_t n = 0, size = 1 << 16;
    char *answer = malloc(size + 1);
    assert_non_null(answer);
    dprintf(fd, "%s %s HTTP/1.0\r\n%sContent-Length: %zu\r\n\r\n%s", method, path, head,
            strlen(body), body);
    for (ssize_t got; (got = recv(fd, answer + n, size - n, 0)) > 0;) {
        n += (size_t)got;
        if (n == size) {
            answer = realloc(answer, 1 + (size *= 2));
            assert_non_null(answer);
        }
    }
    answer[n] = 0;
    close(fd);
    return answer;
}

static int status_of(const char *answer) {
    return atoi(answer + strcspn(answer, " "));
}

static json_t *json_of(const char *answer) {
    const char *body = strstr(answer, "\r\n\r\n");
    assert_non_null(body);
    json_t *json = json_loads(body + 4, 0, NULL);
    assert_non_null(json);
    return json;
}

static void expect_status(const struct served *s, int status, const char *method, const char *path,
                          const char *head, const char *body, const char *says) {
    char *answer = ask(s, method, path, head, body);
    if (status_of(answer) != status || !strstr(answer, says))
        fail_msg("%s %s %s: expected %d and \"%s\":\n%s", method, path, body, status, says, answer);
    free(answer);
}

static const char chat[] = "/v1/chat/completions";
#define QUESTION "\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]"
#define FRANCE "bd7347b2e2c41a95" /* the fingerprint of ./demo --prompt of the same question */

static void answers_are_those_of_the_command_line(void **state) {
    struct served *s = *state;
    char *answer = ask(s, "POST", chat, "", "{" QUESTION ",\"temperature\":0}");
    assert_int_equal(status_of(answer), 200);
    json_t *json = json_of(answer), *choice = json_array_get(json_object_get(json, "choices"), 0);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(choice, "message"), "content")),
        "The capital of France is Paris.");
    assert_string_equal(json_string_value(json_object_get(choice, "samebits_fingerprint")), FRANCE);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "stop");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(json, "usage"), "completion_tokens")),
        11);
    json_decref(json);
    free(answer);
}

static int count(const char *text, const char *word) {
    int n = 0;
    while ((text = strstr(text, word)))
        n++, text++;
    return n;
}

static void a_stream_has_an_event_for_each_token(void **state) {
    struct served *s = *state;
    char *answer = ask(s, "POST", chat, "",
                       "{" QUESTION ",\"temperature\":0,\"stream\":true,\"logprobs\":true,"
                       "\"top_logprobs\":2,\"stream_options\":{\"include_usage\":true}}");
    assert_int_equal(status_of(answer), 200);
    assert_int_equal(count(answer, "\ndata: {"), 12); /* 11 tokens, and the usage */
    assert_int_equal(count(answer, "\"top_logprobs\":[{"), 11);
    assert_int_equal(count(answer, FRANCE), 1);
    assert_int_equal(count(answer, "data: [DONE]"), 1);
    free(answer);
    answer = ask(s, "POST", "/v1/completions", "",
                 "{\"prompt\":\"Once upon a time\",\"n\":3,\"seed\":4,\"max_tokens\":5}");
    assert_int_equal(status_of(answer), 200);
    assert_int_equal(count(answer, "\"samebits_fingerprint\""), 3);
    free(answer);
}

static void what_is_wrong_is_named(void **state) {
    struct served *s = *state;
    static const struct {
        int status;
        const char *method, *path, *body, *says;
    } cases[] = {
        {400, "POST", chat, "{", "the body: line 1"},
        {400, "POST", chat, "{" QUESTION ",\"foo\":1}", "foo is not a field"},
        {400, "POST", chat, "{" QUESTION ",\"samebits_receipt\":true}", "make phase13"},
        {400, "POST", chat, "{" QUESTION ",\"presence_penalty\":1}", "presence_penalty"},
        {200, "POST", chat, "{" QUESTION ",\"presence_penalty\":0,\"max_tokens\":1}",
         "\"finish_reason\":\"length\""},
        {400, "POST", chat, "{" QUESTION ",\"temperature\":-1}", "temperature must be"},
        {400, "POST", chat, "{\"messages\":[]}", "messages"},
        {400, "POST", "/v1/completions", "{\"prompt\":[99999]}", "token 0"},
        {400, "POST", "/v1/completions", "{\"prompt\":\"a\",\"stop\":\"\"}", "stop"},
        {404, "POST", chat, "{" QUESTION ",\"model\":\"other\"}", "data/model"},
        {404, "GET", "/nothing", "", "no such path"},
        {405, "GET", chat, "", "another method"},
        {200, "GET", "/health", "", ""},
        {200, "GET", "/metrics", "", "vllm:num_requests_running"},
        {200, "GET", "/", "", "<title>samebits</title>"},
        {200, "POST", "/tokenize", "{\"prompt\":\"Hello\"}", "\"tokens\":["},
        {400, "POST", "/detokenize", "{\"tokens\":\"x\"}", "tokens must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_status(s, cases[i].status, cases[i].method, cases[i].path, "", cases[i].body,
                      cases[i].says);
    int fd = connect_to(s);
    dprintf(fd, "POST %s HTTP/1.0\r\nContent-Length: 100000000\r\n\r\n", chat);
    char head[64] = "";
    assert_true(recv(fd, head, sizeof head - 1, 0) > 0);
    assert_int_equal(status_of(head), 413);
    close(fd);
}

/* They close in the head, in the body, before the answer and in the middle of it. Afterwards
 * nothing runs, and nobody's blocks are missing. */
static void clients_that_go_away_leave_nothing_behind(void **state) {
    struct served *s = *state;
    static const char body[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":2000,"
                               "\"ignore_eos\":true,\"stream\":true}";
    for (int i = 0; i < 24; i++) {
        int fd = connect_to(s);
        size_t n = i % 4 == 1 ? 20 : strlen(body);
        if (i % 4 == 0) {
            dprintf(fd, "POST /v1/compl");
        } else {
            char piece[64];
            dprintf(fd, "POST /v1/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%.*s",
                    strlen(body), (int)n, body);
            if (i % 4 == 3)
                assert_true(recv(fd, piece, sizeof piece, 0) > 0);
        }
        close(fd);
    }
    for (int i = 0;; i++) { /* soon: at the end of a step */
        char *answer = ask(s, "GET", "/metrics", "", "");
        bool idle = strstr(answer, "num_requests_running{model_name=\"data/model\"} 0\n") &&
                    strstr(answer, "num_requests_waiting{model_name=\"data/model\"} 0\n") &&
                    strstr(answer, "kv_cache_usage_perc{model_name=\"data/model\"} 0\n");
        free(answer);
        if (idle)
            break;
        assert_true(i < 200);
        usleep(100000);
    }
    answers_are_those_of_the_command_line(state);
}

static void a_key_is_asked_for(void **state) {
    char path[] = "/tmp/samebits-key-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_int_equal(write(fd, "secret\n", 7), 7);
    close(fd);
    struct served s = serve(path);
    expect_status(&s, 401, "GET", "/v1/models", "", "", "a key is needed");
    expect_status(&s, 401, "GET", "/v1/models", "Authorization: Bearer secre\r\n", "", "");
    expect_status(&s, 401, "GET", "/v1/models", "Authorization: Bearer secrex\r\n", "", "");
    expect_status(&s, 200, "GET", "/v1/models", "Authorization: Bearer secret\r\n", "",
                  "data/model");
    expect_status(&s, 200, "GET", "/health", "", "", "");
    assert_int_equal(end(&s, SIGTERM), 128 + SIGTERM);
    unlink(path);
}

/* Phase 13's server gives receipts, to be checked without it. */
static void receipts_come_with_answers(void **state) {
    static const char *const bodies[] = {
        "{" QUESTION ",\"temperature\":0,\"samebits_receipt\":true}",
        "{" QUESTION ",\"seed\":3,\"n\":2,\"max_tokens\":5,\"samebits_receipt\":true}"};
    char path[] = "/tmp/samebits-receipts-XXXXXX", folder[64], line[160];
    int fd = mkstemp(path);
    (void)state;
    snprintf(folder, sizeof folder, "%s", program);
    snprintf(strrchr(program, '/'), 16, "/demo13");
    struct served s = serve(NULL);
    for (int i = 0; i < 2; i++) {
        char *answer = ask(&s, "POST", chat, "", bodies[i]);
        json_t *json = json_of(answer), *choice;
        size_t k;
        json_array_foreach(json_object_get(json, "choices"), k, choice) {
            char *receipt = json_dumps(json_object_get(choice, "samebits_receipt"), 0);
            assert_non_null(receipt);
            dprintf(fd, "%s\n", receipt);
            free(receipt);
        }
        json_decref(json);
        free(answer);
    }
    char *answer =
        ask(&s, "POST", chat, "",
            "{" QUESTION ",\"temperature\":0,\"stream\":true,\"samebits_receipt\":true}");
    assert_int_equal(count(answer, "\"samebits_receipt\":{\"samebits_receipt\":1"), 1);
    free(answer);
    assert_int_equal(end(&s, SIGTERM), 128 + SIGTERM);
    close(fd);
    snprintf(line, sizeof line, "--verify-receipt %s", path);
    struct command c = demo_run(13, line);
    assert_int_equal(c.status, 0);
    assert_int_equal(count(c.out, "verified"), 3);
    command_free(&c);
    snprintf(program, sizeof program, "%s", folder);
    unlink(path);
}

static int start_server(void **state) {
    static struct served s;
    s = serve(NULL);
    *state = &s;
    return 0;
}

static int end_server(void **state) {
    return end(*state, SIGINT) == 128 + SIGINT ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_command_line),
        cmocka_unit_test(a_stream_has_an_event_for_each_token),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(clients_that_go_away_leave_nothing_behind),
        cmocka_unit_test(a_key_is_asked_for),
        cmocka_unit_test(receipts_come_with_answers),
    };
    (void)argc;
    snprintf(program, sizeof program, "%s/demo12", build_folder(argv[0]));
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, start_server, end_server);
}
