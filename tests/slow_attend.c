/*
 * attend with every three values of different axes together at least once, on the device under test
 * against the reference, bit for bit; the reference itself against float64.
 *
 * The axes are those of the grid that other libraries test one or two at a time, with masks and the
 * types of caches. The first sequence of a batch has the lengths of the row; its company is random,
 * and short, so that the work is that of the row. What would take the reference a minute, with the
 * processors that there are, has fewer queries than its row says: the output names these rows, and
 * counts the triples that are lost.
 *
 * Under the emulation: the cheapest rows that have every value of every axis.
 */
#include "tests/attend_cases.h"
#include "tests/covering.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum axis {
    BATCH,
    KV_LEN,
    QO_LEN,
    PAGE_SIZE,
    KV_HEADS,
    GROUP,
    HEAD_DIM,
    LAYOUT, /* NHD, HND, vLLM's; NHD and HND in one tensor */
    WINDOW,
    CAP,
    CAUSAL,
    MASK,
    TYPE,
    N_AXES
};

static const struct {
    const char *name;
    int n, values[9];
} axes[N_AXES] = {
    [BATCH] = {"batch", 5, {1, 7, 12, 17, 128}},
    [KV_LEN] = {"kv_len", 6, {1, 54, 97, 512, 2048, 16384}},
    [QO_LEN] = {"qo_len", 5, {1, 17, 37, 127, 577}},
    [PAGE_SIZE] = {"page size", 9, {1, 3, 5, 8, 16, 24, 32, 64, 256}},
    [KV_HEADS] = {"kv heads", 4, {1, 2, 4, 8}},
    [GROUP] = {"group", 7, {1, 2, 3, 4, 5, 7, 8}},
    [HEAD_DIM] = {"head_dim", 6, {32, 64, 80, 96, 128, 256}},
    [LAYOUT] = {"layout", 5, {KV_NHD, KV_HND, KV_VLLM, 3 + KV_NHD, 3 + KV_HND}},
    [WINDOW] = {"window", 5, {-1, 0, 3, 33, 128}},
    [CAP] = {"cap", 3, {0, 30, 50}},
    [CAUSAL] = {"causal", 2, {0, 1}},
    [MASK] = {"mask", 3, {MASK_NONE, MASK_BYTES, MASK_BITS}},
    [TYPE] = {"type", 6, {KV_BFP16, KV_BFP8, KV_E4M3, KV_E5M2, KV_FP16, KV_BF16}},
};

static int value(const uint8_t *row, enum axis axis) {
    return axes[axis].values[row[axis]];
}

static struct covering all_triples(void) {
    int n_values[N_AXES];
    for (int i = 0; i < N_AXES; i++)
        n_values[i] = axes[i].n;
    return covering_of(n_values, N_AXES);
}

/* ---- how much work --------------------------------------------------------------------------- */

/* The reference's work for the first sequence, counted in products of two numbers. Each score
 * counts for 64 more. */
static double work_of(const uint8_t *row) {
    double seen = value(row, KV_LEN), queries = value(row, QO_LEN);
    double window = value(row, WINDOW) + queries + ATTENTION_TILE;
    seen = value(row, WINDOW) >= 0 && window < seen ? window : seen;
    return seen * queries * value(row, KV_HEADS) * value(row, GROUP) *
           (2 * value(row, HEAD_DIM) + 64);
}

/* Rows that are too much get fewer queries. Prints them, and which triples that costs. */
static void lower(struct covering *c, double most) {
    int n = 0;
    for (int i = 0; i < c->n_rows; i++) {
        uint8_t *row = c->rows[i];
        int queries = value(row, QO_LEN);
        while (work_of(row) > most && row[QO_LEN])
            row[QO_LEN]--;
        if (queries == value(row, QO_LEN))
            continue;
        print_message("lowered: row %d, kv_len %d, %d heads of %d, type %s: %d queries, not %d\n",
                      i, value(row, KV_LEN), value(row, KV_HEADS) * value(row, GROUP),
                      value(row, HEAD_DIM), kv_type_name((enum kv_type)value(row, TYPE)),
                      value(row, QO_LEN), queries);
        n++;
    }
    print_message("%d rows for %ld triples; %d rows lowered, which costs %ld triples\n", c->n_rows,
                  covering_triples(c), n, covering_missing(c));
}

static int compare_work(const void *a, const void *b) {
    double x = work_of(a), y = work_of(b);
    return (x > y) - (x < y);
}

/* Keeps the cheapest rows that have every value of every axis. */
static void keep_sample(struct covering *c) {
    bool seen[N_AXES][9] = {{false}};
    int n = 0;
    qsort(c->rows, (size_t)c->n_rows, sizeof *c->rows, compare_work);
    for (int i = 0; i < c->n_rows; i++) {
        bool is_new = false;
        for (int a = 0; a < N_AXES; a++)
            is_new |= !seen[a][c->rows[i][a]];
        if (!is_new)
            continue;
        for (int a = 0; a < N_AXES; a++)
            seen[a][c->rows[i][a]] = true;
        memmove(c->rows[n++], c->rows[i], sizeof *c->rows);
    }
    c->n_rows = n;
    for (int a = 0; a < N_AXES; a++)
        for (int v = 0; v < axes[a].n; v++)
            assert_true(seen[a][v]);
    print_message("the %d cheapest rows with every value of every axis\n", n);
}

/* ---- a row ----------------------------------------------------------------------------------- */

static void make_case(struct attend_case *c, struct random *r, const uint8_t *row, int company) {
    int layout = value(row, LAYOUT), batch = value(row, BATCH);
    struct attend_wish w = attend_anything(value(row, KV_LEN) + company * (batch - 1));
    w.batch = batch;
    w.kv_len = value(row, KV_LEN);
    w.qo_len = value(row, QO_LEN);
    w.page_size = value(row, PAGE_SIZE);
    w.kv_heads = value(row, KV_HEADS);
    w.group = value(row, GROUP);
    w.head_dim = value(row, HEAD_DIM);
    w.order = layout % 3;
    w.type = value(row, TYPE);
    w.cap = value(row, CAP);
    w.causal = value(row, CAUSAL);
    w.mask = value(row, MASK);
    attend_case_make(c, r, &w);
    c->layout.one_tensor = layout >= 3;
    c->variant.window_left = value(row, WINDOW);
}

static struct test_device reference, tested;

static void check(const struct attend_case *c, struct random *r) {
    float *want, *want_lse, *y, *lse;
    attend_run(&reference, c, &want, &want_lse);
    if (tested.ops == &ref_ops) {
        int token = random_int(r, 0, c->n_tokens - 1);
        attend_expect_close(c, token, random_int(r, 0, c->shape.n_heads - 1), want, want_lse);
        attend_expect_close(c, 0, 0, want, want_lse);
    } else {
        attend_run(&tested, c, &y, &lse);
        attend_expect_same(c, "attention", want, y, c->shape.head_dim);
        attend_expect_same(c, "log of the sum", want_lse, lse, 1);
        free(y);
        free(lse);
    }
    free(want);
    free(want_lse);
}

static int n_processors(void) {
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static void test_every_triple(void **state) {
    (void)state;
    struct random r = {912};
    struct covering c = all_triples();
    assert_int_equal(covering_missing(&c), 0);
    bool sample = device_is_emulated();
    time_t begin = time(NULL);
    if (sample)
        keep_sample(&c);
    else
        lower(&c, 0x1p38 * (double)n_processors());
    for (int i = 0; i < c.n_rows; i++) {
        struct attend_case one;
        make_case(&one, &r, c.rows[i], sample ? 3 : 30);
        check(&one, &r);
        attend_case_free(&one);
        if ((i + 1) % 50 == 0 || i + 1 == c.n_rows)
            print_message("%d of %d rows, %ld s\n", i + 1, c.n_rows, (long)(time(NULL) - begin));
    }
    covering_free(&c);
}

/* The reference gets all processors. */
static int open_devices(void **state) {
    (void)state;
    device_open(&reference, &ref_ops, n_processors());
    device_open(&tested, device_under_test(), n_processors());
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    device_close(&tested);
    device_close(&reference);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_triple),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
