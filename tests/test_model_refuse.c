/* model.h: whatever is wrong with the files is refused, by name, and nothing is left on the
 * device. */
#include "model/model.h"
#include "tests/checkpoint_writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const configs[] = {TINY_LLAMA, TINY_QWEN2, TINY_QWEN3};

/* Loads what is in the folder, which must fail with all the parts in the message. */
static void refuse_folder(struct load_fixture *f, const char *first, const char *second) {
    struct model m;
    struct error err = {""};
    void *mine = f->dev->ops->alloc(f->dev, 1000, "test", &err);
    assert_non_null(mine);
    if (!model_load(&m, f->dev, f->dir, NULL, &err))
        fail_msg("accepted, should say \"%s\" and \"%s\"", first, second);
    if (strncmp(err.text, f->dir, strlen(f->dir)) || !strstr(err.text, first) ||
        !strstr(err.text, second))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.text, first, second);
    assert_int_equal(f->dev->bytes, 1000);
    model_free(&m); /* harmless after a failure */
    f->dev->ops->free(f->dev, mine, 1000);
}

static void refuse(struct load_fixture *f, const char *first, const char *second) {
    writer_write(&f->writer, f->dir, f->json);
    refuse_folder(f, first, second);
}

static void test_values_that_cannot_be_used(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    struct load_fixture f;
    fixture_start(&f, TINY_LLAMA);
    for (int i = 0; i < f.writer.count; i++) {
        struct writer_tensor *t = &f.writer.tensors[i];
        int last = (int)t->n_values - 1;
        for (size_t j = 0; j < 2 * COUNT(bad); j++) {
            int at = j % 2 ? last : 0;
            float good = t->values[at];
            char where[40];
            snprintf(where, sizeof where, t->n_dims == 2 ? "\", row %d holds" : "\", element %d is",
                     t->n_dims == 2 ? at / (int)t->shape[1] : at);
            t->values[at] = bad[j / 2];
            refuse(&f, t->name, where);
            t->values[at] = good;
        }
    }
    struct writer_tensor *head = writer_find(&f.writer, "lm_head.weight");
    head->dtype = "BF16";
    head->values[64 * 24] = NAN;
    refuse(&f, "lm_head.weight", "row 64 holds a NaN");
    head->dtype = "F16";
    head->values[64 * 24] = INFINITY;
    refuse(&f, "lm_head.weight", "row 64 holds a NaN, an infinity");
    fixture_end(&f);
}

/* The largest float that a BFP16 row can hold is just below 2^127. */
static void test_values_that_are_too_large(void **state) {
    (void)state;
    struct load_fixture f;
    struct model m;
    fixture_start(&f, TINY_LLAMA);
    struct writer_tensor *t = writer_find(&f.writer, "model.layers.1.mlp.down_proj.weight");
    for (int i = 0; i < 40; i++) /* one row, of numbers that are exact at this exponent */
        t->values[5 * 40 + i] = i ? 0.0f : 0x1.fcp126f;
    fixture_load(&f, &m);
    assert_matrix(&f, &m.layers[1].down, t->name);
    model_free(&m);
    t->values[5 * 40 + 7] = -0x1p127f;
    refuse(&f, "mlp.down_proj.weight", "row 5 holds a NaN, an infinity or a value above 1.7e38");
    fixture_end(&f);
}

static void test_each_tensor_is_needed(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(configs); i++) {
        struct load_fixture f;
        fixture_start(&f, configs[i]);
        int n = f.writer.count;
        for (int j = 0; j < n; j++) {
            char name[WRITER_NAME];
            strcpy(name, f.writer.tensors[0].name);
            int64_t rows = f.writer.tensors[0].shape[0];
            int64_t cols = f.writer.tensors[0].n_dims == 2 ? f.writer.tensors[0].shape[1] : 0;
            writer_remove(&f.writer, name);
            refuse(&f, name, "\" is missing. Is this checkpoint for another config?");
            writer_add(&f.writer, name, rows, cols);
        }
        fixture_end(&f);
    }
}

static void test_each_shape_matters(void **state) {
    (void)state;
    struct load_fixture f;
    fixture_start(&f, TINY_LLAMA);
    for (int i = 0; i < f.writer.count; i++) {
        struct writer_tensor *t = &f.writer.tensors[i];
        struct writer_tensor good = *t;
        t->shape[0]--;
        refuse(&f, t->name, "Is this checkpoint for another config?");
        t->shape[0] = (int64_t)t->n_values;
        t->shape[1] = 1;
        t->n_dims = good.n_dims == 1 ? 2 : 1;
        refuse(&f, t->name, "Is this checkpoint for another config?");
        if (good.n_dims == 2) { /* transposed: as many numbers */
            t->n_dims = 2;
            t->shape[0] = good.shape[1];
            t->shape[1] = good.shape[0];
            refuse(&f, t->name, "Is this checkpoint for another config?");
        }
        *t = good;
    }
    struct writer_tensor *t = writer_find(&f.writer, "model.layers.1.self_attn.k_proj.weight");
    t->shape[0] = 8;
    refuse(&f,
           "tensor \"model.layers.1.self_attn.k_proj.weight\" is [8,24], config.json says "
           "[16,24]. Is this checkpoint for another config?",
           "/model.safetensors: ");
    fixture_end(&f);
}

static void test_each_dtype_matters(void **state) {
    (void)state;
    struct load_fixture f;
    fixture_start(&f, TINY_LLAMA);
    for (int i = 0; i < f.writer.count; i++) {
        f.writer.tensors[i].dtype = "I32";
        refuse(&f, f.writer.tensors[i].name, "\" is I32; BF16, F16 and F32 are supported");
        f.writer.tensors[i].dtype = "F32";
    }
    fixture_end(&f);
}

static void test_tied_and_untied(void **state) {
    (void)state;
    struct load_fixture f;
    const char *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
    fixture_start(&f, TINY_QWEN3); /* tied: one of the two, of the right shape */
    writer_remove(&f.writer, embedding);
    refuse(&f, embedding, "is missing");
    writer_add(&f.writer, head, 69, 24);
    refuse(&f, head, "is [69,24], config.json says [70,24]");
    fixture_end(&f);

    fixture_start(&f, TINY_QWEN2); /* untied: neither stands for the other */
    writer_remove(&f.writer, head);
    refuse(&f, head, "is missing");
    writer_add(&f.writer, head, 70, 24);
    writer_remove(&f.writer, embedding);
    refuse(&f, embedding, "is missing");
    fixture_end(&f);
}

/* A tensor that nobody reads would be another model. */
static void test_tensors_that_nobody_reads(void **state) {
    (void)state;
    static const struct {
        const char *config, *name;
    } extras[] = {
        {TINY_QWEN3, "model.layers.0.self_attn.q_proj.bias"},
        {TINY_QWEN3, "model.layers.1.mlp.down_proj.weight_scale_inv"},
        {TINY_QWEN3, "model.layers.2.input_layernorm.weight"},
        {TINY_QWEN3, "model.layers.01.input_layernorm.weight"},
        {TINY_QWEN2, "model.layers.0.self_attn.o_proj.bias"},
        {TINY_QWEN2, "model.layers.1.self_attn.q_norm.weight"},
        {TINY_LLAMA, "lm_head.bias"},
        {TINY_LLAMA, "inv_freq"},
        {TINY_LLAMA, ".rotary_emb.inv_freq"},
        {TINY_LLAMA, "model.rotary_emb.inv_freq.weight"},
    };
    for (size_t i = 0; i < COUNT(extras); i++) {
        struct load_fixture f;
        fixture_start(&f, extras[i].config);
        writer_add(&f.writer, extras[i].name, 24, 0);
        refuse(&f, extras[i].name, "belongs to no part of the model that config.json describes");
        fixture_end(&f);
    }
    struct load_fixture f;
    fixture_start(&f, TINY_QWEN3); /* one layer less than the file has */
    f.json = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"num_hidden_layers\":1,\"hidden_size\":24,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
             "\"intermediate_size\":40,\"vocab_size\":70,\"tie_word_embeddings\":true}";
    refuse(&f, "model.layers.1.input_layernorm.weight", "Is this checkpoint for another config?");
    fixture_end(&f);
}

/* Tied, but the file holds another output matrix: one number, its type or its size differs. */
static void test_another_output_matrix(void **state) {
    (void)state;
    struct load_fixture f;
    const char *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
    fixture_start(&f, TINY_QWEN3);
    writer_add(&f.writer, head, 70, 24);
    struct writer_tensor *copy = writer_find(&f.writer, head);
    memcpy(copy->values, writer_find(&f.writer, embedding)->values,
           sizeof *copy->values * copy->n_values);
    copy->values[70 * 24 - 1] += 1;
    refuse(&f, head, "differs from \"model.embed_tokens.weight\"");
    copy->values[70 * 24 - 1] -= 1;
    copy->dtype = "BF16";
    refuse(&f, head, "differs from");
    copy->dtype = "F32";
    copy->shape[0] = 69;
    refuse(&f, head, "differs from");
    fixture_end(&f);
}

static void test_folders_that_are_no_model(void **state) {
    (void)state;
    struct load_fixture f;
    fixture_start(&f, TINY_LLAMA);
    refuse_folder(&f, "config.json: ", "No such file");
    writer_write(&f.writer, f.dir, f.json);
    char path[60];
    snprintf(path, sizeof path, "%s/model.safetensors", f.dir);
    assert_int_equal(remove(path), 0);
    refuse_folder(&f, "neither model.safetensors nor", "is there");
    writer_write(&f.writer, f.dir, "{\"architectures\":[\"MambaForCausalLM\"]}");
    refuse_folder(&f, "config.json: ", "\"MambaForCausalLM\" is not supported");
    temporary_folder_remove(f.dir);
    refuse_folder(&f, "no such folder", "--model needs");
    temporary_folder_make(f.dir);
    fixture_end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_that_cannot_be_used),
        cmocka_unit_test(test_values_that_are_too_large),
        cmocka_unit_test(test_each_tensor_is_needed),
        cmocka_unit_test(test_each_shape_matters),
        cmocka_unit_test(test_each_dtype_matters),
        cmocka_unit_test(test_tied_and_untied),
        cmocka_unit_test(test_tensors_that_nobody_reads),
        cmocka_unit_test(test_another_output_matrix),
        cmocka_unit_test(test_folders_that_are_no_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
