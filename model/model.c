#include "model/model.h"

#include "model/files/checkpoint.h"
#include "model/numerics.h"
#include "model/rope_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 128, ROWS_AT_ONCE = 64 };

/* What the functions below share while one checkpoint is read. */
struct loading {
    struct model *model;
    struct checkpoint *checkpoint;
    const struct progress *progress;
    bool only_checks;   /* the tensors' names, types and shapes; then they are read */
    size_t done, total; /* bytes */
    struct error *err;
};

static void advance(struct loading *load, const struct tensor *t) {
    tensor_drop_pages(t);
    load->done += t->n_bytes;
    load->model->n_parameters += (size_t)t->n_elements;
    if (load->progress)
        load->progress->update(load->progress->context, load->done, load->total);
}

static int read_matrix(struct loading *load, struct matrix *w, const struct tensor *t) {
    struct device *dev = load->model->dev;
    int n = (int)t->shape[0], k = (int)t->shape[1], result = -1;
    float *x = malloc(sizeof *x * ROWS_AT_ONCE * (size_t)k);
    int16_t *q = malloc(sizeof *q * ROWS_AT_ONCE * (size_t)k);
    int8_t exponents[ROWS_AT_ONCE];
    if (!x || !q) {
        error_set(load->err, "%s: out of memory", t->file);
        goto done;
    }
    if (dev->ops->matrix_create(dev, w, n, k, load->err))
        goto done;
    for (int first = 0; first < n; first += ROWS_AT_ONCE) {
        int rows = n - first < ROWS_AT_ONCE ? n - first : ROWS_AT_ONCE;
        if (tensor_read_f32(x, t, (int64_t)first * k, (int64_t)rows * k, load->err))
            goto done;
        for (int r = 0; r < rows; r++) {
            int e = num_snap_row(q + (size_t)r * (size_t)k, x + (size_t)r * (size_t)k, k);
            if (e > BFP_MAX_EXPONENT) {
                error_set(load->err,
                          "%s: tensor \"%s\", row %d holds a NaN, an infinity or a value above "
                          "1.7e38. Is the file damaged?",
                          t->file, t->name, first + r);
                goto done;
            }
            exponents[r] = (int8_t)e;
        }
        dev->ops->matrix_put(dev, w, first, rows, q, exponents);
    }
    advance(load, t);
    result = 0;
done:
    free(q);
    free(x);
    return result;
}

static int read_vector(struct loading *load, float **out, const struct tensor *t) {
    struct device *dev = load->model->dev;
    int n = (int)t->shape[0], result = -1;
    float *x = malloc(sizeof *x * (size_t)n);
    if (!x) {
        error_set(load->err, "%s: out of memory", t->file);
        goto done;
    }
    if (tensor_read_f32(x, t, 0, n, load->err))
        goto done;
    for (int i = 0; i < n; i++)
        if (num_magnitude(x[i]) >= 0x7f800000u) {
            error_set(load->err, "%s: tensor \"%s\", element %d is a NaN or an infinity", t->file,
                      t->name, i);
            goto done;
        }
    *out = dev->ops->alloc(dev, sizeof *x * (size_t)n, t->name, load->err);
    if (!*out)
        goto done;
    dev->ops->upload(dev, *out, x, sizeof *x * (size_t)n);
    advance(load, t);
    result = 0;
done:
    free(x);
    return result;
}

/* The tensor when it is to be read; NULL with *result 0 when only its kind is checked, with -1 when
 * that is not what the config implies. */
static const struct tensor *need(struct loading *load, const char *name, int n_dims, int n, int k,
                                 int *result) {
    const int64_t shape[] = {n, k};
    const struct tensor *t = checkpoint_need(load->checkpoint, name, n_dims, shape, load->err);
    *result = t ? 0 : -1;
    if (!t || !load->only_checks)
        return t;
    load->total += t->n_bytes;
    return NULL;
}

static int load_matrix(struct loading *load, struct matrix *w, int n, int k, const char *name) {
    int result;
    const struct tensor *t = need(load, name, 2, n, k, &result);
    return t ? read_matrix(load, w, t) : result;
}

static int load_vector(struct loading *load, float **out, int n, const char *name) {
    int result;
    const struct tensor *t = need(load, name, 1, n, 0, &result);
    return t ? read_vector(load, out, t) : result;
}

/* One linear layer: "<prefix>.weight" and, where the architecture has one, "<prefix>.bias". */
static int load_linear(struct loading *load, struct matrix *w, float **bias, int n, int k,
                       int layer, const char *prefix) {
    char name[NAME_MAX_LENGTH];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, prefix);
    if (load_matrix(load, w, n, k, name))
        return -1;
    if (!bias)
        return 0;
    snprintf(name, sizeof name, "model.layers.%d.%s.bias", layer, prefix);
    return load_vector(load, bias, n, name);
}

static int load_norm(struct loading *load, float **gain, int n, int layer, const char *prefix) {
    char name[NAME_MAX_LENGTH];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, prefix);
    return load_vector(load, gain, n, name);
}

static int load_layer(struct loading *load, int i) {
    const struct model_config *c = &load->model->config;
    struct layer_weights *w = &load->model->layers[i];
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    float **q_bias = c->qkv_bias ? &w->q_bias : NULL, **k_bias = c->qkv_bias ? &w->k_bias : NULL;
    float **v_bias = c->qkv_bias ? &w->v_bias : NULL, **o_bias = c->o_bias ? &w->o_bias : NULL;
    float **gate = c->mlp_bias ? &w->gate_bias : NULL, **up = c->mlp_bias ? &w->up_bias : NULL;
    float **down = c->mlp_bias ? &w->down_bias : NULL;
    if (load_norm(load, &w->attention_norm, c->hidden, i, "input_layernorm") ||
        load_linear(load, &w->q, q_bias, q, c->hidden, i, "self_attn.q_proj") ||
        load_linear(load, &w->k, k_bias, kv, c->hidden, i, "self_attn.k_proj") ||
        load_linear(load, &w->v, v_bias, kv, c->hidden, i, "self_attn.v_proj") ||
        load_linear(load, &w->o, o_bias, c->hidden, q, i, "self_attn.o_proj") ||
        load_norm(load, &w->ffn_norm, c->hidden, i, "post_attention_layernorm") ||
        load_linear(load, &w->gate, gate, c->ffn, c->hidden, i, "mlp.gate_proj") ||
        load_linear(load, &w->up, up, c->ffn, c->hidden, i, "mlp.up_proj") ||
        load_linear(load, &w->down, down, c->hidden, c->ffn, i, "mlp.down_proj"))
        return -1;
    if (!c->qk_norm)
        return 0;
    if (load_norm(load, &w->q_norm, c->head_dim, i, "self_attn.q_norm"))
        return -1;
    return load_norm(load, &w->k_norm, c->head_dim, i, "self_attn.k_norm");
}

#define EMBEDDING "model.embed_tokens.weight"
#define OUTPUT "lm_head.weight"

/* Tied checkpoints store the shared matrix under one of two names, some of them only as the
 * output. */
static int load_embeddings(struct loading *load) {
    struct model *m = load->model;
    int n = m->config.vocab_size, k = m->config.hidden;
    if (m->config.tied && !checkpoint_find(load->checkpoint, EMBEDDING) &&
        checkpoint_find(load->checkpoint, OUTPUT))
        return load_matrix(load, &m->embedding, n, k, OUTPUT);
    if (load_matrix(load, &m->embedding, n, k, EMBEDDING))
        return -1;
    return m->config.tied ? 0 : load_matrix(load, &m->output, n, k, OUTPUT);
}

static int load_tensors(struct loading *load) {
    struct model *m = load->model;
    if (load_embeddings(load) ||
        load_vector(load, &m->final_norm, m->config.hidden, "model.norm.weight"))
        return -1;
    for (int i = 0; i < m->config.n_layers; i++)
        if (load_layer(load, i))
            return -1;
    return 0;
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
static int refuse_unread(const struct loading *load) {
    for (size_t i = 0; i < checkpoint_count(load->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(load->checkpoint, i);
        if (checkpoint_was_needed(load->checkpoint, i) || is_harmless(load->checkpoint, t))
            continue;
        if (!strcmp(t->name, OUTPUT))
            return error_set(load->err,
                             "%s: tensor \"%s\" differs from \"%s\", but config.json says "
                             "\"tie_word_embeddings\"",
                             t->file, t->name, EMBEDDING);
        return error_set(load->err,
                         "%s: tensor \"%s\" belongs to no part of the model that config.json "
                         "describes. Is this checkpoint for another config?",
                         t->file, t->name);
    }
    return 0;
}

static int load_all(struct loading *load) {
    struct model *m = load->model;
    struct fault fault;
    m->layers = calloc((size_t)m->config.n_layers, sizeof *m->layers);
    if (!m->layers)
        return error_set(load->err, "out of memory");
    load->only_checks = true;
    if (load_tensors(load) || refuse_unread(load))
        return -1;
    load->only_checks = false;
    return load_tensors(load) ? -1 : m->dev->ops->sync(m->dev, &fault, load->err);
}

int model_load(struct model *out, struct device *dev, const char *dir,
               const struct progress *progress, struct error *err) {
    *out = (struct model){.dev = dev};
    struct loading load = {.model = out, .progress = progress, .err = err};
    if (model_config_load(&out->config, dir, err) || checkpoint_open(&load.checkpoint, dir, err))
        return -1;
    int result = load_all(&load);
    checkpoint_close(load.checkpoint);
    if (result)
        model_free(out);
    return result;
}

static void free_vector(struct model *model, float *x, size_t n) {
    model->dev->ops->free(model->dev, x, sizeof *x * n);
}

static void free_layer(struct model *m, struct layer_weights *w) {
    const struct model_config *c = &m->config;
    struct matrix *matrices[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        m->dev->ops->matrix_free(m->dev, matrices[i]);
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    struct {
        float *x;
        int n;
    } vectors[] = {{w->attention_norm, c->hidden},
                   {w->ffn_norm, c->hidden},
                   {w->q_norm, c->head_dim},
                   {w->k_norm, c->head_dim},
                   {w->q_bias, q},
                   {w->k_bias, kv},
                   {w->v_bias, kv},
                   {w->o_bias, c->hidden},
                   {w->gate_bias, c->ffn},
                   {w->up_bias, c->ffn},
                   {w->down_bias, c->hidden}};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        free_vector(m, vectors[i].x, (size_t)vectors[i].n);
}

void model_free(struct model *m) {
    if (!m->dev)
        return;
    for (int i = 0; m->layers && i < m->config.n_layers; i++)
        free_layer(m, &m->layers[i]);
    free(m->layers);
    m->dev->ops->matrix_free(m->dev, &m->embedding);
    m->dev->ops->matrix_free(m->dev, &m->output);
    free_vector(m, m->final_norm, (size_t)m->config.hidden);
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
    int half = m->config.head_dim / 2, result = -1;
    size_t count = (size_t)n * (size_t)half, bytes = sizeof(float) * count;
    float *host = malloc(2 * bytes), *inverse = malloc(sizeof *inverse * (size_t)half);
    float *cosine = ops->alloc(m->dev, bytes, "rotary tables", err);
    float *sine = ops->alloc(m->dev, bytes, "rotary tables", err);
    if (!host || !inverse) {
        error_set(err, "out of memory for the rotary tables");
        goto done;
    }
    if (!cosine || !sine)
        goto done;
    rope_inverse_frequencies(inverse, &m->config.rope, m->config.head_dim);
    rope_fill(host, host + count, inverse, half, n);
    ops->upload(m->dev, cosine, host, bytes);
    ops->upload(m->dev, sine, host + count, bytes);
    free_vector(m, m->rope_cos, (size_t)m->n_rope * (size_t)half);
    free_vector(m, m->rope_sin, (size_t)m->n_rope * (size_t)half);
    m->rope_cos = cosine;
    m->rope_sin = sine;
    m->n_rope = n;
    cosine = sine = NULL;
    result = 0;
done:
    ops->free(m->dev, cosine, bytes);
    ops->free(m->dev, sine, bytes);
    free(inverse);
    free(host);
    return result;
}

const struct matrix *model_output(const struct model *model) {
    return model->output.n ? &model->output : &model->embedding;
}
