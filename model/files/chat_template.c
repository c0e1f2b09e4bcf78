#include "model/files/chat_template.h"

#include "model/files/folder.h"
#include "model/files/template_tree.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

struct chat_template {
    struct work work; /* holds the tree */
    struct node *body;
    char *where;
    json_t *variables;
    bool reads_parts;
    struct chat_template_limits limits;
};

static const struct chat_template_limits standard = {
    .steps = 20 * 1000 * 1000, .memory = 512 << 20, .output = 128 << 20};

int chat_template_parse(struct chat_template **out, const char *text, size_t n,
                        const json_t *variables, const char *where, struct error *err) {
    *out = NULL;
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t || !(t->where = strdup(where)) ||
        !(t->variables = variables ? json_deep_copy(variables) : json_object())) {
        chat_template_free(t);
        return error_set(err, "%s: out of memory", where);
    }
    t->work = (struct work){.most_bytes = standard.memory, .where = t->where, .err = err};
    t->limits = standard;
    t->body = tmpl_parse(&t->work, (struct text){text, n}, &t->reads_parts);
    if (t->work.failed) {
        chat_template_free(t);
        return -1;
    }
    t->work.err = NULL;
    *out = t;
    return 0;
}

void chat_template_free(struct chat_template *t) {
    if (!t)
        return;
    tmpl_free_all(&t->work);
    json_decref(t->variables);
    free(t->where);
    free(t);
}

void chat_template_set_limits(struct chat_template *t, const struct chat_template_limits *limits) {
    t->limits = *limits;
}

bool chat_template_reads_parts(const struct chat_template *t) {
    return t->reads_parts;
}

/* ---- rendering ------------------------------------------------------------------------------ */

static void add_variables(struct run *r, struct dict *out, const json_t *variables) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)variables, name, value)
        tmpl_put(&r->work, out, tmpl_text(name), tmpl_from_json(r, value));
}

int chat_template_render(const struct chat_template *t, const json_t *variables, char **out,
                         size_t *n_bytes, struct error *err) {
    struct run r = {
        .work = {.most_bytes = t->limits.memory, .where = t->where, .line = 1, .err = err},
        .steps = t->limits.steps,
        .now = t->limits.now};
    struct buffer text = {.work = &r.work, .most = t->limits.output};
    struct dict names = {0};
    *out = NULL;
    r.out = &text;
    add_variables(&r, &names, t->variables);
    add_variables(&r, &names, variables);
    tmpl_execute(&r, t->body, &names);
    if (!r.work.failed && !(*out = malloc(text.n + 1)))
        tmpl_fail(&r.work, "out of memory");
    if (*out) {
        if (text.n)
            memcpy(*out, text.data, text.n);
        (*out)[text.n] = 0;
        *n_bytes = text.n;
    }
    tmpl_free_all(&r.work);
    return *out ? 0 : -1;
}

/* ---- reading a folder ----------------------------------------------------------------------- */

/* The template's text, a string or the one called "default" in a list; NULL: none. */
static const json_t *find_template(const json_t *config) {
    const json_t *spec = json_object_get(config, "chat_template");
    const json_t *found = spec;
    for (size_t i = 0; i < json_array_size(spec); i++) {
        const json_t *item = json_array_get(spec, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (i == 0 || (name && strcmp(name, "default") == 0))
            found = json_object_get(item, "template");
    }
    return json_is_string(found) ? found : NULL;
}

/* The special tokens of a tokenizer_config.json: strings, or objects with their content. */
static json_t *special_tokens(const json_t *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *out = json_object();
    for (size_t i = 0; out && i < sizeof names / sizeof *names; i++) {
        json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token))
            token = json_object_get(token, "content");
        if (json_is_string(token))
            json_object_set(out, names[i], token);
    }
    return out;
}

static int parse_file(struct chat_template **out, const char *path, const json_t *variables,
                      struct error *err) {
    char *text = malloc(TEMPLATE_SOURCE + 1);
    FILE *file = fopen(path, "rb");
    errno = file ? 0 : errno;
    size_t n = file && text ? fread(text, 1, TEMPLATE_SOURCE + 1, file) : 0;
    int result = !file || ferror(file) ? error_set(err, "%s: %s", path, strerror(errno))
                 : !text               ? error_set(err, "%s: out of memory", path)
                                       : chat_template_parse(out, text, n, variables, path, err);
    if (file)
        fclose(file);
    free(text);
    return result;
}

int chat_template_load(struct chat_template **out, const char *dir, struct error *err) {
    char path[PATH_MAX], jinja[PATH_MAX];
    json_t *config = NULL, *variables = NULL;
    int result = -1;
    *out = NULL;
    if (model_folder_path(path, sizeof path, dir, "tokenizer_config.json", err) ||
        model_folder_path(jinja, sizeof jinja, dir, "chat_template.jinja", err))
        return -1;
    bool alone = model_folder_has(dir, "chat_template.jinja");
    if (model_folder_has(dir, "tokenizer_config.json") && !(config = json_read_file(path, err)))
        return -1;
    const json_t *text = alone ? NULL : find_template(config);
    if (!(variables = special_tokens(config)))
        error_set(err, "%s: out of memory", path);
    else if (alone)
        result = parse_file(out, jinja, variables, err);
    else if (text)
        result = chat_template_parse(out, json_string_value(text), json_string_length(text),
                                     variables, path, err);
    else
        result = 0;
    json_decref(variables);
    json_decref(config);
    return result;
}
