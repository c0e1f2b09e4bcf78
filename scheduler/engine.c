#include "scheduler/engine.h"

#include "scheduler/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- time ------------------------------------------------------------------------------------ */

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

/* ---- text and stop strings ------------------------------------------------------------------- */

static bool wants_text(const struct engine *e) {
    return e->options->tokenizer != NULL;
}

static int add_text(struct answer *a, const char *text, size_t n, struct error *err) {
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
static bool cut_at_stop(struct answer *a, const struct request *r, size_t old) {
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
    struct answer *a = &e->answers[i];
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

/* ---- requests come and go -------------------------------------------------------------------- */

static void on_change(void *context, int i, enum request_state from, double time) {
    struct engine *e = context;
    struct answer *a = &e->answers[i];
    const struct job *job = &e->scheduler.jobs[i];
    struct request_memory *memory = e->options->memory;
    if (job->state == REQUEST_DONE) {
        a->sequence.finish = job->finish;
        if (job->finish == FINISH_ERROR && !a->error.text[0])
            a->error = memory->why; /* it lacks memory, and always will */
        memory->release(memory, i);
    }
    if (e->options->changed)
        e->options->changed(e->options->context, e, i, from, time);
}

/* Every request as a sequence, and as its memory sees it. */
static int make_sequences(struct engine *e, struct error *err) {
    for (int i = 0; i < e->n; i++) {
        const struct request *r = &e->requests[i];
        struct sequence *s = &e->answers[i].sequence;
        int64_t positions =
            (int64_t)r->n_prompt + r->max_new - 1; /* the last token is not stored */
        int context = e->generator->context;
        if (sequence_start(s, (uint32_t)i, &r->sampling, err) ||
            sequence_add_prompt(s, r->prompt, r->n_prompt, r->max_new, err))
            return -1;
        e->in_memory[i] =
            (struct memory_request){s, positions < context ? (int)positions : context,
                                    r->fork_back > 0 && r->fork_back <= i ? i - r->fork_back : -1};
    }
    return 0;
}

/* Request i waits in the queue, or ends at once: it cannot be answered, or wants no token. */
static int enqueue(struct engine *e, int i, struct error *err) {
    const struct request *r = &e->requests[i];
    struct error why;
    /* An empty prompt waits in the queue as one token, and is refused there. */
    if (scheduler_add(&e->scheduler, r->arrival, r->n_prompt > 0 ? r->n_prompt : 1, &why) < 0)
        return error_set(err, "request %d: %s", i, why.text);
    if (generator_check_prompt(e->generator, &e->answers[i].sequence, &e->answers[i].error))
        scheduler_stop(&e->scheduler, i, FINISH_ERROR, now(e));
    else if (r->max_new < 1)
        scheduler_stop(&e->scheduler, i, FINISH_LENGTH, now(e));
    return 0;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* What a plan entry reads, as a part of a pass. */
static struct pass_part part_of(struct engine *e, const struct plan_entry *entry) {
    struct request_memory *memory = e->options->memory;
    return (struct pass_part){.sequence = &e->answers[entry->job].sequence,
                              .cache = memory->cache(memory, entry->job),
                              .first = entry->first,
                              .end = entry->first + entry->n_tokens,
                              .draw = entry->draws};
}

/* One pass for n entries of the plan. */
static int run_pass(struct engine *e, const struct plan_entry *entries, int n, struct error *err) {
    struct request_memory *memory = e->options->memory;
    for (int i = 0; i < n; i++)
        e->parts[i] = part_of(e, &entries[i]);
    if (pass_run(e->generator, e->parts, n, err))
        return -1;
    e->passes++;
    for (int i = 0; i < n; i++)
        memory->stored(memory, entries[i].job, e->parts[i].end);
    if (memory->bytes > e->most_cache_bytes)
        e->most_cache_bytes = memory->bytes;
    for (int i = 0; i < n; i++) {
        if (entries[i].draws && decode(e, entries[i].job, err))
            return -1;
        scheduler_ran(&e->scheduler, &entries[i], e->parts[i].sequence->finish, now(e));
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

/* One pass for all entries, or one for each. */
static int run_plan(struct engine *e, int n, struct error *err) {
    if (e->options->one_pass) {
        qsort(e->plan, (size_t)n, sizeof *e->plan, by_length);
        return run_pass(e, e->plan, n, err);
    }
    for (int i = 0; i < n; i++)
        if (run_pass(e, &e->plan[i], 1, err))
            return -1;
    return 0;
}

static int step(struct engine *e, struct error *err) {
    int n = scheduler_plan(&e->scheduler, now(e), e->plan);
    if (e->options->memory->failed)
        return error_set(err, "%s", e->options->memory->why.text);
    if (!n) {
        double next = scheduler_next_arrival(&e->scheduler);
        if (!isinf(next))
            wait_until(e, next);
        return 0;
    }
    if (run_plan(e, n, err))
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
    struct request_memory *memory = options->memory;
    size_t n = (size_t)e->n + 1, max_running = (size_t)options->scheduler.max_running;
    if (scheduler_start(&e->scheduler, &options->scheduler, err))
        return -1;
    e->answers = calloc(n, sizeof *e->answers);
    e->in_memory = calloc(n, sizeof *e->in_memory);
    e->plan = malloc(sizeof *e->plan * max_running);
    e->parts = malloc(sizeof *e->parts * max_running);
    if (!e->answers || !e->in_memory || !e->plan || !e->parts)
        return error_set(err, "out of memory for %d requests", e->n);
    if (make_sequences(e, err) || memory->start(memory, &e->scheduler, e->in_memory, e->n, err))
        return -1;
    e->scheduler.memory = memory;
    e->scheduler.changed = on_change;
    e->scheduler.context = e;
    e->began = clock_now();
    for (int i = 0; i < e->n; i++)
        if (enqueue(e, i, err))
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
    e->scheduler.memory = NULL;
    e->options = NULL;
    e->requests = NULL;
    return result;
}

void engine_cancel(struct engine *e, int request) {
    scheduler_stop(&e->scheduler, request, FINISH_CANCELLED, now(e));
}

void engine_end(struct engine *e) {
    for (int i = 0; e->answers && i < e->n; i++) {
        struct answer *a = &e->answers[i];
        sequence_end(&a->sequence);
        decode_stream_free(a->stream);
        free(a->text);
    }
    free(e->answers);
    free(e->in_memory);
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
