#include "model/model.h"

#include "model/arithmetic.h"
#include "model/files/checkpoint.h"
#include "model/numerics.h"
#include "model/rope_table.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMBEDDING "model.embed_tokens.weight"
#define OUTPUT "lm_head.weight"

enum { NAME_BYTES = 80, ROWS_AT_ONCE = 32, LAYER_WEIGHTS = 18, OTHER_WEIGHTS = 3 };

/* A dimension of a tensor of the checkpoint, and what this rank has of it. */
struct side {
    int whole, first, n;
};

/* One tensor of the checkpoint, and where this rank's part of it goes: a matrix or a vector, of
 * cols.whole 0. */
struct weight {
    char name[NAME_BYTES];
    struct matrix *matrix;
    float **vector;
    struct side rows, cols;
    int n_zeros; /* rows of zeros behind the matrix */
};

/* ---- which tensors a model has -------------------------------------------------------------- */

static struct side all_of(int n) {
    return (struct side){n, 0, n};
}

/* The part of so many units, of `size` numbers each. */
static struct side part_of(int whole, struct span part, int size) {
    return (struct side){whole * size, part.first * size, part.n * size};
}

static struct weight *add(struct model *m, struct matrix *matrix, float **vector, struct side rows,
                          struct side cols, const char *name, ...) {
    struct weight *w = &m->weights[m->n_weights++];
    va_list args;
    *w = (struct weight){.matrix = matrix, .vector = vector, .rows = rows, .cols = cols};
    va_start(args, name);
    vsnprintf(w->name, NAME_BYTES, name, args);
    va_end(args);
    return w;
}

static void add_norm(struct model *m, int layer, const char *part, float **gain, int n) {
    add(m, NULL, gain, all_of(n), all_of(0), "model.layers.%d.%s.weight", layer, part);
}

static void add_linear(struct model *m, int layer, const char *part, struct matrix *matrix,
                       float **bias, struct side rows, struct side cols) {
    add(m, matrix, NULL, rows, cols, "model.layers.%d.%s.weight", layer, part);
    if (bias)
        add(m, NULL, bias, rows, all_of(0), "model.layers.%d.%s.bias", layer, part);
}

static void list_layer(struct model *m, int i) {
    const struct model_config *c = &m->config;
    struct layer_weights *w = &m->layers[i];
    struct side hidden = all_of(c->hidden), ffn = part_of(c->ffn, m->part.ffn, 1);
    struct side q = part_of(c->n_heads, m->part.heads, c->head_dim);
    struct side kv = part_of(c->n_kv_heads, m->part.kv_heads, c->head_dim);
    bool qkv = c->qkv_bias, mlp = c->mlp_bias;
    add_norm(m, i, "input_layernorm", &w->attention_norm, c->hidden);
    add_linear(m, i, "self_attn.q_proj", &w->q, qkv ? &w->q_bias : NULL, q, hidden);
    add_linear(m, i, "self_attn.k_proj", &w->k, qkv ? &w->k_bias : NULL, kv, hidden);
    add_linear(m, i, "self_attn.v_proj", &w->v, qkv ? &w->v_bias : NULL, kv, hidden);
    add_linear(m, i, "self_attn.o_proj", &w->o, c->o_bias ? &w->o_bias : NULL, hidden, q);
    add_norm(m, i, "post_attention_layernorm", &w->ffn_norm, c->hidden);
    add_linear(m, i, "mlp.gate_proj", &w->gate, mlp ? &w->gate_bias : NULL, ffn, hidden);
    add_linear(m, i, "mlp.up_proj", &w->up, mlp ? &w->up_bias : NULL, ffn, hidden);
    add_linear(m, i, "mlp.down_proj", &w->down, mlp ? &w->down_bias : NULL, hidden, ffn);
    if (!c->qk_norm)
        return;
    add_norm(m, i, "self_attn.q_norm", &w->q_norm, c->head_dim);
    add_norm(m, i, "self_attn.k_norm", &w->k_norm, c->head_dim);
}

/* Tied checkpoints store the shared matrix under one of two names, some of them only as the
 * output. */
static int list_weights(struct model *m, const struct checkpoint *from, struct error *err) {
    const struct model_config *c = &m->config;
    struct side words = part_of(c->vocab_size, m->part.vocab, 1), hidden = all_of(c->hidden);
    m->layers = calloc((size_t)c->n_layers, sizeof *m->layers);
    m->weights = calloc((size_t)c->n_layers * LAYER_WEIGHTS + OTHER_WEIGHTS, sizeof *m->weights);
    if (!m->layers || !m->weights)
        return error_set(err, "out of memory");
    bool only_output =
        c->tied && !checkpoint_find(from, EMBEDDING) && checkpoint_find(from, OUTPUT);
    add(m, &m->embedding, NULL, words, hidden, only_output ? OUTPUT : EMBEDDING)->n_zeros =
        m->parallel != NULL;
    if (!c->tied)
        add(m, &m->output, NULL, words, hidden, OUTPUT);
    add(m, NULL, &m->final_norm, hidden, all_of(0), "model.norm.weight");
    for (int i = 0; i < c->n_layers; i++)
        list_layer(m, i);
    return 0;
}

/* ---- reading them --------------------------------------------------------------------------- */

/* A matrix that is read, in items of ROWS_AT_ONCE. */
struct reading {
    struct device *dev;
    const struct weight *weight;
    const struct tensor *tensor;
    atomic_int first_bad; /* the lowest row that cannot be stored; the number of rows: none */
    atomic_bool out_of_memory;
};

static void note_bad_row(struct reading *r, int row) {
    int known = atomic_load(&r->first_bad);
    while (row < known && !atomic_compare_exchange_weak(&r->first_bad, &known, row))
        continue;
}

/* Row `row` of a rank's part: snapped whole, so that its exponent is the same on all ranks; q gets
 * the rank's columns. Returns the exponent. */
static int read_row(struct reading *r, int row, int16_t *q, float *x, int16_t *whole) {
    const struct side *rows = &r->weight->rows, *cols = &r->weight->cols;
    if (row >= rows->n) { /* zeros */
        memset(q, 0, sizeof *q * (size_t)cols->n);
        return BFP_MIN_EXPONENT;
    }
    int from = rows->first + row;
    tensor_read_f32(x, r->tensor, (int64_t)from * cols->whole, cols->whole, NULL);
    int e = num_snap_row(whole, x, cols->whole);
    memcpy(q, whole + cols->first, sizeof *q * (size_t)cols->n);
    if (e > BFP_MAX_EXPONENT)
        note_bad_row(r, from);
    return e;
}

static void read_rows(void *context, int item) {
    struct reading *r = context;
    struct matrix *w = r->weight->matrix;
    size_t k = (size_t)w->k, whole = (size_t)r->weight->cols.whole;
    int first = item * ROWS_AT_ONCE, left = w->n - first;
    int n_rows = left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
    int8_t exponents[ROWS_AT_ONCE];
    float *x = malloc(sizeof *x * whole);
    int16_t *q = malloc(sizeof *q * ((size_t)n_rows * k + whole));
    for (int i = 0; x && q && i < n_rows; i++)
        exponents[i] = (int8_t)read_row(r, first + i, q + (size_t)i * k, x, q + (size_t)n_rows * k);
    if (x && q)
        r->dev->ops->matrix_put(r->dev, w, first, n_rows, q, exponents);
    else
        atomic_store(&r->out_of_memory, true);
    free(q);
    free(x);
}

static int read_matrix(struct device *dev, const struct weight *weight, const struct tensor *t,
                       struct error *err) {
    struct matrix *w = weight->matrix;
    int n = weight->rows.n + weight->n_zeros, n_items = (n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    struct reading r = {.dev = dev, .weight = weight, .tensor = t, .first_bad = weight->rows.whole};
    /* Nothing is read yet: whether its type can be. */
    if (tensor_read_f32(NULL, t, 0, 0, err) ||
        dev->ops->matrix_create(dev, w, n, weight->cols.n, err))
        return -1;
    if (ops_share_memory(dev->ops))
        dev->ops->share_out(dev, n_items, read_rows, &r);
    else
        for (int i = 0; i < n_items; i++)
            read_rows(&r, i);
    if (r.out_of_memory)
        return error_set(err, "%s: out of memory", t->file);
    if (r.first_bad < weight->rows.whole)
        return tensor_refuse(t, err,
                             ", row %d holds a NaN, an infinity or a value above 1.7e38. Is the "
                             "file damaged?",
                             r.first_bad);
    return 0;
}

static int read_vector(struct device *dev, const struct weight *w, const struct tensor *t,
                       struct error *err) {
    int n = w->rows.n;
    size_t bytes = sizeof(float) * (size_t)n;
    float *x = malloc(bytes);
    int result = x ? tensor_read_f32(x, t, w->rows.first, n, err)
                   : error_set(err, "%s: out of memory", t->file);
    for (int i = 0; i < n && !result; i++)
        if (num_magnitude(x[i]) >= 0x7f800000u)
            result =
                tensor_refuse(t, err, ", element %d is a NaN or an infinity", w->rows.first + i);
    if (!result && !(*w->vector = dev->ops->alloc(dev, bytes, t->name, err)))
        result = -1;
    if (!result)
        dev->ops->upload(dev, *w->vector, x, bytes);
    free(x);
    return result;
}

/* What a checkpoint may hold although nobody reads it: the rotary frequencies, which old ones have
 * and the config says, too; and a copy of the embedding when it is also the output matrix. */
static bool is_harmless(const struct checkpoint *c, const struct tensor *t) {
    static const char frequencies[] = ".rotary_emb.inv_freq";
    size_t n = strlen(t->name), n_end = sizeof frequencies - 1;
    if (n > n_end && !strcmp(t->name + n - n_end, frequencies))
        return true;
    const struct tensor *e = checkpoint_find(c, EMBEDDING);
    if (strcmp(t->name, OUTPUT) || !e || e->dtype != t->dtype || e->n_bytes != t->n_bytes)
        return false;
    bool same = !memcmp(e->data, t->data, t->n_bytes);
    tensor_drop_pages(t);
    tensor_drop_pages(e);
    return same;
}

/* Weights that the model does not use mean that the config is of another model. */
static int refuse_unread(const struct checkpoint *c, struct error *err) {
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_at(c, i);
        if (checkpoint_was_needed(c, i) || is_harmless(c, t))
            continue;
        if (!strcmp(t->name, OUTPUT))
            return tensor_refuse(t, err,
                                 " differs from \"%s\", but config.json says "
                                 "\"tie_word_embeddings\"",
                                 EMBEDDING);
        return tensor_refuse(t, err,
                             " belongs to no part of the model that config.json describes. Is "
                             "this checkpoint for another config?");
    }
    return 0;
}

/* All names and shapes are checked before the first tensor is read, which may take minutes. */
static int load_weights(struct model *m, struct checkpoint *from, const struct progress *progress,
                        struct error *err) {
    struct device *dev = m->dev;
    size_t done = 0, total = 0;
    struct fault fault;
    if (list_weights(m, from, err))
        return -1;
    for (int i = 0; i < m->n_weights; i++) {
        const struct weight *w = &m->weights[i];
        const int64_t shape[] = {w->rows.whole, w->cols.whole};
        const struct tensor *t = checkpoint_need(from, w->name, w->matrix ? 2 : 1, shape, err);
        if (!t)
            return -1;
        total += t->n_bytes;
    }
    if (refuse_unread(from, err))
        return -1;
    for (int i = 0; i < m->n_weights; i++) {
        const struct weight *w = &m->weights[i];
        const struct tensor *t = checkpoint_find(from, w->name);
        if (w->matrix ? read_matrix(dev, w, t, err) : read_vector(dev, w, t, err))
            return -1;
        tensor_drop_pages(t);
        m->n_parameters += (size_t)t->n_elements;
        done += t->n_bytes;
        if (progress)
            progress->update(progress->context, done, total);
    }
    return dev->ops->sync(dev, &fault, err);
}

/* Which part of the model is this rank's. */
static int choose_part(struct model *m, struct error *err) {
    struct parallel *p = m->parallel;
    if (p && !m->dev->ops->linear_sums)
        return error_set(err, "%s: this device has no ranks", m->dev->ops->name);
    return parallel_part(&m->part, &m->config, p ? p->rank : 0, p ? p->n_ranks : 1,
                         p && p->by_position, err);
}

/* What of the config is of the rank's part: what follows from it, caches and buffers, does so, too.
 */
static void take_part(struct model *m) {
    m->config.n_heads = m->part.heads.n;
    m->config.n_kv_heads = m->part.kv_heads.n;
    m->config.ffn = m->part.ffn.n;
}

int model_load_part(struct model *out, struct device *dev, const char *dir,
                    struct parallel *parallel, const struct progress *progress, struct error *err) {
    struct checkpoint *checkpoint;
    *out = (struct model){.dev = dev, .parallel = parallel};
    if (arithmetic_check(err) || model_config_load(&out->config, dir, err))
        return -1;
    if (out->config.window && !dev->ops->attend)
        return error_set(
            err,
            "%s: the model has a sliding window, for which %s has kernels from phase 8 "
            "on. Use --device cpu, or make phase8",
            dir, dev->ops->name);
    if (choose_part(out, err) || checkpoint_open(&checkpoint, dir, err))
        return -1;
    int result = load_weights(out, checkpoint, progress, err);
    checkpoint_close(checkpoint);
    take_part(out);
    if (result)
        model_free(out);
    return result;
}

int model_load(struct model *out, struct device *dev, const char *dir,
               const struct progress *progress, struct error *err) {
    return model_load_part(out, dev, dir, NULL, progress, err);
}

static void free_vector(struct model *model, float *x, size_t n) {
    model->dev->ops->free(model->dev, x, sizeof *x * n);
}

void model_free(struct model *m) {
    if (!m->dev)
        return;
    for (int i = 0; i < m->n_weights; i++) {
        const struct weight *w = &m->weights[i];
        if (w->matrix)
            m->dev->ops->matrix_free(m->dev, w->matrix);
        else
            free_vector(m, *w->vector, (size_t)w->rows.n);
    }
    free(m->weights);
    free(m->layers);
    size_t rope = (size_t)m->n_rope * (size_t)(m->config.head_dim / 2);
    free_vector(m, m->rope_cos, rope);
    free_vector(m, m->rope_sin, rope);
    *m = (struct model){0};
}

int model_reserve_positions(struct model *m, int n_positions, struct error *err) {
    const struct ops *ops = m->dev->ops;
    if (n_positions <= m->n_rope)
        return 0;
    if (n_positions > m->config.max_positions)
        return error_set(err, "%d tokens do not fit in the model's context of %d positions",
                         n_positions, m->config.max_positions);
    int n = n_positions > 2 * m->n_rope ? n_positions : 2 * m->n_rope;
    n = n < m->config.max_positions ? n : m->config.max_positions;
    size_t half = (size_t)m->config.head_dim / 2, count = (size_t)n * half;
    float *host = malloc(sizeof *host * (2 * count + half));
    float *cosine = ops->alloc(m->dev, sizeof *host * count, "rotary tables", err);
    float *sine = ops->alloc(m->dev, sizeof *host * count, "rotary tables", err);
    if (!host || !cosine || !sine) {
        free_vector(m, cosine, count);
        free_vector(m, sine, count);
        free(host);
        return cosine && sine ? error_set(err, "out of memory for the rotary tables") : -1;
    }
    float *inverse = host + 2 * count;
    rope_inverse_frequencies(inverse, &m->config.rope, m->config.head_dim);
    rope_fill(host, host + count, inverse, (int)half, n);
    ops->upload(m->dev, cosine, host, sizeof *host * count);
    ops->upload(m->dev, sine, host + count, sizeof *host * count);
    free_vector(m, m->rope_cos, (size_t)m->n_rope * half);
    free_vector(m, m->rope_sin, (size_t)m->n_rope * half);
    free(host);
    m->rope_cos = cosine;
    m->rope_sin = sine;
    m->n_rope = n;
    return 0;
}

const struct matrix *model_output(const struct model *model) {
    return model->output.n ? &model->output : &model->embedding;
}
