#include "tutorials/13-receipts/score.h"

#include "model/numerics.h"
#include "scheduler/logprobs.h"
#include "scheduler/read_along.h"
#include "tutorials/common/output.h"
#include "tutorials/common/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 256 }; /* texts that are read as one batch */

struct text {
    json_t *id;      /* NULL: none */
    int32_t *ids;    /* [n_ids] owned */
    int n_ids, from; /* what is scored begins at `from` */
    json_t *logprobs, *top;
    bool greedy;
    double sum;
};

struct scoring {
    struct demo *demo;
    struct kv_pool pool;
    struct engine engine; /* of the texts that are being read */
    struct text texts[AT_ONCE];
    int n;        /* texts that were read from the file and are not scored yet */
    int n_scored; /* lines before them */
    long n_tokens;
    double sum; /* of all tokens */
};

/* ---- lines ----------------------------------------------------------------------------------- */

/* A field that holds token ids, or a text. */
static int encode(const struct demo *demo, const json_t *value, const char *field,
                  const struct json_source *line, int32_t **ids, int *n) {
    struct error why;
    size_t n_ids = json_array_size(value);
    if (json_is_string(value)) {
        if (tokenizer_encode(demo->tokenizer, json_string_value(value), json_string_length(value),
                             true, ids, &n_ids, &why))
            return json_refuse(line, "%s: %s", field, why.text);
    } else if (!json_is_array(value)) {
        return json_refuse(line, "%s: must be a text, or a list of token ids", field);
    } else if (!(*ids = malloc(sizeof **ids * (n_ids + 1)))) {
        return json_refuse(line, "%s: out of memory", field);
    }
    if (n_ids > INT32_MAX / 4)
        return json_refuse(line, "%s: too many tokens", field);
    *n = (int)n_ids;
    for (int i = 0; json_is_array(value) && i < *n; i++) {
        const json_t *id = json_array_get(value, (size_t)i);
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x >= demo->model.config.vocab_size)
            return json_refuse(line, "%s: element %d must be a token id from 0 to %d", field, i,
                               demo->model.config.vocab_size - 1);
        (*ids)[i] = (int32_t)x;
    }
    return 0;
}

/* Both in one piece, of the kind that they are. */
static json_t *concatenate(const json_t *prompt, const json_t *continuation) {
    if (json_is_string(prompt) && json_is_string(continuation))
        return json_sprintf("%s%s", json_string_value(prompt), json_string_value(continuation));
    json_t *both = json_is_array(continuation) ? json_copy((json_t *)prompt) : NULL;
    json_array_extend(both, (json_t *)continuation);
    return both;
}

static int read_pair(struct text *t, const struct demo *demo, const json_t *prompt,
                     const json_t *continuation, const struct json_source *line) {
    int32_t *ids = NULL;
    int n = 0;
    json_t *both = concatenate(prompt, continuation);
    int result = json_is_array(both) || json_is_string(both)
                     ? 0
                     : json_refuse(line, "prompt and continuation must be two texts, or two lists "
                                         "of token ids");
    result = result || encode(demo, both, "prompt and continuation", line, &t->ids, &t->n_ids) ||
             encode(demo, prompt, "prompt", line, &ids, &n);
    while (!result && t->from < n && t->from < t->n_ids && ids[t->from] == t->ids[t->from])
        t->from++;
    json_decref(both);
    free(ids);
    return result ? -1 : 0;
}

static int read_text(struct text *t, const struct demo *demo, const struct json_source *line) {
    const json_t *text = json_field(line, "text"), *prompt = json_field(line, "prompt"),
                 *continuation = json_field(line, "continuation");
    *t = (struct text){.greedy = true};
    if (!json_is_object(line->object) || !text == !prompt || !prompt != !continuation)
        return json_refuse(line, "must be an object with text, or with prompt and continuation");
    t->id = json_incref(json_object_get(line->object, "id"));
    return text ? encode(demo, text, "text", line, &t->ids, &t->n_ids)
                : read_pair(t, demo, prompt, continuation, line);
}

/* ---- scores ---------------------------------------------------------------------------------- */

static int on_token(void *context, const struct sequence *s, const float *logits,
                    struct error *err) {
    struct scoring *scoring = context;
    struct text *t = &scoring->texts[(const struct answer *)s - scoring->engine.answers];
    struct logprob top[MOST_TOP_LOGPROBS];
    int32_t id = s->tokens[s->n_tokens - 1];
    int n_wanted = scoring->demo->options.top_logprobs;
    float logprob;
    int n = logprobs_of(logits, scoring->demo->model.config.vocab_size, id, &logprob, top,
                        n_wanted ? n_wanted : 1);
    json_t *list = n_wanted ? json_array() : NULL;
    for (int i = 0; i < n && list; i++)
        json_array_append_new(list, json_pack("[if]", top[i].id, (double)top[i].value));
    if (json_array_append_new(t->logprobs, json_real((double)logprob)) ||
        (list && json_array_append_new(t->top, list)))
        return error_set(err, "out of memory for the scores of a text");
    t->greedy = t->greedy && top[0].id == id;
    t->sum += (double)logprob;
    return 0;
}

/* A text as a request; its first token follows nothing, and cannot be drawn. */
static struct request request_of(struct text *t, int context) {
    int n_prompt = t->from > 0 ? t->from : t->n_ids > 0;
    t->logprobs = json_array();
    t->top = json_array();
    for (int i = t->from; i < n_prompt; i++) {
        json_array_append_new(t->logprobs, json_null());
        json_array_append_new(t->top, json_array());
    }
    bool fits = t->n_ids <= context;
    return (struct request){.prompt = t->ids,
                            .n_prompt = n_prompt,
                            .max_new = fits ? t->n_ids - n_prompt : 0,
                            .sampling = {.top_p = 1},
                            .ignore_stop = true,
                            .draft = t->ids + n_prompt,
                            .n_draft = fits ? t->n_ids - n_prompt : 0,
                            .forced = true};
}

static int write_text(struct scoring *scoring, struct text *t, const struct answer *a, int number,
                      struct error *err) {
    struct error why = a->error;
    json_t *json = json_object(), *ids = json_array();
    int n = sequence_new_tokens(&a->sequence), context = scoring->demo->generator.context;
    if (!why.text[0] && t->n_ids > context)
        error_set(&why, "%d tokens do not fit in the context of %d", t->n_ids, context);
    if (t->id)
        json_object_set(json, "id", t->id);
    for (int i = t->from; i < t->n_ids; i++)
        json_array_append_new(ids, json_integer(t->ids[i]));
    json_object_set_new(json, "tokens", ids);
    if (why.text[0]) {
        demo_request_failed(scoring->demo, number, &why);
        json_object_set_new(json, "error", json_string(why.text));
    } else {
        json_object_set(json, "logprobs", t->logprobs);
        if (scoring->demo->options.top_logprobs)
            json_object_set(json, "top", t->top);
        json_object_set_new(json, "is_greedy", json_boolean(t->greedy));
        json_object_set_new(json, "sum", json_real(t->sum));
        json_object_set_new(json, "perplexity",
                            n ? json_real((double)num_exp((float)(-t->sum / n))) : json_null());
        scoring->n_tokens += n;
        scoring->sum += t->sum;
    }
    int failed = json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(json);
    putchar('\n');
    return failed ? error_set(err, "cannot write the score of text %d", number)
                  : output_flush_stdout(err);
}

static void free_texts(struct scoring *s) {
    for (int i = 0; i < s->n; i++) {
        json_decref(s->texts[i].id);
        json_decref(s->texts[i].logprobs);
        json_decref(s->texts[i].top);
        free(s->texts[i].ids);
    }
    s->n = 0;
}

/* Scores the texts that have been read so far. */
static int score_texts(struct scoring *s, struct error *err) {
    struct request requests[AT_ONCE];
    struct generator generator = s->demo->generator;
    generator.on_token = on_token;
    generator.on_token_context = s;
    for (int i = 0; i < s->n; i++)
        requests[i] = request_of(&s->texts[i], generator.context);
    const struct options *o = &s->demo->options;
    struct read_along how = {.generator = &generator,
                             .pool = &s->pool,
                             .scheduler = {o->max_running, o->token_budget, o->chunk, true},
                             .share_prefixes = !o->no_prefix_cache};
    int result = read_along(&how, requests, s->n, &s->engine, err);
    for (int i = 0; i < s->n && !result; i++)
        fingerprint_add_sequence(&s->demo->run,
                                 fingerprint_value(&s->engine.answers[i].sequence.fingerprint));
    for (int i = 0; i < s->n && !result && !demo_interrupted(s->demo); i++)
        result = write_text(s, &s->texts[i], &s->engine.answers[i], s->n_scored + i, err);
    s->n_scored += s->n;
    engine_end(&s->engine);
    free_texts(s);
    return result;
}

static int each_line(void *context, const struct json_source *line) {
    struct scoring *s = context;
    if (read_text(&s->texts[s->n++], s->demo, line))
        return -1;
    return s->n == AT_ONCE && !demo_interrupted(s->demo) ? score_texts(s, line->err) : 0;
}

int score_file(struct demo *demo, struct error *err) {
    struct scoring *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, "out of memory");
    s->demo = demo;
    int result = demo_pool_start(demo, &s->pool, 0, err) ||
                 json_for_each_line(demo->options.score, each_line, s, err) || score_texts(s, err);
    if (!result) {
        double perplexity =
            (double)num_exp((float)(s->n_tokens ? -s->sum / (double)s->n_tokens : 0));
        fprintf(stderr, "%d texts, %ld tokens scored, perplexity %.6g\n", s->n_scored, s->n_tokens,
                perplexity);
        json_object_set_new(demo->json, "totals",
                            json_pack("{si sI sf sf}", "texts", s->n_scored, "tokens",
                                      (json_int_t)s->n_tokens, "sum", s->sum, "perplexity",
                                      perplexity));
    }
    free_texts(s);
    kv_pool_end(&s->pool);
    free(s);
    return result ? -1 : 0;
}
