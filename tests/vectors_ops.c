/* ops.jsonl: snap, embed, linear, rmsnorm, add, silu_mul and rope; rope.jsonl: its tables. */
#include "tests/vectors.h"

#include "model/numerics.h"
#include "model/rope_table.h"

#include <math.h>
#include <stdlib.h>

enum { LONGEST = 513 };

static const int lengths[] = {1, 255, 256, 257, 513};

/* ---- snap -------------------------------------------------------------------------------------
 */

static void snap(struct vectors *v, const float *x, int n) {
    struct test_device *t = &v->t;
    struct bfp_rows y = {device_poisoned(t, sizeof(int16_t) * (size_t)n), device_poisoned(t, 1)};
    t->ops->snap_rows(t->dev, y, device_put(t, x, sizeof *x * (size_t)n), 1, n, 0);
    vector_begin(v, "snap");
    vector_floats(v, "x", x, (size_t)n);
    if (!vector_fault(v)) {
        int16_t *q = device_get(t, y.mantissas, sizeof *q * (size_t)n);
        int8_t *e = device_get(t, y.exponents, 1);
        vector_i16(v, "q", q, (size_t)n);
        vector_int(v, "e", *e);
        free(q);
        free(e);
    }
    vector_end(v);
    device_clear(t);
}

static void snaps(struct vectors *v) {
    static const float rows[][4] = {
        {0, -0.0f, 0, 0},
        {1, -0.5f, 0.3f, 0.15f},
        {0x7f7f.0p0f, -0x7f7f.0p0f, 0.5f, 1.5f}, /* the largest mantissa; ties */
        {0x7f7f.7fp0f, 2.5f, -0.5f, -1.5f},      /* below 32639.5, */
        {0x7f7f.8p0f, 3, 1, -1},                 /* and there: the next exponent */
        {0x1p14f, -0x1p14f, 0x1p-1f, -0x1.8p0f},
        {0x7f7f.8p-100f, 1, 0x1p-100f, 0},
        {0x1p-149f, 0x1.8p-130f, -0x1p-126f, 0x1p-127f}, /* below 2^-115 */
        {0x1p-100f, 0x1p-116f, 0x1.8p-115f, -0x1.8p-116f},
        {0x1.fcp-101f, 0x1p-115f, 0, 0},
        {0x1.fdffp-101f, 0x1p-116f, 0x1.000002p-116f, 0},
        {0x7f7f.0p112f, 0x1p112f, 0x1p111f, -0x1.8p112f}, /* the largest exponent */
        {0x7f7f.8p112f, 0, 0, 0},                         /* no exponent any more */
        {0x1.fffffep127f, 1, 1, 1},
        {1, INFINITY, 0, 0},
        {1, 0, -INFINITY, 0},
        {0, 0, NAN, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        snap(v, rows[i], 4);
    for (int kind = 0; kind < N_DISTRIBUTIONS; kind++) {
        float x[33];
        random_fill(&v->random, x, 33, (enum distribution)kind);
        snap(v, x, kind == NORMAL ? 1 : 33);
    }
    float x[257];
    vector_normal(v, x, 257);
    snap(v, x, 257);
}

/* ---- embed, linear ----------------------------------------------------------------------------
 */

/* Rows of mantissas and exponents on the host; of any size, or all +-32639. */
static void fill_rows(struct vectors *v, struct bfp_rows rows, int n_rows, int n, bool largest,
                      int least, int most) {
    for (int i = 0; i < n_rows * n; i++)
        rows.mantissas[i] = (int16_t)(largest ? (random_int(&v->random, 0, 9) ? 32639 : -32639)
                                              : random_int(&v->random, -32639, 32639));
    for (int i = 0; i < n_rows; i++)
        rows.exponents[i] = (int8_t)random_int(&v->random, least, most);
}

static struct matrix put_matrix(struct test_device *t, struct bfp_rows w, int n, int k) {
    struct error err = {""};
    struct matrix m = {0};
    if (t->ops->matrix_create(t->dev, &m, n, k, &err))
        abort();
    t->ops->matrix_put(t->dev, &m, 0, n, w.mantissas, w.exponents);
    return m;
}

static void put_floats(struct vectors *v, const char *name, const float *on_device, size_t n) {
    float *y = device_get(&v->t, on_device, sizeof *y * n);
    vector_floats(v, name, y, n);
    free(y);
}

static void embed(struct vectors *v, int least, int most) {
    enum { ROWS = 3, N = 5 };
    static const int32_t ids[] = {0, 1, 2};
    struct test_device *t = &v->t;
    struct bfp_rows w = host_rows(ROWS, N);
    fill_rows(v, w, ROWS, N, false, least, most);
    w.mantissas[1] = -32639;
    w.mantissas[2] = 0;
    struct matrix m = put_matrix(t, w, ROWS, N);
    float *y = device_poisoned(t, sizeof *y * ROWS * N);
    t->ops->embed(t->dev, y, device_put(t, ids, sizeof ids), &m, ROWS);
    vector_begin(v, "embed");
    vector_int(v, "n", N);
    vector_i16(v, "q", w.mantissas, ROWS * N);
    vector_i8(v, "e", w.exponents, ROWS);
    put_floats(v, "y", y, ROWS * N);
    vector_end(v);
    t->ops->matrix_free(t->dev, &m);
    free_host_rows(w);
    device_clear(t);
}

/* What a linear layer is given: how large the mantissas are, the ranges of both exponents. */
struct linear_wish {
    bool largest, bias;
    int least, most;
};

static void linear(struct vectors *v, int n, int k, struct linear_wish wish) {
    struct test_device *t = &v->t;
    struct bfp_rows x = host_rows(1, k), w = host_rows(n, k);
    float *bias = host_array((size_t)n, sizeof *bias);
    fill_rows(v, x, 1, k, wish.largest, wish.least, wish.most);
    fill_rows(v, w, n, k, wish.largest, wish.least, wish.most);
    vector_normal(v, bias, (size_t)n);
    struct matrix m = put_matrix(t, w, n, k);
    float *y = device_poisoned(t, sizeof *y * (size_t)n);
    t->ops->linear(t->dev, y, device_put_rows(t, x, 1, k), &m, 1);
    if (wish.bias)
        t->ops->add_bias(t->dev, y, device_put(t, bias, sizeof *bias * (size_t)n), 1, n);
    vector_begin(v, "linear");
    vector_int(v, "k", k);
    vector_i16(v, "x", x.mantissas, (size_t)k);
    vector_int(v, "e", x.exponents[0]);
    vector_i16(v, "w", w.mantissas, (size_t)(n * k));
    vector_i8(v, "f", w.exponents, (size_t)n);
    if (wish.bias)
        vector_floats(v, "bias", bias, (size_t)n);
    put_floats(v, "y", y, (size_t)n);
    vector_end(v);
    t->ops->matrix_free(t->dev, &m);
    free(bias);
    free_host_rows(x);
    free_host_rows(w);
    device_clear(t);
}

static void linears(struct vectors *v) {
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        linear(v, 1 + (i < 3), lengths[i], (struct linear_wish){i == 4, i % 2 == 0, -3, 3});
        if (i < 4)
            linear(v, 1, lengths[i], (struct linear_wish){true, i == 3, 0, 1});
    }
    linear(v, 6, 3, (struct linear_wish){false, false, -100, -70}); /* below 2^-126, */
    linear(v, 6, 3, (struct linear_wish){true, false, -76, -70});   /* and about it */
    linear(v, 6, 3, (struct linear_wish){true, false, 60, 66});     /* to infinity */
    linear(v, 6, 2, (struct linear_wish){false, true, -9, 9});
}

/* ---- norms and what goes element by element ----------------------------------------------------
 */

static void rmsnorm(struct vectors *v, const float *x, int n, double eps) {
    struct test_device *t = &v->t;
    size_t bytes = sizeof(float) * (size_t)n;
    float gain[LONGEST], *y = device_poisoned(t, bytes);
    vector_normal(v, gain, (size_t)n);
    t->ops->rmsnorm(t->dev, y, device_put(t, x, bytes), device_put(t, gain, bytes), 1, n, 1, eps,
                    0);
    vector_begin(v, "rmsnorm");
    vector_double(v, "eps", eps);
    vector_floats(v, "x", x, (size_t)n);
    vector_floats(v, "gain", gain, (size_t)n);
    if (!vector_fault(v))
        put_floats(v, "y", y, (size_t)n);
    vector_end(v);
    device_clear(t);
}

static void rmsnorms(struct vectors *v) {
    static const double eps[] = {1e-5, 1e-6, 0x1p-126, 1};
    static const int sizes[] = {1, 8, 257};
    float x[LONGEST];
    for (int i = 0; i < 3; i++)
        for (int kind = 0; kind < (i < 2 ? (int)N_DISTRIBUTIONS : 1); kind++) {
            random_fill(&v->random, x, (size_t)sizes[i], (enum distribution)kind);
            rmsnorm(v, x, sizes[i], eps[(i + kind) % 4]);
        }
    memset(x, 0, sizeof x);
    rmsnorm(v, x, 8, 1e-5);
    x[3] = NAN;
    rmsnorm(v, x, 8, 1e-5);
}

enum { N_PAIRS = 48 };

static void by_element(struct vectors *v, const char *op) {
    static const float a[] = {0, -0.0f, 1, -1, 0x1p-149f, 0x1p24f, INFINITY, -100, 100};
    static const float b[] = {-0.0f, -0.0f, -1, 0x1p-25f, -0x1p-149f, 1, 2, 3, -0x1p-149f};
    struct test_device *t = &v->t;
    size_t bytes = sizeof(float) * N_PAIRS;
    float x[N_PAIRS], z[N_PAIRS], *y = device_poisoned(t, bytes);
    vector_normal(v, x, N_PAIRS);
    vector_normal(v, z, N_PAIRS);
    memcpy(x, a, sizeof a);
    memcpy(z, b, sizeof b);
    const float *on_x = device_put(t, x, bytes), *on_z = device_put(t, z, bytes);
    if (*op == 'a')
        t->ops->add(t->dev, y, on_x, on_z, N_PAIRS);
    else
        t->ops->silu_mul(t->dev, y, on_x, on_z, N_PAIRS);
    vector_begin(v, op);
    vector_floats(v, "a", x, N_PAIRS);
    vector_floats(v, "b", z, N_PAIRS);
    put_floats(v, "y", y, N_PAIRS);
    vector_end(v);
    device_clear(t);
}

static void rope(struct vectors *v, int head_dim) {
    struct test_device *t = &v->t;
    int half = head_dim / 2;
    size_t bytes = sizeof(float) * (size_t)head_dim;
    int32_t position = 0;
    float x[64], c[32], s[32];
    vector_normal(v, x, (size_t)head_dim);
    for (int i = 0; i < half; i++) {
        c[i] = random_up_to_1(&v->random);
        s[i] = random_up_to_1(&v->random);
    }
    float *y = device_put(t, x, bytes);
    t->ops->rope(t->dev, y, device_put(t, &position, sizeof position), device_put(t, c, bytes / 2),
                 device_put(t, s, bytes / 2), 1, 1, head_dim);
    vector_begin(v, "rope");
    vector_floats(v, "x", x, (size_t)head_dim);
    vector_floats(v, "cos", c, (size_t)half);
    vector_floats(v, "sin", s, (size_t)half);
    put_floats(v, "y", y, (size_t)head_dim);
    vector_end(v);
    device_clear(t);
}

void vectors_ops(struct vectors *v, const char *folder) {
    (void)folder;
    snaps(v);
    embed(v, -6, 6);
    embed(v, -100, -95);
    embed(v, 120, 127);
    linears(v);
    rmsnorms(v);
    by_element(v, "add");
    by_element(v, "silu_mul");
    rope(v, 2);
    rope(v, 10);
    rope(v, 64);
}

/* ---- tables of rope ----------------------------------------------------------------------------
 */

static void frequencies(struct vectors *v, const struct rope_config *c, int head_dim) {
    static const char *const names[] = {"default", "linear", "llama3"};
    float f[64];
    rope_inverse_frequencies(f, c, head_dim);
    vector_begin(v, "frequencies");
    vector_int(v, "head_dim", head_dim);
    vector_double(v, "theta", c->theta);
    vector_text(v, "scaling", names[c->scaling]);
    if (c->scaling != ROPE_PLAIN)
        vector_double(v, "factor", c->factor);
    if (c->scaling == ROPE_LLAMA3) {
        vector_double(v, "low_freq_factor", c->low_freq_factor);
        vector_double(v, "high_freq_factor", c->high_freq_factor);
        vector_int(v, "original_max_position_embeddings", c->original_max_positions);
    }
    vector_floats(v, "f", f, (size_t)(head_dim / 2));
    vector_end(v);
}

/* Any angle is that of position 1; others are made of a frequency below 1. */
static void rotation(struct vectors *v, int position, const float *f, int n) {
    size_t count = (size_t)(position + 1) * (size_t)n, last = (size_t)position * (size_t)n;
    float *c = host_array(count, sizeof *c), *s = host_array(count, sizeof *s);
    rope_fill(c, s, f, n, position + 1);
    vector_begin(v, "rotation");
    vector_floats(v, "f", f, (size_t)n);
    vector_int(v, "position", position);
    vector_floats(v, "cos", c + last, (size_t)n);
    vector_floats(v, "sin", s + last, (size_t)n);
    vector_end(v);
    free(c);
    free(s);
}

void vectors_rope(struct vectors *v, const char *folder) {
    (void)folder;
    /* Some are as near to multiples of pi / 2 as floats come. */
    static const float angles[] = {0x1p-20f,        0.7853981f,      0.7853982f,     1.5707963f,
                                   1.5707964f,      3.1415927f,      0x1.2d97c8p+2f, 0x1.f9cbe2p+7f,
                                   0x1.9a48dep+15f, 0x1.4ac55cp+21f, 6.2831855f,     1000,
                                   65535.5f,        0x1.fffffep23f,  0x1.fffffep24f};
    static const float some[] = {1, 0.31622776f, 0.1f, 0.01f};
    static const int positions[] = {0, 1, 2, 255, 257, 4095};
    static const double thetas[] = {1, 1.5, 10000, 500000, 1e6, 1e15, 1440, 0x1.6ap40};
    for (int i = 0; i < 8; i++)
        frequencies(v, &(struct rope_config){.theta = thetas[i]}, i > 5 ? 128 : i % 2 ? 64 : 10);
    struct rope_config linear = {.theta = 10000, .scaling = ROPE_LINEAR, .factor = 3};
    struct rope_config llama3 = {500000, ROPE_LLAMA3, 8, 1, 4, 8192};
    struct rope_config other = {10000, ROPE_LLAMA3, 3.3, 1.1, 3.7, 100};
    frequencies(v, &linear, 8);
    frequencies(v, &llama3, 64);
    frequencies(v, &llama3, 128);
    frequencies(v, &other, 16);
    rotation(v, 1, angles, sizeof angles / sizeof *angles);
    for (int i = 0; i < 6; i++)
        rotation(v, positions[i], some, 4);
}
