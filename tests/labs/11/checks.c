/* Lab 11: store and load bfp8. */
#include "ref/ref.h"
#include "tests/labs/11/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SITE_K = 7, SITE_V = 8, MOST_DIM = 256, UNTOUCHED = 85 };

/* ---- a cache of bfp8 ------------------------------------------------------------------------- */

struct cache {
    struct kv_layout layout;
    struct kv_views views;
    void *k, *v;
    int8_t *k_exponents, *v_exponents;
};

static void *filled(size_t bytes) {
    void *p = malloc(bytes);
    if (!p)
        exit(2);
    return memset(p, UNTOUCHED, bytes);
}

static struct cache start_cache(struct lab_log *log, enum kv_order order, int n_pages,
                                int page_size, int n_heads, int dim) {
    struct cache c = {.layout = kv_layout_of(order, false, n_pages, page_size, n_heads, dim)};
    struct error err;
    c.layout.type = KV_BFP8;
    size_t elements = (size_t)kv_layout_elements(&c.layout);
    size_t exponents = (size_t)kv_layout_exponents(&c.layout);
    c.k = filled(elements);
    c.v = filled(elements);
    c.k_exponents = filled(exponents);
    c.v_exponents = filled(exponents);
    lab_int(log, kv_views_of(&c.views, &c.layout, c.k, c.v, c.k_exponents, c.v_exponents, &err),
            "the views of the cache");
    return c;
}

static void end_cache(struct cache *c) {
    free(c->k);
    free(c->v);
    free(c->k_exponents);
    free(c->v_exponents);
}

static void note_row(struct lab_log *log, const struct kv_view *view, int page, int position,
                     int head, int dim, const char *what) {
    const int8_t *row = (const int8_t *)view->data + kv_view_row(view, page, position, head);
    int32_t elements[MOST_DIM];
    for (int d = 0; d < dim; d++)
        elements[d] = row[kv_view_element(view, d)];
    lab_int(log, view->exponents[kv_view_exponent(view, page, position, head)],
            "the exponent of %s", what);
    lab_ints(log, elements, dim, "element", 0, "the elements of %s", what);
}

/* Every row of the keys or the values. */
static void note_rows(struct lab_log *log, const struct cache *c, const struct kv_view *view,
                      const char *which) {
    const struct kv_layout *l = &c->layout;
    for (int page = 0; page < l->n_pages; page++)
        for (int position = 0; position < l->page_size; position++)
            for (int head = 0; head < l->n_kv_heads; head++) {
                char what[96];
                snprintf(what, sizeof what, "%s, page %d, position %d, head %d", which, page,
                         position, head);
                note_row(log, view, page, position, head, l->head_dim, what);
            }
}

static struct device *open_device(struct lab_log *log) {
    struct error err;
    struct device *dev = ref_ops.open(&(struct device_options){1}, &err);
    lab_int(log, dev != NULL, "the device opens");
    if (!dev)
        exit(2);
    return dev;
}

static void close_device(struct lab_log *log, struct device *dev) {
    struct fault fault = {-1, -1};
    dev->ops->sync(dev, &fault, NULL);
    lab_int(log, fault.site, "site of the fault (7: keys, 8: values, -1: none)");
    lab_int(log, fault.token, "token of the fault (-1: none)");
    dev->ops->close(dev);
}

/* ---- step 1 ---------------------------------------------------------------------------------- */

/* Stores a row by itself and notes it. */
static void store(struct lab_log *log, const float *x, int dim, const char *what) {
    struct device *dev = open_device(log);
    struct cache c = start_cache(log, KV_NHD, 1, 1, 1, dim);
    ref_store_row(dev, &c.views.k, x, 0, 0, 0, dim, SITE_K, 3);
    note_row(log, &c.views.k, 0, 0, 0, dim, what);
    close_device(log, dev);
    end_cache(&c);
}

static void run_store(struct lab_log *log, int dim) {
    struct random r = {(uint64_t)dim};
    float x[MOST_DIM];
    for (int i = 0; i < 20; i++) {
        random_fill(&r, x, (size_t)dim, NORMAL);
        for (int d = 0; d < dim; d++) /* the largest is positive, so that e is plain */
            x[d] = d ? x[d] / 8 : 1 + fabsf(x[d]) / 8;
        store(log, x, dim, "a row of normal numbers");
    }
}

static void run_signs(struct lab_log *log, int dim) {
    float x[MOST_DIM];
    for (int d = 0; d < dim; d++)
        x[d] = d % 2 ? 0.25f : -3.0f;
    store(log, x, dim, "a row whose largest magnitude is negative");
}

static void run_ties(struct lab_log *log, int n) {
    float x[MOST_DIM] = {64};
    for (int d = 1; d <= n; d++)
        x[d] = (float)(d / 2) * (d % 2 ? 1.0f : -1.0f) + (d % 2 ? 0.5f : -0.5f);
    store(log, x, n + 1, "64 and halves");
}

/* The first number of each is the largest; sixteenths, so that rounding matters. */
static void run_fits(struct lab_log *log, int sixteenths) {
    float x[2] = {(float)sixteenths / 16, 1};
    char what[64];
    snprintf(what, sizeof what, "%d/16 and 1", sixteenths);
    store(log, x, 2, what);
}

static void run_powers(struct lab_log *log, int power) {
    float x[3] = {ldexpf(1, power), ldexpf(-0.75f, power), 0};
    char what[64];
    snprintf(what, sizeof what, "2^%d, -0.75 * 2^%d, 0", power, power);
    store(log, x, 3, what);
}

static void run_bad(struct lab_log *log, int which) {
    const float bad[] = {NAN, INFINITY, -INFINITY, -0x1.ff8p127f, 0x1.fep126f, 0, -0.0f};
    float x[3] = {1, bad[which], -2};
    char what[64];
    snprintf(what, sizeof what, "1, %g, -2", (double)bad[which]);
    store(log, x, 3, what);
    float zeros[2] = {0, -0.0f};
    store(log, zeros, 2, "a row of zeros");
}

/* Three pages of two positions and two heads; each row has its own exponent. */
static void run_places(struct lab_log *log, int order) {
    const enum kv_order orders[] = {KV_NHD, KV_HND, KV_VLLM};
    const char *const names[] = {"NHD", "HND", "vLLM"};
    struct random r = {3};
    struct device *dev = open_device(log);
    struct cache c = start_cache(log, orders[order], 3, 2, 2, 16);
    float x[16];
    for (int i = 0; i < 11; i++) { /* the last row stays as it is */
        random_fill(&r, x, 16, NORMAL);
        for (int d = 0; d < 16; d++)
            x[d] = ldexpf(x[d], i);
        ref_store_row(dev, &c.views.k, x, i / 4, i / 2 % 2, i % 2, 16, SITE_K, i);
        ref_store_row(dev, &c.views.v, x, i / 4, i / 2 % 2, i % 2, 16, SITE_V, i);
    }
    char which[32];
    snprintf(which, sizeof which, "keys in %s", names[order]);
    note_rows(log, &c, &c.views.k, which);
    snprintf(which, sizeof which, "values in %s", names[order]);
    note_rows(log, &c, &c.views.v, which);
    close_device(log, dev);
    end_cache(&c);
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

static void note_loaded(struct lab_log *log, const struct kv_view *view, int page, int position,
                        int head, int dim, const char *what) {
    int16_t out[MOST_DIM];
    int32_t wide[MOST_DIM];
    int e = ref_load_row(out, view, page, position, head, dim);
    for (int d = 0; d < dim; d++)
        wide[d] = out[d];
    lab_ints(log, wide, dim, "element", 0, "the integers of %s", what);
    lab_int(log, e, "the exponent that loading %s returns", what);
}

static void run_load(struct lab_log *log, int dim) {
    struct cache c = start_cache(log, KV_NHD, 1, 1, 1, dim);
    int8_t *elements = c.k;
    for (int sign = 1; sign >= -1; sign -= 2) {
        for (int d = 0; d < dim; d++)
            elements[d] = (int8_t)(sign * (127 - 3 * d % 127));
        c.k_exponents[0] = (int8_t)(sign * 5);
        note_loaded(log, &c.views.k, 0, 0, 0, dim,
                    sign > 0 ? "a row of positive elements" : "a row of negative elements");
    }
    end_cache(&c);
}

static void run_load_places(struct lab_log *log, int order) {
    const enum kv_order orders[] = {KV_NHD, KV_HND, KV_VLLM};
    struct random r = {4};
    struct cache c = start_cache(log, orders[order], 2, 2, 2, 16);
    int8_t *elements[] = {c.k, c.v}, *exponents[] = {c.k_exponents, c.v_exponents};
    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < kv_layout_elements(&c.layout); i++)
            elements[which][i] = (int8_t)random_int(&r, -127, 127);
        for (int i = 0; i < kv_layout_exponents(&c.layout); i++)
            exponents[which][i] = (int8_t)random_int(&r, -100, 127);
    }
    for (int i = 0; i < 8; i++) {
        char what[64];
        snprintf(what, sizeof what, "keys, page %d, position %d, head %d", i / 4, i / 2 % 2, i % 2);
        note_loaded(log, &c.views.k, i / 4, i / 2 % 2, i % 2, 16, what);
        snprintf(what, sizeof what, "values, page %d, position %d, head %d", i / 4, i / 2 % 2,
                 i % 2);
        note_loaded(log, &c.views.v, i / 4, i / 2 % 2, i % 2, 16, what);
    }
    end_cache(&c);
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

/* Appends n tokens with these slots to a cache of bfp8. bad: a value row with a NaN, -1: none. */
static void append(struct lab_log *log, const int64_t *slots, int n, int n_heads, int bad_key,
                   int bad_value) {
    enum { DIM = 4, PAGE = 3, PAGES = 4 };
    struct random r = {(uint64_t)n};
    struct device *dev = open_device(log);
    struct cache c = start_cache(log, KV_NHD, PAGES, PAGE, n_heads, DIM);
    size_t count = (size_t)(n * n_heads * DIM);
    float *k = malloc(sizeof *k * count), *v = malloc(sizeof *v * count);
    if (!k || !v)
        exit(2);
    random_fill(&r, k, count, NORMAL);
    random_fill(&r, v, count, NORMAL);
    for (int i = 0; i < n * n_heads * DIM; i++)
        v[i] *= 64;
    if (bad_key >= 0)
        k[bad_key * DIM + 1] = NAN;
    if (bad_value >= 0)
        v[bad_value * DIM + 1] = NAN;
    ref_kv_append(dev, &c.views, k, v, slots, n, PAGE, n_heads, DIM, SITE_K, SITE_V);
    note_rows(log, &c, &c.views.k, "keys");
    note_rows(log, &c, &c.views.v, "values");
    close_device(log, dev);
    free(k);
    free(v);
    end_cache(&c);
}

static void run_append(struct lab_log *log, int n_tokens) {
    const int64_t slots[] = {5, 6, 7, 1, 11, 9}; /* anywhere in the pool */
    append(log, slots, n_tokens, 1, -1, -1);
}

static void run_heads(struct lab_log *log, int n_heads) {
    const int64_t slots[] = {4, 2};
    append(log, slots, 2, n_heads, -1, -1);
}

static void run_skipped(struct lab_log *log, int n_tokens) {
    const int64_t slots[] = {-1, 4, -3, 8};
    append(log, slots, n_tokens, 2, -1, -1);
}

static void run_fault(struct lab_log *log, int token) {
    const int64_t slots[] = {8, 7, 6};
    append(log, slots, 3, 2, -1, token * 2 + 1);
    append(log, slots, 3, 2, token * 2, -1);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_SMALL, 6, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"store", 1, "a row's exponent and elements", "elements", LAB_SIZES(1, 2, 3, 64), run_store, 0},
    {"signs", 1, "the largest magnitude is of a negative number", "elements", LAB_SIZES(1, 2, 16),
     run_signs, 0},
    {"ties", 1, "halves go to the even integer", "halves", LAB_SIZES(1, 2, 4, 16), run_ties, 0},
    {"fits", 1, "the smallest exponent with which the largest number fits", "sixteenths",
     LAB_SIZES(16, 31, 32, 1016, 2031, 2032, 2036, 2039, 2040, 2041, 2047), run_fits, 0},
    {"powers", 1, "rows of large and of very small numbers", "power of two",
     LAB_SIZES(0, 10, 100, 126, -10, -100, -101, -108, -109, -126, -149), run_powers, 0},
    {"bad", 1, "a row that cannot be stored, and rows of zeros", "case",
     LAB_SIZES(0, 1, 2, 3, 4, 5, 6), run_bad, 0},
    {"places", 1, "pages, positions and heads of each layout", "layout", LAB_SIZES(0, 1, 2),
     run_places, 0},
    {"load", 2, "a row's integers and exponent", "elements", LAB_SIZES(1, 2, 64), run_load, 0},
    {"load places", 2, "pages, positions and heads of each layout", "layout", LAB_SIZES(0, 1, 2),
     run_load_places, 0},
    {"append", 3, "each token goes to its slot", "tokens", LAB_SIZES(1, 2, 3, 6), run_append, 0},
    {"heads", 3, "each head's row goes to its place", "kv heads", LAB_SIZES(1, 2, 3), run_heads, 0},
    {"skipped", 3, "a negative slot is skipped", "tokens", LAB_SIZES(1, 2, 4), run_skipped, 0},
    {"fault", 3, "a NaN is told, with its token, of values and of keys", "token",
     LAB_SIZES(0, 1, 2), run_fault, 0},
    {"serve", 3, "the model's requests over a cache of bfp8", "requests", LAB_SIZES(1, 16),
     run_serve, 30},
};

const struct lab lab = {
    .number = 11,
    .title = "store and load bfp8",
    .served = "your cache of bfp8",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_11_causes,
    .n_causes = N_LAB_11_CAUSES,
};
