/* Values as text: what Python's str() and repr() say, and json.dumps for the filter tojson. */
#include "model/files/template_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* The shortest decimal number that is read back as x; without an exponent from 1e-4 to 1e16. */
static void write_real(struct buffer *b, double x) {
    char text[40];
    int n = 1;
    for (; n <= 17; n++) {
        snprintf(text, sizeof text, "%.*e", n - 1, x);
        if (strtod(text, NULL) == x)
            break;
    }
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16)
        tmpl_addf(b, "%s", text);
    else if (n - 1 > exponent)
        tmpl_addf(b, "%.*f", n - 1 - exponent, x);
    else
        tmpl_addf(b, "%.0f.0", x);
}

static bool is_printable(int32_t c) {
    utf8proc_category_t category = utf8proc_category(c);
    return c == ' ' || !(category == UTF8PROC_CATEGORY_CN || category == UTF8PROC_CATEGORY_CC ||
                         category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CS ||
                         category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_ZL ||
                         category == UTF8PROC_CATEGORY_ZP || category == UTF8PROC_CATEGORY_ZS);
}

/* One character of repr() of a string; what needs no escape is written as it is. */
static void write_repr_char(struct buffer *b, struct text t, int32_t c, char quote) {
    static const char names[] = "\tt\nn\rr\\\\";
    const char *name = c < 128 ? strchr(names, c) : NULL;
    if (c && name && (name - names) % 2 == 0)
        tmpl_addf(b, "\\%c", name[1]);
    else if (c == quote)
        tmpl_addf(b, "\\%c", quote);
    else if (is_printable(c))
        tmpl_add(b, t);
    else if (c < 0x100)
        tmpl_addf(b, "\\x%02x", (unsigned)c);
    else if (c < 0x10000)
        tmpl_addf(b, "\\u%04x", (unsigned)c);
    else
        tmpl_addf(b, "\\U%08x", (unsigned)c);
}

static void write_repr_text(struct buffer *b, struct text t) {
    bool single = memchr(t.data, '\'', t.n), twice = memchr(t.data, '"', t.n);
    char quote = single && !twice ? '"' : '\'';
    tmpl_add(b, (struct text){&quote, 1});
    while (t.n && !b->work->failed) {
        int32_t c;
        size_t n = tmpl_char(t, &c);
        write_repr_char(b, (struct text){t.data, n}, c, quote);
        t = (struct text){t.data + n, t.n - n};
    }
    tmpl_add(b, (struct text){&quote, 1});
}

static void write_repr(struct run *r, struct buffer *b, struct value v);

static void write_repr_list(struct run *r, struct buffer *b, struct value v) {
    const struct list *list = v.as.list;
    tmpl_addf(b, v.kind == V_LIST ? "[" : "(");
    for (size_t i = 0; i < list->n && !r->work.failed; i++) {
        if (i)
            tmpl_addf(b, ", ");
        write_repr(r, b, list->items[i]);
    }
    tmpl_addf(b, v.kind == V_LIST ? "]" : list->n == 1 ? ",)" : ")");
}

static void write_repr_dict(struct run *r, struct buffer *b, const struct dict *d) {
    tmpl_addf(b, "{");
    for (size_t i = 0; i < d->n && !r->work.failed; i++) {
        if (i)
            tmpl_addf(b, ", ");
        write_repr_text(b, d->keys[i]);
        tmpl_addf(b, ": ");
        write_repr(r, b, d->values[i]);
    }
    tmpl_addf(b, "}");
}

static void write_repr(struct run *r, struct buffer *b, struct value v) {
    if (!tmpl_enter(r))
        return;
    if (v.kind == V_UNDEFINED)
        tmpl_addf(b, "Undefined");
    else if (v.kind == V_NONE)
        tmpl_addf(b, "None");
    else if (v.kind == V_BOOLEAN)
        tmpl_addf(b, v.as.boolean ? "True" : "False");
    else if (v.kind == V_INTEGER)
        tmpl_addf(b, "%" PRId64, v.as.integer);
    else if (v.kind == V_REAL)
        write_real(b, v.as.real);
    else if (v.kind == V_STRING)
        write_repr_text(b, v.as.text);
    else if (v.kind == V_LIST || v.kind == V_TUPLE)
        write_repr_list(r, b, v);
    else if (v.kind == V_DICT)
        write_repr_dict(r, b, v.as.dict);
    else
        tmpl_fail(&r->work, "a %s cannot be written as text", tmpl_kind_name(v.kind));
    r->depth--;
}

void tmpl_write_str(struct run *r, struct buffer *b, struct value v) {
    if (v.kind == V_STRING && tmpl_spend(r, v.as.text.n))
        tmpl_add(b, v.as.text);
    else if (v.kind != V_STRING && v.kind != V_UNDEFINED)
        write_repr(r, b, v);
}

struct text tmpl_str(struct run *r, struct value v) {
    struct buffer b = {.work = &r->work};
    if (v.kind == V_STRING)
        return v.as.text;
    tmpl_write_str(r, &b, v);
    return tmpl_buffer_text(&b);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

struct json_style {
    bool lines;
    struct text indent, comma, colon;
};

static void write_json_text(struct buffer *b, struct text t) {
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    tmpl_addf(b, "\"");
    while (t.n && !b->work->failed) {
        size_t plain = 0;
        while (plain < t.n && (unsigned char)t.data[plain] >= 32 && t.data[plain] != '"' &&
               t.data[plain] != '\\')
            plain++;
        tmpl_add(b, (struct text){t.data, plain});
        if (plain == t.n)
            break;
        const char *name = t.data[plain] ? strchr(names, t.data[plain]) : NULL;
        if (name)
            tmpl_addf(b, "\\%c", name[1]);
        else
            tmpl_addf(b, "\\u%04x", (unsigned)t.data[plain]);
        t = (struct text){t.data + plain + 1, t.n - plain - 1};
    }
    tmpl_addf(b, "\"");
}

/* What stands before an item: a comma, but for the first, and a new line. */
static void begin_item(struct buffer *b, const struct json_style *s, bool first, int level) {
    if (!first)
        tmpl_add(b, s->comma);
    if (s->lines)
        tmpl_addf(b, "\n");
    for (int i = 0; s->lines && i < level && !b->work->failed; i++)
        tmpl_add(b, s->indent);
}

/* Level: of nesting. */
static void write_json(struct run *r, struct buffer *b, struct value v, const struct json_style *s,
                       int level) {
    bool dict = v.kind == V_DICT;
    if (v.kind == V_STRING && tmpl_spend(r, v.as.text.n)) {
        write_json_text(b, v.as.text);
    } else if (v.kind == V_NONE) {
        tmpl_addf(b, "null");
    } else if (v.kind == V_BOOLEAN) {
        tmpl_addf(b, v.as.boolean ? "true" : "false");
    } else if (v.kind == V_INTEGER || v.kind == V_REAL) {
        write_repr(r, b, v);
    } else if (!dict && v.kind != V_LIST && v.kind != V_TUPLE) {
        tmpl_fail(&r->work, "tojson: %s has no form in JSON", tmpl_kind_name(v.kind));
    } else if (tmpl_enter(r)) {
        size_t n = dict ? v.as.dict->n : v.as.list->n;
        tmpl_addf(b, dict ? "{" : "[");
        for (size_t i = 0; i < n && !r->work.failed; i++) {
            begin_item(b, s, i == 0, level + 1);
            if (dict) {
                write_json_text(b, v.as.dict->keys[i]);
                tmpl_add(b, s->colon);
            }
            write_json(r, b, dict ? v.as.dict->values[i] : v.as.list->items[i], s, level + 1);
        }
        if (n)
            begin_item(b, s, true, level);
        tmpl_addf(b, dict ? "}" : "]");
        r->depth--;
    }
}

static bool is_given(struct value v) {
    return v.kind != V_ABSENT && v.kind != V_NONE;
}

static void set_indent(struct call *c, struct json_style *s) {
    struct buffer spaces = {.work = &c->run->work};
    s->lines = true;
    s->comma = tmpl_text(",");
    if (c->arg[1].kind == V_STRING) {
        s->indent = c->arg[1].as.text;
        return;
    }
    int64_t n = tmpl_integer_arg(c, 1, 0);
    for (; n > 0 && tmpl_spend(c->run, 0); n--)
        tmpl_addf(&spaces, " ");
    s->indent = tmpl_buffer_text(&spaces);
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False), as transformers
 * defines it: not the filter of Jinja itself, which escapes HTML. */
struct value tmpl_filter_tojson(struct call *c) {
    struct json_style s = {.comma = {", ", 2}, .colon = {": ", 2}};
    struct buffer out = {.work = &c->run->work};
    struct value two = c->arg[2];
    if (is_given(c->arg[1]))
        set_indent(c, &s);
    if (is_given(two) && (two.kind == V_LIST || two.kind == V_TUPLE) && two.as.list->n == 2) {
        s.comma = tmpl_str(c->run, two.as.list->items[0]);
        s.colon = tmpl_str(c->run, two.as.list->items[1]);
    } else if (is_given(two)) {
        tmpl_fail(&c->run->work, "tojson: separators must be two strings");
    }
    if (tmpl_truth(c->arg[0]) || tmpl_truth(c->arg[3]))
        tmpl_fail(&c->run->work, "tojson: ensure_ascii and sort_keys are not supported");
    write_json(c->run, &out, c->self, &s, 0);
    return tmpl_string(tmpl_buffer_text(&out));
}
