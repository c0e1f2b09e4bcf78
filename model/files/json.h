/*
 * json.h - reading JSON files with Jansson, with errors that name the file and the field.
 */
#ifndef SAMEBITS_MODEL_FILES_JSON_H
#define SAMEBITS_MODEL_FILES_JSON_H

#include "model/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a whole file. Returns a new reference, or NULL with err set (missing, unreadable, not
 * JSON: with line and column). */
json_t *json_read_file(const char *path, struct error *err);

/* Parses n bytes; where names them in errors. Returns a new reference, or NULL with err set. */
json_t *json_parse(const char *text, size_t n, const char *where, struct error *err);

/* The longest line that json_for_each_line reads, in bytes. */
enum { JSON_LINE_LIMIT = 16 << 20 };

/* An object whose fields are read, and where errors about it go. */
struct json_source {
    const json_t *object;
    const char *where; /* for messages: usually the path of the file */
    struct error *err;
};

/* Calls each(context, line) for every line of a file that is not empty: line->object is its value,
 * of any type, and line->where "FILE: line N". Returns 0, or -1 with err set: the file, a line that
 * is too long or not JSON, what each says. */
int json_for_each_line(const char *path,
                       int (*each)(void *context, const struct json_source *line), void *context,
                       struct error *err);

/* Sets the error to "WHERE: " and the message. Always returns -1. */
int json_refuse(const struct json_source *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The field's value, or NULL when it is absent or null. */
json_t *json_field(const struct json_source *s, const char *field);

/* The getters return 0, or -1 with the error set when the field has another type or is out of
 * range. One that is absent or null leaves *out as it was, so the caller sets the default first;
 * only json_get_required_int refuses that. */
int json_get_int(const struct json_source *s, const char *field, int min, int max, int *out);
int json_get_required_int(const struct json_source *s, const char *field, int min, int max, int *out);
int json_get_double(const struct json_source *s, const char *field, double *out);
int json_get_bool(const struct json_source *s, const char *field, bool *out);
/* A string without NUL characters. *out points into the object and lives as long as it. */
int json_get_string(const struct json_source *s, const char *field, const char **out);

#endif
