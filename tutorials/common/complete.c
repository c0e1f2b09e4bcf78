#include "tutorials/common/complete.h"

#include "model/files/chat.h"
#include "tutorials/common/npy.h"
#include "tutorials/common/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one answer on its way to the terminal --------------------------------------------------- */

/* What the token callback needs. */
struct streaming {
    struct decode_stream *stream; /* NULL with --ids */
    struct npy *logits;           /* NULL without --dump-logits */
};

static int write_stdout(const char *text, size_t n, struct error *err) {
    fwrite(text, 1, n, stdout);
    return output_flush_stdout(err);
}

static int show_token(void *context, const struct sequence *s, const float *logits,
                      struct error *err) {
    struct streaming *streaming = context;
    const char *text;
    size_t n;
    if (streaming->logits && npy_row(streaming->logits, logits, err))
        return -1;
    if (!streaming->stream)
        return 0;
    if (decode_stream_push(streaming->stream, s->tokens[s->n_tokens - 1], &text, &n, err))
        return -1;
    return write_stdout(text, n, err);
}

static void print_ids(const char *label, const int32_t *ids, int n) {
    printf("%s:", label);
    for (int i = 0; i < n; i++)
        printf(" %d", ids[i]);
    printf("\n");
}

/* One line on stderr, and one object in the list "runs" of --json. */
static void report(struct demo *demo, const struct sequence *s, int n_prompt) {
    int n_new = sequence_new_tokens(s);
    double seconds = s->last - s->asked;
    double ttft_ms = sequence_ttft(s) * 1e3, ms_tok = sequence_ms_per_token(s);
    double tok_s = seconds > 0 ? n_new / seconds : 0;
    fprintf(stderr,
            "%d prompt tokens, %d new (%s); TTFT %.1f ms, %.2f ms/tok, %.1f tok/s, peak %.1f MB\n",
            n_prompt, n_new, finish_name(s->finish), ttft_ms, ms_tok, tok_s,
            (double)demo->dev->peak_bytes / 1e6);
    char fingerprint[17];
    fingerprint_text(fingerprint, fingerprint_value(&s->fingerprint));
    json_t *runs = json_object_get(demo->json, "runs");
    if (!runs) {
        runs = json_array();
        json_object_set_new(demo->json, "runs", runs);
    }
    json_array_append_new(runs, json_pack("{si si ss sf sf sf sf ss}", "prompt_tokens", n_prompt,
                                          "new_tokens", n_new, "finish", finish_name(s->finish),
                                          "ttft_ms", ttft_ms, "ms_tok", ms_tok, "tok_s", tok_s,
                                          "peak_mb", (double)demo->dev->peak_bytes / 1e6,
                                          "fingerprint", fingerprint));
}

/* Starts a sequence of the run and its cache. Returns 0, or -1 with err set; then nothing is left
 * to end. */
static int answer_start(struct demo *demo, struct sequence *s, struct kv_cache **cache,
                        const struct sampling_options *sampling, struct error *err) {
    *cache = NULL;
    if (sequence_start(s, demo->n_sequences, sampling, err))
        return -1;
    if (demo->cache &&
        !(*cache = demo->cache->create(&demo->model, demo->generator.context, err))) {
        sequence_end(s);
        return -1;
    }
    demo->n_sequences++;
    return 0;
}

/* Ends it: its fingerprint goes into the run's. */
static void answer_end(struct demo *demo, struct sequence *s, struct kv_cache *cache) {
    if (s->fingerprint.state)
        fingerprint_add_sequence(&demo->run, fingerprint_value(&s->fingerprint));
    if (cache)
        demo->cache->destroy(cache);
    sequence_end(s);
}

/* The end of an answer on stdout: what the stream held back, a newline, or the line of ids. */
static int finish_output(struct streaming *streaming, const struct sequence *s, struct error *err) {
    const char *text;
    size_t n;
    if (streaming->stream) {
        if (decode_stream_flush(streaming->stream, &text, &n, err) || write_stdout(text, n, err))
            return -1;
        return write_stdout("\n", 1, err);
    }
    print_ids("output", s->tokens + s->n_prompt, sequence_new_tokens(s));
    return write_stdout("", 0, err);
}

/*
 * Adds n prompt ids to s and answers them: to stdout as text, or as ids with --ids. Prints the
 * metrics on stderr. logits: what --dump-logits writes to, opened by the first answer. Returns 0,
 * or -1 with err set.
 */
static int answer(struct demo *demo, struct sequence *s, struct kv_cache *cache, const int32_t *ids,
                  int n, int max_new, struct npy *logits, struct error *err) {
    struct streaming streaming = {0};
    const struct options *options = &demo->options;
    int result = -1;
    if (n >= demo->generator.context)
        return error_set(err, "the prompt has %d tokens and needs one more, but the context is %d",
                         n, demo->generator.context);
    if (options->dump_logits && !logits->output.file &&
        npy_open(logits, options->dump_logits, (size_t)demo->model.config.vocab_size, err))
        return -1;
    streaming.logits = options->dump_logits ? logits : NULL;
    if (options->ids)
        print_ids("prompt", ids, n);
    else if (!(streaming.stream = decode_stream_new(demo->tokenizer, true, err)))
        return -1;
    demo->generator.on_token = show_token;
    demo->generator.on_token_context = &streaming;
    demo->dev->peak_bytes = demo->dev->bytes;
    if (!sequence_add_prompt(s, ids, n, max_new, err) &&
        !generate(&demo->generator, s, cache, err) && !finish_output(&streaming, s, err)) {
        report(demo, s, s->n_prompt);
        result = 0;
    }
    demo->generator.on_token = NULL;
    decode_stream_free(streaming.stream);
    return result;
}

/* ---- what the options ask for ---------------------------------------------------------------- */

/* A fresh sequence that answers one prompt. */
static int answer_alone(struct demo *demo, const struct request *r, struct npy *logits,
                        struct error *err) {
    struct sequence s;
    struct kv_cache *cache;
    if (answer_start(demo, &s, &cache, &r->sampling, err))
        return -1;
    int result = answer(demo, &s, cache, r->prompt, r->n_prompt, r->max_new, logits, err);
    answer_end(demo, &s, cache);
    return result;
}

/* The ids of a prompt, answered as the options say. */
static int answer_ids(struct demo *demo, int32_t *ids, size_t n, struct npy *logits,
                      struct error *err) {
    struct request request = {.prompt = ids,
                              .n_prompt = (int)n,
                              .max_new = demo->options.max_new,
                              .sampling = demo->options.sampling};
    return n > INT32_MAX / 4 ? error_set(err, "the prompt has too many tokens")
                             : answer_alone(demo, &request, logits, err);
}

/* Closes the file of logits without hiding an earlier error. */
static int close_output(struct npy *logits, int result, struct error *err) {
    return npy_close(logits, result ? NULL : err) || result ? -1 : 0;
}

int complete_prompt(struct demo *demo, struct error *err) {
    struct npy logits = {0};
    int32_t *ids;
    size_t n;
    if (demo_encode_prompt(demo, demo->options.prompt, &ids, &n, err))
        return -1;
    int result = answer_ids(demo, ids, n, &logits, err);
    free(ids);
    return close_output(&logits, result, err);
}

int complete_messages(struct demo *demo, struct error *err) {
    struct npy logits = {0};
    struct chat_message *messages;
    int32_t *ids = NULL;
    size_t n_messages, n;
    if (chat_read_messages(demo->options.messages, &messages, &n_messages, err))
        return -1;
    int result = demo_encode_messages(demo, messages, n_messages, &ids, &n, err) ||
                 answer_ids(demo, ids, n, &logits, err);
    chat_free_messages(messages, n_messages);
    free(ids);
    return close_output(&logits, result, err);
}

/* One of --prompts. When it cannot be answered, the others still are. */
static int answer_request(struct demo *demo, int i, const struct request *r, const char *title,
                          struct npy *logits, struct error *err) {
    struct sequence s = {.n_tokens = r->n_prompt};
    struct kv_cache *cache;
    struct error why;
    if (!demo->options.ids)
        printf("%s[%d] %s\n", i ? "\n" : "", i, title);
    if (!generator_check_prompt(&demo->generator, &s, &why))
        return answer_alone(demo, r, logits, err);
    printf("request %d: %s\n", i, why.text);
    demo_request_failed(demo, i, &why);
    if (answer_start(demo, &s, &cache, &r->sampling, err))
        return -1;
    answer_end(demo, &s, cache); /* of no logits, as in every phase */
    return 0;
}

int complete_prompts(struct demo *demo, struct error *err) {
    struct npy logits = {0};
    struct workload w = {0};
    int result = demo_read_requests(demo, demo->options.prompts, &w, err) ||
                 demo_check_untimed(&w, demo->options.prompts, err);
    for (int i = 0; i < w.n && !result && !demo_interrupted(demo); i++)
        result = answer_request(demo, i, &w.requests[i], w.requests[i].title, &logits, err);
    workload_free(&w);
    return close_output(&logits, result, err);
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
                    struct npy *logits, struct error *err) {
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
    else if (s->n_tokens && (int)n >= demo->generator.context - s->n_tokens)
        s->finish = FINISH_CONTEXT;
    else
        result = answer(demo, s, cache, ids, (int)n, demo->options.max_new, logits, err);
    free(ids);
    return result;
}

int complete_chat(struct demo *demo, struct error *err) {
    struct npy logits = {0};
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
            result = one_turn(demo, &s, cache, line, &logits, err);
    }
    if (!result && s.finish == FINISH_CONTEXT)
        fprintf(stderr, "the context of %d tokens is full: the conversation ends here\n",
                demo->generator.context);
    answer_end(demo, &s, cache);
    free(line);
    return close_output(&logits, result, err);
}
