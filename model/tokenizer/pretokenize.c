/* Pre-tokenizers: cutting the text into the pieces that BPE never merges across. */
#include "model/tokenizer/internal.h"

#include <string.h>

void tok_piece_add(struct pieces *p, size_t at, size_t n, int32_t id, bool first) {
    if (p->failed || (n == 0 && id < 0))
        return;
    struct piece *grown = tok_grow(p->items, &p->cap, p->n + 1, sizeof *grown);
    if (!grown) {
        p->failed = true;
        return;
    }
    p->items = grown;
    p->items[p->n++] = (struct piece){at, n, id, first};
}

/* A match joins what stands before it (read backwards: behind it), unless that is a match itself.
 */
static void merge_matches(const struct spans *in, struct spans *out, bool backwards) {
    bool after_match = false;
    for (size_t i = 0; i < in->n; i++) {
        struct span s = in->items[backwards ? in->n - 1 - i : i];
        struct span *last = out->n > 0 ? &out->items[out->n - 1] : NULL;
        if (!s.match || after_match || !last)
            tok_spans_add(out, s.start, s.end, false);
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
            tok_spans_add(out, s.start, s.end, false);
    }
}

/* Turns w->spans (matches and gaps) into w->parts (pieces to keep, or `match`: to drop). */
static void apply_behavior(struct work *w, enum split_behavior behavior, bool invert) {
    struct spans *in = &w->spans, *out = &w->parts;
    out->n = 0;
    for (size_t i = 0; invert && i < in->n; i++)
        in->items[i].match = !in->items[i].match;
    switch (behavior) {
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED:
        for (size_t i = 0; i < in->n; i++)
            tok_spans_add(out, in->items[i].start, in->items[i].end,
                          behavior == SPLIT_REMOVED && in->items[i].match);
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
    out->n = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c = 0;
        int length = tok_utf8_next(text + at, n - at, &c);
        size_t end = at + (length > 0 ? (size_t)length : 1);
        if (length > 0 && tok_is_numeric(c)) {
            if (done < at)
                tok_spans_add(out, done, at, false);
            tok_spans_add(out, at, end, true);
            done = end;
        }
        at = end;
    }
    if (done < n)
        tok_spans_add(out, done, n, false);
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
    const char *text = w->text.data;
    size_t n = w->text.n;
    const struct pattern mark = {.literal = s->content};
    switch (s->kind) {
    case STEP_DIGITS:
        find_numbers(text, n, &w->spans);
        apply_behavior(w, s->individual_digits ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false);
        return 0;
    case STEP_SPLIT:
        if (tok_find(&s->pattern, &w->matcher, text, n, &w->spans, w->err) != 0)
            return -1;
        apply_behavior(w, s->behavior, s->invert);
        return 0;
    default: /* STEP_BYTE_LEVEL and STEP_METASPACE */
        w->spans.n = 0;
        if (!s->split)
            tok_spans_add(&w->spans, 0, n, false);
        else if (tok_find(s->kind == STEP_METASPACE ? &mark : &s->pattern, &w->matcher, text, n,
                          &w->spans, w->err) != 0)
            return -1;
        apply_behavior(w, s->kind == STEP_METASPACE ? SPLIT_MERGED_WITH_NEXT : SPLIT_ISOLATED,
                       false);
        return 0;
    }
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
            return tok_out_of_memory(w->err);
        if (cut(w, s) != 0)
            return -1;
        if (w->spans.failed || w->parts.failed)
            return tok_out_of_memory(w->err);
        for (size_t k = 0; k < w->parts.n; k++) {
            if (!w->parts.items[k].match)
                add_part(w, s, piece, &w->parts.items[k]);
        }
    }
    struct pieces swap = w->now;
    w->now = w->next;
    w->next = swap;
    return w->now.failed || w->now.text.failed ? tok_out_of_memory(w->err) : 0;
}

int tok_pre_tokenize(struct work *w) {
    for (size_t i = 0; i < w->t->pre_tokenizers.n; i++) {
        if (apply(w, &w->t->pre_tokenizers.items[i]) != 0)
            return -1;
    }
    return 0;
}
