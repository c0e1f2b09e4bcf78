/* Lab 8: attention through page tables, in a block for each row and split over blocks. */
#include "tests/labs/08/causes.h"
#include "tests/labs/08/task.h"

/* One sequence, one query and one head of it. */
static struct task plain(int version, int page_size, int kv_len) {
    return (struct task){.version = version,
                         .page_size = page_size,
                         .heads = 1,
                         .kv_heads = 1,
                         .n = 1,
                         .kv_lens = {kv_len},
                         .queries = {1},
                         .window = -1};
}

/* The second sequence's page lies behind the first one's in the table. */
static void run_weights(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, n, n);
    t.n = 2;
    t.kv_lens[1] = n;
    t.queries[1] = 1;
    t.shows_weights = true;
    run_task(log, &t);
}

static void run_tile_weights(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, 16, n);
    t.shows_weights = true;
    run_task(log, &t);
}

static void run_one_page(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, n, n);
    run_task(log, &t);
}

static void run_pages(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, 16, n);
    run_task(log, &t);
}

static void run_slots(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, 1, n);
    run_task(log, &t);
}

static void run_heads(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, 16, n);
    t.heads = 4;
    t.kv_heads = 2;
    run_task(log, &t);
}

static void run_queries(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, 16, n);
    t.queries[0] = n < 3 ? n : 3;
    run_task(log, &t);
}

static struct task three_sequences(int version, int n) {
    struct task t = plain(version, 16, n);
    t.n = 3;
    t.kv_lens[1] = 5;
    t.kv_lens[2] = n / 2 + 1;
    t.queries[1] = 2;
    t.queries[2] = 1;
    return t;
}

static void run_sequences(struct lab_log *log, int n) {
    struct task t = three_sequences(BY_ROW, n);
    run_task(log, &t);
}

/* Two sequences, each with a mask of its own. */
static void run_mask(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, 16, n);
    t.n = 2;
    t.queries[0] = n < 3 ? n : 3;
    t.kv_lens[1] = n + 3;
    t.queries[1] = 2;
    t.hide_from = n / 4;
    t.hide_to = n / 2 + 1;
    run_task(log, &t);
}

static void run_window_of(struct lab_log *log, int version, int n) {
    struct task t = plain(version, 16, n);
    t.queries[0] = 2;
    t.window = 20;
    run_task(log, &t);
}

static void run_window(struct lab_log *log, int n) {
    run_window_of(log, BY_ROW, n);
}

static void run_split_window(struct lab_log *log, int n) {
    run_window_of(log, SPLIT, n);
}

/* A mask hides the second tile. */
static void run_hidden_of(struct lab_log *log, int version, int n) {
    struct task t = plain(version, 16, n);
    t.hide_from = 256;
    t.hide_to = 512;
    run_task(log, &t);
}

static void run_hidden(struct lab_log *log, int n) {
    run_hidden_of(log, BY_ROW, n);
}

static void run_split_hidden(struct lab_log *log, int n) {
    run_hidden_of(log, SPLIT, n);
}

static void run_split(struct lab_log *log, int n) {
    struct task t = plain(SPLIT, 16, n);
    run_task(log, &t);
}

static void run_split_heads(struct lab_log *log, int n) {
    struct task t = three_sequences(SPLIT, n);
    t.heads = 2;
    run_task(log, &t);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_KERNELS, 2, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"weights", 1, "the softmax of a query over one page", "positions", LAB_SIZES(1, 2, 3, 8),
     run_weights, 0},
    {"one page", 1, "all positions in one page", "positions", LAB_SIZES(1, 2, 17, 256),
     run_one_page, 0},
    {"pages", 1, "pages of 16 in any order, the last one not full", "positions",
     LAB_SIZES(1, 16, 17, 31, 255, 256), run_pages, 0},
    {"slots", 1, "pages of one position", "positions", LAB_SIZES(1, 2, 40), run_slots, 0},
    {"heads", 1, "two query heads share a kv head", "positions", LAB_SIZES(1, 5, 33), run_heads, 0},
    {"queries", 1, "the newest three positions ask", "positions", LAB_SIZES(1, 2, 3, 18),
     run_queries, 0},
    {"sequences", 1, "three sequences in one batch", "positions", LAB_SIZES(1, 40), run_sequences,
     0},
    {"mask", 1, "a mask of bytes", "positions", LAB_SIZES(5, 40), run_mask, 0},
    {"tile weights", 2, "the softmax over several tiles", "positions", LAB_SIZES(257, 400, 513),
     run_tile_weights, 0},
    {"tiles", 2, "more positions than a tile has", "positions", LAB_SIZES(257, 512, 513, 800),
     run_pages, 0},
    {"window", 2, "a window that leaves tiles out", "positions", LAB_SIZES(30, 270, 513),
     run_window, 0},
    {"hidden tile", 2, "a mask that hides a tile", "positions", LAB_SIZES(513, 600), run_hidden, 0},
    {"split", 3, "a block for each tile, and the merge", "positions",
     LAB_SIZES(1, 255, 256, 257, 513, 800), run_split, 0},
    {"split window", 3, "a window that leaves tiles out", "positions", LAB_SIZES(30, 270, 513),
     run_split_window, 0},
    {"split hidden", 3, "a mask that hides a tile", "positions", LAB_SIZES(513, 600),
     run_split_hidden, 0},
    {"split heads", 3, "heads and sequences of several lengths", "positions",
     LAB_SIZES(1, 300, 600), run_split_heads, 0},
    {"serve", 3, "the model's requests in the emulation", "requests", LAB_SIZES(2), run_serve, 30},
};

const struct lab lab = {
    .number = 8,
    .title = "attention through page tables, in CUDA",
    .served = "your kernel",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_8_causes,
    .n_causes = N_LAB_8_CAUSES,
};
