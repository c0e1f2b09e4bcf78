/*
 * Added tokens in a text: at every position the longest one that begins there, found among their
 * sorted texts. Most bytes begin none, and the table of first bytes says so at once.
 */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

/* By text. Two tokens can be the same text once normalised. Which one the library finds then
 * differs from run to run; here it is the one that was added first. */
static int by_text(const void *x, const void *y, void *texts) {
    const struct added_text *a = x, *b = y;
    const char *text = texts;
    int order = memcmp(text + a->at, text + b->at, a->n < b->n ? a->n : b->n);
    if (order != 0)
        return order;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

void tok_finder_sort(struct finder *f, char *texts) {
    f->texts = texts;
    if (f->n > 0)
        qsort_r(f->items, f->n, sizeof *f->items, by_text, texts);
    for (size_t i = 0; i < f->n; i++)
        f->start[(unsigned char)texts[f->items[i].at] + 1] = i + 1;
    for (int i = 1; i <= 256; i++)
        if (f->start[i] < f->start[i - 1])
            f->start[i] = f->start[i - 1];
}

/* The longest token at the start of text: its length (0: none) and index. The range that is left
 * holds the tokens whose first `length` bytes are the text's. */
static size_t longest(const struct finder *f, const char *text, size_t n, int32_t *added) {
    const unsigned char *wanted = (const unsigned char *)text;
    const unsigned char *texts = (const unsigned char *)f->texts;
    size_t low = f->start[wanted[0]], high = f->start[wanted[0] + 1], best = 0;
    for (size_t length = 1; low < high; length++) {
        if (f->items[low].n == length) {
            *added = f->items[low].added;
            best = length;
        }
        while (low < high && f->items[low].n == length)
            low++;
        if (length == n)
            break;
        while (low < high && texts[f->items[low].at + length] < wanted[length])
            low++;
        while (low < high && texts[f->items[high - 1].at + length] > wanted[length])
            high--;
    }
    return best;
}

static bool stands_alone(const char *text, size_t n, size_t start, size_t end) {
    size_t length;
    uint32_t c;
    if (start > 0 && tok_is_word(tok_utf8_last(text, start, &length)))
        return false;
    return end == n || tok_utf8_next(text + end, n - end, &c) <= 0 || !tok_is_word(c);
}

/* Not further than to `done`: what lies before has been given away. */
static size_t skip_spaces_left(const char *text, size_t done, size_t start) {
    size_t length;
    while (start > done && tok_is_space(tok_utf8_last(text, start, &length)))
        start -= length;
    return start;
}

static size_t skip_spaces_right(const char *text, size_t n, size_t end) {
    uint32_t c;
    int length;
    while (end < n && (length = tok_utf8_next(text + end, n - end, &c)) > 0 && tok_is_space(c))
        end += (size_t)length;
    return end;
}

void tok_added_split(const struct tokenizer *t, const struct finder *finder, struct pieces *p,
                     size_t at, size_t n, bool first) {
    const char *text = n ? p->text.data + at : "";
    size_t done = 0, i = 0, spaces_end = 0;
    while (finder->n > 0 && i < n) {
        int32_t index = -1;
        size_t length = longest(finder, text + i, n - i, &index);
        if (length == 0) {
            i++;
            continue;
        }
        const struct added *added = &t->added[index];
        size_t start = i, end = i + length;
        i = end;
        if (added->single_word && !stands_alone(text, n, start, end))
            continue;
        if (added->lstrip)
            start = start < done ? done : skip_spaces_left(text, done, start);
        if (added->rstrip) /* a row of spaces is walked only once */
            end = spaces_end = end < spaces_end ? spaces_end : skip_spaces_right(text, n, end);
        if (done < start)
            tok_piece_add(p, at + done, start - done, -1, first && done == 0);
        /* A token that is nothing but spaces may find that the one before has taken them all. */
        if (start < end)
            tok_piece_add(p, at + start, 0, added->id, false);
        done = end;
    }
    if (done < n)
        tok_piece_add(p, at + done, n - done, -1, first && done == 0);
}
