/*
 * model/tokenizer/tokenizer.h: texts that nobody types. Bytes that are no UTF-8, NULs, 100 kB of
 * one letter, texts beyond the limits.
 */
#include "tests/random.h"
#include "tests/tokenizer_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define FIXTURES "tests/fixtures/tokenizers/"
#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct tokenizer *load(const char *dir) {
    struct tokenizer *t;
    struct error err;
    if (tokenizer_load(&t, dir, &err) != 0)
        fail_msg("%s", err.text);
    return t;
}

static struct tokenizer *load_json(const char *json) {
    struct tokenizer *t;
    struct error err;
    if (tokenizer_load_text(&t, json, strlen(json), "mem", &err) != 0)
        fail_msg("%s", err.text);
    return t;
}

static void test_invalid_utf8(void **state) {
    (void)state;
    static const char *const dirs[] = {FIXTURES "gpt2",    FIXTURES "llama2", FIXTURES "metaspace",
                                       FIXTURES "unknown", FIXTURES "added",  FIXTURES "splits"};
    struct random r = {2};
    struct tokenizer *bytes = load(FIXTURES "gpt2"), *fallback = load(FIXTURES "llama2");
    size_t n;
    int32_t *ids = encode(bytes, "a\xFF", 2, false, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[1], tokenizer_id(bytes, "ÿ"));
    free(ids);
    ids = encode(fallback, "\xE2\x96", 2, false, &n);
    assert_int_equal(n, 3);
    assert_int_equal(ids[1], tokenizer_id(fallback, "<0xE2>"));
    assert_int_equal(ids[2], tokenizer_id(fallback, "<0x96>"));
    free(ids);
    for (size_t i = 0; i < COUNT(dirs); i++) {
        struct tokenizer *t = load(dirs[i]);
        for (int k = 0; k < 300; k++) {
            char text[64];
            size_t n_text = (size_t)random_int(&r, 0, (int)sizeof text);
            for (size_t j = 0; j < n_text; j++)
                text[j] =
                    (char)(random_int(&r, 0, 1) ? random_int(&r, 0, 255)
                                                : "a \xC3\xE2\x96\x81\xF0"[random_int(&r, 0, 6)]);
            free(encode(t, text, n_text, true, &n));
        }
        tokenizer_free(t);
    }
    tokenizer_free(bytes);
    tokenizer_free(fallback);
}

static void test_nothing_and_nul(void **state) {
    (void)state;
    struct tokenizer *t = load(FIXTURES "gpt2");
    size_t n;
    assert_null(encode(t, "", 0, true, &n));
    assert_int_equal(n, 0);
    char *text = decode(t, NULL, 0, false, &n);
    assert_int_equal(n, 0);
    free(text);
    int32_t *ids = encode(t, "a\0b", 3, false, &n);
    assert_int_equal(n, 3);
    assert_int_equal(ids[1], tokenizer_id(t, "Ā"));
    text = decode(t, ids, n, false, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(text, "a\0b", 3);
    free(text);
    free(ids);
    tokenizer_free(t);
}

/* Shapes in which a careless reader needs quadratic time, or a lot of stack. */
static void test_long_words(void **state) {
    (void)state;
    static const char *const shapes[] = {"a", " ", "1", "😀", "ab", "\n", "a ", "a\u0301", "\xFF"};
    enum { LENGTH = 100 * 1000 };
    char *text = malloc(LENGTH);
    assert_non_null(text);
    struct tokenizer *t = load("data/model");
    for (size_t i = 0; i < COUNT(shapes); i++) {
        size_t period = strlen(shapes[i]), n = LENGTH / period * period, n_ids, n_text;
        for (size_t k = 0; k < n; k++)
            text[k] = shapes[i][k % period];
        int32_t *ids = encode(t, text, n, true, &n_ids);
        char *back = decode(t, ids, n_ids, false, &n_text);
        if (shapes[i][0] != '\xFF' && strcmp(shapes[i], "a\u0301") != 0) { /* NFC: á */
            assert_int_equal(n_text, n);
            assert_memory_equal(back, text, n);
        }
        free(back);
        free(ids);
    }
    tokenizer_free(t);
    free(text);
}

/* Every merge doubles a token, so that half of the symbols go in each round; and tokens that take
 * all the spaces around them are tried on a text of spaces. */
static void test_many_merges(void **state) {
    (void)state;
    struct tokenizer *t = load_json(
        "{\"added_tokens\":[{\"id\":5,\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true}],"
        "\"model\":{\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2,\"aaaaaaaa\":3,\"b\":4},"
        "\"merges\":[\"a a\",\"aa aa\",\"aaaa aaaa\"]}}");
    enum { LENGTH = 8 * 12345 + 7 };
    char *text = malloc(LENGTH);
    size_t n;
    assert_non_null(text);
    memset(text, 'a', LENGTH);
    int32_t *ids = encode(t, text, LENGTH, false, &n);
    assert_int_equal(n, 12345 + 3);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], i < 12345 ? 3 : 12347 - (int)i); /* aaaaaaaa … aaaa aa a */
    free(ids);
    memset(text, '\n', LENGTH);
    ids = encode(t, text, LENGTH, false, &n);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 5);
    free(ids);
    free(text);
    tokenizer_free(t);
}

static void refuse_text(const struct tokenizer *t, const char *text, size_t n, const char *part) {
    int32_t *ids = NULL;
    size_t n_ids = 1;
    struct error err = {""};
    assert_int_equal(tokenizer_encode(t, text, n, false, &ids, &n_ids, &err), -1);
    assert_null(ids);
    assert_int_equal(n_ids, 0);
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static void test_limits(void **state) {
    (void)state;
    struct tokenizer *t = load_json(
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"},"
        "\"behavior\":\"Isolated\"},\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    refuse_text(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 45,
                "mem: pattern \"(a+)+$\": failed at byte 0 of a text: match limit exceeded");
    refuse_text(t, "", (size_t)256 * 1024 * 1024 + 1, "the text has 268435457 bytes, the limit is");
    tokenizer_free(t);
}

/* NFC sorts marks by their combining class, as the Unicode standard says since version 10, which
 * gave U+1DF7 and U+1DF8 theirs. Hugging Face's library has the tables of version 9 and leaves them
 * where they are: a known difference (README.md). */
static void test_marks_newer_than_unicode_9(void **state) {
    (void)state;
    struct tokenizer *t = load_json(
        "{\"normalizer\":{\"type\":\"NFC\"},\"model\":{\"vocab\":{\"\\u314F\":0,\"\\u20ED\":1,"
        "\"\\u1DF8\":2,\"\\u1DEB\":3,\"\\u0628\":4,\"\\u064E\":5,\"\\u1DF7\":6,\"\\u033D\":7},"
        "\"merges\":[]}}");
    static const char *const texts[] = {"\u314F\u20ED\u1DF8\u1DEB", "\u314F\u1DEB\u1DF8\u20ED",
                                        "\u314F\u1DF8\u1DEB\u20ED", "\u0628\u064E\u1DF7\u033D",
                                        "\u0628\u033D\u1DF7\u064E", "\u0628\u1DF7\u064E\u033D"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t n;
        int32_t *ids = encode(t, texts[i], strlen(texts[i]), false, &n);
        assert_int_equal(n, 4);
        for (int k = 0; k < 4; k++)
            assert_int_equal(ids[k], (i < 3 ? 0 : 4) + k);
        free(ids);
    }
    tokenizer_free(t);
}

/* The ids of "a" and c, cut where no letter stands: 2 pieces if c is none. */
static bool is_letter(const struct tokenizer *t, const char *c) {
    char text[8];
    size_t n;
    snprintf(text, sizeof text, "a%s", c);
    int32_t *ids = encode(t, text, strlen(text), false, &n);
    assert_int_equal(ids[0], n == 1 ? 2 : 0);
    free(ids);
    return n == 1;
}

/* Letters of a pattern are those of PCRE2's version of Unicode: 14 in 10.42. Hugging Face's library
 * has version 16: a known difference (README.md). */
static void test_letters_of_new_versions(void **state) {
    (void)state;
    static const struct {
        int version;
        const char *letter;
    } letters[] = {{1, "\u00E9"},
                   {13, "\U00030000"},
                   {14, "\U0001E290"},
                   {15, "\U00031350"},
                   {16, "\U000105C0"}};
    char version[32];
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+\"},"
                 "\"behavior\":\"Isolated\"},\"model\":{\"vocab\":{\"a\":0,\"%s\":1,\"a%s\":2},"
                 "\"merges\":[\"a %s\"]}}",
                 letters[i].letter, letters[i].letter, letters[i].letter);
        struct tokenizer *t = load_json(json);
        assert_int_equal(is_letter(t, letters[i].letter), letters[i].version <= atoi(version));
        tokenizer_free(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_nothing_and_nul),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_many_merges),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_marks_newer_than_unicode_9),
        cmocka_unit_test(test_letters_of_new_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
