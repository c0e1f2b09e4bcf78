/* Trees of expressions to values. */
#include "model/files/template_tree.h"

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
        struct value key = tmpl_eval(r, i), v = tmpl_eval(r, i->next);
        if (key.kind != V_STRING)
            tmpl_fail(&r->work, "a key that is %s is not supported", tmpl_kind_name(key.kind));
        else
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
        tmpl_fail_undefined(r, of);
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
    return eval_arguments(r, n, &all) ? tmpl_call_builtin(r, n->builtin, of, &all)
                                      : tmpl_undefined("");
}

static struct value with_sign(struct run *r, const struct node *n) {
    struct value v = tmpl_eval(r, n->a);
    if (!tmpl_is_number(v))
        tmpl_fail(&r->work, "%s has no sign", tmpl_kind_name(v.kind));
    return tmpl_arithmetic(r, OP_MULTIPLY, v, tmpl_integer(n->op == OP_SUBTRACT ? -1 : 1));
}

/* a < b < c: both, and b only once. */
static struct value compare(struct run *r, const struct node *n) {
    struct value left = tmpl_eval(r, n->a);
    bool all = true;
    for (const struct node *i = n->list; i && all && !r->work.failed; i = i->next) {
        struct value right = tmpl_eval(r, i->a);
        all = tmpl_holds(r, i->op, left, right);
        left = right;
    }
    return tmpl_boolean(all);
}

static struct value binary(struct run *r, const struct node *n) {
    struct value a = tmpl_eval(r, n->a);
    if (n->op == OP_OR || n->op == OP_AND)
        return tmpl_truth(a) == (n->op == OP_OR) ? a : tmpl_eval(r, n->b);
    return tmpl_arithmetic(r, n->op, a, tmpl_eval(r, n->b));
}

static struct value choose(struct run *r, const struct node *n) {
    const struct node *branch = tmpl_truth(tmpl_eval(r, n->a)) ? n->b : n->c;
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
        return tmpl_slice(r, n);
    case N_CALL:
        return call(r, n);
    case N_BUILTIN:
        return apply(r, n);
    case N_NOT:
        return tmpl_boolean(!tmpl_truth(tmpl_eval(r, n->a)));
    case N_SIGN:
        return with_sign(r, n);
    case N_BINARY:
        return binary(r, n);
    case N_COMPARE:
        return compare(r, n);
    default:
        return choose(r, n);
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
    if (r->work.failed)
        return tmpl_undefined("");
    r->work.line = line;
    return v;
}
