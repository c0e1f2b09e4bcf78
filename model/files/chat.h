/*
 * chat.h - ChatML, the plain layout that many chat models are trained on:
 *
 *     <|im_start|>system\nYou are helpful.<|im_end|>\n
 *     <|im_start|>user\nHello<|im_end|>\n
 *     <|im_start|>assistant\n
 *
 * tokenizer_has_chatml says whether a checkpoint uses it. Templates are not executed: a default
 * system message that some insert is not, and contents go in as they are (so "<|im_end|>" inside
 * one does end it, as it does there).
 */
#ifndef SAMEBITS_MODEL_FILES_CHAT_H
#define SAMEBITS_MODEL_FILES_CHAT_H

#include "model/error.h"
#include "model/files/json.h"

#include <stddef.h>

struct chat_message {
    char *role; /* system, user, assistant or tool */
    char *content;
};

/*
 * Reads a JSON file with a list of {"role": ..., "content": ...}. On success *out is an array of
 * *n > 0 messages, the caller's to give to chat_free_messages. Returns 0, or -1 with err set (the
 * file, and which message is wrong and why), *out NULL and *n 0.
 */
int chat_read_messages(const char *path, struct chat_message **out, size_t *n, struct error *err);

/* chat_read_messages for a list that is already parsed; where names it in errors. The messages are
 * copies:
 * list may be freed before them. */
int chat_messages_from_json(const json_t *list, const char *where, struct chat_message **out,
                            size_t *n, struct error *err);

/* Frees n messages and the array. NULL is fine. */
void chat_free_messages(struct chat_message *messages, size_t n);

/*
 * The text of a conversation, with "<|im_start|>assistant\n" at the end for the model to go on. On
 * success *out is malloc'ed, the caller's to free, with a NUL behind its *n_bytes bytes. Returns 0,
 * or -1 with err set (out of memory).
 */
int chat_render(const struct chat_message *messages, size_t n, char **out, size_t *n_bytes,
                struct error *err);

/*
 * What to append for the next user turn once the assistant's answer ended with <|im_end|>: the
 * newline that belongs behind that token, the user's message, and the opening of the next answer.
 * *out, *n_bytes and the result as for chat_render.
 */
int chat_render_turn(const char *content, char **out, size_t *n_bytes, struct error *err);

#endif
