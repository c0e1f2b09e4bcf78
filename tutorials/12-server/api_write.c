#include "tutorials/12-server/api.h"

#include "model/files/folder.h"
#include "model/numerics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- completions ----------------------------------------------------------------------------- */

static const char *finish_reason(enum finish finish) {
    switch (finish) {
    case FINISH_STOP:
    case FINISH_STOP_STRING:
        return "stop";
    case FINISH_LENGTH:
    case FINISH_CONTEXT:
        return "length";
    default:
        return finish_name(finish);
    }
}

/* The text of one token, its bytes, and how likely it was; NULL: that is not known. */
static json_t *token_entry(const struct demo *demo, int32_t id, const float *logprob) {
    char *text;
    size_t n;
    struct error err;
    if (tokenizer_decode(demo->tokenizer, &id, 1, false, &text, &n, &err))
        return NULL;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    json_t *entry = json_pack("{ss% so so}", "token", text, n, "logprob",
                              logprob ? json_real((double)*logprob) : json_null(), "bytes", bytes);
    free(text);
    return entry;
}

static long count_characters(const char *utf8) {
    long n = 0;
    for (; *utf8; utf8++)
        n += (*utf8 & 0xc0) != 0x80;
    return n;
}

json_t *api_logprob(const struct demo *demo, int32_t id, const float *logprob,
                    const struct logprob *top, int n_top, long *offset) {
    json_t *entry = token_entry(demo, id, logprob), *list = json_array();
    if (!entry) {
        json_decref(list);
        return NULL;
    }
    for (int i = 0; i < n_top; i++)
        json_array_append_new(list, token_entry(demo, top[i].id, &top[i].value));
    json_object_set_new(entry, "top_logprobs", list);
    if (offset) {
        json_object_set_new(entry, "text_offset", json_integer(*offset));
        *offset += count_characters(json_string_value(json_object_get(entry, "token")));
    }
    return entry;
}

/* The lists that /v1/completions has instead of one list of entries. */
static json_t *lists_of(const json_t *entries) {
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(),
           *offsets = json_array(), *entry;
    size_t i;
    json_array_foreach((json_t *)entries, i, entry) {
        json_t *top = json_object(), *likely;
        size_t k;
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_array_append(offsets, json_object_get(entry, "text_offset"));
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, likely)
            json_object_set(top, json_string_value(json_object_get(likely, "token")),
                            json_object_get(likely, "logprob"));
        json_object_set(top, json_string_value(json_object_get(entry, "token")),
                        json_object_get(entry, "logprob")); /* likely or not */
        if (json_is_null(json_object_get(entry, "logprob"))) {
            json_decref(top);
            top = json_null();
        }
        json_array_append_new(tops, top);
    }
    return json_pack("{so so so so}", "tokens", tokens, "token_logprobs", values, "top_logprobs",
                     tops, "text_offset", offsets);
}

static json_t *logprobs_json(bool chat, json_t *entries) {
    if (!entries)
        return json_null();
    if (chat)
        return json_pack("{so}", "content", entries);
    json_t *lists = lists_of(entries);
    json_decref(entries);
    return lists;
}

json_t *api_choice_json(const struct api_head *head, const struct api_choice *choice, bool delta) {
    bool ends = choice->finish != FINISH_NOT_YET;
    json_t *c = json_pack("{si so so}", "index", choice->index, "logprobs",
                          logprobs_json(head->chat, choice->logprobs), "finish_reason",
                          ends ? json_string(finish_reason(choice->finish)) : json_null());
    json_t *text = json_stringn(choice->text ? choice->text : "", choice->n_text);
    if (!head->chat) {
        json_object_set_new(c, "text", text);
    } else {
        json_t *message = json_pack("{so}", "content", text);
        if (!delta || choice->first)
            json_object_set_new(message, "role", json_string("assistant"));
        json_object_set_new(c, delta ? "delta" : "message", message);
    }
    if (ends) {
        char fingerprint[17];
        fingerprint_text(fingerprint, choice->fingerprint);
        json_object_set_new(c, "samebits_fingerprint", json_string(fingerprint));
        if (choice->receipt)
            json_object_set_new(c, "samebits_receipt", choice->receipt);
    }
    return c;
}

json_t *api_answer_json(const struct api_head *head, json_t *choices, bool delta, long n_prompt,
                        long n_new) {
    const char *object = !head->chat ? "text_completion"
                         : delta     ? "chat.completion.chunk"
                                     : "chat.completion";
    json_t *answer = json_pack("{ss ss sI ss ss so}", "id", head->id, "object", object, "created",
                               (json_int_t)head->created, "model", head->model,
                               "system_fingerprint", head->system_fingerprint, "choices", choices);
    if (n_prompt < 0 && head->usage_comes)
        json_object_set_new(answer, "usage", json_null());
    if (n_prompt >= 0)
        json_object_set_new(answer, "usage",
                            json_pack("{sI sI sI}", "prompt_tokens", (json_int_t)n_prompt,
                                      "completion_tokens", (json_int_t)n_new, "total_tokens",
                                      (json_int_t)(n_prompt + n_new)));
    return answer;
}

json_t *api_models(const struct demo *demo, long created) {
    return json_pack("{ss s[{ss ss sI ss si}]}", "object", "list", "data", "id",
                     demo->options.model, "object", "model", "created", (json_int_t)created,
                     "owned_by", "samebits", "max_model_len", demo->generator.context);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void write_number(FILE *f, const char *model, const char *name, const char *type,
                         const char *help, double value) {
    fprintf(f, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\nvllm:%s{model_name=\"%s\"} %.17g\n", name,
            help, name, type, name, model, value);
}

static void write_histogram(FILE *f, const char *model, const char *name, const char *help,
                            const struct histogram *h) {
    long n = 0;
    fprintf(f, "# HELP vllm:%s %s\n# TYPE vllm:%s histogram\n", name, help, name);
    for (int i = 0; i < h->n_bounds; i++) {
        n += h->counts[i];
        fprintf(f, "vllm:%s_bucket{model_name=\"%s\",le=\"%g\"} %ld\n", name, model, h->bounds[i],
                n);
    }
    n += h->counts[h->n_bounds];
    fprintf(f, "vllm:%s_bucket{model_name=\"%s\",le=\"+Inf\"} %ld\n", name, model, n);
    fprintf(f, "vllm:%s_count{model_name=\"%s\"} %ld\n", name, model, n);
    fprintf(f, "vllm:%s_sum{model_name=\"%s\"} %.9g\n", name, model, h->sum);
}

/* A name as the value of a label; what is too long is cut. */
static void escape_label(char *out, size_t size, const char *name) {
    size_t n = 0;
    for (; *name && n + 3 < size; name++) {
        if (*name == '"' || *name == '\\' || *name == '\n')
            out[n++] = '\\';
        out[n++] = *name == '\n' ? 'n' : *name;
    }
    out[n] = 0;
}

char *api_metrics(const struct service_metrics *m, const char *name) {
    char *text = NULL, model[1024];
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    escape_label(model, sizeof model, name);
    write_number(f, model, "num_requests_running", "gauge", "Requests in the batch.", m->running);
    write_number(f, model, "num_requests_waiting", "gauge", "Requests in the queue.", m->waiting);
    write_number(f, model, "kv_cache_usage_perc", "gauge", "Used part of the KV blocks, 0 to 1.",
                 m->cache_used);
    write_number(f, model, "prompt_tokens_total", "counter", "Prompt tokens of admitted requests.",
                 (double)m->prompt_tokens);
    write_number(f, model, "generation_tokens_total", "counter", "Tokens drawn.",
                 (double)m->generated_tokens);
    write_number(f, model, "prefix_cache_queries_total", "counter", "Tokens looked up.",
                 (double)m->prefix_queries);
    write_number(f, model, "prefix_cache_hits_total", "counter", "Tokens found in shared blocks.",
                 (double)m->prefix_hits);
    write_number(f, model, "spec_decode_num_draft_tokens_total", "counter", "Tokens proposed.",
                 (double)m->drafted);
    write_number(f, model, "spec_decode_num_accepted_tokens_total", "counter",
                 "Tokens proposed and drawn.", (double)m->accepted);
    write_histogram(f, model, "time_to_first_token_seconds", "Arrival to first token.", &m->ttft);
    write_histogram(f, model, "inter_token_latency_seconds", "Token to token.", &m->inter_token);
    write_histogram(f, model, "e2e_request_latency_seconds", "Arrival to the end.", &m->latency);
    write_histogram(f, model, "request_queue_time_seconds", "Arrival to admission.", &m->queue);
    return fclose(f) ? NULL : text;
}

/* ---- who answers ----------------------------------------------------------------------------- */

static int hash_file(XXH3_state_t *hash, const char *folder, const char *name, bool required,
                     struct error *err) {
    char path[4096], piece[1 << 16];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return required ? error_set(err, "%s: cannot be read", path) : 0;
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        XXH3_64bits_update(hash, piece, n);
    fclose(f);
    return 0;
}

/* The weights: one file, or those that the index names. */
static int hash_weights(XXH3_state_t *hash, const char *folder, struct error *err) {
    char path[4096];
    const char *tensor;
    json_t *seen, *file;
    int result = 0;
    if (model_folder_has(folder, "model.safetensors"))
        return hash_file(hash, folder, "model.safetensors", true, err);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    json_t *index = json_read_file(path, err);
    if (!index)
        return -1;
    seen = json_object();
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file) {
        const char *name = json_string_value(file);
        if (result || !name || json_object_get(seen, name))
            continue;
        result = hash_file(hash, folder, name, true, err);
        json_object_set_new(seen, name, json_true());
    }
    json_decref(index);
    json_decref(seen);
    return result;
}

int api_system_fingerprint(char out[32], const char *folder, struct error *err) {
    char build[128];
    int n =
        snprintf(build, sizeof build, "numerics %d, compiler %s", NUMERICS_VERSION, __VERSION__);
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return error_set(err, "out of memory");
    XXH3_64bits_reset(hash);
    XXH3_64bits_update(hash, build, (size_t)n + 1);
    int result = hash_file(hash, folder, "config.json", true, err) ||
                 hash_file(hash, folder, "tokenizer.json", true, err) ||
                 hash_file(hash, folder, "tokenizer_config.json", false, err) ||
                 hash_file(hash, folder, "chat_template.jinja", false, err) ||
                 hash_weights(hash, folder, err);
    snprintf(out, 32, "samebits-%016llx", (unsigned long long)XXH3_64bits_digest(hash));
    XXH3_freeState(hash);
    return result ? -1 : 0;
}
