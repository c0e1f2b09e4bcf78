/* Reading tokenizer.json: the BPE model, that is its vocabulary, merges and options. */
#include "model/tokenizer/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- vocabulary ----------------------------------------------------------------------------- */

struct counts {
    json_int_t max_id;
    size_t n_texts;
};

static int count_id(const json_t *id, struct counts *out, const struct json_source *model,
                    const char *name, size_t index) {
    bool valid = json_is_integer(id) && json_integer_value(id) >= 0 &&
                 json_integer_value(id) <= TOKEN_ID_MAX;
    if (!valid && name)
        return json_refuse(model, "vocab: the id of \"%s\" must be a whole number from 0 to %d",
                           name, (int)TOKEN_ID_MAX);
    if (!valid)
        return json_refuse(model, "added_tokens[%zu]: \"id\" must be a whole number from 0 to %d",
                           index, (int)TOKEN_ID_MAX);
    if (json_integer_value(id) > out->max_id)
        out->max_id = json_integer_value(id);
    return 0;
}

/* The size of the table: the largest id of the vocabulary and of the added tokens. */
static int count_vocab(json_t *vocab, const json_t *added, struct counts *out,
                       const struct json_source *model) {
    const char *text;
    json_t *id;
    out->max_id = -1;
    out->n_texts = json_object_size(vocab) + json_array_size(added);
    json_object_foreach(vocab, text, id) {
        if (count_id(id, out, model, text, 0) != 0)
            return -1;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        id = json_object_get(json_array_get(added, i), "id");
        if (count_id(id, out, model, NULL, i) != 0)
            return -1;
    }
    return 0;
}

static int load_vocab(struct tokenizer *t, json_t *vocab, const struct json_source *model) {
    const char *text;
    json_t *value;
    json_object_foreach(vocab, text, value) {
        int32_t id = (int32_t)json_integer_value(value);
        const struct token *token = &t->vocab.tokens[id];
        if (token->exists)
            return json_refuse(model, "vocab: \"%.*s\" and \"%s\" have the same id %d",
                               (int)token->n, token->n ? t->vocab.texts.data + token->at : "", text,
                               id);
        tok_vocab_add(&t->vocab, id, text, strlen(text), true);
        if (t->vocab.texts.failed)
            return tok_out_of_memory(model->err);
    }
    return 0;
}

/* ---- merges --------------------------------------------------------------------------------- */

struct text {
    const char *data;
    size_t n;
};

/* A merge is written "a b" or ["a", "b"]. */
static int read_merge(const json_t *merge, struct text *left, struct text *right) {
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_array_size(merge) == 2 && json_is_string(a) && json_is_string(b)) {
        *left = (struct text){json_string_value(a), json_string_length(a)};
        *right = (struct text){json_string_value(b), json_string_length(b)};
        return 0;
    }
    if (!json_is_string(merge))
        return -1;
    const char *whole = json_string_value(merge);
    size_t n = json_string_length(merge);
    const char *space = memchr(whole, ' ', n);
    if (!space)
        return -1;
    *left = (struct text){whole, (size_t)(space - whole)};
    *right = (struct text){space + 1, n - left->n - 1};
    return memchr(right->data, ' ', right->n) ? -1 : 0;
}

static int find_part(const struct tokenizer *t, const char *data, size_t n, size_t index,
                     int32_t *id, const struct json_source *model) {
    *id = tok_vocab_find_model(&t->vocab, data, n);
    return *id >= 0 ? 0
                    : json_refuse(model, "merges[%zu]: \"%.*s\" is not in the vocabulary", index,
                                  (int)n, data);
}

static int load_merge(struct tokenizer *t, const json_t *merge, size_t index, struct bytes *joined,
                      const struct json_source *model) {
    struct text left, right;
    int32_t left_id, right_id, id;
    if (json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0)
        return 0; /* the head of an old merges.txt, which the library skips wherever it stands */
    if (read_merge(merge, &left, &right) != 0)
        return json_refuse(model, "merges[%zu] must be \"a b\" or [\"a\", \"b\"]", index);
    joined->n = 0;
    tok_bytes_add(joined, left.data, left.n);
    tok_bytes_add(joined, right.data, right.n);
    if (joined->failed)
        return tok_out_of_memory(model->err);
    if (find_part(t, left.data, left.n, index, &left_id, model) != 0 ||
        find_part(t, right.data, right.n, index, &right_id, model) != 0 ||
        find_part(t, joined->n ? joined->data : "", joined->n, index, &id, model) != 0)
        return -1;
    /* When a pair is listed twice, its later rank counts, as in the library. */
    tok_vocab_add_merge(&t->vocab, left_id, right_id, (uint32_t)index, id);
    return 0;
}

static int load_merges(struct tokenizer *t, const json_t *merges, const struct json_source *model) {
    struct bytes joined = {0};
    int result = 0;
    for (size_t i = 0; i < json_array_size(merges) && result == 0; i++)
        result = load_merge(t, json_array_get(merges, i), i, &joined, model);
    tok_bytes_free(&joined);
    return result;
}

/* ---- model ---------------------------------------------------------------------------------- */

static int refuse_text(const struct json_source *model, const char *field) {
    const char *text = "";
    if (json_get_string(model, field, &text) != 0)
        return -1;
    return *text ? json_refuse(model, "\"%s\" \"%s\" is not supported", field, text) : 0;
}

static int load_options(struct tokenizer *t, const struct json_source *model) {
    double dropout = 0;
    if (json_get_double(model, "dropout", &dropout) ||
        json_get_bool(model, "fuse_unk", &t->fuse_unk) ||
        json_get_bool(model, "byte_fallback", &t->byte_fallback) ||
        json_get_bool(model, "ignore_merges", &t->ignore_merges) ||
        refuse_text(model, "continuing_subword_prefix") || refuse_text(model, "end_of_word_suffix"))
        return -1;
    return dropout == 0
               ? 0
               : json_refuse(model, "\"dropout\" %g is not supported, ids must not be random",
                             dropout);
}

static int load_fallbacks(struct tokenizer *t, const struct json_source *model) {
    const char *unk = NULL;
    t->unk_id = -1;
    if (json_get_string(model, "unk_token", &unk) != 0)
        return -1;
    if (unk && (t->unk_id = tok_vocab_find_model(&t->vocab, unk, strlen(unk))) < 0)
        return json_refuse(model, "\"unk_token\" \"%s\" is not in the vocabulary", unk);
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        t->byte_ids[byte] = tok_vocab_find_model(&t->vocab, name, 6);
    }
    return 0;
}

int tok_load_model(struct tokenizer *t, const struct json_source *root) {
    const struct json_source model = {json_object_get(root->object, "model"), root->where,
                                      root->err};
    const json_t *added = json_field(root, "added_tokens");
    json_t *vocab = json_object_get(model.object, "vocab");
    const json_t *merges = json_object_get(model.object, "merges");
    const char *type = "BPE"; /* old files do not say */
    struct counts counts;
    if (!json_is_object(model.object))
        return json_refuse(root, "\"model\" is missing or not an object");
    if (json_get_string(&model, "type", &type) != 0)
        return -1;
    if (strcmp(type, "BPE") != 0)
        return json_refuse(root, "model \"%s\" is not supported, only BPE", type);
    if (!json_is_object(vocab))
        return json_refuse(root, "model: \"vocab\" is missing or not an object");
    if (!json_is_array(merges))
        return json_refuse(root, "model: \"merges\" is missing or not a list");
    if (added && !json_is_array(added))
        return json_refuse(root, "\"added_tokens\" is not a list");
    if (count_vocab(vocab, added, &counts, &model) || load_options(t, &model) ||
        tok_vocab_init(&t->vocab, (size_t)(counts.max_id + 1), counts.n_texts,
                       json_array_size(merges), root->err) ||
        load_vocab(t, vocab, &model) || load_merges(t, merges, &model))
        return -1;
    return load_fallbacks(t, &model);
}
