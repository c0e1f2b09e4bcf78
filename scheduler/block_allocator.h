/*
 * block_allocator.h - phase 5: which blocks of a pool are in use, and by how many.
 *
 * A block is a number, 0 ... n_blocks-1; what it holds is the pool's business. It is in one of
 * three places: used (with a count of references, because sequences share blocks), free, or cached:
 * nobody uses it, but it still holds something that may be wanted again. A cached block is given
 * out when no free one is left, the one released longest ago first.
 *
 * All operations take a constant number of steps, whatever the size of the pool. Double frees and
 * foreign numbers are found in every build.
 *
 * The idea: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
 * PagedAttention", 2023.
 */
#ifndef SAMEBITS_BLOCK_ALLOCATOR_H
#define SAMEBITS_BLOCK_ALLOCATOR_H

#include "model/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Which free block is given out next: the one freed last (it may still be in a cache of the
 * hardware) or the one freed first (which finds stale reads sooner). */
enum block_order { BLOCKS_LIFO, BLOCKS_FIFO };

/* total = used + free + cached. */
struct block_stats {
    int total, used, free, cached;
    int most_used; /* the high-water mark */
};

struct block_list {
    int32_t first, last; /* -1: empty */
};

struct block_allocator {
    struct block_stats stats;
    enum block_order order;
    int32_t *references; /* [total]; 0: free, -1: cached */
    /* [total] The free blocks, in the order in which they are given out: a ring of stats.free
     * numbers, the first at first_free. Not a linked list, because a large pool does not fit into
     * the processor's cache: here neighbours lie side by side, and no load waits for another. */
    int32_t *free;
    int first_free;
    int32_t *next, *previous; /* [total] links of the cached blocks; -1 at the ends of the list */
    struct block_list lru;    /* the cached blocks, the one released longest ago first */
    /* Called for a cached block before it is given out anew, while it is not counted as used; its
     * old contents are gone then. It must not call the allocator. May be NULL. */
    void (*evicted)(void *context, int32_t block);
    void *context;
};

/* n_blocks >= 0 free blocks, to be given out in ascending order. Returns 0, or -1 with err set: a
 * negative number, no memory. */
int block_allocator_start(struct block_allocator *a, int n_blocks, enum block_order order,
                          struct error *err);

/* Frees the bookkeeping; a zeroed allocator is fine. */
void block_allocator_end(struct block_allocator *a);

/* How many more blocks can be given out: free and cached ones. */
int block_available(const struct block_allocator *a);

/* A block with one reference, or -1 when none is left. */
int32_t block_allocate(struct block_allocator *a);

/* One more reference to a block that is used or cached; a cached one is used again, with what it
 * holds. Returns 0, or -1 with err set: a foreign number, a free block. */
int block_share(struct block_allocator *a, int32_t block, struct error *err);

/* One reference less. With the last one the block becomes cached if `keep`, else free. Returns the
 * references left, or -1 with err set: a foreign number, a block that nobody uses (a double free).
 */
int block_release(struct block_allocator *a, int32_t block, bool keep, struct error *err);

/* Makes a cached block free; it goes to the free list as a released one does. Returns 0, or -1 with
 * err set: a foreign number, a block that is not cached. */
int block_forget(struct block_allocator *a, int32_t block, struct error *err);

/* References to a block: 0 when it is free or cached, -1 for a foreign number. */
int block_references(const struct block_allocator *a, int32_t block);

/* Walks through everything and compares it with the counts: for tests, takes n_blocks steps.
 * Returns 0, or -1 with err set to what does not fit, or that there is no memory for the walk. */
int block_allocator_check(const struct block_allocator *a, struct error *err);

#endif
