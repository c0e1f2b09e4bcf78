/*
 * Phase 9: layouts and variants. The last layer's queries, keys and values of a real text, once
 * more: the first table has the cache in every layout that FlashInfer and vLLM define, and the same
 * bits come out; the second changes what a query sees and what happens to a score.
 */
#include "scheduler/kv_contiguous.h"
#include "scheduler/pass.h"
#include "tutorials/common/paged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char sentence[] = "The Roman Empire was ruled from the city of Rome for centuries. ";

enum { SENTENCES = 24, PAGE = 16, REPEATS = 5, FIRST_TOKENS = 64 };

/* ---- what the model computes ----------------------------------------------------------------- */

/* Attention of the last layer over a text: its inputs and its result. Host: q, want; the cache is
 * on the device. */
struct lesson {
    struct demo *demo;
    struct kv_cache *cache;
    int n;                 /* tokens */
    float *q;              /* [n, n_heads, head_dim] */
    float *want;           /* [n, n_heads, head_dim] */
    float *on_q, *y, *lse; /* device: q; room for a result; [n, n_heads] */
    struct attention_plan *plan;
    struct kv_layout layout;
    struct error err;
};

static size_t row_bytes(const struct lesson *l) {
    const struct model_config *c = &l->demo->model.config;
    return sizeof(float) * (size_t)c->n_heads * (size_t)c->head_dim;
}

static void keep_tensor(void *context, enum tensor_id id, int layer, const float *x, int n_rows,
                        int n_cols) {
    struct lesson *l = context;
    size_t bytes = sizeof *x * (size_t)n_rows * (size_t)n_cols;
    if (layer != l->demo->model.config.n_layers - 1)
        return;
    if (id == TENSOR_Q_ROTATED)
        l->demo->dev->ops->download(l->demo->dev, l->q, x, bytes);
    else if (id == TENSOR_ATTENTION)
        l->demo->dev->ops->download(l->demo->dev, l->want, x, bytes);
}

/* One pass over the text, with a contiguous cache: NHD, pages of 16 in order. */
static int run_model(struct lesson *l, const int32_t *ids, struct error *err) {
    const struct sampling_options greedy = {.top_p = 1};
    struct generator g = l->demo->generator;
    struct probe probe = {keep_tensor, l};
    struct sequence s;
    if (sequence_start(&s, 0, &greedy, err))
        return -1;
    g.probe = &probe;
    struct pass_part whole = {.sequence = &s, .cache = l->cache, .end = l->n};
    int result = sequence_add_prompt(&s, ids, l->n, 1, err) || pass_run(&g, &whole, 1, err);
    sequence_end(&s);
    return result ? -1 : 0;
}

static int plan_pages(struct lesson *l, struct error *err) {
    const struct model_config *c = &l->demo->model.config;
    const struct ops *ops = l->demo->dev->ops;
    struct attention_shape shape = {c->n_heads, c->n_kv_heads, c->head_dim, 1 / sqrt(c->head_dim),
                                    KV_BFP16};
    int32_t qo[] = {0, l->n}, kv[] = {0, l->layout.n_pages}, last[] = {(l->n - 1) % PAGE + 1};
    int32_t *pages = calloc((size_t)l->layout.n_pages, sizeof *pages);
    if (!pages)
        return error_set(err, "out of memory");
    for (int i = 0; i < l->layout.n_pages; i++)
        pages[i] = i;
    struct paged_batch batch = {1, PAGE, l->layout.n_pages, qo, kv, pages, last};
    l->plan = ops->attention_plan_new(l->demo->dev, err);
    int result =
        l->plan ? ops->attention_plan(l->demo->dev, l->plan, &batch, &shape, NULL, err) : -1;
    free(pages);
    return result;
}

static void lesson_end(struct lesson *l) {
    struct device *dev = l->demo->dev;
    size_t bytes = row_bytes(l) * (size_t)l->n;
    dev->ops->attention_plan_free(dev, l->plan);
    dev->ops->free(dev, l->on_q, bytes);
    dev->ops->free(dev, l->y, bytes);
    dev->ops->free(dev, l->lse, bytes);
    kv_cache_free(l->cache);
    free(l->q);
    free(l->want);
}

static int lesson_start(struct lesson *l, struct demo *demo, struct error *err) {
    const struct model_config *c = &demo->model.config;
    char text[SENTENCES * sizeof sentence] = "";
    int32_t *ids = NULL;
    size_t n;
    for (int i = 0; i < SENTENCES; i++)
        strcat(text, sentence);
    *l = (struct lesson){.demo = demo};
    if (demo_encode_prompt(demo, text, &ids, &n, err))
        return -1;
    l->n = (int)n;
    size_t bytes = row_bytes(l) * n;
    int n_pages = (l->n + PAGE - 1) / PAGE;
    l->layout = kv_layout_of(KV_NHD, false, n_pages, PAGE, c->n_kv_heads, c->head_dim);
    l->q = malloc(bytes);
    l->want = malloc(bytes);
    l->on_q = demo->dev->ops->alloc(demo->dev, bytes, "the queries", err);
    l->y = demo->dev->ops->alloc(demo->dev, bytes, "a result", err);
    l->lse = demo->dev->ops->alloc(demo->dev, bytes, "a result", err);
    l->cache = kv_static_new(&demo->model, n_pages * PAGE, err);
    int result = -1;
    if (!l->q || !l->want)
        error_set(err, "out of memory");
    else if (l->on_q && l->y && l->lse && l->cache)
        result = run_model(l, ids, err) || plan_pages(l, err) ? -1 : 0;
    free(ids);
    if (!result)
        demo->dev->ops->upload(demo->dev, l->on_q, l->q, bytes);
    return result;
}

/* Attention over a cache in any layout; got: host memory for the result. Returns the milliseconds
 * of a call, or -1 with err set. */
static double attend(struct lesson *l, const struct kv_views *kv,
                     const struct attention_variant *variant, float *got, struct error *err) {
    struct device *dev = l->demo->dev;
    struct fault fault;
    double begin = 0;
    for (int i = 0; i <= REPEATS; i++) { /* the first one warms up */
        begin = i == 1 ? clock_now() : begin;
        dev->ops->attend(dev, l->y, l->on_q, kv, l->plan, variant, 0);
        if (dev->ops->sync(dev, &fault, err))
            return -1;
    }
    double ms = 1e3 * (clock_now() - begin) / REPEATS;
    dev->ops->download(dev, got, l->y, row_bytes(l) * (size_t)l->n);
    return dev->ops->sync(dev, &fault, err) ? -1 : ms;
}

/* ---- layouts --------------------------------------------------------------------------------- */

struct lesson_layout {
    const char *name, *keys, *values;
    enum kv_order order;
    bool one_tensor;
};

/* The cache of the model as views. */
static struct kv_views own_views(const struct lesson *l) {
    struct kv_views kv;
    struct error err;
    const struct kv_layer *layer = &l->cache->layers[l->demo->model.config.n_layers - 1];
    kv_views_of(&kv, &l->layout, layer->k, layer->v, layer->k_exponents, layer->v_exponents, &err);
    return kv;
}

/* Converts the cache to the layout, in new memory, and attends over it. */
static double attend_in(struct lesson *l, const struct lesson_layout *to, float *got,
                        struct error *err) {
    const struct ops *ops = l->demo->dev->ops;
    struct device *dev = l->demo->dev;
    struct kv_layout layout = l->layout;
    struct kv_views from = own_views(l), kv;
    struct attention_variant causal = attention_variant_causal();
    layout.order = to->order;
    layout.one_tensor = to->one_tensor;
    size_t bytes[2] = {sizeof(int16_t) * (size_t)kv_layout_elements(&layout),
                       (size_t)kv_layout_exponents(&layout)};
    void *memory[4] = {NULL};
    double ms = -1;
    int n = to->one_tensor ? 2 : 4, got_all = 0;
    for (int i = 0; i < n; i++)
        got_all += (memory[i] = ops->alloc(dev, bytes[i % 2], "a cache", err)) != NULL;
    if (got_all == n &&
        !kv_views_of(&kv, &layout, memory[0], memory[2], memory[1], memory[3], err)) {
        ops->kv_convert(dev, &kv.k, &from.k, layout.n_pages, PAGE, layout.n_kv_heads,
                        layout.head_dim);
        ops->kv_convert(dev, &kv.v, &from.v, layout.n_pages, PAGE, layout.n_kv_heads,
                        layout.head_dim);
        ms = attend(l, &kv, &causal, got, err);
    }
    for (int i = 0; i < n; i++)
        ops->free(dev, memory[i], bytes[i % 2]);
    return ms;
}

static int show_layouts(struct lesson *l, struct error *err) {
    static const struct lesson_layout layouts[] = {
        {"NHD", "[pages, 16, heads, dim]", "the same", KV_NHD, false},
        {"HND", "[pages, heads, 16, dim]", "the same", KV_HND, false},
        {"NHD, one tensor", "[pages, 2, 16, heads, dim]", "", KV_NHD, true},
        {"HND, one tensor", "[pages, 2, heads, 16, dim]", "", KV_HND, true},
        {"vLLM", "[pages, heads, dim/8, 16, 8]", "[pages, heads, dim, 16]", KV_VLLM, false}};
    static const struct column columns[] = {{"layout", "layout", -1, 15},
                                            {"keys", "keys", -1, 28},
                                            {"values", "values", -1, 23},
                                            {"ms", "ms", 2, 6},
                                            {"bits", "bits", -1, 11}};
    size_t bytes = row_bytes(l) * (size_t)l->n;
    float *got = malloc(bytes);
    int result = got ? 0 : error_set(err, "out of memory");
    demo_table_begin(l->demo, "layouts", "Phase 9: the last layer's attention over every layout",
                     columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts && !result; i++) {
        double ms = attend_in(l, &layouts[i], got, err);
        bool same = ms >= 0 && !memcmp(got, l->want, bytes);
        if (ms >= 0)
            demo_table_row(l->demo,
                           json_pack("[sssfs]", layouts[i].name, layouts[i].keys, layouts[i].values,
                                     ms, same ? "the model's" : "others"));
        if (ms < 0)
            result = -1;
        else if (!same)
            result =
                error_set(err, "%s: attention has other bits than the model's", layouts[i].name);
    }
    free(got);
    return demo_table_end(l->demo, result);
}

/* ---- variants -------------------------------------------------------------------------------- */

/* Whether a query sees a position, as a mask: causal, but the first tokens all see each other. */
static bool prefix_sees(int query, int position) {
    return position <= query || (query < FIRST_TOKENS && position < FIRST_TOKENS);
}

static bool causal_sees(int query, int position) {
    return position <= query;
}

/* A bit for each pair, on the device, then its offset; NULL with err set. */
static uint8_t *mask_of(struct lesson *l, bool (*sees)(int, int), size_t *bytes,
                        struct error *err) {
    size_t n = (size_t)l->n, packed = (n * n + 7) / 8;
    const struct ops *ops = l->demo->dev->ops;
    uint8_t *pairs = malloc(n * n), *bits = calloc(1, packed + 16);
    *bytes = (packed + 7) / 8 * 8 + sizeof(int64_t);
    uint8_t *on_device = ops->alloc(l->demo->dev, *bytes, "a mask", err);
    if (pairs && bits && on_device) {
        for (size_t i = 0; i < n * n; i++)
            pairs[i] = sees((int)(i / n), (int)(i % n));
        packbits(bits, pairs, n * n, BITS_LITTLE);
        ops->upload(l->demo->dev, on_device, bits, *bytes); /* the offset behind it is 0 */
    } else if (on_device) {
        error_set(err, "out of memory");
        ops->free(l->demo->dev, on_device, *bytes);
        on_device = NULL;
    }
    free(pairs);
    free(bits);
    return on_device;
}

/* One number for each head, on the device. */
static float *heads_of(struct lesson *l, float x, struct error *err) {
    int n = l->demo->model.config.n_heads;
    float host[1024], *on_device;
    for (int i = 0; i < n && i < 1024; i++)
        host[i] = x;
    on_device = l->demo->dev->ops->alloc(l->demo->dev, sizeof *host * (size_t)n, "heads", err);
    if (on_device)
        l->demo->dev->ops->upload(l->demo->dev, on_device, host, sizeof *host * (size_t)n);
    return on_device;
}

struct lesson_variant {
    const char *name;
    int window_left;
    float soft_cap, slope, sink; /* 0: none */
    bool (*sees)(int, int);      /* NULL: no mask */
    int seen;                    /* positions that the last token sees; 0: all */
};

/* How far y is from the model's own result, in percent of its size. */
static double change_of(const struct lesson *l, const float *y) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < (size_t)l->n * row_bytes(l) / sizeof *y; i++) {
        difference += ((double)y[i] - l->want[i]) * ((double)y[i] - l->want[i]);
        size += (double)l->want[i] * l->want[i];
    }
    return 100 * sqrt(difference / size);
}

static int show_variant(struct lesson *l, const struct lesson_variant *x, struct error *err) {
    const struct ops *ops = l->demo->dev->ops;
    struct device *dev = l->demo->dev;
    struct kv_views kv = own_views(l);
    struct fault fault;
    size_t heads = (size_t)l->demo->model.config.n_heads, mask_bytes = 0, n = (size_t)l->n;
    float *got = malloc(row_bytes(l) * n), lse = 0;
    uint8_t *mask = x->sees ? mask_of(l, x->sees, &mask_bytes, err) : NULL;
    float *slopes = x->slope ? heads_of(l, x->slope, err) : NULL;
    float *sinks = x->sink ? heads_of(l, x->sink, err) : NULL;
    struct attention_variant v = {.causal = true,
                                  .window_left = x->window_left,
                                  .soft_cap = x->soft_cap,
                                  .mask_form = mask ? MASK_BITS : MASK_NONE,
                                  .mask = mask,
                                  .alibi_slopes = slopes,
                                  .sinks = sinks,
                                  .lse = l->lse};
    if (mask)
        v.mask_offsets = (const int64_t *)(mask + mask_bytes - sizeof(int64_t));
    int result = got ? 0 : error_set(err, "out of memory");
    if ((x->sees && !mask) || (x->slope && !slopes) || (x->sink && !sinks))
        result = -1;
    if (!result && attend(l, &kv, &v, got, err) < 0)
        result = -1;
    if (!result) {
        ops->download(dev, &lse, l->lse + (n - 1) * heads, sizeof lse);
        result = ops->sync(dev, &fault, err);
    }
    if (!result)
        demo_table_row(
            l->demo,
            json_pack("[siffs]", x->name, x->seen ? x->seen : l->n, (double)lse, change_of(l, got),
                      memcmp(got, l->want, row_bytes(l) * n) ? "others" : "the model's"));
    ops->free(dev, mask, mask_bytes);
    ops->free(dev, slopes, sizeof(float) * heads);
    ops->free(dev, sinks, sizeof(float) * heads);
    free(got);
    return result;
}

static int show_variants(struct lesson *l, struct error *err) {
    static const struct lesson_variant variants[] = {
        {"causal", -1, 0, 0, 0, NULL, 0},
        {"causal, as a mask of bits", -1, 0, 0, 0, causal_sees, 0},
        {"the first 64 see each other", -1, 0, 0, 0, prefix_sees, 0},
        {"window of 64", 63, 0, 0, 0, NULL, 64},
        {"soft cap 5", -1, 5, 0, 0, NULL, 0},
        {"ALiBi, slope 0.05", -1, 0, 0.05f, 0, NULL, 0},
        {"a sink of 2", -1, 0, 0, 2, NULL, 0}};
    static const struct column columns[] = {{"variant", "variant", -1, 27},
                                            {"seen", "the last token sees", 0, 0},
                                            {"lse", "log of its sum", 4, 0},
                                            {"change", "change of all %", 2, 0},
                                            {"bits", "bits", -1, 11}};
    demo_table_begin(l->demo, "variants", "What a query sees, and what happens to a score", columns,
                     sizeof columns / sizeof *columns);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (show_variant(l, &variants[i], err))
            return -1;
    return demo_table_end(l->demo, 0);
}

static int tables(struct demo *demo, struct error *err) {
    struct lesson l;
    struct fingerprint all;
    int result = lesson_start(&l, demo, err) || show_layouts(&l, err) || show_variants(&l, err) ||
                 fingerprint_start(&all, err);
    if (!result) {
        fingerprint_add_logits(&all, l.want, (int)(row_bytes(&l) / sizeof(float)) * l.n);
        fingerprint_add_sequence(&demo->run, fingerprint_value(&all));
        fingerprint_end(&all);
    }
    lesson_end(&l);
    return result ? -1 : 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 9,
        .title = "layouts and variants",
        .about = "Attention over caches of any layout, with any mask and score.",
        .caches = paged_caches,
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
        .fingerprint = 0x9d5366b1f7378651,
    };
    return demo_main(argc, argv, &phase);
}
