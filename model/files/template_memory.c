/* What parsing and rendering work with: memory, the first error, steps, text. */
#include "model/files/template_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- memory and errors ---------------------------------------------------------------------- */

struct block {
    struct block *next;
    max_align_t data[];
};

void *tmpl_alloc(struct work *w, size_t n) {
    if (w->failed)
        return NULL;
    if (n > w->most_bytes - w->n_bytes) {
        tmpl_fail(w, "needs more than %zu MiB of memory", w->most_bytes >> 20);
        return NULL;
    }
    struct block *b = calloc(1, sizeof *b + n);
    if (!b) {
        tmpl_fail(w, "out of memory");
        return NULL;
    }
    w->n_bytes += n;
    b->next = w->blocks;
    w->blocks = b;
    return b->data;
}

void tmpl_free_all(struct work *w) {
    while (w->blocks) {
        struct block *next = w->blocks->next;
        free(w->blocks);
        w->blocks = next;
    }
}

void tmpl_fail(struct work *w, const char *format, ...) {
    char text[512];
    va_list list;
    if (w->failed)
        return;
    w->failed = true;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    error_set(w->err, "%s: line %d: %s", w->where, w->line, text);
}

bool tmpl_spend(struct run *r, size_t size) {
    size_t cost = 1 + size / 64;
    if (r->work.failed)
        return false;
    if (r->steps < cost)
        tmpl_fail(&r->work, "the template takes too many steps");
    else
        r->steps -= cost;
    return !r->work.failed;
}

bool tmpl_enter(struct run *r) {
    if (!tmpl_spend(r, 0))
        return false;
    if (r->depth == TEMPLATE_DEPTH)
        tmpl_fail(&r->work, "nests deeper than %d", TEMPLATE_DEPTH);
    else
        r->depth++;
    return !r->work.failed;
}

/* ---- text ----------------------------------------------------------------------------------- */

bool tmpl_has_word(const char *words, struct text word) {
    size_t n;
    for (const char *w = words; *w; w += n + (w[n] == ' ')) {
        n = strcspn(w, " ");
        if (tmpl_same_text((struct text){w, n}, word))
            return true;
    }
    return false;
}

void tmpl_reserve(struct buffer *b, size_t n) {
    char *grown = tmpl_alloc(b->work, n);
    if (!grown)
        return;
    if (b->n)
        memcpy(grown, b->data, b->n);
    b->data = grown;
    b->cap = n;
}

void tmpl_add(struct buffer *b, struct text t) {
    if (b->most && t.n > b->most - b->n) {
        tmpl_fail(b->work, "writes more than %zu MiB", b->most >> 20);
        return;
    }
    if (t.n > b->cap - b->n)
        tmpl_reserve(b, 2 * (b->n + t.n));
    if (t.n == 0 || t.n > b->cap - b->n)
        return;
    memcpy(b->data + b->n, t.data, t.n);
    b->n += t.n;
}

void tmpl_addf(struct buffer *b, const char *format, ...) {
    char text[400]; /* a number, or a byte of a string */
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    tmpl_add(b, tmpl_text(text));
}

size_t tmpl_char(struct text t, int32_t *c) {
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)t.data, t.n < 4 ? (utf8proc_ssize_t)t.n : 4, c);
    if (n > 0)
        return (size_t)n;
    *c = (unsigned char)t.data[0];
    return 1;
}

size_t tmpl_length(struct text t) {
    size_t n = 0;
    int32_t c;
    for (size_t i = 0; i < t.n; n++)
        i += tmpl_char((struct text){t.data + i, t.n - i}, &c);
    return n;
}

bool tmpl_is_space(int32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static bool strips(int32_t c, struct text set) {
    int32_t other = -1;
    if (!set.data)
        return tmpl_is_space(c);
    for (size_t i = 0; i < set.n && other != c;)
        i += tmpl_char((struct text){set.data + i, set.n - i}, &other);
    return other == c;
}

struct text tmpl_strip(struct text t, struct text set, bool left, bool right) {
    int32_t c;
    while (left && t.n) {
        size_t n = tmpl_char(t, &c);
        if (!strips(c, set))
            break;
        t = (struct text){t.data + n, t.n - n};
    }
    while (right && t.n) {
        size_t n = 1;
        while (n < 4 && n < t.n && ((unsigned char)t.data[t.n - n] & 0xc0) == 0x80)
            n++;
        if (tmpl_char((struct text){t.data + t.n - n, n}, &c) != n) { /* not UTF-8 */
            n = 1;
            c = (unsigned char)t.data[t.n - 1];
        }
        if (!strips(c, set))
            break;
        t.n -= n;
    }
    return t;
}
