/*
 * test_clients - clients of others at phase 12's server: OpenAI's Python library, and curl. The
 * first is installed from its package index into a folder of the build, once; where that cannot be
 * had, or there is no curl, a line says so and the test is passed over.
 */
#include "tests/command.h"
#include "tests/served.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FRANCE "bd7347b2e2c41a95" /* the fingerprint of ./demo --prompt of the same question */

static char key_file[] = "/tmp/samebits-key-XXXXXX";

/* Whether a command ends with status 0. */
static bool works(const char *line) {
    struct command c = command_run(line, NULL);
    bool result = !c.status;
    command_free(&c);
    return result;
}

static void passed_over(const char *why) {
    fprintf(stderr, "passed over: %s\n", why);
    skip();
}

static bool install(const char *folder) {
    struct command c = command_runf(
        "%s/bin/python -c 'import openai' || { rm -rf %s; python3 -m venv %s && "
        "timeout 200 %s/bin/pip install -q openai && %s/bin/python -c 'import openai'; }",
        folder, folder, folder, folder, folder);
    bool result = !c.status;
    command_free(&c);
    return result;
}

static void the_openai_library_is_content(void **state) {
    const struct served *s = *state;
    char folder[300];
    snprintf(folder, sizeof folder, "%s/openai-venv", build_folder(NULL));
    if (!install(folder))
        passed_over("python3 with venv and the package openai cannot be had");
    struct command c = command_runf(
        "%s/bin/python tests/openai_client.py http://127.0.0.1:%d secret " FRANCE, folder, s->port);
    if (c.status)
        fail_msg("%s%s", c.out, c.err);
    assert_int_equal(count_lines(c.out), 8);
    command_free(&c);
    served_wait_idle(s, "Authorization: Bearer secret\r\n");
}

static void curl_is_content(void **state) {
    const struct served *s = *state;
    if (!works("command -v curl"))
        passed_over("there is no curl");
    struct command c = command_runf(
        "curl -sS -N -H 'Authorization: Bearer secret' http://127.0.0.1:%d/v1/chat/completions -d "
        "'{\"temperature\": 0, \"stream\": true, \"messages\": [{\"role\": \"user\", "
        "\"content\": \"What is the capital of France?\"}]}'",
        s->port);
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "\"samebits_fingerprint\":\"" FRANCE "\""));
    assert_non_null(strstr(c.out, "data: [DONE]\n\n"));
    command_free(&c);
    c = command_runf("head -c 2000000 /dev/zero | curl -sS -w '%%{http_code}' -H 'Expect: "
                     "100-continue' --data-binary @- http://127.0.0.1:%d/v1/completions",
                     s->port);
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "413"));
    command_free(&c);
}

static int start_server(void **state) {
    static struct served s;
    char arguments[64];
    int fd = mkstemp(key_file);
    if (fd < 0 || write(fd, "secret\n", 7) != 7)
        return -1;
    close(fd);
    snprintf(arguments, sizeof arguments, "--kv-blocks 400 --api-key %s", key_file);
    s = served_start(&(struct served_options){.arguments = arguments});
    *state = &s;
    return 0;
}

static int end_server(void **state) {
    unlink(key_file);
    return served_end(*state, SIGTERM) == 128 + SIGTERM ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_openai_library_is_content),
        cmocka_unit_test(curl_is_content),
    };
    (void)argc;
    build_folder(argv[0]);
    return cmocka_run_group_tests(tests, start_server, end_server);
}
