/*
 * check_arrays.h - the arrays of a call (check_cases.h), one function for each kind. All of them
 * add an array, in the order in which the call has its arguments.
 */
#ifndef SAMEBITS_TESTS_CHECK_ARRAYS_H
#define SAMEBITS_TESTS_CHECK_ARRAYS_H

#include "tests/check_cases.h"

/* [rows, cols] of undefined content; an output's type is what is compared. */
void add_array(struct check_call *call, enum check_role role, const char *name, enum element type,
               size_t element_size, int rows, int cols);

/* An output of floats. */
void add_output(struct check_call *call, const char *name, int rows, int cols);

/* An input, whose content (of malloc) it takes over. */
void add_filled(struct check_call *call, const char *name, size_t element_size, int rows, int cols,
                void *content);

/* random_rows (random_inputs.h), and fast where they are many. */
float *drawn_floats(struct random *r, int rows, int cols, int kind);

/* Rows of all distributions; `role` says whether the op changes them. */
void add_rows(struct check_call *call, enum check_role role, struct random *r, const char *name,
              int rows, int cols);

/* Each element of its own distribution. */
void add_mixed(struct check_call *call, struct random *r, const char *name, int count);

/* n numbers in 0 ... end - 1, the first and the last among them. */
void add_ids(struct check_call *call, struct random *r, const char *name, int n, int end);

/* Snapped rows of a kind (random_inputs.h), not added; in the last one, every mantissa is the
 * largest that there is. add_snapped adds such rows as two arrays: mantissas and exponents. */
struct bfp_rows snapped_rows(struct random *r, int rows, int cols, int kind);
void add_snapped(struct check_call *call, const char *names[2], int rows, int cols,
                 struct bfp_rows x);

/* W[n][k] of a linear layer. */
void add_weights(struct check_call *call, struct random *r, int n, int k);

#endif
