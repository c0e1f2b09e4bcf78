/*
 * digests.h - which files a model was loaded from: SHA-256 of each.
 */
#ifndef SAMEBITS_MODEL_FILES_DIGESTS_H
#define SAMEBITS_MODEL_FILES_DIGESTS_H

#include "model/error.h"

#include <jansson.h>

enum { SHA256_HEX = 65 }; /* as text, with its end */

/* n bytes as 2n hexadecimal digits, lower case, and a NUL behind them. */
void hex_of(char *out, const unsigned char *bytes, size_t n);

/* SHA-256 of n bytes as text. Returns 0, or -1 with err set. */
int sha256_of(char out[SHA256_HEX], const void *bytes, size_t n, struct error *err);

/*
 * An object with the SHA-256 of each file of folder dir that a model's numbers and tokens come
 * from: config.json, generation_config.json if there is one, tokenizer.json, and the weights (each
 * shard). The digests are those that sha256sum prints, and that model hubs show. Every byte is
 * read: call it when the model has just been loaded. Returns a new reference, or NULL with err set
 * (a file that cannot be read).
 */
json_t *folder_digests(const char *dir, struct error *err);

#endif
