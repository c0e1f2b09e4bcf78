/*
 * engine.h beyond the workload test: metrics, stop strings, wherever their letters lie, and
 * requests that are cancelled in every state.
 */
#include "scheduler/engine.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/own_caches.h"
#include "tests/tiny_models.h"
#include "tests/tokenizer_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 61, STOP_ID = 7, N_REQUESTS = 8 };

/* A tokenizer for the ids of the tiny models: half characters, a NUL, single letters, pairs. */
static struct tokenizer *tiny_tokenizer(void) {
    char json[4096];
    struct tokenizer *t;
    struct error err;
    int n = snprintf(json, sizeof json,
                     "{\"added_tokens\":[{\"id\":%d,\"content\":\"<end>\",\"special\":true,"
                     "\"normalized\":false}],\"decoder\":{\"type\":\"ByteLevel\"},"
                     "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                     "\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{"
                     "\"<end>\":%d",
                     STOP_ID, STOP_ID);
    for (int i = 0; i < VOCAB; i++) {
        char token[16];
        if (i < 4)
            snprintf(token, sizeof token, "%s", (const char *[]){"Ã", "©", "Ā", "â"}[i]);
        else if (i < 30)
            snprintf(token, sizeof token, "%c", 'a' + i - 4);
        else if (i < 56)
            snprintf(token, sizeof token, "%c%c", 'a' + i - 30, 'a' + i % 3);
        else
            snprintf(token, sizeof token, "abc%c", 'a' + i - 56);
        if (i != STOP_ID)
            n += snprintf(json + n, sizeof json - (size_t)n, ",\"%s\":%d", token, i);
    }
    n += snprintf(json + n, sizeof json - (size_t)n, "}}}");
    if (tokenizer_load_text(&t, json, (size_t)n, "tiny", &err))
        fail_msg("%s", err.text);
    return t;
}

/* ---- stop strings -----------------------------------------------------------------------------
 */

struct stop_run {
    struct tiny_model model;
    struct tokenizer *tokenizer;
    struct random random;
    struct sequence asked[N_REQUESTS], alone[N_REQUESTS];
    struct request requests[N_REQUESTS];
    int n_stopped, n_across, n_behind_nul;
};

/* What of an answer's text is certain after each token: text [ends[k]] after k + 1 tokens. */
struct certain_text {
    char *text;
    size_t *ends;
    int n;
};

static struct certain_text certain_text(const struct tokenizer *t, const struct sequence *s) {
    struct error err;
    struct certain_text c = {.n = sequence_new_tokens(s)};
    const char *piece;
    size_t n, length = 0;
    c.text = calloc((size_t)c.n + 1, 16);
    c.ends = calloc((size_t)c.n + 1, sizeof *c.ends);
    assert_true(c.text && c.ends);
    struct decode_stream *stream = decode_stream_new(t, true, &err);
    assert_non_null(stream);
    for (int k = 0; k < c.n; k++) {
        assert_int_equal(decode_stream_push(stream, s->tokens[s->n_prompt + k], &piece, &n, &err),
                         0);
        memcpy(c.text + length, piece, n);
        length += n;
        c.ends[k] = length;
    }
    assert_int_equal(decode_stream_flush(stream, &piece, &n, &err), 0);
    memcpy(c.text + length, piece, n);
    if (c.n)
        c.ends[c.n - 1] = length + n;
    decode_stream_free(stream);
    return c;
}

/* Where the first of the stop strings begins in n bytes of text; NULL: none is in them. */
static const char *first_stop(const char *text, size_t n, const struct request *r) {
    const char *first = NULL;
    for (int i = 0; i < r->n_stops; i++) {
        const char *found = memmem(text, n, r->stops[i], strlen(r->stops[i]));
        if (found && (!first || found < first))
            first = found;
    }
    return first;
}

/* A piece of the text as a stop string, or one that is not in it. */
static char *random_stop(struct random *r, const struct certain_text *c) {
    size_t all = c->n ? c->ends[c->n - 1] : 0;
    const char *nul = random_int(r, 0, 2) ? NULL : memchr(c->text, 0, all);
    int from = nul ? (int)(nul + 1 - c->text) : random_int(r, 0, (int)all);
    int most = (int)all - from < 9 ? (int)all - from : 9;
    char *stop = calloc(1, 16);
    assert_non_null(stop);
    memcpy(stop, c->text + from, (size_t)random_int(r, 0, most)); /* up to a NUL, if it has one */
    if (!*stop || !random_int(r, 0, 5))
        strcpy(stop, "never~");
    return stop;
}

static void ask(struct stop_run *run, int i) {
    struct random *r = &run->random;
    run->asked[i] = tiny_request(r, &run->model, (uint32_t)i, 9, 40);
    struct sequence *s = &run->asked[i];
    run->alone[i] = tiny_alone(&run->model, s);
    struct certain_text c = certain_text(run->tokenizer, &run->alone[i]);
    int n_stops = random_int(r, 0, 3);
    run->requests[i] = (struct request){.prompt = s->tokens,
                                        .n_prompt = s->n_prompt,
                                        .max_new = s->max_new,
                                        .sampling = s->sampling,
                                        .stops = calloc(4, sizeof(char *)),
                                        .n_stops = n_stops};
    for (int k = 0; k < n_stops; k++)
        run->requests[i].stops[k] = random_stop(r, &c);
    free(c.text);
    free(c.ends);
}

/* The answer is that of the request alone up to the token that completes the first stop string; its
 * text ends in front of it. */
static void check_stop(struct stop_run *run, int i, const struct answer *got) {
    const struct request *r = &run->requests[i];
    struct sequence *alone = &run->alone[i];
    struct certain_text c = certain_text(run->tokenizer, alone);
    const char *stop = NULL;
    int k = 0;
    while (k < c.n && !(stop = first_stop(c.text, c.ends[k], r)))
        k++;
    size_t n_text = stop ? (size_t)(stop - c.text) : c.n ? c.ends[c.n - 1] : 0;
    if (stop) {
        struct sequence shorter = run->asked[i];
        run->n_stopped++;
        run->n_across += k > 0 && n_text < c.ends[k - 1];
        run->n_behind_nul += n_text > 0 && !c.text[n_text - 1];
        shorter.max_new = k + 1;
        sequence_end(alone);
        *alone = tiny_alone(&run->model, &shorter);
        alone->finish = FINISH_STOP_STRING;
    }
    assert_same_answer(alone, &got->sequence);
    assert_int_equal(got->n_text, n_text);
    assert_memory_equal(got->text, c.text, n_text);
    assert_int_equal(got->text[n_text], 0);
    free(c.text);
    free(c.ends);
}

static void run_stops(struct stop_run *run) {
    struct error err;
    struct engine e;
    struct own_caches memory;
    struct engine_options options = {
        .scheduler = {3, 12, 5, true}, .memory = &memory.base, .tokenizer = run->tokenizer};
    own_caches_start(&memory, &run->model.model, kv_dynamic_new, kv_cache_free, 0);
    for (int i = 0; i < N_REQUESTS; i++)
        ask(run, i);
    if (engine_run(&e, &run->model.generator, run->requests, N_REQUESTS, &options, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < N_REQUESTS; i++)
        check_stop(run, i, &e.answers[i]);
    engine_end(&e);
    own_caches_end(&memory);
    for (int i = 0; i < N_REQUESTS; i++) {
        for (int k = 0; k < run->requests[i].n_stops; k++)
            free(run->requests[i].stops[k]);
        free(run->requests[i].stops);
        sequence_end(&run->asked[i]);
        sequence_end(&run->alone[i]);
    }
}

static void an_answer_ends_in_front_of_a_stop_string(void **state) {
    (void)state;
    struct stop_run run = {.random = {96}, .tokenizer = tiny_tokenizer()};
    for (int which = 0; which < N_TINY_MODELS; which++) {
        tiny_model_open(&run.model, which);
        for (int i = 0; i < 25; i++)
            run_stops(&run);
        tiny_model_close(&run.model);
    }
    tokenizer_free(run.tokenizer);
    /* The cases that are easy to get wrong did occur. */
    print_message("%d stopped, %d across tokens, %d behind a NUL\n", run.n_stopped, run.n_across,
                  run.n_behind_nul);
    assert_true(run.n_stopped >= 100 && run.n_across >= 20 && run.n_behind_nul >= 10);
}

/* ---- cancellation -----------------------------------------------------------------------------
 */

static double still_now(void *context) {
    return *(double *)context;
}

static void jump(void *context, double until) {
    *(double *)context = until;
}

struct cancel_run {
    double time;
    int step;             /* after which it happens */
    bool by_interruption; /* of all, instead of one by one */
    volatile sig_atomic_t interrupted;
    enum request_state states[5]; /* as they were then */
};

/* Requests 0 to 3 are cancelled, each in another state. */
static void cancel_at(void *context, struct engine *e) {
    struct cancel_run *run = context;
    run->time += 0.001;
    if (e->steps != run->step)
        return;
    for (int i = 0; i < 5; i++)
        run->states[i] = e->scheduler.jobs[i].state;
    run->interrupted = run->by_interruption;
    for (int i = 0; i < 4 && !run->by_interruption; i++) {
        engine_cancel(e, i);
        assert_int_equal(e->scheduler.jobs[i].state, REQUEST_DONE);
        assert_null(((struct own_caches *)e->scheduler.memory)->caches[i].cache);
        double done = e->scheduler.jobs[i].done;
        run->time += 0.001;
        engine_cancel(e, i); /* again: nothing */
        assert_true(e->scheduler.jobs[i].done == done);
    }
}

/* A short one that decodes, a long one that is being read, one that waits, one that comes later and
 * one that nobody cancels. */
static void run_cancelled(struct tiny_model *model, struct cancel_run *run, struct engine *e,
                          const struct sequence *asked) {
    struct error err;
    struct request requests[5];
    struct engine_clock clock = {still_now, jump, &run->time};
    struct own_caches memory;
    struct engine_options options = {.scheduler = {2, 8, 5, true},
                                     .memory = &memory.base,
                                     .clock = &clock,
                                     .stepped = cancel_at,
                                     .context = run};
    for (int i = 0; i < 5; i++)
        requests[i] = (struct request){.arrival = (const double[]){0, 0, 0, 5, 5}[i],
                                       .prompt = asked[i].tokens,
                                       .n_prompt = asked[i].n_prompt,
                                       .max_new = asked[i].max_new,
                                       .sampling = asked[i].sampling};
    own_caches_start(&memory, &model->model, kv_dynamic_new, kv_cache_free, 0);
    model->generator.interrupted = &run->interrupted;
    if (engine_run(e, &model->generator, requests, 5, &options, &err))
        fail_msg("%s", err.text);
    model->generator.interrupted = NULL;
    assert_int_equal(memory.base.bytes, 0);
    own_caches_end(&memory);
}

static void check_cancelled(const struct engine *e, int i, const struct sequence *alone) {
    const struct sequence *got = &e->answers[i].sequence;
    assert_int_equal(got->finish, FINISH_CANCELLED);
    assert_int_equal(e->scheduler.jobs[i].finish, FINISH_CANCELLED);
    assert_true(got->n_tokens < alone->n_tokens);
    assert_memory_equal(got->tokens, alone->tokens, sizeof *got->tokens * (size_t)got->n_tokens);
    assert_true(e->scheduler.jobs[i].done >= e->scheduler.jobs[i].arrival);
}

static void a_request_can_be_cancelled_in_every_state(void **state) {
    (void)state;
    static const int lengths[5][2] = {{3, 60}, {80, 9}, {4, 9}, {5, 9}, {6, 9}}; /* prompt, new */
    struct tiny_model model;
    struct random r = {97};
    struct sequence asked[5], alone[5];
    struct error err;
    tiny_model_open(&model, 1);
    model.generator.ignore_stop = true;
    for (int i = 0; i < 5; i++) {
        int32_t ids[80];
        for (int k = 0; k < lengths[i][0]; k++)
            ids[k] = random_int(&r, 0, VOCAB - 1);
        struct sampling_options greedy = {.top_p = 1};
        assert_int_equal(sequence_start(&asked[i], (uint32_t)i, &greedy, &err), 0);
        assert_int_equal(sequence_add_prompt(&asked[i], ids, lengths[i][0], lengths[i][1], &err),
                         0);
        alone[i] = tiny_alone(&model, &asked[i]);
    }
    for (int all = 0; all < 2; all++) {
        struct engine e;
        struct cancel_run run = {.step = 6, .by_interruption = all};
        run_cancelled(&model, &run, &e, asked);
        assert_int_equal(run.states[0], REQUEST_DECODING);
        assert_int_equal(run.states[1], REQUEST_PREFILLING);
        assert_int_equal(run.states[2], REQUEST_WAITING);
        assert_int_equal(run.states[3], REQUEST_WAITING);
        for (int i = 0; i < 4 + all; i++)
            check_cancelled(&e, i, &alone[i]);
        if (!all)
            assert_same_answer(&alone[4], &e.answers[4].sequence);
        if (all) {
            assert_int_equal(e.steps, run.step);
            assert_true(run.time < 5); /* nobody waited for those who come later */
            struct engine_metrics metrics;
            assert_int_equal(engine_measure(&e, &metrics, &err), 0);
            assert_true(metrics.seconds <= run.time); /* nor are they counted as if */
        }
        engine_end(&e);
    }
    struct engine e;
    struct cancel_run early = {.step = -1, .interrupted = 1};
    run_cancelled(&model, &early, &e, asked);
    assert_int_equal(e.steps, 0);
    for (int i = 0; i < 5; i++) {
        check_cancelled(&e, i, &alone[i]);
        sequence_end(&asked[i]);
        sequence_end(&alone[i]);
    }
    engine_end(&e);
    tiny_model_close(&model);
}

/* ---- requests that come while others run ----------------------------------------------------- */

enum { MANY = 40, ROOM = 3 };

/* Sequences of random lengths, and what each has as its answer when it is alone. */
static void many_sequences(struct tiny_model *model, struct sequence *asked,
                           struct sequence *alone) {
    struct random r = {98};
    struct error err;
    for (int i = 0; i < MANY; i++) {
        int32_t ids[20];
        int n = random_int(&r, 1, 20);
        struct sampling_options sampling = {0.8f, 0, 1, (uint64_t)i, true, 0};
        for (int k = 0; k < n; k++)
            ids[k] = random_int(&r, 0, VOCAB - 1);
        assert_int_equal(sequence_start(&asked[i], (uint32_t)i, &sampling, &err), 0);
        assert_int_equal(sequence_add_prompt(&asked[i], ids, n, random_int(&r, 1, 12), &err), 0);
        alone[i] = tiny_alone(model, &asked[i]);
    }
}

/* Compares the answers of all that are done, and forgets them. of: whose number is which. */
static int collect(struct engine *e, int of[ROOM], const struct sequence *alone) {
    int n = 0;
    for (int i = 0; i < e->n; i++)
        if (of[i] >= 0 && e->scheduler.jobs[i].state == REQUEST_DONE) {
            assert_same_answer(&alone[of[i]], &e->answers[i].sequence);
            engine_forget(e, i);
            of[i] = -1;
            n++;
        }
    return n;
}

static void numbers_of_forgotten_requests_are_used_again(void **state) {
    (void)state;
    struct tiny_model model;
    struct sequence asked[MANY], alone[MANY];
    struct request requests[MANY];
    struct own_caches memory;
    struct engine e;
    struct error err;
    struct engine_options options = {.scheduler = {2, 8, 5, true}, .memory = &memory.base};
    int of[ROOM] = {-1, -1, -1};
    tiny_model_open(&model, 1);
    many_sequences(&model, asked, alone);
    own_caches_start(&memory, &model.model, kv_dynamic_new, kv_cache_free, 0);
    assert_int_equal(engine_start(&e, &model.generator, &options, ROOM, &err), 0);
    for (int begun = 0, done = 0; done < MANY;) {
        while (begun < MANY && begun - done < ROOM) {
            requests[begun] = (struct request){.prompt = asked[begun].tokens,
                                               .n_prompt = asked[begun].n_prompt,
                                               .max_new = asked[begun].max_new,
                                               .sampling = asked[begun].sampling};
            int i = engine_submit(&e, &requests[begun], -1, &err);
            assert_in_range(i, 0, ROOM - 1);
            assert_int_equal(of[i], -1);
            of[i] = begun++;
        }
        if (begun - done == ROOM)
            assert_int_equal(engine_submit(&e, &requests[0], -1, &err), -1);
        assert_int_equal(engine_step(&e, &err), 1);
        done += collect(&e, of, alone);
    }
    assert_int_equal(engine_step(&e, &err), 0);
    assert_int_equal(memory.base.bytes, 0);
    engine_end(&e);
    own_caches_end(&memory);
    for (int i = 0; i < MANY; i++) {
        sequence_end(&asked[i]);
        sequence_end(&alone[i]);
    }
    tiny_model_close(&model);
}

/* ---- metrics ---------------------------------------------------------------------------------
 */

static void assert_spread(struct spread s, double mean, double p50, double p95, double p99) {
    const double got[] = {s.mean, s.p50, s.p95, s.p99}, want[] = {mean, p50, p95, p99};
    for (int i = 0; i < 4; i++)
        if (fabs(got[i] - want[i]) > 1e-9 * fabs(want[i]))
            fail_msg("number %d is %.12g, not %.12g", i, got[i], want[i]);
}

/* n requests, the k-th to be admitted after k = 1 ... n seconds; it has its first token a second
 * later, and ten more in k milliseconds each. They stand in another order. Besides, one that drew
 * a single token, one that drew none, and one that was cancelled before it came. */
static void measure(int n, struct engine_metrics *m) {
    struct engine e = {.n = n + 3};
    struct error err;
    e.scheduler.jobs = calloc((size_t)e.n, sizeof *e.scheduler.jobs);
    assert_non_null(e.scheduler.jobs);
    for (int i = 0; i < n; i++) {
        int k = 1 + (i * 7 + 3) % n; /* 7 divides none of the numbers below */
        e.scheduler.jobs[i] = (struct job){.n_new = 11,
                                           .arrival = 5,
                                           .admitted = 5 + k,
                                           .first = 6 + k,
                                           .done = 6 + k + k / 100.0};
    }
    e.scheduler.jobs[n] =
        (struct job){.n_new = 1, .arrival = 5, .admitted = 5 + n, .first = 6 + n, .done = 6 + n};
    e.scheduler.jobs[n + 1] = (struct job){.arrival = 5, .admitted = 5, .first = -1, .done = 5};
    e.scheduler.jobs[n + 2] =
        (struct job){.arrival = 9000, .admitted = -1, .first = -1, .done = 8000};
    assert_int_equal(engine_measure(&e, m, &err), 0);
    free(e.scheduler.jobs);
}

/* Percentiles are nearest ranks: of n + 1 numbers, with n twice, the p-th is number ceil(p (n + 1)
 * / 100). */
static void metrics_are_what_their_names_say(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 20, 100};
    static const int ranks[][3] = {{1, 1, 1}, {2, 2, 2}, {11, 20, 20}, {51, 96, 100}};
    for (int i = 0; i < 4; i++) {
        struct engine_metrics m;
        double n = sizes[i], p50 = ranks[i][0], p95 = ranks[i][1], p99 = ranks[i][2];
        double mean = (n * (n + 1) / 2 + n) / (n + 1);
        measure(sizes[i], &m);
        assert_int_equal(m.n, sizes[i] + 1);
        assert_true(fabs(m.seconds - (1 + n + n / 100)) < 1e-9);
        assert_true(fabs(m.tokens_per_second * m.seconds - (11 * n + 1)) < 1e-6);
        assert_spread(m.queue, mean, p50, p95, p99);
        assert_spread(m.ttft, mean + 1, p50 + 1, p95 + 1, p99 + 1);
        assert_true(fabs(m.latency.mean - (1.01 * n / 2 + (2 * n + 1) / (n + 1))) < 1e-9);
        /* Over the n that drew more than one token. */
        assert_spread(m.ms_per_token, (n + 1) / 2, ceil(n / 2), ceil(0.95 * n), ceil(0.99 * n));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_are_what_their_names_say),
        cmocka_unit_test(an_answer_ends_in_front_of_a_stop_string),
        cmocka_unit_test(a_request_can_be_cancelled_in_every_state),
        cmocka_unit_test(numbers_of_forgotten_requests_are_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
