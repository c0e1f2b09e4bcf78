/*
 * service.h: requests come from several threads while the engine runs, are cancelled at random, and
 * find the queue full; each answer has the bits that its request has alone, and every block comes
 * back. Built with ThreadSanitizer by make test-threads, too.
 */
#include "scheduler/service.h"
#include "tests/tiny_models.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { VOCAB = 61, N_REQUESTS = 48, N_THREADS = 4, N_BLOCKS = 24, BLOCK = 4 };

struct asked {
    struct ticket ticket; /* first */
    struct sequence *alone;
    bool cancel;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int n_drawn;
    enum finish finish;
    char wrong[120];
};

struct run {
    struct tiny_model model;
    struct kv_pool pool;
    struct paged_memory memory;
    struct service *service;
    struct sequence questions[N_REQUESTS], alone[N_REQUESTS];
    struct asked asked[N_REQUESTS];
};

static void drew(struct ticket *t, const struct answer *a) {
    struct asked *q = (struct asked *)t;
    pthread_mutex_lock(&q->lock);
    q->n_drawn++;
    if (q->n_drawn != sequence_new_tokens(&a->sequence))
        strcpy(q->wrong, "a token was not told");
    if (t->n_logprobs >= 0 && !(t->logprob <= 0 && t->n_top == 2 && t->top[0].value >= t->logprob))
        strcpy(q->wrong, "its log-probability is none");
    pthread_mutex_unlock(&q->lock);
}

static void done(struct ticket *t, const struct answer *a) {
    struct asked *q = (struct asked *)t;
    const struct sequence *s = &a->sequence;
    pthread_mutex_lock(&q->lock);
    q->finish = s->finish;
    if (s->n_tokens > q->alone->n_tokens ||
        memcmp(s->tokens, q->alone->tokens, sizeof *s->tokens * (size_t)s->n_tokens))
        strcpy(q->wrong, "other tokens than alone");
    if (s->finish != FINISH_CANCELLED &&
        fingerprint_value(&s->fingerprint) != fingerprint_value(&q->alone->fingerprint))
        strcpy(q->wrong, "another fingerprint than alone");
    q->done = true;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

/* The first n_samples requests are samples of one. */
static void start(struct run *r, int n_samples, double wait_limit) {
    struct kv_pool_options pool = {.block_size = BLOCK, .n_blocks = N_BLOCKS};
    struct paged_options paged = {PREEMPT_RECOMPUTE, true};
    struct random random = {311};
    struct error err;
    tiny_model_open(&r->model, 1);
    r->model.generator.fused = true;
    for (int i = 0; i < N_REQUESTS; i++) {
        int32_t ids[24];
        int n = random_int(&random, 1, 24);
        struct sampling_options sampling = {i % 3 ? 0.9f : 0, 0, 1, (uint64_t)i, true, 0};
        int max_new = random_int(&random, 1, 30);
        for (int k = 0; k < n; k++)
            ids[k] = random_int(&random, 0, VOCAB - 1);
        if (i && i < n_samples) {
            n = r->questions[0].n_tokens;
            max_new = r->questions[0].max_new;
            memcpy(ids, r->questions[0].tokens, sizeof *ids * (size_t)n);
            sampling = r->questions[0].sampling;
            sampling.sample = (uint32_t)i;
        }
        if (!i)
            sampling.temperature = 0.9f;
        assert_int_equal(sequence_start(&r->questions[i], 0, &sampling, &err), 0);
        assert_int_equal(sequence_add_prompt(&r->questions[i], ids, n, max_new, &err), 0);
        r->alone[i] = tiny_alone(&r->model, &r->questions[i]);
        struct asked *q = &r->asked[i];
        memset(q, 0, sizeof *q);
        q->ticket.request = (struct request){.prompt = r->questions[i].tokens,
                                             .n_prompt = n,
                                             .max_new = r->questions[i].max_new,
                                             .sampling = sampling};
        q->ticket.n_logprobs = i % 2 ? 2 : -1;
        q->ticket.origin = i < n_samples ? &r->asked[0].ticket : &q->ticket;
        q->ticket.top = calloc(2, sizeof *q->ticket.top);
        q->ticket.drew = drew;
        q->ticket.done = done;
        q->alone = &r->alone[i];
        q->cancel = i % 5 == 4;
        pthread_mutex_init(&q->lock, NULL);
        pthread_cond_init(&q->changed, NULL);
    }
    assert_int_equal(kv_pool_start(&r->pool, &r->model.model, &pool, &err), 0);
    paged_memory_start(&r->memory, &r->pool, &paged);
    struct service_options options = {.scheduler = {4, 16, 7, true},
                                      .memory = &r->memory,
                                      .max_waiting = 6,
                                      .wait_limit = wait_limit};
    r->service = service_start(&r->model.generator, &options, &err);
    if (!r->service)
        fail_msg("%s", err.text);
}

static void end(struct run *r) {
    struct error err;
    service_drain(r->service, 100);
    assert_int_equal(service_stop(r->service, &err), 0);
    assert_true(service_ended(r->service));
    struct asked *late = &r->asked[0];
    struct ticket *tickets[] = {&late->ticket};
    assert_int_equal(service_submit(r->service, tickets, 1), SERVICE_STOPPING);
    assert_int_equal(r->pool.blocks.stats.used, 0); /* every block came back */
    assert_int_equal(block_allocator_check(&r->pool.blocks, &err), 0);
    service_free(r->service);
    paged_memory_end(&r->memory);
    kv_pool_end(&r->pool);
    for (int i = 0; i < N_REQUESTS; i++) {
        free(r->asked[i].ticket.top);
        pthread_mutex_destroy(&r->asked[i].lock);
        pthread_cond_destroy(&r->asked[i].changed);
        sequence_end(&r->questions[i]);
        sequence_end(&r->alone[i]);
    }
    tiny_model_close(&r->model);
}

static void wait_for(struct asked *q) {
    pthread_mutex_lock(&q->lock);
    while (!q->done)
        pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

struct submitter {
    pthread_t thread;
    struct run *run;
    int first;
};

/* Every N_THREADS-th request, one after the other or several at once; some are cancelled. */
static void *submit_some(void *context) {
    const struct submitter *s = context;
    for (int i = s->first; i < N_REQUESTS; i += N_THREADS) {
        struct asked *q = &s->run->asked[i];
        struct ticket *tickets[] = {&q->ticket};
        while (service_submit(s->run->service, tickets, 1) == SERVICE_FULL)
            nanosleep(&(struct timespec){0, 100000}, NULL);
        if (q->cancel)
            service_cancel(s->run->service, &q->ticket);
        if (i % 3 == 0)
            wait_for(q);
    }
    return NULL;
}

static void requests_come_from_many_threads(void **state) {
    (void)state;
    static struct run r;
    struct submitter submitters[N_THREADS];
    struct service_metrics m;
    int n_answered = 0, n_cancelled = 0;
    start(&r, 1, 0);
    for (int i = 0; i < N_THREADS; i++) {
        submitters[i] = (struct submitter){.run = &r, .first = i};
        assert_int_equal(pthread_create(&submitters[i].thread, NULL, submit_some, &submitters[i]),
                         0);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(submitters[i].thread, NULL);
    for (int i = 0; i < N_REQUESTS; i++) {
        struct asked *q = &r.asked[i];
        wait_for(q);
        if (q->wrong[0])
            fail_msg("request %d: %s", i, q->wrong);
        assert_true(q->cancel || q->finish != FINISH_CANCELLED);
        n_answered += q->finish != FINISH_CANCELLED;
        n_cancelled += q->finish == FINISH_CANCELLED;
    }
    service_measure(r.service, &m);
    assert_int_equal(m.finished, n_answered);
    assert_int_equal(m.cancelled, n_cancelled);
    end(&r);
}

static void samples_of_a_group_share_a_prompt(void **state) {
    (void)state;
    static struct run r;
    struct ticket *tickets[4];
    start(&r, 4, 0);
    for (int i = 0; i < 4; i++)
        tickets[i] = &r.asked[i].ticket;
    assert_int_equal(service_submit(r.service, tickets, 4), SERVICE_TAKEN);
    for (int i = 0; i < 4; i++) {
        wait_for(&r.asked[i]);
        if (r.asked[i].wrong[0])
            fail_msg("sample %d: %s", i, r.asked[i].wrong);
    }
    end(&r);
}

static void a_full_queue_refuses_and_late_ones_are_told(void **state) {
    (void)state;
    static struct run r;
    struct ticket *tickets[N_REQUESTS];
    start(&r, 1, 1e-9); /* nobody may wait */
    for (int i = 0; i < N_REQUESTS; i++)
        tickets[i] = &r.asked[i].ticket;
    assert_int_equal(service_submit(r.service, tickets, 7), SERVICE_FULL);
    assert_int_equal(service_submit(r.service, tickets, 6), SERVICE_TAKEN);
    for (int i = 0; i < 6; i++) {
        wait_for(&r.asked[i]);
        assert_int_equal(r.asked[i].finish, FINISH_CANCELLED);
        assert_true(r.asked[i].ticket.late);
    }
    end(&r);
}

static void draining_cancels_what_still_runs(void **state) {
    (void)state;
    static struct run r;
    struct error err;
    start(&r, 1, 0);
    r.asked[0].ticket.request.max_new = 1 << 20; /* up to the end of the context */
    r.asked[0].ticket.request.ignore_stop = true;
    struct ticket *tickets[] = {&r.asked[0].ticket};
    assert_int_equal(service_submit(r.service, tickets, 1), SERVICE_TAKEN);
    service_drain(r.service, 0);
    assert_int_equal(service_stop(r.service, &err), 0);
    assert_true(r.asked[0].done);
    end(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_come_from_many_threads),
        cmocka_unit_test(samples_of_a_group_share_a_prompt),
        cmocka_unit_test(a_full_queue_refuses_and_late_ones_are_told),
        cmocka_unit_test(draining_cancels_what_still_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
