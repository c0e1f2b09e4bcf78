/* Lab 0: rmsnorm, attention, the draw of a token. */
#include "model/numerics.h"
#include "ref/attention.h"
#include "tests/labs/00/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <stdlib.h>
#include <string.h>

enum { SITE = 7, DIM = 64 };

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
    lab_int(log, fault.site == SITE ? fault.token : -1, "token of the fault (-1: none)");
    dev->ops->close(dev);
}

static float *random_floats(struct random *r, int n) {
    float *x = calloc((size_t)n + 1, sizeof *x);
    if (!x)
        exit(2);
    random_fill(r, x, (size_t)n, NORMAL);
    return x;
}

static float *unwritten(int n) {
    float *x = calloc((size_t)n + 1, sizeof *x);
    if (!x)
        exit(2);
    for (int i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

/* ---- step 1 ---------------------------------------------------------------------------------- */

static void run_rmsnorm(struct lab_log *log, int n_cols) {
    struct random r = {(uint64_t)n_cols};
    struct device *dev = open_device(log);
    float *x = random_floats(&r, 3 * n_cols), *gain = random_floats(&r, n_cols);
    float *y = unwritten(3 * n_cols);
    ref_rmsnorm(dev, y, x, gain, 3, n_cols, 1, 1e-5, SITE);
    for (int row = 0; row < 3; row++)
        lab_floats(log, y + row * n_cols, n_cols, "column", 0, "y of row %d", row);
    ref_rmsnorm(dev, x, x, gain, 3, n_cols, 1, 1e-5, SITE);
    lab_int(log, !memcmp(x, y, sizeof *x * 3 * (size_t)n_cols), "the same in place");
    close_device(log, dev);
    free(x);
    free(y);
    free(gain);
}

static void run_rmsnorm_scale(struct lab_log *log, int exponent) {
    struct random r = {5};
    struct device *dev = open_device(log);
    float *x = random_floats(&r, 8), *gain = random_floats(&r, 8), *y = unwritten(8);
    for (int i = 0; i < 8; i++)
        x[i] = ldexpf(x[i], exponent);
    ref_rmsnorm(dev, y, x, gain, 1, 8, 1, 1e-5, SITE);
    lab_floats(log, y, 8, "column", 0, "y of a row times 2^%d", exponent);
    close_device(log, dev);
    free(x);
    free(y);
    free(gain);
}

static void run_rmsnorm_fault(struct lab_log *log, int rows_per_token) {
    struct random r = {1};
    struct device *dev = open_device(log);
    int n_rows = 4 * rows_per_token;
    float *x = random_floats(&r, n_rows * 8), *gain = random_floats(&r, 8);
    x[(3 * rows_per_token - 1) * 8 + 5] = NAN; /* the last row of token 2 */
    float *y = unwritten(n_rows * 8);
    ref_rmsnorm(dev, y, x, gain, n_rows, 8, rows_per_token, 1e-5, SITE);
    close_device(log, dev);
    free(x);
    free(y);
    free(gain);
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

/* less: what is taken from each score. */
static void note_softmax(struct lab_log *log, int n, float less) {
    struct random r = {(uint64_t)n};
    struct device *dev = open_device(log);
    float *s = random_floats(&r, n);
    for (int i = 0; i < n; i++)
        s[i] -= less;
    double *units = calloc((size_t)n, sizeof *units);
    int16_t *weights = calloc((size_t)n, sizeof *weights);
    if (!units || !weights)
        exit(2);
    for (int i = 0; i < n; i++)
        units[i] = num_pow2(random_int(&r, -6, 6));
    struct row_name name = {dev, SITE, 3};
    struct tile_result tile =
        ref_tile_softmax(weights, s, units, n, num_score_unit_of(-8, 1.5), name);
    lab_floats(log, &tile.m, 1, "", 0, "m, the largest score");
    lab_floats(log, &tile.l, 1, "", 0, "l, the sum of the probabilities");
    lab_int(log, tile.exponent, "the exponent of the weights");
    for (int i = 0; i < n; i++)
        lab_int(log, weights[i], "weight of position %d", i);
    close_device(log, dev);
    free(s);
    free(units);
    free(weights);
}

static void run_softmax(struct lab_log *log, int n) {
    note_softmax(log, n, 0);
    note_softmax(log, n, 8); /* all below 0 */
}

static void run_merge(struct lab_log *log, int n_tiles) {
    struct random r = {(uint64_t)n_tiles};
    float o[4] = {0}, m = -INFINITY, l = 0;
    for (int i = 0; i < n_tiles; i++) {
        struct tile_result tile = {random_normal(&r), 1 + random_up_to_1(&r),
                                   random_int(&r, -3, 3)};
        float sums[4];
        for (int d = 0; d < 4; d++)
            sums[d] = 256.0f * (float)random_int(&r, -100000, 100000);
        ref_merge_tile(o, &m, &l, &tile, sums, 4);
        lab_floats(log, &m, 1, "", 0, "m after tile %d", i);
        lab_floats(log, &l, 1, "", 0, "l after tile %d", i);
        lab_floats(log, o, 4, "column", 0, "o after tile %d", i);
    }
}

/* Positions with random keys and values, of any exponent. */
static struct kv_layer random_cache(struct random *r, int n, int dim) {
    struct kv_layer kv = {calloc((size_t)(n * dim), 2), calloc((size_t)(n * dim), 2),
                          calloc((size_t)n, 1), calloc((size_t)n, 1)};
    if (!kv.k || !kv.v || !kv.k_exponents || !kv.v_exponents)
        exit(2);
    for (int i = 0; i < n * dim; i++) {
        kv.k[i] = (int16_t)random_int(r, -32639, 32639);
        kv.v[i] = (int16_t)random_int(r, -32639, 32639);
    }
    for (int i = 0; i < n; i++) {
        kv.k_exponents[i] = (int8_t)random_int(r, -2, 2);
        kv.v_exponents[i] = (int8_t)random_int(r, -2, 2);
    }
    return kv;
}

static void attend(struct lab_log *log, int n_tokens, int kv_len, int n_heads, int n_kv_heads,
                   int dim, int seed) {
    struct random r = {(uint64_t)(1000 * seed + kv_len)};
    struct device *dev = open_device(log);
    struct attention_shape shape = {.n_heads = n_heads,
                                    .n_kv_heads = n_kv_heads,
                                    .head_dim = dim,
                                    .scale = 1 / sqrt((double)dim)};
    struct kv_layer kv = random_cache(&r, kv_len * n_kv_heads, dim);
    float *q = random_floats(&r, n_tokens * n_heads * dim);
    float *y = unwritten(n_tokens * n_heads * dim);
    ref_attention(dev, y, q, &kv, n_tokens, kv_len, &shape, SITE);
    for (int t = 0; t < n_tokens; t++)
        for (int h = 0; h < n_heads; h++)
            lab_floats(log, y + (t * n_heads + h) * dim, dim, "column", 0,
                       "y of position %d, head %d", kv_len - n_tokens + t, h);
    close_device(log, dev);
    free(kv.k);
    free(kv.v);
    free(kv.k_exponents);
    free(kv.v_exponents);
    free(q);
    free(y);
}

static void run_one_query(struct lab_log *log, int kv_len) {
    for (int seed = 0; seed < (kv_len < 4 ? 40 : 1); seed++)
        attend(log, 1, kv_len, 1, 1, DIM, seed);
}

static void run_causal(struct lab_log *log, int kv_len) {
    attend(log, kv_len, kv_len, 1, 1, 16, 0);
}

static void run_appended(struct lab_log *log, int kv_len) {
    attend(log, 2, kv_len, 1, 1, 16, 0);
}

static void run_sees_nothing(struct lab_log *log, int kv_len) {
    attend(log, kv_len + 2, kv_len, 1, 1, 16, 0);
}

/* A score and then a query that is no number; the rows before it have their results. */
static void run_attention_fault(struct lab_log *log, int n_tokens) {
    struct random r = {(uint64_t)n_tokens};
    struct device *dev = open_device(log);
    float s[4] = {0, 1, INFINITY, 2};
    double units[4] = {1, 1, 1, 1};
    int16_t weights[4];
    ref_tile_softmax(weights, s, units, 4, num_score_unit_of(-8, 1.5),
                     (struct row_name){dev, SITE, n_tokens});
    close_device(log, dev);
    dev = open_device(log);
    struct attention_shape shape = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 16, .scale = 0.25};
    struct kv_layer kv = random_cache(&r, n_tokens, 16);
    float *q = random_floats(&r, n_tokens * 16), *y = unwritten(n_tokens * 16);
    q[n_tokens * 16 - 3] = NAN;
    ref_attention(dev, y, q, &kv, n_tokens, n_tokens, &shape, SITE);
    for (int t = 0; t < n_tokens - 1; t++)
        lab_floats(log, y + t * 16, 16, "column", 0, "y of position %d, before a NaN", t);
    close_device(log, dev);
    free(kv.k);
    free(kv.v);
    free(kv.k_exponents);
    free(kv.v_exponents);
    free(q);
    free(y);
}

static void run_heads(struct lab_log *log, int n_kv_heads) {
    attend(log, 2, 5, 2 * n_kv_heads, n_kv_heads, 16, 0);
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

static int32_t sample_one(struct lab_log *log, const float *logits, int vocab,
                          struct sampling how) {
    struct device *dev = open_device(log);
    int32_t id = -1;
    ref_sample(dev, &id, logits, &how, 1, vocab, SITE);
    close_device(log, dev);
    return id;
}

static void run_greedy(struct lab_log *log, int vocab) {
    struct random r = {(uint64_t)vocab};
    float *logits = random_floats(&r, vocab);
    lab_int(log, sample_one(log, logits, vocab, (struct sampling){.top_p = 1}),
            "the largest logit");
    for (int i = vocab / 2; i < vocab; i++)
        logits[i] = 9;
    lab_int(log, sample_one(log, logits, vocab, (struct sampling){.top_p = 1}),
            "the largest logit, several times");
    for (int i = 0; i < vocab; i++)
        logits[i] = -1 - (float)(i % 3);
    lab_int(log, sample_one(log, logits, vocab, (struct sampling){.top_p = 1}),
            "the largest logit, all below 0");
    logits[vocab - 1] = INFINITY;
    lab_int(log, sample_one(log, logits, vocab, (struct sampling){.top_p = 1}),
            "token of a row with an infinity");
    free(logits);
}

static void draw(struct lab_log *log, int vocab, int top_k, float top_p, const char *how_said) {
    struct random r = {(uint64_t)vocab};
    float *logits = random_floats(&r, vocab);
    struct sampling how = {.temperature = 0.7f, .top_k = top_k, .top_p = top_p, .seed = 42};
    for (int i = 0; i < 24; i++) {
        how.position = (uint32_t)i;
        how.sample = (uint32_t)i % 3;
        lab_int(log, sample_one(log, logits, vocab, how), "draw%s, position %d, sample %d",
                how_said, i, i % 3);
    }
    free(logits);
}

static void run_draw(struct lab_log *log, int vocab) {
    draw(log, vocab, 0, 1, "");
}

static void run_top(struct lab_log *log, int vocab) {
    draw(log, vocab, 2, 1, " with top-k 2");
    draw(log, vocab, 0, 0.5f, " with top-p 0.5");
}

static void run_rows(struct lab_log *log, int n_rows) {
    struct random r = {(uint64_t)n_rows};
    struct device *dev = open_device(log);
    float *logits = random_floats(&r, n_rows * 10);
    struct sampling how[4];
    int32_t ids[4];
    for (int i = 0; i < n_rows; i++)
        how[i] = (struct sampling){
            .temperature = i % 2 ? 1.5f : 0, .top_p = 1, .seed = 1, .position = (uint32_t)i};
    ref_sample(dev, ids, logits, how, n_rows, 10, SITE);
    lab_ints(log, ids, n_rows, "row", 0, "tokens of several rows");
    logits[n_rows * 10 - 1] = NAN;
    ref_sample(dev, ids, logits, how, n_rows, 10, SITE);
    lab_ints(log, ids, n_rows, "row", 0, "tokens, with a NaN in the last row");
    close_device(log, dev);
    free(logits);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_NO_CACHE, 2, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"rmsnorm", 1, "three rows, and in place", "columns", LAB_SIZES(1, 2, 3, 64, 1000), run_rmsnorm,
     0},
    {"scale", 1, "rows of small and large numbers", "power of two", LAB_SIZES(0, 4, 12, 40, -20),
     run_rmsnorm_scale, 0},
    {"fault", 1, "a NaN is told, with its token", "rows a token", LAB_SIZES(1, 2, 4),
     run_rmsnorm_fault, 0},
    {"softmax", 2, "one row and one tile", "positions", LAB_SIZES(1, 2, 3, 255, 256), run_softmax,
     0},
    {"merge", 2, "tiles one after the other", "tiles", LAB_SIZES(1, 2, 3, 8), run_merge, 0},
    {"one query", 2, "a query and what it sees, tile by tile", "positions",
     LAB_SIZES(1, 2, 3, 255, 256, 257, 512, 513), run_one_query, 0},
    {"causal", 2, "each position sees itself and what is before it", "positions",
     LAB_SIZES(1, 2, 3, 17, 257), run_causal, 0},
    {"appended", 2, "two queries at the end of a longer text", "positions",
     LAB_SIZES(2, 3, 17, 256, 257, 258), run_appended, 0},
    {"nothing", 2, "more queries than positions", "positions", LAB_SIZES(1, 2, 300),
     run_sees_nothing, 0},
    {"no number", 2, "a score or a query that is no number is told", "tokens", LAB_SIZES(1, 2, 4),
     run_attention_fault, 0},
    {"heads", 2, "heads that share keys and values", "kv heads", LAB_SIZES(1, 2, 3), run_heads, 0},
    {"greedy", 3, "the largest logit", "tokens in the vocabulary", LAB_SIZES(1, 2, 5, 1000),
     run_greedy, 0},
    {"draw", 3, "a token drawn with its weight", "tokens in the vocabulary",
     LAB_SIZES(1, 2, 5, 300), run_draw, 0},
    {"top", 3, "of the likeliest tokens only", "tokens in the vocabulary", LAB_SIZES(3, 5, 300),
     run_top, 0},
    {"rows", 3, "several rows, each in its way", "rows", LAB_SIZES(1, 2, 4), run_rows, 0},
    {"serve", 3, "the model writes with it", "requests", LAB_SIZES(16), run_serve, 60},
};

const struct lab lab = {
    .number = 0,
    .title = "the forward pass and the draw",
    .served = "your norm, attention and draw",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_0_causes,
    .n_causes = N_LAB_0_CAUSES,
};
