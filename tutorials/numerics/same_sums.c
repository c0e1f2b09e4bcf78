/*
 * same_sums: does the BLAS of this computer give the same dot products the same bits?
 *
 * One set of matrices, the same on every computer, is multiplied in many ways: sgemv and sgemm; 1,
 * 7 and 64 rows at a time; weights stored by rows or by columns; 1 and 2 threads; with the code
 * that OpenBLAS has for each family of chips. First in float32, then with rows snapped to BFP16
 * (model/numerics.h). OpenBLAS reads OPENBLAS_CORETYPE when it is loaded, so the program starts
 * itself once per family (`same_sums --one`) and collects one line from each.
 * The chapter that explains what comes out: tutorials/numerics.md.
 */
#include "model/numerics.h"

#include <cblas.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 256, MAX_M = 64, MAX_K = 1024, N_KS = 5, N_WAYS = 4, N_ANSWERS = 2 + 2 * N_WAYS };

static const int all_k[N_KS] = {64, 256, 288, 640, 1024};
static const int way_rows[N_WAYS] = {1, 1, 7, 64}; /* way 0 is gemv, the others are gemm */
static const char *const answer_names[N_ANSWERS] = {
    "one fmaf chain",  "plain sum",       "sgemv, rows",       "sgemm M=1, rows",
    "sgemm M=7, rows", "sgemm M=64, rows", "sgemv, columns",   "sgemm M=1, columns",
    "sgemm M=7, columns", "sgemm M=64, columns"};

/* What one core type's code did. Fingerprints are FNV-1a, 64 bits, over all outputs. */
struct findings {
    char core[32], skipped[64]; /* why there is nothing to report, or "" */
    long n_outputs, float_differ, snapped_differ;
    uint64_t float_print, snapped_print;
};

/* The dot product, of all, with the most different float32 answers. */
struct example {
    int k, column, n_different;
    float answers[N_ANSWERS];
};

/* y = x w^T with everything around it. The first M rows of x are the M-row problem. */
struct problem {
    int k;
    float x[MAX_M * MAX_K];              /* [MAX_M, k] */
    float w[2][N * MAX_K];               /* by rows [N, k] and by columns [k, N] */
    double x_whole[MAX_M * MAX_K];       /* mantissas, in the same layouts */
    double w_whole[2][N * MAX_K];
    int x_exponents[MAX_M], w_exponents[N];
    float order[2][MAX_M * N];           /* float32 results: an fmaf chain, a plain sum */
    int64_t exact[MAX_M * N];            /* dot products of the mantissas */
    float y[2][2][N_WAYS][MAX_M * N];    /* OpenBLAS's, by [threads - 1][layout][way] */
    double y_whole[MAX_M * N];
};

/* Numbers in [-1, 1) of very different sizes, like activations; exact on every machine. */
static float make_number(uint32_t stream, uint32_t index) {
    struct philox_block random =
        num_philox((struct philox_key){{stream, 0}}, (struct philox_block){{index, 0, 0, 0}});
    int32_t whole = (int32_t)(random.word[0] >> 7) - (1 << 24);
    return (float)whole * num_pow2f(-24 - (int)(random.word[1] % 8));
}

static void make_rows(float *x, double *x_whole, int *exponents, int n_rows, int k, int stream) {
    int16_t q[MAX_K];
    for (int row = 0; row < n_rows; row++) {
        for (int i = row * k; i < (row + 1) * k; i++)
            x[i] = make_number((uint32_t)stream, (uint32_t)i);
        exponents[row] = num_snap_row(q, x + row * k, k);
        for (int i = 0; i < k; i++)
            x_whole[row * k + i] = q[i];
    }
}

static void make_problem(struct problem *p, int k) {
    p->k = k;
    make_rows(p->x, p->x_whole, p->x_exponents, MAX_M, k, k);
    make_rows(p->w[0], p->w_whole[0], p->w_exponents, N, k, k + 1);
    for (int at = 0; at < N * k; at++) {
        p->w[1][at % k * N + at / k] = p->w[0][at];
        p->w_whole[1][at % k * N + at / k] = p->w_whole[0][at];
    }
    for (int at = 0; at < MAX_M * N; at++) {
        int x = at / N * k, w = at % N * k;
        p->order[0][at] = p->order[1][at] = 0;
        p->exact[at] = 0;
        for (int i = 0; i < k; i++) {
            p->order[0][at] = fmaf(p->x[x + i], p->w[0][w + i], p->order[0][at]);
            p->order[1][at] += p->x[x + i] * p->w[0][w + i]; /* two roundings: no contraction */
            p->exact[at] += (int64_t)p->x_whole[x + i] * (int64_t)p->w_whole[0][w + i];
        }
    }
}

static void multiply(float *y, struct problem *p, int layout, int way) {
    enum CBLAS_ORDER by_row = CblasRowMajor;
    enum CBLAS_TRANSPOSE no = CblasNoTrans, gemv = layout ? CblasTrans : no;
    enum CBLAS_TRANSPOSE gemm = layout ? no : CblasTrans;
    int m = way_rows[way], k = p->k, height = layout ? k : N, width = layout ? N : k;
    const float *w = p->w[layout];
    const double *v = p->w_whole[layout];
    if (way == 0) {
        cblas_sgemv(by_row, gemv, height, width, 1, w, width, p->x, 1, 0, y, 1);
        cblas_dgemv(by_row, gemv, height, width, 1, v, width, p->x_whole, 1, 0, p->y_whole, 1);
    } else {
        cblas_sgemm(by_row, no, gemm, m, N, k, 1, p->x, k, w, width, 0, y, N);
        cblas_dgemm(by_row, no, gemm, m, N, k, 1, p->x_whole, k, v, width, 0, p->y_whole, N);
    }
}

static long count_differences(const float *a, const float *b, int n) {
    long count = 0;
    for (int i = 0; i < n; i++)
        count += num_bits(a[i]) != num_bits(b[i]);
    return count;
}

static uint64_t add_to_print(uint64_t print, float y) {
    for (int shift = 0; shift < 32; shift += 8)
        print = (print ^ (num_bits(y) >> shift & 0xff)) * 0x100000001b3u;
    return print;
}

static void multiply_all_ways(struct findings *f, struct problem *p) {
    for (int i = 0; i < 4 * N_WAYS; i++) {
        int threads = 1 + i / (2 * N_WAYS), layout = i / N_WAYS % 2, way = i % N_WAYS;
        float *y = p->y[threads - 1][layout][way];
        openblas_set_num_threads(threads);
        multiply(y, p, layout, way);
        f->n_outputs += way_rows[way] * N;
        f->float_differ += count_differences(y, p->order[0], way_rows[way] * N);
        for (int at = 0; at < way_rows[way] * N; at++) {
            int exponent = p->x_exponents[at / N] + p->w_exponents[at % N] - 30;
            float rounded = num_dot_to_float(p->y_whole[at], exponent);
            f->snapped_differ += p->y_whole[at] != (double)p->exact[at];
            f->float_print = add_to_print(f->float_print, y[at]);
            f->snapped_print = add_to_print(f->snapped_print, rounded);
        }
    }
}

static void print_shape(struct problem *p, int layout) {
    float(*y)[MAX_M * N] = p->y[0][layout];
    long by_threads = 0, by_rows = 0;
    printf("%5d %-7s", p->k, layout ? "columns" : "rows");
    for (int order = 0; order < 2; order++)
        for (int way = 0; way < N_WAYS; way++)
            printf("%s%6ld", way ? "" : " |",
                   count_differences(y[way], p->order[order], way_rows[way] * N));
    for (int way = 0; way < N_WAYS; way++)
        by_threads += count_differences(y[way], p->y[1][layout][way], way_rows[way] * N);
    for (int n = 0; n < N; n++)
        by_rows += count_differences(y[1] + n, y[2] + n, 1) | count_differences(y[1] + n, y[3] + n, 1);
    printf(" |%7ld |%7ld\n", by_rows, by_threads);
}

static void look_for_example(struct example *best, struct problem *p) {
    for (int column = 0; column < N; column++) {
        struct example e = {.k = p->k, .column = column};
        for (int i = 0; i < N_ANSWERS; i++) {
            e.answers[i] = i < 2 ? p->order[i][column] : p->y[0][(i - 2) / 4][(i - 2) % 4][column];
            bool new = true;
            for (int j = 0; j < i; j++)
                new = new && num_bits(e.answers[i]) != num_bits(e.answers[j]);
            e.n_different += new;
        }
        if (e.n_different > best->n_different)
            *best = e;
    }
}

/* Measures the core type that this process runs; tells the details unless quiet. */
static void measure(struct findings *f, struct problem *p, bool quiet) {
    struct example example = {0};
    *f = (struct findings){.float_print = 0xcbf29ce484222325, .snapped_print = 0xcbf29ce484222325};
    snprintf(f->core, sizeof f->core, "%s", openblas_get_corename());
    if (!quiet)
        printf("float32, core type %s: outputs with other bits than\n"
               "    K weights | one fmaf chain          | one plain sum           | M=1,7, | 1 or 2\n"
               "      by      | sgemv   M=1   M=7  M=64 | sgemv   M=1   M=7  M=64 | 64     | threads\n"
               "       out of |   256   256  1792 16384 |   256   256  1792 16384 |    256 |  18688\n", f->core);
    for (int i = 0; i < N_KS; i++) {
        make_problem(p, all_k[i]);
        multiply_all_ways(f, p);
        look_for_example(&example, p);
        for (int layout = 0; layout < 2 && !quiet; layout++)
            print_shape(p, layout);
    }
    if (quiet)
        return;
    printf("\nOne dot product, %d answers (K = %d, row 0, column %d, 1 thread):\n", example.n_different,
           example.k, example.column);
    for (int i = 0; i < N_ANSWERS; i++)
        printf("    %-20s %08" PRIx32 "  %.9g\n", answer_names[i], num_bits(example.answers[i]),
               (double)example.answers[i]);
}

/* Runs this program with OPENBLAS_CORETYPE = core; f->skipped says why there is no result. */
static void measure_child(struct findings *f, const char *core) {
    int ends[2], status = 0;
    FILE *in = NULL;
    pid_t child = -1;
    *f = (struct findings){0};
    if (pipe(ends) == 0 && (child = fork()) == 0) {
        setenv("OPENBLAS_CORETYPE", core, 1);
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "same_sums", "--one", (char *)NULL);
        _exit(127);
    }
}
