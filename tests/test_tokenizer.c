/*
 * model/tokenizer/tokenizer.h: ids and text are those of the Hugging Face library, for the shipped
 * tokenizer and for one of each layout in tests/fixtures/tokenizers, decoded whole and one id at a
 * time. Odd texts are in test_tokenizer_input.c, faulty files in test_tokenizer_errors.c.
 */
#include "model/files/json.h"
#include "tests/random.h"
#include "tests/tokenizer_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FIXTURES "tests/fixtures/tokenizers/"
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const fixtures[] = {
    "gpt2",      "gpt2-prefix", "smollm2",       "llama3", "llama2", "mistral3",
    "metaspace", "unknown",     "unknown-fused", "added",  "splits", "splits-empty",
};

static struct tokenizer *load(const char *dir) {
    struct tokenizer *t;
    struct error err;
    if (tokenizer_load(&t, dir, &err) != 0)
        fail_msg("%s", err.text);
    return t;
}

static struct tokenizer *load_fixture(const char *name) {
    char dir[128];
    snprintf(dir, sizeof dir, FIXTURES "%s", name);
    return load(dir);
}

/* Bytes that end in the middle of a character, or begin there, are not what a stream may give. */
static void check_whole_characters(const char *piece, size_t n) {
    for (size_t at = 0; at < n;) {
        unsigned lead = (unsigned char)piece[at];
        size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        assert_true(lead < 0x80 || lead >= 0xC2);
        assert_true(at + length <= n);
        for (size_t i = 1; i < length; i++)
            assert_int_equal((unsigned char)piece[at + i] & 0xC0, 0x80);
        at += length;
    }
}

/* Decodes one by one, twice with the same stream, and compares with the whole. */
static void check_stream(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                         const char *whole, size_t n_whole) {
    struct error err;
    struct decode_stream *s = decode_stream_new(t, skip_special, &err);
    assert_non_null(s);
    for (int round = 0; round < 2; round++) {
        size_t done = 0;
        for (size_t i = 0; i <= n; i++) {
            const char *piece;
            size_t n_piece;
            if (i < n)
                assert_int_equal(decode_stream_push(s, ids[i], &piece, &n_piece, &err), 0);
            else
                assert_int_equal(decode_stream_flush(s, &piece, &n_piece, &err), 0);
            check_whole_characters(piece, n_piece);
            assert_true(n_piece <= n_whole - done);
            assert_memory_equal(piece, whole + done, n_piece);
            done += n_piece;
        }
        assert_int_equal(done, n_whole);
    }
    decode_stream_free(s);
}

/* ---- cases of the library ------------------------------------------------------------------- */

struct place {
    const char *file;
    int line;
};

static int32_t *read_ids(const json_t *list, size_t *n) {
    *n = json_array_size(list);
    int32_t *ids = malloc((*n + 1) * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static void check_encode(const struct tokenizer *t, const json_t *text, const json_t *expected,
                         bool add_special, struct place place) {
    size_t n, n_expected;
    int32_t *want = read_ids(expected, &n_expected);
    int32_t *ids = encode(t, json_string_value(text), json_string_length(text), add_special, &n);
    for (size_t i = 0; i < n || i < n_expected; i++) {
        if (i >= n || i >= n_expected || ids[i] != want[i])
            fail_msg("%s:%d: ids[%zu] is %d, the library gives %d (%zu and %zu ids)", place.file,
                     place.line, i, i < n ? ids[i] : -1, i < n_expected ? want[i] : -1, n,
                     n_expected);
    }
    free(ids);
    free(want);
}

static void check_decode(const struct tokenizer *t, const json_t *list, const json_t *expected,
                         bool skip_special, struct place place) {
    size_t n, n_text;
    int32_t *ids = read_ids(list, &n);
    char *text = decode(t, ids, n, skip_special, &n_text);
    if (n_text != json_string_length(expected) ||
        memcmp(text, json_string_value(expected), n_text) != 0)
        fail_msg("%s:%d: decoded \"%s\", the library gives \"%s\"", place.file, place.line, text,
                 json_string_value(expected));
    check_stream(t, ids, n, skip_special, text, n_text);
    free(text);
    free(ids);
}

/* One line of the file; fields that it does not have are not checked. */
static void check_case(const struct tokenizer *t, const json_t *line, struct place place) {
    const json_t *text = json_object_get(line, "text");
    const json_t *ids = json_object_get(line, "ids");
    const json_t *special = json_object_get(line, "ids_special");
    const json_t *decoded = json_object_get(line, "decoded");
    const json_t *skipped = json_object_get(line, "decoded_skip");
    if (text && ids)
        check_encode(t, text, ids, false, place);
    if (text && special)
        check_encode(t, text, special, true, place);
    check_decode(t, special ? special : ids, decoded, false, place);
    if (skipped)
        check_decode(t, special, skipped, true, place);
}

static int check_file(const struct tokenizer *t, const char *path) {
    FILE *file = fopen(path, "rb");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct place place = {path, 0};
    if (!file)
        fail_msg("%s is missing", path);
    while ((n = getline(&line, &cap, file)) > 0) {
        struct error err;
        json_t *root = json_parse(line, (size_t)n, path, &err);
        place.line++;
        if (!root)
            fail_msg("%s", err.text);
        check_case(t, root, place);
        json_decref(root);
    }
    free(line);
    fclose(file);
    return place.line;
}

static void test_shipped_tokenizer(void **state) {
    (void)state;
    struct tokenizer *t = load("data/model");
    assert_int_equal(check_file(t, "data/golden/tokenizer_cases.jsonl"), 310);
    assert_int_equal(tokenizer_vocab_size(t), 4096);
    assert_int_equal(tokenizer_id(t, "<|im_end|>"), 4095);
    assert_int_equal(tokenizer_id(t, "<|im_end"), -1);
    tokenizer_free(t);
}

static void test_fixtures(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(fixtures); i++) {
        char path[128];
        snprintf(path, sizeof path, FIXTURES "%s/cases.jsonl", fixtures[i]);
        struct tokenizer *t = load_fixture(fixtures[i]);
        assert_true(check_file(t, path) > 200);
        tokenizer_free(t);
    }
}

/* ---- streams -------------------------------------------------------------------------------- */

/* Ids below 300 are bytes in most fixtures; some are no ids at all. */
static void test_random_ids(void **state) {
    (void)state;
    struct random r = {1};
    for (size_t i = 0; i < COUNT(fixtures); i++) {
        struct tokenizer *t = load_fixture(fixtures[i]);
        for (int k = 0; k < 600; k++) {
            int32_t ids[40];
            size_t n = (size_t)random_int(&r, 0, (int)COUNT(ids)), n_text;
            int high = k % 3 ? tokenizer_vocab_size(t) + 3 : 300;
            for (size_t j = 0; j < n; j++)
                ids[j] = random_int(&r, -1, high);
            char *text = decode(t, ids, n, k % 2, &n_text);
            check_whole_characters(text, n_text);
            check_stream(t, ids, n, k % 2, text, n_text);
            free(text);
        }
        tokenizer_free(t);
    }
}

/* A stream gives text as soon as it is certain: here after the last byte of each character. */
static void test_stream_does_not_wait(void **state) {
    (void)state;
    struct tokenizer *t = load_fixture("gpt2");
    struct error err;
    struct decode_stream *s = decode_stream_new(t, false, &err);
    const char *letters[] = {"a", "Ã", "©", "Ã", "b"}; /* a, é, then half of an é, b */
    const char *expected[] = {"a", "", "é", "",
                              ("\xEF\xBF\xBD"
                               "b")};
    for (int i = 0; i < 5; i++) {
        const char *piece;
        size_t n;
        assert_int_equal(decode_stream_push(s, tokenizer_id(t, letters[i]), &piece, &n, &err), 0);
        assert_int_equal(n, strlen(expected[i]));
        assert_memory_equal(piece, expected[i], n);
    }
    decode_stream_free(s);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_tokenizer),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_stream_does_not_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
