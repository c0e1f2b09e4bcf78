/* The choice of the next token: against the oracle, against answers worked out by hand, and against
 * the distribution that it promises. */
#include "model/numerics.h"
#include "tests/assert_bits.h"
#include "tests/device.h"
#include "tests/oracle.h"
#include "tests/random_inputs.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { SITE = 40, DRAWS = 200000 };

static struct test_device device;

/* ---- one call of the op ---------------------------------------------------------------------- */

/* Samples every row; the fault of the call is the return value. */
static struct fault sample(int32_t *ids, const float *logits, const struct sampling *how,
                           int n_rows, int vocab) {
    size_t n_bytes = sizeof *ids * (size_t)n_rows;
    struct error err = {""};
    int32_t *seen = device.ops->alloc_host_visible(device.dev, n_bytes, "token ids", &err);
    assert_non_null(seen);
    poison(seen, n_bytes);
    float *d_logits = device_put(&device, logits, sizeof *logits * (size_t)n_rows * (size_t)vocab);
    device.ops->sample(device.dev, seen, d_logits, how, n_rows, vocab, SITE);
    struct fault fault;
    assert_int_equal(device.ops->sync(device.dev, &fault, NULL), 0);
    memcpy(ids, seen, n_bytes);
    device.ops->free_host_visible(device.dev, seen, n_bytes);
    device_clear(&device);
    return fault;
}

static int32_t sample_one(const float *logits, struct sampling how, int vocab) {
    int32_t id;
    assert_int_equal(sample(&id, logits, &how, 1, vocab).site, -1);
    return id;
}

/* One distribution drawn n times: row i is how[i]. */
static int32_t *draw_many(const float *logits, int vocab, const struct sampling *how, int n) {
    int32_t *ids = malloc(sizeof *ids * (size_t)n);
    float *rows = malloc(sizeof *rows * (size_t)n * (size_t)vocab);
    for (int i = 0; i < n; i++)
        memcpy(rows + (size_t)i * (size_t)vocab, logits, sizeof *rows * (size_t)vocab);
    assert_int_equal(sample(ids, rows, how, n, vocab).site, -1);
    free(rows);
    return ids;
}

static struct sampling *positions_from_zero(struct sampling how, int n) {
    struct sampling *all = malloc(sizeof *all * (size_t)n);
    for (int i = 0; i < n; i++) {
        all[i] = how;
        all[i].position = (uint32_t)i;
    }
    return all;
}

static const struct sampling plain = {.temperature = 1, .top_p = 1, .seed = 1};

static struct sampling cut(int top_k, float top_p) {
    struct sampling how = plain;
    how.top_k = top_k;
    how.top_p = top_p;
    return how;
}

/* ---- greedy ---------------------------------------------------------------------------------- */

static const struct sampling greedy = {.top_p = 1};

static void test_greedy_lowest_of_ties(void **state) {
    (void)state;
    assert_int_equal(sample_one((float[]){1, 3, 3, 2, 3}, greedy, 5), 1);
    assert_int_equal(sample_one((float[]){7, 7, 7}, greedy, 3), 0);
    assert_int_equal(sample_one((float[]){-2, -1, -1}, greedy, 3), 1);
    assert_int_equal(sample_one((float[]){-1, -0.0f, 0}, greedy, 3), 1);
    assert_int_equal(sample_one((float[]){-1, 0, -0.0f}, greedy, 3), 1);
    assert_int_equal(sample_one((float[]){-FLT_MAX, -FLT_MAX}, greedy, 2), 0);
    assert_int_equal(sample_one((float[]){0, 0x1p-149f, FLT_MIN, FLT_MIN}, greedy, 4), 2);
    assert_int_equal(sample_one((float[]){FLT_MAX, 1, FLT_MAX}, greedy, 3), 0);
    assert_int_equal(sample_one((float[]){-5}, greedy, 1), 0);
    struct sampling how = cut(3, 0.5f); /* temperature 0 does not look at the rest */
    how.temperature = 0;
    assert_int_equal(sample_one((float[]){1, 2, 2, 0}, how, 4), 1);
    assert_int_equal(sample_one((float[3000]){0}, greedy, 3000), 0); /* some within a thread */
    /* Where a cluster has a row, ties within a block and between two. */
    enum { LONG = 20000 };
    static float logits[LONG];
    assert_int_equal(sample_one(logits, greedy, LONG), 0);
    logits[LONG - 1] = logits[LONG / 2 + 1] = logits[LONG / 2] = 1;
    assert_int_equal(sample_one(logits, greedy, LONG), LONG / 2);
}

static void test_greedy_finds_every_place(void **state) {
    (void)state;
    struct random r = {1};
    static const int sizes[] = {1, 2, 31, 4096, 16384, 16385, 151936};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        int vocab = sizes[s], places[] = {0, vocab / 8, (vocab - 1) / 8, vocab / 2, vocab - 1};
        float *logits = malloc(sizeof *logits * (size_t)vocab);
        for (size_t i = 0; i < COUNT(places); i++) {
            random_fill(&r, logits, (size_t)vocab, HEAVY_TAILED);
            logits[places[i]] = 0x1p40f;
            assert_int_equal(sample_one(logits, greedy, vocab), places[i]);
        }
        free(logits);
    }
}

/* ---- logits that are not finite -------------------------------------------------------------- */

static void assert_bad_logit(float bad, int at, int bad_row, float temperature) {
    enum { ROWS = 4, VOCAB = 70 };
    float logits[ROWS * VOCAB];
    struct sampling how[ROWS];
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS * VOCAB; i++)
        logits[i] = i % VOCAB == 3 ? 1000.0f : 0;
    for (int i = 0; i < ROWS; i++) {
        how[i] = plain;
        how[i].temperature = temperature;
    }
    for (int row = bad_row; row < ROWS; row += 2) /* the first of two is the one to name */
        logits[row * VOCAB + at] = bad;
    struct fault fault = sample(ids, logits, how, ROWS, VOCAB);
    assert_int_equal(fault.site, SITE);
    assert_int_equal(fault.token, bad_row);
    for (int row = 0; row < ROWS; row++)
        assert_int_equal(ids[row], row >= bad_row && (row - bad_row) % 2 == 0 ? 0 : 3);
    assert_int_equal(sample_one(logits + (bad_row ^ 1) * VOCAB, how[0], VOCAB), 3); /* cleared */
}

static void test_bad_logits_are_faults(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    static const int places[] = {0, 3, 42, 69};
    for (size_t b = 0; b < COUNT(bad); b++)
        for (size_t p = 0; p < COUNT(places); p++)
            for (int row = 0; row < 2; row++) {
                assert_bad_logit(bad[b], places[p], row, 0);
                assert_bad_logit(bad[b], places[p], row, 1);
            }
    enum { LONG = 20000 };
    static float logits[LONG];
    for (int at = 0, id; at < LONG; at += 1999) {
        logits[at] = NAN;
        assert_int_equal(sample(&id, logits, &greedy, 1, LONG).site, SITE);
        assert_int_equal(id, 0);
        logits[at] = 0;
    }
}

/* ---- against the oracle ---------------------------------------------------------------------- */

static void assert_like_oracle(struct random *r, int vocab, int n_rows, float step) {
    float *logits = malloc(sizeof *logits * (size_t)n_rows * (size_t)vocab);
    struct sampling *how = malloc(sizeof *how * (size_t)n_rows);
    int32_t *want = malloc(sizeof *want * (size_t)n_rows);
    int32_t *got = malloc(sizeof *got * (size_t)n_rows);
    for (int i = 0; i < n_rows; i++) {
        float *row = logits + (size_t)i * (size_t)vocab;
        random_logits(r, row, vocab, step);
        how[i] = random_sampling(r, vocab);
        want[i] = oracle_sample(row, &how[i], vocab);
    }
    assert_int_equal(sample(got, logits, how, n_rows, vocab).site, -1);
    struct tensor_view a = {"tokens", -1, (size_t)n_rows, 1, ELEMENT_INT32, want}, b = a;
    b.data = got;
    assert_same_bits(&a, &b);
    free(logits);
    free(how);
    free(want);
    free(got);
}

static void test_random_rows_like_the_oracle(void **state) {
    (void)state;
    struct random r = {2};
    int share = device_is_emulated() ? 5 : 1;
    for (int tied = 0; tied < 2; tied++) {
        float step = tied ? 0.5f : 0;
        assert_like_oracle(&r, 1, 50 / share, step);
        assert_like_oracle(&r, 2, 500 / share, step);
        assert_like_oracle(&r, 3, 1000 / share, step);
        assert_like_oracle(&r, 17, 1000 / share, step);
        assert_like_oracle(&r, 257, 300 / share, step);
        assert_like_oracle(&r, 4096, 60 / share, step);
        assert_like_oracle(&r, 16384, 3, step);
        assert_like_oracle(&r, 16385, 16, step); /* as many as have clusters on 132 processors */
        assert_like_oracle(&r, 16385, 17, step);
        assert_like_oracle(&r, 151936, 4, step);
    }
}

/* Differences of logits that overflow float32 are as unlikely as can be, not NaN. */
static void test_extreme_logits(void **state) {
    (void)state;
    const float logits[] = {-FLT_MAX, FLT_MAX, -FLT_MAX, FLT_MAX};
    struct sampling how = plain;
    for (how.position = 0; how.position < 200; how.position++) {
        how.temperature = how.position % 2 ? FLT_MAX : 1;
        int32_t id = sample_one(logits, how, 4);
        assert_true(id == 1 || id == 3);
        assert_int_equal(id, oracle_sample(logits, &how, 4));
    }
}

/* ---- the random number ----------------------------------------------------------------------- */

/* With 65536 equal logits the token is the upper 16 bits of the random number, and Random123's
 * answer for key 0 and counter 0 begins 6627e8d5 e169c58d. */
static void test_published_random_number(void **state) {
    (void)state;
    enum { VOCAB = 65536 };
    float *logits = calloc(VOCAB, sizeof *logits);
    struct sampling how = plain;
    how.seed = 0;
    assert_int_equal(sample_one(logits, how, VOCAB), 0xe169);
    free(logits);
}

/* Behind n tokens of the smallest weight, 1, stands the likeliest one: whenever the random number
 * is below n, it is the token. Every boundary between two tokens is hit exactly. */
static void test_boundaries_between_tokens(void **state) {
    (void)state;
    const int n = device_is_emulated() ? 2048 : 131072, wanted = device_is_emulated() ? 4 : 20;
    float *logits = malloc(sizeof *logits * (size_t)(n + 1));
    for (int i = 0; i < n; i++)
        logits[i] = -20.8f; /* e^-20.8 * 2^30 = 0.993 */
    logits[n] = 0;
    struct sampling how = plain;
    for (int hits = 0; hits < wanted; how.position++) {
        struct philox_key key = {{(uint32_t)how.seed, how.sample}};
        struct philox_block bits = num_philox(key, (struct philox_block){{how.position, 0, 0, 0}});
        uint64_t random = (uint64_t)bits.word[1] << 32 | bits.word[0];
        uint64_t r = (uint64_t)((unsigned __int128)random * (uint64_t)((1 << 30) + n) >> 64);
        if (r >= (uint64_t)n)
            continue;
        assert_int_equal(sample_one(logits, how, n + 1), r);
        hits++;
    }
    free(logits);
}

/* How many tokens agree. All rows have one set of logits and options, but each row varies one of
 * the things that make the key and the counter. Few tokens may agree with those of another stream:
 * 1 of 1000 by chance. */
static int agreements(const int32_t *a, const int32_t *b, int n) {
    int same = 0;
    for (int i = 0; i < n; i++)
        same += a[i] == b[i];
    return same;
}

static void test_streams_differ(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    enum { N = 1000, STREAMS = 6 };
    static float logits[N]; /* all zero: every token is as likely */
    static const struct {
        uint64_t seed;
        uint32_t sample, first;
    } streams[STREAMS] = {{5, 7, 0}, {7, 5, 0}, {5, 8, 0}, {6, 7, 0}, {5 + (1ull << 32), 7, 0},
                          {5, 7, 1}};
    int32_t *ids[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        struct sampling how = plain;
        how.seed = streams[s].seed;
        how.sample = streams[s].sample;
        struct sampling *all = positions_from_zero(how, N);
        for (int i = 0; i < N; i++)
            all[i].position += streams[s].first;
        ids[s] = draw_many(logits, N, all, N);
        free(all);
        for (int other = 0; other < s; other++)
            assert_true(agreements(ids[s], ids[other], N) < 10);
    }
    assert_int_equal(agreements(ids[0] + 1, ids[STREAMS - 1], N - 1), N - 1);
    for (int s = 0; s < STREAMS; s++)
        free(ids[s]);
}

static void test_any_row_of_any_batch(void **state) {
    (void)state;
    enum { ROWS = 37, VOCAB = 500 };
    struct random r = {3};
    float *logits = malloc(sizeof *logits * ROWS * VOCAB);
    float *turned = malloc(sizeof *turned * ROWS * VOCAB);
    struct sampling how[ROWS], how_turned[ROWS];
    int32_t ids[ROWS], ids_turned[ROWS];
    for (int i = 0; i < ROWS; i++) {
        int at = (i * 10 + 3) % ROWS;
        random_logits(&r, logits + i * VOCAB, VOCAB, 0);
        how[i] = how_turned[at] = random_sampling(&r, VOCAB);
        memcpy(turned + at * VOCAB, logits + i * VOCAB, sizeof *logits * VOCAB);
    }
    sample(ids, logits, how, ROWS, VOCAB);
    sample(ids_turned, turned, how_turned, ROWS, VOCAB);
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(ids[i], ids_turned[(i * 10 + 3) % ROWS]);
        assert_int_equal(ids[i], sample_one(logits + i * VOCAB, how[i], VOCAB));
    }
    free(logits);
    free(turned);
}

/* ---- the distribution ------------------------------------------------------------------------ */

/* Pearson's statistic of n tokens against the integer weights of the tokens that are kept. */
static double chi_square(const int32_t *ids, int n, const float *logits, const struct sampling *how,
                         int vocab, int *freedom) {
    unsigned char *kept = malloc((size_t)vocab);
    int *count = calloc((size_t)vocab, sizeof *count);
    *freedom = oracle_kept(kept, logits, how, vocab) - 1;
    float max = -INFINITY;
    for (int i = 0; i < vocab; i++)
        max = fmaxf(max, logits[i]);
    for (int i = 0; i < n; i++)
        count[ids[i]]++;
    double total = 0, sum = 0;
    for (int i = 0; i < vocab; i++)
        total += kept[i] ? oracle_sampling_weight(logits[i], max, how->temperature) : 0;
    for (int i = 0; i < vocab; i++) {
        if (!kept[i]) {
            assert_int_equal(count[i], 0);
            continue;
        }
        double weight = oracle_sampling_weight(logits[i], max, how->temperature);
        double expected = weight / total * n, off = count[i] - expected;
        sum += off * off / expected;
    }
    free(kept);
    free(count);
    return sum;
}

/* The statistic lies further than 4 standard deviations above its mean once in about 10,000 seeds;
 * these seeds are fixed. */
static void assert_distribution(const struct sampling *all, const float *logits, int vocab) {
    int32_t *ids = draw_many(logits, vocab, all, DRAWS);
    int freedom;
    double x = chi_square(ids, DRAWS, logits, &all[0], vocab, &freedom);
    if (!(x < freedom + 4 * sqrt(2.0 * freedom)))
        fail_msg("chi-square %.1f with %d degrees of freedom", x, freedom);
    free(ids);
}

static void test_draws_follow_the_weights(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    static const float logits[16] = {0, 1,    2, -1, 0.5f, 0.25f, 1, 1,
                                     3, 2.5f, 0, -2, 1.5f, 0.75f, 2, -0.5f};
    static const struct sampling choices[] = {
        {.temperature = 1, .top_p = 1, .seed = 11},
        {.temperature = 0.6f, .top_p = 1, .seed = 12},
        {.temperature = 1e30f, .top_p = 1, .seed = 13}, /* all the same */
        {.temperature = 1, .top_k = 6, .top_p = 1, .seed = 14},
        {.temperature = 2, .top_p = 0.8f, .seed = 15},
        {.temperature = 1, .top_k = 10, .top_p = 0.7f, .seed = 16},
    };
    for (size_t c = 0; c < COUNT(choices); c++) {
        struct sampling *all = positions_from_zero(choices[c], DRAWS);
        assert_distribution(all, logits, 16);
        free(all);
    }
}

/* Seeds and samples in a row are as good a source as positions in a row. */
static void test_every_counter_is_random(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    static const float logits[8] = {0, 1, 2, 3, 3, 2, 1, 0};
    struct sampling *all = malloc(sizeof *all * DRAWS);
    for (int which = 0; which < 3; which++) {
        for (int i = 0; i < DRAWS; i++) {
            all[i] = plain;
            if (which == 0)
                all[i].sample = (uint32_t)i;
            else
                all[i].seed = which == 1 ? (uint64_t)i : (uint64_t)i << 32;
        }
        assert_distribution(all, logits, 8);
    }
    free(all);
}

/* ---- top-k and top-p ------------------------------------------------------------------------- */

/* Draws 400 times; the tokens that came, one bit each. */
static unsigned tokens_seen(const float *logits, int vocab, struct sampling how) {
    enum { N = 400 };
    struct sampling *all = positions_from_zero(how, N);
    int32_t *ids = draw_many(logits, vocab, all, N);
    unsigned seen = 0;
    for (int i = 0; i < N; i++)
        seen |= 1u << ids[i];
    free(all);
    free(ids);
    return seen;
}

static void test_top_k(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    static const float equal[8] = {0}, mixed[6] = {1, 2, 1, 2, 1, 0};
    assert_int_equal(tokens_seen(equal, 8, cut(0, 1)), 0xff);
    assert_int_equal(tokens_seen(equal, 8, cut(3, 1)), 7);
    assert_int_equal(tokens_seen(equal, 8, cut(8, 1)), 0xff);
    assert_int_equal(tokens_seen(equal, 8, cut(100, 1)), 0xff);
    assert_int_equal(tokens_seen(mixed, 6, cut(2, 1)), 10);
    assert_int_equal(tokens_seen(mixed, 6, cut(3, 1)), 11);
    assert_int_equal(tokens_seen(mixed, 6, cut(4, 1)), 15);
    assert_int_equal(tokens_seen((float[]){-0.0f, 0, -0.0f}, 3, cut(2, 1)), 3); /* they tie */
}

static void test_top_k_1_is_greedy(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    struct random r = {4};
    float logits[300];
    for (int i = 0; i < 300; i++) {
        random_logits(&r, logits, 300, i % 2 ? 1 : 0);
        struct sampling how = random_sampling(&r, 300);
        how.top_k = 1;
        assert_int_equal(sample_one(logits, how, 300), sample_one(logits, greedy, 300));
        how.top_k = 0;
        how.top_p = 0;
        assert_int_equal(sample_one(logits, how, 300), sample_one(logits, greedy, 300));
    }
}

static void test_top_p_is_the_shortest_prefix(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    static const float equal[8] = {0};
    assert_int_equal(tokens_seen(equal, 4, cut(0, 0.25f)), 1);
    assert_int_equal(tokens_seen(equal, 4, cut(0, nextafterf(0.25f, 1))), 3);
    assert_int_equal(tokens_seen(equal, 4, cut(0, 0.5f)), 3);
    assert_int_equal(tokens_seen(equal, 4, cut(0, nextafterf(0.5f, 1))), 7);
    assert_int_equal(tokens_seen(equal, 4, cut(0, nextafterf(1, 0))), 15);
    assert_int_equal(tokens_seen(equal, 8, cut(4, 0.5f)), 3); /* half of the four that top-k kept */
    assert_int_equal(tokens_seen((float[]){0, 5, 0, 5}, 4, cut(0, 0.9f)), 10);
    struct random r = {5};
    for (int i = 0; i < 40; i++) {
        float logits[20];
        unsigned char kept[20];
        random_logits(&r, logits, 20, 0);
        struct sampling how = cut(0, 0.7f + 0.01f * (float)random_int(&r, 0, 29));
        unsigned may = 0, seen = tokens_seen(logits, 20, how);
        oracle_kept(kept, logits, &how, 20);
        for (int id = 0; id < 20; id++)
            may |= (unsigned)kept[id] << id;
        assert_int_equal(seen & ~may, 0);
    }
}

static void test_tiny_temperature_leaves_only_ties(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    static const float logits[] = {1, 2, 2, 1.9999999f, 2};
    struct sampling how = plain;
    how.temperature = 1e-30f;
    assert_int_equal(tokens_seen(logits, 5, how), 22);
    how.temperature = 0x1p-149f;
    assert_int_equal(tokens_seen(logits, 5, how), 22);
    how.temperature = FLT_MAX;
    assert_int_equal(tokens_seen(logits, 5, how), 31);
}

static int open_device(void **state) {
    (void)state;
    device_open(&device, device_under_test(), 0);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    device_close(&device);
    return 0;
}

/* All but the first have the least weight that there is, 1: e^-21.4 is 0.55 units of 2^-30. Some
 * position of the first few draws one of them; with this top-p the last 64 or so have left. */
static void test_least_weights_count(void **state) {
    (void)state;
    enum { VOCAB = 20000 };
    const uint64_t top = 1 << 30, sum = top + VOCAB - 1;
    struct sampling how = {.temperature = 1, .top_p = 0x1.fffffep-1f};
    uint64_t kept = (uint64_t)ceil((double)how.top_p * (double)sum), r = 0;
    float *logits = malloc(sizeof *logits * VOCAB);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = i ? -21.4f : 0;
    for (how.position = 0; how.position < 1000000 && r < top; how.position++)
        r = num_draw(how.seed, how.sample, how.position, kept);
    how.position--;
    assert_true(r >= top && r < sum);
    assert_int_equal(sample_one(logits, how, VOCAB), 1 + (int)(r - top));
    free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_lowest_of_ties),
        cmocka_unit_test(test_greedy_finds_every_place),
        cmocka_unit_test(test_bad_logits_are_faults),
        cmocka_unit_test(test_random_rows_like_the_oracle),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(test_published_random_number),
        cmocka_unit_test(test_boundaries_between_tokens),
        cmocka_unit_test(test_streams_differ),
        cmocka_unit_test(test_any_row_of_any_batch),
        cmocka_unit_test(test_draws_follow_the_weights),
        cmocka_unit_test(test_every_counter_is_random),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_k_1_is_greedy),
        cmocka_unit_test(test_top_p_is_the_shortest_prefix),
        cmocka_unit_test(test_least_weights_count),
        cmocka_unit_test(test_tiny_temperature_leaves_only_ties),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
