/*
 * template_tree.h - tokens and trees of templates, for the files that make them and run them.
 *
 * A parser never stops in the middle: after an error it sees the end of the template wherever it
 * looks, and every new node is the same spare one. A tree that was made then is not looked at.
 */
#ifndef SAMEBITS_MODEL_FILES_TEMPLATE_TREE_H
#define SAMEBITS_MODEL_FILES_TEMPLATE_TREE_H

#include "model/files/template_internal.h"

enum token_kind {
    T_END,
    T_DATA,         /* text between tags, stripped */
    T_OUTPUT_BEGIN, /* {{ */
    T_OUTPUT_END,
    T_BLOCK_BEGIN, /* {% */
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_NUMBER,
    T_OPERATOR
};

struct token {
    enum token_kind kind;
    int line;
    struct text text; /* T_STRING: without quotes and escapes */
    struct value number;
};

/* All tokens of a template, T_END at the end. NULL after an error. */
struct token *tmpl_lex(struct work *w, struct text source);

enum node_kind {
    /* expressions */
    N_CONSTANT,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,      /* list: key, value, key, ... */
    N_ATTRIBUTE, /* a.name */
    N_ITEM,      /* a[b] */
    N_SLICE,     /* a[first:last:step]; list: three, none where one is left out */
    N_CALL,      /* a(list) */
    N_ARGUMENT,  /* a, or name=a, in a list of arguments */
    N_BUILTIN,   /* a | builtin(list), a is builtin(list) */
    N_NOT,
    N_SIGN,    /* -a or +a: OP_SUBTRACT, OP_ADD */
    N_BINARY,  /* a op b */
    N_COMPARE, /* a, and a chain of N_OPERAND in list */
    N_OPERAND, /* op a */
    N_CHOICE,  /* b if a else c; c may be NULL */
    /* statements */
    N_DATA,
    N_OUTPUT,
    N_IF,        /* list: N_BRANCH */
    N_BRANCH,    /* condition a (NULL: else), body list */
    N_FOR,       /* for a in b if c: list, else: other */
    N_SET,       /* a = b */
    N_SET_BLOCK, /* a = what list writes */
    N_MACRO,     /* name(other: N_NAME with default a): list */
    N_GENERATION,
    N_BREAK,
    N_CONTINUE
};

enum operation {
    OP_OR,
    OP_AND,
    OP_ADD,
    OP_SUBTRACT,
    OP_CONCATENATE,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR_DIVIDE,
    OP_MODULO,
    OP_EQUAL,
    OP_NOT_EQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN
};

struct node {
    enum node_kind kind;
    enum operation op;
    int line;
    int n; /* items of list */
    struct text name;
    struct value constant;
    const struct builtin *builtin;
    struct node *a, *b, *c;
    struct node *list, *other; /* first of several, linked by next */
    struct node *last;         /* of list */
    struct node *next;
};

struct parser {
    struct work *work;
    const struct token *now;
    int depth;
    int loops;         /* how many are open, for break and continue */
    int macros;        /* how many are open */
    bool *parts;       /* set when a loop runs over something called content */
    struct node spare; /* what every node is after an error */
};

/* Sets the error, with the line of the token that is next, and goes to the end. */
void tmpl_parse_fail(struct parser *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A node that begins at this line, with children. */
struct node *tmpl_node(struct parser *p, enum node_kind kind, int line, struct node *a,
                       struct node *b);
/* Appends to the list of a node. */
void tmpl_list_add(struct node *list, struct node *n);
/* Whether a token is next; text NULL: any of that kind. tmpl_accept skips it then, and tmpl_expect
 * fails if it is not. */
bool tmpl_at(const struct parser *p, enum token_kind kind, const char *text);
bool tmpl_accept(struct parser *p, enum token_kind kind, const char *text);
void tmpl_expect(struct parser *p, enum token_kind kind, const char *text);
/* Begins something that nests; to be followed by p->depth--. False: give up. */
bool tmpl_parse_enter(struct parser *p);

struct node *tmpl_parse_expression(struct parser *p);
/* What operators stand between: a name, constant or bracket alone; with the subscripts and calls
 * behind it; with sign, filters and tests. */
struct node *tmpl_parse_primary(struct parser *p);
struct node *tmpl_parse_operand(struct parser *p);

enum tuple_of {
    OF_TARGETS,    /* what can be assigned to */
    OF_UNBRANCHED, /* expressions to which an "if" behind them does not belong */
    OF_EXPRESSIONS
};
/* One thing, or a tuple if there are commas; a comma may stand at its end, before the word `end`
 * (NULL: none) or the end of the tag. */
struct node *tmpl_parse_tuple(struct parser *p, enum tuple_of what, const char *end);

/* The template as statements; NULL after an error or for an empty one. */
struct node *tmpl_parse(struct work *w, struct text source, bool *parts);

/* value[key], as the sandbox of Jinja finds it, and so on for the nodes of the same name. */
struct value tmpl_eval(struct run *r, const struct node *n);
struct value tmpl_slice(struct run *r, const struct node *n);
struct value tmpl_arithmetic(struct run *r, enum operation op, struct value a, struct value b);
bool tmpl_holds(struct run *r, enum operation op, struct value a, struct value b);
struct value tmpl_call_macro(struct run *r, const struct macro *m, const struct arguments *all);
/* Runs a template with these variables; what it writes goes to r->out. */
void tmpl_execute(struct run *r, const struct node *body, struct dict *variables);

#endif
