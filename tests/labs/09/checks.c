/* Lab 9: what a query sees, and what happens to its scores. */
#include "ref/attention.h"
#include "tests/labs/09/causes.h"
#include "tests/labs/lab.h"
#include "tests/random.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SITE = 7, HEADS = 2, DIM = 16, PAGE = 16 };

/* ---- step 1 ---------------------------------------------------------------------------------- */

/* What n_tokens queries see of each tile; a range of nothing may be said in many ways. */
static void note_ranges(struct lab_log *log, const struct attention_variant *v, int n_tokens,
                        int kv_len, const char *which) {
    for (int i = 0; i < n_tokens; i++)
        for (int tile = 0; tile < kv_len; tile += TILE) {
            struct varied_row row = {
                .variant = v, .i = i, .before = kv_len - n_tokens, .kv_len = kv_len, .natural = 1};
            struct tile_range range = ref_seen_in_tile(&row, tile);
            bool any = range.first < range.end;
            lab_int(log, any ? range.first : -1,
                    "%s, query at position %d of %d, tile from %d: first (-1: sees nothing)", which,
                    row.before + i, kv_len, tile);
            lab_int(log, any ? range.end : -1,
                    "%s, query at position %d of %d, tile from %d: end (-1: sees nothing)", which,
                    row.before + i, kv_len, tile);
        }
}

static void run_causal(struct lab_log *log, int kv_len) {
    struct attention_variant v = {.causal = true, .window_left = -1};
    note_ranges(log, &v, kv_len < 3 ? kv_len : 3, kv_len, "causal");
}

static void run_open(struct lab_log *log, int kv_len) {
    struct attention_variant v = {.window_left = -1};
    note_ranges(log, &v, kv_len < 3 ? kv_len : 3, kv_len, "not causal");
}

static void run_window(struct lab_log *log, int window) {
    struct attention_variant v = {.causal = true, .window_left = window};
    note_ranges(log, &v, 3, 4, "window");
    note_ranges(log, &v, 3, 600, "window");
}

static void run_open_window(struct lab_log *log, int window) {
    struct attention_variant v = {.window_left = window};
    note_ranges(log, &v, 3, 4, "window, not causal");
    note_ranges(log, &v, 3, 600, "window, not causal");
}

static void run_replaced(struct lab_log *log, int kv_len) {
    struct attention_variant v = {.causal = true, .window_left = -1, .mask_form = MASK_BYTES};
    note_ranges(log, &v, 2, kv_len, "causal, and a mask of bytes");
    v.mask_form = MASK_BITS;
    v.window_left = 1;
    note_ranges(log, &v, 2, kv_len, "window, and a mask of bits");
}

static void run_more_queries(struct lab_log *log, int n_tokens) {
    struct attention_variant v = {.causal = true, .window_left = -1};
    note_ranges(log, &v, n_tokens, 2, "more queries than positions, causal");
    v.window_left = 1;
    note_ranges(log, &v, n_tokens, 2, "more queries than positions, window");
    v.causal = false;
    note_ranges(log, &v, n_tokens, 2, "more queries than positions, window, not causal");
    v.window_left = INT_MAX;
    note_ranges(log, &v, n_tokens, 2, "more queries than positions, the widest window, not causal");
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

static void note_mask(struct lab_log *log, enum mask_form form, const uint8_t *mask, int kv_len,
                      const char *which) {
    struct attention_variant v = {.window_left = -1, .mask_form = form, .mask = mask};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < kv_len; j++) {
            struct varied_row row = {.variant = &v, .mask = mask, .i = i, .kv_len = kv_len};
            lab_int(log, ref_mask_shows(&row, j), "%s of 3 x %d elements: query %d, position %d",
                    which, kv_len, i, j);
        }
}

/* values [7] come again and again. */
static void run_mask_of(struct lab_log *log, int kv_len, const uint8_t *values) {
    uint8_t *mask = malloc(3 * (size_t)kv_len);
    if (!mask)
        exit(2);
    for (int i = 0; i < 3 * kv_len; i++)
        mask[i] = values[i % 7];
    note_mask(log, MASK_BYTES, mask, kv_len, "a mask of bytes");
    note_mask(log, MASK_NONE, NULL, kv_len, "no mask");
    free(mask);
}

static void run_bytes(struct lab_log *log, int kv_len) {
    run_mask_of(log, kv_len, (const uint8_t[]){1, 0, 0, 1, 0, 1, 1});
}

static void run_any_byte(struct lab_log *log, int kv_len) {
    run_mask_of(log, kv_len, (const uint8_t[]){1, 0, 2, 255, 0, 128, 16});
}

static void run_bits(struct lab_log *log, int kv_len) {
    size_t n = (3 * (size_t)kv_len + 7) / 8;
    struct random r = {1};
    uint8_t *mask = malloc(n);
    if (!mask)
        exit(2);
    for (size_t i = 0; i < n; i++)
        mask[i] = i ? (uint8_t)random_int(&r, 0, 255) : 0x4b;
    note_mask(log, MASK_BITS, mask, kv_len, "a mask of bits");
    free(mask);
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

/* Scores of positions 300 and on, in the tile from 256; a query at position 310. */
static void note_scores(struct lab_log *log, const struct attention_variant *v, int n,
                        const char *what) {
    struct random r = {(uint64_t)n};
    uint8_t mask[3 * 400];
    float s[TILE];
    double units[TILE];
    for (int i = 0; i < 3 * 400; i++)
        mask[i] = (uint8_t)(i % 3 != 1);
    for (int j = 0; j < TILE; j++) {
        s[j] = random_normal(&r);
        units[j] = num_pow2(random_int(&r, -4, 4));
    }
    struct varied_row row = {v, v->mask_form ? mask : NULL, 1, 309, 400, 0.3f, 0.7};
    struct tile_range range = {300 - TILE, 300 - TILE + n};
    bool visible = ref_vary_scores(&row, TILE, range, s, units);
    lab_floats(log, s + range.first, n, "position", 300, "%s: scores", what);
    for (int j = range.first; j < range.end; j++)
        lab_int(log, (long long)(units[j] * 256), "%s: 256 times v_units of position %d", what,
                TILE + j);
    lab_int(log, visible, "%s: whether one is visible", what);
    lab_floats(log, s, range.first, "position", TILE, "%s: scores in front of the range", what);
    lab_floats(log, s + range.end, 8, "position", TILE + range.end, "%s: scores behind the range",
               what);
}

static const float some_slopes[1]; /* the row has its own already */

static void run_soft_cap(struct lab_log *log, int n) {
    struct attention_variant v = {.window_left = -1, .soft_cap = 1.5f};
    note_scores(log, &v, n, "soft cap 1.5");
}

static void run_alibi(struct lab_log *log, int n) {
    struct attention_variant v = {.window_left = -1, .alibi_slopes = some_slopes};
    note_scores(log, &v, n, "ALiBi, slope 0.3, query at 310");
}

static void run_both(struct lab_log *log, int n) {
    struct attention_variant v = {.window_left = -1, .soft_cap = 1.5f, .alibi_slopes = some_slopes};
    note_scores(log, &v, n, "soft cap and ALiBi");
}

static void run_hidden(struct lab_log *log, int n) {
    struct attention_variant v = {.window_left = -1, .mask_form = MASK_BYTES};
    note_scores(log, &v, n, "a mask alone");
    v.soft_cap = 1.5f;
    note_scores(log, &v, n, "a mask and a soft cap");
}

/* A variant with everything, through attend. */
static struct attention_variant everything(const uint8_t *mask, const int64_t *offsets,
                                           const float *slopes) {
    return (struct attention_variant){.causal = true,
                                      .window_left = 200,
                                      .soft_cap = 2,
                                      .mask_form = MASK_BITS,
                                      .mask = mask,
                                      .mask_offsets = offsets,
                                      .alibi_slopes = slopes};
}

static void note_attend(struct lab_log *log, const struct attention_variant *v, int n_tokens,
                        int kv_len, const char *which) {
    struct error err;
    struct random r = {(uint64_t)kv_len};
    struct device *dev = ref_ops.open(&(struct device_options){1}, &err);
    int n_pages = (kv_len - 1) / PAGE + 1, n = n_pages * PAGE * HEADS;
    int16_t *rows[2] = {calloc((size_t)(n * DIM), 2), calloc((size_t)(n * DIM), 2)};
    int8_t *exponents = calloc((size_t)n, 1);
    int32_t *pages = calloc((size_t)n_pages, sizeof *pages);
    float *q = calloc((size_t)(n_tokens * HEADS * DIM), sizeof *q),
          *y = malloc(sizeof *y * (size_t)(n_tokens * HEADS * DIM));
    struct attention_plan *plan = dev ? dev->ops->attention_plan_new(dev, &err) : NULL;
    if (!plan || !rows[0] || !rows[1] || !exponents || !pages || !q || !y)
        exit(2);
    for (int i = 0; i < n * DIM; i++) {
        rows[0][i] = (int16_t)random_int(&r, -32639, 32639);
        rows[1][i] = (int16_t)random_int(&r, -32639, 32639);
    }
    for (int i = 0; i < n_pages; i++)
        pages[i] = n_pages - 1 - i;
    random_fill(&r, q, (size_t)(n_tokens * HEADS * DIM), NORMAL);
    struct kv_layer layer = {rows[0], rows[1], exponents, exponents};
    struct kv_views kv = kv_layer_views(&layer, KV_BFP16, PAGE, HEADS, DIM);
    const int32_t qo[] = {0, n_tokens}, indptr[] = {0, n_pages}, last[] = {(kv_len - 1) % PAGE + 1};
    struct paged_batch batch = {1, PAGE, n_pages, qo, indptr, pages, last};
    struct attention_shape shape = {HEADS, HEADS, DIM, 0.25, KV_BFP16};
    lab_int(log, dev->ops->attention_plan(dev, plan, &batch, &shape, v, &err), "the plan");
    dev->ops->attend(dev, y, q, &kv, plan, v, SITE);
    lab_rows(log, y, n_tokens * HEADS, DIM, "row", 0, "attend with %s over %d positions", which,
             kv_len);
    dev->ops->attention_plan_free(dev, plan);
    dev->ops->close(dev);
    free(rows[0]);
    free(rows[1]);
    free(exponents);
    free(pages);
    free(q);
    free(y);
}

static void run_attend(struct lab_log *log, int kv_len) {
    int n_tokens = kv_len < 5 ? kv_len : 5;
    const float slopes[HEADS] = {0.25f, 0.01f};
    const int64_t offsets[] = {0};
    uint8_t *mask = calloc((size_t)(n_tokens * kv_len) / 8 + 1, 1);
    if (!mask)
        exit(2);
    for (int i = 0; i < n_tokens * kv_len; i++)
        mask[i / 8] |= (uint8_t)((i % 5 != 2) << i % 8);
    struct attention_variant v = {.causal = true, .window_left = 3};
    note_attend(log, &v, n_tokens, kv_len, "a window of 3");
    v = everything(mask, offsets, slopes);
    note_attend(log, &v, n_tokens, kv_len, "window, mask, soft cap and ALiBi");
    free(mask);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_FUSED, 6, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"causal", 1, "a query sees itself and what is before it", "positions",
     LAB_SIZES(1, 2, 3, 17, 256, 257, 258, 600), run_causal, 0},
    {"open", 1, "without causal, a query sees all positions", "positions",
     LAB_SIZES(1, 2, 3, 256, 257, 600), run_open, 0},
    {"window", 1, "a query sees itself and so many before it", "window_left",
     LAB_SIZES(1, 2, 255, 256, 300, 1000), run_window, 0},
    {"window of 0", 1, "a query sees itself alone", "window_left", LAB_SIZES(0), run_window, 0},
    {"open window", 1, "a window without causal", "window_left", LAB_SIZES(0, 1, 300, 1000),
     run_open_window, 0},
    {"replaced", 1, "a mask takes the place of causal, not of the window", "positions",
     LAB_SIZES(2, 5, 300), run_replaced, 0},
    {"more queries", 1, "queries before the first position see nothing", "queries",
     LAB_SIZES(3, 4, 8), run_more_queries, 0},
    {"bytes", 2, "a mask of bytes, or none", "positions", LAB_SIZES(1, 2, 7, 300), run_bytes, 0},
    {"any byte", 2, "every byte but 0 shows a position", "positions", LAB_SIZES(1, 2, 7),
     run_any_byte, 0},
    {"bits", 2, "a mask of bits", "positions", LAB_SIZES(1, 2, 5, 8, 9, 300), run_bits, 0},
    {"soft cap", 3, "scores between -cap and cap", "positions", LAB_SIZES(1, 2, 20), run_soft_cap,
     0},
    {"ALiBi", 3, "scores that fall with the distance", "positions", LAB_SIZES(1, 2, 20), run_alibi,
     0},
    {"both", 3, "first the cap, then the distance", "positions", LAB_SIZES(1, 2, 20), run_both, 0},
    {"hidden", 3, "hidden positions, alone and among others", "positions", LAB_SIZES(1, 2, 3, 20),
     run_hidden, 0},
    {"attend", 3, "attention with all of it", "positions", LAB_SIZES(1, 2, 5, 20, 256, 257, 600),
     run_attend, 0},
    {"serve", 3, "the model's requests in one attention", "requests", LAB_SIZES(1, 16), run_serve,
     30},
};

const struct lab lab = {
    .number = 9,
    .title = "what a query sees, and its scores",
    .served = "your variant",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_9_causes,
    .n_causes = N_LAB_9_CAUSES,
};
