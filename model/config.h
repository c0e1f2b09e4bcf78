/*
 * config.h - what a Hugging Face folder says about its model: config.json and, if there is one,
 * generation_config.json.
 *
 * Field names, and their defaults when a field is absent, are those of the Hugging Face
 * configuration classes LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config. A null is the
 * default too, except that num_key_value_heads then is num_attention_heads and sliding_window then
 * is none. Two differences: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads
 * and vocab_size must be written, because a file without them is damaged; and without an
 * eos_token_id in either file there are no stop ids.
 *
 * Whatever would change the numbers and is not implemented is refused by name, never ignored.
 */
#ifndef SAMEBITS_CONFIG_H
#define SAMEBITS_CONFIG_H

#include "model/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Mistral is ARCH_LLAMA: but for its sliding window it is the same computation. */
enum arch { ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3 };

enum rope_scaling {
    ROPE_PLAIN,  /* frequencies theta^(-2i/head_dim) */
    ROPE_LINEAR, /* those divided by factor */
    ROPE_LLAMA3  /* low frequencies divided by factor, high ones kept, a ramp between */
};

struct rope_config {
    double theta;
    enum rope_scaling scaling;
    double factor;                            /* linear and llama3; 1 for plain */
    double low_freq_factor, high_freq_factor; /* llama3, low < high; 1 otherwise */
    int original_max_positions;               /* llama3; max_positions otherwise */
};

enum { MAX_STOP_IDS = 16 };

/* Upper bounds, chosen so that no product of sizes that belongs to one tensor or to one KV cache
 * comes near 2^63. All sizes are at least 1. */
enum {
    MAX_LAYERS = 1 << 10,
    MAX_HIDDEN = 1 << 20,
    MAX_HEADS = 1 << 10,
    MAX_HEAD_DIM = 1 << 10,
    MAX_FFN = 1 << 22,
    MAX_VOCAB = 1 << 24,
    MAX_POSITIONS = 1 << 24
};

/* Plain values, nothing to free. */
struct model_config {
    enum arch arch;
    int n_layers;                   /* num_hidden_layers */
    int hidden;                     /* hidden_size */
    int n_heads;                    /* num_attention_heads */
    int n_kv_heads;                 /* num_key_value_heads; divides n_heads */
    int head_dim;                   /* head_dim, even; n_heads * head_dim need not be hidden */
    int ffn;                        /* intermediate_size */
    int vocab_size;                 /* vocab_size: rows of the embedding */
    int max_positions;              /* max_position_embeddings */
    double rms_eps;                 /* rms_norm_eps */
    bool tied;                      /* tie_word_embeddings: the output matrix is the embedding */
    bool qkv_bias;                  /* q_proj, k_proj and v_proj have a bias */
    bool o_bias;                    /* o_proj has one */
    bool mlp_bias;                  /* gate_proj, up_proj and down_proj have one */
    bool qk_norm;                   /* q_norm and k_norm: an RMS norm over each head before rope */
    int n_stop_ids;                 /* 0 when neither file names one */
    int32_t stop_ids[MAX_STOP_IDS]; /* eos_token_id, each 0 to vocab_size-1 */
    struct rope_config rope;
    int window; /* sliding_window: of a layer that has it, a query sees itself and window - 1
                   positions before it; 0: no layer has one that hides something */
    bool windowed[MAX_LAYERS]; /* [n_layers] which have it */
};

/* How many positions before itself a query of the layer sees: window_left of an attention variant
 * (model/attention/variant.h). -1: all. */
int model_config_window_left(const struct model_config *c, int layer);

/* Whether the token ends an answer: it is one of stop_ids. */
bool model_config_is_stop(const struct model_config *c, int32_t id);

/*
 * Reads DIR/config.json and, if there is one, DIR/generation_config.json, whose eos_token_id wins.
 * Returns 0, or -1 with err set: no such folder, a file that is missing or not JSON, a field of
 * the wrong type or out of range, or something unsupported, named. *out is undefined then.
 */
int model_config_load(struct model_config *out, const char *dir, struct error *err);

/* The config.json part of it, from n bytes in memory; where names them in errors. */
int model_config_parse(struct model_config *out, const char *json, size_t n, const char *where,
                       struct error *err);

/* The generation_config.json part: replaces the stop ids of c, which model_config_parse has
 * filled, if the n bytes name any. Returns 0, or -1 with err set. */
int model_config_parse_generation(struct model_config *c, const char *json, size_t n,
                                  const char *where, struct error *err);

#endif
