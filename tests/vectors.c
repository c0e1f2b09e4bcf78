#include "tests/vectors.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "model/numerics.h"

static void name_field(struct vectors *v, const char *name) {
    fprintf(v->out, "%s\"%s\":", v->n_fields++ ? "," : "{", name);
}

void vector_begin(struct vectors *v, const char *op) {
    v->n_fields = 0;
    vector_text(v, "op", op);
}

void vector_end(struct vectors *v) {
    fputs("}\n", v->out);
}

void vector_text(struct vectors *v, const char *name, const char *text) {
    name_field(v, name);
    fprintf(v->out, "\"%s\"", text);
}

void vector_int(struct vectors *v, const char *name, int64_t x) {
    name_field(v, name);
    fprintf(v->out, "%" PRId64, x);
}

void vector_floats(struct vectors *v, const char *name, const float *x, size_t n) {
    name_field(v, name);
    for (size_t i = 0; i < n; i++)
        fprintf(v->out, "%s%08" PRIx32, i ? " " : "\"",
                x[i] == x[i] ? num_bits(x[i]) : 0x7fc00000u);
    fputs("\"", v->out);
}

void vector_float(struct vectors *v, const char *name, float x) {
    vector_floats(v, name, &x, 1);
}

void vector_double(struct vectors *v, const char *name, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    name_field(v, name);
    fprintf(v->out, "\"%016" PRIx64 "\"", bits);
}

static void integers(struct vectors *v, const char *name, const void *x, size_t n, size_t size) {
    name_field(v, name);
    for (size_t i = 0; i < n; i++) {
        int64_t at = size == 1   ? ((const int8_t *)x)[i]
                     : size == 2 ? ((const int16_t *)x)[i]
                                 : ((const int32_t *)x)[i];
        fprintf(v->out, "%s%" PRId64, i ? "," : "[", at);
    }
    fputs("]", v->out);
}

void vector_i8(struct vectors *v, const char *name, const int8_t *x, size_t n) {
    integers(v, name, x, n, sizeof *x);
}

void vector_i16(struct vectors *v, const char *name, const int16_t *x, size_t n) {
    integers(v, name, x, n, sizeof *x);
}

void vector_i32(struct vectors *v, const char *name, const int32_t *x, size_t n) {
    integers(v, name, x, n, sizeof *x);
}

bool vector_fault(struct vectors *v) {
    struct error err = {""};
    struct fault fault;
    if (v->t.ops->sync(v->t.dev, &fault, &err))
        fail_msg("%s", err.text);
    if (fault.site < 0)
        return false;
    name_field(v, "fault");
    fputs("true", v->out);
    return true;
}

void vector_normal(struct vectors *v, float *x, size_t n) {
    random_fill(&v->random, x, n, NORMAL);
}
