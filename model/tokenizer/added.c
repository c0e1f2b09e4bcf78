/*
 * Added tokens in a text: at every position the longest one that begins there, found by walking a
 * trie. Most bytes begin none, and the root's table says so at once.
 */
#include "model/tokenizer/internal.h"

#include <stdlib.h>

enum { ROOT = 0 };

static int32_t new_node(struct trie *t, unsigned char byte) {
    struct trie_node *grown = tok_grow(t->nodes, &t->cap, t->n + 1, sizeof *grown);
    if (!grown)
        return -1;
    t->nodes = grown;
    t->nodes[t->n] = (struct trie_node){-1, -1, -1, byte};
    return (int32_t)t->n++;
}

static int32_t find_child(const struct trie *t, int32_t node, unsigned char byte) {
    if (node == ROOT)
        return t->first[byte];
    int32_t child = t->nodes[node].child;
    while (child >= 0 && t->nodes[child].byte != byte)
        child = t->nodes[child].sibling;
    return child;
}

static int init(struct trie *t) {
    for (int i = 0; i < 256; i++)
        t->first[i] = -1;
    return new_node(t, 0) == ROOT ? 0 : -1;
}

int tok_trie_add(struct trie *t, const char *text, size_t n, int32_t added) {
    if (t->n == 0 && init(t) != 0)
        return -1;
    int32_t node = ROOT;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t child = find_child(t, node, byte);
        if (child < 0) {
            child = new_node(t, byte);
            if (child < 0)
                return -1;
            t->nodes[child].sibling = t->nodes[node].child;
            t->nodes[node].child = child;
            if (node == ROOT)
                t->first[byte] = child;
        }
        node = child;
    }
    /* Two tokens can be the same text once normalised. Which one the library finds then differs
     * from run to run; here it is the first. */
    if (t->nodes[node].added < 0)
        t->nodes[node].added = added;
    return 0;
}

void tok_trie_free(struct trie *t) {
    free(t->nodes);
    t->nodes = NULL;
    t->n = t->cap = 0;
}

/* The longest token at the start of text: its length (0: none) and index. */
static size_t longest(const struct trie *t, const char *text, size_t n, int32_t *added) {
    size_t best = 0;
    int32_t node = ROOT;
    for (size_t i = 0; i < n; i++) {
        node = find_child(t, node, (unsigned char)text[i]);
        if (node < 0)
            break;
        if (t->nodes[node].added >= 0) {
            *added = t->nodes[node].added;
            best = i + 1;
        }
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

void tok_added_split(const struct tokenizer *t, const struct trie *trie, struct pieces *p,
                     size_t at, size_t n, bool first) {
    const char *text = n ? p->text.data + at : "";
    size_t done = 0, i = 0, spaces_end = 0;
    while (trie->n > 0 && i < n) {
        int32_t index = -1;
        size_t length = longest(trie, text + i, n - i, &index);
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
