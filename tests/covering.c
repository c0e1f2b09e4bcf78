#include "tests/covering.h"

#include "tests/device.h"
#include "tests/random.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { UNSET = 255, TRIES = 30 /* rows of which the best is taken */ };

/* ---- the greedy choice ----------------------------------------------------------------------- */

struct builder {
    struct covering *c;
    struct random random;
    long first[COVERING_MOST_AXES][COVERING_MOST_AXES][COVERING_MOST_AXES]; /* of three axes */
    bool *seen;                                                             /* each triple */
    long n_triples;
};

/* The number of a triple; a < b < c. */
static long triple(const struct builder *s, int a, int b, int c, const uint8_t *row) {
    const int *n = s->c->n_values;
    return s->first[a][b][c] + ((long)row[a] * n[b] + row[b]) * n[c] + row[c];
}

static void sort3(int x[3]) {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            if (x[j] > x[j + 1]) {
                int smaller = x[j + 1];
                x[j + 1] = x[j];
                x[j] = smaller;
            }
}

/* How many triples of the row that have this axis no other row has. */
static int gain_of(const struct builder *s, const uint8_t *row, int axis) {
    int gain = 0, n = s->c->n_axes;
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++) {
            int at[3] = {a, b, axis};
            if (a == axis || b == axis || row[a] == UNSET || row[b] == UNSET)
                continue;
            sort3(at);
            gain += !s->seen[triple(s, at[0], at[1], at[2], row)];
        }
    return gain;
}

/* Begins a row with the first triple that is missing. Returns false: there is none. */
static bool begin_row(const struct builder *s, uint8_t *row) {
    const int *n = s->c->n_values;
    memset(row, UNSET, COVERING_MOST_AXES);
    for (int a = 0; a < s->c->n_axes; a++)
        for (int b = a + 1; b < s->c->n_axes; b++)
            for (int c = b + 1; c < s->c->n_axes; c++)
                for (int i = 0; i < n[a] * n[b] * n[c]; i++)
                    if (!s->seen[s->first[a][b][c] + i]) {
                        row[a] = (uint8_t)(i / n[c] / n[b]);
                        row[b] = (uint8_t)(i / n[c] % n[b]);
                        row[c] = (uint8_t)(i % n[c]);
                        return true;
                    }
    return false;
}

/* Gives the other axes, in random order, the value that gains most. Returns the gain of all. */
static int complete_row(struct builder *s, uint8_t *row) {
    int gain = 1, n = s->c->n_axes, order[COVERING_MOST_AXES];
    for (int i = 0; i < n; i++) {
        int j = random_int(&s->random, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < n; i++) {
        int axis = order[i], values = s->c->n_values[axis], best = -1, best_gain = -1;
        int from = random_int(&s->random, 0, values - 1); /* equal ones take turns */
        if (row[axis] != UNSET)
            continue;
        for (int v = 0; v < values; v++) {
            row[axis] = (uint8_t)((from + v) % values);
            int of_value = gain_of(s, row, axis);
            if (of_value > best_gain) {
                best_gain = of_value;
                best = row[axis];
            }
        }
        row[axis] = (uint8_t)best;
        gain += best_gain;
    }
    return gain;
}

static void add_row(struct builder *s, const uint8_t *row) {
    struct covering *out = s->c;
    uint8_t(*rows)[COVERING_MOST_AXES] = host_array((size_t)out->n_rows + 1, sizeof *rows);
    if (out->n_rows)
        memcpy(rows, out->rows, sizeof *rows * (size_t)out->n_rows);
    memcpy(rows[out->n_rows++], row, sizeof *rows);
    free(out->rows);
    out->rows = rows;
    for (int a = 0; a < out->n_axes; a++)
        for (int b = a + 1; b < out->n_axes; b++)
            for (int c = b + 1; c < out->n_axes; c++)
                s->seen[triple(s, a, b, c, row)] = true;
}

struct covering covering_of(const int *n_values, int n_axes) {
    struct covering out = {.n_axes = n_axes};
    struct builder s = {.c = &out, .random = {1}};
    memcpy(out.n_values, n_values, sizeof *n_values * (size_t)n_axes);
    for (int a = 0; a < n_axes; a++)
        for (int b = a + 1; b < n_axes; b++)
            for (int c = b + 1; c < n_axes; c++) {
                s.first[a][b][c] = s.n_triples;
                s.n_triples += (long)n_values[a] * n_values[b] * n_values[c];
            }
    s.seen = host_array((size_t)s.n_triples, sizeof *s.seen);
    memset(s.seen, 0, sizeof *s.seen * (size_t)s.n_triples);
    uint8_t begun[COVERING_MOST_AXES], best[COVERING_MOST_AXES];
    while (begin_row(&s, begun)) {
        int best_gain = 0;
        for (int i = 0; i < TRIES; i++) {
            uint8_t row[COVERING_MOST_AXES];
            memcpy(row, begun, sizeof row);
            int gain = complete_row(&s, row);
            if (gain > best_gain)
                memcpy(best, row, sizeof best);
            best_gain = gain > best_gain ? gain : best_gain;
        }
        add_row(&s, best);
    }
    free(s.seen);
    return out;
}

void covering_free(struct covering *c) {
    free(c->rows);
}

/* ---- the count ------------------------------------------------------------------------------- */

/* Knows nothing of how rows are chosen: looks for each triple in each row. */
static bool has(const struct covering *c, const int axes[3], const int values[3]) {
    for (int i = 0; i < c->n_rows; i++)
        if (c->rows[i][axes[0]] == values[0] && c->rows[i][axes[1]] == values[1] &&
            c->rows[i][axes[2]] == values[2])
            return true;
    return false;
}

long covering_triples(const struct covering *c) {
    struct covering none = *c;
    none.n_rows = 0;
    return covering_missing(&none);
}

long covering_missing(const struct covering *c) {
    long missing = 0;
    const int *n = c->n_values;
    int x[3], v[3];
    for (x[0] = 0; x[0] < c->n_axes; x[0]++)
        for (x[1] = 0; x[1] < x[0]; x[1]++)
            for (x[2] = 0; x[2] < x[1]; x[2]++)
                for (v[0] = 0; v[0] < n[x[0]]; v[0]++)
                    for (v[1] = 0; v[1] < n[x[1]]; v[1]++)
                        for (v[2] = 0; v[2] < n[x[2]]; v[2]++)
                            missing += !has(c, x, v);
    return missing;
}
