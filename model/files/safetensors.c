#include "model/files/safetensors.h"

#include "model/files/json.h"
#include "model/numerics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Data is little endian in the file and read as it lies. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors on a big-endian machine");

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100 * 1000 * 1000 };

struct safetensors {
    char *path;
    json_t *header;         /* owns the names that the tensors point to */
    struct tensor *tensors; /* [count], in the order of their data */
    size_t count;
    void *mapping; /* NULL: the bytes are the caller's */
    size_t mapping_bytes;
};

/* Bits, because the smallest of the format's dtypes fill no byte. */
static const struct {
    const char *name;
    enum dtype dtype;
    int bits;
} dtypes[] = {
    {"F32", DTYPE_F32, 32},      {"F16", DTYPE_F16, 16},      {"BF16", DTYPE_BF16, 16},
    {"F64", DTYPE_OTHER, 64},    {"I64", DTYPE_OTHER, 64},    {"U64", DTYPE_OTHER, 64},
    {"C64", DTYPE_OTHER, 64},    {"I32", DTYPE_OTHER, 32},    {"U32", DTYPE_OTHER, 32},
    {"I16", DTYPE_OTHER, 16},    {"U16", DTYPE_OTHER, 16},    {"I8", DTYPE_OTHER, 8},
    {"U8", DTYPE_OTHER, 8},      {"BOOL", DTYPE_OTHER, 8},    {"F8_E4M3", DTYPE_OTHER, 8},
    {"F8_E5M2", DTYPE_OTHER, 8}, {"F8_E8M0", DTYPE_OTHER, 8}, {"F6_E2M3", DTYPE_OTHER, 6},
    {"F6_E3M2", DTYPE_OTHER, 6}, {"F4", DTYPE_OTHER, 4},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

int tensor_refuse(const struct tensor *t, struct error *err, const char *format, ...) {
    struct error why;
    va_list args;
    va_start(args, format);
    vsnprintf(why.text, sizeof why.text, format, args);
    va_end(args);
    return error_set(err, "%s: tensor \"%s\"%s", t->file, t->name, why.text);
}

/* Sets t's dtype; returns its size in bits, or -1 for a name the format does not have. */
static int read_dtype(struct tensor *t, const json_t *entry) {
    const json_t *value = json_object_get(entry, "dtype");
    t->dtype_name = json_string_value(value);
    for (int i = 0; t->dtype_name && i < N_DTYPES; i++) {
        size_t n = strlen(dtypes[i].name) + 1; /* the string may hold NULs */
        if (json_string_length(value) + 1 == n && !memcmp(dtypes[i].name, t->dtype_name, n)) {
            t->dtype = dtypes[i].dtype;
            return dtypes[i].bits;
        }
    }
    return -1;
}

static int read_shape(struct tensor *t, const json_t *entry, struct error *err) {
    const json_t *shape = json_object_get(entry, "shape");
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > TENSOR_MAX_DIMS)
        return tensor_refuse(t, err, ": \"shape\" must be a list of at most %d numbers",
                             TENSOR_MAX_DIMS);
    t->n_dims = (int)n;
    t->n_elements = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return tensor_refuse(t, err, ": \"shape\" must hold whole numbers >= 0");
        t->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(t->n_elements, t->shape[i], &t->n_elements))
            return tensor_refuse(t, err, ": the shape's product overflows");
    }
    return 0;
}

/* Sets where t's bytes are, from data_offsets: [begin, end] within data[data_bytes]. */
static int read_offsets(struct tensor *t, const json_t *entry, const unsigned char *data,
                        size_t data_bytes, struct error *err) {
    const json_t *pair = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(pair, 0), *last = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return tensor_refuse(t, err, ": \"data_offsets\" must be [begin, end]");
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return tensor_refuse(t, err, ": \"data_offsets\" are [%lld,%lld]", (long long)begin,
                             (long long)end);
    if ((uint64_t)end > data_bytes)
        return tensor_refuse(t, err,
                             " ends at byte %lld of the data, but there are only %zu. "
                             "Is the download complete?",
                             (long long)end, data_bytes);
    t->data = data + begin;
    t->n_bytes = (size_t)(end - begin);
    return 0;
}

static int read_tensor(struct tensor *t, const json_t *entry, const unsigned char *data,
                       size_t data_bytes, struct error *err) {
    if (!json_is_object(entry))
        return tensor_refuse(t, err, ": not a JSON object");
    int bits = read_dtype(t, entry);
    if (bits < 0)
        return tensor_refuse(t, err, ": dtype \"%s\" is unknown",
                             t->dtype_name ? t->dtype_name : "?");
    if (read_shape(t, entry, err) || read_offsets(t, entry, data, data_bytes, err))
        return -1;
    int64_t total_bits;
    if (__builtin_mul_overflow(t->n_elements, (int64_t)bits, &total_bits))
        return tensor_refuse(t, err, ": its size in bits overflows");
    if (total_bits % 8 || (uint64_t)total_bits / 8 != t->n_bytes)
        return tensor_refuse(
            t, err, ": %" PRId64 " elements of %s are %" PRId64 " bytes, its data_offsets span %zu",
            t->n_elements, t->dtype_name, total_bits / 8, t->n_bytes);
    return 0;
}

static int by_data(const void *a, const void *b) {
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* In the order of their data, each tensor must begin where the one before ends. */
static int check_cover(const struct safetensors *s, const unsigned char *data, size_t data_bytes,
                       struct error *err) {
    size_t expected = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *t = &s->tensors[i];
        size_t begin = (size_t)(t->data - data);
        if (begin < expected)
            return error_set(err, "%s: tensors \"%s\" and \"%s\" overlap at byte %zu of the data",
                             s->path, t[-1].name, t->name, begin);
        if (begin > expected)
            return error_set(err,
                             "%s: bytes %zu to %zu of the data, before \"%s\", belong to no "
                             "tensor",
                             s->path, expected, begin, t->name);
        expected = begin + t->n_bytes;
    }
    if (expected < data_bytes)
        return error_set(err, "%s: %zu bytes of data, but the last tensor ends at byte %zu",
                         s->path, data_bytes, expected);
    return 0;
}

static int check_metadata(json_t *metadata, const char *where, struct error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return error_set(err, "%s: \"__metadata__\" must be an object of strings", where);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return error_set(err, "%s: \"__metadata__\": \"%s\" must be a string", where, key);
    }
    return 0;
}

static int read_tensors(struct safetensors *s, const unsigned char *data, size_t data_bytes,
                        struct error *err) {
    size_t n = json_object_size(s->header);
    s->tensors = calloc(n + 1, sizeof *s->tensors);
    if (!s->tensors)
        return error_set(err, "%s: out of memory", s->path);
    const char *name;
    json_t *entry;
    json_object_foreach(s->header, name, entry) {
        if (!strcmp(name, "__metadata__")) {
            if (check_metadata(entry, s->path, err))
                return -1;
            continue;
        }
        struct tensor *t = &s->tensors[s->count++];
        t->name = name;
        t->file = s->path;
        t->mapped = s->mapping != NULL;
        if (read_tensor(t, entry, data, data_bytes, err))
            return -1;
    }
    qsort(s->tensors, s->count, sizeof *s->tensors, by_data);
    return check_cover(s, data, data_bytes, err);
}

/* Reads the n bytes of a whole file into s, whose path is set. */
static int read_file(struct safetensors *s, const unsigned char *bytes, size_t n,
                     struct error *err) {
    if (n < LENGTH_BYTES)
        return error_set(err, "%s: %zu bytes are too few for a safetensors file", s->path, n);
    uint64_t length = 0;
    for (int i = LENGTH_BYTES; i-- > 0;)
        length = length << 8 | bytes[i];
    if (length > MAX_HEADER_BYTES)
        return error_set(err,
                         "%s: a header of %" PRIu64 " bytes (at most %d). Is it a safetensors "
                         "file?",
                         s->path, length, MAX_HEADER_BYTES);
    if (length > n - LENGTH_BYTES)
        return error_set(err,
                         "%s: a header of %" PRIu64 " bytes, but the file has %zu. Is the "
                         "download complete?",
                         s->path, length, n);
    const char *text = (const char *)bytes + LENGTH_BYTES;
    if (!length || text[0] != '{')
        return error_set(err, "%s: the header is not a JSON object", s->path);
    s->header = json_parse(text, (size_t)length, s->path, err);
    if (!s->header)
        return -1;
    size_t start = LENGTH_BYTES + (size_t)length;
    return read_tensors(s, bytes + start, n - start, err);
}

/* Maps s->path. */
static int map_file(struct safetensors *s, struct error *err) {
    int fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block us */
    struct stat info = {0};
    int rc = 0;
    if (fd < 0 || fstat(fd, &info))
        rc = error_set(err, "%s: %s", s->path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        rc = error_set(err, "%s: not a file%s", s->path,
                       S_ISDIR(info.st_mode) ? " but a folder" : "");
    else if (!info.st_size)
        rc = error_set(err, "%s: the file is empty", s->path);
    s->mapping_bytes = (size_t)info.st_size;
    void *mapping = rc ? MAP_FAILED : mmap(NULL, s->mapping_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (!rc && mapping == MAP_FAILED)
        rc = error_set(err, "%s: %s", s->path, strerror(errno));
    s->mapping = mapping == MAP_FAILED ? NULL : mapping;
    if (fd >= 0)
        close(fd);
    return rc;
}

/* The file at path, or n bytes if there are any. */
static int read_from(struct safetensors **out, const char *path, const unsigned char *bytes,
                     size_t n, struct error *err) {
    struct safetensors *s = calloc(1, sizeof *s);
    int rc = s && (s->path = strdup(path)) ? 0 : error_set(err, "%s: out of memory", path);
    if (!rc && !bytes)
        rc = map_file(s, err);
    if (!rc)
        rc = bytes ? read_file(s, bytes, n, err) : read_file(s, s->mapping, s->mapping_bytes, err);
    if (rc)
        safetensors_close(s);
    *out = rc ? NULL : s;
    return rc;
}

int safetensors_parse(struct safetensors **out, const unsigned char *bytes, size_t n,
                      const char *where, struct error *err) {
    return read_from(out, where, bytes, n, err);
}

int safetensors_open(struct safetensors **out, const char *path, struct error *err) {
    return read_from(out, path, NULL, 0, err);
}

void safetensors_close(struct safetensors *s) {
    if (!s)
        return;
    if (s->mapping)
        munmap(s->mapping, s->mapping_bytes);
    json_decref(s->header);
    free(s->tensors);
    free(s->path);
    free(s);
}

size_t safetensors_count(const struct safetensors *s) {
    return s->count;
}

const struct tensor *safetensors_at(const struct safetensors *s, size_t i) {
    return i < s->count ? &s->tensors[i] : NULL;
}

/* The float32 bits with the value of a binary16: 1 sign, 5 exponent, 10 fraction bits. */
static uint32_t widen_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff, bits;
    if (magnitude >= 0x7c00) { /* infinity, or a NaN, which keeps its payload */
        bits = 0x7f800000 | (magnitude & 0x3ff) << 13;
    } else if (magnitude >= 0x0400) { /* the exponent's bias grows from 15 to 127 */
        bits = (magnitude << 13) + ((127 - 15) << 23);
    } else { /* zero or subnormal: a multiple of 2^-24, which float32 holds as a normal number */
        float value = (float)magnitude * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
    }
    return sign | bits;
}

int tensor_read_f32(float *dst, const struct tensor *t, int64_t first, int64_t count,
                    struct error *err) {
    if (t->dtype == DTYPE_OTHER)
        return tensor_refuse(t, err, " is %s; BF16, F16 and F32 are supported", t->dtype_name);
    if (first < 0 || count < 0 || first > t->n_elements || count > t->n_elements - first)
        return tensor_refuse(t, err, ": elements %" PRId64 " + %" PRId64 " of %" PRId64, first,
                             count, t->n_elements);
    if (!count) /* dst may be NULL then */
        return 0;
    if (t->dtype == DTYPE_F32) {
        memcpy(dst, t->data + first * 4, (size_t)count * 4);
        return 0;
    }
    const unsigned char *from = t->data + first * 2;
    bool is_bf16 = t->dtype == DTYPE_BF16;
    for (int64_t i = 0; i < count; i++) {
        /* By bytes: the format aligns nothing, and ThreadSanitizer is slow with what is not aligned. */
        uint16_t half = (uint16_t)(from[2 * i] | from[2 * i + 1] << 8);
        dst[i] = num_float(is_bf16 ? (uint32_t)half << 16 : widen_f16(half));
    }
    return 0;
}

void tensor_drop_pages(const struct tensor *t) {
    if (!t->mapped)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)t->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)t->data + t->n_bytes) / page * page;
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}
