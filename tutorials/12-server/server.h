/*
 * server.h - phase 12: the engine behind HTTP. libmicrohttpd has the connections, in one thread of
 * its own; the service (scheduler/service.h) has the engine, in another.
 *
 *     HTTP thread                                          engine thread
 *     body arrives -> api_read -> service_submit ────────▶ engine_submit, steps
 *     exchange: the connection is suspended  ◀──────────── drew: an event behind exchange.out;
 *     resumed: sends what is in exchange.out               after the step a third thread
 *                                                          (connections.c) resumes all of them
 *     connection closed -> service_cancel ───────────────▶ the request ends, its blocks return
 */
#ifndef SAMEBITS_SERVER_H
#define SAMEBITS_SERVER_H

#include "scheduler/history.h"
#include "scheduler/service.h"
#include "tutorials/12-server/api.h"

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>

struct server_options {
    const char *host; /* numeric address to listen on */
    int port;         /* 0: any that is free */
    const char *key;  /* what clients must have as a bearer token; NULL: nothing */
    size_t most_body; /* bytes; of all together at most 16 times that, at a time */
    int time_limit;   /* seconds for a request to come, its last byte, too; and for a connection to
                         do nothing */
    int most_connections;
    bool log; /* a line on stderr for each request */
};

/* What the engine does, as JSON for the page: told by the engine thread, while somebody looks. */
enum { LIVE_CHANGES = 1024 };
struct live_view {
    pthread_mutex_t lock;
    struct history history;
    json_t *changes[LIVE_CHANGES]; /* the last of n_changes, a ring */
    long n_changes;
    double made, asked, began; /* clock_now: of the last change and look, and when the run began */
};

struct server {
    const struct demo *demo;
    struct service *service;
    struct server_options options;
    struct MHD_Daemon *daemon;
    char system_fingerprint[32];
    int port;     /* where it listens */
    long started; /* Unix time */
    struct live_view view;
    long n_requests;       /* for their ids */
    size_t n_body_bytes;   /* of the bodies that are there now */
    pthread_mutex_t lock;  /* of what follows, and of all exchanges */
    struct exchange *open; /* those that wait for the engine */
    int n_unanswered;      /* those that the engine has or had, whose answers are not sent yet */
    struct connection *connections;
    struct pollfd *polled; /* [most_connections] */
    pthread_t watcher;     /* of connections_start */
    pthread_cond_t step;   /* one is done, or it is time to end */
    bool stepped, ends, has_watcher;
};

/* Listens, on a service that runs. The options' strings and the demo stay where they are. Returns
 * 0, or -1 with err set: the address cannot be had, no memory. server_end in either case. */
int server_start(struct server *s, const struct demo *demo, struct service *service,
                 const struct server_options *options, struct error *err);

/* Closes all connections; the service must have ended before. Answers that are complete have two
 * seconds to be sent. A zeroed one is fine. */
void server_end(struct server *s);

/* Closes connections whose requests have not come in time_limit seconds. To be called now and then,
 * from any thread. */
void server_check(struct server *s);

/* For struct service_options; context: the server. Lets the step's tokens be sent and the requests
 * of clients that have gone be cancelled, and makes the live view. */
void server_stepped(void *context, const struct engine *e);

/* ---- between the server's files -------------------------------------------------------------- */

/* One request of a client and its answer. */
struct exchange {
    struct server *server;
    struct MHD_Connection *connection;
    double began;
    char id[48];               /* the client's X-Request-Id, or one of ours */
    char method[12], path[64]; /* for the log */
    int status, fd;
    char *body;
    size_t n_body;
    int refused;         /* the status, when its body is not kept; else 0 */
    const char *allowed; /* the method of its path, when it has another one */

    /* A completion has these, too. All below is under the server's lock once it is submitted. */
    struct api_request request;
    struct api_head head;
    struct choice *choices; /* [n_choices], those of each prompt side by side */
    int n_choices;
    int n_open;             /* choices that are not done */
    long n_new;             /* tokens drawn */
    json_t *list;           /* whole choices, of an answer in one piece */
    struct api_error error; /* status 0: none */
    char *out;              /* [n_out] what is to be sent; [n_sent] has been */
    size_t n_out, n_sent, capacity;
    bool submitted, suspended, gone;
    bool ready;                       /* a step has added to out */
    bool broken;                      /* its answer cannot be sent as a whole */
    struct exchange *previous, *next; /* among those that wait */
};

/* Begins the completion that the body asks for. Returns what the access handler has to. */
enum MHD_Result exchange_begin(struct exchange *x, bool chat);

/* Goes on with a completion that was submitted: the connection was resumed. */
enum MHD_Result exchange_resume(struct exchange *x);

/* Wakes the connections to whose answers a step has added. Under the server's lock. */
void exchange_wake_ready(struct server *s);

/* Appends to what is to be sent. A client that lets too much wait is given up, as one that went
 * away. Like the next two under the server's lock. */
void exchange_put(struct exchange *x, const char *text, size_t n);

/* One server-sent event. Takes the JSON. */
void exchange_put_event(struct exchange *x, json_t *json);

/* The event of a choice that has nothing but text, in the middle of a stream: most are. They differ
 * in the text alone, so the rest is written once. */
struct event_form {
    char *text; /* owned; NULL: not written yet */
    size_t n_before;
};
void exchange_put_text(struct exchange *x, int index, struct event_form *f, const char *text,
                       size_t n);

/* Its requests end within a step. Under the server's lock. */
void exchange_cancel(struct exchange *x);

/* The connection is closed, or the answer is complete. x may live on until the engine has let go.
 */
void exchange_close(struct exchange *x);

/* Its body is not needed any more. In the HTTP thread. */
void exchange_forget_body(struct exchange *x);

/* Frees it. */
void exchange_free(struct exchange *x);

/* For MHD_OPTION_NOTIFY_CONNECTION: keeps the list of connections. */
void connections_notify(void *context, struct MHD_Connection *of, void **own,
                        enum MHD_ConnectionNotificationCode what);

/* From now on a connection waits for a request, or one has come and is answered. */
void connections_reads(struct server *s, struct MHD_Connection *of, bool reads);

/* Its socket. */
int connections_fd(struct MHD_Connection *of);

/* Starts and ends a thread that does after each step what the engine need not wait for: it wakes
 * connections, and cancels the requests of clients that closed their end. Returns 0, or -1 with err
 * set; connections_end in either case. */
int connections_start(struct server *s, struct error *err);
void connections_end(struct server *s);

/* A step is done. */
void connections_stepped(struct server *s);

/* Answers with n bytes of text. */
enum MHD_Result server_reply(struct exchange *x, int status, const char *type, const char *text,
                             size_t n);

/* Answers with JSON (which it takes), or with an error. */
enum MHD_Result server_reply_json(struct exchange *x, int status, json_t *json);
enum MHD_Result server_refuse(struct exchange *x, const struct api_error *err);

/* For the page, malloc'ed JSON: {now: seconds of the run, next: the number of the next change, all:
 * whether `changes` is one of everything, because those from number `since` on are not there, or
 * since is -1; block_size, blocks (shown), all_blocks, changes: (scheduler/history.h)}. NULL: no
 * memory. */
char *live_view_text(struct live_view *view, long since);

/* Adds what is new, if somebody has looked lately. In the engine thread. */
void live_view_update(struct live_view *view, const struct engine *e);

/* Frees the changes; of a view without any it is fine. */
void live_view_end(struct live_view *view);

#endif
