/*
 * forward_hash.h - phase 13: hashes of the logits of a pass (hash_rows of ops.h), which a device
 * may compute beside the next pass.
 */
#ifndef SAMEBITS_FORWARD_HASH_H
#define SAMEBITS_FORWARD_HASH_H

#include "model/forward.h"

/* Begins to hash the n rows of logits of the pass that forward has begun. Returns 0, or -1 with err
 * set: no memory. */
int forward_hash(struct workspace *ws, int n, struct error *err);

/* Where the hashes of the last forward_hash are from a row on, host [n - row, SHA256_BYTES]: to be
 * read after the device's hash_wait and before the next forward_hash. NULL: there was none. */
const unsigned char *forward_hashes(const struct workspace *ws, size_t row);

/* Gives their memory back, when the device no longer writes there. */
void forward_hashes_free(struct workspace *ws);

#endif
