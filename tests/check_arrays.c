#include "tests/check_arrays.h"

#include "tests/device.h"
#include "tests/random_inputs.h"

#include <stdlib.h>
#include <string.h>

struct check_array *add_array(struct check_call *call, enum check_role role, const char *name,
                              enum element type, size_t element_size, int rows, int cols) {
    struct check_array *a = &call->arrays[call->n_arrays++];
    size_t bytes = (size_t)rows * (size_t)cols * element_size;
    *a = (struct check_array){name, role, type, rows, cols, bytes, host_array(bytes, 1), NULL};
    return a;
}

void add_output(struct check_call *call, const char *name, int rows, int cols) {
    add_array(call, CHECK_OUTPUT, name, ELEMENT_FLOAT, sizeof(float), rows, cols);
}

void add_filled(struct check_call *call, const char *name, size_t element_size, int rows, int cols,
                void *content) {
    struct check_array *a =
        add_array(call, CHECK_INPUT, name, ELEMENT_FLOAT, element_size, rows, cols);
    memcpy(a->data, content, a->bytes);
    free(content);
}

void add_rows(struct check_call *call, enum check_role role, struct random *r, const char *name,
              int rows, int cols) {
    add_filled(call, name, sizeof(float), rows, cols, random_rows(r, rows, cols, N_DISTRIBUTIONS));
    call->arrays[call->n_arrays - 1].role = role;
}

void add_mixed(struct check_call *call, struct random *r, const char *name, int count) {
    float *x = host_array((size_t)count, sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = random_value(r, (enum distribution)random_int(r, 0, N_DISTRIBUTIONS - 1));
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

struct bfp_rows snapped_rows(struct random *r, int rows, int cols, int kind) {
    struct bfp_rows x = random_bfp_rows(r, rows, cols, kind);
    for (int i = 0; i < cols; i++)
        x.mantissas[(size_t)(rows - 1) * (size_t)cols + (size_t)i] = 32639;
    return x;
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
