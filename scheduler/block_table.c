#include "scheduler/block_table.h"

#include <stdlib.h>
#include <string.h>

int block_table_start(struct block_table *t, int block_size, struct error *err) {
    *t = (struct block_table){.block_size = block_size};
    return block_size_check(block_size, err);
}

void block_table_end(struct block_table *t) {
    free(t->blocks);
    *t = (struct block_table){0};
}

static int reserve(struct block_table *t, int n_blocks, struct error *err) {
    if (n_blocks <= t->capacity)
        return 0;
    int capacity = t->capacity ? t->capacity : 16;
    while (capacity < n_blocks)
        capacity = capacity > INT32_MAX / 2 ? n_blocks : 2 * capacity;
    int32_t *blocks = realloc(t->blocks, sizeof *blocks * (size_t)capacity);
    if (!blocks)
        return error_set(err, "out of memory for a table of %d blocks", n_blocks);
    t->blocks = blocks;
    t->capacity = capacity;
    return 0;
}

int block_table_missing(const struct block_table *t, int n_positions) {
    int missing = blocks_for(n_positions, t->block_size) - t->n_blocks;
    return missing > 0 ? missing : 0;
}

int block_table_grow(struct block_table *t, struct block_allocator *a, int n_positions,
                     struct error *err) {
    int missing = block_table_missing(t, n_positions);
    if (missing > block_available(a))
        return 1;
    if (reserve(t, t->n_blocks + missing, err))
        return -1;
    for (int i = 0; i < missing; i++)
        t->blocks[t->n_blocks++] = block_allocate(a);
    return 0;
}

int block_table_append(struct block_table *t, int32_t block, struct error *err) {
    if (reserve(t, t->n_blocks + 1, err))
        return -1;
    t->blocks[t->n_blocks++] = block;
    return 0;
}

int block_table_release(struct block_table *t, struct block_allocator *a, int n_keep,
                        struct error *err) {
    int result = 0;
    /* The last first: of cached blocks the end of a text goes before its beginning, which more
     * texts share. */
    while (t->n_blocks) {
        int i = --t->n_blocks;
        if (block_release(a, t->blocks[i], i < n_keep, err) < 0)
            result = -1;
    }
    return result;
}

static int compare_blocks(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* -1 with err set when a block stands twice among n. */
static int check_distinct(const int32_t *blocks, int n, struct error *err) {
    int32_t *sorted = malloc(sizeof *sorted * ((size_t)n + 1));
    int result = 0;
    if (!sorted)
        return error_set(err, "out of memory to check a table of %d blocks", n);
    if (n)
        memcpy(sorted, blocks, sizeof *sorted * (size_t)n);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_blocks);
    for (int i = 1; i < n && !result; i++)
        if (sorted[i] == sorted[i - 1])
            result = error_set(err, "block table: block %d stands in it twice", sorted[i]);
    free(sorted);
    return result;
}

int block_table_check(const struct block_table *t, const struct block_allocator *a,
                      struct error *err) {
    for (int i = 0; i < t->n_blocks; i++) {
        int32_t block = t->blocks[i];
        if (block < 0 || block >= a->stats.total)
            return error_set(err, "block table: entry %d is block %d of a pool of %d", i, block,
                             a->stats.total);
        if (block_references(a, block) < 1)
            return error_set(err, "block table: entry %d is block %d, which nobody holds", i,
                             block);
    }
    return check_distinct(t->blocks, t->n_blocks, err);
}

int64_t block_table_slot(const struct block_table *t, int position) {
    if (position < 0 || position / t->block_size >= t->n_blocks)
        return -1;
    return (int64_t)t->blocks[position / t->block_size] * t->block_size + position % t->block_size;
}

int block_table_slots(const struct block_table *t, int first, int n, int64_t *out,
                      struct error *err) {
    for (int i = 0; i < n; i++) {
        out[i] = block_table_slot(t, first + i);
        if (out[i] < 0)
            return error_set(err, "position %d has no block: the table has %d blocks of %d",
                             first + i, t->n_blocks, t->block_size);
    }
    return 0;
}

/* ---- the page table of a batch --------------------------------------------------------------- */

/* The pages of all sequences, or -1 with err set. */
static int count_pages(const struct block_table *const *tables, const int *kv_lens, int n,
                       struct error *err) {
    int64_t n_pages = 0;
    for (int i = 0; i < n; i++) {
        if (block_table_missing(tables[i], kv_lens[i]))
            return error_set(err,
                             "sequence %d of the batch has %d positions and only %d blocks of %d",
                             i, kv_lens[i], tables[i]->n_blocks, tables[i]->block_size);
        n_pages += blocks_for(kv_lens[i], tables[i]->block_size);
    }
    if (n_pages > INT32_MAX)
        return error_set(err, "the batch has %lld pages, more than 2^31 - 1", (long long)n_pages);
    return (int)n_pages;
}

int page_table_fill(struct page_table *out, const struct block_table *const *tables,
                    const int *kv_lens, int n, struct error *err) {
    *out = (struct page_table){0};
    int n_pages = count_pages(tables, kv_lens, n, err);
    if (n_pages < 0)
        return -1;
    *out = (struct page_table){
        .kv_indptr = calloc((size_t)n + 1, sizeof *out->kv_indptr),
        .kv_page_indices = malloc(sizeof *out->kv_page_indices * ((size_t)n_pages + 1)),
        .kv_last_page_len = calloc((size_t)n + 1, sizeof *out->kv_last_page_len),
        .n_sequences = n,
        .n_pages = n_pages,
        .page_size = n ? tables[0]->block_size : 0};
    if (!out->kv_indptr || !out->kv_page_indices || !out->kv_last_page_len) {
        page_table_end(out);
        return error_set(err, "out of memory for a page table of %d pages", n_pages);
    }
    for (int i = 0; i < n; i++) {
        const struct block_table *t = tables[i];
        int pages = blocks_for(kv_lens[i], t->block_size), at = out->kv_indptr[i];
        if (pages)
            memcpy(out->kv_page_indices + at, t->blocks, sizeof *t->blocks * (size_t)pages);
        out->kv_indptr[i + 1] = at + pages;
        out->kv_last_page_len[i] = pages ? kv_lens[i] - (pages - 1) * t->block_size : 0;
    }
    return 0;
}
