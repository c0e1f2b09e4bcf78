/*
 * Phase 11: small KV formats. The cache is most of what decoding reads, so half the bytes are worth
 * something. What do they cost? The table reads the texts of the goldens with the cache in every
 * type: the loss, and how often the most likely token is another one.
 */
#include "model/attention/kv_view.h"
#include "model/files/json.h"
#include "scheduler/kv_paged.h"
#include "tutorials/common/paged.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char texts_path[] = "data/golden/generations.jsonl";

/* ---- the texts ------------------------------------------------------------------------------- */

struct texts {
    int32_t *ids;       /* all, one after the other */
    int *ends;          /* [n] */
    int n, n_ids, most; /* the others of the file are left out */
};

static int add_ids(struct texts *t, const struct json_source *line, const char *field) {
    const json_t *list = json_field(line, field);
    size_t n = json_array_size(list);
    int32_t *larger = realloc(t->ids, sizeof *larger * ((size_t)t->n_ids + n + 1));
    t->ids = larger ? larger : t->ids;
    if (!larger || !n)
        return json_refuse(line, larger ? "a text without ids" : "out of memory");
    for (size_t i = 0; i < n; i++)
        t->ids[t->n_ids++] = (int32_t)json_integer_value(json_array_get(list, i));
    return 0;
}

/* A prompt with its answer, as token ids. */
static int add_text(void *context, const struct json_source *line) {
    struct texts *t = context;
    if (t->n == t->most)
        return 0;
    int *ends = realloc(t->ends, sizeof *ends * ((size_t)t->n + 1));
    if (!ends)
        return json_refuse(line, "out of memory");
    t->ends = ends;
    if (add_ids(t, line, "prompt_ids") || add_ids(t, line, "output_ids"))
        return -1;
    t->ends[t->n++] = t->n_ids;
    return 0;
}

static void free_texts(struct texts *t) {
    free(t->ids);
    free(t->ends);
}

/* ---- reading one ----------------------------------------------------------------------------- */

/* Bits of information that `id` is worth, in nats, where these were the logits. */
static double loss_of(const float *logits, int vocab, int32_t id) {
    double max = logits[0], sum = 0;
    for (int i = 1; i < vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < vocab; i++)
        sum += exp(logits[i] - max);
    return max + log(sum) - logits[id];
}

/* One pass over a text through the cache. likely: host [n], the most likely token after each. Adds
 * to *loss. */
static int read_text(struct demo *demo, struct kv_paged *cache, const int32_t *ids, int n,
                     int32_t *likely, double *loss, struct error *err) {
    struct kv_cache *caches[] = {&cache->base};
    struct page_table pages = {0};
    int vocab = demo->model.config.vocab_size, result = -1;
    int32_t *positions = calloc((size_t)n, sizeof *positions), qo[] = {0, n};
    struct sampling *greedy = calloc((size_t)n, sizeof *greedy);
    const float *logits;
    if (!positions || !greedy) {
        error_set(err, "out of memory for a text of %d tokens", n);
        goto done;
    }
    for (int i = 0; i < n; i++) {
        positions[i] = i;
        greedy[i].top_p = 1;
    }
    if (cache->base.reserve(&cache->base, n, err) ||
        cache->base.page_table(caches, &n, 1, &pages, err))
        goto done;
    struct paged_batch paged = {1,
                                pages.page_size,
                                pages.n_pool_pages,
                                qo,
                                pages.kv_indptr,
                                pages.kv_page_indices,
                                pages.kv_last_page_len};
    struct batch batch = {.n_tokens = n,
                          .n_sequences = 1,
                          .n_logits = n,
                          .token_ids = ids,
                          .positions = positions,
                          .qo_indptr = qo,
                          .logit_rows = positions,
                          .caches = caches,
                          .pages = &paged};
    struct workspace *ws = demo->generator.ws;
    if (!forward(&demo->model, ws, &batch, NULL, err) || !(logits = forward_logits(ws, n, err)) ||
        forward_finish(&demo->model, ws, &batch, greedy, likely, err))
        goto done;
    for (int i = 0; i + 1 < n; i++)
        *loss += loss_of(logits + (size_t)i * (size_t)vocab, vocab, ids[i + 1]);
    result = 0;
done:
    page_table_end(&pages);
    free(greedy);
    free(positions);
    return result;
}

/* All texts, one after the other, with a cache of the type. */
static int read_all(struct demo *demo, const struct texts *t, enum kv_type type, int32_t *likely,
                    double *loss, struct error *err) {
    int longest = 0;
    for (int i = 0; i < t->n; i++) {
        int n = t->ends[i] - (i ? t->ends[i - 1] : 0);
        longest = n > longest ? n : longest;
    }
    int size = demo->options.block_size;
    struct kv_pool_options options = {
        .block_size = size, .n_blocks = blocks_for(longest, size), .type = type};
    struct kv_pool pool;
    struct kv_paged cache = {0};
    if (kv_pool_start(&pool, &demo->model, &options, err))
        return -1;
    int result = kv_paged_start(&cache, &pool, NULL, err);
    *loss = 0;
    for (int i = 0; i < t->n && !result; i++) {
        int first = i ? t->ends[i - 1] : 0;
        result = read_text(demo, &cache, t->ids + first, t->ends[i] - first, likely + first, loss,
                           err) ||
                 kv_paged_clear(&cache, err);
    }
    kv_paged_end(&cache);
    kv_pool_end(&pool);
    return result ? -1 : 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static int measure_type(struct demo *demo, const struct texts *t, enum kv_type type,
                        int32_t *likely, const int32_t *likely_bfp16, double *first_loss,
                        struct error *err) {
    const struct model_config *c = &demo->model.config;
    struct paged_options options = {PREEMPT_RECOMPUTE, false};
    struct serving serving = serving_of(demo);
    struct paged_run run;
    struct workload w = {0};
    double loss;
    int same = 0, n = t->n_ids - t->n;
    if (read_all(demo, t, type, likely, &loss, err))
        return -1;
    loss /= n;
    *first_loss = type == KV_BFP16 ? loss : *first_loss;
    for (int i = 0; i < t->n_ids; i++)
        same += likely[i] == likely_bfp16[i];
    demo->options.kv_type = type;
    int result =
        demo_read_requests(demo, demo_requests_file(demo), &w, err) ||
        paged_run_pool(demo, &w, paged_enough_blocks(demo, &w), &options, &serving, &run, err);
    workload_free(&w);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    size_t bytes = (size_t)c->n_layers * kv_layer_bytes(1, c->n_kv_heads, c->head_dim, type);
    demo_table_row(demo, json_pack("[siffff]", kv_type_name(type), (int)bytes, loss,
                                   100 * (loss / *first_loss - 1), 100.0 * same / t->n_ids,
                                   run.tokens_per_second));
    return 0;
}

static int tables(struct demo *demo, struct error *err) {
    static const struct column columns[] = {
        {"type", "type", -1, 5},      {"bytes", "bytes a token", 0, 0}, {"loss", "loss", 5, 7},
        {"change", "change %", 3, 0}, {"same", "same token %", 2, 0},   {"tok_s", "tok/s", 1, 6}};
    struct texts t = {.most = demo->options.quick ? 2 : INT_MAX};
    double first_loss = 0;
    int result = json_for_each_line(texts_path, add_text, &t, err);
    int32_t *likely = calloc((size_t)t.n_ids + 1, sizeof *likely);
    int32_t *likely_bfp16 = calloc((size_t)t.n_ids + 1, sizeof *likely);
    if (!result && (!likely || !likely_bfp16))
        result = error_set(err, "out of memory for the texts of %s", texts_path);
    demo_table_begin(demo, "kv_types", "Phase 11: what the cache's type costs", columns,
                     sizeof columns / sizeof *columns);
    for (int type = 0; type < N_KV_TYPES && !result && !demo_interrupted(demo); type++)
        result = measure_type(demo, &t, (enum kv_type)type, type ? likely : likely_bfp16,
                              likely_bfp16, &first_loss, err);
    free(likely);
    free(likely_bfp16);
    free_texts(&t);
    return demo_table_end(demo, result);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 11,
        .title = "small KV formats",
        .about = "Keys and values in 8 bits, or in the 16 of others.",
        .caches = paged_caches,
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
        .fingerprint = 0x3c0b552407505eb7,
    };
    return demo_main(argc, argv, &phase);
}
