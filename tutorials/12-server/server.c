#include "tutorials/12-server/server.h"

#include "tutorials/common/page.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* ---- replies --------------------------------------------------------------------------------- */

enum MHD_Result server_reply(struct exchange *x, int status, const char *type, const char *text,
                             size_t n) {
    struct MHD_Response *response =
        MHD_create_response_from_buffer(n, (void *)text, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "X-Request-Id", x->id);
    if (status == 429 || status == 503)
        MHD_add_response_header(response, "Retry-After", "1");
    if (status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == 405)
        MHD_add_response_header(response, "Allow", x->allowed);
    if (status == 413)
        MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    x->status = status;
    return result;
}

enum MHD_Result server_reply_json(struct exchange *x, int status, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (!text)
        return MHD_NO;
    enum MHD_Result result = server_reply(x, status, "application/json", text, strlen(text));
    free(text);
    return result;
}

enum MHD_Result server_refuse(struct exchange *x, const struct api_error *err) {
    return server_reply_json(x, err->status, api_error_json(err));
}

static enum MHD_Result refuse(struct exchange *x, int status, const char *why) {
    struct api_error err = {.status = status};
    error_set(&err.why, "%s", why);
    return server_refuse(x, &err);
}

/* ---- the paths ------------------------------------------------------------------------------- */

static enum MHD_Result chat(struct exchange *x) {
    return exchange_begin(x, true);
}

static enum MHD_Result completions(struct exchange *x) {
    return exchange_begin(x, false);
}

static enum MHD_Result models(struct exchange *x) {
    return server_reply_json(x, 200, api_models(x->server->demo, x->server->started));
}

static enum MHD_Result health(struct exchange *x) {
    struct api_error err = {.status = 503};
    return service_stopping(x->server->service, &err.why)
               ? server_refuse(x, &err)
               : server_reply(x, 200, "text/plain", "", 0);
}

static enum MHD_Result metrics(struct exchange *x) {
    struct service_metrics m;
    service_measure(x->server->service, &m);
    char *text = api_metrics(&m, x->server->demo->options.model);
    if (!text)
        return MHD_NO;
    enum MHD_Result result =
        server_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, strlen(text));
    free(text);
    return result;
}

static enum MHD_Result convert(struct exchange *x,
                               json_t *(*with)(const struct demo *, const char *, size_t,
                                               struct api_error *)) {
    struct api_error err;
    json_t *json = with(x->server->demo, x->body ? x->body : "", x->n_body, &err);
    return json ? server_reply_json(x, 200, json) : server_refuse(x, &err);
}

static enum MHD_Result tokenize(struct exchange *x) {
    return convert(x, api_tokenize);
}

static enum MHD_Result detokenize(struct exchange *x) {
    return convert(x, api_detokenize);
}

static enum MHD_Result page(struct exchange *x) {
    return server_reply(x, 200, "text/html; charset=utf-8", page_text,
                        (size_t)(page_end - page_text));
}

static enum MHD_Result state(struct exchange *x) {
    service_poke(x->server->service);
    const char *since = MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, "since");
    char *text = live_view_text(&x->server->view, since ? atol(since) : -1);
    if (!text)
        return MHD_NO;
    enum MHD_Result result = server_reply(x, 200, "application/json", text, strlen(text));
    free(text);
    return result;
}

static const struct route {
    const char *method, *path;
    enum MHD_Result (*answer)(struct exchange *x);
    bool is_open; /* without a key */
} routes[] = {
    {"POST", "/v1/chat/completions", chat, false},
    {"POST", "/v1/completions", completions, false},
    {"GET", "/v1/models", models, false},
    {"POST", "/tokenize", tokenize, false},
    {"POST", "/detokenize", detokenize, false},
    {"GET", "/metrics", metrics, false},
    {"GET", "/state", state, false},
    {"GET", "/health", health, true},
    {"GET", "/", page, true},
};

static const struct route *find_route(const char *path) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (!strcmp(path, routes[i].path))
            return &routes[i];
    return NULL;
}

/* ---- a request comes in ---------------------------------------------------------------------- */

/* Compares all of it, so that the time does not tell how much was right. */
static bool has_key(const struct exchange *x) {
    const char *key = x->server->options.key;
    const char *given =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    if (!key)
        return true;
    if (!given || strncmp(given, "Bearer ", 7) || strlen(given + 7) != strlen(key))
        return false;
    unsigned char differs = 0;
    for (size_t i = 0; key[i]; i++)
        differs |= (unsigned char)(key[i] ^ given[7 + i]);
    return !differs;
}

/* Text that a client chose, for a line of the log. */
static void copy_printable(char *out, size_t size, const char *text) {
    size_t n = 0;
    for (; *text && n + 1 < size; text++)
        out[n++] = *text > ' ' && *text < 127 ? *text : '?';
    out[n] = 0;
}

static void name_exchange(struct exchange *x) {
    const char *asked = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "X-Request-Id");
    size_t plain = asked ? strspn(asked, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789-_.")
                         : 0;
    if (plain && !asked[plain] && plain < sizeof x->id)
        memcpy(x->id, asked, plain + 1);
    else
        snprintf(x->id, sizeof x->id, "%lx-%ld", x->server->started, ++x->server->n_requests);
}

static struct exchange *exchange_new(struct server *s, struct MHD_Connection *connection,
                                     const char *method, const char *path) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->server = s;
    x->connection = connection;
    x->fd = connections_fd(connection);
    x->began = clock_now();
    copy_printable(x->method, sizeof x->method, method);
    copy_printable(x->path, sizeof x->path, path);
    name_exchange(x);
    return x;
}

/* A client that waits for leave to send its body is told at once; one that sends it anyway is told
 * when it has, because it does not read before. */
static bool asks_too_much(const struct exchange *x) {
    const char *length =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Length");
    return length && strtoull(length, NULL, 10) > x->server->options.most_body &&
           MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Expect");
}

void exchange_forget_body(struct exchange *x) {
    x->server->n_body_bytes -= x->n_body;
    free(x->body);
    x->body = NULL;
    x->n_body = 0;
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t *n) {
    struct server *s = x->server;
    if (x->n_body + *n > s->options.most_body)
        x->refused = 413; /* the rest is read, and forgotten */
    else if (s->n_body_bytes + *n > 16 * s->options.most_body)
        x->refused = 503;
    if (!x->refused) {
        char *larger = realloc(x->body, x->n_body + *n);
        if (!larger)
            return MHD_NO;
        x->body = larger;
        memcpy(x->body + x->n_body, data, *n);
        x->n_body += *n;
        s->n_body_bytes += *n;
    } else {
        exchange_forget_body(x);
    }
    *n = 0;
    return MHD_YES;
}

static enum MHD_Result refuse_body(struct exchange *x) {
    char why[100];
    snprintf(why, sizeof why, "the body is too large: at most %zu bytes",
             x->server->options.most_body);
    return x->refused == 503 ? refuse(x, 503, "too many requests come in at once: try again later")
                             : refuse(x, 413, why);
}

static enum MHD_Result answer_to(struct exchange *x, const char *method, const char *path) {
    const struct route *route = find_route(path);
    connections_reads(x->server, x->connection, false);
    if (x->refused)
        return refuse_body(x);
    if (!route)
        return refuse(x, 404, "there is no such path; GET / shows the page");
    if (strcmp(method, route->method)) {
        x->allowed = route->method;
        return refuse(x, 405, "this path has another method");
    }
    if (!route->is_open && !has_key(x))
        return refuse(x, 401, "a key is needed: Authorization: Bearer KEY");
    return route->answer(x);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **state_of) {
    struct exchange *x = *state_of;
    (void)version;
    if (!x) {
        if (!(x = *state_of = exchange_new(context, connection, method, url)))
            return MHD_NO;
        x->refused = asks_too_much(x) ? 413 : 0;
        return x->refused ? refuse_body(x) : MHD_YES;
    }
    if (*n)
        return take_body(x, data, n);
    return x->submitted ? exchange_resume(x) : answer_to(x, method, url);
}

/* A line for each request: never its contents, nor its key. */
static void log_request(const struct exchange *x, bool sent) {
    char moment[32];
    time_t now = time(NULL);
    struct tm utc;
    if (!x->server->options.log || !strcmp(x->path, "/state")) /* an open page asks all the time */
        return;
    strftime(moment, sizeof moment, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    pthread_mutex_lock(&x->server->lock);
    long n_new = x->n_new;
    pthread_mutex_unlock(&x->server->lock);
    fprintf(stderr, "%s %s %s %s %d %.1f ms, %ld prompt tokens, %ld new%s\n", moment, x->id,
            x->method, x->path, x->status ? x->status : 499, (clock_now() - x->began) * 1e3,
            api_prompt_tokens(&x->request), n_new, sent ? "" : ", client gone");
}

static void on_completed(void *context, struct MHD_Connection *connection, void **state_of,
                         enum MHD_RequestTerminationCode how) {
    struct exchange *x = *state_of;
    if (!x)
        return;
    connections_reads(context, connection, true);
    log_request(x, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    exchange_close(x);
    *state_of = NULL;
}

void server_stepped(void *context, const struct engine *e) {
    struct server *s = context;
    connections_stepped(s);
    live_view_update(&s->view, e);
}

/* What a connection has for the head of a request and its buffers, in bytes. For more than this,
 * libmicrohttpd maps pages anew for each connection. */
static const size_t most_head = 32 << 10;

/* ---- start and end ------------------------------------------------------------------------------
 */

static int address_of(struct sockaddr_storage *to, const struct server_options *o,
                      struct error *err) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)to;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, o->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)o->port);
        return 0;
    }
    if (inet_pton(AF_INET6, o->host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)o->port);
        return 0;
    }
    return error_set(err, "--host %s: must be a numeric address, as 127.0.0.1 or ::1", o->host);
}

int server_start(struct server *s, const struct demo *demo, struct service *service,
                 const struct server_options *options, struct error *err) {
    struct sockaddr_storage address;
    s->demo = demo;
    s->service = service;
    s->options = *options;
    s->started = (long)time(NULL);
    if (connections_start(s, err) || address_of(&address, options, err) ||
        api_system_fingerprint(s->system_fingerprint, demo->options.model, err))
        return -1;
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME |
                     (address.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    s->daemon = MHD_start_daemon(flags, (uint16_t)options->port, NULL, NULL, on_request, s,
                                 MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_NOTIFY_COMPLETED,
                                 on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, connections_notify,
                                 s, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)options->time_limit,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)options->most_connections,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, most_head,
                                 MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    if (!s->daemon)
        return error_set(err, "cannot listen on %s port %d: %s", options->host, options->port,
                         strerror(errno));
    s->port = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    return 0;
}

/* The engine has made the last answers just now: they are not sent yet. */
static void let_send(struct server *s) {
    for (int i = 0, n = 1; n && i < 200; i++) {
        pthread_mutex_lock(&s->lock);
        n = s->n_unanswered;
        pthread_mutex_unlock(&s->lock);
        nanosleep(&(struct timespec){0, n ? 10000000 : 0}, NULL);
    }
}

void server_end(struct server *s) {
    if (s->daemon)
        let_send(s);
    connections_end(s);
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    live_view_end(&s->view);
    s->daemon = NULL;
}
