/*
 * decode_graph: when a pass is run op by op, recorded or replayed, on a device that only counts. A
 * recording knows addresses, so it must not outlive them, nor serve another pool. And the padding.
 */
#include "model/decode_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct device_graph {
    int unused;
};

static struct {
    long memory;
    int runs, begun, replayed, alive;
    bool begin_fails, end_fails;
} count;

static int begin(struct device *dev, struct error *err) {
    (void)dev;
    if (count.begin_fails)
        return error_set(err, "no recording begins");
    count.begun++;
    return 0;
}

static struct device_graph *end(struct device *dev, struct error *err) {
    (void)dev;
    if (count.end_fails) {
        error_set(err, "no recording ends");
        return NULL;
    }
    count.alive++;
    return calloc(1, sizeof(struct device_graph));
}

static void replay(struct device *dev, struct device_graph *graph) {
    (void)dev;
    assert_non_null(graph);
    count.replayed++;
}

static void release(struct device *dev, struct device_graph *graph) {
    (void)dev;
    count.alive -= graph != NULL;
    free(graph);
}

static long memory_changes(struct device *dev) {
    (void)dev;
    return count.memory;
}

static void run(struct model *model, struct workspace *ws, const struct batch *batch,
                const struct probe *probe) {
    (void)model, (void)ws, (void)batch, (void)probe;
    count.runs++;
}

static const struct pass_parts parts = {.run = run};

static const struct ops counting = {.graph_begin = begin,
                                    .graph_end = end,
                                    .graph_run = replay,
                                    .graph_free = release,
                                    .memory_changes = memory_changes};

enum { SEQUENCES = 3, PAGES = 4 };

/* One token each for three sequences of a pool. */
struct three {
    int32_t ids[SEQUENCES], positions[SEQUENCES], indptr[SEQUENCES + 1], rows[SEQUENCES];
    int32_t kv_indptr[SEQUENCES + 1], last[SEQUENCES], indices[PAGES];
    struct kv_cache cache, *caches[SEQUENCES];
    struct paged_batch pages;
    struct batch batch;
};

static void make(struct three *t, struct kv_layer *layers) {
    *t = (struct three){.ids = {7, 8, 9},
                        .positions = {20, 3, 0},
                        .indptr = {0, 1, 2, 3},
                        .rows = {0, 1, 2},
                        .kv_indptr = {0, 2, 3, 4},
                        .last = {5, 4, 1},
                        .indices = {3, 1, 0, 2}};
    t->cache.layers = layers;
    for (int i = 0; i < SEQUENCES; i++)
        t->caches[i] = &t->cache;
    t->pages =
        (struct paged_batch){SEQUENCES, 16, PAGES, t->indptr, t->kv_indptr, t->indices, t->last};
    t->batch = (struct batch){SEQUENCES, SEQUENCES, SEQUENCES, t->ids, t->positions, t->indptr,
                              t->rows,   t->caches, &t->pages, false,  false};
}

/* A pass; what it should add to the counts. */
static void pass_of_form(struct decode_graphs *g, const struct three *t, int form, int runs,
                         int begun, int replayed) {
    struct device dev = {.ops = &counting};
    struct model model = {.dev = &dev};
    struct error err;
    int size = decode_size_of(&t->batch);
    int had[] = {count.runs, count.begun, count.replayed};
    decode_pad(g, &t->batch, size);
    assert_int_equal(decode_run(g, size, form, &model, NULL, &parts, &err), 0);
    assert_int_equal(count.runs - had[0], runs);
    assert_int_equal(count.begun - had[1], begun);
    assert_int_equal(count.replayed - had[2], replayed);
}

static void pass(struct decode_graphs *g, const struct three *t, int runs, int begun,
                 int replayed) {
    pass_of_form(g, t, 0, runs, begun, replayed);
}

static void test_recordings(void **state) {
    (void)state;
    static struct decode_graphs g;
    struct kv_layer pools[2];
    struct three a, b;
    memset(&g, 0, sizeof g);
    memset(&count, 0, sizeof count);
    count.memory = 5;
    make(&a, &pools[0]);
    make(&b, &pools[1]);
    pass(&g, &a, 1, 0, 0); /* the ops get their memory */
    pass(&g, &a, 1, 1, 1);
    pass(&g, &a, 0, 0, 1);
    pass(&g, &a, 0, 0, 1);
    count.memory++;
    pass(&g, &a, 1, 0, 0);
    pass(&g, &a, 1, 1, 1);
    pass(&g, &b, 1, 0, 0); /* another pool: no allocation in between */
    pass(&g, &b, 1, 1, 1);
    pass(&g, &b, 0, 0, 1);
    pass(&g, &a, 1, 0, 0);
    pass_of_form(&g, &a, 1, 1, 0, 0); /* another form of the plan: other launches */
    pass_of_form(&g, &a, 1, 1, 1, 1);
    pass(&g, &a, 1, 1, 1);
    pass_of_form(&g, &a, 1, 0, 0, 1);
    pass(&g, &a, 0, 0, 1);
    struct kv_cache others[] = {a.cache, a.cache};
    a.caches[1] = &others[0];
    a.caches[2] = &others[1];
    pass(&g, &a, 1, 0, 0); /* a step of each sequence, no draft: other launches, too */
    pass(&g, &a, 1, 1, 1);
    decode_graphs_free(&g, &(struct device){.ops = &counting});
    assert_int_equal(count.alive, 0);
}

/* A pass that cannot be recorded; `says` is the device's reason. */
static void fails(struct decode_graphs *g, const struct three *t, int runs, const char *says) {
    struct device dev = {.ops = &counting};
    struct model model = {.dev = &dev};
    struct error err = {""};
    int had_runs = count.runs, had_replayed = count.replayed, size = decode_size_of(&t->batch);
    decode_pad(g, &t->batch, size);
    assert_int_equal(decode_run(g, size, 0, &model, NULL, &parts, &err), -1);
    assert_string_equal(err.text, says);
    assert_int_equal(count.runs - had_runs, runs);
    assert_int_equal(count.replayed, had_replayed);
    assert_int_equal(count.alive, 0);
}

/* Nothing is replayed, and the next pass tries again. */
static void test_recordings_that_fail(void **state) {
    (void)state;
    static struct decode_graphs g;
    struct kv_layer pool;
    struct three t;
    memset(&g, 0, sizeof g);
    memset(&count, 0, sizeof count);
    count.memory = 5;
    make(&t, &pool);
    pass(&g, &t, 1, 0, 0);
    count.begin_fails = true;
    fails(&g, &t, 0, "no recording begins");
    count.begin_fails = false;
    count.end_fails = true;
    fails(&g, &t, 1, "no recording ends");
    count.end_fails = false;
    pass(&g, &t, 1, 1, 1);
    pass(&g, &t, 0, 0, 1);
    decode_graphs_free(&g, &(struct device){.ops = &counting});
    assert_int_equal(count.alive, 0);
}

static void test_padding(void **state) {
    (void)state;
    static struct decode_graphs g;
    struct kv_layer pool;
    struct three t;
    memset(&g, 0, sizeof g);
    make(&t, &pool);
    int size = decode_size_of(&t.batch);
    decode_pad(&g, &t.batch, size);
    assert_int_equal(g.batch.n_tokens, 4); /* three rows go into four */
    assert_memory_equal(g.token_ids, t.ids, sizeof t.ids);
    assert_memory_equal(g.positions, t.positions, sizeof t.positions);
    assert_int_equal(g.positions[3], -1);
    assert_int_equal(g.kv_indptr[4], 4); /* no page */
    assert_null(g.caches[3]);
    assert_int_equal(g.batch.pages->n_sequences, 4);
    struct error err;
    assert_int_equal(paged_batch_check(g.batch.pages, &err), 0);
    assert_int_equal(paged_batch_kv_len(g.batch.pages, 0), 21);
    assert_int_equal(paged_batch_kv_len(g.batch.pages, 3), 0);
    assert_false(g.batch.steps); /* all three have one cache: tokens of a draft */
    struct kv_cache others[] = {t.cache, t.cache};
    t.caches[2] = &others[1];
    decode_pad(&g, &t.batch, size);
    assert_false(g.batch.steps);
    t.caches[0] = &others[0];
    decode_pad(&g, &t.batch, size);
    assert_true(g.batch.steps);
}

/* Not one token of each sequence, not all logits, no page table: nothing to record. */
static void test_other_batches(void **state) {
    (void)state;
    struct kv_layer pool;
    struct three t;
    make(&t, &pool);
    t.batch.pages = NULL;
    assert_int_equal(decode_size_of(&t.batch), -1);
    make(&t, &pool);
    t.batch.n_logits = 2;
    assert_int_equal(decode_size_of(&t.batch), -1);
    make(&t, &pool);
    t.rows[1] = 2;
    assert_int_equal(decode_size_of(&t.batch), -1);
    make(&t, &pool);
    t.indptr[1] = 2;
    t.indptr[2] = 2;
    assert_int_equal(decode_size_of(&t.batch), -1);
}

/* The largest has 256 rows. */
static void test_most_rows(void **state) {
    (void)state;
    int32_t indptr[MOST_DECODE_ROWS + 2];
    struct paged_batch pages = {0};
    struct batch b = {.qo_indptr = indptr, .logit_rows = indptr, .pages = &pages};
    assert_int_equal(MOST_DECODE_ROWS, 256);
    for (int i = 0; i < MOST_DECODE_ROWS + 2; i++)
        indptr[i] = i;
    b.n_sequences = b.n_tokens = b.n_logits = 256;
    assert_int_equal(decode_size_of(&b), N_DECODE_SIZES - 1);
    b.n_sequences = b.n_tokens = b.n_logits = 257;
    assert_int_equal(decode_size_of(&b), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recordings), cmocka_unit_test(test_recordings_that_fail),
        cmocka_unit_test(test_padding),    cmocka_unit_test(test_other_batches),
        cmocka_unit_test(test_most_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
