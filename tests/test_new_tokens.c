/*
 * norm_rope that may leave its work to attend (kv_view.h: then), as a GPU's does for heads of 64
 * and 128, beside the reference: results, all keys and values of the pool, and faults.
 */
#include "tests/compare.h"
#include "tests/paged_problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A new token of each sequence of a problem, the last of its positions. norms: bit 0 of queries,
 * bit 1 of keys. */
struct step {
    int norms;
    bool others; /* attend is somebody else's */
    float *q, *k, *v, *gain, *cos, *sin;
};

enum { SITE_Q = 1, SITE_K = 2, SITE_STORED_K = 3, SITE_STORED_V = 4, SITE = 7 };

static int longest_of(const struct problem *p) {
    int longest = 0;
    for (int i = 0; i < p->n; i++)
        longest = p->kv_len[i] > longest ? p->kv_len[i] : longest;
    return longest;
}

static float *random_floats(struct random *r, int n_rows, int n_cols, enum distribution kind) {
    float *x = host_array((size_t)n_rows * (size_t)n_cols + 1, sizeof *x);
    random_fill(r, x, (size_t)n_rows * (size_t)n_cols, kind);
    return x;
}

/* Another attend in the table: it must find everything done. */
static const float *raw_q;
static void others_attend(struct device *dev, float *y, const float *q, const struct kv_views *kv,
                          const struct attention_plan *plan,
                          const struct attention_variant *variant, int site) {
    float first;
    dev->ops->download(dev, &first, q, sizeof first);
    assert_memory_not_equal(&first, raw_q, sizeof first);
    device_under_test()->attend(dev, y, q, kv, plan, variant, site);
}

/* What both ops leave on a device: y, and the whole pool, where newest rows were poison. */
static float *take_step(struct test_device *t, const struct problem *p, const struct step *s,
                        struct attention_plan *plan, struct bfp_rows *k, struct bfp_rows *v) {
    int dim = p->shape.head_dim, rows = p->n_pages * p->page_size * p->shape.n_kv_heads;
    size_t bytes = sizeof(float) * (size_t)p->n * problem_q_size(p);
    size_t kv_bytes = sizeof(float) * (size_t)(p->n * p->shape.n_kv_heads * dim);
    size_t angles = sizeof(float) * (size_t)((longest_of(p) + 1) * (dim / 2));
    struct error err = {""};
    int32_t positions[PROBLEM_SEQUENCES];
    int64_t slots[PROBLEM_SEQUENCES];
    for (int i = 0; i < p->n; i++) {
        positions[i] = p->kv_len[i] ? p->kv_len[i] - 1 : 0;
        slots[i] = p->kv_len[i]
                       ? (int64_t)problem_row(p, i, p->kv_len[i] - 1, 0) / p->shape.n_kv_heads
                       : -1;
    }
    *k = device_put_rows(t, p->k, rows, dim);
    *v = device_put_rows(t, p->v, rows, dim);
    struct kv_target to = {problem_views(p, *k, *v),
                           device_put(t, slots, sizeof *slots * (size_t)p->n),
                           p->page_size,
                           SITE_STORED_K,
                           SITE_STORED_V,
                           plan};
    const float *gain = device_put(t, s->gain, sizeof(float) * (size_t)dim);
    struct head_rows new_q = {device_put(t, s->q, bytes), s->norms & 1 ? gain : NULL,
                              p->shape.n_heads, SITE_Q};
    struct head_rows new_k = {device_put(t, s->k, kv_bytes), s->norms & 2 ? gain : NULL,
                              p->shape.n_kv_heads, SITE_K};
    struct attention_variant causal = attention_variant_causal();
    struct paged_batch batch = problem_batch(p);
    if (t->ops->attention_plan(t->dev, plan, &batch, &p->shape, NULL, &err))
        fail_msg("%s", err.text);
    float *y = device_poisoned(t, bytes);
    struct ops table = *t->ops;
    raw_q = s->q;
    if (s->others && t != device_reference()) {
        table.attend = others_attend;
        t->dev->ops = &table;
    }
    t->ops->norm_rope(t->dev, &new_q, &new_k, device_put(t, s->v, kv_bytes), &to,
                      device_put(t, positions, sizeof *positions * (size_t)p->n),
                      device_put(t, s->cos, angles), device_put(t, s->sin, angles), p->n, dim,
                      1e-6);
    t->dev->ops->attend(t->dev, y, new_q.x, &to.kv, plan, &causal, SITE);
    t->dev->ops = t->ops;
    return y;
}

/* Both devices take the step: the same results, pools and faults. */
static void check_step(struct test_device *t, const struct problem *p, const struct step *s) {
    struct test_device *reference = device_reference(), *both[] = {reference, t};
    int dim = p->shape.head_dim, rows = p->n_pages * p->page_size * p->shape.n_kv_heads;
    struct attention_plan *plan[2];
    struct bfp_rows k[2], v[2];
    struct error err = {""};
    struct fault fault;
    float *y[2];
    for (int i = 0; i < 2; i++) {
        plan[i] = both[i]->ops->attention_plan_new(both[i]->dev, &err);
        y[i] = take_step(both[i], p, s, plan[i], &k[i], &v[i]);
    }
    if (reference->ops->sync(reference->dev, &fault, &err))
        fail_msg("%s", err.text);
    device_expect_fault(t, fault.site, fault.token);
    char name[160];
    snprintf(name, sizeof name, "a step of %d sequences, pages of %d, %d/%d heads of %d", p->n,
             p->page_size, p->shape.n_heads, p->shape.n_kv_heads, dim);
    device_expect_floats(t, name, y[0], y[1], p->n, (int)problem_q_size(p));
    device_expect_rows(t, "keys", k[0], k[1], rows, dim);
    device_expect_rows(t, "values", v[0], v[1], rows, dim);
    for (int i = 0; i < 2; i++) {
        both[i]->ops->attention_plan_free(both[i]->dev, plan[i]);
        device_clear(both[i]);
    }
}

/* bad: an element of q, k or v (0, 1, 2) of the last sequence, which has a position, is not finite;
 * -1: none. */
static void make_step(struct random *r, struct problem *p, struct step *s, int bad) {
    int dim = p->shape.head_dim, kv_heads = p->shape.n_kv_heads, last = p->n - 1;
    problem_lay_out(r, p);
    problem_fill(r, p, ORDINARY);
    for (int i = 0; i < p->n; i++)
        for (int head = 0; head < kv_heads && p->kv_len[i]; head++) {
            size_t at = problem_row(p, i, p->kv_len[i] - 1, head);
            poison(p->k.mantissas + at * (size_t)dim, sizeof(int16_t) * (size_t)dim);
            poison(p->v.mantissas + at * (size_t)dim, sizeof(int16_t) * (size_t)dim);
            poison(p->k.exponents + at, 1);
            poison(p->v.exponents + at, 1);
        }
    enum distribution kind = random_int(r, 0, 3) ? NORMAL : SPARSE;
    s->q =
        random_floats(r, p->n, (int)problem_q_size(p), random_int(r, 0, 3) ? NORMAL : HEAVY_TAILED);
    s->k = random_floats(r, p->n * kv_heads, dim, kind);
    s->v = random_floats(r, p->n * kv_heads, dim, random_int(r, 0, 3) ? NORMAL : HEAVY_TAILED);
    s->gain = random_floats(r, 1, dim, NORMAL);
    s->cos = random_floats(r, longest_of(p) + 1, dim / 2, NORMAL);
    s->sin = random_floats(r, longest_of(p) + 1, dim / 2, NORMAL);
    float *of[] = {s->q, s->k, s->v};
    int heads[] = {p->shape.n_heads, kv_heads, kv_heads};
    if (bad >= 0)
        of[bad][(last * heads[bad] + random_int(r, 0, heads[bad] - 1)) * dim +
                random_int(r, 0, dim - 1)] = random_int(r, 0, 1) ? INFINITY : NAN;
}

static void free_step(struct problem *p, struct step *s) {
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->gain);
    free(s->cos);
    free(s->sin);
    problem_free(p);
}

/* First positions, tiles that end with the newest one and that begin with it, several sequences for
 * a block, several blocks for one; no position. */
static void test_steps(void **state) {
    struct test_device *t = *state;
    struct random r = {312};
    static const int dims[] = {64, 128, 64, 128, 32, 80}, groups[] = {1, 2, 4, 8, 3, 9};
    static const int page_sizes[] = {1, 3, 16, 64};
    bool few = device_is_emulated() || !strcmp(t->ops->name, "cpu");
    int n = !few ? 72 : few_cases_do() ? 18 : 36;
    for (int i = 0; i < n; i++) {
        int dim = dims[i % 6], heads = random_int(&r, 1, 4), group = groups[(i + i / 6) % 6];
        struct problem p = {.shape = {heads * group, heads, dim, 1 / sqrt((double)dim), KV_BFP16}};
        p.page_size = ONE_OF(&r, page_sizes);
        p.n = i % 3 ? random_int(&r, 1, 4) : few ? 14 : random_int(&r, 1, 90);
        p.kv_len[0] = i % 5 || few ? 700 : 9000;
        for (int j = 0; j < p.n; j++) {
            p.qo_len[j] = 1;
            p.kv_len[j] = j ? problem_length(&r, 700) : p.kv_len[0] - random_int(&r, 0, 600);
        }
        int bad = i % 4 ? -1 : random_int(&r, 0, 2);
        p.kv_len[p.n - 1] += bad >= 0 && !p.kv_len[p.n - 1];
        struct step s = {.norms = random_int(&r, 0, 3), .others = i % 7 == 3 && bad < 0};
        make_step(&r, &p, &s, bad);
        check_step(t, &p, &s);
        free_step(&p, &s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, device_pair_open, device_pair_close);
}
