/* Buffers, UTF-8 and the character classes that the tokenizer's rules name. */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int tok_out_of_memory(struct error *err) {
    return error_set(err, "tokenizer: out of memory");
}

void *tok_grow(void *items, size_t *cap, size_t needed, size_t item_size) {
    if (needed <= *cap)
        return items;
    size_t new_cap = *cap < 16 ? 16 : *cap * 2;
    if (new_cap < needed)
        new_cap = needed;
    if (new_cap > SIZE_MAX / 2 / item_size)
        return NULL;
    void *grown = realloc(items, new_cap * item_size);
    if (grown)
        *cap = new_cap;
    return grown;
}

void tok_bytes_add(struct bytes *b, const char *data, size_t n) {
    if (b->failed || n == 0)
        return;
    char *grown = tok_grow(b->data, &b->cap, b->n + n, 1);
    if (!grown) {
        b->failed = true;
        return;
    }
    b->data = grown;
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

void tok_bytes_add_char(struct bytes *b, uint32_t c) {
    utf8proc_uint8_t text[4];
    tok_bytes_add(b, (const char *)text, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, text));
}

void tok_bytes_free(struct bytes *b) {
    free(b->data);
    *b = (struct bytes){0};
}

int tok_utf8_next(const char *s, size_t n, uint32_t *c) {
    const unsigned char *u = (const unsigned char *)s;
    unsigned lead = u[0];
    if (lead < 0x80) {
        *c = lead;
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4)
        return -1;
    int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* Only the second byte has narrower bounds: they shut out overlong forms, surrogates and what
     * lies above U+10FFFF. */
    unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t value = lead & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n)
            return 0;
        if (u[i] < low || u[i] > high)
            return -i;
        value = value << 6 | (u[i] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *c = value;
    return length;
}

size_t tok_utf8_valid(const char *s, size_t n) {
    size_t at = 0;
    while (at < n) {
        uint32_t c;
        int length = tok_utf8_next(s + at, n - at, &c);
        if (length <= 0)
            break;
        at += (size_t)length;
    }
    return at;
}

uint32_t tok_utf8_last(const char *s, size_t n, size_t *n_char) {
    for (size_t back = 1; back <= 4 && back <= n; back++) {
        uint32_t c;
        if (((unsigned char)s[n - back] & 0xC0) == 0x80)
            continue;
        if (tok_utf8_next(s + n - back, back, &c) != (int)back)
            break;
        *n_char = back;
        return c;
    }
    *n_char = 1;
    return 0;
}

bool tok_is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

#define CATEGORY(name) (1u << UTF8PROC_CATEGORY_##name)

static bool has_category(uint32_t c, unsigned categories) {
    return categories >> utf8proc_category((utf8proc_int32_t)c) & 1;
}

bool tok_is_word(uint32_t c) {
    if (has_category(c, CATEGORY(LU) | CATEGORY(LL) | CATEGORY(LT) | CATEGORY(LM) | CATEGORY(LO) |
                            CATEGORY(MN) | CATEGORY(MC) | CATEGORY(ME) | CATEGORY(ND) |
                            CATEGORY(NL) | CATEGORY(PC)))
        return true;
    /* Join controls, and the circled and squared letters: symbols that count as alphabetic. */
    return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
           (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

bool tok_is_numeric(uint32_t c) {
    return has_category(c, CATEGORY(ND) | CATEGORY(NL) | CATEGORY(NO));
}

/* Printable bytes stand for themselves; the other 68 get the letters from U+0100 on, in order. */
static bool is_plain_byte(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t tok_byte_to_char(unsigned char byte) {
    if (is_plain_byte(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xAD ? 0x143u : 0x121u + (byte - 0x7Fu);
}

int tok_char_to_byte(uint32_t c) {
    if (c < 0x100)
        return is_plain_byte(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}
