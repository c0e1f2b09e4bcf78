#include "model/ops.h"

#include <stdio.h>
#include <string.h>

/* What to do for a device that this build has not. */
static const char *how_to_get(const char *name) {
    if (!strcmp(name, "emu"))
        return "Build it with KERNELS=emu";
    if (!strcmp(name, "gpu"))
        return "Install nvcc, the CUDA compiler, and build again, or with KERNELS=gpu";
    if (!strcmp(name, "cuda"))
        return "Do you mean gpu?";
    return "Choose one of them";
}

const struct ops *ops_find(const char *name, struct error *err) {
    const struct ops *const all[] = {&ref_ops, &gpu_ops, &emu_ops};
    char names[64] = "";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i])
            continue;
        if (!strcmp(name, all[i]->name))
            return all[i];
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", all[i]->name);
    }
    error_set(err, "--device %s: no such device in this build. Built in: %s. %s", name, names,
              how_to_get(name));
    return NULL;
}

bool ops_share_memory(const struct ops *ops) {
    return ops->alloc == ops->alloc_host_visible;
}

const struct ops *ops_default(struct error *why) {
    why->text[0] = 0;
    if (!&gpu_ops)
        return &ref_ops;
    struct device *dev = gpu_ops.open(&(struct device_options){0}, why);
    if (!dev)
        return &ref_ops;
    gpu_ops.close(dev);
    return &gpu_ops;
}

struct kv_views kv_layer_views(const struct kv_layer *kv, enum kv_type type, int page_size,
                               int n_kv_heads, int head_dim) {
    int64_t dim = head_dim, heads = n_kv_heads;
    struct kv_view k = {.data = kv->k,
                        .exponents = kv->k_exponents,
                        .page_step = page_size * heads * dim,
                        .position_step = heads * dim,
                        .head_step = dim,
                        .group_step = dim,
                        .element_step = 1,
                        .page_exponents = page_size * heads,
                        .position_exponents = heads,
                        .head_exponents = 1,
                        .x = head_dim,
                        .type = type,
                        .scale = 1};
    struct kv_view v = k;
    v.data = kv->v;
    v.exponents = kv->v_exponents;
    return (struct kv_views){k, v};
}
