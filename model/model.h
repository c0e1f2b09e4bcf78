/*
 * model.h - a loaded model: its configuration and its weights on a device.
 *
 * Weights are read from the checkpoint once, widened exactly to float32, snapped to BFP16 per
 * output row (numerics.h) and handed to the device. Nothing else of the checkpoint stays in memory.
 */
#ifndef SAMEBITS_MODEL_H
#define SAMEBITS_MODEL_H

#include "model/config.h"
#include "model/error.h"
#include "model/ops.h"
#include "model/parallel.h"

/* Weights of one decoder layer. Biases and q/k norms are NULL where the architecture has none. */
struct layer_weights {
    struct matrix q;                          /* [n_heads * head_dim, hidden] */
    struct matrix k, v;                       /* [n_kv_heads * head_dim, hidden] */
    struct matrix o;                          /* [hidden, n_heads * head_dim] */
    struct matrix gate, up;                   /* [ffn, hidden] */
    struct matrix down;                       /* [hidden, ffn] */
    float *attention_norm, *ffn_norm;         /* [hidden] */
    float *q_norm, *k_norm;                   /* [head_dim] */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* [rows of the matrix] */
    float *gate_bias, *up_bias, *down_bias;   /* [rows of the matrix] */
};

struct weight;

/* May not be moved once it is loaded. */
struct model {
    struct device *dev; /* not owned */
    /* n_heads, n_kv_heads and ffn are this rank's, where ranks share the model. */
    struct model_config config;
    struct parallel *parallel;    /* not owned; NULL: one rank */
    struct model_part part;       /* without ranks: all of it */
    struct layer_weights *layers; /* host array [n_layers] */
    struct matrix embedding;      /* [vocab_size, hidden]; of ranks: [their words + 1, hidden] */
    struct matrix output;         /* [vocab_size, hidden]; n = 0 when tied: embedding is used */
    float *final_norm;            /* [hidden] */
    float *rope_cos, *rope_sin;   /* [n_rope, head_dim / 2], grown by model_reserve_positions */
    int n_rope;
    struct weight *weights; /* [n_weights]: all tensors that were loaded, for model_free */
    int n_weights;
    size_t n_parameters; /* numbers in the checkpoint's tensors that the model uses */
};

/* Called while a checkpoint is read, with bytes done and in total; may be NULL. */
struct progress {
    void (*update)(void *context, size_t done, size_t total);
    void *context;
};

/*
 * Reads the Hugging Face folder dir onto dev. Returns 0, or -1 with err set (file, tensor, reason)
 * and nothing left allocated. *out is for model_free.
 */
int model_load(struct model *out, struct device *dev, const char *dir,
               const struct progress *progress, struct error *err);

/* model_load of a rank's part; parallel must outlive the model. NULL: all of it. */
int model_load_part(struct model *out, struct device *dev, const char *dir,
                    struct parallel *parallel, const struct progress *progress, struct error *err);

/* Frees the weights; a zeroed model is fine. */
void model_free(struct model *model);

/* Makes the rotary tables reach n_positions. Returns 0, or -1 with err set (more than the model's
 * context, or no memory). Only grows; waits for the device when it does. */
int model_reserve_positions(struct model *model, int n_positions, struct error *err);

/* The matrix that turns hidden states into logits. */
const struct matrix *model_output(const struct model *model);

#endif
