/* Values: what they are equal to, their order, what is in them, and how JSON becomes them. */
#include "model/files/template_internal.h"

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

int tmpl_compare(struct run *r, struct value a, struct value b) {
    if (tmpl_is_number(a) && tmpl_is_number(b))
        return compare_numbers(a, b);
    if (a.kind != V_STRING || b.kind != V_STRING) {
        tmpl_fail(&r->work, "%s and %s have no order", tmpl_kind_name(a.kind),
                  tmpl_kind_name(b.kind));
        return 0;
    }
    struct text s = a.as.text, t = b.as.text;
    size_t n = s.n < t.n ? s.n : t.n;
    int order = tmpl_spend(r, n) ? memcmp(s.data, t.data, n) : 0;
    return order ? order : (s.n > t.n) - (s.n < t.n);
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
