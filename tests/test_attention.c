/* Attention against the oracle, bit for bit: lengths about the tile, groupings of heads, chunks,
 * extremes of the softmax. Slots behind the sequence hold poison. */
#include "model/numerics.h"
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/oracle.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Unused slots of every cache. */
enum { SPARE = 5 };

/* What makes a softmax hard. */
enum kind {
    ORDINARY,
    EQUAL_SCORES,  /* queries of zeros */
    ONE_WINNER,    /* scores around 2^40: one key gets everything */
    WILD_VALUES,   /* value rows from 2^-90 to 2^90: most weights are flushed or snapped to 0 */
    TINY_VALUES,   /* value rows below 2^-95, where weights reach 2^-126 */
    FEW_BITS,      /* here and there 2^-115, with little weight: a division leaves few bits */
    SOME_FEW_BITS, /* that in every other dimension, beside numbers that are not small */
    TOO_MUCH,      /* equal scores, and values whose sum float32 cannot hold */
    HEAVY_QUERIES, /* some scores of a row tie, some are 0, some win */
    CLIMBING,      /* the maximum grows with every key: every merge rescales what came before */
    ONE_SIGN,      /* all scores of a row are negative, of three others positive */
    N_KINDS
};

struct problem {
    int n_tokens, kv_len, n_slots;
    struct attention_shape shape;
    float *q;             /* [n_tokens, n_heads, head_dim] */
    struct bfp_rows k, v; /* [n_slots * n_kv_heads, head_dim] */
};

static int q_cols(const struct problem *p) {
    return p->shape.n_heads * p->shape.head_dim;
}

static size_t y_bytes(const struct problem *p, int n_tokens) {
    return sizeof(float) * (size_t)n_tokens * (size_t)q_cols(p);
}

static void fill_query(struct random *r, float *q, int n, enum kind kind) {
    int scale = kind == ONE_WINNER ? 40 : kind == FEW_BITS || kind == SOME_FEW_BITS ? 1 : 0;
    for (int i = 0; i < n; i++)
        q[i] = kind == EQUAL_SCORES || kind == TOO_MUCH ? 0
               : kind == CLIMBING                       ? 1
                                                        : ldexpf(random_normal(r), scale);
    if (kind == HEAVY_QUERIES)
        random_fill(r, q, (size_t)n, HEAVY_TAILED);
    bool negative = kind == ONE_SIGN && random_int(r, 0, 3) == 0;
    for (int i = 0; kind == ONE_SIGN && i < n; i++)
        q[i] = negative ? -fabsf(q[i]) : fabsf(q[i]);
}

static void fill_key_and_value(struct random *r, float *k, float *v, int n, int position,
                               enum kind kind) {
    random_fill(r, k, (size_t)n, kind == HEAVY_QUERIES && position % 3 ? SPARSE : NORMAL);
    for (int i = 0; kind == CLIMBING && i < n; i++)
        k[i] = (float)(position % 700) / 64;
    for (int i = 0; kind == ONE_SIGN && i < n; i++)
        k[i] = fabsf(k[i]);
    int e = kind == WILD_VALUES   ? random_int(r, -90, 90)
            : kind == TINY_VALUES ? random_int(r, -120, -95)
            : kind == TOO_MUCH    ? 122
                                  : 0;
    for (int i = 0; i < n; i++)
        v[i] = ldexpf(kind == TOO_MUCH ? fabsf(random_normal(r)) : random_normal(r), e);
    for (int i = 0; kind == FEW_BITS && i < n; i++)
        v[i] = ldexpf(position % 32 == 5 ? (float)random_int(r, -3, 3) : 0, -115);
    for (int i = 0; kind == SOME_FEW_BITS && i < n; i++)
        if (i % 2 || position >= 256)
            v[i] = i % 2 && position % 256 == 5 && position > 256 ? 3 * 0x1p-115f : 0;
}

static struct problem make_problem(struct random *r, int n_heads, int n_kv_heads, int head_dim,
                                   int n_tokens, int kv_len, enum kind kind) {
    struct problem p = {
        .n_tokens = n_tokens,
        .kv_len = kv_len,
        .n_slots = kv_len + SPARE,
        .shape = {n_heads, n_kv_heads, head_dim, 1 / sqrt((double)head_dim), KV_BFP16}};
    float k[258], v[258];
    p.q = host_array((size_t)n_tokens * (size_t)q_cols(&p), sizeof *p.q);
    p.k = host_rows(p.n_slots * n_kv_heads, head_dim);
    p.v = host_rows(p.n_slots * n_kv_heads, head_dim);
    for (int row = 0; row < n_tokens * n_heads; row++)
        fill_query(r, p.q + (size_t)row * (size_t)head_dim, head_dim, kind);
    for (int row = 0; row < kv_len * n_kv_heads; row++) {
        fill_key_and_value(r, k, v, head_dim, row / n_kv_heads, kind);
        p.k.exponents[row] = (int8_t)oracle_snap(p.k.mantissas + row * head_dim, k, head_dim);
        p.v.exponents[row] = (int8_t)oracle_snap(p.v.mantissas + row * head_dim, v, head_dim);
    }
    return p;
}

static void free_problem(struct problem *p) {
    free(p->q);
    free_host_rows(p->k);
    free_host_rows(p->v);
}

static struct kv_layer put_cache(struct test_device *t, const struct problem *p) {
    int n_rows = p->n_slots * p->shape.n_kv_heads;
    struct bfp_rows k = device_put_rows(t, p->k, n_rows, p->shape.head_dim);
    struct bfp_rows v = device_put_rows(t, p->v, n_rows, p->shape.head_dim);
    return (struct kv_layer){k.mantissas, v.mantissas, k.exponents, v.exponents};
}

/* The op on the whole problem, whose queries and results begin `skip` floats behind what the device
 * gives; freed by the caller. */
static float *attend_behind(struct test_device *t, const struct problem *p, int skip) {
    struct kv_layer kv = put_cache(t, p);
    size_t bytes = y_bytes(p, p->n_tokens), before = sizeof(float) * (size_t)skip;
    float *q = device_poisoned(t, bytes + before), *y = device_poisoned(t, bytes + before);
    t->ops->upload(t->dev, q + skip, p->q, bytes);
    t->ops->attention(t->dev, y + skip, q + skip, &kv, p->n_tokens, p->kv_len, &p->shape, 1);
    float *host = device_get(t, y + skip, bytes);
    device_expect_fault(t, -1, 0);
    device_clear(t);
    return host;
}

static float *attend(struct test_device *t, const struct problem *p) {
    return attend_behind(t, p, 0);
}

static void assert_same_rows(const struct problem *p, const float *want, const float *got) {
    struct tensor_view a = {"attention",   -1,  (size_t)p->n_tokens, (size_t)q_cols(p),
                            ELEMENT_FLOAT, want};
    struct tensor_view b = a;
    b.data = got;
    char report[512];
    if (compare_bits(&a, &b, report, sizeof report))
        fail_msg("%d/%d heads of %d, %d tokens of %d: %s", p->shape.n_heads, p->shape.n_kv_heads,
                 p->shape.head_dim, p->n_tokens, p->kv_len, report);
}

static void check(struct test_device *t, const struct problem *p) {
    struct kv_layer kv = {p->k.mantissas, p->v.mantissas, p->k.exponents, p->v.exponents};
    float *want = host_array((size_t)p->n_tokens * (size_t)q_cols(p), sizeof *want);
    oracle_attention(want, p->q, &kv, p->n_tokens, p->kv_len, &p->shape);
    float *got = attend(t, p);
    assert_same_rows(p, want, got);
    free(got);
    free(want);
}

static void check_new(struct test_device *t, struct random *r, const int heads[2], int head_dim,
                      int n_tokens, int kv_len, enum kind kind) {
    int64_t products = (int64_t)n_tokens * kv_len * heads[0] * head_dim;
    if (device_is_emulated() && products > (kernel_under_test() ? 150000 : 300000))
        return;
#ifdef __SANITIZE_ADDRESS__
    if (products > 3000000)
        return; /* slow; the release build has them all */
#endif
    struct problem p = make_problem(r, heads[0], heads[1], head_dim, n_tokens, kv_len, kind);
    check(t, &p);
    free_problem(&p);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static const int kv_lens[] = {1, 2, 15, 17, 129, 255, 256, 257, 511, 512, 513, 1025};
static const int heads[][2] = {{1, 1}, {4, 4}, {8, 2}, {6, 3}, {7, 1}, {40, 1}};
static const int head_dims[] = {2, 32, 64, 80, 128};

static void test_one_token(void **state) {
    struct test_device *t = *state;
    struct random r = {31};
    for (size_t l = 0; l < COUNT(kv_lens); l++)
        for (size_t h = 0; h < COUNT(heads); h++)
            for (size_t d = 0; d < COUNT(head_dims); d++)
                if (!few_cases_do() || (l + h + d) % 3 == 0)
                    check_new(t, &r, heads[h], head_dims[d], 1, kv_lens[l], ORDINARY);
}

/* Two tokens, some odd number of them, and the whole text at once; the number of dot products is
 * held down by smaller heads. */
static void test_many_tokens(void **state) {
    struct test_device *t = *state;
    struct random r = {32};
    for (size_t l = 0; l < COUNT(kv_lens); l++)
        for (size_t h = 0; h < COUNT(heads); h++) {
            int kv_len = kv_lens[l], n_tokens[] = {2, (kv_len / 2) | 1, kv_len};
            for (int n = 0; n < 3; n++) {
                size_t d = (l + h + (size_t)n) % COUNT(head_dims);
                if (few_cases_do() && (l + h + (size_t)n) % 2)
                    continue;
                int64_t n_scores = (int64_t)n_tokens[n] * kv_len * heads[h][0];
                while (d > 0 && n_scores * head_dims[d] > 10000000)
                    d--;
                check_new(t, &r, heads[h], head_dims[d], n_tokens[n], kv_len, ORDINARY);
            }
        }
}

/* Just below, at and above the widths that a kernel may be compiled for. */
static void test_head_dims(void **state) {
    struct test_device *t = *state;
    struct random r = {41};
    static const int two_to_one[] = {2, 1};
    for (int width = 32; width <= 256; width += 32)
        for (int dim = width - 2; dim <= width + 2; dim++)
            check_new(t, &r, two_to_one, dim, 1, width % 64 ? 40 : 270, ORDINARY);
}

/* Queries and results that begin anywhere. */
static void test_any_alignment(void **state) {
    struct test_device *t = *state;
    struct random r = {42};
    for (int skip = 1; skip < 4; skip++) {
        struct problem p = make_problem(&r, 2, 1, 64, 40, 270, ORDINARY);
        float *want = attend(t, &p), *got = attend_behind(t, &p, skip);
        assert_same_rows(&p, want, got);
        free(got);
        free(want);
        free_problem(&p);
    }
}

/* More queries than positions: the first ones see nothing and give zeros. */
static void test_queries_that_see_nothing(void **state) {
    struct test_device *t = *state;
    struct random r = {33};
    static const int lens[][2] = {{1, 0}, {3, 0}, {3, 1}, {20, 17}, {300, 256}, {600, 257}};
    for (size_t i = 0; i < COUNT(lens); i++) {
        struct problem p = make_problem(&r, 6, 3, 32, lens[i][0], lens[i][1], ORDINARY);
        float *y = attend(t, &p);
        for (int j = 0; j < (p.n_tokens - p.kv_len) * q_cols(&p); j++)
            assert_int_equal(num_bits(y[j]), 0);
        free(y);
        check(t, &p);
        free_problem(&p);
    }
}

/* More rows of one kv head than the reference puts into one matrix product, at one token too. */
static void test_large_groups(void **state) {
    struct test_device *t = *state;
    struct random r = {40};
    static const int groups[][2] = {{300, 1}, {601, 1}, {1046, 2}};
    static const int lens[][2] = {{1, 1}, {1, 257}, {2, 2}, {3, 300}};
    for (size_t g = 0; g < COUNT(groups); g++)
        for (size_t l = 0; l < COUNT(lens); l++)
            check_new(t, &r, groups[g], 32, lens[l][0], lens[l][1], ORDINARY);
}

static void test_any_scale(void **state) {
    struct test_device *t = *state;
    struct random r = {34};
    static const double scales[] = {1, 0.1, 1e-30, 0, 0.5, 7.25, 1.0 / 3};
    for (size_t i = 0; i < COUNT(scales); i++) {
        struct problem p = make_problem(&r, 4, 2, 32, 9, 270, ORDINARY);
        p.shape.scale = scales[i];
        check(t, &p);
        free_problem(&p);
    }
}

/* ---- extremes -------------------------------------------------------------------------------- */

static void test_extremes(void **state) {
    struct test_device *t = *state;
    struct random r = {35};
    static const int lens[] = {1, 2, 255, 256, 257, 600, 1025};
    for (int kind = 0; kind < N_KINDS; kind++) {
        check_new(t, &r, heads[0], 32, 17, 270, (enum kind)kind);
        check_new(t, &r, heads[0], 16, 17, 530, (enum kind)kind);
        for (size_t l = 0; l < COUNT(lens); l++)
            for (int head_dim = 2; head_dim <= 128; head_dim *= 8) {
                int n_tokens = lens[l] < 12 ? lens[l] : 12;
                if (few_cases_do() && (l + (size_t)kind) % 3)
                    continue;
                check_new(t, &r, heads[2], head_dim, n_tokens, lens[l], (enum kind)kind);
            }
    }
}

/* Softmax weights worked out by hand: equal scores give the mean of the values, one winner gives
 * its value. */
static void test_known_answers(void **state) {
    struct test_device *t = *state;
    struct random r = {36};
    struct problem p = make_problem(&r, 1, 1, 2, 1, 512, EQUAL_SCORES);
    for (int j = 0; j < p.kv_len; j++) {
        float v[2] = {(float)(j % 4), -0.5f};
        p.v.exponents[j] = (int8_t)oracle_snap(p.v.mantissas + 2 * j, v, 2);
    }
    float *y = attend(t, &p);
    assert_true(y[0] == 1.5f && y[1] == -0.5f);
    free(y);
    p.q[0] = 1000;
    for (int j = 0; j < p.kv_len; j++) {
        float k[2] = {j == 300 ? 1 : 0, 0}, v[2] = {(float)j, (float)(-j)};
        p.k.exponents[j] = (int8_t)oracle_snap(p.k.mantissas + 2 * j, k, 2);
        p.v.exponents[j] = (int8_t)oracle_snap(p.v.mantissas + 2 * j, v, 2);
    }
    y = attend(t, &p);
    assert_true(y[0] == 300 && y[1] == -300);
    free(y);
    free_problem(&p);
}

/* ---- the same rows, computed otherwise ------------------------------------------------------- */

/* Tokens first ... first + n - 1 of a problem in which every position is a query. Their future is
 * in the cache already and must not be looked at. */
static void attend_chunk(struct test_device *t, const struct problem *p, int first, int n,
                         float *out) {
    struct kv_layer kv = put_cache(t, p);
    const float *q = p->q + (size_t)first * (size_t)q_cols(p);
    float *y = device_poisoned(t, y_bytes(p, n));
    t->ops->attention(t->dev, y, device_put(t, q, y_bytes(p, n)), &kv, n, first + n, &p->shape, 1);
    t->ops->download(t->dev, out + (size_t)first * (size_t)q_cols(p), y, y_bytes(p, n));
    device_expect_fault(t, -1, 0);
    device_clear(t);
}

static void test_chunks(void **state) {
    struct test_device *t = *state;
    struct random r = {37};
    static const int sizes[] = {1, 7, 64, 255, 256, 257, 300};
    bool few = few_cases_do() || device_is_emulated();
    int n = few ? 270 : 530;
    for (size_t h = 0; h < (few ? 1 : COUNT(heads)); h++) {
        struct problem p = make_problem(&r, heads[h][0], heads[h][1], 32, n, n, ORDINARY);
        float *want = attend(t, &p), *got = host_array((size_t)(n * q_cols(&p)), sizeof *got);
        for (size_t s = h == 2 ? 0 : 1; s < COUNT(sizes); s += h == 2 ? 1 : 3) {
            poison(got, y_bytes(&p, p.n_tokens));
            for (int first = 0; first < p.n_tokens; first += sizes[s]) {
                int left = p.n_tokens - first;
                attend_chunk(t, &p, first, left < sizes[s] ? left : sizes[s], got);
            }
            assert_same_rows(&p, want, got);
        }
        free(got);
        free(want);
        free_problem(&p);
    }
}

static void test_heads_are_independent(void **state) {
    struct test_device *t = *state;
    struct random r = {38};
    enum { DIM = 32, TOKENS = 9, LEN = 300, HEADS = 6, KV_HEADS = 3 };
    struct problem all = make_problem(&r, HEADS, KV_HEADS, DIM, TOKENS, LEN, ORDINARY);
    float *y = attend(t, &all);
    for (int head = 0; head < HEADS; head++) {
        struct problem one = make_problem(&r, 1, 1, DIM, TOKENS, LEN, ORDINARY);
        int kv_head = head / (HEADS / KV_HEADS);
        float want[TOKENS * DIM];
        for (int i = 0; i < TOKENS; i++) {
            memcpy(one.q + i * DIM, all.q + (i * HEADS + head) * DIM, sizeof *one.q * DIM);
            memcpy(want + i * DIM, y + (i * HEADS + head) * DIM, sizeof *want * DIM);
        }
        for (int j = 0; j < LEN; j++) {
            int from = j * KV_HEADS + kv_head;
            memcpy(one.k.mantissas + j * DIM, all.k.mantissas + from * DIM, sizeof(int16_t) * DIM);
            memcpy(one.v.mantissas + j * DIM, all.v.mantissas + from * DIM, sizeof(int16_t) * DIM);
            one.k.exponents[j] = all.k.exponents[from];
            one.v.exponents[j] = all.v.exponents[from];
        }
        float *got = attend(t, &one);
        assert_same_rows(&one, want, got);
        free(got);
        free_problem(&one);
    }
    free(y);
    free_problem(&all);
}

static void test_threads(void **state) {
    (void)state;
    if (device_is_emulated())
        skip();
    struct random r = {39};
    for (int n_tokens = 1; n_tokens <= 600; n_tokens += 599) {
        struct problem p = make_problem(&r, 8, 2, 128, n_tokens, 600, ORDINARY);
        float *y[2];
        for (int i = 0; i < 2; i++) {
            struct test_device t;
            device_open(&t, device_under_test(), i + 1);
            y[i] = attend(&t, &p);
            device_close(&t);
        }
        assert_same_rows(&p, y[0], y[1]);
        free(y[0]);
        free(y[1]);
        free_problem(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_queries_that_see_nothing),
        cmocka_unit_test(test_head_dims),
        cmocka_unit_test(test_any_alignment),
        cmocka_unit_test(test_large_groups),
        cmocka_unit_test(test_any_scale),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_heads_are_independent),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, device_group_open, device_group_close);
}
