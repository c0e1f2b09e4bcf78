/*
 * linear: y = x W^T on BFP16 operands. Each output is the correctly rounded value of an exact
 * integer dot product, so OpenBLAS may sum in any order, and the outputs can be cut into any
 * shares: each thread has its own rows of W.
 *
 * Version 1 is this file, the definition: doubles that hold integers. Version 2 keeps them integers
 * (ref/integer/linear.c).
 */
#include "ref/ref.h"

#include <cblas.h>

/* X_ROWS bounds the scratch memory of long prompts and is large enough for dgemm; so do W_ROWS of
 * the weights, which become doubles when they are multiplied. */
enum { X_ROWS = 256, W_ROWS = 256, W_ROWS_FOR_ONE = 32 };

struct call {
    float *y;         /* [n_rows, w->n] */
    double *x;        /* [n_rows, w->k] the mantissas, widened */
    double *w_memory; /* of each thread: [w_rows, w->k], and the sums [n_rows, w_rows] */
    struct bfp_rows rows;
    const struct matrix *w;
    int n_rows, w_rows;
};

static void widen(double *to, const int16_t *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

static size_t worker_doubles(const struct call *c) {
    return (size_t)c->w_rows * (size_t)(c->w->k + X_ROWS);
}

/* Some outputs of all rows. */
static void multiply(void *context, int item, int worker) {
    const struct call *c = context;
    int first = item * c->w_rows, left = c->w->n - first, k = c->w->k;
    int n = left < c->w_rows ? left : c->w_rows;
    double *w = c->w_memory + (size_t)worker * worker_doubles(c);
    double *sums = w + (size_t)c->w_rows * (size_t)k;
    widen(w, (const int16_t *)c->w->mantissas + (size_t)first * (size_t)k, (size_t)n * (size_t)k);
    if (c->n_rows == 1)
        cblas_dgemv(CblasRowMajor, CblasNoTrans, n, k, 1, w, k, c->x, 1, 0, sums, 1);
    else
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, c->n_rows, n, k, 1, c->x, k, w, k, 0,
                    sums, n);
    for (int row = 0; row < c->n_rows; row++)
        for (int i = 0; i < n; i++)
            c->y[(size_t)row * (size_t)c->w->n + (size_t)(first + i)] =
                num_dot_to_float(sums[(size_t)row * (size_t)n + (size_t)i],
                                 c->rows.exponents[row] + c->w->exponents[first + i] - 30);
}

static void linear_1(struct device *dev, float *y, struct bfp_rows x, const struct matrix *w,
                     int n_tokens) {
    size_t n = (size_t)w->n, k = (size_t)w->k;
    int most = n_tokens < X_ROWS ? n_tokens : X_ROWS;
    struct call c = {.w = w, .w_rows = n_tokens == 1 ? W_ROWS_FOR_ONE : W_ROWS};
    size_t of_workers = worker_doubles(&c) * (size_t)ref_n_threads(dev);
    c.x = ref_scratch(dev, SCRATCH_X, sizeof *c.x * (size_t)most * k, "linear");
    c.w_memory = ref_scratch(dev, SCRATCH_Y, sizeof *c.w_memory * of_workers, "linear");
    if (!c.x || !c.w_memory)
        return;
    for (int first = 0; first < n_tokens; first += X_ROWS) {
        c.n_rows = n_tokens - first < X_ROWS ? n_tokens - first : X_ROWS;
        c.y = y + (size_t)first * n;
        c.rows = (struct bfp_rows){x.mantissas + (size_t)first * k, x.exponents + first};
        widen(c.x, c.rows.mantissas, (size_t)c.n_rows * k);
        ref_parallel(dev, (w->n + c.w_rows - 1) / c.w_rows, multiply, &c);
    }
}

void ref_linear_parts(struct device *dev, const struct linear_part *parts, /* host [n_parts] */
                      int n_parts, struct bfp_rows x, int n_tokens) {
    if (((struct ref_device *)dev)->linear_version != 1)
        integer_linear(dev, parts, n_parts, NULL, x, n_tokens);
    else
        for (int i = 0; i < n_parts; i++)
            linear_1(dev, parts[i].y, x, parts[i].w, n_tokens);
}

void ref_linear(struct device *dev, float *y, /* [n_tokens, w->n] */
                struct bfp_rows x,            /* [n_tokens, w->k] */
                const struct matrix *w, int n_tokens) {
    ref_linear_parts(dev, &(struct linear_part){y, w}, 1, x, n_tokens);
}
