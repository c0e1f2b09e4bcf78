/*
 * contiguous.h - the KV caches that phases 1 to 6 offer, one piece of memory for each sequence.
 */
#ifndef SAMEBITS_CONTIGUOUS_H
#define SAMEBITS_CONTIGUOUS_H

#include "scheduler/kv_contiguous.h"
#include "tutorials/common/demo.h"

enum { DYNAMIC, STATIC, N_CONTIGUOUS };

static const struct cache_kind contiguous_caches[N_CONTIGUOUS + 1] = {
    {"dynamic", kv_dynamic_new, kv_cache_free},
    {"static", kv_static_new, kv_cache_free},
    {NULL, NULL, NULL}};

#endif
