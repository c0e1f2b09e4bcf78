#include "tutorials/common/verify.h"

#include "model/files/chat.h"
#include "tests/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERIFY_TOKENS = 8 };

/* One tensor as the device computed it. */
struct record {
    enum tensor_id id;
    int layer, n_rows, n_cols;
    float *data;
};

struct comparison {
    struct device *dev; /* the one that runs now */
    struct record *records;
    size_t n, capacity, compared, numbers;
    struct error failure; /* empty text: none so far */
};

/* The tokens of an answer. */
struct drawn {
    int32_t ids[VERIFY_TOKENS];
    int n;
};

static float *download(struct device *dev, const float *x, int n_rows, int n_cols) {
    size_t bytes = sizeof *x * (size_t)n_rows * (size_t)n_cols;
    float *host = malloc(bytes + 1);
    if (host)
        dev->ops->download(dev, host, x, bytes);
    return host;
}

static void keep(void *context, enum tensor_id id, int layer, const float *x, int n_rows,
                 int n_cols) {
    struct comparison *c = context;
    if (c->n == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 256;
        struct record *bigger = realloc(c->records, sizeof *bigger * capacity);
        if (!bigger) {
            error_set(&c->failure, "out of memory for the tensors to compare");
            return;
        }
        c->records = bigger;
        c->capacity = capacity;
    }
    float *data = download(c->dev, x, n_rows, n_cols);
    if (data)
        c->records[c->n++] = (struct record){id, layer, n_rows, n_cols, data};
    else
        error_set(&c->failure, "out of memory for the tensors to compare");
}

static void compare(void *context, enum tensor_id id, int layer, const float *x, int n_rows,
                    int n_cols) {
    struct comparison *c = context;
    char report[512];
    if (*c->failure.text)
        return; /* the first difference is the one to report */
    const struct record *r = c->compared < c->n ? &c->records[c->compared++] : NULL;
    if (!r || r->id != id || r->layer != layer) {
        error_set(&c->failure, "the device and the reference did not run the same passes");
        return;
    }
    struct tensor_view want = {tensor_name(id), layer,         (size_t)n_rows,
                               (size_t)n_cols,  ELEMENT_FLOAT, x};
    struct tensor_view got = {tensor_name(id),   layer,         (size_t)r->n_rows,
                              (size_t)r->n_cols, ELEMENT_FLOAT, r->data};
    c->numbers += (size_t)n_rows * (size_t)n_cols;
    if (compare_bits(&want, &got, report, sizeof report))
        error_set(&c->failure, "differs from the reference: %s", report);
}

/* A few greedy tokens with a probe on every tensor, with the demo's cache and passes. */
static int run(struct demo *demo, struct model *model, struct probe *probe, const int32_t *ids,
               int n, struct drawn *drawn, struct error *err) {
    const struct cache_kind *kind = demo->cache;
    const struct sampling_options greedy = {.top_p = 1};
    struct generator g;
    struct sequence s = {0};
    struct kv_cache *cache = NULL;
    int result = -1;
    if (generator_start(&g, model, err))
        return -1;
    g.probe = probe;
    g.chunk = demo->generator.chunk;
    g.context = demo->generator.context;
    g.fused = demo->generator.fused;
    if (kind && !(cache = kind->create(model, g.context, err)))
        goto done;
    if (sequence_start(&s, 0, &greedy, err) ||
        sequence_add_prompt(&s, ids, n, VERIFY_TOKENS, err) || generate(&g, &s, cache, err))
        goto done;
    if (model == &demo->model)
        fingerprint_add_sequence(&demo->run, fingerprint_value(&s.fingerprint));
    drawn->n = sequence_new_tokens(&s);
    memcpy(drawn->ids, s.tokens + s.n_prompt, sizeof *drawn->ids * (size_t)drawn->n);
    result = 0;
done:
    if (cache)
        kind->destroy(cache);
    sequence_end(&s);
    generator_end(&g);
    return result;
}

/* What the tensors do not show: a wrong draw that ends the answer, and tensors that the reference
 * has not. */
static void compare_ends(struct comparison *c, const struct drawn *got, const struct drawn *want) {
    if (*c->failure.text)
        return;
    for (int i = 0; i < got->n && i < want->n; i++)
        if (got->ids[i] != want->ids[i]) {
            error_set(&c->failure,
                      "token %d of the answer differs from the reference: drew %d, expected %d, "
                      "from the same logits",
                      i + 1, got->ids[i], want->ids[i]);
            return;
        }
    if (got->n != want->n || c->compared < c->n)
        error_set(&c->failure,
                  "the device and the reference did not run the same passes: %d tokens of %zu "
                  "tensors, expected %d of %zu",
                  got->n, c->n, want->n, c->compared);
}

/* Both runs, on ids. */
static int verify_ids(struct demo *demo, const int32_t *ids, int n, struct error *err) {
    struct comparison c = {.dev = demo->dev};
    struct probe keeping = {keep, &c}, comparing = {compare, &c};
    struct device *reference = NULL;
    struct model model = {0};
    struct drawn got, want;
    int result = -1;
    if (run(demo, &demo->model, &keeping, ids, n, &got, err))
        goto done;
    reference = ref_ops.open(&(struct device_options){demo->options.threads}, err);
    if (!reference || model_load(&model, reference, demo->options.model, NULL, err))
        goto done;
    c.dev = reference;
    if (run(demo, &model, &comparing, ids, n, &want, err))
        goto done;
    compare_ends(&c, &got, &want);
    if (*c.failure.text) {
        *err = c.failure;
        goto done;
    }
    printf("%s: %zu tensors, %zu numbers, 0 bits differ from the reference\n", demo->dev->ops->name,
           c.compared, c.numbers);
    result = 0;
done:
    for (size_t i = 0; i < c.n; i++)
        free(c.records[i].data);
    free(c.records);
    model_free(&model);
    if (reference)
        reference->ops->close(reference);
    return result;
}

int verify_prompt(struct demo *demo, struct error *err) {
    int32_t *ids;
    size_t n;
    if (demo->dev->ops == &ref_ops)
        return error_set(err, "--verify compares a device with the CPU, which is what runs here: "
                              "choose --device gpu or emu");
    if (demo_encode_prompt(demo, demo->options.prompt, &ids, &n, err))
        return -1;
    int result = verify_ids(demo, ids, (int)n, err);
    free(ids);
    return result;
}
