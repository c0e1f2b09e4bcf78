/*
 * decode_step, a decoding pass as one op, beside the list of ops that it stands for, on the same
 * device: the same logits and greedy tokens, the same cache, the same faults. Models of every kind,
 * sequences that end before, at and behind the ends of tiles, pages in random order, and junk in
 * all of the pool that no sequence has. Skipped where a device has no such op, or a GPU no bulk
 * copies (before compute capability 9.0).
 */
#include "model/forward.h"
#include "tests/assert_bits.h"
#include "tests/device.h"
#include "tests/tiny_models.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_SEQUENCES = 70, N_LAYERS = 2 };

#define CONFIG(arch, layers, hidden, heads, kv_heads, dim, ffn, vocab, more)                       \
    "{\"architectures\":[\"" arch "\"],\"num_hidden_layers\":" layers ",\"hidden_size\":" hidden   \
    ",\"num_attention_heads\":" heads ",\"num_key_value_heads\":" kv_heads ",\"head_dim\":" dim    \
    ",\"intermediate_size\":" ffn ",\"vocab_size\":" vocab                                         \
    ",\"max_position_embeddings\":8000" more "}"

/* Sizes that are no multiples of tiles, steps of 64 and blocks; one and two matrices of a tile;
 * more units than a block has warps, and more than it has room for; rows of which a thread has more
 * than one vector. */
static const struct {
    const char *json;
    int most_sequences; /* in the emulation */
} models[] = {
    {CONFIG("Qwen3ForCausalLM", "2", "64", "4", "2", "32", "100", "61",
            ",\"tie_word_embeddings\":true"),
     17},
    {CONFIG("LlamaForCausalLM", "2", "36", "3", "1", "64", "52", "300",
            ",\"attention_bias\":true,\"mlp_bias\":true"),
     5},
    {CONFIG("Qwen2ForCausalLM", "2", "132", "2", "2", "128", "72", "40", ""), 3},
    {CONFIG("LlamaForCausalLM", "2", "320", "6", "2", "32", "1100", "700", ""), 2},
    {CONFIG("LlamaForCausalLM", "2", "516", "2", "1", "64", "60", "20", ""), 4},
};

enum { N_MODELS = sizeof models / sizeof models[0] };

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

static void open_model(struct tiny_model *t, const char *json) {
    struct error err = {""};
    struct device_options options = {.n_threads = 2};
    memset(t, 0, sizeof *t);
    fixture_start(&t->fixture, json);
    writer_write(&t->fixture.writer, t->fixture.dir, json);
    t->dev = device_under_test()->open(&options, &err);
    must(!t->dev, &err);
    must(model_load(&t->model, t->dev, t->fixture.dir, NULL, &err), &err);
    must(generator_start(&t->generator, &t->model, &err), &err);
}

/* ---- a case ------------------------------------------------------------------------------------
 */

/* One token of each sequence, over a pool that is filled with random rows. */
struct step_case {
    struct tiny_model *t;
    int n, page_size, n_pages;
    int32_t ids[MOST_SEQUENCES], positions[MOST_SEQUENCES], rows[MOST_SEQUENCES + 1];
    int32_t kv_indptr[MOST_SEQUENCES + 1], last_page_len[MOST_SEQUENCES];
    int32_t *page_indices;
    int16_t *mantissas; /* of a layer's keys, then values */
    int8_t *exponents;
    struct paged_batch pages;
};

static size_t pool_rows(const struct step_case *c) {
    return (size_t)c->n_pages * (size_t)c->page_size * (size_t)c->t->model.config.n_kv_heads;
}

static size_t pool_elements(const struct step_case *c) {
    return pool_rows(c) * (size_t)c->t->model.config.head_dim;
}

/* The page table: pages in random order, some of nobody. */
static void make_pages(struct step_case *c, struct random *r) {
    c->kv_indptr[0] = 0;
    for (int i = 0; i < c->n; i++) {
        int pages = c->positions[i] / c->page_size + 1;
        c->kv_indptr[i + 1] = c->kv_indptr[i] + pages;
        c->last_page_len[i] = c->positions[i] + 1 - (pages - 1) * c->page_size;
    }
    int used = c->kv_indptr[c->n];
    c->n_pages = used + 3;
    c->page_indices = host_array((size_t)c->n_pages, sizeof *c->page_indices);
    for (int i = 0; i < c->n_pages; i++) {
        int j = random_int(r, 0, i);
        c->page_indices[i] = c->page_indices[j];
        c->page_indices[j] = i;
    }
    for (int i = 0; i <= c->n; i++)
        c->rows[i] = i;
    c->pages = (struct paged_batch){c->n,         c->page_size,    c->n_pages,      c->rows,
                                    c->kv_indptr, c->page_indices, c->last_page_len};
}

/* Rows of a pool; those that no sequence has seen yet hold what no row can: a sum with one of them
 * is another. */
static void fill_pool(struct step_case *c, struct random *r) {
    size_t rows = pool_rows(c), elements = pool_elements(c);
    size_t heads = (size_t)c->t->model.config.n_kv_heads, row = elements / rows;
    c->mantissas = host_array(2 * elements, sizeof *c->mantissas);
    c->exponents = host_array(2 * rows, 1);
    poison(c->mantissas, 2 * elements * sizeof *c->mantissas);
    memset(c->exponents, 120, 2 * rows);
    for (int i = 0; i < c->n; i++)
        for (int p = 0; p < c->positions[i]; p++) {
            int page = c->page_indices[c->kv_indptr[i] + p / c->page_size];
            size_t slot = (size_t)(page * c->page_size + p % c->page_size);
            for (size_t k = 0; k < 2 * heads; k++) {
                size_t at = k / heads * rows + slot * heads + k % heads;
                c->exponents[at] = (int8_t)random_int(r, -3, 2);
                for (size_t d = 0; d < row; d++)
                    c->mantissas[at * row + d] = (int16_t)random_int(r, -32639, 32639);
            }
        }
}

static void make_case(struct step_case *c, struct tiny_model *t, struct random *r,
                      const int32_t *positions, int n, int page_size) {
    *c = (struct step_case){.t = t, .n = n, .page_size = page_size};
    for (int i = 0; i < n; i++) {
        c->positions[i] = positions[i];
        c->ids[i] = random_int(r, 0, t->model.config.vocab_size - 1);
    }
    make_pages(c, r);
    fill_pool(c, r);
}

static void free_case(struct step_case *c) {
    free(c->page_indices);
    free(c->mantissas);
    free(c->exponents);
}

/* ---- both ways ---------------------------------------------------------------------------------
 */

/* What a pass leaves: host copies. */
struct outcome {
    float *logits;
    int32_t greedy[MOST_SEQUENCES];
    int16_t *mantissas[N_LAYERS];
    int8_t *exponents[N_LAYERS];
    struct fault fault;
};

static const struct step_case
    *of_cache; /* whose slots the caches tell: the callback knows no case */

static int slots_of(const struct kv_cache *cache, int first, int n, int64_t *out,
                    struct error *err) {
    const struct step_case *c = of_cache;
    (void)err;
    for (int i = first; i < first + n; i++) {
        int page = c->page_indices[c->kv_indptr[cache->capacity] + i / c->page_size];
        *out++ = (int64_t)page * c->page_size + i % c->page_size;
    }
    return 0;
}

/* The next tokens, too, if next is not NULL: drawn as `how` says. */
static float *run_pass(struct step_case *c, struct kv_layer *layers, const struct sampling *how,
                       int32_t *next, struct error *err) {
    const struct model_config *config = &c->t->model.config;
    static struct kv_cache caches[MOST_SEQUENCES];
    struct kv_cache *of[MOST_SEQUENCES];
    for (int i = 0; i < c->n; i++) {
        caches[i] = (struct kv_cache){.layers = layers,
                                      .n_layers = config->n_layers,
                                      .n_kv_heads = config->n_kv_heads,
                                      .head_dim = config->head_dim,
                                      .capacity = i, /* its number */
                                      .slots = slots_of};
        of[i] = &caches[i];
    }
    of_cache = c;
    struct batch batch = {c->n,    c->n, c->n,      c->ids, c->positions, c->rows,
                          c->rows, of,   &c->pages, false,  false};
    struct workspace *ws = c->t->generator.ws;
    float *logits = forward(&c->t->model, ws, &batch, NULL, err);
    if (logits && next)
        must(forward_finish(&c->t->model, ws, &batch, how, next, err), err);
    return logits;
}

/* The layers of the cache, with what the case has. */
static void fill_layers(struct kv_layer layers[N_LAYERS], const struct step_case *c) {
    const struct model_config *config = &c->t->model.config;
    struct device *dev = c->t->dev;
    struct error err = {""};
    size_t rows = pool_rows(c), bytes = sizeof(int16_t) * pool_elements(c);
    for (int i = 0; i < N_LAYERS; i++) {
        must(kv_layer_alloc(&layers[i], dev, c->n_pages * c->page_size, config->n_kv_heads,
                            config->head_dim, KV_BFP16, &err),
             &err);
        dev->ops->upload(dev, layers[i].k, c->mantissas, bytes);
        dev->ops->upload(dev, layers[i].v, c->mantissas + pool_elements(c), bytes);
        dev->ops->upload(dev, layers[i].k_exponents, c->exponents, rows);
        dev->ops->upload(dev, layers[i].v_exponents, c->exponents + rows, rows);
    }
    must(model_reserve_positions(&c->t->model, 8000, &err), &err);
}

static void free_layers(struct kv_layer layers[N_LAYERS], const struct step_case *c) {
    const struct model_config *config = &c->t->model.config;
    for (int i = 0; i < N_LAYERS; i++)
        kv_layer_free(&layers[i], c->t->dev, c->n_pages * c->page_size, config->n_kv_heads,
                      config->head_dim, KV_BFP16);
}

static const struct sampling greedy[MOST_SEQUENCES]; /* temperature 0 */

static void run(struct step_case *c, bool at_once, struct outcome *out) {
    const struct model_config *config = &c->t->model.config;
    struct device *dev = c->t->dev;
    const struct ops *ops = dev->ops;
    struct error err = {""};
    struct kv_layer layers[N_LAYERS];
    size_t rows = pool_rows(c), bytes = sizeof(int16_t) * pool_elements(c);
    size_t vocab = (size_t)config->vocab_size * (size_t)c->n;
    fill_layers(layers, c);
    must(ops->set_version(dev, "decode_step", at_once ? 2 : 1, &err), &err);
    float *own = ops->alloc(dev, vocab * sizeof *own, "logits", &err), *logits = own;
    int32_t *drawn = ops->alloc_host_visible(dev, sizeof out->greedy, "tokens", &err);
    must(!drawn, &err);
    memset(drawn, 0xff, sizeof out->greedy);
    if (!at_once)
        logits = run_pass(c, layers, NULL, NULL, &err);
    else if (ops->decode_step(dev, own, drawn, &c->t->model, layers, &c->pages, c->ids, &err) != 1)
        fail_msg("decode_step leaves %d sequences to the other ops: %s", c->n, err.text);
    must(!logits, &err);
    if (!at_once)
        ops->sample(dev, drawn, logits, greedy, c->n, config->vocab_size,
                    config->n_layers * N_TENSORS + TENSOR_LOGITS);
    out->logits = host_array(vocab, sizeof *out->logits);
    poison(out->logits, vocab * sizeof *out->logits);
    ops->download(dev, out->logits, logits, vocab * sizeof *out->logits);
    must(ops->sync(dev, &out->fault, &err), &err);
    ops->free(dev, own, vocab * sizeof *own);
    memcpy(out->greedy, drawn, sizeof out->greedy);
    ops->free_host_visible(dev, drawn, sizeof out->greedy);
    for (int i = 0; i < N_LAYERS; i++) {
        out->mantissas[i] = host_array(2 * pool_elements(c), sizeof(int16_t));
        out->exponents[i] = host_array(2 * rows, 1);
        ops->download(dev, out->mantissas[i], layers[i].k, bytes);
        ops->download(dev, out->mantissas[i] + pool_elements(c), layers[i].v, bytes);
        ops->download(dev, out->exponents[i], layers[i].k_exponents, rows);
        ops->download(dev, out->exponents[i] + rows, layers[i].v_exponents, rows);
    }
    free_layers(layers, c);
}

static void free_outcome(struct outcome *o) {
    free(o->logits);
    for (int i = 0; i < N_LAYERS; i++) {
        free(o->mantissas[i]);
        free(o->exponents[i]);
    }
}

static void expect(const char *name, int layer, size_t rows, size_t cols, enum element type,
                   const void *want, const void *got) {
    struct tensor_view a = {name, layer, rows, cols, type, want}, b = a;
    b.data = got;
    assert_same_bits(&a, &b);
}

/* SAMEBITS_ALONE: for racecheck, which makes everything slow and stops with an error of its own at
 * kernels of cuBLAS: fewer cases, and decode_step is compared with itself. */
static bool alone(void) {
    return getenv("SAMEBITS_ALONE") != NULL;
}

enum faults { NO_FAULT, A_FAULT, PERHAPS };

/* After a fault, only that is compared: what comes of it is nobody's. Returns whether there was
 * one.
 */
static bool compare_ways(struct step_case *c, enum faults faults) {
    size_t rows = pool_rows(c), vocab = (size_t)c->t->model.config.vocab_size;
    struct outcome ops, step;
    run(c, alone(), &ops);
    run(c, true, &step);
    if (faults != PERHAPS)
        assert_int_equal(ops.fault.site >= 0, faults == A_FAULT);
    assert_int_equal(step.fault.site, ops.fault.site);
    assert_int_equal(step.fault.token, ops.fault.token);
    if (ops.fault.site < 0) {
        for (int i = 0; i < N_LAYERS; i++) {
            expect("keys and values", i, 2 * rows, pool_elements(c) / rows, ELEMENT_INT16,
                   ops.mantissas[i], step.mantissas[i]);
            expect("their exponents", i, 2 * rows, 1, ELEMENT_INT8, ops.exponents[i],
                   step.exponents[i]);
        }
        expect("logits", -1, (size_t)c->n, vocab, ELEMENT_FLOAT, ops.logits, step.logits);
        expect("greedy tokens", -1, MOST_SEQUENCES, 1, ELEMENT_INT32, ops.greedy, step.greedy);
    }
    free_outcome(&ops);
    free_outcome(&step);
    return ops.fault.site >= 0;
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static int most_sequences(int model) {
    return device_is_emulated() ? models[model].most_sequences : MOST_SEQUENCES;
}

/* What the op of this version says to a step of n sequences of a model of two heads, all at this
 * position. Version -1: the best, but somebody wants a version of another op. */
static int answer(int version, int n, int32_t position) {
    struct tiny_model t;
    struct random r = {1};
    struct error err = {""};
    struct step_case c;
    int32_t positions[MOST_SEQUENCES];
    for (int i = 0; i < n; i++)
        positions[i] = position;
    open_model(&t, models[2].json);
    make_case(&c, &t, &r, positions, n, 16);
    struct kv_layer layers[N_LAYERS];
    size_t bytes = sizeof(float) * (size_t)(n * t.model.config.vocab_size);
    fill_layers(layers, &c);
    must(version < 0 ? t.dev->ops->set_version(t.dev, "add", 1, &err)
                     : t.dev->ops->set_version(t.dev, "decode_step", version, &err),
         &err);
    float *logits = t.dev->ops->alloc(t.dev, bytes, "logits", &err);
    int32_t *drawn = t.dev->ops->alloc_host_visible(t.dev, sizeof positions, "tokens", &err);
    int result =
        t.dev->ops->decode_step(t.dev, logits, drawn, &t.model, layers, &c.pages, c.ids, &err);
    t.dev->ops->free(t.dev, logits, bytes);
    t.dev->ops->free_host_visible(t.dev, drawn, sizeof positions);
    free_layers(layers, &c);
    free_case(&c);
    tiny_model_close(&t);
    return result;
}

/* Whether the device under test has the op, and the GPU for it. */
static bool can_be_tested(void) {
    return device_under_test()->decode_step && (device_is_emulated() || answer(2, 1, 0) == 1);
}

static void skip_unless_there(void) {
    static int known = -1;
    known = known < 0 ? can_be_tested() : known;
    if (!known)
        skip();
}

/* Every number of rows of a group, and of groups. */
static void test_row_counts(void **state) {
    (void)state;
    skip_unless_there();
    for (int which = 0; which < N_MODELS; which++) {
        struct tiny_model t;
        struct random r = {(uint64_t)which};
        open_model(&t, models[which].json);
        for (int n = 1; n <= most_sequences(which); n += !alone() || n == 1 ? 1 : n < 9 ? 7 : 70) {
            int32_t positions[MOST_SEQUENCES];
            struct step_case c;
            for (int i = 0; i < n; i++)
                positions[i] = random_int(&r, 0, 40);
            make_case(&c, &t, &r, positions, n, 1 << random_int(&r, 0, 5));
            compare_ways(&c, NO_FAULT);
            free_case(&c);
        }
        tiny_model_close(&t);
    }
}

/* Positions at the ends of tiles and pages. */
static void test_lengths(void **state) {
    (void)state;
    skip_unless_there();
    static const int32_t ends[] = {0,   1,   2,   14,  15,  16,  17,  63,  64,   127,  128,
                                   254, 255, 256, 257, 511, 512, 513, 767, 1023, 1024, 2050};
    for (int which = 0; which < N_MODELS; which++) {
        struct tiny_model t;
        struct random r = {(uint64_t)(100 + which)};
        open_model(&t, models[which].json);
        int n_ends = sizeof ends / sizeof *ends, each = device_is_emulated() ? 2 : 9;
        for (int first = 0; first < n_ends; first += each) {
            struct step_case c;
            int n = n_ends - first < each ? n_ends - first : each;
            if ((device_is_emulated() || alone()) && first / each % N_MODELS != which)
                continue;
            make_case(&c, &t, &r, ends + first, n, 1 << random_int(&r, 0, 6));
            compare_ways(&c, NO_FAULT);
            free_case(&c);
        }
        tiny_model_close(&t);
    }
}

/* One tile more than are merged at once: 31 of 128 dimensions. */
static void test_many_tiles(void **state) {
    (void)state;
    skip_unless_there();
    const int32_t position = 31 * 256;
    struct tiny_model t;
    struct random r = {10};
    struct step_case c;
    if (alone())
        return;
    open_model(&t, models[2].json);
    make_case(&c, &t, &r, &position, 1, 64);
    compare_ways(&c, NO_FAULT);
    free_case(&c);
    tiny_model_close(&t);
}

/* A NaN in the weights of a norm, or a bias that nothing can hold, is found where the ops find it.
 */
static void test_faults(void **state) {
    (void)state;
    skip_unless_there();
    struct tiny_model t;
    struct random r = {7};
    open_model(&t, models[0].json);
    struct layer_weights *layers = t.model.layers;
    float *const gains[] = {layers[0].attention_norm, layers[1].attention_norm, layers[0].q_norm,
                            layers[1].k_norm,         layers[1].ffn_norm,       t.model.final_norm};
    for (size_t i = 0; i < sizeof gains / sizeof *gains; i++)
        for (int kind = 0; kind < 2; kind++) {
            const int32_t positions[] = {3, 260, 0};
            const float bad = kind ? NAN : 0x1p127f;
            float was;
            struct step_case c;
            t.dev->ops->download(t.dev, &was, gains[i] + 5, sizeof was);
            t.dev->ops->upload(t.dev, gains[i] + 5, &bad, sizeof bad);
            make_case(&c, &t, &r, positions, 3, 16);
            compare_ways(&c, A_FAULT);
            free_case(&c);
            t.dev->ops->upload(t.dev, gains[i] + 5, &was, sizeof was);
        }
    tiny_model_close(&t);
}

/* Results that no row can hold, of every matrix of every layer. */
static void test_overflows(void **state) {
    (void)state;
    skip_unless_there();
    int n_faults = 0;
    for (int which = 0; which < 7 * N_LAYERS; which++) {
        struct tiny_model t;
        struct random r = {(uint64_t)which};
        struct step_case c;
        const int32_t positions[] = {0, 3, 260};
        open_model(&t, models[0].json);
        struct layer_weights *w = &t.model.layers[which / 7];
        struct matrix *matrices[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        struct matrix *m = matrices[which % 7];
        int16_t row[128];
        const int8_t exponent = 127;
        for (int k = 0; k < m->k; k++)
            row[k] = (int16_t)random_int(&r, -32639, 32639);
        for (int i = 0; i < m->n; i++)
            t.dev->ops->matrix_put(t.dev, m, i, 1, row, &exponent);
        make_case(&c, &t, &r, positions, 3, 16);
        n_faults += compare_ways(&c, PERHAPS);
        free_case(&c);
        tiny_model_close(&t);
    }
    assert_true(n_faults > 7);
}

/* Rows of the output matrix whose logits are the largest of a sequence, or the smallest. */
static void put_outputs(struct tiny_model *t, const int *tokens, int n, int sign, int8_t exponent) {
    struct matrix *m = &t->model.output;
    int16_t row[256];
    for (int k = 0; k < m->k; k++)
        row[k] = (int16_t)(sign * (32000 - 7 * k * (k % 3)));
    for (int i = 0; i < n; i++)
        t->dev->ops->matrix_put(t->dev, m, tokens[i], 1, row, &exponent);
}

/* The greedy token is the first of several whose logits are the largest, wherever these are; where
 * one is infinite, there is a fault, and none. */
static void test_greedy(void **state) {
    (void)state;
    skip_unless_there();
    const int32_t positions[] = {5, 0, 258, 1, 7};
    for (int model = 1; model <= 2; model++) {
        struct tiny_model t;
        struct random r = {21};
        struct step_case c;
        open_model(&t, models[model].json);
        int vocab = t.model.config.vocab_size, half = vocab / 2;
        const int pairs[][4] = {{0, vocab - 1, 1, 2},
                                {vocab - 1, vocab - 1, 0, 1},
                                {half, half + 8, 7, 8},
                                {15, 16, vocab - 1, vocab - 2}};
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            put_outputs(&t, pairs[i], 2, 1, 3); /* whichever sign a sequence has, two are largest */
            put_outputs(&t, pairs[i] + 2, 2, -1, 3);
            make_case(&c, &t, &r, positions, 5, 16);
            compare_ways(&c, NO_FAULT);
            free_case(&c);
            put_outputs(&t, pairs[i], 4, 1, -20);
        }
        for (int8_t exponent = 115; exponent < 127; exponent++) { /* of more and more sequences */
            put_outputs(&t, &half, 1, 1, exponent);
            make_case(&c, &t, &r, positions, 5, 16);
            compare_ways(&c, exponent == 126 ? A_FAULT : PERHAPS);
            free_case(&c);
        }
        tiny_model_close(&t);
    }
}

/* A pass draws as it was told, whoever has run it and whatever the pass before left there. */
static void test_next_tokens(void **state) {
    (void)state;
    skip_unless_there();
    enum { N = 3, PASSES = 5 };
    static const bool at_once[PASSES] = {true, true, false, true, true};
    static const float temperatures[PASSES][N] = {{0}, {0}, {0}, {1, 1, 1}, {0, 0, 1}};
    const int32_t positions[N] = {3, 100, 257};
    struct tiny_model t;
    struct random r = {31};
    struct error err = {""};
    open_model(&t, models[1].json);
    const struct ops *ops = t.dev->ops;
    int32_t *want = ops->alloc_host_visible(t.dev, N * sizeof *want, "tokens", &err), next[N];
    must(!want, &err);
    for (int pass = 0; pass < PASSES; pass++) {
        struct step_case c;
        struct kv_layer layers[N_LAYERS];
        struct sampling how[N] = {{0}};
        struct fault fault;
        for (uint32_t i = 0; i < N; i++)
            how[i] = (struct sampling){temperatures[pass][i], 0, 1, 5, i, 9};
        make_case(&c, &t, &r, positions, N, 16);
        fill_layers(layers, &c);
        must(ops->set_version(t.dev, "decode_step", 2, &err), &err);
        workspace_use_graphs(t.generator.ws, at_once[pass]);
        float *logits = run_pass(&c, layers, how, next, &err);
        must(!logits, &err);
        ops->sample(t.dev, want, logits, how, N, t.model.config.vocab_size, 0);
        must(ops->sync(t.dev, &fault, &err), &err);
        expect("next tokens", pass, N, 1, ELEMENT_INT32, want, next);
        free_layers(layers, &c);
        free_case(&c);
    }
    ops->free_host_visible(t.dev, want, N * sizeof *want);
    tiny_model_close(&t);
}

/* What it leaves to the other ops, and what it refuses. */
static void test_not_its_own(void **state) {
    (void)state;
    skip_unless_there();
    struct tiny_model t;
    struct random r = {8};
    struct error err = {""};
    struct step_case c;
    struct kv_layer none[N_LAYERS] = {{0}};
    const int32_t positions[] = {3, 4};
    float logits = 0;
    int32_t drawn = 0;
    open_model(&t, models[0].json);
    make_case(&c, &t, &r, positions, 2, 4);
    const struct ops *ops = t.dev->ops;
    must(ops->set_version(t.dev, "decode_step", 1, &err), &err);
    assert_int_equal(
        ops->decode_step(t.dev, &logits, &drawn, &t.model, none, &c.pages, c.ids, &err), 0);
    must(ops->set_version(t.dev, "decode_step", 0, &err), &err);
    must(ops->set_version(t.dev, "linear", 1, &err), &err); /* who asks for that wants it to run */
    c.pages.n_sequences = 1;                                /* few enough to be chosen else */
    assert_int_equal(
        ops->decode_step(t.dev, &logits, &drawn, &t.model, none, &c.pages, c.ids, &err), 0);
    c.pages.n_sequences = 2;
    must(ops->set_version(t.dev, "linear", 0, &err), &err);
    must(ops->set_version(t.dev, "decode_step", 2, &err), &err);
    c.last_page_len[1] = 5;
    assert_int_equal(
        ops->decode_step(t.dev, &logits, &drawn, &t.model, none, &c.pages, c.ids, &err), -1);
    assert_non_null(strstr(err.text, "sequence 1: its last page has 5 positions"));
    c.last_page_len[1] = 1;
    c.pages.page_size = 3; /* only powers of two */
    c.pages.n_pages = 9;
    assert_int_equal(
        ops->decode_step(t.dev, &logits, &drawn, &t.model, none, &c.pages, c.ids, &err), 0);
    c.pages.page_size = 4;
    c.kv_indptr[2] = c.kv_indptr[1]; /* padding */
    assert_int_equal(
        ops->decode_step(t.dev, &logits, &drawn, &t.model, none, &c.pages, c.ids, &err), 0);
    free_case(&c);
    tiny_model_close(&t);
}

/* It chooses itself where it pays: not for many sequences. */
static void test_choice(void **state) {
    (void)state;
    skip_unless_there();
    assert_int_equal(answer(0, 1, 100), 1);
    assert_int_equal(answer(0, 1, 767), 1);
    /* In the emulation one block has both heads, and goes through a third of their tiles. */
    assert_int_equal(answer(0, 1, 768), !device_is_emulated());
    assert_int_equal(answer(0, 2, 255), !device_is_emulated());
    assert_int_equal(answer(0, 40, 3), !device_is_emulated());
    assert_int_equal(answer(0, 65, 3), 0);
    assert_int_equal(answer(-1, 1, 100), 0);
    assert_int_equal(answer(2, 65, 3), 1);
    assert_int_equal(answer(2, 1, 2000), 1);
}

/* Weights that change behind the op's back: it has a copy of them. */
static void test_changed_weights(void **state) {
    (void)state;
    skip_unless_there();
    struct tiny_model t;
    struct random r = {9};
    const int32_t positions[] = {3, 4};
    open_model(&t, models[0].json);
    const struct model_config *config = &t.model.config;
    for (int i = 0; i < 3; i++) {
        struct step_case c;
        int16_t row[64];
        int8_t exponent = (int8_t)(i - 3);
        make_case(&c, &t, &r, positions, 2, 4);
        compare_ways(&c, NO_FAULT);
        free_case(&c);
        for (int k = 0; k < config->hidden; k++)
            row[k] = (int16_t)random_int(&r, -32639, 32639);
        t.dev->ops->matrix_put(t.dev, &t.model.layers[1].up, 7 + i, 1, row, &exponent);
    }
    tiny_model_close(&t);
}

/* The reference has none: it is the ops. */
static void test_who_has_it(void **state) {
    (void)state;
    assert_null(ref_ops.decode_step);
    assert_true(device_under_test() == &ref_ops || device_under_test()->decode_step);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_has_it),      cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_lengths),         cmocka_unit_test(test_many_tiles),
        cmocka_unit_test(test_faults),          cmocka_unit_test(test_overflows),
        cmocka_unit_test(test_greedy),          cmocka_unit_test(test_next_tokens),
        cmocka_unit_test(test_not_its_own),     cmocka_unit_test(test_choice),
        cmocka_unit_test(test_changed_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
