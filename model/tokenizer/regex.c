/*
 * Patterns: literals, and regular expressions through PCRE2.
 *
 * The files are written for another engine (Oniguruma, Ruby's syntax). Where the same spelling
 * means something else in PCRE2 it is rewritten here, or refused when that is not simple.
 */
#include "model/tokenizer/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Oniguruma's \w; PCRE2's has no marks and no connectors but '_'. Outside of [ ] Oniguruma also
 * counts the Latin-1 superscripts and fractions. */
#define WORD_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LONE_WORD_CLASS WORD_CLASS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

enum { JIT_STACK_MIN = 32 * 1024, JIT_STACK_MAX = 4 * 1024 * 1024, SHOWN_BYTES = 60 };

struct translation {
    const char *in;
    size_t n, at;
    bool in_class;
    struct bytes out;
    const char *refused; /* the construct that has no translation */
    char refused_escape[3];
};

static void put(struct translation *t, const char *text) {
    tok_bytes_add(&t->out, text, strlen(text));
}

static void copy(struct translation *t, size_t n) {
    tok_bytes_add(&t->out, t->in + t->at, n);
    t->at += n;
}

static bool looking_at(const struct translation *t, const char *text) {
    size_t n = strlen(text);
    return t->n - t->at >= n && memcmp(t->in + t->at, text, n) == 0;
}

/* \p{Han} is a script for Oniguruma, but since 10.40 the larger set of "script extensions" for
 * PCRE2. Names of one or two letters are general categories for both. */
static void translate_property(struct translation *t) {
    const char *name = t->in + t->at + 3;
    const char *close = memchr(name - 1, '}', t->n - t->at - 2);
    if (name[-1] != '{' || !close) {
        t->refused = "\\p without { }";
        return;
    }
    bool negated = name < close && *name == '^';
    name += negated;
    tok_bytes_add(&t->out, t->in + t->at, 3);
    if (negated)
        put(t, "^");
    if (close - name > 2)
        put(t, "sc:");
    tok_bytes_add(&t->out, name, (size_t)(close - name) + 1);
    t->at = (size_t)(close - t->in) + 1;
}

/* What may stand behind a backslash: punctuation, and these, which mean the same to both. Others,
 * such as \K, \Q, \h or \v, do not, or are unknown to one of them. */
static bool is_common_escape(const struct translation *t, char c) {
    if (c == 'x')
        return t->in[t->at + 2] == '{';
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return !letter || strchr("aefnrtdDAGzZ", c);
}

static void translate_escape(struct translation *t) {
    char c = t->at + 1 < t->n ? t->in[t->at + 1] : '\0';
    if (c == 'p' || c == 'P') {
        translate_property(t);
        return;
    }
    if (c == 's') {
        put(t, "\\p{White_Space}"); /* PCRE2's \s also has U+180E */
    } else if (c == 'S') {
        put(t, "\\P{White_Space}");
    } else if (c == 'w') {
        put(t, t->in_class ? WORD_CLASS : "[" LONE_WORD_CLASS "]");
    } else if (c == 'W' && !t->in_class) {
        put(t, "[^" LONE_WORD_CLASS "]");
    } else if (c == 'W') {
        t->refused = "\\W inside [ ]";
    } else if ((c == 'b' && t->in_class) || is_common_escape(t, c)) {
        copy(t, t->at + 1 < t->n ? 2 : 1);
        return;
    } else {
        snprintf(t->refused_escape, sizeof t->refused_escape, "\\%c", c);
        t->refused = t->refused_escape;
    }
    t->at += 2;
}

static void translate_in_class(struct translation *t) {
    if (looking_at(t, "[:")) {
        t->refused = "[: :]"; /* other members there */
    } else if (looking_at(t, "[")) {
        t->refused = "[ ] inside [ ]";
    } else if (looking_at(t, "&&")) {
        t->refused = "&& inside [ ]";
    } else {
        t->in_class = !looking_at(t, "]");
        copy(t, 1);
    }
}

/* Without regard to case, these match one character, too, there: "ss" U+00DF, "fi" U+FB01. */
static bool has_folded_pair(const struct translation *t) {
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strcasestr(t->in, pairs[i]))
            return true;
    return false;
}

/* (?flags) and (?flags:...). */
static void translate_group(struct translation *t) {
    size_t n_flags = strspn(t->in + t->at + 2, "imxs-");
    if (looking_at(t, "(*"))
        t->refused = "(*";
    else if (memchr(t->in + t->at + 2, 'i', n_flags) && has_folded_pair(t))
        t->refused = "(?i with ss, ff, fi, fl or st";
    else if (memchr(t->in + t->at + 2, 'm', n_flags))
        t->refused = "(?m"; /* "." matches newlines there, another thing here */
    else if (t->at > 0 && n_flags > 0 && t->in[t->at + 2 + n_flags] == ')')
        t->refused = "(?flags) not at the start"; /* reaches over a different part of "|" */
    else
        copy(t, 1);
}

/* "{1,3}+" repeats the repetition there and makes it possessive here; "{,3}" is no repetition here.
 */
static void translate_brace(struct translation *t) {
    size_t n = strspn(t->in + t->at + 1, "0123456789,");
    if (looking_at(t, "{,"))
        t->refused = "{,n}";
    else if (n > 0 && t->in[t->at + 1 + n] == '}' && t->in[t->at + 2 + n] == '+')
        t->refused = "{n,m}+";
    else
        copy(t, 1);
}

/* in has a NUL behind its n bytes. */
static void translate(struct translation *t) {
    while (t->at < t->n && !t->refused) {
        char c = t->in[t->at];
        if (c == '\\') {
            translate_escape(t);
        } else if (t->in_class) {
            translate_in_class(t);
        } else if (c == '[') {
            t->in_class = true;
            copy(t, looking_at(t, "[^") ? 2 : 1);
            if (looking_at(t, "]")) /* first in a class it is an ordinary character */
                copy(t, 1);
        } else if (looking_at(t, "(?") || looking_at(t, "(*")) {
            translate_group(t);
        } else if (c == '{') {
            translate_brace(t);
        } else {
            copy(t, 1);
        }
    }
}

static int compile(struct pattern *p, const struct bytes *source, struct error *err) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return tok_out_of_memory(err);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* not what this build of the library prefers */
    int code;
    size_t offset;
    p->code = pcre2_compile((PCRE2_SPTR)(source->n ? source->data : ""), source->n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!p->code) {
        char why[256];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, "%s: %s", p->name.data, why);
    }
    /* Where there is no JIT for it, the same code is interpreted: slower, same matches. */
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    return 0;
}

/* Sets p's name: the file, and as much of the pattern as fits into a message. */
static int name_pattern(struct pattern *p, const char *regex, size_t n, const char *where) {
    size_t shown = n < SHOWN_BYTES ? n : SHOWN_BYTES;
    while (shown < n && ((unsigned char)regex[shown] & 0xC0) == 0x80) /* no half character */
        shown--;
    tok_bytes_add(&p->name, where, strlen(where));
    tok_bytes_add(&p->name, ": pattern \"", 11);
    tok_bytes_add(&p->name, regex, shown);
    tok_bytes_add(&p->name, shown < n ? "...\"" : "\"", shown < n ? 5 : 2); /* with the NUL */
    return p->name.failed ? -1 : 0;
}

int tok_pattern_compile(struct pattern *p, const char *regex, size_t n, const char *where,
                        struct error *err) {
    struct translation t = {.in = regex, .n = n};
    translate(&t);
    int result;
    if (t.out.failed || name_pattern(p, regex, n, where) != 0)
        result = tok_out_of_memory(err);
    else if (t.refused)
        result = error_set(err, "%s: %s is not supported", p->name.data, t.refused);
    else
        result = compile(p, &t.out, err);
    tok_bytes_free(&t.out);
    return result;
}

void tok_pattern_free(struct pattern *p) {
    pcre2_code_free(p->code);
    p->code = NULL;
    tok_bytes_free(&p->literal);
    tok_bytes_free(&p->name);
}

int tok_matcher_init(struct matcher *m, struct error *err) {
    m->err = err;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (!m->data || !m->context) {
        tok_matcher_free(m);
        return tok_out_of_memory(err);
    }
    if (m->stack) /* NULL also where PCRE2 was built without JIT */
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return 0;
}

void tok_matcher_free(struct matcher *m) {
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m->spans.items);
    *m = (struct matcher){0};
}

static void add_match(struct spans *out, size_t start, size_t end, size_t *done) {
    if (*done != start)
        TOK_ADD(out, (struct span){*done, start, false});
    TOK_ADD(out, (struct span){start, end, true});
    *done = end;
}

/* The matches in the valid UTF-8 at text[from..to). */
static int find_in_valid(struct matcher *m, const struct pattern *p, const char *text, size_t from,
                         size_t to, size_t *done) {
    const char *part = text + from;
    size_t n = to - from, at = 0, last_end = SIZE_MAX;
    while (at <= n) {
        int found =
            pcre2_match(p->code, (PCRE2_SPTR)part, n, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
        if (found == PCRE2_ERROR_NOMATCH)
            return 0;
        if (found < 0) {
            char why[256];
            pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
            return error_set(m->err, "%s: failed at byte %zu of a text: %s", p->name.data,
                             from + at, why);
        }
        const size_t *bounds = pcre2_get_ovector_pointer(m->data);
        size_t start = bounds[0], end = bounds[1];
        if (start == end && end == last_end) { /* an empty match right behind a match: step on */
            uint32_t c;
            at = end < n ? end + (size_t)tok_utf8_next(part + end, n - end, &c) : n + 1;
            continue;
        }
        add_match(&m->spans, from + start, from + end, done);
        at = last_end = end;
    }
    return 0;
}

int tok_find(struct matcher *m, const struct pattern *p, const char *text, size_t n) {
    const struct bytes *literal = &p->literal;
    const char *hit;
    size_t done = 0;
    m->spans.n = 0;
    while (!p->code && (hit = memmem(text + done, n - done, literal->data, literal->n)))
        add_match(&m->spans, (size_t)(hit - text), (size_t)(hit - text) + literal->n, &done);
    for (size_t at = 0; p->code && at < n;) {
        size_t valid = tok_utf8_valid(text + at, n - at);
        if (valid > 0 && find_in_valid(m, p, text, at, at + valid, &done) != 0)
            return -1;
        at += valid + 1; /* bytes that are no character match nothing */
    }
    if (done != n)
        TOK_ADD(&m->spans, (struct span){done, n, false});
    return m->spans.failed ? tok_out_of_memory(m->err) : 0;
}

int tok_replace(struct matcher *m, const struct pattern *p, const struct bytes *content,
                const char *text, size_t n, struct bytes *out) {
    if (tok_find(m, p, text, n) != 0)
        return -1;
    for (size_t i = 0; i < m->spans.n; i++) {
        const struct span *s = &m->spans.items[i];
        if (s->match)
            tok_bytes_add(out, content->data, content->n);
        else
            tok_bytes_add(out, text + s->start, s->end - s->start);
    }
    return out->failed ? tok_out_of_memory(m->err) : 0;
}
