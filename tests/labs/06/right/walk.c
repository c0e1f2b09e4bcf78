/* Another right solution of lab 6: blocks are taken and appended one by one, a position is found by
 * counting, and the page table is filled by one walk over all positions. */
#include "scheduler/block_table.h"

#include <stdlib.h>

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

int block_table_check(const struct block_table *t, const struct block_allocator *a,
                      struct error *err) {
    for (int i = 0; i < t->n_blocks; i++) {
        if (block_references(a, t->blocks[i]) < 1)
            return error_set(err, "nobody holds block %d", t->blocks[i]);
        for (int other = 0; other < i; other++)
            if (t->blocks[other] == t->blocks[i])
                return error_set(err, "entries %d and %d are block %d", other, i, t->blocks[i]);
    }
    return 0;
}

int block_table_missing(const struct block_table *t, int n_positions) {
    if (n_positions <= t->n_blocks * t->block_size)
        return 0;
    return (n_positions - t->n_blocks * t->block_size - 1) / t->block_size + 1;
}

int block_table_grow(struct block_table *t, struct block_allocator *a, int n_positions,
                     struct error *err) {
    if (block_available(a) < block_table_missing(t, n_positions))
        return 1;
    while (t->n_blocks * t->block_size < n_positions)
        if (block_table_append(t, block_allocate(a), err))
            return -1;
    return 0;
}

int block_table_release(struct block_table *t, struct block_allocator *a, int n_keep,
                        struct error *err) {
    bool refused = false;
    for (; t->n_blocks > 0; t->n_blocks--) {
        bool keep = t->n_blocks <= n_keep;
        refused |= block_release(a, t->blocks[t->n_blocks - 1], keep, err) == -1;
    }
    return refused ? -1 : 0;
}

int64_t block_table_slot(const struct block_table *t, int position) {
    int entry = 0;
    while (position >= t->block_size && entry < t->n_blocks) {
        position -= t->block_size;
        entry++;
    }
    int64_t first = entry < t->n_blocks ? t->blocks[entry] : -1;
    return position < 0 || first < 0 ? -1 : first * t->block_size + position;
}

int block_table_slots(const struct block_table *t, int first, int n, int64_t *out,
                      struct error *err) {
    while (n-- > 0)
        if ((out[n] = block_table_slot(t, first + n)) == -1)
            return error_set(err, "no block for position %d", first + n);
    return 0;
}

/* Writes the pages of a sequence, or only counts them when pages is NULL. */
static int list_pages(const struct block_table *t, int n_positions, int32_t *pages) {
    int n = 0;
    for (int position = 0; position < n_positions; position++)
        if (position % t->block_size == 0) {
            if (pages)
                pages[n] = t->blocks[n];
            n++;
        }
    return n;
}

int page_table_fill(struct page_table *out, const struct block_table *const *tables,
                    const int *kv_lens, int n, struct error *err) {
    int64_t n_pages = 0;
    *out = (struct page_table){0};
    for (int i = 0; i < n; i++) {
        if (kv_lens[i] > 0 && block_table_slot(tables[i], kv_lens[i] - 1) < 0)
            return error_set(err, "sequence %d has no block for its last position", i);
        n_pages += list_pages(tables[i], kv_lens[i], NULL);
    }
    if (n_pages > INT32_MAX)
        return error_set(err, "%lld pages", (long long)n_pages);
    out->kv_indptr = malloc(sizeof *out->kv_indptr * ((size_t)n + 1));
    out->kv_last_page_len = malloc(sizeof *out->kv_last_page_len * ((size_t)n + 1));
    out->kv_page_indices = malloc(sizeof *out->kv_page_indices * ((size_t)n_pages + 1));
    if (!out->kv_indptr || !out->kv_last_page_len || !out->kv_page_indices) {
        page_table_end(out);
        return error_set(err, "no memory for %lld pages", (long long)n_pages);
    }
    int32_t *page = out->kv_page_indices;
    for (int i = 0; i < n; i++) {
        int size = out->page_size = tables[i]->block_size;
        out->kv_indptr[i] = (int32_t)(page - out->kv_page_indices);
        page += list_pages(tables[i], kv_lens[i], page);
        out->kv_last_page_len[i] = kv_lens[i] ? (kv_lens[i] - 1) % size + 1 : 0;
    }
    out->kv_indptr[n] = (int32_t)n_pages;
    out->n_sequences = n;
    out->n_pages = (int)n_pages;
    return 0;
}
