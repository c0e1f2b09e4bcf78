#include "model/config.h"

#include "model/files/folder.h"
#include "model/files/json.h"

#include <float.h>
#include <limits.h>
#include <string.h>

static const char supported[] =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM are supported";

/* What a Hugging Face configuration class fixes for its model, and its defaults. */
struct family {
    const char *class_name, *model_type;
    enum arch arch;
    int n_kv_heads; /* 0: as many as heads */
    int head_dim;   /* 0: hidden / heads */
    int max_positions;
    int window; /* sliding_window; 0: the class has none */
};

static const struct family families[] = {
    {"LlamaForCausalLM", "llama", ARCH_LLAMA, 0, 0, 2048, 0},
    {"MistralForCausalLM", "mistral", ARCH_LLAMA, 8, 0, 131072, 4096},
    {"Qwen2ForCausalLM", "qwen2", ARCH_QWEN2, 32, 0, 32768, 4096},
    {"Qwen3ForCausalLM", "qwen3", ARCH_QWEN3, 32, 128, 32768, 4096},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

static int get_double_in(const struct json_source *s, const char *field, double min, double max,
                         double *out) {
    if (json_get_double(s, field, out))
        return -1;
    if (!(*out >= min && *out <= max))
        return json_refuse(s, "\"%s\" is %g, must be %g to %g", field, *out, min, max);
    return 0;
}

static int get_double_required(const struct json_source *s, const char *field, double min,
                               double max, double *out) {
    if (!json_field(s, field))
        return json_refuse(s, "\"%s\" is missing", field);
    return get_double_in(s, field, min, max, out);
}

static int get_size(const struct json_source *s, const char *field, int max, int *out) {
    return json_get_required_int(s, field, 1, max, out);
}

/* architectures[0] decides, and model_type when that is absent; the two must not contradict. */
static const struct family *find_family(const struct json_source *s) {
    const char *name = NULL, *type = NULL;
    json_t *list = json_field(s, "architectures");
    if (json_get_string(s, "model_type", &type))
        return NULL;
    if (list && json_array_size(list) > 0)
        name = json_string_value(json_array_get(list, 0));
    else if (!list || json_is_array(list))
        list = NULL, name = type;
    if (!name) {
        json_refuse(s, "neither \"architectures\" nor \"model_type\" names a model; %s", supported);
        return NULL;
    }
    for (int i = 0; i < N_FAMILIES; i++) {
        if (strcmp(name, list ? families[i].class_name : families[i].model_type))
            continue;
        if (!type || !strcmp(type, families[i].model_type))
            return &families[i];
        json_refuse(s, "architecture \"%s\" has model_type \"%s\", not \"%s\"", name,
                    families[i].model_type, type);
        return NULL;
    }
    json_refuse(s, "%s \"%s\" is not supported; %s", list ? "architecture" : "model_type", name,
                supported);
    return NULL;
}

/* An absent num_key_value_heads is the class's default; a null one means one for each head. */
static int read_heads(struct model_config *c, const struct family *family,
                      const struct json_source *s) {
    c->n_kv_heads = c->n_heads;
    if (!json_object_get(s->object, "num_key_value_heads") && family->n_kv_heads)
        c->n_kv_heads = family->n_kv_heads;
    if (json_get_int(s, "num_key_value_heads", 1, MAX_HEADS, &c->n_kv_heads))
        return -1;
    if (c->n_heads % c->n_kv_heads)
        return json_refuse(
            s, "\"num_attention_heads\" is %d, not a multiple of \"num_key_value_heads\", %d",
            c->n_heads, c->n_kv_heads);
    c->head_dim = family->head_dim;
    if (!json_field(s, "head_dim") && !family->head_dim) {
        if (c->hidden % c->n_heads)
            return json_refuse(s,
                               "\"hidden_size\" is %d, not a multiple of "
                               "\"num_attention_heads\", %d, and there is no \"head_dim\"",
                               c->hidden, c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }
    if (json_get_int(s, "head_dim", 1, MAX_HEAD_DIM, &c->head_dim))
        return -1;
    if (c->head_dim % 2 || c->head_dim > MAX_HEAD_DIM)
        return json_refuse(s, "head_dim is %d, must be even and at most %d", c->head_dim,
                           MAX_HEAD_DIM);
    return 0;
}

static int read_sizes(struct model_config *c, const struct family *family,
                      const struct json_source *s) {
    if (get_size(s, "num_hidden_layers", MAX_LAYERS, &c->n_layers) ||
        get_size(s, "hidden_size", MAX_HIDDEN, &c->hidden) ||
        get_size(s, "num_attention_heads", MAX_HEADS, &c->n_heads) ||
        get_size(s, "intermediate_size", MAX_FFN, &c->ffn) ||
        get_size(s, "vocab_size", MAX_VOCAB, &c->vocab_size))
        return -1;
    c->max_positions = family->max_positions;
    if (json_get_int(s, "max_position_embeddings", 1, MAX_POSITIONS, &c->max_positions))
        return -1;
    /* An eps below the smallest normal float32 would become 0 in the kernels. */
    c->rms_eps = 1e-6;
    if (get_double_in(s, "rms_norm_eps", FLT_MIN, 1.0, &c->rms_eps))
        return -1;
    return read_heads(c, family, s);
}

/* Only Llama and Qwen3 look at attention_bias, only Llama at mlp_bias; Qwen2 always has q, k and v
 * biases. */
static int read_switches(struct model_config *c, const struct family *family,
                         const struct json_source *s) {
    bool attention = false, mlp = false;
    if (json_get_bool(s, "tie_word_embeddings", &c->tied) ||
        json_get_bool(s, "attention_bias", &attention) || json_get_bool(s, "mlp_bias", &mlp))
        return -1;
    bool is_llama = family->arch == ARCH_LLAMA && !family->window;
    c->qk_norm = family->arch == ARCH_QWEN3;
    c->o_bias = attention && (is_llama || family->arch == ARCH_QWEN3);
    c->qkv_bias = c->o_bias || family->arch == ARCH_QWEN2;
    c->mlp_bias = mlp && is_llama;
    return 0;
}

/* Which layers have the window, where the class lets a list decide (Qwen) or has fixed it. */
static int read_layer_types(struct model_config *c, const struct family *family,
                            const struct json_source *s) {
    json_t *types = json_field(s, "layer_types");
    if (types && !json_is_array(types))
        return json_refuse(s, "\"layer_types\" must be a list");
    if (types && json_array_size(types) != (size_t)c->n_layers)
        return json_refuse(s, "\"layer_types\" has %zu entries, \"num_hidden_layers\" is %d",
                           json_array_size(types), c->n_layers);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool windowed = type && !strcmp(type, "sliding_attention");
        if (!type || (!windowed && strcmp(type, "full_attention")))
            return json_refuse(s,
                               "\"layer_types\"[%zu] is \"%s\"; only \"full_attention\" and "
                               "\"sliding_attention\" are supported",
                               i, type ? type : "?");
        if (family->arch == ARCH_LLAMA ? windowed != c->windowed[i] : windowed && !c->window)
            return json_refuse(s, "\"layer_types\"[%zu] is \"%s\", but the layer has %s", i, type,
                               c->windowed[i] ? "a sliding window" : "no sliding window");
        c->windowed[i] = windowed;
    }
    return 0;
}

/* Mistral has the window in every layer. Qwen has it only with use_sliding_window, in the layers
 * from max_window_layers on, unless layer_types names them. */
static int read_windows(struct model_config *c, const struct family *family,
                        const struct json_source *s) {
    bool used = false;
    int first = 28; /* of the Qwen classes */
    if (json_get_bool(s, "use_sliding_window", &used) ||
        json_get_int(s, "max_window_layers", 0, INT_MAX, &first))
        return -1;
    bool is_qwen = family->arch != ARCH_LLAMA;
    if (used && !family->window)
        return json_refuse(s, "\"use_sliding_window\" is true, but %s has no windows",
                           family->class_name);
    if (is_qwen ? used : family->window) {
        c->window = json_object_get(s->object, "sliding_window") ? 0 : family->window;
        if (json_get_int(s, "sliding_window", 1, INT_MAX, &c->window))
            return -1;
    }
    for (int i = 0; i < c->n_layers; i++)
        c->windowed[i] = c->window && (!is_qwen || i >= first);
    if (read_layer_types(c, family, s))
        return -1;
    c->window = c->window < c->max_positions ? c->window : 0; /* it hides nothing */
    return 0;
}

bool model_config_is_stop(const struct model_config *c, int32_t id) {
    for (int i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == id)
            return true;
    return false;
}

int model_config_window_left(const struct model_config *c, int layer) {
    return c->window && c->windowed[layer] ? c->window - 1 : -1;
}

static int refuse_unsupported(const struct json_source *s) {
    const char *activation = "silu";
    if (json_get_string(s, "hidden_act", &activation))
        return -1;
    if (strcmp(activation, "silu"))
        return json_refuse(s, "\"hidden_act\" is \"%s\"; only \"silu\" is supported", activation);
    json_t *quantization = json_field(s, "quantization_config");
    if (quantization) {
        const char *method = json_string_value(json_object_get(quantization, "quant_method"));
        return json_refuse(s,
                           "\"quantization_config\" (\"%s\"): only BF16, F16 and F32 are supported",
                           method ? method : "?");
    }
    return 0;
}

static int refuse_partial_rotary(const struct json_source *s) {
    double part = 1.0;
    if (json_get_double(s, "partial_rotary_factor", &part))
        return -1;
    if (part != 1.0)
        return json_refuse(s, "\"partial_rotary_factor\" is %g; only 1 is supported", part);
    return 0;
}

static int read_rope_scaling(struct rope_config *rope, const struct json_source *s,
                             const char *type) {
    if (!strcmp(type, "default"))
        return 0;
    if (!strcmp(type, "linear"))
        rope->scaling = ROPE_LINEAR;
    else if (!strcmp(type, "llama3"))
        rope->scaling = ROPE_LLAMA3;
    else
        return json_refuse(s, "rope type \"%s\" is not supported; default, linear and llama3 are",
                           type);
    if (get_double_required(s, "factor", 1.0, 1e6, &rope->factor))
        return -1;
    if (rope->scaling == ROPE_LINEAR)
        return 0;
    if (get_double_required(s, "low_freq_factor", 1e-6, 1e6, &rope->low_freq_factor) ||
        get_double_required(s, "high_freq_factor", 1e-6, 1e6, &rope->high_freq_factor) ||
        get_size(s, "original_max_position_embeddings", MAX_POSITIONS,
                 &rope->original_max_positions))
        return -1;
    /* The ramp between them divides by their difference. */
    if (rope->low_freq_factor >= rope->high_freq_factor)
        return json_refuse(s, "\"low_freq_factor\" is %g, must be below \"high_freq_factor\", %g",
                           rope->low_freq_factor, rope->high_freq_factor);
    return 0;
}

/* rope_theta and rope_scaling {...}, or as Transformers 5 writes it rope_parameters {rope_theta,
 * ...}. A theta inside wins over one outside, and rope_scaling over rope_parameters, as there. */
static int read_rope(struct model_config *c, const struct json_source *s) {
    struct rope_config *rope = &c->rope;
    *rope = (struct rope_config){10000.0, ROPE_PLAIN, 1.0, 1.0, 1.0, c->max_positions};
    /* Below 1 the frequencies would grow with the dimension, without bound. */
    if (refuse_partial_rotary(s) || get_double_in(s, "rope_theta", 1.0, 1e15, &rope->theta))
        return -1;
    json_t *object = json_field(s, "rope_scaling");
    if (object && json_is_object(object) && !json_object_size(object))
        object = NULL;
    const char *name = object ? "rope_scaling" : "rope_parameters";
    if (!object && !(object = json_field(s, name)))
        return 0;
    if (!json_is_object(object))
        return json_refuse(s, "\"%s\" must be an object", name);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (json_is_object(value))
            return json_refuse(
                s, "\"%s\" has values for \"%s\" only; one set for all layers is supported", name,
                key);
    }
    struct json_source inner = {object, s->where, s->err};
    const char *type = "default";
    if (refuse_partial_rotary(&inner) ||
        get_double_in(&inner, "rope_theta", 1.0, 1e15, &rope->theta) ||
        json_get_string(&inner, "type", &type) || json_get_string(&inner, "rope_type", &type))
        return -1;
    return read_rope_scaling(rope, &inner, type);
}

static int add_stop_id(struct model_config *c, const json_t *id, const struct json_source *s) {
    if (!json_is_integer(id))
        return json_refuse(s, "\"eos_token_id\" must be a whole number or a list of them");
    json_int_t number = json_integer_value(id);
    if (number < 0 || number >= c->vocab_size)
        return json_refuse(s, "\"eos_token_id\" is %lld, outside the vocabulary (0 to %d)",
                           (long long)number, c->vocab_size - 1);
    if (c->n_stop_ids == MAX_STOP_IDS)
        return json_refuse(s, "\"eos_token_id\" has more than %d ids", MAX_STOP_IDS);
    c->stop_ids[c->n_stop_ids++] = (int32_t)number;
    return 0;
}

static int read_stop_ids(struct model_config *c, const struct json_source *s) {
    json_t *value = json_field(s, "eos_token_id");
    if (!value)
        return 0;
    c->n_stop_ids = 0;
    if (!json_is_array(value))
        return add_stop_id(c, value, s);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (add_stop_id(c, json_array_get(value, i), s))
            return -1;
    return 0;
}

static int read_config(struct model_config *c, const struct json_source *s) {
    memset(c, 0, sizeof *c);
    const struct family *family = find_family(s);
    if (!family)
        return -1;
    c->arch = family->arch;
    if (read_sizes(c, family, s) || read_switches(c, family, s) || read_windows(c, family, s) ||
        refuse_unsupported(s) || read_rope(c, s))
        return -1;
    return read_stop_ids(c, s);
}

/* Reads c from root, which may be NULL (err is set then) and is given back. */
static int read_object(struct model_config *c, json_t *root, const char *where, struct error *err,
                       int (*read)(struct model_config *, const struct json_source *)) {
    if (!root)
        return -1;
    int rc = json_is_object(root) ? read(c, &(struct json_source){root, where, err})
                                  : error_set(err, "%s: not a JSON object", where);
    json_decref(root);
    return rc;
}

int model_config_parse(struct model_config *out, const char *json, size_t n, const char *where,
                       struct error *err) {
    return read_object(out, json_parse(json, n, where, err), where, err, read_config);
}

int model_config_parse_generation(struct model_config *c, const char *json, size_t n,
                                  const char *where, struct error *err) {
    return read_object(c, json_parse(json, n, where, err), where, err, read_stop_ids);
}

int model_config_load(struct model_config *out, const char *dir, struct error *err) {
    char path[PATH_MAX];
    if (model_folder_check(dir, err) ||
        model_folder_path(path, sizeof path, dir, "config.json", err) ||
        read_object(out, json_read_file(path, err), path, err, read_config))
        return -1;
    if (!model_folder_has(dir, "generation_config.json"))
        return 0;
    if (model_folder_path(path, sizeof path, dir, "generation_config.json", err))
        return -1;
    return read_object(out, json_read_file(path, err), path, err, read_stop_ids);
}
