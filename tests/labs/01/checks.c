/* Lab 1: append to and grow a contiguous cache. */
#include "ref/ref.h"
#include "scheduler/kv_contiguous.h"
#include "tests/labs/01/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 2, DIM = 4, SITE_K = 7, SITE_V = 8, LIMIT = 300, SPARE = 3 };

static struct device *open_device(struct lab_log *log) {
    struct error err;
    struct device *dev = ref_ops.open(&(struct device_options){1}, &err);
    lab_int(log, dev != NULL, "the device opens");
    if (!dev)
        exit(2);
    return dev;
}

/* ---- step 1 ---------------------------------------------------------------------------------- */

struct appended {
    struct device *dev;
    struct kv_layer layer;
    int n_tokens, n_slots;
    float *k, *v;
    int64_t *slots;
};

/* Slots that nothing has written hold a value of their own. */
static struct appended appending(struct lab_log *log, int n_tokens, int n_slots) {
    struct error err;
    struct random r = {(uint64_t)n_tokens};
    size_t n = (size_t)n_tokens * HEADS * DIM;
    struct appended a = {.dev = open_device(log), .n_tokens = n_tokens, .n_slots = n_slots};
    a.k = calloc(n, sizeof *a.k);
    a.v = calloc(n, sizeof *a.v);
    a.slots = calloc((size_t)n_tokens, sizeof *a.slots);
    if (!a.k || !a.v || !a.slots ||
        kv_layer_alloc(&a.layer, a.dev, n_slots, HEADS, DIM, KV_BFP16, &err))
        exit(2);
    random_fill(&r, a.k, n, NORMAL);
    random_fill(&r, a.v, n, NORMAL);
    for (size_t i = 0; i < n; i++) { /* each row has an exponent of its own */
        a.k[i] = ldexpf(a.k[i], 3 * (int)(i / DIM));
        a.v[i] = ldexpf(a.v[i], -3 * (int)(i / DIM));
    }
    for (int i = 0; i < n_tokens; i++)
        a.slots[i] = i + 1;
    for (int i = 0; i < n_slots * HEADS * DIM; i++)
        a.layer.k[i] = a.layer.v[i] = 7777;
    memset(a.layer.k_exponents, 99, (size_t)n_slots * HEADS);
    memset(a.layer.v_exponents, 99, (size_t)n_slots * HEADS);
    return a;
}

static void note_side(struct lab_log *log, const char *side, int slot, const int16_t *data,
                      const int8_t *exponents) {
    for (int head = 0; head < HEADS; head++) {
        int32_t elements[DIM];
        int row = slot * HEADS + head;
        lab_int(log, exponents[row], "exponent of %s in slot %d, head %d", side, slot, head);
        for (int d = 0; d < DIM; d++)
            elements[d] = data[row * DIM + d];
        lab_ints(log, elements, DIM, "element", 0, "%s in slot %d, head %d", side, slot, head);
    }
}

static void append_and_note(struct lab_log *log, struct appended *a, int page_size) {
    struct fault fault = {-1, -1};
    struct kv_views views = kv_layer_views(&a->layer, KV_BFP16, page_size, HEADS, DIM);
    ref_kv_append(a->dev, &views, a->k, a->v, a->slots, a->n_tokens, page_size, HEADS, DIM, SITE_K,
                  SITE_V);
    for (int slot = 0; slot < a->n_slots; slot++) {
        note_side(log, "k", slot, a->layer.k, a->layer.k_exponents);
        note_side(log, "v", slot, a->layer.v, a->layer.v_exponents);
    }
    a->dev->ops->sync(a->dev, &fault, NULL);
    lab_int(log, fault.site, "site of the fault (7: k, 8: v)");
    lab_int(log, fault.token, "token of the fault");
    kv_layer_free(&a->layer, a->dev, a->n_slots, HEADS, DIM, KV_BFP16);
    a->dev->ops->close(a->dev);
    free(a->k);
    free(a->v);
    free(a->slots);
}

static void run_append(struct lab_log *log, int n_tokens) {
    struct appended a = appending(log, n_tokens, n_tokens + SPARE);
    append_and_note(log, &a, 1);
}

static void run_padding(struct lab_log *log, int n_tokens) {
    struct appended a = appending(log, n_tokens, n_tokens + SPARE);
    for (int i = 0; i < n_tokens; i += 2)
        a.slots[i] = -1;
    append_and_note(log, &a, 1);
}

static void run_pages(struct lab_log *log, int page_size) {
    struct appended a = appending(log, 5, 4 * page_size + 4);
    for (int i = 0; i < 5; i++)
        a.slots[i] = (i * 3 + 1) % (4 * page_size);
    a.n_slots = 4 * page_size + 4;
    append_and_note(log, &a, page_size);
}

static void run_fault(struct lab_log *log, int which) {
    struct appended a = appending(log, 3, 3 + SPARE);
    (which == 1 ? a.k : a.v)[(1 * HEADS + 1) * DIM + 2] = which == 1 ? NAN : -INFINITY;
    append_and_note(log, &a, 1);
}

/* ---- steps 2 and 3 --------------------------------------------------------------------------- */

static struct model model_of(struct device *dev) {
    return (struct model){.dev = dev,
                          .config = {.n_layers = LAYERS, .n_kv_heads = HEADS, .head_dim = DIM}};
}

static void note_cache(struct lab_log *log, const struct kv_cache *c, const char *when) {
    lab_int(log, c->capacity, "capacity %s", when);
    lab_int(log, (long long)c->bytes, "bytes %s", when);
    lab_int(log, (long long)c->dev->bytes, "device memory in use %s", when);
}

static void note_reserve(struct lab_log *log, struct kv_cache *c, int n, const char *which) {
    struct error err = {""};
    int result = c->reserve(c, n, &err);
    lab_int(log, result, "reserve of %s", which);
    if (result)
        lab_int(log, err.text[0] != 0, "reserve of %s sets err", which);
    note_cache(log, c, "after reserve");
}

static void end(struct lab_log *log, struct kv_cache *cache, struct device *dev) {
    kv_cache_free(cache);
    kv_cache_free(NULL);
    lab_int(log, (long long)dev->bytes, "device memory in use after kv_cache_free");
    dev->ops->close(dev);
}

static void run_static(struct lab_log *log, int capacity) {
    struct error err = {""};
    struct device *dev = open_device(log);
    struct model model = model_of(dev);
    struct kv_cache *c = kv_static_new(&model, capacity, &err);
    lab_int(log, c && c->n_layers == LAYERS && c->n_kv_heads == HEADS && c->head_dim == DIM,
            "the cache has the model's layers, heads and head_dim");
    if (!c)
        exit(2);
    note_cache(log, c, "of a static cache");
    note_reserve(log, c, 1, "one position");
    note_reserve(log, c, capacity, "all positions");
    note_reserve(log, c, capacity + 1, "one position too many");
    end(log, c, dev);
}

static int allocations_left;

static void *scarce_alloc(struct device *dev, size_t bytes, const char *what, struct error *err) {
    if (allocations_left-- > 0)
        return ref_ops.alloc(dev, bytes, what, err);
    error_set(err, "no memory for %s", what);
    return NULL;
}

/* The device gives memory so often, and then no more: a layer asks four times. */
static void run_no_memory(struct lab_log *log, int n) {
    struct error err = {""};
    struct device *dev = open_device(log);
    struct ops scarce = ref_ops;
    struct model model = model_of(dev);
    scarce.alloc = scarce_alloc;
    dev->ops = &scarce;
    allocations_left = n;
    struct kv_cache *c = kv_static_new(&model, 3, &err);
    lab_int(log, c != NULL, "kv_static_new, when memory ends at allocation %d, gives a cache", n);
    lab_int(log, err.text[0] != 0, "kv_static_new sets err");
    end(log, c, dev);
}

static struct kv_cache *dynamic(struct lab_log *log, struct device *dev, int limit) {
    struct error err = {""};
    struct model model = model_of(dev);
    struct kv_cache *c = kv_dynamic_new(&model, limit, &err);
    lab_int(log, c != NULL, "kv_dynamic_new gives a cache");
    if (!c)
        exit(2);
    note_cache(log, c, "of a new cache");
    return c;
}

static void run_grow(struct lab_log *log, int n) {
    struct device *dev = open_device(log);
    struct kv_cache *c = dynamic(log, dev, LIMIT);
    note_reserve(log, c, n, "the first positions");
    note_reserve(log, c, c->capacity, "what fits");
    note_reserve(log, c, 1, "less than fits");
    end(log, c, dev);
}

static void run_limit(struct lab_log *log, int limit) {
    struct device *dev = open_device(log);
    struct kv_cache *c = dynamic(log, dev, limit);
    note_reserve(log, c, 1, "the first position");
    note_reserve(log, c, limit + 1, "more than the limit");
    note_reserve(log, c, limit, "the limit");
    end(log, c, dev);
}

/* Whether positions 0 ... n-1 hold what was put there. */
static void note_kept(struct lab_log *log, const struct kv_cache *c, int n) {
    for (int i = 0; i < c->n_layers; i++) {
        const struct kv_layer *l = &c->layers[i];
        int bad[4] = {0};
        for (int j = 0; j < n * HEADS * DIM; j++) {
            bad[0] += l->k[j] != (int16_t)(j + i);
            bad[1] += l->v[j] != (int16_t)(-j - i);
        }
        for (int j = 0; j < n * HEADS; j++) {
            bad[2] += l->k_exponents[j] != (int8_t)(j % 50 + i);
            bad[3] += l->v_exponents[j] != (int8_t)(-(j % 50) - i);
        }
        static const char *const names[] = {"k", "v", "k_exponents", "v_exponents"};
        for (int j = 0; j < 4; j++)
            lab_int(log, bad[j], "%s of layer %d: values lost when it grew", names[j], i);
    }
}

static void run_keep(struct lab_log *log, int n) {
    struct error err;
    struct device *dev = open_device(log);
    struct kv_cache *c = dynamic(log, dev, LIMIT);
    if (c->reserve(c, n, &err) || c->capacity < n)
        exit(2);
    for (int i = 0; i < c->n_layers; i++) {
        struct kv_layer *l = &c->layers[i];
        for (int j = 0; j < n * HEADS * DIM; j++) {
            l->k[j] = (int16_t)(j + i);
            l->v[j] = (int16_t)(-j - i);
        }
        for (int j = 0; j < n * HEADS; j++) {
            l->k_exponents[j] = (int8_t)(j % 50 + i);
            l->v_exponents[j] = (int8_t)(-(j % 50) - i);
        }
    }
    note_reserve(log, c, 129, "129 positions");
    note_kept(log, c, n);
    note_reserve(log, c, 257, "257 positions");
    note_kept(log, c, n);
    end(log, c, dev);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_OWN_CACHES, 8, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"append", 1, "rows of new tokens and their exponents", "tokens", LAB_SIZES(1, 2, 5),
     run_append, 0},
    {"padding", 1, "a token with slot -1 is not stored", "tokens", LAB_SIZES(1, 2, 5), run_padding,
     0},
    {"pages", 1, "slots in pages", "positions per page", LAB_SIZES(1, 2, 4), run_pages, 0},
    {"fault", 1, "a row with NaN or infinity", "(1: NaN in k; 2: infinity in v)", LAB_SIZES(1, 2),
     run_fault, 0},
    {"static", 2, "room for everything from the start", "positions", LAB_SIZES(1, 2, 64, 65),
     run_static, 0},
    {"no memory", 2, "no cache, and nothing is kept", "allocations that succeed",
     LAB_SIZES(0, 4, 7), run_no_memory, 0},
    {"grow", 3, "the capacity doubles from 64", "positions",
     LAB_SIZES(1, 63, 64, 65, 128, 129, 256), run_grow, 0},
    {"limit", 3, "never more than the limit", "the limit", LAB_SIZES(1, 63, 64, 65, 128), run_limit,
     0},
    {"keep", 3, "what is stored is kept", "positions stored", LAB_SIZES(1, 2, 63, 64, 128),
     run_keep, 0},
    {"serve", 3, "the model's requests, each with a cache of its own", "requests", LAB_SIZES(1, 4),
     run_serve, 30},
};

const struct lab lab = {
    .number = 1,
    .title = "a contiguous cache",
    .served = "your cache",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_1_causes,
    .n_causes = N_LAB_1_CAUSES,
};
