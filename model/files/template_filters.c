/* Filters, global functions, and how anything built in is called. */
#include "model/files/template_internal.h"

#include <errno.h>
#include <stdlib.h>

/* ---- calls ---------------------------------------------------------------------------------- */

const struct builtin *tmpl_find_builtin(const struct builtin *table, struct text name) {
    while (table->name && !tmpl_is(name, table->name))
        table++;
    return table->name ? table : NULL;
}

/* Which parameter has this name; -1: none. */
static int find_parameter(const char *parameters, struct text name) {
    int i = 0;
    for (const char *at = parameters; *at; i++) {
        size_t n = strcspn(at, " ");
        if (tmpl_same_text((struct text){at, n}, name))
            return i;
        at += n + (at[n] == ' ');
    }
    return -1;
}

static int count_parameters(const char *parameters) {
    int n = *parameters != 0;
    for (; *parameters; parameters++)
        n += *parameters == ' ';
    return n;
}

struct value tmpl_call_builtin(struct run *r, const struct builtin *b, struct value self,
                               const struct arguments *all) {
    struct call c = {.run = r, .self = self, .all = all};
    for (int i = 0; i < TEMPLATE_PARAMETERS; i++)
        c.arg[i].kind = V_ABSENT;
    for (size_t i = 0; b->parameters && i < all->n; i++) {
        bool named = all->names[i].n > 0;
        int at = named ? find_parameter(b->parameters, all->names[i]) : (int)i;
        if (at < 0 || at >= count_parameters(b->parameters) || c.arg[at].kind != V_ABSENT)
            tmpl_fail(&r->work, "%s has no parameter %.*s or not so many", b->name,
                      (int)all->names[i].n, named ? all->names[i].data : "");
        else
            c.arg[at] = all->items[i];
    }
    for (int i = 0; i < b->required; i++)
        if (b->parameters && c.arg[i].kind == V_ABSENT)
            tmpl_fail(&r->work, "%s needs %d arguments", b->name, b->required);
    return tmpl_spend(r, 0) ? b->function(&c) : tmpl_undefined("");
}

int64_t tmpl_integer_arg(struct call *c, int i, int64_t if_absent) {
    int64_t out = if_absent;
    if (c->arg[i].kind != V_ABSENT && !tmpl_as_integer(c->arg[i], &out))
        tmpl_fail(&c->run->work, "an argument must be an integer, not %s",
                  tmpl_kind_name(c->arg[i].kind));
    return out;
}

struct text tmpl_text_arg(struct call *c, int i, struct text if_absent) {
    if (c->arg[i].kind == V_ABSENT)
        return if_absent;
    if (c->arg[i].kind == V_STRING)
        return c->arg[i].as.text;
    tmpl_fail(&c->run->work, "an argument must be a string, not %s",
              tmpl_kind_name(c->arg[i].kind));
    return if_absent;
}

/* ---- filters -------------------------------------------------------------------------------- */

static struct value filter_default(struct call *c) {
    bool missing = c->self.kind == V_UNDEFINED || (tmpl_truth(c->arg[1]) && !tmpl_truth(c->self));
    struct value other = c->arg[0];
    return !missing ? c->self : other.kind == V_ABSENT ? tmpl_string(tmpl_text("")) : other;
}

static struct value filter_length(struct call *c) {
    return tmpl_integer((int64_t)tmpl_size(c->run, c->self));
}

static struct value filter_list(struct call *c) {
    struct list *items = tmpl_items_of(c->run, c->self);
    return items ? (struct value){V_LIST, {.list = items}} : tmpl_undefined("");
}

static struct value filter_string(struct call *c) {
    return tmpl_string(tmpl_str(c->run, c->self));
}

static struct value filter_first(struct call *c) {
    if (c->self.kind == V_GENERATOR) {
        struct list *left = c->self.as.list;
        return left->at < left->n ? left->items[left->at++] : tmpl_undefined("the first item");
    }
    struct list *items = tmpl_items_of(c->run, c->self);
    return items && items->n ? items->items[0] : tmpl_undefined("the first item");
}

static struct value filter_last(struct call *c) {
    if (c->self.kind == V_GENERATOR || c->self.kind == V_UNDEFINED)
        tmpl_fail(&c->run->work, "%s has no last item", tmpl_kind_name(c->self.kind));
    struct list *items = tmpl_items_of(c->run, c->self);
    return items && items->n ? items->items[items->n - 1] : tmpl_undefined("the last item");
}

static struct value filter_reverse(struct call *c) {
    struct list *items = tmpl_items_of(c->run, c->self);
    struct buffer text = {.work = &c->run->work};
    bool once = c->self.kind != V_GENERATOR;
    struct value out = tmpl_new_list(c->run, once ? V_GENERATOR : V_LIST, items ? items->n : 0);
    for (size_t i = items ? items->n : 0; i-- > 0 && !c->run->work.failed;) {
        if (c->self.kind == V_STRING)
            tmpl_add(&text, items->items[i].as.text);
        else
            tmpl_append(c->run, out.as.list, items->items[i]);
    }
    return c->self.kind == V_STRING ? tmpl_string(tmpl_buffer_text(&text)) : out;
}

/* item.a.0.b for "a.0.b", as the subscript [] finds it; if_undefined replaces what is not there. */
static struct value follow(struct run *r, struct value item, struct value path,
                           struct value if_undefined) {
    bool replaces = if_undefined.kind != V_ABSENT && if_undefined.kind != V_NONE, more = true;
    if (path.kind != V_STRING) {
        item = tmpl_item(r, item, path);
        return item.kind == V_UNDEFINED && replaces ? if_undefined : item;
    }
    struct text rest = path.as.text;
    while (more && !r->work.failed) {
        const char *dot = memchr(rest.data, '.', rest.n);
        struct text part = {rest.data, dot ? (size_t)(dot - rest.data) : rest.n};
        bool number = part.n > 0 && part.n < 10;
        int64_t index = 0;
        for (size_t i = 0; i < part.n; i++) {
            number = number && part.data[i] >= '0' && part.data[i] <= '9';
            index = number ? index * 10 + (part.data[i] - '0') : 0;
        }
        item = tmpl_item(r, item, number ? tmpl_integer(index) : tmpl_string(part));
        if (item.kind == V_UNDEFINED && replaces)
            item = if_undefined;
        more = dot != NULL;
        rest = more ? (struct text){dot + 1, rest.n - part.n - 1} : rest;
    }
    return item;
}

static const struct value absent = {V_ABSENT, {0}};

static struct value filter_join(struct call *c) {
    struct list *items = tmpl_items_of(c->run, c->self);
    struct text between =
        c->arg[0].kind == V_ABSENT ? (struct text){"", 0} : tmpl_str(c->run, c->arg[0]);
    struct buffer out = {.work = &c->run->work};
    bool path = c->arg[1].kind != V_ABSENT && c->arg[1].kind != V_NONE;
    for (size_t i = 0; items && i < items->n && tmpl_spend(c->run, 0); i++) {
        struct value v = items->items[i];
        if (i)
            tmpl_add(&out, between);
        tmpl_write_str(c->run, &out, path ? follow(c->run, v, c->arg[1], absent) : v);
    }
    return tmpl_string(tmpl_buffer_text(&out));
}

static struct value filter_items(struct call *c) {
    struct value out = tmpl_new_list(c->run, V_GENERATOR, 0);
    if (c->self.kind == V_UNDEFINED)
        return out;
    if (c->self.kind != V_DICT)
        tmpl_fail(&c->run->work, "items: %s is no dict", tmpl_kind_name(c->self.kind));
    for (size_t i = 0; !c->run->work.failed && i < c->self.as.dict->n; i++)
        tmpl_append(
            c->run, out.as.list,
            tmpl_pair(c->run, tmpl_string(c->self.as.dict->keys[i]), c->self.as.dict->values[i]));
    return out;
}

/* int("12"), int("1.9"), int(1.9); what is no number is the default. */
static struct value filter_int(struct call *c) {
    struct value v = c->self, other = c->arg[0].kind == V_ABSENT ? tmpl_integer(0) : c->arg[0];
    char text[40] = "", *end;
    int64_t i;
    if (tmpl_as_integer(v, &i))
        return tmpl_integer(i);
    if (v.kind == V_STRING) {
        struct text t = tmpl_strip(v.as.text, (struct text){NULL, 0}, true, true);
        if (t.n >= sizeof text || memchr(t.data, '_', t.n))
            tmpl_fail(&c->run->work, "int: a string like this one is not supported");
        else
            memcpy(text, t.data, t.n);
        if (!*text || text[strspn(text, "+-.eE0123456789")] || strlen(text) != t.n)
            return other; /* but for digits of other scripts */
        errno = 0;
        i = strtoll(text, &end, 10);
        if (!*end && !errno)
            return tmpl_integer(i);
        v = (struct value){*end ? V_REAL : V_UNDEFINED, {.real = strtod(text, &end)}};
        if (*end)
            return other;
    }
    if (v.kind == V_UNDEFINED || (v.kind == V_REAL && !(v.as.real > -0x1p63 && v.as.real < 0x1p63)))
        tmpl_fail(&c->run->work, "int: undefined, or too large");
    return v.kind == V_REAL && !c->run->work.failed ? tmpl_integer((int64_t)v.as.real) : other;
}

/* Items for which a test holds, or does not: select(test, ...), selectattr(path, test, ...). */
static struct value pick(struct call *c, bool by_path, bool wanted) {
    struct list *items = tmpl_items_of(c->run, c->self);
    struct value out = tmpl_new_list(c->run, V_GENERATOR, 0);
    size_t at = by_path ? 1 : 0;
    struct arguments rest = {0};
    const struct builtin *test = NULL;
    if (c->all->n < at)
        tmpl_fail(&c->run->work, "selectattr and rejectattr need an attribute");
    if (c->all->n > at) {
        struct value name = c->all->items[at];
        if (name.kind != V_STRING || !(test = tmpl_find_test(name.as.text)))
            tmpl_fail(&c->run->work, "the test of select or reject is not supported");
        rest =
            (struct arguments){c->all->items + at + 1, c->all->names + at + 1, c->all->n - at - 1};
    }
    for (size_t i = 0; items && i < items->n && tmpl_spend(c->run, 0); i++) {
        struct value v = items->items[i];
        if (by_path)
            v = follow(c->run, v, c->all->items[0], absent);
        if (test)
            v = tmpl_call_builtin(c->run, test, v, &rest);
        if (!c->run->work.failed && tmpl_truth(v) == wanted)
            tmpl_append(c->run, out.as.list, items->items[i]);
    }
    return out;
}

static struct value filter_select(struct call *c) {
    return pick(c, false, true);
}
static struct value filter_reject(struct call *c) {
    return pick(c, false, false);
}
static struct value filter_selectattr(struct call *c) {
    return pick(c, true, true);
}
static struct value filter_rejectattr(struct call *c) {
    return pick(c, true, false);
}

/* map("filter", ...), map(attribute="path", default=...). */
static struct value filter_map(struct call *c) {
    struct list *items = tmpl_items_of(c->run, c->self);
    struct value out = tmpl_new_list(c->run, V_GENERATOR, 0), path = absent, other = absent;
    const struct builtin *filter = NULL;
    struct arguments rest = {0};
    if (c->all->n && !c->all->names[0].n) {
        if (c->all->items[0].kind == V_STRING)
            filter = tmpl_find_filter(c->all->items[0].as.text);
        rest = (struct arguments){c->all->items + 1, c->all->names + 1, c->all->n - 1};
    }
    for (size_t i = 0; i < c->all->n && !filter; i++) {
        if (tmpl_is(c->all->names[i], "attribute"))
            path = c->all->items[i];
        else if (tmpl_is(c->all->names[i], "default"))
            other = c->all->items[i];
        else
            path.kind = other.kind = V_ABSENT;
    }
    if (!filter && path.kind == V_ABSENT)
        tmpl_fail(&c->run->work, "map needs the name of a filter, or attribute=");
    for (size_t i = 0; items && i < items->n && tmpl_spend(c->run, 0); i++)
        tmpl_append(c->run, out.as.list,
                    filter ? tmpl_call_builtin(c->run, filter, items->items[i], &rest)
                           : follow(c->run, items->items[i], path, other));
    return out;
}

/* dictsort(case_sensitive=false): pairs in the order of their keys, by insertion. */
static struct value filter_dictsort(struct call *c) {
    struct value out = tmpl_new_list(c->run, V_LIST, 0), keys = tmpl_new_list(c->run, V_LIST, 0);
    bool exact = tmpl_truth(c->arg[0]);
    if (c->self.kind != V_DICT)
        tmpl_fail(&c->run->work, "dictsort: %s is no dict", tmpl_kind_name(c->self.kind));
    for (size_t i = 0; !c->run->work.failed && i < c->self.as.dict->n; i++) {
        struct value key = tmpl_string(c->self.as.dict->keys[i]);
        struct value pair = tmpl_pair(c->run, key, c->self.as.dict->values[i]);
        key = exact ? key : tmpl_lower(c->run, key.as.text);
        tmpl_append(c->run, keys.as.list, key);
        tmpl_append(c->run, out.as.list, pair);
        struct value *k = keys.as.list->items, *p = out.as.list->items;
        size_t at = i;
        for (; at > 0 && tmpl_compare(c->run, k[at - 1], key) > 0; at--) {
            k[at] = k[at - 1];
            p[at] = p[at - 1];
        }
        k[at] = key;
        p[at] = pair;
    }
    return out;
}

const struct builtin *tmpl_find_filter(struct text name) {
    static const struct builtin table[] = {
        {"count", "", 0, filter_length},
        {"d", "default_value boolean", 0, filter_default},
        {"default", "default_value boolean", 0, filter_default},
        {"dictsort", "case_sensitive", 0, filter_dictsort},
        {"first", "", 0, filter_first},
        {"int", "default", 0, filter_int},
        {"items", "", 0, filter_items},
        {"join", "d attribute", 0, filter_join},
        {"last", "", 0, filter_last},
        {"length", "", 0, filter_length},
        {"list", "", 0, filter_list},
        {"map", NULL, 0, filter_map},
        {"reject", NULL, 0, filter_reject},
        {"rejectattr", NULL, 0, filter_rejectattr},
        {"reverse", "", 0, filter_reverse},
        {"safe", "", 0, filter_string},
        {"select", NULL, 0, filter_select},
        {"selectattr", NULL, 0, filter_selectattr},
        {"string", "", 0, filter_string},
        {"tojson", "ensure_ascii indent separators sort_keys", 0, tmpl_filter_tojson},
        {0}};
    const struct builtin *found = tmpl_find_builtin(table, name);
    return found ? found : tmpl_find_string_filter(name);
}

/* ---- global functions ----------------------------------------------------------------------- */

static struct value function_raise(struct call *c) {
    struct text why = tmpl_str(c->run, c->arg[0]);
    tmpl_fail(&c->run->work, "%.*s", why.n < 400 ? (int)why.n : 400, why.data);
    return tmpl_undefined("");
}

static struct value function_strftime(struct call *c) {
    struct text format = tmpl_text_arg(c, 0, tmpl_text(""));
    time_t now = c->run->now ? c->run->now : time(NULL);
    char text[64], *out = tmpl_alloc(&c->run->work, 256);
    struct tm tm;
    if (format.n >= sizeof text || memchr(format.data, 0, format.n))
        tmpl_fail(&c->run->work, "strftime_now: the format is too long");
    if (!out || c->run->work.failed)
        return tmpl_undefined("");
    memcpy(text, format.data, format.n);
    text[format.n] = 0;
    localtime_r(&now, &tm);
    return tmpl_string((struct text){out, strftime(out, 256, text, &tm)});
}

/* range(end), range(first, end), range(first, end, step): at most 100,000 numbers, as in Jinja. */
static struct value function_range(struct call *c) {
    struct value out = tmpl_new_list(c->run, V_RANGE, 0);
    bool one = c->arg[1].kind == V_ABSENT;
    int64_t first = one ? 0 : tmpl_integer_arg(c, 0, 0);
    int64_t end = tmpl_integer_arg(c, one ? 0 : 1, 0), step = tmpl_integer_arg(c, 2, 1);
    if (step == 0 || step > 1 << 30 || step < -(1 << 30) || llabs(first / 2) > 1 << 30 ||
        llabs(end / 2) > 1 << 30)
        tmpl_fail(&c->run->work, "range: these numbers are not supported");
    for (int64_t i = first; (step > 0 ? i < end : i > end) && tmpl_spend(c->run, 0); i += step) {
        if (out.as.list->n == 100000)
            tmpl_fail(&c->run->work, "range: more than 100,000 numbers");
        tmpl_append(c->run, out.as.list, tmpl_integer(i));
    }
    return out;
}

static struct value from_names(struct call *c, enum kind kind) {
    struct dict *d = tmpl_alloc(&c->run->work, sizeof *d);
    for (size_t i = 0; d && i < c->all->n && !c->run->work.failed; i++) {
        if (!c->all->names[i].n || (kind == V_NAMESPACE && *c->all->names[i].data == '_'))
            tmpl_fail(&c->run->work, "namespace and dict take arguments with names, without _");
        tmpl_put(&c->run->work, d, c->all->names[i], c->all->items[i]);
    }
    return (struct value){kind, {.dict = d}};
}

static struct value function_namespace(struct call *c) {
    return from_names(c, V_NAMESPACE);
}

static struct value function_dict(struct call *c) {
    return from_names(c, V_DICT);
}

const struct builtin *tmpl_find_function(struct text name) {
    static const struct builtin table[] = {{"dict", NULL, 0, function_dict},
                                           {"namespace", NULL, 0, function_namespace},
                                           {"raise_exception", "message", 1, function_raise},
                                           {"range", "start stop step", 1, function_range},
                                           {"strftime_now", "format", 1, function_strftime},
                                           {0}};
    return tmpl_find_builtin(table, name);
}
