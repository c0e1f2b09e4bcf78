/*
 * model/tokenizer/tokenizer.h: what a tokenizer.json may not say. Every refusal names the file and
 * the entry. A case replaces one field of a file that is fine. And what a checkpoint's directory
 * says about chat.
 */
#include "model/files/json.h"
#include "model/tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char fine[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],\"normalizer\":null,"
    "\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

struct refused {
    const char *field; /* of the file, or of its model if it begins with "model." */
    const char *value;
    const char *message; /* behind "mem: " */
};

static const struct refused model_cases[] = {
    {"model", "null", "\"model\" is missing or not an object"},
    {"model.type", "\"WordPiece\"", "model \"WordPiece\" is not supported, only BPE"},
    {"model.type", "1", "\"type\" must be a string"},
    {"model.type", "\"BPE\\u0000\"", "\"type\" has a NUL character"},
    {"model.vocab", "[]", "model: \"vocab\" is missing or not an object"},
    {"model.merges", "null", "model: \"merges\" is missing or not a list"},
    {"model.vocab", "{\"a\":0,\"b\":0}", "vocab: \"a\" and \"b\" have the same id 0"},
    {"model.vocab", "{\"a\":-1}", "vocab: the id of \"a\" must be a whole number from 0 to"},
    {"model.vocab", "{\"a\":\"0\"}", "vocab: the id of \"a\" must be a whole number from 0 to"},
    {"model.vocab", "{\"a\":99999999}", "vocab: the id of \"a\" must be a whole number from 0 to"},
    {"model.merges", "[\"a b\",\"a q\"]", "merges[1]: \"q\" is not in the vocabulary"},
    {"model.merges", "[[\"q\",\"a\"]]", "merges[0]: \"q\" is not in the vocabulary"},
    {"model.merges", "[\"b a\"]", "merges[0]: \"ba\" is not in the vocabulary"},
    {"model.merges", "[\"<s> a\"]", "merges[0]: \"<s>\" is not in the vocabulary"},
    {"model.merges", "[\"ab\"]", "merges[0] must be \"a b\" or [\"a\", \"b\"]"},
    {"model.merges", "[\"a b c\"]", "merges[0] must be \"a b\" or [\"a\", \"b\"]"},
    {"model.merges", "[[\"a\",\"b\",\"c\"]]", "merges[0] must be \"a b\" or [\"a\", \"b\"]"},
    {"model.merges", "[[\"a\",1]]", "merges[0] must be \"a b\" or [\"a\", \"b\"]"},
    {"model.unk_token", "\"<unk>\"", "\"unk_token\" \"<unk>\" is not in the vocabulary"},
    {"model.dropout", "0.1", "\"dropout\" 0.1 is not supported, ids must not be random"},
    {"model.continuing_subword_prefix", "\"##\"",
     "\"continuing_subword_prefix\" \"##\" is not supported"},
    {"model.end_of_word_suffix", "\"</w>\"", "\"end_of_word_suffix\" \"</w>\" is not supported"},
    {"model.byte_fallback", "1", "\"byte_fallback\" must be true or false"},
};

static const struct refused length_cases[] = {
    {"version", "\"2.0\"", "\"version\" is \"2.0\", only 1.0 is supported"},
    {"version", "1", "\"version\" must be a string"},
    {"truncation", "{\"max_length\":512,\"strategy\":\"LongestFirst\",\"stride\":0}",
     "\"truncation\" is not supported, it would change the length of a prompt"},
    {"truncation", "false", "\"truncation\" is not supported"},
    {"padding", "{\"strategy\":{\"Fixed\":16}}", "\"padding\" is not supported, it would change"},
    {"padding", "{\"strategy\":\"BatchLongest\",\"pad_to_multiple_of\":8}",
     "\"padding\" is not supported"},
    {"padding", "{}", "\"padding\" is not supported"},
};

static const struct refused added_cases[] = {
    {"added_tokens", "{}", "\"added_tokens\" is not a list"},
    {"added_tokens", "[{\"id\":-1,\"content\":\"x\"}]",
     "added_tokens[0]: \"id\" must be a whole number from 0 to"},
    {"added_tokens", "[{\"content\":\"x\"}]",
     "added_tokens[0]: \"id\" must be a whole number from 0 to"},
    {"added_tokens", "[{\"id\":3}]", "added_tokens[0]: \"content\" is missing or empty"},
    {"added_tokens", "[{\"id\":3,\"content\":\"\"}]",
     "added_tokens[0]: \"content\" is missing or empty"},
    {"added_tokens", "[{\"id\":3,\"content\":\"x\\u0000\"}]", "\"content\" has a NUL character"},
    {"added_tokens", "[{\"id\":3,\"content\":\"x\",\"lstrip\":0}]",
     "\"lstrip\" must be true or false"},
    {"added_tokens", "[{\"id\":4,\"content\":\"x\"}]",
     "added_tokens[0]: \"x\" has id 4, but by its vocabulary and the tokens before it it must be "
     "3"},
    {"added_tokens", "[{\"id\":1,\"content\":\"a\"}]", "added_tokens[0]: \"a\" has id 1, but"},
    {"added_tokens", "[{\"id\":0,\"content\":\"a\"},{\"id\":0,\"content\":\"a\"}]",
     "added_tokens[1]: \"a\" is listed twice"},
};

#define SPLIT(regex, behavior)                                                                     \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior "\"}"

#define TEN "0123456789"

static const struct refused step_cases[] = {
    {"normalizer", "{\"type\":\"NFKC\"}", "normalizer \"NFKC\" is not supported"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}",
     "normalizer \"Lowercase\" is not supported"},
    {"normalizer", "{\"type\":\"Sequence\"}",
     "normalizer Sequence: \"normalizers\" must be a list"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[null]}", "normalizers[0] is null"},
    {"normalizer", "\"NFC\"", "\"normalizer\" must be null or an object with a \"type\""},
    {"normalizer", "{\"type\":\"Prepend\"}", "\"prepend\" must be a string"},
    {"normalizer", "{\"type\":\"Replace\",\"content\":\"x\"}",
     "\"pattern\" must be {\"String\": ...} or {\"Regex\": ...}"},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}",
     "\"pattern\" is empty"},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"}}",
     "\"content\" must be a string"},
    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "pre_tokenizer \"Whitespace\" is not supported"},
    {"pre_tokenizer", "{\"type\":\"ByteFallback\"}",
     "pre_tokenizer \"ByteFallback\" is not supported"},
    {"pre_tokenizer", "{\"type\":\"Digits\",\"individual_digits\":2}",
     "\"individual_digits\" must be true or false"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}",
     "\"replacement\" must be one character"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"often\"}",
     "Metaspace \"prepend_scheme\" is \"often\", must be always, first or never"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}",
     "Metaspace \"add_prefix_space\" is false, but \"prepend_scheme\" is \"always\""},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Metaspace\","
     "\"replacement\":\"_\",\"prepend_scheme\":\"first\"}]}",
     "Metaspace with \"prepend_scheme\" \"first\" is not supported behind steps that change"},
    {"pre_tokenizer", SPLIT("a", "Sometimes"), "Split \"behavior\" is \"Sometimes\", must be"},
    {"pre_tokenizer", SPLIT("a(", "Isolated"), "pattern \"a(\": missing closing parenthesis"},
    {"pre_tokenizer", SPLIT("[a[b]]", "Isolated"), "[ ] inside [ ] is not supported"},
    {"pre_tokenizer", SPLIT("[a&&b]", "Isolated"), "&& inside [ ] is not supported"},
    {"pre_tokenizer", SPLIT("[[:alpha:]]", "Isolated"), "[: :] is not supported"},
    {"pre_tokenizer", SPLIT("[\\\\W]", "Isolated"), "\\W inside [ ] is not supported"},
    {"pre_tokenizer", SPLIT("\\\\h", "Isolated"), ": \\h is not supported"},
    {"pre_tokenizer", SPLIT("\\\\b", "Isolated"), ": \\b is not supported"},
    {"pre_tokenizer", SPLIT("a\\\\Kb", "Isolated"), ": \\K is not supported"},
    {"pre_tokenizer", SPLIT("\\\\Q", "Isolated"), ": \\Q is not supported"},
    {"pre_tokenizer", SPLIT("[\\\\v]", "Isolated"), ": \\v is not supported"},
    {"pre_tokenizer", SPLIT("\\\\x41", "Isolated"), ": \\x is not supported"},
    {"pre_tokenizer", SPLIT("\\\\pL", "Isolated"), ": \\p without { } is not supported"},
    {"pre_tokenizer", SPLIT("(?i:pass)", "Isolated"), "(?i with ss, ff, fi, fl or st is not"},
    {"pre_tokenizer", SPLIT("(?i:pA)|FI", "Isolated"), "(?i with ss, ff, fi, fl or st is not"},
    /* What is shown of a long pattern: 60 bytes, less where a character would be cut. */
    {"pre_tokenizer", SPLIT(TEN TEN TEN TEN TEN TEN "(", "Isolated"),
     "pattern \"" TEN TEN TEN TEN TEN TEN "...\": missing closing parenthesis"},
    {"pre_tokenizer", SPLIT(TEN TEN TEN TEN TEN "abcdefghi(", "Isolated"),
     "pattern \"" TEN TEN TEN TEN TEN "abcdefghi(\": missing closing parenthesis"},
    {"pre_tokenizer", SPLIT(TEN TEN TEN TEN TEN "abcdefgh漢(", "Isolated"),
     "pattern \"" TEN TEN TEN TEN TEN "abcdefgh...\": missing closing parenthesis"},
    {"pre_tokenizer", SPLIT("(?m:a)", "Isolated"), "(?m is not supported"},
    {"pre_tokenizer", SPLIT("a(?i)b", "Isolated"), "(?flags) not at the start is not supported"},
    {"pre_tokenizer", SPLIT("(*UTF)a", "Isolated"), "(* is not supported"},
    {"pre_tokenizer", SPLIT("a{,3}", "Isolated"), "{,n} is not supported"},
    {"pre_tokenizer", SPLIT("a{1,3}+", "Isolated"), "{n,m}+ is not supported"},
    {"decoder", "{\"type\":\"WordPiece\"}", "decoder \"WordPiece\" is not supported"},
    {"decoder", "{\"type\":\"Sequence\",\"decoders\":1}",
     "decoder Sequence: \"decoders\" must be a list"},
    {"decoder", "{\"type\":\"Strip\",\"content\":\" \",\"stop\":0}", "\"start\" is missing"},
    {"decoder", "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}",
     "\"start\" is -1, must be 0 to"},
};

#define TEMPLATE(single, tokens)                                                                   \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{" tokens "}}"
#define BOS "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}"
#define TEXT "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"

static const struct refused post_processor_cases[] = {
    {"post_processor", "{\"type\":\"BertProcessing\"}",
     "post_processor \"BertProcessing\" is not supported"},
    {"post_processor", "{\"type\":\"Sequence\",\"processors\":{}}",
     "post_processor Sequence: \"processors\" must be a list"},
    {"post_processor", TEMPLATE(BOS "," TEXT, ""),
     "TemplateProcessing: \"<s>\" is not in \"special_tokens\""},
    {"post_processor", TEMPLATE(BOS "," TEXT, "\"<s>\":{\"ids\":[4]}"),
     "TemplateProcessing: \"<s>\" has an id that is not in the vocabulary"},
    {"post_processor", TEMPLATE(BOS, "\"<s>\":{\"ids\":[3]}"),
     "TemplateProcessing: \"single\" must hold the Sequence \"A\" once, not 0 times"},
    {"post_processor", TEMPLATE(TEXT "," TEXT, ""), "once, not 2 times"},
    {"post_processor", TEMPLATE(TEXT ",{}", ""),
     "TemplateProcessing: \"single\"[1] is neither a SpecialToken nor the Sequence \"A\""},
    {"post_processor",
     "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(
         BOS "," TEXT, "\"<s>\":{\"ids\":[3]}") "," TEMPLATE(TEXT, "") "]}",
     "a second TemplateProcessing is not supported"},
};

static void refuse(const char *json, const char *message) {
    struct tokenizer *t = NULL;
    struct error err = {""};
    if (tokenizer_load_text(&t, json, strlen(json), "mem", &err) != -1)
        fail_msg("loads, but should say \"%s\"", message);
    assert_null(t);
    if (strncmp(err.text, "mem: ", 5) != 0 || !strstr(err.text, message))
        fail_msg("\"%s\" does not say \"%s\"", err.text, message);
}

static void refuse_all(const struct refused *cases, size_t n) {
    struct error err;
    for (size_t i = 0; i < n; i++) {
        const char *field = cases[i].field;
        json_t *root = json_parse(fine, strlen(fine), "fine", &err), *object = root;
        json_t *value = json_parse(cases[i].value, strlen(cases[i].value), "value", &err);
        if (!value)
            fail_msg("%s", err.text);
        if (strncmp(field, "model.", 6) == 0) {
            object = json_object_get(root, "model");
            field += 6;
        }
        assert_int_equal(json_object_set_new(object, field, value), 0);
        char *json = json_dumps(root, 0);
        refuse(json, cases[i].message);
        free(json);
        json_decref(root);
    }
}

static void test_the_file_without_a_fault(void **state) {
    (void)state;
    struct tokenizer *t;
    struct error err = {""};
    assert_int_equal(tokenizer_load_text(&t, fine, strlen(fine), "mem", &err), 0);
    assert_int_equal(tokenizer_vocab_size(t), 4);
    tokenizer_free(t);
}

static void test_model(void **state) {
    (void)state;
    refuse_all(model_cases, COUNT(model_cases));
}

static void test_truncation_and_padding(void **state) {
    (void)state;
    static const char harmless[] =
        "{\"truncation\":null,\"padding\":{\"strategy\":\"BatchLongest\",\"direction\":\"Right\","
        "\"pad_to_multiple_of\":null,\"pad_id\":0},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}";
    struct tokenizer *t;
    struct error err = {""};
    assert_int_equal(tokenizer_load_text(&t, harmless, strlen(harmless), "mem", &err), 0);
    tokenizer_free(t);
    refuse_all(length_cases, COUNT(length_cases));
}

static void test_added_tokens(void **state) {
    (void)state;
    refuse_all(added_cases, COUNT(added_cases));
}

static void test_steps(void **state) {
    (void)state;
    refuse_all(step_cases, COUNT(step_cases));
}

static void test_post_processor(void **state) {
    (void)state;
    refuse_all(post_processor_cases, COUNT(post_processor_cases));
}

static void test_json(void **state) {
    (void)state;
    refuse("{\"model\":", "line 1, column 9");
    refuse("[1]", "the file must hold a JSON object");
    refuse("{\"model\":{\"vocab\":{\"a\":0,\"a\":1}}}", "duplicate object key");
}

/* Vanishes in the normalizer, so it could never be found. */
static void test_added_token_that_vanishes(void **state) {
    (void)state;
    refuse("{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"\"},"
           "\"added_tokens\":[{\"id\":0,\"content\":\"xx\",\"normalized\":true}],\"model\":{"
           "\"vocab\":{},\"merges\":[]}}",
           "added_tokens[0]: nothing is left of");
}

static void test_nothing_to_load(void **state) {
    (void)state;
    struct tokenizer *t;
    struct error err = {""};
    assert_int_equal(tokenizer_load(&t, "tests/no-such", &err), -1);
    assert_null(t);
    assert_string_equal(err.text, "tests/no-such/tokenizer.json: No such file or directory");
    tokenizer_free(NULL);
    decode_stream_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_file_without_a_fault),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_truncation_and_padding),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_post_processor),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_added_token_that_vanishes),
        cmocka_unit_test(test_nothing_to_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
