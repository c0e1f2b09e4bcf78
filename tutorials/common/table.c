#include "tutorials/common/table.h"

#include "tutorials/common/demo.h"

#include <stdio.h>
#include <string.h>

enum { CELL = 128, MAX_COLUMNS = 16, MOST_ROWS = 100, SHOWN_AT_EACH_END = 40 };

/* A row that is a list of values gets the columns' keys. Takes over the reference. */
static json_t *with_keys(json_t *row, const struct column *columns) {
    if (!json_is_array(row))
        return row;
    json_t *object = json_object();
    for (size_t c = 0; c < json_array_size(row); c++)
        json_object_set(object, columns[c].key, json_array_get(row, c));
    json_decref(row);
    return object;
}

/* A cell as text: numbers with the column's decimals. */
static void format_cell(char out[CELL], const json_t *row, const struct column *column) {
    const json_t *value = json_object_get(row, column->key);
    if (json_is_string(value))
        snprintf(out, CELL, "%s", json_string_value(value));
    else if (json_is_number(value))
        snprintf(out, CELL, "%.*f", column->decimals, json_number_value(value));
    else
        snprintf(out, CELL, "-");
}

static int max_int(int a, int b) {
    return a > b ? a : b;
}

static void show_row(const json_t *row, const struct column *columns, int n_columns) {
    char cell[CELL];
    for (int c = 0; c < n_columns; c++) {
        format_cell(cell, row, &columns[c]);
        printf("%s%*s", c ? "  " : "", max_int(columns[c].width, (int)strlen(columns[c].title)),
               cell);
    }
    printf("\n");
    fflush(stdout);
}

void demo_table_begin(struct demo *demo, const char *key, const char *title,
                      const struct column *columns, int n_columns) {
    demo->table = (struct table){columns, n_columns, json_array()};
    json_object_set_new(demo->json, key, demo->table.rows);
    printf("%s\n\n", title);
    for (int c = 0; c < n_columns; c++)
        printf("%s%*s", c ? "  " : "", columns[c].width, columns[c].title);
    printf("\n");
    fflush(stdout);
}

void demo_table_row(struct demo *demo, json_t *row) {
    row = with_keys(row, demo->table.columns);
    show_row(row, demo->table.columns, demo->table.n_columns);
    json_array_append_new(demo->table.rows, row);
}

int demo_table_end(struct demo *demo, int result) {
    if (!result)
        printf("\n");
    fflush(stdout);
    demo->table = (struct table){0};
    return result ? -1 : 0;
}

void demo_table(struct demo *demo, const char *key, const char *title, const struct column *columns,
                int n_columns, json_t *rows) {
    struct column wide[MAX_COLUMNS];
    char cell[CELL];
    size_t n = json_array_size(rows);
    memcpy(wide, columns, sizeof *wide * (size_t)n_columns);
    for (size_t i = 0; i < n; i++) {
        json_t *row = with_keys(json_incref(json_array_get(rows, i)), columns);
        json_array_set_new(rows, i, row);
        for (int c = 0; c < n_columns; c++) {
            format_cell(cell, row, &columns[c]);
            wide[c].width = max_int(wide[c].width, (int)strlen(cell));
        }
    }
    demo_table_begin(demo, key, title, wide, n_columns);
    for (size_t i = 0; i < n; i++) {
        if (n > MOST_ROWS && i == SHOWN_AT_EACH_END) {
            printf("... %zu more rows, which --json has ...\n", n - 2 * SHOWN_AT_EACH_END);
            i = n - SHOWN_AT_EACH_END;
        }
        show_row(json_array_get(rows, i), wide, n_columns);
    }
    demo_table_end(demo, 0);
    json_object_set_new(demo->json, key, rows);
}
