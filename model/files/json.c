#include "model/files/json.h"

#include <errno.h>
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

static bool present(const json_t *object, const char *field, json_t **value) {
    *value = json_object_get(object, field);
    return *value && !json_is_null(*value);
}

int json_get_int(const json_t *object, const char *field, int min, int max, int *out,
                 const char *where, struct error *err) {
    json_t *value;
    if (!present(object, field, &value))
        return 0;
    if (!json_is_integer(value))
        return error_set(err, "%s: \"%s\" must be a whole number", where, field);
    json_int_t number = json_integer_value(value);
    if (number < min || number > max)
        return error_set(err, "%s: \"%s\" is %lld, must be %d to %d", where, field,
                         (long long)number, min, max);
    *out = (int)number;
    return 0;
}

int json_get_int_required(const json_t *object, const char *field, int min, int max, int *out,
                          const char *where, struct error *err) {
    json_t *value;
    if (!present(object, field, &value))
        return error_set(err, "%s: \"%s\" is missing", where, field);
    return json_get_int(object, field, min, max, out, where, err);
}

int json_get_double(const json_t *object, const char *field, double *out, const char *where,
                    struct error *err) {
    json_t *value;
    if (!present(object, field, &value))
        return 0;
    if (!json_is_number(value))
        return error_set(err, "%s: \"%s\" must be a number", where, field);
    *out = json_number_value(value);
    return 0;
}

int json_get_bool(const json_t *object, const char *field, bool *out, const char *where,
                  struct error *err) {
    json_t *value;
    if (!present(object, field, &value))
        return 0;
    if (!json_is_boolean(value))
        return error_set(err, "%s: \"%s\" must be true or false", where, field);
    *out = json_is_true(value);
    return 0;
}

int json_get_string(const json_t *object, const char *field, const char **out, const char *where,
                    struct error *err) {
    json_t *value;
    if (!present(object, field, &value))
        return 0;
    if (!json_is_string(value))
        return error_set(err, "%s: \"%s\" must be a string", where, field);
    *out = json_string_value(value);
    if (strlen(*out) != json_string_length(value))
        return error_set(err, "%s: \"%s\" has a NUL character", where, field);
    return 0;
}

int json_get_text(const json_t *object, const char *field, const char **out, const char *where,
                  struct error *err) {
    *out = NULL;
    return json_get_string(object, field, out, where, err);
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

int json_for_each_line(const char *path,
                       int (*each)(void *context, const json_t *value, const char *where,
                                   struct error *err),
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
        result = value ? each(context, value, where, err)
                       : error_set(err, "%s, column %d: %s", where, why.column, why.text);
        json_decref(value);
    }
    if (!result && ferror(file))
        result = error_set(err, "%s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return result;
}
