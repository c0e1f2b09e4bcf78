#include "scheduler/service_ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct service {
    struct engine engine; /* the engine thread's, like tickets_left */
    struct generator *generator;
    struct service_options options;
    struct engine_options engine_options;
    pthread_t thread;
    bool has_lock, has_thread;
    bool *ends;       /* [engine.capacity] which requests are cancelled now */
    int tickets_left; /* not done yet, of those that the engine has */

    pthread_mutex_t lock;              /* of what follows */
    pthread_cond_t news;               /* something came, or it is time to stop */
    struct ticket *inbox, **inbox_end; /* in the order in which they came */
    int n_inbox;
    bool cancels; /* a ticket has been marked */
    bool poked;
    bool stopping, ended;
    double stop_at;      /* seconds of the run: cancel what still runs then */
    struct error failed; /* why the engine ended; or empty */
    struct service_metrics metrics;
};

static struct parallel *ranks_of(const struct service *s) {
    return s->generator->model->parallel;
}

static struct ticket *ticket_of(const struct engine *e, int request) {
    return (struct ticket *)e->requests[request];
}

/* ---- what the engine tells, in its thread ---------------------------------------------------- */

/* The logits of a token are there only now. */
static int on_token(void *context, const struct sequence *sequence, const float *logits,
                    struct error *err) {
    struct service *s = context;
    const struct answer *a = (const struct answer *)sequence; /* its first member */
    struct ticket *t = ticket_of(&s->engine, (int)(a - s->engine.answers));
    (void)err;
    if (t->n_logprobs >= 0)
        t->n_top = logprobs_of(logits, s->generator->model->config.vocab_size,
                               sequence->tokens[sequence->n_tokens - 1], &t->logprob, t->top,
                               t->n_logprobs);
    return 0;
}

static void drew(void *context, struct engine *e, int request) {
    struct service *s = context;
    struct ticket *t = ticket_of(e, request);
    const struct job *job = &e->scheduler.jobs[request];
    double now = engine_now(e);
    const struct sequence *sequence = &e->answers[request].sequence;
    int n = sequence_new_tokens(sequence) - sequence->n_forced;
    pthread_mutex_lock(&s->lock);
    s->metrics.generated_tokens += n > 0;
    if (n == 1)
        histogram_add(&s->metrics.ttft, now - job->arrival);
    else if (n > 1)
        histogram_add(&s->metrics.inter_token, now - t->last);
    pthread_mutex_unlock(&s->lock);
    t->last = now;
    t->drew(t, &e->answers[request]);
}

static void count_done(struct service *s, const struct job *job, double now) {
    struct service_metrics *m = &s->metrics;
    pthread_mutex_lock(&s->lock);
    histogram_add(&m->latency, now - job->arrival);
    m->finished += job->finish != FINISH_CANCELLED;
    m->cancelled += job->finish == FINISH_CANCELLED;
    pthread_mutex_unlock(&s->lock);
}

/* The tickets that are done are told between two steps (finish): a change comes from the middle of
 * one, when the answer is still in use. */
static void changed(void *context, const struct engine *e, int request, enum request_state from,
                    double now) {
    struct service *s = context;
    const struct job *job = &e->scheduler.jobs[request];
    if (job->state == REQUEST_DONE)
        count_done(s, job, now);
    if (job->state != REQUEST_PREFILLING || from != REQUEST_WAITING)
        return;
    pthread_mutex_lock(&s->lock);
    s->metrics.prompt_tokens += job->n_prompt + e->answers[request].sequence.n_forced;
    histogram_add(&s->metrics.queue, now - job->arrival);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the engine thread ----------------------------------------------------------------------- */

/* A ticket that the engine never had. */
static void refuse(struct ticket *t, const struct error *why) {
    struct answer a = {.error = *why};
    a.sequence.finish = why->text[0] ? FINISH_ERROR : FINISH_CANCELLED;
    t->done(t, &a);
}

static void refuse_all(struct ticket *t, const struct error *why) {
    for (struct ticket *next; t; t = next) {
        next = t->behind;
        refuse(t, why);
    }
}

/* The engine has failed: whoever is there, has just come (inbox), or comes, gets the reason, and
 * nobody before service_stopping knows it. Returns -1. */
static int fail(struct service *s, struct ticket *inbox, const struct error *why) {
    struct engine *e = &s->engine;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    s->failed = *why;
    struct ticket *left = s->inbox;
    s->inbox = NULL;
    s->inbox_end = &s->inbox;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < e->n; i++) {
        struct ticket *t = ticket_of(e, i);
        e->requests[i] = NULL;
        if (t)
            refuse(t, why);
    }
    s->tickets_left = 0;
    refuse_all(inbox, why);
    refuse_all(left, why);
    return -1;
}

/* Gives the engine what came. Returns 0, or -1 after fail: no memory, say. */
static int take_in(struct service *s, struct ticket *inbox) {
    struct error err;
    for (struct ticket *t = inbox, *next; t; t = next) {
        int origin = t->origin != t ? t->origin->number : -1;
        next = t->behind;
        t->request.arrival = engine_now(&s->engine);
        int number = engine_submit(&s->engine, &t->request, origin, &err);
        if (number < 0)
            return fail(s, t, &err);
        t->number = number;
        s->tickets_left++;
    }
    return 0;
}

/* Whether a ticket is to end: marked by its submitter, or too long in the queue, or all are. */
static bool is_to_end(struct service *s, int i, bool all) {
    const struct job *job = &s->engine.scheduler.jobs[i];
    struct ticket *t = ticket_of(&s->engine, i);
    double limit = s->options.wait_limit;
    if (!t || job->state == REQUEST_DONE)
        return false;
    t->late =
        limit > 0 && job->state == REQUEST_WAITING && engine_now(&s->engine) > job->arrival + limit;
    return all || t->late || t->cancelled;
}

/* Rank 0 says who: only its tickets are marked. */
static void cancel(struct service *s, bool all) {
    struct engine *e = &s->engine;
    for (int i = 0; i < e->n; i++)
        s->ends[i] = is_to_end(s, i, all);
    parallel_broadcast(ranks_of(s), s->ends, sizeof *s->ends * (size_t)e->n);
    for (int i = 0; i < e->n; i++)
        if (s->ends[i])
            engine_cancel(e, i);
}

/* Tells the tickets that are done, and forgets them. */
static void finish(struct service *s) {
    struct engine *e = &s->engine;
    for (int i = 0; s->tickets_left && i < e->n; i++) {
        struct ticket *t = ticket_of(e, i);
        if (!t || e->scheduler.jobs[i].state != REQUEST_DONE)
            continue;
        s->tickets_left--;
        t->number = -1;
        e->requests[i] = NULL;
        t->done(t, &e->answers[i]); /* it may be gone now */
        engine_forget(e, i);
    }
}

static void count_now(struct service *s) {
    const struct scheduler *jobs = &s->engine.scheduler;
    const struct block_stats *blocks = &s->options.memory->pool->blocks.stats;
    s->metrics.running = jobs->n_running;
    s->metrics.waiting = jobs->queue_end - jobs->queue_first + jobs->n_preempted;
    s->metrics.cache_used = (double)blocks->used / blocks->total;
    s->metrics.prefix_queries = s->options.memory->stats.looked_up;
    s->metrics.prefix_hits = s->options.memory->stats.shared;
    s->metrics.drafted = s->engine.proposed;
    s->metrics.accepted = s->engine.accepted;
}

/* What has come since the last step; waits for something if there is nothing to do. It goes on
 * until it is time to end: stopping, and nobody is left. */
static void receive(struct service *s, bool idle, struct service_news *news) {
    pthread_mutex_lock(&s->lock);
    count_now(s);
    for (int timeout = 0;
         idle && !timeout && !s->inbox && !s->cancels && !s->stopping && !s->poked;)
        timeout = service_wait(&s->news, &s->lock, ranks_of(s));
    news->inbox = s->inbox;
    news->cancels = s->cancels || s->options.wait_limit > 0;
    s->inbox = NULL;
    s->inbox_end = &s->inbox;
    s->metrics.waiting += s->n_inbox;
    s->n_inbox = 0;
    s->cancels = s->poked = false;
    news->all = s->stopping && engine_now(&s->engine) >= s->stop_at;
    news->goes_on = !s->stopping || s->tickets_left || news->inbox;
    pthread_mutex_unlock(&s->lock);
}

/* Receives what came in; where there are ranks, rank 0 does, and tells the others. Returns whether
 * the loop goes on. */
static bool hear(struct service *s, bool idle, struct service_news *news) {
    struct parallel *ranks = ranks_of(s);
    if (!ranks || !ranks->rank)
        receive(s, idle, news);
    if (ranks) {
        service_tell(ranks, idle, news);
        engine_tick(&s->engine);
    }
    return news->goes_on;
}

/* One step after the other, until all is done or the engine fails. */
static void loop(struct service *s) {
    struct service_news news;
    struct error err;
    int result = 0;
    while (hear(s, !result && !s->tickets_left, &news)) {
        if (take_in(s, news.inbox))
            return;
        if (news.cancels || news.all)
            cancel(s, news.all);
        result = engine_step(&s->engine, &err);
        if (result < 0) {
            fail(s, NULL, &err);
            return;
        }
        finish(s);
        if (s->options.stepped)
            s->options.stepped(s->options.context, &s->engine);
    }
}

static void *run(void *context) {
    struct service *s = context;
    loop(s);
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- for submitters -------------------------------------------------------------------------- */

static int start(struct service *s, struct error *err) {
    const struct service_options *o = &s->options;
    int capacity = o->max_waiting + o->scheduler.max_running;
    s->engine_options = (struct engine_options){.scheduler = o->scheduler,
                                                .memory = &o->memory->base,
                                                .one_pass = true,
                                                .tokenizer = o->tokenizer,
                                                .drew = drew,
                                                .changed = changed,
                                                .context = s};
    s->inbox_end = &s->inbox;
    service_metrics_start(&s->metrics);
    s->generator->on_token = on_token;
    s->generator->on_token_context = s;
    if (o->max_waiting < 1)
        return error_set(err, "a queue of %d requests: at least 1", o->max_waiting);
    if (pthread_mutex_init(&s->lock, NULL) || pthread_cond_init(&s->news, NULL))
        return error_set(err, "cannot make a lock for the engine");
    s->has_lock = true;
    if (!(s->ends = calloc((size_t)capacity, sizeof *s->ends)))
        return error_set(err, "out of memory for %d requests", capacity);
    if (engine_start(&s->engine, s->generator, &s->engine_options, capacity, err))
        return -1;
    if (pthread_create(&s->thread, NULL, run, s))
        return error_set(err, "cannot start a thread for the engine");
    s->has_thread = true;
    return 0;
}

struct service *service_start(struct generator *g, const struct service_options *options,
                              struct error *err) {
    struct service *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, "out of memory for the service");
        return NULL;
    }
    s->generator = g;
    s->options = *options;
    if (start(s, err)) {
        service_free(s);
        return NULL;
    }
    return s;
}

enum service_answer service_submit(struct service *s, struct ticket *tickets[], int n) {
    enum service_answer answer = SERVICE_TAKEN;
    pthread_mutex_lock(&s->lock);
    if (s->stopping)
        answer = SERVICE_STOPPING;
    else if (s->metrics.waiting + s->n_inbox + n > s->options.max_waiting)
        answer = SERVICE_FULL;
    for (int i = 0; answer == SERVICE_TAKEN && i < n; i++) {
        struct ticket *t = tickets[i];
        t->number = -1;
        t->behind = NULL;
        *s->inbox_end = t;
        s->inbox_end = &t->behind;
        s->n_inbox++;
    }
    s->metrics.refused += answer != SERVICE_TAKEN;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
    return answer;
}

void service_cancel(struct service *s, struct ticket *t) {
    pthread_mutex_lock(&s->lock);
    t->cancelled = true;
    s->cancels = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
}

void service_poke(struct service *s) {
    pthread_mutex_lock(&s->lock);
    s->poked = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
}

void service_measure(struct service *s, struct service_metrics *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->metrics;
    out->waiting += s->n_inbox;
    pthread_mutex_unlock(&s->lock);
}

void service_drain(struct service *s, double patience) {
    pthread_mutex_lock(&s->lock);
    s->stop_at = engine_now(&s->engine) + patience;
    s->stopping = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
}

bool service_stopping(struct service *s, struct error *why) {
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    error_set(why, "%s", s->failed.text[0] ? s->failed.text : "the server is shutting down");
    pthread_mutex_unlock(&s->lock);
    return stopping;
}

bool service_ended(struct service *s) {
    pthread_mutex_lock(&s->lock);
    bool ended = s->ended;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

int service_stop(struct service *s, struct error *err) {
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = false;
    return s->failed.text[0] ? error_set(err, "%s", s->failed.text) : 0;
}

void service_free(struct service *s) {
    if (!s)
        return;
    s->generator->on_token = NULL;
    engine_end(&s->engine);
    if (s->has_lock) {
        pthread_cond_destroy(&s->news);
        pthread_mutex_destroy(&s->lock);
    }
    free(s->ends);
    free(s);
}
