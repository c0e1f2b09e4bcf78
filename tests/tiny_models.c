#include "tests/tiny_models.h"

#include "scheduler/kv_contiguous.h"
#include "tests/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZES(arch, heads, kv_heads, dim, more)                                                    \
    "{\"architectures\":[\"" arch "ForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":32,"     \
    "\"num_attention_heads\":" heads ",\"num_key_value_heads\":" kv_heads ",\"head_dim\":" dim     \
    ",\"intermediate_size\":48,\"vocab_size\":61,\"max_position_embeddings\":700,"                 \
    "\"eos_token_id\":7" more "}"

#define OTHER(arch, heads, kv_heads, dim, context, more)                                           \
    "{\"architectures\":[\"" arch "ForCausalLM\"],\"num_hidden_layers\":3,\"hidden_size\":40,"     \
    "\"num_attention_heads\":" heads ",\"num_key_value_heads\":" kv_heads ",\"head_dim\":" dim     \
    ",\"intermediate_size\":50,\"vocab_size\":67,\"max_position_embeddings\":" context ","         \
    "\"eos_token_id\":7" more "}"

static const char *const configs[LONG_MODEL + 1] = {
    SIZES("Llama", "4", "4", "16", ""), /* MHA */
    SIZES("Llama", "6", "2", "32", ""), /* GQA */
    SIZES("Llama", "4", "1", "64", ""), /* MQA */
    SIZES("Llama", "2", "1", "128", ""),
    SIZES("Mistral", "4", "2", "32", ",\"sliding_window\":130"),
    SIZES("Qwen2", "4", "2", "32",
          ",\"use_sliding_window\":true,\"sliding_window\":20,\"max_window_layers\":1"),
    /* Two or four ranks get 2 and 1 of these kv heads, and more of one's heads than of another's.
     */
    OTHER("Qwen3", "9", "3", "8", "700", ",\"tie_word_embeddings\":true"),
    OTHER("Qwen2", "8", "2", "16", "700", ""),
    OTHER("Llama", "8", "8", "4", "700", ",\"attention_bias\":true,\"mlp_bias\":true"),
    OTHER("Qwen3", "6", "2", "8", "2400", ""),
};

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

void tiny_model_open(struct tiny_model *t, int which) {
    tiny_model_share(t, which, NULL, NULL);
}

void tiny_model_share(struct tiny_model *t, int which, struct tiny_model *whole,
                      struct parallel *ranks) {
    struct error err = {""};
    struct device_options options = {.n_threads = ranks ? 1 : 2};
    memset(t, 0, sizeof *t);
    t->whole = whole;
    fixture_start(&t->fixture, configs[which]);
    writer_write(&t->fixture.writer, t->fixture.dir, configs[which]);
    t->dev = device_under_test()->open(&options, &err);
    must(!t->dev, &err);
    must(model_load_part(&t->model, t->dev, t->fixture.dir, ranks, NULL, &err), &err);
    must(generator_start(&t->generator, &t->model, &err), &err);
}

void tiny_model_close(struct tiny_model *t) {
    generator_end(&t->generator);
    model_free(&t->model);
    t->dev->ops->close(t->dev);
    fixture_end(&t->fixture);
}

struct sequence tiny_request(struct random *r, const struct tiny_model *t, uint32_t id,
                             int max_prompt, int max_new) {
    struct error err;
    struct sequence s;
    struct sampling_options sampling = {.top_p = 1, .seed = random_bits64(r)};
    sampling.has_seed = sampling.seed & 1;
    sampling.sample = sampling.seed >> 1 & 3;
    if (random_int(r, 0, 1)) {
        sampling.temperature = 0.5f + (float)random_int(r, 0, 10) / 8;
        sampling.top_k = random_int(r, 0, 1) ? random_int(r, 1, 60) : 0;
        sampling.top_p = random_int(r, 0, 1) ? 0.9f : 1;
    }
    int n =
        random_int(r, 1, random_int(r, 0, 4) ? (max_prompt < 20 ? max_prompt : 20) : max_prompt);
    int32_t *ids = host_array((size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = random_int(r, 0, t->model.config.vocab_size - 1);
    must(sequence_start(&s, id, &sampling, &err), &err);
    must(sequence_add_prompt(&s, ids, n, random_int(r, 1, max_new), &err), &err);
    free(ids);
    return s;
}

struct sequence tiny_alone(struct tiny_model *t, const struct sequence *request) {
    struct error err;
    struct sequence s;
    t = t->whole ? t->whole : t;
    /* With a seed of its own, the request's number among others must not matter. */
    uint32_t id = request->sampling.has_seed ? 0 : request->id;
    must(sequence_start(&s, id, &request->sampling, &err), &err);
    must(sequence_add_prompt(&s, request->tokens, request->n_prompt, request->max_new, &err), &err);
    struct kv_cache *cache = kv_static_new(&t->model, t->generator.context, &err);
    must(!cache, &err);
    struct generator plain = t->generator;
    plain.drafter = NULL;
    must(generate(&plain, &s, cache, &err), &err);
    kv_cache_free(cache);
    return s;
}

void assert_same_answer(const struct sequence *want, const struct sequence *got) {
    int n = want->n_tokens < got->n_tokens ? want->n_tokens : got->n_tokens;
    for (int i = 0; i < n; i++)
        if (want->tokens[i] != got->tokens[i])
            fail_msg("sequence %u, position %d: token %d, alone %d", want->id, i, got->tokens[i],
                     want->tokens[i]);
    if (want->n_tokens != got->n_tokens || want->finish != got->finish)
        fail_msg("sequence %u: %d tokens (%s), alone %d (%s)", want->id, got->n_tokens,
                 finish_name(got->finish), want->n_tokens, finish_name(want->finish));
    uint64_t alone = fingerprint_value(&want->fingerprint);
    if (fingerprint_value(&got->fingerprint) != alone)
        fail_msg("sequence %u: fingerprint %016llx, alone %016llx", want->id,
                 (unsigned long long)fingerprint_value(&got->fingerprint),
                 (unsigned long long)alone);
}

void shipped_model_open(struct tiny_model *t) {
    struct error err;
    struct device_options options = {.n_threads = 2};
    *t = (struct tiny_model){.dev = device_under_test()->open(&options, &err)};
    must(!t->dev, &err);
    must(model_load(&t->model, t->dev, "data/model", NULL, &err), &err);
    must(generator_start(&t->generator, &t->model, &err), &err);
}

void shipped_model_close(struct tiny_model *t) {
    generator_end(&t->generator);
    model_free(&t->model);
    t->dev->ops->close(t->dev);
}
