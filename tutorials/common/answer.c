#include "tutorials/common/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the token callback needs. */
struct streaming {
    struct demo *demo;
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
    if (demo->generator.drafter)
        fprintf(stderr, "%ld of %ld drafted tokens accepted\n", s->drafting.accepted,
                s->drafting.proposed);
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

int answer_start(struct demo *demo, struct sequence *s, struct kv_cache **cache,
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

void answer_end(struct demo *demo, struct sequence *s, struct kv_cache *cache) {
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

bool answer_fits(const struct demo *demo, const struct sequence *s, int n) {
    return n < demo->generator.context - s->n_tokens;
}

int answer(struct demo *demo, struct sequence *s, struct kv_cache *cache, const int32_t *ids, int n,
           int max_new, struct answer_output *output, struct error *err) {
    struct streaming streaming = {.demo = demo};
    const struct options *options = &demo->options;
    int result = -1;
    if (n >= demo->generator.context)
        return error_set(err, "the prompt has %d tokens and needs one more, but the context is %d",
                         n, demo->generator.context);
    if (options->dump_logits && !output->logits.output.file &&
        npy_open(&output->logits, options->dump_logits, (size_t)demo->model.config.vocab_size, err))
        return -1;
    streaming.logits = options->dump_logits ? &output->logits : NULL;
    if (options->ids)
        print_ids("prompt", ids, n);
    else if (!(streaming.stream = decode_stream_new(demo->tokenizer, true, err)))
        return -1;
    demo->generator.on_token = show_token;
    demo->generator.on_token_context = &streaming;
    demo->dev->peak_bytes = demo->dev->bytes;
    struct request request = {.receipt = options->receipt != NULL};
    if ((!request.receipt || (s->chain = logits_chain_new(err))) &&
        !sequence_add_prompt(s, ids, n, max_new, err) &&
        !generate(&demo->generator, s, cache, err) && !finish_output(&streaming, s, err) &&
        !demo_keep_receipt(demo, &request, s, err)) {
        report(demo, s, s->n_prompt);
        result = 0;
    }
    demo->generator.on_token = NULL;
    decode_stream_free(streaming.stream);
    return result;
}
