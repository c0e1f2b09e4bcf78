/* A template as tokens. What Jinja's lexer does with white space around tags, as transformers sets
 * it (trim_blocks, lstrip_blocks), is all done here. */
#include "model/files/template_tree.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <utf8proc.h>

struct lexer {
    struct work *work;
    struct text source;
    size_t at, counted; /* lines are counted up to here */
    struct token *tokens;
    size_t n, cap;
    char closing[TEMPLATE_DEPTH]; /* brackets that are open in this tag */
    int n_open;
};

static bool is_at(const struct lexer *l, size_t at, const char *what) {
    size_t n = strlen(what);
    return l->source.n - at >= n && memcmp(l->source.data + at, what, n) == 0;
}

/* The byte at `at`, 0 behind the end. */
static char byte(const struct lexer *l, size_t at) {
    return at < l->source.n ? l->source.data[at] : 0;
}

static void count_lines(struct lexer *l) {
    for (; l->counted < l->at; l->counted++)
        l->work->line += l->source.data[l->counted] == '\n';
}

static void add(struct lexer *l, enum token_kind kind, struct text text, struct value number) {
    count_lines(l);
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct token *grown = tmpl_alloc(l->work, cap * sizeof *grown);
        if (!grown)
            return;
        if (l->n)
            memcpy(grown, l->tokens, l->n * sizeof *grown);
        l->tokens = grown;
        l->cap = cap;
    }
    l->tokens[l->n++] = (struct token){kind, l->work->line, text, number};
}

static void add_plain(struct lexer *l, enum token_kind kind, size_t n) {
    add(l, kind, (struct text){l->source.data + l->at, n}, tmpl_integer(0));
    l->at += n;
}

static void skip_space(struct lexer *l) {
    int32_t c;
    while (l->at < l->source.n) {
        struct text rest = {l->source.data + l->at, l->source.n - l->at};
        size_t n = tmpl_char(rest, &c);
        if (!tmpl_is_space(c))
            break;
        l->at += n;
    }
}

/* Behind a tag that ends with -, + or nothing: all white space goes, nothing, or one newline. */
static void skip_after_tag(struct lexer *l, char sign, bool trims) {
    if (sign == '-')
        skip_space(l);
    else if (sign != '+' && trims && byte(l, l->at) == '\n')
        l->at++;
}

/* The text between two tags; `begin` opens the next tag (NULL: the end), followed by `sign`. */
static void add_data(struct lexer *l, size_t start, const char *begin, char sign) {
    struct text all = {l->source.data + l->at, start - l->at}, kept = all;
    if (begin && sign == '-') {
        kept = tmpl_strip(all, (struct text){NULL, 0}, false, true);
    } else if (begin && sign != '+' && begin[1] != '{') { /* lstrip_blocks */
        size_t line = all.n;
        while (line > 0 && all.data[line - 1] != '\n')
            line--;
        bool begins_line = line > 0 || l->at == 0 || l->source.data[l->at - 1] == '\n';
        struct text indent = {all.data + line, all.n - line};
        if (begins_line && tmpl_strip(indent, (struct text){NULL, 0}, true, false).n == 0)
            kept.n = line;
    }
    if (kept.n)
        add(l, T_DATA, kept, tmpl_integer(0));
    l->at = start;
}

/* ---- strings -------------------------------------------------------------------------------- */

static int hex(const char *s, int n) {
    int value = 0;
    for (int i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)s[i]))
            return -1;
        value = value * 16 + (s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return value;
}

static void add_character(struct lexer *l, struct buffer *out, int value) {
    utf8proc_uint8_t utf8[4];
    if (value < 0 || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        tmpl_fail(l->work, "a string has an escape that is no character");
        return;
    }
    tmpl_add(out, (struct text){(const char *)utf8, (size_t)utf8proc_encode_char(value, utf8)});
}

/* What stands behind a backslash at s (a NUL or a quote is behind all); returns its length. */
static size_t add_escape(struct lexer *l, struct buffer *out, const char *s, size_t left) {
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    int n_hex = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    for (const char *p = plain; *p; p += 2) {
        if (*p == *s) {
            tmpl_add(out, (struct text){p + 1, 1});
            return 1;
        }
    }
    if (*s == '\n')
        return 1;
    if (n_hex) {
        bool fits = left > (size_t)n_hex && (n_hex < 8 || (s[1] == '0' && s[2] == '0'));
        add_character(l, out, fits ? hex(s + 1, n_hex) : -1);
        return fits ? 1 + (size_t)n_hex : 1;
    }
    if (*s == 'N' || (*s >= '0' && *s <= '7'))
        tmpl_fail(l->work, "the escape \\%c in a string is not supported", *s);
    tmpl_add(out, tmpl_text("\\"));
    return 0;
}

static void lex_string(struct lexer *l) {
    char quote = byte(l, l->at);
    size_t start = l->at + 1, end = start;
    struct buffer out = {.work = l->work};
    while (end < l->source.n && l->source.data[end] != quote)
        end += l->source.data[end] == '\\' && end + 1 < l->source.n ? 2 : 1;
    if (end >= l->source.n) {
        tmpl_fail(l->work, "a string is not closed");
        return;
    }
    for (size_t i = start; i < end && !l->work->failed;) {
        size_t run = i;
        while (run < end && l->source.data[run] != '\\')
            run++;
        tmpl_add(&out, (struct text){l->source.data + i, run - i});
        i = run < end ? run + 1 + add_escape(l, &out, l->source.data + run + 1, end - run - 1)
                      : run;
    }
    add(l, T_STRING, tmpl_buffer_text(&out), tmpl_integer(0));
    l->at = end + 1;
}

/* ---- numbers, names, operators -------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static size_t digits(const struct lexer *l, size_t at) {
    while (is_digit(byte(l, at)))
        at++;
    return at;
}

static void lex_number(struct lexer *l) {
    char text[64];
    size_t whole = digits(l, l->at), end = whole;
    bool real = false;
    if (l->at == 0 || byte(l, l->at - 1) != '.') { /* in a.0.1 there is no 0.1 */
        if (byte(l, end) == '.' && is_digit(byte(l, end + 1)))
            end = digits(l, end + 1);
        if ((byte(l, end) | 32) == 'e') {
            bool sign = byte(l, end + 1) == '-' || byte(l, end + 1) == '+';
            if (is_digit(byte(l, end + 1 + sign)))
                end = digits(l, end + 1 + sign);
        }
        real = end > whole;
    }
    size_t n = end - l->at;
    struct value v = {V_REAL, {0}};
    if (n < sizeof text) {
        memcpy(text, l->source.data + l->at, n);
        text[n] = 0;
        errno = 0;
        if (real)
            v.as.real = strtod(text, NULL);
        else
            v = tmpl_integer(strtoll(text, NULL, 10));
    }
    if (n >= sizeof text || (errno && (!real || v.as.real > 1)) ||
        (!real && n > 1 && *text == '0' && v.as.integer != 0))
        tmpl_fail(l->work, "the number %.*s is not supported", n < 70 ? (int)n : 70,
                  l->source.data + l->at);
    add(l, T_NUMBER, (struct text){l->source.data + l->at, n}, v);
    l->at = end;
}

static void lex_operator(struct lexer *l) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char one[] = "+-/*%~[](){}<>=.:|,;";
    char c = byte(l, l->at);
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (is_at(l, l->at, two[i])) {
            add_plain(l, T_OPERATOR, 2);
            return;
        }
    }
    if (!c || !strchr(one, c)) {
        tmpl_fail(l->work, "the character '%c' cannot stand here", c);
        return;
    }
    const char *bracket = strchr("([{", c);
    if (bracket) {
        if (l->n_open == TEMPLATE_DEPTH)
            tmpl_fail(l->work, "brackets nest deeper than %d", TEMPLATE_DEPTH);
        else
            l->closing[l->n_open++] = ")]}"[bracket - "([{"];
    } else if (strchr(")]}", c)) {
        if (l->n_open == 0 || l->closing[--l->n_open] != c)
            tmpl_fail(l->work, "'%c' closes nothing", c);
    }
    add_plain(l, T_OPERATOR, 1);
}

/* ---- tags ----------------------------------------------------------------------------------- */

/* Ends the tag if its end is here; with open brackets, "}}" is two of them. */
static bool lex_tag_end(struct lexer *l, bool block) {
    const char *end = block ? "%}" : "}}";
    char sign = byte(l, l->at);
    bool signed_end = sign == '-' || (sign == '+' && block);
    if (l->n_open > 0 || !is_at(l, l->at + signed_end, end))
        return false;
    add(l, block ? T_BLOCK_END : T_OUTPUT_END, tmpl_text(end), tmpl_integer(0));
    l->at += (size_t)signed_end + 2;
    skip_after_tag(l, signed_end ? sign : 0, block);
    return true;
}

static void lex_tag(struct lexer *l, bool block) {
    int line = l->work->line;
    l->n_open = 0;
    add(l, block ? T_BLOCK_BEGIN : T_OUTPUT_BEGIN, tmpl_text(""), tmpl_integer(0));
    while (!l->work->failed) {
        skip_space(l);
        count_lines(l);
        char c = byte(l, l->at);
        if (l->at >= l->source.n) {
            l->work->line = line;
            tmpl_fail(l->work, "the tag %s is not closed", block ? "{%" : "{{");
        } else if (lex_tag_end(l, block)) {
            return;
        } else if (is_digit(c)) {
            lex_number(l);
        } else if (is_letter(c)) {
            size_t end = l->at;
            while (is_letter(byte(l, end)) || is_digit(byte(l, end)))
                end++;
            add_plain(l, T_NAME, end - l->at);
        } else if (c == '\'' || c == '"') {
            lex_string(l);
        } else {
            lex_operator(l);
        }
    }
}

static void skip_comment(struct lexer *l) {
    size_t start = l->at;
    const char *end =
        l->source.n > start ? memmem(l->source.data + start, l->source.n - start, "#}", 2) : NULL;
    if (!end) {
        tmpl_fail(l->work, "the comment {# is not closed");
        return;
    }
    size_t at = (size_t)(end - l->source.data);
    l->at = at + 2;
    skip_after_tag(l, at > start ? end[-1] : 0, true);
}

/* One kind of newline, and none at the end. */
static struct text normalized(struct work *w, struct text source) {
    char *out = tmpl_alloc(w, source.n + 1);
    size_t n = 0;
    for (size_t i = 0; out && i < source.n; i++) {
        bool pair = source.data[i] == '\r' && i + 1 < source.n && source.data[i + 1] == '\n';
        if (!pair)
            out[n++] = source.data[i] == '\r' ? '\n' : source.data[i];
    }
    if (n > 0 && out[n - 1] == '\n')
        n--;
    return (struct text){out, n};
}

/* Where the next tag begins, or the end. */
static size_t find_tag(const struct lexer *l) {
    const char *at = l->source.data + l->at, *end = l->source.data + l->source.n;
    while ((at = memchr(at, '{', (size_t)(end - at)))) {
        if (end - at > 1 && (at[1] == '%' || at[1] == '{' || at[1] == '#'))
            return (size_t)(at - l->source.data);
        at++;
    }
    return l->source.n;
}

struct token *tmpl_lex(struct work *w, struct text source) {
    struct lexer l = {.work = w, .source = normalized(w, source)};
    while (l.at < l.source.n && !w->failed) {
        size_t start = find_tag(&l);
        const char *begin = start < l.source.n ? l.source.data + start : NULL;
        char sign = begin ? byte(&l, start + 2) : 0;
        add_data(&l, start, begin, sign);
        if (!begin)
            break;
        count_lines(&l);
        l.at += sign == '-' || sign == '+' ? 3 : 2;
        if (begin[1] == '#')
            skip_comment(&l);
        else
            lex_tag(&l, begin[1] == '%');
    }
    add(&l, T_END, tmpl_text("the end"), tmpl_integer(0));
    return w->failed ? NULL : l.tokens;
}
