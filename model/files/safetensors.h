/*
 * safetensors.h - one safetensors file, mapped into memory and never written.
 *
 * The format (https://github.com/huggingface/safetensors, section Format): 8 bytes, the length N
 * of the header, little endian; N bytes of JSON, one object from tensor name to {dtype, shape,
 * data_offsets: [begin, end]}, optionally "__metadata__" (strings), padded with spaces; then the
 * data, little endian, row-major. Offsets count from the first byte after the header. The tensors
 * cover the data exactly: no overlap, no hole, nothing behind the last.
 *
 * Every rule is checked when the file is opened, so `data` and `n_bytes` of a tensor can be
 * trusted afterwards. The one thing that cannot be checked: whoever shortens the file while it is
 * open makes the next read of the lost part fail with SIGBUS, as with any mapped file.
 */
#ifndef SAMEBITS_MODEL_FILES_SAFETENSORS_H
#define SAMEBITS_MODEL_FILES_SAFETENSORS_H

#include "model/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What tensor_read_f32 can widen, and everything else the format knows. */
enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_OTHER };

enum { TENSOR_MAX_DIMS = 8 };

/* One tensor of an open file. Everything it points to belongs to the file and lives until
 * safetensors_close. */
struct tensor {
    const char *name;
    const char *dtype_name; /* as in the header: "BF16", "I64", … */
    enum dtype dtype;
    int n_dims;                     /* 0 for a single number */
    int64_t shape[TENSOR_MAX_DIMS]; /* [n_dims], each >= 0; row-major */
    const unsigned char *data;      /* [n_bytes], any alignment */
    size_t n_bytes;
    int64_t n_elements; /* the product of shape */
    const char *file;   /* path of the file, for messages */
    bool mapped;        /* data is a mapping of the file (not the caller's memory) */
};

struct safetensors;

/*
 * Maps path and checks it. Returns 0 and a new *out for safetensors_close, or -1 with err set and
 * *out NULL: not a file, unreadable, empty, shorter or longer than its header says, or any rule
 * of the format broken, with the tensor's name.
 */
int safetensors_open(struct safetensors **out, const char *path, struct error *err);

/* safetensors_open for n bytes in memory, which the caller owns and keeps until safetensors_close;
 * where names them in errors. */
int safetensors_parse(struct safetensors **out, const unsigned char *bytes, size_t n,
                      const char *where, struct error *err);

/* Ends the mapping and frees everything; NULL is fine. */
void safetensors_close(struct safetensors *s);

/* How many tensors there are, and tensor i of 0 to count-1 in the order of their data. */
size_t safetensors_count(const struct safetensors *s);
const struct tensor *safetensors_at(const struct safetensors *s, size_t i);

/* Sets err to a message that begins with "FILE: tensor "NAME"". Always returns -1. */
int tensor_refuse(const struct tensor *t, struct error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Writes elements first to first+count-1 of t, in row-major order, to dst[count] as float32. bf16
 * and fp16 are widened exactly: subnormals keep their value, infinities and zeros their sign, NaNs
 * their sign and payload (also quiet or signalling), F32 is copied bit for bit. Returns 0, or -1
 * with err set: a dtype other than F32, F16 and BF16, or elements outside t.
 */
int tensor_read_f32(float *dst, const struct tensor *t, int64_t first, int64_t count,
                    struct error *err);

/*
 * Gives back the memory behind the whole pages inside t, so that a checkpoint that has been copied
 * elsewhere does not count twice in the process's resident set. Reading t again is still correct:
 * the pages come back from the file. Does nothing to a tensor of safetensors_parse.
 */
void tensor_drop_pages(const struct tensor *t);

#endif
