/* Statements: scopes, loops, macros, output. */
#include "model/files/template_tree.h"

/* How a statement ends: with the next one, or out of the body of the loop. */
enum flow { NEXT, BREAK, CONTINUE };

static enum flow run_body(struct run *r, const struct node *n);

static bool open_scope(struct run *r, struct scope *parent) {
    struct scope *s = tmpl_alloc(&r->work, sizeof *s);
    if (s) {
        s->parent = parent;
        r->scope = s;
    }
    return s != NULL;
}

/* Statements with names of their own: what is set in them ends with them. */
static enum flow run_scoped(struct run *r, const struct node *body) {
    struct scope *outer = r->scope;
    enum flow flow = open_scope(r, outer) ? run_body(r, body) : NEXT;
    r->scope = outer;
    return flow;
}

/* ---- assignment ----------------------------------------------------------------------------- */

static void assign(struct run *r, const struct node *target, struct value v);

/* a, b = v: as many items as names. */
static void assign_several(struct run *r, const struct node *target, struct value v) {
    struct list *items = tmpl_items_of(r, v);
    const struct node *name = target->list;
    if (items && items->n != (size_t)target->n)
        tmpl_fail(&r->work, "%zu values cannot be assigned to %d names", items->n, target->n);
    for (size_t i = 0; name && !r->work.failed; i++, name = name->next)
        assign(r, name, items->items[i]);
}

static void assign(struct run *r, const struct node *target, struct value v) {
    if (r->work.failed)
        return;
    if (target->kind == N_TUPLE) {
        assign_several(r, target, v);
    } else if (target->kind == N_NAME) {
        if (tmpl_spend(r, r->scope->names.n))
            tmpl_put(&r->work, &r->scope->names, target->name, v);
    } else {
        struct value of = tmpl_eval(r, target->a);
        if (of.kind != V_NAMESPACE)
            tmpl_fail(&r->work, "only a namespace can have an attribute set");
        else if (*target->name.data == '_')
            tmpl_fail(&r->work, "an attribute of a namespace cannot begin with _");
        else
            tmpl_put(&r->work, of.as.dict, target->name, v);
    }
}

static enum flow run_set_block(struct run *r, const struct node *n) {
    struct buffer text = {.work = &r->work}, *out = r->out;
    r->out = &text;
    enum flow flow = run_scoped(r, n->list);
    r->out = out;
    if (flow == NEXT)
        assign(r, n->a, tmpl_string(tmpl_buffer_text(&text)));
    return flow;
}

/* ---- loops ---------------------------------------------------------------------------------- */

/* The items for which the condition of the loop holds. */
static struct list *filtered(struct run *r, const struct node *n, struct list *items) {
    struct scope *outer = r->scope;
    struct value kept = tmpl_new_list(r, V_LIST, 0);
    for (size_t i = 0; items && i < items->n && !r->work.failed; i++) {
        if (!open_scope(r, outer))
            break;
        assign(r, n->a, items->items[i]);
        if (tmpl_truth(tmpl_eval(r, n->c)))
            tmpl_append(r, kept.as.list, items->items[i]);
    }
    r->scope = outer;
    return r->work.failed ? NULL : kept.as.list;
}

static enum flow run_for(struct run *r, const struct node *n) {
    struct scope *outer = r->scope;
    struct list *items = tmpl_items_of(r, tmpl_eval(r, n->b));
    struct loop *loop = tmpl_alloc(&r->work, sizeof *loop);
    bool completed = false; /* one turn, up to its end: then there is no "else" */
    enum flow flow = NEXT;
    if (n->c)
        items = filtered(r, n, items);
    if (!items || !loop)
        return NEXT;
    *loop = (struct loop){items, 0};
    for (; loop->index < items->n && flow != BREAK; loop->index++) {
        if (!tmpl_spend(r, 0) || !open_scope(r, outer))
            break;
        tmpl_put(&r->work, &r->scope->names, tmpl_text("loop"),
                 (struct value){V_LOOP, {.loop = loop}});
        assign(r, n->a, items->items[loop->index]);
        flow = run_body(r, n->list);
        completed = completed || flow == NEXT;
    }
    r->scope = outer;
    return completed || !n->other ? NEXT : run_scoped(r, n->other);
}

/* ---- macros --------------------------------------------------------------------------------- */

/* The argument of a parameter: by position, by name, the default, or undefined. */
static void pass(struct run *r, const struct node *parameter, size_t position,
                 const struct arguments *all, size_t *n_used) {
    struct value v = {V_UNDEFINED, {.text = parameter->name}};
    size_t i = 0;
    while (i < all->n &&
           (all->names[i].n ? !tmpl_same_text(all->names[i], parameter->name) : i != position))
        i++;
    if (i < all->n) {
        v = all->items[i];
        ++*n_used;
    } else if (parameter->a) {
        v = tmpl_eval(r, parameter->a);
    }
    tmpl_put(&r->work, &r->scope->names, parameter->name, v);
}

struct value tmpl_call_macro(struct run *r, const struct macro *m, const struct arguments *all) {
    struct scope *outer = r->scope;
    struct buffer text = {.work = &r->work}, *out = r->out;
    size_t n_used = 0, position = 0;
    if (!open_scope(r, m->scope))
        return tmpl_undefined("");
    for (const struct node *p = m->node->other; p && !r->work.failed; p = p->next)
        pass(r, p, position++, all, &n_used);
    if (n_used != all->n)
        tmpl_fail(&r->work, "the macro %.*s has no such argument", (int)m->node->name.n,
                  m->node->name.data);
    r->out = &text;
    run_body(r, m->node->list);
    r->out = out;
    r->scope = outer;
    return tmpl_string(tmpl_buffer_text(&text));
}

static void define_macro(struct run *r, const struct node *n) {
    struct macro *m = tmpl_alloc(&r->work, sizeof *m);
    if (!m)
        return;
    *m = (struct macro){n, r->scope};
    tmpl_put(&r->work, &r->scope->names, n->name, (struct value){V_MACRO, {.macro = m}});
}

/* ---- all of them ---------------------------------------------------------------------------- */

static enum flow run_if(struct run *r, const struct node *n) {
    for (const struct node *branch = n->list; branch; branch = branch->next)
        if (!branch->a || tmpl_truth(tmpl_eval(r, branch->a)))
            return run_body(r, branch->list);
    return NEXT;
}

static enum flow run_statement(struct run *r, const struct node *n) {
    switch (n->kind) {
    case N_DATA:
        if (tmpl_spend(r, n->name.n))
            tmpl_add(r->out, n->name);
        return NEXT;
    case N_OUTPUT:
        tmpl_write_str(r, r->out, tmpl_eval(r, n->a));
        return NEXT;
    case N_IF:
        return run_if(r, n);
    case N_FOR:
        return run_for(r, n);
    case N_SET:
        assign(r, n->a, tmpl_eval(r, n->b));
        return NEXT;
    case N_SET_BLOCK:
        return run_set_block(r, n);
    case N_MACRO:
        define_macro(r, n);
        return NEXT;
    case N_GENERATION:
        return run_scoped(r, n->list);
    default:
        return n->kind == N_BREAK ? BREAK : CONTINUE;
    }
}

static enum flow run_body(struct run *r, const struct node *n) {
    enum flow flow = NEXT;
    if (!tmpl_enter(r))
        return NEXT;
    for (; n && flow == NEXT && !r->work.failed; n = n->next) {
        r->work.line = n->line;
        flow = run_statement(r, n);
    }
    r->depth--;
    return flow;
}

void tmpl_execute(struct run *r, const struct node *body, struct dict *variables) {
    struct scope *data = tmpl_alloc(&r->work, sizeof *data);
    if (!data)
        return;
    data->names = *variables;
    if (open_scope(r, data))
        run_body(r, body);
}
