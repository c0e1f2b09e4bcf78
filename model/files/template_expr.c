/* Tokens to trees: expressions, with Jinja's order of operations. */
#include "model/files/template_internal.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- what all of the parser uses ------------------------------------------------------------ */

/* After an error only the end is left to see, so that every loop ends. */
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

struct node *tmpl_node(struct parser *p, enum node_kind kind) {
    struct node *n = tmpl_alloc(p->work, sizeof *n);
    if (!n) {
        skip_to_end(p);
        return NULL;
    }
    n->kind = kind;
    n->line = p->now->line;
    return n;
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
    bool found = tmpl_at(p, kind, text);
    if (found && p->now->kind != T_END)
        p->now++;
    return found;
}

void tmpl_expect(struct parser *p, enum token_kind kind, const char *text) {
    const char *wanted = text ? text : kind == T_BLOCK_END ? "%}" : "a name";
    struct text found = p->now->text;
    if (!tmpl_accept(p, kind, text))
        tmpl_parse_fail(p, "expected %s, not %.*s", wanted, found.n < 40 ? (int)found.n : 40,
                        found.data);
}

static bool word(struct parser *p, const char *text) {
    return tmpl_accept(p, T_NAME, text);
}

static bool sign(struct parser *p, const char *text) {
    return tmpl_accept(p, T_OPERATOR, text);
}

/* Makes a node around children; line: where it begins. */
static struct node *make(struct parser *p, enum node_kind kind, int line, struct node *a,
                         struct node *b) {
    struct node *n = tmpl_node(p, kind);
    if (n) {
        n->line = line;
        n->a = a;
        n->b = b;
    }
    return n;
}

/* The end of a list under construction: n goes behind the last one. */
static void append(struct node *list, struct node ***end, struct node *n) {
    if (!n)
        return;
    **end = n;
    *end = &n->next;
    list->n++;
}

/* ---- names, constants, brackets ------------------------------------------------------------- */

/* Names that mean something in Jinja that is not in the subset. */
static void check_name(struct parser *p, struct text name) {
    bool in_macro = p->macros && tmpl_has_word("caller varargs kwargs", name);
    if (in_macro || tmpl_has_word("self super cycler joiner lipsum", name))
        tmpl_parse_fail(p, "%.*s is not supported", (int)name.n, name.data);
}

static struct node *parse_name(struct parser *p) {
    struct text name = p->now->text;
    bool is_true = tmpl_has_word("true True", name);
    if (is_true || tmpl_has_word("false False none None", name)) {
        struct node *n = tmpl_node(p, N_CONSTANT);
        if (n)
            n->constant = tmpl_has_word("none None", name) ? (struct value){V_NONE, {0}}
                                                           : tmpl_boolean(is_true);
        p->now += !p->work->failed;
        return n;
    }
    check_name(p, name);
    struct node *n = tmpl_node(p, N_NAME);
    if (n)
        n->name = name;
    p->now += !p->work->failed;
    return n;
}

/* Strings behind each other are one. */
static struct node *parse_string(struct parser *p) {
    struct node *n = tmpl_node(p, N_CONSTANT);
    struct buffer all = {.work = p->work};
    struct text first = p->now->text;
    bool several = false;
    p->now += n != NULL;
    for (; n && tmpl_at(p, T_STRING, NULL); p->now += !p->work->failed) {
        if (!several)
            tmpl_add(&all, first);
        several = true;
        tmpl_add(&all, p->now->text);
    }
    if (n)
        n->constant = tmpl_string(several ? tmpl_buffer_text(&all) : first);
    return n;
}

/* [a, b] or {k: v, ...}, behind the opening bracket. */
static struct node *parse_items(struct parser *p, enum node_kind kind) {
    struct node *list = tmpl_node(p, kind);
    struct node **end = list ? &list->list : NULL;
    const char *closing = kind == N_LIST ? "]" : "}";
    while (list && !sign(p, closing) && !p->work->failed) {
        append(list, &end, tmpl_parse_expression(p));
        if (kind == N_DICT) {
            tmpl_expect(p, T_OPERATOR, ":");
            append(list, &end, tmpl_parse_expression(p));
        }
        if (!tmpl_at(p, T_OPERATOR, closing))
            tmpl_expect(p, T_OPERATOR, ",");
    }
    return list;
}

static struct node *parse_primary(struct parser *p) {
    struct node *n = NULL;
    struct text found = p->now->text;
    if (tmpl_at(p, T_NAME, NULL))
        return parse_name(p);
    if (tmpl_at(p, T_STRING, NULL))
        return parse_string(p);
    if (tmpl_at(p, T_NUMBER, NULL)) {
        n = tmpl_node(p, N_CONSTANT);
        if (n)
            n->constant = p->now++->number;
        return n;
    }
    if (sign(p, "[")) {
        n = parse_items(p, N_LIST);
    } else if (sign(p, "{")) {
        n = parse_items(p, N_DICT);
    } else if (sign(p, "(")) {
        n = tmpl_at(p, T_OPERATOR, ")") ? tmpl_node(p, N_TUPLE)
                                        : tmpl_parse_tuple(p, OF_EXPRESSIONS, NULL);
        tmpl_expect(p, T_OPERATOR, ")");
    } else {
        tmpl_parse_fail(p, "expected an expression, not %.*s", found.n < 40 ? (int)found.n : 40,
                        found.data);
    }
    return n;
}

/* ---- what stands behind --------------------------------------------------------------------- */

/* (a, b, name=c), into the list of call. */
static void parse_arguments(struct parser *p, struct node *call) {
    struct node **end = call ? &call->list : NULL;
    bool named = false;
    tmpl_expect(p, T_OPERATOR, "(");
    while (call && !sign(p, ")") && !p->work->failed) {
        struct node *n = tmpl_node(p, N_ARGUMENT);
        if (tmpl_at(p, T_OPERATOR, "*") || tmpl_at(p, T_OPERATOR, "**"))
            tmpl_parse_fail(p, "* and ** in calls are not supported");
        if (n && tmpl_at(p, T_NAME, NULL) && p->now[1].kind == T_OPERATOR &&
            tmpl_is(p->now[1].text, "=")) {
            n->name = p->now->text;
            p->now += 2;
            named = true;
        } else if (named) {
            tmpl_parse_fail(p, "an argument without a name stands behind one with a name");
        }
        if (n)
            n->a = tmpl_parse_expression(p);
        append(call, &end, n);
        if (call->n > TEMPLATE_ARGUMENTS)
            tmpl_parse_fail(p, "a call has more than %d arguments", TEMPLATE_ARGUMENTS);
        if (!tmpl_at(p, T_OPERATOR, ")"))
            tmpl_expect(p, T_OPERATOR, ",");
    }
}

/* [i] or [first:last:step], behind the bracket. */
static struct node *parse_subscript(struct parser *p, struct node *of) {
    int line = p->now->line;
    struct node *parts[3] = {NULL};
    int n = 0;
    bool slice = false;
    while (!tmpl_at(p, T_OPERATOR, "]") && n < 3 && !p->work->failed) {
        if (sign(p, ":")) {
            slice = true;
            n++;
        } else {
            parts[n] = tmpl_parse_expression(p);
            if (!tmpl_at(p, T_OPERATOR, ":"))
                break;
        }
    }
    if (tmpl_at(p, T_OPERATOR, ",") || (!slice && !parts[0]))
        tmpl_parse_fail(p, "one subscript is expected between [ and ]");
    tmpl_expect(p, T_OPERATOR, "]");
    struct node *item = make(p, slice ? N_SLICE : N_ITEM, line, of, parts[0]);
    if (!slice || !item)
        return item;
    struct node **end = &item->list;
    for (int i = 0; i < 3; i++) {
        struct node *none = parts[i] ? parts[i] : tmpl_node(p, N_CONSTANT);
        if (none && !parts[i])
            none->constant.kind = V_NONE;
        append(item, &end, none);
    }
    return item;
}

/* .name, .0, [i] and (...), as often as they come. */
static struct node *parse_postfix(struct parser *p, struct node *n) {
    while (!p->work->failed) {
        int line = p->now->line;
        if (tmpl_at(p, T_OPERATOR, "(")) {
            n = make(p, N_CALL, line, n, NULL);
            parse_arguments(p, n);
        } else if (sign(p, "[")) {
            n = parse_subscript(p, n);
        } else if (sign(p, ".")) {
            bool number = tmpl_at(p, T_NUMBER, NULL) && p->now->number.kind == V_INTEGER;
            n = number ? make(p, N_ITEM, line, n, parse_primary(p))
                       : make(p, N_ATTRIBUTE, line, n, NULL);
            if (n && !number)
                n->name = p->now->text;
            if (!number)
                tmpl_expect(p, T_NAME, NULL);
        } else {
            break;
        }
    }
    return n;
}

static struct node *parse_filter(struct parser *p, struct node *a) {
    struct node *n = make(p, N_FILTER, p->now->line, a, NULL);
    struct text name = p->now->text;
    if (n && tmpl_at(p, T_NAME, NULL) && !(n->builtin = tmpl_find_filter(name)))
        tmpl_parse_fail(p, "the filter %.*s is not supported", (int)name.n, name.data);
    tmpl_expect(p, T_NAME, NULL);
    if (tmpl_at(p, T_OPERATOR, "("))
        parse_arguments(p, n);
    return n;
}

struct node *tmpl_parse_filters(struct parser *p, struct node *a) {
    while (sign(p, "|"))
        a = parse_filter(p, a);
    return a;
}

/* Behind "is": [not] name, with arguments in parentheses or one without. */
static struct node *parse_test(struct parser *p, struct node *a) {
    int line = p->now->line;
    bool negated = word(p, "not");
    struct node *n = make(p, N_TEST, line, a, NULL);
    struct text name = p->now->text;
    if (n && tmpl_at(p, T_NAME, NULL) && !(n->builtin = tmpl_find_test(name)))
        tmpl_parse_fail(p, "the test %.*s is not supported", (int)name.n, name.data);
    tmpl_expect(p, T_NAME, NULL);
    bool bracket = tmpl_at(p, T_OPERATOR, "[") || tmpl_at(p, T_OPERATOR, "{");
    bool is_word = tmpl_at(p, T_NAME, NULL) && !tmpl_has_word("else or and", p->now->text);
    if (tmpl_at(p, T_OPERATOR, "(")) {
        parse_arguments(p, n);
    } else if (n &&
               (bracket || is_word || tmpl_at(p, T_STRING, NULL) || tmpl_at(p, T_NUMBER, NULL))) {
        if (tmpl_at(p, T_NAME, "is"))
            tmpl_parse_fail(p, "two tests behind each other");
        struct node *argument = tmpl_node(p, N_ARGUMENT);
        if (argument)
            argument->a = parse_postfix(p, parse_primary(p));
        n->list = argument;
        n->n = 1;
    }
    return negated ? make(p, N_NOT, line, n, NULL) : n;
}

static struct node *parse_unary(struct parser *p, bool with_filter) {
    struct node *n;
    int line = p->now->line;
    bool minus = sign(p, "-"), plus = !minus && sign(p, "+");
    if (!tmpl_parse_enter(p))
        return NULL;
    if (minus || plus)
        n = make(p, minus ? N_NEGATIVE : N_POSITIVE, line, parse_unary(p, false), NULL);
    else
        n = parse_primary(p);
    n = parse_postfix(p, n);
    while (with_filter && !p->work->failed) {
        if (sign(p, "|")) {
            n = parse_filter(p, n);
        } else if (word(p, "is")) {
            n = parse_test(p, n);
        } else if (tmpl_at(p, T_OPERATOR, "(")) {
            n = make(p, N_CALL, line, n, NULL);
            parse_arguments(p, n);
        } else {
            break;
        }
    }
    p->depth--;
    return n;
}

/* ---- operators ------------------------------------------------------------------------------ */

struct operator_of {
    const char *text;
    enum operation op;
};

static bool find_operator(struct parser *p, const struct operator_of *table, enum operation *op) {
    for (; table->text; table++) {
        if (tmpl_at(p, T_OPERATOR, table->text)) {
            *op = table->op;
            p->now++;
            return true;
        }
    }
    return false;
}

/* Level 2: * / // %; level 1: ~; level 0: + and -. */
static struct node *parse_arithmetic(struct parser *p, int level) {
    static const struct operator_of levels[3][5] = {
        {{"+", OP_ADD}, {"-", OP_SUBTRACT}},
        {{"~", OP_CONCATENATE}},
        {{"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR_DIVIDE}, {"%", OP_MODULO}}};
    enum operation op;
    int line = p->now->line;
    struct node *n = level == 2 ? parse_unary(p, true) : parse_arithmetic(p, level + 1);
    if (level == 2 && tmpl_at(p, T_OPERATOR, "**"))
        tmpl_parse_fail(p, "the operator ** is not supported");
    while (find_operator(p, levels[level], &op)) {
        struct node *right = level == 2 ? parse_unary(p, true) : parse_arithmetic(p, level + 1);
        n = make(p, N_BINARY, line, n, right);
        if (n)
            n->op = op;
        line = p->now->line;
    }
    return n;
}

static bool find_comparison(struct parser *p, enum operation *op) {
    static const struct operator_of table[] = {
        {"==", OP_EQUAL},  {"!=", OP_NOT_EQUAL},     {"<", OP_LESS},  {"<=", OP_LESS_EQUAL},
        {">", OP_GREATER}, {">=", OP_GREATER_EQUAL}, {NULL, OP_EQUAL}};
    if (find_operator(p, table, op))
        return true;
    bool negated =
        tmpl_at(p, T_NAME, "not") && p->now[1].kind == T_NAME && tmpl_is(p->now[1].text, "in");
    *op = negated ? OP_NOT_IN : OP_IN;
    p->now += negated;
    return word(p, "in");
}

static struct node *parse_comparison(struct parser *p) {
    enum operation op;
    int line = p->now->line;
    struct node *first = parse_arithmetic(p, 0), *n = first, **end = NULL;
    while (find_comparison(p, &op)) {
        if (n == first && (n = make(p, N_COMPARE, line, first, NULL)))
            end = &n->list;
        struct node *operand = make(p, N_OPERAND, line, parse_arithmetic(p, 0), NULL);
        if (!n || !operand)
            return NULL;
        operand->op = op;
        append(n, &end, operand);
    }
    return n;
}

static struct node *parse_not(struct parser *p) {
    int line = p->now->line;
    if (!word(p, "not"))
        return parse_comparison(p);
    if (!tmpl_parse_enter(p))
        return NULL;
    struct node *n = make(p, N_NOT, line, parse_not(p), NULL);
    p->depth--;
    return n;
}

static struct node *parse_logic(struct parser *p, bool is_or) {
    int line = p->now->line;
    struct node *n = is_or ? parse_logic(p, false) : parse_not(p);
    while (word(p, is_or ? "or" : "and")) {
        n = make(p, N_BINARY, line, n, is_or ? parse_logic(p, false) : parse_not(p));
        if (n)
            n->op = is_or ? OP_OR : OP_AND;
        line = p->now->line;
    }
    return n;
}

struct node *tmpl_parse_expression(struct parser *p) {
    if (!tmpl_parse_enter(p))
        return NULL;
    int line = p->now->line;
    struct node *n = parse_logic(p, true);
    while (word(p, "if")) {
        struct node *condition = parse_logic(p, true);
        n = make(p, N_CHOICE, line, condition, n);
        if (word(p, "else") && n)
            n->c = tmpl_parse_expression(p);
    }
    p->depth--;
    return n;
}

/* A name, names in brackets, or name.attribute. */
static struct node *parse_target(struct parser *p) {
    struct node *n = parse_primary(p);
    if (!n || n->kind != N_NAME || !sign(p, "."))
        return n;
    struct node *attribute = make(p, N_ATTRIBUTE, n->line, n, NULL);
    if (attribute)
        attribute->name = p->now->text;
    tmpl_expect(p, T_NAME, NULL);
    return attribute;
}

static struct node *parse_one(struct parser *p, enum tuple_of what) {
    return what == OF_TARGETS      ? parse_target(p)
           : what == OF_UNBRANCHED ? parse_logic(p, true)
                                   : tmpl_parse_expression(p);
}

struct node *tmpl_parse_tuple(struct parser *p, enum tuple_of what, const char *end) {
    int line = p->now->line;
    struct node *tuple = NULL, **last = NULL, *first = parse_one(p, what);
    while (sign(p, ",")) {
        if (!tuple) {
            if (!(tuple = make(p, N_TUPLE, line, NULL, NULL)))
                break;
            last = &tuple->list;
            append(tuple, &last, first);
        }
        if (tmpl_at(p, T_OUTPUT_END, NULL) || tmpl_at(p, T_BLOCK_END, NULL) ||
            tmpl_at(p, T_OPERATOR, ")") || (end && tmpl_at(p, T_NAME, end)))
            break;
        append(tuple, &last, parse_one(p, what));
    }
    return tuple ? tuple : first;
}
