/*
 * A word holds the number of the loop and how many of its items nobody has taken yet. Who swaps it
 * for one less has an item. A thread that comes late finds nothing left, or another loop, and never
 * an item of a loop that is over: the caller waits until each taken item is done.
 *
 * A pass has some hundred short loops. So a thread without work looks again for a while before it
 * sleeps: waking it takes longer than most loops.
 */
#include "ref/threads.h"

#include "model/arithmetic.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { LOOKS_BEFORE_SLEEP = 4000, LOOKS_BEFORE_YIELD = 500 };

struct worker {
    struct ref_threads *threads;
    pthread_t thread;
    int number;
};

struct ref_threads {
    int n, n_started; /* n_started without the caller's */
    struct worker *workers;
    void (*run)(void *, int, int); /* what the loop does; set before `left` says that it began */
    void *context;
    _Atomic uint64_t left; /* number of the loop << 32 | items not taken */
    atomic_int n_undone;
    atomic_int n_sleeping;
    atomic_int n_checked, n_wrong; /* threads that have looked at their arithmetic */
    atomic_bool ends;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

static void pause_a_little(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Does items as long as there are any. */
static void work(struct ref_threads *t, int worker) {
    uint64_t left = atomic_load(&t->left);
    while ((uint32_t)left) {
        if (!atomic_compare_exchange_weak(&t->left, &left, left - 1))
            continue;
        t->run(t->context, (int)(uint32_t)left - 1, worker);
        atomic_fetch_sub(&t->n_undone, 1);
        left = atomic_load(&t->left);
    }
}

static bool idle(struct ref_threads *t) {
    return !(uint32_t)atomic_load(&t->left) && !atomic_load(&t->ends);
}

static void *worker_main(void *context) {
    struct worker *w = context;
    struct ref_threads *t = w->threads;
    atomic_fetch_add(&t->n_wrong, arithmetic_check(NULL) != 0);
    atomic_fetch_add(&t->n_checked, 1);
    while (!atomic_load(&t->ends)) {
        work(t, w->number);
        for (int i = 0; i < LOOKS_BEFORE_SLEEP && idle(t); i++)
            pause_a_little();
        if (!idle(t))
            continue;
        pthread_mutex_lock(&t->lock);
        atomic_fetch_add(&t->n_sleeping, 1); /* before the last look: the caller looks after it */
        while (idle(t))
            pthread_cond_wait(&t->wake, &t->lock);
        atomic_fetch_sub(&t->n_sleeping, 1);
        pthread_mutex_unlock(&t->lock);
    }
    return NULL;
}

static void wake_all(struct ref_threads *t) {
    if (!atomic_load(&t->n_sleeping))
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

void ref_threads_run(struct ref_threads *t, int n_items, void (*run)(void *, int, int),
                     void *context) {
    if (t->n == 1 || n_items == 1) {
        for (int i = 0; i < n_items; i++)
            run(context, i, 0);
        return;
    }
    t->run = run;
    t->context = context;
    atomic_store(&t->n_undone, n_items);
    uint64_t loop = (atomic_load(&t->left) >> 32) + 1;
    atomic_store(&t->left, loop << 32 | (uint32_t)n_items);
    wake_all(t);
    work(t, 0);
    for (int i = 0; atomic_load(&t->n_undone); i++)
        if (i < LOOKS_BEFORE_YIELD)
            pause_a_little();
        else
            sched_yield(); /* the other thread may be waiting for this core */
}

struct shared_out {
    void (*run)(void *, int);
    void *context;
};

static void run_shared(void *context, int item, int worker) {
    (void)worker;
    const struct shared_out *s = context;
    s->run(s->context, item);
}

void ref_threads_share(struct ref_threads *t, int n_items, void (*run)(void *, int),
                       void *context) {
    ref_threads_run(t, n_items, run_shared, &(struct shared_out){run, context});
}

int ref_threads_count(const struct ref_threads *threads) {
    return threads->n;
}

struct ref_threads *ref_threads_new(int n) {
    struct ref_threads *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->n = n;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->workers = calloc((size_t)n, sizeof *t->workers);
    while (t->workers && t->n_started < n - 1) {
        struct worker *w = &t->workers[t->n_started];
        *w = (struct worker){.threads = t, .number = t->n_started + 1};
        if (pthread_create(&w->thread, NULL, worker_main, w))
            break;
        t->n_started++;
    }
    while (atomic_load(&t->n_checked) < t->n_started)
        sched_yield();
    if (t->workers && t->n_started == n - 1 && !t->n_wrong)
        return t;
    ref_threads_free(t);
    return NULL;
}

void ref_threads_free(struct ref_threads *t) {
    if (!t)
        return;
    atomic_store(&t->ends, true);
    wake_all(t);
    for (int i = 0; i < t->n_started; i++)
        pthread_join(t->workers[i].thread, NULL);
    free(t->workers);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
