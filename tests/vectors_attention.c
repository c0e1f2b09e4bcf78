/* attention.jsonl: caches, and rows of attention over them; states that are merged and finished. */
#include "tests/vectors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PAGE = 16, MOST_POSITIONS = 528, MOST_DIM = 64, MOST_QUERIES = 4 };

/* One KV head's keys and values on the host, as a cache holds them. */
struct cache {
    const char *name;
    enum kv_type type;
    int n, dim;
    float k_scale, v_scale;
    enum distribution keys; /* of what is stored */
    int spoilt;             /* this position's value is a NaN; negative: none */
    void *k, *v;            /* [MOST_POSITIONS, dim] */
    int8_t *k_exponents, *v_exponents;
};

/* A row of queries, or several, over the first positions of a cache. */
struct query {
    int length, n; /* positions, queries */
    float size;    /* of the numbers in q */
    double scale;
    bool sees_all; /* not causal */
    int window;    /* 0: none; else one more than window_left */
    float cap, slope, sink;
    bool masked, has_slope, has_sink, with_state;
};

static struct kv_views views_of(struct test_device *t, const struct cache *c, const void *k,
                                const void *v, const int8_t *ke, const int8_t *ve) {
    struct error err = {""};
    struct kv_views kv;
    size_t bytes = (size_t)kv_type_bytes(c->type) * (size_t)(MOST_POSITIONS * c->dim);
    struct kv_layout l = kv_layout_of(KV_NHD, false, MOST_POSITIONS / PAGE, PAGE, 1, c->dim);
    l.type = c->type;
    l.k_scale = c->k_scale;
    l.v_scale = c->v_scale;
    void *data[2] = {k ? device_put(t, k, bytes) : device_poisoned(t, bytes),
                     v ? device_put(t, v, bytes) : device_poisoned(t, bytes)};
    int8_t *exponents[2] = {
        ke ? device_put(t, ke, MOST_POSITIONS) : device_poisoned(t, MOST_POSITIONS),
        ve ? device_put(t, ve, MOST_POSITIONS) : device_poisoned(t, MOST_POSITIONS)};
    if (kv_views_of(&kv, &l, data[0], data[1], exponents[0], exponents[1], &err))
        fail_msg("%s", err.text);
    return kv;
}

/* Fills the host's arrays with what kv_append stores of random rows. */
static void fill(struct vectors *v, struct cache *c) {
    struct test_device *t = &v->t;
    size_t count = (size_t)(c->n * c->dim), bytes = (size_t)kv_type_bytes(c->type);
    float *x = host_array(2 * count, sizeof *x);
    int64_t slots[MOST_POSITIONS];
    for (int i = 0; i < c->n; i++) {
        slots[i] = i;
        bool uneven = i % 7 == 0 && c->type != KV_FP16; /* which ends at 65504 */
        random_fill(&v->random, x + (size_t)(i * c->dim), (size_t)c->dim,
                    c->keys == NORMAL && uneven ? HEAVY_TAILED : c->keys);
    }
    vector_normal(v, x + count, count);
    struct kv_views kv = views_of(t, c, NULL, NULL, NULL, NULL);
    t->ops->kv_append(t->dev, &kv, device_put(t, x, sizeof *x * count),
                      device_put(t, x + count, sizeof *x * count),
                      device_put(t, slots, sizeof *slots * (size_t)c->n), c->n, PAGE, 1, c->dim, 0,
                      1);
    device_expect_fault(t, -1, 0);
    bytes *= (size_t)(MOST_POSITIONS * c->dim);
    c->k = device_get(t, kv.k.data, bytes);
    c->v = device_get(t, kv.v.data, bytes);
    c->k_exponents = device_get(t, kv.k.exponents, MOST_POSITIONS);
    c->v_exponents = device_get(t, kv.v.exponents, MOST_POSITIONS);
    if (c->spoilt >= 0)
        kv_store_bits(c->v, c->type, c->spoilt * c->dim + 1, 0x7f);
    free(x);
    device_clear(t);
}

static void put_rows(struct vectors *v, const struct cache *c, const char *name, const void *data) {
    int n = c->n * c->dim;
    if (c->type == KV_BFP16) {
        vector_i16(v, name, data, (size_t)n);
    } else if (c->type == KV_BFP8) {
        vector_i8(v, name, data, (size_t)n);
    } else {
        int32_t *bits = host_array((size_t)n, sizeof *bits);
        for (int i = 0; i < n; i++)
            bits[i] = (int32_t)kv_load_bits(data, c->type, i);
        vector_i32(v, name, bits, (size_t)n);
        free(bits);
    }
}

static void put_cache(struct vectors *v, const struct cache *c) {
    vector_begin(v, "cache");
    vector_text(v, "name", c->name);
    vector_text(v, "type", kv_type_name(c->type));
    vector_int(v, "dim", c->dim);
    put_rows(v, c, "k", c->k);
    put_rows(v, c, "v", c->v);
    if (kv_type_has_exponents(c->type)) {
        vector_i8(v, "ke", c->k_exponents, (size_t)c->n);
        vector_i8(v, "ve", c->v_exponents, (size_t)c->n);
    } else {
        vector_float(v, "k_scale", c->k_scale);
        vector_float(v, "v_scale", c->v_scale);
    }
    vector_end(v);
}

/* ---- a call of attend --------------------------------------------------------------------------
 */

struct call {
    const struct cache *cache;
    struct query query;
    float q[MOST_QUERIES * MOST_DIM];
    uint8_t mask[MOST_QUERIES * MOST_POSITIONS]; /* [n, length] */
};

struct result {
    float *y, *lse, *m, *l;      /* device */
    struct attention_plan *plan; /* until the device is done */
};

static struct attention_variant variant_of(struct test_device *t, const struct call *c) {
    static const int64_t offset = 0;
    const struct query *a = &c->query;
    struct attention_variant v = attention_variant_causal();
    v.causal = !a->sees_all;
    v.window_left = a->window - 1;
    v.soft_cap = a->cap;
    if (a->masked) {
        v.mask_form = MASK_BYTES;
        v.mask = device_put(t, c->mask, (size_t)(a->n * a->length));
        v.mask_offsets = device_put(t, &offset, sizeof offset);
    }
    if (a->has_slope)
        v.alibi_slopes = device_put(t, &a->slope, sizeof a->slope);
    if (a->has_sink)
        v.sinks = device_put(t, &a->sink, sizeof a->sink);
    return v;
}

static struct result attend(struct test_device *t, const struct call *c) {
    const struct query *a = &c->query;
    int dim = c->cache->dim, n_pages = (a->length + PAGE - 1) / PAGE;
    int32_t qo[2] = {0, a->n}, indptr[2] = {0, n_pages}, pages[MOST_POSITIONS / PAGE];
    int32_t last = a->length ? (a->length - 1) % PAGE + 1 : 1;
    struct error err = {""};
    for (int i = 0; i < n_pages; i++)
        pages[i] = i;
    struct paged_batch batch = {1, PAGE, MOST_POSITIONS / PAGE, qo, indptr, pages, &last};
    struct attention_shape shape = {1, 1, dim, a->scale, c->cache->type};
    struct kv_views kv = views_of(t, c->cache, c->cache->k, c->cache->v, c->cache->k_exponents,
                                  c->cache->v_exponents);
    struct attention_variant v = variant_of(t, c);
    size_t rows = sizeof(float) * (size_t)a->n;
    struct result r = {.y = device_poisoned(t, rows * (size_t)dim)};
    if (a->with_state) {
        v.m = r.m = device_poisoned(t, rows);
        v.l = r.l = device_poisoned(t, rows);
    } else {
        v.lse = r.lse = device_poisoned(t, rows);
    }
    r.plan = t->ops->attention_plan_new(t->dev, &err);
    if (!r.plan || t->ops->attention_plan(t->dev, r.plan, &batch, &shape, &v, &err))
        fail_msg("%s", err.text);
    t->ops->attend(t->dev, r.y, device_put(t, c->q, rows * (size_t)dim), &kv, r.plan, &v, 2);
    return r;
}

/* ---- lines -------------------------------------------------------------------------------------
 */

static void put_query(struct vectors *v, const struct call *c, int i) {
    const struct query *a = &c->query;
    vector_begin(v, "attention");
    vector_text(v, "cache", c->cache->name);
    vector_int(v, "length", a->length);
    vector_int(v, "at", a->length - a->n + i);
    vector_double(v, "scale", a->scale);
    vector_floats(v, "q", c->q + i * c->cache->dim, (size_t)c->cache->dim);
    if (a->sees_all)
        vector_int(v, "causal", 0);
    if (a->window)
        vector_int(v, "window", a->window - 1);
    if (a->cap > 0)
        vector_float(v, "cap", a->cap);
    if (a->has_slope)
        vector_float(v, "slope", a->slope);
    if (a->has_sink)
        vector_float(v, "sink", a->sink);
    if (a->masked) {
        char text[MOST_POSITIONS + 1] = "";
        for (int j = 0; j < a->length; j++)
            text[j] = c->mask[i * a->length + j] ? '1' : '0';
        vector_text(v, "mask", text);
    }
}

static void put_result(struct vectors *v, const struct call *c, const struct result *r, int i) {
    struct test_device *t = &v->t;
    int dim = c->cache->dim, n = c->query.n;
    float *y = device_get(t, r->y, sizeof *y * (size_t)(n * dim));
    vector_floats(v, r->m ? "o" : "y", y + i * dim, (size_t)dim);
    free(y);
    const float *const sums[3] = {r->lse, r->m, r->l};
    for (int k = 0; k < 3; k++) {
        static const char *const names[3] = {"lse", "m", "l"};
        float *x = sums[k] ? device_get(t, sums[k], sizeof *x * (size_t)n) : NULL;
        if (x)
            vector_float(v, names[k], x[i]);
        free(x);
    }
}

/* Every query's line. A call with a fault has one query. */
static void attention(struct vectors *v, const struct cache *cache, struct query a) {
    struct call c = {.cache = cache, .query = a};
    vector_normal(v, c.q, (size_t)(a.n * cache->dim));
    for (int i = 0; i < a.n * cache->dim; i++)
        c.q[i] *= a.size;
    for (int i = 0; i < a.n * a.length; i++)
        c.mask[i] = random_int(&v->random, 0, 2) > 0 && i / a.length != 2;
    struct result r = attend(&v->t, &c);
    for (int i = 0; i < a.n; i++) {
        put_query(v, &c, i);
        if (!vector_fault(v))
            put_result(v, &c, &r, i);
        vector_end(v);
    }
    v->t.ops->attention_plan_free(v->t.dev, r.plan);
    device_clear(&v->t);
}

/* ---- which ones --------------------------------------------------------------------------------
 */

static void lengths(struct vectors *v, const struct cache *c) {
    static const int all[] = {1, 2, 255, 256, 257, 512, 513};
    for (int i = 0; i < 7; i++)
        attention(v, c, (struct query){all[i], i == 1 ? 2 : 1, 1.5f, .scale = i % 2 ? 0.5 : 0.37});
    attention(v, c, (struct query){513, 4, 1, .scale = 0.3, .with_state = true});
    attention(v, c, (struct query){2, 4, 1, .scale = 0.3}); /* two see nothing, */
    attention(v, c, (struct query){2, 4, 1, .scale = 0.3, .sink = 0.7f, .has_sink = true});
    attention(v, c,
              (struct query){0, 1, 1, .scale = 0.3, .with_state = true}); /* nothing is there */
    attention(v, c, (struct query){300, 1, 300, .scale = 1});             /* large scores */
    attention(v, c, (struct query){300, 1, 1e-30f, .scale = 0.5});
    attention(v, c, (struct query){300, 1, 0x1p-90f, .scale = 0.5}); /* below 2^-100 */
}

static void variants(struct vectors *v, const struct cache *c) {
    const struct query all[] = {
        {257, 2, 1, .scale = 0.5, .window = 1},
        {300, 2, 1, .scale = 0.5, .window = 46},
        {300, 1, 1, .scale = 0.5, .window = 257},
        {270, 2, 1, .scale = 0.5, .sees_all = true},
        {270, 2, 1, .scale = 0.5, .sees_all = true, .window = 10},
        {20, 4, 1, .scale = 0.5, .masked = true},
        {260, 3, 1, .scale = 0.5, .masked = true, .window = 31},
        {40, 4, 2, .scale = 0.5, .masked = true, .sees_all = true, .sink = -1, .has_sink = true},
        {257, 2, 3, .scale = 0.7, .cap = 5, .with_state = true},
        {257, 1, 60, .scale = 1, .cap = 30},
        {257, 2, 1, .scale = 0.5, .slope = 0.25f, .has_slope = true},
        {300, 1, 1, .scale = 1.0 / 3, .slope = -0.0031f, .has_slope = true, .with_state = true},
        {257, 2, 2, .scale = 1.0 / 3, .cap = 3, .slope = 0.01f, .has_slope = true,
         .with_state = true},
        {257, 4, 20, .scale = 1.0 / 3, .cap = 200, .with_state = true},
        {257, 4, 20, .scale = 1.0 / 3, .slope = 0.01f, .has_slope = true, .with_state = true},
        {257, 2, 1, .scale = 0.5, .sink = 2.5f, .has_sink = true},
        {257, 1, 1, .scale = 0.5, .sink = -50, .has_sink = true},
        {257, 1, 1, .scale = 0.5, .sink = 150, .has_sink = true},
        {258, 2, 2, 0.5, true, 200, 4, 0.05f, 0.5f, true, true, true, false},
        /* faults */
        {9, 1, INFINITY, .scale = 0.5},
        {9, 1, 1, .scale = -0.5},
        {9, 1, 1, .scale = NAN},
        {9, 1, 1e38f, .scale = 1e38},
        {9, 1, 1, .scale = 0.5, .sink = INFINITY, .has_sink = true},
        {9, 1, 1, .scale = 0.5, .slope = NAN, .has_slope = true},
        {9, 1, 1, .scale = -0.5, .cap = 2}, /* none: the scores are made first */
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        attention(v, c, all[i]);
}

static void merge(struct vectors *v, float m, float l, float with_m, float with_l) {
    enum { DIM = 4 };
    struct test_device *t = &v->t;
    float o[DIM] = {0}, with_o[DIM] = {0};
    if (l > 0)
        vector_normal(v, o, DIM);
    if (with_l > 0)
        vector_normal(v, with_o, DIM);
    struct attention_state to = {device_put(t, o, sizeof o), device_put(t, &m, sizeof m),
                                 device_put(t, &l, sizeof l)};
    struct attention_state with = {device_put(t, with_o, sizeof o),
                                   device_put(t, &with_m, sizeof m),
                                   device_put(t, &with_l, sizeof l)};
    float *y = device_poisoned(t, sizeof o), *lse = device_poisoned(t, sizeof *lse);
    t->ops->merge_states(t->dev, &to, &with, 1, DIM);
    t->ops->finish_states(t->dev, y, lse, LSE_2, &to, 0.75f, 1, DIM);
    vector_begin(v, "merge");
    vector_float(v, "m", m);
    vector_float(v, "l", l);
    vector_floats(v, "o", o, DIM);
    vector_float(v, "with_m", with_m);
    vector_float(v, "with_l", with_l);
    vector_floats(v, "with_o", with_o, DIM);
    const struct {
        const char *name;
        const float *x;
        size_t n;
    } out[] = {{"merged_m", to.m, 1},
               {"merged_l", to.l, 1},
               {"merged_o", to.o, DIM},
               {"y_times_0.75", y, DIM},
               {"lse_2", lse, 1}};
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) {
        float *x = device_get(t, out[i].x, sizeof *x * out[i].n);
        vector_floats(v, out[i].name, x, out[i].n);
        free(x);
    }
    vector_end(v);
    device_clear(t);
}

void vectors_attention(struct vectors *v, const char *folder) {
    (void)folder;
    struct cache all[] = {
        {"bfp16", KV_BFP16, 513, 4, 1, 1, NORMAL, -1, NULL, NULL, NULL, NULL},
        {"wide", KV_BFP16, 12, MOST_DIM, 1, 1, NORMAL, -1, NULL, NULL, NULL, NULL},
        {"bfp8", KV_BFP8, 260, 4, 1, 1, NORMAL, -1, NULL, NULL, NULL, NULL},
        {"e4m3", KV_E4M3, 260, 4, 0.5f, 3.3f, NORMAL, 7, NULL, NULL, NULL, NULL},
        {"e5m2", KV_E5M2, 40, 4, 1, 0.3f, NORMAL, -1, NULL, NULL, NULL, NULL},
        {"fp16", KV_FP16, 40, 4, 1, 1, NORMAL, -1, NULL, NULL, NULL, NULL},
        {"bf16", KV_BF16, 40, 4, 1, 1, NORMAL, -1, NULL, NULL, NULL, NULL},
        {"tiny", KV_BFP16, 9, 4, 1, 1, TINY, -1, NULL, NULL, NULL, NULL},
        {"huge", KV_BFP16, 9, 4, 1, 1, HUGE_VALUES, -1, NULL, NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct cache *c = &all[i];
        fill(v, c);
        put_cache(v, c);
        attention(v, c, (struct query){c->spoilt >= 0 ? c->spoilt : c->n, 1, 1, .scale = 0.5});
        attention(v, c, (struct query){c->n, 1, 1, .scale = 0.2, .window = 6});
        attention(v, c, (struct query){c->n, 1, 40, .scale = 0.1});
        if (c->keys == HUGE_VALUES) /* m is infinite, its unit is not: a fault */
            attention(v, c, (struct query){c->n, 1, 1, .scale = 1e10});
        if (i == 0) {
            lengths(v, c);
            variants(v, c);
        }
        if (c->dim == MOST_DIM)
            for (int k = 0; k < 4; k++)
                attention(v, c, (struct query){c->n, 4, 1, .scale = 0.125});
        free(c->k);
        free(c->v);
        free(c->k_exponents);
        free(c->v_exponents);
    }
    merge(v, 1, 2.345f, 0.5f, 3.789f);
    merge(v, -7, 201.7f, -6.5f, 1.3f);
    merge(v, 7, 1.7f, 6.4f, 99.3f);
    merge(v, 3, 2, 3, 1.5f);
    merge(v, -INFINITY, 0, 0.5f, 3);
    merge(v, 1, 2, -INFINITY, 0);
    merge(v, -INFINITY, 0, -INFINITY, 0);
    merge(v, 120, 2, -30, 7);
    merge(v, -90, 2, 5, 7);
    for (int i = 0; i < 20; i++) {
        float x[4];
        vector_normal(v, x, 4);
        merge(v, x[0], 1 + 9 * fabsf(x[1]), x[2], 1 + 9 * fabsf(x[3]));
    }
}
