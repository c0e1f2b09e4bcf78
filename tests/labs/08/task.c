#include "tests/labs/08/task.h"

#include "model/ops.h"
#include "tests/random.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SITE = 7, DIM = 8, TILE = 256 };

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
static void shuffle_pages(struct table *t) {
    int used = t->n_pages / 2;
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
    if (!task->shows_weights)
        shuffle_pages(t);
    for (int i = 0; task->shows_weights && i < used; i++)
        t->pages[i] = i;
}

/* The element of y that shows the weight of position p. With more positions than elements, those
 * that begin tiles have one, and all others share the last. */
static int shown_in(const struct task *task, int p) {
    if (task->kv_lens[0] <= DIM)
        return p;
    return p % TILE ? DIM - 1 : p / TILE;
}

/* Values that show weights: a 1 in one element and 0 elsewhere; of another sequence 0 everywhere.
 */
static void make_units(int16_t *mantissas, int8_t *exponents, const struct task *task,
                       const struct table *t) {
    size_t rows = (size_t)(t->n_pages * task->page_size);
    memset(mantissas, 0, sizeof *mantissas * DIM * rows);
    memset(exponents, 1, rows);
    for (int p = 0; p < task->kv_lens[0]; p++)
        mantissas[p * DIM + shown_in(task, p)] = 1 << 14;
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
        if (values && task->shows_weights)
            make_units(mantissas, exponents, task, t);
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

/* The softmax alone, of a sequence with one query and one head. */
static void note_weights(struct lab_log *log, const struct task *task, const float *y) {
    char text[32];
    float sum = 0;
    int n = task->kv_lens[0];
    int shown = n <= DIM ? n : DIM;
    for (int d = 0; d < shown; d++)
        sum += y[d];
    lab_floats(log, y + shown, DIM - shown, "dimension", shown, "y where all values are 0");
    snprintf(text, sizeof text, "%.4f", (double)sum);
    lab_text(log, text, "the weights of %d positions together", n);
    if (n <= DIM)
        lab_floats(log, y, n, "position", 0, "the weights of %d positions", n);
    else
        lab_floats(log, y, (n - 1) / TILE + 1, "tile", 0,
                   "the weight of each tile's first position");
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
    if ((run->ops != &ref_ops && run->ops->set_version(run->dev, "attend", task->version, &err)) ||
        run->ops->attention_plan(run->dev, plan, &batch, &shape, &v, &err))
        exit(2);
    wait_for(run);
    run->ops->attend(run->dev, y, q_there, &kv, plan, &v, SITE);
    wait_for(run);
    run->ops->download(run->dev, q, y, n * sizeof *q);
    if (task->shows_weights)
        note_weights(log, task, q);
    else
        note_rows(log, task, q);
    run->ops->attention_plan_free(run->dev, plan);
    free(q);
}

void run_task(struct lab_log *log, const struct task *task) {
    struct error err;
    struct table t;
    struct run run = {.ops = lab_device()};
    run.dev = checked(run.ops->open(&(struct device_options){.n_threads = 1}, &err));
    make_table(&t, task);
    attend(log, &run, task, &t);
    for (int i = 0; i < run.n_data; i++)
        run.ops->free(run.dev, run.data[i], run.bytes[i]);
    run.ops->close(run.dev);
    free(t.pages);
}
