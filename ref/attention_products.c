/*
 * The two products of matrices in a tile of attention: queries with keys, weights with values.
 * Version 1, the definition, is dgemm on doubles that hold integers; version 2 sums the integers
 * (ref/integer).
 */
#include "ref/attention.h"

#include <cblas.h>

enum { ROWS_AT_ONCE = 32 /* whose scores are a thread's in double */ };

static size_t wide_doubles(size_t dim) {
    return (BLOCK_ROWS + TILE) * (dim + TILE);
}

/* Bytes of one thread; whole cache lines. */
static size_t block_bytes(const struct block_memory *m) {
    size_t padded = (size_t)m->padded, dim = (size_t)m->head_dim;
    size_t bytes = sizeof(int16_t) * (2 * TILE * padded + BLOCK_ROWS * TILE) +
                   BLOCK_ROWS * m->query_bytes + sizeof(float) * BLOCK_ROWS * (TILE + padded);
    return bytes + (m->kernels ? 0 : sizeof(double) * wide_doubles(dim) / 64 * 64 + 64);
}

static struct block_memory of_thread(struct device *dev, int head_dim) {
    const struct ref_device *ref = (const struct ref_device *)dev;
    const struct integer_kernels *kernels = ref->attention_version == 1 ? NULL : ref->kernels;
    int padded = (head_dim + DIM_STEP - 1) / DIM_STEP * DIM_STEP;
    return (struct block_memory){.kernels = kernels,
                                 .head_dim = head_dim,
                                 .padded = padded,
                                 .query_bytes = kernels ? kernels->row_bytes(head_dim)
                                                        : sizeof(int16_t) * (size_t)padded};
}

void *ref_block_scratch(struct device *dev, int head_dim, const char *op) {
    struct block_memory one = of_thread(dev, head_dim);
    return ref_scratch(dev, SCRATCH_X, block_bytes(&one) * (size_t)ref_n_threads(dev), op);
}

struct block_memory ref_block_memory(struct device *dev, void *scratch, int head_dim, int worker) {
    struct block_memory m = of_thread(dev, head_dim);
    size_t padded = (size_t)m.padded;
    m.k = (int16_t *)((char *)scratch + (size_t)worker * block_bytes(&m));
    m.v = m.k + TILE * padded;
    m.weights = m.v + TILE * padded;
    m.queries = (char *)(m.weights + BLOCK_ROWS * TILE);
    m.scores = (float *)(m.queries + BLOCK_ROWS * m.query_bytes);
    m.sums = m.scores + BLOCK_ROWS * TILE;
    m.wide = (double *)(m.sums + BLOCK_ROWS * padded);
    return m;
}

static struct x_rows queries_of(const struct block_memory *m) {
    return (struct x_rows){m->queries, m->query_bytes, m->head_dim};
}

void ref_put_query(const struct block_memory *m, int r, const int16_t *q) {
    struct x_rows queries = queries_of(m);
    if (m->kernels)
        m->kernels->put_row(&queries, r, q);
    else
        memcpy(m->queries + (size_t)r * m->query_bytes, q, sizeof *q * (size_t)m->head_dim);
}

/* Rows of mantissas, from_step apart, as doubles. */
static void widen(double *to, const int16_t *from, int from_step, int n_rows, int n) {
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n; i++)
            to[(size_t)r * (size_t)n + (size_t)i] = from[(size_t)r * (size_t)from_step + (size_t)i];
}

static void round_down(float *to, int to_step, const double *from, int from_step, int n_rows,
                       int n) {
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n; i++)
            to[(size_t)r * (size_t)to_step + (size_t)i] =
                (float)num_floor_256(from[(size_t)r * (size_t)from_step + (size_t)i]);
}

void ref_multiply_keys(const struct block_memory *m, int first, int n_rows, int n) {
    int dim = m->head_dim, padded = m->padded;
    if (!m->kernels) {
        double *x = m->wide, *k = x + BLOCK_ROWS * dim, *out = k + TILE * dim;
        widen(x, (int16_t *)m->queries + first * padded, padded, n_rows, dim);
        widen(k, m->k, padded, n, dim);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n_rows, n, dim, 1, x, dim, k, dim, 0,
                    out, TILE);
        round_down(m->scores + first * TILE, TILE, out, TILE, n_rows, n);
        return;
    }
    struct x_rows queries = queries_of(m);
    double sums[ROWS_AT_ONCE * TILE];
    for (int r = 0; r < n_rows; r += ROWS_AT_ONCE) {
        int rows = n_rows - r < ROWS_AT_ONCE ? n_rows - r : ROWS_AT_ONCE;
        m->kernels->dots(sums, TILE, &queries, first + r, rows, m->k, (size_t)padded, n);
        round_down(m->scores + (first + r) * TILE, TILE, sums, TILE, rows, n);
    }
}

void ref_multiply_values(const struct block_memory *m, int first, int n_rows, int n) {
    int dim = m->head_dim, padded = m->padded;
    if (!m->kernels) {
        double *w = m->wide, *v = w + BLOCK_ROWS * TILE, *out = v + TILE * dim;
        widen(w, m->weights + first * TILE, TILE, n_rows, n);
        widen(v, m->v, padded, n, dim);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n_rows, dim, n, 1, w, n, v, dim, 0,
                    out, dim);
        round_down(m->sums + first * padded, padded, out, dim, n_rows, dim);
        return;
    }
    m->kernels->weighted(m->sums + first * padded, (size_t)padded, m->weights + first * TILE, TILE,
                         n_rows, n, m->v, (size_t)padded, padded);
}
