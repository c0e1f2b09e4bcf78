#include "scheduler/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *request_state_name(enum request_state state) {
    static const char *const names[] = {"waiting", "prefilling", "decoding", "done"};
    return names[state];
}

int scheduler_start(struct scheduler *s, const struct scheduler_options *options,
                    struct error *err) {
    *s = (struct scheduler){.options = *options};
    if (options->max_running < 1)
        return error_set(err, "%d running requests: at least 1 must be allowed",
                         options->max_running);
    if (options->token_budget < options->max_running)
        return error_set(err,
                         "a budget of %d tokens per step is too small for %d running requests: "
                         "each draws one",
                         options->token_budget, options->max_running);
    if (options->chunk < 1)
        return error_set(err, "prompt pieces of %d tokens: at least 1", options->chunk);
    s->running = malloc(sizeof *s->running * (size_t)options->max_running);
    return s->running ? 0 : error_set(err, "out of memory");
}

void scheduler_end(struct scheduler *s) {
    free(s->jobs);
    free(s->running);
    *s = (struct scheduler){0};
}

int scheduler_add(struct scheduler *s, double arrival, int n_prompt, struct error *err) {
    if (n_prompt < 1)
        return error_set(err, "the prompt is empty: there is nothing to continue");
    if (!(arrival >= 0) || isinf(arrival))
        return error_set(err, "arrival %g: must be 0 or later", arrival);
    if (s->n_jobs && arrival < s->jobs[s->n_jobs - 1].arrival)
        return error_set(err, "arrival %g comes after one at %g: sort them", arrival,
                         s->jobs[s->n_jobs - 1].arrival);
    if (s->n_jobs == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 64;
        struct job *jobs = realloc(s->jobs, sizeof *jobs * (size_t)capacity);
        if (!jobs)
            return error_set(err, "out of memory for %d requests", capacity);
        s->jobs = jobs;
        s->capacity = capacity;
    }
    s->jobs[s->n_jobs] = (struct job){
        .arrival = arrival, .n_prompt = n_prompt, .admitted = -1, .first = -1, .done = -1};
    return s->n_jobs++;
}

/* The one place where a state changes. */
static void change(struct scheduler *s, int job, enum request_state to, double now) {
    struct job *j = &s->jobs[job];
    enum request_state from = j->state;
    j->state = to;
    if (to == REQUEST_PREFILLING)
        j->admitted = now;
    if (to == REQUEST_DONE) {
        j->done = now;
        s->n_done++;
    }
    if (s->changed)
        s->changed(s->context, job, from, now);
}

static void admit(struct scheduler *s, double now) {
    if (!s->options.continuous && s->n_running)
        return;
    while (s->n_running < s->options.max_running && s->next < s->n_jobs &&
           s->jobs[s->next].arrival <= now) {
        int job = s->next++;
        if (s->jobs[job].state != REQUEST_WAITING)
            continue; /* stopped while it waited */
        s->running[s->n_running++] = job;
        change(s, job, REQUEST_PREFILLING, now);
    }
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}

int scheduler_plan(struct scheduler *s, double now, struct plan_entry *entries) {
    int n = 0, budget = s->options.token_budget;
    admit(s, now);
    for (int i = 0; i < s->n_running; i++)
        if (s->jobs[s->running[i]].state == REQUEST_DECODING) {
            entries[n++] = (struct plan_entry){s->running[i], 1, true};
            budget--;
        }
    for (int i = 0; i < s->n_running && budget; i++) {
        const struct job *j = &s->jobs[s->running[i]];
        if (j->state != REQUEST_PREFILLING)
            continue;
        int left = j->n_prompt - j->n_read;
        int n_tokens = min_int(min_int(left, s->options.chunk), budget);
        entries[n++] = (struct plan_entry){s->running[i], n_tokens, n_tokens == left};
        budget -= n_tokens;
    }
    return n;
}

static void leave(struct scheduler *s, int job) {
    int i = 0;
    while (i < s->n_running && s->running[i] != job)
        i++;
    if (i == s->n_running)
        return;
    memmove(s->running + i, s->running + i + 1,
            sizeof *s->running * (size_t)(s->n_running - i - 1));
    s->n_running--;
}

void scheduler_ran(struct scheduler *s, const struct plan_entry *entry, enum finish finish,
                   double now) {
    struct job *j = &s->jobs[entry->job];
    if (j->state == REQUEST_DONE)
        return; /* stopped meanwhile */
    j->steps++;
    if (j->state == REQUEST_PREFILLING)
        j->n_read += entry->n_tokens;
    if (!entry->draws)
        return;
    if (!j->n_new++)
        j->first = now;
    if (j->state == REQUEST_PREFILLING)
        change(s, entry->job, REQUEST_DECODING, now);
    if (finish != FINISH_NOT_YET)
        scheduler_stop(s, entry->job, finish, now);
}

void scheduler_stop(struct scheduler *s, int job, enum finish finish, double now) {
    struct job *j = &s->jobs[job];
    if (j->state == REQUEST_DONE)
        return;
    if (now < j->arrival)
        now = j->arrival; /* it ends the moment it arrives */
    leave(s, job);
    j->finish = finish;
    change(s, job, REQUEST_DONE, now);
}

double scheduler_next_arrival(const struct scheduler *s) {
    for (int i = s->next; i < s->n_jobs; i++)
        if (s->jobs[i].state == REQUEST_WAITING)
            return s->jobs[i].arrival;
    return INFINITY;
}

int scheduler_waiting(const struct scheduler *s, double now) {
    int n = 0;
    for (int i = s->next; i < s->n_jobs && s->jobs[i].arrival <= now; i++)
        n += s->jobs[i].state == REQUEST_WAITING;
    return n;
}
