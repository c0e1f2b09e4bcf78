/*
 * Lab 1: a contiguous KV cache. Your file takes the place of ref/kv_append.c and
 * scheduler/kv_contiguous.c; the task is in the section "Lab" of this chapter. `make lab1` builds
 * and grades it.
 *
 * Step 1 uses model/attention/kv_view.h (where an element lies), model/attention/kv_type.h (what is
 * stored) and model/numerics.h; steps 2 and 3 model/kv_cache.h. A model's sizes are n_layers,
 * n_kv_heads and head_dim of model->config, its device is model->dev.
 */
#include "ref/ref.h"
#include "scheduler/kv_contiguous.h"
#include "tests/labs/not_written.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 64 };

/* ---- step 1: append -------------------------------------------------------------------------- */

/*
 * Row `head` of k and v of token i goes to slot slots[i]: page slots[i] / page_size, position
 * slots[i] % page_size. A negative slot: nothing is written. kv->k and kv->v say where: element d
 * of a row is element kv_view_row(view, page, position, head) + kv_view_element(view, d) of
 * view->data (kv_store_bits writes one, and takes what kv_bits makes of a float, with view->scale),
 * and its exponent is view->exponents[kv_view_exponent(view, page, position, head)], if
 * kv_type_has_exponents. The exponent of a row is kv_stored_exponent of the largest num_magnitude
 * in it. One above BFP_MAX_EXPONENT: the row holds NaN or infinity; it becomes zeros with
 * BFP_MIN_EXPONENT, and ref_fault is told with site_k or site_v and the token. (ref_store_row does
 * all this for one row: a file that calls it is refused.)
 */
void ref_kv_append(struct device *dev, const struct kv_views *kv,
                   const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                   const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                   const int64_t *slots, /* [n_tokens] */
                   int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                   int site_v) {
    (void)dev, (void)kv, (void)k, (void)v, (void)slots, (void)n_tokens, (void)page_size;
    (void)n_kv_heads, (void)head_dim, (void)site_k, (void)site_v;
    not_written("for each token and head: find the row's exponent, store its elements and the "
                "exponent in the token's slot");
}

/* ---- step 2: a cache with room for everything ------------------------------------------------ */

/* What a cache points to begins with struct kv_cache, so that one can be cast to the other. */
struct contiguous {
    struct kv_cache base;
    int limit; /* positions it may ever hold */
};

/*
 * A cache with room for `capacity` positions from the start: kv_layer_alloc of every layer, as
 * KV_BFP16. Set all members of struct kv_cache (model/kv_cache.h): bytes is n_layers times
 * kv_layer_bytes; slots and page_table stay NULL. Its `reserve` returns 0 for up to `capacity`
 * positions, and -1 with err set (error_set does both) for more. NULL with err set, and all memory
 * given back: there was not enough.
 */
struct kv_cache *kv_static_new(const struct model *model, int capacity, struct error *err) {
    (void)model, (void)capacity, (void)err;
    not_written("allocate the cache and its layers, set the members and a reserve that refuses "
                "more than the capacity");
}

/* Frees a cache of either kind, with its layers (kv_layer_free); NULL is fine. */
void kv_cache_free(struct kv_cache *cache) {
    (void)cache;
    not_written("free each layer with the cache's capacity, the array of layers, the cache");
}

/* ---- step 3: a cache that grows -------------------------------------------------------------- */

/*
 * An empty cache: capacity and bytes are 0. Its `reserve` makes room for n_positions: none to spare
 * if they fit, else the capacity begins with FIRST_CAPACITY and doubles until they fit, but is
 * never above `limit`. What is stored is copied, keys, values and exponents (kv_layer_parts says
 * where they are, dev->ops->copy(dev, to, from, bytes) copies); the old piece is freed. More than
 * `limit`: -1 with err set, and the cache is as it was. No memory for a layer: -1 with err set;
 * what the cache is then is the stretch task.
 */
struct kv_cache *kv_dynamic_new(const struct model *model, int limit, struct error *err) {
    (void)model, (void)limit, (void)err;
    not_written("allocate an empty cache, with a reserve that doubles the capacity, copies what is "
                "stored and frees the old layers");
}
