#include "tutorials/12-server/api_fields.h"

#include <stdlib.h>
#include <string.h>

/* A body as an object that has only fields of its path. NULL with err set: it is not. */
static json_t *parse_body(const struct demo *demo, enum api_path path, const char *text, size_t n,
                          struct api_error *err) {
    *err = (struct api_error){.status = 400};
    json_t *body = json_parse(text, n, "the body", &err->why), *model = api_field(body, "model");
    if (!body)
        return NULL;
    if (!json_is_object(body))
        api_refuse(err, 400, "", "the body must be a JSON object");
    else if (model &&
             (!json_is_string(model) || strcmp(json_string_value(model), demo->options.model)))
        api_refuse(err, 404, "model", "the model here is \"%s\"", demo->options.model);
    else if (!api_check_fields(body, path, err))
        return body;
    json_decref(body);
    return NULL;
}

/* ---- parts of a request ---------------------------------------------------------------------- */

static int read_stops(struct request *r, const json_t *body, struct api_error *err) {
    json_t *stop = api_field(body, "stop");
    if (!stop)
        return 0;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (n > MOST_STOPS)
        return api_refuse(err, 400, "stop", "stop has %zu texts; at most %d", n, MOST_STOPS);
    r->stops = calloc(n + 1, sizeof *r->stops);
    if (!r->stops)
        return api_refuse(err, 500, "stop", "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(stop) ? json_array_get(stop, i) : stop;
        size_t length = json_string_length(text);
        if (!length || length > LONGEST_STOP || strlen(json_string_value(text)) != length)
            return api_refuse(err, 400, "stop",
                              "stop must be a text or a list of texts, each of 1 to %d bytes",
                              LONGEST_STOP);
        if (!(r->stops[r->n_stops++] = strdup(json_string_value(text))))
            return api_refuse(err, 500, "stop", "out of memory");
    }
    return 0;
}

static int read_sampling(struct sampling_options *s, const json_t *body, struct api_error *err) {
    double temperature = 1, top_p = 1;
    const json_t *seed = api_field(body, "seed");
    *s = (struct sampling_options){0};
    if (api_get_number(body, "temperature", 0, 2, &temperature, err) ||
        api_get_number(body, "top_p", 0, 1, &top_p, err) ||
        api_get_int(body, "top_k", -1, 1 << 30, &s->top_k, err))
        return -1;
    if (seed && !json_is_integer(seed))
        return api_refuse(err, 400, "seed", "seed must be a whole number");
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    s->top_k = s->top_k < 0 ? 0 : s->top_k;
    s->has_seed = seed != NULL;
    s->seed = (uint64_t)json_integer_value(seed);
    return 0;
}

/* Chat: logprobs true, and how many in top_logprobs. Else logprobs is that number. */
static int read_logprobs(struct api_request *r, const json_t *body, struct api_error *err) {
    r->n_logprobs = -1;
    if (!r->chat)
        return api_get_int(body, "logprobs", 0, MOST_TOP_LOGPROBS, &r->n_logprobs, err);
    bool wanted = false;
    int n = 0;
    if (api_get_bool(body, "logprobs", &wanted, err) ||
        api_get_int(body, "top_logprobs", 0, MOST_TOP_LOGPROBS, &n, err))
        return -1;
    if (n && !wanted)
        return api_refuse(err, 400, "top_logprobs", "top_logprobs needs logprobs: true");
    r->n_logprobs = wanted ? n : -1;
    return 0;
}

static int encode(struct api_prompt *p, const struct demo *demo, const char *text,
                  struct api_error *err) {
    size_t n;
    err->status = 400;
    if (tokenizer_encode(demo->tokenizer, text, strlen(text), true, &p->ids, &n, &err->why))
        return -1;
    p->n = (int)n;
    return 0;
}

/* Token ids instead of a text. */
static int take_ids(struct api_prompt *p, const struct demo *demo, const json_t *list,
                    const char *field, struct api_error *err) {
    size_t n = json_array_size(list);
    p->ids = malloc(sizeof *p->ids * (n + 1));
    if (!p->ids)
        return api_refuse(err, 500, field, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x >= demo->model.config.vocab_size)
            return api_refuse(err, 400, field, "%s: token %zu must be an id from 0 to %d", field, i,
                              demo->model.config.vocab_size - 1);
        p->ids[i] = (int32_t)x;
    }
    p->n = (int)n;
    return 0;
}

/* What echo puts in front of the answer: the prompt as it was given, or what its ids say. */
static int keep_text(struct api_prompt *p, const struct demo *demo, const json_t *prompt,
                     struct api_error *err) {
    err->status = 500;
    if (!json_is_string(prompt))
        return tokenizer_decode(demo->tokenizer, p->ids, (size_t)p->n, true, &p->text, &p->n_text,
                                &err->why);
    p->n_text = json_string_length(prompt);
    p->text = strdup(json_string_value(prompt));
    return p->text ? 0 : error_set(&err->why, "out of memory");
}

static int read_prompt(struct api_prompt *p, const struct api_request *r, const struct demo *demo,
                       const json_t *prompt, struct api_error *err) {
    bool is_text =
        json_is_string(prompt) && strlen(json_string_value(prompt)) == json_string_length(prompt);
    if (!is_text && !json_is_array(prompt))
        return api_refuse(err, 400, "prompt",
                          "prompt must be a text without NUL, a list of token ids, or a list of "
                          "such prompts");
    if (is_text ? encode(p, demo, json_string_value(prompt), err)
                : take_ids(p, demo, prompt, "prompt", err))
        return -1;
    return r->echo ? keep_text(p, demo, prompt, err) : 0;
}

/* Room for n prompts, of n answers each. */
static int make_prompts(struct api_request *r, const struct demo *demo, size_t n,
                        struct api_error *err) {
    int most = demo->options.max_waiting; /* all of them wait, before the first can run */
    most = most < MOST_CHOICES ? most : MOST_CHOICES;
    if (n > (size_t)(most / r->n))
        return api_refuse(err, 400, "prompt", "%zu prompts of %d answers: at most %d answers", n,
                          r->n, most);
    if (!(r->prompts = calloc(n + 1, sizeof *r->prompts)))
        return api_refuse(err, 500, "prompt", "out of memory");
    r->n_prompts = (int)n;
    return 0;
}

/* A prompt, or a list of them; a list of numbers is one. */
static int read_prompts(struct api_request *r, const struct demo *demo, const json_t *body,
                        struct api_error *err) {
    json_t *prompt = api_field(body, "prompt"), *first = json_array_get(prompt, 0);
    bool several = json_is_string(first) || json_is_array(first);
    if (make_prompts(r, demo, several ? json_array_size(prompt) : 1, err))
        return -1;
    for (int i = 0; i < r->n_prompts; i++)
        if (read_prompt(&r->prompts[i], r, demo,
                        several ? json_array_get(prompt, (size_t)i) : prompt, err))
            return -1;
    return 0;
}

static int read_messages(struct api_prompt *p, const struct demo *demo, const json_t *body,
                         struct api_error *err) {
    size_t n;
    err->status = 400;
    snprintf(err->field, sizeof err->field, "messages");
    if (demo_encode_messages(demo, body, "the body", &p->ids, &n, &err->why))
        return -1;
    p->n = (int)n;
    return 0;
}

/* ---- a request ------------------------------------------------------------------------------- */

static int read_limits(struct api_request *r, const struct demo *demo, const json_t *body,
                       struct api_error *err) {
    int context = demo->generator.context, least = r->echo ? 0 : 1;
    r->base.max_new = r->chat ? context : 16; /* the API's defaults */
    if (api_get_int(body, "max_tokens", least, 1 << 30, &r->base.max_new, err) ||
        api_get_int(body, "max_completion_tokens", least, 1 << 30, &r->base.max_new, err))
        return -1;
    for (int i = 0; i < r->n_prompts; i++) {
        int n = r->prompts[i].n;
        if (n < 1)
            return api_refuse(err, 400, r->chat ? "messages" : "prompt", "the prompt is empty");
        if (n >= context + !r->base.max_new)
            return api_refuse(
                err, 400, r->chat ? "messages" : "prompt",
                "the prompt has %d tokens, and the context is %d: none is left to answer", n,
                context);
    }
    return 0;
}

static int read_stream(struct api_request *r, const json_t *body, struct api_error *err) {
    const json_t *options = api_field(body, "stream_options");
    if (api_get_bool(body, "stream", &r->stream, err))
        return -1;
    if (options && (!r->stream || !json_is_object(options)))
        return api_refuse(err, 400, "stream_options", "stream_options goes with stream: true");
    return api_get_bool(options, "include_usage", &r->include_usage, err);
}

static int read_body(struct api_request *r, const struct demo *demo, const json_t *body,
                     struct api_error *err) {
    int most = demo->options.max_waiting; /* all of them wait, before the first can run */
    r->n = 1;
    if (read_stream(r, body, err) ||
        api_get_int(body, "n", 1, most < MOST_CHOICES ? most : MOST_CHOICES, &r->n, err) ||
        api_get_bool(body, "echo", &r->echo, err) ||
        api_get_bool(body, "ignore_eos", &r->base.ignore_stop, err) ||
        api_get_bool(body, "samebits_receipt", &r->base.receipt, err) ||
        read_logprobs(r, body, err) || read_sampling(&r->base.sampling, body, err) ||
        read_stops(&r->base, body, err))
        return -1;
    if (r->echo && (r->chat || r->base.receipt))
        return api_refuse(err, 400, "echo", "echo goes with completions, and without receipts");
    if (r->base.receipt && !demo->phase->receipt)
        return api_refuse(err, 400, "samebits_receipt",
                          "make phase13 builds a server with receipts");
    if (r->chat ? make_prompts(r, demo, 1, err) || read_messages(r->prompts, demo, body, err)
                : read_prompts(r, demo, body, err))
        return -1;
    return read_limits(r, demo, body, err);
}

int api_read(struct api_request *r, const struct demo *demo, bool chat, const char *body, size_t n,
             struct api_error *err) {
    *r = (struct api_request){.chat = chat};
    json_t *json = parse_body(demo, chat ? API_CHAT : API_COMPLETIONS, body, n, err);
    int result = json ? read_body(r, demo, json, err) : -1;
    json_decref(json);
    return result;
}

void api_request_free(struct api_request *r) {
    for (int i = 0; i < r->base.n_stops; i++)
        free(r->base.stops[i]);
    free(r->base.stops);
    for (int i = 0; i < r->n_prompts; i++) {
        free(r->prompts[i].ids);
        free(r->prompts[i].text);
    }
    free(r->prompts);
    *r = (struct api_request){0};
}

struct request api_answer_request(const struct api_request *r, int i, int context) {
    const struct api_prompt *p = &r->prompts[i / r->n];
    int n_given = r->echo && r->n_logprobs >= 0 ? p->n - 1 : 0, room = context - p->n;
    struct request request = r->base;
    request.sampling.sample = (uint32_t)(i % r->n);
    request.prompt = p->ids;
    request.n_prompt = p->n - n_given;
    request.draft = p->ids + request.n_prompt;
    request.n_draft = n_given;
    request.forced = n_given > 0;
    request.max_new = n_given + (request.max_new < room ? request.max_new : room);
    return request;
}

long api_prompt_tokens(const struct api_request *r) {
    long n = 0;
    for (int i = 0; i < r->n_prompts; i++)
        n += r->prompts[i].n;
    return n;
}

/* ---- /tokenize and /detokenize --------------------------------------------------------------- */

/* A text, or messages as chat has them. */
static int read_text(struct api_prompt *p, const struct demo *demo, const json_t *body,
                     struct api_error *err) {
    const json_t *text = api_field(body, "prompt");
    bool special = true;
    size_t n = 0;
    if (api_get_bool(body, "add_special_tokens", &special, err))
        return -1;
    if (!text == !api_field(body, "messages") || (text && !json_is_string(text)))
        return api_refuse(err, 400, "prompt", "prompt must be a text, or messages a list");
    if (!text)
        return read_messages(p, demo, body, err);
    int result = tokenizer_encode(demo->tokenizer, json_string_value(text),
                                  json_string_length(text), special, &p->ids, &n, &err->why);
    p->n = (int)n;
    return result;
}

json_t *api_tokenize(const struct demo *demo, const char *body, size_t n, struct api_error *err) {
    struct api_prompt p = {0};
    json_t *json = parse_body(demo, API_TOKENIZE, body, n, err), *answer = NULL;
    if (json && !read_text(&p, demo, json, err)) {
        json_t *list = json_array();
        for (int i = 0; i < p.n; i++)
            json_array_append_new(list, json_integer(p.ids[i]));
        answer = json_pack("{si si so}", "count", p.n, "max_model_len", demo->generator.context,
                           "tokens", list);
    }
    free(p.ids);
    json_decref(json);
    return answer;
}

json_t *api_detokenize(const struct demo *demo, const char *body, size_t n, struct api_error *err) {
    struct api_prompt p = {0};
    json_t *json = parse_body(demo, API_DETOKENIZE, body, n, err), *answer = NULL;
    const json_t *ids = json_object_get(json, "tokens");
    char *text;
    size_t n_bytes;
    if (json && !json_is_array(ids))
        api_refuse(err, 400, "tokens", "tokens must be a list of token ids");
    else if (json && !take_ids(&p, demo, ids, "tokens", err) &&
             !tokenizer_decode(demo->tokenizer, p.ids, (size_t)p.n, false, &text, &n_bytes,
                               &err->why)) {
        answer = json_pack("{ss%}", "prompt", text, n_bytes);
        free(text);
    }
    free(p.ids);
    json_decref(json);
    return answer;
}
