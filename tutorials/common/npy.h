/*
 * npy.h - writes a float32 matrix in NumPy's .npy format (version 1.0), row by row.
 */
#ifndef SAMEBITS_NPY_H
#define SAMEBITS_NPY_H

#include "tutorials/common/output.h"

#include <stddef.h>

struct npy {
    struct output output;
    size_t rows, columns;
};

/* Begins the file. Returns 0, or -1 with err set. path must outlive n. */
int npy_open(struct npy *n, const char *path, size_t columns, struct error *err);

/* Appends row[columns]. Returns 0, or -1 with err set (disk full…). */
int npy_row(struct npy *n, const float *row, struct error *err);

/* Writes the final shape and puts the file in its place; a zeroed one is fine. Returns 0, or -1
 * with err set and no new file. */
int npy_close(struct npy *n, struct error *err);

#endif
