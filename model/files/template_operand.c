/* Tokens to trees: what operators stand between, a name, constant or bracket with subscripts,
 * calls, filters and tests behind it. */
#include "model/files/template_tree.h"

static bool sign(struct parser *p, const char *text) {
    return tmpl_accept(p, T_OPERATOR, text);
}

/* Names that mean something in Jinja that is not in the subset. */
static void check_name(struct parser *p, struct text name) {
    bool in_macro = p->macros && tmpl_has_word("caller varargs kwargs", name);
    if (in_macro || tmpl_has_word("self super cycler joiner lipsum", name))
        tmpl_parse_fail(p, "%.*s is not supported", (int)name.n, name.data);
}

static struct node *parse_name(struct parser *p) {
    struct text name = p->now->text;
    bool is_true = tmpl_has_word("true True", name), is_none = tmpl_has_word("none None", name);
    bool constant = is_true || is_none || tmpl_has_word("false False", name);
    check_name(p, name);
    struct node *n = tmpl_node(p, constant ? N_CONSTANT : N_NAME, p->now->line, NULL, NULL);
    n->name = name;
    n->constant = is_none ? (struct value){V_NONE, {0}} : tmpl_boolean(is_true);
    tmpl_accept(p, T_NAME, NULL);
    return n;
}

/* Strings behind each other are one. */
static struct node *parse_string(struct parser *p) {
    struct node *n = tmpl_node(p, N_CONSTANT, p->now->line, NULL, NULL);
    struct buffer all = {.work = p->work};
    while (tmpl_at(p, T_STRING, NULL)) {
        tmpl_add(&all, p->now->text);
        tmpl_accept(p, T_STRING, NULL);
    }
    n->constant = tmpl_string(tmpl_buffer_text(&all));
    return n;
}

/* [a, b] or {k: v, ...}, behind the opening bracket. */
static struct node *parse_items(struct parser *p, enum node_kind kind) {
    struct node *list = tmpl_node(p, kind, p->now->line, NULL, NULL);
    const char *closing = kind == N_LIST ? "]" : "}";
    while (!sign(p, closing) && !p->work->failed) {
        tmpl_list_add(list, tmpl_parse_expression(p));
        if (kind == N_DICT) {
            tmpl_expect(p, T_OPERATOR, ":");
            tmpl_list_add(list, tmpl_parse_expression(p));
        }
        if (!tmpl_at(p, T_OPERATOR, closing))
            tmpl_expect(p, T_OPERATOR, ",");
    }
    return list;
}

struct node *tmpl_parse_primary(struct parser *p) {
    struct node *n = &p->spare;
    struct text found = p->now->text;
    int line = p->now->line;
    if (tmpl_at(p, T_NAME, NULL))
        return parse_name(p);
    if (tmpl_at(p, T_STRING, NULL))
        return parse_string(p);
    if (tmpl_at(p, T_NUMBER, NULL)) {
        n = tmpl_node(p, N_CONSTANT, line, NULL, NULL);
        n->constant = p->now->number;
        tmpl_accept(p, T_NUMBER, NULL);
    } else if (sign(p, "[")) {
        n = parse_items(p, N_LIST);
    } else if (sign(p, "{")) {
        n = parse_items(p, N_DICT);
    } else if (sign(p, "(")) {
        n = tmpl_at(p, T_OPERATOR, ")") ? tmpl_node(p, N_TUPLE, line, NULL, NULL)
                                        : tmpl_parse_tuple(p, OF_EXPRESSIONS, NULL);
        tmpl_expect(p, T_OPERATOR, ")");
    } else {
        tmpl_parse_fail(p, "expected an expression, not %.*s", found.n < 40 ? (int)found.n : 40,
                        found.data);
    }
    return n;
}

/* ---- what stands behind --------------------------------------------------------------------- */

static bool at_keyword(const struct parser *p) {
    return tmpl_at(p, T_NAME, NULL) && p->now[1].kind == T_OPERATOR && tmpl_is(p->now[1].text, "=");
}

/* (a, b, name=c), into the list of call. */
static void parse_arguments(struct parser *p, struct node *call) {
    bool named = false;
    tmpl_expect(p, T_OPERATOR, "(");
    while (!sign(p, ")") && !p->work->failed) {
        struct node *n = tmpl_node(p, N_ARGUMENT, p->now->line, NULL, NULL);
        if (tmpl_at(p, T_OPERATOR, "*") || tmpl_at(p, T_OPERATOR, "**"))
            tmpl_parse_fail(p, "* and ** in calls are not supported");
        if (at_keyword(p)) {
            n->name = p->now->text;
            p->now += 2;
            named = true;
        } else if (named) {
            tmpl_parse_fail(p, "an argument without a name stands behind one with a name");
        }
        n->a = tmpl_parse_expression(p);
        tmpl_list_add(call, n);
        if (call->n > TEMPLATE_ARGUMENTS)
            tmpl_parse_fail(p, "a call has more than %d arguments", TEMPLATE_ARGUMENTS);
        if (!tmpl_at(p, T_OPERATOR, ")"))
            tmpl_expect(p, T_OPERATOR, ",");
    }
}

/* [i] or [first:last:step], behind the bracket. */
static struct node *parse_subscript(struct parser *p, struct node *of) {
    int line = p->now->line, colons = 0;
    struct node *parts[3] = {NULL};
    for (bool more = true; more && !p->work->failed;) {
        if (!tmpl_at(p, T_OPERATOR, ":") && !tmpl_at(p, T_OPERATOR, "]"))
            parts[colons] = tmpl_parse_expression(p);
        more = colons < 2 && sign(p, ":");
        colons += more;
    }
    if (tmpl_at(p, T_OPERATOR, ",") || (!colons && !parts[0]))
        tmpl_parse_fail(p, "one subscript is expected between [ and ]");
    tmpl_expect(p, T_OPERATOR, "]");
    struct node *item = tmpl_node(p, colons ? N_SLICE : N_ITEM, line, of, parts[0]);
    for (int i = 0; i < 3 && colons; i++) {
        struct node *none = tmpl_node(p, N_CONSTANT, line, NULL, NULL);
        none->constant.kind = V_NONE;
        tmpl_list_add(item, parts[i] ? parts[i] : none);
    }
    return item;
}

/* .name, .0, [i] and (...), as often as they come. */
static struct node *parse_postfix(struct parser *p, struct node *n) {
    while (!p->work->failed) {
        int line = p->now->line;
        if (tmpl_at(p, T_OPERATOR, "(")) {
            n = tmpl_node(p, N_CALL, line, n, NULL);
            parse_arguments(p, n);
        } else if (sign(p, "[")) {
            n = parse_subscript(p, n);
        } else if (!sign(p, ".")) {
            break;
        } else if (tmpl_at(p, T_NUMBER, NULL) && p->now->number.kind == V_INTEGER) {
            n = tmpl_node(p, N_ITEM, line, n, tmpl_parse_primary(p));
        } else {
            n = tmpl_node(p, N_ATTRIBUTE, line, n, NULL);
            n->name = p->now->text;
            tmpl_expect(p, T_NAME, NULL);
        }
    }
    return n;
}

/* The name of a filter or test, which must be known. */
static struct node *parse_builtin(struct parser *p, struct node *a, bool test) {
    struct text name = p->now->text;
    struct node *n = tmpl_node(p, N_BUILTIN, p->now->line, a, NULL);
    n->builtin = test ? tmpl_find_test(name) : tmpl_find_filter(name);
    if (tmpl_at(p, T_NAME, NULL) && !n->builtin)
        tmpl_parse_fail(p, "the %s %.*s is not supported", test ? "test" : "filter", (int)name.n,
                        name.data);
    tmpl_expect(p, T_NAME, NULL);
    if (tmpl_at(p, T_OPERATOR, "("))
        parse_arguments(p, n);
    return n;
}

/* Behind "is": [not] name, with arguments in parentheses or one without. */
static struct node *parse_test(struct parser *p, struct node *a) {
    int line = p->now->line;
    bool negated = tmpl_accept(p, T_NAME, "not");
    bool called = p->now->kind != T_END && tmpl_is(p->now[1].text, "(");
    struct node *n = parse_builtin(p, a, true);
    bool argument = tmpl_at(p, T_OPERATOR, "[") || tmpl_at(p, T_OPERATOR, "{") ||
                    tmpl_at(p, T_STRING, NULL) || tmpl_at(p, T_NUMBER, NULL) ||
                    (tmpl_at(p, T_NAME, NULL) && !tmpl_has_word("else or and", p->now->text));
    if (!called && argument) {
        if (tmpl_at(p, T_NAME, "is"))
            tmpl_parse_fail(p, "two tests behind each other");
        struct node *value = parse_postfix(p, tmpl_parse_primary(p));
        tmpl_list_add(n, tmpl_node(p, N_ARGUMENT, line, value, NULL));
    }
    return negated ? tmpl_node(p, N_NOT, line, n, NULL) : n;
}

/* [- or +] primary with what stands behind it; a sign counts before filters and tests. */
static struct node *parse_signed(struct parser *p) {
    int line = p->now->line;
    bool minus = sign(p, "-"), plus = !minus && sign(p, "+");
    if (!minus && !plus)
        return parse_postfix(p, tmpl_parse_primary(p));
    if (!tmpl_parse_enter(p))
        return &p->spare;
    struct node *n = tmpl_node(p, N_SIGN, line, parse_signed(p), NULL);
    n->op = minus ? OP_SUBTRACT : OP_ADD;
    p->depth--;
    return parse_postfix(p, n);
}

struct node *tmpl_parse_operand(struct parser *p) {
    struct node *n = parse_signed(p);
    while (!p->work->failed) {
        int line = p->now->line;
        if (sign(p, "|")) {
            n = parse_builtin(p, n, false);
        } else if (tmpl_accept(p, T_NAME, "is")) {
            n = parse_test(p, n);
        } else if (tmpl_at(p, T_OPERATOR, "(")) {
            n = tmpl_node(p, N_CALL, line, n, NULL);
            parse_arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}
