/* model/files/chat_template.h: what templates make of conversations, byte for byte what
 * transformers makes of them (fixtures/chat_templates), which templates are refused, limits,
 * folders. */
#include "model/files/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define FIXTURES "tests/fixtures/chat_templates/"

static json_t *read_fixture(const char *name) {
    char path[128];
    struct error err;
    snprintf(path, sizeof path, FIXTURES "%s", name);
    json_t *root = json_read_file(path, &err);
    if (!root)
        fail_msg("%s", err.text);
    return root;
}

static struct chat_template *parse(const char *text, size_t n, const json_t *variables) {
    struct chat_template *t;
    struct error err;
    if (chat_template_parse(&t, text, n, variables, "mem", &err))
        fail_msg("%.200s: %s", text, err.text);
    return t;
}

/* ---- goldens -------------------------------------------------------------------------------- */

static struct chat_template *parse_fixture(const char *name, const json_t *variables) {
    static char text[1 << 16];
    char path[128];
    snprintf(path, sizeof path, FIXTURES "%s.jinja", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text, file);
    assert_true(n > 0 && n < sizeof text);
    fclose(file);
    return parse(text, n, variables);
}

static json_t *golden_field(const json_t *root, const json_t *golden, const char *field) {
    return json_object_get(json_object_get(root, field),
                           json_string_value(json_object_get(golden, field)));
}

/* Renders as a chat does, or, without the beginning of an answer, the messages as they are. */
static int render_golden(const struct chat_template *t, const json_t *root, const json_t *golden,
                         char **out, size_t *n, struct error *err) {
    bool has_tools = json_is_true(json_object_get(golden, "tools"));
    bool generate = json_is_true(json_object_get(golden, "generate"));
    json_t *conversation =
        json_pack("{sO sO sb}", "messages", golden_field(root, golden, "messages"), "tools",
                  has_tools ? json_object_get(root, "tools") : json_null(), "add_generation_prompt",
                  generate);
    assert_non_null(conversation);
    int result = generate ? chat_render(t, conversation, "mem", out, n, err)
                          : chat_template_render(t, conversation, out, n, err);
    json_decref(conversation);
    return result;
}

static void check_golden(const json_t *root, const json_t *golden) {
    const char *name = json_string_value(json_object_get(golden, "template"));
    const char *messages = json_string_value(json_object_get(golden, "messages"));
    const json_t *text = json_object_get(golden, "text");
    struct chat_template_limits limits = {1000000, 1 << 24, 1 << 20, 0};
    struct error err = {""};
    char *out;
    size_t n = 0;
    json_t *variables = json_deep_copy(json_object_get(golden, "keywords"));
    json_object_set(variables, "bos_token", json_object_get(root, "bos_token"));
    json_object_set(variables, "eos_token", json_object_get(root, "eos_token"));
    struct chat_template *t = parse_fixture(name, variables);
    limits.now = (time_t)json_integer_value(json_object_get(root, "now"));
    chat_template_set_limits(t, &limits);
    int result = render_golden(t, root, golden, &out, &n, &err);
    if (text && result)
        fail_msg("%s, %s: %s", name, messages, err.text);
    if (!text && !result)
        fail_msg("%s, %s: no error, but %s", name, messages, out);
    if (text && (n != json_string_length(text) || memcmp(out, json_string_value(text), n) != 0))
        fail_msg("%s, %s: got\n%s\nwanted\n%s", name, messages, out, json_string_value(text));
    free(out);
    chat_template_free(t);
    json_decref(variables);
}

static void test_goldens(void **state) {
    (void)state;
    json_t *root = read_fixture("goldens.json"), *golden;
    size_t i;
    assert_true(json_array_size(json_object_get(root, "goldens")) > 400);
    json_array_foreach(json_object_get(root, "goldens"), i, golden) check_golden(root, golden);
    json_decref(root);
}

/* Random expressions and statements, and what Jinja made of them (differences.py). */
static void test_expressions(void **state) {
    (void)state;
    json_t *root = read_fixture("expressions.json"), *one;
    size_t i;
    assert_true(json_array_size(json_object_get(root, "cases")) > 500);
    json_array_foreach(json_object_get(root, "cases"), i, one) {
        const json_t *text = json_array_get(one, 0), *wanted = json_array_get(one, 1);
        struct chat_template *t = parse(json_string_value(text), json_string_length(text), NULL);
        struct error err;
        char *out;
        size_t n;
        if (chat_template_render(t, json_object_get(root, "variables"), &out, &n, &err))
            fail_msg("%s: %s", json_string_value(text), err.text);
        if (n != json_string_length(wanted) || memcmp(out, json_string_value(wanted), n) != 0)
            fail_msg("%s: got %s, wanted %s", json_string_value(text), out,
                     json_string_value(wanted));
        free(out);
        chat_template_free(t);
    }
    json_decref(root);
}

/* ---- errors --------------------------------------------------------------------------------- */

/* Parses and renders; the error must begin and say so. *out is NULL afterwards. */
static void assert_refused(const char *text, size_t n, const struct chat_template_limits *limits,
                           const char *says) {
    struct chat_template *t;
    struct error err = {""};
    char *out = (char *)text; /* anything */
    size_t n_bytes;
    json_t *variables = json_pack("{ss s[i i] s{si}}", "s", "abc", "l", 1, 2, "d", "a", 1);
    if (!chat_template_parse(&t, text, n, NULL, "mem", &err)) {
        if (limits)
            chat_template_set_limits(t, limits);
        if (!chat_template_render(t, variables, &out, &n_bytes, &err))
            fail_msg("%.200s: no error, but \"%.200s\"", text, out);
        assert_null(out);
        chat_template_free(t);
    } else {
        assert_null(t);
    }
    if (strncmp(err.text, "mem: line ", 10) != 0 || !strstr(err.text, says))
        fail_msg("%.200s: \"%s\" does not say \"%s\"", text, err.text, says);
    json_decref(variables);
}

/* A template, and what its error says. */
static const char *const refused[][2] = {
    /* text that is no template */
    {"{{ s", "line 1: the tag {{ is not closed"},
    {"\n\n{% if s", "line 3: the tag {% is not closed"},
    {"a\n{# b", "line 2: the comment {# is not closed"},
    {"{{ 'a }}", "a string is not closed"},
    {"{{ (s }}", "'}' closes nothing"},
    {"{{ s) }}", "')' closes nothing"},
    {"{{ s ? }}", "the character '?' cannot stand here"},
    {"{{ }}", "expected an expression"},
    {"{{ s s }}", "expected }}, not s"},
    {"{{ 007 }}", "the number 007"},
    {"{{ 99999999999999999999 }}", "the number 99999999999999999999"},
    {"{{ '\\ud800' }}", "no character"},
    /* blocks */
    {"a\n{% if s %}\n{% for x in l %}{% endfor %}", "line 3: the block of line 2 is not closed"},
    {"{% for x in l %}{% endif %}", "{% endif %} is not supported here"},
    {"{% endfor %}", "{% endfor %} is not supported here"},
    {"{% if s %}{% else %}{% else %}{% endif %}", "{% else %} is not supported here"},
    {"{% for x %}{% endfor %}", "expected in"},
    {"{% for loop in l %}{% endfor %}", "only names other than loop"},
    {"{% set 1 = 2 %}", "only names other than loop"},
    {"{% set s.x = 2 %}", "only a namespace"},
    {"{% set n = namespace() %}{% set n._x = 2 %}", "cannot begin with _"},
    {"{% break %}", "belong into a loop"},
    {"{% for x in l %}{% macro f() %}{% continue %}{% endmacro %}{% endfor %}", "into a loop"},
    {"{% macro f(a=1, b) %}{% endmacro %}", "without a default"},
    /* outside of the subset */
    {"\n{% include 'x' %}", "line 2: the tag {% include %} is not supported"},
    {"{% raw %}{% endraw %}", "{% raw %}"},
    {"{% call f() %}{% endcall %}", "{% call %}"},
    {"{% for x in l recursive %}{% endfor %}", "recursive"},
    {"{{ s|foo }}", "the filter foo is not supported"},
    {"{% if x is foo %}{% endif %}", "the test foo is not supported"},
    {"{{ l|select('foo')|list }}", "the test of select"},
    {"{{ 2 ** 3 }}", "the operator ** is not supported"},
    {"{{ f(a=1, 2) }}", "an argument without a name stands behind one with a name"},
    {"{{ f(a=1, a=2) }}", "is undefined"},
    {"{{ dict(a=1, a=2) }}", "two arguments have the name a"},
    {"{{ l[] }}", "one subscript is expected"},
    {"{{ l[1, 2] }}", "one subscript is expected"},
    {"{{ f(*l) }}", "* and ** in calls"},
    {"{% with x = 1 %}{% endwith %}", "{% with %}"},
    {"{% set x | trim %}{% endset %}", "expected %}, not |"},
    {"{{ s|tojson(sort_keys=true) }}", "ensure_ascii and sort_keys are not supported"},
    {"{{ 7.5 // 2 }}", "of float are not supported"},
    {"{{ [1] * 2 }}", "list * int is not supported"},
    {"{{ [1] < [2] }}", "list and list have no order"},
    {"{{ '\\101' }}", "the escape \\1 in a string"},
    {"{{ cycler(1) }}", "cycler is not supported"},
    {"{{ self }}", "self is not supported"},
    {"{% macro f() %}{{ varargs }}{% endmacro %}", "varargs is not supported"},
    {"{{ s.__class__ }}", "the attribute __class__ of str is not supported"},
    {"{{ s['__class__'] }}", "the attribute __class__ of str"},
    {"{{ d.__init__ }}", "the attribute __init__ of dict"},
    {"{{ s.format(1) }}", "the attribute format of str"},
    {"{{ l.append(1) }}", "the attribute append of list"},
    {"{{ d.update(a=2) }}", "the attribute update of dict"},
    {"{{ d.get(key='a') }}", "an argument with a name"},
    {"{{ loop.cycle(1) }}", "'loop' is undefined"},
    {"{% for x in l %}{{ loop.changed(x) }}{% endfor %}", "loop.changed is not supported"},
    {"{{ {1: 2} }}", "a key that is int"},
    {"{{ '\xc3\x9f'|upper }}", "the case of \xc3\x9f is not supported"},
    {"{{ '\xc2\xaa'.title() }}", "the case of \xc2\xaa is not supported"},
    {"{{ range }}", "a function cannot be written as text"},
    {"{{ l|map('upper') }}", "a generator cannot be written"},
    /* wrong while it runs */
    {"{{ missing.x }}", "'missing' is undefined"},
    {"{{ s.x.y }}", "'x' is undefined"},
    {"{{ missing + 1 }}", "'missing' is undefined"},
    {"{{ missing() }}", "'missing' is undefined"},
    {"{{ s() }}", "str cannot be called"},
    {"{{ s + 1 }}", "str + int is not supported"},
    {"{{ s < 1 }}", "str and int have no order"},
    {"{{ 1 in s }}", "int cannot be in str"},
    {"{{ 1 // 0 }}", "division by zero"},
    {"{{ 1.0 / 0 }}", "division by zero"},
    {"{{ 9223372036854775807 + 1 }}", "too large"},
    {"{{ -9223372036854775807 - 2 }}", "too large"},
    {"{{ 9223372036854775807 * 2 }}", "too large"},
    {"{{ 1e308 * 10 }}", "too large"},
    {"{{ l[::0] }}", "step of a slice"},
    {"{{ l['a':] }}", "a slice needs integers"},
    {"{% for x in 5 %}{% endfor %}", "int cannot be iterated over"},
    {"{% for a, b in [[1]] %}{% endfor %}", "1 values cannot be assigned to 2 names"},
    {"{{ l|map('first')|list }}", "cannot be iterated over"},
    {"{{ (1).x|length }}{{ 1|length }}", "int has no length"},
    {"{{ range|tojson }}", "function has no form in JSON"},
    {"{{ s.split('') }}", "the separator is empty"},
    {"{{ s.replace('a') }}", "replace needs 2 arguments"},
    {"{{ s|trim(1, 2) }}", "trim has no parameter"},
    {"{{ s|default(x=2) }}", "default has no parameter x"},
    {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "the macro f has no such argument"},
    {"{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "the macro f has no such argument"},
    {"\n{{ raise_exception('no: %s') }}", "line 2: no: %s"},
    {"{{ strftime_now('%Y' * 50) }}", "the format is too long"},
    {"{{ range(0, 5, 0) }}", "range"},
    {"{{ range(100001)|list|length }}", "more than 100,000 numbers"},
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++)
        assert_refused(refused[i][0], strlen(refused[i][0]), NULL, refused[i][1]);
}

/* n times a text, between two others. */
static char *repeated(const char *before, const char *text, size_t n, const char *behind) {
    char *out = malloc(strlen(before) + n * strlen(text) + strlen(behind) + 1), *end;
    assert_non_null(out);
    end = stpcpy(out, before);
    for (size_t i = 0; i < n; i++)
        end = stpcpy(end, text);
    strcpy(end, behind);
    return out;
}

/* What nests too deeply is an error, wherever it nests, and no overflow of the stack. */
static void test_depth(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"{{ ", "(", "nest deeper"},           {"{{ ", "[", "nest deeper"},
        {"{{ ", "{'a':", "nest deeper"},       {"{{ s", "[s", "nest deeper"},
        {"{{ ", "not ", "nests deeper"},       {"{{ ", "-", "nests deeper"},
        {"{{ ", "1if 1else ", "nests deeper"}, {"{{ s", "|trim(s", "nest deeper"},
        {"", "{% if s %}", "nests deeper"},    {"", "{% for x in l %}", "nests deeper"},
        {"", "{% set x %}", "nests deeper"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t length = strlen(cases[i][1]), n = length > 10 ? 1000000 / length : 100000;
        char *text = repeated(cases[i][0], cases[i][1], n, *cases[i][0] ? " }}" : "");
        assert_refused(text, strlen(text), NULL, cases[i][2]);
        free(text);
    }
    /* Read in a loop, but a tree as deep as it is long. */
    static const char *const trees[] = {"+1", ".x", "|trim", "[0]", "(1)"};
    for (size_t i = 0; i < COUNT(trees); i++) {
        char *text = repeated("{{ s", trees[i], 100000, " }}");
        assert_refused(text, strlen(text), NULL, "nests deeper than 200");
        free(text);
    }
    static const char *const values[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{% for x in l %}{{ f(n + 1) }}{% endfor %}{% endif %}{% "
        "endmacro "
        "%}{{ f(1) }}",
        "{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% endfor "
        "%}{{ "
        "n.x }}",
        "{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = {'a': n.x} %}{% "
        "endfor "
        "%}{{ n.x|tojson }}",
        ("{% set n = namespace(x=[], y=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% set "
         "n.y = [n.y] %}{% endfor %}{{ n.x == n.y }}"),
    };
    for (size_t i = 0; i < COUNT(values); i++)
        assert_refused(values[i], strlen(values[i]), NULL, "nests deeper than 200");
}

static void test_limits(void **state) {
    (void)state;
    static const struct chat_template_limits small = {100000, 1 << 26, 1 << 20, 0};
    static const char *const cases[][2] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         "too many steps"},
        {"{% for a in range(999) %}{% for b in range(999) %}{% if b %}{% endif %}{% endfor %}{% "
         "endfor %}",
         "too many steps"},
        {"{{ 'abc' * 1000000000 }}", "too many steps"},
        {"{{ '' * 9000000000000000000 }}{{ missing.x }}", "undefined"},
        {"{{ 'abcdefghijkl'|replace('', 'x' * 300 * 300) }}", "writes more than 1 MiB"},
        {"{% set x = 'y' * 90000 %}{% for i in range(999) %}{{ x in x }}{% endfor %}",
         "too many steps"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused(cases[i][0], strlen(cases[i][0]), &small, cases[i][1]);
    struct chat_template_limits memory = {100000, 1 << 20, 1 << 20, 0};
    char doubling[] =
        "{% set n = namespace(x='abc') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}";
    assert_refused(doubling, strlen(doubling), &memory, "more than 1 MiB of memory");
    struct chat_template_limits output = {100000, 1 << 26, 1 << 20, 0};
    char text[] = "{% set x = 'y' * 600 * 500 %}{{ x }}{{ x }}{{ x }}{{ x }}";
    assert_refused(text, strlen(text), &output, "writes more than 1 MiB");
    char *large = repeated("", "0123456789abcdef", 1 << 16, "x");
    assert_refused(large, strlen(large), NULL, "has more than 1048576 bytes");
    free(large);
}

/* ---- folders -------------------------------------------------------------------------------- */

static char folder[] = "/tmp/samebits-template-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text) {
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* Loads the folder and renders without variables; NULL: it has no template. To be freed. */
static char *rendered(void) {
    struct chat_template *t;
    struct error err;
    char *out = NULL;
    size_t n;
    if (chat_template_load(&t, folder, &err))
        fail_msg("%s", err.text);
    if (t && chat_template_render(t, NULL, &out, &n, &err))
        fail_msg("%s", err.text);
    chat_template_free(t);
    return out;
}

static void assert_rendered(const char *wanted) {
    char *out = rendered();
    assert_string_equal(out, wanted);
    free(out);
}

static void test_folder(void **state) {
    (void)state;
    assert_null(rendered());
    write_file("tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    assert_null(rendered());
    write_file("tokenizer_config.json", "{\"chat_template\": \"a{{ bos_token }}{{ eos_token }}\", "
                                        "\"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}, "
                                        "\"eos_token\": null}");
    assert_rendered("a<s>");
    write_file("tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"b\"},"
               "{\"name\": \"default\", \"template\": \"c{{ eos_token }}\"}], "
               "\"eos_token\": \"</s>\"}");
    assert_rendered("c</s>");
    write_file("chat_template.jinja", "d{{ eos_token }}\r\n");
    assert_rendered("d</s>");

    struct chat_template *t = (struct chat_template *)folder; /* anything */
    struct error err = {""};
    write_file("chat_template.jinja", "\n{% x %}");
    assert_int_equal(chat_template_load(&t, folder, &err), -1);
    assert_null(t);
    assert_string_equal(strstr(err.text, "chat_template.jinja"),
                        "chat_template.jinja: line 2: the tag {% x %} is not supported here");
    assert_int_equal(unlink(in_folder("chat_template.jinja")), 0);
    write_file("tokenizer_config.json", "{");
    assert_int_equal(chat_template_load(&t, folder, &err), -1);
    assert_non_null(strstr(err.text, "tokenizer_config.json: line 1"));
    assert_int_equal(unlink(in_folder("tokenizer_config.json")), 0);
}

/* Only a file that is not there is no template. */
static void test_file_that_cannot_be_read(void **state) {
    (void)state;
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja"};
    static const char *const reasons[] = {"Too many levels of symbolic links",
                                          "No such file or directory", "Is a directory"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *const targets[] = {names[i], "nowhere", "."};
        for (int j = 0; j < 3; j++) {
            struct chat_template *t;
            struct error err = {""};
            assert_int_equal(symlink(targets[j], in_folder(names[i])), 0);
            assert_int_equal(chat_template_load(&t, folder, &err), -1);
            assert_null(t);
            if (!strstr(err.text, names[i]) || !strstr(err.text, reasons[j]))
                fail_msg("\"%s\" does not say %s: %s", err.text, names[i], reasons[j]);
            assert_int_equal(unlink(in_folder(names[i])), 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_file_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
