/*
 * prefix_cache.h - phase 7: which blocks of a pool hold which tokens, so that sequences that begin
 * alike can share them.
 *
 * Keys and values of a position depend on its token and on all before it, and on nothing else; so a
 * full block can be used by every sequence whose tokens up to the end of the block are the same.
 * The cache finds such blocks by a hash of (what is before, the block's tokens) and then compares:
 * the tokens themselves, and the block before by its serial number, which is given once and never
 * again. A hash that happens to be equal makes nobody read another's text.
 *
 * The cache only knows; blocks are held by references and by the allocator's list of cached blocks
 * (block_allocator.h). Whoever gives a block out anew calls prefix_cache_forget.
 *
 * The idea: automatic prefix caching in vLLM; RadixAttention (Zheng et al., "SGLang", 2023) keeps a
 * tree instead.
 */
#ifndef SAMEBITS_PREFIX_CACHE_H
#define SAMEBITS_PREFIX_CACHE_H

#include "model/error.h"

#include <stdbool.h>
#include <stdint.h>

/* What is known of a block. */
struct prefix_entry {
    uint64_t serial, before; /* of it, 0: not known; of the block before it, 0: it is a first one */
    uint64_t hash;
    int32_t next; /* block of the same bucket; -1: the last */
};

struct prefix_cache {
    int n_blocks, block_size;
    int32_t *tokens;              /* [n_blocks, block_size] what a known block holds */
    struct prefix_entry *entries; /* [n_blocks] */
    int32_t *buckets;             /* [n_buckets] the first block of each; -1: empty */
    int64_t n_buckets;            /* a power of two */
    uint64_t last_serial;
};

/* Knows nothing yet, of a pool of n_blocks. Returns 0, or -1 with err set (no memory). */
int prefix_cache_start(struct prefix_cache *p, int n_blocks, int block_size, struct error *err);

/* A zeroed one is fine. */
void prefix_cache_end(struct prefix_cache *p);

/* The block that holds tokens [block_size] behind block `before` (-1: at the beginning of a text),
 * or -1 when there is none. */
int32_t prefix_cache_find(const struct prefix_cache *p, int32_t before, const int32_t *tokens);

/* Notes that a block, which must be full and computed, holds tokens [block_size] behind `before`
 * (-1: at the beginning). Nothing happens when the block is known already, when another one holds
 * the same, or when `before` is not known. */
void prefix_cache_add(struct prefix_cache *p, int32_t block, int32_t before, const int32_t *tokens);

/* Whether the block is known. */
bool prefix_cache_knows(const struct prefix_cache *p, int32_t block);

/* The block gets new contents, or none. Nothing happens when it was not known. */
void prefix_cache_forget(struct prefix_cache *p, int32_t block);

#endif
