/*
 * What the connections are watched for: clients that have gone, and those that take too long to
 * say what they want. libmicrohttpd sees neither the first, while a connection is suspended, nor
 * the second, as long as a byte comes now and then.
 */
#include "tutorials/12-server/server.h"

#include <stdlib.h>
#include <sys/socket.h>

struct connection {
    int fd;
    double since; /* clock_now: waits for a request, or for the rest of one; 0: is answered */
    struct connection *previous, *next;
};

int connections_fd(struct MHD_Connection *of) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(of, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static struct connection *connection_new(struct server *s, struct MHD_Connection *of) {
    struct connection *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    *c = (struct connection){.fd = connections_fd(of), .since = clock_now()};
    pthread_mutex_lock(&s->lock);
    c->next = s->connections;
    if (c->next)
        c->next->previous = c;
    s->connections = c;
    pthread_mutex_unlock(&s->lock);
    return c;
}

static void connection_free(struct server *s, struct connection *c) {
    pthread_mutex_lock(&s->lock);
    *(c->previous ? &c->previous->next : &s->connections) = c->next;
    if (c->next)
        c->next->previous = c->previous;
    pthread_mutex_unlock(&s->lock);
    free(c);
}

void connections_notify(void *context, struct MHD_Connection *of, void **own,
                        enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *own = connection_new(context, of);
    } else if (*own) { /* its socket is still open */
        connection_free(context, *own);
        *own = NULL;
    }
}

void connections_reads(struct server *s, struct MHD_Connection *of, bool reads) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(of, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *c = info ? info->socket_context : NULL;
    pthread_mutex_lock(&s->lock);
    if (c)
        c->since = reads ? clock_now() : 0;
    pthread_mutex_unlock(&s->lock);
}

void server_check(struct server *s) {
    double now = clock_now();
    pthread_mutex_lock(&s->lock);
    for (struct connection *c = s->connections; c; c = c->next)
        if (c->since > 0 && now - c->since > s->options.time_limit) {
            shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees an end, and closes it */
            c->since = 0;
        }
    pthread_mutex_unlock(&s->lock);
}

/* ---- after each step ------------------------------------------------------------------------- */

static void cancel_gone(struct server *s) {
    nfds_t n = 0;
    for (struct exchange *x = s->open; x; x = x->next)
        s->polled[n++] = (struct pollfd){.fd = x->gone ? -1 : x->fd, .events = POLLRDHUP};
    if (poll(s->polled, n, 0) <= 0)
        return;
    const struct pollfd *p = s->polled;
    for (struct exchange *x = s->open; x; x = x->next)
        if (p++->revents)
            exchange_cancel(x);
}

static void *watch(void *context) {
    struct server *s = context;
    pthread_mutex_lock(&s->lock);
    while (!s->ends)
        if (s->stepped) {
            s->stepped = false;
            exchange_wake_ready(s);
            cancel_gone(s);
        } else {
            pthread_cond_wait(&s->step, &s->lock);
        }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int connections_start(struct server *s, struct error *err) {
    s->polled = calloc((size_t)s->options.most_connections, sizeof *s->polled);
    if (!s->polled)
        return error_set(err, "out of memory for %d connections", s->options.most_connections);
    if (pthread_create(&s->watcher, NULL, watch, s))
        return error_set(err, "cannot start a thread for the connections");
    s->has_watcher = true;
    return 0;
}

static void tell(struct server *s, bool *what) {
    pthread_mutex_lock(&s->lock);
    *what = true;
    pthread_cond_signal(&s->step);
    pthread_mutex_unlock(&s->lock);
}

void connections_stepped(struct server *s) {
    tell(s, &s->stepped);
}

void connections_end(struct server *s) {
    if (s->has_watcher) {
        tell(s, &s->ends);
        pthread_join(s->watcher, NULL);
    }
    free(s->polled);
    s->has_watcher = false;
    s->polled = NULL;
}
