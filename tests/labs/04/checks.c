/* Lab 4: admission and the plan of a step. Every check is a run of the scheduler without a model:
 * requests with so many tokens to read and to draw, a step a second. */
#include "scheduler/scheduler.h"
#include "tests/labs/04/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_JOBS = 24, MOST_STEPS = 120, MOST_TOKENS = 1000 };

/* ---- a memory that counts positions ---------------------------------------------------------- */

struct counted {
    struct request_memory base; /* first */
    int capacity, held[MOST_JOBS];
    int headroom; /* more than the tokens that a request needs to begin; may be negative */
    int cached;   /* tokens of every request that are there already */
};

static int free_positions(const struct counted *m) {
    int n = m->capacity;
    for (int i = 0; i < MOST_JOBS; i++)
        n -= m->held[i];
    return n;
}

static bool counted_admit(struct request_memory *base, int job, int n_tokens, int *n_cached) {
    struct counted *m = (struct counted *)base;
    if (n_tokens + m->headroom > free_positions(m))
        return false;
    *n_cached = m->held[job] = m->cached < n_tokens ? m->cached : n_tokens - 1;
    return true;
}

static bool counted_reserve(struct request_memory *base, int job, int n_positions) {
    struct counted *m = (struct counted *)base;
    if (n_positions - m->held[job] > free_positions(m))
        return false;
    m->held[job] = n_positions > m->held[job] ? n_positions : m->held[job];
    return true;
}

static void counted_preempt(struct request_memory *base, int job) {
    ((struct counted *)base)->held[job] = 0;
}

static struct counted memory_of(int capacity) {
    return (struct counted){
        .base = {.admit = counted_admit, .reserve = counted_reserve, .preempt = counted_preempt},
        .capacity = capacity};
}

/* ---- a run ----------------------------------------------------------------------------------- */

struct wish {
    int arrival, n_prompt, n_new;
};

struct run {
    struct lab_log *log;
    struct scheduler_options options;
    struct counted *memory; /* NULL: there is always room */
    int n;
    struct wish wishes[MOST_JOBS];
    int cancelled; /* -1: none; else the job that is stopped before the first step */
    struct scheduler scheduler;
};

static void give_back(void *context, int job, enum request_state from, double now) {
    struct run *r = context;
    (void)from, (void)now;
    if (r->memory && r->scheduler.jobs[job].state == REQUEST_DONE)
        r->memory->held[job] = 0;
}

/* A letter for each job: as in the step log of the chapter. */
static void note_states(const struct run *r, int step) {
    char text[MOST_JOBS + 1] = "";
    for (int i = 0; i < r->n; i++)
        text[i] = "WPDp."[r->scheduler.jobs[i].state];
    lab_text(r->log, text, "step %d, the states of the requests after the plan", step);
}

static void note_plan(const struct run *r, const struct plan_entry *entries, int n, int step) {
    int32_t values[4][MOST_JOBS];
    static const char *const what[] = {"request", "first position", "tokens", "draws"};
    note_states(r, step);
    lab_int(r->log, n, "step %d, entries of the plan", step);
    for (int i = 0; i < n; i++) {
        values[0][i] = entries[i].job;
        values[1][i] = entries[i].first;
        values[2][i] = entries[i].n_tokens;
        values[3][i] = entries[i].draws;
    }
    for (int v = 0; v < 4; v++)
        lab_ints(r->log, values[v], n, "entry", 0, "step %d, the plan's %s", step, what[v]);
}

static void run_entries(struct run *r, const struct plan_entry *entries, int n, double now) {
    for (int i = 0; i < n; i++) {
        int job = entries[i].job;
        bool is_last = r->scheduler.jobs[job].n_new + 1 == r->wishes[job].n_new;
        scheduler_ran(&r->scheduler, &entries[i],
                      entries[i].draws && is_last ? FINISH_LENGTH : FINISH_NOT_YET, now);
    }
}

static void note_end(const struct run *r) {
    for (int i = 0; i < r->n; i++) {
        const struct job *j = &r->scheduler.jobs[i];
        lab_int(r->log, (int)j->finish, "how request %d ended", i);
        lab_int(r->log, (long long)j->admitted, "second in which request %d was admitted", i);
        lab_int(r->log, (long long)j->done, "second in which request %d was done", i);
    }
    lab_int(r->log, r->scheduler.n_running, "running requests at the end");
}

/* Steps until all is done; a plan of nothing waits for the next arrival. */
static void run_steps(struct run *r) {
    struct plan_entry entries[MOST_JOBS];
    struct scheduler *s = &r->scheduler;
    double now = 0;
    for (int step = 1; step <= MOST_STEPS && s->n_done < r->n; step++) {
        int n = scheduler_plan(s, now, entries);
        note_plan(r, entries, n, step);
        double next = scheduler_next_arrival(s);
        if (n)
            run_entries(r, entries, n, now + 1);
        now = n || isinf(next) || next < now + 1 ? now + 1 : next;
    }
}

static void run_all(struct run *r) {
    struct error err;
    if (scheduler_start(&r->scheduler, &r->options, &err))
        exit(2);
    for (int i = 0; i < r->n; i++)
        if (scheduler_add(&r->scheduler, r->wishes[i].arrival, r->wishes[i].n_prompt, &err) < 0)
            exit(2);
    r->scheduler.memory = r->memory ? &r->memory->base : NULL;
    r->scheduler.changed = give_back;
    r->scheduler.context = r;
    if (r->cancelled >= 0)
        scheduler_stop(&r->scheduler, r->cancelled, FINISH_CANCELLED, 0);
    run_steps(r);
    note_end(r);
    scheduler_end(&r->scheduler);
}

static struct run run_of(struct lab_log *log, int n, int max_running, bool continuous) {
    struct run r = {.log = log,
                    .options = {max_running, MOST_TOKENS, MOST_TOKENS, continuous},
                    .n = n,
                    .cancelled = -1};
    static const int lengths[] = {2, 1, 3, 1, 4, 2};
    for (int i = 0; i < n; i++)
        r.wishes[i] = (struct wish){0, 1 + i % 3, lengths[i % 6]};
    return r;
}

/* ---- step 1: the moment a place is free ------------------------------------------------------ */

static void run_places(struct lab_log *log, int places) {
    struct run r = run_of(log, 7, places, true);
    run_all(&r);
}

/* Requests 2, 3, ... come later; with one place they wait, with many there are gaps. */
static void run_arrivals(struct lab_log *log, int places) {
    struct run r = run_of(log, 6, places, true);
    static const int arrivals[] = {0, 0, 2, 9, 9, 30};
    for (int i = 0; i < r.n; i++)
        r.wishes[i].arrival = arrivals[i];
    run_all(&r);
}

static void run_cancelled(struct lab_log *log, int which) {
    struct run r = run_of(log, 4, 1, true);
    r.cancelled = which;
    run_all(&r);
}

static void run_static(struct lab_log *log, int places) {
    struct run r = run_of(log, 7, places, false);
    run_all(&r);
}

/* ---- step 2: prompts in pieces --------------------------------------------------------------- */

/* A prompt of n tokens in pieces of four at most. */
static void run_chunk(struct lab_log *log, int n) {
    struct run r = run_of(log, 1, 1, true);
    r.options.chunk = 4;
    r.wishes[0].n_prompt = n;
    run_all(&r);
}

/* Four tokens a step for three requests. */
static void run_budget(struct lab_log *log, int n_prompt) {
    struct run r = run_of(log, 5, 3, true);
    r.options.token_budget = 4;
    for (int i = 0; i < r.n; i++)
        r.wishes[i].n_prompt = n_prompt + i;
    run_all(&r);
}

static void make_random(struct run *r, uint64_t seed) {
    struct random random = {seed};
    int arrival = 0;
    r->options.token_budget = random_int(&random, r->options.max_running, 12);
    r->options.chunk = random_int(&random, 1, 6);
    for (int i = 0; i < r->n; i++) {
        arrival += random_int(&random, 0, 2);
        r->wishes[i] =
            (struct wish){arrival, random_int(&random, 1, 12), random_int(&random, 1, 6)};
    }
}

static void run_random(struct lab_log *log, int n) {
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct run r = run_of(log, n, 1 + (int)seed % 4, seed != 3);
        make_random(&r, seed);
        run_all(&r);
    }
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_OWN_CACHES, 6, NULL);
}

/* ---- step 3: memory that says no ------------------------------------------------------------- */

/* Some tokens of each prompt are there already. */
static void run_cached(struct lab_log *log, int n) {
    struct counted memory = memory_of(MOST_TOKENS);
    struct run r = run_of(log, 2, 2, true);
    memory.cached = n;
    r.memory = &memory;
    r.options.chunk = 3;
    r.wishes[0].n_prompt = 9;
    r.wishes[1].n_prompt = 4;
    run_all(&r);
}

/* The second does not fit beside the first; the third would. */
static void run_passed_over(struct lab_log *log, int n_third) {
    struct counted memory = memory_of(12);
    struct run r = run_of(log, 3, 3, true);
    r.memory = &memory;
    r.wishes[0] = (struct wish){0, 6, 3};
    r.wishes[1] = (struct wish){0, 8, 2};
    r.wishes[2] = (struct wish){0, n_third, 2};
    run_all(&r);
}

/* A request that never fits, before, between or behind others. */
static void run_never(struct lab_log *log, int which) {
    struct counted memory = memory_of(10);
    struct run r = run_of(log, 3, 2, true);
    r.memory = &memory;
    r.wishes[which].n_prompt = 11;
    run_all(&r);
}

/* Admitted, but without room for the first piece: it waits among those that run. */
static void run_later(struct lab_log *log, int n_prompt) {
    struct counted memory = memory_of(8);
    struct run r = run_of(log, 3, 3, true);
    memory.headroom = -n_prompt;
    r.memory = &memory;
    r.wishes[0] = (struct wish){0, 6, 3};
    r.wishes[1] = (struct wish){0, n_prompt, 2};
    r.wishes[2] = (struct wish){1, 1, 1};
    run_all(&r);
}

/* Two that write need more and more, so that one is preempted while others wait in the queue. */
static void run_preempted(struct lab_log *log, int places) {
    struct counted memory = memory_of(9);
    struct run r = run_of(log, 4, places, true);
    r.memory = &memory;
    r.wishes[0] = (struct wish){0, 3, 4};
    r.wishes[1] = (struct wish){0, 3, 4};
    r.wishes[2] = (struct wish){1, 1, 2};
    r.wishes[3] = (struct wish){1, 1, 3};
    run_all(&r);
}

/* A prompt in pieces lacks room halfway. */
static void run_halfway(struct lab_log *log, int n) {
    struct counted memory = memory_of(10);
    struct run r = run_of(log, n, 3, true);
    memory.headroom = -8;
    r.memory = &memory;
    r.options.chunk = 3;
    for (int i = 0; i < n; i++)
        r.wishes[i] = (struct wish){i, i ? 8 : 11 - (n > 1) * 5, 3};
    run_all(&r);
}

static void run_random_memory(struct lab_log *log, int n) {
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct counted memory = memory_of(14 + (int)seed);
        struct run r = run_of(log, n, 2 + (int)seed % 3, seed % 4 != 0);
        make_random(&r, seed);
        memory.headroom = seed % 2 ? 1 : -2;
        memory.cached = seed % 3 == 0;
        r.memory = &memory;
        run_all(&r);
    }
}

static void run_paged(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_PAGED, 6, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"places", 1, "no more run than there are places, and a free place is filled", "places",
     LAB_SIZES(1, 2, 3, 8), run_places, 0},
    {"arrivals", 1, "nobody starts before he has arrived", "places", LAB_SIZES(1, 2, 8),
     run_arrivals, 0},
    {"cancelled", 1, "who was cancelled in the queue is skipped", "the one that is cancelled",
     LAB_SIZES(0, 1, 3), run_cancelled, 0},
    {"static", 1, "without continuous, a batch ends before the next begins", "places",
     LAB_SIZES(1, 2, 3), run_static, 0},
    {"chunk", 2, "pieces of at most four tokens", "prompt tokens",
     LAB_SIZES(1, 3, 4, 5, 7, 8, 9, 12), run_chunk, 0},
    {"budget", 2, "at most four tokens a step, for all together", "tokens of the first prompt",
     LAB_SIZES(1, 2, 4, 5), run_budget, 0},
    {"random", 2, "random requests, places, budgets and pieces", "requests",
     LAB_SIZES(1, 2, 3, 6, 16), run_random, 0},
    {"serve", 2, "a request of the model, with a cache of its own", "requests", LAB_SIZES(1),
     run_serve, 8},
    {"cached", 3, "what memory has already is not read", "cached tokens", LAB_SIZES(0, 1, 3, 4, 8),
     run_cached, 0},
    {"passed over", 3, "nobody is passed over", "tokens of the third prompt", LAB_SIZES(1, 4),
     run_passed_over, 0},
    {"never", 3, "who never fits ends, and the others go on", "the one that is too long",
     LAB_SIZES(0, 1, 2), run_never, 0},
    {"later", 3, "a first piece without room is not planned", "tokens of the second prompt",
     LAB_SIZES(3, 5), run_later, 0},
    {"preempted", 3, "who was preempted comes before the queue", "places", LAB_SIZES(2, 3),
     run_preempted, 0},
    {"halfway", 3, "a piece lacks room: those behind it wait", "requests", LAB_SIZES(1, 2, 3, 4),
     run_halfway, 0},
    {"random memory", 3, "random requests in a memory that is too small", "requests",
     LAB_SIZES(1, 2, 3, 6, 16), run_random_memory, 0},
    {"serve paged", 3, "the model's requests in a pool that is too small", "requests",
     LAB_SIZES(16), run_paged, 8},
};

const struct lab lab = {
    .number = 4,
    .title = "continuous batching",
    .served = "your scheduler",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_4_causes,
    .n_causes = N_LAB_4_CAUSES,
};
