/*
 * Byte pair encoding of one piece: begin with its characters and, again and again, join the
 * neighbours whose merge was learned first, the leftmost of equals. A heap holds the joins that
 * are possible and a linked list the symbols, so n characters take O(n log n).
 */
#include "model/tokenizer/internal.h"

/* ---- heap of candidates, the best at the root ----------------------------------------------- */

static bool better(const struct candidate *a, const struct candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct candidate *heap, size_t *n, struct candidate c) {
    size_t i = (*n)++;
    while (i > 0 && better(&c, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = c;
}

static struct candidate heap_pop(struct candidate *heap, size_t *n) {
    struct candidate top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n)
            break;
        if (child + 1 < *n && better(&heap[child + 1], &heap[child]))
            child++;
        if (!better(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* ---- first symbols -------------------------------------------------------------------------- */

static void add_symbol(struct work *w, int32_t *n, int32_t id) {
    w->symbols[*n] = (struct symbol){id, *n - 1, *n + 1, false};
    (*n)++;
}

/* One <0xNN> token per byte, if there is one for each. */
static bool add_bytes(struct work *w, int32_t *n, const char *text, size_t length) {
    const int32_t *ids = w->t->byte_ids;
    if (!w->t->byte_fallback)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (ids[(unsigned char)text[i]] < 0)
            return false;
    }
    for (size_t i = 0; i < length; i++)
        add_symbol(w, n, ids[(unsigned char)text[i]]);
    return true;
}

/*
 * A symbol per character. An unknown one waits until the next known character, so that fuse_unk
 * can make one of a row of them; that <0xNN> tokens overtake it is how the library behaves.
 * Returns the number of symbols, at most n.
 */
static int32_t first_symbols(struct work *w, const char *text, size_t n) {
    const struct tokenizer *t = w->t;
    int32_t n_symbols = 0;
    bool unknown_waits = false;
    for (size_t at = 0; at < n;) {
        uint32_t c;
        int length = tok_utf8_next(text + at, n - at, &c);
        size_t n_char = length > 0 ? (size_t)length : 1;
        int32_t id = tok_vocab_find_model(&t->vocab, text + at, n_char);
        if (id >= 0) {
            if (unknown_waits)
                add_symbol(w, &n_symbols, t->unk_id);
            unknown_waits = false;
            add_symbol(w, &n_symbols, id);
        } else if (!add_bytes(w, &n_symbols, text + at, n_char) && t->unk_id >= 0) {
            if (unknown_waits && !t->fuse_unk)
                add_symbol(w, &n_symbols, t->unk_id);
            unknown_waits = true;
        }
        at += n_char;
    }
    if (unknown_waits)
        add_symbol(w, &n_symbols, t->unk_id);
    if (n_symbols > 0)
        w->symbols[n_symbols - 1].next = -1;
    return n_symbols;
}

/* ---- merging -------------------------------------------------------------------------------- */

static void push_candidate(struct work *w, size_t *n_heap, int32_t left, int32_t right) {
    const struct merge *m =
        tok_vocab_merge(&w->t->vocab, w->symbols[left].id, w->symbols[right].id);
    if (m)
        heap_push(w->heap, n_heap, (struct candidate){m->rank, left, m->id});
}

static void join(struct work *w, size_t *n_heap, int32_t at, int32_t id) {
    struct symbol *left = &w->symbols[at], *right = &w->symbols[left->next];
    right->merged_away = true;
    left->id = id;
    left->next = right->next;
    if (left->next >= 0) {
        w->symbols[left->next].prev = at;
        push_candidate(w, n_heap, at, left->next);
    }
    if (left->prev >= 0)
        push_candidate(w, n_heap, left->prev, at);
}

static void merge_all(struct work *w, int32_t n_symbols) {
    size_t n_heap = 0;
    for (int32_t i = 0; i + 1 < n_symbols; i++)
        push_candidate(w, &n_heap, i, i + 1);
    while (n_heap > 0) {
        struct candidate c = heap_pop(w->heap, &n_heap);
        const struct symbol *left = &w->symbols[c.at];
        if (left->merged_away || left->next < 0)
            continue;
        /* A candidate is out of date if its neighbours have since merged into other symbols. */
        const struct merge *m = tok_vocab_merge(&w->t->vocab, left->id, w->symbols[left->next].id);
        if (m && m->id == c.id)
            join(w, &n_heap, c.at, c.id);
    }
}

int tok_bpe(struct work *w, const char *text, size_t n) {
    int32_t whole = w->t->ignore_merges ? tok_vocab_find_model(&w->t->vocab, text, n) : -1;
    if (whole >= 0) {
        TOK_ADD(&w->ids, whole);
        return 0;
    }
    /* Each join takes one candidate and adds two at most, and there are fewer joins than symbols.
     */
    struct symbol *symbols = tok_grow(w->symbols, &w->symbols_cap, n, sizeof *symbols);
    if (symbols)
        w->symbols = symbols;
    struct candidate *heap = tok_grow(w->heap, &w->heap_cap, 2 * n, sizeof *heap);
    if (heap)
        w->heap = heap;
    if (!symbols || !heap)
        return tok_out_of_memory(w->matcher.err);
    int32_t n_symbols = first_symbols(w, text, n);
    merge_all(w, n_symbols);
    for (int32_t i = n_symbols > 0 ? 0 : -1; i >= 0; i = w->symbols[i].next)
        TOK_ADD(&w->ids, w->symbols[i].id);
    return 0;
}
