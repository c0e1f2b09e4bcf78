/*
 * json.h - reading JSON files with Jansson, with errors that name the file and the field.
 *
 * The getters take `where` (usually the file's path) for the message. A field that is absent or
 * null leaves *out as it was, so the caller sets the default first; the _required forms refuse.
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

/* Calls each(context, value, where) for every line of a file that is not empty, parsed as JSON;
 * where is "FILE: line N". Returns 0, or -1 with err set: the file, a line that is too long or not
 * JSON, what each says. */
int json_for_each_line(const char *path,
                       int (*each)(void *context, const json_t *value, const char *where,
                                   struct error *err),
                       void *context, struct error *err);

/* Each returns 0, or -1 with err set when the field has another type or is out of range. */
int json_get_int(const json_t *object, const char *field, int min, int max, int *out,
                 const char *where, struct error *err);
int json_get_int_required(const json_t *object, const char *field, int min, int max, int *out,
                          const char *where, struct error *err);
int json_get_double(const json_t *object, const char *field, double *out, const char *where,
                    struct error *err);
int json_get_bool(const json_t *object, const char *field, bool *out, const char *where,
                  struct error *err);
/* A string without NUL characters. *out points into object and lives as long as it. */
int json_get_string(const json_t *object, const char *field, const char **out, const char *where,
                    struct error *err);

/* json_get_string, but *out is NULL when the field is absent. */
int json_get_text(const json_t *object, const char *field, const char **out, const char *where,
                  struct error *err);

#endif
