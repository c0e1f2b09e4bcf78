/*
 * table.h - tables on stdout, which --json keeps as lists of objects.
 *
 * What takes long is measured between rows, and each row is shown when it is there:
 *
 *     demo_table_begin(demo, "sweep", "Title", columns, n_columns);
 *     demo_table_row(demo, json_pack("[sf]", ...));    // again and again
 *     return demo_table_end(demo, result);
 */
#ifndef SAMEBITS_TABLE_H
#define SAMEBITS_TABLE_H

#include "model/files/json.h"

struct demo;

/* One column: the key of a row's field and how it is shown. */
struct column {
    const char *key, *title;
    int decimals; /* of a number; -1: text */
    int width;    /* at least, as the title; rows that are shown one by one may be no wider */
};

/* The table that is being shown. */
struct table {
    const struct column *columns;
    int n_columns;
    json_t *rows; /* owned by the demo's json */
};

/* Shows the title and the heads of the columns, which must live until the end. */
void demo_table_begin(struct demo *demo, const char *key, const char *title,
                      const struct column *columns, int n_columns);

/* Shows a row, also into a pipe, and keeps it: an object, or a list of a value for each column.
 * Takes over the reference. */
void demo_table_row(struct demo *demo, json_t *row);

/* Ends the table. result: whether all rows could be measured (0), or not; what it returns is 0 or
 * -1 accordingly. */
int demo_table_end(struct demo *demo, int result);

/* Shows a whole list of rows, with columns as wide as their cells; of more than 100 only the first
 * and the last. Takes over the reference. */
void demo_table(struct demo *demo, const char *key, const char *title, const struct column *columns,
                int n_columns, json_t *rows);

#endif
