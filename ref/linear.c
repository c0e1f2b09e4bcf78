/*
 * linear: y = x W^T on BFP16 operands. Each output is the correctly rounded value of an exact
 * integer dot product, so OpenBLAS may sum in any order, and the outputs can be cut into any
 * shares: each thread has its own rows of W.
 */
#include "ref/linear.h"

#include <cblas.h>

/* BLOCK_ROWS bounds the scratch memory of long prompts and is large enough for dgemm. */
#ifdef __SANITIZE_ADDRESS__ /* checks every load of our own loops, and none of OpenBLAS's */
enum { BLOCK_ROWS = 256, FEW_ROWS = 3 };
#else
enum { BLOCK_ROWS = 256, FEW_ROWS = 64 };
#endif

static int few_rows(const struct linear_block *b) {
    return b->n_rows > 1 && b->n_rows <= FEW_ROWS;
}

/* Some of the inputs of all rows: int16 to the doubles of OpenBLAS. */
static void widen_share(void *context, int share, int worker) {
    (void)worker;
    const struct linear_block *b = context;
    size_t count = (size_t)b->n_rows * (size_t)b->w->k;
    size_t end = count * (size_t)(share + 1) / (size_t)b->n_shares;
    for (size_t i = count * (size_t)share / (size_t)b->n_shares; i < end; i++)
        b->x[i] = b->x_mantissas[i];
}

static void widen(struct device *dev, struct linear_block *b) {
    if (few_rows(b))
        linear_few_rows_widen(b->x, b->x_mantissas, b->n_rows, b->w->k);
    else if (b->n_rows == 1)
        for (int i = 0; i < b->w->k; i++)
            b->x[i] = b->x_mantissas[i];
    else
        ref_parallel(dev, b->n_shares, widen_share, b);
}

/* The outputs first ... end - 1 of all rows. */
static void multiply(const struct linear_block *b, int first, int end) {
    int n = b->w->n, k = b->w->k;
    const double *w = (const double *)b->w->mantissas + (size_t)first * (size_t)k;
    double *sums = b->sums + first;
    if (b->n_rows == 1)
        cblas_dgemv(CblasRowMajor, CblasNoTrans, end - first, k, 1, w, k, b->x, 1, 0, sums, 1);
    else
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, b->n_rows, end - first, k, 1, b->x, k,
                    w, k, 0, sums, n);
    for (int row = 0; row < b->n_rows; row++) {
        size_t at = (size_t)row * (size_t)n;
        for (int i = first; i < end; i++)
            b->y[at + (size_t)i] = num_dot_to_float(b->sums[at + (size_t)i],
                                                    b->x_exponents[row] + b->w->exponents[i] - 30);
    }
}

static void multiply_share(void *context, int share, int worker) {
    (void)worker;
    const struct linear_block *b = context;
    int first = (int)((int64_t)b->w->n * share / b->n_shares);
    int end = (int)((int64_t)b->w->n * (share + 1) / b->n_shares);
    if (few_rows(b))
        linear_few_rows(b, first, end);
    else
        multiply(b, first, end);
}

void ref_linear(struct device *dev, float *y, /* [n_tokens, w->n] */
                struct bfp_rows x,            /* [n_tokens, w->k] */
                const struct matrix *w, int n_tokens) {
    size_t n = (size_t)w->n, k = (size_t)w->k;
    int most = n_tokens < BLOCK_ROWS ? n_tokens : BLOCK_ROWS;
    size_t wide = sizeof(double) * (size_t)most * k, panels = linear_few_rows_bytes(most, w->k);
    struct linear_block b = {.w = w, .n_shares = ref_n_threads(dev)};
    b.n_shares = b.n_shares < w->n ? b.n_shares : w->n;
    b.x = ref_scratch(dev, SCRATCH_X, wide > panels ? wide : panels, "linear");
    b.sums = ref_scratch(dev, SCRATCH_Y, sizeof *b.sums * (size_t)most * n, "linear");
    if (!b.x || !b.sums)
        return;
    for (int first = 0; first < n_tokens; first += BLOCK_ROWS) {
        b.n_rows = n_tokens - first < BLOCK_ROWS ? n_tokens - first : BLOCK_ROWS;
        b.y = y + (size_t)first * n;
        b.x_mantissas = x.mantissas + (size_t)first * k;
        b.x_exponents = x.exponents + first;
        widen(dev, &b);
        ref_parallel(dev, b.n_shares, multiply_share, &b);
    }
}

void ref_linear_parts(struct device *dev, const struct linear_part *parts, /* host [n_parts] */
                      int n_parts, struct bfp_rows x, int n_tokens) {
    for (int i = 0; i < n_parts; i++)
        ref_linear(dev, parts[i].y, x, parts[i].w, n_tokens);
}
