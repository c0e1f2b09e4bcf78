#include "scheduler/receipt.h"

#include "model/files/digests.h"
#include "model/files/json.h"
#include "model/numerics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIPT_FORM = 2 };

/* ---- making one ------------------------------------------------------------------------------ */

static json_t *ids_json(const int32_t *ids, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* Nine digits are enough to tell any two float32 apart. */
static json_t *float_json(float x) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", (double)x);
    return json_string(text);
}

static json_t *request_json(const struct receipt_source *source, const struct request *r,
                            const struct sequence *s) {
    const struct sampling_options *o = &s->sampling;
    char seed[24];
    json_t *stops = json_array();
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    for (int i = 0; i < r->n_stops; i++)
        if (json_array_append_new(stops, json_string(r->stops[i])))
            return NULL;
    return json_pack(
        "{si sO ss si so so si so ss sI si sb so}", "numerics", NUMERICS_VERSION, "files",
        source->files, "kv_type", kv_type_name(source->kv_type), "context",
        source->generator->context, "prompt", ids_json(s->tokens, s->n_prompt), "temperature",
        float_json(o->temperature), "top_k", o->top_k, "top_p", float_json(o->top_p), "seed", seed,
        "sample", (json_int_t)(o->has_seed ? o->sample : s->id), "max_new", s->max_new,
        "ignore_stop", s->ignore_stop || source->generator->ignore_stop, "stop", stops);
}

static int hash_json(char out[SHA256_HEX], const json_t *json, struct error *err) {
    char *text = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
    int result = text ? sha256_of(out, text, strlen(text), err)
                      : error_set(err, "out of memory for a receipt");
    free(text);
    return result;
}

json_t *receipt_of(const struct receipt_source *source, const struct request *r,
                   const struct sequence *s, struct error *err) {
    char request_sha256[SHA256_HEX], logits_sha256[SHA256_HEX];
    if (logits_chain_complete(s->chain, err))
        return NULL;
    if (s->chain->n != sequence_new_tokens(s)) { /* hashes were lost with a device */
        error_set(err, "no receipt: %d tokens have %d hashes", sequence_new_tokens(s), s->chain->n);
        return NULL;
    }
    size_t n_marks = (size_t)s->chain->n * LINK_MARK_BYTES;
    json_t *request = request_json(source, r, s), *receipt = NULL;
    char *marks = calloc(2 * n_marks + 1, 1);
    if (!request || !marks) {
        error_set(err, "out of memory for a receipt, or a stop string that is not UTF-8");
    } else if (!hash_json(request_sha256, request, err)) {
        hex_of(marks, s->chain->marks, n_marks);
        hex_of(logits_sha256, s->chain->last, SHA256_BYTES);
        receipt = json_pack("{si sO ss so ss ss ss}", "samebits_receipt", RECEIPT_FORM, "request",
                            request, "request_sha256", request_sha256, "output",
                            ids_json(s->tokens + s->n_prompt, sequence_new_tokens(s)), "finish",
                            finish_name(s->finish), "marks", marks, "logits_sha256", logits_sha256);
        if (!receipt)
            error_set(err, "out of memory for a receipt");
    }
    json_decref(request);
    free(marks);
    return receipt;
}

/* ---- reading one ----------------------------------------------------------------------------- */

const char *receipt_reason_name(enum receipt_reason reason) {
    static const char *const names[N_RECEIPT_REASONS] = {
        "verified",        "not a receipt", "other numerics", "other weights", "other config",
        "other tokenizer", "other options", "other logits",   "other token",   "another end"};
    return names[reason];
}

static int read_ids(const struct json_source *from, const char *field, int vocab, int32_t **ids,
                    int *n) {
    const json_t *list = json_object_get(from->object, field), *id;
    size_t i, n_ids = json_array_size(list);
    if (!json_is_array(list) || n_ids > INT32_MAX / 4)
        return json_refuse(from, "%s: must be a list of token ids", field);
    if (!(*ids = malloc(sizeof **ids * (n_ids + 1))))
        return json_refuse(from, "%s: out of memory", field);
    *n = (int)n_ids;
    json_array_foreach(list, i, id) {
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x >= vocab)
            return json_refuse(from, "%s: element %zu must be a token id from 0 to %d", field, i,
                               vocab - 1);
        (*ids)[i] = (int32_t)x;
    }
    return 0;
}

/* 2n hexadecimal digits, lower case, become n bytes. */
static int read_hex(const struct json_source *from, const char *field, unsigned char *out,
                    size_t n) {
    static const char digits[] = "0123456789abcdef";
    const char *text = NULL;
    if (json_get_string(from, field, &text))
        return -1;
    if (!text || strlen(text) != 2 * n || strspn(text, digits) != 2 * n)
        return json_refuse(from, "%s: must be %zu hexadecimal digits", field, 2 * n);
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)((strchr(digits, text[2 * i]) - digits) << 4 |
                                 (strchr(digits, text[2 * i + 1]) - digits));
    return 0;
}

/* A float32 as float_json writes it, and in no other way. */
static int read_float(const struct json_source *from, const char *field, float most, float *out) {
    const char *text = NULL;
    if (json_get_string(from, field, &text))
        return -1;
    *out = text ? strtof(text, NULL) : -1;
    json_t *again = float_json(*out);
    bool same = text && !strcmp(text, json_string_value(again));
    json_decref(again);
    return same && *out >= 0 && *out <= most ? 0 : json_refuse(from, "%s: not as written", field);
}

static int read_sampling(const struct json_source *from, struct sampling_options *o) {
    const char *seed = NULL;
    char again[24];
    const json_t *sample = json_object_get(from->object, "sample");
    json_int_t x = json_integer_value(sample);
    if (read_float(from, "temperature", 1e30f, &o->temperature) ||
        read_float(from, "top_p", 1, &o->top_p) ||
        json_get_required_int(from, "top_k", 0, INT32_MAX, &o->top_k) ||
        json_get_string(from, "seed", &seed))
        return -1;
    o->seed = seed ? strtoull(seed, NULL, 10) : 0;
    snprintf(again, sizeof again, "%llu", (unsigned long long)o->seed);
    if (!seed || strcmp(seed, again))
        return json_refuse(from, "seed: not as written");
    if (!json_is_integer(sample) || x < 0 || x > UINT32_MAX)
        return json_refuse(from, "sample: must be a whole number from 0 to 2^32-1");
    o->has_seed = true;
    o->sample = (uint32_t)x;
    return 0;
}

static int read_stops(const struct json_source *from, struct request *r) {
    const json_t *list = json_object_get(from->object, "stop"), *text;
    size_t i;
    if (!json_is_array(list))
        return json_refuse(from, "stop: must be a list of texts");
    if (!(r->stops = calloc(json_array_size(list) + 1, sizeof *r->stops)))
        return json_refuse(from, "stop: out of memory");
    json_array_foreach(list, i, text) {
        if (!json_string_length(text) ||
            strlen(json_string_value(text)) != json_string_length(text))
            return json_refuse(from, "stop: must be a list of texts");
        if (!(r->stops[r->n_stops++] = strdup(json_string_value(text))))
            return json_refuse(from, "stop: out of memory");
    }
    return 0;
}

static int read_kv_type(const struct json_source *from, enum kv_type *type) {
    const char *name = NULL;
    if (json_get_string(from, "kv_type", &name))
        return -1;
    for (int i = 0; name && i < N_KV_TYPES; i++)
        if (!strcmp(name, kv_type_name((enum kv_type)i))) {
            *type = (enum kv_type)i;
            return 0;
        }
    return json_refuse(from, "kv_type: not one that there is");
}

static int read_finish(const struct json_source *from, enum finish *finish) {
    const char *name = NULL;
    if (json_get_string(from, "finish", &name))
        return -1;
    for (enum finish f = FINISH_STOP; name && f < FINISH_ERROR; f++)
        if (!strcmp(name, finish_name(f))) {
            *finish = f;
            return 0;
        }
    return json_refuse(from, "finish: not one that there is");
}

static int read_request(struct receipt *r, const struct receipt_source *source,
                        const struct json_source *from) {
    const struct model_config *config = &source->generator->model->config;
    struct json_source request = {json_object_get(from->object, "request"), "request", from->err};
    if (!json_is_object(request.object))
        return json_refuse(from, "request: must be an object");
    if (read_kv_type(&request, &r->kv_type) ||
        json_get_required_int(&request, "context", 2, config->max_positions, &r->context) ||
        read_ids(&request, "prompt", config->vocab_size, &r->request.prompt,
                 &r->request.n_prompt) ||
        read_sampling(&request, &r->request.sampling) ||
        json_get_required_int(&request, "max_new", 1, 1 << 30, &r->request.max_new) ||
        read_stops(&request, &r->request))
        return -1;
    const json_t *ignore_stop = json_object_get(request.object, "ignore_stop");
    if (!json_is_boolean(ignore_stop))
        return json_refuse(&request, "ignore_stop: must be true or false");
    r->request.ignore_stop = json_is_true(ignore_stop);
    if (read_ids(from, "output", config->vocab_size, &r->output, &r->request.n_draft) ||
        read_finish(from, &r->finish))
        return -1;
    if (!r->request.n_prompt || r->request.n_draft > r->request.max_new ||
        r->request.n_prompt >= r->context || r->request.n_prompt + r->request.n_draft > r->context)
        return json_refuse(from, "output: no answer that was asked for can be so long");
    r->request.draft = r->output;
    r->marks = malloc((size_t)r->request.n_draft * LINK_MARK_BYTES + 1);
    if (!r->marks)
        return json_refuse(from, "marks: out of memory");
    return read_hex(from, "marks", r->marks, (size_t)r->request.n_draft * LINK_MARK_BYTES) ||
                   read_hex(from, "logits_sha256", r->logits_sha256, SHA256_BYTES)
               ? -1
               : 0;
}

/* ---- what can be compared at once ------------------------------------------------------------ */

static void refuse(struct receipt *r, enum receipt_reason reason, int token) {
    r->reason = reason;
    r->token = token;
}

static enum receipt_reason reason_of_file(const char *name) {
    return strstr(name, ".safetensors")      ? RECEIPT_WEIGHTS
           : !strcmp(name, "tokenizer.json") ? RECEIPT_TOKENIZER
                                             : RECEIPT_CONFIG;
}

/* Files of `mine` that theirs are not. */
static bool files_differ(struct receipt *r, const json_t *mine, const json_t *theirs) {
    const char *name;
    json_t *digest;
    json_object_foreach((json_t *)mine, name, digest) {
        const json_t *other = json_object_get(theirs, name);
        if (json_equal(digest, other))
            continue;
        refuse(r, reason_of_file(name), -1);
        error_set(&r->why, "%s: SHA-256 %s here, %s in the receipt", name,
                  json_string_value(digest),
                  json_is_string(other) ? json_string_value(other) : "none");
        return true;
    }
    if (json_object_size(mine) == json_object_size(theirs))
        return false;
    refuse(r, RECEIPT_WEIGHTS, -1);
    error_set(&r->why, "the receipt names %zu files, and the model has %zu",
              json_object_size(theirs), json_object_size(mine));
    return true;
}

void receipt_read(struct receipt *r, const struct receipt_source *source, const json_t *json) {
    struct json_source from = {json, "receipt", &r->why};
    const json_t *request = json_object_get(json, "request");
    const char *claimed = json_string_value(json_object_get(json, "request_sha256"));
    int form = 0, numerics = 0;
    char sha256[SHA256_HEX];
    *r = (struct receipt){.token = -1};
    struct json_source in_request = {request, "request", &r->why};
    r->reason = RECEIPT_MALFORMED;
    if (!json_is_object(json) || json_object_size(json) != 7 ||
        json_get_required_int(&from, "samebits_receipt", RECEIPT_FORM, RECEIPT_FORM, &form) ||
        !json_is_object(request) || !json_is_object(json_object_get(request, "files")) ||
        json_get_required_int(&in_request, "numerics", 0, INT32_MAX, &numerics) || !claimed ||
        strlen(claimed) != SHA256_HEX - 1) {
        if (!r->why.text[0])
            error_set(&r->why, "not an object with the seven fields of a receipt");
        return;
    }
    if (numerics != NUMERICS_VERSION) {
        refuse(r, RECEIPT_NUMERICS, -1);
        error_set(&r->why, "numerics %d here, %d in the receipt", NUMERICS_VERSION, numerics);
        return;
    }
    if (files_differ(r, source->files, json_object_get(request, "files")) ||
        read_request(r, source, &from) || hash_json(sha256, request, &r->why))
        return;
    r->reason = strcmp(sha256, claimed) ? RECEIPT_OPTIONS : RECEIPT_VERIFIED;
    if (r->reason == RECEIPT_OPTIONS)
        error_set(&r->why,
                  "the prompt or an option is not what it was: the request has SHA-256 %s, "
                  "and request_sha256 says %s",
                  sha256, claimed);
}

void receipt_free(struct receipt *r) {
    for (int i = 0; i < r->request.n_stops; i++)
        free(r->request.stops[i]);
    free(r->request.stops);
    free(r->request.prompt);
    free(r->output);
    free(r->marks);
    *r = (struct receipt){0};
}
