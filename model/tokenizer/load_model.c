/* Reading tokenizer.json: the BPE model, that is its vocabulary, merges and options. */
#include "model/tokenizer/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- vocabulary ----------------------------------------------------------------------------- */

struct counts {
    json_int_t max_id;
    size_t n_texts;
};

/* The size of the table: the largest id of the vocabulary and of the added tokens. */
static int count_vocab(json_t *vocab, const json_t *added, struct counts *out, const char *where,
                       struct error *err) {
    const char *text;
    json_t *id;
    out->max_id = -1;
    out->n_texts = json_object_size(vocab) + json_array_size(added);
    json_object_foreach(vocab, text, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > TOKEN_ID_MAX)
            return error_set(err, "%s: vocab: the id of \"%s\" must be a whole number from 0 to %d",
                             where, text, (int)TOKEN_ID_MAX);
        if (json_integer_value(id) > out->max_id)
            out->max_id = json_integer_value(id);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *added_id = json_object_get(json_array_get(added, i), "id");
        if (!json_is_integer(added_id) || json_integer_value(added_id) < 0 ||
            json_integer_value(added_id) > TOKEN_ID_MAX)
            return error_set(err,
                             "%s: added_tokens[%zu]: \"id\" must be a whole number from 0 to "
                             "%d",
                             where, i, (int)TOKEN_ID_MAX);
        if (json_integer_value(added_id) > out->max_id)
            out->max_id = json_integer_value(added_id);
    }
    return 0;
}

static int load_vocab(struct tokenizer *t, json_t *vocab, const char *where, struct error *err) {
    const char *text;
    json_t *value;
    json_object_foreach(vocab, text, value) {
        int32_t id = (int32_t)json_integer_value(value);
        const struct token *token = &t->vocab.tokens[id];
        if (token->exists)
            return error_set(err, "%s: vocab: \"%.*s\" and \"%s\" have the same id %d", where,
                             (int)token->n, token->n ? t->vocab.texts.data + token->at : "", text,
                             id);
        tok_vocab_add(&t->vocab, id, text, strlen(text), true);
        if (t->vocab.texts.failed)
            return tok_out_of_memory(err);
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
                     int32_t *id, const char *where, struct error *err) {
    *id = tok_vocab_find_model(&t->vocab, data, n);
    if (*id < 0)
        return error_set(err, "%s: merges[%zu]: \"%.*s\" is not in the vocabulary", where, index,
                         (int)n, data);
    return 0;
}

static int load_merge(struct tokenizer *t, const json_t *merge, size_t index, struct bytes *joined,
                      const char *where, struct error *err) {
    struct text left, right;
    int32_t left_id, right_id, id;
    if (json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0)
        return 0; /* the head of an old merges.txt, which the library skips wherever it stands */
    if (read_merge(merge, &left, &right) != 0)
        return error_set(err, "%s: merges[%zu] must be \"a b\" or [\"a\", \"b\"]", where, index);
    joined->n = 0;
    tok_bytes_add(joined, left.data, left.n);
    tok_bytes_add(joined, right.data, right.n);
    if (joined->failed)
        return tok_out_of_memory(err);
    if (find_part(t, left.data, left.n, index, &left_id, where, err) != 0 ||
        find_part(t, right.data, right.n, index, &right_id, where, err) != 0 ||
        find_part(t, joined->n ? joined->data : "", joined->n, index, &id, where, err) != 0)
        return -1;
    /* When a pair is listed twice, its later rank counts, as in the library. */
    tok_vocab_add_merge(&t->vocab, left_id, right_id, (uint32_t)index, id);
    return 0;
}

static int load_merges(struct tokenizer *t, const json_t *merges, const char *where,
                       struct error *err) {
    struct bytes joined = {0};
    int result = 0;
    for (size_t i = 0; i < json_array_size(merges) && result == 0; i++)
        result = load_merge(t, json_array_get(merges, i), i, &joined, where, err);
    tok_bytes_free(&joined);
    return result;
}

/* ---- model ---------------------------------------------------------------------------------- */

static int refuse_text(const json_t *model, const char *field, const char *where,
                       struct error *err) {
    const char *text = "";
    if (json_get_string(model, field, &text, where, err) != 0)
        return -1;
    return *text ? error_set(err, "%s: \"%s\" \"%s\" is not supported", where, field, text) : 0;
}

static int load_options(struct tokenizer *t, const json_t *model, const char *where,
                        struct error *err) {
    double dropout = 0;
    if (json_get_double(model, "dropout", &dropout, where, err) != 0 ||
        json_get_bool(model, "fuse_unk", &t->fuse_unk, where, err) != 0 ||
        json_get_bool(model, "byte_fallback", &t->byte_fallback, where, err) != 0 ||
        json_get_bool(model, "ignore_merges", &t->ignore_merges, where, err) != 0 ||
        refuse_text(model, "continuing_subword_prefix", where, err) != 0 ||
        refuse_text(model, "end_of_word_suffix", where, err) != 0)
        return -1;
    if (dropout != 0)
        return error_set(err, "%s: \"dropout\" %g is not supported, ids must not be random", where,
                         dropout);
    return 0;
}

static int load_fallbacks(struct tokenizer *t, const json_t *model, const char *where,
                          struct error *err) {
    const char *unk = NULL;
    t->unk_id = -1;
    if (json_get_string(model, "unk_token", &unk, where, err) != 0)
        return -1;
    if (unk && (t->unk_id = tok_vocab_find_model(&t->vocab, unk, strlen(unk))) < 0)
        return error_set(err, "%s: \"unk_token\" \"%s\" is not in the vocabulary", where, unk);
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        t->byte_ids[byte] = tok_vocab_find_model(&t->vocab, name, 6);
    }
    return 0;
}

int tok_load_model(struct tokenizer *t, const json_t *root, const char *where, struct error *err) {
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const char *type = "BPE"; /* old files do not say */
    struct counts counts;
    if (!json_is_object(model))
        return error_set(err, "%s: \"model\" is missing or not an object", where);
    if (json_get_string(model, "type", &type, where, err) != 0)
        return -1;
    if (strcmp(type, "BPE") != 0)
        return error_set(err, "%s: model \"%s\" is not supported, only BPE", where, type);
    if (!json_is_object(vocab))
        return error_set(err, "%s: model: \"vocab\" is missing or not an object", where);
    if (!json_is_array(merges))
        return error_set(err, "%s: model: \"merges\" is missing or not a list", where);
    if (added && !json_is_null(added) && !json_is_array(added))
        return error_set(err, "%s: \"added_tokens\" is not a list", where);
    if (count_vocab(vocab, added, &counts, where, err) != 0 ||
        load_options(t, model, where, err) != 0 ||
        tok_vocab_init(&t->vocab, (size_t)(counts.max_id + 1), counts.n_texts,
                       json_array_size(merges), err) != 0 ||
        load_vocab(t, vocab, where, err) != 0 || load_merges(t, merges, where, err) != 0)
        return -1;
    return load_fallbacks(t, model, where, err);
}
