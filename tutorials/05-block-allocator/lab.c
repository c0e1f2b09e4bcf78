/*
 * Lab 5: the block allocator. Your file takes the place of scheduler/block_allocator.c; the task is
 * in the section "Lab" of this chapter. `make lab5` builds and grades it.
 *
 * struct block_allocator and the enum are in the header. How you use the struct's arrays is up to
 * you, but for stats, order, evicted and context, which others read. The chapter's way: `free` is a
 * ring of stats.free numbers from first_free on, and the cached blocks are a list that is linked in
 * both directions, from lru.first, the one released longest ago, to lru.last.
 */
#include "scheduler/block_allocator.h"
#include "tests/labs/not_written.h"

#include <stdlib.h>

enum { CACHED = -1 }; /* in place of a number of references */

/* ---- step 1: give out and take back ---------------------------------------------------------- */

/* n_blocks >= 0 free blocks, to be given out in ascending order. Returns 0, or -1 with err set
 * (error_set in model/error.h does both) and nothing to be freed: a negative number, no memory. */
int block_allocator_start(struct block_allocator *a, int n_blocks, enum block_order order,
                          struct error *err) {
    (void)a, (void)n_blocks, (void)order, (void)err;
    not_written("zero *a, refuse a negative number, allocate the arrays, put 0 ... n_blocks-1 into "
                "the free list, set stats");
}

/* Frees the bookkeeping; a zeroed allocator is fine. */
void block_allocator_end(struct block_allocator *a) {
    (void)a;
    not_written("free what block_allocator_start allocated, and zero *a");
}

/* How many more blocks can be given out: free and cached ones. */
int block_available(const struct block_allocator *a) {
    (void)a;
    not_written("count the free and the cached blocks: stats has both");
}

/* A block with one reference, or -1 when none is left. Free ones first; step 3: then the cached one
 * that was released longest ago, after a->evicted (if not NULL) was called for it: the block is
 * counted as used behind the call. */
int32_t block_allocate(struct block_allocator *a) {
    (void)a;
    not_written("take a block off the free list, give it its first reference, count it in stats");
}

/* One reference less. With the last one the block becomes cached if `keep` (step 3), else free.
 * Returns the references left, or -1 with err set, and nothing changed: a foreign number, a block
 * that nobody uses (a double free). */
int block_release(struct block_allocator *a, int32_t block, bool keep, struct error *err) {
    (void)a, (void)block, (void)keep, (void)err;
    not_written("one reference less; the block of the last one goes back to the free list, at the "
                "end that a->order says");
}

/* ---- step 2: references ---------------------------------------------------------------------- */

/* One more reference to a block that is used or cached; a cached one is used again, with what it
 * holds (step 3). Returns 0, or -1 with err set: a foreign number, a free block. */
int block_share(struct block_allocator *a, int32_t block, struct error *err) {
    (void)a, (void)block, (void)err;
    not_written("one reference more for a used block; refuse a free one and what is no block");
}

/* References to a block: 0 when it is free or cached, -1 for a foreign number. */
int block_references(const struct block_allocator *a, int32_t block) {
    (void)a, (void)block;
    not_written("the block's references, 0 if nobody uses it, -1 if it is no block of the pool");
}

/* ---- step 3: blocks that are still wanted ---------------------------------------------------- */

/* Makes a cached block free, at the end of the free list that a->order says. Returns 0, or -1 with
 * err set: a foreign number, a block that is not cached. */
int block_forget(struct block_allocator *a, int32_t block, struct error *err) {
    (void)a, (void)block, (void)err;
    not_written("move a cached block from the cached list to the free list; refuse all others");
}

/* ---- given ----------------------------------------------------------------------------------- */

/* Compares the blocks with the counts. The stretch task makes more of it: are the lists right?
 * Returns 0, or -1 with err set to what does not fit. */
int block_allocator_check(const struct block_allocator *a, struct error *err) {
    int n_used = 0;
    for (int32_t block = 0; block < a->stats.total; block++)
        n_used += block_references(a, block) > 0;
    if (n_used != a->stats.used || n_used + block_available(a) != a->stats.total)
        return error_set(err, "%d blocks are used and %d available, of %d", n_used,
                         block_available(a), a->stats.total);
    return 0;
}
