#include "tutorials/12-server/house.h"

#include "tutorials/common/pool.h"

#include <limits.h>

/* A token takes some bytes of a body, and whatever a text needs to be escaped. */
struct server_options house_limits(const struct demo *demo) {
    return (struct server_options){.host = "127.0.0.1",
                                   .most_body = (64 << 10) + 64 * (size_t)demo->generator.context,
                                   .time_limit = demo->options.timeout,
                                   .most_connections = 1000};
}

/* The longest sequence that the pool has room for: no request may become longer. */
static int pool_positions(const struct kv_pool *p) {
    int64_t n = (int64_t)p->blocks.stats.total * p->block_size;
    return n < INT_MAX ? (int)n : INT_MAX;
}

int house_open(struct house *h, struct demo *demo, const struct server_options *options,
               struct error *err) {
    struct paged_options paged = {(enum preempt_mode)demo->options.preempt,
                                  !demo->options.no_prefix_cache};
    struct service_options service = {.scheduler = {demo->options.max_running,
                                                    demo->options.token_budget, demo->options.chunk,
                                                    true},
                                      .memory = &h->memory,
                                      .tokenizer = demo->tokenizer,
                                      .max_waiting = demo->options.max_waiting,
                                      .wait_limit = demo->options.max_wait,
                                      .stepped = server_stepped,
                                      .context = &h->server};
    *h = (struct house){
        .server = {.lock = PTHREAD_MUTEX_INITIALIZER, .view.lock = PTHREAD_MUTEX_INITIALIZER}};
    if (demo_pool_start(demo, &h->pool, 0, err))
        return -1;
    if (demo->generator.context > pool_positions(&h->pool))
        demo->generator.context = pool_positions(&h->pool);
    paged_memory_start(&h->memory, &h->pool, &paged);
    h->service = service_start(&demo->generator, &service, err);
    if (!h->service)
        return -1;
    return server_start(&h->server, demo, h->service, options, err);
}

int house_close(struct house *h, double patience, struct error *err) {
    int result = 0;
    if (h->service) {
        service_drain(h->service, patience);
        result = service_stop(h->service, err);
    }
    server_end(&h->server);
    service_free(h->service);
    paged_memory_end(&h->memory);
    kv_pool_end(&h->pool);
    return result;
}
