/*
 * fuzz_safetensors.c - any bytes as a safetensors file: refused with a message, or every tensor
 * can be found and read.
 *
 * The input's first byte chooses whether it is a whole file or only the part behind the header's
 * length, which is then filled in, so that most inputs reach the JSON.
 */
#include "model/files/safetensors.h"
#include "tests/find_tensor.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_all(const struct tensor *t) {
    enum { CHUNK = 64 };
    float values[CHUNK];
    struct error err;
    for (int64_t i = 0; i < t->n_elements; i += CHUNK) {
        int64_t count = t->n_elements - i < CHUNK ? t->n_elements - i : CHUNK;
        if (tensor_read_f32(values, t, i, count, &err) != (t->dtype == DTYPE_OTHER ? -1 : 0))
            abort();
        if (t->dtype == DTYPE_OTHER)
            break;
    }
}

static void check(const unsigned char *bytes, size_t n) {
    struct safetensors *s;
    struct error err = {""};
    if (safetensors_parse(&s, bytes, n, "fuzz", &err)) {
        if (s || !err.text[0])
            abort();
        return;
    }
    size_t covered = 0;
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct tensor *t = safetensors_at(s, i);
        if (find_tensor(s, t->name) != t || t->data < bytes ||
            t->data + t->n_bytes > bytes + n)
            abort();
        covered += t->n_bytes;
        read_all(t);
        tensor_drop_pages(t);
    }
    if (covered > n - 8)
        abort();
    safetensors_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (!n)
        return 0;
    if (data[0] % 8 == 0) {
        check(data + 1, n - 1);
        return 0;
    }
    /* The header ends at the last closing brace; what follows is the data. */
    size_t length = n - 1, end = length;
    while (end > 0 && data[end] != '}')
        end--;
    unsigned char *file = malloc(8 + length);
    if (!file)
        return 0;
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)end >> 8 * i);
    memcpy(file + 8, data + 1, length);
    check(file, 8 + length);
    free(file);
    return 0;
}
