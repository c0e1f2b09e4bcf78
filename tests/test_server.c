/*
 * test_server - phase 12's demo as a process, over loopback: what clients get, what is refused and
 * with which status, keys, and the log.
 */
#include "tests/command.h"
#include "tests/served.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void expect_status(const struct served *s, int status, const char *method, const char *path,
                          const char *head, const char *body, const char *says) {
    char *answer = served_ask(s, method, path, head, body);
    if (served_status(answer) != status || !strstr(answer, says))
        fail_msg("%s %s %s: expected %d and \"%s\":\n%s", method, path, body, status, says, answer);
    free(answer);
}

static const char chat[] = "/v1/chat/completions";
#define QUESTION "\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]"
#define FRANCE "bd7347b2e2c41a95" /* the fingerprint of ./demo --prompt of the same question */

static void answers_are_those_of_the_command_line(void **state) {
    struct served *s = *state;
    char *answer = served_ask(s, "POST", chat, "", "{" QUESTION ",\"temperature\":0}");
    assert_int_equal(served_status(answer), 200);
    json_t *json = served_json(answer),
           *choice = json_array_get(json_object_get(json, "choices"), 0);
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
    char *answer = served_ask(s, "POST", chat, "",
                              "{" QUESTION ",\"temperature\":0,\"stream\":true,\"logprobs\":true,"
                              "\"top_logprobs\":2,\"stream_options\":{\"include_usage\":true}}");
    assert_int_equal(served_status(answer), 200);
    assert_int_equal(count(answer, "\ndata: {"), 12); /* 11 tokens, and the usage */
    assert_int_equal(count(answer, "\"top_logprobs\":[{"), 11);
    assert_int_equal(count(answer, FRANCE), 1);
    assert_int_equal(count(answer, "data: [DONE]"), 1);
    free(answer);
    answer = served_ask(s, "POST", "/v1/completions", "",
                        "{\"prompt\":\"Once upon a time\",\"n\":3,\"seed\":4,\"max_tokens\":5}");
    assert_int_equal(served_status(answer), 200);
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
        {400, "POST", "/v1/completions", "{\"prompt\":[\"a\",5]}", "prompt must be"},
        {400, "POST", "/v1/completions", "{\"prompt\":[[5],[]]}", "the prompt is empty"},
        {400, "POST", "/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":501}",
         "at most 1000 answers"},
        {400, "POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens"},
        {400, "POST", "/v1/completions", "{\"prompt\":\"a\",\"stop\":\"\"}", "stop"},
        {404, "POST", chat, "{" QUESTION ",\"model\":\"other\"}", "data/model"},
        {404, "GET", "/nothing", "", "no such path"},
        {405, "GET", chat, "", "Allow: POST"},
        {405, "PUT", "/health", "", "another method"},
        {200, "GET", "/health", "", ""},
        {200, "GET", "/metrics", "", "vllm:num_requests_running"},
        {200, "GET", "/", "", "<title>samebits</title>"},
        {200, "POST", "/tokenize", "{\"prompt\":\"Hello\"}", "\"tokens\":["},
        {400, "POST", "/tokenize", "{\"prompt\":5}", "prompt must be a text"},
        {400, "POST", "/tokenize", "{" QUESTION ",\"prompt\":\"a\"}", "or messages a list"},
        {400, "POST", "/tokenize", "{\"prompt\":\"a\",\"foo\":1}", "foo is not a field"},
        {400, "POST", "/tokenize", "{\"prompt\":\"a\",\"tokens\":[1]}", "not a field of this path"},
        {400, "POST", "/tokenize", "[]", "must be a JSON object"},
        {404, "POST", "/tokenize", "{\"prompt\":\"a\",\"model\":\"other\"}", "data/model"},
        {200, "POST", "/detokenize", "{\"tokens\":[66],\"model\":\"data/model\"}", "\"prompt\":"},
        {400, "POST", "/detokenize", "{\"tokens\":\"x\"}", "tokens must be"},
        {400, "POST", "/detokenize", "{\"tokens\":[1],\"seed\":1}", "seed is not a field of this"},
        {400, "POST", "/v1/completions", "{\"prompt\":\"a\",\"messages\":[]}", "messages is not a"},
        {400, "POST", "/v1/completions", "{\"prompt\":\"a\",\"top_logprobs\":2}", "top_logprobs"},
        {400, "POST", chat, "{" QUESTION ",\"prompt\":\"a\"}",
         "prompt is not a field of this path"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_status(s, cases[i].status, cases[i].method, cases[i].path, "", cases[i].body,
                      cases[i].says);
}

/* Told before it sends, if it waits for that. Nobody's token ids take a megabyte here. */
static void too_large_bodies_are_refused(void **state) {
    struct served *s = *state;
    enum { SIZE = 1 << 20 };
    char head[200] = "", *body = malloc(SIZE + 1);
    int fd = served_connect(s);
    assert_true(fd >= 0 && body);
    dprintf(fd,
            "POST %s HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: "
            "100000000\r\n\r\n",
            chat);
    assert_true(recv(fd, head, sizeof head - 1, 0) > 0);
    assert_int_equal(served_status(head), 413);
    close(fd);
    memset(body, ' ', SIZE);
    body[SIZE] = 0;
    expect_status(s, 413, "POST", chat, "", body, "too large: at most 327680 bytes");
    free(body);
}

/* The head of a request has at most 32 KiB. */
static void too_large_heads_are_refused(void **state) {
    struct served *s = *state;
    enum { SIZE = 100000 };
    char *head = malloc(SIZE + 5);
    assert_non_null(head);
    memcpy(head, "X-A: ", 5);
    memset(head + 5, 'a', SIZE - 5);
    memcpy(head + SIZE, "\r\n", 3);
    char *answer = served_ask(s, "GET", "/health", head, "");
    assert_int_not_equal(served_status(answer), 200);
    free(answer);
    free(head);
    expect_status(s, 200, "GET", "/health", "", "", "");
}

/* Its log has a line for each request, and neither the key nor what was asked. */
/* What the page asks for: from change number `since` on. */
static json_t *changes_since(const struct served *s, json_int_t since) {
    char path[40];
    snprintf(path, sizeof path, "/state?since=%d", (int)since);
    char *answer = served_ask(s, "GET", path, "", "");
    assert_int_equal(served_status(answer), 200);
    json_t *json = served_json(answer);
    free(answer);
    return json;
}

/* Adds what the changes tell: requests that are done, the tokens that each has drawn. */
static json_int_t read_changes(json_t *state, int *n_done, json_int_t *drawn) {
    const json_t *change, *request;
    size_t i, k;
    json_array_foreach(json_object_get(state, "changes"), i, change) {
        json_t *now = json_object_get(change, "drawn");
        assert_true(json_integer_value(now) >= *drawn);
        *drawn = json_integer_value(now);
        json_array_foreach(json_object_get(change, "requests"), k, request) {
            const char *name = json_string_value(json_object_get(request, "state"));
            *n_done += name && !strcmp(name, "done");
            assert_null(json_object_get(request, "text")); /* nobody's but the asker's */
        }
    }
    json_int_t next = json_integer_value(json_object_get(state, "next"));
    json_decref(state);
    return next;
}

static void the_page_is_told_of_every_request(void **state) {
    struct served *s = *state;
    served_wait_idle(s, ""); /* the page has been told of what was asked before */
    json_t *all = changes_since(s, -1);
    assert_true(json_is_true(json_object_get(all, "all")));
    json_int_t next = json_integer_value(json_object_get(all, "next")), first = next, drawn = 0;
    json_decref(all);
    int n_done = 0;
    for (int i = 0; i < 3; i++) { /* the second has the number of the first, which was forgotten */
        expect_status(s, 200, "POST", chat, "", "{" QUESTION ",\"temperature\":0}", "Paris");
        for (int tries = 0; n_done <= i && tries < 100; tries++, usleep(50000))
            next = read_changes(changes_since(s, next), &n_done, &drawn);
        assert_int_equal(n_done, i + 1);
    }
    json_t *again = changes_since(s, first);
    assert_int_equal(json_array_size(json_object_get(again, "changes")), next - first);
    json_decref(again);
    all = changes_since(s, next + 1); /* there is none such: everything */
    assert_true(json_is_true(json_object_get(all, "all")));
    json_decref(all);
}

static void a_key_is_asked_for(void **state) {
    char path[] = "/tmp/samebits-key-XXXXXX", arguments[64];
    int fd = mkstemp(path);
    (void)state;
    assert_int_equal(write(fd, "secret\n", 7), 7);
    close(fd);
    snprintf(arguments, sizeof arguments, "--api-key %s", path);
    struct served s = served_start(&(struct served_options){.arguments = arguments});
    expect_status(&s, 401, "GET", "/v1/models", "", "", "a key is needed");
    expect_status(&s, 401, "GET", "/v1/models", "Authorization: Bearer secre\r\n", "", "");
    expect_status(&s, 401, "GET", "/v1/models", "Authorization: Bearer secrex\r\n", "", "");
    expect_status(&s, 200, "GET", "/v1/models", "Authorization: Bearer secret\r\n", "",
                  "data/model");
    expect_status(&s, 404, "GET", "/a%0ab?key=secret", "", "", "");
    expect_status(&s, 200, "POST", chat, "Authorization: Bearer secret\r\n",
                  "{" QUESTION ",\"max_tokens\":1}", "");
    expect_status(&s, 200, "GET", "/health", "", "", "");
    char *log = served_log(&s);
    assert_int_equal(count(log, "\n"), 1 + 7);
    assert_int_equal(count(log, "GET /v1/models 401 "), 3);
    assert_int_equal(count(log, "GET /a?b 404 "), 1);
    assert_int_equal(count(log, "POST /v1/chat/completions 200 "), 1);
    assert_int_equal(count(log, "secre") + count(log, "France"), 0);
    free(log);
    assert_int_equal(served_end(&s, SIGTERM), 128 + SIGTERM);
    unlink(path);
}

/* Phase 13's server gives receipts, to be checked without it. */
static void receipts_come_with_answers(void **state) {
    static const char *const bodies[] = {
        "{" QUESTION ",\"temperature\":0,\"samebits_receipt\":true}",
        "{" QUESTION ",\"seed\":3,\"n\":2,\"max_tokens\":5,\"samebits_receipt\":true}"};
    char path[] = "/tmp/samebits-receipts-XXXXXX", line[160];
    int fd = mkstemp(path);
    (void)state;
    struct served s = served_start(
        &(struct served_options){.phase = 13, .arguments = "--kv-blocks 400 --speculate"});
    for (int i = 0; i < 2; i++) {
        char *answer = served_ask(&s, "POST", chat, "", bodies[i]);
        json_t *json = served_json(answer), *choice;
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
        served_ask(&s, "POST", chat, "",
                   "{" QUESTION ",\"temperature\":0,\"stream\":true,\"samebits_receipt\":true}");
    assert_int_equal(count(answer, "\"samebits_receipt\":{\"samebits_receipt\":2"), 1);
    free(answer);
    assert_int_equal(served_end(&s, SIGTERM), 128 + SIGTERM);
    close(fd);
    snprintf(line, sizeof line, "--verify-receipt %s", path);
    struct command c = demo_run(13, line);
    assert_int_equal(c.status, 0);
    assert_int_equal(count(c.out, "verified"), 3);
    command_free(&c);
    unlink(path);
}

/* Texts to be scored, two of them longer than the budget of a pass. */
#define REPEATED "The capital of France is Paris. The capital of France is Rome. "
static const char *const texts[] = {
    "Once upon a time, there was a little robot named Bolt.", "a",
    REPEATED REPEATED REPEATED REPEATED, /* n-grams propose what does not follow */
    "x = 1; <|im_end|> y = 2;"};         /* a stop token, too */
enum { N_TEXTS = sizeof texts / sizeof *texts };

/* What --score says of each. */
static void score_texts(json_t *scores[N_TEXTS]) {
    char path[] = "/tmp/samebits-texts-XXXXXX", line[60], *at;
    int fd = mkstemp(path), n = 0;
    for (int i = 0; i < N_TEXTS; i++)
        dprintf(fd, "{\"text\": \"%s\"}\n", texts[i]);
    close(fd);
    snprintf(line, sizeof line, "--score %s", path);
    struct command c = demo_run(13, line);
    assert_int_equal(c.status, 0);
    for (char *text = strtok_r(c.out, "\n", &at); text && n < N_TEXTS;
         text = strtok_r(NULL, "\n", &at))
        assert_non_null(scores[n++] = json_loads(text, 0, NULL));
    assert_int_equal(n, N_TEXTS);
    command_free(&c);
    unlink(path);
}

/* All texts in one request, with max_new tokens behind each; then their scores begin every list. */
static void expect_scores(const struct served *s, int max_new, json_t *const scores[N_TEXTS]) {
    json_t *body =
        json_pack("{s[ssss] si si sf sb}", "prompt", texts[0], texts[1], texts[2], texts[3],
                  "max_tokens", max_new, "logprobs", 1, "temperature", 0.0, "echo", 1);
    char *asked = json_dumps(body, 0),
         *answer = served_ask(s, "POST", "/v1/completions", "", asked);
    json_t *json = served_json(answer), *choices = json_object_get(json, "choices");
    assert_int_equal(json_array_size(choices), N_TEXTS);
    for (size_t i = 0; i < N_TEXTS; i++) {
        const json_t *choice = json_array_get(choices, i);
        const json_t *found =
            json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
        const json_t *wanted = json_object_get(scores[i], "logprobs");
        const char *text = json_string_value(json_object_get(choice, "text"));
        assert_int_equal(json_integer_value(json_object_get(choice, "index")), i);
        assert_int_equal(strncmp(text, texts[i], strlen(texts[i])), 0);
        assert_true(max_new ? json_array_size(found) > json_array_size(wanted)
                            : json_array_size(found) == json_array_size(wanted));
        for (size_t k = 0; k < json_array_size(wanted); k++)
            if (!json_equal(json_array_get(found, k), json_array_get(wanted, k)))
                fail_msg("text %zu, token %zu: %s", i, k, answer);
    }
    json_decref(body);
    json_decref(json);
    free(asked);
    free(answer);
}

/* The floats of --score: at once, in pieces of few tokens, with drafts, and in a pool that is too
 * small for all of them. */
static void echo_with_logprobs_scores_prompts(void **state) {
    json_t *scores[N_TEXTS];
    score_texts(scores);
    expect_scores(*state, 0, scores);
    expect_scores(*state, 9, scores);
    struct served s = served_start(&(struct served_options){
        .phase = 13,
        .arguments = "--kv-blocks 9 --max-running 4 --token-budget 7 --chunk 5 "
                     "--speculate"});
    expect_scores(&s, 0, scores);
    expect_scores(&s, 30, scores);
    assert_int_equal(served_end(&s, SIGTERM), 128 + SIGTERM);
    for (int i = 0; i < N_TEXTS; i++)
        json_decref(scores[i]);
}

/* What follows a prompt whose logits were wanted is what follows it without. */
static void echo_with_logprobs_changes_no_answer(void **state) {
    static const char *const bodies[] = {
        "{\"prompt\":\"Once upon a time\",\"seed\":7,\"max_tokens\":40,\"echo\":true,"
        "\"stop\":[\"time\",\".\"]}",
        "{\"prompt\":\"Once upon a time\",\"seed\":7,\"max_tokens\":40,\"echo\":true,"
        "\"stop\":[\"time\",\".\"],\"logprobs\":0}"};
    json_t *json[2], *choice[2];
    for (int i = 0; i < 2; i++) {
        char *answer = served_ask(*state, "POST", "/v1/completions", "", bodies[i]);
        json[i] = served_json(answer);
        choice[i] = json_array_get(json_object_get(json[i], "choices"), 0);
        free(answer);
    }
    assert_string_equal(json_string_value(json_object_get(choice[0], "text")),
                        json_string_value(json_object_get(choice[1], "text")));
    assert_string_equal(json_string_value(json_object_get(choice[0], "finish_reason")),
                        json_string_value(json_object_get(choice[1], "finish_reason")));
    assert_true(json_equal(json_object_get(json[0], "usage"), json_object_get(json[1], "usage")));
    json_decref(json[0]);
    json_decref(json[1]);
}

static int start_server(void **state) {
    static struct served s;
    s = served_start(&(struct served_options){.arguments = "--kv-blocks 400"});
    *state = &s;
    return 0;
}

static int end_server(void **state) {
    return served_end(*state, SIGINT) == 128 + SIGINT ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_command_line),
        cmocka_unit_test(a_stream_has_an_event_for_each_token),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(too_large_bodies_are_refused),
        cmocka_unit_test(too_large_heads_are_refused),
        cmocka_unit_test(a_key_is_asked_for),
        cmocka_unit_test(receipts_come_with_answers),
        cmocka_unit_test(echo_with_logprobs_scores_prompts),
        cmocka_unit_test(echo_with_logprobs_changes_no_answer),
        cmocka_unit_test(the_page_is_told_of_every_request),
    };
    (void)argc;
    build_folder(argv[0]);
    return cmocka_run_group_tests(tests, start_server, end_server);
}
