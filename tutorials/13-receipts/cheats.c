#include "tutorials/13-receipts/cheats.h"

#include "model/files/checkpoint.h"
#include "model/numerics.h"
#include "scheduler/kv_paged.h"
#include "scheduler/receipt.h"

#include <stdlib.h>

enum { NEW_TOKENS = 128, QUICK_TOKENS = 32, BLOCK = 16, EDITED = 20, CHEATED_LAYER = 3 };

/* How an answer is really made. */
struct way {
    const char *name;
    float temperature;    /* the receipts say CLAIMED */
    enum kv_type kv_type; /* they say bfp16 */
    bool coarse_layer;    /* one matrix of one layer in 8 bits */
    bool edited;          /* one token is another in the receipt */
    enum receipt_reason reason;
};

static const float CLAIMED = 0.7f;

static const struct way ways[] = {
    {"nothing: it is honest", 0.7f, KV_BFP16, false, false, RECEIPT_VERIFIED},
    {"temperature 0.9", 0.9f, KV_BFP16, false, false, RECEIPT_TOKEN},
    {"one matrix of layer 3 in 8 bits", 0.7f, KV_BFP16, true, false, RECEIPT_LOGITS},
    {"token 20 edited", 0.7f, KV_BFP16, false, true, RECEIPT_TOKEN},
    {"the KV cache in 8 bits", 0.7f, KV_BFP8, false, false, RECEIPT_LOGITS},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* ---- a matrix in 8 bits ---------------------------------------------------------------------- */

/* Each row is snapped as ever, and its mantissas are rounded to multiples of 256. */
static int put_coarse(struct device *dev, struct matrix *w, const struct tensor *t,
                      struct error *err) {
    int n = (int)t->shape[0], k = (int)t->shape[1], result = 0;
    float *x = malloc(sizeof *x * (size_t)k);
    int16_t *q = malloc(sizeof *q * (size_t)k);
    if (!x || !q)
        result = error_set(err, "out of memory");
    else
        result = dev->ops->matrix_create(dev, w, n, k, err);
    for (int row = 0; row < n && !result; row++) {
        if (tensor_read_f32(x, t, (int64_t)row * k, k, err))
            result = -1;
        int8_t exponent = (int8_t)num_snap_row(q, x, k);
        for (int i = 0; i < k; i++)
            q[i] = (int16_t)((q[i] + 128) / 256 * 256);
        dev->ops->matrix_put(dev, w, row, 1, q, &exponent);
    }
    free(x);
    free(q);
    return result;
}

/* The down projection of a layer, anew. */
static int make_coarse(const struct demo *demo, struct matrix *w, struct error *err) {
    struct checkpoint *checkpoint;
    char name[80];
    snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", CHEATED_LAYER);
    if (checkpoint_open(&checkpoint, demo->options.model, err))
        return -1;
    const struct tensor *t = checkpoint_find(checkpoint, name);
    int result = t ? put_coarse(demo->dev, w, t, err)
                   : error_set(err, "the table needs a model with four layers");
    checkpoint_close(checkpoint);
    return result;
}

/* ---- answers --------------------------------------------------------------------------------- */

static int answer(struct demo *demo, const struct way *way, const int32_t *ids, int n, int max_new,
                  struct sequence *s, struct error *err) {
    struct sampling_options sampling = {way->temperature, 0, 1, 3, true, 0};
    struct kv_pool_options options = {
        .block_size = BLOCK, .n_blocks = blocks_for(n + max_new, BLOCK), .type = way->kv_type};
    struct kv_pool pool = {0};
    struct kv_paged cache = {0};
    int result =
        sequence_start(s, 0, &sampling, err) || sequence_add_prompt(s, ids, n, max_new, err) ||
        !(s->chain = logits_chain_new(err)) || kv_pool_start(&pool, &demo->model, &options, err) ||
        kv_paged_start(&cache, &pool, NULL, err) || generate(&demo->generator, s, &cache.base, err);
    kv_paged_end(&cache);
    kv_pool_end(&pool);
    return result ? -1 : 0;
}

/* The answer of a way, and the receipt that claims another. */
static json_t *cheat(struct demo *demo, const struct way *way, const int32_t *ids, int n,
                     struct error *err) {
    struct receipt_source source = {demo->files, KV_BFP16, &demo->generator};
    struct request request = {0};
    struct sequence s = {0};
    struct matrix coarse, *down = &demo->model.layers[CHEATED_LAYER].down, fine = *down;
    json_t *receipt = NULL;
    int max_new = demo->options.quick ? QUICK_TOKENS : NEW_TOKENS;
    if (way->coarse_layer) {
        if (make_coarse(demo, &coarse, err))
            return NULL;
        *down = coarse;
    }
    if (!answer(demo, way, ids, n, max_new, &s, err)) {
        s.sampling.temperature = CLAIMED;
        if (way->edited)
            s.tokens[n + EDITED] ^= 1;
        receipt = receipt_of(&source, &request, &s, err);
        fingerprint_add_sequence(&demo->run, fingerprint_value(&s.fingerprint));
    }
    if (way->coarse_layer) {
        *down = fine;
        demo->dev->ops->matrix_free(demo->dev, &coarse);
    }
    sequence_end(&s);
    return receipt;
}

static int show(struct demo *demo, const struct receipt *receipts, struct error *err) {
    static const struct column columns[] = {{"cheat", "what was done", -1, 0},
                                            {"tokens", "tokens", 0, 0},
                                            {"result", "result", -1, 0},
                                            {"token", "at token", 0, 0}};
    json_t *rows = json_array();
    int result = 0;
    for (int i = 0; i < N_WAYS; i++) {
        const struct receipt *r = &receipts[i];
        json_array_append_new(rows, json_pack("[siso]", ways[i].name, r->request.n_draft,
                                              receipt_reason_name(r->reason),
                                              r->token < 0 ? json_null() : json_integer(r->token)));
        if (r->reason != ways[i].reason && !result)
            result = error_set(err, "%s: %s (%s), and it should be %s", ways[i].name,
                               receipt_reason_name(r->reason), r->why.text,
                               receipt_reason_name(ways[i].reason));
    }
    demo_table(demo, "cheats", "Receipts that claim temperature 0.7, the weights and a bfp16 cache",
               columns, 4, rows);
    return result;
}

int show_cheats(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    struct receipt_source source = {demo->files, KV_BFP16, &demo->generator};
    struct read_along how = {
        .generator = &demo->generator,
        .scheduler = {o->max_running, o->token_budget, o->chunk, true},
    };
    struct receipt receipts[N_WAYS] = {{0}};
    int32_t *ids;
    size_t n;
    if (demo_encode_prompt(demo, "Tell me a story.", &ids, &n, err))
        return -1;
    int result = demo->model.config.n_layers > CHEATED_LAYER
                     ? 0
                     : error_set(err, "the table needs a model with four layers");
    for (int i = 0; i < N_WAYS && !result && !demo_interrupted(demo); i++) {
        json_t *json = cheat(demo, &ways[i], ids, (int)n, err);
        receipt_read(&receipts[i], &source, json);
        result = json ? 0 : -1;
        json_decref(json);
    }
    free(ids);
    if (!result && !demo_interrupted(demo))
        result = receipts_verify(receipts, N_WAYS, &how, o->block_size, err) ||
                 show(demo, receipts, err);
    for (int i = 0; i < N_WAYS; i++)
        receipt_free(&receipts[i]);
    return result ? -1 : 0;
}
