/* The scheduler without a model: random arrivals, lengths, budgets and cancellations, and at every
 * step the rules that must hold. */
#include "scheduler/scheduler.h"
#include "tests/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_JOBS = 64, MAX_RUNNING = 12 };

/* What the simulation itself knows of each request. */
struct simulated {
    int n_prompt, n_new; /* n_new: how many it will draw */
    int read, drawn;
    bool stopped;
};

struct simulation {
    struct scheduler scheduler;
    struct simulated jobs[MAX_JOBS];
    int last_admitted;
    int n_admitted, n_done;
    double now;
};

static const bool legal[N_REQUEST_STATES][N_REQUEST_STATES] = {
    [REQUEST_WAITING] = {[REQUEST_PREFILLING] = true, [REQUEST_DONE] = true},
    [REQUEST_PREFILLING] = {[REQUEST_DECODING] = true, [REQUEST_DONE] = true},
    [REQUEST_DECODING] = {[REQUEST_DONE] = true},
};

static void on_change(void *context, int job, enum request_state from, double now) {
    struct simulation *sim = context;
    const struct job *j = &sim->scheduler.jobs[job];
    assert_true(legal[from][j->state]);
    /* One that is stopped before it arrives ends as it arrives. */
    assert_true(now == sim->now || (now == j->arrival && from == REQUEST_WAITING));
    if (j->state == REQUEST_PREFILLING) {
        assert_true(j->arrival <= now);
        assert_true(job > sim->last_admitted); /* in order of arrival: nobody is passed over */
        for (int i = sim->last_admitted + 1; i < job; i++)
            assert_true(sim->scheduler.jobs[i].state == REQUEST_DONE); /* stopped in the queue */
        sim->last_admitted = job;
        sim->n_admitted++;
    }
    sim->n_done += j->state == REQUEST_DONE;
}

static void check_plan(struct simulation *sim, const struct plan_entry *entries, int n) {
    const struct scheduler *s = &sim->scheduler;
    int tokens = 0, decoding = 0, n_decodes = 0;
    bool seen[MAX_JOBS] = {false};
    assert_in_range(s->n_running, 0, s->options.max_running);
    for (int i = 0; i < s->n_running; i++)
        decoding += s->jobs[s->running[i]].state == REQUEST_DECODING;
    for (int i = 0; i < n; i++) {
        const struct plan_entry *e = &entries[i];
        const struct simulated *j = &sim->jobs[e->job];
        assert_false(seen[e->job]);
        seen[e->job] = true;
        tokens += e->n_tokens;
        if (s->jobs[e->job].state == REQUEST_DECODING) {
            assert_int_equal(e->n_tokens, 1);
            assert_true(e->draws);
            assert_int_equal(j->read, j->n_prompt);
            n_decodes++;
        } else {
            assert_int_equal(s->jobs[e->job].state, REQUEST_PREFILLING);
            assert_in_range(e->n_tokens, 1, s->options.chunk);
            assert_true(j->read + e->n_tokens <= j->n_prompt);
            assert_int_equal(e->draws, j->read + e->n_tokens == j->n_prompt);
        }
    }
    assert_int_equal(n_decodes, decoding); /* everybody who decodes has a turn */
    assert_true(tokens <= s->options.token_budget);
    assert_true(n > 0 || s->n_running == 0);
}

static void run_entry(struct simulation *sim, const struct plan_entry *e) {
    struct simulated *j = &sim->jobs[e->job];
    enum finish finish = FINISH_NOT_YET;
    if (sim->scheduler.jobs[e->job].state == REQUEST_PREFILLING)
        j->read += e->n_tokens;
    if (e->draws && ++j->drawn == j->n_new)
        finish = FINISH_LENGTH;
    scheduler_ran(&sim->scheduler, e, finish, sim->now);
}

/* One step; false when all is done. */
static bool simulate_step(struct simulation *sim, struct random *r, int cancel_one_in) {
    struct scheduler *s = &sim->scheduler;
    struct plan_entry entries[MAX_RUNNING];
    int n = scheduler_plan(s, sim->now, entries);
    check_plan(sim, entries, n);
    if (!n) {
        double next = scheduler_next_arrival(s);
        if (isinf(next))
            return false;
        assert_true(next > sim->now);
        sim->now = next;
        return true;
    }
    sim->now += 0.001 * random_int(r, 1, 9);
    if (random_int(r, 1, cancel_one_in) == 1) {
        int job = random_int(r, 0, s->n_jobs - 1);
        if (s->jobs[job].state != REQUEST_DONE)
            sim->jobs[job].stopped = true;
        scheduler_stop(s, job, FINISH_CANCELLED, sim->now);
    }
    for (int i = 0; i < n; i++)
        if (!sim->jobs[entries[i].job].stopped)
            run_entry(sim, &entries[i]);
        else
            scheduler_ran(s, &entries[i], FINISH_NOT_YET, sim->now); /* no harm */
    return true;
}

static void check_end(const struct simulation *sim) {
    const struct scheduler *s = &sim->scheduler;
    assert_int_equal(s->n_running, 0);
    assert_int_equal(s->n_done, s->n_jobs);
    assert_int_equal(sim->n_done, s->n_jobs);
    for (int i = 0; i < s->n_jobs; i++) {
        const struct job *j = &s->jobs[i];
        assert_int_equal(j->n_new, sim->jobs[i].drawn);
        assert_int_equal(j->n_read, sim->jobs[i].read);
        if (sim->jobs[i].stopped) {
            assert_int_equal(j->finish, FINISH_CANCELLED);
            continue;
        }
        assert_int_equal(j->finish, FINISH_LENGTH);
        assert_int_equal(j->n_new, sim->jobs[i].n_new);
        assert_true(j->arrival <= j->admitted && j->admitted <= j->first && j->first <= j->done);
    }
}

static long simulate(struct random *r, bool continuous) {
    struct error err = {""};
    struct simulation sim = {.last_admitted = -1};
    int max_running = random_int(r, 1, MAX_RUNNING), n_jobs = random_int(r, 1, MAX_JOBS);
    struct scheduler_options options = {max_running, max_running + random_int(r, 0, 200),
                                        random_int(r, 1, 128), continuous};
    long steps = 0;
    double arrival = 0;
    assert_int_equal(scheduler_start(&sim.scheduler, &options, &err), 0);
    sim.scheduler.changed = on_change;
    sim.scheduler.context = &sim;
    for (int i = 0; i < n_jobs; i++) {
        sim.jobs[i].n_prompt = random_int(r, 1, random_int(r, 0, 3) ? 30 : 600);
        sim.jobs[i].n_new = random_int(r, 1, random_int(r, 0, 3) ? 20 : 300);
        arrival += random_int(r, 0, 2) ? 0 : 0.01 * random_int(r, 0, 50);
        assert_int_equal(scheduler_add(&sim.scheduler, arrival, sim.jobs[i].n_prompt, &err), i);
    }
    while (simulate_step(&sim, r, random_int(r, 0, 1) ? 40 : 1000000))
        steps++;
    check_end(&sim);
    scheduler_end(&sim.scheduler);
    return steps;
}

static void test_a_million_steps(void **state) {
    (void)state;
    struct random r = {93};
    long steps = 0;
    for (int run = 0; steps < 1000000; run++)
        steps += simulate(&r, run % 4 != 0);
    print_message("%ld steps\n", steps);
}

/* Static: nobody joins a batch that runs; continuous: the place of one that is done is filled in
 * the next step. */
static void test_policies(void **state) {
    (void)state;
    struct error err;
    struct plan_entry e[2];
    for (int continuous = 0; continuous < 2; continuous++) {
        struct scheduler s;
        struct scheduler_options options = {2, 8, 4, continuous};
        assert_int_equal(scheduler_start(&s, &options, &err), 0);
        for (int i = 0; i < 3; i++)
            scheduler_add(&s, 0, 3, &err);
        assert_int_equal(scheduler_plan(&s, 0, e), 2);
        assert_true(e[0].job == 0 && e[0].n_tokens == 3 && e[0].draws);
        scheduler_ran(&s, &e[0], FINISH_STOP, 1);
        scheduler_ran(&s, &e[1], FINISH_NOT_YET, 1);
        assert_int_equal(scheduler_waiting(&s, 1), 1);
        assert_int_equal(scheduler_plan(&s, 1, e), 1 + continuous);
        assert_true(e[0].job == 1 && e[0].n_tokens == 1);
        if (continuous)
            assert_true(e[1].job == 2 && e[1].n_tokens == 3);
        scheduler_end(&s);
    }
}

/* The budget goes to those who decode, then to prompts in order of admission. */
static void test_budget(void **state) {
    (void)state;
    struct error err;
    struct scheduler s;
    struct plan_entry e[3];
    struct scheduler_options options = {3, 10, 6, true};
    assert_int_equal(scheduler_start(&s, &options, &err), 0);
    scheduler_add(&s, 0, 2, &err);
    assert_int_equal(scheduler_plan(&s, 0, e), 1);
    scheduler_ran(&s, &e[0], FINISH_NOT_YET, 0);
    scheduler_add(&s, 0, 20, &err);
    scheduler_add(&s, 0, 20, &err);
    assert_int_equal(scheduler_plan(&s, 0, e), 3);
    assert_true(e[0].job == 0 && e[0].n_tokens == 1);
    assert_true(e[1].job == 1 && e[1].n_tokens == 6 && !e[1].draws);
    assert_true(e[2].job == 2 && e[2].n_tokens == 3 && !e[2].draws);
    scheduler_end(&s);
}

static void expect_says(const struct error *err, const char *says) {
    if (!strstr(err->text, says))
        fail_msg("\"%s\" does not say \"%s\"", err->text, says);
}

static void test_bad_input(void **state) {
    (void)state;
    struct error err;
    struct scheduler s;
    static const struct {
        struct scheduler_options options;
        const char *says;
    } bad[] = {{{0, 8, 4, true}, "at least 1"},
               {{4, 3, 4, true}, "too small for 4"},
               {{4, 8, 0, true}, "pieces of 0"}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(scheduler_start(&s, &bad[i].options, &err), -1);
        expect_says(&err, bad[i].says);
        scheduler_end(&s);
    }
    struct scheduler_options good = {4, 8, 4, true};
    assert_int_equal(scheduler_start(&s, &good, &err), 0);
    assert_int_equal(scheduler_add(&s, 1, 0, &err), -1);
    expect_says(&err, "empty");
    assert_int_equal(scheduler_add(&s, NAN, 1, &err), -1);
    assert_int_equal(scheduler_add(&s, -1, 1, &err), -1);
    assert_int_equal(scheduler_add(&s, INFINITY, 1, &err), -1);
    assert_int_equal(scheduler_add(&s, 2, 1, &err), 0);
    assert_int_equal(scheduler_add(&s, 1, 1, &err), -1);
    expect_says(&err, "sort them");
    scheduler_end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_a_million_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
