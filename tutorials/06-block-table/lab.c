/*
 * Lab 6: the block table. Your file takes the place of scheduler/block_table.c; the task is in the
 * section "Lab" of this chapter. `make lab6` builds and grades it.
 *
 * struct block_table is in scheduler/block_table.h: blocks [n_blocks] are numbers of blocks of the
 * pool, in the order of the sequence's positions, and block_size is how many positions one holds.
 * blocks_for(n_positions, block_size) in scheduler/kv_pool.h says how many blocks hold n_positions.
 */
#include "scheduler/block_table.h"
#include "tests/labs/not_written.h"

#include <stdlib.h>
#include <string.h>

/* ---- given ----------------------------------------------------------------------------------- */

int block_table_start(struct block_table *t, int block_size, struct error *err) {
    *t = (struct block_table){.block_size = block_size};
    return block_size_check(block_size, err);
}

void block_table_end(struct block_table *t) {
    free(t->blocks);
    *t = (struct block_table){0};
}

/* Appends a block of which the caller holds a reference. Returns 0, or -1 with err set (no memory).
 */
int block_table_append(struct block_table *t, int32_t block, struct error *err) {
    if (t->n_blocks == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 16;
        int32_t *blocks = realloc(t->blocks, sizeof *blocks * (size_t)capacity);
        if (!blocks)
            return error_set(err, "out of memory for a table of %d blocks", capacity);
        t->blocks = blocks;
        t->capacity = capacity;
    }
    t->blocks[t->n_blocks++] = block;
    return 0;
}

/* Are the table's blocks in use? The stretch task makes more of it: does one stand in it twice? */
int block_table_check(const struct block_table *t, const struct block_allocator *a,
                      struct error *err) {
    for (int i = 0; i < t->n_blocks; i++)
        if (block_references(a, t->blocks[i]) < 1)
            return error_set(err, "block table: nobody holds entry %d, block %d", i, t->blocks[i]);
    return 0;
}

/* ---- step 1: blocks come and go -------------------------------------------------------------- */

/* How many blocks are missing before the table covers n_positions; 0 if none is. */
int block_table_missing(const struct block_table *t, int n_positions) {
    (void)t, (void)n_positions;
    not_written("the blocks that n_positions need, less those that are there, but not below 0");
}

/* Takes blocks from the allocator (block_allocate) and appends them until the table covers
 * n_positions. Returns 0; 1 when fewer are available (block_available) than are missing, and then
 * neither the table nor the allocator has changed; -1 with err set (no memory): a block that has
 * found no place in the table goes back. */
int block_table_grow(struct block_table *t, struct block_allocator *a, int n_positions,
                     struct error *err) {
    (void)t, (void)a, (void)n_positions, (void)err;
    not_written("take all blocks that are missing, or none if there are not that many");
}

/* Gives all blocks back (block_release), the last one first, and empties the table. The first
 * n_keep of them stay cached. Returns 0, or -1 with err set by the allocator if it refuses one
 * (block_release is then below 0; else it tells how many references are left); the others are given
 * back all the same. */
int block_table_release(struct block_table *t, struct block_allocator *a, int n_keep,
                        struct error *err) {
    (void)t, (void)a, (void)n_keep, (void)err;
    not_written("from the last entry to the first: out of the table, and back to the allocator");
}

/* ---- step 2: where is a position? ------------------------------------------------------------ */

/* The slot of a position, that is its place in the pool counted in positions, or -1 when the table
 * does not cover it, as one below 0. Pools may have more than 2^31 slots. */
int64_t block_table_slot(const struct block_table *t, int position) {
    (void)t, (void)position;
    not_written("which entry of the table, which offset in that block, which slot of the pool?");
}

/* Slot mapping: out [n] gets the slots of positions first ... first + n - 1. Returns 0, or -1 with
 * err set (error_set in model/error.h does both) when the table does not cover them all; out may
 * then hold anything. */
int block_table_slots(const struct block_table *t, int first, int n, int64_t *out,
                      struct error *err) {
    (void)t, (void)first, (void)n, (void)out, (void)err;
    not_written("block_table_slot for each position; a position without a block is an error");
}

/* ---- step 3: the page table of a batch ------------------------------------------------------- */

/* Makes the page table (model/kv_cache.h) of n sequences: sequence i has the first kv_lens[i]
 * positions of tables[i]. All arrays are allocated, also for n = 0: kv_indptr [n + 1],
 * kv_page_indices [n_pages], kv_last_page_len [n], and page_size is the tables' block size (any for
 * n = 0). A sequence may have no position, and its table no block; its kv_last_page_len is 0. A
 * page is listed if one of the kv_lens[i] positions lies in it; a table may have more blocks than
 * that. n_pool_pages stays 0. Returns 0, or -1 with err set and *out zeroed, as page_table_end
 * leaves it: a table that does not cover its positions, more than 2^31 - 1 pages, no memory. */
int page_table_fill(struct page_table *out, const struct block_table *const *tables,
                    const int *kv_lens, int n, struct error *err) {
    (void)out, (void)tables, (void)kv_lens, (void)n, (void)err;
    not_written("count the pages, refuse what is not covered, allocate, copy table after table");
}
