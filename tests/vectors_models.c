/* models/ and models.jsonl: models of a few kilobytes, and what they write. */
#include "tests/vectors.h"

#include "model/attention/kv_type.h"
#include "scheduler/generate.h"
#include "scheduler/kv_paged.h"
#include "scheduler/logprobs.h"
#include "scheduler/pass.h"
#include "tests/checkpoint_writer.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define SIZES(heads, kv_heads, dim, ffn, eps)                                                      \
    "\"num_hidden_layers\":2,\"hidden_size\":12,\"num_attention_heads\":" heads                    \
    ",\"num_key_value_heads\":" kv_heads ",\"head_dim\":" dim ",\"intermediate_size\":" ffn        \
    ",\"vocab_size\":61,\"max_position_embeddings\":600,\"rms_norm_eps\":" eps

const char *const vector_model_names[N_VECTOR_MODELS] = {"llama-f32", "llama-bf16", "qwen2-f16",
                                                         "qwen3-bf16"};

static const struct {
    const char *config, *dtype;
} models[N_VECTOR_MODELS] = {
    {"{\"architectures\":[\"LlamaForCausalLM\"]," SIZES(
         "2", "1", "6", "17", "1e-5") ",\"attention_bias\":true,\"mlp_bias\":true}",
     "F32"},
    {"{\"architectures\":[\"LlamaForCausalLM\"]," SIZES(
         "3", "3", "4", "20", "1e-6") ",\"tie_word_embeddings\":true,\"rope_theta\":500000.0,"
                                      "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                                      "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                                      "\"original_max_position_embeddings\":16}}",
     "BF16"},
    {"{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES(
         "4", "2", "4", "16", "1e-6") ",\"rope_theta\":1000000.0,\"rope_scaling\":{"
                                      "\"type\":\"linear\",\"factor\":2.5}}",
     "F16"},
    {"{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES("2", "1", "8", "16",
                                                        "1e-6") ",\"tie_word_embeddings\":true}",
     "BF16"},
};

/* Ordinary weights of a dtype, with some of every size: subnormal numbers, zeros, and rows in which
 * one number is far above the others. */
static float weight_of(struct random *r, const char *dtype, float size) {
    float x = random_normal(r) * size;
    int kind = random_int(r, 0, 99);
    if (kind < 4)
        x = ldexpf(x, random_int(r, -30, 3));
    if (kind == 4)
        x = random_int(r, 0, 1) ? -0.0f : 0x1.8p-20f;
    if (!strcmp(dtype, "BF16"))
        return num_float(kv_bits(KV_BF16, x, 0, 1) << 16);
    if (strcmp(dtype, "F16"))
        return x;
    return kv_float(KV_FP16, kv_bits(KV_FP16, x, 0, 1));
}

void vector_model_write(int i, const char *folder) {
    struct checkpoint_writer w;
    struct model_config c;
    struct error err;
    struct random r = {1000 + (uint64_t)i};
    const char *json = models[i].config;
    if (model_config_parse(&c, json, strlen(json), "config", &err))
        fail_msg("%s", err.text);
    writer_init(&w, &c);
    for (int k = 0; k < w.count; k++) {
        struct writer_tensor *t = &w.tensors[k];
        float middle = t->n_dims == 1 && strstr(t->name, "norm") ? 1 : 0;
        float size = t->n_dims == 2 ? 0.5f : 0.25f;
        for (size_t j = 0; j < t->n_values; j++) {
            float x = weight_of(&r, models[i].dtype, size);
            t->values[j] = middle > 0 ? 1 + (float)random_int(&r, -60, 60) / 128 : x;
        }
    }
    writer_set_dtype(&w, models[i].dtype);
    writer_write(&w, folder, json);
    writer_free(&w);
}

/* ---- what they write ---------------------------------------------------------------------------
 */

struct wish {
    int model, n_prompt, n_new;
    enum kv_type type;
    struct sampling_options sampling;
};

static void put_hex64(struct vectors *v, const char *name, uint64_t x) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, x);
    vector_text(v, name, text);
}

/* Each token's logits and its log-probability: lines between "model" and "answer". */
static int note_token(void *context, const struct sequence *s, const float *logits,
                      struct error *err) {
    struct vectors *v = context;
    int32_t id = s->tokens[s->n_tokens - 1];
    float logprob;
    (void)err;
    logprobs_of(logits, 61, id, &logprob, NULL, 0);
    vector_begin(v, "token");
    vector_floats(v, "logits", logits, 61);
    vector_int(v, "id", id);
    vector_float(v, "logprob", logprob);
    vector_end(v);
    return 0;
}

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

static void put_wish(struct vectors *v, const struct wish *w, const int32_t *prompt) {
    vector_begin(v, "model");
    vector_text(v, "name", vector_model_names[w->model]);
    vector_text(v, "cache", kv_type_name(w->type));
    vector_float(v, "temperature", w->sampling.temperature);
    vector_int(v, "top_k", w->sampling.top_k);
    vector_float(v, "top_p", w->sampling.top_p);
    put_hex64(v, "seed", w->sampling.seed);
    vector_int(v, "sample", w->sampling.sample);
    vector_i32(v, "prompt", prompt, (size_t)w->n_prompt);
    vector_int(v, "n_new", w->n_new);
    vector_end(v);
}

static void answer(struct vectors *v, struct model *model, const struct wish *w) {
    struct kv_pool_options options = {
        .block_size = 4, .n_blocks = 16, .poison = true, .type = w->type};
    struct error err = {""};
    struct kv_pool pool;
    struct kv_paged cache;
    struct generator g;
    struct sequence s;
    int32_t prompt[64];
    for (int i = 0; i < w->n_prompt; i++)
        prompt[i] = random_int(&v->random, 0, 60);
    put_wish(v, w, prompt);
    must(kv_pool_start(&pool, model, &options, &err), &err);
    must(kv_paged_start(&cache, &pool, NULL, &err), &err);
    must(generator_start(&g, model, &err), &err);
    g.fused = true;
    g.on_token = note_token;
    g.on_token_context = v;
    must(sequence_start(&s, 0, &w->sampling, &err), &err);
    must(sequence_add_prompt(&s, prompt, w->n_prompt, w->n_new, &err), &err);
    while (s.finish == FINISH_NOT_YET) {
        must(kv_paged_reserve(&cache, s.n_tokens, &err), &err);
        struct pass_part part = {&s, &cache.base, s.n_cached, s.n_tokens, 0, true};
        must(pass_run(&g, &part, 1, &err), &err);
        kv_paged_stored(&cache, s.tokens, s.n_cached);
    }
    vector_begin(v, "answer");
    put_hex64(v, "fingerprint", fingerprint_value(&s.fingerprint));
    vector_end(v);
    sequence_end(&s);
    generator_end(&g);
    kv_paged_end(&cache);
    kv_pool_end(&pool);
}

void vectors_models(struct vectors *v, const char *folder) {
    struct sampling_options greedy = {.top_p = 1}, drawn = {.temperature = 0.8f,
                                                            .top_k = 20,
                                                            .top_p = 0.95f,
                                                            .seed = 0x123456789abcdefu,
                                                            .has_seed = true,
                                                            .sample = 2};
    for (int i = 0; i < N_VECTOR_MODELS; i++) {
        char path[300];
        struct model model;
        struct error err = {""};
        snprintf(path, sizeof path, "%s/%s", folder, vector_model_names[i]);
        must(model_load(&model, v->t.dev, path, NULL, &err), &err);
        answer(v, &model, &(struct wish){i, 5, 6, KV_BFP16, greedy});
        answer(v, &model, &(struct wish){i, 1, 5, KV_BFP16, drawn});
        for (int type = 1; type < N_KV_TYPES && i == 3; type++)
            answer(v, &model, &(struct wish){i, 3, 3, (enum kv_type)type, drawn});
        model_free(&model);
    }
}
