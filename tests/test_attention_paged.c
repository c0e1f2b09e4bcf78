/*
 * attend over a paged bfp16 cache, causal, against the reference's attention of each sequence alone
 * over a contiguous cache, bit for bit: pages of any size in random order, batches that mix
 * decodes, prompts and sequences without a token or a position. Slots that belong to nobody hold
 * poison.
 */
#include "tests/compare.h"
#include "tests/oracle.h"
#include "tests/paged_problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SITE = 7 };

/* The cache of sequence i in one piece, on the reference. */
static struct kv_layer gather(const struct problem *p, int i) {
    int heads = p->shape.n_kv_heads, dim = p->shape.head_dim, n = p->kv_len[i] * heads;
    struct bfp_rows k = host_rows(n + 1, dim), v = host_rows(n + 1, dim);
    for (int j = 0; j < n; j++) {
        size_t at = problem_row(p, i, j / heads, j % heads);
        memcpy(k.mantissas + j * dim, p->k.mantissas + at * (size_t)dim, 2 * (size_t)dim);
        memcpy(v.mantissas + j * dim, p->v.mantissas + at * (size_t)dim, 2 * (size_t)dim);
        k.exponents[j] = p->k.exponents[at];
        v.exponents[j] = p->v.exponents[at];
    }
    struct bfp_rows on_k = device_put_rows(device_reference(), k, n, dim);
    struct bfp_rows on_v = device_put_rows(device_reference(), v, n, dim);
    free_host_rows(k);
    free_host_rows(v);
    return (struct kv_layer){on_k.mantissas, on_v.mantissas, on_k.exponents, on_v.exponents};
}

/* What each sequence gives alone. */
static float *expected(const struct problem *p) {
    struct test_device *reference = device_reference();
    float *want = host_array((size_t)p->n_tokens * problem_q_size(p) + 1, sizeof *want);
    for (int i = 0; i < p->n; i++) {
        if (!p->qo_len[i])
            continue;
        size_t first = (size_t)p->qo_indptr[i] * problem_q_size(p);
        size_t bytes = sizeof(float) * (size_t)p->qo_len[i] * problem_q_size(p);
        struct kv_layer kv = gather(p, i);
        float *y = device_poisoned(reference, bytes);
        reference->ops->attention(reference->dev, y, device_put(reference, p->q + first, bytes),
                                  &kv, p->qo_len[i], p->kv_len[i], &p->shape, SITE);
        float *host = device_get(reference, y, bytes);
        memcpy(want + first, host, bytes);
        free(host);
        device_expect_fault(reference, -1, 0);
        device_clear(reference);
    }
    return want;
}

static void check(struct test_device *t, const struct problem *p, struct attention_plan *plan) {
    struct error err = {""};
    int rows = p->n_pages * p->page_size * p->shape.n_kv_heads;
    float *want = expected(p);
    struct bfp_rows k = device_put_rows(t, p->k, rows, p->shape.head_dim);
    struct bfp_rows v = device_put_rows(t, p->v, rows, p->shape.head_dim);
    struct kv_views kv = problem_views(p, k, v);
    struct attention_variant causal = attention_variant_causal();
    size_t bytes = sizeof(float) * (size_t)p->n_tokens * problem_q_size(p);
    float *q = device_put(t, p->q, bytes);
    struct paged_batch batch = problem_batch(p);
    if (t->ops->attention_plan(t->dev, plan, &batch, &p->shape, NULL, &err))
        fail_msg("%s", err.text);
    for (int again = 0; again < 2; again++) { /* a plan serves every layer */
        float *y = device_poisoned(t, bytes);
        t->ops->attend(t->dev, y, q, &kv, plan, &causal, SITE);
        char name[160];
        snprintf(name, sizeof name, "attention of %d sequences, pages of %d, %d/%d heads of %d",
                 p->n, p->page_size, p->shape.n_heads, p->shape.n_kv_heads, p->shape.head_dim);
        device_expect_floats(t, name, want, y, p->n_tokens, (int)problem_q_size(p));
        device_expect_fault(t, -1, 0);
    }
    device_clear(t);
    free(want);
}

/* ---- random batches ---------------------------------------------------------------------------
 */

static struct attention_shape random_shape(struct random *r) {
    static const int dims[] = {2, 7, 8, 32, 40, 64, 80, 96, 128, 192, 256};
    int dim = ONE_OF(r, dims), heads = random_int(r, 1, 4), group = random_int(r, 1, 9);
    return (struct attention_shape){heads * group, heads, dim, 1 / sqrt((double)dim), KV_BFP16};
}

static void check_random(struct test_device *t, struct random *r, struct attention_plan *plan) {
    static const int page_sizes[] = {1, 2, 3, 5, 8, 16, 24, 32, 64, 256};
    struct problem p = {.shape = random_shape(r)};
    int most = device_is_emulated() ? 300 : random_int(r, 0, 3) ? 600 : 3000;
    int small = device_is_emulated() || p.shape.head_dim > 96;
    p.n = random_int(r, 0, 3) ? random_int(r, 0, small ? 3 : 8) : random_int(r, 0, small ? 6 : 40);
    p.page_size = ONE_OF(r, page_sizes);
    int budget = device_is_emulated() ? 600 : 6000; /* positions of all sequences */
    for (int i = 0; i < p.n; i++) {
        p.kv_len[i] = problem_length(r, most < budget ? most : budget);
        budget -= p.kv_len[i];
        int kind = random_int(r, 0, 9);
        p.qo_len[i] = kind < 6   ? 1
                      : kind < 8 ? random_int(r, 0, 8)
                      : kind < 9 ? random_int(r, 0, device_is_emulated() ? 20 : 150)
                                 : p.kv_len[i] + random_int(r, 0, 2); /* more than it can see */
        if (device_is_emulated() && p.qo_len[i] > 20)
            p.qo_len[i] = 20;
    }
    problem_lay_out(r, &p);
    problem_fill(r, &p, random_int(r, 0, 4) ? ORDINARY : (enum kind)random_int(r, 0, N_KINDS - 1));
    check(t, &p, plan);
    problem_free(&p);
}

static void test_random_batches(void **state) {
    struct test_device *t = *state;
    struct random r = {301};
    struct error err = {""};
    int n = device_is_emulated() ? 30 : 2000;
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
#ifdef __SANITIZE_ADDRESS__
    n = device_is_emulated() ? 10 : 60;
#endif
    if (!strcmp(t->ops->name, "cpu"))
        n /= 20;
    const char *most = getenv("SAMEBITS_BATCHES"); /* for tools that make everything slow */
    n = most ? atoi(most) : n;
    for (int i = 0; i < n; i++)
        check_random(t, &r, plan);
    t->ops->attention_plan_free(t->dev, plan);
    print_message("%d random batches\n", n);
}

/* ---- every pair of values of the grid ---------------------------------------------------------
 */

enum { BATCH, KV_LEN, QO_LEN, PAGE_SIZE, KV_HEADS, GROUP, HEAD_DIM, N_AXES, MOST_VALUES = 9 };

static const int grid[N_AXES][MOST_VALUES] = {
    {1, 7, 12, 17, 128},
    {1, 54, 97, 512, 2048, 16384},
    {1, 17, 37, 127, 577},
    {1, 3, 5, 8, 16, 24, 32, 64, 256},
    {1, 2, 4, 8},
    {1, 2, 3, 4, 5, 7, 8},
    {32, 64, 80, 96, 128, 256},
};
static const int grid_sizes[N_AXES] = {5, 6, 5, 9, 4, 7, 6};

typedef bool pair_table[N_AXES][MOST_VALUES][N_AXES][MOST_VALUES];

/* Pairs of the candidate that no case had yet; marks them when asked to. */
static int new_pairs(pair_table had, const int choice[N_AXES], bool mark) {
    int n = 0;
    for (int a = 0; a < N_AXES; a++)
        for (int b = a + 1; b < N_AXES; b++) {
            n += !had[a][choice[a]][b][choice[b]];
            had[a][choice[a]][b][choice[b]] |= mark;
        }
    return n;
}

/* The best of some random candidates; the first is made of a pair that is missing. */
static bool choose(struct random *r, pair_table had, int best[N_AXES]) {
    int found = 0;
    for (int a = 0; a < N_AXES && !found; a++)
        for (int b = a + 1; b < N_AXES && !found; b++)
            for (int i = 0; i < grid_sizes[a] && !found; i++)
                for (int j = 0; j < grid_sizes[b] && !found; j++)
                    if (!had[a][i][b][j]) {
                        for (int k = 0; k < 50; k++) {
                            int choice[N_AXES];
                            for (int c = 0; c < N_AXES; c++)
                                choice[c] = random_int(r, 0, grid_sizes[c] - 1);
                            choice[a] = i;
                            choice[b] = j;
                            int n = new_pairs(had, choice, false);
                            if (n > found)
                                memcpy(best, choice, sizeof choice);
                            found = n > found ? n : found;
                        }
                    }
    return found > 0;
}

/* One sequence has the lengths of the grid; the others, lest the reference take hours, are shorter,
 * and some of them decode. */
static void check_grid_case(struct test_device *t, struct random *r, const int choice[N_AXES],
                            struct attention_plan *plan) {
    int v[N_AXES];
    for (int i = 0; i < N_AXES; i++)
        v[i] = grid[i][choice[i]];
    struct problem p = {.shape = {v[KV_HEADS] * v[GROUP], v[KV_HEADS], v[HEAD_DIM],
                                  1 / sqrt((double)v[HEAD_DIM]), KV_BFP16},
                        .n = v[BATCH],
                        .page_size = v[PAGE_SIZE]};
    for (int i = 0; i < p.n; i++) {
        p.kv_len[i] = i ? random_int(r, 0, v[KV_LEN] < 300 ? v[KV_LEN] : 300) : v[KV_LEN];
        p.qo_len[i] = i && random_int(r, 0, 7) ? 1 : i && v[QO_LEN] > 40 ? 40 : v[QO_LEN];
    }
    problem_lay_out(r, &p);
    problem_fill(r, &p, ORDINARY);
    check(t, &p, plan);
    problem_free(&p);
}

static void test_every_pair_of_the_grid(void **state) {
    struct test_device *t = *state;
    struct random r = {302};
    struct error err = {""};
    static pair_table had;
    int choice[N_AXES], n = 0, n_run = 0;
    memset(had, 0, sizeof had);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    while (choose(&r, had, choice)) {
        new_pairs(had, choice, true);
        n++;
        long work = (long)grid[KV_LEN][choice[KV_LEN]] * grid[QO_LEN][choice[QO_LEN]] *
                    grid[KV_HEADS][choice[KV_HEADS]] * grid[GROUP][choice[GROUP]] *
                    grid[HEAD_DIM][choice[HEAD_DIM]];
        work += 20000L * grid[BATCH][choice[BATCH]] * grid[KV_HEADS][choice[KV_HEADS]] *
                grid[GROUP][choice[GROUP]];
        long most = device_is_emulated()               ? 4000000
                    : strcmp(t->ops->name, "cpu") == 0 ? 10000000000
                                                       : 100000000000;
#ifdef __SANITIZE_ADDRESS__
        most = device_is_emulated() ? 1000000 : 100000000;
#endif
        if (work <= most && !getenv("SAMEBITS_BATCHES")) {
            check_grid_case(t, &r, choice, plan);
            n_run++;
        }
    }
    t->ops->attention_plan_free(t->dev, plan);
    print_message("%d of the %d batches that hold every pair of values\n", n_run, n);
    assert_true(n_run > 0 || getenv("SAMEBITS_BATCHES"));
}

/* ---- special cases ----------------------------------------------------------------------------
 */

/* Shared pages, as forks have them. (Other page sizes and orders: check() compares them with
 * contiguous caches.) */
static void test_shared_pages(void **state) {
    struct test_device *t = *state;
    struct random r = {303};
    struct error err = {""};
    struct problem p = {.shape = {4, 2, 64, 0.125, KV_BFP16}, .n = 3, .page_size = 16};
    for (int i = 0; i < p.n; i++) {
        p.kv_len[i] = 200 + i;
        p.qo_len[i] = 1;
    }
    problem_lay_out(&r, &p);
    for (int i = 1; i < p.n; i++) /* twelve full pages are everybody's */
        memcpy(p.pages + p.kv_indptr[i], p.pages, sizeof *p.pages * 12);
    problem_fill(&r, &p, ORDINARY);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    check(t, &p, plan);
    t->ops->attention_plan_free(t->dev, plan);
    problem_free(&p);
}

/* Sequences over several tiles, some long enough for several blocks of a GPU, and a few tokens of
 * each, of which the earlier ones see less. */
static void test_split_sequences(void **state) {
    struct test_device *t = *state;
    struct random r = {305};
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    int most = device_is_emulated() ? 1500 : 40000; /* more tiles than are merged at a time */
    for (int n = 1; n <= 6; n += 5)
        for (int tokens = 1; tokens <= 4; tokens++) {
            int group = tokens == 4 ? 2 : tokens;
            struct problem p = {.shape = {group, 1, 32, 0.2, KV_BFP16}, .n = n, .page_size = 16};
            for (int i = 0; i < n; i++) {
                p.kv_len[i] = (n == 1 ? most : 700) + 3 * i;
                p.qo_len[i] = tokens;
            }
            problem_lay_out(&r, &p);
            problem_fill(&r, &p, ORDINARY);
            check(t, &p, plan);
            problem_free(&p);
        }
    t->ops->attention_plan_free(t->dev, plan);
}

/* Prompts of so many sequences that the digits of all do not fit in the cache of a GPU. */
static void test_prompts_of_many_sequences(void **state) {
    struct test_device *t = *state;
    struct random r = {307};
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    struct problem p = {.shape = {32, 4, 128, 0.1, KV_BFP16}, .page_size = 16};
    int versions = t->ops->versions("attention"), under_test = kernel_under_test();
    bool by_attention = versions >= 2 && (under_test == 0 || under_test > 3);
    bool on_cpu = !strcmp(t->ops->name, "cpu"); /* for which 250 are no other case than 12 */
    p.n = !by_attention && !on_cpu ? 3 : few_cases_do() ? 4 : 12;
    p.n = device_is_emulated() || on_cpu ? p.n : 250;
    for (int i = 0; i < p.n; i++) {
        p.kv_len[i] = device_is_emulated() ? 20 + 60 * i : 1000 + i;
        p.qo_len[i] = i % 9 ? 9 + i % 9 : i % 2; /* 48 rows are few */
    }
    problem_lay_out(&r, &p);
    problem_fill(&r, &p, ORDINARY);
    check(t, &p, plan);
    /* Prompts are work for a version of attention: 3 where there is one, which does not look at all
     * that the plan says, and 2 elsewhere. Versions 1 to 3 of attend need neither. */
    if (by_attention) {
        assert_int_equal(t->ops->set_version(t->dev, "attention", 2, &err), 0);
        check(t, &p, plan);
        under_test = under_test <= versions ? under_test : 0;
        assert_int_equal(t->ops->set_version(t->dev, "attention", under_test, &err), 0);
    }
    problem_free(&p);
    t->ops->attention_plan_free(t->dev, plan);
}

/* Too few rows to keep all processors busy, unless the context is cut, which only the op's own
 * choice of a kernel does; and a batch in which only one sequence is. The rows of a list end in
 * different tiles. */
static void test_prompts_behind_long_contexts(void **state) {
    struct test_device *t = *state;
    struct random r = {308};
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    static const int tokens[] = {65, 128, 190};
    bool chosen = device_is_emulated() && kernel_under_test(); /* no choice: one length will do */
    bool one = chosen || (few_cases_do() && !strcmp(t->ops->name, "cpu"));
    for (size_t i = 0; i < (one ? 1 : COUNT(tokens)); i++)
        for (int n = 1; n <= 4; n += 3) {
            struct problem p = {
                .shape = {1 + (int)i % 3, 1, 32, 0.2, KV_BFP16}, .n = n, .page_size = 8};
            for (int k = 0; k < n; k++) {
                int context = !device_is_emulated() ? 12288 : chosen ? 256 : 1024;
                p.kv_len[k] = k ? 100 * k : context + tokens[i] / 2;
                p.qo_len[k] = k ? 40 * k - 39 : tokens[i];
            }
            problem_lay_out(&r, &p);
            problem_fill(&r, &p, ORDINARY);
            check(t, &p, plan);
            problem_free(&p);
        }
    t->ops->attention_plan_free(t->dev, plan);
}

/* Prompts of at most 128 positions, of all lengths about its boundaries, several for each thread
 * block: in one batch without anything before them, in one with more tokens than positions, and
 * behind others' tokens. 16 heads share a kv head, so that five tokens are a prompt. */
static void test_short_prompts(void **state) {
    struct test_device *t = *state;
    struct random r = {309};
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    static const int lengths[] = {5, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129};
    static const int dims[] = {64, 68, 72, 128}; /* rows of 136 bytes are for another kernel */
    bool chosen = device_is_emulated() && kernel_under_test(); /* not one for prompts, and slow */
    for (size_t i = 0; i < (chosen ? 1 : COUNT(dims)); i++) {
        struct problem p = {.shape = {16, 1, dims[i], 0.1, KV_BFP16},
                            .n = chosen ? 4 : COUNT(lengths),
                            .page_size = 16};
        for (int k = 0; k < p.n; k++) {
            p.kv_len[k] = lengths[k];
            p.qo_len[k] = dims[i] == 72 && lengths[k] > 32 ? 17 : lengths[k];
            p.qo_len[k] += dims[i] == 128 ? 9 : 0; /* two row lists that see nothing */
        }
        problem_lay_out(&r, &p);
        problem_fill(&r, &p, dims[i] == 128 ? WILD_VALUES : dims[i] == 64 ? FAR_VALUES : ORDINARY);
        check(t, &p, plan);
        problem_free(&p);
    }
    t->ops->attention_plan_free(t->dev, plan);
}

/* Sums that float cannot hold, and small results, of rows that one block finishes. */
static void test_far_results(void **state) {
    struct test_device *t = *state;
    struct random r = {310};
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    static const int lengths[] = {1, 40, 200, 256};
    struct problem p = {.shape = {2, 1, 64, 0.1, KV_BFP16}, .n = COUNT(lengths), .page_size = 16};
    for (int i = 0; i < p.n; i++) {
        p.kv_len[i] = lengths[i];
        p.qo_len[i] = 1;
    }
    problem_lay_out(&r, &p);
    problem_fill(&r, &p, FAR_VALUES);
    check(t, &p, plan);
    problem_free(&p);
    t->ops->attention_plan_free(t->dev, plan);
}

/* Appends keys and values of all sequences to a pool at the slots of other pages: numbers[i] is
 * what page i is called there. */
static void append_all(struct test_device *t, const struct problem *p, const struct kv_layer *pool,
                       const int32_t *numbers) {
    int heads = p->shape.n_kv_heads, dim = p->shape.head_dim;
    size_t width = (size_t)heads * (size_t)dim;
    for (int i = 0; i < p->n; i++) {
        size_t n = (size_t)p->kv_len[i];
        float *k = host_array(n * width, sizeof *k), *v = host_array(n * width, sizeof *v);
        int64_t *slots = host_array(n, sizeof *slots);
        for (int j = 0; j < p->kv_len[i]; j++) {
            int32_t page = p->pages[p->kv_indptr[i] + j / p->page_size];
            slots[j] = (int64_t)numbers[page] * p->page_size + j % p->page_size;
            for (size_t d = 0; d < width; d++) {
                size_t row = problem_row(p, i, j, (int)d / dim),
                       at = row * (size_t)dim + d % (size_t)dim;
                k[(size_t)j * width + d] = ldexpf(p->k.mantissas[at], p->k.exponents[row] - 15);
                v[(size_t)j * width + d] = ldexpf(p->v.mantissas[at], p->v.exponents[row] - 15);
            }
        }
        struct kv_views kv = kv_layer_views(pool, KV_BFP16, p->page_size, heads, dim);
        t->ops->kv_append(t->dev, &kv, device_put(t, k, n * width * sizeof *k),
                          device_put(t, v, n * width * sizeof *v),
                          device_put(t, slots, n * sizeof *slots), p->kv_len[i], p->page_size,
                          heads, dim, SITE, SITE);
        free(k);
        free(v);
        free(slots);
    }
}

/* A pool of more than 2^31 elements, and of more than 2^32 bytes: slots on both sides of each
 * bound. For devices with the memory of a GPU. */
static void test_a_pool_beyond_32_bits(void **state) {
    struct test_device *t = *state;
    if (strcmp(t->ops->name, "gpu"))
        skip();
    struct random r = {306};
    struct error err = {""};
    struct problem p = {.shape = {32, 8, 128, 0.0884, KV_BFP16}, .n = 3, .page_size = 16};
    const int qo_lens[] = {1, 3, 40};
    for (int i = 0; i < p.n; i++) {
        p.kv_len[i] = 1100 + i;
        p.qo_len[i] = qo_lens[i];
    }
    problem_lay_out(&r, &p);
    problem_fill(&r, &p, ORDINARY);
    const int n_pages = 5 << 16; /* 5 * 2^20 slots of 1024 elements: 5 * 2^30 of them */
    size_t n_rows = (size_t)n_pages * 16 * 8, bytes = n_rows * 128 * sizeof(int16_t);
    int32_t *numbers = host_array((size_t)p.n_pages, sizeof *numbers);
    for (int i = 0; i < p.n_pages; i++) /* all different, all over the pool */
        numbers[i] = (int32_t)((int64_t)(i + 1) * n_pages / p.n_pages - 1);
    struct kv_layer pool = {t->ops->alloc(t->dev, bytes, "a large pool", &err),
                            t->ops->alloc(t->dev, bytes, "a large pool", &err),
                            t->ops->alloc(t->dev, n_rows, "a large pool", &err),
                            t->ops->alloc(t->dev, n_rows, "a large pool", &err)};
    if (!pool.k || !pool.v || !pool.k_exponents || !pool.v_exponents)
        fail_msg("%s", err.text);
    append_all(t, &p, &pool, numbers);
    float *want = expected(&p);
    for (int i = 0; i < p.kv_indptr[p.n]; i++)
        p.pages[i] = numbers[p.pages[i]];
    p.n_pages = n_pages;
    struct paged_batch batch = problem_batch(&p);
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    if (!plan || t->ops->attention_plan(t->dev, plan, &batch, &p.shape, NULL, &err))
        fail_msg("%s", err.text);
    size_t q_bytes = sizeof(float) * (size_t)p.n_tokens * problem_q_size(&p);
    float *y = device_poisoned(t, q_bytes);
    struct attention_variant causal = attention_variant_causal();
    struct kv_views kv = kv_layer_views(&pool, KV_BFP16, p.page_size, 8, 128);
    t->ops->attend(t->dev, y, device_put(t, p.q, q_bytes), &kv, plan, &causal, SITE);
    device_expect_floats(t, "attention over a large pool", want, y, p.n_tokens,
                         (int)problem_q_size(&p));
    device_expect_fault(t, -1, 0);
    t->ops->attention_plan_free(t->dev, plan);
    t->ops->free(t->dev, pool.k, bytes);
    t->ops->free(t->dev, pool.v, bytes);
    t->ops->free(t->dev, pool.k_exponents, n_rows);
    t->ops->free(t->dev, pool.v_exponents, n_rows);
    device_clear(t);
    free(want);
    free(numbers);
    problem_free(&p);
}

/* A query that is not a number is a fault of its token, whatever kernel takes it; and so is a score
 * that float cannot hold, here of the last row of its kv head. */
static void test_faults(void **state) {
    struct test_device *t = *state;
    struct random r = {304};
    struct error err = {""};
    static const int qo_lens[] = {1, 3, 40, 1, 1, 40};
    for (size_t l = 0; l < COUNT(qo_lens); l++) {
        size_t element = l == 3 ? 6 : 70; /* of the first head, of the second */
        struct problem p = {.shape = {4, 2, 64, 0.125, KV_BFP16}, .n = 3, .page_size = 16};
        for (int i = 0; i < p.n; i++) {
            p.kv_len[i] = 100;
            p.qo_len[i] = qo_lens[l];
        }
        problem_lay_out(&r, &p);
        problem_fill(&r, &p, ORDINARY);
        int token = p.qo_indptr[1] + qo_lens[l] - 1;
        p.q[(size_t)token * problem_q_size(&p) + element] = l < 4 ? NAN : 1e30f;
        for (int j = 0; j < 100 && l >= 4; j++)
            p.k.exponents[problem_row(&p, 1, j, 0)] = 120;
        int rows = p.n_pages * p.page_size * p.shape.n_kv_heads;
        struct bfp_rows k = device_put_rows(t, p.k, rows, 64),
                        v = device_put_rows(t, p.v, rows, 64);
        struct kv_views kv = problem_views(&p, k, v);
        struct attention_variant causal = attention_variant_causal();
        size_t bytes = sizeof(float) * (size_t)p.n_tokens * problem_q_size(&p);
        struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
        struct paged_batch batch = problem_batch(&p);
        assert_int_equal(t->ops->attention_plan(t->dev, plan, &batch, &p.shape, NULL, &err), 0);
        t->ops->attend(t->dev, device_poisoned(t, bytes), device_put(t, p.q, bytes), &kv, plan,
                       &causal, SITE);
        device_expect_fault(t, SITE, token);
        t->ops->attention_plan_free(t->dev, plan);
        device_clear(t);
        problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_batches),
        cmocka_unit_test(test_every_pair_of_the_grid),
        cmocka_unit_test(test_shared_pages),
        cmocka_unit_test(test_split_sequences),
        cmocka_unit_test(test_prompts_of_many_sequences),
        cmocka_unit_test(test_prompts_behind_long_contexts),
        cmocka_unit_test(test_short_prompts),
        cmocka_unit_test(test_far_results),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_a_pool_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
