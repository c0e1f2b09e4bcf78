#include "tutorials/common/complete.h"

#include "model/files/chat.h"
#include "tutorials/common/answer.h"
#include "tutorials/common/requests.h"

#include <poll.h>
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
    int32_t *ids = NULL;
    size_t n;
    json_t *conversation = chat_read(demo->options.messages, err);
    int result = !conversation ||
                 demo_encode_messages(demo, conversation, demo->options.messages, &ids, &n, err) ||
                 answer_ids(demo, ids, n, &output, err);
    json_decref(conversation);
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

/* A conversation, and what the cache of its sequence holds as text. */
struct chat {
    struct sequence sequence;
    struct kv_cache *cache;
    json_t *conversation;
    char *text; /* the last rendering and the answer to it; NULL: nothing was said yet */
    size_t n_text;
};

/* The ids to append for the next turn. The whole conversation is rendered again: where it begins
 * with what the cache holds, only the rest is new; where it does not (a template may leave out
 * earlier reasoning), a new sequence begins. text becomes the rendering. */
static int encode_turn(struct demo *demo, struct chat *chat, int32_t **ids, size_t *n,
                       struct error *err) {
    char *text;
    size_t n_text, known = chat->n_text;
    if (chat_render(demo->chat, chat->conversation, "stdin", &text, &n_text, err))
        return -1;
    if (known > n_text || (known && memcmp(text, chat->text, known))) {
        answer_end(demo, &chat->sequence, chat->cache);
        known = 0;
        if (answer_start(demo, &chat->sequence, &chat->cache, &demo->options.sampling, err)) {
            free(text);
            return -1;
        }
    }
    int result =
        tokenizer_encode(demo->tokenizer, text + known, n_text - known, false, ids, n, err);
    free(chat->text);
    chat->text = text;
    chat->n_text = n_text;
    return result;
}

/* Appends the answer to the text, with its special tokens, and to the conversation, without. */
static int keep_answer(struct demo *demo, struct chat *chat, struct error *err) {
    const struct sequence *s = &chat->sequence;
    char *spoken = NULL, *written = NULL, *grown = NULL;
    size_t n_spoken, n_written, n_ids = (size_t)sequence_new_tokens(s);
    const int32_t *ids = s->tokens + s->n_prompt;
    int result = tokenizer_decode(demo->tokenizer, ids, n_ids, true, &spoken, &n_spoken, err) ||
                 tokenizer_decode(demo->tokenizer, ids, n_ids, false, &written, &n_written, err) ||
                 chat_append(chat->conversation, "assistant", spoken, n_spoken, err);
    if (!result && !(grown = realloc(chat->text, chat->n_text + n_written + 1)))
        result = error_set(err, "out of memory");
    if (!result) {
        chat->text = grown;
        memcpy(grown + chat->n_text, written, n_written);
        chat->n_text += n_written;
    }
    free(spoken);
    free(written);
    return result ? -1 : 0;
}

/* One question and its answer. A question that does not fit behind other turns ends the
 * conversation as a full context does. */
static int one_turn(struct demo *demo, struct chat *chat, const char *line,
                    struct answer_output *output, struct error *err) {
    int32_t *ids = NULL;
    size_t n;
    bool first = !chat->text;
    if (chat_append(chat->conversation, "user", line, strlen(line), err) ||
        encode_turn(demo, chat, &ids, &n, err))
        return -1;
    struct sequence *s = &chat->sequence;
    int result = 0;
    if (n > INT32_MAX / 4)
        result = error_set(err, "the question has too many tokens");
    else if (!first && !answer_fits(demo, s, (int)n))
        s->finish = FINISH_CONTEXT;
    else
        result = answer(demo, s, chat->cache, ids, (int)n, demo->options.max_new, output, err) ||
                 keep_answer(demo, chat, err);
    free(ids);
    return result ? -1 : 0;
}

/* getline from stdin, which is not read ahead; 0: there is no line yet. */
static ssize_t read_line(char **line, size_t *capacity, int milliseconds) {
    int ready = poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, milliseconds);
    return ready > 0 ? getline(line, capacity, stdin) : ready;
}

/* Rank 0's next line; until there is one, all tell that they are there. */
static ssize_t share_line(struct parallel *ranks, char **line, size_t *capacity) {
    ssize_t n = 0;
    while (!n && !ranks->failed) {
        if (!ranks->rank)
            n = read_line(line, capacity, (int)(ranks->limit * 250));
        parallel_broadcast(ranks, &n, sizeof n);
        parallel_least(ranks, 0);
    }
    if (n > 0 && ranks->rank && !(*line = realloc(*line, (size_t)n + 1)))
        return -1;
    if (n > 0)
        parallel_broadcast(ranks, *line, (size_t)n + 1);
    return ranks->failed ? -1 : n;
}

int complete_chat(struct demo *demo, struct error *err) {
    struct answer_output output = {0};
    struct chat chat = {0};
    struct parallel *ranks = demo->parallel;
    bool person = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int result = 0;
    if (!demo->chat)
        return error_set(err, "%s", demo->why_no_chat.text);
    if (answer_start(demo, &chat.sequence, &chat.cache, &demo->options.sampling, err))
        return -1;
    if (ranks)
        setvbuf(stdin, NULL, _IONBF, 0);
    if (!(chat.conversation = json_pack("{s[]}", "messages")))
        result = error_set(err, "out of memory");
    while (!result && chat.sequence.finish != FINISH_CONTEXT && !demo_interrupted(demo)) {
        if (person)
            fprintf(stderr, "> ");
        n = ranks ? share_line(ranks, &line, &capacity) : getline(&line, &capacity, stdin);
        if (n < 0) {
            result = parallel_check(ranks, err);
            break;
        }
        if (line[n - 1] == '\n')
            line[--n] = 0;
        if (strlen(line) < (size_t)n)
            result =
                error_set(err, "stdin: a line has a NUL character, which a message cannot have");
        else if (n)
            result = one_turn(demo, &chat, line, &output, err);
    }
    if (!result && chat.sequence.finish == FINISH_CONTEXT)
        fprintf(stderr, "the context of %d tokens is full: the conversation ends here\n",
                demo->generator.context);
    answer_end(demo, &chat.sequence, chat.cache);
    json_decref(chat.conversation);
    free(chat.text);
    free(line);
    return close_output(&output, result, err);
}
