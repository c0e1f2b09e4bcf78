/* Reading tokenizer.json: the file as a whole, and its added tokens. */
#include "model/files/folder.h"
#include "model/tokenizer/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- added tokens --------------------------------------------------------------------------- */

/* The id that the library gives: that of the vocabulary, else the next one after all ids so far. It
 * does not look at the file's, so a file that says otherwise has no certain meaning. */
static int check_added_id(const struct tokenizer *t, int32_t id, const char *content,
                          size_t vocab_size, int32_t max_added, size_t index, const char *where,
                          struct error *err) {
    int32_t expected = tok_vocab_find_model(&t->vocab, content, strlen(content));
    if (expected < 0)
        expected = max_added >= (int32_t)vocab_size ? max_added + 1 : (int32_t)vocab_size;
    if (id != expected)
        return error_set(err,
                         "%s: added_tokens[%zu]: \"%s\" has id %d, but by its vocabulary and "
                         "the tokens before it it must be %d",
                         where, index, content, id, expected);
    if (t->vocab.tokens[id].added)
        return error_set(err, "%s: added_tokens[%zu]: \"%s\" is listed twice", where, index,
                         content);
    if (t->vocab.tokens[id].exists && !t->vocab.tokens[id].in_model)
        return error_set(err, "%s: added_tokens[%zu]: id %d is taken", where, index, id);
    return 0;
}

static int load_added_token(struct tokenizer *t, const json_t *spec, size_t index,
                            size_t vocab_size, int32_t *max_added, const char *where,
                            struct error *err) {
    const char *content = NULL;
    struct added added = {.normalized = true};
    bool special = false;
    if (json_get_string(spec, "content", &content, where, err) != 0 ||
        json_get_bool(spec, "special", &special, where, err) != 0 ||
        json_get_bool(spec, "normalized", &added.normalized, where, err) != 0 ||
        json_get_bool(spec, "single_word", &added.single_word, where, err) != 0 ||
        json_get_bool(spec, "lstrip", &added.lstrip, where, err) != 0 ||
        json_get_bool(spec, "rstrip", &added.rstrip, where, err) != 0)
        return -1;
    if (!content || !*content)
        return error_set(err, "%s: added_tokens[%zu]: \"content\" is missing or empty", where,
                         index);
    added.id = (int32_t)json_integer_value(json_object_get(spec, "id"));
    if (check_added_id(t, added.id, content, vocab_size, *max_added, index, where, err) != 0)
        return -1;
    if (!t->vocab.tokens[added.id].exists)
        tok_vocab_add(&t->vocab, added.id, content, strlen(content), false);
    if (t->vocab.texts.failed)
        return tok_out_of_memory(err);
    t->vocab.tokens[added.id].added = true;
    t->vocab.tokens[added.id].special = special;
    if (added.id > *max_added)
        *max_added = added.id;
    t->added[t->n_added++] = added;
    return 0;
}

/* A token that is looked for after the normalizer looks as the normalizer leaves it, there and when
 * it is decoded. */
static int add_normalized(struct tokenizer *t, size_t index, const struct matcher *m,
                          struct bytes *text, const char *where, struct error *err) {
    struct vocab *v = &t->vocab;
    struct token *token = &v->tokens[t->added[index].id];
    if (tok_normalize(t, m, v->texts.data + token->at, token->n, text, err) != 0)
        return -1;
    if (text->n == 0)
        return error_set(err, "%s: added_tokens[%zu]: nothing is left of it after the normalizer",
                         where, index);
    int32_t same = tok_vocab_find(v, text->data, text->n);
    token->skipped = same >= 0 && v->tokens[same].special;
    token->decoded_at = v->texts.n;
    token->decoded_n = (uint32_t)text->n;
    tok_bytes_add(&v->texts, text->data, text->n);
    if (v->texts.failed ||
        tok_finder_add(&t->normalized, token->decoded_at, text->n, (int32_t)index) != 0)
        return tok_out_of_memory(err);
    return 0;
}

static int add_to_finder(struct tokenizer *t, size_t index, const struct matcher *m,
                         const char *where, struct error *err) {
    struct token *token = &t->vocab.tokens[t->added[index].id];
    struct bytes text = {0};
    if (t->added[index].normalized) {
        int result = add_normalized(t, index, m, &text, where, err);
        tok_bytes_free(&text);
        return result;
    }
    token->skipped = token->special;
    if (tok_finder_add(&t->raw, token->at, token->n, (int32_t)index) != 0)
        return tok_out_of_memory(err);
    return 0;
}

/* Special tokens first: where two are the same text once normalised, the first one is found. */
static int build_finders(struct tokenizer *t, const char *where, struct error *err) {
    struct matcher matcher = {0};
    int result = tok_matcher_init(&matcher, err);
    for (int special = 1; special >= 0; special--) {
        for (size_t i = 0; i < t->n_added && result == 0; i++) {
            if (t->vocab.tokens[t->added[i].id].special == (special == 1))
                result = add_to_finder(t, i, &matcher, where, err);
        }
    }
    tok_matcher_free(&matcher);
    tok_finder_sort(&t->raw, t->vocab.texts.data);
    tok_finder_sort(&t->normalized, t->vocab.texts.data);
    return result;
}

static int load_added(struct tokenizer *t, const json_t *root, const char *where,
                      struct error *err) {
    const json_t *list = json_object_get(root, "added_tokens");
    size_t vocab_size = json_object_size(json_object_get(json_object_get(root, "model"), "vocab"));
    int32_t max_added = -1;
    t->added = calloc(json_array_size(list) + 1, sizeof *t->added);
    if (!t->added)
        return tok_out_of_memory(err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (load_added_token(t, json_array_get(list, i), i, vocab_size, &max_added, where, err) !=
            0)
            return -1;
    }
    return build_finders(t, where, err);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static bool lengthens(const struct step *s) {
    return s->kind == STEP_PREPEND || s->kind == STEP_BYTE_LEVEL ||
           (s->kind == STEP_METASPACE && s->prepend_scheme != PREPEND_NEVER);
}

/* A Metaspace that marks only the first word asks which piece begins the text. Where a step has
 * replaced the beginning, or made it longer and another one has cut there, the library finds none
 * or several. */
static int check_first_word(const struct tokenizer *t, const char *where, struct error *err) {
    bool longer = false, replaced = false;
    for (size_t i = 0; i < t->normalizers.n; i++) {
        longer = longer || lengthens(&t->normalizers.items[i]);
        replaced = replaced || t->normalizers.items[i].kind == STEP_REPLACE;
    }
    for (size_t i = 0; i < t->pre_tokenizers.n; i++) {
        const struct step *s = &t->pre_tokenizers.items[i];
        if (s->kind == STEP_METASPACE && s->prepend_scheme == PREPEND_FIRST &&
            (replaced || (longer && i > 0)))
            return error_set(err,
                             "%s: Metaspace with \"prepend_scheme\" \"first\" is not supported "
                             "behind steps that change the beginning of a text",
                             where);
        longer = longer || lengthens(s);
    }
    return 0;
}

/* Another version of the format, and what the library does to the length of a text. Padding to the
 * longest text of a batch leaves a single one as it is. */
static int check_version_and_length(const json_t *root, const char *where, struct error *err) {
    const json_t *padding = json_object_get(root, "padding");
    const char *strategy = json_string_value(json_object_get(padding, "strategy"));
    const json_t *multiple = json_object_get(padding, "pad_to_multiple_of");
    const char *field = NULL, *version = "1.0";
    if (json_get_string(root, "version", &version, where, err) != 0)
        return -1;
    if (strcmp(version, "1.0") != 0)
        return error_set(err, "%s: \"version\" is \"%s\", only 1.0 is supported", where, version);
    if (json_object_get(root, "truncation") && !json_is_null(json_object_get(root, "truncation")))
        field = "truncation";
    else if (padding && !json_is_null(padding) &&
             (!strategy || strcmp(strategy, "BatchLongest") != 0 ||
              (multiple && !json_is_null(multiple))))
        field = "padding";
    if (!field)
        return 0;
    return error_set(err,
                     "%s: \"%s\" is not supported, it would change the length of a prompt; with "
                     "null in its place the file can be read",
                     where, field);
}

static int load_json(struct tokenizer **out, const json_t *root, const char *where,
                     struct error *err) {
    *out = NULL;
    if (!json_is_object(root))
        return error_set(err, "%s: the file must hold a JSON object", where);
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return tok_out_of_memory(err);
    const json_t *decoder = json_object_get(root, "decoder");
    t->has_decoder = decoder && !json_is_null(decoder);
    if (check_version_and_length(root, where, err) != 0 ||
        tok_load_model(t, root, where, err) != 0 ||
        tok_load_steps(&t->normalizers, json_object_get(root, "normalizer"), USE_NORMALIZER, where,
                       err) != 0 ||
        tok_load_steps(&t->pre_tokenizers, json_object_get(root, "pre_tokenizer"),
                       USE_PRE_TOKENIZER, where, err) != 0 ||
        tok_load_steps(&t->decoders, decoder, USE_DECODER, where, err) != 0 ||
        check_first_word(t, where, err) != 0 || load_added(t, root, where, err) != 0 ||
        tok_load_post_processor(t, json_object_get(root, "post_processor"), where, err) != 0) {
        tokenizer_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

int tokenizer_load_text(struct tokenizer **out, const char *json, size_t n, const char *where,
                        struct error *err) {
    *out = NULL;
    json_t *root = json_parse(json, n, where, err);
    if (!root)
        return -1;
    int result = load_json(out, root, where, err);
    json_decref(root);
    return result;
}

int tokenizer_load(struct tokenizer **out, const char *dir, struct error *err) {
    char path[PATH_MAX];
    *out = NULL;
    if (model_folder_path(path, sizeof path, dir, "tokenizer.json", err) != 0)
        return -1;
    json_t *root = json_read_file(path, err);
    int result = root ? load_json(out, root, path, err) : -1;
    json_decref(root);
    return result;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t)
        return;
    tok_vocab_free(&t->vocab);
    tok_steps_free(&t->normalizers);
    tok_steps_free(&t->pre_tokenizers);
    tok_steps_free(&t->decoders);
    free(t->added);
    free(t->raw.items);
    free(t->normalized.items);
    free(t->prefix.items);
    free(t->suffix.items);
    free(t);
}

int tokenizer_vocab_size(const struct tokenizer *t) {
    return (int)t->vocab.n_tokens;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token) {
    return tok_vocab_find(&t->vocab, token, strlen(token));
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->vocab.n_tokens && t->vocab.tokens[id].special;
}
