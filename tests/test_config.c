/* config.h: what each architecture's files mean, the defaults, and a refusal for every rule.
 * Reading the two files of a folder is tested in test_checkpoint.c. */
#include "model/config.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char base[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":64,"
    "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":128}";

#define MISTRAL "{\"architectures\":[\"MistralForCausalLM\"],\"num_key_value_heads\":2"
#define QWEN2 "{\"architectures\":[\"Qwen2ForCausalLM\"],\"num_key_value_heads\":2"

/* The base with the fields of patch put in; a field whose value is "-" is taken out. */
static char *patched(const char *patch) {
    json_t *config = json_loads(base, 0, NULL);
    json_error_t why;
    json_t *changes = json_loads(patch, 0, &why);
    if (!changes)
        fail_msg("%s: %s", patch, why.text);
    const char *key;
    json_t *value;
    json_object_foreach(changes, key, value) {
        if (json_is_string(value) && !strcmp(json_string_value(value), "-"))
            json_object_del(config, key);
        else
            json_object_set(config, key, value);
    }
    char *text = json_dumps(config, 0);
    json_decref(changes);
    json_decref(config);
    assert_non_null(text);
    return text;
}

static int parse(struct model_config *c, const char *patch, struct error *err) {
    char *text = patched(patch);
    int rc = model_config_parse(c, text, strlen(text), "config.json", err);
    free(text);
    return rc;
}

static struct model_config accept(const char *patch) {
    struct model_config c;
    struct error err = {""};
    if (parse(&c, patch, &err))
        fail_msg("%s: %s", patch, err.text);
    return c;
}

static void refuse(const char *patch, const char *part) {
    struct model_config c;
    struct error err = {""};
    if (!parse(&c, patch, &err))
        fail_msg("%s was accepted", patch);
    if (!strstr(err.text, part) || strncmp(err.text, "config.json: ", 13))
        fail_msg("%s: \"%s\" does not say \"%s\"", patch, err.text, part);
}

static void test_llama_defaults(void **state) {
    (void)state;
    struct model_config c = accept("{}");
    assert_int_equal(c.arch, ARCH_LLAMA);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.ffn, 96);
    assert_int_equal(c.vocab_size, 128);
    assert_int_equal(c.max_positions, 2048);
    assert_true(c.rms_eps == 1e-6);
    assert_false(c.tied || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.n_stop_ids, 0);
    assert_true(c.rope.theta == 10000.0 && c.rope.factor == 1.0);
    assert_int_equal(c.rope.scaling, ROPE_PLAIN);
    assert_int_equal(c.rope.original_max_positions, 2048);
}

static void test_null_is_the_default(void **state) {
    (void)state;
    struct model_config c = accept(
        "{\"num_key_value_heads\":null,\"head_dim\":null,\"rope_scaling\":null,"
        "\"rope_parameters\":null,\"quantization_config\":null,\"eos_token_id\":null,"
        "\"hidden_act\":null,\"rms_norm_eps\":null,\"rope_theta\":null,\"layer_types\":null}");
    struct model_config expected = accept("{}");
    assert_memory_equal(&c, &expected, sizeof c);
}

static void test_llama_3_1(void **state) {
    (void)state;
    struct model_config c =
        accept("{\"hidden_size\":4096,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
               "\"num_hidden_layers\":32,\"intermediate_size\":14336,\"vocab_size\":128256,"
               "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,"
               "\"eos_token_id\":[128001,128008,128009],\"tie_word_embeddings\":false,"
               "\"mlp_bias\":false,\"attention_bias\":false,\"pretraining_tp\":1,"
               "\"rope_scaling\":{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
               "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}}");
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.n_kv_heads, 8);
    assert_true(c.rms_eps == 1e-5);
    assert_int_equal(c.n_stop_ids, 3);
    assert_int_equal(c.stop_ids[2], 128009);
    assert_int_equal(c.rope.scaling, ROPE_LLAMA3);
    assert_true(c.rope.theta == 500000.0 && c.rope.factor == 8.0);
    assert_true(c.rope.low_freq_factor == 1.0 && c.rope.high_freq_factor == 4.0);
    assert_int_equal(c.rope.original_max_positions, 8192);
}

static void test_mistral(void **state) {
    (void)state;
    struct model_config c = accept("{\"architectures\":[\"MistralForCausalLM\"],"
                                   "\"num_attention_heads\":16,\"sliding_window\":null,"
                                   "\"attention_bias\":true,\"mlp_bias\":true}");
    assert_int_equal(c.arch, ARCH_LLAMA);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.max_positions, 131072);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias); /* its class has no such fields */
    c = accept("{\"architectures\":[\"MistralForCausalLM\"],\"num_key_value_heads\":null,"
               "\"sliding_window\":4096,\"max_position_embeddings\":4096}");
    assert_int_equal(c.n_kv_heads, 4);
}

/* Both layers of the base: what a query sees before itself. */
static void expect_windows(const char *patch, int first, int second) {
    struct model_config c = accept(patch);
    assert_int_equal(model_config_window_left(&c, 0), first);
    assert_int_equal(model_config_window_left(&c, 1), second);
}

static void test_windows(void **state) {
    (void)state;
    expect_windows("{}", -1, -1);
    expect_windows("{\"sliding_window\":10}", -1, -1); /* Llama's class has no such field */
    expect_windows(MISTRAL "}", 4095, 4095);
    expect_windows(MISTRAL ",\"sliding_window\":null}", -1, -1);
    expect_windows(MISTRAL ",\"sliding_window\":1}", 0, 0);
    expect_windows(MISTRAL ",\"sliding_window\":4095,\"max_position_embeddings\":4096}", 4094,
                   4094);
    expect_windows(MISTRAL ",\"sliding_window\":4096,\"max_position_embeddings\":4096}", -1, -1);
    expect_windows(MISTRAL ",\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}", 4095,
                   4095);
    expect_windows(QWEN2 ",\"sliding_window\":10,\"max_window_layers\":0}", -1, -1);
#define QWEN2_WINDOW QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":10"
    expect_windows(QWEN2_WINDOW "}", -1, -1); /* max_window_layers is 28 */
    expect_windows(QWEN2_WINDOW ",\"max_window_layers\":0}", 9, 9);
    expect_windows(QWEN2_WINDOW ",\"max_window_layers\":1}", -1, 9);
    expect_windows(QWEN2_WINDOW ",\"max_window_layers\":2}", -1, -1);
    expect_windows(QWEN2_WINDOW ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]}", 9,
                   -1);
    expect_windows(QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":1}", -1, 4095);
    expect_windows(QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":null}", -1, -1);
}

static void test_qwen2(void **state) {
    (void)state;
    struct model_config c = accept(
        "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":896,\"num_attention_heads\":14,"
        "\"num_key_value_heads\":2,\"tie_word_embeddings\":true,\"rope_theta\":1000000,"
        "\"sliding_window\":32768,\"max_window_layers\":21,\"use_sliding_window\":false}");
    assert_int_equal(c.arch, ARCH_QWEN2);
    assert_true(c.qkv_bias && c.tied);
    assert_false(c.o_bias || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.max_positions, 32768);
    assert_int_equal(c.head_dim, 64);
    assert_true(c.rope.theta == 1e6);
    refuse("{\"architectures\":[\"Qwen2ForCausalLM\"]}", "\"num_key_value_heads\", 32");
}

static void test_qwen3(void **state) {
    (void)state;
    struct model_config c =
        accept("{\"architectures\":[\"Qwen3ForCausalLM\"],\"num_key_value_heads\":2,"
               "\"layer_types\":[\"full_attention\",\"full_attention\"]}");
    assert_int_equal(c.arch, ARCH_QWEN3);
    assert_true(c.qk_norm);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.max_positions, 32768);
    c = accept("{\"architectures\":[\"Qwen3ForCausalLM\"],\"num_attention_heads\":32,"
               "\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":6}");
    assert_int_equal(c.n_kv_heads, 32);
    assert_int_equal(c.head_dim, 6);
    assert_true(c.qkv_bias && c.o_bias);
    assert_false(c.mlp_bias);
}

static void test_biases_of_llama(void **state) {
    (void)state;
    struct model_config c = accept("{\"attention_bias\":true}");
    assert_true(c.qkv_bias && c.o_bias);
    assert_false(c.mlp_bias);
    c = accept("{\"mlp_bias\":true}");
    assert_true(c.mlp_bias);
    assert_false(c.qkv_bias || c.o_bias);
}

static void test_architecture_names(void **state) {
    (void)state;
    assert_int_equal(accept("{\"architectures\":\"-\",\"model_type\":\"llama\"}").arch, ARCH_LLAMA);
    assert_int_equal(accept("{\"architectures\":[],\"model_type\":\"llama\"}").arch, ARCH_LLAMA);
    assert_int_equal(accept("{\"architectures\":null,\"model_type\":\"qwen3\","
                            "\"num_key_value_heads\":1}")
                         .arch,
                     ARCH_QWEN3);
    assert_int_equal(accept("{\"model_type\":\"llama\"}").arch, ARCH_LLAMA);
    assert_int_equal(accept("{\"model_type\":null}").arch, ARCH_LLAMA);
    refuse("{\"model_type\":\"gpt2\"}", "has model_type \"llama\", not \"gpt2\"");
    refuse("{\"architectures\":[\"GPT2LMHeadModel\"]}",
           "architecture \"GPT2LMHeadModel\" is not supported; LlamaForCausalLM, "
           "MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM are supported");
    refuse("{\"architectures\":[\"llama\"]}", "architecture \"llama\" is not supported");
    refuse("{\"architectures\":\"-\",\"model_type\":\"gemma\"}", "model_type \"gemma\" is not");
    refuse("{\"architectures\":\"-\"}", "neither \"architectures\" nor \"model_type\"");
    refuse("{\"architectures\":[7]}", "neither");
    refuse("{\"architectures\":\"LlamaForCausalLM\"}", "neither");
    refuse("{\"architectures\":[],\"model_type\":7}", "\"model_type\" must be a string");
}

static void test_rope_forms(void **state) {
    (void)state;
    static const struct {
        const char *patch;
        double theta, factor;
        enum rope_scaling scaling;
    } good[] = {
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", 10000, 2, ROPE_LINEAR},
        {"{\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"yarn\",\"factor\":2.5}}", 10000,
         2.5, ROPE_LINEAR},
        {"{\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_theta\":5e5}", 5e5, 1, ROPE_PLAIN},
        {"{\"rope_scaling\":{}}", 10000, 1, ROPE_PLAIN},
        {"{\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"}}", 1e6, 1,
         ROPE_PLAIN},
        {"{\"rope_parameters\":{\"rope_theta\":7e4,\"rope_type\":\"linear\",\"factor\":4.0,"
         "\"partial_rotary_factor\":1.0},\"rope_scaling\":{},\"rope_theta\":3}",
         7e4, 4, ROPE_LINEAR},
        {"{\"rope_parameters\":{\"rope_type\":\"yarn\"},\"rope_theta\":20000,"
         "\"rope_scaling\":{\"type\":\"linear\",\"factor\":3}}",
         20000, 3, ROPE_LINEAR},
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        struct model_config c = accept(good[i].patch);
        assert_int_equal(c.rope.scaling, good[i].scaling);
        assert_true(c.rope.theta == good[i].theta && c.rope.factor == good[i].factor);
    }
}

static void test_stop_ids(void **state) {
    (void)state;
    struct model_config c = accept("{\"eos_token_id\":127}");
    assert_int_equal(c.n_stop_ids, 1);
    assert_int_equal(c.stop_ids[0], 127);
    c = accept("{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}");
    assert_int_equal(c.n_stop_ids, MAX_STOP_IDS);
    assert_int_equal(c.stop_ids[15], 15);

    struct error err = {""};
    const char *generation = "{\"eos_token_id\":[5,6]}", *silent = "{\"top_p\":0.9}";
    assert_int_equal(model_config_parse_generation(&c, silent, strlen(silent), "g", &err), 0);
    assert_int_equal(c.n_stop_ids, MAX_STOP_IDS);
    assert_int_equal(model_config_parse_generation(&c, generation, strlen(generation), "g", &err),
                     0);
    assert_int_equal(c.n_stop_ids, 2);
    assert_int_equal(c.stop_ids[1], 6);
    generation = "{\"eos_token_id\":128}";
    assert_int_equal(model_config_parse_generation(&c, generation, strlen(generation), "g", &err),
                     -1);
    assert_string_equal(err.text, "g: \"eos_token_id\" is 128, outside the vocabulary (0 to 127)");
    assert_int_equal(model_config_parse_generation(&c, "[]", 2, "g", &err), -1);
    assert_string_equal(err.text, "g: not a JSON object");
    assert_int_equal(model_config_parse_generation(&c, "{", 1, "g", &err), -1);
}

static void test_refuses_text_that_is_no_config(void **state) {
    (void)state;
    struct model_config c;
    struct error err;
    static const char *const bad[] = {"", "[]", "7", "{", "{\"a\":1,\"a\":2}", "{} x", "null"};
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(model_config_parse(&c, bad[i], strlen(bad[i]), "config.json", &err), -1);
    for (size_t n = 0; n < strlen(base); n++) {
        char *part = malloc(n ? n : 1); /* exact, so that the sanitizer sees a read past the end */
        assert_non_null(part);
        memcpy(part, base, n);
        assert_int_equal(model_config_parse(&c, part, n, "config.json", &err), -1);
        free(part);
    }
}

#define LLAMA3(factor, low, high, original)                                                        \
    "{\"rope_scaling\":{\"rope_type\":\"llama3\"" factor low high original "}}"
#define FACTOR ",\"factor\":8"
#define LOW ",\"low_freq_factor\":1"
#define HIGH ",\"high_freq_factor\":4"
#define ORIGINAL ",\"original_max_position_embeddings\":16"

static const char *const refused[][2] = {
    {"{\"num_hidden_layers\":\"-\"}", "\"num_hidden_layers\" is missing"},
    {"{\"hidden_size\":\"-\"}", "\"hidden_size\" is missing"},
    {"{\"num_attention_heads\":null}", "\"num_attention_heads\" is missing"},
    {"{\"intermediate_size\":\"-\"}", "\"intermediate_size\" is missing"},
    {"{\"vocab_size\":\"-\"}", "\"vocab_size\" is missing"},
    {"{\"num_hidden_layers\":0}", "\"num_hidden_layers\" is 0, must be 1 to 1024"},
    {"{\"num_hidden_layers\":1025}", "\"num_hidden_layers\" is 1025"},
    {"{\"hidden_size\":1048577}", "\"hidden_size\" is 1048577, must be 1 to 1048576"},
    {"{\"hidden_size\":-64}", "\"hidden_size\" is -64"},
    {"{\"hidden_size\":4294967360}", "\"hidden_size\" is 4294967360"},
    {"{\"hidden_size\":64.0}", "\"hidden_size\" must be a whole number"},
    {"{\"hidden_size\":\"64\"}", "\"hidden_size\" must be a whole number"},
    {"{\"num_attention_heads\":1025}", "\"num_attention_heads\" is 1025"},
    {"{\"intermediate_size\":4194305}", "\"intermediate_size\" is 4194305"},
    {"{\"vocab_size\":16777217}", "\"vocab_size\" is 16777217, must be 1 to 16777216"},
    {"{\"max_position_embeddings\":0}", "\"max_position_embeddings\" is 0"},
    {"{\"max_position_embeddings\":16777217}", "\"max_position_embeddings\" is 16777217"},
    {"{\"num_key_value_heads\":0}", "\"num_key_value_heads\" is 0"},
    {"{\"num_key_value_heads\":3}", "is 4, not a multiple of \"num_key_value_heads\", 3"},
    {"{\"num_key_value_heads\":8}", "is 4, not a multiple of \"num_key_value_heads\", 8"},
    {"{\"hidden_size\":66}", "\"hidden_size\" is 66, not a multiple of \"num_attention_heads\", 4"},
    {"{\"hidden_size\":60}", "head_dim is 15, must be even"},
    {"{\"hidden_size\":8192}", "head_dim is 2048, must be even and at most 1024"},
    {"{\"hidden_size\":2}", "\"hidden_size\" is 2, not a multiple"},
    {"{\"head_dim\":0}", "\"head_dim\" is 0"},
    {"{\"head_dim\":7}", "head_dim is 7, must be even"},
    {"{\"head_dim\":1026}", "\"head_dim\" is 1026"},
    {"{\"rms_norm_eps\":0}", "\"rms_norm_eps\" is 0"},
    {"{\"rms_norm_eps\":-1e-6}", "\"rms_norm_eps\" is -1e-06"},
    {"{\"rms_norm_eps\":1e-50}", "\"rms_norm_eps\" is 1e-50"},
    {"{\"rms_norm_eps\":2}", "\"rms_norm_eps\" is 2"},
    {"{\"rms_norm_eps\":\"1e-6\"}", "\"rms_norm_eps\" must be a number"},
    {"{\"tie_word_embeddings\":1}", "\"tie_word_embeddings\" must be true or false"},
    {"{\"attention_bias\":\"no\"}", "\"attention_bias\" must be true or false"},
    {"{\"mlp_bias\":0}", "\"mlp_bias\" must be true or false"},
    {"{\"rope_theta\":0}", "\"rope_theta\" is 0"},
    {"{\"rope_theta\":-10000}", "\"rope_theta\" is -10000"},
    {"{\"rope_theta\":0.5}", "\"rope_theta\" is 0.5"},
    {"{\"rope_theta\":1e300}", "\"rope_theta\" is 1e+300"},
    {"{\"rope_theta\":[1e4]}", "\"rope_theta\" must be a number"},
    {"{\"rope_parameters\":{\"rope_theta\":0}}", "\"rope_theta\" is 0"},
    {"{\"rope_parameters\":7}", "\"rope_parameters\" must be an object"},
    {"{\"rope_scaling\":\"linear\"}", "\"rope_scaling\" must be an object"},
    {"{\"rope_scaling\":{\"type\":7}}", "\"type\" must be a string"},
    {"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}",
     "rope type \"yarn\" is not supported; default, linear and llama3 are"},
    {"{\"rope_scaling\":{\"type\":\"dynamic\"}}", "rope type \"dynamic\" is not supported"},
    {"{\"rope_scaling\":{\"type\":\"longrope\"}}", "rope type \"longrope\" is not supported"},
    {"{\"rope_scaling\":{\"type\":\"mrope\"}}", "rope type \"mrope\" is not supported"},
    {"{\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "rope type \"yarn\" is not supported"},
    {"{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}",
     "\"rope_parameters\" has values for \"full_attention\" only"},
    {"{\"rope_scaling\":{\"type\":\"linear\"}}", "\"factor\" is missing"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "\"factor\" is 0, must be 1 to"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":-2}}", "\"factor\" is -2"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":true}}", "\"factor\" must be a number"},
    {LLAMA3("", LOW, HIGH, ORIGINAL), "\"factor\" is missing"},
    {LLAMA3(FACTOR, "", HIGH, ORIGINAL), "\"low_freq_factor\" is missing"},
    {LLAMA3(FACTOR, LOW, "", ORIGINAL), "\"high_freq_factor\" is missing"},
    {LLAMA3(FACTOR, LOW, HIGH, ""), "\"original_max_position_embeddings\" is missing"},
    {LLAMA3(FACTOR, ",\"low_freq_factor\":4", HIGH, ORIGINAL),
     "\"low_freq_factor\" is 4, must be below \"high_freq_factor\", 4"},
    {LLAMA3(FACTOR, ",\"low_freq_factor\":0", HIGH, ORIGINAL), "\"low_freq_factor\" is 0"},
    {"{\"partial_rotary_factor\":0.5}", "\"partial_rotary_factor\" is 0.5; only 1 is supported"},
    {"{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", "\"partial_rotary_factor\" is 0.25"},
    {"{\"hidden_act\":\"gelu\"}", "\"hidden_act\" is \"gelu\"; only \"silu\" is supported"},
    {"{\"hidden_act\":7}", "\"hidden_act\" must be a string"},
    {"{\"use_sliding_window\":true}",
     "\"use_sliding_window\" is true, but LlamaForCausalLM has no windows"},
    {"{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
     "\"layer_types\"[1] is \"sliding_attention\", but the layer has no sliding window"},
    {"{\"layer_types\":[\"linear_attention\",\"full_attention\"]}",
     "\"layer_types\"[0] is \"linear_attention\"; only \"full_attention\" and"},
    {QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
     "\"layer_types\"[1] is \"sliding_attention\", but the layer has no sliding window"},
    {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":null,"
           "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
     "\"layer_types\"[1] is \"sliding_attention\", but the layer has no sliding window"},
    {QWEN2 ",\"use_sliding_window\":1}", "\"use_sliding_window\" must be true or false"},
    {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":-1}", "\"sliding_window\" is -1"},
    {QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":-1}", "\"max_window_layers\" is -1"},
    {"{\"layer_types\":[7,7]}", "\"layer_types\"[0] is \"?\""},
    {"{\"layer_types\":[\"full_attention\"]}",
     "\"layer_types\" has 1 entries, \"num_hidden_layers\" is 2"},
    {"{\"model_type\":\"qwen3\"}",
     "architecture \"LlamaForCausalLM\" has model_type \"llama\", not \"qwen3\""},
    {"{\"model_type\":7}", "\"model_type\" must be a string"},
    {"{\"layer_types\":\"full_attention\"}", "\"layer_types\" must be a list"},
    {MISTRAL ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
     "\"layer_types\"[1] is \"full_attention\", but the layer has a sliding window"},
    {MISTRAL ",\"sliding_window\":0}", "\"sliding_window\" is 0"},
    {"{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}",
     "\"quantization_config\" (\"awq\"): only BF16, F16 and F32 are supported"},
    {"{\"quantization_config\":{}}", "\"quantization_config\" (\"?\")"},
    {"{\"eos_token_id\":128}", "\"eos_token_id\" is 128, outside the vocabulary (0 to 127)"},
    {"{\"eos_token_id\":-1}", "\"eos_token_id\" is -1"},
    {"{\"eos_token_id\":[1,4294967297]}", "\"eos_token_id\" is 4294967297"},
    {"{\"eos_token_id\":\"2\"}", "\"eos_token_id\" must be a whole number or a list"},
    {"{\"eos_token_id\":[[2]]}", "\"eos_token_id\" must be a whole number or a list"},
    {"{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", "has more than 16 ids"},
};

static void test_refuses(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++)
        refuse(refused[i][0], refused[i][1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_defaults),
        cmocka_unit_test(test_null_is_the_default),
        cmocka_unit_test(test_llama_3_1),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_biases_of_llama),
        cmocka_unit_test(test_architecture_names),
        cmocka_unit_test(test_rope_forms),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_refuses_text_that_is_no_config),
        cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
