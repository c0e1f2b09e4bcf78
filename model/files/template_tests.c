/* Tests: what stands behind "is", and what select and reject are given. */
#include "model/files/template_internal.h"

static struct value test_defined(struct call *c) {
    return tmpl_boolean(c->self.kind != V_UNDEFINED);
}
static struct value test_undefined(struct call *c) {
    return tmpl_boolean(c->self.kind == V_UNDEFINED);
}
static struct value test_none(struct call *c) {
    return tmpl_boolean(c->self.kind == V_NONE);
}
static struct value test_boolean(struct call *c) {
    return tmpl_boolean(c->self.kind == V_BOOLEAN);
}
static struct value test_true(struct call *c) {
    return tmpl_boolean(c->self.kind == V_BOOLEAN && c->self.as.boolean);
}
static struct value test_false(struct call *c) {
    return tmpl_boolean(c->self.kind == V_BOOLEAN && !c->self.as.boolean);
}
static struct value test_integer(struct call *c) {
    return tmpl_boolean(c->self.kind == V_INTEGER);
}
static struct value test_float(struct call *c) {
    return tmpl_boolean(c->self.kind == V_REAL);
}
static struct value test_number(struct call *c) {
    return tmpl_boolean(tmpl_is_number(c->self));
}
static struct value test_string(struct call *c) {
    return tmpl_boolean(c->self.kind == V_STRING);
}
static struct value test_mapping(struct call *c) {
    return tmpl_boolean(c->self.kind == V_DICT);
}
static struct value test_callable(struct call *c) {
    return tmpl_boolean(c->self.kind >= V_LOOP || c->self.kind == V_UNDEFINED);
}

/* What has a length and subscripts; in Jinja, undefined has both. */
static struct value test_sequence(struct call *c) {
    enum kind k = c->self.kind;
    return tmpl_boolean(k == V_UNDEFINED || (k >= V_STRING && k <= V_RANGE) || k == V_DICT);
}

static struct value test_iterable(struct call *c) {
    enum kind k = c->self.kind;
    return tmpl_boolean(k == V_UNDEFINED || (k >= V_STRING && k <= V_DICT) || k == V_LOOP);
}

static int64_t whole(struct call *c) {
    int64_t i;
    if (!tmpl_as_integer(c->self, &i))
        tmpl_fail(&c->run->work, "the test is for integers, not for %s",
                  tmpl_kind_name(c->self.kind));
    return i;
}
static struct value test_odd(struct call *c) {
    return tmpl_boolean(whole(c) % 2 != 0);
}
static struct value test_even(struct call *c) {
    return tmpl_boolean(whole(c) % 2 == 0);
}
static struct value test_divisible(struct call *c) {
    int64_t by = tmpl_integer_arg(c, 0, 1);
    if (by == 0)
        tmpl_fail(&c->run->work, "division by zero");
    return tmpl_boolean(by != 0 && (by == -1 || whole(c) % by == 0));
}

static struct value test_equal(struct call *c) {
    return tmpl_boolean(tmpl_equal(c->run, c->self, c->arg[0]));
}
static struct value test_not_equal(struct call *c) {
    return tmpl_boolean(!tmpl_equal(c->run, c->self, c->arg[0]));
}
static struct value test_less(struct call *c) {
    return tmpl_boolean(tmpl_compare(c->run, c->self, c->arg[0]) < 0);
}
static struct value test_less_equal(struct call *c) {
    return tmpl_boolean(tmpl_compare(c->run, c->self, c->arg[0]) <= 0);
}
static struct value test_greater(struct call *c) {
    return tmpl_boolean(tmpl_compare(c->run, c->self, c->arg[0]) > 0);
}
static struct value test_greater_equal(struct call *c) {
    return tmpl_boolean(tmpl_compare(c->run, c->self, c->arg[0]) >= 0);
}
static struct value test_in(struct call *c) {
    return tmpl_boolean(tmpl_contains(c->run, c->arg[0], c->self));
}

const struct builtin *tmpl_find_test(struct text name) {
    static const struct builtin table[] = {{"!=", "other", 1, test_not_equal},
                                           {"<", "other", 1, test_less},
                                           {"<=", "other", 1, test_less_equal},
                                           {"==", "other", 1, test_equal},
                                           {">", "other", 1, test_greater},
                                           {">=", "other", 1, test_greater_equal},
                                           {"boolean", "", 0, test_boolean},
                                           {"callable", "", 0, test_callable},
                                           {"defined", "", 0, test_defined},
                                           {"divisibleby", "num", 1, test_divisible},
                                           {"eq", "other", 1, test_equal},
                                           {"equalto", "other", 1, test_equal},
                                           {"even", "", 0, test_even},
                                           {"false", "", 0, test_false},
                                           {"float", "", 0, test_float},
                                           {"ge", "other", 1, test_greater_equal},
                                           {"greaterthan", "other", 1, test_greater},
                                           {"gt", "other", 1, test_greater},
                                           {"in", "seq", 1, test_in},
                                           {"integer", "", 0, test_integer},
                                           {"iterable", "", 0, test_iterable},
                                           {"le", "other", 1, test_less_equal},
                                           {"lessthan", "other", 1, test_less},
                                           {"lt", "other", 1, test_less},
                                           {"mapping", "", 0, test_mapping},
                                           {"ne", "other", 1, test_not_equal},
                                           {"none", "", 0, test_none},
                                           {"number", "", 0, test_number},
                                           {"odd", "", 0, test_odd},
                                           {"sequence", "", 0, test_sequence},
                                           {"string", "", 0, test_string},
                                           {"true", "", 0, test_true},
                                           {"undefined", "", 0, test_undefined},
                                           {0}};
    return tmpl_find_builtin(table, name);
}
