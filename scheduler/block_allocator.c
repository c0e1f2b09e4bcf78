#include "scheduler/block_allocator.h"

#include <stdlib.h>

/* ---- lists: every block is in at most one, so one pair of links per block is enough ------------
 */

static void append(struct block_allocator *a, struct block_list *list, int32_t block) {
    a->previous[block] = list->last;
    a->next[block] = -1;
    if (list->last >= 0)
        a->next[list->last] = block;
    else
        list->first = block;
    list->last = block;
}

static void prepend(struct block_allocator *a, struct block_list *list, int32_t block) {
    a->previous[block] = -1;
    a->next[block] = list->first;
    if (list->first >= 0)
        a->previous[list->first] = block;
    else
        list->last = block;
    list->first = block;
}

static void unlink_block(struct block_allocator *a, struct block_list *list, int32_t block) {
    int32_t before = a->previous[block], after = a->next[block];
    if (before >= 0)
        a->next[before] = after;
    else
        list->first = after;
    if (after >= 0)
        a->previous[after] = before;
    else
        list->last = before;
}

/* ---- the allocator ----------------------------------------------------------------------------
 */

int block_allocator_start(struct block_allocator *a, int n_blocks, enum block_order order,
                          struct error *err) {
    *a = (struct block_allocator){.order = order, .free = {-1, -1}, .lru = {-1, -1}};
    if (n_blocks < 0)
        return error_set(err, "a pool of %d blocks: the number must not be negative", n_blocks);
    size_t n = n_blocks ? (size_t)n_blocks : 1;
    a->next = malloc(n * sizeof *a->next);
    a->previous = malloc(n * sizeof *a->previous);
    a->references = calloc(n, sizeof *a->references);
    a->cached = calloc(n, sizeof *a->cached);
    if (!a->next || !a->previous || !a->references || !a->cached) {
        block_allocator_end(a);
        return error_set(err, "out of memory for the list of %d blocks", n_blocks);
    }
    a->stats.total = a->stats.free = n_blocks;
    for (int32_t block = 0; block < n_blocks; block++)
        append(a, &a->free, block);
    return 0;
}

void block_allocator_end(struct block_allocator *a) {
    free(a->next);
    free(a->previous);
    free(a->references);
    free(a->cached);
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

static void take_from_cache(struct block_allocator *a, int32_t block) {
    unlink_block(a, &a->lru, block);
    a->cached[block] = false;
    a->stats.cached--;
}

static void make_free(struct block_allocator *a, int32_t block) {
    if (a->order == BLOCKS_LIFO)
        prepend(a, &a->free, block);
    else
        append(a, &a->free, block);
    a->stats.free++;
}

int32_t block_allocate(struct block_allocator *a) {
    int32_t block = a->free.first;
    if (block >= 0) {
        unlink_block(a, &a->free, block);
        a->stats.free--;
    } else {
        block = a->lru.first;
        if (block < 0)
            return -1;
        take_from_cache(a, block);
        if (a->evicted)
            a->evicted(a->context, block);
    }
    use(a, block);
    return block;
}

int block_share(struct block_allocator *a, int32_t block, struct error *err) {
    if (!exists(a, block))
        return foreign(a, block, err);
    if (a->references[block] == INT32_MAX)
        return error_set(err, "block %d has too many references", block);
    if (a->references[block]) {
        a->references[block]++;
        return 0;
    }
    if (!a->cached[block])
        return error_set(err, "block %d is free and cannot be shared", block);
    take_from_cache(a, block);
    use(a, block);
    return 0;
}

int block_release(struct block_allocator *a, int32_t block, bool keep, struct error *err) {
    if (!exists(a, block))
        return foreign(a, block, err);
    if (!a->references[block])
        return error_set(err, "block %d is released, but nobody uses it (a double free?)", block);
    if (--a->references[block])
        return a->references[block];
    a->stats.used--;
    if (keep) {
        append(a, &a->lru, block);
        a->cached[block] = true;
        a->stats.cached++;
    } else {
        make_free(a, block);
    }
    return 0;
}

int block_forget(struct block_allocator *a, int32_t block, struct error *err) {
    if (!exists(a, block))
        return foreign(a, block, err);
    if (!a->cached[block])
        return error_set(err, "block %d is not cached", block);
    take_from_cache(a, block);
    make_free(a, block);
    return 0;
}

int block_references(const struct block_allocator *a, int32_t block) {
    return exists(a, block) ? a->references[block] : -1;
}

/* ---- the check --------------------------------------------------------------------------------
 */

/* Counts the blocks of a list; -1 with err set when it is corrupt. */
static int walk(const struct block_allocator *a, const struct block_list *list, const char *name,
                bool cached, struct error *err) {
    int n = 0;
    int32_t before = -1;
    for (int32_t block = list->first; block != -1; before = block, block = a->next[block]) {
        if (!exists(a, block))
            return error_set(err, "the %s list holds %d, which is no block", name, block);
        if (a->previous[block] != before)
            return error_set(err, "the %s list: block %d points back to %d instead of %d", name,
                             block, a->previous[block], before);
        if (a->references[block] || a->cached[block] != cached)
            return error_set(err, "block %d is in the %s list and used or elsewhere", block, name);
        if (++n > a->stats.total)
            return error_set(err, "the %s list goes in a circle", name);
    }
    if (list->last != before)
        return error_set(err, "the %s list ends with %d instead of %d", name, before, list->last);
    return n;
}

int block_allocator_check(const struct block_allocator *a, struct error *err) {
    int n_free = walk(a, &a->free, "free", false, err);
    int n_cached = n_free < 0 ? -1 : walk(a, &a->lru, "cached", true, err);
    if (n_cached < 0)
        return -1;
    int n_used = 0;
    for (int32_t block = 0; block < a->stats.total; block++)
        n_used += a->references[block] > 0;
    const struct block_stats *s = &a->stats;
    if (n_free != s->free || n_cached != s->cached || n_used != s->used ||
        n_free + n_cached + n_used != s->total || s->used > s->most_used)
        return error_set(
            err, "found %d free, %d cached, %d used blocks; the counts say %d, %d, %d of %d",
            n_free, n_cached, n_used, s->free, s->cached, s->used, s->total);
    return 0;
}
