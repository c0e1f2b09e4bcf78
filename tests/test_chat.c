/* model/files/chat.h: the text of conversations, and what a list of messages may not hold. */
#include "model/files/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static char conversation[] = "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                             "{\"role\":\"user\",\"content\":\"caf\\u00e9 50%\\n\"},"
                             "{\"role\":\"assistant\",\"content\":\"\"},"
                             "{\"content\":\"42\",\"role\":\"tool\",\"name\":\"ignored\"}]";

static const char rendered[] = "<|im_start|>system\nBe brief.<|im_end|>\n"
                               "<|im_start|>user\ncafé 50%\n<|im_end|>\n"
                               "<|im_start|>assistant\n<|im_end|>\n"
                               "<|im_start|>tool\n42<|im_end|>\n"
                               "<|im_start|>assistant\n";

static void test_render(void **state) {
    (void)state;
    struct chat_message *messages;
    struct error err;
    size_t n, n_bytes;
    char *text;
    json_t *list = json_parse(conversation, strlen(conversation), "mem", &err);
    assert_int_equal(chat_messages_from_json(list, "mem", &messages, &n, &err), 0);
    json_decref(list); /* the messages are copies */
    assert_int_equal(n, 4);
    assert_int_equal(chat_render(messages, n, &text, &n_bytes, &err), 0);
    assert_string_equal(text, rendered);
    assert_int_equal(n_bytes, strlen(rendered));
    free(text);
    chat_free_messages(messages, n);
    chat_free_messages(NULL, 0);
}

/* A first message, an answer that ends with the token, and the next turn give what rendering the
 * whole conversation gives. */
static void test_turns(void **state) {
    (void)state;
    char *first, *turn, *whole, joined[512];
    size_t n_first, n_turn, n_whole;
    struct error err;
    struct chat_message messages[] = {{"user", "Hi"}, {"assistant", "Hello!"}, {"user", "%s\n"}};
    assert_int_equal(chat_render(messages, 1, &first, &n_first, &err), 0);
    assert_int_equal(chat_render_turn("%s\n", &turn, &n_turn, &err), 0);
    assert_int_equal(chat_render(messages, 3, &whole, &n_whole, &err), 0);
    assert_int_equal(n_turn, strlen(turn));
    snprintf(joined, sizeof joined, "%sHello!<|im_end|>%s", first, turn);
    assert_string_equal(joined, whole);
    free(first);
    free(turn);
    free(whole);
    assert_int_equal(chat_render(NULL, 0, &whole, &n_whole, &err), 0);
    assert_string_equal(whole, "<|im_start|>assistant\n");
    free(whole);
}

static void test_refused_lists(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"role\":\"user\"}", "mem: must be a list of messages, [{\"role\": ..., "},
        {"null", "mem: must be a list of messages, [{\"role\": ..., "},
        {"[]", "mem: the list of messages is empty"},
        {"[\"Hi\"]", "mem: message 0 must be {\"role\": ..., \"content\": ...}"},
        {"[{\"content\":\"Hi\"}]", "mem: message 0: \"role\" is missing"},
        {"[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"user\"}]",
         "mem: message 1: \"content\" is missing"},
        {"[{\"role\":\"user\",\"content\":null}]", "mem: message 0: \"content\" must be a string"},
        {"[{\"role\":1,\"content\":\"\"}]", "mem: message 0: \"role\" must be a string"},
        {"[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]",
         "mem: message 0: \"content\" has a NUL character"},
        {"[{\"role\":\"bot\",\"content\":\"\"}]",
         "mem: message 0: role \"bot\" is not system, user, assistant or tool"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct chat_message *messages = (struct chat_message *)conversation; /* anything */
        size_t n = 7;
        struct error err = {""};
        json_t *list = json_parse(cases[i][0], strlen(cases[i][0]), "case", &err);
        assert_non_null(list);
        assert_int_equal(chat_messages_from_json(list, "mem", &messages, &n, &err), -1);
        assert_null(messages);
        assert_int_equal(n, 0);
        if (strncmp(err.text, cases[i][1], strlen(cases[i][1])) != 0)
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i][1]);
        json_decref(list);
    }
}

static void test_files(void **state) {
    (void)state;
    char path[] = "/tmp/samebits-chat-XXXXXX", message[256];
    struct chat_message *messages;
    struct error err = {""};
    size_t n, length = strlen(conversation);
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, conversation, length), length);
    assert_int_equal(chat_read_messages(path, &messages, &n, &err), 0);
    assert_int_equal(n, 4);
    assert_string_equal(messages[1].content, "café 50%\n");
    chat_free_messages(messages, n);

    assert_int_equal(ftruncate(file, (off_t)length - 1), 0);
    assert_int_equal(chat_read_messages(path, &messages, &n, &err), -1);
    snprintf(message, sizeof message, "%s: line 1", path);
    assert_int_equal(strncmp(err.text, message, strlen(message)), 0);
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(path), 0);

    assert_int_equal(chat_read_messages("tests/no-such.json", &messages, &n, &err), -1);
    assert_null(messages);
    assert_int_equal(n, 0);
    assert_string_equal(err.text, "tests/no-such.json: No such file or directory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_refused_lists),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
