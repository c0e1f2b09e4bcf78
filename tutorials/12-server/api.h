/*
 * api.h - what clients say and are told: the bodies of OpenAI's completions API (v1) and of vLLM's
 * additions, as JSON. Knows nothing of connections.
 */
#ifndef SAMEBITS_API_H
#define SAMEBITS_API_H

#include "model/files/json.h"
#include "scheduler/service.h"
#include "tutorials/common/demo.h"

enum { MOST_CHOICES = 1024, MOST_STOPS = 16, LONGEST_STOP = 1000 };

/* One of the texts that a request asks to go on from. */
struct api_prompt {
    int32_t *ids; /* [n], owned */
    int n;
    char *text; /* [n_text] as echo gives it back, owned; NULL without echo */
    size_t n_text;
};

/* A request of /v1/chat/completions or /v1/completions, read. */
struct api_request {
    bool chat;
    bool stream, include_usage, echo;
    int n;                      /* answers wanted for each prompt */
    struct api_prompt *prompts; /* [n_prompts], owned; together at most MOST_CHOICES answers */
    int n_prompts;
    struct request base; /* stops (owned), max_new, sampling of the first answer */
    int n_logprobs;      /* as in struct ticket */
};

/* Answer number i of a request (of n_prompts * n) for the engine; what it points to is r's. With
 * echo and logprobs all tokens of the prompt but the first are given as the beginning of the
 * answer, so that each has its logits. context: of the model. */
struct request api_answer_request(const struct api_request *r, int i, int context);

/* Tokens of all prompts together. */
long api_prompt_tokens(const struct api_request *r);

/* An error as a client gets it: a status of HTTP, and the field that is wrong, or "". */
struct api_error {
    int status;
    char field[64];
    struct error why;
};

/* Reads a body of n bytes. Returns 0, or -1 with *err set: not JSON, a field that is missing,
 * wrong, unknown or not supported (400), another model (404). api_request_free in either case. */
int api_read(struct api_request *r, const struct demo *demo, bool chat, const char *body, size_t n,
             struct api_error *err);

void api_request_free(struct api_request *r);

/* The JSON of an error: {"error": {message, type, param, code}}. */
json_t *api_error_json(const struct api_error *err);

/* ---- answers --------------------------------------------------------------------------------- */

/* What all parts of an answer say of themselves. */
struct api_head {
    bool chat;
    bool usage_comes; /* a stream's last part has the usage, and the others a null in its place */
    char id[64];
    long created; /* Unix time */
    const char *model, *system_fingerprint;
};

/* What one choice has to say now: of an answer that is streamed, since the last time. */
struct api_choice {
    int index;
    const char *text;
    size_t n_text;
    json_t *logprobs;     /* a list of entries of api_logprob; NULL: none */
    enum finish finish;   /* FINISH_NOT_YET: it goes on */
    uint64_t fingerprint; /* when it has ended */
    json_t *receipt;      /* then, if one is wanted (phase 13); else NULL */
    bool first;           /* of a streamed choice */
};

/* One token's entry for logprobs, in the form of chat: how likely it was, and the likeliest in its
 * place. logprob: NULL for a token that follows nothing. offset: for completions, how many
 * characters stand before the token; counted on. Returns NULL without memory. */
json_t *api_logprob(const struct demo *demo, int32_t id, const float *logprob,
                    const struct logprob *top, int n_top, long *offset);

/* A choice, whole or (delta) a piece of it. Takes choice->logprobs and receipt. */
json_t *api_choice_json(const struct api_head *head, const struct api_choice *choice, bool delta);

/* The object around choices (a list, which it takes). usage: prompt and completion tokens, -1 for
 * no usage. */
json_t *api_answer_json(const struct api_head *head, json_t *choices, bool delta, long n_prompt,
                        long n_new);

/* /tokenize, /detokenize (vLLM's): the answer, or NULL with err set. */
json_t *api_tokenize(const struct demo *demo, const char *body, size_t n, struct api_error *err);
json_t *api_detokenize(const struct demo *demo, const char *body, size_t n, struct api_error *err);

/* /v1/models. */
json_t *api_models(const struct demo *demo, long created);

/* /metrics: Prometheus' text format, vLLM's names. malloc'ed, or NULL: no memory. */
char *api_metrics(const struct service_metrics *m, const char *model);

/* "samebits-" and a hash of build, config, tokenizer and weights of a model folder. Returns 0, or
 * -1 with err set: a file that cannot be read. */
int api_system_fingerprint(char out[32], const char *folder, struct error *err);

#endif
