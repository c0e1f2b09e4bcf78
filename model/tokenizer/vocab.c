/*
 * Tokens by id and by text, and merges by pair. Both hash tables use open addressing with linear
 * probing, are filled once and are at most half full.
 */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const uint64_t no_pair = UINT64_MAX; /* ids are never negative */

static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

int tok_vocab_init(struct vocab *v, size_t n_tokens, size_t n_texts, size_t n_merges,
                   struct error *err) {
    v->n_tokens = n_tokens;
    v->n_slots = slots_for(n_texts);
    v->n_merge_slots = slots_for(n_merges);
    v->tokens = calloc(n_tokens ? n_tokens : 1, sizeof *v->tokens);
    v->slots = malloc(v->n_slots * sizeof *v->slots);
    v->merges = malloc(v->n_merge_slots * sizeof *v->merges);
    if (!v->tokens || !v->slots || !v->merges)
        return tok_out_of_memory(err); /* tok_vocab_free frees what there is */
    for (size_t i = 0; i < v->n_slots; i++)
        v->slots[i] = -1;
    for (size_t i = 0; i < v->n_merge_slots; i++)
        v->merges[i].pair = no_pair;
    return 0;
}

void tok_vocab_free(struct vocab *v) {
    tok_bytes_free(&v->texts);
    free(v->tokens);
    free(v->slots);
    free(v->merges);
    *v = (struct vocab){0};
}

/* The slot that holds the text, or the empty one where it belongs. */
static size_t text_slot(const struct vocab *v, const char *text, size_t n) {
    size_t slot = XXH3_64bits(text, n) & (v->n_slots - 1);
    while (v->slots[slot] >= 0) {
        const struct token *token = &v->tokens[v->slots[slot]];
        if (token->n == n && (n == 0 || memcmp(v->texts.data + token->at, text, n) == 0))
            break;
        slot = (slot + 1) & (v->n_slots - 1);
    }
    return slot;
}

void tok_vocab_add(struct vocab *v, int32_t id, const char *text, size_t n, bool in_model) {
    size_t slot = text_slot(v, text, n);
    struct token *token = &v->tokens[id];
    token->at = token->decoded_at = v->texts.n;
    token->n = token->decoded_n = (uint32_t)n;
    token->exists = true;
    token->in_model = in_model;
    tok_bytes_add(&v->texts, text, n);
    if (!v->texts.failed)
        v->slots[slot] = id;
}

int32_t tok_vocab_find(const struct vocab *v, const char *text, size_t n) {
    return v->slots[text_slot(v, text, n)];
}

int32_t tok_vocab_find_model(const struct vocab *v, const char *text, size_t n) {
    int32_t id = tok_vocab_find(v, text, n);
    return id >= 0 && v->tokens[id].in_model ? id : -1;
}

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct merge *merge_slot(const struct vocab *v, uint64_t pair) {
    /* The high half of a product with an odd constant depends on every bit of both ids. */
    uint64_t mixed = (pair ^ pair >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    size_t slot = (size_t)(mixed >> 32) & (v->n_merge_slots - 1);
    while (v->merges[slot].pair != no_pair && v->merges[slot].pair != pair)
        slot = (slot + 1) & (v->n_merge_slots - 1);
    return &v->merges[slot];
}

void tok_vocab_add_merge(struct vocab *v, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint64_t pair = pair_of(left, right);
    *merge_slot(v, pair) = (struct merge){.pair = pair, .rank = rank, .id = id};
}

const struct merge *tok_vocab_merge(const struct vocab *v, int32_t left, int32_t right) {
    const struct merge *found = merge_slot(v, pair_of(left, right));
    return found->pair == no_pair ? NULL : found;
}
