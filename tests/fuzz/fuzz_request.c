/*
 * fuzz_request.c - any bytes as the body of a request to phase 12's server: refused with a status
 * and a message that can be sent, or every promise of api.h holds for what was read. Its
 * length chooses the path: chat, completions, /tokenize or /detokenize.
 */
#include "tutorials/12-server/api.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static const struct phase phase = {.number = 12};
static struct demo demo = {.phase = &phase};

static void must(bool holds) {
    if (!holds)
        abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    struct error err;
    (void)argc, (void)argv;
    demo.options.model = "data/model";
    demo.options.max_waiting = 1000;
    demo.model.config.vocab_size = 4000; /* some ids are out of its range */
    demo.generator.context = 256;
    must(!tokenizer_load(&demo.tokenizer, demo.options.model, &err));
    must(!chat_template_load(&demo.chat, demo.options.model, &err) && demo.chat);
    return 0;
}

/* What goes to the client must be JSON. */
static void must_send(json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    must(text != NULL);
    free(text);
    json_decref(json);
}

static void must_refuse(const struct api_error *err) {
    must(err->status == 400 || err->status == 404);
    must(err->why.text[0] != 0);
    must_send(api_error_json(err));
}

static void check_answer(const struct api_request *r, int i) {
    struct request request = api_answer_request(r, i, demo.generator.context);
    must(request.n_prompt >= 1 && request.max_new >= !r->echo);
    must(request.n_prompt + request.max_new <= demo.generator.context);
    must(request.n_draft <= request.max_new);
    must(!r->echo || r->prompts[i / r->n].text);
}

static void check_request(const struct api_request *r) {
    const struct request *base = &r->base;
    const struct sampling_options *s = &base->sampling;
    must(r->n >= 1 && r->n <= MOST_CHOICES);
    must(r->n_logprobs >= -1 && r->n_logprobs <= MOST_TOP_LOGPROBS);
    must(r->n_prompts >= 1 && r->n_prompts * r->n <= MOST_CHOICES);
    for (int i = 0; i < r->n_prompts * r->n; i++)
        check_answer(r, i);
    must(base->n_stops >= 0 && base->n_stops <= MOST_STOPS);
    for (int i = 0; i < base->n_stops; i++)
        must(*base->stops[i] && strlen(base->stops[i]) <= LONGEST_STOP);
    must(s->temperature >= 0 && s->temperature <= 2 && s->top_p >= 0 && s->top_p <= 1);
    must(s->top_k >= 0);
    must(!r->include_usage || r->stream);
    must(!r->echo || !r->chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct api_error err;
    const char *body = (const char *)data;
    if (n % 4 < 2) {
        struct api_request r;
        if (api_read(&r, &demo, n % 4 == 0, body, n, &err))
            must_refuse(&err);
        else
            check_request(&r);
        api_request_free(&r);
        return 0;
    }
    json_t *json =
        n % 4 == 2 ? api_tokenize(&demo, body, n, &err) : api_detokenize(&demo, body, n, &err);
    if (json)
        must_send(json);
    else
        must_refuse(&err);
    return 0;
}
