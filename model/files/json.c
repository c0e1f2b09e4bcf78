#include "model/files/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A file that ends early, duplicate keys and invalid UTF-8 are all refused by the parser itself. */
enum { PARSE_FLAGS = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY };

json_t *json_read_file(const char *path, struct error *err) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        error_set(err, "%s: %s", path, strerror(errno));
        return NULL;
    }
    json_error_t why;
    json_t *root = NULL;
    int first = fgetc(file); /* a folder can be opened, but not read */
    if (first == EOF && ferror(file))
        error_set(err, "%s: %s", path, strerror(errno));
    else if (ungetc(first, file), !(root = json_loadf(file, PARSE_FLAGS, &why)))
        error_set(err, "%s: line %d, column %d: %s. Is the file complete?", path, why.line,
                  why.column, why.text);
    fclose(file);
    return root;
}

json_t *json_parse(const char *text, size_t n, const char *where, struct error *err) {
    json_error_t why;
    json_t *root = json_loadb(text, n, PARSE_FLAGS, &why);
    if (!root)
        error_set(err, "%s: line %d, column %d: %s", where, why.line, why.column, why.text);
    return root;
}

int json_refuse(const struct json_source *s, const char *format, ...) {
    struct error why;
    va_list args;
    va_start(args, format);
    vsnprintf(why.text, sizeof why.text, format, args);
    va_end(args);
    return error_set(s->err, "%s: %s", s->where, why.text);
}

json_t *json_field(const struct json_source *s, const char *field) {
    json_t *value = json_object_get(s->object, field);
    return json_is_null(value) ? NULL : value;
}

int json_get_int(const struct json_source *s, const char *field, int min, int max, int *out) {
    const json_t *value = json_field(s, field);
    if (!value)
        return 0;
    if (!json_is_integer(value))
        return json_refuse(s, "\"%s\" must be a whole number", field);
    json_int_t number = json_integer_value(value);
    if (number < min || number > max)
        return json_refuse(s, "\"%s\" is %lld, must be %d to %d", field, (long long)number, min,
                           max);
    *out = (int)number;
    return 0;
}

int json_get_required_int(const struct json_source *s, const char *field, int min, int max,
                          int *out) {
    return json_field(s, field) ? json_get_int(s, field, min, max, out)
                                : json_refuse(s, "\"%s\" is missing", field);
}

int json_get_double(const struct json_source *s, const char *field, double *out) {
    const json_t *value = json_field(s, field);
    if (value && !json_is_number(value))
        return json_refuse(s, "\"%s\" must be a number", field);
    *out = value ? json_number_value(value) : *out;
    return 0;
}

int json_get_bool(const struct json_source *s, const char *field, bool *out) {
    const json_t *value = json_field(s, field);
    if (value && !json_is_boolean(value))
        return json_refuse(s, "\"%s\" must be true or false", field);
    *out = value ? json_is_true(value) : *out;
    return 0;
}

int json_get_string(const struct json_source *s, const char *field, const char **out) {
    const json_t *value = json_field(s, field);
    if (!value)
        return 0;
    if (!json_is_string(value))
        return json_refuse(s, "\"%s\" must be a string", field);
    *out = json_string_value(value);
    if (strlen(*out) != json_string_length(value))
        return json_refuse(s, "\"%s\" has a NUL character", field);
    return 0;
}

/* Reads a line into *line [*capacity], with its newline if it has one. Returns its length; 0 at the
 * end of the file; -1 with err set: longer than JSON_LINE_LIMIT, no memory. */
static int read_line(FILE *file, char **line, size_t *capacity, const char *where,
                     struct error *err) {
    int n = 0;
    for (int c = 0; c != '\n' && (c = getc_unlocked(file)) != EOF; n++) {
        if (n == JSON_LINE_LIMIT)
            return error_set(err, "%s: more than %d MiB", where, JSON_LINE_LIMIT >> 20);
        if ((size_t)n == *capacity) {
            *capacity = *capacity ? 2 * *capacity : 4096;
            char *larger = realloc(*line, *capacity);
            if (!larger)
                return error_set(err, "%s: out of memory", where);
            *line = larger;
        }
        (*line)[n] = (char)c;
    }
    return n;
}

static bool is_blank(const char *line, int n) {
    int i = 0;
    while (i < n && line[i] && strchr(" \t\r\n", line[i]))
        i++;
    return i == n;
}

int json_for_each_line(const char *path, int (*each)(void *context, const struct json_source *line),
                       void *context, struct error *err) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return error_set(err, "%s: %s", path, strerror(errno));
    char *line = NULL, where[512];
    size_t capacity = 0;
    int n, result = 0;
    for (int number = 1; !result; number++) {
        snprintf(where, sizeof where, "%s: line %d", path, number);
        n = read_line(file, &line, &capacity, where, err);
        if (n < 0)
            result = -1;
        if (n <= 0)
            break;
        if (is_blank(line, n))
            continue;
        json_error_t why;
        json_t *value = json_loadb(line, (size_t)n, PARSE_FLAGS, &why);
        result = value ? each(context, &(struct json_source){value, where, err})
                       : error_set(err, "%s, column %d: %s", where, why.column, why.text);
        json_decref(value);
    }
    if (!result && ferror(file))
        result = error_set(err, "%s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return result;
}
