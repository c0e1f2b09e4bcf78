/* Tests: what stands behind "is", and what select and reject are given. */
#include "model/files/template_internal.h"

/* Tests of the kind of a value alone. */
static bool is_kind(struct call *c, unsigned kinds) {
    return kinds >> c->self.kind & 1;
}
#define KIND(k) (1u << V_##k)
#define KIND_TEST(name, kinds)                                                                     \
    static struct value name(struct call *c) {                                                     \
        return tmpl_boolean(is_kind(c, kinds));                                                    \
    }
KIND_TEST(test_defined, ~KIND(UNDEFINED))
KIND_TEST(test_undefined, KIND(UNDEFINED))
KIND_TEST(test_none, KIND(NONE))
KIND_TEST(test_boolean, KIND(BOOLEAN))
KIND_TEST(test_integer, KIND(INTEGER))
KIND_TEST(test_float, KIND(REAL))
KIND_TEST(test_number, KIND(BOOLEAN) | KIND(INTEGER) | KIND(REAL))
KIND_TEST(test_string, KIND(STRING))
KIND_TEST(test_mapping, KIND(DICT))
/* What has a length and subscripts; in Jinja, undefined has both. */
KIND_TEST(test_sequence,
          KIND(UNDEFINED) | KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(RANGE) | KIND(DICT))
KIND_TEST(test_iterable, KIND(UNDEFINED) | KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(RANGE) |
                             KIND(VIEW) | KIND(GENERATOR) | KIND(DICT) | KIND(LOOP))
KIND_TEST(test_callable, KIND(UNDEFINED) | KIND(LOOP) | KIND(MACRO) | KIND(METHOD) | KIND(FUNCTION))

static struct value test_true(struct call *c) {
    return tmpl_boolean(c->self.kind == V_BOOLEAN && c->self.as.boolean);
}
static struct value test_false(struct call *c) {
    return tmpl_boolean(c->self.kind == V_BOOLEAN && !c->self.as.boolean);
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
