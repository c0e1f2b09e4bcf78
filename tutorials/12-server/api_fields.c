#include "tutorials/12-server/api_fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

int api_refuse(struct api_error *err, int status, const char *field, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    err->status = status;
    snprintf(err->field, sizeof err->field, "%s", field);
    vsnprintf(err->why.text, sizeof err->why.text, format, arguments);
    va_end(arguments);
    return -1;
}

/* A text that was cut where there was no room any more, maybe within a character. */
static json_t *cut_text(const char *text) {
    json_t *json = NULL;
    for (size_t n = strlen(text); n && !json; n--)
        json = json_stringn(text, n);
    return json ? json : json_string("");
}

json_t *api_error_json(const struct api_error *err) {
    const char *type = err->status == 401   ? "authentication_error"
                       : err->status == 404 ? "not_found_error"
                       : err->status == 429 ? "rate_limit_error"
                       : err->status >= 500 ? "server_error"
                                            : "invalid_request_error";
    return json_pack("{s:{so ss so si}}", "error", "message", cut_text(err->why.text), "type", type,
                     "param", err->field[0] ? cut_text(err->field) : json_null(), "code",
                     err->status);
}

/* ---- fields ---------------------------------------------------------------------------------- */

json_t *api_field(const json_t *body, const char *name) {
    json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

int api_get_number(const json_t *body, const char *name, double min, double max, double *out,
                   struct api_error *err) {
    const json_t *value = api_field(body, name);
    if (!value)
        return 0;
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= min && x <= max))
        return api_refuse(err, 400, name, "%s must be a number from %g to %g", name, min, max);
    *out = x;
    return 0;
}

int api_get_int(const json_t *body, const char *name, json_int_t min, json_int_t max, int *out,
                struct api_error *err) {
    const json_t *value = api_field(body, name);
    if (!value)
        return 0;
    json_int_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < min || x > max)
        return api_refuse(err, 400, name, "%s must be a whole number from %lld to %lld", name,
                          (long long)min, (long long)max);
    *out = (int)x;
    return 0;
}

int api_get_bool(const json_t *body, const char *name, bool *out, struct api_error *err) {
    const json_t *value = api_field(body, name);
    if (!value)
        return 0;
    if (!json_is_boolean(value))
        return api_refuse(err, 400, name, "%s must be true or false", name);
    *out = json_is_true(value);
    return 0;
}

/* Fields that have no effect here, and the values with which that is what is asked for, as a JSON
 * list; NULL: any. */
struct unsupported {
    const char *name, *neutral;
};

static const struct unsupported unsupported[] = {
    {"user", NULL},
    {"metadata", NULL},
    {"safety_identifier", NULL},
    {"prompt_cache_key", NULL},
    {"store", "[false]"},
    {"best_of", "[1]"},
    {"suffix", "[\"\"]"},
    {"tools", "[[]]"},
    {"tool_choice", "[\"auto\",\"none\"]"},
    {"parallel_tool_calls", "[true,false]"},
    {"functions", "[[]]"},
    {"function_call", "[\"auto\",\"none\"]"},
    {"logit_bias", "[{}]"},
    {"modalities", "[[\"text\"]]"},
    {"service_tier", "[\"auto\",\"default\"]"},
    {"response_format", "[{\"type\":\"text\"}]"},
    {"frequency_penalty", "[0]"},
    {"presence_penalty", "[0]"},
    {"repetition_penalty", "[1]"},
    {"length_penalty", "[1]"},
    {"use_beam_search", "[false]"},
    {"priority", "[0]"},
    {"min_p", "[0]"},
    {"min_tokens", "[0]"},
    {"bad_words", "[[]]"},
    {"stop_token_ids", "[[]]"},
    {"include_stop_str_in_output", "[false]"},
    {"skip_special_tokens", "[true]"},
    {"spaces_between_special_tokens", "[true]"},
    {"add_generation_prompt", "[true]"},
    {"continue_final_message", "[false]"},
    {"return_token_strs", "[false]"},
    {NULL, NULL},
};

/* A field that is read, and on which paths. */
struct supported {
    const char *name;
    unsigned paths;
};

enum {
    ANSWERS = API_CHAT | API_COMPLETIONS,
    MESSAGES = API_CHAT | API_TOKENIZE,
    TEXTS = API_COMPLETIONS | API_TOKENIZE,
    ALL = ANSWERS | API_TOKENIZE | API_DETOKENIZE
};

static const struct supported supported[] = {
    {"model", ALL},
    {"messages", MESSAGES},
    {"prompt", TEXTS},
    {"tokens", API_DETOKENIZE},
    {"add_special_tokens", API_TOKENIZE},
    {"stream", ANSWERS},
    {"stream_options", ANSWERS},
    {"n", ANSWERS},
    {"stop", ANSWERS},
    {"seed", ANSWERS},
    {"top_p", ANSWERS},
    {"top_k", ANSWERS},
    {"temperature", ANSWERS},
    {"logprobs", ANSWERS},
    {"top_logprobs", API_CHAT},
    {"echo", ANSWERS},
    {"max_tokens", ANSWERS},
    {"ignore_eos", ANSWERS},
    {"max_completion_tokens", ANSWERS},
    {"samebits_receipt", ANSWERS},
    {NULL, 0},
};

/* The fields within stream_options. */
static const struct unsupported unsupported_of_streams[] = {
    {"continuous_usage_stats", "[false]"},
    {"include_obfuscation", "[false]"},
    {NULL, NULL},
};

static const struct supported supported_of_streams[] = {{"include_usage", ALL}, {NULL, 0}};

/* Whether value is among what a JSON list holds; 0 and 0.0 are the same. */
static bool is_neutral(const json_t *value, const char *neutral) {
    json_t *list = neutral ? json_loads(neutral, 0, NULL) : NULL;
    bool found = !neutral;
    for (size_t i = 0; !found && i < json_array_size(list); i++) {
        const json_t *wanted = json_array_get(list, i);
        found = json_is_number(wanted) && json_is_number(value)
                    ? json_number_value(wanted) == json_number_value(value)
                    : json_equal(wanted, value);
    }
    json_decref(list);
    return found;
}

static int check(const json_t *object, enum api_path path, const struct supported *known,
                 const struct unsupported *others, struct api_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        const struct supported *k = known;
        const struct unsupported *u = others;
        while (k->name && strcmp(k->name, name))
            k++;
        if (k->paths & path || json_is_null(value))
            continue;
        if (k->name)
            return api_refuse(err, 400, name, "%s is not a field of this path", name);
        while (u->name && strcmp(u->name, name))
            u++;
        if (!u->name)
            return api_refuse(err, 400, name, "%s is not a field that this server knows", name);
        if (!is_neutral(value, u->neutral))
            return api_refuse(err, 400, name, "%s is not supported, except with its default", name);
    }
    return 0;
}

int api_check_fields(const json_t *body, enum api_path path, struct api_error *err) {
    return check(body, path, supported, unsupported, err) ||
                   check(api_field(body, "stream_options"), path, supported_of_streams,
                         unsupported_of_streams, err)
               ? -1
               : 0;
}
