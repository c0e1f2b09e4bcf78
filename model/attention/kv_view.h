/*
 * kv_view.h - where the elements of a KV cache lie: one description for every layout.
 *
 * A cache is a row of pages; a page has page_size positions, a position n_kv_heads rows of head_dim
 * elements. How these nest differs:
 *
 *     NHD        [pages, page_size, n_kv_heads, head_dim]
 *     HND        [pages, n_kv_heads, page_size, head_dim]
 *     vLLM       keys   [pages, n_kv_heads, head_dim / x, page_size, x], x elements in 16 bytes
 *                values [pages, n_kv_heads, head_dim, page_size]
 *
 * NHD and HND are also found with keys and values in one tensor of five dimensions, [pages, 2,
 * ...]: first the keys of a page, then its values. (The names: FlashInfer, "KV-Cache Layout"; the
 * third: vLLM's paged_attention kernels, Kwon et al., 2023.) Each row has an exponent; exponents
 * lie like the rows, without head_dim.
 *
 * A contiguous cache is one large page. Ragged keys, [rows, n_kv_heads, head_dim] for all sequences
 * one after the other, are NHD with pages of one position.
 */
#ifndef SAMEBITS_MODEL_ATTENTION_KV_VIEW_H
#define SAMEBITS_MODEL_ATTENTION_KV_VIEW_H

#include "model/attention/kv_type.h"
#include "model/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kv_order { KV_NHD, KV_HND, KV_VLLM };

struct kv_layout {
    enum kv_order order;
    bool one_tensor; /* [pages, 2, ...]; not with KV_VLLM */
    int n_pages, page_size, n_kv_heads, head_dim;
    enum kv_type type;
    float k_scale, v_scale; /* of fp8: an element times the scale is the number; 0: 1 */
};

/* The keys or the values: element d of the row of a head at a position of a page is
 * data[page * page_step + position * position_step + head * head_step
 *           + d / x * group_step + d % x * element_step], and so for exponents, without d. */
struct kv_view {
    void *data;
    int8_t *exponents; /* not looked at where the type has none */
    int64_t page_step, position_step, head_step, group_step, element_step;
    int64_t page_exponents, position_exponents, head_exponents; /* the exponents' steps */
    int x;
    enum kv_type type;
    float scale;
};

struct kv_views {
    struct kv_view k, v;
};

struct attention_plan; /* a device's own (ops.h) */

/* Where the keys and values of a pass are stored, and the sites of their faults. */
struct kv_target {
    struct kv_views kv;
    const int64_t *slots; /* device [n_tokens] */
    int page_size;
    int site_k, site_v; /* rows that the cache's type cannot hold */
    /* NULL, or: the next op is attend of this plan, with the variant that it was made with and
     * these queries, one of each sequence, whose key is its newest and seen by no other; all older
     * keys and values were stored before the plan was made, and may be read before the op in front
     * has ended; and nobody reads what becomes of q and k. Then all that norm_rope does may be left
     * to attend. */
    const struct attention_plan *then;
};

/* "bfp16", "bfp8", "e4m3", ...: as in --kv-type. Static. */
const char *kv_type_name(enum kv_type type);

/* A layout of bfp16. */
static inline struct kv_layout kv_layout_of(enum kv_order order, bool one_tensor, int n_pages,
                                            int page_size, int n_kv_heads, int head_dim) {
    struct kv_layout l = {order,    one_tensor, n_pages, page_size, n_kv_heads,
                          head_dim, KV_BFP16,   1,       1};
    return l;
}

/* How many elements, and exponents, the keys take (as many as the values); with one_tensor, keys
 * and values together. 0: too many, or a size below 1. */
int64_t kv_layout_elements(const struct kv_layout *l);
int64_t kv_layout_exponents(const struct kv_layout *l);

/*
 * The views of a cache whose arrays begin at k and v, and their exponents; with one_tensor, v and
 * v_exponents are not looked at. Only addresses are worked out: the arrays may be on any device.
 * Returns 0, or -1 with err set: a size below 1 or too large, one_tensor with KV_VLLM, a head_dim
 * that KV_VLLM's groups of 16 bytes do not divide, a type that does not exist, a scale that is not
 * positive and finite (0 counts as 1), or not 1 where the type is not fp8.
 */
int kv_views_of(struct kv_views *out, const struct kv_layout *l, void *k, void *v,
                int8_t *k_exponents, int8_t *v_exponents, struct error *err);

#ifdef __CUDACC__
#define KV_VIEW_FN static __host__ __device__ __forceinline__
#else
#define KV_VIEW_FN static inline
#endif

/* Where the row of a head at a position of a page begins. */
KV_VIEW_FN int64_t kv_view_row(const struct kv_view *v, int64_t page, int64_t position, int head) {
    return page * v->page_step + position * v->position_step + head * v->head_step;
}

/* Whether its rows are of bfp16, each in one piece. */
static inline bool kv_view_has_bfp16_rows(const struct kv_view *v) {
    return v->type == KV_BFP16 && v->element_step == 1 && v->group_step == v->x;
}

/* Where its exponent is. */
KV_VIEW_FN int64_t kv_view_exponent(const struct kv_view *v, int64_t page, int64_t position,
                                    int head) {
    return page * v->page_exponents + position * v->position_exponents + head * v->head_exponents;
}

/* Where element d of a row is, counted from its beginning. */
KV_VIEW_FN int64_t kv_view_element(const struct kv_view *v, int d) {
    return d / v->x * v->group_step + d % v->x * v->element_step;
}

#ifdef __cplusplus
}
#endif

#endif
