/*
 * kv_pool.h - phase 5: one pool of memory for the keys and values of all sequences, in blocks.
 *
 * A block holds the keys and values of block_size positions, in every layer. Block b has the slots
 * b * block_size ... (b + 1) * block_size - 1 of each layer, so that one number names the same
 * place in all of them. (Ranks may store a part of each: model/context_parallel.h.) Everything is
 * allocated at the start; which blocks are in use is the block allocator's business, and no block
 * ever moves.
 *
 * With `poison`, a block that nobody uses holds what no kv_append writes: mantissas of -32768
 * (bfp8: -128) under the exponent 127, NaNs in types that are floats. Whoever reads it through a
 * stale number gets other bits, and a fault before long.
 */
#ifndef SAMEBITS_KV_POOL_H
#define SAMEBITS_KV_POOL_H

#include "model/model.h"
#include "scheduler/block_allocator.h"

enum { MAX_BLOCK_SIZE = 256 };

/* How many blocks hold n_positions. */
static inline int blocks_for(int n_positions, int block_size) {
    return n_positions / block_size + (n_positions % block_size != 0);
}

struct kv_pool_options {
    int block_size; /* positions per block: a power of two up to MAX_BLOCK_SIZE, or a multiple */
    int n_blocks;   /* 0: as many as fit into `bytes` */
    size_t bytes;   /* 0: 80 % of what is available */
    enum block_order order;
    bool poison;
    enum kv_type type; /* other than KV_BFP16: for passes of all sequences together (phase 8) */
};

struct kv_pool {
    struct device *dev;      /* not owned */
    struct kv_layer *layers; /* host array [n_layers] of device pointers, each of
                                blocks.stats.total * n_stored slots */
    int n_layers, n_kv_heads, head_dim, block_size;
    int n_stored; /* positions of a block that this rank has: all, or its tile */
    enum kv_type type;
    struct block_allocator blocks;
    size_t bytes, bytes_per_block; /* of device memory, all layers */
    bool poison;
    unsigned char *junk; /* host: what a block is filled with; with poison only */
};

/* A block's part of a layer. */
struct kv_parts kv_pool_block(const struct kv_pool *p, int layer, int32_t block);

/* Returns 0, or -1 with err set: not a size that kv_pool_options can have. */
int block_size_check(int block_size, struct error *err);

/* Allocates the pool on the model's device, all blocks free. Returns 0, or -1 with err set and
 * nothing allocated: a bad block size, a negative number of blocks, more than is available, less
 * than one block, more than 2^31 - 1 slots. */
int kv_pool_start(struct kv_pool *p, const struct model *model, const struct kv_pool_options *o,
                  struct error *err);

/* Frees everything; a zeroed pool is fine. */
void kv_pool_end(struct kv_pool *p);

/* block_release, and with poison a block that became free is filled. Returns the references left,
 * or -1 with err set as block_release does. */
int kv_pool_release(struct kv_pool *p, int32_t block, bool keep, struct error *err);

/* Fills a block of the pool, which must not be in use; for one that becomes free in another way,
 * as by block_forget. Does nothing without poison. */
void kv_pool_poison(struct kv_pool *p, int32_t block);

#endif
