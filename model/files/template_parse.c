/* Tokens to trees: statements. A tag that is not in the subset is refused by name. */
#include "model/files/template_internal.h"

static struct node *parse_body(struct parser *p, const char *ends);

/* The statements of a block: from the end of the tag that opens it to the tag that ends it, whose
 * name is skipped. */
static struct node *parse_block(struct parser *p, const char *end) {
    tmpl_accept(p, T_OPERATOR, ":");
    tmpl_expect(p, T_BLOCK_END, NULL);
    struct node *body = parse_body(p, end);
    tmpl_expect(p, T_NAME, end);
    return body;
}

/* ---- for and if ----------------------------------------------------------------------------- */

static bool is_target(const struct node *n) {
    if (!n || (n->kind != N_NAME && n->kind != N_TUPLE))
        return false;
    if (n->kind == N_NAME)
        return !tmpl_is(n->name, "loop");
    for (const struct node *i = n->list; i; i = i->next)
        if (!is_target(i))
            return false;
    return n->list != NULL;
}

/* What is assigned to: names, or (with_attribute) name.attribute. */
static struct node *parse_target(struct parser *p, bool with_attribute) {
    struct node *n = tmpl_parse_tuple(p, OF_TARGETS, "in");
    if (!is_target(n) && !(with_attribute && n && n->kind == N_ATTRIBUTE))
        tmpl_parse_fail(p, "only names other than loop can be assigned to");
    return n;
}

/* Whether an iterable is `x.content`, `x['content']` or `content`. */
static bool is_content(const struct node *n) {
    if (!n)
        return false;
    if (n->kind == N_ITEM)
        return n->b && n->b->kind == N_CONSTANT && n->b->constant.kind == V_STRING &&
               tmpl_is(n->b->constant.as.text, "content");
    return (n->kind == N_ATTRIBUTE || n->kind == N_NAME) && tmpl_is(n->name, "content");
}

static void parse_for(struct parser *p, struct node *n) {
    n->a = parse_target(p, false);
    tmpl_expect(p, T_NAME, "in");
    n->b = tmpl_parse_tuple(p, OF_UNBRANCHED, NULL);
    *p->parts = *p->parts || is_content(n->b);
    if (tmpl_accept(p, T_NAME, "if"))
        n->c = tmpl_parse_expression(p);
    if (tmpl_at(p, T_NAME, "recursive"))
        tmpl_parse_fail(p, "a recursive loop is not supported");
    tmpl_accept(p, T_OPERATOR, ":");
    tmpl_expect(p, T_BLOCK_END, NULL);
    p->loops++;
    n->list = parse_body(p, "else endfor");
    p->loops--;
    if (tmpl_accept(p, T_NAME, "else"))
        n->other = parse_block(p, "endfor");
    else
        tmpl_expect(p, T_NAME, "endfor");
}

static void parse_if(struct parser *p, struct node *n) {
    struct node **end = &n->list;
    bool more = true;
    while (more && !p->work->failed) {
        struct node *branch = tmpl_node(p, N_BRANCH);
        if (!branch)
            return;
        branch->a = tmpl_parse_tuple(p, OF_UNBRANCHED, NULL);
        tmpl_accept(p, T_OPERATOR, ":");
        tmpl_expect(p, T_BLOCK_END, NULL);
        branch->list = parse_body(p, "elif else endif");
        *end = branch;
        end = &branch->next;
        more = tmpl_accept(p, T_NAME, "elif");
    }
    if (tmpl_accept(p, T_NAME, "else")) {
        struct node *branch = *end = tmpl_node(p, N_BRANCH);
        if (branch)
            branch->list = parse_block(p, "endif");
    } else {
        tmpl_expect(p, T_NAME, "endif");
    }
}

/* ---- set, macro, with, generation ----------------------------------------------------------- */

static void parse_set(struct parser *p, struct node *n) {
    n->a = parse_target(p, true);
    if (tmpl_accept(p, T_OPERATOR, "=")) {
        n->b = tmpl_parse_tuple(p, OF_EXPRESSIONS, NULL);
        return;
    }
    n->kind = N_SET_BLOCK;
    n->b = tmpl_parse_filters(p, tmpl_node(p, N_BODY));
    n->list = parse_block(p, "endset");
}

static void parse_macro(struct parser *p, struct node *n) {
    struct node **end = &n->other;
    int loops = p->loops;
    bool with_default = false;
    n->name = p->now->text;
    tmpl_expect(p, T_NAME, NULL);
    tmpl_expect(p, T_OPERATOR, "(");
    p->macros++;
    while (!tmpl_accept(p, T_OPERATOR, ")") && !p->work->failed) {
        struct node *parameter = *end = tmpl_node(p, N_NAME);
        if (!parameter)
            return;
        end = &parameter->next;
        parameter->name = p->now->text;
        if (tmpl_has_word("caller varargs kwargs loop", parameter->name))
            tmpl_parse_fail(p, "a parameter cannot have the name %.*s", (int)parameter->name.n,
                            parameter->name.data);
        tmpl_expect(p, T_NAME, NULL);
        if (tmpl_accept(p, T_OPERATOR, "=")) {
            parameter->a = tmpl_parse_expression(p);
            with_default = true;
        } else if (with_default) {
            tmpl_parse_fail(p, "a parameter without a default stands behind one with one");
        }
        if (!tmpl_at(p, T_OPERATOR, ")"))
            tmpl_expect(p, T_OPERATOR, ",");
    }
    p->loops = 0;
    n->list = parse_block(p, "endmacro");
    p->loops = loops;
    p->macros--;
}

static void parse_with(struct parser *p, struct node *n) {
    struct node **end = &n->other;
    while (!tmpl_at(p, T_BLOCK_END, NULL) && !p->work->failed) {
        struct node *set = *end = tmpl_node(p, N_SET);
        if (!set)
            return;
        end = &set->next;
        set->a = parse_target(p, false);
        tmpl_expect(p, T_OPERATOR, "=");
        set->b = tmpl_parse_expression(p);
        if (!tmpl_at(p, T_BLOCK_END, NULL))
            tmpl_expect(p, T_OPERATOR, ",");
    }
    n->list = parse_block(p, "endwith");
}

/* What transformers marks as written by the assistant: here, it is only written. */
static void parse_generation(struct parser *p, struct node *n) {
    int loops = p->loops;
    p->loops = 0; /* as in a macro, which it is there */
    n->list = parse_block(p, "endgeneration");
    p->loops = loops;
}

static void parse_jump(struct parser *p, struct node *n) {
    (void)n;
    if (!p->loops)
        tmpl_parse_fail(p, "break and continue belong into a loop");
}

/* ---- all of them ---------------------------------------------------------------------------- */

static struct node *parse_statement(struct parser *p) {
    static const struct {
        const char *name;
        enum node_kind kind;
        void (*parse)(struct parser *p, struct node *n);
    } table[] = {{"if", N_IF, parse_if},         {"for", N_FOR, parse_for},
                 {"set", N_SET, parse_set},      {"macro", N_MACRO, parse_macro},
                 {"with", N_WITH, parse_with},   {"generation", N_GENERATION, parse_generation},
                 {"break", N_BREAK, parse_jump}, {"continue", N_CONTINUE, parse_jump}};
    struct text name = p->now->text;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!tmpl_at(p, T_NAME, table[i].name))
            continue;
        struct node *n = tmpl_node(p, table[i].kind);
        p->now += !p->work->failed;
        if (n)
            table[i].parse(p, n);
        tmpl_expect(p, T_BLOCK_END, NULL);
        return n;
    }
    tmpl_parse_fail(p, "the tag {%% %.*s %%} is not supported here", name.n < 40 ? (int)name.n : 40,
                    name.data);
    return NULL;
}

static struct node *parse_output(struct parser *p) {
    struct node *n = tmpl_node(p, N_OUTPUT);
    if (n)
        n->a = tmpl_parse_tuple(p, OF_EXPRESSIONS, NULL);
    if (!tmpl_accept(p, T_OUTPUT_END, NULL))
        tmpl_parse_fail(p, "expected }}, not %.*s", p->now->text.n < 40 ? (int)p->now->text.n : 40,
                        p->now->text.data);
    return n;
}

/* Statements up to a tag with one of the names `ends` (the tag is entered, its name is next), or up
 * to the end of the template (NULL). */
static struct node *parse_body(struct parser *p, const char *ends) {
    struct node *first = NULL, **end = &first;
    int line = ends ? p->now[-1].line : 1; /* of the tag that opens the block */
    if (!tmpl_parse_enter(p))
        return NULL;
    while (!tmpl_at(p, T_END, NULL)) {
        struct node *n = NULL;
        if (tmpl_at(p, T_DATA, NULL)) {
            if ((n = tmpl_node(p, N_DATA)))
                n->name = p->now++->text;
        } else if (tmpl_accept(p, T_OUTPUT_BEGIN, NULL)) {
            n = parse_output(p);
        } else if (tmpl_accept(p, T_BLOCK_BEGIN, NULL)) {
            if (ends && tmpl_at(p, T_NAME, NULL) && tmpl_has_word(ends, p->now->text))
                break;
            n = parse_statement(p);
        }
        if (!n)
            break;
        *end = n;
        end = &n->next;
    }
    if (ends && tmpl_at(p, T_END, NULL) && !p->work->failed)
        tmpl_parse_fail(p, "the block of line %d is not closed: %s is missing", line, ends);
    p->depth--;
    return first;
}

struct node *tmpl_parse(struct work *w, struct text source, bool *parts) {
    struct parser p = {.work = w, .parts = parts};
    w->line = 1;
    if (source.n > TEMPLATE_SOURCE)
        tmpl_fail(w, "the template has more than %d bytes", TEMPLATE_SOURCE);
    if (!(p.now = tmpl_lex(w, source)))
        return NULL;
    struct node *body = parse_body(&p, NULL);
    return w->failed ? NULL : body;
}
