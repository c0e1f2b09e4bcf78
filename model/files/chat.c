#include "model/files/chat.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool role_is_known(const char *role) {
    return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 ||
           strcmp(role, "assistant") == 0 || strcmp(role, "tool") == 0;
}

static int get_text(const struct json_source *message, const char *field, const char **out) {
    if (!json_object_get(message->object, field))
        return json_refuse(message, "\"%s\" is missing", field);
    *out = NULL;
    if (json_get_string(message, field, out))
        return -1;
    return *out ? 0 : json_refuse(message, "\"%s\" must be a string", field); /* null is none */
}

static int read_message(const struct json_source *message, struct chat_message *out) {
    const char *role, *content;
    if (get_text(message, "role", &role) || get_text(message, "content", &content))
        return -1;
    if (!role_is_known(role))
        return json_refuse(message, "role \"%s\" is not system, user, assistant or tool", role);
    out->role = strdup(role);
    out->content = strdup(content);
    return out->role && out->content ? 0 : json_refuse(message, "out of memory");
}

int chat_messages_from_json(const json_t *list, const char *where, struct chat_message **out,
                            size_t *n, struct error *err) {
    const struct json_source whole = {list, where, err};
    size_t count = json_array_size(list);
    *out = NULL;
    *n = 0;
    if (!json_is_array(list))
        return json_refuse(&whole,
                           "must be a list of messages, [{\"role\": ..., \"content\": ...}]");
    if (count == 0)
        return json_refuse(&whole, "the list of messages is empty");
    struct chat_message *messages = calloc(count, sizeof *messages);
    int result = messages ? 0 : json_refuse(&whole, "out of memory");
    for (size_t i = 0; i < count && !result; i++) {
        char place[PATH_MAX];
        snprintf(place, sizeof place, "%s: message %zu", where, i);
        struct json_source message = {json_array_get(list, i), place, err};
        result = json_is_object(message.object)
                     ? read_message(&message, &messages[i])
                     : error_set(err, "%s must be {\"role\": ..., \"content\": ...}", place);
    }
    if (result) {
        chat_free_messages(messages, count);
        return -1;
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
