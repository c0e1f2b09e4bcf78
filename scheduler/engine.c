#include "scheduler/engine.h"

#include "scheduler/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- time -------------------------------------------------------------------------------------
 */

static double now(const struct engine *e) {
    const struct engine_clock *clock = e->options->clock;
    return clock ? clock->now(clock->context) : clock_now() - e->began;
}

static void wait_until(const struct engine *e, double time) {
    const struct engine_clock *clock = e->options->clock;
    if (clock) {
        clock->wait_until(clock->context, time);
        return;
    }
    double left = time - now(e);
    if (left > 0) /* in pieces, so that an interruption is noticed */
        nanosleep(&(struct timespec){0, (long)(fmin(left, 0.1) * 1e9)}, NULL);
}

/* ---- text and stop strings --------------------------------------------------------------------
 */

static bool wants_text(const struct engine *e) {
    return e->options->tokenizer != NULL;
}

static int add_text(struct answer_of *a, const char *text, size_t n, struct error *err) {
    if (a->n_text + n + 1 > a->text_capacity) {
        size_t capacity = 2 * (a->n_text + n + 1);
        char *larger = realloc(a->text, capacity);
        if (!larger)
            return error_set(err, "out of memory for the text of an answer");
        a->text = larger;
        a->text_capacity = capacity;
    }
    memcpy(a->text + a->n_text, text, n);
    a->n_text += n;
    a->text[a->n_text] = 0;
    return 0;
}

/* Looks for stop strings in what was added after `old`, and in what was there but not long enough
 * yet. Cuts the text in front of the first. */
static bool cut_at_stop(struct answer_of *a, const struct request *r, size_t old) {
    const char *first = NULL;
    for (int i = 0; i < r->n_stops; i++) {
        size_t n = strlen(r->stops[i]), from = old + 1 > n ? old + 1 - n : 0;
        const char *found =
            n && a->text ? memmem(a->text + from, a->n_text - from, r->stops[i], n) : NULL;
        if (found && (!first || found < first))
            first = found;
    }
    if (!first)
        return false;
    a->n_text = (size_t)(first - a->text);
    a->text[a->n_text] = 0;
    return true;
}

/* The token drawn last becomes text. */
static int decode(struct engine *e, int i, struct error *err) {
    struct answer_of *a = &e->answers[i];
    struct sequence *s = &a->sequence;
    const char *text;
    size_t n, old = a->n_text;
    if (!wants_text(e))
        return 0;
    if (!a->stream && !(a->stream = decode_stream_new(e->options->tokenizer, true, err)))
        return -1;
    if (decode_stream_push(a->stream, s->tokens[s->n_tokens - 1], &text, &n, err) ||
        add_text(a, text, n, err))
        return -1;
    if (s->finish != FINISH_NOT_YET &&
        (decode_stream_flush(a->stream, &text, &n, err) || add_text(a, text, n, err)))
        return -1;
    if (cut_at_stop(a, &e->requests[i], old))
        s->finish = FINISH_STOP_STRING;
    return 0;
}

/* ---- requests come and go ---------------------------------------------------------------------
 */

static void let_go(struct engine *e, int i) {
    struct answer_of *a = &e->answers[i];
    if (e->options->memory)
        e->options->memory->release(e->options->memory->context, i);
    if (!a->cache)
        return;
    e->cache_bytes -= (int64_t)a->cache->bytes;
    e->options->cache_free(a->cache);
    a->cache = NULL;
}

static void on_change(void *context, int i, enum request_state from, double time) {
    struct engine *e = context;
    struct answer_of *a = &e->answers[i];
    if (e->scheduler.jobs[i].state == REQUEST_DONE) {
        a->sequence.finish = e->scheduler.jobs[i].finish;
        let_go(e, i);
    }
    if (e->options->changed)
        e->options->changed(e->options->context, e, i, from, time);
}

void engine_refuse(struct engine *e, int i, const struct error *why) {
    e->answers[i].error = *why;
    scheduler_stop(&e->scheduler, i, FINISH_ERROR, now(e));
}

static int add_request(struct engine *e, int i, struct error *err) {
    const struct request *r = &e->requests[i];
    struct sequence *s = &e->answers[i].sequence;
    struct error why;
    if (sequence_start(s, (uint32_t)i, &r->sampling, err) ||
        sequence_ask(s, r->prompt, r->n_prompt, r->max_new, err))
        return -1;
    /* An empty prompt waits in the queue as one token, and is refused there. */
    if (scheduler_add(&e->scheduler, r->arrival, r->n_prompt > 0 ? r->n_prompt : 1, &why) < 0)
        return error_set(err, "request %d: %s", i, why.text);
    if (generator_check_prompt(e->generator, s, &why))
        engine_refuse(e, i, &why);
    else if (r->max_new < 1)
        scheduler_stop(&e->scheduler, i, FINISH_LENGTH, now(e));
    return 0;
}

/* The cache of a request that begins. Returns 0; 1 when it ended with an error. */
static int give_cache(struct engine *e, int i) {
    struct answer_of *a = &e->answers[i];
    const struct request *r = &e->requests[i];
    struct error why;
    int64_t most = (int64_t)r->n_prompt + r->max_new;
    int positions = most < e->generator->context ? (int)most : e->generator->context;
    if (a->cache || e->options->memory)
        return 0;
    if (e->options->cache_positions)
        positions = e->options->cache_positions;
    a->cache = e->options->cache_new(e->generator->model, positions, &why);
    if (a->cache)
        return 0;
    engine_refuse(e, i, &why);
    return 1;
}

/* ---- the loop ---------------------------------------------------------------------------------
 */

static void count_memory(struct engine *e) {
    e->cache_bytes = 0;
    for (int i = 0; i < e->scheduler.n_running; i++) {
        const struct kv_cache *cache = e->answers[e->scheduler.running[i]].cache;
        e->cache_bytes += cache ? (int64_t)cache->bytes : 0;
    }
    const struct engine_memory *memory = e->options->memory;
    if (memory)
        e->cache_bytes = memory->blocks_in_use(memory->context) * (int64_t)memory->bytes_per_block;
    if (e->cache_bytes > e->most_cache_bytes)
        e->most_cache_bytes = e->cache_bytes;
}

/* The share of an entry in a pass; 0, or 1 when its request is over. */
static int part_of(struct engine *e, const struct plan_entry *entry, struct pass_part *out) {
    struct answer_of *a = &e->answers[entry->job];
    struct sequence *s = &a->sequence;
    const struct engine_memory *memory = e->options->memory;
    if (e->scheduler.jobs[entry->job].state == REQUEST_DONE || give_cache(e, entry->job))
        return 1;
    /* A shared memory may have taken some away, or found some, since the last step. */
    struct kv_cache *cache =
        memory ? memory->cache(memory->context, entry->job, &s->n_cached) : a->cache;
    *out =
        (struct pass_part){s, cache, s->n_cached, s->n_cached + entry->n_tokens, 0, entry->draws};
    return 0;
}

/* The pass of an entry is done. */
static int entry_ran(struct engine *e, const struct plan_entry *entry, struct error *err) {
    struct sequence *s = &e->answers[entry->job].sequence;
    const struct engine_memory *memory = e->options->memory;
    if (memory)
        memory->stored(memory->context, entry->job, s->n_cached);
    if (entry->draws && decode(e, entry->job, err))
        return -1;
    count_memory(e);
    scheduler_ran(&e->scheduler, entry, s->finish, now(e));
    return 0;
}

/* A pass for each entry. */
static int run_each(struct engine *e, int n, struct error *err) {
    for (int i = 0; i < n; i++) {
        struct pass_part part;
        if (part_of(e, &e->plan[i], &part))
            continue;
        if (pass_run(e->generator, &part, 1, err) || entry_ran(e, &e->plan[i], err))
            return -1;
        e->passes++;
    }
    return 0;
}

/* Decodes first, then pieces of prompts. */
static int by_length(const void *x, const void *y) {
    const struct plan_entry *a = x, *b = y;
    if ((a->n_tokens > 1) != (b->n_tokens > 1))
        return a->n_tokens > 1 ? 1 : -1;
    return a->job < b->job ? -1 : a->job > b->job;
}

/* One pass for all entries. */
static int run_together(struct engine *e, int n, struct error *err) {
    int n_parts = 0;
    qsort(e->plan, (size_t)n, sizeof *e->plan, by_length);
    for (int i = 0; i < n; i++)
        if (!part_of(e, &e->plan[i], &e->parts[n_parts]))
            e->plan[n_parts++] = e->plan[i];
    if (n_parts && pass_run(e->generator, e->parts, n_parts, err))
        return -1;
    e->passes += n_parts > 0;
    for (int i = 0; i < n_parts; i++)
        if (entry_ran(e, &e->plan[i], err))
            return -1;
    return 0;
}

static int step(struct engine *e, struct error *err) {
    int n = scheduler_plan(&e->scheduler, now(e), e->plan);
    if (e->options->memory && e->options->memory->check(e->options->memory->context, err))
        return -1;
    if (!n) {
        double next = scheduler_next_arrival(&e->scheduler);
        if (!isinf(next))
            wait_until(e, next);
        return 0;
    }
    if (e->options->one_pass ? run_together(e, n, err) : run_each(e, n, err))
        return -1;
    e->steps++;
    if (e->options->stepped)
        e->options->stepped(e->options->context, e);
    return 0;
}

static void cancel_all(struct engine *e) {
    for (int i = 0; i < e->n; i++)
        engine_cancel(e, i);
}

static int run(struct engine *e, struct error *err) {
    const struct engine_options *options = e->options;
    if (scheduler_start(&e->scheduler, &options->scheduler, err))
        return -1;
    e->answers = calloc((size_t)e->n + 1, sizeof *e->answers);
    e->plan = malloc(sizeof *e->plan * (size_t)options->scheduler.max_running);
    e->parts = malloc(sizeof *e->parts * (size_t)options->scheduler.max_running);
    if (!e->answers || !e->plan || !e->parts)
        return error_set(err, "out of memory for %d requests", e->n);
    if (options->memory && options->memory->start(options->memory->context, e, err))
        return -1;
    e->scheduler.changed = on_change;
    e->scheduler.context = e;
    e->began = clock_now();
    for (int i = 0; i < e->n; i++)
        if (add_request(e, i, err))
            return -1;
    while (e->scheduler.n_done < e->n)
        if (generator_interrupted(e->generator))
            cancel_all(e);
        else if (step(e, err))
            return -1;
    return 0;
}

int engine_run(struct engine *e, struct generator *g, const struct request *requests, int n,
               const struct engine_options *options, struct error *err) {
    *e = (struct engine){.generator = g, .requests = requests, .n = n, .options = options};
    int result = run(e, err);
    for (int i = 0; e->answers && i < n; i++) /* of those that an error interrupted */
        let_go(e, i);
    e->options = NULL;
    e->requests = NULL;
    return result;
}

void engine_cancel(struct engine *e, int request) {
    scheduler_stop(&e->scheduler, request, FINISH_CANCELLED, now(e));
}

void engine_end(struct engine *e) {
    for (int i = 0; e->answers && i < e->n; i++) {
        struct answer_of *a = &e->answers[i];
        sequence_end(&a->sequence);
        decode_stream_free(a->stream);
        free(a->text);
    }
    free(e->answers);
    free(e->plan);
    free(e->parts);
    scheduler_end(&e->scheduler);
    *e = (struct engine){0};
}

int engine_fingerprint(const struct engine *e, uint64_t *out, struct error *err) {
    struct fingerprint run;
    if (fingerprint_start(&run, err))
        return -1;
    for (int i = 0; i < e->n; i++)
        fingerprint_add_sequence(&run, fingerprint_value(&e->answers[i].sequence.fingerprint));
    *out = fingerprint_value(&run);
    fingerprint_end(&run);
    return 0;
}
