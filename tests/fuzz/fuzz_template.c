/*
 * fuzz_template.c - any bytes as a chat template: refused with a message that has a line, or it
 * renders messages, twice with the same result, or says why not. What follows a NUL byte is read as
 * the variables, if it is a JSON object.
 */
#include "model/files/chat_template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool holds) {
    if (!holds)
        abort();
}

/* Made once. */
static json_t *standard_variables(void) {
    static json_t *variables;
    static const char text[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief\\n\"}, {\"role\": "
        "\"user\", "
        "\"content\": \" caf\\u00e9 \\ud83d\\ude00\"}, {\"role\": \"assistant\", \"content\": "
        "\"<think>a</think>b\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
        "{\"x\": 1.5, \"y\": [true, null]}}}]}], \"tools\": null, \"bos_token\": \"<s>\", "
        "\"eos_token\": \"</s>\", \"add_generation_prompt\": true, \"l\": [3, 1, 2], \"s\": "
        "\"ab\"}";
    if (!variables)
        variables = json_parse(text, sizeof text - 1, "standard", NULL);
    return json_incref(variables);
}

static int render(const struct chat_template *t, const json_t *variables, char **out, size_t *n) {
    struct error err = {""};
    int result = chat_template_render(t, variables, out, n, &err);
    must(result == 0 ? *out && (*out)[*n] == 0 : !*out && !strncmp(err.text, "fuzz: line ", 11));
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const struct chat_template_limits limits = {20000, 1 << 22, 1 << 16, 1};
    struct chat_template *t;
    struct error err = {""};
    const char *text = (const char *)data, *nul = n ? memchr(text, 0, n) : NULL;
    size_t first = nul ? (size_t)(nul - text) : n, n_out, n_again;
    if (chat_template_parse(&t, text, first, NULL, "fuzz", &err)) {
        must(!t && !strncmp(err.text, "fuzz: line ", 11));
        return 0;
    }
    json_t *variables = nul ? json_parse(nul + 1, n - first - 1, "variables", &err) : NULL;
    if (!json_is_object(variables)) {
        json_decref(variables);
        variables = standard_variables();
    }
    char *out, *again;
    chat_template_set_limits(t, &limits);
    int result = render(t, variables, &out, &n_out);
    must(render(t, variables, &again, &n_again) == result);
    must(result || (n_out == n_again && memcmp(out, again, n_out) == 0));
    free(out);
    free(again);
    json_decref(variables);
    chat_template_free(t);
    return 0;
}
