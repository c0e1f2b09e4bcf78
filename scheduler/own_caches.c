#include "scheduler/own_caches.h"

#include <stdlib.h>

static struct own_caches *own(struct request_memory *m) {
    return (struct own_caches *)m;
}

static int start(struct request_memory *m, const struct scheduler *s,
                 const struct memory_request *requests, int n, struct error *err) {
    (void)s;
    own(m)->requests = requests;
    own(m)->caches = calloc((size_t)n + 1, sizeof *own(m)->caches);
    own(m)->n_requests = own(m)->caches ? n : 0;
    return own(m)->caches ? 0 : error_set(err, "out of memory for %d caches", n);
}

static bool admit(struct request_memory *m, int request, int n_tokens, int *n_cached) {
    struct own_caches *o = own(m);
    int positions = o->positions ? o->positions : o->requests[request].max_positions;
    (void)n_tokens;
    *n_cached = 0;
    o->caches[request].cache = o->create(o->model, positions, &m->why);
    return o->caches[request].cache;
}

/* A dynamic cache grows in the pass that needs it. */
static bool reserve(struct request_memory *m, int request, int n_positions) {
    (void)m, (void)request, (void)n_positions;
    return true;
}

static struct kv_cache *cache(struct request_memory *m, int request) {
    return own(m)->caches[request].cache;
}

static void stored(struct request_memory *m, int request, int n_positions) {
    struct own_cache *c = &own(m)->caches[request];
    (void)n_positions;
    m->bytes += (int64_t)c->cache->bytes - c->bytes;
    c->bytes = (int64_t)c->cache->bytes;
}

static void release(struct request_memory *m, int request) {
    struct own_cache *c = &own(m)->caches[request];
    if (c->cache)
        own(m)->destroy(c->cache);
    m->bytes -= c->bytes;
    *c = (struct own_cache){0};
}

void own_caches_start(struct own_caches *m, const struct model *model,
                      struct kv_cache *(*create)(const struct model *, int, struct error *),
                      void (*destroy)(struct kv_cache *), int positions) {
    *m = (struct own_caches){.base = {.start = start,
                                      .admit = admit,
                                      .reserve = reserve,
                                      .cache = cache,
                                      .stored = stored,
                                      .release = release},
                             .model = model,
                             .create = create,
                             .destroy = destroy,
                             .positions = positions};
}

void own_caches_end(struct own_caches *m) {
    for (int i = 0; i < m->n_requests; i++)
        release(&m->base, i);
    free(m->caches);
    *m = (struct own_caches){0};
}
