#include "model/files/chat.h"

#include <string.h>

/* ---- what a conversation may hold ----------------------------------------------------------- */

static int check_content(const json_t *message, size_t index, const char *where,
                         struct error *err) {
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content))
        return 0;
    if (!content || json_is_null(content))
        return json_object_get(message, "tool_calls")
                   ? 0
                   : error_set(err, "%s: message %zu: \"content\" is missing", where, index);
    if (!json_is_array(content))
        return error_set(err, "%s: message %zu: \"content\" must be a string or a list of parts",
                         where, index);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0 || !json_is_string(json_object_get(part, "text")))
            return error_set(err,
                             "%s: message %zu: part %zu of \"content\" must be {\"type\": \"text\""
                             ", \"text\": ...}; nothing but text can be read",
                             where, index, i);
    }
    return 0;
}

static int check_messages(const json_t *list, const char *where, struct error *err) {
    if (!json_is_array(list))
        return error_set(err, "%s: must be a list of messages, [{\"role\": ..., \"content\": ...}]",
                         where);
    if (json_array_size(list) == 0)
        return error_set(err, "%s: the list of messages is empty", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *message = json_array_get(list, i);
        if (!json_is_object(message))
            return error_set(err, "%s: message %zu must be {\"role\": ..., \"content\": ...}",
                             where, i);
        if (!json_is_string(json_object_get(message, "role")))
            return error_set(err, "%s: message %zu: \"role\" must be there, and a string", where,
                             i);
        if (check_content(message, i, where, err))
            return -1;
    }
    return 0;
}

static int check_tools(const json_t *tools, const char *where, struct error *err) {
    if (!tools || json_is_null(tools))
        return 0;
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!json_is_object(json_array_get(tools, i)))
            return error_set(err, "%s: tools: tool %zu must be an object", where, i);
    return json_is_array(tools) ? 0 : error_set(err, "%s: tools: must be a list", where);
}

json_t *chat_read(const char *path, struct error *err) {
    json_t *read = json_read_file(path, err), *conversation = read;
    if (!read)
        return NULL;
    if (!json_is_object(read)) {
        conversation = json_pack("{sO}", "messages", read);
        json_decref(read);
        if (!conversation)
            error_set(err, "%s: out of memory", path);
    }
    if (conversation && (check_messages(json_object_get(conversation, "messages"), path, err) ||
                         check_tools(json_object_get(conversation, "tools"), path, err))) {
        json_decref(conversation);
        return NULL;
    }
    return conversation;
}

int chat_append(json_t *conversation, const char *role, const char *content, size_t n,
                struct error *err) {
    json_t *message =
        json_pack("{ss so}", "role", role, "content", json_stringn_nocheck(content, n));
    return json_array_append_new(json_object_get(conversation, "messages"), message)
               ? error_set(err, "chat: out of memory")
               : 0;
}

json_t *chat_of_prompt(const char *prompt, size_t n, struct error *err) {
    json_t *conversation = json_pack("{s[]}", "messages");
    if (chat_append(conversation, "user", prompt, n, err) == 0)
        return conversation;
    json_decref(conversation);
    return NULL;
}

/* ---- what the template sees ----------------------------------------------------------------- */

/* The parts of a content with newlines between them; a string as it is. A new reference, or NULL:
 * out of memory. */
static json_t *joined_parts(json_t *content) {
    if (!json_is_array(content))
        return json_incref(content);
    size_t n = 0, at = 0, i;
    json_t *part;
    json_array_foreach(content, i, part) n += json_string_length(json_object_get(part, "text")) + 1;
    char *text = malloc(n + 1);
    if (!text)
        return NULL;
    json_array_foreach(content, i, part) {
        const json_t *from = json_object_get(part, "text");
        if (i)
            text[at++] = '\n';
        memcpy(text + at, json_string_value(from), json_string_length(from));
        at += json_string_length(from);
    }
    json_t *joined = json_stringn_nocheck(text, at);
    free(text);
    return joined;
}

/* The reasoning of a message under its first name that is there; NULL: none. */
static json_t *reasoning_of(const json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *found = json_object_get(message, names[i]);
        if (found && !json_is_null(found))
            return found;
    }
    return NULL;
}

/* A message as the template sees it: a new reference, or NULL: out of memory. */
static json_t *seen_message(const json_t *message, bool parts) {
    json_t *seen = json_object(), *value, *reasoning = reasoning_of(message);
    const char *name;
    int failed = !seen || (reasoning && json_object_set(seen, "thinking", reasoning));
    json_object_foreach((json_t *)message, name, value) {
        if (json_is_null(value))
            continue;
        bool joins = !parts && strcmp(name, "content") == 0;
        failed = failed || json_object_set_new_nocheck(
                               seen, name, joins ? joined_parts(value) : json_incref(value));
    }
    failed = failed || (reasoning && json_object_set(seen, "reasoning_content", reasoning));
    if (!failed)
        return seen;
    json_decref(seen);
    return NULL;
}

int chat_render(const struct chat_template *t, const json_t *conversation, const char *where,
                char **out, size_t *n_bytes, struct error *err) {
    const json_t *messages = json_object_get(conversation, "messages");
    json_t *tools = json_object_get(conversation, "tools");
    *out = NULL;
    if (check_messages(messages, where, err) || check_tools(tools, where, err))
        return -1;
    json_t *seen = json_array();
    int failed = !seen;
    for (size_t i = 0; i < json_array_size(messages) && !failed; i++)
        failed = json_array_append_new(
            seen, seen_message(json_array_get(messages, i), chat_template_reads_parts(t)));
    json_t *variables = failed ? NULL
                               : json_pack("{sO sO? sn sb}", "messages", seen, "tools",
                                           json_array_size(tools) ? tools : NULL, "documents",
                                           "add_generation_prompt", 1);
    json_decref(seen);
    if (!variables)
        return error_set(err, "chat: out of memory");
    if (!json_object_get(variables, "tools"))
        json_object_set_new(variables, "tools", json_null());
    int result = chat_template_render(t, variables, out, n_bytes, err);
    json_decref(variables);
    return result;
}
