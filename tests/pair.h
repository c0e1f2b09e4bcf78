/*
 * pair.h - the same op on two devices: the device under test, and what it must equal bit for bit.
 * That is the reference; for the reference itself it is the oracle, as an op table.
 *
 * A case is: inputs made once on the host, the op on both sides, the outputs compared, pair_next.
 * Every array, on the host and on both devices, is followed by GUARD bytes of a pattern: an op that
 * reads behind its input gets other sums, and one that writes behind its output is found out.
 */
#ifndef SAMEBITS_TESTS_PAIR_H
#define SAMEBITS_TESTS_PAIR_H

#include "tests/compare.h"
#include "tests/device.h"
#include "tests/random.h"

enum { N_SIDES = 2, N_SHAPES = 200, GUARD = 256, MAX_HOST_ARRAYS = 64 };

struct pair {
    struct test_device side[N_SIDES]; /* what is wanted; the device under test */
    bool is_small;                    /* a CPU does the device's work: small shapes only */
    const char *op;                   /* since pair_begin */
    struct random random;             /* seeded anew for every op */
    int n_shapes, first_shape;        /* since pair_begin; 0, or where it began */
    void *host[MAX_HOST_ARRAYS];      /* of this case */
    int n_host;
};

/* The ops of oracle.h as a table, over the reference's memory. */
struct ops oracle_ops(void);

/* Set-up and tear-down of a cmocka group; *state is the pair. */
int pair_group_open(void **state);
int pair_group_close(void **state);

/* Starts an op's cases: its random numbers and its count. Skips the test when SAMEBITS_KERNEL asks
 * for a version that the op does not have: the run without it has tested the op. */
void pair_begin(struct pair *p, const char *op, uint64_t seed);

/* Ends a case: no side may have found a fault; all memory of the case is freed. */
void pair_next(struct pair *p);

/* Prints how many shapes of the op have run. */
void pair_report(const struct pair *p);

/* ---- sizes and data ---------------------------------------------------------------------------
 */

/* 1 ... max: half of them 1, 2, primes, and sizes about powers of two and blocks of threads. */
int random_size(struct random *r, int max);

/* Host memory of the case: n elements, poisoned. */
void *pair_array(struct pair *p, size_t n, size_t element_size);

/* Rows of all kinds: zeros of either sign, equal values, subnormals, one huge value among ordinary
 * ones, and those of random.h. All are finite and below 2^(limit + 4). */
float *pair_floats(struct pair *p, int n_rows, int n_cols, int limit);

/* Rows of mantissas of any size with exponents in -spread ... spread, cut off at those that exist.
 */
struct bfp_rows pair_rows(struct pair *p, int n_rows, int n_cols, int spread);

/* n ids in 0 ... end - 1, the first and the last among them. */
int32_t *pair_ids(struct pair *p, int n, int end);

/* ---- devices ----------------------------------------------------------------------------------
 */

/* A copy of an array of the case; poisoned memory for an output of n elements. */
void *pair_put(struct test_device *t, const void *host, size_t n, size_t element_size);
struct bfp_rows pair_put_rows(struct test_device *t, struct bfp_rows host, int n_rows, int n_cols);
void *pair_output(struct test_device *t, size_t n, size_t element_size);

/* A matrix of these rows, the first `split` put there before the others; for matrix_free. */
struct matrix pair_put_matrix(struct test_device *t, struct bfp_rows w, int n, int k, int split);

/* Fails unless y[0] and y[1], device memory of the two sides, have the same bits and unharmed
 * guards. */
void pair_expect(struct pair *p, const char *name, void *const y[N_SIDES], int n_rows, int n_cols,
                 enum element type);
void pair_expect_floats(struct pair *p, const char *name, float *const y[N_SIDES], int n_rows,
                        int n_cols);
void pair_expect_rows(struct pair *p, const char *name, const struct bfp_rows y[N_SIDES],
                      int n_rows, int n_cols);

#endif
