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
                          size_t vocab_size, int32_t max_added, const struct json_source *from) {
    int32_t expected = tok_vocab_find_model(&t->vocab, content, strlen(content));
    if (expected < 0)
        expected = max_added >= (int32_t)vocab_size ? max_added + 1 : (int32_t)vocab_size;
    if (id != expected)
        return json_refuse(from,
                           "\"%s\" has id %d, but by its vocabulary and the tokens before it "
                           "it must be %d",
                           content, id, expected);
    if (t->vocab.tokens[id].added)
        return json_refuse(from, "\"%s\" is listed twice", content);
    if (t->vocab.tokens[id].exists && !t->vocab.tokens[id].in_model)
        return json_refuse(from, "id %d is taken", id);
    return 0;
}

static int load_added_token(struct tokenizer *t, const struct json_source *from, size_t vocab_size,
                            int32_t *max_added) {
    const char *content = NULL;
    struct added added = {.normalized = true};
    bool special = false;
    if (json_get_string(from, "content", &content) || json_get_bool(from, "special", &special) ||
        json_get_bool(from, "normalized", &added.normalized) ||
        json_get_bool(from, "single_word", &added.single_word) ||
        json_get_bool(from, "lstrip", &added.lstrip) ||
        json_get_bool(from, "rstrip", &added.rstrip))
        return -1;
    if (!content || !*content)
        return json_refuse(from, "\"content\" is missing or empty");
    added.id = (int32_t)json_integer_value(json_object_get(from->object, "id"));
    if (check_added_id(t, added.id, content, vocab_size, *max_added, from) != 0)
        return -1;
    if (!t->vocab.tokens[added.id].exists)
        tok_vocab_add(&t->vocab, added.id, content, strlen(content), false);
    if (t->vocab.texts.failed)
        return tok_out_of_memory(from->err);
    t->vocab.tokens[added.id].added = true;
    t->vocab.tokens[added.id].special = special;
    if (added.id > *max_added)
        *max_added = added.id;
    t->added[t->n_added++] = added;
    return 0;
}

/* A token that is looked for after the normalizer looks as the normalizer leaves it, there and when
 * it is decoded. text is scratch. */
static int add_normalized(struct tokenizer *t, size_t index, struct matcher *m, struct bytes *text,
                          const char *where) {
    struct vocab *v = &t->vocab;
    struct token *token = &v->tokens[t->added[index].id];
    if (tok_normalize(t, m, v->texts.data + token->at, token->n, text) != 0)
        return -1;
    if (text->n == 0)
        return error_set(m->err,
                         "%s: added_tokens[%zu]: nothing is left of it after the normalizer", where,
                         index);
    int32_t same = tok_vocab_find(v, text->data, text->n);
    token->skipped = same >= 0 && v->tokens[same].special;
    token->decoded_at = v->texts.n;
    token->decoded_n = (uint32_t)text->n;
    tok_bytes_add(&v->texts, text->data, text->n);
    TOK_ADD(&t->normalized,
            (struct added_text){token->decoded_at, text->n, t->normalized.n, (int32_t)index});
    return 0;
}

/* Special tokens first: where two are the same text once normalised, the first one is found. */
static int build_finders(struct tokenizer *t, const struct json_source *root) {
    struct matcher matcher = {0};
    struct bytes text = {0};
    int result = tok_matcher_init(&matcher, root->err);
    for (int special = 1; special >= 0; special--) {
        for (size_t i = 0; i < t->n_added && result == 0; i++) {
            struct token *token = &t->vocab.tokens[t->added[i].id];
            if (token->special != (special == 1))
                continue;
            if (t->added[i].normalized) {
                result = add_normalized(t, i, &matcher, &text, root->where);
                continue;
            }
            token->skipped = token->special;
            TOK_ADD(&t->raw, (struct added_text){token->at, token->n, t->raw.n, (int32_t)i});
        }
    }
    if (result == 0 && (t->vocab.texts.failed || t->raw.failed || t->normalized.failed))
        result = tok_out_of_memory(root->err);
    tok_bytes_free(&text);
    tok_matcher_free(&matcher);
    tok_finder_sort(&t->raw, t->vocab.texts.data);
    tok_finder_sort(&t->normalized, t->vocab.texts.data);
    return result;
}

static int load_added(struct tokenizer *t, const struct json_source *root) {
    const json_t *list = json_object_get(root->object, "added_tokens");
    const json_t *model = json_object_get(root->object, "model");
    size_t vocab_size = json_object_size(json_object_get(model, "vocab"));
    int32_t max_added = -1;
    t->added = calloc(json_array_size(list) + 1, sizeof *t->added);
    if (!t->added)
        return tok_out_of_memory(root->err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char place[PATH_MAX];
        snprintf(place, sizeof place, "%s: added_tokens[%zu]", root->where, i);
        struct json_source from = {json_array_get(list, i), place, root->err};
        if (load_added_token(t, &from, vocab_size, &max_added) != 0)
            return -1;
    }
    return build_finders(t, root);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static bool lengthens(const struct step *s) {
    return s->kind == STEP_PREPEND || s->kind == STEP_BYTE_LEVEL ||
           (s->kind == STEP_METASPACE && s->prepend_scheme != PREPEND_NEVER);
}

/* A Metaspace that marks only the first word asks which piece begins the text. Where a step has
 * replaced the beginning, or made it longer and another one has cut there, the library finds none
 * or several. */
static int check_first_word(const struct tokenizer *t, const struct json_source *root) {
    bool longer = false, replaced = false;
    for (size_t i = 0; i < t->normalizers.n; i++) {
        longer = longer || lengthens(&t->normalizers.items[i]);
        replaced = replaced || t->normalizers.items[i].kind == STEP_REPLACE;
    }
    for (size_t i = 0; i < t->pre_tokenizers.n; i++) {
        const struct step *s = &t->pre_tokenizers.items[i];
        if (s->kind == STEP_METASPACE && s->prepend_scheme == PREPEND_FIRST &&
            (replaced || (longer && i > 0)))
            return json_refuse(root, "Metaspace with \"prepend_scheme\" \"first\" is not supported "
                                     "behind steps that change the beginning of a text");
        longer = longer || lengthens(s);
    }
    return 0;
}

/* Another version of the format, and what the library does to the length of a text. Padding to the
 * longest text of a batch leaves a single one as it is. */
static int check_version_and_length(const struct json_source *root) {
    const json_t *padding = json_field(root, "padding");
    const char *strategy = json_string_value(json_object_get(padding, "strategy"));
    const json_t *multiple = json_object_get(padding, "pad_to_multiple_of");
    const char *field = NULL, *version = "1.0";
    if (json_get_string(root, "version", &version) != 0)
        return -1;
    if (strcmp(version, "1.0") != 0)
        return json_refuse(root, "\"version\" is \"%s\", only 1.0 is supported", version);
    if (json_field(root, "truncation"))
        field = "truncation";
    else if (padding && (!strategy || strcmp(strategy, "BatchLongest") != 0 ||
                         (multiple && !json_is_null(multiple))))
        field = "padding";
    if (!field)
        return 0;
    return json_refuse(root,
                       "\"%s\" is not supported, it would change the length of a prompt; with "
                       "null in its place the file can be read",
                       field);
}

static int load_parts(struct tokenizer *t, const struct json_source *root) {
    const char *where = root->where;
    struct error *err = root->err;
    const struct json_source normalizer = {json_field(root, "normalizer"), where, err},
                             pre_tokenizer = {json_field(root, "pre_tokenizer"), where, err},
                             decoder = {json_field(root, "decoder"), where, err},
                             post_processor = {json_field(root, "post_processor"), where, err};
    t->has_decoder = decoder.object != NULL;
    return check_version_and_length(root) || tok_load_model(t, root) ||
                   tok_load_steps(&t->normalizers, &normalizer, USE_NORMALIZER) ||
                   tok_load_steps(&t->pre_tokenizers, &pre_tokenizer, USE_PRE_TOKENIZER) ||
                   tok_load_steps(&t->decoders, &decoder, USE_DECODER) ||
                   check_first_word(t, root) || load_added(t, root) ||
                   tok_load_post_processor(t, &post_processor)
               ? -1
               : 0;
}

/* Takes over the reference to root; NULL: err is set. */
static int load_json(struct tokenizer **out, json_t *root, const char *where, struct error *err) {
    *out = NULL;
    if (!root)
        return -1;
    struct tokenizer *t = calloc(1, sizeof *t);
    int result = !t ? tok_out_of_memory(err)
                 : !json_is_object(root)
                     ? error_set(err, "%s: the file must hold a JSON object", where)
                     : load_parts(t, &(struct json_source){root, where, err});
    json_decref(root);
    if (result != 0)
        tokenizer_free(t);
    else
        *out = t;
    return result;
}

int tokenizer_load_text(struct tokenizer **out, const char *json, size_t n, const char *where,
                        struct error *err) {
    return load_json(out, json_parse(json, n, where, err), where, err);
}

int tokenizer_load(struct tokenizer **out, const char *dir, struct error *err) {
    char path[PATH_MAX];
    *out = NULL;
    if (model_folder_path(path, sizeof path, dir, "tokenizer.json", err) != 0)
        return -1;
    return load_json(out, json_read_file(path, err), path, err);
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
