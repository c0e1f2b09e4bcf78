/*
 * ladder - one matrix product in eight ways, from a plain loop to the integer kernels of
 * ref/integer: the same bits, and how long each takes on this machine, with one thread. The chapter
 * is tutorials/cpu.md.
 */
#include "ref/integer/integer.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    N = 40960,
    K = 1024,
    MOST_ROWS = 64,
    REPEATS = 5,
    MOST_BYTES = 4 /* of x, a number */,
    LENGTH = 48 /* outputs of a piece */
};

struct product {
    int n_rows;              /* of x */
    int16_t *w, *x;          /* [N, K], [MOST_ROWS, K] */
    double *wide_w, *wide_x; /* the same numbers */
    double *y;               /* [n_rows, N] */
    struct x_rows rows;      /* x, as the kernels want it */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the ways ---------------------------------------------------------------------------------
 */

/* Additions in one order: each waits for the one before it. */
static void doubles(struct product *p) {
    for (int r = 0; r < p->n_rows; r++)
        for (size_t i = 0; i < N; i++) {
            double sum = 0;
            for (size_t j = 0; j < K; j++)
                sum += p->wide_w[i * K + j] * p->wide_x[(size_t)r * K + j];
            p->y[(size_t)r * N + i] = sum;
        }
}

static void openblas(struct product *p) {
    if (p->n_rows == 1)
        cblas_dgemv(CblasRowMajor, CblasNoTrans, N, K, 1, p->wide_w, K, p->wide_x, 1, 0, p->y, 1);
    else
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, p->n_rows, N, K, 1, p->wide_x, K,
                    p->wide_w, K, 0, p->y, N);
}

/* Sums of integers have no order: the compiler may take several at once. */
static void integers(struct product *p) {
    for (int r = 0; r < p->n_rows; r++)
        for (size_t i = 0; i < N; i++) {
            int64_t sum = 0;
            for (size_t j = 0; j < K; j++)
                sum += (int32_t)p->w[i * K + j] * p->x[(size_t)r * K + j];
            p->y[(size_t)r * N + i] = (double)sum;
        }
}

static void with(const struct integer_kernels *kernels, struct product *p) {
    p->rows.row_bytes = kernels->row_bytes(K);
    for (int r = 0; r < p->n_rows; r++)
        kernels->put_row(&p->rows, r, p->x + (size_t)r * K);
    for (size_t i = 0; i < N; i += LENGTH)
        kernels->dots(p->y + i, N, &p->rows, 0, p->n_rows, p->w + i * K, K,
                      N - i < LENGTH ? (int)(N - i) : LENGTH);
}

static void plain(struct product *p) {
    with(&integer_plain, p);
}

static void avx2(struct product *p) {
    with(&integer_avx2, p);
}

static void avx512(struct product *p) {
    with(&integer_avx512, p);
}

static void neon(struct product *p) {
    with(&integer_neon, p);
}

/* The limit for one row: the weights are only read. */
static void reading(struct product *p) {
    uint64_t sum = 0, eight;
    for (size_t i = 0; i < (size_t)N * K; i += sizeof eight / sizeof *p->w) {
        memcpy(&eight, p->w + i, sizeof eight);
        sum += eight;
    }
    __asm__ volatile("" : : "r"(sum)); /* it is used */
}

static const struct way {
    const char *name, *isa; /* isa: NULL, or a name for SAMEBITS_ISA */
    void (*run)(struct product *);
    int bytes, most_rows; /* a parameter; 1: with more it would only take long */
} ways[] = {
    {"a loop over doubles", NULL, doubles, 8, 1},
    {"OpenBLAS, doubles", NULL, openblas, 8, MOST_ROWS},
    {"a loop over integers", NULL, integers, 2, 1},
    {"pairs, plain C", "plain", plain, 2, MOST_ROWS},
    {"pairs, NEON", "neon", neon, 2, MOST_ROWS},
    {"pairs, AVX2", "avx2", avx2, 2, MOST_ROWS},
    {"bytes, AVX-512", "avx512", avx512, 2, MOST_ROWS},
    {"reading the weights", NULL, reading, 2, 1},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* ---- the table --------------------------------------------------------------------------------
 */

static bool is_here(const struct way *way) {
    struct error err;
    if (!way->isa)
        return true;
    setenv("SAMEBITS_ISA", way->isa, 1);
    return integer_choose(&err) != NULL;
}

static double least_seconds(const struct way *way, struct product *p) {
    double least = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        double begin = now();
        way->run(p);
        least = now() - begin < least ? now() - begin : least;
    }
    return least;
}

static void table(struct product *p, int n_rows) {
    double *want = calloc((size_t)n_rows * N, sizeof *want);
    if (!want)
        exit(1);
    p->n_rows = n_rows;
    openblas(p);
    memcpy(want, p->y, sizeof *want * (size_t)n_rows * N);
    printf("\n%d row%s of x times W[%d][%d]\n%-22s %8s %9s %12s %10s\n", n_rows,
           n_rows > 1 ? "s" : "", N, K, "", "ms", "GB/s of W", "10^9 mul/s", "same bits");
    for (int i = 0; i < N_WAYS; i++) {
        const struct way *way = &ways[i];
        if (n_rows > way->most_rows || !is_here(way))
            continue;
        memset(p->y, 0xff, sizeof *p->y * (size_t)n_rows * N);
        double seconds = least_seconds(way, p), count = (double)N * K;
        bool same = !memcmp(p->y, want, sizeof *want * (size_t)n_rows * N);
        printf("%-22s %8.2f %9.1f %12.1f %10s\n", way->name, seconds * 1e3,
               count * way->bytes / seconds * 1e-9,
               way->run == reading ? 0 : count * n_rows / seconds * 1e-9,
               way->run == reading ? ""
               : same              ? "yes"
                                   : "NO");
    }
    free(want);
}

int main(void) {
    struct product p = {.w = malloc(sizeof *p.w * N * K + ROW_SLACK),
                        .x = malloc(sizeof *p.x * MOST_ROWS * K),
                        .wide_w = malloc(sizeof *p.wide_w * N * K),
                        .wide_x = malloc(sizeof *p.wide_x * MOST_ROWS * K),
                        .y = malloc(sizeof *p.y * MOST_ROWS * N),
                        .rows = {malloc(MOST_ROWS * MOST_BYTES * K), 0, K}};
    if (!p.w || !p.x || !p.wide_w || !p.wide_x || !p.y || !p.rows.rows)
        return 1;
    uint32_t random = 1;
    for (size_t i = 0; i < (size_t)N * K; i++) {
        random = random * 1664525u + 1013904223u;
        p.wide_w[i] = p.w[i] = (int16_t)((int)(random >> 16) % 32640);
        if (i < MOST_ROWS * K)
            p.wide_x[i] = p.x[i] = (int16_t)(32639 - (int)(random >> 9) % 65279);
    }
    openblas_set_num_threads(1);
    table(&p, 1);
    table(&p, MOST_ROWS);
    return 0;
}
