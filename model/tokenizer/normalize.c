/* Normalizers: what happens to the text between added tokens before it is cut. */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct chars {
    utf8proc_int32_t *items;
    size_t n, cap;
};

static bool is_ascii(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] >= 0x80)
            return false;
    }
    return true;
}

/* Appends the canonical decomposition of valid UTF-8. */
static int decompose(const char *text, size_t n, struct chars *out) {
    for (size_t at = 0; at < n;) {
        uint32_t c = 0;
        at += (size_t)tok_utf8_next(text + at, n - at, &c);
        utf8proc_int32_t *grown = tok_grow(out->items, &out->cap, out->n + 8, sizeof *grown);
        if (!grown)
            return -1;
        out->items = grown;
        int last_boundclass = 0;
        utf8proc_ssize_t added = utf8proc_decompose_char((utf8proc_int32_t)c, out->items + out->n,
                                                         8, UTF8PROC_DECOMPOSE, &last_boundclass);
        if (added < 0 || added > 8) /* no character decomposes into more than four */
            return -1;
        out->n += (size_t)added;
    }
    return 0;
}

static int combining_class(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

/* Stable counting sort by combining class: utf8proc's own ordering takes quadratic time on a long
 * run of marks. scratch holds as many characters as the run. */
static void sort_marks(utf8proc_int32_t *run, size_t n, utf8proc_int32_t *scratch) {
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[combining_class(run[i]) + 1]++;
    for (int k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        scratch[start[combining_class(run[i])]++] = run[i];
    memcpy(run, scratch, n * sizeof *run);
}

static int order_marks(struct chars *chars) {
    utf8proc_int32_t *scratch = malloc((chars->n + 1) * sizeof *scratch);
    if (!scratch)
        return -1;
    for (size_t i = 0; i < chars->n;) {
        size_t end = i;
        bool ordered = true;
        while (end < chars->n && combining_class(chars->items[end]) != 0) {
            ordered = ordered && (end == i || combining_class(chars->items[end - 1]) <=
                                                  combining_class(chars->items[end]));
            end++;
        }
        if (!ordered)
            sort_marks(chars->items + i, end - i, scratch);
        i = end + 1;
    }
    free(scratch);
    return 0;
}

/* Appends valid UTF-8 in normalization form C. */
static int add_nfc(const char *text, size_t n, struct bytes *out, struct error *err) {
    if (is_ascii(text, n)) {
        tok_bytes_add(out, text, n);
        return 0;
    }
    struct chars chars = {0};
    utf8proc_ssize_t composed = -1;
    if (decompose(text, n, &chars) == 0 && order_marks(&chars) == 0)
        composed = utf8proc_normalize_utf32(chars.items, (utf8proc_ssize_t)chars.n,
                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < composed; i++)
        tok_bytes_add_char(out, (uint32_t)chars.items[i]);
    free(chars.items);
    return composed < 0 ? tok_out_of_memory(err) : 0;
}

static int normalize_nfc(const char *text, size_t n, struct bytes *out, struct error *err) {
    for (size_t at = 0; at < n;) {
        size_t valid = tok_utf8_valid(text + at, n - at);
        if (add_nfc(text + at, valid, out, err) != 0)
            return -1;
        at += valid;
        if (at < n)
            tok_bytes_add(out, text + at++, 1);
    }
    return 0;
}

static int apply(const struct step *s, struct matcher *m, const char *text, size_t n,
                 struct bytes *out) {
    switch (s->kind) {
    case STEP_NFC:
        return normalize_nfc(text, n, out, m->err);
    case STEP_PREPEND:
        if (n > 0)
            tok_bytes_add(out, s->content.data, s->content.n);
        tok_bytes_add(out, text, n);
        return 0;
    default: /* STEP_REPLACE: the loader admits no other */
        return tok_replace(m, &s->pattern, &s->content, text, n, out);
    }
}

int tok_normalize(const struct tokenizer *t, struct matcher *m, const char *text, size_t n,
                  struct bytes *out) {
    struct bytes from = {0};
    int result = 0;
    out->n = 0;
    tok_bytes_add(out, text, n);
    for (size_t i = 0; i < t->normalizers.n && result == 0; i++) {
        struct bytes swap = from;
        from = *out;
        *out = swap;
        out->n = 0;
        result = apply(&t->normalizers.items[i], m, from.n ? from.data : "", from.n, out);
        out->failed = out->failed || from.failed;
    }
    if (result == 0 && out->failed)
        result = tok_out_of_memory(m->err);
    tok_bytes_free(&from);
    return result;
}
