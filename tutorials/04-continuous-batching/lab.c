/*
 * Lab 4: who starts, and how much of a prompt is read in a step. Your file takes the place of
 * scheduler/scheduler.c; the task is in the section "Lab" of this chapter. `make lab4` builds and
 * grades it. What you write comes first; what is given, the rest of the module, is below it.
 *
 * struct scheduler and struct job are in scheduler/scheduler.h. s->queue has the jobs that were
 * never admitted, in order of arrival, from s->queue_first to s->queue_end - 1; s->running and
 * s->preempted are lists in order of arrival, with s->n_running and s->n_preempted entries.
 * s->memory, in step 3, is struct request_memory of scheduler/request_memory.h.
 */
#include "scheduler/scheduler.h"
#include "tests/labs/not_written.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The plan of a step as it is made: decodes first, then prompts, then those that are new. */
struct step_plan {
    struct plan_entry *entries;
    int n, budget;
    bool short_of_memory; /* somebody lacked room: nobody new may come */
};

/* Given below. */
static void add_entry(struct step_plan *p, int job, int first, int n_tokens, bool draws);
static void change(struct scheduler *s, int job, enum request_state to, double now);
static void list_insert(const struct scheduler *s, int *list, int *n, int job);
static void list_remove(int *list, int *n, int job);
static void queue_remove(struct scheduler *s, int job);
static bool reserve(struct scheduler *s, int job, int n_positions);
static void preempt(struct scheduler *s, int job, double now);
static bool make_room(struct scheduler *s, int i, int n_positions, bool any_victim, double now);

/* ---- step 1: the moment a place is free ------------------------------------------------------ */

/* The job begins, or goes on after it was preempted: it leaves the queue (queue_remove) or
 * s->preempted (list_remove), joins s->running (list_insert), and its state becomes
 * REQUEST_PREFILLING (change). The plan gets the first piece of what it has to read (add_entry),
 * from position n_read on: as much of the n_to_read tokens as chunk and the rest of the budget
 * allow (step 2; in step 1 everything fits). The piece `draws` if nothing is left to read after it;
 * a piece of no tokens is not planned. Returns true.
 *
 * Step 3: memory, if there is one, is asked first (s->memory->admit, with n_to_read). If it says
 * no, nothing changes and the answer is false; but if nobody runs, all memory is free and the job
 * can never be served: scheduler_stop with FINISH_ERROR, and false. If it says yes, n_read becomes
 * what it has cached. The piece is planned if there is room for it (reserve), and takes nothing
 * from others. Without room the job has begun all the same (true), and gets its piece in a later
 * step. */
static bool start(struct scheduler *s, struct step_plan *p, int job, double now) {
    (void)s, (void)p, (void)job, (void)now;
    not_written("from the preempted to the running, prefilling, and its first piece into the plan");
}

/* Starts whoever may. Those that were preempted come first, then those of the queue that have
 * arrived by now (scheduler_next_arrival says when the first of the queue does), in order of
 * arrival, as long as fewer than max_running run. With continuous a place is filled the moment it
 * is free; without, nobody leaves the queue if somebody ran before this call.
 *
 * Step 3: nobody is passed over. When start says that one has to wait, nobody behind it starts, and
 * the queue stands still as long as somebody is preempted. One that `start` has ended has left its
 * list (its state is REQUEST_DONE): the next one is asked. */
static void admit(struct scheduler *s, struct step_plan *p, double now) {
    (void)s, (void)p, (void)now, (void)start;
    not_written("start the preempted, then the queue, while places are free");
}

/* ---- step 2: prompts in pieces --------------------------------------------------------------- */

/* Plans the next piece of the prompt of each running job that is prefilling, in the order of
 * s->running, until the budget is spent: from position n_read on, no more tokens than are left to
 * be read, than chunk, and than p->budget. The piece that reads the last of them draws.
 *
 * Step 3: each piece needs room for all positions up to its end (make_room with i, any_victim
 * false). Without it p->short_of_memory is set, nothing is planned for the job and for those behind
 * it, and if it runs alone it can never be served: scheduler_stop with FINISH_ERROR. */
static void plan_prefills(struct scheduler *s, struct step_plan *p, double now) {
    (void)s, (void)p, (void)now;
    not_written("a piece for each job that is prefilling: n_read, what is left, chunk, p->budget");
}

/* ---- given: the plan ------------------------------------------------------------------------- */

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

static bool somebody_reads(const struct scheduler *s) {
    for (int i = 0; i < s->n_running; i++)
        if (s->jobs[s->running[i]].state == REQUEST_PREFILLING)
            return true;
    return false;
}

int scheduler_plan(struct scheduler *s, double now, struct plan_entry *entries) {
    struct step_plan p = {entries, 0, s->options.token_budget, false};
    plan_decodes(s, &p, now);
    if (somebody_reads(s))
        plan_prefills(s, &p, now);
    if (!p.short_of_memory)
        admit(s, &p, now);
    return p.n;
}

/* ---- given: lists of jobs -------------------------------------------------------------------- */

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

/* ---- given: memory --------------------------------------------------------------------------- */

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

/* ---- given: jobs come and go ----------------------------------------------------------------- */

const char *request_state_name(enum request_state state) {
    static const char *const names[] = {"waiting", "prefilling", "decoding", "preempted", "done"};
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

int scheduler_add(struct scheduler *s, double arrival, int n_prompt, struct error *err) {
    if (n_prompt < 1)
        return error_set(err, "the prompt is empty: there is nothing to continue");
    if (!(arrival >= 0) || isinf(arrival))
        return error_set(err, "arrival %g: must be 0 or later", arrival);
    if (arrival < s->last_arrival)
        return error_set(err, "arrival %g comes after one at %g: sort them", arrival,
                         s->last_arrival);
    if (!s->n_forgotten && s->n_jobs == s->capacity && grow(s, err))
        return -1;
    int job = s->n_forgotten ? s->forgotten[--s->n_forgotten] : s->n_jobs++;
    s->jobs[job] = (struct job){.order = s->n_added++,
                                .arrival = arrival,
                                .n_prompt = n_prompt,
                                .n_to_read = n_prompt,
                                .admitted = -1,
                                .first = -1,
                                .done = -1};
    s->last_arrival = arrival;
    queue_push(s, job);
    return job;
}

void scheduler_forget(struct scheduler *s, int job) {
    s->forgotten[s->n_forgotten++] = job;
}

/* The one place where a state changes. */
static void change(struct scheduler *s, int job, enum request_state to, double now) {
    struct job *j = &s->jobs[job];
    enum request_state from = j->state;
    j->state = to;
    if (to == REQUEST_PREFILLING && from == REQUEST_WAITING)
        j->admitted = now;
    if (to == REQUEST_DONE) {
        j->done = now;
        s->n_done++;
    }
    if (s->changed)
        s->changed(s->context, job, from, now);
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
    if (j->state == REQUEST_WAITING)
        queue_remove(s, job);
    list_remove(s->running, &s->n_running, job);
    list_remove(s->preempted, &s->n_preempted, job);
    j->finish = finish;
    change(s, job, REQUEST_DONE, now);
}

double scheduler_next_arrival(const struct scheduler *s) {
    return s->queue_first < s->queue_end ? s->jobs[s->queue[s->queue_first]].arrival : INFINITY;
}

int scheduler_waiting(const struct scheduler *s, double now) {
    int n = 0;
    for (int i = s->queue_first; i < s->queue_end && s->jobs[s->queue[i]].arrival <= now; i++)
        n++;
    return n;
}
