/* Tokens to trees: statements. A tag that is not in the subset is refused by name. */
#include "model/files/template_tree.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- what all of the parser uses ------------------------------------------------------------ */

static void skip_to_end(struct parser *p) {
    while (p->now->kind != T_END)
        p->now++;
}

void tmpl_parse_fail(struct parser *p, const char *format, ...) {
    char text[300];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    p->work->line = p->now->line;
    tmpl_fail(p->work, "%s", text);
    skip_to_end(p);
}

struct node *tmpl_node(struct parser *p, enum node_kind kind, int line, struct node *a,
                       struct node *b) {
    struct node *n = tmpl_alloc(p->work, sizeof *n);
    if (!n) {
        skip_to_end(p);
        n = &p->spare;
    }
    *n = (struct node){.kind = kind, .line = line, .a = a, .b = b};
    return n;
}

void tmpl_list_add(struct node *list, struct node *n) {
    if (list->last)
        list->last->next = n;
    else
        list->list = n;
    list->last = n;
    list->n++;
}

bool tmpl_parse_enter(struct parser *p) {
    if (p->depth == TEMPLATE_DEPTH)
        tmpl_parse_fail(p, "the template nests deeper than %d", TEMPLATE_DEPTH);
    else
        p->depth++;
    return !p->work->failed;
}

bool tmpl_at(const struct parser *p, enum token_kind kind, const char *text) {
    return p->now->kind == kind && (!text || tmpl_is(p->now->text, text));
}

bool tmpl_accept(struct parser *p, enum token_kind kind, const char *text) {
    bool found = kind != T_END && tmpl_at(p, kind, text);
    p->now += found;
    return found;
}

void tmpl_expect(struct parser *p, enum token_kind kind, const char *text) {
    const char *wanted = text                   ? text
                         : kind == T_BLOCK_END  ? "%}"
                         : kind == T_OUTPUT_END ? "}}"
                                                : "a name";
    struct text found = p->now->text;
    if (!tmpl_accept(p, kind, text))
        tmpl_parse_fail(p, "expected %s, not %.*s", wanted, found.n < 40 ? (int)found.n : 40,
                        found.data);
}

/* ---- for and if ----------------------------------------------------------------------------- */

static struct node *parse_body(struct parser *p, const char *ends);

/* The statements of a block: from the end of the tag that opens it to the tag that ends it, whose
 * name is next. */
static struct node *parse_block(struct parser *p, const char *ends) {
    tmpl_accept(p, T_OPERATOR, ":");
    tmpl_expect(p, T_BLOCK_END, NULL);
    return parse_body(p, ends);
}

static bool is_target(const struct node *n) {
    if (n->kind == N_NAME)
        return !tmpl_is(n->name, "loop");
    const struct node *i = n->kind == N_TUPLE ? n->list : NULL;
    bool all = i != NULL;
    for (; i && all; i = i->next)
        all = is_target(i);
    return all;
}

/* What is assigned to: names, or (with_attribute) name.attribute. */
static struct node *parse_target(struct parser *p, bool with_attribute) {
    struct node *n = tmpl_parse_tuple(p, OF_TARGETS, "in");
    if (!p->work->failed && !is_target(n) && !(with_attribute && n->kind == N_ATTRIBUTE))
        tmpl_parse_fail(p, "only names other than loop can be assigned to");
    return n;
}

/* Whether an iterable is `x.content`, `x['content']` or `content`. */
static bool is_content(const struct node *n) {
    if (n->kind == N_ITEM)
        return n->b->kind == N_CONSTANT && n->b->constant.kind == V_STRING &&
               tmpl_is(n->b->constant.as.text, "content");
    return (n->kind == N_ATTRIBUTE || n->kind == N_NAME) && tmpl_is(n->name, "content");
}

static void parse_for(struct parser *p, struct node *n) {
    n->a = parse_target(p, false);
    tmpl_expect(p, T_NAME, "in");
    n->b = tmpl_parse_tuple(p, OF_UNBRANCHED, NULL);
    *p->parts = *p->parts || (!p->work->failed && is_content(n->b));
    if (tmpl_accept(p, T_NAME, "if"))
        n->c = tmpl_parse_expression(p);
    if (tmpl_at(p, T_NAME, "recursive"))
        tmpl_parse_fail(p, "a recursive loop is not supported");
    p->loops++;
    n->list = parse_block(p, "else endfor");
    p->loops--;
    if (tmpl_accept(p, T_NAME, "else"))
        n->other = parse_block(p, "endfor");
    tmpl_expect(p, T_NAME, "endfor");
}

static void parse_if(struct parser *p, struct node *n) {
    do {
        struct node *branch = tmpl_node(p, N_BRANCH, p->now->line, NULL, NULL);
        branch->a = tmpl_parse_tuple(p, OF_UNBRANCHED, NULL);
        branch->list = parse_block(p, "elif else endif");
        tmpl_list_add(n, branch);
    } while (tmpl_accept(p, T_NAME, "elif"));
    if (tmpl_accept(p, T_NAME, "else")) {
        struct node *branch = tmpl_node(p, N_BRANCH, p->now->line, NULL, NULL);
        branch->list = parse_block(p, "endif");
        tmpl_list_add(n, branch);
    }
    tmpl_expect(p, T_NAME, "endif");
}

/* ---- set, macro, generation ----------------------------------------------------------------- */

static void parse_set(struct parser *p, struct node *n) {
    n->a = parse_target(p, true);
    if (tmpl_accept(p, T_OPERATOR, "=")) {
        n->b = tmpl_parse_tuple(p, OF_EXPRESSIONS, NULL);
        return;
    }
    n->kind = N_SET_BLOCK;
    n->list = parse_block(p, "endset");
    tmpl_expect(p, T_NAME, "endset");
}

/* A body from which break and continue cannot leave. */
static struct node *parse_closed(struct parser *p, const char *end) {
    int loops = p->loops;
    p->loops = 0;
    struct node *body = parse_block(p, end);
    tmpl_expect(p, T_NAME, end);
    p->loops = loops;
    return body;
}

static void parse_macro(struct parser *p, struct node *n) {
    struct node **end = &n->other;
    n->name = p->now->text;
    tmpl_expect(p, T_NAME, NULL);
    tmpl_expect(p, T_OPERATOR, "(");
    p->macros++;
    for (bool defaults = false; !tmpl_accept(p, T_OPERATOR, ")") && !p->work->failed;) {
        struct node *parameter = tmpl_node(p, N_NAME, p->now->line, NULL, NULL);
        *end = parameter;
        end = &parameter->next;
        parameter->name = p->now->text;
        if (tmpl_has_word("caller varargs kwargs loop", parameter->name))
            tmpl_parse_fail(p, "a parameter cannot have the name %.*s", (int)parameter->name.n,
                            parameter->name.data);
        tmpl_expect(p, T_NAME, NULL);
        if (tmpl_accept(p, T_OPERATOR, "="))
            parameter->a = tmpl_parse_expression(p);
        else if (defaults)
            tmpl_parse_fail(p, "a parameter without a default stands behind one with one");
        defaults = parameter->a != NULL;
        if (!tmpl_at(p, T_OPERATOR, ")"))
            tmpl_expect(p, T_OPERATOR, ",");
    }
    n->list = parse_closed(p, "endmacro");
    p->macros--;
}

/* What transformers marks as written by the assistant, and runs as a macro: here, it only runs. */
static void parse_generation(struct parser *p, struct node *n) {
    n->list = parse_closed(p, "endgeneration");
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
    } table[] = {{"if", N_IF, parse_if},
                 {"for", N_FOR, parse_for},
                 {"set", N_SET, parse_set},
                 {"macro", N_MACRO, parse_macro},
                 {"generation", N_GENERATION, parse_generation},
                 {"break", N_BREAK, parse_jump},
                 {"continue", N_CONTINUE, parse_jump}};
    struct text name = p->now->text;
    int line = p->now->line;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!tmpl_accept(p, T_NAME, table[i].name))
            continue;
        struct node *n = tmpl_node(p, table[i].kind, line, NULL, NULL);
        table[i].parse(p, n);
        tmpl_expect(p, T_BLOCK_END, NULL);
        return n;
    }
    tmpl_parse_fail(p, "the tag {%% %.*s %%} is not supported here", name.n < 40 ? (int)name.n : 40,
                    name.data);
    return &p->spare;
}

/* Statements up to a tag with one of the names `ends` (the tag is entered, its name is next), or up
 * to the end of the template (NULL). */
static struct node *parse_body(struct parser *p, const char *ends) {
    struct node *first = NULL, **end = &first;
    int line = ends ? p->now[-1].line : 1; /* of the tag that opens the block */
    if (!tmpl_parse_enter(p))
        return NULL;
    while (!tmpl_at(p, T_END, NULL)) {
        struct node *n;
        if (tmpl_at(p, T_DATA, NULL)) {
            n = tmpl_node(p, N_DATA, p->now->line, NULL, NULL);
            n->name = p->now->text;
            tmpl_accept(p, T_DATA, NULL);
        } else if (tmpl_accept(p, T_OUTPUT_BEGIN, NULL)) {
            n = tmpl_node(p, N_OUTPUT, p->now->line, NULL, NULL);
            n->a = tmpl_parse_tuple(p, OF_EXPRESSIONS, NULL);
            tmpl_expect(p, T_OUTPUT_END, NULL);
        } else {
            tmpl_expect(p, T_BLOCK_BEGIN, NULL);
            if (ends && tmpl_at(p, T_NAME, NULL) && tmpl_has_word(ends, p->now->text))
                break;
            n = parse_statement(p);
        }
        *end = n;
        end = &n->next;
    }
    if (ends && tmpl_at(p, T_END, NULL))
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
