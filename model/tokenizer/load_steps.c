/* The parts of tokenizer.json that are lists of steps: normalizer, pre-tokenizer, decoder,
 * post-processor. A Sequence in a Sequence does what one longer Sequence does, so all are laid
 * flat. */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int get_text(const json_t *spec, const char *field, struct bytes *out, const char *where,
                    struct error *err) {
    const json_t *value = json_object_get(spec, field);
    if (!json_is_string(value))
        return error_set(err, "%s: \"%s\" must be a string", where, field);
    tok_bytes_add(out, json_string_value(value), json_string_length(value));
    return out->failed ? tok_out_of_memory(err) : 0;
}

static int get_character(const json_t *spec, const char *field, struct bytes *out,
                         const char *where, struct error *err) {
    uint32_t c;
    if (get_text(spec, field, out, where, err) != 0)
        return -1;
    if (out->n == 0 || tok_utf8_next(out->data, out->n, &c) != (int)out->n)
        return error_set(err, "%s: \"%s\" must be one character", where, field);
    return 0;
}

/* {"String": ...} or {"Regex": ...} */
static int get_pattern(const json_t *spec, struct pattern *out, const char *where,
                       struct error *err) {
    const json_t *pattern = json_object_get(spec, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    if (json_is_string(regex))
        return tok_pattern_compile(out, json_string_value(regex), json_string_length(regex), where,
                                   err);
    if (!json_is_string(json_object_get(pattern, "String")))
        return error_set(err, "%s: \"pattern\" must be {\"String\": ...} or {\"Regex\": ...}",
                         where);
    if (get_text(pattern, "String", &out->literal, where, err) != 0)
        return -1;
    if (out->literal.n == 0)
        return error_set(err, "%s: \"pattern\" is empty", where);
    return 0;
}

static int load_prepend(struct step *s, const json_t *spec, const char *where, struct error *err) {
    return get_text(spec, "prepend", &s->content, where, err);
}

static int load_replace(struct step *s, const json_t *spec, const char *where, struct error *err) {
    if (get_pattern(spec, &s->pattern, where, err) != 0)
        return -1;
    return get_text(spec, "content", &s->content, where, err);
}

static int load_split(struct step *s, const json_t *spec, const char *where, struct error *err) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = "";
    if (get_pattern(spec, &s->pattern, where, err) != 0 ||
        json_get_string(spec, "behavior", &name, where, err) != 0 ||
        json_get_bool(spec, "invert", &s->invert, where, err) != 0)
        return -1;
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) == 0) {
            s->behavior = (enum split_behavior)i;
            return 0;
        }
    }
    return error_set(err,
                     "%s: Split \"behavior\" is \"%s\", must be Isolated, Removed, "
                     "MergedWithPrevious, MergedWithNext or Contiguous",
                     where, name);
}

static int load_byte_level(struct step *s, const json_t *spec, const char *where,
                           struct error *err) {
    s->add_prefix_space = true;
    s->split = true;
    if (json_get_bool(spec, "add_prefix_space", &s->add_prefix_space, where, err) != 0 ||
        json_get_bool(spec, "use_regex", &s->split, where, err) != 0)
        return -1;
    return tok_pattern_compile(&s->pattern, GPT2_PATTERN, strlen(GPT2_PATTERN), where, err);
}

static int load_digits(struct step *s, const json_t *spec, const char *where, struct error *err) {
    return json_get_bool(spec, "individual_digits", &s->individual_digits, where, err);
}

static int load_metaspace(struct step *s, const json_t *spec, const char *where,
                          struct error *err) {
    static const char *const schemes[] = {"always", "first", "never"};
    const char *name = "always";
    bool add_prefix_space = true;
    s->split = true;
    if (get_character(spec, "replacement", &s->content, where, err) != 0 ||
        json_get_string(spec, "prepend_scheme", &name, where, err) != 0 ||
        json_get_bool(spec, "add_prefix_space", &add_prefix_space, where, err) != 0 ||
        json_get_bool(spec, "split", &s->split, where, err) != 0)
        return -1;
    int scheme = 0;
    while (scheme < 3 && strcmp(name, schemes[scheme]) != 0)
        scheme++;
    if (scheme == 3)
        return error_set(err,
                         "%s: Metaspace \"prepend_scheme\" is \"%s\", must be always, first "
                         "or never",
                         where, name);
    s->prepend_scheme = (enum prepend_scheme)scheme;
    if (!add_prefix_space && s->prepend_scheme != PREPEND_NEVER)
        return error_set(err,
                         "%s: Metaspace \"add_prefix_space\" is false, but "
                         "\"prepend_scheme\" is \"%s\"",
                         where, name);
    return 0;
}

static int load_strip(struct step *s, const json_t *spec, const char *where, struct error *err) {
    if (get_character(spec, "content", &s->content, where, err) != 0 ||
        json_get_int_required(spec, "start", 0, 1 << 20, &s->start, where, err) != 0)
        return -1;
    return json_get_int_required(spec, "stop", 0, 1 << 20, &s->stop, where, err);
}

struct step_type {
    const char *name;
    enum step_kind kind;
    int uses; /* of enum step_use */
    int (*load)(struct step *, const json_t *, const char *, struct error *);
};

static const struct step_type *find_step_type(const char *name, enum step_use use) {
    static const struct step_type types[] = {
        {"NFC", STEP_NFC, USE_NORMALIZER, NULL},
        {"Prepend", STEP_PREPEND, USE_NORMALIZER, load_prepend},
        {"Replace", STEP_REPLACE, USE_NORMALIZER | USE_DECODER, load_replace},
        {"Split", STEP_SPLIT, USE_PRE_TOKENIZER, load_split},
        {"ByteLevel", STEP_BYTE_LEVEL, USE_PRE_TOKENIZER | USE_DECODER, load_byte_level},
        {"Digits", STEP_DIGITS, USE_PRE_TOKENIZER, load_digits},
        {"Metaspace", STEP_METASPACE, USE_PRE_TOKENIZER | USE_DECODER, load_metaspace},
        {"ByteFallback", STEP_BYTE_FALLBACK, USE_DECODER, NULL},
        {"Fuse", STEP_FUSE, USE_DECODER, NULL},
        {"Strip", STEP_STRIP, USE_DECODER, load_strip},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if ((types[i].uses & (int)use) && strcmp(types[i].name, name) == 0)
            return &types[i];
    }
    return NULL;
}

static const char *use_name(enum step_use use) {
    return use == USE_NORMALIZER ? "normalizer" : use == USE_DECODER ? "decoder" : "pre_tokenizer";
}

static int load_one(struct steps *out, const json_t *spec, const char *type, enum step_use use,
                    const char *where, struct error *err) {
    const struct step_type *found = find_step_type(type, use);
    if (!found)
        return error_set(err, "%s: %s \"%s\" is not supported", where, use_name(use), type);
    struct step *grown = tok_grow(out->items, &out->cap, out->n + 1, sizeof *grown);
    if (!grown)
        return tok_out_of_memory(err);
    out->items = grown;
    struct step *s = &out->items[out->n++]; /* counted at once, so that it is freed in any case */
    *s = (struct step){.kind = found->kind};
    return found->load ? found->load(s, spec, where, err) : 0;
}

/* The type of a step, or NULL with err set. */
static const char *get_type(const json_t *spec, const char *part, const char *where,
                            struct error *err) {
    const json_t *value = json_object_get(spec, "type");
    if (!json_is_string(value))
        error_set(err, "%s: \"%s\" must be null or an object with a \"type\"", where, part);
    return json_string_value(value);
}

static int get_list(const json_t *spec, const char *field, const json_t **list, const char *part,
                    const char *where, struct error *err) {
    *list = json_object_get(spec, field);
    if (!json_is_array(*list))
        return error_set(err, "%s: %s Sequence: \"%s\" must be a list", where, part, field);
    return 0;
}

int tok_load_steps(struct steps *out, const json_t *spec, enum step_use use, const char *where,
                   struct error *err) {
    const json_t *list;
    if (!spec || json_is_null(spec))
        return 0;
    const char *type = get_type(spec, use_name(use), where, err);
    if (!type)
        return -1;
    if (strcmp(type, "Sequence") != 0)
        return load_one(out, spec, type, use, where, err);
    const char *field = use == USE_NORMALIZER ? "normalizers"
                        : use == USE_DECODER  ? "decoders"
                                              : "pretokenizers";
    if (get_list(spec, field, &list, use_name(use), where, err) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_null(item))
            return error_set(err, "%s: %s[%zu] is null", where, field, i);
        if (tok_load_steps(out, item, use, where, err) != 0)
            return -1;
    }
    return 0;
}

void tok_steps_free(struct steps *steps) {
    for (size_t i = 0; i < steps->n; i++) {
        tok_pattern_free(&steps->items[i].pattern);
        tok_bytes_free(&steps->items[i].content);
    }
    free(steps->items);
    *steps = (struct steps){0};
}

/* ---- post-processor ------------------------------------------------------------------------- */

static int add_special_ids(struct ids *out, const json_t *spec, const char *name, size_t n_tokens,
                           const char *where, struct error *err) {
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(spec, "special_tokens"), name), "ids");
    if (!json_is_array(ids))
        return error_set(err, "%s: TemplateProcessing: \"%s\" is not in \"special_tokens\"", where,
                         name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= (json_int_t)n_tokens)
            return error_set(err,
                             "%s: TemplateProcessing: \"%s\" has an id that is not in the "
                             "vocabulary",
                             where, name);
        tok_ids_add(out, (int32_t)json_integer_value(id));
    }
    return out->failed ? tok_out_of_memory(err) : 0;
}

static int load_template(struct tokenizer *t, const json_t *spec, const char *where,
                         struct error *err) {
    const json_t *list = json_object_get(spec, "single");
    int sequences = 0;
    if (t->prefix.n + t->suffix.n > 0) /* the library takes its result for a pair of texts */
        return error_set(err, "%s: a second TemplateProcessing is not supported", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *piece = json_array_get(list, i);
        const json_t *special = json_object_get(json_object_get(piece, "SpecialToken"), "id");
        const json_t *sequence = json_object_get(json_object_get(piece, "Sequence"), "id");
        if (json_is_string(special)) {
            if (add_special_ids(sequences ? &t->suffix : &t->prefix, spec,
                                json_string_value(special), t->vocab.n_tokens, where, err) != 0)
                return -1;
        } else if (json_is_string(sequence) && strcmp(json_string_value(sequence), "A") == 0) {
            sequences++;
        } else {
            return error_set(err,
                             "%s: TemplateProcessing: \"single\"[%zu] is neither a "
                             "SpecialToken nor the Sequence \"A\"",
                             where, i);
        }
    }
    if (sequences != 1)
        return error_set(err,
                         "%s: TemplateProcessing: \"single\" must hold the Sequence \"A\" "
                         "once, not %d times",
                         where, sequences);
    return 0;
}

int tok_load_post_processor(struct tokenizer *t, const json_t *spec, const char *where,
                            struct error *err) {
    const json_t *list;
    if (!spec || json_is_null(spec))
        return 0;
    const char *type = get_type(spec, "post_processor", where, err);
    if (!type)
        return -1;
    if (strcmp(type, "ByteLevel") == 0) /* moves offsets, leaves the ids as they are */
        return 0;
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(t, spec, where, err);
    if (strcmp(type, "Sequence") != 0)
        return error_set(err, "%s: post_processor \"%s\" is not supported", where, type);
    if (get_list(spec, "processors", &list, "post_processor", where, err) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (tok_load_post_processor(t, json_array_get(list, i), where, err) != 0)
            return -1;
    }
    return 0;
}
