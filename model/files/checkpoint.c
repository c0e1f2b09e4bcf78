#include "model/files/checkpoint.h"

#include "model/files/folder.h"
#include "model/files/json.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

struct shard {
    const char *name; /* as the index has it */
    struct safetensors *file;
};

struct checkpoint {
    char *dir;
    json_t *index;                 /* owns the shards' names; NULL for a single file */
    struct shard *shards;          /* [n_shards] */
    const struct tensor **tensors; /* [count], by name */
    bool *needed;                  /* [count] */
    size_t n_shards, count;
};

static int open_shard(struct checkpoint *c, const char *name, struct error *err) {
    char path[PATH_MAX];
    if (model_folder_path(path, sizeof path, c->dir, name, err))
        return -1;
    if (c->index && !model_folder_has(c->dir, name))
        return error_set(err, "%s: no such file, but %s names it. Is the download complete?", path,
                         INDEX_FILE);
    struct shard *grown = realloc(c->shards, (c->n_shards + 1) * sizeof *grown);
    if (!grown)
        return error_set(err, "%s: out of memory", path);
    c->shards = grown;
    c->shards[c->n_shards].name = name;
    if (safetensors_open(&c->shards[c->n_shards].file, path, err))
        return -1;
    c->n_shards++;
    return 0;
}

static bool is_open(const struct checkpoint *c, const char *name) {
    for (size_t i = c->n_shards; i-- > 0;) /* neighbours in the index are mostly in one shard */
        if (!strcmp(c->shards[i].name, name))
            return true;
    return false;
}

/* A name that cannot lead out of the folder. */
static bool is_plain_name(const json_t *value) {
    const char *name = json_string_value(value);
    return name && *name && strlen(name) == json_string_length(value) && strcmp(name, ".") &&
           !strchr(name, '/') && !strstr(name, "..");
}

/* Opens the shards that the index names. */
static int open_index(struct checkpoint *c, struct error *err) {
    char path[PATH_MAX];
    if (model_folder_path(path, sizeof path, c->dir, INDEX_FILE, err))
        return -1;
    c->index = json_read_file(path, err);
    if (!c->index)
        return -1;
    json_t *map = json_object_get(c->index, "weight_map"), *value;
    if (!json_is_object(map))
        return error_set(err, "%s: \"weight_map\" must be an object", path);
    const char *name;
    json_object_foreach(map, name, value) {
        const char *shard = json_string_value(value);
        if (!is_plain_name(value))
            return error_set(err, "%s: tensor \"%s\" must be in a file of this folder, not \"%s\"",
                             path, name, shard ? shard : "?");
        if (!is_open(c, shard) && open_shard(c, shard, err))
            return -1;
    }
    return 0;
}

/* Is each tensor of the index in the shard that the index says? */
static int check_index(const struct checkpoint *c, struct error *err) {
    json_t *map = json_object_get(c->index, "weight_map"), *value;
    const char *name;
    json_object_foreach(map, name, value) {
        const struct tensor *t = checkpoint_find(c, name);
        if (!t || strcmp(strrchr(t->file, '/') + 1, json_string_value(value)))
            return error_set(err, "%s/%s: tensor \"%s\" is not in %s", c->dir, INDEX_FILE, name,
                             json_string_value(value));
    }
    return 0;
}

static int by_name(const void *a, const void *b) {
    const struct tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* One sorted list of the tensors of all shards. */
static int list_tensors(struct checkpoint *c, struct error *err) {
    size_t n = 0;
    for (size_t i = 0; i < c->n_shards; i++)
        n += safetensors_count(c->shards[i].file);
    c->tensors = calloc(n + 1, sizeof *c->tensors);
    c->needed = calloc(n + 1, sizeof *c->needed);
    if (!c->tensors || !c->needed)
        return error_set(err, "%s: out of memory", c->dir);
    for (size_t i = 0; i < c->n_shards; i++) {
        for (size_t j = 0; j < safetensors_count(c->shards[i].file); j++)
            c->tensors[c->count++] = safetensors_at(c->shards[i].file, j);
    }
    qsort(c->tensors, n, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < n; i++) {
        const struct tensor *a = c->tensors[i - 1], *b = c->tensors[i];
        if (!strcmp(a->name, b->name))
            return tensor_refuse(a, err, " is also in %s", b->file);
    }
    return 0;
}

static int open_files(struct checkpoint *c, struct error *err) {
    if (model_folder_has(c->dir, SINGLE_FILE))
        return open_shard(c, SINGLE_FILE, err);
    if (model_folder_has(c->dir, INDEX_FILE))
        return open_index(c, err);
    if (model_folder_has(c->dir, "pytorch_model.bin") ||
        model_folder_has(c->dir, "pytorch_model.bin.index.json"))
        return error_set(err,
                         "%s: has pytorch_model.bin but no %s. Only the safetensors format is "
                         "read; save_pretrained of the transformers library writes it",
                         c->dir, SINGLE_FILE);
    return error_set(err, "%s: neither %s nor %s is there", c->dir, SINGLE_FILE, INDEX_FILE);
}

int checkpoint_open(struct checkpoint **out, const char *dir, struct error *err) {
    *out = NULL;
    if (model_folder_check(dir, err))
        return -1;
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c || !(c->dir = strdup(dir))) {
        error_set(err, "%s: out of memory", dir);
        goto fail;
    }
    if (open_files(c, err) || list_tensors(c, err) || check_index(c, err))
        goto fail;
    *out = c;
    return 0;
fail:
    checkpoint_close(c);
    return -1;
}

void checkpoint_close(struct checkpoint *c) {
    if (!c)
        return;
    for (size_t i = 0; i < c->n_shards; i++)
        safetensors_close(c->shards[i].file);
    json_decref(c->index);
    free(c->tensors);
    free(c->needed);
    free(c->shards);
    free(c->dir);
    free(c);
}

size_t checkpoint_count(const struct checkpoint *c) {
    return c->count;
}

const struct tensor *checkpoint_at(const struct checkpoint *c, size_t i) {
    return i < c->count ? c->tensors[i] : NULL;
}

/* Where in c->tensors it is, or NULL. */
static const struct tensor **find(const struct checkpoint *c, const char *name) {
    const struct tensor key = {.name = name}, *wanted = &key;
    return bsearch(&wanted, c->tensors, c->count, sizeof *c->tensors, by_name);
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    const struct tensor **found = find(c, name);
    return found ? *found : NULL;
}

enum { SHAPE_TEXT = 22 * TENSOR_MAX_DIMS };

/* "[128,256]" */
static void write_shape(char out[SHAPE_TEXT], int n_dims, const int64_t *shape) {
    size_t n = 0;
    out[n++] = '[';
    for (int i = 0; i < n_dims && i < TENSOR_MAX_DIMS; i++)
        n += (size_t)snprintf(out + n, SHAPE_TEXT - n, "%s%" PRId64, i ? "," : "", shape[i]);
    snprintf(out + n, SHAPE_TEXT - n, "]");
}

static bool has_shape(const struct tensor *t, int n_dims, const int64_t *shape) {
    for (int i = 0; i < t->n_dims && i < n_dims; i++)
        if (t->shape[i] != shape[i])
            return false;
    return t->n_dims == n_dims;
}

const struct tensor *checkpoint_need(struct checkpoint *c, const char *name, int n_dims,
                                     const int64_t *shape, struct error *err) {
    const struct tensor **found = find(c, name), *t;
    if (!found) {
        error_set(err, "%s: tensor \"%s\" is missing. Is this checkpoint for another config?",
                  c->dir, name);
        return NULL;
    }
    t = *found;
    if (t->dtype == DTYPE_OTHER) {
        tensor_refuse(t, err, " is %s; BF16, F16 and F32 are supported", t->dtype_name);
        return NULL;
    }
    if (!has_shape(t, n_dims, shape)) {
        char is[SHAPE_TEXT], expected[SHAPE_TEXT];
        write_shape(is, t->n_dims, t->shape);
        write_shape(expected, n_dims, shape);
        tensor_refuse(t, err, " is %s, config.json says %s. Is this checkpoint for another config?",
                      is, expected);
        return NULL;
    }
    c->needed[found - c->tensors] = true;
    return t;
}

bool checkpoint_was_needed(const struct checkpoint *c, size_t i) {
    return c->needed[i];
}
