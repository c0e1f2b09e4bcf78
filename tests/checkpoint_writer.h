/*
 * checkpoint_writer.h - tiny checkpoints for tests: the tensors that a config implies, changed as
 * the test likes and written as a Hugging Face folder.
 *
 * Values are multiples of 1/64 below 2, which F32, F16 and BF16 all hold exactly, and a BFP16 row
 * too: what is loaded must be what was written, in every dtype.
 *
 * Whatever fails here fails the test: include cmocka.h (and what it wants before it) in the test.
 */
#ifndef SAMEBITS_TESTS_CHECKPOINT_WRITER_H
#define SAMEBITS_TESTS_CHECKPOINT_WRITER_H

#include "model/config.h"
#include "model/model.h"

#include <stddef.h>
#include <stdint.h>

enum { WRITER_MAX_TENSORS = 64, WRITER_NAME = 64 };

struct writer_tensor {
    char name[WRITER_NAME];
    const char *dtype; /* F32, F16, BF16, or I32: then the file holds zeros */
    int n_dims;
    int64_t shape[2]; /* [n_dims] */
    float *values;    /* [n_values]; shape may be made smaller than that, not larger */
    size_t n_values;
};

struct checkpoint_writer {
    struct writer_tensor tensors[WRITER_MAX_TENSORS];
    int count;
    uint64_t n_added; /* so far: seeds the next tensor's values */
};

/* Fills w with every tensor that a model of config c has, F32, named as Hugging Face names them; a
 * tied one has only model.embed_tokens.weight. End with writer_free. */
void writer_init(struct checkpoint_writer *w, const struct model_config *c);

/* Frees the values. */
void writer_free(struct checkpoint_writer *w);

/* The tensor of that name; fails the test when there is none. Valid until one is removed. */
struct writer_tensor *writer_find(struct checkpoint_writer *w, const char *name);

/* Adds a tensor [rows, cols], or [rows] when cols is 0, with new values. */
void writer_add(struct checkpoint_writer *w, const char *name, int64_t rows, int64_t cols);

/* Takes a tensor out. */
void writer_remove(struct checkpoint_writer *w, const char *name);

/* Gives all tensors this dtype. */
void writer_set_dtype(struct checkpoint_writer *w, const char *dtype);

/* Writes DIR/config.json with the text config, and DIR/model.safetensors. */
void writer_write(const struct checkpoint_writer *w, const char *dir, const char *config);

/* Makes a folder under /tmp, and removes it with the files in it. */
void temporary_folder_make(char dir[32]);
void temporary_folder_remove(const char *dir);

/* A device and a checkpoint that loads; each test spoils what it is about. */
struct load_fixture {
    struct device *dev; /* the reference */
    struct checkpoint_writer writer;
    struct model_config config;
    const char *json; /* of config */
    char dir[32];
};

/* Opens the device and makes the folder and the checkpoint, which is not written yet. */
void fixture_start(struct load_fixture *f, const char *json);

/* Frees everything; fails the test when something is left on the device. */
void fixture_end(struct load_fixture *f);

/* Writes the checkpoint and loads it; the test fails when that does. */
void fixture_load(struct load_fixture *f, struct model *m);

/* Fails unless every element of w, the reference device's, is the value that was written for the
 * tensor of that name. */
void assert_matrix(struct load_fixture *f, const struct matrix *w, const char *name);

/* The sizes of the tests' models. 70 rows are more than the loader reads at once; no two sizes of a
 * matrix are equal, so that a wrong shape cannot fit by luck. */
#define TINY_SIZES                                                                                 \
    "\"num_hidden_layers\":2,\"hidden_size\":24,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":40,\"vocab_size\":70,"         \
    "\"max_position_embeddings\":100"
#define TINY_LLAMA                                                                                 \
    "{\"architectures\":[\"LlamaForCausalLM\"]," TINY_SIZES                                        \
    ",\"attention_bias\":true,\"mlp_bias\":true}"
#define TINY_QWEN2 "{\"architectures\":[\"Qwen2ForCausalLM\"]," TINY_SIZES "}"
#define TINY_QWEN3                                                                                 \
    "{\"architectures\":[\"Qwen3ForCausalLM\"]," TINY_SIZES ",\"tie_word_embeddings\":true}"

#endif
