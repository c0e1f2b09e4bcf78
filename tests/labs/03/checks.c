/* Lab 3: the queue and the states. */
#include "scheduler/scheduler.h"
#include "tests/labs/03/causes.h"
#include "tests/labs/lab.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_RUNNING = 4, MAX_STEPS = 200 };

static void note_change(void *context, int job, enum request_state from, double now) {
    lab_int(context, job, "changed is called for job");
    lab_text(context, request_state_name(from), "changed: from");
    lab_int(context, llround(now * 1000), "changed: milliseconds");
}

static struct scheduler start(struct lab_log *log, int max_running, int budget, int chunk) {
    struct scheduler s;
    struct error err = {""};
    struct scheduler_options o = {
        .max_running = max_running, .token_budget = budget, .chunk = chunk};
    lab_int(log, scheduler_start(&s, &o, &err), "scheduler_start");
    return s;
}

static void watch(struct scheduler *s, struct lab_log *log) {
    s->changed = note_change;
    s->context = log;
}

static int add(struct scheduler *s, double arrival, int n_prompt) {
    struct error err;
    return scheduler_add(s, arrival, n_prompt, &err);
}

static void note_job(struct lab_log *log, const struct scheduler *s, int job) {
    const struct job *j = &s->jobs[job];
    lab_text(log, request_state_name(j->state), "job %d, state", job);
    lab_int(log, j->finish, "job %d, finish", job);
    lab_int(log, j->n_prompt, "job %d, n_prompt", job);
    lab_int(log, j->n_to_read, "job %d, n_to_read", job);
    lab_int(log, j->n_read, "job %d, n_read", job);
    lab_int(log, j->n_new, "job %d, n_new", job);
    lab_int(log, j->steps, "job %d, steps", job);
    lab_int(log, llround(j->arrival * 1000), "job %d, arrival in ms", job);
    lab_int(log, llround(j->admitted * 1000), "job %d, admitted in ms", job);
    lab_int(log, llround(j->first * 1000), "job %d, first in ms", job);
    lab_int(log, llround(j->done * 1000), "job %d, done in ms", job);
}

/* ---- step 1 ---------------------------------------------------------------------------------- */

static void run_add(struct lab_log *log, int n) {
    struct scheduler s = start(log, 1, 8, 4);
    for (int i = 0; i < n; i++)
        lab_int(log, add(&s, i / 2, 1 + i), "scheduler_add, call %d", i);
    lab_int(log, s.n_jobs, "n_jobs");
    for (int i = 0; i < n && i < s.n_jobs; i++)
        note_job(log, &s, i);
    scheduler_end(&s);
}

/* n requests are done and forgotten: their numbers are free, the last forgotten one first. */
static void run_forgotten(struct lab_log *log, int n) {
    struct scheduler s = start(log, 1, 8, 4);
    for (int i = 0; i < n; i++)
        add(&s, i, 1);
    s.queue_first = s.queue_end;
    for (int i = 0; i < n; i++) {
        s.jobs[i].state = REQUEST_DONE;
        scheduler_forget(&s, i);
    }
    for (int i = 0; i <= n; i++) {
        int job = add(&s, n + i, 2 + i);
        lab_int(log, job, "scheduler_add after %d were forgotten, call %d", n, i);
        if (job >= 0 && job < s.n_jobs)
            note_job(log, &s, job);
    }
    lab_int(log, s.n_jobs, "n_jobs");
    scheduler_end(&s);
}

static void run_refused(struct lab_log *log, int arrival) {
    const double bad[] = {-1, NAN, INFINITY, -INFINITY, arrival - 0.5};
    struct scheduler s = start(log, 1, 8, 4);
    lab_int(log, add(&s, arrival, 1), "scheduler_add at %d", arrival);
    lab_int(log, add(&s, arrival, 0), "scheduler_add of an empty prompt");
    lab_int(log, add(&s, arrival, -1), "scheduler_add of a prompt of -1 tokens");
    for (int i = 0; i < 5; i++)
        lab_int(log, add(&s, bad[i], 1), "scheduler_add at %g", bad[i]);
    lab_int(log, add(&s, arrival, 1), "scheduler_add at the moment of the last");
    lab_int(log, s.n_jobs, "n_jobs");
    scheduler_end(&s);
}

static void run_queue(struct lab_log *log, int n) {
    struct scheduler s = start(log, 1, 8, 4);
    for (int i = 0; i < n; i++)
        add(&s, i, 1);
    for (int left = n; left >= 0 && s.queue_end == n; left--, s.queue_first++) {
        double next = scheduler_next_arrival(&s);
        lab_int(log, isinf(next) ? -1 : (long long)next, "scheduler_next_arrival (-1: none)");
        for (int now = 0; now <= n; now++)
            lab_int(log, scheduler_waiting(&s, now), "scheduler_waiting at %d", now);
    }
    scheduler_end(&s);
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

/* Job 0 has been admitted by hand; it reads its prompt in pieces of 4 and draws three tokens. */
static void run_states(struct lab_log *log, int n_prompt) {
    struct scheduler s = start(log, 1, 8, 4);
    if (add(&s, 0, n_prompt))
        exit(2);
    watch(&s, log);
    s.jobs[0].state = REQUEST_PREFILLING;
    s.running[s.n_running++] = 0;
    s.queue_first = s.queue_end; /* it has left the queue */
    double now = 1;
    for (int first = 0; first < n_prompt; first += 4, now++) {
        int n = n_prompt - first < 4 ? n_prompt - first : 4;
        struct plan_entry e = {0, first, n, first + n == n_prompt};
        scheduler_ran(&s, &e, FINISH_NOT_YET, now);
        note_job(log, &s, 0);
    }
    for (int i = 0; i < 3; i++) {
        struct plan_entry e = {0, n_prompt + i, 1, true};
        scheduler_ran(&s, &e, i == 1 ? FINISH_STOP : FINISH_NOT_YET, now + i);
        note_job(log, &s, 0);
        lab_int(log, s.n_running, "n_running");
        lab_int(log, s.n_done, "n_done");
    }
    scheduler_end(&s);
}

static void run_stop(struct lab_log *log, int n) {
    struct scheduler s = start(log, MAX_RUNNING, 8, 4);
    watch(&s, log);
    for (int i = 0; i < n; i++) {
        if (add(&s, i, 3) != i)
            exit(2);
        s.jobs[i].state = REQUEST_DECODING;
        s.running[s.n_running++] = i;
    }
    for (int i = 0; i < 2; i++)
        scheduler_stop(&s, n - 1, i ? FINISH_ERROR : FINISH_CANCELLED, i);
    note_job(log, &s, n - 1);
    lab_int(log, s.n_running, "n_running after scheduler_stop");
    lab_int(log, s.n_done, "n_done after scheduler_stop");
    scheduler_end(&s);
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

/* n requests arrive two at a time, and each draws as many tokens as its number says. */
static void simulate(struct lab_log *log, struct scheduler *s, int n, int cancel) {
    struct plan_entry entries[MAX_RUNNING];
    for (int i = 0; i < n; i++)
        add(s, i / 2, 1 + i * 5 % 9);
    watch(s, log);
    if (cancel >= 0)
        scheduler_stop(s, cancel, FINISH_CANCELLED, 0);
    for (int step = 0; step < MAX_STEPS && s->n_done < n; step++) {
        int n_entries = scheduler_plan(s, step, entries);
        lab_int(log, n_entries, "entries of the plan of step %d", step);
        for (int i = 0; i < n_entries; i++) {
            const struct plan_entry *e = &entries[i];
            lab_int(log, e->job, "step %d, entry %d: job", step, i);
            lab_int(log, e->first, "step %d, entry %d: first", step, i);
            lab_int(log, e->n_tokens, "step %d, entry %d: n_tokens", step, i);
            lab_int(log, e->draws, "step %d, entry %d: draws", step, i);
            bool last = e->draws && s->jobs[e->job].n_new >= e->job % 3;
            scheduler_ran(s, e, last ? FINISH_LENGTH : FINISH_NOT_YET, step + 0.5);
        }
    }
    lab_int(log, s->n_done, "n_done at the end");
}

static void run_one(struct lab_log *log, int chunk) {
    struct scheduler s = start(log, 1, 8, chunk);
    simulate(log, &s, 4, -1);
    scheduler_end(&s);
}

static void run_batch(struct lab_log *log, int n) {
    struct scheduler s = start(log, 2, 8, 4);
    simulate(log, &s, n, -1);
    scheduler_end(&s);
}

static void run_budget(struct lab_log *log, int budget) {
    struct scheduler s = start(log, MAX_RUNNING, budget, 6);
    simulate(log, &s, 9, -1);
    scheduler_end(&s);
}

static void run_cancelled(struct lab_log *log, int n) {
    struct scheduler s = start(log, 2, 8, 4);
    simulate(log, &s, n, n / 2);
    scheduler_end(&s);
}

/* A memory in which every third reservation fails. */
struct scarce_memory {
    struct request_memory base;
    int asked;
};

static bool always_admit(struct request_memory *m, int request, int n_tokens, int *n_cached) {
    (void)m, (void)request, (void)n_tokens, (void)n_cached;
    return true;
}

static bool seldom_refuse(struct request_memory *m, int request, int n_positions) {
    (void)request, (void)n_positions;
    return ++((struct scarce_memory *)m)->asked % 3 != 0;
}

static void ignore(struct request_memory *m, int request) {
    (void)m, (void)request;
}

static void run_preempted(struct lab_log *log, int n) {
    struct scarce_memory m = {
        .base = {.admit = always_admit, .reserve = seldom_refuse, .preempt = ignore}};
    struct scheduler s = start(log, 2, 8, 4);
    s.memory = &m.base;
    simulate(log, &s, n, -1);
    for (int i = 0; i < n && i < s.n_jobs; i++)
        note_job(log, &s, i);
    scheduler_end(&s);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_BATCHES, 6, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"add", 1, "requests at the end of the queue", "requests", LAB_SIZES(1, 2, 64, 65, 129),
     run_add, 0},
    {"forgotten", 1, "numbers that are free again", "forgotten", LAB_SIZES(1, 2, 64), run_forgotten,
     0},
    {"refused", 1, "requests out of range", "arrival of the last", LAB_SIZES(0, 3), run_refused, 0},
    {"queue", 1, "who waits, and when the next arrives", "requests", LAB_SIZES(1, 2, 5), run_queue,
     0},
    {"states", 2, "from prefilling to decoding to done", "prompt tokens", LAB_SIZES(1, 3, 4, 5, 8),
     run_states, 0},
    {"stop", 2, "ended once, and out of the list", "running", LAB_SIZES(1, 2, 4), run_stop, 0},
    {"one", 3, "one after the other, prompts in pieces", "tokens per piece", LAB_SIZES(1, 4, 8),
     run_one, 0},
    {"batch", 3, "a batch of two starts when the last is done", "requests", LAB_SIZES(1, 2, 3, 8),
     run_batch, 0},
    {"budget", 3, "a step has so many tokens for all", "tokens per step", LAB_SIZES(4, 5, 12),
     run_budget, 0},
    {"cancelled", 3, "one that is stopped while it waits", "requests", LAB_SIZES(1, 2, 5),
     run_cancelled, 0},
    {"preempted", 3, "one that gave way, and comes back", "requests", LAB_SIZES(2, 3, 6),
     run_preempted, 0},
    {"serve", 3, "the model's requests in batches", "requests", LAB_SIZES(1, 8), run_serve, 30},
};

const struct lab lab = {
    .number = 3,
    .title = "the queue and the states",
    .served = "your scheduler",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_3_causes,
    .n_causes = N_LAB_3_CAUSES,
};
