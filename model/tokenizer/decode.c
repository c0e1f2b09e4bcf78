/*
 * From ids to text. Every decoder is a stage that takes tokens (in parts, with a signal where each
 * ends) and passes tokens on; the last one's text is the output. A stage holds back what a later
 * token can still change, so decoding a whole list and decoding one id at a time are the same
 * code.
 */
#include "model/tokenizer/internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char replacement_character[] = "\xEF\xBF\xBD";

struct stage {
    const struct step *step;
    struct bytes token; /* the token that is coming in, where it is needed whole; else scratch */
    struct bytes held;  /* bytes that are no characters yet */
    size_t n_tokens;    /* that have ended (Metaspace) */
    int cut;            /* Strip: characters dropped at the token's start, -1 once it began */
    int trailing;       /* Strip: characters held back because the token may end behind them */
};

struct decode_stream {
    const struct tokenizer *t;
    bool skip_special;
    struct stage *stages;
    size_t n_stages;
    size_t n_tokens;
    struct bytes out;
    struct matcher matcher;
};

static int feed(struct decode_stream *s, size_t i, const char *text, size_t n);
static int end_token(struct decode_stream *s, size_t i);

static int pass_token(struct decode_stream *s, size_t i, const char *text, size_t n) {
    return feed(s, i, text, n) != 0 ? -1 : end_token(s, i);
}

/* Passes on what stage i has put together in a buffer. */
static int pass_on(struct decode_stream *s, size_t i, const struct bytes *text) {
    return text->failed ? tok_out_of_memory(s->matcher.err) : feed(s, i + 1, text->data, text->n);
}

/* ---- ByteFallback --------------------------------------------------------------------------- */

/* The run of <0xNN> tokens has ended: its text, or U+FFFD for each. */
static int release_run(struct decode_stream *s, size_t i) {
    struct stage *stage = &s->stages[i];
    size_t n = stage->held.n;
    int result = 0;
    if (n > 0 && tok_utf8_valid(stage->held.data, n) == n)
        result = pass_token(s, i + 1, stage->held.data, n);
    else
        for (size_t k = 0; k < n && result == 0; k++)
            result = pass_token(s, i + 1, replacement_character, 3);
    stage->held.n = 0;
    return result;
}

static int end_byte_fallback(struct decode_stream *s, size_t i) {
    struct stage *stage = &s->stages[i];
    const char *text = stage->token.data;
    size_t n = stage->token.n;
    if (n == 6 && memcmp(text, "<0x", 3) == 0 && isxdigit((unsigned char)text[3]) &&
        isxdigit((unsigned char)text[4]) && text[5] == '>') {
        char byte = (char)strtol(text + 3, NULL, 16);
        tok_bytes_add(&stage->held, &byte, 1);
        return stage->held.failed ? tok_out_of_memory(s->matcher.err) : 0;
    }
    return release_run(s, i) != 0 ? -1 : pass_token(s, i + 1, text, n);
}

/* ---- ByteLevel ------------------------------------------------------------------------------ */

/* Passes on what is certain among the held bytes; at the end everything is. */
static int release_bytes(struct decode_stream *s, size_t i, bool at_end) {
    struct bytes *held = &s->stages[i].held;
    struct bytes *text = &s->stages[i].token;
    size_t at = 0;
    text->n = 0;
    while (at < held->n) {
        uint32_t c;
        int length = tok_utf8_next(held->data + at, held->n - at, &c);
        if (length == 0 && !at_end)
            break;
        if (length > 0) {
            tok_bytes_add(text, held->data + at, (size_t)length);
            at += (size_t)length;
        } else {
            tok_bytes_add(text, replacement_character, 3);
            at = length == 0 ? held->n : at + (size_t)-length;
        }
    }
    if (at > 0)
        memmove(held->data, held->data + at, held->n - at);
    held->n -= at;
    return pass_on(s, i, text);
}

/* Letters to the bytes they stand for. A token with any other letter is its own text. */
static int end_byte_level(struct decode_stream *s, size_t i) {
    struct stage *stage = &s->stages[i];
    const struct bytes *token = &stage->token;
    size_t n_held = stage->held.n;
    for (size_t at = 0; at < token->n;) {
        uint32_t c = 0;
        at += (size_t)tok_utf8_next(token->data + at, token->n - at, &c);
        int byte = tok_char_to_byte(c);
        char raw = (char)byte;
        if (byte < 0) {
            stage->held.n = n_held;
            tok_bytes_add(&stage->held, token->data, token->n);
            break;
        }
        tok_bytes_add(&stage->held, &raw, 1);
    }
    return stage->held.failed ? tok_out_of_memory(s->matcher.err) : release_bytes(s, i, false);
}

/* ---- Metaspace, Strip, Replace -------------------------------------------------------------- */

static bool begins_with(const struct bytes *content, const char *text, size_t n) {
    return n >= content->n && memcmp(text, content->data, content->n) == 0;
}

static int feed_metaspace(struct decode_stream *s, size_t i, const char *text, size_t n) {
    struct stage *stage = &s->stages[i];
    const struct bytes *mark = &stage->step->content;
    bool drop = stage->n_tokens == 0 && stage->step->prepend_scheme != PREPEND_NEVER;
    stage->token.n = 0;
    for (size_t at = 0; at < n;) {
        if (begins_with(mark, text + at, n - at)) {
            tok_bytes_add(&stage->token, " ", drop ? 0 : 1);
            at += mark->n;
        } else {
            tok_bytes_add(&stage->token, text + at++, 1);
        }
    }
    return pass_on(s, i, &stage->token);
}

static int feed_strip(struct decode_stream *s, size_t i, const char *text, size_t n) {
    struct stage *stage = &s->stages[i];
    const struct step *step = stage->step;
    stage->token.n = 0;
    for (size_t at = 0; at < n;) {
        if (!begins_with(&step->content, text + at, n - at)) {
            for (; stage->trailing > 0; stage->trailing--)
                tok_bytes_add(&stage->token, step->content.data, step->content.n);
            stage->cut = -1;
            tok_bytes_add(&stage->token, text + at++, 1);
            continue;
        }
        at += step->content.n;
        if (stage->cut >= 0 && stage->cut < step->start) {
            stage->cut++;
            continue;
        }
        stage->cut = -1;
        if (stage->trailing < step->stop)
            stage->trailing++;
        else
            tok_bytes_add(&stage->token, step->content.data, step->content.n);
    }
    return pass_on(s, i, &stage->token);
}

static int end_replace(struct decode_stream *s, size_t i) {
    struct stage *stage = &s->stages[i];
    stage->held.n = 0;
    if (tok_replace(&s->matcher, &stage->step->pattern, &stage->step->content,
                    stage->token.n ? stage->token.data : "", stage->token.n, &stage->held) != 0)
        return -1;
    return pass_token(s, i + 1, stage->held.data, stage->held.n);
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* A part of a token arrives at stage i; the stage behind the last is the output. */
static int feed(struct decode_stream *s, size_t i, const char *text, size_t n) {
    if (i == s->n_stages) {
        tok_bytes_add(&s->out, text, n);
        return s->out.failed ? tok_out_of_memory(s->matcher.err) : 0;
    }
    struct stage *stage = &s->stages[i];
    if (stage->step->kind == STEP_FUSE)
        return feed(s, i + 1, text, n);
    if (stage->step->kind == STEP_METASPACE)
        return feed_metaspace(s, i, text, n);
    if (stage->step->kind == STEP_STRIP)
        return feed_strip(s, i, text, n);
    tok_bytes_add(&stage->token, text, n); /* the others look at whole tokens */
    return stage->token.failed ? tok_out_of_memory(s->matcher.err) : 0;
}

static int end_token(struct decode_stream *s, size_t i) {
    if (i == s->n_stages)
        return 0;
    struct stage *stage = &s->stages[i];
    enum step_kind kind = stage->step->kind;
    if (kind == STEP_FUSE)
        return 0;
    if (kind == STEP_METASPACE || kind == STEP_STRIP) {
        stage->n_tokens++;
        stage->cut = stage->trailing = 0;
        return end_token(s, i + 1);
    }
    int result = kind == STEP_BYTE_FALLBACK ? end_byte_fallback(s, i)
                 : kind == STEP_BYTE_LEVEL  ? end_byte_level(s, i)
                                            : end_replace(s, i);
    stage->token.n = 0;
    return result;
}

/* No more tokens: every stage in turn gives what it held. Fuse and ByteLevel end the one token that
 * they made of all. */
static int finish(struct decode_stream *s) {
    for (size_t i = 0; i < s->n_stages; i++) {
        enum step_kind kind = s->stages[i].step->kind;
        int result = 0;
        if (kind == STEP_BYTE_FALLBACK)
            result = release_run(s, i);
        else if (kind == STEP_BYTE_LEVEL)
            result = release_bytes(s, i, true);
        if (result == 0 && (kind == STEP_BYTE_LEVEL || kind == STEP_FUSE))
            result = end_token(s, i + 1);
        if (result != 0)
            return -1;
        s->stages[i].n_tokens = 0;
        s->stages[i].token.n = 0;
    }
    s->n_tokens = 0;
    return 0;
}

static int add_id(struct decode_stream *s, int32_t id) {
    const struct vocab *v = &s->t->vocab;
    if (id < 0 || (size_t)id >= v->n_tokens || !v->tokens[id].exists ||
        (s->skip_special && v->tokens[id].skipped))
        return 0;
    if (!s->t->has_decoder && s->n_tokens > 0)
        tok_bytes_add(&s->out, " ", 1);
    s->n_tokens++;
    const struct token *token = &v->tokens[id];
    return pass_token(s, 0, token->decoded_n ? v->texts.data + token->decoded_at : "",
                      token->decoded_n);
}

struct decode_stream *decode_stream_new(const struct tokenizer *t, bool skip_special,
                                        struct error *err) {
    struct decode_stream *s = calloc(1, sizeof *s);
    if (!s) {
        tok_out_of_memory(err);
        return NULL;
    }
    s->t = t;
    s->skip_special = skip_special;
    s->n_stages = t->decoders.n;
    s->stages = calloc(s->n_stages + 1, sizeof *s->stages);
    if (!s->stages || tok_matcher_init(&s->matcher, err) != 0) {
        tok_out_of_memory(err);
        decode_stream_free(s);
        return NULL;
    }
    for (size_t i = 0; i < s->n_stages; i++)
        s->stages[i].step = &t->decoders.items[i];
    return s;
}

void decode_stream_free(struct decode_stream *s) {
    if (!s)
        return;
    for (size_t i = 0; s->stages && i < s->n_stages; i++) {
        tok_bytes_free(&s->stages[i].token);
        tok_bytes_free(&s->stages[i].held);
    }
    free(s->stages);
    tok_bytes_free(&s->out);
    tok_matcher_free(&s->matcher);
    free(s);
}

static int give(struct decode_stream *s, int result, const char **text, size_t *n_bytes) {
    *text = s->out.n ? s->out.data : "";
    *n_bytes = s->out.n;
    return result;
}

int decode_stream_push(struct decode_stream *s, int32_t id, const char **text, size_t *n_bytes,
                       struct error *err) {
    s->matcher.err = err;
    s->out.n = 0;
    return give(s, add_id(s, id), text, n_bytes);
}

int decode_stream_flush(struct decode_stream *s, const char **text, size_t *n_bytes,
                        struct error *err) {
    s->matcher.err = err;
    s->out.n = 0;
    return give(s, finish(s), text, n_bytes);
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **out, size_t *n_bytes, struct error *err) {
    *out = NULL;
    *n_bytes = 0;
    struct decode_stream *s = decode_stream_new(t, skip_special, err);
    if (!s)
        return -1;
    s->matcher.err = err;
    int result = 0;
    for (size_t i = 0; i < n && result == 0; i++)
        result = add_id(s, ids[i]);
    if (result == 0)
        result = finish(s);
    tok_bytes_add(&s->out, "", 1);
    if (result == 0 && s->out.failed)
        result = tok_out_of_memory(err);
    if (result == 0) {
        *out = s->out.data;
        *n_bytes = s->out.n - 1;
        s->out.data = NULL;
    }
    decode_stream_free(s);
    return result;
}
