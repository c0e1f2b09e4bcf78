/*
 * same_sums: does the BLAS of this computer give the same dot products the same bits?
 *
 * One set of matrices, the same on every computer, is multiplied by sgemv and sgemm, by 1, 7 and 64
 * rows at a time, with weights stored by rows or by columns, on 1 and 2 threads, and with the code
 * that OpenBLAS has for each family of chips: in float32, and snapped to BFP16 (numerics.h).
 * OpenBLAS reads OPENBLAS_CORETYPE when loaded, so a child process with --one measures each family.
 */
#include "model/numerics.h"

#include <cblas.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { N = 250, MAX_M = 64, MAX_K = 1024, N_KS = 5, N_CALLS = 4, N_CORES = 8 };
enum { N_OUTPUTS = N_KS * 2 * 2 * (1 + 1 + 7 + 64) * N }; /* every K, layout, thread count, call */

static const int all_k[N_KS] = {64, 256, 288, 640, MAX_K};
static const int call_rows[N_CALLS] = {1, 1, 7, 64}; /* call 0 is gemv, the others are gemm */

/* OpenBLAS's names for families of x86 chips, the oldest first. */
static const char *const core_names[N_CORES] = {"Prescott", "Core2", "Nehalem",  "Sandybridge",
                                                "Haswell",  "Zen",   "SkylakeX", "Cooperlake"};

/* Fingerprints are 64-bit FNV-1a hashes (Fowler, Noll and Vo) over the bits of all outputs. */
static const uint64_t fnv_start = 0xcbf29ce484222325, fnv_prime = 0x100000001b3;

/* What the code for one core type did. */
struct findings {
    char core[32];
    long float_differ, snapped_differ;
    uint64_t float_print, snapped_print;
};

/* y = x w^T with everything around it. The first M rows of x are the M-row problem. */
struct problem {
    int k;
    float x[MAX_M * MAX_K];        /* [MAX_M, k] */
    float w[2][N * MAX_K];         /* by rows [N, k], by columns [k, N] */
    double x_whole[MAX_M * MAX_K]; /* mantissas in the same layouts */
    double w_whole[2][N * MAX_K];
    int x_exponents[MAX_M], w_exponents[N];
    float order[2][MAX_M * N];         /* two float32 results: an fmaf chain, a plain sum */
    int64_t exact[MAX_M * N];          /* dot products of the mantissas */
    float y[2][2][N_CALLS][MAX_M * N]; /* OpenBLAS's results: [threads - 1][layout][call] */
    double sums[MAX_M * N];            /* the mantissas' dot products by OpenBLAS */
};

/* Numbers in [-1, 1) of very different sizes, like activations; exact on every machine. */
static void make_rows(float *x, double *x_whole, int *exponents, int n_rows, int k, int stream) {
    int16_t q[MAX_K];
    for (int row = 0; row < n_rows; row++) {
        for (int i = row * k; i < (row + 1) * k; i++) {
            struct philox_block random = num_philox((struct philox_key){{(uint32_t)stream, 0}},
                                                    (struct philox_block){{(uint32_t)i, 0, 0, 0}});
            x[i] = (float)((int32_t)(random.word[0] >> 7) - (1 << 24)) *
                   num_pow2f(-24 - (int)(random.word[1] % 8));
        }
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
        p->order[0][at] = p->order[1][at] = p->exact[at] = 0;
        for (int i = 0; i < k; i++) {
            p->order[0][at] = fmaf(p->x[x + i], p->w[0][w + i], p->order[0][at]);
            p->order[1][at] += p->x[x + i] * p->w[0][w + i]; /* two roundings: no contraction */
            p->exact[at] += (int64_t)p->x_whole[x + i] * (int64_t)p->w_whole[0][w + i];
        }
    }
}

static void multiply(float *y, struct problem *p, int layout, int call) {
    CBLAS_TRANSPOSE no = CblasNoTrans, yes = CblasTrans, gemv = layout ? yes : no;
    int m = call_rows[call], k = p->k, rows = layout ? k : N, cols = layout ? N : k;
    const float *x = p->x, *w = p->w[layout];
    const double *u = p->x_whole, *v = p->w_whole[layout];
    if (call == 0) {
        cblas_sgemv(CblasRowMajor, gemv, rows, cols, 1, w, cols, x, 1, 0, y, 1);
        cblas_dgemv(CblasRowMajor, gemv, rows, cols, 1, v, cols, u, 1, 0, p->sums, 1);
    } else {
        cblas_sgemm(CblasRowMajor, no, layout ? no : yes, m, N, k, 1, x, k, w, cols, 0, y, N);
        cblas_dgemm(CblasRowMajor, no, layout ? no : yes, m, N, k, 1, u, k, v, cols, 0, p->sums, N);
    }
}

static long count_different(const float *a, const float *b, int n) {
    long count = 0;
    for (int i = 0; i < n; i++)
        count += num_bits(a[i]) != num_bits(b[i]);
    return count;
}

static void multiply_by_all_calls(struct findings *f, struct problem *p) {
    for (int i = 0; i < 4 * N_CALLS; i++) {
        int threads = 1 + i / (2 * N_CALLS), layout = i / N_CALLS % 2, call = i % N_CALLS;
        float *y = p->y[threads - 1][layout][call];
        openblas_set_num_threads(threads);
        memset(p->sums, 1, sizeof p->sums); /* so that an unwritten sum is a wrong one */
        multiply(y, p, layout, call);
        f->float_differ += count_different(y, p->order[0], call_rows[call] * N);
        for (int at = 0; at < call_rows[call] * N; at++) {
            int exponent = p->x_exponents[at / N] + p->w_exponents[at % N] - 30;
            float rounded = num_dot_to_float(p->sums[at], exponent);
            f->snapped_differ += p->sums[at] != (double)p->exact[at];
            f->float_print = (f->float_print ^ num_bits(y[at])) * fnv_prime;
            f->snapped_print = (f->snapped_print ^ num_bits(rounded)) * fnv_prime;
        }
    }
}

static void print_shape(struct problem *p, int layout) {
    float(*y)[MAX_M * N] = p->y[0][layout], (*y2)[MAX_M * N] = p->y[1][layout];
    printf("%4d %s ", p->k, layout ? "cols" : "rows");
    for (int i = 0; i < 2 * N_CALLS; i++)
        printf("%s%5ld%s", i % N_CALLS ? " " : "|",
               count_different(y[i % N_CALLS], p->order[i / N_CALLS], call_rows[i % N_CALLS] * N),
               i % N_CALLS == N_CALLS - 1 ? " " : "");
    printf("|%4ld %5ld", count_different(y[1], y[2], N), count_different(y[1], y[3], N));
    printf("|%4ld %5ld\n", count_different(y[0], y2[0], N), count_different(y[3], y2[3], 64 * N));
}

/* One dot product, computed ten times. */
static void print_example(const struct problem *p) {
    const char *calls[N_CALLS] = {"sgemv", "sgemm, M=1", "sgemm, M=7", "sgemm, M=64"};
    int n = 4; /* an output with many answers */
    printf("\nOne dot product (K = %d, row 0, output %d, 1 thread):\n"
           "    %08" PRIx32 "  one fmaf chain\n    %08" PRIx32 "  plain sum\n",
           p->k, n, num_bits(p->order[0][n]), num_bits(p->order[1][n]));
    for (int i = 0; i < 2 * N_CALLS; i++)
        printf("    %08" PRIx32 "  %s, weights by %s\n",
               num_bits(p->y[0][i / N_CALLS][i % N_CALLS][n]), calls[i % N_CALLS],
               i < N_CALLS ? "rows" : "columns");
}

static void print_findings(const struct findings *f) {
    printf("%-12s %7ld of %d  %016" PRIx64 " %7ld  %016" PRIx64 "\n", f->core, f->float_differ,
           N_OUTPUTS, f->float_print, f->snapped_differ, f->snapped_print);
}

/* Measures with this process's OpenBLAS and prints its line of the last table, or all details. */
static void measure(struct findings *f, struct problem *p, bool one_line) {
    *f = (struct findings){.float_print = fnv_start, .snapped_print = fnv_start};
    snprintf(f->core, sizeof f->core, "%s", openblas_get_corename());
    if (!one_line)
        printf("float32, OpenBLAS's code for %s: how many outputs have other bits than\n\n"
               "weights  |an fmaf chain           |a plain sum             |M=1, row 0|1 thread\n"
               "   K by  |sgemv   M=1   M=7  M=64 |sgemv   M=1   M=7  M=64 | M=7  M=64|sgemv M=64\n"
               "  out of |%5d%6d%6d%6d |%5d%6d%6d%6d |%4d %5d|%4d %5d\n",
               f->core, N, N, 7 * N, 64 * N, N, N, 7 * N, 64 * N, N, N, N, 64 * N);
    for (int i = 0; i < N_KS; i++) {
        make_problem(p, all_k[i]);
        multiply_by_all_calls(f, p);
        for (int layout = 0; layout < 2 && !one_line; layout++)
            print_shape(p, layout);
    }
    if (one_line)
        print_findings(f);
    else
        print_example(p);
}

/* Runs this program again for one core type and reads its line. False if that code did not run. */
static bool measure_child(struct findings *f, const char *core) {
    int n_read = 0;
    setenv("OPENBLAS_CORETYPE", core, 1); /* not for us: our own OpenBLAS is loaded already */
    FILE *in = popen("exec /proc/$PPID/exe --one", "r");
    if (in)
        n_read = fscanf(in, "%31s %ld of %*d %" SCNx64 " %ld %" SCNx64, f->core, &f->float_differ,
                        &f->float_print, &f->snapped_differ, &f->snapped_print);
    return in && pclose(in) == 0 && n_read == 5 && !strcasecmp(f->core, core);
}

/* Which of core_names this CPU has the instructions for. */
static void find_cores(bool runs[N_CORES]) {
#ifdef __x86_64__
    runs[0] = __builtin_cpu_supports("sse3");
    runs[1] = __builtin_cpu_supports("ssse3");
    runs[2] = __builtin_cpu_supports("sse4.2");
    runs[3] = __builtin_cpu_supports("avx");
    runs[4] = runs[5] = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    runs[6] = __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    runs[7] = runs[6] && __builtin_cpu_supports("avx512bf16");
#endif
}

/* Prints the table. Returns the exit status: 0 if all snapped results are exact and equal. */
static int compare_cores(const struct findings *first) {
    struct findings all[N_CORES + 1] = {*first};
    bool runs[N_CORES] = {false}, exact = true;
    int n = 1, n_float = 0, n_snapped = 0;
    find_cores(runs);
    printf("\n             float32 outputs not               snapped\n"
           "core type    as the fmaf chain  fingerprint      inexact  fingerprint\n");
    print_findings(first);
    for (int i = 0; i < N_CORES; i++) {
        if (!strcasecmp(core_names[i], first->core))
            continue;
        if (runs[i] && measure_child(&all[n], core_names[i]))
            print_findings(&all[n++]);
        else
            printf("%-12s skipped: %s\n", core_names[i],
                   runs[i] ? "OpenBLAS lacks its code, or it failed" : "the CPU cannot run it");
    }
    for (int i = 0; i < n; i++) {
        bool new_float = true, new_snapped = true;
        for (int j = 0; j < i; j++) {
            new_float = new_float && all[i].float_print != all[j].float_print;
            new_snapped = new_snapped && all[i].snapped_print != all[j].snapped_print;
        }
        n_float += new_float;
        n_snapped += new_snapped;
        exact = exact && all[i].snapped_differ == 0;
    }
    printf("\nfloat32: %d different result%s; snapped: %d result%s\n", n_float,
           n_float == 1 ? "" : "s", n_snapped, n_snapped == 1 ? "" : "s");
    return !exact || n_snapped != 1;
}

int main(int argc, char **argv) {
    static struct problem problem; /* too large for a stack */
    bool one = argc == 2 && !strcmp(argv[1], "--one");
    bool asked = argc == 2 && !strcmp(argv[1], "--help");
    if (argc > 1 && !one) {
        fputs("usage: same_sums [--one]\n"
              "Compares the bits of float32 and snapped products by shape, threads and chip.\n"
              "Exit status: 0; 1: snapped results inexact or not the same; 2: wrong argument.\n"
              "--one: only this process's line of the last table.\n",
              asked ? stdout : stderr);
        return asked ? 0 : 2;
    }
    struct findings own;
    measure(&own, &problem, one);
    return one ? 0 : compare_cores(&own);
}
