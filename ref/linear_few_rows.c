/*
 * linear for 2 to 64 rows, the batches of decoding. dgemm copies all weights into another order
 * before it multiplies, which pays when many rows use the copy: with 16 rows it takes half of the
 * time. Here the weights are read where they lie, once.
 *
 * The products of eight rows of W with a panel of a few rows of x are summed in eight vector
 * registers, a lane for each row of x. The sums are exact integers, as in dgemm, so the two give
 * the same bits.
 */
#if defined __AVX512F__ /* GCC uses halves of such registers and would multiply lane by lane */
#pragma GCC target("prefer-vector-width=512")
#endif
#include "ref/linear.h"

#if defined __AVX512F__
enum { LANES = 8 };
#elif defined __AVX__
enum { LANES = 4 };
#else
enum { LANES = 2 };
#endif
enum { PANEL = LANES, W_ROWS = 8, CACHE_LINE = 8 /* doubles */ };

typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));

/* sum + w * x. Both forms are exact. */
static inline lanes multiply_add(double w, lanes x, lanes sum) {
#if defined __FMA__
    lanes out;
    for (int i = 0; i < LANES; i++)
        out[i] = __builtin_fma(w, x[i], sum[i]);
    return out;
#else
    return sum + w * x;
#endif
}

size_t linear_few_rows_bytes(int n_rows, int k) {
    return sizeof(double) * (size_t)k * PANEL * (size_t)((n_rows + PANEL - 1) / PANEL);
}

void linear_few_rows_widen(double *x, const int16_t *mantissas, int n_rows, int k) {
    for (int first = 0; first < n_rows; first += PANEL, x += (size_t)k * PANEL)
        for (int j = 0; j < PANEL; j++) {
            const int16_t *row = mantissas + (size_t)(first + j) * (size_t)k;
            for (size_t i = 0; i < (size_t)k; i++)
                x[i * PANEL + (size_t)j] = first + j < n_rows ? row[i] : 0;
        }
}

/* The dot products of the rows w[0 ... 7] with the rows of a panel: sums[W_ROWS], a vector each.
 * Asks for the weights behind them, which come next. */
static void dots(lanes sums[W_ROWS], const double *panel, const double *const w[W_ROWS], int k) {
    const lanes *x = (const lanes *)panel;
    lanes a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
    for (int i = 0; i < k; i++) {
        if (i % CACHE_LINE == 0)
            for (int r = 0; r < W_ROWS; r++)
                __builtin_prefetch(w[r] + (size_t)W_ROWS * (size_t)k + i);
        a = multiply_add(w[0][i], x[i], a);
        b = multiply_add(w[1][i], x[i], b);
        c = multiply_add(w[2][i], x[i], c);
        d = multiply_add(w[3][i], x[i], d);
        e = multiply_add(w[4][i], x[i], e);
        f = multiply_add(w[5][i], x[i], f);
        g = multiply_add(w[6][i], x[i], g);
        h = multiply_add(w[7][i], x[i], h);
    }
    const lanes all[W_ROWS] = {a, b, c, d, e, f, g, h};
    memcpy(sums, all, sizeof all);
}

void linear_few_rows(const struct linear_block *b, int first, int end) {
    const struct matrix *w = b->w;
    size_t n = (size_t)w->n, k = (size_t)w->k;
    for (int i = first; i < end; i += W_ROWS) {
        const double *rows[W_ROWS];
        int n_used = end - i < W_ROWS ? end - i : W_ROWS;
        for (int r = 0; r < W_ROWS; r++) /* past the end: the last one again, unused */
            rows[r] = (const double *)w->mantissas + (size_t)(i + (r < n_used ? r : 0)) * k;
        const double *panel = b->x;
        for (int at = 0; at < b->n_rows; at += PANEL, panel += k * PANEL) {
            lanes sums[W_ROWS];
            dots(sums, panel, rows, w->k);
            const double *sum = (const double *)sums;
            int n_rows = b->n_rows - at < PANEL ? b->n_rows - at : PANEL;
            for (int row = 0; row < n_rows; row++)
                for (int r = 0; r < n_used; r++)
                    b->y[(size_t)(at + row) * n + (size_t)(i + r)] = num_dot_to_float(
                        sum[r * PANEL + row], b->x_exponents[at + row] + w->exponents[i + r] - 30);
        }
    }
}
