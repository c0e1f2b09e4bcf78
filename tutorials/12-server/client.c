#include "tutorials/12-server/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client and the answer that it is getting. */
struct client {
    int fd; /* its socket; -1: it has nothing to do */
    int request;
    char *answer; /* [n] the bytes that came, with a NUL behind */
    size_t n, capacity;
};

struct clients {
    const struct workload *w;
    struct call *calls;
    int port, n;
    int epoll;          /* watches their sockets */
    struct client *all; /* [n] */
    int next, n_done;   /* requests: the one to be sent next, and those that were answered */
    double began;
};

/* ---- sending ----------------------------------------------------------------------------------
 */

/* A request as a body: its token ids, so that nothing can be encoded otherwise. */
static char *body_of(const struct request *r) {
    json_t *ids = json_array();
    for (int i = 0; i < r->n_prompt; i++)
        json_array_append_new(ids, json_integer(r->prompt[i]));
    json_t *body =
        json_pack("{so si sf sf si sb sb}", "prompt", ids, "max_tokens", r->max_new, "temperature",
                  (double)r->sampling.temperature, "top_p", (double)r->sampling.top_p, "top_k",
                  r->sampling.top_k, "stream", 1, "ignore_eos", r->ignore_stop);
    if (r->sampling.has_seed)
        json_object_set_new(body, "seed", json_integer((json_int_t)r->sampling.seed));
    char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(body);
    return text;
}

/* HTTP 1.0, so that the answer comes as it is and ends with the connection. */
static int send_all(int fd, const char *body) {
    char *text;
    int n = asprintf(&text,
                     "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    if (n < 0)
        return -1;
    ssize_t sent = 0;
    for (const char *at = text; n > 0 && sent >= 0; at += sent, n -= (int)sent)
        sent = send(fd, at, (size_t)n, MSG_NOSIGNAL);
    free(text);
    return sent < 0 ? -1 : 0;
}

/* Returns the socket, or -1 with err set. */
static int send_request(int port, const struct request *r, struct error *err) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char *body = body_of(r);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !body || connect(fd, (struct sockaddr *)&address, sizeof address) ||
        send_all(fd, body)) {
        error_set(err, "port %d: cannot send: %s", port, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    free(body);
    return fd;
}

/* Sends what is due and finds a client. Returns the milliseconds until the next arrival, -1 when
 * all clients are busy or nothing is left; -2 with err set. */
static int send_due(struct clients *c, struct error *err) {
    for (int i = 0; i < c->n && c->next < c->w->n; i++) {
        struct client *client = &c->all[i];
        struct epoll_event event = {EPOLLIN, {.u32 = (uint32_t)i}};
        if (client->fd >= 0)
            continue;
        double now = clock_now() - c->began, wait = c->w->requests[c->next].arrival - now;
        if (wait > 0)
            return (int)(wait * 1e3) + 1;
        client->fd = send_request(c->port, &c->w->requests[c->next], err);
        if (client->fd < 0)
            return -2;
        if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, client->fd, &event))
            return error_set(err, "epoll: %s", strerror(errno)) - 1;
        client->request = c->next;
        client->n = 0;
        c->calls[c->next++] = (struct call){.sent = now};
    }
    return -1;
}

/* ---- receiving --------------------------------------------------------------------------------
 */

/* The connection is closed: was that an answer? */
static int finish(struct clients *c, const struct client *client, double now, struct error *err) {
    static const char key[] = "\"samebits_fingerprint\":\"";
    struct call *call = &c->calls[client->request];
    const char *answer = client->n ? client->answer : "", *found = strstr(answer, key);
    if (!found || !strstr(found, "data: [DONE]"))
        return error_set(err, "request %d was not answered: %.300s", client->request, answer);
    snprintf(call->fingerprint, sizeof call->fingerprint, "%.16s", found + sizeof key - 1);
    call->last = now;
    for (const char *at = answer; (at = strstr(at, "\ndata: {")); at++)
        call->n_events++;
    c->n_done++;
    return 0;
}

/* Reads what has come. Returns 1 when that was all, or -1 with err set. */
static int receive(struct clients *c, struct client *client, struct error *err) {
    struct call *call = &c->calls[client->request];
    if (client->capacity - client->n < 4096) {
        size_t capacity = 2 * client->capacity + 8192;
        char *larger = realloc(client->answer, capacity);
        if (!larger)
            return error_set(err, "out of memory for an answer");
        client->answer = larger;
        client->capacity = capacity;
    }
    ssize_t n = recv(client->fd, client->answer + client->n, client->capacity - client->n - 1, 0);
    double now = clock_now() - c->began;
    if (n <= 0)
        return finish(c, client, now, err) ? -1 : 1;
    client->n += (size_t)n;
    client->answer[client->n] = 0;
    if (call->first == 0 && strstr(client->answer, "\ndata: {"))
        call->first = now;
    return 0;
}

static int run(struct clients *c, const struct demo *demo, struct error *err) {
    struct epoll_event events[64];
    while (c->n_done < c->w->n && !demo_interrupted(demo)) {
        int wait = send_due(c, err);
        if (wait < -1)
            return -1;
        int n = epoll_wait(c->epoll, events, sizeof events / sizeof *events, wait);
        if (n < 0 && errno != EINTR)
            return error_set(err, "epoll: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            struct client *client = &c->all[events[i].data.u32];
            int result = receive(c, client, err);
            if (result < 0)
                return -1;
            if (result) {
                close(client->fd);
                client->fd = -1;
            }
        }
    }
    return 0;
}

int client_call_all(const struct demo *demo, const struct workload *w, int port, int n_clients,
                    struct call *calls, struct error *err) {
    size_t n = (size_t)n_clients;
    struct clients c = {.w = w,
                        .calls = calls,
                        .port = port,
                        .n = n_clients,
                        .epoll = epoll_create1(EPOLL_CLOEXEC),
                        .all = calloc(n, sizeof *c.all),
                        .began = clock_now()};
    int result = c.all && c.epoll >= 0 ? 0 : error_set(err, "cannot have %d clients", n_clients);
    for (int i = 0; c.all && i < n_clients; i++)
        c.all[i].fd = -1;
    result = result || run(&c, demo, err);
    for (int i = 0; c.all && i < n_clients; i++) {
        free(c.all[i].answer);
        if (c.all[i].fd >= 0)
            close(c.all[i].fd);
    }
    if (c.epoll >= 0)
        close(c.epoll);
    free(c.all);
    return result ? -1 : 0;
}
