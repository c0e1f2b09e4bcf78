/*
 * kv_contiguous.h - phase 1: the KV cache of one sequence as one piece of memory per layer.
 *
 * Static: room for the whole context from the start; never copies, mostly empty.
 * Dynamic: starts with 64 positions and doubles by copying; from there on never more than twice
 * what is used, but while it copies the old and the new piece exist at once.
 */
#ifndef SAMEBITS_KV_CONTIGUOUS_H
#define SAMEBITS_KV_CONTIGUOUS_H

#include "model/kv_cache.h"
#include "model/model.h"

/* A cache with room for `capacity` positions, for kv_cache_free; NULL with err set when there is
 * no memory. Its reserve refuses more. */
struct kv_cache *kv_static_new(const struct model *model, int capacity, struct error *err);

/* An empty cache that grows up to `limit` positions, for kv_cache_free; NULL with err set. Where
 * there is no memory to grow, what was stored may be lost: capacity and bytes say what is left. */
struct kv_cache *kv_dynamic_new(const struct model *model, int limit, struct error *err);

/* NULL is fine. */
void kv_cache_free(struct kv_cache *cache);

#endif
