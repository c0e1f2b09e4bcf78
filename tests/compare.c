#include "tests/compare.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static size_t element_size(enum element type) {
    static const size_t sizes[] = {
        [ELEMENT_FLOAT] = 4, [ELEMENT_DOUBLE] = 8, [ELEMENT_INT8] = 1,
        [ELEMENT_INT16] = 2, [ELEMENT_INT32] = 4,
    };
    return sizes[type];
}

static const char *element_name(enum element type) {
    static const char *const names[] = {
        [ELEMENT_FLOAT] = "float32", [ELEMENT_DOUBLE] = "float64", [ELEMENT_INT8] = "int8",
        [ELEMENT_INT16] = "int16",   [ELEMENT_INT32] = "int32",
    };
    return names[type];
}

/* "1.5 (0x3fc00000)": the value, with all its digits, and its bits. */
static void print_element(char *out, size_t size, enum element type, const unsigned char *at) {
    float f;
    double d;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    uint64_t bits;
    switch (type) {
    case ELEMENT_FLOAT:
        memcpy(&f, at, sizeof f);
        memcpy(&i32, at, sizeof i32);
        snprintf(out, size, "%.9g (0x%08x)", (double)f, (unsigned)i32);
        break;
    case ELEMENT_DOUBLE:
        memcpy(&d, at, sizeof d);
        memcpy(&bits, at, sizeof bits);
        snprintf(out, size, "%.17g (0x%016llx)", d, (unsigned long long)bits);
        break;
    case ELEMENT_INT8:
        memcpy(&i8, at, sizeof i8);
        snprintf(out, size, "%d (0x%02x)", i8, (unsigned)(uint8_t)i8);
        break;
    case ELEMENT_INT16:
        memcpy(&i16, at, sizeof i16);
        snprintf(out, size, "%d (0x%04x)", i16, (unsigned)(uint16_t)i16);
        break;
    case ELEMENT_INT32:
        memcpy(&i32, at, sizeof i32);
        snprintf(out, size, "%d (0x%08x)", i32, (unsigned)i32);
        break;
    }
}

static void tensor_label(char *out, size_t size, const struct tensor_view *t) {
    if (t->layer < 0)
        snprintf(out, size, "%s", t->name);
    else
        snprintf(out, size, "%s, layer %d", t->name, t->layer);
}

int compare_bits(const struct tensor_view *want, const struct tensor_view *got, char *report,
                 size_t size) {
    char label[128], a[64], b[64];
    tensor_label(label, sizeof label, want);
    if (want->type != got->type || want->rows != got->rows || want->cols != got->cols) {
        snprintf(report, size, "%s: want %zu x %zu %s, got %zu x %zu %s", label, want->rows,
                 want->cols, element_name(want->type), got->rows, got->cols,
                 element_name(got->type));
        return 1;
    }
    const unsigned char *x = want->data, *y = got->data;
    size_t width = element_size(want->type), n = want->rows * want->cols;
    if (n == 0 || !memcmp(x, y, n * width))
        return 0;
    size_t first = n, n_different = 0;
    for (size_t i = n; i-- > 0;)
        if (memcmp(x + i * width, y + i * width, width)) {
            first = i;
            n_different++;
        }
    print_element(a, sizeof a, want->type, x + first * width);
    print_element(b, sizeof b, want->type, y + first * width);
    snprintf(report, size, "%s, token %zu, index %zu: want %s, got %s; %zu of %zu elements differ",
             label, first / want->cols, first % want->cols, a, b, n_different, n);
    return 1;
}

void poison(void *data, size_t bytes) {
    static const unsigned char pattern[2] = {0xff, 0x7f};
    unsigned char *to = data;
    for (size_t i = 0; i < bytes; i++)
        to[i] = pattern[i & 1];
}
