/* Pre-tokenizers: cutting the text into the pieces that BPE never merges across. */
#include "model/tokenizer/internal.h"

#include <string.h>

void tok_piece_add(struct pieces *p, size_t at, size_t n, int32_t id, bool first) {
    if (n > 0 || id >= 0)
        TOK_ADD(p, (struct piece){at, n, id, first});
}

/* A match joins what stands before it (read backwards: behind it), unless that is a match itself.
 */
static void merge_matches(const struct spans *in, struct spans *out, bool backwards) {
    bool after_match = false;
    for (size_t i = 0; i < in->n; i++) {
        struct span s = in->items[backwards ? in->n - 1 - i : i];
        struct span *last = out->n > 0 ? &out->items[out->n - 1] : NULL;
        if (!s.match || after_match || !last)
            TOK_ADD(out, (struct span){s.start, s.end, false});
        else if (backwards)
            last->start = s.start;
        else
            last->end = s.end;
        after_match = s.match;
    }
    for (size_t i = 0; backwards && i < out->n / 2; i++) {
        struct span s = out->items[i];
        out->items[i] = out->items[out->n - 1 - i];
        out->items[out->n - 1 - i] = s;
    }
}

/* Neighbours of the same sort become one. The library counts the start of the text as "no match",
 * which makes no difference: there is nothing before it to join. */
static void merge_contiguous(const struct spans *in, struct spans *out) {
    for (size_t i = 0; i < in->n; i++) {
        struct span s = in->items[i];
        if (i > 0 && out->n > 0 && s.match == in->items[i - 1].match)
            out->items[out->n - 1].end = s.end;
        else
            TOK_ADD(out, (struct span){s.start, s.end, false});
    }
}

/* Turns the matches and gaps that were found into w->parts: pieces to keep, or `match`: to drop. */
static void apply_behavior(struct work *w, const struct step *s) {
    struct spans *in = &w->matcher.spans, *out = &w->parts;
    out->n = 0;
    for (size_t i = 0; s->invert && i < in->n; i++)
        in->items[i].match = !in->items[i].match;
    switch (s->behavior) {
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED:
        for (size_t i = 0; i < in->n; i++)
            TOK_ADD(out, (struct span){in->items[i].start, in->items[i].end,
                                       s->behavior == SPLIT_REMOVED && in->items[i].match});
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        merge_matches(in, out, false);
        break;
    case SPLIT_MERGED_WITH_NEXT:
        merge_matches(in, out, true);
        break;
    case SPLIT_CONTIGUOUS:
        merge_contiguous(in, out);
        break;
    }
}

/* Every character that is a number, alone or in runs. */
static void find_numbers(const char *text, size_t n, struct spans *out) {
    size_t done = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c = 0;
        int length = tok_utf8_next(text + at, n - at, &c);
        size_t end = at + (length > 0 ? (size_t)length : 1);
        if (length > 0 && tok_is_numeric(c)) {
            if (done < at)
                TOK_ADD(out, (struct span){done, at, false});
            TOK_ADD(out, (struct span){at, end, true});
            done = end;
        }
        at = end;
    }
    if (done < n)
        TOK_ADD(out, (struct span){done, n, false});
}

/* Writes one piece, as the step spells it, to w->text; the spans are cut from that. */
static void rewrite(struct work *w, const struct step *s, const struct piece *piece) {
    const char *text = w->now.text.data + piece->at;
    w->text.n = 0;
    if (s->kind == STEP_BYTE_LEVEL && s->add_prefix_space && text[0] != ' ')
        tok_bytes_add(&w->text, " ", 1);
    if (s->kind != STEP_METASPACE) {
        tok_bytes_add(&w->text, text, piece->n);
        return;
    }
    const struct bytes *mark = &s->content;
    bool wanted =
        s->prepend_scheme == PREPEND_ALWAYS || (s->prepend_scheme == PREPEND_FIRST && piece->first);
    bool there = text[0] == ' ' || (piece->n >= mark->n && memcmp(text, mark->data, mark->n) == 0);
    if (wanted && !there)
        tok_bytes_add(&w->text, mark->data, mark->n);
    for (size_t i = 0; i < piece->n; i++) {
        if (text[i] == ' ')
            tok_bytes_add(&w->text, mark->data, mark->n);
        else
            tok_bytes_add(&w->text, text + i, 1);
    }
}

static int cut(struct work *w, const struct step *s) {
    struct spans *spans = &w->matcher.spans;
    spans->n = 0;
    if (s->kind == STEP_DIGITS)
        find_numbers(w->text.data, w->text.n, spans);
    else if (!s->split)
        TOK_ADD(spans, (struct span){0, w->text.n, false});
    else if (tok_find(&w->matcher, &s->pattern, w->text.data, w->text.n) != 0)
        return -1;
    apply_behavior(w, s);
    return spans->failed || w->parts.failed ? tok_out_of_memory(w->matcher.err) : 0;
}

static void add_part(struct work *w, const struct step *s, const struct piece *piece,
                     const struct span *part) {
    struct pieces *out = &w->next;
    size_t at = out->text.n;
    const char *text = w->text.data + part->start;
    size_t n = part->end - part->start;
    for (size_t i = 0; s->kind == STEP_BYTE_LEVEL && i < n; i++)
        tok_bytes_add_char(&out->text, tok_byte_to_char((unsigned char)text[i]));
    if (s->kind != STEP_BYTE_LEVEL)
        tok_bytes_add(&out->text, text, n);
    tok_piece_add(out, at, out->text.n - at, -1, piece->first && part->start == 0);
}

static int apply(struct work *w, const struct step *s) {
    w->next.n = 0;
    w->next.text.n = 0;
    for (size_t i = 0; i < w->now.n; i++) {
        const struct piece *piece = &w->now.items[i];
        if (piece->id >= 0) {
            tok_piece_add(&w->next, 0, 0, piece->id, false);
            continue;
        }
        rewrite(w, s, piece);
        if (w->text.failed)
            return tok_out_of_memory(w->matcher.err);
        if (cut(w, s) != 0)
            return -1;
        for (size_t k = 0; k < w->parts.n; k++) {
            if (!w->parts.items[k].match)
                add_part(w, s, piece, &w->parts.items[k]);
        }
    }
    struct pieces swap = w->now;
    w->now = w->next;
    w->next = swap;
    return w->now.failed || w->now.text.failed ? tok_out_of_memory(w->matcher.err) : 0;
}

int tok_pre_tokenize(struct work *w) {
    for (size_t i = 0; i < w->t->pre_tokenizers.n; i++) {
        if (apply(w, &w->t->pre_tokenizers.items[i]) != 0)
            return -1;
    }
    return 0;
}
