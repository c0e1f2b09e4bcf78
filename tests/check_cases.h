/*
 * check_cases.h - one call of any op as data, so that it can be made in one process and run in
 * another: the arrays that it reads and writes, the sizes where kernels break, and how it is
 * called. An op is one entry of the table in check_cases.c: a function that makes the arrays, one
 * that calls it, a list of shapes.
 */
#ifndef SAMEBITS_TESTS_CHECK_CASES_H
#define SAMEBITS_TESTS_CHECK_CASES_H

#include "model/ops.h"
#include "tests/compare.h"
#include "tests/random.h"

enum {
    CHECK_ARRAYS = 9,
    CHECK_SIZES = 5,
    CHECK_SITE = 7 /* what ops that can fault are told */
};

enum check_role {
    CHECK_INPUT,
    CHECK_OUTPUT,  /* poisoned before the call */
    CHECK_INOUT,   /* read and written */
    CHECK_WEIGHTS, /* a struct matrix */
    CHECK_ON_HOST  /* an input that stays on the host */
};

/* One argument of a call, in host memory. */
struct check_array {
    const char *name;
    enum check_role role;
    enum element type; /* of what is compared: outputs */
    int rows, cols;
    size_t bytes;
    void *data;        /* [rows, cols]; weights: int16 mantissas */
    int8_t *exponents; /* weights: [rows]; else NULL */
};

struct check_call {
    struct check_array arrays[CHECK_ARRAYS];
    int n_arrays;
};

struct check_op {
    const char *name;
    const char *sizes[CHECK_SIZES]; /* what the numbers of a shape are; NULL: not used */
    const int (*shapes)[CHECK_SIZES];
    int n_shapes;
    int speed[CHECK_SIZES]; /* the shape to measure */
    /* Makes the arrays of a call of this shape. */
    void (*make)(struct check_call *call, struct random *r, const int *size);
    /* Calls the op: at[i] is array i on the device (weights: struct matrix *; on the host: that).
     */
    void (*run)(const struct ops *ops, struct device *dev, const int *size, void *const *at);
    int over[2];       /* arrays that array 0 may be written over; 0: none */
    int nan_arrays[2]; /* a NaN in one of these is a fault; 0: none */
};

/* The op of that name, or NULL. */
const struct check_op *check_find_op(const char *name);

/* Frees the arrays. */
void check_free_call(struct check_call *call);

#endif
