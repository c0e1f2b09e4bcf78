/*
 * template_internal.h - what the files of the template interpreter share. Nobody else includes it.
 *
 *   template_memory.c      memory, the first error, steps, text
 *   template_value.c       values: equality, order, iteration, from JSON
 *   template_write.c       values as text: str(), repr() and JSON
 *   template_lex.c         text to tokens; trim_blocks, lstrip_blocks and "-" happen here
 *   template_operand.c     tokens to trees: what operators stand between
 *   template_expr.c        tokens to trees: expressions
 *   template_parse.c       tokens to trees: statements
 *   template_access.c      attributes, subscripts, slices
 *   template_arithmetic.c  operators
 *   template_eval.c        trees of expressions to values
 *   template_run.c         statements: scopes, loops, macros, output
 *   template_filters.c     filters and global functions
 *   template_tests.c       tests (what stands behind "is")
 *   template_strings.c     methods and filters of strings, methods of dicts
 *
 * The meaning of everything is that of Jinja 3.1 and Python: text counts in characters, `1 == 1.0`,
 * a filter like `map` gives a generator, which is used up by reading it. Integers have 64 bits;
 * what would leave them is refused.
 *
 * Errors are sticky: the first one is kept in struct work, after it every evaluation ends at once
 * with an undefined value, and only loops and whoever dereferences a new pointer look at `failed`.
 */
#ifndef SAMEBITS_MODEL_FILES_TEMPLATE_INTERNAL_H
#define SAMEBITS_MODEL_FILES_TEMPLATE_INTERNAL_H

#include "model/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
    TEMPLATE_DEPTH = 200,     /* how deep a template, its values and its macros may nest */
    TEMPLATE_ARGUMENTS = 32,  /* of one call */
    TEMPLATE_SOURCE = 1 << 20 /* bytes of a template */
};

/* ---- memory and errors ---------------------------------------------------------------------- */

struct block;

/* What one parse or one rendering works with: its memory, freed at once at its end, and its first
 * error. */
struct work {
    struct block *blocks;
    size_t n_bytes, most_bytes;
    const char *where; /* names the template in errors */
    int line;          /* of the template, for errors */
    bool failed;
    struct error *err;
};

/* n zeroed bytes, or NULL after an error. */
void *tmpl_alloc(struct work *w, size_t n);
void tmpl_free_all(struct work *w);
/* Sets the error, with file and line, unless there is one already. */
void tmpl_fail(struct work *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct text {
    const char *data; /* not NULL, unless something says so */
    size_t n;
};

static inline struct text tmpl_text(const char *s) {
    return (struct text){s, strlen(s)};
}

static inline bool tmpl_same_text(struct text a, struct text b) {
    return a.n == b.n && memcmp(a.data, b.data, a.n) == 0;
}

static inline bool tmpl_is(struct text a, const char *b) {
    return tmpl_same_text(a, tmpl_text(b));
}

/* Whether a list of words with single spaces between them has this one. */
bool tmpl_has_word(const char *words, struct text word);

struct buffer {
    struct work *work;
    char *data;
    size_t n, cap;
    size_t most; /* more bytes than this are an error; 0: no bound of its own */
};

void tmpl_reserve(struct buffer *b, size_t n); /* room for n bytes, not less than it has */
void tmpl_add(struct buffer *b, struct text t);
void tmpl_addf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline struct text tmpl_buffer_text(const struct buffer *b) {
    return (struct text){b->data ? b->data : "", b->n};
}

/* The character at the start of t (t.n > 0): sets *c and returns its length; a byte that is not
 * UTF-8 is a character of one byte. */
size_t tmpl_char(struct text t, int32_t *c);
size_t tmpl_length(struct text t); /* in characters */
bool tmpl_is_space(int32_t c);     /* Python's str.isspace */
/* strip, lstrip, rstrip: characters of `set` go; set.data NULL: white space goes. */
struct text tmpl_strip(struct text t, struct text set, bool left, bool right);

/* ---- values --------------------------------------------------------------------------------- */

enum kind {
    V_UNDEFINED,
    V_NONE,
    V_BOOLEAN,
    V_INTEGER,
    V_REAL,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_RANGE,
    V_VIEW,      /* what dict.items(), keys() and values() give */
    V_GENERATOR, /* what map, select and the like give: can be read once */
    V_DICT,
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_METHOD,
    V_FUNCTION,
    V_ABSENT /* an argument that was not given */
};

struct value {
    enum kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;       /* always finite */
        struct text text;  /* V_STRING; V_UNDEFINED: its name, for errors */
        struct list *list; /* V_LIST to V_GENERATOR */
        struct dict *dict; /* V_DICT, V_NAMESPACE */
        const struct loop *loop;
        const struct macro *macro;
        const struct method *method;
        const struct builtin *function;
    } as;
};

struct list {
    struct value *items;
    size_t n, cap;
    size_t at; /* V_GENERATOR: how many have been read */
};

/* In the order of insertion. Keys are strings. */
struct dict {
    struct text *keys;
    struct value *values;
    size_t n, cap;
};

struct loop {
    const struct list *items;
    size_t index;
};

struct scope {
    struct dict names;
    struct scope *parent;
};

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was defined */
};

struct method {
    struct value self;
    const struct builtin *builtin;
};

static inline struct value tmpl_undefined(const char *name) {
    return (struct value){V_UNDEFINED, {.text = {name, strlen(name)}}};
}
static inline struct value tmpl_boolean(bool b) {
    return (struct value){V_BOOLEAN, {.boolean = b}};
}
static inline struct value tmpl_integer(int64_t i) {
    return (struct value){V_INTEGER, {.integer = i}};
}
static inline struct value tmpl_string(struct text t) {
    return (struct value){V_STRING, {.text = t}};
}

/* What one rendering works with, beside its memory. */
struct run {
    struct work work;
    size_t steps; /* that are left */
    int depth;
    time_t now;          /* of strftime_now; 0: the clock's */
    struct buffer *out;  /* where statements write */
    struct scope *scope; /* where names are looked up */
};

/* Uses up steps: one, and one more for every 64 of `size` (bytes, or items). False when none are
 * left or something failed. */
bool tmpl_spend(struct run *r, size_t size);
/* Begins something that nests, with steps for it; false: give up. To be followed by r->depth--. */
bool tmpl_enter(struct run *r);

const char *tmpl_kind_name(enum kind kind); /* Python's name of the type */
struct value tmpl_new_list(struct run *r, enum kind kind, size_t capacity);
void tmpl_append(struct run *r, struct list *list, struct value v);
struct value tmpl_pair(struct run *r, struct value first, struct value second); /* a tuple */
struct value *tmpl_find(const struct dict *d, struct text key);                 /* or NULL */
void tmpl_put(struct work *w, struct dict *d, struct text key, struct value v); /* adds, replaces */
struct value tmpl_from_json(struct run *r, const json_t *json);
bool tmpl_truth(struct value v);
bool tmpl_is_number(struct value v); /* booleans are numbers */
bool tmpl_as_integer(struct value v, int64_t *out);
double tmpl_as_real(struct value v);
bool tmpl_equal(struct run *r, struct value a, struct value b);
/* <0, 0, >0; what has no order is an error. */
int tmpl_compare(struct run *r, struct value a, struct value b);
/* `item in container`. */
bool tmpl_contains(struct run *r, struct value container, struct value item);
/* len(); what has none is an error. */
size_t tmpl_size(struct run *r, struct value v);
/* The items to iterate over, NULL after an error. A generator is used up. */
struct list *tmpl_items_of(struct run *r, struct value v);

/* str(v), and appended to a buffer. */
struct text tmpl_str(struct run *r, struct value v);
void tmpl_write_str(struct run *r, struct buffer *b, struct value v);

/* ---- running -------------------------------------------------------------------------------- */

struct arguments {
    struct value *items;
    struct text *names; /* data NULL: by position; these come first */
    size_t n;
};

enum { TEMPLATE_PARAMETERS = 4 };

/* A call of something that is built in. */
struct call {
    struct run *run;
    struct value self;                     /* what is filtered, tested, or has the method */
    struct value arg[TEMPLATE_PARAMETERS]; /* V_ABSENT where not given */
    const struct arguments *all;
};

struct builtin {
    const char *name;
    const char *parameters; /* their names; NULL: any, the function looks at `all` */
    int required;
    struct value (*function)(struct call *c);
};

/* NULL when there is none. Tests give booleans. */
const struct builtin *tmpl_find_filter(struct text name);
const struct builtin *tmpl_find_test(struct text name);
const struct builtin *tmpl_find_function(struct text name);
const struct builtin *tmpl_find_string_method(struct text name);
const struct builtin *tmpl_find_dict_method(struct text name);
const struct builtin *tmpl_find_string_filter(struct text name);
struct value tmpl_filter_tojson(struct call *c);
struct value tmpl_lower(struct run *r, struct text t);

/* Finds a name in a table that ends with a builtin without a name. */
const struct builtin *tmpl_find_builtin(const struct builtin *table, struct text name);
struct value tmpl_call_builtin(struct run *r, const struct builtin *b, struct value self,
                               const struct arguments *all);
/* Arguments of a call: the default where not given; another type is an error. */
int64_t tmpl_integer_arg(struct call *c, int i, int64_t if_absent);
struct text tmpl_text_arg(struct call *c, int i, struct text if_absent);

/* value.name and value[key], as the sandbox of Jinja finds them. */
struct value tmpl_attribute(struct run *r, struct value of, struct text name);
struct value tmpl_item(struct run *r, struct value of, struct value key);
void tmpl_fail_undefined(struct run *r, struct value v);

#endif
