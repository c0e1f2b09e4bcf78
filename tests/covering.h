/*
 * covering.h - few combinations of many options in which every three values of different options
 * occur together: a covering array of strength 3. Most mistakes need no more than three values that
 * meet (Kuhn, Wallace and Gallo, "Software Fault Interactions and Implications for Software
 * Testing", 2004), and all combinations are far too many.
 */
#ifndef SAMEBITS_TESTS_COVERING_H
#define SAMEBITS_TESTS_COVERING_H

#include <stdint.h>

enum { COVERING_MOST_AXES = 16 };

struct covering {
    int n_axes, n_values[COVERING_MOST_AXES]; /* at most 255 values each */
    int n_rows;
    uint8_t (*rows)[COVERING_MOST_AXES]; /* [n_rows]: the number of a value of each axis */
};

/* Rows in which every three values of different axes occur, chosen greedily: the same ones in every
 * run. For covering_free. At least 3 axes. */
struct covering covering_of(const int *n_values, int n_axes);
void covering_free(struct covering *c);

/* How many triples of values of different axes there are, and how many of them no row has. */
long covering_triples(const struct covering *c);
long covering_missing(const struct covering *c);

#endif
