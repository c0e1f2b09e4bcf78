#include "tutorials/common/complete.h"

#include "model/chat.h"
#include "tutorials/common/answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A fresh sequence that answers one text. */
static int answer_alone(struct demo *demo, const char *text, size_t n, bool templated, int max_new,
                        struct answer_output *output, struct error *err) {
    struct sequence s;
    struct kv_cache *cache;
    if (answer_start(demo, &s, &cache, err))
        return -1;
    /* A template spells out its own special tokens; plain text gets those of the tokenizer. */
    int result = answer(demo, &s, cache, text, n, !templated, max_new, output, err);
    answer_end(demo, &s, cache);
    return result;
}

static int answer_messages(struct demo *demo, const struct chat_message *messages, size_t n,
                           int max_new, struct answer_output *output, struct error *err) {
    char *text;
    size_t n_bytes;
    if (!tokenizer_has_chatml(demo->tokenizer))
        return error_set(err, "%s: the model has no ChatML template; use --raw --prompt",
                         demo->options.model);
    if (chat_render(messages, n, &text, &n_bytes, err))
        return -1;
    int result = answer_alone(demo, text, n_bytes, true, max_new, output, err);
    free(text);
    return result;
}

/* A prompt as a user gives it: one chat message if the model chats, else plain text. */
static int answer_prompt(struct demo *demo, const char *prompt, size_t n, int max_new,
                         struct answer_output *output, struct error *err) {
    if (demo->options.raw || !tokenizer_has_chatml(demo->tokenizer))
        return answer_alone(demo, prompt, n, false, max_new, output, err);
    struct chat_message message = {(char *)"user", (char *)prompt};
    return answer_messages(demo, &message, 1, max_new, output, err);
}

/* Closes the file of logits without hiding an earlier error. */
static int close_output(struct answer_output *output, int result, struct error *err) {
    return npy_close(&output->logits, result ? NULL : err) || result ? -1 : 0;
}

int complete_prompt(struct demo *demo, struct error *err) {
    struct answer_output output = {0};
    const char *prompt = demo->options.prompt;
    int result = answer_prompt(demo, prompt, strlen(prompt), demo->options.max_new, &output, err);
    return close_output(&output, result, err);
}

int complete_messages(struct demo *demo, struct error *err) {
    struct answer_output output = {0};
    struct chat_message *messages;
    size_t n;
    if (chat_read_messages(demo->options.messages, &messages, &n, err))
        return -1;
    int result = answer_messages(demo, messages, n, demo->options.max_new, &output, err);
    chat_free_messages(messages, n);
    return close_output(&output, result, err);
}

/* What answer_line needs of the run. */
struct prompts_run {
    struct demo *demo;
    struct answer_output output;
};

static int answer_line(void *context, const json_t *value, const char *where, struct error *err) {
    struct prompts_run *run = context;
    const char *prompt = NULL;
    int max_new = run->demo->options.max_new;
    if (demo_interrupted(run->demo))
        return 0;
    if (json_is_string(value))
        prompt = json_string_value(value);
    else if (!json_is_object(value))
        return error_set(err, "%s: must be a string or an object with prompt or messages", where);
    else if (json_get_text(value, "prompt", &prompt, where, err) ||
             json_get_int(value, "max_new", 1, 1 << 30, &max_new, where, err))
        return -1;
    json_t *list = json_object_get(value, "messages");
    if (!prompt == !list)
        return error_set(err, "%s: needs either prompt or messages", where);
    if (!run->demo->options.ids)
        printf("%s[%u] %s\n", run->demo->n_sequences ? "\n" : "", run->demo->n_sequences,
               prompt ? prompt : "(messages)");
    if (prompt)
        return answer_prompt(run->demo, prompt, strlen(prompt), max_new, &run->output, err);
    struct chat_message *messages;
    size_t n;
    if (chat_messages_from_json(list, where, &messages, &n, err))
        return -1;
    int result = answer_messages(run->demo, messages, n, max_new, &run->output, err);
    chat_free_messages(messages, n);
    return result;
}

int complete_prompts(struct demo *demo, struct error *err) {
    struct prompts_run run = {.demo = demo};
    int result = json_for_each_line(demo->options.prompts, answer_line, &run, err);
    if (!result && !demo->n_sequences)
        result = error_set(err, "%s: no prompts in it", demo->options.prompts);
    return close_output(&run.output, result, err);
}

static int tokenize_line(void *context, const json_t *value, const char *where, struct error *err) {
    int32_t *ids;
    size_t n;
    if (!json_is_string(value))
        return error_set(err, "%s: must be a JSON string", where);
    if (tokenizer_encode(context, json_string_value(value), json_string_length(value), true, &ids,
                         &n, err))
        return -1;
    printf("[");
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i ? ", " : "", ids[i]);
    printf("]\n");
    free(ids);
    return 0;
}

int tokenize_lines(const struct tokenizer *tokenizer, const char *path, struct error *err) {
    if (json_for_each_line(path, tokenize_line, (void *)tokenizer, err))
        return -1;
    return fflush(stdout) ? error_set(err, "stdout: %s", strerror(errno)) : 0;
}

/* The text of the next turn. An answer that was cut off has no end mark yet: it gets one. */
static int next_turn(const struct sequence *s, const char *line, char **text, size_t *n,
                     struct error *err) {
    if (!s->n_tokens) {
        struct chat_message message = {(char *)"user", (char *)line};
        return chat_render(&message, 1, text, n, err);
    }
    char *turn;
    size_t turn_bytes;
    const char *end = s->finish == FINISH_STOP ? "" : "<|im_end|>";
    if (chat_render_turn(line, &turn, &turn_bytes, err))
        return -1;
    *n = strlen(end) + turn_bytes;
    *text = malloc(*n + 1);
    if (*text) {
        memcpy(*text, end, strlen(end));
        memcpy(*text + strlen(end), turn, turn_bytes + 1);
    }
    free(turn);
    return *text ? 0 : error_set(err, "out of memory");
}

static int one_turn(struct demo *demo, struct sequence *s, struct kv_cache *cache, const char *line,
                    struct answer_output *output, struct error *err) {
    char *text;
    size_t n;
    if (next_turn(s, line, &text, &n, err))
        return -1;
    int result = answer(demo, s, cache, text, n, false, demo->options.max_new, output, err);
    free(text);
    return result;
}

int complete_chat(struct demo *demo, struct error *err) {
    struct answer_output output = {0};
    struct sequence s;
    struct kv_cache *cache;
    bool person = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int result = 0;
    if (!tokenizer_has_chatml(demo->tokenizer))
        return error_set(err, "%s: the model has no ChatML template, so it cannot chat",
                         demo->options.model);
    if (answer_start(demo, &s, &cache, err))
        return -1;
    while (!result && s.finish != FINISH_CONTEXT) {
        if (person)
            fprintf(stderr, "> ");
        if ((n = getline(&line, &capacity, stdin)) < 0)
            break;
        if (line[n - 1] == '\n')
            line[n - 1] = 0;
        if (*line)
            result = one_turn(demo, &s, cache, line, &output, err);
    }
    if (!result && s.finish == FINISH_CONTEXT)
        fprintf(stderr, "the context of %d tokens is full: the conversation ends here\n",
                demo->generator.context);
    answer_end(demo, &s, cache);
    free(line);
    return close_output(&output, result, err);
}
