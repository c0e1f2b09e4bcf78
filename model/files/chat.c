#include "model/files/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool role_is_known(const char *role) {
    return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 ||
           strcmp(role, "assistant") == 0 || strcmp(role, "tool") == 0;
}

static int get_text(const json_t *message, const char *field, size_t index, const char **out,
                    const char *where, struct error *err) {
    const json_t *value = json_object_get(message, field);
    if (!value)
        return error_set(err, "%s: message %zu: \"%s\" is missing", where, index, field);
    if (!json_is_string(value))
        return error_set(err, "%s: message %zu: \"%s\" must be a string", where, index, field);
    *out = json_string_value(value);
    if (strlen(*out) != json_string_length(value))
        return error_set(err, "%s: message %zu: \"%s\" has a NUL character", where, index, field);
    return 0;
}

static int read_message(const json_t *message, size_t index, struct chat_message *out,
                        const char *where, struct error *err) {
    const char *role, *content;
    if (!json_is_object(message))
        return error_set(err, "%s: message %zu must be {\"role\": ..., \"content\": ...}", where,
                         index);
    if (get_text(message, "role", index, &role, where, err) != 0 ||
        get_text(message, "content", index, &content, where, err) != 0)
        return -1;
    if (!role_is_known(role))
        return error_set(err, "%s: message %zu: role \"%s\" is not system, user, assistant or tool",
                         where, index, role);
    out->role = strdup(role);
    out->content = strdup(content);
    if (!out->role || !out->content)
        return error_set(err, "%s: out of memory", where);
    return 0;
}

int chat_messages_from_json(const json_t *list, const char *where, struct chat_message **out,
                            size_t *n, struct error *err) {
    *out = NULL;
    *n = 0;
    if (!json_is_array(list))
        return error_set(err, "%s: must be a list of messages, [{\"role\": ..., \"content\": ...}]",
                         where);
    size_t count = json_array_size(list);
    if (count == 0)
        return error_set(err, "%s: the list of messages is empty", where);
    struct chat_message *messages = calloc(count, sizeof *messages);
    if (!messages)
        return error_set(err, "%s: out of memory", where);
    for (size_t i = 0; i < count; i++) {
        if (read_message(json_array_get(list, i), i, &messages[i], where, err) != 0) {
            chat_free_messages(messages, count);
            return -1;
        }
    }
    *out = messages;
    *n = count;
    return 0;
}

int chat_read_messages(const char *path, struct chat_message **out, size_t *n, struct error *err) {
    *out = NULL;
    *n = 0;
    json_t *list = json_read_file(path, err);
    if (!list)
        return -1;
    int result = chat_messages_from_json(list, path, out, n, err);
    json_decref(list);
    return result;
}

void chat_free_messages(struct chat_message *messages, size_t n) {
    for (size_t i = 0; messages && i < n; i++) {
        free(messages[i].role);
        free(messages[i].content);
    }
    free(messages);
}

static void write_message(FILE *out, const char *role, const char *content) {
    fprintf(out, "<|im_start|>%s\n", role);
    fputs(content, out); /* apart, because a printf result is an int and contents may be larger */
    fputs("<|im_end|>\n", out);
}

static int finish(FILE *file, char **out, struct error *err) {
    fputs("<|im_start|>assistant\n", file);
    int failed = ferror(file);
    if (fclose(file) == 0 && !failed)
        return 0;
    free(*out);
    *out = NULL;
    return error_set(err, "chat: out of memory");
}

int chat_render(const struct chat_message *messages, size_t n, char **out, size_t *n_bytes,
                struct error *err) {
    *out = NULL;
    FILE *file = open_memstream(out, n_bytes);
    if (!file)
        return error_set(err, "chat: out of memory");
    for (size_t i = 0; i < n; i++)
        write_message(file, messages[i].role, messages[i].content);
    return finish(file, out, err);
}

int chat_render_turn(const char *content, char **out, size_t *n_bytes, struct error *err) {
    *out = NULL;
    FILE *file = open_memstream(out, n_bytes);
    if (!file)
        return error_set(err, "chat: out of memory");
    fputs("\n", file);
    write_message(file, "user", content);
    return finish(file, out, err);
}
