/* value.name, value[key] and value[first:last:step], as the sandbox of Jinja finds them. */
#include "model/files/template_tree.h"

/* What Python's types have and the subset has not: refused, because it would not be undefined. */
static const char string_methods[] =
    "casefold center count encode expandtabs format format_map index isalnum isalpha isascii "
    "isdecimal "
    "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans "
    "partition removeprefix removesuffix rfind rindex rjust rpartition rsplit splitlines swapcase "
    "translate zfill";
static const char list_methods[] =
    "append clear copy count extend index insert pop remove reverse sort";
static const char dict_methods[] = "clear copy fromkeys pop popitem setdefault update";
static const char number_methods[] =
    "as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag "
    "is_integer numerator real to_bytes";

static struct value loop_attribute(struct run *r, const struct loop *loop, struct text name) {
    int64_t index = (int64_t)loop->index, n = (int64_t)loop->items->n;
    const struct value *items = loop->items->items;
    if (tmpl_is(name, "index0"))
        return tmpl_integer(index);
    if (tmpl_is(name, "index"))
        return tmpl_integer(index + 1);
    if (tmpl_is(name, "first"))
        return tmpl_boolean(index == 0);
    if (tmpl_is(name, "last"))
        return tmpl_boolean(index == n - 1);
    if (tmpl_is(name, "length"))
        return tmpl_integer(n);
    if (tmpl_is(name, "revindex0"))
        return tmpl_integer(n - index - 1);
    if (tmpl_is(name, "revindex"))
        return tmpl_integer(n - index);
    if (tmpl_is(name, "previtem"))
        return index > 0 ? items[index - 1] : tmpl_undefined("loop.previtem");
    if (tmpl_is(name, "nextitem"))
        return index + 1 < n ? items[index + 1] : tmpl_undefined("loop.nextitem");
    tmpl_fail(&r->work, "loop.%.*s is not supported", (int)name.n, name.data);
    return tmpl_undefined("");
}

/* The method of a value of a type in Python; undefined: its type has none of that name. */
static struct value type_attribute(struct run *r, struct value of, struct text name) {
    static const struct {
        enum kind first, last;
        const char *others;
    } known[] = {{V_BOOLEAN, V_REAL, number_methods},
                 {V_STRING, V_STRING, string_methods},
                 {V_LIST, V_TUPLE, list_methods},
                 {V_DICT, V_DICT, dict_methods}};
    const struct builtin *builtin = of.kind == V_STRING ? tmpl_find_string_method(name)
                                    : of.kind == V_DICT ? tmpl_find_dict_method(name)
                                                        : NULL;
    if (builtin) {
        struct method *method = tmpl_alloc(&r->work, sizeof *method);
        if (!method)
            return tmpl_undefined("");
        *method = (struct method){of, builtin};
        return (struct value){V_METHOD, {.method = method}};
    }
    bool refused = (of.kind >= V_RANGE && of.kind != V_DICT) ||
                   (name.n >= 2 && name.data[0] == '_' && name.data[1] == '_');
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        refused = refused || (of.kind >= known[i].first && of.kind <= known[i].last &&
                              tmpl_has_word(known[i].others, name));
    if (refused)
        tmpl_fail(&r->work, "the attribute %.*s of %s is not supported", (int)name.n, name.data,
                  tmpl_kind_name(of.kind));
    return (struct value){V_UNDEFINED, {.text = name}};
}

/* The value of a key, or undefined. */
static struct value look_up(struct run *r, const struct dict *d, struct text key) {
    struct value *found = tmpl_spend(r, d->n) ? tmpl_find(d, key) : NULL;
    return found ? *found : (struct value){V_UNDEFINED, {.text = key}};
}

void tmpl_fail_undefined(struct run *r, struct value v) {
    tmpl_fail(&r->work, "'%.*s' is undefined", v.as.text.n < 100 ? (int)v.as.text.n : 100,
              v.as.text.data);
}

struct value tmpl_attribute(struct run *r, struct value of, struct text name) {
    if (of.kind == V_UNDEFINED)
        tmpl_fail_undefined(r, of);
    if (r->work.failed)
        return tmpl_undefined("");
    if (of.kind == V_NAMESPACE)
        return look_up(r, of.as.dict, name);
    if (of.kind == V_LOOP)
        return loop_attribute(r, of.as.loop, name);
    struct value v = type_attribute(r, of, name);
    return v.kind == V_UNDEFINED && of.kind == V_DICT ? look_up(r, of.as.dict, name) : v;
}

static struct value character(struct run *r, struct text t, int64_t index) {
    int64_t n = index < 0 ? (int64_t)tmpl_size(r, tmpl_string(t)) : 0;
    int32_t c;
    index += n;
    for (; index > 0 && t.n && tmpl_spend(r, 0); index--) {
        size_t length = tmpl_char(t, &c);
        t = (struct text){t.data + length, t.n - length};
    }
    if (index != 0 || !t.n)
        return tmpl_undefined("the character of a string");
    t.n = tmpl_char(t, &c);
    return tmpl_string(t);
}

struct value tmpl_item(struct run *r, struct value of, struct value key) {
    int64_t index;
    bool whole = tmpl_as_integer(key, &index);
    if (of.kind == V_UNDEFINED)
        tmpl_fail_undefined(r, of);
    if (of.kind == V_DICT && key.kind == V_STRING) {
        struct value v = look_up(r, of.as.dict, key.as.text);
        return v.kind == V_UNDEFINED ? type_attribute(r, of, key.as.text) : v;
    }
    if (whole && of.kind == V_STRING)
        return character(r, of.as.text, index);
    if (whole && (of.kind == V_LIST || of.kind == V_TUPLE || of.kind == V_RANGE)) {
        int64_t n = (int64_t)of.as.list->n;
        index += index < 0 ? n : 0;
        return index >= 0 && index < n ? of.as.list->items[index]
                                       : tmpl_undefined("the item of a list");
    }
    return key.kind == V_STRING ? tmpl_attribute(r, of, key.as.text) : tmpl_undefined("an item");
}

/* One bound of a slice of n items, as Python clips it. */
static int64_t clip(struct run *r, struct value v, int64_t n, int64_t low, int64_t high,
                    int64_t if_none) {
    int64_t i;
    if (v.kind == V_NONE)
        return if_none;
    if (!tmpl_as_integer(v, &i))
        tmpl_fail(&r->work, "a slice needs integers, not %s", tmpl_kind_name(v.kind));
    if (i < 0)
        i = i < -n ? -1 : i + n;
    return i < low ? low : i > high ? high : i;
}

/* The byte where the character of an index is. */
static size_t offset(struct text t, int64_t index) {
    size_t at = 0;
    int32_t c;
    for (; index > 0; index--)
        at += tmpl_char((struct text){t.data + at, t.n - at}, &c);
    return at;
}

/* The items from i up to end. */
static struct value take(struct run *r, struct value of, int64_t i, int64_t end, int64_t step) {
    if (of.kind == V_STRING && step == 1) {
        size_t at = offset(of.as.text, i), behind = i < end ? offset(of.as.text, end) : at;
        return tmpl_string((struct text){of.as.text.data + at, behind - at});
    }
    struct buffer text = {.work = &r->work};
    struct value out = tmpl_new_list(r, of.kind, 0);
    const struct list *items = tmpl_items_of(r, of);
    for (; items && (step > 0 ? i < end : i > end) && tmpl_spend(r, 0); i += step) {
        if (of.kind == V_STRING)
            tmpl_add(&text, items->items[i].as.text);
        else
            tmpl_append(r, out.as.list, items->items[i]);
    }
    return of.kind == V_STRING ? tmpl_string(tmpl_buffer_text(&text)) : out;
}

struct value tmpl_slice(struct run *r, const struct node *n) {
    struct value of = tmpl_eval(r, n->a), bounds[3];
    const struct node *bound = n->list;
    int64_t step = 1;
    for (int i = 0; i < 3; i++, bound = bound->next)
        bounds[i] = tmpl_eval(r, bound);
    if (bounds[2].kind != V_NONE && (!tmpl_as_integer(bounds[2], &step) || step == 0))
        tmpl_fail(&r->work, "the step of a slice must be an integer other than 0");
    if (of.kind != V_STRING && of.kind != V_LIST && of.kind != V_TUPLE)
        tmpl_fail(&r->work, "a slice of %s is not supported", tmpl_kind_name(of.kind));
    int64_t size = r->work.failed ? 0 : (int64_t)tmpl_size(r, of);
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
    int64_t i = clip(r, bounds[0], size, low, high, step < 0 ? high : low);
    int64_t end = clip(r, bounds[1], size, low, high, step < 0 ? low : high);
    if (step > size || step < -size) /* one item, if any; and no overflow */
        step = step < 0 ? -size - 1 : size + 1;
    return r->work.failed ? tmpl_undefined("") : take(r, of, i, end, step);
}
