/* random_model.h - models with the shapes of known ones and random weights, made on the GPU: good
 * for measuring speed, and for nothing else. */
#ifndef SAMEBITS_RANDOM_MODEL_H
#define SAMEBITS_RANDOM_MODEL_H

#include "tests/bench/gpu_bench.h"

extern "C" {
#include "model/model.h"
}

/* Sizes from the models' config.json files. */
struct model_shape {
    const char *name;
    enum arch arch;
    int n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab_size;
    double theta;
    bool tied, qk_norm;
};

static const struct model_shape model_shapes[] = {
    {"qwen3-0.6b", ARCH_QWEN3, 28, 1024, 16, 8, 128, 3072, 151936, 1e6, true, true},
    {"llama-3-8b", ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 5e5, false, false},
};

__global__ static void random_bytes(uint32_t *x, size_t n, uint32_t seed) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = ((uint32_t)i + seed) * 2654435761u;
        h ^= h >> 15;
        h *= 0x7feb352du;
        x[i] = h ^ h >> 13;
    }
}

/* Digits of any value, and one exponent: weights between -2^exponent and 2^exponent. */
static inline void random_matrix(struct matrix *w, int n, int k, int exponent) {
    static uint32_t seed;
    struct error err;
    check(!dev->ops->matrix_create(dev, w, n, k, &err) && k == gpu_padded(k), "a matrix");
    random_bytes<<<1024, 256>>>((uint32_t *)w->mantissas, (size_t)n * (size_t)k / 2, seed += 77777);
    cudaMemset(w->exponents, exponent, (size_t)n);
}

static inline float *ones(int n) {
    std::vector<float> host((size_t)n, 1);
    float *x = (float *)device_bytes(sizeof(float) * (size_t)n);
    dev->ops->upload(dev, x, host.data(), sizeof(float) * (size_t)n);
    return x;
}

/* The process ends with the model: nothing frees it. */
static inline void random_model(struct model *m, const struct model_shape *s) {
    struct model_config c = {};
    c.arch = s->arch;
    c.n_layers = s->n_layers;
    c.hidden = s->hidden;
    c.n_heads = s->n_heads;
    c.n_kv_heads = s->n_kv_heads;
    c.head_dim = s->head_dim;
    c.ffn = s->ffn;
    c.vocab_size = s->vocab_size;
    c.max_positions = 8192;
    c.rms_eps = 1e-6;
    c.tied = s->tied;
    c.qk_norm = s->qk_norm;
    c.rope = {s->theta, ROPE_PLAIN, 1, 1, 1, c.max_positions};
    *m = {};
    m->dev = dev;
    m->config = c;
    m->layers = (struct layer_weights *)calloc((size_t)c.n_layers, sizeof *m->layers);
    check(m->layers, "memory for the layers");
    random_matrix(&m->embedding, c.vocab_size, c.hidden, 0);
    if (!c.tied)
        random_matrix(&m->output, c.vocab_size, c.hidden, -5);
    m->final_norm = ones(c.hidden);
    for (int i = 0; i < c.n_layers; i++) {
        struct layer_weights *w = &m->layers[i];
        int q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
        random_matrix(&w->q, q, c.hidden, -5);
        random_matrix(&w->k, kv, c.hidden, -5);
        random_matrix(&w->v, kv, c.hidden, -5);
        random_matrix(&w->o, c.hidden, q, -5);
        random_matrix(&w->gate, c.ffn, c.hidden, -5);
        random_matrix(&w->up, c.ffn, c.hidden, -5);
        random_matrix(&w->down, c.hidden, c.ffn, -5);
        w->attention_norm = ones(c.hidden);
        w->ffn_norm = ones(c.hidden);
        if (c.qk_norm) {
            w->q_norm = ones(c.head_dim);
            w->k_norm = ones(c.head_dim);
        }
    }
    check(!cudaDeviceSynchronize(), "filling the weights");
}

#endif
