#include "scheduler/prefix_cache.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int prefix_cache_start(struct prefix_cache *p, int n_blocks, int block_size, struct error *err) {
    size_t n = (size_t)n_blocks + 1; /* no array is empty */
    *p = (struct prefix_cache){.n_blocks = n_blocks, .block_size = block_size, .n_buckets = 1};
    while (p->n_buckets < n_blocks)
        p->n_buckets *= 2;
    p->tokens = malloc(sizeof *p->tokens * n * (size_t)block_size);
    p->entries = calloc(n, sizeof *p->entries);
    p->buckets = malloc(sizeof *p->buckets * (size_t)p->n_buckets);
    if (!p->tokens || !p->entries || !p->buckets) {
        prefix_cache_end(p);
        return error_set(err, "out of memory for a prefix cache of %d blocks", n_blocks);
    }
    memset(p->buckets, 0xff, sizeof *p->buckets * (size_t)p->n_buckets);
    return 0;
}

void prefix_cache_end(struct prefix_cache *p) {
    free(p->tokens);
    free(p->entries);
    free(p->buckets);
    *p = (struct prefix_cache){0};
}

/* The serial number is the seed: it stands for all tokens before the block. */
static uint64_t hash_of(const struct prefix_cache *p, uint64_t before, const int32_t *tokens) {
    return XXH3_64bits_withSeed(tokens, sizeof *tokens * (size_t)p->block_size, before);
}

static int32_t *bucket_of(const struct prefix_cache *p, uint64_t hash) {
    return &p->buckets[hash & (uint64_t)(p->n_buckets - 1)];
}

static int32_t *tokens_of(const struct prefix_cache *p, int32_t block) {
    return p->tokens + (size_t)block * (size_t)p->block_size;
}

bool prefix_cache_knows(const struct prefix_cache *p, int32_t block) {
    return p->entries[block].serial != 0;
}

int32_t prefix_cache_find(const struct prefix_cache *p, int32_t before, const int32_t *tokens) {
    size_t bytes = sizeof *tokens * (size_t)p->block_size;
    uint64_t serial = before < 0 ? 0 : p->entries[before].serial;
    if (before >= 0 && !serial)
        return -1;
    uint64_t hash = hash_of(p, serial, tokens);
    for (int32_t b = *bucket_of(p, hash); b >= 0; b = p->entries[b].next)
        if (p->entries[b].hash == hash && p->entries[b].before == serial &&
            !memcmp(tokens_of(p, b), tokens, bytes))
            return b;
    return -1;
}

void prefix_cache_add(struct prefix_cache *p, int32_t block, int32_t before,
                      const int32_t *tokens) {
    if (prefix_cache_knows(p, block) || (before >= 0 && !prefix_cache_knows(p, before)) ||
        prefix_cache_find(p, before, tokens) >= 0)
        return;
    uint64_t serial = before < 0 ? 0 : p->entries[before].serial, hash = hash_of(p, serial, tokens);
    int32_t *bucket = bucket_of(p, hash);
    p->entries[block] = (struct prefix_entry){++p->last_serial, serial, hash, *bucket};
    memcpy(tokens_of(p, block), tokens, sizeof *tokens * (size_t)p->block_size);
    *bucket = block;
}

void prefix_cache_forget(struct prefix_cache *p, int32_t block) {
    if (!prefix_cache_knows(p, block))
        return;
    int32_t *link = bucket_of(p, p->entries[block].hash);
    while (*link != block)
        link = &p->entries[*link].next;
    *link = p->entries[block].next;
    p->entries[block].serial = 0;
}
