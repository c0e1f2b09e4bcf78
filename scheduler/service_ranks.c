#include "scheduler/service_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A ticket on its way, before its prompt, its draft and the lengths and texts of its stops. */
struct sent {
    int n_prompt, max_new, n_stops, n_draft;
    int origin; /* its place among the tickets that are sent */
    bool ignore_stop, forced;
    struct sampling_options sampling;
};

/* A ticket of another rank; its arrays are one piece of memory behind it. */
struct copy {
    struct ticket ticket; /* first */
    void *arrays;
};

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static int place_of(const struct ticket *inbox, const struct ticket *wanted) {
    int place = 0;
    while (inbox != wanted) {
        inbox = inbox->behind;
        place++;
    }
    return place;
}

static void put(FILE *f, const struct ticket *inbox, const struct ticket *t) {
    const struct request *r = &t->request;
    struct sent sent;
    memset(&sent, 0, sizeof sent); /* the padding, too: all of it is sent */
    sent.n_prompt = r->n_prompt;
    sent.max_new = r->max_new;
    sent.n_stops = r->n_stops;
    sent.n_draft = r->n_draft;
    sent.origin = place_of(inbox, t->origin);
    sent.ignore_stop = r->ignore_stop;
    sent.forced = r->forced;
    sent.sampling = r->sampling;
    fwrite(&sent, sizeof sent, 1, f);
    fwrite(r->prompt, sizeof *r->prompt, (size_t)r->n_prompt, f);
    if (r->n_draft)
        fwrite(r->draft, sizeof *r->draft, (size_t)r->n_draft, f);
    for (int i = 0; i < r->n_stops; i++)
        fwrite(r->stops[i], strlen(r->stops[i]) + 1, 1, f);
}

/* All tickets as bytes, malloc'ed; NULL: no memory. */
static char *write_tickets(const struct ticket *inbox, size_t *n_bytes) {
    char *bytes = NULL;
    FILE *f = open_memstream(&bytes, n_bytes);
    for (const struct ticket *t = inbox; f && t; t = t->behind)
        put(f, inbox, t);
    return f && !fclose(f) ? bytes : NULL;
}

/* ---- the others ------------------------------------------------------------------------------ */

static void tell_nobody(struct ticket *t, const struct answer *a) {
    (void)t, (void)a;
}

static void forget(struct ticket *t, const struct answer *a) {
    (void)a;
    free(t->request.stops);
    free(((struct copy *)t)->arrays);
    free(t);
}

/* One ticket of the bytes at *at; what is not aligned there is copied. NULL: no memory. */
static struct ticket *read_ticket(const char **at) {
    struct sent sent;
    memcpy(&sent, *at, sizeof sent);
    *at += sizeof sent;
    size_t n_ids = (size_t)sent.n_prompt + (size_t)sent.n_draft, n_text = 0;
    size_t n_bytes = sizeof(int32_t) * n_ids;
    for (int i = 0; i < sent.n_stops; i++)
        n_text += strlen(*at + n_bytes + n_text) + 1;
    struct copy *c = calloc(1, sizeof *c);
    char **stops = malloc(sizeof *stops * ((size_t)sent.n_stops + 1));
    int32_t *ids = malloc(n_bytes + n_text + 1);
    if (!c || !stops || !ids) {
        free(c);
        free(stops);
        free(ids);
        return NULL;
    }
    memcpy(ids, *at, n_bytes + n_text);
    *at += n_bytes + n_text;
    char *text = (char *)(ids + n_ids);
    for (int i = 0; i < sent.n_stops; i++, text += strlen(text) + 1)
        stops[i] = text;
    c->arrays = ids;
    c->ticket = (struct ticket){.request = {.prompt = ids,
                                            .n_prompt = sent.n_prompt,
                                            .max_new = sent.max_new,
                                            .sampling = sent.sampling,
                                            .stops = stops,
                                            .n_stops = sent.n_stops,
                                            .ignore_stop = sent.ignore_stop,
                                            .draft = ids + sent.n_prompt,
                                            .n_draft = sent.n_draft,
                                            .forced = sent.forced},
                                .n_logprobs = -1,
                                .drew = tell_nobody,
                                .done = forget,
                                .number = sent.origin};
    return &c->ticket;
}

/* The list of n tickets; their origins are found by their places. Returns -1: no memory. */
static int read_tickets(struct ticket **inbox, const char *bytes, int n) {
    struct ticket **tickets = malloc(sizeof *tickets * ((size_t)n + 1)), **end = inbox;
    int result = tickets ? 0 : -1;
    for (int i = 0; i < n && !result; i++) {
        struct ticket *t = read_ticket(&bytes);
        if (!t) {
            result = -1;
            break;
        }
        tickets[i] = t;
        t->origin = tickets[t->number];
        t->number = -1;
        *end = t;
        end = &t->behind;
    }
    free(tickets);
    return result;
}

/* ---- both ------------------------------------------------------------------------------------ */

int service_wait(pthread_cond_t *news, pthread_mutex_t *lock, const struct parallel *ranks) {
    struct timespec until;
    if (!ranks)
        return pthread_cond_wait(news, lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    long milliseconds = (long)(ranks->limit * 250) + until.tv_nsec / 1000000;
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec = milliseconds % 1000 * 1000000;
    return pthread_cond_clockwait(news, lock, CLOCK_MONOTONIC, &until);
}

void service_tell(struct parallel *ranks, bool idle, struct service_news *news) {
    struct {
        size_t n_bytes;
        int n_tickets;
        bool cancels, all, goes_on, idle;
    } head;
    char *bytes = NULL;
    memset(&head, 0, sizeof head);
    if (ranks->rank) {
        *news = (struct service_news){.goes_on = true};
    } else {
        head.cancels = news->cancels;
        head.all = news->all;
        head.goes_on = news->goes_on;
        head.idle = idle;
        for (const struct ticket *t = news->inbox; t; t = t->behind)
            head.n_tickets++;
        bytes = write_tickets(news->inbox, &head.n_bytes);
    }
    parallel_broadcast(ranks, &head, sizeof head);
    if (head.idle) /* rank 0 does not wait for those to whom it speaks */
        parallel_least(ranks, 0);
    if (ranks->rank && head.n_bytes)
        bytes = malloc(head.n_bytes);
    if (head.n_bytes && !bytes)
        ranks->failed = error_set(&ranks->why, "out of memory for what ranks are told");
    if (head.n_tickets)
        parallel_broadcast(ranks, bytes, head.n_bytes);
    if (ranks->rank && !ranks->failed) {
        *news = (struct service_news){NULL, head.cancels, head.all, head.goes_on};
        if (read_tickets(&news->inbox, bytes, head.n_tickets))
            ranks->failed = error_set(&ranks->why, "out of memory for what ranks are told");
    }
    free(bytes);
}
