#include "tutorials/common/complete.h"

#include "model/files/chat.h"
#include "tutorials/common/answer.h"
#include "tutorials/common/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A fresh sequence that answers one prompt. */
static int answer_alone(struct demo *demo, const struct request *r, struct answer_output *output,
                        struct error *err) {
    struct sequence s;
    struct kv_cache *cache;
    if (answer_start(demo, &s, &cache, &r->sampling, err))
        return -1;
    int result = answer(demo, &s, cache, r->prompt, r->n_prompt, r->max_new, output, err);
    answer_end(demo, &s, cache);
    return result;
}

/* The ids of a prompt, answered as the options say. */
static int answer_ids(struct demo *demo, int32_t *ids, size_t n, struct answer_output *output,
                      struct error *err) {
    struct request request = {.prompt = ids,
                              .n_prompt = (int)n,
                              .max_new = demo->options.max_new,
                              .sampling = demo->options.sampling};
    return n > INT32_MAX / 4 ? error_set(err, "the prompt has too many tokens")
                             : answer_alone(demo, &request, output, err);
}

/* Closes the file of logits without hiding an earlier error. */
static int close_output(struct answer_output *output, int result, struct error *err) {
    return npy_close(&output->logits, result ? NULL : err) || result ? -1 : 0;
}

int complete_prompt(struct demo *demo, struct error *err) {
    struct answer_output output = {0};
    int32_t *ids;
    size_t n;
    if (demo_encode_prompt(demo, demo->options.prompt, &ids, &n, err))
        return -1;
    int result = answer_ids(demo, ids, n, &output, err);
    free(ids);
    return close_output(&output, result, err);
}

int complete_messages(struct demo *demo, struct error *err) {
    struct answer_output output = {0};
    struct chat_message *messages;
    int32_t *ids = NULL;
    size_t n_messages, n;
    if (chat_read_messages(demo->options.messages, &messages, &n_messages, err))
        return -1;
    int result = demo_encode_messages(demo, messages, n_messages, &ids, &n, err) ||
                 answer_ids(demo, ids, n, &output, err);
    chat_free_messages(messages, n_messages);
    free(ids);
    return close_output(&output, result, err);
}

/* One of --prompts. When it cannot be answered, the others still are. */
static int answer_request(struct demo *demo, int i, const struct request *r, const char *title,
                          struct answer_output *output, struct error *err) {
    struct sequence s = {.n_tokens = r->n_prompt};
    struct kv_cache *cache;
    struct error why;
    if (!demo->options.ids)
        printf("%s[%d] %s\n", i ? "\n" : "", i, title);
    if (!generator_check_prompt(&demo->generator, &s, &why))
        return answer_alone(demo, r, output, err);
    printf("request %d: %s\n", i, why.text);
    demo_request_failed(demo, i, &why);
    if (answer_start(demo, &s, &cache, &r->sampling, err))
        return -1;
    answer_end(demo, &s, cache); /* of no logits, as in every phase */
    return 0;
}

int complete_prompts(struct demo *demo, struct error *err) {
    struct answer_output output = {0};
    struct workload w = {0};
    int result = demo_read_requests(demo, demo->options.prompts, &w, err) ||
                 demo_check_untimed(&w, demo->options.prompts, err);
    for (int i = 0; i < w.n && !result && !demo_interrupted(demo); i++)
        result = answer_request(demo, i, &w.requests[i], w.requests[i].title, &output, err);
    workload_free(&w);
    return close_output(&output, result, err);
}

static int tokenize_line(void *context, const struct json_source *line) {
    int32_t *ids;
    size_t n, length = json_string_length(line->object);
    if (!json_is_string(line->object))
        return json_refuse(line, "must be a JSON string");
    if (tokenizer_encode(context, json_string_value(line->object), length, true, &ids, &n,
                         line->err))
        return -1;
    printf("[");
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i ? ", " : "", ids[i]);
    printf("]\n");
    free(ids);
    return ferror(stdout) ? output_flush_stdout(line->err) : 0;
}

int tokenize_lines(const struct tokenizer *tokenizer, const char *path, struct error *err) {
    return json_for_each_line(path, tokenize_line, (void *)tokenizer, err)
               ? -1
               : output_flush_stdout(err);
}

/* The text of the next turn. An answer that was cut off, or ended by another stop id, has no end
 * mark yet: it gets one. */
static int next_turn(const struct tokenizer *tokenizer, const struct sequence *s, const char *line,
                     char **text, size_t *n, struct error *err) {
    if (!s->n_tokens) {
        struct chat_message message = {(char *)"user", (char *)line};
        return chat_render(&message, 1, text, n, err);
    }
    char *turn;
    size_t turn_bytes;
    bool ended = s->tokens[s->n_tokens - 1] == tokenizer_id(tokenizer, "<|im_end|>");
    const char *end = ended ? "" : "<|im_end|>";
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

/* One question and its answer. A question that does not fit behind other turns ends the
 * conversation as a full context does. */
static int one_turn(struct demo *demo, struct sequence *s, struct kv_cache *cache, const char *line,
                    struct answer_output *output, struct error *err) {
    char *text;
    int32_t *ids;
    size_t n_bytes, n;
    if (next_turn(demo->tokenizer, s, line, &text, &n_bytes, err))
        return -1;
    int result = tokenizer_encode(demo->tokenizer, text, n_bytes, false, &ids, &n, err);
    free(text);
    if (result)
        return -1;
    if (n > INT32_MAX / 4)
        result = error_set(err, "the question has too many tokens");
    else if (s->n_tokens && !answer_fits(demo, s, (int)n))
        s->finish = FINISH_CONTEXT;
    else
        result = answer(demo, s, cache, ids, (int)n, demo->options.max_new, output, err);
    free(ids);
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
    if (answer_start(demo, &s, &cache, &demo->options.sampling, err))
        return -1;
    while (!result && s.finish != FINISH_CONTEXT && !demo_interrupted(demo)) {
        if (person)
            fprintf(stderr, "> ");
        if ((n = getline(&line, &capacity, stdin)) < 0)
            break;
        if (line[n - 1] == '\n')
            line[--n] = 0;
        if (strlen(line) < (size_t)n)
            result =
                error_set(err, "stdin: a line has a NUL character, which a message cannot have");
        else if (n)
            result = one_turn(demo, &s, cache, line, &output, err);
    }
    if (!result && s.finish == FINISH_CONTEXT)
        fprintf(stderr, "the context of %d tokens is full: the conversation ends here\n",
                demo->generator.context);
    answer_end(demo, &s, cache);
    free(line);
    return close_output(&output, result, err);
}
