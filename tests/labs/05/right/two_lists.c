/* Another right solution of lab 5: free and cached blocks are both doubly linked lists over next
 * and previous; the ends of the free list are free[0] and free[1]. */
#include "scheduler/block_allocator.h"

#include <stdlib.h>
#include <string.h>

static void link_last(struct block_allocator *a, int32_t *first, int32_t *last, int32_t block) {
    a->next[block] = -1;
    a->previous[block] = *last;
    *(*last < 0 ? first : &a->next[*last]) = block;
    *last = block;
}

static void link_first(struct block_allocator *a, int32_t *first, int32_t *last, int32_t block) {
    a->previous[block] = -1;
    a->next[block] = *first;
    *(*first < 0 ? last : &a->previous[*first]) = block;
    *first = block;
}

static void unlink_block(struct block_allocator *a, int32_t *first, int32_t *last, int32_t block) {
    *(a->previous[block] < 0 ? first : &a->next[a->previous[block]]) = a->next[block];
    *(a->next[block] < 0 ? last : &a->previous[a->next[block]]) = a->previous[block];
}

int block_allocator_start(struct block_allocator *a, int n_blocks, enum block_order order,
                          struct error *err) {
    memset(a, 0, sizeof *a);
    a->order = order;
    a->lru.first = a->lru.last = -1;
    if (n_blocks < 0)
        return error_set(err, "%d blocks", n_blocks);
    a->references = calloc((size_t)n_blocks + 1, sizeof(int32_t));
    a->next = calloc((size_t)n_blocks + 1, sizeof(int32_t));
    a->previous = calloc((size_t)n_blocks + 1, sizeof(int32_t));
    a->free = calloc(2, sizeof(int32_t));
    if (!a->references || !a->next || !a->previous || !a->free) {
        block_allocator_end(a);
        return error_set(err, "no memory for %d blocks", n_blocks);
    }
    a->free[0] = a->free[1] = -1;
    for (int32_t block = 0; block < n_blocks; block++)
        link_last(a, &a->free[0], &a->free[1], block);
    a->stats.total = a->stats.free = n_blocks;
    return 0;
}

void block_allocator_end(struct block_allocator *a) {
    free(a->references);
    free(a->next);
    free(a->previous);
    free(a->free);
    memset(a, 0, sizeof *a);
}

int block_available(const struct block_allocator *a) {
    return a->stats.total - a->stats.used;
}

static void count_used(struct block_allocator *a, int32_t block) {
    a->references[block] = 1;
    a->stats.used++;
    a->stats.most_used = a->stats.used > a->stats.most_used ? a->stats.used : a->stats.most_used;
}

int32_t block_allocate(struct block_allocator *a) {
    int32_t block = a->stats.free ? a->free[0] : a->stats.cached ? a->lru.first : -1;
    if (block < 0)
        return -1;
    if (a->stats.free) {
        unlink_block(a, &a->free[0], &a->free[1], block);
        a->stats.free--;
    } else {
        unlink_block(a, &a->lru.first, &a->lru.last, block);
        a->stats.cached--;
        if (a->evicted)
            a->evicted(a->context, block);
    }
    count_used(a, block);
    return block;
}

static int refuse(const struct block_allocator *a, int32_t block, struct error *err) {
    return block >= 0 && block < a->stats.total ? 0 : error_set(err, "no block %d", block);
}

static void make_free(struct block_allocator *a, int32_t block) {
    a->references[block] = 0;
    a->stats.free++;
    if (a->order == BLOCKS_FIFO)
        link_last(a, &a->free[0], &a->free[1], block);
    else
        link_first(a, &a->free[0], &a->free[1], block);
}

int block_share(struct block_allocator *a, int32_t block, struct error *err) {
    if (refuse(a, block, err))
        return -1;
    if (a->references[block] == 0)
        return error_set(err, "block %d is free", block);
    if (a->references[block] > 0) {
        a->references[block]++;
        return 0;
    }
    unlink_block(a, &a->lru.first, &a->lru.last, block);
    a->stats.cached--;
    count_used(a, block);
    return 0;
}

int block_release(struct block_allocator *a, int32_t block, bool keep, struct error *err) {
    if (refuse(a, block, err))
        return -1;
    if (a->references[block] < 1)
        return error_set(err, "nobody uses block %d", block);
    if (a->references[block] > 1)
        return --a->references[block];
    a->stats.used--;
    if (!keep) {
        make_free(a, block);
        return 0;
    }
    a->references[block] = -1;
    a->stats.cached++;
    link_last(a, &a->lru.first, &a->lru.last, block);
    return 0;
}

int block_forget(struct block_allocator *a, int32_t block, struct error *err) {
    if (refuse(a, block, err))
        return -1;
    if (a->references[block] >= 0)
        return error_set(err, "block %d is not cached", block);
    unlink_block(a, &a->lru.first, &a->lru.last, block);
    a->stats.cached--;
    make_free(a, block);
    return 0;
}

int block_references(const struct block_allocator *a, int32_t block) {
    if (block < 0 || block >= a->stats.total)
        return -1;
    return a->references[block] < 0 ? 0 : a->references[block];
}

int block_allocator_check(const struct block_allocator *a, struct error *err) {
    int n = a->stats.used + a->stats.free + a->stats.cached;
    return n == a->stats.total ? 0 : error_set(err, "%d of %d blocks", n, a->stats.total);
}
