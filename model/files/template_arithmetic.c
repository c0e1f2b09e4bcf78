/* Operators: arithmetic with Python's rules, and comparisons. */
#include "model/files/template_tree.h"

#include <math.h>

/* Whole numbers. / and // are Python's: a quotient that is no integer, and rounding down. */
static struct value calculate(struct run *r, enum operation op, int64_t a, int64_t b) {
    static const int64_t exact = (int64_t)1 << 53; /* every integer up to here is a double */
    int64_t out = 0;
    bool overflow = false, one_less = b && b != -1 && a % b != 0 && (a < 0) != (b < 0);
    if (op == OP_ADD)
        overflow = __builtin_add_overflow(a, b, &out);
    else if (op == OP_SUBTRACT)
        overflow = __builtin_sub_overflow(a, b, &out);
    else if (op == OP_MULTIPLY)
        overflow = __builtin_mul_overflow(a, b, &out);
    else if (b == 0)
        tmpl_fail(&r->work, "division by zero");
    else if (op == OP_DIVIDE && a >= -exact && a <= exact && b >= -exact && b <= exact)
        return (struct value){V_REAL, {.real = (double)a / (double)b}};
    else if (op == OP_DIVIDE || (b == -1 && a == INT64_MIN))
        overflow = true;
    else if (op == OP_FLOOR_DIVIDE)
        out = a / b - one_less;
    else
        out = b == -1 ? 0 : a % b + (one_less ? b : 0);
    if (overflow)
        tmpl_fail(&r->work, "an integer is too large");
    return tmpl_integer(out);
}

static struct value calculate_real(struct run *r, enum operation op, double a, double b) {
    double out = op == OP_ADD        ? a + b
                 : op == OP_SUBTRACT ? a - b
                 : op == OP_MULTIPLY ? a * b
                 : b != 0            ? a / b
                                     : 0;
    if (op == OP_FLOOR_DIVIDE || op == OP_MODULO)
        tmpl_fail(&r->work, "// and %% of float are not supported");
    else if (op == OP_DIVIDE && b == 0)
        tmpl_fail(&r->work, "division by zero");
    else if (!isfinite(out))
        tmpl_fail(&r->work, "a number is too large");
    return (struct value){V_REAL, {.real = isfinite(out) ? out : 0}};
}

static struct value repeat(struct run *r, struct text t, int64_t n) {
    struct buffer text = {.work = &r->work};
    for (; n > 0 && t.n && tmpl_spend(r, t.n); n--)
        tmpl_add(&text, t);
    return tmpl_string(tmpl_buffer_text(&text));
}

static struct value join(struct run *r, struct text a, struct text b) {
    struct buffer both = {.work = &r->work};
    if (tmpl_spend(r, a.n + b.n)) {
        tmpl_reserve(&both, a.n + b.n);
        tmpl_add(&both, a);
        tmpl_add(&both, b);
    }
    return tmpl_string(tmpl_buffer_text(&both));
}

static struct value add_lists(struct run *r, struct value a, struct value b) {
    size_t n = a.as.list->n, n_b = b.as.list->n;
    struct value out = tmpl_new_list(r, a.kind, n + n_b);
    for (size_t i = 0; i < n + n_b && tmpl_spend(r, 0); i++)
        tmpl_append(r, out.as.list, i < n ? a.as.list->items[i] : b.as.list->items[i - n]);
    return out;
}

struct value tmpl_arithmetic(struct run *r, enum operation op, struct value a, struct value b) {
    static const char *const signs[] = {"or", "and", "+", "-", "~", "*", "/", "//", "%"};
    int64_t i, j;
    bool whole = tmpl_as_integer(a, &i), whole_b = tmpl_as_integer(b, &j);
    if (r->work.failed)
        return tmpl_undefined("");
    if (op == OP_CONCATENATE)
        return join(r, tmpl_str(r, a), tmpl_str(r, b));
    if (whole && whole_b)
        return calculate(r, op, i, j);
    if (tmpl_is_number(a) && tmpl_is_number(b))
        return calculate_real(r, op, tmpl_as_real(a), tmpl_as_real(b));
    if (op == OP_ADD && a.kind == b.kind && a.kind == V_STRING)
        return join(r, a.as.text, b.as.text);
    if (op == OP_ADD && a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE))
        return add_lists(r, a, b);
    if (op == OP_MULTIPLY && ((whole && b.kind == V_STRING) || (whole_b && a.kind == V_STRING)))
        return whole ? repeat(r, b.as.text, i) : repeat(r, a.as.text, j);
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        tmpl_fail_undefined(r, a.kind == V_UNDEFINED ? a : b);
    tmpl_fail(&r->work, "%s %s %s is not supported", tmpl_kind_name(a.kind), signs[op],
              tmpl_kind_name(b.kind));
    return tmpl_undefined("");
}

bool tmpl_holds(struct run *r, enum operation op, struct value a, struct value b) {
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
