/* Lab 5: the block allocator. */
#include "scheduler/block_allocator.h"
#include "tests/labs/05/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <stdlib.h>

/* ---- what is noted --------------------------------------------------------------------------- */

static void note_stats(struct lab_log *log, const struct block_allocator *a, const char *when) {
    lab_int(log, a->stats.total, "stats.total %s", when);
    lab_int(log, a->stats.used, "stats.used %s", when);
    lab_int(log, a->stats.free, "stats.free %s", when);
    lab_int(log, a->stats.cached, "stats.cached %s", when);
    lab_int(log, a->stats.most_used, "stats.most_used %s", when);
    lab_int(log, block_available(a), "block_available %s", when);
}

static struct block_allocator start(struct lab_log *log, int n, enum block_order order) {
    struct block_allocator a;
    struct error err = {""};
    lab_int(log, block_allocator_start(&a, n, order, &err), "block_allocator_start");
    return a;
}

static void note_release(struct lab_log *log, struct block_allocator *a, int32_t block, bool keep,
                         const char *which) {
    struct error err = {""};
    int result = block_release(a, block, keep, &err);
    lab_int(log, result, "block_release of %s", which);
    if (result < 0)
        lab_int(log, err.text[0] != 0, "block_release of %s sets err", which);
}

static void note_share(struct lab_log *log, struct block_allocator *a, int32_t block,
                       const char *which) {
    struct error err = {""};
    int result = block_share(a, block, &err);
    lab_int(log, result, "block_share of %s", which);
    if (result < 0)
        lab_int(log, err.text[0] != 0, "block_share of %s sets err", which);
}

static void take(struct block_allocator *a, int n) {
    for (int i = 0; i < n; i++)
        block_allocate(a);
}

/* Gives block 0 ... n-1 back. */
static void give_back(struct block_allocator *a, int n, bool keep) {
    struct error err;
    for (int i = 0; i < n; i++)
        block_release(a, i, keep, &err);
}

/* Everything that is left, in order. */
static void note_rest(struct lab_log *log, struct block_allocator *a, int n, const char *when) {
    for (int i = 1; i <= n + 1; i++)
        lab_int(log, block_allocate(a), "block_allocate, call %d %s", i, when);
}

/* ---- step 1: give out and take back ----------------------------------------------------------
 */

static void run_start(struct lab_log *log, int n) {
    struct block_allocator a = start(log, n, BLOCKS_LIFO);
    note_stats(log, &a, "of a new pool");
    block_allocator_end(&a);
    struct error err = {""};
    lab_int(log, block_allocator_start(&a, -1 - n, BLOCKS_LIFO, &err), "start with %d blocks",
            -1 - n);
    lab_int(log, err.text[0] != 0, "start with %d blocks sets err", -1 - n);
    a = (struct block_allocator){0};
    block_allocator_end(&a);
}

static void run_take(struct lab_log *log, int n) {
    struct block_allocator a = start(log, n, BLOCKS_LIFO);
    note_rest(log, &a, n, "of a new pool");
    note_stats(log, &a, "when all are taken");
    block_allocator_end(&a);
}

static void run_order(struct lab_log *log, int n, enum block_order order) {
    struct block_allocator a = start(log, n, order);
    take(&a, n);
    give_back(&a, n, false);
    note_stats(log, &a, "when all were given back");
    note_rest(log, &a, n, "after blocks 0, 1, ... were given back in this order");
    block_allocator_end(&a);
}

static void run_lifo(struct lab_log *log, int n) {
    run_order(log, n, BLOCKS_LIFO);
}

static void run_fifo(struct lab_log *log, int n) {
    run_order(log, n, BLOCKS_FIFO);
}

/* Some are always out, so that the list is used round and round. */
static void run_rounds(struct lab_log *log, int n) {
    for (int order = BLOCKS_LIFO; order <= BLOCKS_FIFO; order++) {
        struct block_allocator a = start(log, n, (enum block_order)order);
        struct error err;
        int32_t oldest = block_allocate(&a);
        for (int i = 0; i < 3 * n; i++) {
            int32_t next = block_allocate(&a);
            lab_int(log, next, "%s, round %d: block_allocate", order ? "FIFO" : "LIFO", i);
            lab_int(log, block_release(&a, oldest, false, &err), "round %d: block_release", i);
            oldest = next >= 0 ? next : block_allocate(&a);
        }
        note_stats(log, &a, "after many rounds");
        block_allocator_end(&a);
    }
}

/* ---- step 2: references ---------------------------------------------------------------------- */

static void run_share(struct lab_log *log, int n) {
    struct block_allocator a = start(log, 2, BLOCKS_LIFO);
    int32_t block = block_allocate(&a);
    lab_int(log, block_references(&a, block), "block_references of a block just taken");
    for (int i = 0; i < n; i++)
        note_share(log, &a, block, "a used block");
    lab_int(log, block_references(&a, block), "block_references after sharing");
    note_stats(log, &a, "after sharing");
    for (int i = 0; i < n; i++)
        note_release(log, &a, block, false, "a shared block");
    note_stats(log, &a, "when one reference is left");
    note_release(log, &a, block, false, "the last reference");
    lab_int(log, block_references(&a, block), "block_references of a free block");
    note_stats(log, &a, "when no reference is left");
    block_allocator_end(&a);
}

static void run_double_free(struct lab_log *log, int n) {
    struct block_allocator a = start(log, n, BLOCKS_FIFO);
    take(&a, n);
    note_release(log, &a, n - 1, false, "a used block");
    note_release(log, &a, n - 1, false, "a free block");
    note_share(log, &a, n - 1, "a free block");
    note_stats(log, &a, "after a double free");
    note_rest(log, &a, 1, "after a double free");
    block_allocator_end(&a);
}

static void run_foreign(struct lab_log *log, int n) {
    struct block_allocator a = start(log, n, BLOCKS_LIFO);
    const int32_t foreign[] = {n, -1, INT32_MAX, INT32_MIN};
    struct error err;
    take(&a, n);
    for (int i = 0; i < 4; i++) {
        lab_int(log, block_references(&a, foreign[i]), "block_references of foreign block %d",
                foreign[i]);
        lab_int(log, block_share(&a, foreign[i], &err), "block_share of foreign block %d",
                foreign[i]);
        lab_int(log, block_release(&a, foreign[i], false, &err),
                "block_release of foreign block %d", foreign[i]);
        lab_int(log, block_forget(&a, foreign[i], &err), "block_forget of foreign block %d",
                foreign[i]);
    }
    note_stats(log, &a, "after foreign numbers");
    block_allocator_end(&a);
}

static void run_most_used(struct lab_log *log, int n) {
    struct block_allocator a = start(log, 2 * n, BLOCKS_LIFO);
    take(&a, n);
    give_back(&a, n, false);
    take(&a, 1);
    note_stats(log, &a, "after more were in use before");
    block_allocator_end(&a);
}

/* ---- step 3: blocks that are still wanted ---------------------------------------------------- */

struct evictions {
    struct lab_log *log;
    const struct block_allocator *a;
};

static void note_evicted(void *context, int32_t block) {
    const struct evictions *e = context;
    lab_int(e->log, block, "evicted is called for block");
    lab_int(e->log, e->a->stats.most_used, "stats.most_used while evicted runs");
}

static void run_cache(struct lab_log *log, int n) {
    struct block_allocator a = start(log, n + 1, BLOCKS_LIFO);
    struct evictions e = {log, &a};
    a.evicted = note_evicted;
    a.context = &e;
    take(&a, n);
    for (int i = 0; i < n; i++)
        note_release(log, &a, i, true, "a block to be kept");
    lab_int(log, block_references(&a, 0), "block_references of a cached block");
    note_stats(log, &a, "with cached blocks");
    note_release(log, &a, 0, false, "a cached block");
    note_rest(log, &a, n + 1, "with cached blocks");
    note_stats(log, &a, "when all cached blocks were given out");
    block_allocator_end(&a);
}

static void run_revive(struct lab_log *log, int n) {
    for (int which = 0; which < n; which++) {
        struct block_allocator a = start(log, n, BLOCKS_LIFO);
        take(&a, n);
        give_back(&a, n, true);
        note_share(log, &a, which, "a cached block");
        lab_int(log, block_references(&a, which), "block_references of a revived block");
        note_stats(log, &a, "after a cached block was shared");
        note_release(log, &a, which, true, "a revived block");
        note_rest(log, &a, n, "after a cached block was shared and released");
        block_allocator_end(&a);
    }
}

static void run_forget(struct lab_log *log, int n) {
    for (int which = 0; which < n; which++) {
        struct block_allocator a = start(log, n + 1, BLOCKS_LIFO);
        struct error err = {""};
        take(&a, n);
        give_back(&a, n, true);
        lab_int(log, block_forget(&a, which, &err), "block_forget of a cached block");
        lab_int(log, block_forget(&a, which, &err), "block_forget of a free block");
        note_stats(log, &a, "after block_forget");
        lab_int(log, block_allocate(&a), "block_allocate after block_forget");
        note_release(log, &a, which, true, "the block, kept again");
        note_rest(log, &a, n + 1, "after block_forget");
        lab_int(log, block_forget(&a, 0, &err), "block_forget of a used block");
        block_allocator_end(&a);
    }
}

static void random_step(struct lab_log *log, struct block_allocator *a, struct random *r) {
    struct error err;
    int32_t block = random_int(r, 0, a->stats.total - 1);
    switch (random_int(r, 0, 5)) {
    case 0:
    case 1:
        lab_int(log, block_allocate(a), "random operations: block_allocate");
        break;
    case 2:
        lab_int(log, block_share(a, block, &err), "random operations: block_share(%d)", block);
        break;
    case 3:
        lab_int(log, block_forget(a, block, &err), "random operations: block_forget(%d)", block);
        break;
    default: {
        bool keep = random_int(r, 0, 1);
        lab_int(log, block_release(a, block, keep, &err),
                "random operations: block_release(%d, %s)", block, keep ? "keep" : "free");
    }
    }
}

static void run_random(struct lab_log *log, int n) {
    struct random r = {(uint64_t)n};
    for (int order = BLOCKS_LIFO; order <= BLOCKS_FIFO; order++) {
        struct block_allocator a = start(log, n, (enum block_order)order);
        struct error err = {""};
        for (int i = 0; i < 200 && a.stats.total == n; i++) {
            random_step(log, &a, &r);
            note_stats(log, &a, "after random operations");
        }
        lab_int(log, block_allocator_check(&a, &err), "block_allocator_check");
        block_allocator_end(&a);
    }
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_PAGED, 8, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"start", 1, "a new pool of free blocks; a negative number is refused", "blocks",
     LAB_SIZES(0, 1, 2, 16), run_start, 0},
    {"take", 1, "blocks in ascending order, then none", "blocks", LAB_SIZES(1, 2, 3, 16), run_take,
     0},
    {"lifo", 1, "what was given back last comes first", "blocks", LAB_SIZES(1, 2, 3, 16), run_lifo,
     0},
    {"fifo", 1, "what was given back first comes first", "blocks", LAB_SIZES(1, 2, 3, 16), run_fifo,
     0},
    {"rounds", 1, "the list is used round and round", "blocks", LAB_SIZES(1, 2, 3, 5, 16),
     run_rounds, 0},
    {"share", 2, "references are counted, up and down", "further references", LAB_SIZES(1, 2, 3),
     run_share, 0},
    {"double free", 2, "a free block is neither released nor shared", "blocks", LAB_SIZES(1, 2, 3),
     run_double_free, 0},
    {"foreign", 2, "numbers that are no block of the pool are refused", "blocks",
     LAB_SIZES(1, 2, 16), run_foreign, 0},
    {"most used", 2, "the high-water mark stays", "blocks", LAB_SIZES(2, 3, 16), run_most_used, 0},
    {"cache", 3, "kept blocks are given out last, the oldest first", "kept blocks",
     LAB_SIZES(1, 2, 3, 16), run_cache, 0},
    {"revive", 3, "a cached block is shared: used again", "kept blocks", LAB_SIZES(1, 2, 3, 5),
     run_revive, 0},
    {"forget", 3, "a cached block becomes free", "kept blocks", LAB_SIZES(1, 2, 3, 5), run_forget,
     0},
    {"random", 3, "two hundred operations in each order", "blocks", LAB_SIZES(1, 2, 3, 8, 64),
     run_random, 0},
    {"serve", 3, "the model's requests in a pool that is too small", "requests", LAB_SIZES(1, 16),
     run_serve, 30},
};

const struct lab lab = {
    .number = 5,
    .title = "the block allocator",
    .served = "your allocator",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_5_causes,
    .n_causes = N_LAB_5_CAUSES,
};
