/* The parts of tokenizer.json that are lists of steps: normalizer, pre-tokenizer, decoder,
 * post-processor. A Sequence in a Sequence does what one longer Sequence does, so all are laid
 * flat. */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int get_text(const struct json_source *from, const char *field, struct bytes *out) {
    const json_t *value = json_object_get(from->object, field);
    if (!json_is_string(value))
        return json_refuse(from, "\"%s\" must be a string", field);
    tok_bytes_add(out, json_string_value(value), json_string_length(value));
    return out->failed ? tok_out_of_memory(from->err) : 0;
}

static int get_character(const struct json_source *from, const char *field, struct bytes *out) {
    uint32_t c;
    if (get_text(from, field, out) != 0)
        return -1;
    if (out->n == 0 || tok_utf8_next(out->data, out->n, &c) != (int)out->n)
        return json_refuse(from, "\"%s\" must be one character", field);
    return 0;
}

/* One of n names. kind: the step, and choices: the names, for the message. */
static int get_choice(const struct json_source *from, const char *field, const char *kind,
                      const char *const *names, int n, const char *choices, int *out) {
    const char *name = n > *out ? names[*out] : "";
    if (json_get_string(from, field, &name) != 0)
        return -1;
    for (*out = 0; *out < n; (*out)++)
        if (strcmp(name, names[*out]) == 0)
            return 0;
    return json_refuse(from, "%s \"%s\" is \"%s\", must be %s", kind, field, name, choices);
}

/* {"String": ...} or {"Regex": ...} */
static int get_pattern(const struct json_source *from, struct pattern *out) {
    const struct json_source pattern = {json_object_get(from->object, "pattern"), from->where,
                                        from->err};
    const json_t *regex = json_object_get(pattern.object, "Regex");
    if (json_is_string(regex))
        return tok_pattern_compile(out, json_string_value(regex), json_string_length(regex),
                                   from->where, from->err);
    if (!json_is_string(json_object_get(pattern.object, "String")))
        return json_refuse(from, "\"pattern\" must be {\"String\": ...} or {\"Regex\": ...}");
    if (get_text(&pattern, "String", &out->literal) != 0)
        return -1;
    return out->literal.n > 0 ? 0 : json_refuse(from, "\"pattern\" is empty");
}

static int load_prepend(struct step *s, const struct json_source *from) {
    return get_text(from, "prepend", &s->content);
}

static int load_replace(struct step *s, const struct json_source *from) {
    return get_pattern(from, &s->pattern) || get_text(from, "content", &s->content) ? -1 : 0;
}

static int load_split(struct step *s, const struct json_source *from) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    int behavior = 5; /* none */
    s->split = true;
    if (get_pattern(from, &s->pattern) ||
        get_choice(from, "behavior", "Split", names, 5,
                   "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous",
                   &behavior))
        return -1;
    s->behavior = (enum split_behavior)behavior;
    return json_get_bool(from, "invert", &s->invert);
}

static int load_byte_level(struct step *s, const struct json_source *from) {
    s->add_prefix_space = true;
    s->split = true;
    s->behavior = SPLIT_ISOLATED;
    if (json_get_bool(from, "add_prefix_space", &s->add_prefix_space) ||
        json_get_bool(from, "use_regex", &s->split))
        return -1;
    return tok_pattern_compile(&s->pattern, GPT2_PATTERN, strlen(GPT2_PATTERN), from->where,
                               from->err);
}

static int load_digits(struct step *s, const struct json_source *from) {
    bool individual = false;
    int result = json_get_bool(from, "individual_digits", &individual);
    s->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return result;
}

static int load_metaspace(struct step *s, const struct json_source *from) {
    static const char *const schemes[] = {"always", "first", "never"};
    int scheme = PREPEND_ALWAYS;
    bool add_prefix_space = true;
    s->split = true;
    s->behavior = SPLIT_MERGED_WITH_NEXT;
    if (get_character(from, "replacement", &s->content) ||
        get_choice(from, "prepend_scheme", "Metaspace", schemes, 3, "always, first or never",
                   &scheme) ||
        json_get_bool(from, "add_prefix_space", &add_prefix_space) ||
        json_get_bool(from, "split", &s->split))
        return -1;
    tok_bytes_add(&s->pattern.literal, s->content.data, s->content.n);
    if (s->pattern.literal.failed)
        return tok_out_of_memory(from->err);
    s->prepend_scheme = (enum prepend_scheme)scheme;
    if (!add_prefix_space && s->prepend_scheme != PREPEND_NEVER)
        return json_refuse(
            from, "Metaspace \"add_prefix_space\" is false, but \"prepend_scheme\" is \"%s\"",
            schemes[scheme]);
    return 0;
}

static int load_strip(struct step *s, const struct json_source *from) {
    return get_character(from, "content", &s->content) ||
                   json_get_required_int(from, "start", 0, 1 << 20, &s->start) ||
                   json_get_required_int(from, "stop", 0, 1 << 20, &s->stop)
               ? -1
               : 0;
}

struct step_type {
    const char *name;
    enum step_kind kind;
    int uses; /* of enum step_use */
    int (*load)(struct step *, const struct json_source *);
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

static int load_one(struct steps *out, const struct json_source *from, const char *type,
                    enum step_use use, const char *part) {
    const struct step_type *found = find_step_type(type, use);
    if (!found)
        return json_refuse(from, "%s \"%s\" is not supported", part, type);
    TOK_ADD(out, (struct step){.kind = found->kind});
    if (out->failed)
        return tok_out_of_memory(from->err);
    return found->load ? found->load(&out->items[out->n - 1], from) : 0;
}

/* The type of a step, or NULL with the error set. */
static const char *get_type(const struct json_source *from, const char *part) {
    const json_t *value = json_object_get(from->object, "type");
    if (!json_is_string(value))
        json_refuse(from, "\"%s\" must be null or an object with a \"type\"", part);
    return json_string_value(value);
}

static const json_t *get_list(const struct json_source *from, const char *field, const char *part) {
    const json_t *list = json_object_get(from->object, field);
    if (json_is_array(list))
        return list;
    json_refuse(from, "%s Sequence: \"%s\" must be a list", part, field);
    return NULL;
}

int tok_load_steps(struct steps *out, const struct json_source *from, enum step_use use) {
    static const char *const parts[] = {[USE_NORMALIZER] = "normalizer",
                                        [USE_PRE_TOKENIZER] = "pre_tokenizer",
                                        [USE_DECODER] = "decoder"};
    static const char *const fields[] = {[USE_NORMALIZER] = "normalizers",
                                         [USE_PRE_TOKENIZER] = "pretokenizers",
                                         [USE_DECODER] = "decoders"};
    if (!from->object || json_is_null(from->object))
        return 0;
    const char *type = get_type(from, parts[use]);
    if (!type)
        return -1;
    if (strcmp(type, "Sequence") != 0)
        return load_one(out, from, type, use, parts[use]);
    const json_t *list = get_list(from, fields[use], parts[use]);
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct json_source item = {json_array_get(list, i), from->where, from->err};
        if (json_is_null(item.object))
            return json_refuse(from, "%s[%zu] is null", fields[use], i);
        if (tok_load_steps(out, &item, use) != 0)
            return -1;
    }
    return list ? 0 : -1;
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

static int add_special_ids(struct ids *out, const struct json_source *from, const char *name,
                           size_t n_tokens) {
    const json_t *tokens = json_object_get(from->object, "special_tokens");
    const json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
    if (!json_is_array(ids))
        return json_refuse(from, "TemplateProcessing: \"%s\" is not in \"special_tokens\"", name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= (json_int_t)n_tokens)
            return json_refuse(
                from, "TemplateProcessing: \"%s\" has an id that is not in the vocabulary", name);
        TOK_ADD(out, (int32_t)json_integer_value(id));
    }
    return out->failed ? tok_out_of_memory(from->err) : 0;
}

static int load_template(struct tokenizer *t, const struct json_source *from) {
    const json_t *list = json_object_get(from->object, "single");
    int sequences = 0;
    if (t->prefix.n + t->suffix.n > 0) /* the library takes its result for a pair of texts */
        return json_refuse(from, "a second TemplateProcessing is not supported");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *piece = json_array_get(list, i);
        const json_t *special = json_object_get(json_object_get(piece, "SpecialToken"), "id");
        const json_t *sequence = json_object_get(json_object_get(piece, "Sequence"), "id");
        if (json_is_string(special)) {
            if (add_special_ids(sequences ? &t->suffix : &t->prefix, from,
                                json_string_value(special), t->vocab.n_tokens) != 0)
                return -1;
        } else if (json_is_string(sequence) && strcmp(json_string_value(sequence), "A") == 0) {
            sequences++;
        } else {
            return json_refuse(from,
                               "TemplateProcessing: \"single\"[%zu] is neither a SpecialToken "
                               "nor the Sequence \"A\"",
                               i);
        }
    }
    if (sequences != 1)
        return json_refuse(from,
                           "TemplateProcessing: \"single\" must hold the Sequence \"A\" once, "
                           "not %d times",
                           sequences);
    return 0;
}

int tok_load_post_processor(struct tokenizer *t, const struct json_source *from) {
    if (!from->object || json_is_null(from->object))
        return 0;
    const char *type = get_type(from, "post_processor");
    if (!type)
        return -1;
    if (strcmp(type, "ByteLevel") == 0) /* moves offsets, leaves the ids as they are */
        return 0;
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(t, from);
    if (strcmp(type, "Sequence") != 0)
        return json_refuse(from, "post_processor \"%s\" is not supported", type);
    const json_t *list = get_list(from, "processors", "post_processor");
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct json_source item = {json_array_get(list, i), from->where, from->err};
        if (tok_load_post_processor(t, &item) != 0)
            return -1;
    }
    return list ? 0 : -1;
}
