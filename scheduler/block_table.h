/*
 * block_table.h - phase 6: which blocks of the pool hold a sequence, in the order of its positions.
 *
 * Position p of a sequence lies in block blocks[p / block_size], at offset p % block_size. The slot
 * of a position is its place in the whole pool, counted in tokens: block * block_size + offset. Ops
 * write through slots and read through the page table of a batch, which is the block tables of all
 * its sequences one after the other.
 */
#ifndef SAMEBITS_BLOCK_TABLE_H
#define SAMEBITS_BLOCK_TABLE_H

#include "model/kv_cache.h"
#include "scheduler/kv_pool.h"

#include <stdint.h>

struct block_table {
    int32_t *blocks; /* [n_blocks], owned */
    int n_blocks, capacity;
    int block_size; /* positions per block, as in kv_pool_options */
};

/* An empty table. Returns 0, or -1 with err set: a block size that is no power of two from 1 to
 * MAX_BLOCK_SIZE. */
int block_table_start(struct block_table *t, int block_size, struct error *err);

/* Frees the list only: block_table_release gives the blocks back. A zeroed table is fine. */
void block_table_end(struct block_table *t);

/* Blocks that are missing before the table covers n_positions. */
int block_table_missing(const struct block_table *t, int n_positions);

/* Takes blocks until the table covers n_positions. Returns 0; 1 when the pool has too few left, and
 * then the table has not changed; -1 with err set (no memory). */
int block_table_grow(struct block_table *t, struct block_allocator *a, int n_positions,
                     struct error *err);

/* Appends a block of which the caller holds a reference: a shared one. Returns 0, or -1 with err
 * set (no memory). */
int block_table_append(struct block_table *t, int32_t block, struct error *err);

/* Gives all blocks back, the last one first, and empties the table. The first n_keep of them stay
 * cached. Returns 0, or -1 with err set to what the allocator says (a double free); the rest is
 * given back all the same. */
int block_table_release(struct block_table *t, struct block_allocator *a, int n_keep,
                        struct error *err);

/* Does the table hold blocks of the allocator that are in use, none of them twice? Returns 0, or -1
 * with err set to what is wrong, with its place in the table: a number out of range, a block that
 * is nobody's, the same block again, no memory. Takes n log n steps. */
int block_table_check(const struct block_table *t, const struct block_allocator *a,
                      struct error *err);

/* The slot of a position, or -1 when the table does not cover it. */
int64_t block_table_slot(const struct block_table *t, int position);

/* Slot mapping: out [n] gets the slots of positions first ... first + n - 1. Returns 0, or -1 with
 * err set when the table does not cover them. */
int block_table_slots(const struct block_table *t, int first, int n, int64_t *out,
                      struct error *err);

/* Makes the page table (model/kv_cache.h) of n sequences with kv_lens[i] positions each; out is
 * written over, and the caller's to end. Returns 0, or -1 with err set and out zeroed: a table that
 * does not cover its positions, more than 2^31 - 1 pages, no memory. */
int page_table_fill(struct page_table *out, const struct block_table *const *tables,
                    const int *kv_lens, int n, struct error *err);

#endif
