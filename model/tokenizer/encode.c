/* From text to ids: added tokens, normalizers, added tokens again, pre-tokenizers, BPE. */
#include "model/tokenizer/internal.h"

#include <stdlib.h>

enum { TEXT_MAX = 256 * 1024 * 1024 }; /* positions are 32-bit, and steps can make text longer */

static void work_free(struct work *w) {
    tok_matcher_free(&w->matcher);
    tok_bytes_free(&w->now.text);
    tok_bytes_free(&w->next.text);
    tok_bytes_free(&w->text);
    free(w->now.items);
    free(w->next.items);
    free(w->parts.items);
    free(w->symbols);
    free(w->heap);
    free(w->ids.items);
}

/* Fills w->now with added tokens and normalised text. */
static int split_added(struct work *w, const char *text, size_t n) {
    struct pieces *raw = &w->next, *out = &w->now;
    tok_bytes_add(&raw->text, text, n);
    if (raw->text.failed)
        return tok_out_of_memory(w->matcher.err);
    tok_added_split(w->t, &w->t->raw, raw, 0, n, true);
    for (size_t i = 0; i < raw->n; i++) {
        const struct piece *piece = &raw->items[i];
        if (piece->id >= 0) {
            tok_piece_add(out, 0, 0, piece->id, false);
            continue;
        }
        if (tok_normalize(w->t, &w->matcher, raw->text.data + piece->at, piece->n, &w->text) != 0)
            return -1;
        size_t at = out->text.n;
        tok_bytes_add(&out->text, w->text.data, w->text.n);
        if (out->text.failed)
            break;
        tok_added_split(w->t, &w->t->normalized, out, at, w->text.n, piece->first);
    }
    return raw->failed || out->failed || out->text.failed ? tok_out_of_memory(w->matcher.err) : 0;
}

static int encode_pieces(struct work *w) {
    for (size_t i = 0; i < w->now.n; i++) {
        const struct piece *piece = &w->now.items[i];
        if (piece->id >= 0) {
            TOK_ADD(&w->ids, piece->id);
            continue;
        }
        if (piece->n > INT32_MAX / 4)
            return error_set(w->matcher.err, "tokenizer: a word of %zu bytes is too long",
                             piece->n);
        if (tok_bpe(w, w->now.text.data + piece->at, piece->n) != 0)
            return -1;
    }
    return 0;
}

static void add_all(struct ids *out, const struct ids *ids) {
    for (size_t i = 0; i < ids->n; i++)
        TOK_ADD(out, ids->items[i]);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                     int32_t **out, size_t *n_out, struct error *err) {
    struct work w = {.t = t};
    *out = NULL;
    *n_out = 0;
    if (n_bytes > TEXT_MAX)
        return error_set(err, "tokenizer: the text has %zu bytes, the limit is %d", n_bytes,
                         (int)TEXT_MAX);
    if (tok_matcher_init(&w.matcher, err) != 0)
        return -1;
    if (add_special)
        add_all(&w.ids, &t->prefix);
    if (split_added(&w, text, n_bytes) != 0 || tok_pre_tokenize(&w) != 0 || encode_pieces(&w) != 0)
        goto fail;
    if (add_special)
        add_all(&w.ids, &t->suffix);
    if (w.ids.failed) {
        tok_out_of_memory(err);
        goto fail;
    }
    *out = w.ids.items;
    *n_out = w.ids.n;
    w.ids.items = NULL;
    work_free(&w);
    return 0;
fail:
    work_free(&w);
    return -1;
}
