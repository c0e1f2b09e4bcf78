/*
 * Lab 3: the queue and the states. Your file takes the place of scheduler/scheduler.c; the task is
 * in the section "Lab" of this chapter. `make lab3` builds and grades it. What is behind "given"
 * belongs to other labs: memory and preemption.
 */
#include "scheduler/scheduler.h"
#include "tests/labs/not_written.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int grow(struct scheduler *s, struct error *err); /* given, below */
static void queue_push(struct scheduler *s, int job);
static void queue_remove(struct scheduler *s, int job);
static void list_remove(int *list, int *n, int job);

/* ---- step 1: the queue ----------------------------------------------------------------------- */

/* A job for a request. Its number is one that is free again, the last of s->forgotten
 * (n_forgotten); if there is none, s->n_jobs, which grows. `grow` makes room for a new number when
 * n_jobs has reached the capacity. The job waits; its finish is FINISH_NOT_YET; its order is
 * s->n_added, which grows; its tokens to be read are its prompt; admitted, first and done are -1;
 * everything else is 0. s->last_arrival is its arrival, and it joins the queue (queue_push).
 * Returns its number, or -1 with err set (error_set in model/error.h does both) and no job added:
 * n_prompt below 1, an arrival that is negative, infinite, NaN or before the last one, no
 * memory. */
int scheduler_add(struct scheduler *s, double arrival, int n_prompt, struct error *err) {
    (void)s, (void)arrival, (void)n_prompt, (void)err, (void)grow, (void)queue_push;
    not_written("refuse what is out of range, make room, fill in the job, put it into the queue");
}

/* The arrival of the first in the queue, s->queue[s->queue_first]; INFINITY if it is empty: its end
 * is s->queue_end. */
double scheduler_next_arrival(const struct scheduler *s) {
    (void)s;
    not_written("the arrival of the first in the queue");
}

/* How many in the queue have arrived by now (also at this very moment). They are in order. */
int scheduler_waiting(const struct scheduler *s, double now) {
    (void)s, (void)now;
    not_written("count those in the queue that have arrived");
}

/* ---- step 2: the states ---------------------------------------------------------------------- */

/* The one place where a state changes. From waiting to prefilling: `admitted` is now. To done:
 * `done` is now, and n_done counts one more. At the end s->changed is called, if not NULL, with
 * s->context, the job, the state it had, and now. */
static void change(struct scheduler *s, int job, enum request_state to, double now) {
    (void)s, (void)job, (void)to, (void)now;
    not_written("set the state and the times that go with it, and tell s->changed");
}

/* What entry says was done. Nothing happens to a job that is done already. Else it had a part in
 * one more step; if it reads its prompt, n_read grows by what was read. If the entry draws: one
 * more in n_new; `first` is the time of the first; a job that was prefilling decodes; and one whose
 * finish is not FINISH_NOT_YET is stopped with it. */
void scheduler_ran(struct scheduler *s, const struct plan_entry *entry, enum finish finish,
                   double now) {
    (void)s, (void)entry, (void)finish, (void)now;
    not_written("count the step, what was read and what was drawn; prefilling becomes decoding");
}

/* Ends a job: it leaves the queue if it waits (queue_remove), and else the lists running and
 * preempted (list_remove does nothing if it is not there), has this finish, and is done now, or at
 * its arrival if that is later. Nothing happens to a job that is done already. */
void scheduler_stop(struct scheduler *s, int job, enum finish finish, double now) {
    (void)s, (void)job, (void)finish, (void)now, (void)queue_remove;
    not_written("take it out of the lists, set finish, and change its state to done");
}

/* ---- step 3: the batch ----------------------------------------------------------------------- */

struct step_plan {
    struct plan_entry *entries;
    int n, budget;        /* entries so far; tokens that the step has left */
    bool short_of_memory; /* somebody lacked room: nobody new may come */
};

/* The tokens of the job's next piece of prompt: what is left to read, at most a chunk, and at most
 * what the budget has. */
static int piece(const struct scheduler *s, const struct job *j, int budget) {
    (void)s, (void)j, (void)budget;
    not_written("the smallest of what is left to read, the chunk and the budget");
}

/* Begins a job: true when it was admitted. False: there was no memory; if it is not done now, it
 * stays first in the queue, and so does everybody behind it. */
static bool start(struct scheduler *s, struct step_plan *p, int job, double now);

/* Admits from the queue in order, those that have arrived (scheduler_next_arrival), while fewer
 * than options.max_running run. Who was started, or is done, has left the queue. Unless
 * options.continuous (lab 4), nobody comes while batch_runs: somebody ran when the step began. */
static void admit_queue(struct scheduler *s, struct step_plan *p, bool batch_runs, double now) {
    (void)s, (void)p, (void)batch_runs, (void)now;
    not_written("start those that have arrived, in order, while there is a place");
}

/* ---- given ----------------------------------------------------------------------------------- */

const char *request_state_name(enum request_state state) {
    static const char *const names[] = {"waiting", "prefilling", "decoding", "preempted", "done"};
    return names[state];
}

/* Room for one job more, and for its number in each list. */
static int grow(struct scheduler *s, struct error *err) {
    size_t capacity = s->capacity ? 2 * (size_t)s->capacity : 64;
    struct job *jobs = realloc(s->jobs, sizeof *jobs * capacity);
    s->jobs = jobs ? jobs : s->jobs;
    int *queue = realloc(s->queue, sizeof *queue * capacity);
    s->queue = queue ? queue : s->queue;
    int *forgotten = realloc(s->forgotten, sizeof *forgotten * capacity);
    s->forgotten = forgotten ? forgotten : s->forgotten;
    if (!jobs || !queue || !forgotten)
        return error_set(err, "out of memory for %zu requests", capacity);
    s->capacity = (int)capacity;
    return 0;
}

static void queue_push(struct scheduler *s, int job) {
    if (s->queue_end == s->capacity) { /* those in front have left */
        s->queue_end -= s->queue_first;
        memmove(s->queue, s->queue + s->queue_first, sizeof *s->queue * (size_t)s->queue_end);
        s->queue_first = 0;
    }
    s->queue[s->queue_end++] = job;
}

void scheduler_forget(struct scheduler *s, int job) {
    s->forgotten[s->n_forgotten++] = job;
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
    s->preempted = malloc(sizeof *s->preempted * (size_t)options->max_running);
    return s->running && s->preempted ? 0 : error_set(err, "out of memory");
}

void scheduler_end(struct scheduler *s) {
    free(s->jobs);
    free(s->queue);
    free(s->forgotten);
    free(s->running);
    free(s->preempted);
    *s = (struct scheduler){0};
}

static void list_remove(int *list, int *n, int job) {
    int i = 0;
    while (i < *n && list[i] != job)
        i++;
    if (i == *n)
        return;
    memmove(list + i, list + i + 1, sizeof *list * (size_t)(*n - i - 1));
    --*n;
}

/* Lists are in order of arrival. */
static void list_insert(const struct scheduler *s, int *list, int *n, int job) {
    int i = *n;
    for (; i > 0 && s->jobs[list[i - 1]].order > s->jobs[job].order; i--)
        list[i] = list[i - 1];
    list[i] = job;
    ++*n;
}

static void queue_remove(struct scheduler *s, int job) {
    int n = s->queue_end - s->queue_first;
    if (n && s->queue[s->queue_first] == job) {
        s->queue_first++;
        return;
    }
    list_remove(s->queue + s->queue_first, &n, job);
    s->queue_end = s->queue_first + n;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool reserve(struct scheduler *s, int job, int n_positions) {
    return !s->memory || s->memory->reserve(s->memory, job, n_positions);
}

static void preempt(struct scheduler *s, int job, double now) {
    struct job *j = &s->jobs[job];
    s->memory->preempt(s->memory, job);
    list_remove(s->running, &s->n_running, job);
    list_insert(s, s->preempted, &s->n_preempted, job);
    j->n_to_read = j->n_prompt + j->n_new;
    j->n_read = 0;
    j->n_preempted++;
    change(s, job, REQUEST_PREEMPTED, now);
}

/* Room for n_positions of running[i], if need be from those behind it: from any, as long as nothing
 * is planned for them, else from those that read their prompts, whose turn comes later. */
static bool make_room(struct scheduler *s, int i, int n_positions, bool any_victim, double now) {
    int job = s->running[i];
    while (!reserve(s, job, n_positions)) {
        int last = s->n_running - 1;
        while (last > i && !any_victim && s->jobs[s->running[last]].state != REQUEST_PREFILLING)
            last--; /* decodes of this step are planned already */
        if (last == i)
            return false;
        preempt(s, s->running[last], now);
    }
    return true;
}

static void add_entry(struct step_plan *p, int job, int first, int n_tokens, bool draws) {
    p->entries[p->n++] = (struct plan_entry){job, first, n_tokens, draws};
    p->budget -= n_tokens;
}

static void plan_decodes(struct scheduler *s, struct step_plan *p, double now) {
    for (int i = 0; i < s->n_running; i++) {
        int job = s->running[i];
        const struct job *j = &s->jobs[job];
        if (j->state != REQUEST_DECODING)
            continue;
        int last = j->n_prompt + j->n_new - 1;
        if (make_room(s, i, last + 1, true, now)) {
            add_entry(p, job, last, 1, true);
            continue;
        }
        p->short_of_memory = true;
        if (s->n_running > 1)
            preempt(s, job, now); /* it arrived last; it was running[n_running - 1] */
        else
            scheduler_stop(s, job, FINISH_ERROR, now);
        return;
    }
}

/* A piece of the prompt of running[i]. Returns false when it lacks room: those behind it wait, too.
 */
static bool plan_prefill(struct scheduler *s, struct step_plan *p, int i, double now) {
    int job = s->running[i];
    const struct job *j = &s->jobs[job];
    int left = j->n_to_read - j->n_read;
    int n_tokens = piece(s, j, p->budget);
    if (make_room(s, i, j->n_read + n_tokens, false, now)) {
        add_entry(p, job, j->n_read, n_tokens, n_tokens == left);
        return true;
    }
    p->short_of_memory = true;
    if (s->n_running == 1)
        scheduler_stop(s, job, FINISH_ERROR, now);
    return false;
}

/* Also when a decode has given way: what it gave back is theirs. */
static void plan_prefills(struct scheduler *s, struct step_plan *p, double now) {
    for (int i = 0; i < s->n_running && p->budget; i++)
        if (s->jobs[s->running[i]].state == REQUEST_PREFILLING && !plan_prefill(s, p, i, now))
            return;
}

/* The job begins, or goes on, if there is room. */
static bool start(struct scheduler *s, struct step_plan *p, int job, double now) {
    struct job *j = &s->jobs[job];
    int n_cached = 0;
    if (s->memory && !s->memory->admit(s->memory, job, j->n_to_read, &n_cached)) {
        if (!s->n_running) /* all memory is free, and it is not enough */
            scheduler_stop(s, job, FINISH_ERROR, now);
        return false;
    }
    j->n_read = n_cached;
    if (j->state == REQUEST_WAITING)
        queue_remove(s, job);
    list_remove(s->preempted, &s->n_preempted, job);
    list_insert(s, s->running, &s->n_running, job);
    change(s, job, REQUEST_PREFILLING, now);
    int left = j->n_to_read - j->n_read;
    int n_tokens = piece(s, j, p->budget);
    /* Others are planned already: it takes nothing from them. */
    if (n_tokens && reserve(s, job, j->n_read + n_tokens))
        add_entry(p, job, j->n_read, n_tokens, n_tokens == left);
    return true;
}

/* Those that were preempted first, then the queue. */
static void admit(struct scheduler *s, struct step_plan *p, double now) {
    bool batch_runs = s->n_running > 0;
    while (s->n_preempted && s->n_running < s->options.max_running) {
        int job = s->preempted[0];
        if (!start(s, p, job, now) && s->jobs[job].state != REQUEST_DONE)
            return;
    }
    if (!s->n_preempted)
        admit_queue(s, p, batch_runs, now);
}

int scheduler_plan(struct scheduler *s, double now, struct plan_entry *entries) {
    struct step_plan p = {entries, 0, s->options.token_budget, false};
    plan_decodes(s, &p, now);
    plan_prefills(s, &p, now);
    if (!p.short_of_memory)
        admit(s, &p, now);
    return p.n;
}
