#include "tests/served.h"
#include "tests/command.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the process ----------------------------------------------------------------------------- */

/* In the child: becomes the server. */
static void become(const struct served *s, const struct served_options *o) {
    static char words[512];
    const char *given = getenv("SAMEBITS_DEVICE");
    char device[8], program[64], port[12];
    char *arguments[40] = {program, "--device", device, "--serve", port};
    int n = 5, log = open(o->log ? o->log : s->log, O_WRONLY | O_APPEND);
    struct rlimit files = {(rlim_t)o->most_files, (rlim_t)o->most_files};
    snprintf(program, sizeof program, "%s/%sdemo%d", build_folder(NULL), o->lose_at ? "emu-" : "",
             o->phase ? o->phase : 12);
    snprintf(device, sizeof device, "%s", o->lose_at ? "emu" : given ? given : "cpu");
    snprintf(port, sizeof port, "%d", s->port);
    if (o->lose_at) {
        char call[12];
        snprintf(call, sizeof call, "%d", o->lose_at);
        setenv("SAMEBITS_EMU_LOSE_AT", call, 1);
    }
    snprintf(words, sizeof words, "%s", o->arguments ? o->arguments : "");
    for (char *word = strtok(words, " "); word && n < 39; word = strtok(NULL, " "))
        arguments[n++] = word;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no server behind */
    dup2(log, STDERR_FILENO);
    close(log);
    if (o->most_files)
        setrlimit(RLIMIT_NOFILE, &files);
    execv(program, arguments);
    _exit(127);
}

/* A port that is free now. */
static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

struct served served_start(const struct served_options *options) {
    struct served s = {.port = free_port()};
    int fd = -1;
    if (!options->log) {
        strcpy(s.log, "/tmp/samebits-log-XXXXXX");
        close(mkstemp(s.log));
    }
    s.pid = fork();
    assert_true(s.pid >= 0);
    if (!s.pid)
        become(&s, options);
    for (int i = 0; (fd = served_connect(&s)) < 0; i++) {
        if (i == 3000 || waitpid(s.pid, NULL, WNOHANG))
            fail_msg("the server does not listen; its log: %s", options->log ? "" : served_log(&s));
        usleep(10000);
    }
    close(fd);
    return s;
}

int served_end(struct served *s, int signal) {
    int status;
    kill(s->pid, signal);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 128 + signal && s->log[0])
        fprintf(stderr, "%s", served_log(s));
    if (s->log[0])
        unlink(s->log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

char *served_log(const struct served *s) {
    int fd = open(s->log, O_RDONLY);
    assert_true(fd >= 0);
    char *text = served_read(fd);
    close(fd);
    return text;
}

/* ---- its clients ----------------------------------------------------------------------------- */

int served_connect(const struct served *s) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)s->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {120, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return fd;
}

bool served_send(int fd, const void *bytes, size_t n) {
    const char *at = bytes;
    for (ssize_t sent; n; at += sent, n -= (size_t)sent)
        if ((sent = send(fd, at, n, MSG_NOSIGNAL)) <= 0)
            return false;
    return true;
}

bool served_post(int fd, const char *method, const char *path, const char *head, const char *body) {
    char *text;
    int n = asprintf(&text, "%s %s HTTP/1.0\r\n%sContent-Length: %zu\r\n\r\n%s", method, path, head,
                     strlen(body), body);
    assert_true(n > 0);
    bool sent = served_send(fd, text, (size_t)n);
    free(text);
    return sent;
}

char *served_read(int fd) {
    size_t n = 0, size = 1 << 14;
    char *text = malloc(size + 1);
    assert_non_null(text);
    for (ssize_t got; (got = read(fd, text + n, size - n)) > 0;) {
        n += (size_t)got;
        if (n == size) {
            text = realloc(text, 1 + (size *= 2));
            assert_non_null(text);
        }
    }
    text[n] = 0;
    return text;
}

char *served_ask(const struct served *s, const char *method, const char *path, const char *head,
                 const char *body) {
    int fd = served_connect(s);
    assert_true(fd >= 0);
    served_post(fd, method, path, head, body);
    char *answer = served_read(fd);
    close(fd);
    return answer;
}

int served_status(const char *answer) {
    return strncmp(answer, "HTTP/1.", 7) ? 0 : atoi(answer + strcspn(answer, " "));
}

bool served_is_slow(void) {
    return strcmp(build_folder(NULL), "build/release") != 0;
}

json_t *served_json(const char *answer) {
    const char *body = strstr(answer, "\r\n\r\n");
    assert_non_null(body);
    json_t *json = json_loads(body + 4, 0, NULL);
    if (!json)
        fail_msg("no JSON: %s", answer);
    return json;
}

void served_wait_idle(const struct served *s, const char *head) {
    for (int i = 0;; i++) {
        char *m = served_ask(s, "GET", "/metrics", head, "");
        bool idle = strstr(m, "num_requests_running{model_name=\"data/model\"} 0\n") &&
                    strstr(m, "num_requests_waiting{model_name=\"data/model\"} 0\n") &&
                    strstr(m, "kv_cache_usage_perc{model_name=\"data/model\"} 0\n");
        if (!idle && i == 600)
            fail_msg("not idle after a minute: %s", m);
        free(m);
        if (idle)
            return;
        usleep(100000);
    }
}

bool served_fingerprint(const char *answer, char out[17]) {
    const char *at = strstr(answer, "\"samebits_fingerprint\":\"");
    if (at)
        snprintf(out, 17, "%.16s", at + 24);
    return at != NULL;
}
