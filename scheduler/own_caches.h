/*
 * own_caches.h - phase 3: a memory in which each request has a cache of its own, from its admission
 * to its end. Nobody is preempted; a request for whose cache there is no memory waits until another
 * one is done.
 */
#ifndef SAMEBITS_OWN_CACHES_H
#define SAMEBITS_OWN_CACHES_H

#include "model/model.h"
#include "scheduler/request_memory.h"

struct own_cache {
    struct kv_cache *cache; /* NULL while the request holds none */
    int64_t bytes;          /* as counted in base.bytes */
};

struct own_caches {
    struct request_memory base; /* first: pointers to it are pointers to the whole */
    const struct model *model;
    /* Makes a cache for at most `positions` positions, or returns NULL with err set; and frees it:
     * kv_dynamic_new and kv_cache_free, for example. */
    struct kv_cache *(*create)(const struct model *model, int positions, struct error *err);
    void (*destroy)(struct kv_cache *cache);
    int positions; /* given to create; 0: what the request can come to store */
    const struct memory_request *requests;
    struct own_cache *caches; /* [n_requests] */
    int n_requests;
};

/* For one run of an engine, after which it is ended. The model is not owned; m must not move. */
void own_caches_start(struct own_caches *m, const struct model *model,
                      struct kv_cache *(*create)(const struct model *, int, struct error *),
                      void (*destroy)(struct kv_cache *), int positions);

/* Frees what a run that failed has left. A zeroed one is fine. */
void own_caches_end(struct own_caches *m);

#endif
