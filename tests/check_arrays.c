#include "tests/check_arrays.h"

#include "tests/device.h"
#include "tests/random_inputs.h"

#include <stdlib.h>
#include <string.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* Drawing each of millions of numbers would take most of the time of a check. So the first rows of
 * an array are drawn, and those of the others are picked from them, at random and in every call
 * anew. */
enum { DRAWN_ROWS = 16 * N_DISTRIBUTIONS, DRAWN = 1 << 16 };

static int drawn_rows(int rows) {
    return rows < DRAWN_ROWS ? rows : DRAWN_ROWS;
}

/* The drawn row of which a later one has its numbers: one of its distribution. */
static int drawn_row_for(struct random *r, int row) {
    return row % N_DISTRIBUTIONS + N_DISTRIBUTIONS * random_int(r, 0, 15);
}

/* Fills to [n] from the first numbers of from [n_from]: at most DRAWN, since each takes 16 bits of
 * chance. */
static inline void pick(struct random *r, void *to, size_t n, const void *from, size_t n_from,
                        size_t size) {
    uint64_t bits = 0;
    for (size_t i = 0; i < n; i++, bits >>= 16) {
        bits = i % 4 ? bits : random_bits64(r);
        size_t at = (bits & 0xffff) * n_from >> 16;
        memcpy((char *)to + i * size, (const char *)from + at * size, size);
    }
}

/* Memory of host_array made larger. */
static void *enlarged(void *x, size_t bytes) {
    x = realloc(x, bytes);
    if (!x)
        abort();
    return x;
}

float *drawn_floats(struct random *r, int rows, int cols, int kind) {
    size_t n = (size_t)cols;
    float *x = random_rows(r, drawn_rows(rows), cols, kind);
    x = enlarged(x, (size_t)rows * n * sizeof *x);
    for (int row = DRAWN_ROWS; row < rows; row++)
        pick(r, x + (size_t)row * n, n, x + (size_t)drawn_row_for(r, row) * n, n, sizeof *x);
    return x;
}

struct bfp_rows snapped_rows(struct random *r, int rows, int cols, int kind) {
    size_t n = (size_t)cols;
    struct bfp_rows x = random_bfp_rows(r, drawn_rows(rows), cols, kind);
    x.mantissas = enlarged(x.mantissas, (size_t)rows * n * sizeof *x.mantissas);
    x.exponents = enlarged(x.exponents, (size_t)rows);
    for (int row = DRAWN_ROWS; row < rows; row++) {
        int from = drawn_row_for(r, row);
        x.exponents[row] = x.exponents[from];
        pick(r, x.mantissas + (size_t)row * n, n, x.mantissas + (size_t)from * n, n,
             sizeof *x.mantissas);
    }
    for (size_t i = 0; i < n; i++)
        x.mantissas[(size_t)(rows - 1) * n + i] = 32639;
    return x;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static void add(struct check_call *call, enum check_role role, const char *name, enum element type,
                size_t element_size, int rows, int cols, void *data) {
    size_t bytes = (size_t)rows * (size_t)cols * element_size;
    call->arrays[call->n_arrays++] =
        (struct check_array){name, role, type, rows, cols, bytes, data, NULL};
}

void add_array(struct check_call *call, enum check_role role, const char *name, enum element type,
               size_t element_size, int rows, int cols) {
    void *data = host_array((size_t)rows * (size_t)cols, element_size);
    add(call, role, name, type, element_size, rows, cols, data);
}

void add_output(struct check_call *call, const char *name, int rows, int cols) {
    add_array(call, CHECK_OUTPUT, name, ELEMENT_FLOAT, sizeof(float), rows, cols);
}

void add_filled(struct check_call *call, const char *name, size_t element_size, int rows, int cols,
                void *content) {
    add(call, CHECK_INPUT, name, ELEMENT_FLOAT, element_size, rows, cols, content);
}

void add_rows(struct check_call *call, enum check_role role, struct random *r, const char *name,
              int rows, int cols) {
    add_filled(call, name, sizeof(float), rows, cols, drawn_floats(r, rows, cols, N_DISTRIBUTIONS));
    call->arrays[call->n_arrays - 1].role = role;
}

void add_mixed(struct check_call *call, struct random *r, const char *name, int count) {
    float *x = host_array((size_t)count, sizeof *x);
    int drawn = count < DRAWN ? count : DRAWN;
    for (int i = 0; i < drawn; i++)
        x[i] = random_value(r, (enum distribution)random_int(r, 0, N_DISTRIBUTIONS - 1));
    pick(r, x + drawn, (size_t)(count - drawn), x, DRAWN, sizeof *x);
    add_filled(call, name, sizeof *x, 1, count, x);
}

void add_ids(struct check_call *call, struct random *r, const char *name, int n, int end) {
    int32_t *ids = host_array((size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = random_int(r, 0, end - 1);
    ids[0] = end - 1;
    ids[n - 1] = 0;
    add_filled(call, name, sizeof *ids, n, 1, ids);
}

void add_snapped(struct check_call *call, const char *names[2], int rows, int cols,
                 struct bfp_rows x) {
    add_filled(call, names[0], sizeof *x.mantissas, rows, cols, x.mantissas);
    add_filled(call, names[1], sizeof *x.exponents, rows, 1, x.exponents);
}

void add_weights(struct check_call *call, struct random *r, int n, int k) {
    struct bfp_rows w = snapped_rows(r, n, k, N_DISTRIBUTIONS);
    add_filled(call, "w", sizeof *w.mantissas, n, k, w.mantissas);
    call->arrays[call->n_arrays - 1].role = CHECK_WEIGHTS;
    call->arrays[call->n_arrays - 1].exponents = w.exponents;
}

void check_free_call(struct check_call *call) {
    for (int i = 0; i < call->n_arrays; i++) {
        free(call->arrays[i].data);
        free(call->arrays[i].exponents);
    }
    call->n_arrays = 0;
}
