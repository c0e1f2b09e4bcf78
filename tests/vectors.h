/*
 * vectors.h - the test vectors of data/numerics: what every rule of tutorials/numerics-1.md gives,
 * as lines of JSON. data/numerics/README.md says what each kind of line holds.
 *
 * Ops run on the device under test, so that any device can be held against the files.
 */
#ifndef SAMEBITS_TESTS_VECTORS_H
#define SAMEBITS_TESTS_VECTORS_H

#include "tests/device.h"
#include "tests/random.h"

#include <stdio.h>

struct vectors {
    FILE *out;
    struct test_device t; /* the device under test, open */
    struct random random;
    int n_fields; /* of the line that is being written */
};

/* A file's lines. folder: that of the small models, which is read. */
void vectors_functions(struct vectors *v, const char *folder);
void vectors_ops(struct vectors *v, const char *folder);
void vectors_rope(struct vectors *v, const char *folder);
void vectors_caches(struct vectors *v, const char *folder);
void vectors_attention(struct vectors *v, const char *folder);
void vectors_sampling(struct vectors *v, const char *folder);
void vectors_models(struct vectors *v, const char *folder);

/* The small models: how many, their names, and writing number i to a folder that exists. */
enum { N_VECTOR_MODELS = 4 };
extern const char *const vector_model_names[N_VECTOR_MODELS];
void vector_model_write(int i, const char *folder);

/* ---- lines ------------------------------------------------------------------------------------
 */

/* Begins a line of this kind, and ends it. */
void vector_begin(struct vectors *v, const char *op);
void vector_end(struct vectors *v);

/* Fields of it. Floats are their bits, in hexadecimal, with blanks between; every NaN is 7fc00000.
 */
void vector_text(struct vectors *v, const char *name, const char *text);
void vector_int(struct vectors *v, const char *name, int64_t x);
void vector_floats(struct vectors *v, const char *name, const float *x, size_t n);
void vector_float(struct vectors *v, const char *name, float x);
void vector_double(struct vectors *v, const char *name, double x);
void vector_i8(struct vectors *v, const char *name, const int8_t *x, size_t n);
void vector_i16(struct vectors *v, const char *name, const int16_t *x, size_t n);
void vector_i32(struct vectors *v, const char *name, const int32_t *x, size_t n);

/* Syncs; when there was a fault, writes "fault" and returns true. */
bool vector_fault(struct vectors *v);

/* Fills x[n] with random numbers of ordinary size. */
void vector_normal(struct vectors *v, float *x, size_t n);

#endif
