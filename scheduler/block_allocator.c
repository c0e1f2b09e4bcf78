#include "scheduler/block_allocator.h"

#include <stdlib.h>

enum { CACHED = -1 }; /* in place of a number of references */

/* ---- the two lists --------------------------------------------------------------------------- */

enum { AHEAD = 16 }; /* allocs in the time that memory takes to answer */

static int32_t pop_free(struct block_allocator *a) {
    int32_t block = a->free[a->first_free++];
    /* In FIFO order the next blocks' counts lie anywhere in a large pool: ask for them now. */
    if (a->first_free + AHEAD < a->stats.total)
        __builtin_prefetch(&a->references[a->free[a->first_free + AHEAD]], 1);
    if (a->first_free == a->stats.total)
        a->first_free = 0;
    a->stats.free--;
    return block;
}

static void push_free(struct block_allocator *a, int32_t block) {
    int at = a->first_free;
    if (a->order == BLOCKS_LIFO) {
        at = a->first_free = at ? at - 1 : a->stats.total - 1;
    } else {
        int room = a->stats.total - at; /* first_free + free may be beyond the largest int */
        at = a->stats.free < room ? at + a->stats.free : a->stats.free - room;
    }
    a->free[at] = block;
    a->stats.free++;
    a->references[block] = 0;
}

static void put_into_cache(struct block_allocator *a, int32_t block) {
    a->references[block] = CACHED;
    a->previous[block] = a->lru.last;
    a->next[block] = -1;
    if (a->lru.last >= 0)
        a->next[a->lru.last] = block;
    else
        a->lru.first = block;
    a->lru.last = block;
    a->stats.cached++;
}

static void take_from_cache(struct block_allocator *a, int32_t block) {
    int32_t before = a->previous[block], after = a->next[block];
    if (before >= 0)
        a->next[before] = after;
    else
        a->lru.first = after;
    if (after >= 0)
        a->previous[after] = before;
    else
        a->lru.last = before;
    a->stats.cached--;
}

/* ---- the allocator --------------------------------------------------------------------------- */

int block_allocator_start(struct block_allocator *a, int n_blocks, enum block_order order,
                          struct error *err) {
    *a = (struct block_allocator){.order = order, .lru = {-1, -1}};
    if (n_blocks < 0)
        return error_set(err, "a pool of %d blocks: the number must not be negative", n_blocks);
    size_t n = n_blocks ? (size_t)n_blocks : 1;
    a->references = calloc(n, sizeof *a->references);
    a->free = malloc(n * sizeof *a->free);
    a->next = malloc(n * sizeof *a->next);
    a->previous = malloc(n * sizeof *a->previous);
    if (!a->references || !a->free || !a->next || !a->previous) {
        block_allocator_end(a);
        return error_set(err, "out of memory for the list of %d blocks", n_blocks);
    }
    a->stats.total = a->stats.free = n_blocks;
    for (int32_t block = 0; block < n_blocks; block++)
        a->free[block] = block;
    return 0;
}

void block_allocator_end(struct block_allocator *a) {
    free(a->references);
    free(a->free);
    free(a->next);
    free(a->previous);
    *a = (struct block_allocator){0};
}

int block_available(const struct block_allocator *a) {
    return a->stats.free + a->stats.cached;
}

static bool exists(const struct block_allocator *a, int32_t block) {
    return block >= 0 && block < a->stats.total;
}

static int foreign(const struct block_allocator *a, int32_t block, struct error *err) {
    return error_set(err, "block %d is not of this pool, which has %d", block, a->stats.total);
}

/* The block is in no list and gets its first reference. */
static void use(struct block_allocator *a, int32_t block) {
    a->references[block] = 1;
    a->stats.used++;
    if (a->stats.used > a->stats.most_used)
        a->stats.most_used = a->stats.used;
}

int32_t block_allocate(struct block_allocator *a) {
    int32_t block = a->stats.free ? -1 : a->lru.first;
    if (a->stats.free) {
        block = pop_free(a);
    } else if (block >= 0) {
        take_from_cache(a, block);
        if (a->evicted)
            a->evicted(a->context, block);
    } else {
        return -1;
    }
    use(a, block);
    return block;
}

int block_share(struct block_allocator *a, int32_t block, struct error *err) {
    if (!exists(a, block))
        return foreign(a, block, err);
    if (a->references[block] == INT32_MAX)
        return error_set(err, "block %d has too many references", block);
    if (a->references[block] > 0) {
        a->references[block]++;
        return 0;
    }
    if (a->references[block] != CACHED)
        return error_set(err, "block %d is free and cannot be shared", block);
    take_from_cache(a, block);
    use(a, block);
    return 0;
}

int block_release(struct block_allocator *a, int32_t block, bool keep, struct error *err) {
    if (!exists(a, block))
        return foreign(a, block, err);
    if (a->references[block] <= 0)
        return error_set(err, "block %d is released, but nobody uses it (a double free?)", block);
    if (--a->references[block])
        return a->references[block];
    a->stats.used--;
    if (keep)
        put_into_cache(a, block);
    else
        push_free(a, block);
    return 0;
}

int block_forget(struct block_allocator *a, int32_t block, struct error *err) {
    if (!exists(a, block))
        return foreign(a, block, err);
    if (a->references[block] != CACHED)
        return error_set(err, "block %d is not cached", block);
    take_from_cache(a, block);
    push_free(a, block);
    return 0;
}

int block_references(const struct block_allocator *a, int32_t block) {
    if (!exists(a, block))
        return -1;
    return a->references[block] > 0 ? a->references[block] : 0;
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Every number of the ring is a free block, and none comes twice. seen [total] is all false. */
static int check_free(const struct block_allocator *a, bool *seen, struct error *err) {
    for (int i = 0; i < a->stats.free; i++) {
        int32_t block = a->free[((size_t)a->first_free + (size_t)i) % (size_t)a->stats.total];
        if (!exists(a, block))
            return error_set(err, "the free list holds %d, which is no block", block);
        if (a->references[block])
            return error_set(err, "block %d is in the free list and used or cached", block);
        if (seen[block])
            return error_set(err, "the free list holds block %d twice", block);
        seen[block] = true;
    }
    return 0;
}

/* Counts the cached blocks; -1 with err set when their list is corrupt. */
static int count_cached(const struct block_allocator *a, struct error *err) {
    int n = 0;
    int32_t before = -1;
    for (int32_t block = a->lru.first; block != -1; before = block, block = a->next[block]) {
        if (!exists(a, block))
            return error_set(err, "the cached list holds %d, which is no block", block);
        if (a->previous[block] != before)
            return error_set(err, "the cached list: block %d points back to %d instead of %d",
                             block, a->previous[block], before);
        if (a->references[block] != CACHED)
            return error_set(err, "block %d is in the cached list and used or free", block);
        if (++n > a->stats.total)
            return error_set(err, "the cached list goes in a circle");
    }
    if (a->lru.last != before)
        return error_set(err, "the cached list ends with %d instead of %d", before, a->lru.last);
    return n;
}

int block_allocator_check(const struct block_allocator *a, struct error *err) {
    const struct block_stats *s = &a->stats;
    if (s->free < 0 || s->free > s->total || a->first_free < 0 ||
        (a->first_free && a->first_free >= s->total))
        return error_set(err, "the free list has %d blocks from place %d on, of %d", s->free,
                         a->first_free, s->total);
    bool *seen = calloc((size_t)s->total + 1, sizeof *seen);
    if (!seen)
        return error_set(err, "out of memory to check a pool of %d blocks", s->total);
    int result = check_free(a, seen, err);
    free(seen);
    int n_cached = result ? -1 : count_cached(a, err);
    if (n_cached < 0)
        return -1;
    int n_used = 0, n_free = 0;
    for (int32_t block = 0; block < s->total; block++) {
        n_used += a->references[block] > 0;
        n_free += a->references[block] == 0;
    }
    if (n_free != s->free || n_cached != s->cached || n_used != s->used ||
        n_free + n_cached + n_used != s->total || s->used > s->most_used)
        return error_set(
            err, "found %d free, %d cached, %d used blocks; the counts say %d, %d, %d of %d",
            n_free, n_cached, n_used, s->free, s->cached, s->used, s->total);
    return 0;
}
