#include "tutorials/12-server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One of the answers to a request. */
struct choice {
    struct ticket ticket; /* first: the service knows this one */
    struct exchange *exchange;
    int index;
    size_t n_told;    /* bytes of its text that were sent */
    long offset;      /* of the next token in the text, in characters */
    bool begun;       /* something was sent */
    json_t *logprobs; /* entries not sent yet; NULL: not wanted */
    struct event_form form;
};

/* Under the server's lock. */
static void wake(struct exchange *x) {
    if (x->suspended)
        MHD_resume_connection(x->connection);
    x->suspended = false;
}

/* ---- what the engine tells, in its thread ---------------------------------------------------- */

/* How much of the text cannot be the beginning of a stop string. */
static size_t safe_length(const struct request *r, const struct answer *a) {
    size_t held = 0;
    if (a->sequence.finish != FINISH_NOT_YET)
        return a->n_text;
    for (int i = 0; i < r->n_stops; i++) {
        size_t n = strlen(r->stops[i]) - 1;
        for (n = n < a->n_text ? n : a->n_text; n > held; n--)
            if (!memcmp(a->text + a->n_text - n, r->stops[i], n))
                held = n;
    }
    return a->n_text - held;
}

/* The receipt of an answer that has ended, if it was asked for and there is memory. */
static json_t *receipt_of_choice(const struct choice *c, const struct answer *a) {
    const struct demo *demo = c->exchange->server->demo;
    struct error err;
    bool wanted = c->ticket.request.receipt && a->sequence.finish != FINISH_NOT_YET;
    return wanted ? demo->phase->receipt(demo, &c->ticket.request, &a->sequence, &err) : NULL;
}

/* What choice c has to say beyond what was told, or all of it. */
static json_t *piece(struct choice *c, const struct answer *a, bool delta) {
    struct exchange *x = c->exchange;
    size_t n = safe_length(&c->ticket.request, a), from = delta ? c->n_told : 0;
    struct api_choice choice = {.index = c->index,
                                .text = a->text ? a->text + from : NULL,
                                .n_text = n > from ? n - from : 0,
                                .logprobs = c->logprobs,
                                .finish = a->sequence.finish,
                                .fingerprint = fingerprint_value(&a->sequence.fingerprint),
                                .receipt = receipt_of_choice(c, a),
                                .first = !c->begun};
    const struct api_prompt *prompt = &x->request.prompts[c->index / x->request.n];
    char *echoed = NULL;
    if (x->request.echo && !c->begun && (echoed = malloc(prompt->n_text + choice.n_text + 1))) {
        memcpy(echoed, prompt->text, prompt->n_text);
        if (choice.n_text)
            memcpy(echoed + prompt->n_text, choice.text, choice.n_text);
        choice.text = echoed;
        choice.n_text += prompt->n_text;
    }
    c->begun = true;
    c->n_told = n;
    c->logprobs = c->logprobs && delta ? json_array() : NULL;
    json_t *json = api_choice_json(&x->head, &choice, delta);
    free(echoed);
    return json;
}

static void stream(struct choice *c, const struct answer *a) {
    struct exchange *x = c->exchange;
    if (c->begun && !c->logprobs && a->sequence.finish == FINISH_NOT_YET) {
        size_t n = safe_length(&c->ticket.request, a), told = c->n_told;
        exchange_put_text(x, c->index, &c->form, n > told ? a->text + told : "",
                          n > told ? n - told : 0);
        c->n_told = n;
        return;
    }
    json_t *choices = json_array();
    json_array_append_new(choices, piece(c, a, true));
    exchange_put_event(x, api_answer_json(&x->head, choices, true, -1, 0));
}

static void drew(struct ticket *t, const struct answer *a) {
    struct choice *c = (struct choice *)t;
    struct exchange *x = c->exchange;
    bool given = sequence_new_tokens(&a->sequence) <= a->sequence.n_forced;
    pthread_mutex_lock(&x->server->lock);
    x->n_new += !given;
    if (c->logprobs)
        json_array_append_new(c->logprobs,
                              api_logprob(x->server->demo,
                                          a->sequence.tokens[a->sequence.n_tokens - 1], &t->logprob,
                                          t->top, t->n_top, x->request.chat ? NULL : &c->offset));
    if (x->request.stream && !x->gone && !given && a->sequence.finish == FINISH_NOT_YET) {
        stream(c, a);
        x->ready = true;
    }
    pthread_mutex_unlock(&x->server->lock);
}

/* All at once: woken one by one, the HTTP thread would go round for each. */
void exchange_wake_ready(struct server *s) {
    for (struct exchange *x = s->open; x; x = x->next) {
        if (x->ready)
            wake(x);
        x->ready = false;
    }
}

/* Why a choice has no answer; status 0: it has one. */
static struct api_error failure(const struct ticket *t, const struct answer *a) {
    struct api_error err = {.status = 0};
    if (a->sequence.finish == FINISH_ERROR)
        err = (struct api_error){.status = 500, .why = a->error};
    if (a->sequence.finish == FINISH_CANCELLED) {
        err.status = t->cancelled && !t->late ? 499 : 503;
        error_set(&err.why, t->late        ? "waited too long for its turn: try again later"
                            : t->cancelled ? "cancelled: the client has gone"
                                           : "the server is shutting down");
    }
    return err;
}

/* All choices of x are done. A stream that ends with an error has no [DONE]. */
static void complete(struct exchange *x) {
    if (x->request.stream) {
        if (x->error.status)
            exchange_put_event(x, api_error_json(&x->error));
        else if (x->request.include_usage)
            exchange_put_event(x, api_answer_json(&x->head, json_array(), true,
                                                  api_prompt_tokens(&x->request), x->n_new));
        if (!x->error.status)
            exchange_put(x, "data: [DONE]\n\n", 14);
    }
    wake(x);
}

static void unlink_open(struct exchange *x) {
    *(x->previous ? &x->previous->next : &x->server->open) = x->next;
    if (x->next)
        x->next->previous = x->previous;
}

static void done(struct ticket *t, const struct answer *a) {
    struct choice *c = (struct choice *)t;
    struct exchange *x = c->exchange;
    struct api_error err = failure(t, a);
    pthread_mutex_lock(&x->server->lock);
    if (err.status)
        x->error = err;
    else if (x->request.stream)
        stream(c, a);
    else
        json_array_set_new(x->list, (size_t)c->index, piece(c, a, false));
    bool last = !--x->n_open;
    if (last) {
        unlink_open(x);
        complete(x);
    }
    bool orphan = last && x->gone;
    pthread_mutex_unlock(&x->server->lock);
    if (orphan)
        exchange_free(x);
}

/* ---- the connection's side, in the HTTP thread ------------------------------------------------
 */

/* Hands out what there is, or puts the connection to sleep. */
static ssize_t read_out(void *context, uint64_t position, char *to, size_t most) {
    struct exchange *x = context;
    ssize_t result = 0;
    (void)position;
    pthread_mutex_lock(&x->server->lock);
    size_t n = x->n_out - x->n_sent;
    if (n) {
        n = n < most ? n : most;
        memcpy(to, x->out + x->n_sent, n);
        x->n_sent += n;
        if (x->n_sent == x->n_out)
            x->n_sent = x->n_out = 0;
        result = (ssize_t)n;
    } else if (!x->n_open) {
        result = x->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->server->lock);
    return result;
}

static enum MHD_Result begin_stream(struct exchange *x) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_out, x, NULL);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Request-Id", x->id);
    enum MHD_Result result = MHD_queue_response(x->connection, 200, response);
    MHD_destroy_response(response);
    x->status = 200;
    return result;
}

/* Answer number i. Returns -1 without memory. */
static int make_choice(struct exchange *x, int i) {
    const struct api_request *r = &x->request;
    const struct demo *demo = x->server->demo;
    struct choice *c = &x->choices[i];
    *c = (struct choice){.ticket = {.request = api_answer_request(r, i, demo->generator.context),
                                    .n_logprobs = r->n_logprobs,
                                    .origin = &x->choices[i - i % r->n].ticket,
                                    .drew = drew,
                                    .done = done},
                         .exchange = x,
                         .index = i,
                         .logprobs = r->n_logprobs >= 0 ? json_array() : NULL};
    if (r->echo && c->logprobs)
        json_array_append_new(
            c->logprobs, api_logprob(demo, c->ticket.request.prompt[0], NULL, NULL, 0, &c->offset));
    if (r->n_logprobs > 0)
        c->ticket.top = calloc((size_t)r->n_logprobs, sizeof *c->ticket.top);
    return r->n_logprobs > 0 && !c->ticket.top ? -1 : 0;
}

static int make_choices(struct exchange *x) {
    const struct api_request *r = &x->request;
    int n = r->n_prompts * r->n;
    x->choices = calloc((size_t)n, sizeof *x->choices);
    x->list = r->stream ? NULL : json_array();
    while (x->choices && x->n_choices < n) {
        json_array_append_new(x->list, json_null()); /* its place */
        if (make_choice(x, x->n_choices++))
            return -1;
    }
    return x->choices ? 0 : -1;
}

/* Gives the tickets to the service; from then on the engine thread may be at them. */
static enum service_answer submit(struct exchange *x) {
    struct server *s = x->server;
    struct ticket *tickets[MOST_CHOICES];
    for (int i = 0; i < x->n_choices; i++)
        tickets[i] = &x->choices[i].ticket;
    pthread_mutex_lock(&s->lock);
    x->n_open = x->n_choices;
    x->previous = NULL;
    x->next = s->open;
    enum service_answer answer = service_submit(s->service, tickets, x->n_choices);
    if (answer == SERVICE_TAKEN) {
        x->submitted = true;
        if (s->open)
            s->open->previous = x;
        s->open = x;
        s->n_unanswered++;
    } else {
        x->n_open = 0;
    }
    pthread_mutex_unlock(&s->lock);
    return answer;
}

static void make_head(struct exchange *x) {
    x->head = (struct api_head){.chat = x->request.chat,
                                .usage_comes = x->request.include_usage,
                                .created = (long)time(NULL),
                                .model = x->server->demo->options.model,
                                .system_fingerprint = x->server->system_fingerprint};
    snprintf(x->head.id, sizeof x->head.id, "%s-%s", x->request.chat ? "chatcmpl" : "cmpl", x->id);
}

enum MHD_Result exchange_begin(struct exchange *x, bool chat) {
    struct api_error err;
    int result =
        api_read(&x->request, x->server->demo, chat, x->body ? x->body : "", x->n_body, &err);
    exchange_forget_body(x);
    if (result)
        return server_refuse(x, &err);
    make_head(x);
    err = (struct api_error){.status = 500, .why = {"out of memory"}};
    if (make_choices(x))
        return server_refuse(x, &err);
    switch (submit(x)) {
    case SERVICE_FULL:
        err.status = 429;
        error_set(&err.why, "too many requests wait already: try again in a second");
        return server_refuse(x, &err);
    case SERVICE_STOPPING:
        err.status = 503;
        service_stopping(x->server->service, &err.why);
        return server_refuse(x, &err);
    default:
        return x->request.stream ? begin_stream(x) : exchange_resume(x);
    }
}

enum MHD_Result exchange_resume(struct exchange *x) {
    pthread_mutex_lock(&x->server->lock);
    bool ready = !x->n_open;
    if (!ready) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->server->lock);
    if (!ready)
        return MHD_YES;
    if (x->error.status)
        return server_refuse(x, &x->error);
    json_t *list = x->list;
    x->list = NULL;
    return server_reply_json(
        x, 200, api_answer_json(&x->head, list, false, api_prompt_tokens(&x->request), x->n_new));
}

void exchange_cancel(struct exchange *x) {
    for (int i = 0; i < x->n_choices; i++)
        service_cancel(x->server->service, &x->choices[i].ticket);
}

void exchange_close(struct exchange *x) {
    struct server *s = x->server;
    exchange_forget_body(x);
    pthread_mutex_lock(&s->lock);
    bool busy = x->n_open > 0;
    x->gone = true;
    x->suspended = false;
    s->n_unanswered -= x->submitted;
    if (busy)
        exchange_cancel(x);
    pthread_mutex_unlock(&s->lock);
    if (!busy) /* else the last of its choices to be done frees it */
        exchange_free(x);
}

void exchange_free(struct exchange *x) {
    for (int i = 0; i < x->n_choices; i++) {
        free(x->choices[i].ticket.top);
        json_decref(x->choices[i].logprobs);
        free(x->choices[i].form.text);
    }
    free(x->choices);
    json_decref(x->list);
    api_request_free(&x->request);
    free(x->out);
    free(x);
}
