/*
 * linear with integers. The inputs are put into the rows that the kernels want once; the threads
 * share out the outputs, in pieces of whole cache lines, of all matrices that read the same inputs.
 */
#include "ref/integer/integer.h"
#include "ref/ref.h"

enum {
    BLOCK = 256,  /* rows that are kept */
    GROUP = 64,   /* of these, that are multiplied at once */
    OUTPUTS = 64, /* at once: whole lines, and whole tiles of most kernels */
    MOST_PIECE = 8 * OUTPUTS,
    PIECES = 4, /* for each thread and matrix, where there are so many */
    PUT = 8     /* rows that a thread puts at once */
};

struct call {
    const struct integer_kernels *kernels;
    const struct linear_part *parts;
    int n_parts, first_item[MOST_LINEAR_PARTS + 1], piece[MOST_LINEAR_PARTS];
    int64_t *exact; /* the sums of the only part, instead of its y; or NULL */
    struct bfp_rows x;
    int first, n_rows; /* of x, in this block */
    struct x_rows rows;
};

static int smaller(int a, int b) {
    return a < b ? a : b;
}

static void put_rows(void *context, int item, int worker) {
    (void)worker;
    const struct call *c = context;
    for (int r = item * PUT; r < smaller((item + 1) * PUT, c->n_rows); r++)
        c->kernels->put_row(&c->rows, r,
                            c->x.mantissas + (size_t)(c->first + r) * (size_t)c->rows.k);
}

/* Outputs first ... first + n - 1 of a few rows, n <= OUTPUTS. */
static void multiply(const struct call *c, const struct linear_part *part, int first, int n,
                     int first_row, int n_rows) {
    const struct matrix *w = part->w;
    double sums[GROUP * OUTPUTS];
    const int16_t *rows = (const int16_t *)w->mantissas + (size_t)first * (size_t)w->k;
    c->kernels->dots(sums, OUTPUTS, &c->rows, first_row, n_rows, rows, (size_t)w->k, n);
    for (int r = 0; r < n_rows; r++) {
        size_t row = (size_t)(c->first + first_row + r);
        size_t at = row * (size_t)w->n + (size_t)first;
        int e = c->x.exponents[row] - 30;
        for (int i = 0; c->exact && i < n; i++)
            c->exact[at + (size_t)i] = (int64_t)sums[r * OUTPUTS + i];
        for (int i = 0; !c->exact && i < n; i++)
            part->y[at + (size_t)i] =
                num_dot_to_float(sums[r * OUTPUTS + i], e + w->exponents[first + i]);
    }
}

static void run_piece(void *context, int item, int worker) {
    (void)worker;
    const struct call *c = context;
    int p = 0;
    while (item >= c->first_item[p + 1])
        p++;
    const struct linear_part *part = &c->parts[p];
    int first = (item - c->first_item[p]) * c->piece[p];
    int end = smaller(first + c->piece[p], part->w->n);
    for (int i = first; i < end; i += OUTPUTS)
        for (int r = 0; r < c->n_rows; r += GROUP)
            multiply(c, part, i, smaller(end - i, OUTPUTS), r, smaller(c->n_rows - r, GROUP));
}

static void cut_into_pieces(struct call *c, int n_threads) {
    for (int p = 0; p < c->n_parts; p++) {
        int n = c->parts[p].w->n, piece = n / (n_threads * PIECES * OUTPUTS) * OUTPUTS;
        piece = piece > OUTPUTS ? smaller(piece, MOST_PIECE) : OUTPUTS;
        c->piece[p] = piece;
        c->first_item[p + 1] = c->first_item[p] + (n + piece - 1) / piece;
    }
}

void integer_linear(struct device *dev, const struct linear_part *parts, int n_parts, int64_t *sums,
                    struct bfp_rows x, int n_tokens) {
    struct call c = {.kernels = ((struct ref_device *)dev)->kernels,
                     .parts = parts,
                     .n_parts = n_parts,
                     .exact = sums,
                     .x = x};
    int k = parts[0].w->k;
    size_t row_bytes = c.kernels->row_bytes(k);
    void *memory =
        ref_scratch(dev, SCRATCH_X, row_bytes * (size_t)smaller(n_tokens, BLOCK), "linear");
    if (!memory)
        return;
    c.rows = (struct x_rows){memory, row_bytes, k};
    cut_into_pieces(&c, ref_n_threads(dev));
    for (; c.first < n_tokens; c.first += BLOCK) {
        c.n_rows = smaller(n_tokens - c.first, BLOCK);
        ref_parallel(dev, (c.n_rows + PUT - 1) / PUT, put_rows, &c);
        ref_parallel(dev, c.first_item[n_parts], run_piece, &c);
    }
}
