/* model/files/chat.h: what a conversation may hold, what the template sees of it, and the text that
 * the shipped model's template makes. */
#include "model/files/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The text of a conversation by a template, to be freed. */
static char *render(const struct chat_template *t, const json_t *conversation) {
    struct error err;
    char *out;
    size_t n;
    if (chat_render(t, conversation, "mem", &out, &n, &err))
        fail_msg("%s", err.text);
    assert_int_equal(n, strlen(out));
    return out;
}

/* Renders a conversation, given as JSON, by a template, given as text. */
static void assert_renders(const char *template, const char *conversation, const char *wanted) {
    struct chat_template *t;
    struct error err;
    json_t *json = json_parse(conversation, strlen(conversation), "mem", &err);
    assert_non_null(json);
    json_t *before = json_deep_copy(json);
    assert_int_equal(chat_template_parse(&t, template, strlen(template), NULL, "t", &err), 0);
    char *out = render(t, json);
    assert_string_equal(out, wanted);
    assert_true(json_equal(json, before)); /* the caller's is as it was */
    free(out);
    chat_template_free(t);
    json_decref(json);
    json_decref(before);
}

static void test_what_the_template_sees(void **state) {
    (void)state;
    static const char all[] = "{{ messages|tojson }}|{{ tools|tojson }}|{{ documents is none }}|"
                              "{{ add_generation_prompt }}";
    assert_renders(all, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"x\": null}]}",
                   "[{\"role\": \"user\", \"content\": \"a\"}]|null|True|True");
    assert_renders(all,
                   "{\"messages\": [{\"role\": \"r\", \"content\": null, \"tool_calls\": [1]}], "
                   "\"tools\": [{\"a\": 1}], \"documents\": 3}",
                   "[{\"role\": \"r\", \"tool_calls\": [1]}]|[{\"a\": 1}]|True|True");
    assert_renders(all, "{\"messages\": [{\"role\": \"r\", \"content\": \"c\"}], \"tools\": []}",
                   "[{\"role\": \"r\", \"content\": \"c\"}]|null|True|True");
    assert_renders(
        "{{ messages|tojson }}",
        "{\"messages\": [{\"role\": \"r\", \"content\": \"c\", \"reasoning\": \"why\"}]}",
        "[{\"thinking\": \"why\", \"role\": \"r\", \"content\": \"c\", \"reasoning\": \"why\", "
        "\"reasoning_content\": \"why\"}]");
    /* Parts are joined, but not for a template that has a loop over them. */
    static const char parts[] =
        "{\"messages\": [{\"role\": \"u\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
        "{\"type\": \"text\", \"text\": \"\"}, {\"type\": \"text\", \"text\": \"\xc3\xa9\"}]}]}";
    assert_renders("{{ messages[0].content }}", parts, "a\n\n\xc3\xa9");
    assert_renders("{% for p in messages[0]['content'] %}<{{ p.text }}>{% endfor %}", parts,
                   "<a><><\xc3\xa9>");
    assert_renders("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}"
                   "{% endfor %}",
                   parts, "<a><><\xc3\xa9>");
    assert_renders("{{ messages[0].content|tojson }}",
                   "{\"messages\": [{\"role\": \"u\", \"content\": []}]}", "\"\"");
}

static void test_shipped_template(void **state) {
    (void)state;
    static const char conversation[] = "{\"messages\": ["
                                       "{\"role\":\"system\",\"content\":\"Be brief.\"},"
                                       "{\"role\":\"user\",\"content\":\"caf\\u00e9 50%\\n\"},"
                                       "{\"role\":\"assistant\",\"content\":\"\"},"
                                       "{\"content\":\"42\",\"role\":\"tool\",\"name\":\"n\"}]}";
    struct chat_template *t;
    struct error err;
    json_t *json = json_parse(conversation, strlen(conversation), "mem", &err);
    assert_int_equal(chat_template_load(&t, "data/model", &err), 0);
    assert_non_null(t);
    char *out = render(t, json);
    assert_string_equal(out, "<|im_start|>system\nBe brief.<|im_end|>\n"
                             "<|im_start|>user\ncaf\xc3\xa9 50%\n<|im_end|>\n"
                             "<|im_start|>assistant\n<|im_end|>\n"
                             "<|im_start|>tool\n42<|im_end|>\n"
                             "<|im_start|>assistant\n");
    free(out);
    json_decref(json);

    /* A prompt of any bytes, and an answer to it. */
    json = chat_of_prompt("a\xff", 2, &err);
    assert_int_equal(chat_append(json, "assistant", "b\n", 2, &err), 0);
    out = render(t, json);
    assert_string_equal(out, "<|im_start|>user\na\xff<|im_end|>\n<|im_start|>assistant\nb\n"
                             "<|im_end|>\n<|im_start|>assistant\n");
    free(out);
    json_decref(json);
    chat_template_free(t);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "mem: must be a list of messages, [{\"role\": ..., "},
        {"{\"messages\": {\"role\": \"user\"}}", "mem: must be a list of messages"},
        {"{\"messages\": []}", "mem: the list of messages is empty"},
        {"{\"messages\": [\"Hi\"]}", "mem: message 0 must be {\"role\": ..., \"content\": ...}"},
        {"{\"messages\": [{\"content\":\"Hi\"}]}", "mem: message 0: \"role\" must be there"},
        {"{\"messages\": [{\"role\": 1, \"content\":\"\"}]}", "mem: message 0: \"role\" must be"},
        {"{\"messages\": [{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"user\"}]}",
         "mem: message 1: \"content\" is missing"},
        {"{\"messages\": [{\"role\":\"user\",\"content\":null}]}",
         "mem: message 0: \"content\" is missing"},
        {"{\"messages\": [{\"role\":\"user\",\"content\":3}]}",
         "mem: message 0: \"content\" must be a string or a list of parts"},
        {"{\"messages\": [{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"}, "
         "{\"type\":\"image_url\"}]}]}",
         "mem: message 0: part 1 of \"content\" must be {\"type\": \"text\""},
        {"{\"messages\": [{\"role\":\"user\",\"content\":[\"a\"]}]}", "mem: message 0: part 0"},
        {"{\"messages\": [{\"role\":\"user\",\"content\":\"\"}], \"tools\": {}}",
         "mem: tools: must be a list"},
        {"{\"messages\": [{\"role\":\"user\",\"content\":\"\"}], \"tools\": [{}, 1]}",
         "mem: tools: tool 1 must be an object"},
        {"{\"messages\": [{\"role\":\"user\",\"content\":\"raise\"}]}", "t: line 1: no raise"},
    };
    struct chat_template *t;
    static const char text[] = "{{ raise_exception('no ' ~ messages[0].content) }}";
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *out = (char *)text; /* anything */
        size_t n;
        struct error err = {""};
        json_t *json = json_parse(cases[i][0], strlen(cases[i][0]), "case", &err);
        assert_non_null(json);
        assert_int_equal(chat_template_parse(&t, text, strlen(text), NULL, "t", &err), 0);
        assert_int_equal(chat_render(t, json, "mem", &out, &n, &err), -1);
        assert_null(out);
        if (strncmp(err.text, cases[i][1], strlen(cases[i][1])) != 0)
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i][1]);
        json_decref(json);
        chat_template_free(t);
    }
}

static void test_files(void **state) {
    (void)state;
    static const char list[] = "[{\"role\": \"user\", \"content\": \"a\"}]";
    static const char object[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], "
                                 "\"tools\": [{\"b\": 1}]}";
    const char *const texts[] = {list, object, "[{\"role\": \"user\"}]", "[", "{\"tools\": []}"};
    const char *const says[] = {NULL, NULL, "message 0", "line 1", "must be a list"};
    struct error err = {""};
    for (size_t i = 0; i < COUNT(texts); i++) {
        char path[] = "/tmp/samebits-chat-XXXXXX";
        int file = mkstemp(path);
        assert_true(file >= 0);
        assert_int_equal(write(file, texts[i], strlen(texts[i])), strlen(texts[i]));
        json_t *json = chat_read(path, &err);
        assert_int_equal(json != NULL, !says[i]);
        if (says[i]) {
            assert_int_equal(strncmp(err.text, path, strlen(path)), 0);
            assert_non_null(strstr(err.text, says[i]));
        } else {
            assert_int_equal(json_array_size(json_object_get(json, "messages")), 1);
            assert_int_equal(json_array_size(json_object_get(json, "tools")), texts[i] == object);
        }
        json_decref(json);
        assert_int_equal(close(file), 0);
        assert_int_equal(unlink(path), 0);
    }
    assert_null(chat_read("tests/no-such.json", &err));
    assert_string_equal(err.text, "tests/no-such.json: No such file or directory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_template_sees),
        cmocka_unit_test(test_shipped_template),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
