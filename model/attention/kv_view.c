#include "model/attention/kv_view.h"

const char *kv_type_name(enum kv_type type) {
    static const char *const names[N_KV_TYPES] = {"bfp16", "bfp8", "e4m3", "e5m2", "fp16", "bf16"};
    return names[type];
}

/* Whether elements are stored divided by a scale. */
static bool has_scale(enum kv_type t) {
    return t == KV_E4M3 || t == KV_E5M2;
}

static bool is_one(float scale) {
    return scale == 0 || scale == 1;
}

/* Elements in 16 bytes. */
static int vector_of(const struct kv_layout *l) {
    return 16 / kv_type_bytes(l->type);
}

/* Rows of the keys, or 0: too many, or a size below 1. */
static int64_t rows_of(const struct kv_layout *l) {
    int64_t positions = (int64_t)l->n_pages * l->page_size, most = (int64_t)1 << 48;
    if (l->n_pages < 1 || l->page_size < 1 || l->n_kv_heads < 1 || l->head_dim < 1)
        return 0;
    return positions > most / l->n_kv_heads / l->head_dim / 2 ? 0 : positions * l->n_kv_heads;
}

int64_t kv_layout_exponents(const struct kv_layout *l) {
    return rows_of(l) * (l->one_tensor ? 2 : 1);
}

int64_t kv_layout_elements(const struct kv_layout *l) {
    return kv_layout_exponents(l) * l->head_dim;
}

/* The steps of keys, and of values but in vLLM's layout. */
static struct kv_view steps_of(const struct kv_layout *l) {
    int64_t heads = l->n_kv_heads, size = l->page_size, dim = l->head_dim;
    struct kv_view v = {.type = l->type, .x = l->head_dim, .group_step = dim, .element_step = 1};
    v.page_exponents = size * heads * (l->one_tensor ? 2 : 1);
    v.position_exponents = l->order == KV_NHD ? heads : 1;
    v.head_exponents = l->order == KV_NHD ? 1 : size;
    v.page_step = v.page_exponents * dim;
    v.position_step = v.position_exponents * dim;
    v.head_step = v.head_exponents * dim;
    if (l->order == KV_VLLM) {
        v.x = vector_of(l);
        v.group_step = size * v.x;
        v.position_step = v.x;
    }
    return v;
}

int kv_views_of(struct kv_views *out, const struct kv_layout *l, void *k, void *v,
                int8_t *k_exponents, int8_t *v_exponents, struct error *err) {
    if (!rows_of(l))
        return error_set(err,
                         "a KV cache of %d pages of %d positions, %d heads of %d: every size must "
                         "be at least 1, and all together below 2^47 elements",
                         l->n_pages, l->page_size, l->n_kv_heads, l->head_dim);
    if (l->type >= N_KV_TYPES || !(l->k_scale >= 0 && l->v_scale >= 0) || isinf(l->k_scale) ||
        isinf(l->v_scale))
        return error_set(err,
                         "a KV cache of type %d with scales %g and %g: types are 0 to %d, scales "
                         "positive numbers",
                         (int)l->type, (double)l->k_scale, (double)l->v_scale, N_KV_TYPES - 1);
    if (!has_scale(l->type) && !(is_one(l->k_scale) && is_one(l->v_scale)))
        return error_set(err,
                         "a KV cache of type %s with scales %g and %g: only fp8 (e4m3, e5m2) has "
                         "scales, leave them 1",
                         kv_type_name(l->type), (double)l->k_scale, (double)l->v_scale);
    if (l->order == KV_VLLM && (l->one_tensor || l->head_dim % vector_of(l)))
        return error_set(err,
                         "vLLM's layout has keys and values in two tensors and needs a head "
                         "dimension that %d divides, not %d%s",
                         vector_of(l), l->head_dim, l->one_tensor ? " in one tensor" : "");
    out->k = out->v = steps_of(l);
    out->k.data = k;
    out->k.exponents = k_exponents;
    int64_t half = (int64_t)l->page_size * l->n_kv_heads; /* rows of the keys of a page */
    out->v.data = l->one_tensor ? (char *)k + half * l->head_dim * kv_type_bytes(l->type) : v;
    out->v.exponents = l->one_tensor && k_exponents ? k_exponents + half
                       : l->one_tensor              ? NULL
                                                    : v_exponents;
    out->k.scale = l->k_scale == 0 ? 1 : l->k_scale;
    out->v.scale = l->v_scale == 0 ? 1 : l->v_scale;
    if (l->order == KV_VLLM) {
        out->v.x = l->head_dim;
        out->v.element_step = l->page_size;
        out->v.group_step = out->v.x * out->v.element_step;
        out->v.position_step = 1;
    }
    return 0;
}
