#include "tests/checkpoint_writer.h"

#include "tests/random.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void writer_add(struct checkpoint_writer *w, const char *name, int64_t rows, int64_t cols) {
    assert_true(w->count < WRITER_MAX_TENSORS);
    struct random random = {w->n_added++}; /* so that no two tensors are alike */
    struct writer_tensor *t = &w->tensors[w->count++];
    *t = (struct writer_tensor){.dtype = "F32", .n_dims = cols ? 2 : 1, .shape = {rows, cols}};
    assert_in_range(snprintf(t->name, sizeof t->name, "%s", name), 1, WRITER_NAME - 1);
    t->n_values = (size_t)rows * (size_t)(cols ? cols : 1);
    t->values = malloc(sizeof *t->values * t->n_values);
    assert_non_null(t->values);
    for (size_t i = 0; i < t->n_values; i++)
        t->values[i] = (float)random_int(&random, -127, 127) / 64;
}

/* "model.layers.<layer>.<part>.<kind>" */
static void add_part(struct checkpoint_writer *w, int layer, const char *part, const char *kind,
                     int rows, int cols) {
    char name[WRITER_NAME];
    snprintf(name, sizeof name, "model.layers.%d.%s.%s", layer, part, kind);
    writer_add(w, name, rows, cols);
}

static void add_linear(struct checkpoint_writer *w, int layer, const char *part, int rows, int cols,
                       bool bias) {
    add_part(w, layer, part, "weight", rows, cols);
    if (bias)
        add_part(w, layer, part, "bias", rows, 0);
}

static void add_norm(struct checkpoint_writer *w, int layer, const char *part, int n) {
    add_part(w, layer, part, "weight", n, 0);
}

static void add_layer(struct checkpoint_writer *w, const struct model_config *c, int i) {
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    add_norm(w, i, "input_layernorm", c->hidden);
    add_linear(w, i, "self_attn.q_proj", q, c->hidden, c->qkv_bias);
    add_linear(w, i, "self_attn.k_proj", kv, c->hidden, c->qkv_bias);
    add_linear(w, i, "self_attn.v_proj", kv, c->hidden, c->qkv_bias);
    add_linear(w, i, "self_attn.o_proj", c->hidden, q, c->o_bias);
    add_norm(w, i, "post_attention_layernorm", c->hidden);
    add_linear(w, i, "mlp.gate_proj", c->ffn, c->hidden, c->mlp_bias);
    add_linear(w, i, "mlp.up_proj", c->ffn, c->hidden, c->mlp_bias);
    add_linear(w, i, "mlp.down_proj", c->hidden, c->ffn, c->mlp_bias);
    if (!c->qk_norm)
        return;
    add_norm(w, i, "self_attn.q_norm", c->head_dim);
    add_norm(w, i, "self_attn.k_norm", c->head_dim);
}

void writer_init(struct checkpoint_writer *w, const struct model_config *c) {
    w->count = 0;
    w->n_added = 0;
    writer_add(w, "model.embed_tokens.weight", c->vocab_size, c->hidden);
    for (int i = 0; i < c->n_layers; i++)
        add_layer(w, c, i);
    writer_add(w, "model.norm.weight", c->hidden, 0);
    if (!c->tied)
        writer_add(w, "lm_head.weight", c->vocab_size, c->hidden);
}

void writer_free(struct checkpoint_writer *w) {
    for (int i = 0; i < w->count; i++)
        free(w->tensors[i].values);
    w->count = 0;
}

struct writer_tensor *writer_find(struct checkpoint_writer *w, const char *name) {
    for (int i = 0; i < w->count; i++)
        if (!strcmp(w->tensors[i].name, name))
            return &w->tensors[i];
    fail_msg("the checkpoint has no %s", name);
    return NULL;
}

void writer_remove(struct checkpoint_writer *w, const char *name) {
    struct writer_tensor *t = writer_find(w, name);
    free(t->values);
    *t = w->tensors[--w->count];
}

void writer_set_dtype(struct checkpoint_writer *w, const char *dtype) {
    for (int i = 0; i < w->count; i++)
        w->tensors[i].dtype = dtype;
}

static bool is_half(const struct writer_tensor *t) {
    return !strcmp(t->dtype, "F16") || !strcmp(t->dtype, "BF16");
}

static size_t element_count(const struct writer_tensor *t) {
    size_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= (size_t)t->shape[i];
    assert_true(n <= t->n_values);
    return n;
}

/* x as binary16: exact for what binary16 holds, for infinities and for NaNs, and that is all. */
static uint16_t narrow_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 0xff;
    if (exponent < 127 - 14) /* zero, or subnormal */
        return (uint16_t)(sign | (uint32_t)(fabsf(x) * 0x1p24f));
    uint32_t biased = exponent == 0xff ? 31 : exponent - 127 + 15;
    return (uint16_t)(sign | biased << 10 | (bits >> 13 & 0x3ff));
}

static void write_values(FILE *file, const struct writer_tensor *t) {
    size_t n = element_count(t);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        if (strcmp(t->dtype, "I32"))
            memcpy(&bits, &t->values[i], sizeof bits);
        uint16_t half =
            !strcmp(t->dtype, "F16") ? narrow_f16(t->values[i]) : (uint16_t)(bits >> 16);
        if (is_half(t))
            assert_int_equal(fwrite(&half, sizeof half, 1, file), 1);
        else
            assert_int_equal(fwrite(&bits, sizeof bits, 1, file), 1);
    }
}

static FILE *create(const char *dir, const char *name) {
    char path[200];
    assert_in_range(snprintf(path, sizeof path, "%s/%s", dir, name), 1, sizeof path - 1);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    return file;
}

/* Returns the header for free, and its length. */
static char *make_header(const struct checkpoint_writer *w, size_t *length) {
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    assert_non_null(out);
    size_t at = 0;
    for (int i = 0; i < w->count; i++) {
        const struct writer_tensor *t = &w->tensors[i];
        size_t end = at + element_count(t) * (is_half(t) ? 2 : 4);
        fprintf(out, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", t->name, t->dtype);
        for (int j = 0; j < t->n_dims; j++)
            fprintf(out, "%s%" PRId64, j ? "," : "", t->shape[j]);
        fprintf(out, "],\"data_offsets\":[%zu,%zu]}", at, end);
        at = end;
    }
    fputs("}", out);
    assert_int_equal(fclose(out), 0);
    return text;
}

void writer_write(const struct checkpoint_writer *w, const char *dir, const char *config) {
    FILE *file = create(dir, "config.json");
    fputs(config, file);
    assert_int_equal(fclose(file), 0);

    size_t length;
    char *header = make_header(w, &length);
    uint64_t stored_length = length;
    file = create(dir, "model.safetensors");
    assert_int_equal(fwrite(&stored_length, sizeof stored_length, 1, file), 1);
    assert_int_equal(fwrite(header, length, 1, file), 1);
    for (int i = 0; i < w->count; i++)
        write_values(file, &w->tensors[i]);
    assert_int_equal(fclose(file), 0);
    free(header);
}

void temporary_folder_make(char dir[32]) {
    strcpy(dir, "/tmp/checkpoint-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

void temporary_folder_remove(const char *dir) {
    DIR *folder = opendir(dir);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
    assert_int_equal(rmdir(dir), 0);
}

void fixture_start(struct load_fixture *f, const char *json) {
    struct error err = {""};
    f->dev = ref_ops.open(&(struct device_options){1}, &err);
    assert_non_null(f->dev);
    f->json = json;
    assert_int_equal(model_config_parse(&f->config, json, strlen(json), "config.json", &err), 0);
    writer_init(&f->writer, &f->config);
    temporary_folder_make(f->dir);
}

void fixture_end(struct load_fixture *f) {
    assert_int_equal(f->dev->bytes, 0);
    ref_ops.close(f->dev);
    writer_free(&f->writer);
    temporary_folder_remove(f->dir);
}

void fixture_load(struct load_fixture *f, struct model *m) {
    struct error err = {""};
    writer_write(&f->writer, f->dir, f->json);
    if (model_load(m, f->dev, f->dir, NULL, &err))
        fail_msg("%s", err.text);
}

void assert_matrix(struct load_fixture *f, const struct matrix *w, const char *name) {
    const struct writer_tensor *t = writer_find(&f->writer, name);
    assert_int_equal(w->n, t->shape[0]);
    assert_int_equal(w->k, t->shape[1]);
    const int16_t *mantissas = w->mantissas;
    for (int i = 0; i < w->n; i++)
        for (int j = 0; j < w->k; j++) {
            double found = ldexp(mantissas[i * w->k + j], w->exponents[i] - 15);
            if (found != (double)t->values[i * w->k + j])
                fail_msg("%s[%d][%d] is %g, written was %g", name, i, j, found,
                         (double)t->values[i * w->k + j]);
        }
}
