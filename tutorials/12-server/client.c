#include "tutorials/12-server/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* HTTP 1.0, so that the answer comes as it is and ends with the connection. */
static int send_all(int fd, const char *path, const char *body) {
    char *text;
    int n = asprintf(&text,
                     "POST %s HTTP/1.0\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     path, strlen(body), body);
    if (n < 0)
        return -1;
    ssize_t sent = 0;
    for (const char *at = text; n > 0 && sent >= 0; at += sent, n -= (int)sent)
        sent = send(fd, at, (size_t)n, MSG_NOSIGNAL);
    free(text);
    return sent < 0 ? -1 : 0;
}

int client_send(int port, const char *path, const char *body, struct error *err) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address) &&
        !send_all(fd, path, body))
        return fd;
    error_set(err, "port %d: cannot send: %s", port, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

int client_post(int port, const char *path, const char *body,
                void (*event)(void *context, const json_t *json), void *context,
                struct error *err) {
    char *line = NULL;
    size_t capacity = 0;
    int status = 0;
    bool in_body = false;
    int fd = client_send(port, path, body, err);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f)
        return -1;
    while (getline(&line, &capacity, f) > 0) {
        if (!in_body && !status)
            status = atoi(line + strcspn(line, " "));
        in_body = in_body || !strcmp(line, "\r\n");
        json_t *json = !strncmp(line, "data: {", 7) ? json_loads(line + 6, 0, NULL) : NULL;
        if (json)
            event(context, json);
        json_decref(json);
    }
    free(line);
    fclose(f);
    return status ? status : error_set(err, "port %d: no answer", port);
}

char *client_body(const struct request *r) {
    json_t *ids = json_array();
    for (int i = 0; i < r->n_prompt; i++)
        json_array_append_new(ids, json_integer(r->prompt[i]));
    json_t *body = json_pack("{so si sf sf si sb}", "prompt", ids, "max_tokens", r->max_new,
                             "temperature", (double)r->sampling.temperature, "top_p",
                             (double)r->sampling.top_p, "top_k", r->sampling.top_k, "stream", 1);
    if (r->ignore_stop)
        json_object_set_new(body, "ignore_eos", json_true());
    if (r->sampling.has_seed)
        json_object_set_new(body, "seed", json_integer((json_int_t)r->sampling.seed));
    char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(body);
    return text;
}
