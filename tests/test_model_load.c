/* model.h: what is loaded is what the files say, and a device without memory is left empty. What
 * must not load is in test_model_refuse.c. */
#include "model/model.h"
#include "tests/checkpoint_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const configs[] = {TINY_LLAMA, TINY_QWEN2, TINY_QWEN3};

static void assert_vector(struct load_fixture *f, const float *x, const char *name) {
    const struct writer_tensor *t = writer_find(&f->writer, name);
    assert_non_null(x);
    assert_memory_equal(x, t->values, sizeof *x * t->n_values);
}

static void assert_layer(struct load_fixture *f, const struct layer_weights *w, int layer) {
    const struct model_config *c = &f->config;
    const struct {
        const struct matrix *w;
        const float *bias;
        const char *name;
        bool has_bias;
    } linears[] = {
        {&w->q, w->q_bias, "self_attn.q_proj", c->qkv_bias},
        {&w->k, w->k_bias, "self_attn.k_proj", c->qkv_bias},
        {&w->v, w->v_bias, "self_attn.v_proj", c->qkv_bias},
        {&w->o, w->o_bias, "self_attn.o_proj", c->o_bias},
        {&w->gate, w->gate_bias, "mlp.gate_proj", c->mlp_bias},
        {&w->up, w->up_bias, "mlp.up_proj", c->mlp_bias},
        {&w->down, w->down_bias, "mlp.down_proj", c->mlp_bias},
    };
    const struct {
        const float *x;
        const char *name;
        bool there;
    } norms[] = {
        {w->attention_norm, "input_layernorm", true},
        {w->ffn_norm, "post_attention_layernorm", true},
        {w->q_norm, "self_attn.q_norm", c->qk_norm},
        {w->k_norm, "self_attn.k_norm", c->qk_norm},
    };
    char name[WRITER_NAME];
    for (size_t i = 0; i < COUNT(linears); i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, linears[i].name);
        assert_matrix(f, linears[i].w, name);
        snprintf(name, sizeof name, "model.layers.%d.%s.bias", layer, linears[i].name);
        if (linears[i].has_bias)
            assert_vector(f, linears[i].bias, name);
        else
            assert_null(linears[i].bias);
    }
    for (size_t i = 0; i < COUNT(norms); i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, norms[i].name);
        if (norms[i].there)
            assert_vector(f, norms[i].x, name);
        else
            assert_null(norms[i].x);
    }
}

static void assert_model(struct load_fixture *f, const struct model *m) {
    size_t numbers = 0;
    for (int i = 0; i < f->writer.count; i++)
        numbers += f->writer.tensors[i].n_values;
    assert_int_equal(m->n_parameters, numbers);
    assert_matrix(f, &m->embedding, "model.embed_tokens.weight");
    if (f->config.tied)
        assert_ptr_equal(model_output(m), &m->embedding);
    else
        assert_matrix(f, model_output(m), "lm_head.weight");
    assert_vector(f, m->final_norm, "model.norm.weight");
    for (int i = 0; i < f->config.n_layers; i++)
        assert_layer(f, &m->layers[i], i);
}

static void test_every_value_is_in_its_place(void **state) {
    (void)state;
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    for (size_t i = 0; i < COUNT(configs) * COUNT(dtypes); i++) {
        struct load_fixture f;
        struct model m;
        fixture_start(&f, configs[i / COUNT(dtypes)]);
        writer_set_dtype(&f.writer, dtypes[i % COUNT(dtypes)]);
        fixture_load(&f, &m);
        assert_model(&f, &m);
        model_free(&m);
        model_free(&m);
        fixture_end(&f);
    }
}

/* What the loader tells of its progress. */
struct seen {
    size_t calls, done, total;
};

static void update(void *context, size_t done, size_t total) {
    struct seen *seen = context;
    assert_true(done > seen->done && done <= total);
    *seen = (struct seen){seen->calls + 1, done, total};
}

static void test_loads_the_shipped_model(void **state) {
    (void)state;
    struct error err = {""};
    struct device *dev = ref_ops.open(&(struct device_options){1}, &err);
    assert_non_null(dev);
    struct model m;
    struct seen seen = {0};
    if (model_load(&m, dev, "data/model", &(struct progress){update, &seen}, &err))
        fail_msg("%s", err.text);
    assert_int_equal(m.n_parameters, 7607552);
    assert_int_equal(m.config.arch, ARCH_QWEN3);
    assert_true(seen.calls > 8 && seen.done == seen.total);
    assert_int_equal(seen.total, 2 * m.n_parameters); /* two bytes each */
    assert_int_equal(model_reserve_positions(&m, m.config.max_positions, &err), 0);
    model_free(&m);
    assert_int_equal(dev->bytes, 0);
    ref_ops.close(dev);
}

static void test_tied_under_either_name(void **state) {
    (void)state;
    struct load_fixture f;
    struct model m;
    const char *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
    fixture_start(&f, TINY_QWEN3);
    fixture_load(&f, &m);
    assert_model(&f, &m);
    size_t numbers = m.n_parameters;
    model_free(&m);

    writer_add(&f.writer, head, 70, 24); /* both, and equal */
    struct writer_tensor *copy = writer_find(&f.writer, head);
    memcpy(copy->values, writer_find(&f.writer, embedding)->values,
           sizeof *copy->values * copy->n_values);
    fixture_load(&f, &m);
    assert_matrix(&f, model_output(&m), embedding);
    assert_int_equal(m.n_parameters, numbers);
    model_free(&m);

    writer_remove(&f.writer, embedding);
    fixture_load(&f, &m);
    assert_matrix(&f, &m.embedding, head);
    assert_ptr_equal(model_output(&m), &m.embedding);
    assert_int_equal(m.n_parameters, numbers);
    model_free(&m);

    fixture_end(&f);
}

/* Old checkpoints hold the rotary frequencies, which follow from the config. */
static void test_rotary_frequencies_may_be_there(void **state) {
    (void)state;
    struct load_fixture f;
    struct model m;
    fixture_start(&f, TINY_LLAMA);
    size_t numbers = 0;
    for (int i = 0; i < f.writer.count; i++)
        numbers += f.writer.tensors[i].n_values;
    writer_add(&f.writer, "model.rotary_emb.inv_freq", 4, 0);
    writer_add(&f.writer, "model.layers.1.self_attn.rotary_emb.inv_freq", 4, 0);
    writer_find(&f.writer, "model.rotary_emb.inv_freq")->dtype = "I32";
    fixture_load(&f, &m);
    assert_int_equal(m.n_parameters, numbers);
    model_free(&m);
    fixture_end(&f);
}

/* ---- a device without memory ---------------------------------------------------------------- */

/* The reference's table, except that it has memory for so many allocations only. */
struct poor_ops {
    struct ops ops;
    int *left;
};

static bool is_out_of_memory(const struct device *dev, struct error *err) {
    const struct poor_ops *poor = (const struct poor_ops *)dev->ops;
    if ((*poor->left)-- > 0)
        return false;
    error_set(err, "the device is full");
    return true;
}

static void *poor_alloc(struct device *dev, size_t bytes, const char *what, struct error *err) {
    return is_out_of_memory(dev, err) ? NULL : ref_ops.alloc(dev, bytes, what, err);
}

static int poor_matrix_create(struct device *dev, struct matrix *w, int n, int k,
                              struct error *err) {
    *w = (struct matrix){0};
    return is_out_of_memory(dev, err) ? -1 : ref_ops.matrix_create(dev, w, n, k, err);
}

static void test_devices_that_are_too_small(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(configs); i++) {
        struct load_fixture f;
        fixture_start(&f, configs[i]);
        writer_write(&f.writer, f.dir, f.json);
        int left;
        struct poor_ops poor = {ref_ops, &left};
        poor.ops.alloc = poor_alloc;
        poor.ops.matrix_create = poor_matrix_create;
        f.dev->ops = &poor.ops;
        struct model m;
        struct error err;
        for (int n = 0; n < f.writer.count; n++) {
            left = n;
            strcpy(err.text, "");
            assert_int_equal(model_load(&m, f.dev, f.dir, NULL, &err), -1);
            assert_string_equal(err.text, "the device is full");
            assert_int_equal(f.dev->bytes, 0);
        }
        left = f.writer.count;
        assert_int_equal(model_load(&m, f.dev, f.dir, NULL, &err), 0);
        model_free(&m);
        fixture_end(&f);
    }
}

static void test_rotary_tables_grow(void **state) {
    (void)state;
    struct load_fixture f;
    struct model m;
    struct error err = {""};
    fixture_start(&f, TINY_QWEN3);
    fixture_load(&f, &m);
    size_t weights = f.dev->bytes, row = 2 * sizeof(float) * (8 / 2);
    assert_int_equal(model_reserve_positions(&m, 0, &err), 0);
    assert_int_equal(m.n_rope, 0);
    static const int steps[][2] = {{1, 1}, {1, 1}, {30, 30}, {31, 60}, {60, 60}, {61, 100}};
    for (size_t i = 0; i < COUNT(steps); i++) {
        assert_int_equal(model_reserve_positions(&m, steps[i][0], &err), 0);
        assert_int_equal(m.n_rope, steps[i][1]);
        assert_int_equal(f.dev->bytes, weights + row * (size_t)m.n_rope);
        assert_true(m.rope_cos[0] == 1.0f && m.rope_sin[0] == 0.0f);
    }
    assert_int_equal(model_reserve_positions(&m, 101, &err), -1);
    assert_non_null(strstr(err.text, "101 tokens do not fit in the model's context of 100"));
    assert_int_equal(m.n_rope, 100);
    model_free(&m);

    int left = f.writer.count + 3; /* one table of two, the second time */
    struct poor_ops poor = {ref_ops, &left};
    poor.ops.alloc = poor_alloc;
    poor.ops.matrix_create = poor_matrix_create;
    f.dev->ops = &poor.ops;
    fixture_load(&f, &m);
    assert_int_equal(model_reserve_positions(&m, 10, &err), 0);
    assert_int_equal(model_reserve_positions(&m, 11, &err), -1);
    assert_string_equal(err.text, "the device is full");
    assert_int_equal(m.n_rope, 10); /* the old tables stay */
    assert_int_equal(f.dev->bytes, weights + row * 10);
    model_free(&m);
    fixture_end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_value_is_in_its_place),
        cmocka_unit_test(test_loads_the_shipped_model),
        cmocka_unit_test(test_tied_under_either_name),
        cmocka_unit_test(test_rotary_frequencies_may_be_there),
        cmocka_unit_test(test_devices_that_are_too_small),
        cmocka_unit_test(test_rotary_tables_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
