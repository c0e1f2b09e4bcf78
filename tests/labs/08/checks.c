/* Lab 8: attention through page tables, in a block for each row and split over blocks. */
#include "model/ops.h"
#include "tests/labs/08/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <stdlib.h>
#include <string.h>

enum { SITE = 7, DIM = 8, BY_ROW = 2, SPLIT = 3, MOST_SEQUENCES = 3 };

/* What is attended to. */
struct task {
    int version, page_size, heads, kv_heads;
    int n, kv_lens[MOST_SEQUENCES], queries[MOST_SEQUENCES];
    int window;             /* -1: none */
    int hide_from, hide_to; /* a mask hides these positions from all; none: no mask */
};

struct run {
    const struct ops *ops;
    struct device *dev;
    void *data[16];
    size_t bytes[16];
    int n_data;
};

static void *checked(void *p) {
    if (!p)
        exit(2);
    return p;
}

static void *put(struct run *run, const void *host, size_t bytes) {
    struct error err;
    void *data = checked(run->ops->alloc(run->dev, bytes, "a check", &err));
    run->ops->upload(run->dev, data, host, bytes);
    run->data[run->n_data] = data;
    run->bytes[run->n_data++] = bytes;
    return data;
}

/* ---- the cache ------------------------------------------------------------------------------- */

struct table {
    int32_t *pages, indptr[MOST_SEQUENCES + 1], last[MOST_SEQUENCES], qo[MOST_SEQUENCES + 1];
    int n_pages; /* of the pool: more than are in use */
};

/* Pages in an order that is no order, and others between them. */
static void make_table(struct table *t, const struct task *task) {
    memset(t, 0, sizeof *t);
    for (int i = 0; i < task->n; i++) {
        int n = (task->kv_lens[i] - 1) / task->page_size + 1;
        t->indptr[i + 1] = t->indptr[i] + n;
        t->last[i] = (task->kv_lens[i] - 1) % task->page_size + 1;
        t->qo[i + 1] = t->qo[i] + task->queries[i];
    }
    int used = t->indptr[task->n];
    t->n_pages = 2 * used + 1;
    t->pages = checked(calloc((size_t)used, sizeof *t->pages));
    struct random r = {5};
    for (int i = 0; i < used; i++)
        t->pages[i] = 2 * i + 1;
    for (int i = used - 1; i > 0; i--) {
        int j = random_int(&r, 0, i);
        int32_t page = t->pages[i];
        t->pages[i] = t->pages[j];
        t->pages[j] = page;
    }
}

/* Rows of the sequences' positions; all others have an exponent that makes NaNs of them. */
static struct kv_layer put_cache(struct run *run, const struct task *task, const struct table *t) {
    size_t rows = (size_t)(t->n_pages * task->page_size * task->kv_heads);
    struct random r = {(uint64_t)task->kv_lens[0]};
    struct kv_layer layer;
    int16_t *mantissas = checked(malloc(rows * DIM * sizeof *mantissas));
    int8_t *exponents = checked(malloc(rows));
    for (int values = 0; values < 2; values++) {
        for (size_t i = 0; i < rows * DIM; i++)
            mantissas[i] = (int16_t)random_int(&r, -32639, 32639);
        memset(exponents, 127, rows);
        for (int s = 0; s < task->n; s++)
            for (int p = 0; p < task->kv_lens[s]; p++) {
                int page = t->pages[t->indptr[s] + p / task->page_size];
                int slot = page * task->page_size + p % task->page_size;
                for (int h = 0; h < task->kv_heads; h++)
                    exponents[slot * task->kv_heads + h] = (int8_t)random_int(&r, -2, 2);
            }
        int16_t *data = put(run, mantissas, rows * DIM * sizeof *mantissas);
        int8_t *scales = put(run, exponents, rows);
        if (values) {
            layer.v = data;
            layer.v_exponents = scales;
        } else {
            layer.k = data;
            layer.k_exponents = scales;
        }
    }
    free(mantissas);
    free(exponents);
    return layer;
}

/* ---- attention ------------------------------------------------------------------------------- */

static struct attention_variant put_variant(struct run *run, const struct task *task) {
    struct attention_variant v = {.causal = true, .window_left = task->window};
    if (task->hide_to <= task->hide_from)
        return v;
    int64_t offsets[MOST_SEQUENCES] = {0};
    size_t n = 0;
    for (int s = 0; s < task->n; s++) {
        offsets[s] = (int64_t)n;
        n += (size_t)(task->queries[s] * task->kv_lens[s]);
    }
    uint8_t *mask = checked(malloc(n));
    for (int s = 0; s < task->n; s++)
        for (int i = 0; i < task->queries[s]; i++)
            for (int p = 0; p < task->kv_lens[s]; p++)
                mask[offsets[s] + (int64_t)i * task->kv_lens[s] + p] =
                    (p < task->hide_from || p >= task->hide_to) && (i + p) % 3 != 1;
    v.mask_form = MASK_BYTES;
    v.mask = put(run, mask, n);
    v.mask_offsets = put(run, offsets, sizeof offsets);
    free(mask);
    return v;
}

static void note_rows(struct lab_log *log, const struct task *task, const float *y) {
    for (int s = 0; s < task->n; s++)
        for (int i = 0; i < task->queries[s]; i++)
            for (int h = 0; h < task->heads; h++, y += DIM)
                lab_floats(log, y, DIM, "dimension", 0,
                           "y of the query at position %d of %d, head %d, sequence %d",
                           task->kv_lens[s] - task->queries[s] + i, task->kv_lens[s], h, s);
}

/* A kernel that the emulation has stopped leaves nothing to be noted: the program ends. */
static void wait_for(struct run *run) {
    struct error err = {""};
    struct fault fault;
    if (run->ops->sync(run->dev, &fault, &err))
        exit(1);
}

static void attend(struct lab_log *log, struct run *run, const struct task *task,
                   const struct table *t) {
    struct error err;
    size_t n = (size_t)(t->qo[task->n] * task->heads * DIM);
    float *q = checked(malloc(n * sizeof *q));
    struct random r = {3};
    random_fill(&r, q, n, NORMAL);
    float *q_there = put(run, q, n * sizeof *q);
    for (size_t i = 0; i < n; i++)
        q[i] = -77;
    float *y = put(run, q, n * sizeof *q);
    struct kv_layer layer = put_cache(run, task, t);
    struct attention_variant v = put_variant(run, task);
    struct kv_views kv = kv_layer_views(&layer, KV_BFP16, task->page_size, task->kv_heads, DIM);
    struct paged_batch batch = {task->n,   task->page_size, t->n_pages, t->qo,
                                t->indptr, t->pages,        t->last};
    struct attention_shape shape = {task->heads, task->kv_heads, DIM, 0.25, KV_BFP16};
    struct attention_plan *plan = checked(run->ops->attention_plan_new(run->dev, &err));
    if (run->ops->set_version(run->dev, "attend", task->version, &err) ||
        run->ops->attention_plan(run->dev, plan, &batch, &shape, &v, &err))
        exit(2);
    wait_for(run);
    run->ops->attend(run->dev, y, q_there, &kv, plan, &v, SITE);
    wait_for(run);
    run->ops->download(run->dev, q, y, n * sizeof *q);
    note_rows(log, task, q);
    run->ops->attention_plan_free(run->dev, plan);
    free(q);
}

static void run_task(struct lab_log *log, const struct task *task) {
    struct error err;
    struct table t;
    struct run run = {.ops = checked((void *)ops_find("emu", &err))};
    run.dev = checked(run.ops->open(&(struct device_options){.n_threads = 1}, &err));
    make_table(&t, task);
    attend(log, &run, task, &t);
    for (int i = 0; i < run.n_data; i++)
        run.ops->free(run.dev, run.data[i], run.bytes[i]);
    run.ops->close(run.dev);
    free(t.pages);
}

/* ---- checks ---------------------------------------------------------------------------------- */

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

static void run_mask(struct lab_log *log, int n) {
    struct task t = plain(BY_ROW, 16, n);
    t.queries[0] = n < 3 ? n : 3;
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

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"one page", 1, "all positions in one page", "positions", LAB_SIZES(1, 2, 17, 256),
     run_one_page, 5},
    {"pages", 1, "pages of 16 in any order, the last one not full", "positions",
     LAB_SIZES(1, 16, 17, 31, 255, 256), run_pages, 5},
    {"slots", 1, "pages of one position", "positions", LAB_SIZES(1, 2, 40), run_slots, 5},
    {"heads", 1, "two query heads share a kv head", "positions", LAB_SIZES(1, 5, 33), run_heads, 5},
    {"queries", 1, "the newest three positions ask", "positions", LAB_SIZES(1, 2, 3, 18),
     run_queries, 5},
    {"sequences", 1, "three sequences in one batch", "positions", LAB_SIZES(1, 40), run_sequences,
     5},
    {"mask", 1, "a mask of bytes", "positions", LAB_SIZES(5, 40), run_mask, 5},
    {"tiles", 2, "more positions than a tile has", "positions", LAB_SIZES(257, 512, 513, 800),
     run_pages, 5},
    {"window", 2, "a window that leaves tiles out", "positions", LAB_SIZES(30, 270, 513),
     run_window, 5},
    {"hidden tile", 2, "a mask that hides a tile", "positions", LAB_SIZES(513, 600), run_hidden, 5},
    {"split", 3, "a block for each tile, and the merge", "positions",
     LAB_SIZES(1, 255, 256, 257, 513, 800), run_split, 5},
    {"split window", 3, "a window that leaves tiles out", "positions", LAB_SIZES(30, 270, 513),
     run_split_window, 5},
    {"split hidden tile", 3, "a mask that hides a tile", "positions", LAB_SIZES(513, 600),
     run_split_hidden, 5},
    {"split heads", 3, "heads and sequences of several lengths", "positions",
     LAB_SIZES(1, 300, 600), run_split_heads, 5},
};

const struct lab lab = {
    .number = 8,
    .title = "attention through page tables, in CUDA",
    .served = "your kernel",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_8_causes,
    .n_causes = 0,
};
