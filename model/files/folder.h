/*
 * folder.h - a Hugging Face folder and the files in it.
 */
#ifndef SAMEBITS_MODEL_FILES_FOLDER_H
#define SAMEBITS_MODEL_FILES_FOLDER_H

#include "model/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Returns 0 if dir is a folder, else -1 with an err that says what --model needs. */
int model_folder_check(const char *dir, struct error *err);

/* Writes DIR/FILE into out[size], without doubling a slash at the end of dir. Returns 0, or -1
 * with err set when it does not fit. */
int model_folder_path(char *out, size_t size, const char *dir, const char *file, struct error *err);

/* Whether there is something of that name: also a link that leads nowhere, or what this user may
 * not see, so that opening it tells why it cannot be read. */
bool model_folder_has(const char *dir, const char *file);

#endif
