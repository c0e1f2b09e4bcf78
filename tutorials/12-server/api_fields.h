/*
 * api_fields.h - the fields of a body: which there are, and their values. Between the api's files.
 *
 * Each function returns 0, or -1 with err set to status 400 and the field. A field that is absent
 * or null leaves *out as it was.
 */
#ifndef SAMEBITS_API_FIELDS_H
#define SAMEBITS_API_FIELDS_H

#include "tutorials/12-server/api.h"

/* Sets err: a status of HTTP, the field that is wrong ("": none), and why. Always returns -1. */
int api_refuse(struct api_error *err, int status, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The value of a field, or NULL when it is absent or null. */
json_t *api_field(const json_t *body, const char *name);

int api_get_number(const json_t *body, const char *name, double min, double max, double *out,
                   struct api_error *err);
int api_get_int(const json_t *body, const char *name, json_int_t min, json_int_t max, int *out,
                struct api_error *err);
int api_get_bool(const json_t *body, const char *name, bool *out, struct api_error *err);

/* The paths that read a body, to be combined. */
enum api_path { API_CHAT = 1, API_COMPLETIONS = 2, API_TOKENIZE = 4, API_DETOKENIZE = 8 };

/* Whether all fields of a body belong to its path, and those that are not supported ask for what is
 * done anyway. */
int api_check_fields(const json_t *body, enum api_path path, struct api_error *err);

#endif
