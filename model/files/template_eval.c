/* Trees of expressions to values. */
#include "model/files/template_internal.h"

#include <math.h>
#include <stdlib.h>

/* ---- attributes and subscripts -------------------------------------------------------------- */

/* What Python's types have and the subset has not: refused, because it would not be undefined. */
static const char string_methods[] =
    "casefold center encode expandtabs format format_map index isalnum isalpha isascii isdecimal "
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

static void fail_undefined(struct run *r, struct value v) {
    tmpl_fail(&r->work, "'%.*s' is undefined", v.as.text.n < 100 ? (int)v.as.text.n : 100,
              v.as.text.data);
}

struct value tmpl_attribute(struct run *r, struct value of, struct text name) {
    if (of.kind == V_UNDEFINED)
        fail_undefined(r, of);
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
        fail_undefined(r, of);
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
        i = i < -n ? -1 - n : i; /* no overflow */
    i += i < 0 ? n : 0;
    return i < low ? low : i > high ? high : i;
}

static struct value slice(struct run *r, const struct node *n) {
    struct value of = tmpl_eval(r, n->a), bounds[3];
    struct buffer text = {.work = &r->work};
    int64_t step = 1;
    const struct node *bound = n->list;
    for (int i = 0; i < 3; i++, bound = bound->next)
        bounds[i] = tmpl_eval(r, bound);
    if (bounds[2].kind != V_NONE && (!tmpl_as_integer(bounds[2], &step) || step == 0))
        tmpl_fail(&r->work, "the step of a slice must be an integer other than 0");
    if (of.kind != V_STRING && of.kind != V_LIST && of.kind != V_TUPLE)
        tmpl_fail(&r->work, "a slice of %s is not supported", tmpl_kind_name(of.kind));
    const struct list *items = r->work.failed ? NULL : tmpl_items_of(r, of);
    if (!items)
        return tmpl_undefined("");
    int64_t size = (int64_t)items->n, low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
    int64_t i = clip(r, bounds[0], size, low, high, step < 0 ? high : low);
    int64_t end = clip(r, bounds[1], size, low, high, step < 0 ? low : high);
    struct value out = of.kind == V_STRING ? tmpl_string(of.as.text) : tmpl_new_list(r, of.kind, 0);
    if (step > size)
        step = size + 1;
    if (step < -size)
        step = -size - 1;
    for (; (step > 0 ? i < end : i > end) && tmpl_spend(r, 0); i += step) {
        if (of.kind == V_STRING)
            tmpl_add(&text, items->items[i].as.text);
        else
            tmpl_append(r, out.as.list, items->items[i]);
    }
    return of.kind == V_STRING ? tmpl_string(tmpl_buffer_text(&text)) : out;
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

static struct value as_real(struct run *r, double x) {
    if (!isfinite(x))
        tmpl_fail(&r->work, "a number is too large");
    return (struct value){V_REAL, {.real = isfinite(x) ? x : 0}};
}

/* Whole numbers. / and // are Python's: a quotient that is no integer, and rounding down. */
static struct value calculate(struct run *r, enum operation op, int64_t a, int64_t b) {
    int64_t out = 0;
    bool overflow = false;
    if (op >= OP_DIVIDE && b == 0)
        tmpl_fail(&r->work, "division by zero");
    if (r->work.failed)
        return tmpl_undefined("");
    if (op == OP_DIVIDE && llabs(a / 2) < (int64_t)1 << 52 && llabs(b / 2) < (int64_t)1 << 52)
        return as_real(r, (double)a / (double)b);
    if (op == OP_ADD)
        overflow = __builtin_add_overflow(a, b, &out);
    else if (op == OP_SUBTRACT)
        overflow = __builtin_sub_overflow(a, b, &out);
    else if (op == OP_MULTIPLY)
        overflow = __builtin_mul_overflow(a, b, &out);
    else if (op == OP_DIVIDE || (b == -1 && a == INT64_MIN))
        overflow = true;
    else if (op == OP_FLOOR_DIVIDE)
        out = a / b - (a % b != 0 && (a < 0) != (b < 0));
    else
        out = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    if (overflow)
        tmpl_fail(&r->work, "an integer is too large");
    return tmpl_integer(out);
}

static struct value calculate_real(struct run *r, enum operation op, double a, double b) {
    if (op == OP_ADD)
        return as_real(r, a + b);
    if (op == OP_SUBTRACT)
        return as_real(r, a - b);
    if (op == OP_MULTIPLY)
        return as_real(r, a * b);
    if (b == 0)
        tmpl_fail(&r->work, "division by zero");
    if (b == 0 || op == OP_DIVIDE)
        return as_real(r, b == 0 ? 0 : a / b);
    double rest = fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1;
    }
    if (op == OP_MODULO)
        return as_real(r, rest != 0 ? rest : copysign(0, b));
    double whole = floor(quotient);
    if (quotient == 0)
        return as_real(r, copysign(0, a / b));
    return as_real(r, quotient - whole > 0.5 ? whole + 1 : whole);
}

/* A string or list, n times. */
static struct value repeat(struct run *r, struct value v, int64_t n) {
    struct buffer text = {.work = &r->work};
    struct value out = tmpl_new_list(r, v.kind, 0);
    if (v.kind == V_STRING) {
        for (; n > 0 && v.as.text.n && tmpl_spend(r, v.as.text.n); n--)
            tmpl_add(&text, v.as.text);
        return tmpl_string(tmpl_buffer_text(&text));
    }
    for (; n > 0 && v.as.list->n && tmpl_spend(r, v.as.list->n); n--)
        for (size_t i = 0; i < v.as.list->n && !r->work.failed; i++)
            tmpl_append(r, out.as.list, v.as.list->items[i]);
    return out;
}

static struct value join_two(struct run *r, struct text a, struct text b) {
    struct buffer both = {.work = &r->work};
    if (tmpl_spend(r, a.n + b.n)) {
        both.data = tmpl_alloc(&r->work, a.n + b.n);
        both.cap = both.data ? a.n + b.n : 0;
        tmpl_add(&both, a);
        tmpl_add(&both, b);
    }
    return tmpl_string(tmpl_buffer_text(&both));
}

static struct value add_lists(struct run *r, struct value a, struct value b) {
    struct value out = tmpl_new_list(r, a.kind, a.as.list->n + b.as.list->n);
    for (int second = 0; second < 2 && tmpl_spend(r, a.as.list->n + b.as.list->n); second++) {
        const struct list *from = second ? b.as.list : a.as.list;
        for (size_t i = 0; i < from->n && !r->work.failed; i++)
            tmpl_append(r, out.as.list, from->items[i]);
    }
    return out;
}

static bool is_repeatable(struct value v) {
    return v.kind == V_STRING || v.kind == V_LIST || v.kind == V_TUPLE;
}

static struct value arithmetic(struct run *r, const struct node *n) {
    static const char *const signs[] = {"or", "and", "+", "-", "~", "*", "/", "//", "%"};
    struct value a = tmpl_eval(r, n->a), b = tmpl_eval(r, n->b);
    int64_t i, j;
    bool whole = tmpl_as_integer(a, &i), whole_b = tmpl_as_integer(b, &j);
    if (r->work.failed)
        return tmpl_undefined("");
    if (n->op == OP_CONCATENATE)
        return join_two(r, tmpl_str(r, a), tmpl_str(r, b));
    if (whole && whole_b)
        return calculate(r, n->op, i, j);
    if (tmpl_is_number(a) && tmpl_is_number(b))
        return calculate_real(r, n->op, tmpl_as_real(a), tmpl_as_real(b));
    if (n->op == OP_ADD && a.kind == b.kind && a.kind == V_STRING)
        return join_two(r, a.as.text, b.as.text);
    if (n->op == OP_ADD && a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE))
        return add_lists(r, a, b);
    if (n->op == OP_MULTIPLY && ((whole && is_repeatable(b)) || (whole_b && is_repeatable(a))))
        return whole ? repeat(r, b, i) : repeat(r, a, j);
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        fail_undefined(r, a.kind == V_UNDEFINED ? a : b);
    tmpl_fail(&r->work, "%s %s %s is not supported", tmpl_kind_name(a.kind), signs[n->op],
              tmpl_kind_name(b.kind));
    return tmpl_undefined("");
}

static struct value negate(struct run *r, const struct node *n) {
    struct value v = tmpl_eval(r, n->a);
    int64_t i;
    int sign = n->kind == N_NEGATIVE ? -1 : 1;
    if (!tmpl_is_number(v))
        tmpl_fail(&r->work, "%s has no sign", tmpl_kind_name(v.kind));
    if (tmpl_as_integer(v, &i))
        return calculate(r, OP_MULTIPLY, i, sign);
    return as_real(r, r->work.failed ? 0 : sign * v.as.real);
}

static bool holds(struct run *r, enum operation op, struct value a, struct value b) {
    if (op == OP_IN || op == OP_NOT_IN)
        return tmpl_contains(r, b, a) == (op == OP_IN);
    if (op == OP_EQUAL || op == OP_NOT_EQUAL)
        return tmpl_equal(r, a, b) == (op == OP_EQUAL);
    int order = tmpl_compare(r, a, b);
    return op == OP_LESS         ? order < 0
           : op == OP_LESS_EQUAL ? order <= 0
           : op == OP_GREATER    ? order > 0
                                 : order >= 0;
}

/* a < b < c: both, and b only once. */
static struct value compare(struct run *r, const struct node *n) {
    struct value left = tmpl_eval(r, n->a);
    bool all = true;
    for (const struct node *i = n->list; i && all && !r->work.failed; i = i->next) {
        struct value right = tmpl_eval(r, i->a);
        all = holds(r, i->op, left, right);
        left = right;
    }
    return tmpl_boolean(all);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static struct value find_name(struct run *r, struct text name) {
    for (const struct scope *s = r->scope; s && tmpl_spend(r, s->names.n); s = s->parent) {
        struct value *found = tmpl_find(&s->names, name);
        if (found)
            return *found;
    }
    const struct builtin *function = tmpl_find_function(name);
    return function ? (struct value){V_FUNCTION, {.function = function}}
                    : (struct value){V_UNDEFINED, {.text = name}};
}

static struct value build_list(struct run *r, const struct node *n) {
    struct value v = tmpl_new_list(r, n->kind == N_LIST ? V_LIST : V_TUPLE, (size_t)n->n);
    for (const struct node *i = n->list; i && !r->work.failed; i = i->next)
        tmpl_append(r, v.as.list, tmpl_eval(r, i));
    return v;
}

static struct value build_dict(struct run *r, const struct node *n) {
    struct dict *d = tmpl_alloc(&r->work, sizeof *d);
    for (const struct node *i = n->list; d && i && tmpl_spend(r, d->n); i = i->next->next) {
        struct value key = tmpl_eval(r, i);
        if (key.kind != V_STRING)
            tmpl_fail(&r->work, "a key that is %s is not supported", tmpl_kind_name(key.kind));
        struct value v = tmpl_eval(r, i->next);
        if (!r->work.failed)
            tmpl_put(&r->work, d, key.as.text, v);
    }
    return (struct value){V_DICT, {.dict = d}};
}

static bool eval_arguments(struct run *r, const struct node *n, struct arguments *out) {
    out->items = tmpl_alloc(&r->work, (size_t)n->n * sizeof *out->items);
    out->names = tmpl_alloc(&r->work, (size_t)n->n * sizeof *out->names);
    for (const struct node *i = n->list; i && !r->work.failed; i = i->next) {
        for (size_t j = 0; j < out->n && i->name.n; j++)
            if (tmpl_same_text(out->names[j], i->name))
                tmpl_fail(&r->work, "two arguments have the name %.*s", (int)i->name.n,
                          i->name.data);
        struct value v = tmpl_eval(r, i->a);
        if (r->work.failed)
            return false;
        out->names[out->n] = i->name;
        out->items[out->n++] = v;
    }
    return !r->work.failed;
}

static struct value call(struct run *r, const struct node *n) {
    struct value of = tmpl_eval(r, n->a);
    struct arguments all = {0};
    if (of.kind == V_UNDEFINED)
        fail_undefined(r, of);
    if (!eval_arguments(r, n, &all))
        return tmpl_undefined("");
    if (of.kind == V_MACRO)
        return tmpl_call_macro(r, of.as.macro, &all);
    if (of.kind == V_FUNCTION)
        return tmpl_call_builtin(r, of.as.function, tmpl_undefined(""), &all);
    if (of.kind != V_METHOD)
        tmpl_fail(&r->work, "%s cannot be called", tmpl_kind_name(of.kind));
    else if (all.n && all.names[all.n - 1].n)
        tmpl_fail(&r->work, "%s: an argument with a name is not supported",
                  of.as.method->builtin->name);
    if (r->work.failed)
        return tmpl_undefined("");
    return tmpl_call_builtin(r, of.as.method->builtin, of.as.method->self, &all);
}

static struct value apply(struct run *r, const struct node *n) {
    struct value of = tmpl_eval(r, n->a);
    struct arguments all = {0};
    if (!eval_arguments(r, n, &all))
        return tmpl_undefined("");
    return tmpl_call_builtin(r, n->builtin, of, &all);
}

static struct value choose(struct run *r, const struct node *n) {
    bool chosen = tmpl_truth(tmpl_eval(r, n->a));
    const struct node *branch = chosen ? n->b : n->c;
    return branch ? tmpl_eval(r, branch) : tmpl_undefined("the value of an if without else");
}

static struct value eval_node(struct run *r, const struct node *n) {
    struct value v;
    switch (n->kind) {
    case N_CONSTANT:
        return n->constant;
    case N_NAME:
        return find_name(r, n->name);
    case N_LIST:
    case N_TUPLE:
        return build_list(r, n);
    case N_DICT:
        return build_dict(r, n);
    case N_ATTRIBUTE:
        return tmpl_attribute(r, tmpl_eval(r, n->a), n->name);
    case N_ITEM:
        v = tmpl_eval(r, n->a);
        return tmpl_item(r, v, tmpl_eval(r, n->b));
    case N_SLICE:
        return slice(r, n);
    case N_CALL:
        return call(r, n);
    case N_FILTER:
    case N_TEST:
        return apply(r, n);
    case N_NOT:
        return tmpl_boolean(!tmpl_truth(tmpl_eval(r, n->a)));
    case N_NEGATIVE:
    case N_POSITIVE:
        return negate(r, n);
    case N_BINARY:
        if (n->op != OP_OR && n->op != OP_AND)
            return arithmetic(r, n);
        v = tmpl_eval(r, n->a);
        return tmpl_truth(v) == (n->op == OP_OR) ? v : tmpl_eval(r, n->b);
    case N_COMPARE:
        return compare(r, n);
    case N_CHOICE:
        return choose(r, n);
    default: /* N_BODY: the text of a set block */
        return tmpl_string(tmpl_buffer_text(r->out));
    }
}

struct value tmpl_eval(struct run *r, const struct node *n) {
    struct value v = tmpl_undefined("");
    int line = r->work.line;
    if (r->work.failed)
        return v;
    r->work.line = n->line;
    if (tmpl_enter(r)) {
        v = eval_node(r, n);
        r->depth--;
    }
    if (!r->work.failed)
        r->work.line = line;
    return r->work.failed ? tmpl_undefined("") : v;
}
