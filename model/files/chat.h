/*
 * chat.h - conversations as JSON, and their text by a checkpoint's own template.
 *
 * A conversation is an object with "messages" and, if wanted, "tools" (a list of descriptions). A
 * message is an object with "role" (a string), "content" (a string, or a list of parts of which
 * each is {"type": "text", "text": ...}) and whatever else the template reads (tool_calls, name,
 * reasoning_content, ...). With tool_calls there may be no content.
 *
 * The template sees what transformers shows it: fields that are null are left out, reasoning has
 * the names reasoning_content and thinking. Parts are joined with newlines, as vLLM does, unless
 * the template has a loop over them. Contents go in as they are (so "<|im_end|>" inside one does
 * end it, as it does there).
 */
#ifndef SAMEBITS_MODEL_FILES_CHAT_H
#define SAMEBITS_MODEL_FILES_CHAT_H

#include "model/error.h"
#include "model/files/chat_template.h"
#include "model/files/json.h"

#include <stddef.h>

/* Reads a JSON file that holds a conversation, or only its list of messages. Returns it as a new
 * reference, or NULL with err set: the file, and which message is wrong and why. */
json_t *chat_read(const char *path, struct error *err);

/* A conversation of one message of the user: n bytes, which need not be UTF-8. Returns a new
 * reference, or NULL with err set (out of memory). */
json_t *chat_of_prompt(const char *prompt, size_t n, struct error *err);

/* Appends a message to a conversation. Returns 0, or -1 with err set (out of memory). */
int chat_append(json_t *conversation, const char *role, const char *content, size_t n,
                struct error *err);

/*
 * The text of a conversation, ready for the model's answer (add_generation_prompt). where names the
 * conversation in errors; its other fields are not looked at. On success *out is malloc'ed, the
 * caller's to free, with a NUL behind its *n_bytes bytes. Returns 0, or -1 with err set: what is no
 * message, or what the template says.
 */
int chat_render(const struct chat_template *t, const json_t *conversation, const char *where,
                char **out, size_t *n_bytes, struct error *err);

#endif
