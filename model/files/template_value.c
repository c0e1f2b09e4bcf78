/* Memory of a rendering, and values: what they are equal to, their order, what is in them. */
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

void tmpl_add(struct buffer *b, struct text t) {
    if (b->most && t.n > b->most - b->n) {
        tmpl_fail(b->work, "writes more than %zu MiB", b->most >> 20);
        return;
    }
    if (t.n > b->cap - b->n) {
        size_t cap = 2 * (b->n + t.n);
        char *grown = tmpl_alloc(b->work, cap);
        if (!grown)
            return;
        if (b->n)
            memcpy(grown, b->data, b->n);
        b->data = grown;
        b->cap = cap;
    }
    if (t.n)
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

/* ---- lists and dicts ------------------------------------------------------------------------ */

const char *tmpl_kind_name(enum kind kind) {
    static const char *const names[] = {"undefined", "None",    "bool",      "int",   "float",
                                        "str",       "list",    "tuple",     "range", "dict view",
                                        "generator", "dict",    "namespace", "loop",  "macro",
                                        "method",    "function"};
    return kind < V_ABSENT ? names[kind] : "nothing";
}

/* Room for one more in the arrays that grow together. */
static void *grown(struct work *w, void *items, size_t n, size_t cap, size_t size) {
    void *more = tmpl_alloc(w, cap * size);
    if (more && n)
        memcpy(more, items, n * size);
    return more;
}

struct value tmpl_new_list(struct run *r, enum kind kind, size_t capacity) {
    struct list *list = tmpl_alloc(&r->work, sizeof *list);
    if (!list)
        return tmpl_undefined("");
    list->cap = capacity ? capacity : 1;
    list->items = tmpl_alloc(&r->work, list->cap * sizeof *list->items);
    return (struct value){kind, {.list = list}};
}

void tmpl_append(struct run *r, struct list *list, struct value v) {
    if (list->n == list->cap) {
        size_t cap = 4 * list->cap;
        struct value *items = grown(&r->work, list->items, list->n, cap, sizeof *items);
        if (!items)
            return;
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = v;
}

struct value tmpl_pair(struct run *r, struct value first, struct value second) {
    struct value pair = tmpl_new_list(r, V_TUPLE, 2);
    if (!r->work.failed) {
        tmpl_append(r, pair.as.list, first);
        tmpl_append(r, pair.as.list, second);
    }
    return pair;
}

struct value *tmpl_find(const struct dict *d, struct text key) {
    for (size_t i = 0; i < d->n; i++)
        if (tmpl_same_text(d->keys[i], key))
            return &d->values[i];
    return NULL;
}

void tmpl_put(struct work *w, struct dict *d, struct text key, struct value v) {
    struct value *found = tmpl_find(d, key);
    if (found) {
        *found = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        struct text *keys = grown(w, d->keys, d->n, cap, sizeof *keys);
        struct value *values = grown(w, d->values, d->n, cap, sizeof *values);
        if (!keys || !values)
            return;
        d->keys = keys;
        d->values = values;
        d->cap = cap;
    }
    d->keys[d->n] = key;
    d->values[d->n++] = v;
}

static struct value list_from_json(struct run *r, const json_t *json) {
    size_t n = json_array_size(json);
    struct value v = tmpl_new_list(r, V_LIST, n);
    for (size_t i = 0; i < n && !r->work.failed; i++)
        tmpl_append(r, v.as.list, tmpl_from_json(r, json_array_get(json, i)));
    return v;
}

/* The keys are different already, so none is looked for. */
static struct value dict_from_json(struct run *r, const json_t *json) {
    size_t n = json_object_size(json);
    struct dict *d = tmpl_alloc(&r->work, sizeof *d);
    struct text *keys = tmpl_alloc(&r->work, n * sizeof *keys);
    struct value *values = tmpl_alloc(&r->work, n * sizeof *values);
    if (!d || !keys || !values)
        return tmpl_undefined("");
    *d = (struct dict){keys, values, 0, n};
    for (void *at = json_object_iter((json_t *)json); at && !r->work.failed;
         at = json_object_iter_next((json_t *)json, at)) {
        keys[d->n] = tmpl_text(json_object_iter_key(at));
        values[d->n++] = tmpl_from_json(r, json_object_iter_value(at));
    }
    return (struct value){V_DICT, {.dict = d}};
}

struct value tmpl_from_json(struct run *r, const json_t *json) {
    struct value v = {V_NONE, {0}};
    if (json_is_boolean(json))
        return tmpl_boolean(json_is_true(json));
    if (json_is_integer(json))
        return tmpl_integer(json_integer_value(json));
    if (json_is_real(json))
        return (struct value){V_REAL, {.real = json_real_value(json)}};
    if (json_is_string(json))
        return tmpl_string((struct text){json_string_value(json), json_string_length(json)});
    if (json_is_null(json) || !tmpl_enter(r))
        return v;
    v = json_is_array(json) ? list_from_json(r, json) : dict_from_json(r, json);
    r->depth--;
    return v;
}

/* ---- questions ------------------------------------------------------------------------------ */

bool tmpl_truth(struct value v) {
    switch (v.kind) {
    case V_UNDEFINED:
    case V_NONE:
    case V_ABSENT:
        return false;
    case V_BOOLEAN:
        return v.as.boolean;
    case V_INTEGER:
        return v.as.integer != 0;
    case V_REAL:
        return v.as.real != 0;
    case V_STRING:
        return v.as.text.n > 0;
    case V_DICT:
        return v.as.dict->n > 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW:
        return v.as.list->n > 0;
    default:
        return true;
    }
}

bool tmpl_is_number(struct value v) {
    return v.kind == V_BOOLEAN || v.kind == V_INTEGER || v.kind == V_REAL;
}

bool tmpl_as_integer(struct value v, int64_t *out) {
    *out = v.kind == V_BOOLEAN ? v.as.boolean : v.kind == V_INTEGER ? v.as.integer : 0;
    return v.kind == V_BOOLEAN || v.kind == V_INTEGER;
}

double tmpl_as_real(struct value v) {
    int64_t i;
    return tmpl_as_integer(v, &i) ? (double)i : v.as.real;
}

/* The order of two numbers, exact also where an integer is no double. */
static int compare_numbers(struct value a, struct value b) {
    int64_t i, j;
    bool whole = tmpl_as_integer(a, &i), other_whole = tmpl_as_integer(b, &j);
    if (whole && other_whole)
        return (i > j) - (i < j);
    double x = tmpl_as_real(a), y = tmpl_as_real(b);
    if (x != y || (!whole && !other_whole))
        return (x > y) - (x < y);
    if (whole && x < 0x1p63) /* equal as doubles, so the double is a whole number */
        return (i > (int64_t)y) - (i < (int64_t)y);
    if (other_whole && y < 0x1p63)
        return ((int64_t)x > j) - ((int64_t)x < j);
    return whole ? -1 : 1; /* 2^63 as a double is more than every integer */
}

static bool equal_lists(struct run *r, const struct list *a, const struct list *b) {
    bool equal = a->n == b->n;
    for (size_t i = 0; i < a->n && equal; i++)
        equal = tmpl_equal(r, a->items[i], b->items[i]);
    return equal;
}

static bool equal_dicts(struct run *r, const struct dict *a, const struct dict *b) {
    bool equal = a->n == b->n;
    for (size_t i = 0; i < a->n && equal && tmpl_spend(r, b->n); i++) {
        struct value *other = tmpl_find(b, a->keys[i]);
        equal = other && tmpl_equal(r, a->values[i], *other);
    }
    return equal;
}

bool tmpl_equal(struct run *r, struct value a, struct value b) {
    if (tmpl_is_number(a) && tmpl_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.kind != b.kind)
        return false;
    if (a.kind == V_STRING)
        return tmpl_spend(r, a.as.text.n) && tmpl_same_text(a.as.text, b.as.text);
    if (a.kind == V_UNDEFINED || a.kind == V_NONE)
        return true;
    if (a.kind == V_VIEW || a.kind == V_RANGE)
        tmpl_fail(&r->work, "two of %s cannot be compared", tmpl_kind_name(a.kind));
    if (a.kind != V_LIST && a.kind != V_TUPLE && a.kind != V_DICT)
        return a.as.list == b.as.list; /* the same thing: all of these are pointers */
    if (!tmpl_enter(r))
        return false;
    bool equal = a.kind == V_DICT ? equal_dicts(r, a.as.dict, b.as.dict)
                                  : equal_lists(r, a.as.list, b.as.list);
    r->depth--;
    return equal;
}

static int compare_text(struct run *r, struct text a, struct text b) {
    size_t n = a.n < b.n ? a.n : b.n;
    int order = tmpl_spend(r, n) ? memcmp(a.data, b.data, n) : 0;
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

int tmpl_compare(struct run *r, struct value a, struct value b) {
    bool lists = a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE);
    if (tmpl_is_number(a) && tmpl_is_number(b))
        return compare_numbers(a, b);
    if (a.kind == V_STRING && b.kind == V_STRING)
        return compare_text(r, a.as.text, b.as.text);
    if (!lists)
        tmpl_fail(&r->work, "%s and %s have no order", tmpl_kind_name(a.kind),
                  tmpl_kind_name(b.kind));
    if (!lists || !tmpl_enter(r))
        return 0;
    const struct list *x = a.as.list, *y = b.as.list;
    int order = 0;
    size_t i = 0;
    while (i < x->n && i < y->n && tmpl_equal(r, x->items[i], y->items[i]))
        i++;
    if (i < x->n && i < y->n)
        order = tmpl_compare(r, x->items[i], y->items[i]);
    else
        order = (x->n > y->n) - (x->n < y->n);
    r->depth--;
    return order;
}

static bool in_items(struct run *r, struct list *list, struct value item, bool once) {
    bool found = false;
    for (size_t i = once ? list->at : 0; i < list->n && !found && tmpl_spend(r, 0); i++) {
        found = tmpl_equal(r, list->items[i], item);
        list->at = once ? i + 1 : 0;
    }
    return found;
}

bool tmpl_contains(struct run *r, struct value container, struct value item) {
    switch (container.kind) {
    case V_STRING:
        if (item.kind != V_STRING)
            break;
        return tmpl_spend(r, container.as.text.n) &&
               memmem(container.as.text.data, container.as.text.n, item.as.text.data,
                      item.as.text.n) != NULL;
    case V_DICT:
        if (item.kind >= V_LIST) /* no key, or maybe none */
            break;
        return item.kind == V_STRING && tmpl_spend(r, container.as.dict->n) &&
               tmpl_find(container.as.dict, item.as.text) != NULL;
    case V_UNDEFINED:
        return false;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW:
    case V_GENERATOR:
        return in_items(r, container.as.list, item, container.kind == V_GENERATOR);
    default:
        break;
    }
    tmpl_fail(&r->work, "%s cannot be in %s", tmpl_kind_name(item.kind),
              tmpl_kind_name(container.kind));
    return false;
}

size_t tmpl_size(struct run *r, struct value v) {
    switch (v.kind) {
    case V_UNDEFINED:
        return 0;
    case V_STRING:
        return tmpl_spend(r, v.as.text.n) ? tmpl_length(v.as.text) : 0;
    case V_DICT:
        return v.as.dict->n;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW:
        return v.as.list->n;
    case V_LOOP:
        return v.as.loop->items->n;
    default:
        tmpl_fail(&r->work, "%s has no length", tmpl_kind_name(v.kind));
        return 0;
    }
}

struct list *tmpl_items_of(struct run *r, struct value v) {
    struct value out;
    if (v.kind >= V_LIST && v.kind <= V_VIEW)
        return v.as.list;
    if (v.kind != V_GENERATOR && v.kind != V_STRING && v.kind != V_DICT && v.kind != V_UNDEFINED)
        tmpl_fail(&r->work, "%s cannot be iterated over", tmpl_kind_name(v.kind));
    out = tmpl_new_list(r, V_LIST, v.kind == V_DICT ? v.as.dict->n : 0);
    if (r->work.failed)
        return NULL;
    if (v.kind == V_GENERATOR) {
        out.as.list->items = v.as.list->items + v.as.list->at;
        out.as.list->n = out.as.list->cap = v.as.list->n - v.as.list->at;
        v.as.list->at = v.as.list->n;
    } else if (v.kind == V_DICT) {
        for (size_t i = 0; i < v.as.dict->n; i++)
            tmpl_append(r, out.as.list, tmpl_string(v.as.dict->keys[i]));
    } else if (v.kind == V_STRING) {
        int32_t c;
        struct text rest = v.as.text;
        while (rest.n && !r->work.failed) {
            size_t n = tmpl_char(rest, &c);
            tmpl_append(r, out.as.list, tmpl_string((struct text){rest.data, n}));
            rest = (struct text){rest.data + n, rest.n - n};
        }
    }
    return r->work.failed ? NULL : out.as.list;
}
