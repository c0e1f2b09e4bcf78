/* Lab 6: the block table. */
#include "scheduler/block_table.h"
#include "tests/labs/06/causes.h"
#include "tests/labs/lab.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 4, MOST_SEQUENCES = 8 };

/* ---- what is used and noted ------------------------------------------------------------------ */

static struct block_allocator pool_of(int n_blocks) {
    struct block_allocator a;
    struct error err;
    if (block_allocator_start(&a, n_blocks, BLOCKS_FIFO, &err))
        exit(2);
    return a;
}

static struct block_table table_of(int block_size) {
    struct block_table t;
    struct error err;
    if (block_table_start(&t, block_size, &err))
        exit(2);
    return t;
}

/* Blocks in an order that no formula gives. */
static void append_some(struct block_table *t, int n, int which) {
    static const int32_t numbers[] = {5, 9, 7, 2, 11, 0, 8, 1};
    struct error err;
    for (int i = 0; i < n; i++)
        if (block_table_append(t, numbers[(i + which) % 8], &err))
            exit(2);
}

static void note_table(struct lab_log *log, const struct block_table *t, const char *when) {
    lab_int(log, t->n_blocks, "n_blocks %s", when);
    lab_ints(log, t->blocks, t->n_blocks, "entry", 0, "the table %s", when);
}

static void note_pool(struct lab_log *log, const struct block_allocator *a, const char *when) {
    lab_int(log, a->stats.used, "blocks in use %s", when);
    lab_int(log, a->stats.cached, "cached blocks %s", when);
}

static void note_grow(struct lab_log *log, struct block_table *t, struct block_allocator *a,
                      int n_positions, const char *how) {
    struct error err = {""};
    lab_int(log, block_table_grow(t, a, n_positions, &err), "block_table_grow to %d positions%s",
            n_positions, how);
    note_table(log, t, "after block_table_grow");
    note_pool(log, a, "after block_table_grow");
}

/* ---- step 1: blocks come and go -------------------------------------------------------------- */

static void run_missing(struct lab_log *log, int size) {
    for (int blocks = 0; blocks < 3; blocks++) {
        struct block_table t = table_of(size);
        append_some(&t, blocks, 0);
        for (int at = 0; at <= 3; at++)
            for (int near = at ? -1 : 0; near <= 1; near++)
                lab_int(log, block_table_missing(&t, at * size + near),
                        "block_table_missing with %d blocks of %d, for %d positions", blocks, size,
                        at * size + near);
        block_table_end(&t);
    }
}

static void run_grow(struct lab_log *log, int n) {
    struct block_allocator a = pool_of(16);
    struct block_table t = table_of(BLOCK);
    note_grow(log, &t, &a, n, " in an empty table");
    note_grow(log, &t, &a, n, " that are covered");
    note_grow(log, &t, &a, n + 1, ", one more");
    note_grow(log, &t, &a, 1, ", fewer than before");
    block_table_end(&t);
    block_allocator_end(&a);
}

static void run_lack(struct lab_log *log, int n) {
    struct block_allocator a = pool_of(n);
    struct block_table t = table_of(BLOCK);
    note_grow(log, &t, &a, n * BLOCK + 1, ", one more than the pool has");
    note_grow(log, &t, &a, 1, "");
    note_grow(log, &t, &a, n * BLOCK + 1, ", one more than the pool has");
    note_grow(log, &t, &a, n * BLOCK, ", the whole pool");
    block_table_end(&t);
    block_allocator_end(&a);
}

/* Which blocks come next says in which order they were given back. */
static void note_rest(struct lab_log *log, struct block_allocator *a) {
    for (int i = 0; i < a->stats.total; i++)
        lab_int(log, block_allocate(a), "block_allocate, call %d after block_table_release", i + 1);
}

static void note_release(struct lab_log *log, struct block_table *t, struct block_allocator *a,
                         int n_keep, const char *what) {
    struct error err = {""};
    int result = block_table_release(t, a, n_keep, &err);
    lab_int(log, result, "block_table_release of %s", what);
    if (result)
        lab_int(log, err.text[0] != 0, "block_table_release of %s sets err", what);
    lab_int(log, t->n_blocks, "n_blocks after block_table_release");
    note_pool(log, a, "after block_table_release");
}

static void run_release(struct lab_log *log, int n) {
    for (int n_keep = 0; n_keep <= n + 1; n_keep++) {
        struct block_allocator a = pool_of(n);
        struct block_table t = table_of(BLOCK);
        struct error err;
        for (int i = 0; i < n; i++)
            if (block_table_append(&t, block_allocate(&a), &err))
                exit(2);
        note_release(log, &t, &a, n_keep, n_keep ? "a table, some kept" : "a table, none kept");
        note_release(log, &t, &a, 0, "an empty table");
        note_rest(log, &a);
        block_table_end(&t);
        block_allocator_end(&a);
    }
}

/* One of the blocks is nobody's any more. */
static void run_refused(struct lab_log *log, int n) {
    for (int which = 0; which < n; which++) {
        struct block_allocator a = pool_of(n);
        struct block_table t = table_of(BLOCK);
        struct error err;
        for (int i = 0; i < n; i++)
            if (block_table_append(&t, block_allocate(&a), &err))
                exit(2);
        block_release(&a, which, false, &err);
        note_release(log, &t, &a, 0, "a table with a block that nobody uses");
        block_table_end(&t);
        block_allocator_end(&a);
    }
}

/* ---- step 2: where is a position? ------------------------------------------------------------ */

static void run_slot(struct lab_log *log, int size) {
    struct block_table t = table_of(size);
    append_some(&t, 5, 0);
    int n = 5 * size;
    int32_t *slots = malloc(sizeof *slots * (size_t)n);
    if (!slots)
        exit(2);
    for (int i = 0; i < n; i++)
        slots[i] = (int32_t)block_table_slot(&t, i);
    lab_ints(log, slots, n, "position", 0, "block_table_slot, blocks of %d, table 5 9 7 2 11",
             size);
    free(slots);
    block_table_end(&t);
}

static void note_outside(struct lab_log *log, int blocks, const int *positions, int n) {
    struct block_table t = table_of(BLOCK);
    append_some(&t, blocks, 0);
    for (int i = 0; i < n; i++)
        lab_int(log, block_table_slot(&t, positions[i]),
                "block_table_slot with %d blocks of %d, position %d", blocks, BLOCK, positions[i]);
    block_table_end(&t);
}

static void run_outside(struct lab_log *log, int blocks) {
    note_outside(log, blocks, (int[]){blocks * BLOCK, blocks * BLOCK + 1, INT_MAX}, 3);
}

static void run_negative(struct lab_log *log, int blocks) {
    note_outside(log, blocks, (int[]){-1, -BLOCK, INT_MIN}, 3);
}

static void run_far(struct lab_log *log, int size) {
    struct block_table t = table_of(size);
    struct error err;
    if (block_table_append(&t, INT32_MAX - 1, &err))
        exit(2);
    lab_int(log, block_table_slot(&t, size - 1), "block_table_slot in block %d, position %d",
            INT32_MAX - 1, size - 1);
    block_table_end(&t);
}

static void note_slots(struct lab_log *log, const struct block_table *t, int first, int n) {
    int64_t out[4 * BLOCK];
    int32_t small[4 * BLOCK];
    struct error err = {""};
    int result = block_table_slots(t, first, n, out, &err);
    lab_int(log, result, "block_table_slots with %d blocks of %d, first %d, n %d", t->n_blocks,
            BLOCK, first, n);
    for (int i = 0; i < n; i++)
        small[i] = (int32_t)out[i];
    if (!result)
        lab_ints(log, small, n, "position", first, "block_table_slots, first %d, n %d", first, n);
    else
        lab_int(log, err.text[0] != 0, "block_table_slots, first %d, n %d: err is set", first, n);
}

static void run_slots(struct lab_log *log, int n) {
    struct block_table t = table_of(BLOCK);
    append_some(&t, 4, 2);
    for (int first = 0; first + n <= 4 * BLOCK; first++)
        note_slots(log, &t, first, n);
    if (n)
        note_slots(log, &t, 4 * BLOCK - n + 1, n);
    block_table_end(&t);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_PAGED, 6, NULL);
}

/* ---- step 3: the page table of a batch ------------------------------------------------------- */

/* A batch of sequences with so many positions each; `ahead`: blocks that each table has beyond what
 * it needs, -1: one too few. */
static void note_batch(struct lab_log *log, int size, const int *lens, int n, int ahead,
                       const char *which) {
    struct block_table tables[MOST_SEQUENCES];
    const struct block_table *pointers[MOST_SEQUENCES];
    struct page_table p = {.n_pages = 77};
    struct error err = {""};
    for (int i = 0; i < n; i++) {
        tables[i] = table_of(size);
        append_some(&tables[i], blocks_for(lens[i], size) + ahead, i);
        pointers[i] = &tables[i];
    }
    int result = page_table_fill(&p, pointers, lens, n, &err);
    lab_int(log, result, "page_table_fill of %s", which);
    lab_int(log, p.n_sequences, "n_sequences of %s", which);
    lab_int(log, p.n_pages, "n_pages of %s", which);
    lab_int(log, p.kv_indptr != NULL, "kv_indptr is there, of %s", which);
    if (result)
        lab_int(log, err.text[0] != 0, "page_table_fill of %s sets err", which);
    if (p.kv_indptr) {
        lab_ints(log, p.kv_indptr, n + 1, "entry", 0, "kv_indptr of %s", which);
        lab_ints(log, p.kv_last_page_len, n, "sequence", 0, "kv_last_page_len of %s", which);
        lab_ints(log, p.kv_page_indices, p.kv_indptr[n], "entry", 0, "kv_page_indices of %s",
                 which);
        if (n)
            lab_int(log, p.page_size, "page_size of %s", which);
    }
    page_table_end(&p);
    for (int i = 0; i < n; i++)
        block_table_end(&tables[i]);
}

static void run_lengths(struct lab_log *log, int size) {
    for (int at = 0; at <= 3; at++)
        for (int near = at ? -1 : 0; near <= 1; near++) {
            int len = at * size + near;
            char which[64];
            snprintf(which, sizeof which, "a sequence of %d positions in pages of %d", len, size);
            note_batch(log, size, &len, 1, 0, which);
        }
}

static const int lens[MOST_SEQUENCES] = {BLOCK + 1, 2 * BLOCK, 1, 0, 3 * BLOCK - 1, BLOCK, 0, 7};

static void run_batch(struct lab_log *log, int n) {
    char which[32];
    snprintf(which, sizeof which, "a batch of %d", n);
    note_batch(log, BLOCK, lens, n, 0, which);
}

static void run_ahead(struct lab_log *log, int n) {
    note_batch(log, BLOCK, lens, n, 1, "a batch whose tables have a block more than is needed");
}

static void run_short(struct lab_log *log, int n) {
    const int long_lens[MOST_SEQUENCES] = {1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1};
    note_batch(log, BLOCK, long_lens, n, -1, "a batch whose tables have a block less than needed");
}

static void run_fused(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_FUSED, 6, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"missing", 1, "blocks that are missing, around every boundary", "positions per block",
     LAB_SIZES(1, 2, 4, 16), run_missing, 0},
    {"grow", 1, "a table covers its positions", "positions", LAB_SIZES(0, 1, 3, 4, 5, 8, 9),
     run_grow, 0},
    {"lack", 1, "all that is missing, or nothing", "blocks of the pool", LAB_SIZES(1, 2, 3),
     run_lack, 0},
    {"release", 1, "all goes back, the last one first, and the first ones are kept", "blocks",
     LAB_SIZES(0, 1, 2, 3), run_release, 0},
    {"refused", 1, "a block that is refused keeps none from going back", "blocks",
     LAB_SIZES(1, 2, 3), run_refused, 0},
    {"slot", 2, "the slot of every position", "positions per block", LAB_SIZES(1, 2, 4, 16),
     run_slot, 0},
    {"outside", 2, "positions beyond the table", "blocks", LAB_SIZES(0, 1, 2), run_outside, 0},
    {"negative", 2, "positions below 0", "blocks", LAB_SIZES(0, 1, 2), run_negative, 0},
    {"far", 2, "slots of a large pool", "positions per block", LAB_SIZES(1, 2, 256), run_far, 0},
    {"slots", 2, "the slots of a range", "positions", LAB_SIZES(0, 1, 2, 5), run_slots, 0},
    {"serve", 2, "the model reads and writes through your slots", "requests", LAB_SIZES(5),
     run_serve, 10},
    {"lengths", 3, "the pages of one sequence, around every boundary", "positions per page",
     LAB_SIZES(1, 2, 4, 16), run_lengths, 0},
    {"batch", 3, "sequences of several lengths behind each other", "sequences",
     LAB_SIZES(0, 1, 2, 4, 8), run_batch, 0},
    {"ahead", 3, "blocks beyond the positions are not listed", "sequences", LAB_SIZES(1, 2),
     run_ahead, 0},
    {"short", 3, "a table that is too short is refused", "sequences", LAB_SIZES(1, 2, 5), run_short,
     0},
    {"serve fused", 3, "one attention for all requests, through your page table", "requests",
     LAB_SIZES(16), run_fused, 10},
};

const struct lab lab = {
    .number = 6,
    .title = "the block table",
    .served = "your block tables",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_6_causes,
    .n_causes = N_LAB_6_CAUSES,
};
