/*
 * checkpoint.h - the weights of a Hugging Face folder, in one file or in shards.
 *
 * DIR/model.safetensors if there is one; otherwise DIR/model.safetensors.index.json, whose
 * weight_map says for every tensor name in which file of the folder it is. All shards are mapped
 * when the checkpoint is opened; nothing is copied.
 *
 * The index and the shards must agree: each tensor of the index is in its shard and no name is in
 * two shards. A shard may hold tensors the index does not name; they are found like the others.
 */
#ifndef SAMEBITS_MODEL_FILES_CHECKPOINT_H
#define SAMEBITS_MODEL_FILES_CHECKPOINT_H

#include "model/error.h"
#include "model/files/safetensors.h"

#include <stddef.h>
#include <stdint.h>

struct checkpoint;

/*
 * Opens the weights of folder dir. Returns 0 and a new *out for checkpoint_close, or -1 with err
 * set and *out NULL: no such folder, no weights in it (or only pytorch_model.bin, which is not
 * read), an index or a shard that is missing, damaged or contradicts the other.
 */
int checkpoint_open(struct checkpoint **out, const char *dir, struct error *err);

/* Closes all files and frees everything; NULL is fine. */
void checkpoint_close(struct checkpoint *c);

/* How many tensors there are, and tensor i of 0 to count-1 in the order of their names. It belongs
 * to c. */
size_t checkpoint_count(const struct checkpoint *c);
const struct tensor *checkpoint_at(const struct checkpoint *c, size_t i);

/* The tensor of that name, or NULL. It belongs to c. */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);

/*
 * The tensor of that name, which must be F32, F16 or BF16 and have this shape[n_dims] (NULL for no
 * dimensions), the one that config.json implies. Returns it (it belongs to c), or NULL with err
 * set: missing, of another dtype, or of another shape; the message names the file, the tensor, what
 * was found and what was expected.
 */
const struct tensor *checkpoint_need(struct checkpoint *c, const char *name, int n_dims,
                                     const int64_t *shape, struct error *err);

/* Whether checkpoint_need has returned tensor i of checkpoint_at. */
bool checkpoint_was_needed(const struct checkpoint *c, size_t i);

#endif
