/* Tokens to trees: expressions, with Jinja's order of operations. */
#include "model/files/template_tree.h"

static bool word(struct parser *p, const char *text) {
    return tmpl_accept(p, T_NAME, text);
}

struct operator_of {
    const char *text;
    enum operation op;
};

static bool find_operator(struct parser *p, const struct operator_of *table, enum operation *op) {
    while (table->text && !tmpl_accept(p, T_OPERATOR, table->text))
        table++;
    *op = table->op;
    return table->text != NULL;
}

/* Level 0: + and -; level 1: ~; level 2: * / // %; level 3: what stands between them. */
static struct node *parse_arithmetic(struct parser *p, int level) {
    static const struct operator_of levels[3][5] = {
        {{"+", OP_ADD}, {"-", OP_SUBTRACT}},
        {{"~", OP_CONCATENATE}},
        {{"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR_DIVIDE}, {"%", OP_MODULO}}};
    enum operation op;
    int line = p->now->line;
    if (level == 3)
        return tmpl_parse_operand(p);
    struct node *n = parse_arithmetic(p, level + 1);
    if (tmpl_at(p, T_OPERATOR, "**"))
        tmpl_parse_fail(p, "the operator ** is not supported");
    while (find_operator(p, levels[level], &op)) {
        n = tmpl_node(p, N_BINARY, line, n, parse_arithmetic(p, level + 1));
        n->op = op;
        line = p->now->line;
    }
    return n;
}

static bool find_comparison(struct parser *p, enum operation *op) {
    static const struct operator_of table[] = {
        {"==", OP_EQUAL},  {"!=", OP_NOT_EQUAL},     {"<", OP_LESS}, {"<=", OP_LESS_EQUAL},
        {">", OP_GREATER}, {">=", OP_GREATER_EQUAL}, {NULL, OP_IN}};
    if (find_operator(p, table, op))
        return true;
    if (tmpl_at(p, T_NAME, "not") && p->now[1].kind == T_NAME && tmpl_is(p->now[1].text, "in") &&
        word(p, "not"))
        *op = OP_NOT_IN;
    return word(p, "in");
}

static struct node *parse_comparison(struct parser *p) {
    enum operation op;
    int line = p->now->line;
    struct node *first = parse_arithmetic(p, 0);
    struct node *n = tmpl_node(p, N_COMPARE, line, first, NULL);
    while (find_comparison(p, &op)) {
        struct node *operand = tmpl_node(p, N_OPERAND, line, parse_arithmetic(p, 0), NULL);
        operand->op = op;
        tmpl_list_add(n, operand);
    }
    return n->list ? n : first;
}

static struct node *parse_not(struct parser *p) {
    int line = p->now->line;
    if (!word(p, "not"))
        return parse_comparison(p);
    if (!tmpl_parse_enter(p))
        return &p->spare;
    struct node *n = tmpl_node(p, N_NOT, line, parse_not(p), NULL);
    p->depth--;
    return n;
}

static struct node *parse_logic(struct parser *p, bool is_or) {
    int line = p->now->line;
    struct node *n = is_or ? parse_logic(p, false) : parse_not(p);
    while (word(p, is_or ? "or" : "and")) {
        n = tmpl_node(p, N_BINARY, line, n, is_or ? parse_logic(p, false) : parse_not(p));
        n->op = is_or ? OP_OR : OP_AND;
        line = p->now->line;
    }
    return n;
}

struct node *tmpl_parse_expression(struct parser *p) {
    int line = p->now->line;
    if (!tmpl_parse_enter(p))
        return &p->spare;
    struct node *n = parse_logic(p, true);
    while (word(p, "if")) {
        struct node *condition = parse_logic(p, true);
        n = tmpl_node(p, N_CHOICE, line, condition, n);
        if (word(p, "else"))
            n->c = tmpl_parse_expression(p);
    }
    p->depth--;
    return n;
}

/* A name, names in brackets, or name.attribute. */
static struct node *parse_target(struct parser *p) {
    struct node *n = tmpl_parse_primary(p);
    if (n->kind != N_NAME || !tmpl_accept(p, T_OPERATOR, "."))
        return n;
    n = tmpl_node(p, N_ATTRIBUTE, n->line, n, NULL);
    n->name = p->now->text;
    tmpl_expect(p, T_NAME, NULL);
    return n;
}

static struct node *parse_one(struct parser *p, enum tuple_of what) {
    return what == OF_TARGETS      ? parse_target(p)
           : what == OF_UNBRANCHED ? parse_logic(p, true)
                                   : tmpl_parse_expression(p);
}

struct node *tmpl_parse_tuple(struct parser *p, enum tuple_of what, const char *end) {
    int line = p->now->line;
    struct node *tuple = NULL, *first = parse_one(p, what);
    while (tmpl_accept(p, T_OPERATOR, ",")) {
        if (!tuple) {
            tuple = tmpl_node(p, N_TUPLE, line, NULL, NULL);
            tmpl_list_add(tuple, first);
        }
        if (tmpl_at(p, T_OUTPUT_END, NULL) || tmpl_at(p, T_BLOCK_END, NULL) ||
            tmpl_at(p, T_OPERATOR, ")") || (end && tmpl_at(p, T_NAME, end)))
            break;
        tmpl_list_add(tuple, parse_one(p, what));
    }
    return tuple ? tuple : first;
}
